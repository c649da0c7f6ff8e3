//! The UTC days that have entries, and the row of each.

use crate::{kv::*, rows::*};
use parking_lot::Mutex;
use std::collections::BTreeSet;

/// The days that may have entries, kept in memory so that each day's row is read by its key. Every commit writes the row of its
/// day again, and a scan over such a row passes each of its versions that no compaction has removed yet: after a million commits
/// one scan would take longer than thousands of them.
#[derive(Debug)]
pub(crate) struct TimelineDays(Mutex<BTreeSet<u64>>);

impl TimelineDays {
    /// Reads the days once, when the store opens.
    pub(crate) fn read(kv: &dyn KvRead) -> KvResult<Self> {
        let mut days = BTreeSet::new();
        kv.scan(Space::Meta, &day_key(0), &day_key(u64::MAX), Order::Ascending, &mut |key, _| {
            days.extend(number_at(key, 1));
            true
        })?;
        Ok(TimelineDays(Mutex::new(days)))
    }

    /// A batch that is about to be written changes the day's row. If the write fails, the day has no row and counts as empty.
    pub(crate) fn add(&self, day: u64) {
        self.0.lock().insert(day);
    }

    pub(crate) fn remove(&self, day: u64) {
        self.0.lock().remove(&day);
    }

    pub(crate) fn list(&self) -> Vec<u64> {
        self.0.lock().iter().copied().collect()
    }
}

/// The row of a UTC day: the bytes of the entries that were committed on it.
pub(crate) fn day_key(day: u64) -> Vec<u8> {
    key(MetaKind::DayBytes, &[day])
}
