//! A clock that a test sets.

use std::sync::atomic::{AtomicU64, Ordering};
use tidings_domain::clock::Clock;

/// A clock that stands still until it is set.
#[derive(Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    pub fn set(&self, now_ms: u64) {
        self.0.store(now_ms, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
