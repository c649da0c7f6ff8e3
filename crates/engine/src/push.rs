//! Push: data from the business to devices, stored until it is acknowledged or its time is over.
//!
//! ```text
//! POST /v1/push ─▶ accept ─▶ store ─▶ worker ─ paced, a lane of its own ─▶ shards ─▶ sessions
//!                                        ▲                                  │ written, acknowledged
//!                                        └──────────────────────────────────┘
//! ```
//! One worker owns all of it and is spoken to by messages; nothing here is on chat's way. In reading order:
//! - [`rows`]: what is stored, and the store's side of push;
//! - `devices`, `audience`: devices, and pushes to many, as bitmaps in memory;
//! - `inbox`, `worker`: what waits for the worker, and its turns; `outgoing`: what waits for the shards;
//! - `accept`, `start`: a push becomes durable, then its devices' own; `handout`: what waited for a device;
//! - `elsewhere`: sessions of other nodes, over the bus;
//! - `collapse`: the newest with a key takes the place; `notes`: what devices have; `jobs`: starts, ends and removals, each at its time;
//! - `operations`, `status`: what the HTTP door asks.

mod accept;
mod audience;
mod collapse;
mod devices;
mod draft;
mod elsewhere;
mod handout;
mod inbox;
mod jobs;
mod notes;
mod numbers;
mod operations;
mod outgoing;
mod recovery;
mod registering;
pub mod rows;
mod start;
mod status;
mod worker;

pub use accept::PreparedPush;
pub(crate) use elsewhere::Road;

use crate::{
    clock::Clock, cluster::leadership::Leadership, limits::PerMinute, metrics::Metrics, model::UserNo, shards::Shards,
    store::Store,
};
use bytes::Bytes;
use inbox::Inbox;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::{sync::Arc, thread::JoinHandle, time::Duration};
use tidings_protocol::error::{ErrorCode, Refusal};
use worker::Worker;

/// A device's number, given once and never reused: small, so that sets of devices are bitmaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
    /// The answer to a [`Register`]; the session goes live with it. To one that [stays](Register::stays) another may
    /// follow: its device after a `node_unavailable`, or a new number. To another one a refusal may: its device is no more.
    Registered { session: u64, result: Result<DeviceNo, Refusal> },
    /// For one session: what waited for its device.
    Pending { session: u64, frames: Vec<Arc<PushFrame>> },
    /// For these sessions of this shard, those that are still there.
    Sessions { frame: Arc<PushFrame>, sessions: Vec<u64> },
    /// For every live device of the set: the shard walks its sessions in pieces, other lanes first.
    Matching { frame: Arc<PushFrame>, devices: Arc<dyn DeviceSet> },
    /// Another node does push now: sessions that want pushes are of no use here, but for those that stay.
    Over,
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
    /// When it bound, in milliseconds since 1970 UTC: of a device's sessions the newest is pushed to.
    pub since: u64,
    /// The session lives on when another node does push, and is pushed to from there.
    pub stays: bool,
}

/// Bounds of push.
#[derive(Debug, Clone)]
pub struct PushConfig {
    /// Pushes that wait for one device by name. Above: it does not get the next, and the answer counts it.
    pub pending_per_device: usize,
    /// Pushes to many that run at once. Above: refused with `queue_full`; scheduled ones wait.
    pub running_to_many: usize,
    /// Pushes that wait for their time. Above: refused with `queue_full`.
    pub scheduled: usize,
    /// How long a push can be asked about once it has ended.
    pub kept: Duration,
    /// How often acknowledgements are stored: what a crash loses is pushed again.
    pub flush_interval: Duration,
    /// New devices of one user.
    pub new_devices: PerMinute,
}

impl Default for PushConfig {
    fn default() -> Self {
        PushConfig {
            pending_per_device: 1_000,
            running_to_many: 256,
            scheduled: 10_000,
            kept: Duration::from_secs(7 * 24 * 60 * 60),
            flush_interval: Duration::from_millis(200),
            new_devices: PerMinute { count: 10, burst: 120 },
        }
    }
}

/// What the worker needs from outside.
pub(crate) struct PushParts {
    pub(crate) config: PushConfig,
    pub(crate) lead: Leadership,
    /// Absent: there are no other nodes.
    pub(crate) road: Option<Road>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) shards: Arc<Shards>,
    pub(crate) metrics: Arc<Metrics>,
}

/// Where what other nodes say of pushes is put.
#[derive(Clone)]
pub(crate) struct PushEar(Arc<Inbox>);

impl PushEar {
    pub(crate) fn new(is_shared: bool) -> Self {
        PushEar(Arc::new(Inbox::new(is_shared)))
    }

    /// Never waits.
    pub(crate) fn hear(&self, said: Vec<u8>) {
        self.0.hear(said);
    }
}

/// The shards' and the doors' way to the push worker.
pub struct PushDesk {
    inbox: Arc<Inbox>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl PushDesk {
    pub(crate) fn start(parts: PushParts, PushEar(inbox): PushEar) -> Self {
        let worker_inbox = inbox.clone();
        let thread = std::thread::Builder::new().name("push".into());
        let thread = thread.spawn(move || Worker::run(parts, worker_inbox));
        let thread = thread.inspect_err(|error| tracing::error!(%error, "no push thread")).ok();
        PushDesk { inbox, thread: Mutex::new(thread) }
    }

    /// Whether push is done here, and not at another node.
    pub fn is_here(&self) -> bool {
        !self.inbox.is_away()
    }

    /// Finds or makes the device; the answer comes as [`PushItem::Registered`], what waits for the
    /// device follows. Never blocks: `queue_full` when too many bind at once.
    pub fn register(&self, register: Register) -> Result<(), Refusal> {
        self.inbox.register(register)
    }

    /// A session that asked to be registered has ended; its device, if it has been told.
    pub fn left(&self, shard: usize, session: u64, device: Option<DeviceNo>) {
        self.inbox.left(shard, session, device);
    }

    /// These devices' connections were written the push.
    pub fn written(&self, push: u64, devices: Vec<DeviceNo>) {
        self.inbox.written(push, devices);
    }

    /// The device has these. Never blocks; what cannot be taken is pushed again on the next bind.
    pub fn acknowledged(&self, device: DeviceNo, pushes: Vec<u64>) {
        self.inbox.acknowledged(device, pushes);
    }

    /// Has the worker do something between two turns, and waits for what comes of it. Blocks.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Worker) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let (reply, answer) = crossbeam_channel::bounded(1);
        self.inbox.ask(Box::new(move |worker| drop(reply.send(question(worker)))))?;
        answer.recv().map_err(|_| self.inbox.why_not())
    }

    /// Waits until everything that was said and is due by now is done and stored. Blocks.
    pub fn settle(&self) -> Result<(), Refusal> {
        self.ask(Worker::settle)
    }

    /// Stores the acknowledgements that came so far and ends the worker.
    pub(crate) fn stop(&self) {
        self.inbox.stop();
        if let Some(thread) = self.thread.lock().take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }

    /// What waits for the worker: registrations, operations, acknowledgements; each with its limit.
    pub(crate) fn depths(&self) -> [(&'static str, usize, usize); 3] {
        self.inbox.depths()
    }
}

pub(crate) fn stopped() -> Refusal {
    Refusal::new(ErrorCode::Draining, "the server is stopping").retry_after(1_000)
}
