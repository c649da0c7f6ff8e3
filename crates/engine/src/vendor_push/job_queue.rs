//! When each row of a vendor is due. Memory has the keys alone, and a bounded number: more rows wait in the store, in order.

use std::{collections::BTreeSet, time::Instant};
use tidings_domain::{
    chat_rows::{last_vendor_job_key, vendor_job_key},
    store::{RowSpace, Store, StoreResult},
};
use tidings_protocol::http::PushVendor;

/// Keys in memory. Full: no more are read until some are dealt with.
const KEYS_MAX: usize = 10_000;
/// Rows in one read.
const READ_AT_ONCE: usize = 500;

pub(super) struct JobQueue {
    vendor: PushVendor,
    due: BTreeSet<(Instant, Vec<u8>)>,
    /// Rows up to this key have been read.
    read_to: Vec<u8>,
}

impl JobQueue {
    pub(super) fn new(vendor: PushVendor) -> JobQueue {
        JobQueue { vendor, due: BTreeSet::new(), read_to: vendor_job_key(vendor, 0, 0) }
    }

    pub(super) fn len(&self) -> usize {
        self.due.len()
    }

    /// Reads the keys of new rows, which are due at once.
    pub(super) fn read_new(&mut self, store: &dyn Store, now: Instant) -> StoreResult<()> {
        let room = KEYS_MAX.saturating_sub(self.due.len()).min(READ_AT_ONCE);
        if room == 0 {
            return Ok(());
        }
        let from = [&self.read_to[..], &[0]].concat();
        for (key, _) in store.rows(RowSpace::Chat, &from, &last_vendor_job_key(self.vendor), room)? {
            self.read_to.clone_from(&key);
            self.due.insert((now, key));
        }
        Ok(())
    }

    /// Takes the keys that are due, the longest due first, at most `limit`.
    pub(super) fn take_due(&mut self, now: Instant, limit: usize) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        while keys.len() < limit
            && let Some(first) = self.due.first().filter(|(due, _)| *due <= now).cloned()
        {
            self.due.remove(&first);
            keys.push(first.1);
        }
        keys
    }

    /// Puts a key back, whose row is to be tried later.
    pub(super) fn put(&mut self, key: Vec<u8>, due: Instant) {
        self.due.insert((due, key));
    }
}
