//! The `Bus` port: bytes from one node to others, fast, and without a promise.
//!
//! What is sent may be lost, whole, but comes neither changed nor twice, and what one node sends to another
//! comes in the order in which it was sent. Nothing rests on it: what a node did not hear of a commit it reads
//! from the store. [`LocalBus`] joins engines of one process (tests); Redis joins processes.

use bytes::Bytes;
use parking_lot::RwLock;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// Takes what others send to this node. Called from the bus' own threads: it must not wait for long.
pub trait Ear: Send + Sync + 'static {
    fn hear(&self, message: Bytes);
    /// Something may have been lost: the bus was away, or had more than it could hold.
    fn missed(&self);
}

pub trait Bus: Send + Sync + 'static {
    /// From here on, what is sent to `name` comes to `ear`. Once in the life of a bus.
    fn listen(&self, name: &str, ear: Arc<dyn Ear>);
    /// Sends to each of these nodes, the same bytes once. Never waits; answers whether the bus took it.
    fn send(&self, to: &[Arc<str>], message: Bytes) -> bool;
    /// Whether messages flow now, as far as is known.
    fn is_up(&self) -> bool;
    /// Says in a few words what is wrong when it is not up.
    fn trouble(&self) -> Option<String>;
    fn stop(&self);
}

/// Joins engines of one process: each has a [`LocalBus::clone`] of the same one, which is its own end of it.
#[derive(Default)]
pub struct LocalBus {
    ears: Arc<RwLock<BTreeMap<String, Arc<dyn Ear>>>>,
    down: Arc<AtomicBool>,
    /// The name that this end listens under, and whether it was stopped.
    name: OnceLock<String>,
    stopped: AtomicBool,
}

impl Clone for LocalBus {
    fn clone(&self) -> Self {
        let (ears, down) = (self.ears.clone(), self.down.clone());
        Self { ears, down, name: OnceLock::new(), stopped: AtomicBool::new(false) }
    }
}

impl LocalBus {
    /// While it is down, what is sent is lost.
    pub fn set_down(&self, down: bool) {
        let was = self.down.swap(down, Relaxed);
        if was && !down {
            self.ears.read().values().for_each(|ear| ear.missed());
        }
    }

    /// The node hears nothing more, as if it were dead.
    pub fn leave(&self, name: &str) {
        self.ears.write().remove(name);
    }
}

impl Bus for LocalBus {
    fn listen(&self, name: &str, ear: Arc<dyn Ear>) {
        self.ears.write().insert(name.into(), ear);
        let _ = self.name.set(name.into());
    }

    fn send(&self, to: &[Arc<str>], message: Bytes) -> bool {
        if !self.is_up() {
            return false;
        }
        let ears = self.ears.read();
        to.iter().filter_map(|name| ears.get(&**name)).for_each(|ear| ear.hear(message.clone()));
        true
    }

    fn is_up(&self) -> bool {
        !self.down.load(Relaxed) && !self.stopped.load(Relaxed)
    }

    fn trouble(&self) -> Option<String> {
        (!self.is_up()).then(|| "down".into())
    }

    fn stop(&self) {
        self.stopped.store(true, Relaxed);
        if let Some(name) = self.name.get() {
            self.leave(name);
        }
    }
}
