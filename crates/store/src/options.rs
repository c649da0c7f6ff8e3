//! How to open a data folder.

use crate::fjall_kv::Sizes;
use std::path::PathBuf;

/// The least size of all journals together: the engine begins another journal after 64 MB and accepts no lower bound.
pub const JOURNAL_BYTES_MIN: u64 = 64 * 1024 * 1024;
/// The least size of a memtable: smaller ones would make a table for every few messages.
pub const MEMTABLE_BYTES_MIN: u64 = 64 * 1024;

/// How to open a data folder.
#[derive(Debug, Clone)]
pub struct EmbeddedOptions {
    pub path: PathBuf,
    /// Whether to keep an outbox: the list of entries that await offline push.
    pub outbox: bool,
    /// Whether to keep what the feed of events reads back.
    pub event_log: bool,
    /// Free space to leave on the disk: commits are refused before the engine meets a full disk.
    pub disk_reserve_bytes: u64,
    pub memtable_bytes: u64,
    pub journal_bytes: u64,
    pub cache_bytes: u64,
}

impl EmbeddedOptions {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        EmbeddedOptions {
            path: path.into(),
            outbox: false,
            event_log: false,
            disk_reserve_bytes: 64 * 1024 * 1024,
            memtable_bytes: 16 * 1024 * 1024,
            journal_bytes: 96 * 1024 * 1024,
            cache_bytes: 64 * 1024 * 1024,
        }
    }

    pub(crate) fn sizes(&self) -> Sizes {
        let EmbeddedOptions { memtable_bytes, journal_bytes, cache_bytes, .. } = *self;
        // The engine aborts with less than the minimum.
        Sizes { memtable_bytes, journal_bytes: journal_bytes.max(JOURNAL_BYTES_MIN), cache_bytes }
    }
}
