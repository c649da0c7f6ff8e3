//! Push: data from the app server to devices, stored until each device acknowledges it or it expires.
//!
//! ```text
//! POST /v1/push ─▶ accept ─▶ store ─▶ worker ─ paced, a lane of its own ─▶ shards ─▶ sessions
//!                                        ▲                                  │ written, acknowledged
//!                                        └──────────────────────────────────┘
//! ```
//! One worker thread owns all state of push; others send it messages through [`PushHandle`]. Chat waits for none of this.
//! This crate knows no sockets and no other node: shards are behind [`ShardSink`], users behind [`UserLookup`], nodes behind
//! [`PeerTransport`]. The stored rows are those of [`tidings_domain::push_store`].
//!
//! A *named* push is addressed to users and devices by name and has a row for each target. A *push to many* is addressed to
//! all devices or by tags; its targets are bitmaps. In reading order:
//! - `operations`, `status`, `user_delivery`: the operations of the HTTP API; `prepared_push`: a push whose fields are checked;
//! - `push_thread`, `worker`: the thread, and its turns. The worker's queues, and what a turn does, are files below `worker`;
//! - `pushes_of_devices`: what a person's export has of pushes;
//! - `fallback`: devices that have not acknowledged a push in time, for those who notify them by providers;
//! - `devices`, `audience`: devices, and the targets of pushes to many, as bitmaps in memory;
//! - `reports`: what sessions were written and have acknowledged, summed where they are;
//! - `draft`: changes that become one write; `frame`: a push as sessions write it;
//! - `outgoing`: the queues towards the shards and other nodes;
//! - `remote`, `remote_client`: sessions of other nodes, over the bus.

mod audience;
mod devices;
mod draft;
mod fallback;
mod frame;
mod list;
mod operations;
mod outgoing;
mod prepared_push;
mod push_thread;
mod pushes_of_devices;
mod remote;
mod remote_client;
mod reports;
mod status;
mod user_delivery;
mod worker;

pub use fallback::{DueFallback, FallbackDevice, FallbackState, PushNotification};
pub use frame::PushFrame;
pub use prepared_push::PreparedPush;
pub use pushes_of_devices::{PushOfDevice, pushes_of_devices};
pub use remote::{PeerLeader, PeerTransport};
pub use reports::PushReports;

use parking_lot::Mutex;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};
use tidings_domain::{
    clock::Clock,
    end_reason::required,
    feed_notes::FeedNotes,
    gates::OpenGates,
    leadership::Leadership,
    metrics::Metrics,
    model::UserNo,
    push_store::DeviceNo,
    refusals::store_refusal,
    store::{Store, StoreResult},
    user_limiter::PerMinute,
};
use tidings_protocol::error::{ErrorCode, Refusal};
use worker::{Inbox, Worker};

/// What the push worker puts in a shard's push queue.
#[derive(Debug)]
pub enum PushItem {
    /// The answer to a [`Register`]; the session goes live with it. Another answer may come later: its device's number after
    /// a `node_unavailable`, a new number, or a refusal, because its device was removed.
    Registered { session: u64, result: Result<DeviceNo, Refusal> },
    /// Pushes of one device's backlog, for its session.
    Pending { session: u64, frames: Vec<Arc<PushFrame>> },
    /// A push for these sessions of this shard; those that have ended are skipped.
    Sessions { frame: Arc<PushFrame>, sessions: Vec<u64> },
    /// A push for every live device of the set: the shard walks its sessions in chunks, other lanes first.
    Matching { frame: Arc<PushFrame>, devices: Arc<dyn DeviceSet> },
}

/// A set of devices, for a shard to test its sessions' devices against.
pub trait DeviceSet: Send + Sync + std::fmt::Debug {
    fn contains(&self, device: DeviceNo) -> bool;
}

/// A session's request for the number of its device: from then on the session is pushed to, whichever node leads push.
#[derive(Debug, Clone)]
pub struct Register {
    pub shard: usize,
    pub session: u64,
    pub user: UserNo,
    pub device_id: Arc<str>,
    pub device_kind: Arc<str>,
    pub app_version: Option<Arc<str>>,
    /// When the session bound, in milliseconds since 1970 UTC: a device's newest session gets its pushes.
    pub since: u64,
}

/// Bounds of push.
#[derive(Debug, Clone)]
pub struct PushConfig {
    /// Named pushes that are pending on one device. Above: the device is no target of the next one, and the answer
    /// counts it.
    pub pending_per_device: usize,
    /// Pushes to many that run at once. Above: refused with `queue_full`; scheduled ones wait.
    pub running_to_many: usize,
    /// Pushes that wait for their start time. Above: refused with `queue_full`.
    pub scheduled: usize,
    /// How long the status of a push is kept after its end.
    pub retention: Duration,
    /// How often acknowledgements are stored: a crash loses those since, and their pushes are pushed again.
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
            retention: Duration::from_secs(7 * 24 * 60 * 60),
            flush_interval: Duration::from_millis(200),
            new_devices: PerMinute { count: 10, burst: 120 },
        }
    }
}

/// The shards of this node, to which the worker hands what their sessions are to get.
pub trait ShardSink: Send + Sync + 'static {
    /// The number of shards.
    fn count(&self) -> usize;
    /// Hands an item to a shard, without waiting: the shards pace the worker.
    ///
    /// # Errors
    /// At least `room` items wait at the shard: the item comes back, for a later try.
    fn try_push(&self, shard: usize, item: PushItem, room: usize) -> Result<(), PushItem>;
}

/// The users that pushes are for.
pub trait UserLookup: Send + Sync + 'static {
    /// The number of the user with this id. Blocks.
    ///
    /// # Errors
    /// Those of [`Store`] reads.
    fn user_no(&self, id: &str) -> StoreResult<Option<UserNo>>;
}

/// What push is built from.
#[derive(Clone)]
pub struct PushParts {
    pub config: PushConfig,
    pub lead: Leadership,
    /// Absent: there are no other nodes.
    pub transport: Option<Arc<dyn PeerTransport>>,
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub shards: Arc<dyn ShardSink>,
    pub users: Arc<dyn UserLookup>,
    pub gates: Arc<OpenGates>,
    pub feed_notes: Arc<FeedNotes>,
    pub metrics: Arc<Metrics>,
}

/// Where the bus puts other nodes' messages about pushes. It exists before [`PushHandle`]: the bus is listened to first.
#[derive(Clone)]
pub struct PeerInbox(Arc<Inbox>);

impl PeerInbox {
    /// `has_peers`: whether there may be other nodes.
    pub fn new(has_peers: bool) -> Self {
        PeerInbox(Arc::new(Inbox::new(has_peers)))
    }

    /// Never waits.
    pub fn put(&self, message: Vec<u8>) {
        self.0.peer_message(message);
    }
}

/// The handle of the push worker, for the shards and the HTTP API.
///
/// One shard with one session, whose device is then known:
///
/// ```
/// use std::sync::{Arc, mpsc};
/// # use tidings_domain::{leadership::Leadership, metrics::Metrics, model::UserNo, store::StoreResult};
/// use tidings_push::{PeerInbox, PushConfig, PushHandle, PushItem, PushParts, Register, ShardSink, UserLookup};
/// use tidings_testkit::{ManualClock, MemoryStore};
///
/// struct Shard(mpsc::Sender<PushItem>);
///
/// impl ShardSink for Shard {
///     fn count(&self) -> usize {
///         1
///     }
///
///     fn try_push(&self, _shard: usize, item: PushItem, _room: usize) -> Result<(), PushItem> {
///         self.0.send(item).map_err(|failed| failed.0)
///     }
/// }
///
/// struct Ada;
///
/// impl UserLookup for Ada {
///     fn user_no(&self, id: &str) -> StoreResult<Option<UserNo>> {
///         Ok((id == "ada").then_some(UserNo(1)))
///     }
/// }
///
/// let (shard, items) = mpsc::channel();
/// let parts = PushParts {
///     config: PushConfig::default(),
///     lead: Leadership::default(),
///     transport: None,
///     store: Arc::new(MemoryStore::default()),
///     clock: Arc::new(ManualClock::default()),
///     shards: Arc::new(Shard(shard)),
///     users: Arc::new(Ada),
///     gates: Arc::new(tidings_domain::gates::OpenGates::all()),
///     feed_notes: Arc::default(),
///     metrics: Arc::new(Metrics::new()),
/// };
/// let push = PushHandle::start(parts, PeerInbox::new(false));
/// push.register(Register {
///     shard: 0,
///     session: 7,
///     user: UserNo(1),
///     device_id: "phone".into(),
///     device_kind: "ios".into(),
///     app_version: None,
///     since: 0,
/// })?;
/// assert!(matches!(items.recv(), Ok(PushItem::Registered { session: 7, result: Ok(_) })));
/// assert_eq!(push.user_devices("ada")?.devices[0].device_id, "phone");
/// push.stop();
/// # Ok::<(), tidings_protocol::error::Refusal>(())
/// ```
pub struct PushHandle {
    inbox: Arc<Inbox>,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    users: Arc<dyn UserLookup>,
    gates: Arc<OpenGates>,
    draining: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl PushHandle {
    /// Starts the worker, which reads what it must know from the store while this node leads.
    pub fn start(parts: PushParts, PeerInbox(inbox): PeerInbox) -> Self {
        let PushParts { store, clock, users, gates, .. } = parts.clone();
        let worker_inbox = inbox.clone();
        let thread = std::thread::Builder::new().name("push".into());
        let thread = thread.spawn(move || push_thread::run(parts, worker_inbox));
        let thread = Some(required("push", thread));
        PushHandle { inbox, store, clock, users, gates, draining: AtomicBool::new(false), thread: Mutex::new(thread) }
    }

    /// Refuses new pushes with `draining` from here on. Accepted ones go on.
    pub fn begin_drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// The number of the user with this id.
    fn require_user(&self, id: &str) -> Result<UserNo, Refusal> {
        self.users.user_no(id).map_err(store_refusal)?.ok_or_else(|| Refusal::not_found("user", id))
    }

    /// Finds or creates the device. The answer comes as [`PushItem::Registered`], the device's backlog follows.
    /// Never blocks.
    ///
    /// # Errors
    /// `queue_full` when too many sessions bind at once, `draining` when the server stops.
    pub fn register(&self, register: Register) -> Result<(), Refusal> {
        self.inbox.register(register)
    }

    /// Reports that a session which asked to be registered has ended. `device`: as the session got it, if it did.
    pub fn session_ended(&self, shard: usize, session: u64, device: Option<DeviceNo>) {
        self.inbox.session_ended(shard, session, device);
    }

    /// Reports what devices were written and have acknowledged. Never blocks; reports that find no room are dropped, and the
    /// pushes that they acknowledge are pushed again on the next bind.
    pub fn report(&self, reports: PushReports) {
        self.inbox.report(reports);
    }

    /// Runs a closure on the worker between two turns, and waits for its result. Blocks.
    fn ask<T: Send + 'static>(&self, question: impl FnOnce(&mut Worker) -> T + Send + 'static) -> Result<T, Refusal> {
        let (reply, answer) = crossbeam_channel::bounded(1);
        self.inbox.ask(Box::new(move |worker| drop(reply.send(question(worker)))))?;
        answer.recv().map_err(|_| self.inbox.closed_refusal())
    }

    /// Waits until the worker has done and stored everything that it was asked for and that is due by now. Blocks.
    ///
    /// # Errors
    /// `draining` when the server stops, `node_unavailable` when another node leads, `queue_full` when too many operations
    /// wait.
    pub fn settle(&self) -> Result<(), Refusal> {
        self.ask(Worker::settle)
    }

    /// Stores the acknowledgements that came so far and ends the worker.
    pub fn stop(&self) {
        self.inbox.stop();
        if let Some(thread) = self.thread.lock().take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }

    /// The worker's queues: registrations, accepts, reports; each as metric label, depth and limit.
    pub fn depths(&self) -> [(&'static str, usize, usize); 3] {
        self.inbox.depths()
    }
}

fn stopped() -> Refusal {
    Refusal::new(ErrorCode::Draining, "the server is stopping").retry_after(1_000)
}
