//! What push keeps in the store: rows with ordered keys, written in atomic writes. The store knows nothing of their
//! meaning.
//!
//! Rows are stored in postcard's form: the order of variants and fields is part of it, their names are not.

use crate::{feed_note::NotesNo, leadership::Term, request_digest::RequestDigest, store_error::StoreResult};
use serde::{Deserialize, Serialize};
use tidings_protocol::http::PushProvider;

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
    /// As of any write of a term ([`StoreError`](crate::store_error::StoreError)): refused when the term is over; when the
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

/// One change of [`PushStore::write_push`].
#[derive(Debug, Clone, PartialEq)]
pub enum PushChange {
    /// Writes the row under its own key, in place of the row that is there.
    Put(PushRow),
    /// Deletes the row under this key, if there is one.
    Delete(PushKey),
}

/// A row's key. Keys are ordered by variant and then by fields.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PushKey {
    /// The one row of counters.
    Counters,
    /// A device, by its number.
    Device(DeviceNo),
    /// The last bind of a device.
    LastBound(DeviceNo),
    /// The push that the app server gave this id.
    ClientPushId(String),
    /// A push, by its number.
    Push(u64),
    /// A part of a push's body: the push, and the number of the part from 0 on.
    Part(u64, u32),
    /// A push that a restart looks for: the index, and the push.
    RecoveryIndex(RecoveryIndex, u64),
    /// The next thing to do about a push: the time in milliseconds since 1970 UTC, and the push.
    Timer(u64, u64),
    /// A target of a named push: the push, and the device.
    Target(u64, DeviceNo),
    /// A named push that a device has not acknowledged: the device, and the push.
    Pending(DeviceNo, u64),
    /// The newest push on a device with this collapse key.
    Collapse(DeviceNo, String),
    /// A chunk of an audience's set: the push, the set, and the number of the chunk.
    Chunk(u64, AudienceSet, u32),
    /// A chunk of what is kept of a push's fallback: the push, what it is, and the number of the chunk.
    Fallback(u64, FallbackPart, u32),
    /// The next time at which devices fall back: the time in milliseconds since 1970 UTC, and the push.
    FallbackTimer(u64, u64),
    /// Notes for the feed, by the number of their row.
    Notes(NotesNo),
}

impl PushKey {
    /// The range of all that is kept of a push's fallback.
    pub fn all_of_fallback(push: u64) -> (PushKey, PushKey) {
        (PushKey::Fallback(push, FallbackPart::Request, 0), PushKey::sent_by_providers(push).1)
    }

    /// The range of the devices for which providers took the notification of a push.
    pub fn sent_by_providers(push: u64) -> (PushKey, PushKey) {
        let [first, .., last] = PushProvider::ALL.map(FallbackPart::Sent);
        (PushKey::Fallback(push, first, 0), PushKey::Fallback(push, last, u32::MAX))
    }
}

/// What is kept of a push's fallback.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub enum FallbackPart {
    /// What was asked for, as JSON.
    Request,
    /// Devices that were connected when others fell back at once: they come later.
    Connected,
    /// Devices for which the provider took the notification.
    Sent(PushProvider),
}

/// The numbers of providers are behind those of the other parts.
const FALLBACK_PROVIDERS: u8 = 16;

impl FallbackPart {
    /// The number by which it is stored.
    pub fn number(self) -> u8 {
        match self {
            FallbackPart::Request => 0,
            FallbackPart::Connected => 1,
            FallbackPart::Sent(provider) => FALLBACK_PROVIDERS + provider.number() as u8,
        }
    }
}

impl From<FallbackPart> for u8 {
    fn from(part: FallbackPart) -> u8 {
        part.number()
    }
}

impl TryFrom<u8> for FallbackPart {
    type Error = String;

    fn try_from(number: u8) -> Result<FallbackPart, String> {
        let provider = |number| PushProvider::of_number(u64::from(number)).map(FallbackPart::Sent);
        match number {
            0 => Ok(FallbackPart::Request),
            1 => Ok(FallbackPart::Connected),
            _ => number
                .checked_sub(FALLBACK_PROVIDERS)
                .and_then(provider)
                .ok_or_else(|| format!("a fallback's {number}")),
        }
    }
}

/// Which pushes a restart looks for, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(u8)]
pub enum RecoveryIndex {
    /// Not accepted yet: its rows are purged.
    Preparing = 0,
    /// Waits for its time: its timer is set again.
    Scheduled = 1,
    /// A running push to many: its sets are read into memory.
    Live = 2,
}

/// The sets of devices of a push to many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum AudienceSet {
    /// Devices that the push is for, all of them; they do not change once the push has started.
    Targets = 0,
    /// Devices to whose connection the push was written.
    Delivered = 1,
    /// Devices that have acknowledged the push.
    Acknowledged = 2,
    /// Devices on which a newer push with the same collapse key took its place.
    Collapsed = 3,
}

impl AudienceSet {
    /// In the order of their numbers.
    pub const ALL: [AudienceSet; 4] =
        [AudienceSet::Targets, AudienceSet::Delivered, AudienceSet::Acknowledged, AudienceSet::Collapsed];
}

/// A row of push. The variants come in an order that is part of the stored form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum PushRow {
    /// The highest numbers given out. A push's number is never given twice: a device would take a new push for one that
    /// it has seen.
    Counters {
        /// The highest number of a push.
        push: u64,
        /// The highest number of a device.
        device: u32,
        /// The store's epoch. Another one shows a restore: devices may have seen numbers given out after the backup.
        epoch: u64,
    },
    /// A device that has bound for pushes.
    Device(StoredDevice),
    /// When a device bound last. Written some time after the bind, many in one write.
    LastBound {
        /// The device that bound.
        device: DeviceNo,
        /// In milliseconds since 1970 UTC.
        at: u64,
    },
    /// The push that a `client_push_id` stands for.
    ClientPushId {
        /// The id that the app server gave.
        client_push_id: String,
        /// The push that a retry with the id is answered with.
        push: u64,
        /// What the retry must ask for as well; `None`: anything. The store writes it behind the row.
        #[serde(skip)]
        request: Option<RequestDigest>,
    },
    /// A push, without its body and targets.
    Push(StoredPush),
    /// A part of a push's body; a scheduled push's target specification follows the body.
    Part {
        /// The push whose body it is.
        push: u64,
        /// The place among the parts, from 0 on.
        part: u32,
        /// At most [`PUSH_ROW_BYTES_MAX`] with the rest of the row.
        bytes: Vec<u8>,
    },
    /// A push that a restart looks for.
    RecoveryIndex {
        /// Why it is looked for.
        index: RecoveryIndex,
        /// The push's number.
        push: u64,
    },
    /// When a push starts, ends or is purged next.
    Timer {
        /// In milliseconds since 1970 UTC; the same as [`StoredPush::due_at`].
        at: u64,
        /// The push's number.
        push: u64,
    },
    /// A target of a named push, and what became of the push there.
    Target(StoredTarget),
    /// A named push that a device has not acknowledged: the same fact as the target's, found by device.
    Pending(StoredPending),
    /// The newest push with the collapse key on a device.
    Collapse {
        /// The device on which the push is pending.
        device: DeviceNo,
        /// The key that a still newer push would name.
        collapse_key: String,
        /// The number of the newest push with the key.
        push: u64,
    },
    /// A chunk of an audience's set.
    Chunk {
        /// The push to many.
        push: u64,
        /// The set that the chunk is a part of.
        set: AudienceSet,
        /// The place of the chunk's devices: those with the same high bits in their numbers.
        chunk: u32,
        /// The devices, as a list or a bitmap, whichever is shorter.
        bytes: Vec<u8>,
    },
    /// A chunk of what is kept of a push's fallback.
    Fallback {
        /// The push.
        push: u64,
        /// What the chunk is of.
        part: FallbackPart,
        /// The place of the chunk: of devices as in [`PushRow::Chunk`].
        chunk: u32,
        /// Of devices as in [`PushRow::Chunk`].
        bytes: Vec<u8>,
    },
    /// When devices that have not acknowledged a push fall back.
    FallbackTimer(StoredFallbackTimer),
    /// Notes for the feed.
    Notes {
        /// The number of the row.
        no: NotesNo,
        /// The notes, as [`notes_of`](crate::feed_note::notes_of) reads them.
        bytes: Vec<u8>,
    },
}

impl PushRow {
    /// The key under which the row is stored.
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
            PushRow::Fallback { push, part, chunk, .. } => PushKey::Fallback(*push, *part, *chunk),
            PushRow::FallbackTimer(timer) => PushKey::FallbackTimer(timer.at, timer.push),
            PushRow::Notes { no, .. } => PushKey::Notes(*no),
        }
    }
}

/// A device that has bound for pushes at least once and was not removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredDevice {
    /// The device's number now.
    pub no: DeviceNo,
    /// The number of the user whose device it is.
    pub user: u64,
    /// The id that the app gave the device; unique among the user's devices.
    pub device_id: String,
    /// The app's word for the kind of device, such as `ios`, as the last bind named it.
    pub device_kind: String,
    /// The version of the app, if the last bind named one.
    pub app_version: Option<String>,
    /// Words that the app server gave the device, to push to all devices with one of them.
    pub tags: Vec<String>,
    /// In milliseconds since 1970 UTC.
    pub first_bound: u64,
}

/// How far a push is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PushStage {
    /// Being accepted: its rows take more than one write, and the app server has no answer yet.
    Preparing,
    /// Accepted for a later time.
    Scheduled,
    /// Handed to its targets as they are there.
    Running,
    /// No target is pending any more.
    Completed,
    /// Its time is over; targets that were pending did not get it.
    Expired,
    /// Ended by the app server.
    Cancelled,
}

/// A push. Times, here and in the other rows, are milliseconds since 1970 UTC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredPush {
    /// The push's number, given once.
    pub push: u64,
    /// How far the push is.
    pub stage: PushStage,
    /// The push is pending on no device any more.
    pub closed: bool,
    /// To all or by tags: its targets are sets of devices instead of a row each.
    pub to_many: bool,
    /// The app server's word for the kind of content; the server does not read it.
    pub content_type: String,
    /// A newer push with the same key takes the place of this one where it is pending.
    pub collapse_key: Option<String>,
    /// High priority: of a device's backlog it is handed out first.
    pub high: bool,
    /// The parts hold so many bytes of body, and behind them a scheduled push's target specification.
    pub body_bytes: u32,
    /// How many rows hold the body.
    pub parts: u32,
    /// The app server's own id of the push, by which a retry is recognized.
    pub client_push_id: Option<String>,
    /// When the app server asked for it.
    pub accepted_at: u64,
    /// When a scheduled push is to start; absent: it started at once.
    pub send_at: Option<u64>,
    /// When it started; absent: it has not.
    pub started_at: Option<u64>,
    /// From then on it is pending nowhere and written to no device.
    pub expires_at: u64,
    /// When it was completed, expired or cancelled; its status is kept for a while from then on.
    pub ended_at: Option<u64>,
    /// The time of its timer.
    pub due_at: u64,
    /// Pushes in the order of their starts: of two with the same collapse key, the one with the higher order is the newer.
    /// Given out from the same counter as the numbers of pushes.
    pub start_order: u64,
    /// Devices that it is for; 0 until it has started.
    pub targets: u32,
    /// Devices that it passed over, since too many pushes were pending on them.
    pub refused_full: u32,
    /// Users and devices that the app server named and that do not exist.
    pub unknown: u32,
    /// What a retry must ask for as well; only of a push that is being accepted.
    #[serde(skip)]
    pub request: Option<RequestDigest>,
}

/// What became of a named push on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredTarget {
    /// The push's number.
    pub push: u64,
    /// The device's number.
    pub device: DeviceNo,
    /// Whether the push is pending there, or how it ended.
    pub state: TargetState,
    /// When the push was first written to the device's connection; absent: never.
    pub delivered_at: Option<u64>,
    /// When the push ended there; absent while it is pending.
    pub ended_at: Option<u64>,
}

/// The state of a named push on a device. All but the first are final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetState {
    /// Not acknowledged, and its time is not over.
    Pending,
    /// The device says that it has the push.
    Acknowledged,
    /// Not acknowledged when its time was over.
    Expired,
    /// A newer push with the same collapse key took its place.
    Collapsed,
    /// The app server ended the push first.
    Cancelled,
}

/// What the push worker needs to hand a pending push to a device that binds, without a read of the push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredPending {
    /// The device's number.
    pub device: DeviceNo,
    /// The push's number.
    pub push: u64,
    /// As [`StoredPush::high`].
    pub high: bool,
    /// As [`StoredPush::expires_at`].
    pub expires_at: u64,
    /// As [`StoredPush::collapse_key`].
    pub collapse_key: Option<String>,
    /// The push's [`StoredPush::start_order`].
    pub start_order: u64,
}

/// When devices fall back that have not acknowledged a push. A row that is no longer of use, since the push has ended, goes when it is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredFallbackTimer {
    /// In milliseconds since 1970 UTC.
    pub at: u64,
    /// The push's number.
    pub push: u64,
    /// Which devices fall back then.
    pub whom: FallbackDevices,
    /// Devices below this one have been dealt with.
    pub next: u32,
}

/// Which devices fall back at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FallbackDevices {
    /// All that have not acknowledged the push.
    All,
    /// Those of them that are not connected. The others are noted, and come a little later.
    NotConnected,
    /// Those of them that were connected then.
    WereConnected,
}
