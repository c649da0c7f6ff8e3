//! When each row of a road is due. Memory has the keys alone, and a bounded number: more rows wait in the store, in order.

use super::{JobRoad, JobSignals};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};
use tidings_domain::{
    chat_rows::road_job_of,
    model::Position,
    store::{RowSpace, Store, StoreResult},
};

/// Keys in memory. Full: no more are read until some are dealt with.
const KEYS_MAX: usize = 10_000;
/// Rows in one read.
const READ_AT_ONCE: usize = 500;

pub(crate) struct JobQueue {
    road: JobRoad,
    signals: Arc<JobSignals>,
    due: BTreeSet<(Instant, Vec<u8>)>,
    /// The same, by key.
    known: BTreeMap<Vec<u8>, Instant>,
    /// Rows up to this key have been read.
    read_to: Vec<u8>,
}

impl JobQueue {
    pub(crate) fn new(road: JobRoad, signals: Arc<JobSignals>) -> JobQueue {
        let read_to = road.key(0, 0);
        JobQueue { road, signals, due: BTreeSet::new(), known: BTreeMap::new(), read_to }
    }

    pub(crate) fn len(&self) -> usize {
        self.due.len()
    }

    /// The least position of the rows in memory.
    pub(crate) fn oldest(&self) -> Option<Position> {
        self.known.first_key_value().and_then(|(key, _)| road_job_of(key)).map(|(_, position)| position)
    }

    /// Reads the keys of new rows, which are due at once.
    pub(crate) fn read_new(&mut self, store: &dyn Store, now: Instant) -> StoreResult<()> {
        let room = KEYS_MAX.saturating_sub(self.due.len()).min(READ_AT_ONCE);
        if room == 0 {
            return Ok(());
        }
        let back_to = self.road.key(self.signals.take(self.road), 0);
        if back_to < self.read_to {
            self.read_to = back_to;
        }
        let from = [&self.read_to[..], &[0]].concat();
        for (key, _) in store.rows(RowSpace::Chat, &from, &self.road.last_key(), room)? {
            self.read_to.clone_from(&key);
            if !self.known.contains_key(&key) {
                self.put(key, now);
            }
        }
        Ok(())
    }

    /// Takes the keys that are due, the longest due first, at most `limit`.
    pub(crate) fn take_due(&mut self, now: Instant, limit: usize) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        while keys.len() < limit
            && let Some(first) = self.due.first().filter(|(due, _)| *due <= now).cloned()
        {
            self.due.remove(&first);
            self.known.remove(&first.1);
            keys.push(first.1);
        }
        keys
    }

    /// Puts a key back, whose row is to be tried later.
    pub(crate) fn put(&mut self, key: Vec<u8>, due: Instant) {
        self.known.insert(key.clone(), due);
        self.due.insert((due, key));
    }
}
