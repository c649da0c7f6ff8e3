//! Peers whose programs do not know installations, during an upgrade: they publish to, and listen on, channels without one.
//!
//! A node listens on its own channel without an installation only while such a peer is there. Until the last of them is
//! upgraded, nodes of another installation before the upgrade are heard there too, as they were before.

use crate::subscription::Subscription;
use parking_lot::{Mutex, RwLock};
use std::{
    collections::HashSet,
    sync::{Arc, Weak},
};
use tidings_domain::bus::MessageHandler;
use tokio::{runtime::Runtime, task::JoinHandle};

/// This node's name and handler.
type Listener = (Arc<str>, Weak<dyn MessageHandler>);

#[derive(Default)]
pub(crate) struct OlderPeers {
    names: RwLock<HashSet<Arc<str>>>,
    listener: Mutex<Option<Listener>>,
    /// The subscription, while there are such peers.
    listening: Mutex<Option<JoinHandle<()>>>,
}

impl OlderPeers {
    pub(crate) fn set_listener(&self, name: &str, handler: &Arc<dyn MessageHandler>) {
        *self.listener.lock() = Some((name.into(), Arc::downgrade(handler)));
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.names.read().contains(name)
    }

    /// Returns the peers that have become, or are no longer, such peers.
    pub(crate) fn set(&self, names: &[Arc<str>]) -> Vec<Arc<str>> {
        let new: HashSet<Arc<str>> = names.iter().cloned().collect();
        if *self.names.read() == new {
            return Vec::new();
        }
        let mut known = self.names.write();
        let changed = known.symmetric_difference(&new).cloned().collect();
        *known = new;
        changed
    }

    /// Listens while there is such a peer.
    pub(crate) fn listen_while_any(
        &self,
        runtime: Option<&Runtime>,
        subscription: impl FnOnce(&str, Arc<dyn MessageHandler>) -> Subscription,
    ) {
        let is_needed = !self.names.read().is_empty();
        let mut listening = self.listening.lock();
        if !is_needed {
            if let Some(task) = listening.take() {
                task.abort();
            }
            return;
        }
        if listening.is_some() {
            return;
        }
        let listener = self.listener.lock().clone();
        let Some((name, handler)) = listener.and_then(|(name, handler)| Some((name, handler.upgrade()?))) else {
            return;
        };
        let subscription = subscription(&name, handler);
        *listening = runtime.map(|runtime| runtime.spawn(async move { subscription.maintain().await }));
    }
}
