//! A latch on which one thread waits until several others have come as far.

use parking_lot::{Condvar, Mutex};
use std::{sync::Arc, time::Duration};

/// A latch that opens once it has been counted down as often as it was made for.
#[derive(Debug)]
pub struct CountdownLatch {
    left: Mutex<usize>,
    open: Condvar,
}

impl CountdownLatch {
    pub(crate) fn new(left: usize) -> Arc<CountdownLatch> {
        Arc::new(CountdownLatch { left: Mutex::new(left), open: Condvar::new() })
    }

    pub(crate) fn count_down(&self) {
        let mut left = self.left.lock();
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.open.notify_all();
        }
    }

    /// Waits until the latch is open, for `time` at most; answers whether it is.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        let mut left = self.left.lock();
        let closed = |left: &mut usize| *left > 0;
        !self.open.wait_while_for(&mut left, closed, time).timed_out()
    }
}
