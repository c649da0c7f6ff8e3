//! After a write that failed: the engine takes no more, is ended, and started afresh. What was refused is cut from its
//! journals between the two, so that a refusal stays one.

use crate::{
    embedded::{EmbeddedStore, OpenError, Writer, store_error},
    fjall_kv::FjallKv,
    inspect::inspect,
    journal,
    reads::read_counters,
    tracker::JournalTracker,
};
use parking_lot::RwLockReadGuard;
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use tidings_engine::store::*;

/// How long a fresh start of the engine waits for short reads that are under way: who comes meanwhile waits too.
const READERS_GONE_WITHIN: Duration = Duration::from_secs(1);

impl EmbeddedStore {
    /// The engine for what takes long, and what keeps a fresh start of it away meanwhile. Who asks holds no
    /// engine yet: it waits while one is started.
    pub(crate) fn kv_for_long(&self) -> StoreResult<(Arc<FjallKv>, RwLockReadGuard<'_, ()>)> {
        let turn = self.long_reads.read();
        Ok((self.kv()?, turn))
    }

    /// Starts the engine afresh after it gave up on a failed write. What it was to write then is cut from its
    /// journals, whole or torn: who asked for it was told that it failed, and nobody was told that it is there.
    fn restart_engine(&self, writer: &mut Writer, refused_from: u64) -> StoreResult<()> {
        if writer.has_stopped {
            self.health.verify_after_stop().map_err(|error| StoreError::Unavailable(error.to_string()))?;
        }
        // Started again, it would stop again: at the latest when it merges the damaged table.
        if let Some(trouble) = self.health.trouble() {
            return Err(StoreError::Damaged(trouble));
        }
        let Some(_turn) = self.long_reads.try_write() else {
            let why = "the engine is restarted when the backup that reads from it is done";
            return Err(StoreError::Unavailable(why.into()));
        };
        let mut kv = self.kv.write();
        if let Some(old) = kv.take() {
            // The engine locks its folder: the old one must be gone, readers that hold it included.
            match sole_owner(old) {
                Ok(engine) => drop(engine),
                Err(shared) => {
                    *kv = Some(shared);
                    return Err(StoreError::Unavailable("reads hold the engine; it will be restarted".into()));
                }
            }
        }
        let unavailable = |error: std::io::Error| StoreError::Unavailable(error.to_string());
        let damaged = |error: OpenError| match error {
            OpenError::Damaged(damage) => StoreError::Damaged(damage.to_string()),
            other => StoreError::Unavailable(other.to_string()),
        };
        journal::cut_refused(&self.folder, refused_from).map_err(damaged)?;
        let found = inspect(&self.folder).map_err(unavailable)?;
        found.refuse().map_err(damaged)?;
        let fresh = FjallKv::open(&self.folder.engine_path(), self.options.sizes()).map_err(store_error)?;
        writer.tracker =
            JournalTracker::begin(&self.folder, &found, fresh.space_ids(), fresh.last_batch()).map_err(unavailable)?;
        writer.counters = read_counters(&fresh)?;
        self.heads.clear();
        self.position.store(writer.counters.position, Ordering::Release);
        let fresh = Arc::new(fresh);
        self.health.watch(&fresh);
        *kv = Some(fresh);
        tracing::warn!("the engine was started afresh after a failed write");
        Ok(())
    }

    pub(crate) fn start_afresh_if_refused(&self, writer: &mut Writer) -> StoreResult<()> {
        if let Some(refused_from) = writer.refused_from {
            self.restart_engine(writer, refused_from)?;
            writer.refused_from = None;
        }
        Ok(())
    }

    /// As after a write that failed.
    #[cfg(test)]
    pub(crate) fn refuse_writes_until_restarted(&self) {
        self.writer.lock().refused_from = Some(u64::MAX);
    }
}

/// Waits until nobody else holds the engine, for a while.
fn sole_owner(mut engine: Arc<FjallKv>) -> Result<FjallKv, Arc<FjallKv>> {
    let deadline = Instant::now() + READERS_GONE_WITHIN;
    loop {
        engine = match Arc::try_unwrap(engine) {
            Ok(engine) => return Ok(engine),
            Err(shared) if Instant::now() < deadline => shared,
            Err(shared) => return Err(shared),
        };
        std::thread::sleep(Duration::from_millis(1));
    }
}
