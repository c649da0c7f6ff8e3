//! When each row of a channel is due. Memory has the keys alone, and a bounded number: more rows wait in the store, in order.
//!
//! A provider may have several services, as browsers have: the rows that each did not take wait in a lane of their own, so that a service
//! that is away fills no other's. A row that was never tried is in the first lane, whatever its devices are.

use super::{Due, JobPart, JobPlace, JobSignals};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};
use tidings_domain::{
    chat_rows::channel_job_of,
    model::Position,
    store::{RowSpace, Store, StoreResult},
};
use tidings_protocol::http::Channel;

/// Keys of one lane in memory. Full: further ones stay in the store until half of these are dealt with; of those that were never
/// tried, no more are read.
const KEYS_MAX: usize = 10_000;
/// Rows in one read.
const READ_AT_ONCE: usize = 500;
/// The lane of rows that were never tried.
const FRESH: u64 = 0;

pub(crate) struct JobQueue {
    channel: Channel,
    /// How many services the channel has.
    services: usize,
    signals: Arc<JobSignals>,
    keys_max: usize,
    lanes: BTreeMap<u64, Lane>,
    /// Rows up to this key have been read.
    read_to: Vec<u8>,
}

/// The rows of one service.
#[derive(Default)]
struct Lane {
    due: BTreeSet<(Instant, Vec<u8>)>,
    /// The same, by key.
    known: BTreeMap<Vec<u8>, Instant>,
    /// How many of them are of pushes.
    pushes: usize,
    /// From this key on there are rows that found no room.
    left_from: Option<Vec<u8>>,
}

impl Lane {
    fn put(&mut self, key: Vec<u8>, due: Instant) {
        match self.known.insert(key.clone(), due) {
            Some(former) => drop(self.due.remove(&(former, key.clone()))),
            None => self.pushes += usize::from(is_push(&key)),
        }
        self.due.insert((due, key));
    }

    fn leave(&mut self, key: Vec<u8>) {
        if self.left_from.as_ref().is_none_or(|first| key < *first) {
            self.left_from = Some(key);
        }
    }

    fn take_due(&mut self, now: Instant, limit: usize, keys: &mut Vec<Vec<u8>>) {
        for _ in 0..limit {
            let Some(first) = self.due.first().filter(|(due, _)| *due <= now).cloned() else { return };
            self.due.remove(&first);
            self.known.remove(&first.1);
            self.pushes -= usize::from(is_push(&first.1));
            keys.push(first.1);
        }
    }

    /// The least key, in memory or not.
    fn first(&self) -> Option<&Vec<u8>> {
        self.known.keys().next().into_iter().chain(&self.left_from).min()
    }
}

fn is_push(key: &[u8]) -> bool {
    JobPlace::of_key(key).part.is_push()
}

/// The lane of a row.
fn lane_of(key: &[u8]) -> u64 {
    JobPlace::of_key(key).part.service().map_or(FRESH, |service| service + 1)
}

impl JobQueue {
    pub(crate) fn new(channel: Channel, services: usize, signals: Arc<JobSignals>) -> JobQueue {
        let read_to = Due::Now(channel).key(0, JobPart::FIRST);
        JobQueue { channel, services, signals, keys_max: KEYS_MAX, lanes: BTreeMap::new(), read_to }
    }

    pub(crate) fn len(&self) -> usize {
        self.lanes.values().map(|lane| lane.known.len()).sum()
    }

    /// How many of the rows in memory are of pushes.
    pub(crate) fn pushes(&self) -> usize {
        self.lanes.values().map(|lane| lane.pushes).sum()
    }

    /// The least position of the rows in memory, and of those that found no room there.
    pub(crate) fn oldest(&self) -> Option<Position> {
        let first = self.lanes.values().filter_map(Lane::first).min()?;
        channel_job_of(first).map(|(_, position)| position)
    }

    fn lane_len(&self, lane: u64) -> usize {
        self.lanes.get(&lane).map_or(0, |lane| lane.known.len())
    }

    /// Whether rows that were never tried leave room for others of them that wait for a time.
    pub(crate) fn has_room_to_wait(&self) -> bool {
        self.lane_len(FRESH) <= self.keys_max / 2
    }

    /// Whether a row that is tried for the first time has a chance: not all services have as many as they may that failed.
    fn may_try_more(&self) -> bool {
        let full = self.lanes.keys().filter(|lane| **lane != FRESH && self.lane_len(**lane) >= self.keys_max).count();
        self.lane_len(FRESH) < self.keys_max && full < self.services.max(1)
    }

    /// Reads the keys of new rows, and of those that found no room, which are due at once; answers whether there may be more of the new
    /// ones, as behind many rows of a service that is away.
    pub(crate) fn read_new(&mut self, store: &dyn Store, now: Instant) -> StoreResult<bool> {
        let mut has_more = false;
        if self.may_try_more() {
            let back_to = Due::Now(self.channel).key(self.signals.take(self.channel), JobPart::FIRST);
            if back_to < self.read_to {
                self.read_to = back_to;
            }
            let room = self.keys_max.saturating_sub(self.lane_len(FRESH)).min(READ_AT_ONCE);
            let from = [&self.read_to[..], &[0]].concat();
            let rows = store.rows(RowSpace::Chat, &from, &Due::Now(self.channel).last_key(), room)?;
            has_more = rows.len() == room;
            for (key, _) in rows {
                self.read_to.clone_from(&key);
                // A row that is in its lane already keeps its time.
                if !self.lanes.get(&lane_of(&key)).is_some_and(|lane| lane.known.contains_key(&key)) {
                    self.put(key, now);
                }
            }
        }
        let (keys_max, last) = (self.keys_max, Due::Now(self.channel).last_key());
        let waits = |lane: &Lane| lane.left_from.is_some() && lane.known.len() <= keys_max / 2;
        for (number, lane) in self.lanes.iter_mut().filter(|(_, lane)| waits(lane)) {
            let Some(from) = lane.left_from.clone() else { continue };
            let rows = store.rows(RowSpace::Chat, &from, &last, READ_AT_ONCE)?;
            lane.left_from =
                rows.last().filter(|_| rows.len() == READ_AT_ONCE).map(|(key, _)| [&key[..], &[0]].concat());
            for (key, _) in rows {
                if lane_of(&key) == *number && !lane.known.contains_key(&key) {
                    lane.put(key, now);
                }
            }
        }
        Ok(has_more)
    }

    /// Takes the keys that are due, the longest due first, at most `limit`; each lane has an equal share of it.
    pub(crate) fn take_due(&mut self, now: Instant, limit: usize) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        let mut waiting = self.lanes.len();
        // The lanes with less than their share leave the rest to those after them.
        let mut lanes: Vec<&mut Lane> = self.lanes.values_mut().collect();
        lanes.sort_by_key(|lane| lane.known.len());
        for lane in lanes {
            lane.take_due(now, (limit - keys.len()).div_ceil(waiting), &mut keys);
            waiting -= 1;
        }
        keys
    }

    /// Puts a key in, or back, whose row is to be tried at this time. When the lane of its service is full, the row is read again later.
    pub(crate) fn put(&mut self, key: Vec<u8>, due: Instant) {
        let number = lane_of(&key);
        let keys_max = self.keys_max;
        let lane = self.lanes.entry(number).or_default();
        if number == FRESH || lane.known.len() < keys_max { lane.put(key, due) } else { lane.leave(key) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tidings_domain::{
        leadership::Term,
        store::{RowChange, RowStore},
    };
    use tidings_testkit::MemoryStore;

    const ROWS: Due = Due::Now(Channel::WebPush);

    fn queue(services: usize, keys_max: usize) -> JobQueue {
        JobQueue { keys_max, ..JobQueue::new(Channel::WebPush, services, Arc::default()) }
    }

    fn write(store: &MemoryStore, keys: &[Vec<u8>], value: Option<Vec<u8>>) {
        let changes = keys.iter().map(|key| RowChange { key: key.clone(), value: value.clone() }).collect();
        store.write_rows(Term::ALONE, RowSpace::Chat, changes).unwrap();
    }

    fn failed(position: u64, service: u64) -> Vec<u8> {
        ROWS.key(position, JobPart::FIRST.at_service(service))
    }

    #[test]
    fn rows_that_wait_leave_room_for_those_that_were_never_tried() {
        let mut queue = queue(1, 4);
        let now = Instant::now();
        for (position, has_room) in [(1, true), (2, true), (3, false)] {
            queue.put(ROWS.key(position, JobPart::FIRST), now + Duration::from_secs(60));
            assert_eq!(queue.has_room_to_wait(), has_room, "{position}");
        }
        assert!(queue.may_try_more());
    }

    #[test]
    fn a_service_that_is_away_fills_no_other_lane_and_nothing_is_forgotten() {
        let (store, now) = (MemoryStore::default(), Instant::now());
        let later = now + Duration::from_secs(60);
        let mut queue = queue(2, 10);
        let away: Vec<_> = (1..=100).map(|position| failed(position, 0)).collect();
        write(&store, &away, Some(vec![]));
        away.iter().for_each(|key| queue.put(key.clone(), later));
        assert_eq!((queue.len(), queue.oldest()), (10, Some(1)));
        // Fresh rows and those of the other service go on.
        let others = [ROWS.key(200, JobPart::FIRST), failed(201, 1)];
        write(&store, &others, Some(vec![]));
        while queue.read_new(&store, now).unwrap() {}
        let mut taken = queue.take_due(now, 100);
        taken.sort();
        assert_eq!(taken, others);
        write(&store, &others, None);

        // When the service is back, each row is tried.
        let mut tried = Vec::new();
        while tried.len() < 100 {
            queue.read_new(&store, later).unwrap();
            let keys = queue.take_due(later, 7);
            assert!(!keys.is_empty(), "after {} rows", tried.len());
            write(&store, &keys, None);
            tried.extend(keys);
        }
        tried.sort();
        assert_eq!(tried, away);
        assert_eq!((queue.len(), queue.oldest()), (0, None));
    }

    #[test]
    fn a_row_that_is_read_twice_keeps_its_time() {
        let (store, now) = (MemoryStore::default(), Instant::now());
        let later = now + Duration::from_secs(60);
        let mut queue = queue(1, 10);
        write(&store, &[failed(1, 0)], Some(vec![]));
        queue.put(failed(1, 0), later);
        queue.read_new(&store, now).unwrap();
        assert_eq!((queue.len(), queue.take_due(now, 10).len()), (1, 0));
        assert_eq!(queue.take_due(later, 10), [failed(1, 0)]);
    }

    #[test]
    fn the_rows_of_pushes_are_counted_once_until_they_are_taken() {
        let (now, mut queue) = (Instant::now(), queue(1, 10));
        let of_push = ROWS.key(1, JobPart::push_page(1));
        let tried = ROWS.key(1, JobPart::push_page(1).at_service(0));
        for key in [&of_push, &of_push, &tried, &ROWS.key(1, JobPart::FIRST)] {
            queue.put(key.clone(), now);
        }
        assert_eq!(queue.pushes(), 2);
        assert_eq!((queue.take_due(now, 10).len(), queue.pushes()), (3, 0));
    }

    #[test]
    fn while_all_services_have_as_many_as_they_may_no_fresh_row_is_read() {
        let (store, now) = (MemoryStore::default(), Instant::now());
        let fresh: Vec<_> = (100..103).map(|position| ROWS.key(position, JobPart::FIRST)).collect();
        write(&store, &fresh, Some(vec![]));
        for (services, expected) in [(2, 0), (3, 3)] {
            let mut queue = queue(services, 3);
            for service in 0..2 {
                (0..5).for_each(|position| queue.put(failed(position, service), now + Duration::from_secs(60)));
            }
            queue.read_new(&store, now).unwrap();
            assert_eq!(queue.take_due(now, 10).len(), expected, "{services} services");
        }
    }
}
