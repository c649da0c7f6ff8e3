//! What push keeps in the store: rows with ordered keys, written in atomic writes. The store knows nothing of their
//! meaning.
//!
//! Rows are stored in postcard's form: the order of variants and fields is part of it, their names are not.

use crate::store::{StoreResult, Term};
use serde::{Deserialize, Serialize};

/// Rows in one write: few, so that chat's commits never wait long for push.
pub const PUSH_ROWS_PER_WRITE: usize = 512;
/// A row's longest value, encoded. Push cuts longer values into parts; the store refuses them.
pub const PUSH_ROW_BYTES_MAX: usize = 3 * 1024;

/// A device's number. Numbers stay small, so that sets of devices are bitmaps: a number is given to another device once its
/// device is removed and no stored push refers to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceNo(pub u32);

/// The store's side of push.
pub trait PushStore: Send + Sync + 'static {
    /// Writes all changes or none; they are durable when it returns.
    ///
    /// # Errors
    /// As of any write of a term ([`StoreError`](crate::store::StoreError)): refused when the term is over; when the
    /// outcome is unknown, the changes may be stored or not.
    fn write_push(&self, term: Term, changes: &[PushChange]) -> StoreResult<()>;
    /// The row under a key.
    ///
    /// # Errors
    /// When the store cannot be reached, or the row is damaged.
    fn push_row(&self, key: &PushKey) -> StoreResult<Option<PushRow>>;
    /// The rows under several keys, in the order of `keys`. A store behind a network reads them in one round trip.
    ///
    /// # Errors
    /// As [`Self::push_row`].
    fn push_rows_of(&self, keys: &[PushKey]) -> StoreResult<Vec<Option<PushRow>>> {
        keys.iter().map(|key| self.push_row(key)).collect()
    }
    /// Rows with `from <= key <= to`, in the order of keys, at most `limit`.
    ///
    /// # Errors
    /// As [`Self::push_row`].
    fn push_rows(&self, from: &PushKey, to: &PushKey, limit: usize) -> StoreResult<Vec<PushRow>>;
}

#[derive(Debug, Clone, PartialEq)]
pub enum PushChange {
    Put(PushRow),
    Delete(PushKey),
}

/// A row's key. Keys are ordered by variant and then by fields.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PushKey {
    Counters,
    Device(DeviceNo),
    LastBound(DeviceNo),
    ClientPushId(String),
    Push(u64),
    Part(u64, u32),
    RecoveryIndex(RecoveryIndex, u64),
    Timer(u64, u64),
    Target(u64, DeviceNo),
    Pending(DeviceNo, u64),
    Collapse(DeviceNo, String),
    Chunk(u64, AudienceSet, u32),
}

/// Which pushes a restart looks for, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(u8)]
pub enum RecoveryIndex {
    /// Not accepted yet: its rows are purged.
    Preparing = 0,
    Scheduled = 1,
    /// A running push to many: its sets are read into memory.
    Live = 2,
}

/// The sets of devices of a push to many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum AudienceSet {
    Targets = 0,
    Delivered = 1,
    Acknowledged = 2,
    Collapsed = 3,
}

impl AudienceSet {
    pub const ALL: [AudienceSet; 4] =
        [AudienceSet::Targets, AudienceSet::Delivered, AudienceSet::Acknowledged, AudienceSet::Collapsed];
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum PushRow {
    /// The highest numbers given out. A push's number is never given twice: a device would take a new push for one that
    /// it has seen.
    Counters {
        push: u64,
        device: u32,
        /// The store's epoch. Another one shows a restore: devices may have seen numbers given out after the backup.
        epoch: u64,
    },
    Device(StoredDevice),
    /// When a device bound last. Written some time after the bind, many in one write.
    LastBound {
        device: DeviceNo,
        at: u64,
    },
    /// The push that a `client_push_id` stands for.
    ClientPushId {
        client_push_id: String,
        push: u64,
    },
    Push(StoredPush),
    /// A part of a push's body; a scheduled push's target specification follows the body.
    Part {
        push: u64,
        part: u32,
        bytes: Vec<u8>,
    },
    RecoveryIndex {
        index: RecoveryIndex,
        push: u64,
    },
    /// When a push starts, ends or is purged next.
    Timer {
        at: u64,
        push: u64,
    },
    /// A target of a named push, and what became of the push there.
    Target(StoredTarget),
    /// A named push that a device has not acknowledged: the same fact as the target's, found by device.
    Pending(StoredPending),
    /// The newest push with the collapse key on a device.
    Collapse {
        device: DeviceNo,
        collapse_key: String,
        push: u64,
    },
    /// A chunk of an audience's set.
    Chunk {
        push: u64,
        set: AudienceSet,
        chunk: u32,
        bytes: Vec<u8>,
    },
}

impl PushRow {
    pub fn key(&self) -> PushKey {
        match self {
            PushRow::Counters { .. } => PushKey::Counters,
            PushRow::Device(device) => PushKey::Device(device.no),
            PushRow::LastBound { device, .. } => PushKey::LastBound(*device),
            PushRow::ClientPushId { client_push_id, .. } => PushKey::ClientPushId(client_push_id.clone()),
            PushRow::Push(push) => PushKey::Push(push.push),
            PushRow::Part { push, part, .. } => PushKey::Part(*push, *part),
            PushRow::RecoveryIndex { index, push } => PushKey::RecoveryIndex(*index, *push),
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
pub enum PushStage {
    Preparing,
    Scheduled,
    Running,
    Completed,
    Expired,
    Cancelled,
}

/// A push. Times, here and in the other rows, are milliseconds since 1970 UTC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredPush {
    pub push: u64,
    pub stage: PushStage,
    /// The push is pending on no device any more.
    pub closed: bool,
    /// To all or by tags: its targets are sets of devices instead of a row each.
    pub to_many: bool,
    pub content_type: String,
    pub collapse_key: Option<String>,
    pub high: bool,
    /// The parts hold so many bytes of body, and behind them a scheduled push's target specification.
    pub body_bytes: u32,
    pub parts: u32,
    pub client_push_id: Option<String>,
    pub accepted_at: u64,
    pub send_at: Option<u64>,
    pub started_at: Option<u64>,
    pub expires_at: u64,
    pub ended_at: Option<u64>,
    /// The time of its timer.
    pub due_at: u64,
    /// Pushes in the order of their starts: of two with the same collapse key, the one with the higher order is the newer.
    /// Given out from the same counter as the numbers of pushes.
    pub start_order: u64,
    pub targets: u32,
    pub refused_full: u32,
    pub unknown: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredTarget {
    pub push: u64,
    pub device: DeviceNo,
    pub state: TargetState,
    pub delivered_at: Option<u64>,
    pub ended_at: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetState {
    Pending,
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
    /// The push's [`StoredPush::start_order`].
    pub start_order: u64,
}
