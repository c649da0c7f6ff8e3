//! What waits for the worker. Putting in never waits; each list has a bound and an answer to being full.

use super::{PopupsConfig, UserKey, at_risk::AtRisk, configuration::Popup, events::Batch, stopped};
use parking_lot::{Condvar, Mutex};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tidings_protocol::error::{ErrorCode, Refusal};
use tokio::sync::oneshot;

/// Callers that wait for what they were answered to be durable. Full: refused with `queue_full`.
const DURABLE_MAX: usize = 65_536;
/// Nothing is at risk.
const NEVER: u64 = u64::MAX;
/// So many times as long as one may be at risk, others wait with it for a store that is slow; then nothing is shown.
const LATE_MAX: u32 = 10;

/// A showing, or that there would have been one.
pub(super) struct Record {
    pub(super) user: UserKey,
    pub(super) popup: Arc<Popup>,
    pub(super) variant: u8,
    pub(super) control: bool,
    pub(super) at: u64,
}

impl Record {
    pub(super) fn variant_id(&self) -> &str {
        &self.popup.variants[usize::from(self.variant)].id
    }
}

pub(super) type Durable = oneshot::Sender<Result<(), Refusal>>;

#[derive(Default)]
pub(super) struct Waiting {
    pub(super) records: Vec<Record>,
    /// When the first of the records came.
    first_at: Option<Instant>,
    pub(super) durable: Vec<Durable>,
    pub(super) events: Vec<Batch>,
    pub(super) stopping: bool,
}

impl Waiting {
    /// Somebody waits for an answer.
    fn is_urgent(&self) -> bool {
        !self.durable.is_empty() || !self.events.is_empty()
    }
}

struct State {
    waiting: Waiting,
    at_risk: AtRisk,
    /// So many of all records are stored: they are in the order in which they came.
    stored: u64,
    closed: bool,
}

pub(super) struct Inbox {
    state: Mutex<State>,
    filled: Condvar,
    /// Told when there is something that may have to be noted.
    notable: Condvar,
    /// Counted from the put to the end of the write.
    showings: AtomicUsize,
    showings_max: usize,
    events: AtomicUsize,
    events_max: usize,
    /// When the worker takes what waits.
    patience: Duration,
    /// When what is not stored is noted.
    note_patience: Duration,
    /// While one is at risk for longer, a showing is answered once it is stored; or not taken, if the store fails.
    at_risk_max: Duration,
    /// What was written last could not be stored.
    is_failing: AtomicBool,
    began: Instant,
    /// Since when something is at risk, in microseconds from the beginning.
    at_risk_since_us: AtomicU64,
}

impl Inbox {
    pub(super) fn new(config: &PopupsConfig, has_side_log: bool) -> Self {
        let durable_within = config.durable_within;
        Inbox {
            state: Mutex::new(State {
                waiting: Waiting::default(),
                at_risk: AtRisk::new(durable_within / 32),
                stored: 0,
                closed: false,
            }),
            filled: Condvar::new(),
            notable: Condvar::new(),
            showings: AtomicUsize::new(0),
            showings_max: config.showings,
            events: AtomicUsize::new(0),
            events_max: config.events,
            // The rest of the bound is for a write, and the one before it that may be under way. With notes they are
            // rarer, since a note does not wait for writes.
            patience: durable_within / if has_side_log { 2 } else { 4 },
            note_patience: durable_within / 4,
            at_risk_max: config.at_risk_max,
            is_failing: AtomicBool::new(false),
            began: Instant::now(),
            at_risk_since_us: AtomicU64::new(NEVER),
        }
    }

    /// Whether what was written last could be stored; answers whether it was so before.
    pub(super) fn set_failing(&self, is_failing: bool) -> bool {
        self.is_failing.swap(is_failing, Ordering::Relaxed)
    }

    /// Whether a showing can be taken, and if so whether it must be stored before it is answered. Those who ask at once
    /// may exceed the bound by their number.
    pub(super) fn has_room(&self) -> Result<bool, Refusal> {
        if self.showings.load(Ordering::Relaxed) >= self.showings_max {
            let why = format!("showings that wait to be stored are limited to {}", self.showings_max);
            return Err(Refusal::new(ErrorCode::QueueFull, why).retry_after(1_000));
        }
        let since = self.at_risk_since_us.load(Ordering::Relaxed);
        if since == NEVER {
            return Ok(false);
        }
        let at_risk = self.began.elapsed().saturating_sub(Duration::from_micros(since));
        let is_late = at_risk > self.at_risk_max;
        if is_late && (self.is_failing.load(Ordering::Relaxed) || at_risk > self.at_risk_max.saturating_mul(LATE_MAX)) {
            let why = format!("showings have waited to be stored for {at_risk:.0?}");
            return Err(Refusal::new(ErrorCode::StoreUnavailable, why).retry_after(1_000));
        }
        Ok(is_late)
    }

    /// Under the lock of the state.
    fn tell_risk(&self, at_risk: &AtRisk) {
        let since = at_risk.since().map(|since| since.duration_since(self.began).as_micros() as u64);
        self.at_risk_since_us.store(since.unwrap_or(NEVER), Ordering::Relaxed);
    }

    /// Answers whether they are taken: not if nobody is left to store them.
    #[must_use]
    pub(super) fn record(&self, records: impl IntoIterator<Item = Record>, durable: Option<Durable>) -> bool {
        let mut state = self.state.lock();
        let State { waiting, at_risk, .. } = &mut *state;
        if waiting.stopping {
            return false;
        }
        let (now, before, was_urgent) = (Instant::now(), waiting.records.len(), waiting.is_urgent());
        let was_safe = at_risk.since().is_none();
        for record in records {
            at_risk.add(record.user, now);
            waiting.records.push(record);
        }
        self.showings.fetch_add(waiting.records.len() - before, Ordering::Relaxed);
        // The worker is woken by what makes its turn come earlier, not by all that goes along.
        let wake = !was_urgent && (before == 0 || durable.is_some());
        waiting.first_at.get_or_insert(now);
        waiting.durable.extend(durable);
        if was_safe {
            self.tell_risk(at_risk);
        }
        drop(state);
        if wake {
            self.filled.notify_one();
        }
        if was_safe {
            self.notable.notify_one();
        }
        true
    }

    /// Answers when all that was put in before is stored.
    pub(super) fn ask_durable(&self, durable: Durable) -> Result<(), Refusal> {
        let mut state = self.state.lock();
        let waiting = &mut state.waiting;
        if waiting.stopping {
            return Err(stopped());
        }
        if waiting.durable.len() >= DURABLE_MAX {
            return Err(Refusal::new(ErrorCode::QueueFull, "too many wait for the store").retry_after(1_000));
        }
        let was_urgent = waiting.is_urgent();
        waiting.durable.push(durable);
        drop(state);
        if !was_urgent {
            self.filled.notify_one();
        }
        Ok(())
    }

    pub(super) fn events(&self, batch: Batch) -> Result<(), Refusal> {
        let count = batch.events.len();
        let mut state = self.state.lock();
        let waiting = &mut state.waiting;
        if waiting.stopping {
            return Err(stopped());
        }
        if self.events.load(Ordering::Relaxed) + count > self.events_max {
            let why = format!("events that wait to be stored are limited to {}", self.events_max);
            return Err(Refusal::new(ErrorCode::RateLimited, why).retry_after(1_000));
        }
        self.events.fetch_add(count, Ordering::Relaxed);
        let was_urgent = waiting.is_urgent();
        waiting.events.push(batch);
        drop(state);
        if !was_urgent {
            self.filled.notify_one();
        }
        Ok(())
    }

    /// These are stored, or given back to their callers; showings in the order in which they came.
    pub(super) fn done(&self, showings: usize, events: usize) {
        if showings > 0 {
            let mut state = self.state.lock();
            state.stored += showings as u64;
            let stored = state.stored;
            state.at_risk.secure(stored);
            self.tell_risk(&state.at_risk);
        }
        self.showings.fetch_sub(showings, Ordering::Relaxed);
        self.events.fetch_sub(events, Ordering::Relaxed);
    }

    pub(super) fn stop(&self) {
        self.state.lock().waiting.stopping = true;
        self.filled.notify_one();
    }

    /// Waits; answers whether the worker is to stop.
    pub(super) fn is_stopping_within(&self, patience: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.waiting.stopping {
            self.filled.wait_for(&mut state, patience);
        }
        state.waiting.stopping
    }

    /// What waits, once it is time: somebody waits for an answer, the oldest showing has waited long enough, or
    /// `at_most` has passed. Nobody who waits is served before `not_before`.
    pub(super) fn take(&self, at_most: Duration, not_before: Instant) -> Waiting {
        let deadline = Instant::now() + at_most;
        let mut state = self.state.lock();
        loop {
            let due = match &state.waiting {
                Waiting { stopping: true, .. } => break,
                waiting if waiting.is_urgent() => not_before,
                Waiting { first_at: Some(first_at), .. } => *first_at + self.patience,
                _ => deadline,
            };
            if self.filled.wait_until(&mut state, due.min(deadline)).timed_out() {
                break;
            }
        }
        let stopping = state.waiting.stopping;
        std::mem::replace(&mut state.waiting, Waiting { stopping, ..Waiting::default() })
    }

    /// Users whose showings have been at risk for as long as they may be without a note, each once, and how many showings
    /// that makes safe; not before `not_before`. `None`: nothing comes any more.
    pub(super) fn to_note(&self, not_before: Instant) -> Option<(Vec<UserKey>, u64)> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            let Some(since) = state.at_risk.since() else {
                self.notable.wait(&mut state);
                continue;
            };
            let due = not_before.max(since + self.note_patience);
            if Instant::now() < due {
                self.notable.wait_until(&mut state, due);
                continue;
            }
            let (mut users, through) = (state.at_risk.users(), state.at_risk.came());
            drop(state);
            users.sort_unstable();
            users.dedup();
            return Some((users, through));
        }
    }

    /// The first so many of all showings are noted.
    pub(super) fn noted(&self, through: u64) {
        let mut state = self.state.lock();
        state.at_risk.secure(through);
        self.tell_risk(&state.at_risk);
    }

    /// The wait after a note that failed.
    pub(super) fn note_patience(&self) -> Duration {
        self.note_patience
    }

    /// Nothing is taken from here on; who waits for an answer is told so by the end of its channel.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.waiting = Waiting { stopping: true, ..Waiting::default() };
        state.closed = true;
        drop(state);
        self.notable.notify_all();
    }

    pub(super) fn depths(&self) -> [(&'static str, usize, usize); 2] {
        [
            ("popup_showings", self.showings.load(Ordering::Relaxed), self.showings_max),
            ("popup_events", self.events.load(Ordering::Relaxed), self.events_max),
        ]
    }
}
