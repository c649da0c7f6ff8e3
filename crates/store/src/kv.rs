//! What an embedded engine must offer. Narrow, so that another one can take fjall's place.

use std::io;

/// The spaces of keys; each may be tuned for its access pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Space {
    /// Users, conversations, members, marks, outbox, counters.
    Meta = 0,
    /// Entries by conversation and sequence.
    Timeline = 1,
    /// The rest of large bodies.
    Bodies = 2,
    /// First results by sender and client message id.
    Dedupe = 3,
    /// Devices, pushes, and what became of them.
    Push = 4,
    /// Popups, what users were shown of them, and events.
    Popups = 5,
}

impl Space {
    pub(crate) const ALL: [Space; 6] =
        [Space::Meta, Space::Timeline, Space::Bodies, Space::Dedupe, Space::Push, Space::Popups];

    pub(crate) fn name(self) -> &'static str {
        ["meta", "timeline", "bodies", "dedupe", "push", "popups"][self as usize]
    }
}

/// The engine could not do it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KvError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Engine(String),
    /// What the engine read is not what it wrote: a table of it is damaged.
    #[error("{0}")]
    Damaged(String),
    /// The engine has ended its work after an error in a thread of its own.
    #[error("the storage engine stopped on an error")]
    Stopped,
}

pub(crate) type KvResult<T> = Result<T, KvError>;

/// One write of a batch; without a value the key is removed.
#[derive(Debug, Clone)]
pub(crate) struct Put {
    pub space: Space,
    pub key: Vec<u8>,
    pub value: Option<Vec<u8>>,
}

/// Writes that happen together or not at all.
#[derive(Debug, Default, Clone)]
pub(crate) struct Batch {
    pub puts: Vec<Put>,
}

impl Batch {
    pub(crate) fn put(&mut self, space: Space, key: Vec<u8>, value: Vec<u8>) {
        self.puts.push(Put { space, key, value: Some(value) });
    }

    pub(crate) fn remove(&mut self, space: Space, key: Vec<u8>) {
        self.puts.push(Put { space, key, value: None });
    }
}

/// Which way a scan goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Up,
    Down,
}

/// Each batch leaves this row in every space that it writes to; its value is the batch's ordinal (8 bytes, big-endian).
/// So a journal that lacks a batch in its midst is noticed, and a space's tables never seem older than they are because
/// what was newest in them was removed. Beyond all that scans look for.
pub(crate) const BATCH_KEY: [u8; 33] = [0xFF; 33];
/// The highest key that a scan over a whole space asks for.
pub(crate) const LAST_KEY: &[u8] = &[0xFF; 32];

/// A batch that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Committed {
    /// Batches are numbered 1, 2, 3, … with no hole.
    pub ordinal: u64,
    /// The engine's number for it is not lower, and all before it had lower ones.
    pub number: u64,
    /// The spaces that it wrote to, one bit each.
    pub spaces: u8,
}

/// Reading, from the live state or from a snapshot.
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
    fn commit(&self, batch: Batch) -> KvResult<Committed>;
    /// What is committed from now on has this number or a higher one in the journals, and what was committed
    /// before has a lower one.
    fn next_number(&self) -> u64;
    /// The state as it is now, whatever is written later.
    fn snapshot(&self) -> Box<dyn KvRead + '_>;
    fn disk_bytes(&self) -> u64;
    fn journals(&self) -> u64;
}
