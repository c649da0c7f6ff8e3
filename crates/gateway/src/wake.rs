//! Wakes a thread that sleeps in its poll: a shard's, or a relay's.

use mio::{Token, Waker};
use std::sync::atomic::{AtomicBool, Ordering};
use tidings_engine::shards::Wake;

/// The poll token of a thread's waker.
pub(crate) const WAKE: Token = Token(usize::MAX);

/// Wakes a shard. It costs a system call only when the shard sleeps in its poll.
pub(crate) struct ShardWake {
    pub waker: Waker,
    pub asleep: AtomicBool,
}

impl Wake for ShardWake {
    fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst)
            && let Err(error) = self.waker.wake()
        {
            tracing::error!(%error, "a shard could not be woken");
        }
    }
}
