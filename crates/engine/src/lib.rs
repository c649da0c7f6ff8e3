//! What becomes of a message: what it means to accept, order, commit, fan out and resume.
//!
//! The engine decides; it opens no socket and no file. The disk, other nodes and time are behind the ports of
//! [`tidings_domain`], as is the model (users, conversations, entries, lanes); sockets are in the gateway. Push and popups
//! are crates of their own ([`tidings_push`], [`tidings_popups`]), which the engine starts, and for which it implements
//! their ports. In reading order, in which a module uses only those below it:
//! - `lifecycle`: how the engine starts and stops;
//! - [`imports`]: the history of another system, read and written;
//! - [`engine`]: the operations of [`Engine`], such as [`engine::send`], that belong to no feature;
//! - `reactions`: reactions and pins, and when members are notified of them;
//! - [`cluster`]: several nodes on one store;
//! - [`config`]: the settings;
//! - [`presence`]: who is online;
//! - [`commit`]: the one committer: gathers proposals, commits a batch, answers, publishes;
//! - [`hook`]: the app server that has a say before a commit: what it is asked about, and the way to it;
//! - `recent_acknowledgements`: when clients last said what they have stored;
//! - [`hub`]: where a commit goes next: to the lanes of this node, and to other nodes;
//! - [`lists`]: lists of conversations, and lines of them that have changed;
//! - [`receipts`]: who has a message, and who has read it;
//! - [`lanes`]: stage 1: per conversation, look-ups and encoding once per message;
//! - [`streams`]: messages that grow;
//! - [`shards`], [`delivery`]: stage 2: per recipient, sharded by user;
//! - [`live_audience`]: in a cluster, which commits concern a session of this node;
//! - [`directory`]: what is cached of users and conversations; [`access`]: what a caller's token allows;
//! - [`desks`]: who answers for which account;
//! - [`unread_counts`]: how many messages a user has not read;
//! - `send_limiter`: what takes a send from its user's rate;
//! - `views`: what a caller may see of a conversation; [`visibility`]: what a reader may see of an entry; every way out passes it;
//! - [`worker_thread`], [`countdown_latch`], [`entry_view`], `fairness`, [`attributes`], `request_digests`, `paging`,
//!   [`daily_window`]: what several of these share.
//!
//! A feature (`desks`, `lists`, `presence`, `reactions`, `receipts`, `streams`) is one folder: what it keeps, the worker that does
//! what falls due, and in `requests` its methods of [`Engine`]. The two types that features and operations meet in are here,
//! above all modules: [`Engine`], and [`Core`] for workers.
//!
//! Who is notified of a message that no session takes is decided above this crate; what is offered for that is in [`engine::port`].

pub mod access;
pub mod attributes;
mod block_map;
pub mod bulk_sends;
pub mod chunked_slab;
pub mod cluster;
mod commit;
pub mod config;
pub mod countdown_latch;
pub mod daily_window;
pub mod delivery;
pub mod desks;
pub mod directory;
pub mod engine;
pub mod entry_view;
mod fairness;
pub mod hook;
pub mod hub;
pub mod imports;
pub mod lanes;
mod lifecycle;
pub mod lists;
pub mod live_audience;
mod paging;
pub mod presence;
mod reactions;
pub mod receipts;
mod recent_acknowledgements;
mod request_digests;
mod send_limiter;
pub mod shards;
pub mod streams;
pub mod unread_counts;
mod views;
pub mod visibility;
pub mod worker_thread;

pub use lifecycle::EngineParts;

use cluster::Cluster;
use commit::Committer;
use config::EngineConfig;
use directory::Directory;
use engine::{leader_requests::LeaderRequests, limits::ConversationLimiters};
use hub::Hub;
use lanes::Lanes;
use lists::changes::ListChanges;
use presence::{Presence, worker::PresenceWorker};
use reactions::worker::ReactionTeller;
use receipts::Receipts;
use recent_acknowledgements::RecentAcknowledgements;
use send_limiter::SendLimiter;
use shards::Shards;
use std::sync::{Arc, OnceLock, atomic::AtomicBool};
use streams::{Streams, worker::StreamWorker};
use tidings_domain::{
    clock::Clock,
    end_reason::EndReason,
    feed_notes::FeedNotes,
    gates::OpenGates,
    leadership::{Leads, Term},
    metrics::Metrics,
    model::{LANES, Position},
    store::Store,
    user_limiter::UserLimiter,
};
use tidings_popups::PopupService;
use tidings_push::PushHandle;
use tokio::sync::{Semaphore, watch};
use worker_thread::WorkerThread;

/// The server without its listeners: the handle that they hold. One for each process, shared by all of them; every operation of
/// Tidings is a method of it.
pub struct Engine {
    pub config: EngineConfig,
    pub clock: Arc<dyn Clock>,
    pub store: Arc<dyn Store>,
    pub directory: Arc<Directory>,
    pub presence: Arc<Presence>,
    pub push: Arc<PushHandle>,
    pub popups: Arc<PopupService>,
    pub metrics: Arc<Metrics>,
    committer: Arc<Committer>,
    lanes: Arc<Lanes>,
    shards: Arc<Shards>,
    hub: Arc<dyn Hub>,
    recent_acknowledgements: RecentAcknowledgements,
    presence_worker: PresenceWorker,
    reaction_teller: ReactionTeller,
    receipts: Arc<Receipts>,
    receipts_worker: WorkerThread<crossbeam_channel::Sender<()>>,
    streams: Arc<Streams>,
    stream_worker: StreamWorker,
    desk_worker: WorkerThread,
    list_changes: Arc<ListChanges>,
    list_worker: OnceLock<WorkerThread>,
    /// Of chunks that are appended to messages.
    append_rate: SendLimiter,
    signal_rate: UserLimiter,
    limits: ConversationLimiters,
    pub cluster: Option<Cluster>,
    /// Locked while the progress of bulk sends changes. The term in which none is running, once that is known.
    bulk_sends: parking_lot::Mutex<Option<Term>>,
    /// For one import at a time: its commits are a steady load beside live traffic.
    importing: Arc<Semaphore>,
    /// For few exports of persons at a time: each reads much.
    exporting: Arc<Semaphore>,
    /// Locked while messages for a later time change.
    schedule: parking_lot::Mutex<Option<engine::scheduled::Schedule>>,
    expiring: parking_lot::Mutex<Option<engine::expiring::Expiring>>,
    leads: Leads,
    /// What every node reads, and this one may therefore write.
    pub gates: Arc<OpenGates>,
    pub feed_notes: Arc<FeedNotes>,
    leader_requests: LeaderRequests,
    draining: AtomicBool,
    end_reason: watch::Sender<Option<EndReason>>,
    start_positions: [Position; LANES],
}

/// What the engine's workers share: each names what it needs of it.
#[derive(Clone)]
pub(crate) struct Core {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) committer: Arc<Committer>,
    pub(crate) hub: Arc<dyn Hub>,
    pub(crate) shards: Arc<Shards>,
    pub(crate) leads: Leads,
    pub(crate) gates: Arc<OpenGates>,
    pub(crate) feed_notes: Arc<FeedNotes>,
}
