//! The restart of the engine after a failed write. The engine takes no more writes then, so it is closed and opened again.
//! In between, the refused batch is cut from the journals, so that what was refused never shows up.

use crate::{
    embedded::{EmbeddedStore, Writer},
    errors::{OpenError, store_error},
    fjall_kv::FjallKv,
    inspect::inspect,
    journal,
    journal_tracker::JournalTracker,
    reads::read_counters,
};
use parking_lot::RwLockReadGuard;
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use tidings_domain::store::*;

/// How long a restart waits for short reads that are under way. Reads that begin meanwhile wait for the restart.
const READ_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the store tries to open the engine again before it refuses readers.
const REOPEN_TIMEOUT: Duration = Duration::from_secs(1);
/// Each try that fails is logged: some twenty lines at most.
const REOPEN_PAUSE: Duration = Duration::from_millis(50);

impl EmbeddedStore {
    /// The engine for a long read, such as a backup, with a guard that puts restarts off while the read lasts. The caller
    /// must not hold the engine already: the guard may wait for a restart, which waits for the caller's engine.
    pub(crate) fn kv_for_long_read(&self) -> StoreResult<(Arc<FjallKv>, RwLockReadGuard<'_, ()>)> {
        let guard = self.long_reads.read();
        Ok((self.kv()?, guard))
    }

    /// Restarts the engine after a failed write. The refused batch is cut from the journals, whole or torn: its caller was
    /// answered that the write failed, and no caller that it succeeded.
    fn restart_engine(&self, writer: &mut Writer, refused_from_seqno: u64) -> StoreResult<()> {
        if writer.has_engine_stopped {
            self.scrubber.verify_after_stop().map_err(|error| StoreError::Unavailable(error.to_string()))?;
        }
        // With a damaged table the restarted engine would stop again, at the latest when it merges that table.
        if let Some(damage) = self.scrubber.damage_text() {
            return Err(StoreError::Damaged(damage));
        }
        let Some(_guard) = self.long_reads.try_write() else {
            let why = "the engine is restarted when the backup that reads from it is done";
            return Err(StoreError::Unavailable(why.into()));
        };
        let mut kv = self.kv.write();
        let mut deadline = Instant::now();
        if let Some(old) = kv.take() {
            // The engine locks its folder: the old one must be closed, and so every reader must have dropped it.
            match wait_for_sole_owner(old) {
                Ok(engine) => drop(engine),
                Err(shared) => {
                    *kv = Some(shared);
                    let why = "the engine will be restarted when the reads that use it are done";
                    return Err(StoreError::Unavailable(why.into()));
                }
            }
            deadline = Instant::now() + REOPEN_TIMEOUT;
        }
        let fresh = loop {
            match self.reopen_engine(writer, refused_from_seqno) {
                Ok(fresh) => break fresh,
                // What hinders it may pass, such as a thread of the old engine that has not let go of the folder. Without an engine
                // readers are refused.
                Err(error) if Instant::now() < deadline && !matches!(error, StoreError::Damaged(_)) => {
                    tracing::warn!(%error, "the storage engine could not be opened again; it is tried again");
                    std::thread::sleep(REOPEN_PAUSE);
                }
                Err(error) => return Err(error),
            }
        };
        self.heads.clear();
        self.position.store(writer.counters.position, Ordering::Release);
        let fresh = Arc::new(fresh);
        self.scrubber.watch(&fresh);
        *kv = Some(fresh);
        tracing::warn!("the storage engine was restarted after a failed write");
        Ok(())
    }

    /// Opens the engine of a folder whose former one is closed, without the refused batch.
    fn reopen_engine(&self, writer: &mut Writer, refused_from_seqno: u64) -> StoreResult<FjallKv> {
        let unavailable = |error: std::io::Error| StoreError::Unavailable(error.to_string());
        let damaged = |error: OpenError| match error {
            OpenError::Damaged(damage) => StoreError::Damaged(damage.to_string()),
            other => StoreError::Unavailable(other.to_string()),
        };
        journal::cut_refused(&self.folder, refused_from_seqno).map_err(damaged)?;
        let found = inspect(&self.folder).map_err(unavailable)?;
        found.refuse_faults().map_err(damaged)?;
        let fresh = FjallKv::open(&self.folder.engine_path(), self.options.sizes()).map_err(store_error)?;
        writer.tracker =
            JournalTracker::begin(&self.folder, &found, fresh.space_ids(), fresh.last_batch()).map_err(unavailable)?;
        writer.counters = read_counters(&fresh)?;
        Ok(fresh)
    }

    /// Restarts the engine if it has refused a write since its last start.
    pub(crate) fn restart_if_refused(&self, writer: &mut Writer) -> StoreResult<()> {
        if let Some(refused_from_seqno) = writer.refused_from_seqno {
            self.restart_engine(writer, refused_from_seqno)?;
            writer.refused_from_seqno = None;
        }
        Ok(())
    }

    /// Puts the store into the state that a failed write leaves.
    #[cfg(test)]
    pub(crate) fn simulate_refused_write(&self) {
        self.writer.lock().refused_from_seqno = Some(u64::MAX);
    }
}

/// Waits up to [`READ_DRAIN_TIMEOUT`] until all other holders have dropped the engine.
fn wait_for_sole_owner(mut engine: Arc<FjallKv>) -> Result<FjallKv, Arc<FjallKv>> {
    let deadline = Instant::now() + READ_DRAIN_TIMEOUT;
    loop {
        engine = match Arc::try_unwrap(engine) {
            Ok(engine) => return Ok(engine),
            Err(shared) if Instant::now() < deadline => shared,
            Err(shared) => return Err(shared),
        };
        std::thread::sleep(Duration::from_millis(1));
    }
}
