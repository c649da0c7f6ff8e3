//! Popups: which in-app message suits this user now, and when to ask again if none does.
//!
//! ```text
//! decide ─▶ configuration (compiled, in memory) ─┬─▶ nothing: when to ask again
//!              users (what each was shown)       └─▶ shown: counted in memory, then answered
//!                                                        │ within the stated bound (strict: before the answer)
//! events ─▶ inbox ─▶ worker ─ batches ─▶ store ◀─────────┘
//! ```
//! The store is read when a user is not in memory or the configuration changes, never else. In reading order:
//! - [`rules`], [`timetable`], `caps`, `marks`: who, when, how often; and what a user was shown;
//! - `check`, `configuration`: what an app server writes, checked, then compiled;
//! - `question`, `evaluate`, `decide`, `answer`, `explain`: which popup, and why; `decision_id`: how events name a decision;
//! - `catalog`, `segments`, `recovery`, `sweep`: popups, their versions, settings and lists of users;
//! - `users`: who is held in memory; `unread`: what is looked up for rules about unread messages;
//! - `inbox`, `at_risk`, `worker`, `notes`, `counts`, `events`, `taking`, `export`: what becomes durable, and how
//!   it is read again;
//! - `rows`, `check_rows`: as what it is stored, and whether all of that agrees.

mod answer;
mod at_risk;
mod caps;
mod catalog;
mod check;
mod check_rows;
mod configuration;
mod counts;
mod decide;
mod decision_id;
mod evaluate;
mod events;
mod explain;
mod export;
mod inbox;
mod marks;
mod notes;
mod question;
mod recovery;
mod rows;
pub mod rules;
mod segments;
mod sweep;
mod taking;
pub mod timetable;
mod trigger;
mod unread;
mod users;
mod worker;

pub use answer::{DecidedNow, LOOKING_UP_MAX};
pub use catalog::Precondition;
pub use check_rows::{CheckedRows, check_popups};
pub use decide::{Ask, Decided, Facts, Needs, Showing};
pub use export::EventCursor;
pub use question::QuestionBody;
pub use segments::read_segment;
pub(crate) use unread::UnreadCache;

use crate::{
    clock::Clock,
    cluster::leadership::{Leadership, leader_unavailable},
    metrics::Metrics,
    store::{RowChange, Store, StoreError, StoreResult, Term},
};
use catalog::Catalog;
use configuration::Configuration;
use decision_id::Seal;
use inbox::Inbox;
use parking_lot::{Mutex, RwLock};
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};
use tidings_protocol::error::{ErrorCode, Refusal};
use tokio::sync::Semaphore;
use users::Users;
use worker::Worker;
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128};

/// A user as popups know one: 128 bits of a stable hash (XXH3, unseeded) of the id. Two of a hundred million users
/// share one with a probability of about 1 in 10^23 (the birthday bound).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserKey(pub u128);

impl UserKey {
    pub fn of(user: &str) -> Self {
        UserKey(xxh3_128(user.as_bytes()))
    }

    /// A number below `of`, always the same for the user, and unlike that for another purpose or name.
    pub(crate) fn share(self, (purpose, name): (&str, &str), of: u64) -> u64 {
        let seed = xxh3_64_with_seed(name.as_bytes(), xxh3_64_with_seed(purpose.as_bytes(), 0));
        xxh3_64_with_seed(&self.0.to_le_bytes(), seed) % of.max(1)
    }
}

/// Bounds of popups.
#[derive(Debug, Clone)]
pub struct PopupsConfig {
    /// Users held in memory. Above: those not asked for lately are read from the store when they come back.
    pub users: usize,
    /// A decision is durable after this time; one for a strict popup when it is answered.
    pub durable_within: Duration,
    /// While an earlier showing has been neither stored nor noted for longer, showings are answered once they are stored, or
    /// refused: as long as `durable_within`, unless threads may be kept from running.
    pub at_risk_max: Duration,
    /// Showings that wait to be stored. Above: nothing is shown (`queue_full`) until some are.
    pub showings: usize,
    /// Events that wait to be stored. Above: refused with `rate_limited`.
    pub events: usize,
    /// How long events are kept for export, and their ids for telling second ones.
    pub events_kept: Duration,
    /// How long counts are kept.
    pub counts_kept: Duration,
}

impl Default for PopupsConfig {
    fn default() -> Self {
        const DAY: u64 = 24 * 60 * 60;
        PopupsConfig {
            users: 1_000_000,
            durable_within: Duration::from_millis(100),
            at_risk_max: Duration::from_millis(100),
            showings: 200_000,
            events: 100_000,
            events_kept: Duration::from_secs(30 * DAY),
            counts_kept: Duration::from_secs(400 * DAY),
        }
    }
}

/// What popups need from outside.
#[derive(Clone)]
pub(crate) struct PopupParts {
    pub(crate) config: PopupsConfig,
    /// Tells this process from others.
    pub(crate) boot: u64,
    pub(crate) lead: Leadership,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Arc<Metrics>,
}

/// What decisions, the worker and the operations share, for as long as this node leads.
pub(crate) struct Shared {
    config: PopupsConfig,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    lead: Leadership,
    term: Term,
    /// The store has told that another node leads.
    is_over: AtomicBool,
    users: Users,
    inbox: Inbox,
    /// Absent until what is stored has been read.
    configuration: RwLock<Option<Arc<Configuration>>>,
    catalog: Mutex<Option<Catalog>>,
    seal: OnceLock<Seal>,
}

/// What is held in memory now; nothing while another node leads.
#[derive(Default)]
struct Held {
    now: RwLock<Option<Arc<Shared>>>,
    stopping: AtomicBool,
}

/// The doors' way to popups.
pub struct Popups {
    held: Arc<Held>,
    metrics: Arc<Metrics>,
    /// Connections' numbers begin anew with the process; sessions that are remembered by name do not.
    boot: u64,
    look_ups: Semaphore,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Popups {
    pub(crate) fn start(parts: PopupParts) -> Self {
        let (held, metrics, boot) = (Arc::new(Held::default()), parts.metrics.clone(), parts.boot);
        if !parts.lead.is_clustered() {
            // What is asked from now on waits until it is read.
            *held.now.write() = Some(Shared::new(&parts, Term::ALONE));
        }
        let for_thread = held.clone();
        let thread = std::thread::Builder::new().name("popups".into()).spawn(move || for_thread.serve(&parts));
        let thread = thread.inspect_err(|error| tracing::error!(%error, "no popups thread")).ok();
        let look_ups = Semaphore::new(LOOKING_UP_MAX);
        Popups { held, metrics, boot, look_ups, thread: Mutex::new(thread) }
    }

    /// Waits until all that was decided and reported so far is stored. Blocks.
    pub fn settle(&self) -> Result<(), Refusal> {
        self.shared()?.settle()
    }

    /// What a connection is called as an app's session, if the app names none that outlives it.
    pub fn session_of(&self, connection: u64) -> String {
        session_at(self.boot, connection)
    }

    /// Stores what was decided and ends the worker.
    pub(crate) fn stop(&self) {
        self.held.stopping.store(true, Ordering::SeqCst);
        if let Some(shared) = &*self.held.now.read() {
            shared.inbox.stop();
        }
        if let Some(thread) = self.thread.lock().take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }

    pub(crate) fn refresh_gauges(&self) {
        let shared = self.held.now.read().clone();
        self.metrics.popup_users.set(shared.as_ref().map_or(0, |shared| shared.users.count() as i64));
        for (queue, depth, limit) in shared.iter().flat_map(|shared| shared.inbox.depths()) {
            self.metrics.queue(queue, depth, limit);
        }
    }

    /// Why what was decided will not be durable: who would have told has gone.
    pub fn gone(&self) -> Refusal {
        self.shared().map_or_else(|refusal| refusal, |shared| shared.gone())
    }

    fn shared(&self) -> Result<Arc<Shared>, Refusal> {
        self.held.now.read().clone().ok_or_else(leader_unavailable)
    }

    /// The same without a count of who uses it, for what never waits.
    fn with_shared<T>(&self, ask: impl FnOnce(&Shared) -> Result<T, Refusal>) -> Result<T, Refusal> {
        ask(self.held.now.read().as_ref().ok_or_else(leader_unavailable)?)
    }
}

impl Held {
    /// Whenever this node leads: the whole of a thread.
    fn serve(&self, parts: &PopupParts) {
        let mut over = None;
        while let Some(term) = parts.lead.wait_for_term(over, || self.stopping.load(Ordering::SeqCst)) {
            let shared = self.now.write().get_or_insert_with(|| Shared::new(parts, term)).clone();
            if self.stopping.load(Ordering::SeqCst) {
                shared.inbox.stop();
            }
            let is_end = Worker::run(shared.clone());
            if is_end {
                return;
            }
            *self.now.write() = None;
            over = shared.is_over.load(Ordering::Relaxed).then_some(term);
            tracing::info!("popups go on at another node");
        }
    }
}

impl Shared {
    fn new(parts: &PopupParts, term: Term) -> Arc<Shared> {
        let PopupParts { config, lead, store, clock, metrics, .. } = parts.clone();
        Arc::new(Shared {
            users: Users::new(config.users),
            inbox: Inbox::new(&config, store.has_side_log()),
            configuration: RwLock::default(),
            catalog: Mutex::default(),
            seal: OnceLock::new(),
            is_over: AtomicBool::new(false),
            term,
            lead,
            config,
            store,
            clock,
            metrics,
        })
    }

    fn configuration(&self) -> Result<Arc<Configuration>, Refusal> {
        self.configuration.read().clone().ok_or_else(loading)
    }

    fn settle(&self) -> Result<(), Refusal> {
        let (done, stored) = tokio::sync::oneshot::channel();
        self.inbox.ask_durable(done)?;
        stored.blocking_recv().unwrap_or_else(|_| Err(self.gone()))
    }

    /// All or nothing.
    fn write(&self, changes: Vec<RowChange>) -> StoreResult<()> {
        self.heed(self.store.write_rows(self.term, rows::SPACE, changes))
    }

    /// From here on what is read shows what became of writes that may have been stored.
    fn settle_writes(&self) -> StoreResult<()> {
        self.heed(self.store.settle(self.term))
    }

    fn heed(&self, written: StoreResult<()>) -> StoreResult<()> {
        if matches!(written, Err(StoreError::TermIsOver)) {
            self.is_over.store(true, Ordering::Relaxed);
        }
        written
    }

    /// Drops all that begins with these keys, a bounded piece in each write.
    fn drop_all(&self, from: &[u8], to: &[u8]) -> StoreResult<()> {
        loop {
            let rows = self.store.rows(rows::SPACE, from, to, rows::ROWS_PER_WRITE)?;
            if rows.is_empty() {
                return Ok(());
            }
            self.write(rows.into_iter().map(|(key, _)| rows::remove(key)).collect())?;
        }
    }

    /// Whether another node leads.
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed) || self.lead.term() != Some(self.term)
    }

    /// What is answered from memory counts only while nobody else can lead.
    fn check_lead(&self) -> Result<(), Refusal> {
        if self.lead.holds(self.term) { Ok(()) } else { Err(leader_unavailable()) }
    }

    /// Why who waited gets no answer.
    fn gone(&self) -> Refusal {
        if self.is_over() { leader_unavailable() } else { stopped() }
    }
}

/// The same for a connection of another process.
fn session_at(boot: u64, connection: u64) -> String {
    format!("connection {boot:x}-{connection:x}")
}

fn loading() -> Refusal {
    Refusal::new(ErrorCode::StoreUnavailable, "popups are being read from the store").retry_after(1_000)
}

fn stopped() -> Refusal {
    Refusal::new(ErrorCode::Draining, "the server is stopping").retry_after(1_000)
}
