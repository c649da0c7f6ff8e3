//! What the bus counts.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Upper ends of the buckets of [`BusMetrics::round_trips`], in microseconds; one more holds what took longer.
pub const ROUND_TRIP_BOUNDS_US: [u64; 12] =
    [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000];

macro_rules! counted {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters since the start, and gauges where said so.
        #[derive(Default)]
        pub struct BusMetrics {
            $($(#[$doc])* pub $name: AtomicU64,)*
            /// Pipelines by how long they took to be answered.
            pub round_trips: [AtomicU64; ROUND_TRIP_BOUNDS_US.len() + 1],
        }

        /// [`BusMetrics`] at one moment.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct BusSnapshot {
            $($(#[$doc])* pub $name: u64,)*
            pub round_trips: [u64; ROUND_TRIP_BOUNDS_US.len() + 1],
        }

        impl BusMetrics {
            pub fn snapshot(&self) -> BusSnapshot {
                BusSnapshot {
                    $($name: self.$name.load(Relaxed),)*
                    round_trips: std::array::from_fn(|bucket| self.round_trips[bucket].load(Relaxed)),
                }
            }
        }
    };
}

counted! {
    /// Messages taken to be sent, once for each receiver.
    sent,
    /// Messages not taken, or given up, once for each receiver.
    dropped,
    /// Commands that publish: of messages that gathered one takes many, a large one takes several, and this node's
    /// messages to itself are among them.
    publishes,
    /// Bytes in those commands, without the protocol's own.
    publish_bytes,
    /// Publishes that nobody listened to.
    unheard,
    /// Round trips: each carried one or more publishes.
    pipelines,
    /// Time that these took, together.
    round_trip_us,
    /// Messages handed to the ear.
    heard,
    heard_bytes,
    /// Times the ear was told that something may be lost.
    missed,
    /// Messages that could not be read: of a later version, or broken.
    unreadable,
    /// Gauge: bytes that wait to be published.
    queue_bytes,
    /// Gauge: connections that are open.
    connections_open,
    /// Connections made.
    connections_made,
    /// Attempts that failed.
    connections_failed,
    /// Attempts put off because of their pace or number.
    connections_delayed,
    /// Times the subscription was made again.
    resubscribed,
    /// Times the map of the cluster was read.
    maps_read,
}

impl BusMetrics {
    pub(crate) fn add(counter: &AtomicU64, more: usize) {
        counter.fetch_add(more as u64, Relaxed);
    }

    pub(crate) fn answered(&self, took: Duration) {
        let took_us = took.as_micros() as u64;
        let bucket = ROUND_TRIP_BOUNDS_US.partition_point(|bound| *bound < took_us);
        self.round_trips[bucket].fetch_add(1, Relaxed);
        self.pipelines.fetch_add(1, Relaxed);
        self.round_trip_us.fetch_add(took_us, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_falls_into_its_bucket() {
        let metrics = BusMetrics::default();
        for us in [100, 101, 999_999, 1_000_001] {
            metrics.answered(Duration::from_micros(us));
        }
        let snapshot = metrics.snapshot();
        assert_eq!(snapshot.round_trips, [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!((snapshot.pipelines, snapshot.round_trip_us), (4, 2_000_201));
    }
}
