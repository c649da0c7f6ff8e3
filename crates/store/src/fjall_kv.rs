//! The embedded engine: fjall 3.

use crate::{inspect::ENGINE_VERSION, kv::*, rows::number_at};
use fjall::{
    CompressionType, Database, Keyspace, KeyspaceCreateOptions, LsmError, PersistMode, Readable, Snapshot,
    config::CompressionPolicy,
};
use std::{
    ops::Bound,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

/// Sizes, measured: with 16 MiB memtables and a 96 MiB journal the longest commit stall at saturation
/// was 91 ms instead of 270 to 540 with the defaults, and memory stayed below 100 MB.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub memtable_bytes: u64,
    pub journal_bytes: u64,
    pub cache_bytes: u64,
}

pub(crate) struct FjallKv {
    database: Database,
    spaces: [Keyspace; 6],
    /// The ordinal of the newest batch. Who writes holds the one lock for it.
    last_batch: AtomicU64,
    /// Something that was read is damaged.
    damage_seen: AtomicBool,
}

impl From<fjall::Error> for KvError {
    fn from(error: fjall::Error) -> Self {
        match error {
            fjall::Error::Io(error) | fjall::Error::Storage(LsmError::Io(error)) => KvError::Io(error),
            fjall::Error::Poisoned => KvError::Stopped,
            fjall::Error::Storage(
                error @ (LsmError::ChecksumMismatch { .. }
                | LsmError::Decompress(_)
                | LsmError::InvalidTag(_)
                | LsmError::InvalidHeader(_)
                | LsmError::InvalidTrailer),
            ) => KvError::Damaged(format!(
                "a table of the storage engine does not hold what was written to it ({error:?})"
            )),
            other => KvError::Engine(format!("{other:?}")),
        }
    }
}

impl FjallKv {
    pub(crate) fn open(folder: &Path, sizes: Sizes) -> KvResult<Self> {
        // The engine's own lock holds nothing, and it does not open without one. Ours keeps others away.
        if folder.join(ENGINE_VERSION).exists() {
            std::fs::File::options().create(true).truncate(false).write(true).open(folder.join("lock"))?;
        }
        let database = Database::builder(folder)
            .max_journaling_size(sizes.journal_bytes)
            .cache_size(sizes.cache_bytes)
            // Uncompressed, so that a damaged tail can be judged by its own bytes.
            .journal_compression(CompressionType::None)
            .open()?;
        let open = |space: Space| {
            database.keyspace(space.name(), || {
                let options = KeyspaceCreateOptions::default().max_memtable_size(sizes.memtable_bytes);
                match space {
                    // Ids do not compress, and are looked up more often missing than present.
                    Space::Dedupe => options.data_block_compression_policy(CompressionPolicy::disabled()),
                    _ => options,
                }
            })
        };
        let [meta, timeline, bodies, dedupe, push, popups] = Space::ALL;
        let spaces = [open(meta)?, open(timeline)?, open(bodies)?, open(dedupe)?, open(push)?, open(popups)?];
        let kv = FjallKv { database, spaces, last_batch: AtomicU64::new(0), damage_seen: AtomicBool::new(false) };
        for space in Space::ALL {
            let row = kv.get(space, &BATCH_KEY)?;
            let ordinal = row.and_then(|row| number_at(&row, 0)).unwrap_or(0);
            kv.last_batch.fetch_max(ordinal, Ordering::Relaxed);
        }
        Ok(kv)
    }

    /// The engine's own number of each space, under which its files stand.
    pub(crate) fn space_ids(&self) -> [u64; 6] {
        std::array::from_fn(|space| self.spaces[space].id())
    }

    /// The ordinal of the newest batch; 0 before the first.
    pub(crate) fn last_batch(&self) -> u64 {
        self.last_batch.load(Ordering::Relaxed)
    }

    /// Has all that is in memory written to tables, after which the journals hold nothing that is not there as well.
    pub(crate) fn empty_journals(&self) -> KvResult<()> {
        for space in &self.spaces {
            space.rotate_memtable()?;
        }
        while self.spaces.iter().any(|space| space.sealed_memtable_count() > 0) {
            if self.has_stopped() {
                return Err(KvError::Stopped);
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        Ok(())
    }

    /// Whether a thread of the engine has met an error, after which it takes no writes. Waits for a write that is under
    /// way.
    pub(crate) fn has_stopped(&self) -> bool {
        matches!(self.database.persist(PersistMode::Buffer), Err(fjall::Error::Poisoned))
    }

    /// Whether something that was read was damaged since this was last asked.
    pub(crate) fn take_damage_seen(&self) -> bool {
        self.damage_seen.swap(false, Ordering::Relaxed)
    }

    fn space(&self, space: Space) -> &Keyspace {
        &self.spaces[space as usize]
    }
}

/// An error of a read, which is remembered if it tells of damage.
fn read_error(error: fjall::Error, damage_seen: &AtomicBool) -> KvError {
    let error = KvError::from(error);
    if matches!(error, KvError::Damaged(_)) {
        damage_seen.store(true, Ordering::Relaxed);
    }
    error
}

fn visit_all(
    items: impl Iterator<Item = fjall::Guard>,
    damage_seen: &AtomicBool,
    visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
) -> KvResult<()> {
    for item in items {
        let (key, value) = item.into_inner().map_err(|error| read_error(error, damage_seen))?;
        if !visit(&key, &value) {
            break;
        }
    }
    Ok(())
}

impl KvRead for FjallKv {
    fn get(&self, space: Space, key: &[u8]) -> KvResult<Option<Vec<u8>>> {
        let value = self.space(space).get(key).map_err(|error| read_error(error, &self.damage_seen))?;
        Ok(value.map(|value| value.to_vec()))
    }

    fn scan(
        &self,
        space: Space,
        low: &[u8],
        high: &[u8],
        order: Order,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> KvResult<()> {
        let range = self.space(space).range::<&[u8], _>((Bound::Included(low), Bound::Included(high)));
        match order {
            Order::Up => visit_all(range, &self.damage_seen, visit),
            Order::Down => visit_all(range.rev(), &self.damage_seen, visit),
        }
    }
}

impl Kv for FjallKv {
    fn commit(&self, batch: Batch) -> KvResult<Committed> {
        // Before the write: this batch has no number yet.
        let number = self.next_number();
        let before = self.last_batch.load(Ordering::Relaxed);
        if batch.puts.is_empty() {
            return Ok(Committed { ordinal: before, number, spaces: 0 });
        }
        let ordinal = before + 1;
        let mut spaces = 0;
        // A batch alone is not fsynced.
        let mut writes = self.database.batch().durability(Some(PersistMode::SyncData));
        for Put { space, key, value } in batch.puts {
            if spaces & 1 << space as u8 == 0 {
                spaces |= 1 << space as u8;
                writes.insert(self.space(space), BATCH_KEY, ordinal.to_be_bytes());
            }
            match value {
                Some(value) => writes.insert(self.space(space), key, value),
                None => writes.remove(self.space(space), key),
            }
        }
        writes.commit()?;
        self.last_batch.store(ordinal, Ordering::Relaxed);
        Ok(Committed { ordinal, number, spaces })
    }

    fn next_number(&self) -> u64 {
        self.database.seqno()
    }

    fn snapshot(&self) -> Box<dyn KvRead + '_> {
        Box::new(FjallSnapshot {
            snapshot: self.database.snapshot(),
            spaces: &self.spaces,
            damage_seen: &self.damage_seen,
        })
    }

    fn disk_bytes(&self) -> u64 {
        self.database.disk_space().unwrap_or(0)
    }

    fn journals(&self) -> u64 {
        self.database.journal_count() as u64
    }
}

struct FjallSnapshot<'a> {
    snapshot: Snapshot,
    spaces: &'a [Keyspace; 6],
    damage_seen: &'a AtomicBool,
}

impl KvRead for FjallSnapshot<'_> {
    fn get(&self, space: Space, key: &[u8]) -> KvResult<Option<Vec<u8>>> {
        let value = self.snapshot.get(&self.spaces[space as usize], key);
        let value = value.map_err(|error| read_error(error, self.damage_seen))?;
        Ok(value.map(|value| value.to_vec()))
    }

    fn scan(
        &self,
        space: Space,
        low: &[u8],
        high: &[u8],
        order: Order,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> KvResult<()> {
        let range = self
            .snapshot
            .range::<&[u8], _>(&self.spaces[space as usize], (Bound::Included(low), Bound::Included(high)));
        match order {
            Order::Up => visit_all(range, self.damage_seen, visit),
            Order::Down => visit_all(range.rev(), self.damage_seen, visit),
        }
    }
}
