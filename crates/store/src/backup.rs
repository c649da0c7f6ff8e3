//! Backups: a consistent copy of the store while it serves, read from a snapshot and written as a store of its own.

use crate::{
    embedded::EmbeddedStore,
    epoch::fresh_epoch,
    files::{create_folders, sync_folder},
    fjall_kv::{FjallKv, Sizes},
    folder::{CleanShutdown, Folder},
    inspect::Inspection,
    journal,
    journal_tracker::JournalTracker,
    kv::*,
    rows::MetaKind,
};
use std::{fs, io, path::Path};

/// Rows copied in one batch.
const ROWS_PER_BATCH: usize = 2_000;

/// The size of a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct BackedUp {
    pub rows: u64,
    pub bytes: u64,
}

fn io_error(error: KvError) -> io::Error {
    match error {
        KvError::Io(error) => error,
        other => io::Error::other(other),
    }
}

impl EmbeddedStore {
    /// Copies the store into a folder that does not exist yet. The copy has an epoch of its own: when it is served, it
    /// refuses the cursors of clients that went on after the backup.
    ///
    /// # Errors
    /// The target exists ([`io::ErrorKind::AlreadyExists`]), a row cannot be read, or the copy cannot be written. No part
    /// of a failed copy stays in the target.
    pub fn backup(&self, target: &Path) -> io::Result<BackedUp> {
        if target.exists() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{} exists", target.display())));
        }
        let parent = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        create_folders(parent)?;
        let unfinished = tempfile::Builder::new().prefix(".backup-").tempdir_in(parent)?;
        let folder = Folder::lock(unfinished.path()).map_err(io::Error::other)?;
        let copied = self.copy_to(&folder)?;
        // With the marker of a clean shutdown, every byte of the copy counts as acknowledged.
        let journals = journal::lengths(&folder.engine_path())?;
        folder.write_clean_shutdown(&CleanShutdown { journals })?;
        drop(folder);
        fs::rename(unfinished.keep(), target)?;
        sync_folder(parent)?;
        Ok(copied)
    }

    fn copy_to(&self, folder: &Folder) -> io::Result<BackedUp> {
        let (live, _guard) = self.kv_for_long_read().map_err(io::Error::other)?;
        let snapshot = live.snapshot();
        let sizes = Sizes { memtable_bytes: 16 << 20, journal_bytes: 96 << 20, cache_bytes: 8 << 20 };
        let copy = FjallKv::open(&folder.engine_path(), sizes).map_err(io_error)?;
        let mut copied = BackedUp { rows: 0, bytes: 0 };
        for space in Space::ALL {
            let mut batch = Batch::default();
            let mut failed = None;
            snapshot
                .scan(space, &[], LAST_KEY, Order::Ascending, &mut |key, value| {
                    copied.rows += 1;
                    copied.bytes += (key.len() + value.len()) as u64;
                    batch.put(space, key.to_vec(), value.to_vec());
                    if batch.writes.len() == ROWS_PER_BATCH {
                        failed = copy.commit(std::mem::take(&mut batch)).err();
                    }
                    failed.is_none()
                })
                .map_err(io_error)?;
            if let Some(error) = failed {
                return Err(io_error(error));
            }
            copy.commit(batch).map_err(io_error)?;
        }
        let mut batch = Batch::default();
        batch.put(Space::Meta, MetaKind::Epoch.only_key(), fresh_epoch().to_be_bytes().to_vec());
        copy.commit(batch).map_err(io_error)?;
        JournalTracker::begin(folder, &Inspection::default(), copy.space_ids(), copy.last_batch())?;
        Ok(copied)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::EmbeddedOptions;
    use tidings_domain::store::*;

    #[test]
    fn a_restart_is_refused_during_a_backup_and_reads_go_on() {
        let folder = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(EmbeddedOptions::new(folder.path())).unwrap();
        let users = |id: &str| [Proposal::PutUsers(vec![UserPatch { id: id.into(), ..UserPatch::default() }])];
        store.commit(&users("before"), 0).unwrap();
        let backup = store.kv_for_long_read().unwrap();
        let snapshot = backup.0.snapshot();
        store.simulate_refused_write();
        for _ in 0..100 {
            // Each commit is refused at once: a hundred time-outs would take too long.
            let refusal = store.commit(&users("after"), 0).unwrap_err().to_string();
            assert!(refusal.contains("backup"), "{refusal}");
            assert!(store.user_no("before").unwrap().is_some());
        }
        drop(snapshot);
        drop(backup);
        store.commit(&users("after"), 0).unwrap();
        assert!(store.user_no("after").unwrap().is_some());
    }
}
