//! The queue of writes that wait for the worker: exposures, events, and callers that wait for durability. A push never
//! blocks; each list has a bound, and a refusal for when it is full.

use super::{
    PopupsConfig, UserKey, configuration::Popup, events::EventBatch, journeys::JourneyTurn, stopped,
    undurable::UndurableQueue,
};
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

/// Callers that wait until everything before them is durable. Full: refused with `queue_full`.
const WAITERS_MAX: usize = 65_536;
/// The value of `undurable_since_us` while every exposure is durable.
const NEVER: u64 = u64::MAX;
/// The oldest exposure may stay undurable for up to this many times `undurable_max` while the store is only slow: new
/// exposures then wait with it. Beyond that nothing is shown.
const OVERDUE_FACTOR_MAX: u32 = 10;

/// What became of a popup's turn with a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Shown,
    /// The user is in the popup's control group and was not shown it; caps count it as if it had been shown.
    Control,
    /// The same of a user who is never shown any popup.
    Holdout,
}

/// An exposure, or one that the control group or the holdout was spared.
pub(super) struct ExposureRecord {
    pub(super) user: UserKey,
    pub(super) popup: Arc<Popup>,
    pub(super) variant: u8,
    pub(super) outcome: Outcome,
    /// This decision assigned the user in the popup's measurement.
    pub(super) is_assigned: bool,
    /// The user's id, if the user was assigned or the feed is to have the exposure.
    pub(super) user_id: Option<Box<str>>,
    /// Milliseconds since 1970 UTC.
    pub(super) at: u64,
    /// What the exposure moves in journeys.
    pub(super) turn: Option<Box<JourneyTurn>>,
}

impl ExposureRecord {
    pub(super) fn variant_id(&self) -> &str {
        &self.popup.variants[usize::from(self.variant)].id
    }
}

/// Told once everything that was pushed before it is stored, or why it could not be.
pub(super) type DurabilityWaiter = oneshot::Sender<Result<(), Refusal>>;

/// Everything that was pushed since the worker last took.
#[derive(Default)]
pub(super) struct PendingWrites {
    pub(super) records: Vec<ExposureRecord>,
    /// `records` has every exposure that was pushed so far and not taken before.
    pub(super) has_all_records: bool,
    /// When the first of the records was pushed.
    first_at: Option<Instant>,
    pub(super) waiters: Vec<DurabilityWaiter>,
    pub(super) events: Vec<EventBatch>,
    pub(super) stopping: bool,
}

impl PendingWrites {
    /// Whether a caller waits for an answer.
    fn is_urgent(&self) -> bool {
        !self.waiters.is_empty() || !self.events.is_empty()
    }
}

/// The pauses of the worker: what is pushed meanwhile becomes one write.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pauses {
    /// No events are taken before this time. Their callers wait, so this pause is short.
    pub(super) events_until: Instant,
    /// No caller that waits for exposures is hurried before this time.
    pub(super) exposures_until: Instant,
}

struct State {
    pending: PendingWrites,
    undurable: UndurableQueue,
    /// How many records have been stored in all. The worker stores them in the order in which they were pushed.
    stored: u64,
    closed: bool,
}

pub(super) struct WriteQueue {
    state: Mutex<State>,
    /// Wakes the worker.
    work_ready: Condvar,
    /// Wakes the thread of the side log: an exposure may stay undurable for too long.
    side_log_ready: Condvar,
    /// Exposures between their push and the end of their write.
    exposures: AtomicUsize,
    exposures_max: usize,
    /// The same for events.
    events: AtomicUsize,
    events_max: usize,
    /// The worker takes a record after it has waited for this time.
    write_delay: Duration,
    /// A record that is not stored after this time is written to the side log.
    side_log_delay: Duration,
    /// While the oldest exposure has been undurable for longer, a new one is answered once it is stored, or refused if
    /// the store fails.
    undurable_max: Duration,
    /// The last write failed.
    is_failing: AtomicBool,
    began: Instant,
    /// When the oldest undurable exposure was pushed, in microseconds after `began`; [`NEVER`] if there is none.
    undurable_since_us: AtomicU64,
}

impl WriteQueue {
    pub(super) fn new(config: &PopupsConfig, has_side_log: bool) -> Self {
        let durable_within = config.durable_within;
        WriteQueue {
            state: Mutex::new(State {
                pending: PendingWrites::default(),
                undurable: UndurableQueue::new(durable_within / 32),
                stored: 0,
                closed: false,
            }),
            work_ready: Condvar::new(),
            side_log_ready: Condvar::new(),
            exposures: AtomicUsize::new(0),
            exposures_max: config.pending_exposures_max,
            events: AtomicUsize::new(0),
            events_max: config.pending_events_max,
            // The rest of the bound is for the write itself and for the write before it, which may still be under way.
            // With a side log the worker can write less often, since the side log does not wait for the store's writes.
            write_delay: durable_within / if has_side_log { 2 } else { 4 },
            side_log_delay: durable_within / 4,
            undurable_max: config.undurable_max,
            is_failing: AtomicBool::new(false),
            began: Instant::now(),
            undurable_since_us: AtomicU64::new(NEVER),
        }
    }

    /// Records whether the last write failed; returns whether the write before it had failed.
    pub(super) fn set_failing(&self, is_failing: bool) -> bool {
        self.is_failing.swap(is_failing, Ordering::Relaxed)
    }

    /// Whether there is room for one more exposure, and if so, whether it must be stored before it is answered. Callers
    /// that ask at the same time may exceed the bound by their number.
    pub(super) fn admit_exposure(&self) -> Result<bool, Refusal> {
        if self.exposures.load(Ordering::Relaxed) >= self.exposures_max {
            let why = format!("exposures that wait to be stored are limited to {}", self.exposures_max);
            return Err(Refusal::new(ErrorCode::QueueFull, why).retry_after(1_000));
        }
        let since = self.undurable_since_us.load(Ordering::Relaxed);
        if since == NEVER {
            return Ok(false);
        }
        let undurable_for = self.began.elapsed().saturating_sub(Duration::from_micros(since));
        let is_overdue = undurable_for > self.undurable_max;
        if is_overdue
            && (self.is_failing.load(Ordering::Relaxed)
                || undurable_for > self.undurable_max.saturating_mul(OVERDUE_FACTOR_MAX))
        {
            let why = format!("exposures have waited to be stored for {undurable_for:.0?}");
            return Err(Refusal::new(ErrorCode::StoreUnavailable, why).retry_after(1_000));
        }
        Ok(is_overdue)
    }

    /// The caller holds the lock of the state.
    fn publish_undurable_since(&self, undurable: &UndurableQueue) {
        let since = undurable.oldest_since().map(|since| since.duration_since(self.began).as_micros() as u64);
        self.undurable_since_us.store(since.unwrap_or(NEVER), Ordering::Relaxed);
    }

    /// Returns whether the records were queued: not when the worker is stopping, for nothing would store them.
    #[must_use]
    pub(super) fn push_exposures(
        &self,
        records: impl IntoIterator<Item = ExposureRecord>,
        waiter: Option<DurabilityWaiter>,
    ) -> bool {
        let mut state = self.state.lock();
        let State { pending, undurable, .. } = &mut *state;
        if pending.stopping {
            return false;
        }
        let (now, before, was_urgent) = (Instant::now(), pending.records.len(), pending.is_urgent());
        let was_empty = undurable.oldest_since().is_none();
        for record in records {
            undurable.push(record.user, now);
            pending.records.push(record);
        }
        self.exposures.fetch_add(pending.records.len() - before, Ordering::Relaxed);
        // Only a push that makes the worker's next write due earlier wakes the worker.
        let wake = (before == 0 && !was_urgent) || (waiter.is_some() && pending.waiters.is_empty());
        pending.first_at.get_or_insert(now);
        pending.waiters.extend(waiter);
        if was_empty {
            self.publish_undurable_since(undurable);
        }
        drop(state);
        if wake {
            self.work_ready.notify_one();
        }
        if was_empty {
            self.side_log_ready.notify_one();
        }
        true
    }

    /// Queues a caller that is answered once everything pushed before it is stored.
    pub(super) fn push_waiter(&self, waiter: DurabilityWaiter) -> Result<(), Refusal> {
        let mut state = self.state.lock();
        let pending = &mut state.pending;
        if pending.stopping {
            return Err(stopped());
        }
        if pending.waiters.len() >= WAITERS_MAX {
            return Err(Refusal::new(ErrorCode::QueueFull, "too many requests wait for the store").retry_after(1_000));
        }
        let is_first = pending.waiters.is_empty();
        pending.waiters.push(waiter);
        drop(state);
        if is_first {
            self.work_ready.notify_one();
        }
        Ok(())
    }

    pub(super) fn push_events(&self, batch: EventBatch) -> Result<(), Refusal> {
        let count = batch.events.len();
        let mut state = self.state.lock();
        let pending = &mut state.pending;
        if pending.stopping {
            return Err(stopped());
        }
        if self.events.load(Ordering::Relaxed) + count > self.events_max {
            let why = format!("events that wait to be stored are limited to {}", self.events_max);
            return Err(Refusal::new(ErrorCode::RateLimited, why).retry_after(1_000));
        }
        self.events.fetch_add(count, Ordering::Relaxed);
        let is_first = pending.events.is_empty();
        pending.events.push(batch);
        drop(state);
        if is_first {
            self.work_ready.notify_one();
        }
        Ok(())
    }

    /// Counts off exposures that are stored, the oldest first, and events that are stored or refused.
    pub(super) fn complete(&self, exposures: usize, events: usize) {
        if exposures > 0 {
            let mut state = self.state.lock();
            state.stored += exposures as u64;
            let stored = state.stored;
            state.undurable.ack(stored);
            self.publish_undurable_since(&state.undurable);
        }
        self.exposures.fetch_sub(exposures, Ordering::Relaxed);
        self.events.fetch_sub(events, Ordering::Relaxed);
    }

    pub(super) fn stop(&self) {
        self.state.lock().pending.stopping = true;
        self.work_ready.notify_one();
    }

    /// Waits for at most `timeout`; returns whether the worker is to stop.
    pub(super) fn wait_for_stop(&self, timeout: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.pending.stopping {
            self.work_ready.wait_for(&mut state, timeout);
        }
        state.pending.stopping
    }

    /// Takes the pending writes that are due as soon as there are any, or after `at_most`. Events are due at the end of
    /// their pause. Exposures are due once the oldest has waited for `write_delay`, or a caller waits for them: until
    /// then they gather, and no event waits behind their write. A caller that waits for exposures waits for all events
    /// before it as well.
    pub(super) fn take_pending(&self, at_most: Duration, pauses: Pauses) -> PendingWrites {
        let deadline = Instant::now() + at_most;
        let mut state = self.state.lock();
        loop {
            let pending = &mut state.pending;
            if pending.stopping {
                let rest = PendingWrites { stopping: true, ..PendingWrites::default() };
                return PendingWrites { has_all_records: true, ..std::mem::replace(pending, rest) };
            }
            let exposures_due = if pending.waiters.is_empty() {
                pending.first_at.map(|first_at| first_at + self.write_delay)
            } else {
                Some(pauses.exposures_until)
            };
            let events_due = (!pending.events.is_empty()).then_some(pauses.events_until);
            let now = Instant::now();
            if exposures_due.is_some_and(|due| due <= now) {
                return PendingWrites { has_all_records: true, ..std::mem::take(pending) };
            }
            if events_due.is_some_and(|due| due <= now) || deadline <= now {
                return PendingWrites { events: std::mem::take(&mut pending.events), ..PendingWrites::default() };
            }
            let due = [exposures_due, events_due].into_iter().flatten().fold(deadline, Instant::min);
            self.work_ready.wait_until(&mut state, due);
        }
    }

    /// Takes the events that were pushed since, without waiting.
    pub(super) fn take_events(&self) -> Vec<EventBatch> {
        std::mem::take(&mut self.state.lock().pending.events)
    }

    /// Waits until the oldest undurable exposure has been so for `side_log_delay`, and at least until `not_before`.
    /// Returns the users of all undurable exposures, each once, and the number to acknowledge once their rows are in
    /// the side log. `None`: the queue is closed.
    pub(super) fn users_to_log(&self, not_before: Instant) -> Option<(Vec<UserKey>, u64)> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            let Some(since) = state.undurable.oldest_since() else {
                self.side_log_ready.wait(&mut state);
                continue;
            };
            let due = not_before.max(since + self.side_log_delay);
            if Instant::now() < due {
                self.side_log_ready.wait_until(&mut state, due);
                continue;
            }
            let (mut users, through) = (state.undurable.users(), state.undurable.pushed());
            drop(state);
            users.sort_unstable();
            users.dedup();
            return Some((users, through));
        }
    }

    /// The first `through` of all exposures are in the side log.
    pub(super) fn logged(&self, through: u64) {
        let mut state = self.state.lock();
        state.undurable.ack(through);
        self.publish_undurable_since(&state.undurable);
    }

    /// Also the pause after a write to the side log that failed.
    pub(super) fn side_log_delay(&self) -> Duration {
        self.side_log_delay
    }

    /// Refuses every push from here on, and drops the pending writes: their callers see the end of their channels.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.pending = PendingWrites { stopping: true, ..PendingWrites::default() };
        state.closed = true;
        drop(state);
        self.side_log_ready.notify_all();
    }

    pub(super) fn depths(&self) -> [(&'static str, usize, usize); 2] {
        [
            ("popup_showings", self.exposures.load(Ordering::Relaxed), self.exposures_max),
            ("popup_events", self.events.load(Ordering::Relaxed), self.events_max),
        ]
    }
}
