//! The `Bus` port: bytes from one node to others, fast, and without a promise of delivery.
//!
//! A message may be lost as a whole. It arrives unchanged and at most once, and the messages of one sender to one
//! receiver arrive in the order in which they were sent. Nothing rests on the bus: a commit that a node did not hear
//! of over the bus, it reads from the store.

use bytes::Bytes;
use std::{sync::Arc, time::Duration};

/// Takes the messages that peers send to this node. The bus calls it from its own threads: a call must not block for
/// long.
pub trait MessageHandler: Send + Sync + 'static {
    /// A message has arrived, whole and with the bytes that were sent. The bus does not say from whom: a message that
    /// needs its sender's name carries it.
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
    /// The same for a message that nobody waits for: it may wait some milliseconds for others, so that all cost less together.
    fn send_soon(&self, to: &[Arc<str>], message: Bytes) -> bool {
        self.send(to, message)
    }
    /// Whether messages flow now, as far as is known.
    fn is_up(&self) -> bool;
    /// Why the bus is not up, in a few words.
    fn trouble(&self) -> Option<String>;
    /// The peers whose programs do not know installations: a bus that names its channels by the installation reaches them, and
    /// is reached by them, under the names that they know. Called again with each change.
    fn set_peers_without_installation(&self, _names: &[Arc<str>]) {}
    /// Peers that nobody listens for where this bus sends to them: for so long, every message to them has met nobody.
    fn unheard_by(&self, _for_at_least: Duration) -> Vec<Arc<str>> {
        Vec::new()
    }
    /// Ends the bus. Messages that still wait may be sent first, for a short time of the implementation's own, or are
    /// lost.
    fn stop(&self);
}
