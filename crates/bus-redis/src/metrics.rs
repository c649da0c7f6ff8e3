//! The counters and gauges of the bus.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Upper bounds of the buckets of [`BusMetrics::round_trips`], in microseconds. One more bucket holds longer round trips.
pub const ROUND_TRIP_BOUNDS_US: [u64; 12] =
    [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000];

macro_rules! counted {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters since the start, and gauges where the comment says so.
        #[derive(Default)]
        pub struct BusMetrics {
            $($(#[$doc])* pub $name: AtomicU64,)*
            /// Pipelines by the time until their answer.
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
    /// Messages queued, once for each receiver.
    sent,
    /// Messages dropped, before or after they were queued, once for each receiver.
    dropped,
    /// `SPUBLISH` commands, heartbeats included. One carries several small messages; a large message takes several.
    publishes,
    /// Bytes in those commands, without those of the Redis protocol.
    publish_bytes,
    /// Publishes that had no subscriber.
    unheard,
    /// Round trips: each carried one or more publishes.
    pipelines,
    /// The sum of the times of these round trips.
    round_trip_us,
    /// Messages handed to the handler.
    heard,
    heard_bytes,
    /// Times the handler was told of a gap.
    missed,
    /// Frames that could not be decoded: of a later version, or broken.
    unreadable,
    /// Frames of another installation, which were not delivered.
    foreign,
    /// Gauge: bytes that wait to be published.
    queue_bytes,
    /// Gauge: connections that are open.
    connections_open,
    /// Connections made.
    connections_made,
    /// Attempts to connect that failed.
    connections_failed,
    /// Attempts to connect that were put off, by `connect_per_second` or `connections_max`.
    connections_delayed,
    /// Times the subscription was made, the first one included.
    resubscribed,
    /// Times the slot map was read.
    slot_maps_read,
}

impl BusMetrics {
    pub(crate) fn add(counter: &AtomicU64, more: usize) {
        counter.fetch_add(more as u64, Relaxed);
    }

    pub(crate) fn count_round_trip(&self, took: Duration) {
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
    fn a_round_trip_is_counted_in_its_bucket() {
        let metrics = BusMetrics::default();
        for us in [100, 101, 999_999, 1_000_001] {
            metrics.count_round_trip(Duration::from_micros(us));
        }
        let snapshot = metrics.snapshot();
        assert_eq!(snapshot.round_trips, [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!((snapshot.pipelines, snapshot.round_trip_us), (4, 2_000_201));
    }
}
