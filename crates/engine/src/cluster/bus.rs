//! The `Bus` port: bytes from one node to others, fast, and without a promise of delivery.
//!
//! A message may be lost as a whole. It arrives unchanged and at most once, and the messages of one sender to one
//! receiver arrive in the order in which they were sent. Nothing rests on the bus: a commit that a node did not hear
//! of over the bus, it reads from the store. [`LocalBus`] joins engines of one process (tests); Redis joins processes.

use bytes::Bytes;
use parking_lot::RwLock;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// Takes the messages that peers send to this node. The bus calls it from its own threads: a call must not block for
/// long.
pub trait MessageHandler: Send + Sync + 'static {
    fn on_message(&self, message: Bytes);
    /// Messages may have been lost: the bus was down, or had more than it could queue.
    fn on_gap(&self);
}

/// What carries messages between nodes.
pub trait Bus: Send + Sync + 'static {
    /// From here on, messages to `name` go to `handler`. Called once in the life of a bus.
    fn listen(&self, name: &str, handler: Arc<dyn MessageHandler>);
    /// Sends the message to each of these nodes. Never blocks. Returns whether the bus took it for all of them: what it
    /// took may still be lost.
    fn send(&self, to: &[Arc<str>], message: Bytes) -> bool;
    /// Whether messages flow now, as far as is known.
    fn is_up(&self) -> bool;
    /// Why the bus is not up, in a few words.
    fn trouble(&self) -> Option<String>;
    fn stop(&self);
}

/// Joins engines of one process. Each engine has its own end of the bus: a [`LocalBus::clone`] of the same one.
///
/// ```
/// # use bytes::Bytes;
/// # use std::sync::{Arc, Mutex};
/// # use tidings_engine::cluster::bus::{Bus, LocalBus, MessageHandler};
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
