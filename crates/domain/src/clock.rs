//! The clock comes from outside, so that a test can stop or set it.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The source of time.
pub trait Clock: Send + Sync + 'static {
    /// The time of day, in milliseconds since 1970 UTC. It jumps when the machine's clock is set.
    fn now_ms(&self) -> u64;

    /// The time that never goes back, for limits and intervals.
    fn monotonic(&self) -> Instant;
}

/// The machine's clock.
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
    }

    fn monotonic(&self) -> Instant {
        Instant::now()
    }
}
