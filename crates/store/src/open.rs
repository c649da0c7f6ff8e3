//! Opening a data folder: its files are compared with what the manifest and the acknowledgement logs say must be there,
//! and then the engine opens.

use crate::{
    batch_progress::BatchProgress,
    damage::{DamageReport, FileFault, Remedy},
    embedded::{EmbeddedStore, Writer},
    epoch::fresh_epoch,
    errors::{OpenError, open_error},
    first_results::has_former_results,
    fjall_kv::FjallKv,
    folder::Folder,
    gates::check_gates,
    inspect::{Inspection, cut_torn_end, inspect},
    journal_tracker::JournalTracker,
    kv::*,
    options::EmbeddedOptions,
    reads::read_counters,
    rows::{MetaKind, number_at},
    scrubber::Scrubber,
    side_log::SideLog,
    timeline_days::TimelineDays,
};
use parking_lot::{Mutex, RwLock};
use quick_cache::sync::Cache;
use std::sync::{Arc, atomic::AtomicU64};
use tidings_domain::store::*;

/// Heads cached for conversations that were written to lately: 40 bytes each.
const HEADS_CACHED: usize = 200_000;

impl EmbeddedStore {
    /// Opens the store in a data folder, creating both if the folder does not exist.
    ///
    /// # Errors
    /// - [`OpenError::Locked`]: another process has the folder open;
    /// - [`OpenError::Format`]: a newer version wrote the folder; nothing in it was changed;
    /// - [`OpenError::UnknownGate`]: the same, for what a newer version wrote in the same format;
    /// - [`OpenError::Damaged`]: acknowledged data is damaged or missing; the text names the file and the remedy;
    /// - [`OpenError::Engine`]: the engine does not open the files, though they hold what was written to them;
    /// - [`OpenError::Io`]: the operating system refused to read or write the folder.
    pub fn open(options: EmbeddedOptions) -> Result<EmbeddedStore, OpenError> {
        let folder = Folder::lock(&options.path)?;
        let mut found = inspect(&folder)?;
        found.refuse_faults()?;
        if found.is_unfinished {
            folder.remove_unfinished_store()?;
        }
        let scrubber = Scrubber::new(folder.engine_path());
        scrubber.verify_at_open(found.tables().cloned().collect())?;
        cut_torn_end(&folder, &mut found)?;
        // Before the engine opens: it shortens and removes journals, and a crash after that must not look like loss.
        folder.remove_clean_shutdown()?;
        let kv = FjallKv::open(&folder.engine_path(), options.sizes()).map_err(open_error)?;
        check_newest_batch(&kv, &found)?;
        let tracker = JournalTracker::begin(&folder, &found, kv.space_ids(), kv.last_batch())?;
        folder.write_format()?;
        let counters = read_counters(&kv).map_err(|error| OpenError::Engine(error.to_string()))?;
        let has_former_results = has_former_results(&kv).map_err(|error| OpenError::Engine(error.to_string()))?;
        check_gates(&kv)?;
        let days = TimelineDays::read(&kv).map_err(open_error)?;
        let side_log = SideLog::open(&options.path)?;
        let kv = Arc::new(kv);
        scrubber.watch(&kv);
        let mut store = EmbeddedStore {
            options,
            folder,
            side_log,
            kv: RwLock::new(Some(kv)),
            long_reads: RwLock::new(()),
            writer: Mutex::new(Writer {
                counters,
                space_checked: None,
                refused_from_seqno: None,
                has_engine_stopped: false,
                tracker,
            }),
            heads: Cache::new(HEADS_CACHED),
            days,
            position: AtomicU64::new(counters.position),
            scrubber,
            epoch: 0,
            has_former_results,
        };
        store.epoch = store.load_epoch()?;
        Ok(store)
    }

    /// The stored epoch; a new one if the store has none yet, or if a repair has lost acknowledged data.
    fn load_epoch(&self) -> Result<u64, OpenError> {
        let store_error = |error: StoreError| OpenError::Engine(error.to_string());
        let kv = self.kv().map_err(store_error)?;
        let known = kv
            .get(Space::Meta, &MetaKind::Epoch.only_key())
            .map_err(open_error)?
            .filter(|_| !self.folder.is_new_epoch_requested());
        let epoch = match known {
            Some(row) => number_at(&row, 0).ok_or_else(|| OpenError::Engine("the epoch's row is damaged".into()))?,
            None => {
                let epoch = fresh_epoch();
                let mut batch = Batch::default();
                batch.put(Space::Meta, MetaKind::Epoch.only_key(), epoch.to_be_bytes().to_vec());
                self.write(&mut self.writer.lock(), &kv, batch, BatchProgress::none()).map_err(store_error)?;
                epoch
            }
        };
        self.folder.clear_new_epoch_request()?;
        Ok(epoch)
    }
}

/// Checks that the engine, now open, has the newest batch that was acknowledged.
fn check_newest_batch(kv: &FjallKv, found: &Inspection) -> Result<(), OpenError> {
    let last_of_full_journals =
        found.manifest.journals.iter().filter_map(|record| record.last_batch).max().unwrap_or(0);
    let (expected, newest) = (last_of_full_journals.max(found.acked.ordinal), kv.last_batch());
    if newest >= expected {
        return Ok(());
    }
    let what = format!("the store's newest batch is {newest}, and batch {expected} was acknowledged");
    Err(OpenError::Damaged(DamageReport(vec![FileFault { file: "store".into(), what, remedy: Remedy::LossyRepair }])))
}
