//! A side log in memory, which outlives an engine.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use tidings_domain::store::*;

#[derive(Default)]
pub struct MemorySideLog {
    is_enabled: AtomicBool,
    is_full: AtomicBool,
    /// The file that is appended to, and the other one.
    files: Mutex<[Vec<RowChange>; 2]>,
}

impl MemorySideLog {
    /// Gives the store a side log; to be called before an engine starts on it.
    pub fn enable(&self) {
        self.is_enabled.store(true, Ordering::SeqCst);
    }

    /// Lets appends find a full disk, or not.
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
        self.files.lock()[0].extend_from_slice(changes);
        Ok(())
    }

    pub fn rotate(&self) {
        let mut files = self.files.lock();
        if files[1].is_empty() {
            files.swap(0, 1);
        }
    }

    pub fn truncate_rotated(&self) {
        self.files.lock()[1].clear();
    }

    pub fn all(&self) -> Vec<RowChange> {
        let files = self.files.lock();
        [&files[1][..], &files[0]].concat()
    }

    pub fn truncate(&self) {
        self.files.lock().iter_mut().for_each(Vec::clear);
    }
}
