//! The time of a node in a cluster: the machine's clock, held to the store's.
//!
//! ```text
//!  heartbeat:   asked ──── the store's clock is read ──── now        store's now = store_ms .. store_ms + round trip
//!  between:     the store's time = that + what has passed by the monotonic clock
//!  now_ms:      the machine's clock within a second of the store's time, else the store's time
//! ```
//! A conversation's times never go back: one message from a clock an hour ahead would date all later messages of all nodes an
//! hour ahead. So a wrong clock, or one that jumps between two heartbeats, gives no times.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};
use tidings_domain::clock::Clock;

/// Clocks that differ by less agree. NTP keeps clocks within some ten milliseconds.
pub(crate) const AGREES_MS: u64 = 1_000;

pub(crate) struct StoreTime {
    machine: Arc<dyn Clock>,
    started: Instant,
    /// What the store's clock showed at `started`; 0: not known.
    at_start_ms: AtomicU64,
}

impl StoreTime {
    pub(crate) fn new(machine: Arc<dyn Clock>) -> Self {
        StoreTime { started: machine.monotonic(), machine, at_start_ms: AtomicU64::new(0) }
    }

    /// Takes what the store's clock showed at some moment since `asked`, by the monotonic clock. Returns by how many
    /// milliseconds the machine's clock is ahead of the store's for certain; negative: behind.
    pub(crate) fn compare(&self, store_ms: u64, asked: Instant) -> i64 {
        let (machine_ms, now) = (self.machine.now_ms(), self.machine.monotonic());
        let round_trip_ms = now.saturating_duration_since(asked).as_millis() as u64;
        let store_now_ms = machine_ms.clamp(store_ms, store_ms.saturating_add(round_trip_ms));
        let elapsed_ms = now.saturating_duration_since(self.started).as_millis() as u64;
        self.at_start_ms.store(store_now_ms.saturating_sub(elapsed_ms).max(1), Relaxed);
        machine_ms as i64 - store_now_ms as i64
    }
}

impl Clock for StoreTime {
    fn now_ms(&self) -> u64 {
        let machine_ms = self.machine.now_ms();
        let at_start_ms = self.at_start_ms.load(Relaxed);
        if at_start_ms == 0 {
            return machine_ms;
        }
        let elapsed = self.machine.monotonic().saturating_duration_since(self.started);
        let store_ms = at_start_ms + elapsed.as_millis() as u64;
        if machine_ms.abs_diff(store_ms) <= AGREES_MS { machine_ms } else { store_ms }
    }

    fn monotonic(&self) -> Instant {
        self.machine.monotonic()
    }
}

#[cfg(test)]
#[path = "../../tests/units/cluster_store_time.rs"]
mod tests;
