//! Popups: which in-app message suits this user now, and when to ask again if none does.
//!
//! ```text
//! question ─▶ configuration (compiled, in memory) ─┬─▶ nothing: when to ask again
//!             frequency counters (in memory)       └─▶ exposure: counted in memory, then answered
//!                                                          │ durable within a bound (strict: before the answer)
//! events ─────────────▶ write queue ◀──────────────────────┘
//!                            └─▶ worker ─ batches ─▶ store
//! ```
//! The store is read only when a user is not in memory or the configuration changes. This crate knows no sessions and
//! does not read timelines: it looks at users through [`UserContextSource`], and its caller sends what was decided. In
//! reading order:
//! - [`rules`], [`timetable`], `zone_clock`, `caps`, `reactions`, `frequency`: to whom, when, how often, and not after what; and how
//!   often it was so far, and what the user did;
//! - `check`, `configuration`: what an app server writes, validated, then compiled;
//! - `question`, `evaluate`, `attempt`, `context`, `decide`, `explain`: which popup, and why; `decision_id`: how events
//!   name a decision;
//! - `journeys`, `journey_catalog`, `journey_worker`: sequences of popups, waits, branches and pushes, and where each user stands in them;
//! - `catalog`, `segments`, `recovery`: popups with their versions, settings, and uploaded lists of users;
//! - `user_cache`: the users whose frequency counters are in memory;
//! - `write_queue`, `undurable`, `worker`, `side_log`: how exposures and events become durable;
//! - `hourly_counts`, `events`, `event_ingest`, `user_changes`, `user_writes`, `export`, `sweep`: statistics and events, stored together
//!   with what they change of users, exported, removed in the end; `forgetting`: all that is kept of a user who is erased;
//! - `conversion`, `assignments`, `conversion_ingest`, `lift`, `lift_report`: who was shown a popup and who was not, what came of it, and what the difference is;
//! - `rows`, `check_rows`: the stored form, and its verification.

mod assignments;
mod attempt;
mod audience;
mod caps;
mod catalog;
mod check;
mod check_rows;
mod configuration;
mod context;
mod conversion;
mod conversion_ingest;
mod decide;
mod decision_id;
mod evaluate;
mod event_ingest;
mod events;
mod explain;
mod export;
mod feed;
mod forgetting;
mod frequency;
mod hourly_counts;
mod journey_catalog;
mod journey_worker;
mod journeys;
mod lift;
mod lift_report;
mod mark_kind;
mod question;
mod reactions;
mod recovery;
mod rows;
pub mod rules;
mod segments;
mod side_log;
mod sweep;
pub mod timetable;
mod undurable;
mod user_cache;
mod user_changes;
mod user_writes;
mod worker;
mod write_queue;
mod zone_clock;

pub use attempt::{DecisionAttempt, Exposure, Question};
pub use audience::Audience;
pub use catalog::Precondition;
pub use check_rows::check_popups;
pub use context::{MissingContext, UserContext};
pub use decide::{CONCURRENT_CONTEXT_READS_MAX, PopupDecision};
pub use export::EventCursor;
pub use forgetting::{PopupPlace, RowsOfUser, rows_of_user};
pub use journeys::{JourneyPush, JourneyPushes, NoPushes};
pub use lift::{Converted, Lift};
pub use lift_report::AssignmentCursor;
pub use question::QuestionBody;
pub use rows::feed_notes_from;
pub use segments::parse_segment;

use catalog::Catalog;
use configuration::Configuration;
use decision_id::DecisionSigner;
use parking_lot::{Mutex, RwLock};
use segments::FollowedSegments;
use std::{
    sync::{
        Arc, OnceLock,
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
    model::{User, UserNo},
    refusals::leader_unavailable,
    store::{RowChange, Store, StoreError, StoreResult, Term},
    user_limiter::{PerMinute, UserLimiter},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    limits::POPUP_EVENTS_BATCH_MAX,
};
use tokio::sync::Semaphore;
use user_cache::UserCache;
use worker::Worker;
use write_queue::WriteQueue;
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128};

/// A user by 128 bits of a stable hash (XXH3, unseeded) of the id. Among a hundred million users two share a key with a
/// probability of about 1 in 10^23 (the birthday bound).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserKey(pub u128);

impl UserKey {
    pub fn of(user: &str) -> Self {
        UserKey(xxh3_128(user.as_bytes()))
    }

    /// The user's bucket, from 0 to `of` - 1: always the same for a purpose and name, and independent of those for
    /// others.
    pub(crate) fn bucket(self, purpose: &str, name: &str, of: u64) -> u64 {
        let seed = xxh3_64_with_seed(name.as_bytes(), xxh3_64_with_seed(purpose.as_bytes(), 0));
        xxh3_64_with_seed(&self.0.to_le_bytes(), seed) % of.max(1)
    }
}

/// Bounds of popups.
#[derive(Debug, Clone)]
pub struct PopupsConfig {
    /// Users whose frequency counters are in memory. Above: users not asked about lately are read from the store again.
    pub users_max: usize,
    /// An exposure is durable after this time; one of a strict popup before it is answered.
    pub durable_within: Duration,
    /// While the oldest exposure has been undurable for longer, exposures are answered once they are stored, or
    /// refused. As long as `durable_within`, unless threads may be kept from running.
    pub undurable_max: Duration,
    /// Exposures that wait to be stored. Above: nothing is shown (`queue_full`) until some are stored.
    pub pending_exposures_max: usize,
    /// Events that wait to be stored. Above: refused with `rate_limited`.
    pub pending_events_max: usize,
    /// Events that one user may report by token. One with properties counts once more for each whole KiB of them.
    pub events_per_user: PerMinute,
    /// How long events are kept for export, and their ids for recognizing duplicates.
    pub event_retention: Duration,
    /// How long hourly counts and assignments are kept.
    pub count_retention: Duration,
}

impl Default for PopupsConfig {
    fn default() -> Self {
        const DAY: u64 = 24 * 60 * 60;
        PopupsConfig {
            users_max: 1_000_000,
            durable_within: Duration::from_millis(100),
            undurable_max: Duration::from_millis(100),
            pending_exposures_max: 200_000,
            pending_events_max: 100_000,
            events_per_user: PerMinute { count: 60, burst: POPUP_EVENTS_BATCH_MAX as u32 },
            event_retention: Duration::from_secs(30 * DAY),
            count_retention: Duration::from_secs(400 * DAY),
        }
    }
}

/// The users, as far as rules look at them. Popups read it only for placements with such rules.
pub trait UserContextSource: Send + Sync + 'static {
    /// The user's profile, if it is in memory.
    fn cached_profile(&self, user: &str) -> Option<Arc<User>>;
    /// The user's profile. Blocks.
    ///
    /// # Errors
    /// The store cannot be read.
    fn profile(&self, user: &str) -> Result<Option<Arc<User>>, Refusal>;
    /// When the user's oldest unread direct message was sent, in milliseconds since 1970 UTC, if that is in memory.
    fn cached_unread_since(&self, user: UserNo) -> Option<Option<u64>>;
    /// When the user's oldest unread direct message was sent, in milliseconds since 1970 UTC. Blocks.
    ///
    /// # Errors
    /// The store cannot be read.
    fn unread_since(&self, user: UserNo) -> Result<Option<u64>, Refusal>;
}

/// Whether popups can be decided on this node, if it leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PopupsReadiness {
    Ready,
    /// The configuration is being read from the store for the first time.
    Reading,
    /// It could not be read, and is tried again: everything else works.
    Unreadable,
}

/// What popups need from outside.
#[derive(Clone)]
pub struct PopupParts {
    pub config: PopupsConfig,
    /// The boot id of this process.
    pub boot: u64,
    pub lead: Leadership,
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub users: Arc<dyn UserContextSource>,
    /// What all nodes understand.
    pub gates: Arc<OpenGates>,
    /// What is to be in the feed of events.
    pub feed_notes: Arc<FeedNotes>,
    /// Sends what journeys push.
    pub pushes: Arc<dyn JourneyPushes>,
    pub metrics: Arc<Metrics>,
}

/// The state of popups for one term: decisions, the worker and the operations share it while this node leads.
pub(crate) struct Shared {
    config: PopupsConfig,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    lead: Leadership,
    gates: Arc<OpenGates>,
    feed_notes: Arc<FeedNotes>,
    term: Term,
    /// The store has refused a write, since another node leads.
    term_ended: AtomicBool,
    users: UserCache,
    write_queue: WriteQueue,
    /// Of events that users report themselves.
    event_limiter: UserLimiter,
    /// The stored configuration could not be read; it is tried again.
    recovery_failed: AtomicBool,
    /// Absent until recovery has read it from the store.
    configuration: RwLock<Option<Arc<Configuration>>>,
    catalog: Mutex<Option<Catalog>>,
    /// The answer to a write of the catalog was lost: the catalog is read from the store before it is used again.
    catalog_outcome_unknown: AtomicBool,
    signer: OnceLock<DecisionSigner>,
}

/// The state of the term in which this node leads now; absent while another node leads.
#[derive(Default)]
struct CurrentTerm {
    shared: RwLock<Option<Arc<Shared>>>,
    stopping: AtomicBool,
}

/// The handle by which the rest of the server uses popups.
///
/// An app server adds a popup, and a page of the app asks which one to show:
///
/// ```
/// use std::sync::Arc;
/// # use tidings_domain::{leadership::Leadership, metrics::Metrics, model::{User, UserNo}};
/// use tidings_popups::{PopupParts, PopupService, PopupsConfig, Precondition, QuestionBody, UserContextSource};
/// # use tidings_protocol::error::Refusal;
/// use tidings_testkit::{ManualClock, MemoryStore};
///
/// # struct NoUsers;
/// # impl UserContextSource for NoUsers {
/// #     fn cached_profile(&self, _: &str) -> Option<Arc<User>> { None }
/// #     fn profile(&self, _: &str) -> Result<Option<Arc<User>>, Refusal> { Ok(None) }
/// #     fn cached_unread_since(&self, _: UserNo) -> Option<Option<u64>> { None }
/// #     fn unread_since(&self, _: UserNo) -> Result<Option<u64>, Refusal> { Ok(None) }
/// # }
/// let popups = PopupService::start(PopupParts {
///     config: PopupsConfig::default(),
///     boot: 1,
///     lead: Leadership::default(),
///     store: Arc::new(MemoryStore::default()),
///     clock: Arc::new(ManualClock::default()),
///     users: Arc::new(NoUsers),
///     gates: Arc::new(tidings_domain::gates::OpenGates::all()),
///     feed_notes: Arc::default(),
///     pushes: Arc::new(tidings_popups::NoPushes),
///     metrics: Arc::new(Metrics::new()),
/// });
/// // What is stored has been read.
/// popups.flush()?;
///
/// let spec = br#"{"state": "live", "placements": ["home"], "variants": [{"id": "a", "content": {}}]}"#;
/// popups.put("welcome", spec, None, Precondition::None)?;
///
/// let question = QuestionBody::read(br#"{"user": "ada", "placement": "home"}"#)?;
/// let decision = popups.decide_blocking(&question.for_user("ada"))?;
/// assert_eq!(&*decision.exposure.unwrap().popup, "welcome");
/// popups.stop();
/// # Ok::<(), Refusal>(())
/// ```
pub struct PopupService {
    current: Arc<CurrentTerm>,
    metrics: Arc<Metrics>,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    users: Arc<dyn UserContextSource>,
    /// Part of the session names of connections: their numbers begin anew with each process, while session counters
    /// outlive it.
    boot: u64,
    context_reads: Semaphore,
    followed_segments: FollowedSegments,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl PopupService {
    /// Starts the worker, which reads the catalog from the store while this node leads.
    pub fn start(parts: PopupParts) -> Arc<Self> {
        let (current, metrics, boot) = (Arc::new(CurrentTerm::default()), parts.metrics.clone(), parts.boot);
        if !parts.lead.is_clustered() {
            // Without a cluster this node leads at once: a flush can already be queued, and waits until recovery is
            // done.
            *current.shared.write() = Some(Shared::new(&parts, Term::ALONE));
        }
        let (store, clock, users) = (parts.store.clone(), parts.clock.clone(), parts.users.clone());
        let for_thread = current.clone();
        let thread = std::thread::Builder::new().name("popups".into()).spawn(move || for_thread.serve(&parts));
        let context_reads = Semaphore::new(CONCURRENT_CONTEXT_READS_MAX);
        let thread = Mutex::new(Some(required("popups", thread)));
        let followed_segments = FollowedSegments::default();
        Arc::new(PopupService { current, metrics, store, clock, users, boot, context_reads, followed_segments, thread })
    }

    /// What is not ready yet while this node leads.
    pub fn readiness(&self) -> PopupsReadiness {
        match &*self.current.shared.read() {
            Some(shared) if shared.configuration.read().is_some() => PopupsReadiness::Ready,
            Some(shared) if shared.recovery_failed.load(Ordering::Relaxed) => PopupsReadiness::Unreadable,
            Some(_) => PopupsReadiness::Reading,
            None => PopupsReadiness::Ready,
        }
    }

    /// Waits until all exposures and events so far are stored. Blocks.
    ///
    /// # Errors
    /// Another node leads, too many callers wait, the store fails, or the server is stopping.
    pub fn flush(&self) -> Result<(), Refusal> {
        self.shared()?.flush()
    }

    /// The name of a connection as an app's session, for apps that name no session of their own.
    pub fn session_name(&self, connection: u64) -> String {
        session_name_of(self.boot, connection)
    }

    /// The same for a connection of the process with this boot id; `None`: this process.
    pub fn session_name_at(&self, boot: Option<u64>, connection: u64) -> String {
        session_name_of(boot.unwrap_or(self.boot), connection)
    }

    /// Stores all exposures and ends the worker.
    pub fn stop(&self) {
        self.current.stopping.store(true, Ordering::SeqCst);
        if let Some(shared) = &*self.current.shared.read() {
            shared.write_queue.stop();
        }
        if let Some(thread) = self.thread.lock().take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }

    /// Sets the gauges whose values are looked up.
    pub fn refresh_gauges(&self) {
        let shared = self.current.shared.read().clone();
        self.metrics.popup_users.set(shared.as_ref().map_or(0, |shared| shared.users.count() as i64));
        for (queue, depth, limit) in shared.iter().flat_map(|shared| shared.write_queue.depths()) {
            self.metrics.set_queue(queue, depth, limit);
        }
    }

    /// The refusal for a caller whose channel ended without an answer: the worker has ended.
    pub(crate) fn worker_gone(&self) -> Refusal {
        self.shared().map_or_else(|refusal| refusal, |shared| shared.worker_gone())
    }

    fn shared(&self) -> Result<Arc<Shared>, Refusal> {
        self.current.shared.read().clone().ok_or_else(leader_unavailable)
    }

    /// Uses the state under its read lock instead of cloning the `Arc`, for operations that never wait.
    fn with_shared<T>(&self, use_it: impl FnOnce(&Shared) -> Result<T, Refusal>) -> Result<T, Refusal> {
        use_it(self.current.shared.read().as_ref().ok_or_else(leader_unavailable)?)
    }
}

impl CurrentTerm {
    /// Runs the worker whenever this node leads: the whole of a thread.
    fn serve(&self, parts: &PopupParts) {
        let mut over = None;
        while let Some(term) = parts.lead.wait_for_term(over, || self.stopping.load(Ordering::SeqCst)) {
            let shared = self.shared.write().get_or_insert_with(|| Shared::new(parts, term)).clone();
            if self.stopping.load(Ordering::SeqCst) {
                shared.write_queue.stop();
            }
            let is_stopping = Worker::run(shared.clone(), parts.pushes.clone());
            if is_stopping {
                return;
            }
            *self.shared.write() = None;
            over = shared.term_ended.load(Ordering::Relaxed).then_some(term);
            tracing::info!("another node leads: popups are decided there");
        }
    }
}

impl Shared {
    fn new(parts: &PopupParts, term: Term) -> Arc<Shared> {
        let PopupParts { config, lead, store, clock, gates, feed_notes, metrics, .. } = parts.clone();
        Arc::new(Shared {
            users: UserCache::new(config.users_max),
            write_queue: WriteQueue::new(&config, store.has_side_log()),
            event_limiter: UserLimiter::per_minute(config.events_per_user, clock.clone()),
            recovery_failed: AtomicBool::new(false),
            configuration: RwLock::default(),
            catalog: Mutex::default(),
            catalog_outcome_unknown: AtomicBool::new(false),
            signer: OnceLock::new(),
            term_ended: AtomicBool::new(false),
            term,
            lead,
            gates,
            feed_notes,
            config,
            store,
            clock,
            metrics,
        })
    }

    fn configuration(&self) -> Result<Arc<Configuration>, Refusal> {
        self.configuration.read().clone().ok_or_else(loading)
    }

    fn flush(&self) -> Result<(), Refusal> {
        let (done, stored) = tokio::sync::oneshot::channel();
        self.write_queue.push_waiter(done)?;
        stored.blocking_recv().unwrap_or_else(|_| Err(self.worker_gone()))
    }

    /// Writes these rows, all or nothing.
    fn write(&self, changes: Vec<RowChange>) -> StoreResult<()> {
        self.observe_term(self.store.write_rows(self.term, rows::SPACE, changes))
    }

    /// After this, reads tell whether a write with an unknown outcome was stored.
    fn fence_open_writes(&self) -> StoreResult<()> {
        self.observe_term(self.store.fence_writes(self.term))
    }

    fn observe_term(&self, written: StoreResult<()>) -> StoreResult<()> {
        if matches!(written, Err(StoreError::StaleTerm)) {
            self.term_ended.store(true, Ordering::Relaxed);
        }
        written
    }

    /// Removes all rows with `from <= key <= to`, a bounded number in each write.
    fn remove_range(&self, from: &[u8], to: &[u8]) -> StoreResult<()> {
        loop {
            let rows = self.store.rows(rows::SPACE, from, to, rows::ROWS_PER_WRITE)?;
            if rows.is_empty() {
                return Ok(());
            }
            self.write(rows.into_iter().map(|(key, _)| rows::remove(key)).collect())?;
        }
    }

    /// Whether another node leads.
    fn term_has_ended(&self) -> bool {
        self.term_ended.load(Ordering::Relaxed) || self.lead.term() != Some(self.term)
    }

    /// An answer from memory is valid only while no other node can lead.
    fn check_lead(&self) -> Result<(), Refusal> {
        if self.lead.holds(self.term) { Ok(()) } else { Err(leader_unavailable()) }
    }

    /// The refusal for a caller whose channel ended without an answer.
    fn worker_gone(&self) -> Refusal {
        if self.term_has_ended() { leader_unavailable() } else { stopped() }
    }
}

/// The name of a connection of any process as an app's session.
fn session_name_of(boot: u64, connection: u64) -> String {
    format!("connection {boot:x}-{connection:x}")
}

fn loading() -> Refusal {
    Refusal::new(ErrorCode::StoreUnavailable, "popups are being read from the store").retry_after(1_000)
}

fn stopped() -> Refusal {
    Refusal::new(ErrorCode::Draining, "the server is stopping").retry_after(1_000)
}
