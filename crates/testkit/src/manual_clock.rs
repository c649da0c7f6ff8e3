//! A clock that a test sets.

use std::{
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tidings_domain::clock::Clock;

/// What the monotonic time of every [`ManualClock`] counts from.
static BASE: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A clock that stands still until it is set or moved on.
#[derive(Default)]
pub struct ManualClock {
    now_ms: AtomicU64,
    monotonic_ms: AtomicU64,
}

impl ManualClock {
    /// Sets the time of day, as an operator does. The monotonic time stays as it is.
    pub fn set(&self, now_ms: u64) {
        self.now_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        let by_ms = by.as_millis() as u64;
        self.now_ms.fetch_add(by_ms, Ordering::Relaxed);
        self.monotonic_ms.fetch_add(by_ms, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> u64 {
        self.now_ms.load(Ordering::Relaxed)
    }

    fn monotonic(&self) -> Instant {
        *BASE + Duration::from_millis(self.monotonic_ms.load(Ordering::Relaxed))
    }
}
