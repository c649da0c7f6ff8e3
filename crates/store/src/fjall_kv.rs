//! The embedded engine: fjall 3.

use crate::{journal, kept_memtables::KeptMemtables, kv::*, rows::number_at};
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

/// The longest key. With a longer one the engine panics, be it to look the key up (fjall 3.1, `batch/item.rs`; lsm-tree 3.1,
/// `key.rs`). No row has such a key, so that it is absent to a read and an error to a write.
const KEY_BYTES_MAX: usize = u16::MAX as usize;

/// The bounds of a scan that the engine can take, with the same rows between them; `None`: there are none.
fn scan_bounds<'a>(low: &'a [u8], high: &'a [u8]) -> Option<[Bound<&'a [u8]>; 2]> {
    if low > high {
        return None;
    }
    // The rows beyond a key that is too long are those beyond its longest beginning that a row can have.
    let low = match low.get(..KEY_BYTES_MAX) {
        Some(beginning) if low.len() > KEY_BYTES_MAX => Bound::Excluded(beginning),
        _ => Bound::Included(low),
    };
    Some([low, Bound::Included(high.get(..KEY_BYTES_MAX).unwrap_or(high))])
}

pub(crate) struct FjallKv {
    /// Ends before the engine does.
    memtables: KeptMemtables,
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
        let memtables = KeptMemtables::start(&spaces, sizes.memtable_bytes).map_err(KvError::Io)?;
        let kv =
            FjallKv { memtables, database, spaces, last_batch: AtomicU64::new(0), damage_seen: AtomicBool::new(false) };
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

    #[cfg(test)]
    pub(crate) fn active_memtable(&self, space: Space) -> std::sync::Arc<lsm_tree::Memtable> {
        lsm_tree::AbstractTree::active_memtable(&self.space(space).tree)
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
        if key.len() > KEY_BYTES_MAX {
            return Ok(None);
        }
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
        let Some([low, high]) = scan_bounds(low, high) else { return Ok(()) };
        let range = self.space(space).range::<&[u8], _>((low, high));
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
            return Ok(CommittedBatch { ordinal: before, seqno, spaces: 0, journal_bytes: 0 });
        }
        if let Some(Write { space, key, .. }) = batch.writes.iter().find(|write| write.key.len() > KEY_BYTES_MAX) {
            let why = format!("a key of {} bytes is too long for the space {}", key.len(), space.name());
            return Err(KvError::Engine(why));
        }
        let ordinal = before + 1;
        let mut spaces = 0;
        let mut journal_bytes = journal::BATCH_BYTES;
        // Without this the engine does not fsync a batch.
        let mut writes = self.database.batch().durability(Some(PersistMode::SyncData));
        for Write { space, key, value } in batch.writes {
            if spaces & 1 << space as u8 == 0 {
                spaces |= 1 << space as u8;
                let row = ordinal.to_be_bytes();
                journal_bytes += journal::item_bytes(&BATCH_KEY, &row);
                writes.insert(self.space(space), BATCH_KEY, row);
            }
            journal_bytes += journal::item_bytes(&key, value.as_deref().unwrap_or_default());
            match value {
                Some(value) => writes.insert(self.space(space), key, value),
                None => writes.remove(self.space(space), key),
            }
        }
        writes.commit()?;
        self.last_batch.store(ordinal, Ordering::Relaxed);
        self.memtables.follow(journal_bytes);
        Ok(CommittedBatch { ordinal, seqno, spaces, journal_bytes })
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
        if key.len() > KEY_BYTES_MAX {
            return Ok(None);
        }
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
        let Some([low, high]) = scan_bounds(low, high) else { return Ok(()) };
        let range = self.snapshot.range::<&[u8], _>(&self.spaces[space as usize], (low, high));
        match order {
            Order::Ascending => visit_all(range, self.damage_seen, visit),
            Order::Descending => visit_all(range.rev(), self.damage_seen, visit),
        }
    }
}

#[cfg(test)]
mod key_tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_key_that_is_too_long_is_absent_and_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let sizes = Sizes { memtable_bytes: 1 << 20, journal_bytes: 96 << 20, cache_bytes: 1 << 20 };
        let kv = FjallKv::open(folder.path(), sizes).unwrap();
        let key = |length: usize| vec![b'k'; length];
        let mut batch = Batch::default();
        for length in [1, KEY_BYTES_MAX - 1, KEY_BYTES_MAX] {
            batch.put(Space::Meta, key(length), Vec::new());
        }
        batch.put(Space::Meta, b"l".to_vec(), Vec::new());
        kv.commit(batch).unwrap();
        let mut too_long = Batch::default();
        too_long.put(Space::Meta, b"other".to_vec(), Vec::new());
        too_long.put(Space::Meta, key(KEY_BYTES_MAX + 1), Vec::new());
        assert!(matches!(kv.commit(too_long), Err(KvError::Engine(_))));

        let found = |reads: &dyn KvRead, low: usize, high: usize, order| {
            let mut lengths = Vec::new();
            let mut visit = |key: &[u8], _: &[u8]| {
                lengths.push(key.len());
                true
            };
            reads.scan(Space::Meta, &key(low), &key(high), order, &mut visit).unwrap();
            lengths
        };
        let snapshot = kv.snapshot();
        for reads in [&kv as &dyn KvRead, &*snapshot] {
            assert!(reads.get(Space::Meta, &key(KEY_BYTES_MAX)).unwrap().is_some());
            assert_eq!(reads.get(Space::Meta, &key(KEY_BYTES_MAX + 1)).unwrap(), None);
            assert_eq!(reads.get(Space::Meta, b"other").unwrap(), None, "a batch is written as a whole or not at all");
            let all = [1, KEY_BYTES_MAX - 1, KEY_BYTES_MAX];
            assert_eq!(found(reads, 1, KEY_BYTES_MAX + 1, Order::Ascending), all);
            assert_eq!(found(reads, 2, KEY_BYTES_MAX * 3, Order::Descending), [all[2], all[1]]);
            assert_eq!(found(reads, KEY_BYTES_MAX + 1, KEY_BYTES_MAX + 2, Order::Ascending), [0; 0]);
            assert_eq!(found(reads, KEY_BYTES_MAX + 2, 1, Order::Descending), [0; 0]);
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
