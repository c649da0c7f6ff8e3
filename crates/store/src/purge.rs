//! Purging: the bytes of rows that were replaced or removed leave the engine's files. A row that is replaced stays in the
//! journal that brought it until all batches of that journal are in tables, and in its table until the table is merged.

use crate::{embedded::EmbeddedStore, errors::store_error, files::number_in, journal, kv::*};
use tidings_domain::store::*;

/// The row that fills a journal. Its key lies beyond every key that a scan asks for.
const PADDING_KEY: [u8; 34] = [0xFF; 34];
const PADDING_BYTES: usize = 1024 * 1024;
/// The engine begins another journal once the last one is longer than 64 MB, and only when it writes a memtable to a table.
const PADDING_ROWS: usize = 65;
/// How often all memtables are written, at most, until the former journals are gone.
const FLUSHES_MAX: usize = 20;

impl EmbeddedStore {
    pub(crate) fn purge_files(&self) -> StoreResult<()> {
        // A backup that began earlier still reads the rows as they were, and so keeps them.
        if self.long_reads.try_write().is_none() {
            return Err(StoreError::Unavailable("a backup or a check reads the store; purge it afterwards".into()));
        }
        let (kv, _guard) = self.kv_for_long_read()?;
        let largest = Space::ALL.into_iter().map(|space| kv.table_bytes(space)).max().unwrap_or(0);
        self.check_room_for(largest)?;
        self.retire_journals(|| kv.flush_memtables().map_err(store_error))?;
        // Bodies are in some spaces only, and what an erasure removes is in all.
        for space in Space::ALL {
            kv.merge_tables(space).map_err(store_error)?;
        }
        // The engine removes the tables that were merged when it next has a memtable to write.
        self.write_rows_batch(padding(None))?;
        kv.flush_memtables().map_err(store_error)?;
        let mut writer = self.writer.lock();
        writer.tracker.forget_emptied().map_err(|error| store_error(error.into()))
    }

    /// A merge writes its tables before it removes those that it has read.
    fn check_room_for(&self, bytes: u64) -> StoreResult<()> {
        let needed = bytes.saturating_add(self.options.disk_reserve_bytes);
        match rustix::fs::statvfs(self.path()) {
            Ok(stat) if stat.f_bavail.saturating_mul(stat.f_frsize) < needed => Err(StoreError::DiskFull),
            _ => Ok(()),
        }
    }

    /// Has the engine begin another journal, and waits until those before it are gone.
    ///
    /// The engine removes journals when a worker is done with a memtable, which is some time after the memtable counts as
    /// flushed, and in the call that seals a memtable with rows. So each turn has a row to seal: a turn without one
    /// would end before the worker.
    fn retire_journals(&self, flush: impl Fn() -> StoreResult<()>) -> StoreResult<()> {
        let last = self.journal_numbers()?.last().copied().unwrap_or(0);
        for _ in 0..FLUSHES_MAX {
            if self.journal_numbers()?.last().is_some_and(|newest| *newest == last) {
                self.fill_journal()?;
            }
            self.write_rows_batch(padding(None))?;
            flush()?;
            if self.journal_numbers()?.first().is_some_and(|oldest| *oldest > last) {
                return Ok(());
            }
        }
        Err(StoreError::Unavailable(format!("the engine still keeps journal {last}")))
    }

    fn fill_journal(&self) -> StoreResult<()> {
        for _ in 0..PADDING_ROWS {
            self.write_rows_batch(padding(Some(vec![0; PADDING_BYTES])))?;
        }
        Ok(())
    }

    /// The numbers of the engine's journals, lowest first.
    fn journal_numbers(&self) -> StoreResult<Vec<u64>> {
        let journals = journal::journals(&self.folder.engine_path()).map_err(|error| store_error(error.into()))?;
        Ok(journals.iter().filter_map(|path| number_in(path, "", ".jnl")).collect())
    }
}

fn padding(value: Option<Vec<u8>>) -> Batch {
    Batch { writes: vec![Write { space: Space::Popups, key: PADDING_KEY.to_vec(), value }] }
}
