//! What an embedded engine must offer. The port is narrow, so that another engine can take fjall's place.

use std::io;

/// The key spaces (fjall's keyspaces); each may be tuned for its access pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Space {
    /// Users, conversations, memberships with their read marks, the outbox and counters.
    Meta = 0,
    /// Entries by conversation and sequence.
    Timeline = 1,
    /// The parts of large bodies.
    Bodies = 2,
    /// First results by sender and client message id.
    Dedupe = 3,
    /// Devices, pushes and their targets.
    Push = 4,
    /// Popups, their exposures by user, and events.
    Popups = 5,
}

impl Space {
    pub(crate) const ALL: [Space; 6] =
        [Space::Meta, Space::Timeline, Space::Bodies, Space::Dedupe, Space::Push, Space::Popups];

    pub(crate) fn name(self) -> &'static str {
        ["meta", "timeline", "bodies", "dedupe", "push", "popups"][self as usize]
    }
}

/// Why the engine did not read or write.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KvError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Engine(String),
    /// The engine read other bytes than it wrote: one of its tables is damaged.
    #[error("{0}")]
    Damaged(String),
    /// The engine takes no more writes, after an error in one of its own threads.
    #[error("the storage engine stopped on an error")]
    Stopped,
}

pub(crate) type KvResult<T> = Result<T, KvError>;

/// One write of a batch; without a value it removes the key.
#[derive(Debug, Clone)]
pub(crate) struct Write {
    pub space: Space,
    pub key: Vec<u8>,
    pub value: Option<Vec<u8>>,
}

/// Writes that happen together or not at all.
#[derive(Debug, Default, Clone)]
pub(crate) struct Batch {
    pub writes: Vec<Write>,
}

impl Batch {
    pub(crate) fn put(&mut self, space: Space, key: Vec<u8>, value: Vec<u8>) {
        self.writes.push(Write { space, key, value: Some(value) });
    }

    pub(crate) fn remove(&mut self, space: Space, key: Vec<u8>) {
        self.writes.push(Write { space, key, value: None });
    }

    /// Drops all writes of a row but the last one: an engine need not keep their order within a batch.
    pub(crate) fn keep_last_writes(&mut self) {
        let mut seen = rustc_hash::FxHashSet::default();
        self.writes.reverse();
        self.writes.retain(|write| seen.insert((write.space as usize, write.key.clone())));
        self.writes.reverse();
    }
}

/// The order of keys in which a scan visits rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Ascending,
    Descending,
}

/// The key of a row that each batch writes to every space that it touches; the row's value is the batch's ordinal
/// (8 bytes, big-endian). So a journal that lacks a batch in its midst is noticed, and the removal of a space's newest
/// rows does not make its tables look older than they are. The key lies beyond every key that a scan asks for.
pub(crate) const BATCH_KEY: [u8; 33] = [0xFF; 33];
/// The highest key that a scan over a whole space asks for.
pub(crate) const LAST_KEY: &[u8] = &[0xFF; 32];

/// A batch that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CommittedBatch {
    /// Batches are numbered 1, 2, 3, … with no hole.
    pub ordinal: u64,
    /// A lower bound of the seqno that the engine gave the batch: seqnos of earlier batches < `seqno` <= its own.
    pub seqno: u64,
    /// The spaces that the batch wrote to, one bit each.
    pub spaces: u8,
    /// Its length in the engine's journal.
    pub journal_bytes: u64,
}

/// Reads of the live state or of a snapshot.
pub(crate) trait KvRead: Send + Sync {
    fn get(&self, space: Space, key: &[u8]) -> KvResult<Option<Vec<u8>>>;

    /// Visits `low..=high` in the given order until `visit` answers false.
    fn scan(
        &self,
        space: Space,
        low: &[u8],
        high: &[u8],
        order: Order,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> KvResult<()>;
}

pub(crate) trait Kv: KvRead {
    /// Writes a batch as a whole; it is on the disk when this returns.
    fn commit(&self, batch: Batch) -> KvResult<CommittedBatch>;
    /// The engine's next sequence number. In the journals, batches that are committed from now on have this seqno or a
    /// higher one, and batches that were committed before have lower ones.
    fn next_seqno(&self) -> u64;
    /// The state as it is now; later writes do not show in it.
    fn snapshot(&self) -> Box<dyn KvRead + '_>;
    fn disk_bytes(&self) -> u64;
    fn journals(&self) -> u64;
}
