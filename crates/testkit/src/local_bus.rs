//! A bus that joins engines of one process.

use bytes::Bytes;
use parking_lot::RwLock;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};
use tidings_domain::bus::{Bus, MessageHandler};

/// Joins engines of one process. Each engine has its own end of the bus: a [`LocalBus::clone`] of the same one.
///
/// ```
/// # use bytes::Bytes;
/// # use std::sync::{Arc, Mutex};
/// # use tidings_domain::bus::{Bus, MessageHandler};
/// # use tidings_testkit::LocalBus;
/// #[derive(Default)]
/// struct Received(Mutex<Vec<Bytes>>);
///
/// impl MessageHandler for Received {
///     fn on_message(&self, message: Bytes) {
///         self.0.lock().unwrap().push(message);
///     }
///     fn on_gap(&self) {}
/// }
///
/// let (a, received) = (LocalBus::default(), Arc::new(Received::default()));
/// let b = a.clone();
/// b.listen("b", received.clone());
/// assert!(a.send(&["b".into()], Bytes::from_static(b"hello")));
/// assert_eq!(*received.0.lock().unwrap(), ["hello"]);
/// ```
#[derive(Default)]
pub struct LocalBus {
    handlers: Arc<RwLock<BTreeMap<String, Arc<dyn MessageHandler>>>>,
    down: Arc<AtomicBool>,
    /// The name that this end listens under.
    name: OnceLock<String>,
    stopped: AtomicBool,
}

impl Clone for LocalBus {
    fn clone(&self) -> Self {
        let (handlers, down) = (self.handlers.clone(), self.down.clone());
        Self { handlers, down, name: OnceLock::new(), stopped: AtomicBool::new(false) }
    }
}

impl LocalBus {
    /// While the bus is down, it loses every message.
    pub fn set_down(&self, down: bool) {
        let was = self.down.swap(down, Relaxed);
        if was && !down {
            self.handlers.read().values().for_each(|handler| handler.on_gap());
        }
    }

    /// The node receives nothing more, as if its process were dead.
    pub fn leave(&self, name: &str) {
        self.handlers.write().remove(name);
    }
}

impl Bus for LocalBus {
    fn listen(&self, name: &str, handler: Arc<dyn MessageHandler>) {
        self.handlers.write().insert(name.into(), handler);
        let _ = self.name.set(name.into());
    }

    fn send(&self, to: &[Arc<str>], message: Bytes) -> bool {
        if !self.is_up() {
            return false;
        }
        let handlers = self.handlers.read();
        to.iter().filter_map(|name| handlers.get(&**name)).for_each(|handler| handler.on_message(message.clone()));
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
