//! A consistent copy while the store serves: read from a snapshot, written as a store of its own.

use crate::{
    embedded::{EmbeddedStore, fresh_epoch},
    fjall_kv::{FjallKv, Sizes},
    folder::{FORMAT, sync_folder, write_durably},
    kv::*,
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
        KvError::Engine(error) => io::Error::other(error),
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
        fs::create_dir_all(parent)?;
        let unfinished = tempfile::Builder::new().prefix(".backup-").tempdir_in(parent)?;
        let copied = self.copy_to(&unfinished.path().join("store"))?;
        write_durably(&unfinished.path().join("format"), format!("{FORMAT}\n").as_bytes())?;
        fs::rename(unfinished.keep(), target)?;
        sync_folder(parent)?;
        Ok(copied)
    }

    fn copy_to(&self, engine: &Path) -> io::Result<BackedUp> {
        let (live, _turn) = self.kv_for_long().map_err(io::Error::other)?;
        let snapshot = live.snapshot();
        let sizes = Sizes { memtable_bytes: 16 << 20, journal_bytes: 96 << 20, cache_bytes: 8 << 20 };
        let copy = FjallKv::open(engine, sizes).map_err(io_error)?;
        let mut copied = BackedUp { rows: 0, bytes: 0 };
        for space in Space::ALL {
            let mut batch = Batch::default();
            let mut failed = None;
            snapshot
                .scan(space, &[], &[0xFF; 32], Order::Up, &mut |key, value| {
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
