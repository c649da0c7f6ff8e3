//! What push keeps in the store: rows with keys in one order, written in batches that are durable as
//! a whole. The store knows nothing of their meaning.

use super::DeviceNo;
use crate::store::{StoreResult, Term};
use serde::{Deserialize, Serialize};

/// Rows in one write: small, so that chat's commits never wait long for push.
pub const PUSH_ROWS_PER_WRITE: usize = 512;
/// A row's longest value, encoded: long ones are cut into parts here, before the store.
pub const PUSH_ROW_BYTES_MAX: usize = 3 * 1024;

/// The store's side of push.
pub trait PushStore: Send + Sync + 'static {
    /// Writes all or nothing; durable when it returns.
    fn write_push(&self, term: Term, changes: &[PushChange]) -> StoreResult<()>;
    fn push_row(&self, key: &PushKey) -> StoreResult<Option<PushRow>>;
    /// Several rows, in the order in which they were asked for. A store that must travel for each answers them in one; to
    /// others single reads are as good.
    fn push_rows_of(&self, keys: &[PushKey]) -> StoreResult<Vec<Option<PushRow>>> {
        keys.iter().map(|key| self.push_row(key)).collect()
    }
    /// Rows with `from <= key <= to`, in the order of keys, at most `limit`.
    fn push_rows(&self, from: &PushKey, to: &PushKey, limit: usize) -> StoreResult<Vec<PushRow>>;
}

#[derive(Debug, Clone, PartialEq)]
pub enum PushChange {
    Put(PushRow),
    Drop(PushKey),
}

/// Where a row stands. The order of keys is the order of variants and, within one, of the fields.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PushKey {
    Counters,
    Device(DeviceNo),
    Bound(DeviceNo),
    Name(String),
    Push(u64),
    Part(u64, u32),
    Mark(Mark, u64),
    Timer(u64, u64),
    Target(u64, DeviceNo),
    Pending(DeviceNo, u64),
    Collapse(DeviceNo, String),
    Chunk(u64, Set, u32),
}

/// What a push needs to be found for after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(u8)]
pub enum Mark {
    /// Not accepted yet: what is there of it goes.
    Preparing = 0,
    Scheduled = 1,
    /// To many, and running: its sets belong in memory.
    Live = 2,
}

/// The sets of devices of a push to many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Set {
    Targets = 0,
    Delivered = 1,
    Acknowledged = 2,
    Collapsed = 3,
}

impl Set {
    pub const ALL: [Set; 4] = [Set::Targets, Set::Delivered, Set::Acknowledged, Set::Collapsed];
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum PushRow {
    /// The highest numbers given out: none is given twice, or a device would take a new push for one it has seen.
    Counters {
        push: u64,
        device: u32,
        /// The store's: after a restore, numbers given out since the backup are not known here, but on devices.
        epoch: u64,
    },
    Device(StoredDevice),
    /// When a device bound last; written late, for it changes with every bind.
    Bound {
        device: DeviceNo,
        at: u64,
    },
    /// The push that a `client_push_id` stands for.
    Name {
        client_push_id: String,
        push: u64,
    },
    Push(StoredPush),
    /// A part of the body and, while it is scheduled, of whom it is for.
    Part {
        push: u64,
        part: u32,
        bytes: Vec<u8>,
    },
    Mark {
        mark: Mark,
        push: u64,
    },
    /// When to look at a push next.
    Timer {
        at: u64,
        push: u64,
    },
    /// What became of a push on a device that it names.
    Target(StoredTarget),
    /// A push that waits for a device's acknowledgement.
    Pending(StoredPending),
    /// The newest push with the key on a device.
    Collapse {
        device: DeviceNo,
        collapse_key: String,
        push: u64,
    },
    /// A piece of a set of devices.
    Chunk {
        push: u64,
        set: Set,
        chunk: u32,
        bytes: Vec<u8>,
    },
}

impl PushRow {
    pub fn key(&self) -> PushKey {
        match self {
            PushRow::Counters { .. } => PushKey::Counters,
            PushRow::Device(device) => PushKey::Device(device.no),
            PushRow::Bound { device, .. } => PushKey::Bound(*device),
            PushRow::Name { client_push_id, .. } => PushKey::Name(client_push_id.clone()),
            PushRow::Push(push) => PushKey::Push(push.push),
            PushRow::Part { push, part, .. } => PushKey::Part(*push, *part),
            PushRow::Mark { mark, push } => PushKey::Mark(*mark, *push),
            PushRow::Timer { at, push } => PushKey::Timer(*at, *push),
            PushRow::Target(target) => PushKey::Target(target.push, target.device),
            PushRow::Pending(pending) => PushKey::Pending(pending.device, pending.push),
            PushRow::Collapse { device, collapse_key, .. } => PushKey::Collapse(*device, collapse_key.clone()),
            PushRow::Chunk { push, set, chunk, .. } => PushKey::Chunk(*push, *set, *chunk),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredDevice {
    pub no: DeviceNo,
    pub user: u64,
    pub device_id: String,
    pub device_kind: String,
    pub app_version: Option<String>,
    pub tags: Vec<String>,
    pub first_bound: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    Preparing,
    Scheduled,
    Running,
    Completed,
    Expired,
    Cancelled,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredPush {
    pub push: u64,
    pub stage: Stage,
    /// Nothing of it waits for a device any more.
    pub closed: bool,
    /// To all or by tags: sets of devices instead of a row each.
    pub to_many: bool,
    pub content_type: String,
    pub collapse_key: Option<String>,
    pub high: bool,
    /// The parts hold so many bytes of body, and then whom a scheduled push is for.
    pub body_bytes: u32,
    pub parts: u32,
    pub client_push_id: Option<String>,
    pub accepted_at: u64,
    pub send_at: Option<u64>,
    pub started_at: Option<u64>,
    pub expires_at: u64,
    pub ended_at: Option<u64>,
    /// Where its timer stands.
    pub due_at: u64,
    /// Counts starts: of two with the same collapse key the later one is the newest. Numbers of pushes and these
    /// are given out together.
    pub order: u64,
    pub targets: u32,
    pub refused_full: u32,
    pub unknown: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredTarget {
    pub push: u64,
    pub device: DeviceNo,
    pub fate: Fate,
    pub delivered_at: Option<u64>,
    pub ended_at: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fate {
    Waits,
    Acknowledged,
    Expired,
    Collapsed,
    Cancelled,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredPending {
    pub device: DeviceNo,
    pub push: u64,
    pub high: bool,
    pub expires_at: u64,
    pub collapse_key: Option<String>,
    /// The push's.
    pub order: u64,
}
