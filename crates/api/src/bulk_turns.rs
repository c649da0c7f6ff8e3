//! Turns for bulk: large requests are parsed, and their messages accepted, a few at a time.
//!
//! A batch of 500 messages takes milliseconds of a thread that serves other connections, too. However many batches come at once, half of
//! those threads stay free for short requests.

use tokio::sync::{Semaphore, SemaphorePermit};

/// Above this size a body counts as bulk, in bytes: it takes longer to parse than a send takes in all.
const BULK_BYTES: usize = 16 * 1024;

/// Bulk that is worked on at once; more waits in the order in which it came.
pub(crate) struct BulkTurns(Semaphore);

impl BulkTurns {
    /// Half of the cores, and at least one.
    pub(crate) fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        BulkTurns(Semaphore::new((cores / 2).max(1)))
    }

    /// Waits for a turn, if so many bytes are bulk. The turn ends with what is returned: it must not be held while anything else is
    /// waited for.
    pub(crate) async fn turn(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        if bytes > BULK_BYTES { self.0.acquire().await.ok() } else { None }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::{
        future::Future,
        pin::pin,
        task::{Context, Poll, Waker},
    };

    #[test]
    fn bulk_waits_for_its_turn_and_short_requests_do_not() {
        let turns = BulkTurns(Semaphore::new(1));
        let poll = |future: &mut dyn FnMut(&mut Context<'_>) -> bool| future(&mut Context::from_waker(Waker::noop()));
        let (mut first, mut second) = (pin!(turns.turn(BULK_BYTES + 1)), pin!(turns.turn(500_000)));
        let mut held = None;
        assert!(poll(&mut |context| match first.as_mut().poll(context) {
            Poll::Ready(turn) => {
                held = turn;
                held.is_some()
            }
            Poll::Pending => false,
        }));
        assert!(!poll(&mut |context| second.as_mut().poll(context).is_ready()), "one at a time");
        let mut short = pin!(turns.turn(BULK_BYTES));
        assert!(poll(&mut |context| short.as_mut().poll(context).is_ready()));
        drop(held);
        assert!(poll(&mut |context| second.as_mut().poll(context).is_ready()));
    }
}
