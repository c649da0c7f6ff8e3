//! What waits for the worker. Putting in never waits; each list has a bound and an answer to being full.

use super::{PopupsConfig, UserKey, configuration::Popup, events::Batch, stopped};
use parking_lot::{Condvar, Mutex};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tidings_protocol::error::{ErrorCode, Refusal};
use tokio::sync::oneshot;

/// Callers that wait for what they were answered to be durable. Full: refused with `queue_full`.
const DURABLE_MAX: usize = 65_536;

/// A showing, or that there would have been one.
pub(super) struct Record {
    pub(super) user: UserKey,
    pub(super) popup: Arc<Popup>,
    pub(super) variant: u8,
    pub(super) control: bool,
    pub(super) at: u64,
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
    /// So many of the records are noted.
    noted: usize,
}

impl Waiting {
    /// Somebody waits for an answer.
    fn is_urgent(&self) -> bool {
        !self.durable.is_empty() || !self.events.is_empty()
    }
}

/// What the worker has taken and not stored yet, as far as it is not noted.
#[derive(Default)]
struct InFlight {
    users: Vec<UserKey>,
    since: Option<Instant>,
}

#[derive(Default)]
struct State {
    waiting: Waiting,
    in_flight: InFlight,
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
    /// Half of the stated bound: the other half is for the write.
    patience: Duration,
}

impl Inbox {
    pub(super) fn new(config: &PopupsConfig) -> Self {
        Inbox {
            state: Mutex::default(),
            filled: Condvar::new(),
            notable: Condvar::new(),
            showings: AtomicUsize::new(0),
            showings_max: config.showings,
            events: AtomicUsize::new(0),
            events_max: config.events,
            patience: config.durable_within / 2,
        }
    }

    /// Whether a showing can be taken. Those who ask at once may exceed the bound by their number.
    pub(super) fn has_room(&self) -> Result<(), Refusal> {
        if self.showings.load(Ordering::Relaxed) < self.showings_max {
            return Ok(());
        }
        let why = format!("showings that wait to be stored are limited to {}", self.showings_max);
        Err(Refusal::new(ErrorCode::QueueFull, why).retry_after(1_000))
    }

    pub(super) fn record(&self, records: impl IntoIterator<Item = Record>, durable: Option<Durable>) {
        let mut state = self.state.lock();
        let waiting = &mut state.waiting;
        let (before, was_urgent) = (waiting.records.len(), waiting.is_urgent());
        waiting.records.extend(records);
        self.showings.fetch_add(waiting.records.len() - before, Ordering::Relaxed);
        // The worker is woken by what makes its turn come earlier, not by all that goes along.
        let wake = !was_urgent && (before == 0 || durable.is_some());
        waiting.first_at.get_or_insert_with(Instant::now);
        waiting.durable.extend(durable);
        drop(state);
        if wake {
            self.filled.notify_one();
        }
        if before == 0 {
            self.notable.notify_one();
        }
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

    /// These are stored, or given back to their callers.
    pub(super) fn done(&self, showings: usize, events: usize) {
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
        let taken = std::mem::replace(&mut state.waiting, Waiting { stopping, ..Waiting::default() });
        let InFlight { users, since } = &mut state.in_flight;
        users.extend(taken.records[taken.noted..].iter().map(|record| record.user));
        *since = since.or(taken.first_at).filter(|_| !users.is_empty());
        taken
    }

    /// All that the worker has taken is stored.
    pub(super) fn landed(&self) {
        self.state.lock().in_flight = InFlight::default();
    }

    /// Users whose showings have waited for longer than a note of them may; each once. `None`: nothing comes any more.
    pub(super) fn to_note(&self) -> Option<Vec<UserKey>> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            let State { waiting, in_flight, .. } = &mut *state;
            let new = waiting.first_at.filter(|_| waiting.noted < waiting.records.len());
            let Some(oldest) = in_flight.since.into_iter().chain(new).min() else {
                self.notable.wait(&mut state);
                continue;
            };
            let due = oldest + self.patience / 2;
            if Instant::now() < due {
                self.notable.wait_until(&mut state, due);
                continue;
            }
            let mut users = std::mem::take(in_flight).users;
            users.extend(waiting.records[waiting.noted..].iter().map(|record| record.user));
            waiting.noted = waiting.records.len();
            users.sort_unstable();
            users.dedup();
            return Some(users);
        }
    }

    /// Nothing is taken from here on; who waits for an answer is told so by the end of its channel.
    pub(super) fn close(&self) {
        let waiting = Waiting { stopping: true, ..Waiting::default() };
        *self.state.lock() = State { waiting, closed: true, ..State::default() };
        self.notable.notify_all();
    }

    pub(super) fn depths(&self) -> [(&'static str, usize, usize); 2] {
        [
            ("popup_showings", self.showings.load(Ordering::Relaxed), self.showings_max),
            ("popup_events", self.events.load(Ordering::Relaxed), self.events_max),
        ]
    }
}
