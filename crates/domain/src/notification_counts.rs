//! How often each channel was tried, what came of it and how long it took, by the hour. Counts are kept in memory, stored every few
//! seconds in one row for each hour, channel and boot of a node, and added up when they are read.

use crate::{
    chat_rows::{decode, encode},
    store_error::{StoreError, StoreResult},
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::{
    cell::Cell,
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
};
use tidings_protocol::http::Channel;

/// An hour, in milliseconds.
pub const HOUR_MS: u64 = 60 * 60 * 1_000;
/// Hours and channels in memory that could not be stored. Above, the oldest are dropped.
const PENDING_MAX: usize = 48 * Channel::ALL.len();
/// Threads that count at the same time without waiting for each other.
const CELLS: usize = 8;

/// Something that happened on a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelEvent {
    /// A message, or a push, was handed to the channel for one person or device. An attempt that follows a failed one counts again.
    Attempted = 0,
    /// The provider or the webhook has taken it.
    Accepted = 1,
    /// The client has it.
    Acknowledged = 2,
    /// An attempt failed, and another one follows.
    Retried = 3,
    /// It was refused for good.
    Refused = 4,
    /// The provider said that no device has the token any more.
    TokenGone = 5,
    /// Nobody had it in the time that was left.
    Expired = 6,
    /// A newer one took its place.
    Superseded = 7,
}

const EVENTS: usize = 8;

/// The counts of a channel in some time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChannelCounts {
    events: [u64; EVENTS],
    times: TimeHistogram,
}

/// The value of a row. The names are short since there are many.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Row {
    /// By [`ChannelEvent`].
    #[serde(rename = "e")]
    events: Vec<u64>,
    /// Pairs: the distance from the bucket before, and the count.
    #[serde(rename = "t")]
    times: Vec<u64>,
}

impl ChannelCounts {
    /// Adds what happened so often; with how long it took, if it reached the person.
    pub fn add(&mut self, event: ChannelEvent, count: u64, took_ms: Option<u64>) {
        self.events[event as usize] += count;
        if let Some(took_ms) = took_ms {
            self.times.add(took_ms, count);
        }
    }

    /// Adds the counts of another node or hour.
    pub fn merge(&mut self, other: &ChannelCounts) {
        self.events.iter_mut().zip(other.events).for_each(|(sum, count)| *sum += count);
        self.times.merge(&other.times);
    }

    /// How often something happened.
    pub fn count(&self, event: ChannelEvent) -> u64 {
        self.events[event as usize]
    }

    /// The time within which this share (0 to 1) of those whom the channel reached had been reached, in milliseconds, with an error of at most 1/16.
    pub fn time_ms(&self, share: f64) -> Option<u64> {
        self.times.quantile(share)
    }

    /// The row.
    pub fn encode(&self) -> Vec<u8> {
        let mut before = 0;
        let pairs = self.times.0.iter().flat_map(|(bucket, count)| {
            let distance = bucket - std::mem::replace(&mut before, *bucket);
            [distance, *count]
        });
        encode(&Row { times: pairs.collect(), events: self.events.to_vec() })
    }

    /// The counts of a row. What a newer version counts beyond these is ignored.
    ///
    /// # Errors
    /// The row is damaged.
    pub fn decode(row: &[u8]) -> StoreResult<ChannelCounts> {
        let Row { events, times } = decode(Some(row))?;
        let mut counts = ChannelCounts::default();
        counts.events.iter_mut().zip(events).for_each(|(count, stored)| *count = stored);
        let mut bucket = 0_u64;
        for pair in times.chunks(2) {
            let [distance, count] = pair else { return Err(StoreError::Damaged("counts of a channel".into())) };
            bucket = bucket.saturating_add(*distance);
            *counts.times.0.entry(bucket).or_default() += count;
        }
        Ok(counts)
    }
}

/// Times by buckets that grow with the time: eight between a power of two and the next. A row has room for all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct TimeHistogram(BTreeMap<u64, u64>);

/// Buckets between a power of two and the next, as a power of two.
const SUB_BITS: u32 = 3;
/// Longer times count as this one: about 37 hours.
const TIME_MS_MAX: u64 = (1 << 27) - 1;

impl TimeHistogram {
    fn add(&mut self, took_ms: u64, count: u64) {
        *self.0.entry(bucket_of(took_ms.min(TIME_MS_MAX))).or_default() += count;
    }

    fn merge(&mut self, other: &TimeHistogram) {
        for (bucket, count) in &other.0 {
            *self.0.entry(*bucket).or_default() += count;
        }
    }

    fn quantile(&self, share: f64) -> Option<u64> {
        let total: u64 = self.0.values().sum();
        let rank = ((total as f64 * share).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0;
        let found = self.0.iter().find(|(_, count)| {
            seen += **count;
            seen >= rank
        });
        found.map(|(bucket, _)| middle_of(*bucket))
    }
}

fn bucket_of(time: u64) -> u64 {
    // Below 8 ms each time has its own bucket.
    let shift = (u64::BITS - time.leading_zeros()).saturating_sub(SUB_BITS + 1);
    (u64::from(shift) << SUB_BITS) + (time >> shift)
}

fn middle_of(bucket: u64) -> u64 {
    let (shift, first) = match bucket >> SUB_BITS {
        0 => (0, bucket),
        shift => (shift - 1, (bucket & ((1 << SUB_BITS) - 1)) + (1 << SUB_BITS)),
    };
    (first << shift) + (1 << shift >> 1)
}

/// The counts of this node that are not stored yet, and those of the present hour.
#[derive(Default)]
pub struct NotificationCounts {
    cells: [Mutex<Pending>; CELLS],
}

type Pending = BTreeMap<(u64, Channel), ChannelCounts>;

impl NotificationCounts {
    /// Counts what has happened so often on a channel at this time (milliseconds since 1970 UTC), with how long it took, if it reached
    /// the person.
    pub fn add(&self, channel: Channel, event: ChannelEvent, now_ms: u64, count: u64, took_ms: Option<u64>) {
        if count == 0 {
            return;
        }
        let mut pending = self.cells[cell_of_thread()].lock();
        let hour = now_ms / HOUR_MS;
        if pending.len() >= PENDING_MAX && !pending.contains_key(&(hour, channel)) {
            pending.pop_first();
        }
        pending.entry((hour, channel)).or_default().add(event, count, took_ms);
    }

    /// Takes what was counted since this was last asked.
    pub fn take(&self) -> BTreeMap<(u64, Channel), ChannelCounts> {
        let mut all = Pending::new();
        for cell in &self.cells {
            for (place, counts) in std::mem::take(&mut *cell.lock()) {
                all.entry(place).or_default().merge(&counts);
            }
        }
        all
    }
}

/// Threads share the cells evenly.
fn cell_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static CELL: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed) % CELLS));
    CELL.with(Cell::get)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::store::ROW_BYTES_MAX;

    #[test]
    fn a_bucket_is_within_a_sixteenth_of_each_of_its_times() {
        let mut before = 0;
        for time in (0..100_000).chain((100_000..TIME_MS_MAX).step_by(99_991)).chain([TIME_MS_MAX]) {
            let bucket = bucket_of(time);
            assert!(bucket >= before, "{time}");
            before = bucket;
            let error = middle_of(bucket).abs_diff(time);
            assert!(error * 16 <= time.max(16), "{time}: {}", middle_of(bucket));
        }
    }

    #[test]
    fn quantiles_are_those_of_the_times() {
        let mut counts = ChannelCounts::default();
        assert_eq!(counts.time_ms(0.5), None);
        for time in 1..=1_000 {
            counts.add(ChannelEvent::Accepted, 1, Some(time));
        }
        let near = |share, expected: f64| {
            let found = counts.time_ms(share).unwrap() as f64;
            assert!((found - expected).abs() <= expected / 16.0, "{share}: {found}");
        };
        near(0.5, 500.0);
        near(0.99, 990.0);
        near(0.0, 1.0);
        near(1.0, 1_000.0);
    }

    #[test]
    fn a_row_says_what_was_counted_and_the_fullest_one_has_room() {
        let mut counts = ChannelCounts::default();
        for event in 0..EVENTS {
            counts.events[event] = u64::MAX >> 20;
        }
        let mut time = 1;
        while time < TIME_MS_MAX {
            counts.times.add(time, 9_999_999);
            time += 1 + time / 20;
        }
        let row = counts.encode();
        assert!(row.len() <= ROW_BYTES_MAX, "{}", row.len());
        assert_eq!(ChannelCounts::decode(&row).unwrap(), counts);
        assert!(ChannelCounts::decode(b"{\"e\":[],\"t\":[1]}").is_err());
        // A later version may count more.
        let newer = ChannelCounts::decode(b"{\"e\":[1,2,3,4,5,6,7,8,9],\"t\":[],\"n\":1}").unwrap();
        assert_eq!(newer.count(ChannelEvent::Superseded), 8);
    }

    #[test]
    fn counts_of_all_threads_are_taken_once() {
        let counts = NotificationCounts::default();
        std::thread::scope(|scope| {
            for _ in 0..20 {
                let counts = &counts;
                scope.spawn(move || {
                    counts.add(Channel::Fcm, ChannelEvent::Attempted, HOUR_MS, 3, None);
                    counts.add(Channel::Fcm, ChannelEvent::Accepted, 2 * HOUR_MS, 1, Some(7));
                });
            }
        });
        let taken = counts.take();
        assert_eq!(taken[&(1, Channel::Fcm)].count(ChannelEvent::Attempted), 60);
        assert_eq!(taken[&(2, Channel::Fcm)].time_ms(0.5), Some(7));
        assert!(counts.take().is_empty());
    }

    #[test]
    fn a_store_that_takes_nothing_for_days_costs_bounded_memory() {
        let counts = NotificationCounts::default();
        for hour in 0..10_000 {
            counts.add(Channel::Fcm, ChannelEvent::Attempted, hour * HOUR_MS, 1, None);
        }
        let taken = counts.take();
        assert_eq!(taken.len(), PENDING_MAX);
        assert_eq!(taken.keys().next_back(), Some(&(9_999, Channel::Fcm)));
    }
}
