//! Push: data from the business to devices, stored until it is acknowledged or its time is over.
//!
//! ```text
//! POST /v1/push ─▶ accept ─▶ store ─▶ worker ─ paced, a lane of its own ─▶ shards ─▶ sessions
//!                                        ▲                                  │ written, acknowledged
//!                                        └──────────────────────────────────┘
//! ```

use crate::{model::UserNo, shards::Shards};
use bytes::Bytes;
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};
use tidings_protocol::error::Refusal;

/// A device's number, given once and never reused: small, so that sets of devices are bitmaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNo(pub u32);

/// A push as sessions write it, encoded once for all receivers.
#[derive(Debug)]
pub struct PushFrame {
    pub push: u64,
    /// Milliseconds since 1970 UTC; not written afterwards.
    pub expires_at: u64,
    /// A whole MIOP frame, header included.
    pub miop: Bytes,
    /// The JSON of the WebSocket door's `push` frame.
    pub json: Bytes,
}

/// What the push worker puts in a shard's push queue.
#[derive(Debug)]
pub enum PushItem {
    /// The answer to a [`Register`]; the session goes live with it.
    Registered { session: u64, result: Result<DeviceNo, Refusal> },
    /// For one session: what waited for its device.
    Pending { session: u64, frames: Vec<Arc<PushFrame>> },
    /// For these sessions of this shard, those that are still there.
    Sessions { frame: Arc<PushFrame>, sessions: Vec<u64> },
    /// For every live device of the set: the shard walks its sessions in pieces, other lanes first.
    Matching { frame: Arc<PushFrame>, devices: Arc<dyn DeviceSet> },
}

/// A set of devices that a shard can look into.
pub trait DeviceSet: Send + Sync + std::fmt::Debug {
    fn contains(&self, device: DeviceNo) -> bool;
}

/// A session that wants pushes asks for its device's number.
#[derive(Debug, Clone)]
pub struct Register {
    pub shard: usize,
    pub session: u64,
    pub user: UserNo,
    pub device_id: Arc<str>,
    pub device_kind: Arc<str>,
    pub app_version: Option<Arc<str>>,
}

/// The shards' way to the push worker.
pub struct PushDesk {
    shards: Arc<Shards>,
    next: AtomicU32,
}

impl PushDesk {
    pub(crate) fn new(shards: Arc<Shards>) -> Self {
        PushDesk { shards, next: AtomicU32::new(0) }
    }

    /// Finds or makes the device; the answer comes as [`PushItem::Registered`], what waits for the
    /// device follows. Never blocks: `queue_full` when too many bind at once.
    pub fn register(&self, register: Register) -> Result<(), Refusal> {
        let device = DeviceNo(self.next.fetch_add(1, Ordering::Relaxed));
        let item = PushItem::Registered { session: register.session, result: Ok(device) };
        self.shards.push(register.shard, item);
        Ok(())
    }

    /// The session of a registered device has ended.
    pub fn left(&self, _device: DeviceNo, _session: u64) {}

    /// These devices' connections were written the push.
    pub fn written(&self, _push: u64, _devices: Vec<DeviceNo>) {}

    /// The device has these. Never blocks; what cannot be taken is pushed again on the next bind.
    pub fn acknowledged(&self, _device: DeviceNo, _pushes: Vec<u64>) {}
}
