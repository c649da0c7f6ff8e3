//! A consistent copy while the store serves: read from a snapshot, written as a store of its own.

use crate::{
    embedded::EmbeddedStore,
    fjall_kv::{FjallKv, Sizes},
    folder::{ClosedMark, Folder, create_folders, sync_folder},
    inspect::Findings,
    journal,
    kv::*,
    open::fresh_epoch,
    tracker::JournalTracker,
};
use std::{fs, io, path::Path};

/// Rows copied in one batch.
const ROWS_PER_BATCH: usize = 2_000;

/// What a backup holds.
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
    /// Copies the store into a folder that does not exist yet. The copy is a store with an epoch of
    /// its own: a cursor that went on after the backup is noticed when the backup is served.
    pub fn backup(&self, target: &Path) -> io::Result<BackedUp> {
        if target.exists() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{} exists", target.display())));
        }
        let parent = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        create_folders(parent)?;
        let unfinished = tempfile::Builder::new().prefix(".backup-").tempdir_in(parent)?;
        let folder = Folder::take(unfinished.path()).map_err(io::Error::other)?;
        let copied = self.copy_to(&folder)?;
        // As a store that was closed in order: every byte of it counts.
        let journals = journal::lengths(&folder.engine_path())?;
        folder.write_closed_mark(&ClosedMark { journals })?;
        drop(folder);
        fs::rename(unfinished.keep(), target)?;
        sync_folder(parent)?;
        Ok(copied)
    }

    fn copy_to(&self, folder: &Folder) -> io::Result<BackedUp> {
        let (live, _turn) = self.kv_for_long().map_err(io::Error::other)?;
        let snapshot = live.snapshot();
        let sizes = Sizes { memtable_bytes: 16 << 20, journal_bytes: 96 << 20, cache_bytes: 8 << 20 };
        let copy = FjallKv::open(&folder.engine_path(), sizes).map_err(io_error)?;
        let mut copied = BackedUp { rows: 0, bytes: 0 };
        for space in Space::ALL {
            let mut batch = Batch::default();
            let mut failed = None;
            snapshot
                .scan(space, &[], LAST_KEY, Order::Up, &mut |key, value| {
                    copied.rows += 1;
                    copied.bytes += (key.len() + value.len()) as u64;
                    batch.put(space, key.to_vec(), value.to_vec());
                    if batch.puts.len() == ROWS_PER_BATCH {
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
        batch.put(Space::Meta, vec![b'e'], fresh_epoch().to_be_bytes().to_vec());
        copy.commit(batch).map_err(io_error)?;
        JournalTracker::begin(folder, &Findings::default(), copy.space_ids(), copy.last_batch())?;
        Ok(copied)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::EmbeddedOptions;
    use tidings_engine::store::*;

    #[test]
    fn writes_wait_for_a_backup_without_holding_up_who_reads() {
        let folder = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(EmbeddedOptions::new(folder.path())).unwrap();
        let users = |id: &str| [Proposal::PutUsers(vec![UserPatch { id: id.into(), ..UserPatch::default() }])];
        store.commit(&users("before"), 0).unwrap();
        let backup = store.kv_for_long().unwrap();
        let snapshot = backup.0.snapshot();
        store.refuse_writes_until_restarted();
        for _ in 0..100 {
            // At once: a hundred of these do not wait for each other's patience.
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
