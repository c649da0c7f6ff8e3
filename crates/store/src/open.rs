//! Opening a data folder: what is there is compared with what must be there, and then the engine opens.

use crate::{
    embedded::{EmbeddedStore, Writer},
    fjall_kv::{FjallKv, Sizes},
    folder::Folder,
    health::Health,
    inspect::{Findings, cut_torn_end, inspect},
    kv::*,
    problem::{Damage, Problem, RESTORE, Remedy},
    reads::read_counters,
    rows::number_at,
    said::Said,
    side_log::SideLog,
    tracker::JournalTracker,
};
use parking_lot::{Mutex, RwLock};
use quick_cache::sync::Cache;
use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicU64},
};
use tidings_engine::store::*;

/// Heads kept for conversations that were written to lately: 40 bytes each.
const HEADS_CACHED: usize = 200_000;

/// The engine begins another journal after 64 MB, and takes no lower bound for all of them together.
pub const JOURNAL_BYTES_MIN: u64 = 64 * 1024 * 1024;
/// Smaller ones would be a file for every few messages.
pub const MEMTABLE_BYTES_MIN: u64 = 64 * 1024;

/// How to open a data folder.
#[derive(Debug, Clone)]
pub struct EmbeddedOptions {
    pub path: PathBuf,
    /// Keep a list of entries for offline push.
    pub outbox: bool,
    /// Space left free on the disk: commits are refused before the engine meets a full one.
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
            disk_reserve_bytes: 64 * 1024 * 1024,
            memtable_bytes: 16 * 1024 * 1024,
            journal_bytes: 96 * 1024 * 1024,
            cache_bytes: 64 * 1024 * 1024,
        }
    }

    pub(crate) fn sizes(&self) -> Sizes {
        let EmbeddedOptions { memtable_bytes, journal_bytes, cache_bytes, .. } = *self;
        // The engine aborts below it.
        Sizes { memtable_bytes, journal_bytes: journal_bytes.max(JOURNAL_BYTES_MIN), cache_bytes }
    }
}

/// Why a data folder could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{} is in use by another process", .0.display())]
    Locked(PathBuf),
    #[error("the data folder has format {found}, this version knows {known}")]
    Format { found: u32, known: u32 },
    /// Acknowledged data is damaged or missing.
    #[error("{0}")]
    Damaged(Damage),
    /// The files are as they were written, and the engine does not open them or does not find in them what it must.
    #[error(
        "{0}; `tidings check` looks at all there is; if that finds nothing to repair, restore a backup ({RESTORE})"
    )]
    Engine(String),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl EmbeddedStore {
    pub fn open(options: EmbeddedOptions) -> Result<EmbeddedStore, OpenError> {
        let folder = Folder::take(&options.path)?;
        let mut found = inspect(&folder)?;
        found.refuse()?;
        if found.is_unfinished {
            folder.remove_unfinished_store()?;
        }
        let health = Health::new(folder.engine_path());
        health.verify_at_open(found.tables().cloned().collect())?;
        cut_torn_end(&folder, &mut found)?;
        // Before the engine opens: it shortens and drops journals, and a crash then must not look like loss.
        folder.remove_closed_mark()?;
        let kv = FjallKv::open(&folder.engine_path(), options.sizes()).map_err(open_error)?;
        expect_batch(&kv, &found)?;
        let tracker = JournalTracker::begin(&folder, &found, kv.space_ids(), kv.last_batch())?;
        folder.write_format()?;
        let counters = read_counters(&kv).map_err(|error| OpenError::Engine(error.to_string()))?;
        let side_log = SideLog::open(&options.path)?;
        let kv = Arc::new(kv);
        health.watch(&kv);
        let mut store = EmbeddedStore {
            options,
            folder,
            side_log,
            kv: RwLock::new(Some(kv)),
            long_reads: RwLock::new(()),
            writer: Mutex::new(Writer {
                counters,
                space_checked: None,
                refused_from: None,
                has_stopped: false,
                tracker,
            }),
            heads: Cache::new(HEADS_CACHED),
            position: AtomicU64::new(counters.position),
            health,
            epoch: 0,
        };
        store.epoch = store.find_epoch()?;
        Ok(store)
    }

    /// The name of this history; a new one if it has none, or if acknowledged data went.
    fn find_epoch(&self) -> Result<u64, OpenError> {
        let store_error = |error: StoreError| OpenError::Engine(error.to_string());
        let kv = self.kv().map_err(store_error)?;
        let known = kv.get(Space::Meta, b"e").map_err(open_error)?.filter(|_| !self.folder.is_new_epoch_asked());
        let epoch = match known {
            Some(row) => number_at(&row, 0).ok_or_else(|| OpenError::Engine("the epoch's row is damaged".into()))?,
            None => {
                let epoch = fresh_epoch();
                let mut batch = Batch::default();
                batch.put(Space::Meta, vec![b'e'], epoch.to_be_bytes().to_vec());
                self.write(&mut self.writer.lock(), &kv, batch, Said::nothing()).map_err(store_error)?;
                epoch
            }
        };
        self.folder.new_epoch_given()?;
        Ok(epoch)
    }
}

pub(crate) fn open_error(error: KvError) -> OpenError {
    match error {
        KvError::Io(error) => OpenError::Io(error),
        other => OpenError::Engine(other.to_string()),
    }
}

/// A new name for a store's history.
pub(crate) fn fresh_epoch() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // The seed of a hasher is the standard library's own source of randomness.
    RandomState::new().hash_one(std::time::SystemTime::now()) >> 16
}

/// What was acknowledged is in the engine, now that it has opened.
fn expect_batch(kv: &FjallKv, found: &Findings) -> Result<(), OpenError> {
    let full = found.manifest.journals.iter().filter_map(|record| record.last_batch).max().unwrap_or(0);
    let (expected, newest) = (full.max(found.acknowledged.ordinal), kv.last_batch());
    if newest >= expected {
        return Ok(());
    }
    let what = format!("its newest batch is {newest}, and batch {expected} was acknowledged");
    Err(OpenError::Damaged(Damage(vec![Problem { file: "store".into(), what, remedy: Remedy::Lose }])))
}
