//! Where a store notes rows, if it does: what is there outlives a process.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use tidings_engine::store::*;

#[derive(Default)]
pub struct MemorySideLog {
    is_enabled: AtomicBool,
    is_full: AtomicBool,
    /// The set that is noted in, and the one before.
    sets: Mutex<[Vec<RowChange>; 2]>,
}

impl MemorySideLog {
    /// From now on the store takes notes: to be called before an engine has it.
    pub fn enable(&self) {
        self.is_enabled.store(true, Ordering::SeqCst);
    }

    /// Whether notes find a full disk.
    pub fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::SeqCst);
    }

    pub fn is_enabled(&self) -> bool {
        self.is_enabled.load(Ordering::SeqCst)
    }

    pub fn append(&self, changes: &[RowChange]) -> StoreResult<()> {
        if self.is_full.load(Ordering::SeqCst) {
            return Err(StoreError::DiskFull);
        }
        self.sets.lock()[0].extend_from_slice(changes);
        Ok(())
    }

    pub fn rotate(&self) {
        let mut sets = self.sets.lock();
        if sets[1].is_empty() {
            sets.swap(0, 1);
        }
    }

    pub fn drop_rotated(&self) {
        self.sets.lock()[1].clear();
    }

    pub fn all(&self) -> Vec<RowChange> {
        let sets = self.sets.lock();
        [&sets[1][..], &sets[0]].concat()
    }

    pub fn clear(&self) {
        self.sets.lock().iter_mut().for_each(Vec::clear);
    }
}
