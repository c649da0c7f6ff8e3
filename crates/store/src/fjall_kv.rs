//! The embedded engine: fjall 3.

use crate::{kv::*, rows::number_at};
use fjall::{
    CompressionType, Database, Keyspace, KeyspaceCreateOptions, LsmError, PersistMode, Readable, Snapshot,
    config::CompressionPolicy,
};
use std::{
    ops::Bound,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

/// The engine's file that names the format of its folder, and the file's content.
pub(crate) const ENGINE_VERSION: &str = "version";
pub(crate) const ENGINE_VERSION_BYTES: &[u8] = b"FJL\x03";

/// The engine's sizes. Measured: with 16 MiB memtables and a 96 MiB journal the longest commit stall at saturation
/// was 91 ms instead of 270 to 540 with the defaults, and memory stayed below 100 MB.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub memtable_bytes: u64,
    pub journal_bytes: u64,
    pub cache_bytes: u64,
}

/// The `nice` of the engine's background threads: beside others they get about a tenth of those threads' processor time.
#[cfg(target_os = "linux")]
const WORKERS_NICENESS: i32 = 10;

pub(crate) struct FjallKv {
    database: Database,
    spaces: [Keyspace; 6],
    /// The ordinal of the newest batch. Changed only under the store's writer lock.
    last_batch: AtomicU64,
    /// A read has met damage.
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
                "a table of the storage engine holds other bytes than were written to it ({error:?})"
            )),
            other => KvError::Engine(format!("{other:?}")),
        }
    }
}

impl FjallKv {
    pub(crate) fn open(folder: &Path, sizes: Sizes) -> KvResult<Self> {
        // The engine does not open without its lock file, whatever is in it. Our own lock keeps other processes away.
        if folder.join(ENGINE_VERSION).exists() {
            std::fs::File::options().create(true).truncate(false).write(true).open(folder.join("lock"))?;
        }
        let database = at_low_priority(|| {
            Database::builder(folder)
                .max_journaling_size(sizes.journal_bytes)
                .cache_size(sizes.cache_bytes)
                // Uncompressed, so that `journal` can tell a torn end from damage by the bytes alone.
                .journal_compression(CompressionType::None)
                .open()
        })?;
        let open = |space: Space| {
            database.keyspace(space.name(), || {
                let options = KeyspaceCreateOptions::default().max_memtable_size(sizes.memtable_bytes);
                match space {
                    // Ids do not compress, and most look-ups of one find nothing.
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

    /// The engine's id of each space, which names the folder of its files.
    pub(crate) fn space_ids(&self) -> [u64; 6] {
        std::array::from_fn(|space| self.spaces[space].id())
    }

    /// The ordinal of the newest batch; 0 before the first.
    pub(crate) fn last_batch(&self) -> u64 {
        self.last_batch.load(Ordering::Relaxed)
    }

    /// Flushes all memtables to tables. After that the tables hold every batch of the journals.
    pub(crate) fn flush_memtables(&self) -> KvResult<()> {
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

    /// Merges all tables of a space into new ones, which hold only the newest value of each row.
    pub(crate) fn merge_tables(&self, space: Space) -> KvResult<()> {
        at_low_priority(|| self.space(space).major_compact().map_err(KvError::from))
    }

    /// The bytes of a space's tables.
    pub(crate) fn table_bytes(&self, space: Space) -> u64 {
        self.space(space).disk_space()
    }

    /// Whether the engine takes no more writes because one of its threads has met an error. Waits for a write that is
    /// under way.
    pub(crate) fn has_stopped(&self) -> bool {
        matches!(self.database.persist(PersistMode::Buffer), Err(fjall::Error::Poisoned))
    }

    /// Whether a read has met damage since the last call.
    pub(crate) fn take_damage_seen(&self) -> bool {
        self.damage_seen.swap(false, Ordering::Relaxed)
    }

    fn space(&self, space: Space) -> &Keyspace {
        &self.spaces[space as usize]
    }
}

/// Opens the engine such that its background threads, which write and merge tables, run only while commits and deliveries
/// leave a core free: on Linux a thread has a priority of its own and inherits that of its creator.
///
/// Merging takes a whole core for 50 to 100 ms at a time, and the engine's first worker spins as long as the others merge
/// (fjall 3.1, `worker_tick`): with equal priority commits waited that long for their turn.
fn at_low_priority<T: Send>(open: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let opener = scope.spawn(|| {
            #[cfg(target_os = "linux")]
            if let Err(error) = rustix::process::setpriority_process(None, WORKERS_NICENESS) {
                tracing::debug!(%error, "the storage engine's threads keep the priority of all others");
            }
            open()
        });
        opener.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Converts a read's error, and remembers it if it is damage.
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
            Order::Ascending => visit_all(range, &self.damage_seen, visit),
            Order::Descending => visit_all(range.rev(), &self.damage_seen, visit),
        }
    }
}

impl Kv for FjallKv {
    fn commit(&self, batch: Batch) -> KvResult<CommittedBatch> {
        // Before the write: the engine has not given this batch a seqno yet.
        let seqno = self.next_seqno();
        let before = self.last_batch.load(Ordering::Relaxed);
        if batch.writes.is_empty() {
            return Ok(CommittedBatch { ordinal: before, seqno, spaces: 0 });
        }
        let ordinal = before + 1;
        let mut spaces = 0;
        // Without this the engine does not fsync a batch.
        let mut writes = self.database.batch().durability(Some(PersistMode::SyncData));
        for Write { space, key, value } in batch.writes {
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
        Ok(CommittedBatch { ordinal, seqno, spaces })
    }

    fn next_seqno(&self) -> u64 {
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
            Order::Ascending => visit_all(range, self.damage_seen, visit),
            Order::Descending => visit_all(range.rev(), self.damage_seen, visit),
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::{
        fs,
        time::{Duration, Instant},
    };

    /// The niceness of each of the process's threads that has the engine's name.
    fn workers_niceness() -> Vec<i32> {
        const NICENESS_FIELD: usize = 18; // proc_pid_stat(5), counted from 0
        const FIELDS_BEFORE_STATE: usize = 2;
        let threads = fs::read_dir("/proc/self/task").unwrap();
        let stats = threads.filter_map(|thread| fs::read_to_string(thread.unwrap().path().join("stat")).ok());
        let workers = stats.filter(|stat| stat.contains("(fjall:worker)"));
        let niceness = |stat: &str| {
            let (_, fields) = stat.rsplit_once(") ")?;
            fields.split(' ').nth(NICENESS_FIELD - FIELDS_BEFORE_STATE)?.parse().ok()
        };
        workers.filter_map(|stat| niceness(&stat)).collect()
    }

    #[test]
    fn background_threads_have_a_low_priority() {
        let folder = tempfile::tempdir().unwrap();
        let sizes = Sizes { memtable_bytes: 1 << 20, journal_bytes: 96 << 20, cache_bytes: 1 << 20 };
        let _kv = FjallKv::open(folder.path(), sizes).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        // A thread takes its name only once it runs.
        while workers_niceness().is_empty() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        let found = workers_niceness();
        assert!(!found.is_empty() && found.iter().all(|niceness| *niceness >= WORKERS_NICENESS), "{found:?}");
    }
}
