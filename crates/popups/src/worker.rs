//! The worker: one thread that writes exposures and events to the store, in batches and in the order in which they were
//! pushed.

use super::{
    Shared, UserKey, assignments,
    events::EventBatch,
    hourly_counts::{HOUR_MS, HourlyCounts},
    journeys::{JourneyPushes, JourneyTimers},
    rows::{self, CountKind, ROWS_PER_WRITE, SPACE},
    sweep::Sweep,
    user_cache::DirtyState,
    user_changes::UserChanges,
    write_queue::{DurabilityWaiter, ExposureRecord, Outcome, Pauses},
};
use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tidings_domain::{
    end_reason::required,
    failure_log::FailureLog,
    refusals::store_refusal,
    store::{RowChange, StoreError, StoreResult},
};
use tidings_protocol::error::Refusal;

/// The longest wait between two runs of the timers.
const TICK: Duration = Duration::from_secs(1);
/// The same where another node may take the lead.
const LEAD_TICK: Duration = Duration::from_millis(100);
/// Bounds of the pause after each write.
const WRITE_PAUSE_MIN: Duration = Duration::from_millis(2);
const WRITE_PAUSE_MAX: Duration = Duration::from_millis(20);
/// The wait after a write or read that failed.
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// How often timetables and days are computed anew. They are precomputed for fifteen days ahead, and slow beyond.
const REFRESH_EVERY_MS: u64 = HOUR_MS;
/// Attempts to store the last exposures when the server stops.
const DRAIN_ATTEMPTS: usize = 5;

struct CloseOnDrop(Arc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.write_queue.close();
    }
}

/// A write that may have been stored. The store's counts tell whether it was, for each write makes some count higher; or
/// the ids of events that it stores.
#[derive(Default)]
pub(super) struct UnresolvedWrite {
    /// The counts and ids of events as they are if the write was stored.
    pub(super) witnesses: Vec<RowChange>,
    records: Vec<ExposureRecord>,
    users: BTreeSet<UserKey>,
    /// What the write changes of users, beside its exposures.
    pub(super) changes: UserChanges,
}

pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) counts: HourlyCounts,
    /// Exposures whose write failed.
    retry: Vec<ExposureRecord>,
    /// While this is set nothing else is written: a later write could raise the same counts, and then they would no
    /// longer tell whether this one was stored.
    pub(super) unresolved: Option<UnresolvedWrite>,
    /// Event batches that wait for a write of their own.
    pub(super) events: VecDeque<EventBatch>,
    pub(super) last_taken_at: u64,
    refreshed_at: u64,
    refresher: Option<JoinHandle<()>>,
    sweep: Sweep,
    sweep_failures: FailureLog,
    side_log_failures: FailureLog,
    pub(super) journeys: JourneyTimers,
    pauses: Pauses,
}

impl Worker {
    /// Runs until the server stops or another node leads; returns whether the server stops.
    pub(super) fn run(shared: Arc<Shared>, pushes: Arc<dyn JourneyPushes>) -> bool {
        // However this function ends, also by a panic, no caller may wait for an answer that never comes.
        let close_on_drop = CloseOnDrop(shared.clone());
        let failures =
            FailureLog::new("popups could not be read from the store; the read is retried until it succeeds");
        let last_taken_at = loop {
            let recovered = shared.recover();
            shared.recovery_failed.store(recovered.is_err(), Ordering::Relaxed);
            failures.note(&recovered);
            if let Ok(last_taken_at) = recovered {
                break last_taken_at;
            }
            if shared.write_queue.wait_for_stop(RETRY_AFTER) {
                return true;
            }
            if shared.term_has_ended() {
                return false;
            }
        };
        let side_log_thread = shared.store.has_side_log().then(|| {
            let shared = shared.clone();
            std::thread::Builder::new().name("popup side log".into()).spawn(move || shared.run_side_log())
        });
        let side_log_thread = side_log_thread.map(|thread| required("popup side log", thread));
        let now_ms = shared.clock.now_ms();
        let mut worker = Worker {
            counts: HourlyCounts::default(),
            retry: Vec::new(),
            unresolved: None,
            events: VecDeque::new(),
            last_taken_at,
            refreshed_at: now_ms,
            refresher: None,
            sweep: Sweep::new(now_ms),
            sweep_failures: FailureLog::new("old events or counts of popups could not be removed; it is tried again"),
            side_log_failures: FailureLog::new(
                "the side log of popups could not drop rows that are stored; it is tried again",
            ),
            journeys: JourneyTimers::start(pushes),
            pauses: Pauses { events_until: Instant::now(), exposures_until: Instant::now() },
            shared,
        };
        let is_stopping = loop {
            if !worker.run_once() {
                break true;
            }
            if worker.shared.term_has_ended() {
                break false;
            }
        };
        drop(close_on_drop);
        // Both threads hold the store, which the caller wants to close.
        let _ = worker.refresher.take().map(JoinHandle::join);
        worker.journeys.stop();
        let _ = side_log_thread.map(JoinHandle::join);
        is_stopping
    }

    /// Takes what is pending, stores it and answers the waiting callers; returns whether to go on.
    fn run_once(&mut self) -> bool {
        let timeout = if self.has_work() {
            // There is work left: only the pause is waited for.
            self.pauses.events_until.saturating_duration_since(Instant::now())
        } else if !self.retry.is_empty() || self.unresolved.is_some() {
            RETRY_AFTER
        } else if self.shared.lead.is_clustered() {
            LEAD_TICK
        } else {
            TICK
        };
        // Before pending writes are taken: then every exposure in the side log so far is among those taken now or
        // earlier, if all are taken, and what the rotation sets aside can be removed once they are stored.
        self.shared.store.rotate_side_log();
        let pending = self.shared.write_queue.take_pending(timeout, self.pauses);
        let has_all_records = pending.has_all_records;
        let started = Instant::now();
        let reconciled = self.reconcile().map_err(|error| self.failed(error));
        // Events go before exposures: their callers wait.
        self.events.extend(pending.events);
        self.store_events();
        let events_took = started.elapsed();
        let mut records = std::mem::take(&mut self.retry);
        records.extend(pending.records);
        let stored = self.store_records(records).and(reconciled);
        if has_all_records && stored.is_ok() {
            self.side_log_failures.note(&self.shared.store.truncate_rotated_side_log());
        }
        answer_waiters(pending.waiters, stored);
        if pending.stopping {
            self.drain();
            return false;
        }
        self.run_timers();
        let took = started.elapsed();
        self.shared.metrics.popup_store_busy_seconds.inc_by(took.as_secs_f64());
        // The worker pauses for as long as it worked, since chat commits to the same store. Events wait only for as long
        // as events took.
        let pause = |took: Duration| Instant::now() + took.clamp(WRITE_PAUSE_MIN, WRITE_PAUSE_MAX);
        self.pauses = Pauses { events_until: pause(events_took), exposures_until: pause(took) };
        true
    }

    /// Whether there is work for the next run at once, without a new push.
    fn has_work(&self) -> bool {
        !self.events.is_empty() || self.sweep.is_under_way() || self.journeys.has_work()
    }

    /// Stores what is left before the server stops.
    fn drain(&mut self) {
        while !self.events.is_empty() {
            self.store_events();
        }
        for _ in 0..DRAIN_ATTEMPTS {
            let reconciled = self.reconcile();
            let records = std::mem::take(&mut self.retry);
            if reconciled.is_ok() && records.is_empty() {
                return;
            }
            let _ = self.store_records(records);
            if !self.retry.is_empty() || self.unresolved.is_some() {
                std::thread::sleep(RETRY_AFTER);
            }
        }
        let exposures = self.retry.len() + self.unresolved.as_ref().map_or(0, |unresolved| unresolved.records.len());
        tracing::error!(exposures, "exposures of popups could not be stored before the stop");
    }

    fn run_timers(&mut self) {
        let now_ms = self.shared.clock.now_ms();
        let is_stale = self.shared.catalog_outcome_unknown.load(Ordering::Relaxed);
        if is_stale || now_ms.abs_diff(self.refreshed_at) >= REFRESH_EVERY_MS {
            self.refresh(now_ms);
        }
        if let Err(error) = self.run_journeys() {
            // The rows are still there, and are read again.
            self.failed(error);
        }
        self.sweep_failures.note(&self.sweep.run_once(&self.shared, now_ms));
    }

    /// Recomputes timetables on a thread of its own: with many popups that takes seconds, and exposures would wait.
    fn refresh(&mut self, now_ms: u64) {
        if self.refresher.as_ref().is_some_and(|refresher| !refresher.is_finished()) {
            return;
        }
        let shared = self.shared.clone();
        match std::thread::Builder::new().name("popup times".into()).spawn(move || shared.refresh()) {
            Ok(refresher) => (self.refresher, self.refreshed_at) = (Some(refresher), now_ms),
            Err(error) => tracing::warn!(%error, "no thread for timetables of popups: decisions go on, more slowly"),
        }
    }

    /// Stores the users' frequency counters together with the hourly counts, a bounded chunk in each write.
    fn store_records(&mut self, records: Vec<ExposureRecord>) -> Result<(), Refusal> {
        let mut records = records.into_iter().peekable();
        while records.peek().is_some() {
            let chunk: Vec<ExposureRecord> = records.by_ref().take(ROWS_PER_WRITE).collect();
            // In the order of their rows, so that the store finds neighbours faster.
            let users: BTreeSet<UserKey> = chunk.iter().map(|record| record.user).collect();
            match self.write_records(&chunk, &users) {
                Ok(()) => {
                    self.shared.write_queue.complete(chunk.len(), 0);
                    self.mark_users(users, true);
                    // No event waits for more than one write of exposures.
                    self.events.extend(self.shared.write_queue.take_events());
                    self.store_events();
                }
                Err(error @ StoreError::OutcomeUnknown(_)) => {
                    if let Some(unresolved) = &mut self.unresolved {
                        (unresolved.records, unresolved.users) = (chunk, users);
                    }
                    self.retry = records.collect();
                    return Err(self.failed(error));
                }
                Err(error) => {
                    self.mark_users(users, false);
                    self.retry = chunk.into_iter().chain(records).collect();
                    return Err(self.failed(error));
                }
            }
        }
        Ok(())
    }

    fn write_records(&mut self, records: &[ExposureRecord], users: &BTreeSet<UserKey>) -> StoreResult<()> {
        let mut changes = Vec::with_capacity(users.len() + 64);
        for record in records.iter().filter(|record| record.is_assigned) {
            let key = record.popup.conversion.as_ref().map(|conversion| conversion.mark);
            let mut stripe = self.shared.users.stripe(record.user);
            let mark = key.and_then(|key| stripe.get(record.user)?.counters.get(key).copied());
            changes.extend(assignments::row_of(record, mark.as_ref()));
        }
        for key in users {
            let mut stripe = self.shared.users.stripe(*key);
            if let Some(user) = stripe.get(*key) {
                user.dirty_state = DirtyState::Writing;
                rows::put_long(&mut changes, &rows::user_key(*key), &user.counters.to_bytes());
            }
        }
        let turns = || records.iter().filter_map(|record| Some((record.user, record.at, record.turn.as_ref()?)));
        for (user, _, turn) in turns() {
            self.push_wake(user, &turn.user, turn.wake, None, &mut changes);
        }
        if turns().next().is_some() {
            changes = rows::last_of_each(changes);
            let moved: Vec<_> =
                turns().flat_map(|(_, at, turn)| turn.moves.iter().map(move |one| (*one, at))).collect();
            self.count_moves(&moved)?;
        }
        self.shared.note_exposures(records, &mut changes);
        let counted = |record: &ExposureRecord| match record.outcome {
            Outcome::Shown => Some(CountKind::Shown),
            Outcome::Control => Some(CountKind::Control),
            Outcome::Holdout => None,
        };
        let counted = || records.iter().filter_map(|record| Some((record, counted(record)?)));
        let wanted = counted().map(|(record, _)| (record.popup.no, record.variant_id(), record.at));
        self.counts.load(&*self.shared.store, wanted)?;
        for (record, kind) in counted() {
            self.counts.count(record.popup.no, record.variant_id(), kind, record.at);
        }
        self.write(changes)
    }

    /// After a write: `Writing` users are clean if it was stored, else dirty again. A user who was exposed meanwhile is
    /// dirty already and stays so.
    fn mark_users(&self, users: BTreeSet<UserKey>, stored: bool) {
        for key in users {
            let mut stripe = self.shared.users.stripe(key);
            if let Some(user) = stripe.get(key)
                && user.dirty_state == DirtyState::Writing
            {
                user.dirty_state = if stored { DirtyState::Clean } else { DirtyState::Dirty };
            }
        }
    }

    /// Nothing is written while it is not known whether an earlier write was stored.
    pub(super) fn check_resolved(&self) -> StoreResult<()> {
        match self.unresolved {
            None => Ok(()),
            Some(_) => {
                Err(StoreError::Unavailable("whether earlier exposures or events were stored is not known yet".into()))
            }
        }
    }

    /// Writes these rows and the counts that changed, all or nothing.
    pub(super) fn write(&mut self, mut changes: Vec<RowChange>) -> StoreResult<()> {
        self.check_resolved().inspect_err(|_| self.counts.discard_changes())?;
        self.counts.push_changes(&mut changes);
        let written = self.shared.write(changes);
        match &written {
            Ok(()) => {
                self.counts.changes_stored();
                self.shared.write_queue.set_failing(false);
            }
            Err(error) => {
                if matches!(error, StoreError::OutcomeUnknown(_)) {
                    let mut witnesses = Vec::new();
                    self.counts.push_changes(&mut witnesses);
                    self.unresolved = Some(UnresolvedWrite { witnesses, ..UnresolvedWrite::default() });
                }
                self.counts.discard_changes();
            }
        }
        written
    }

    /// Learns from the store whether the unresolved write was stored; if it was not, its exposures are retried.
    fn reconcile(&mut self) -> StoreResult<()> {
        let Some(unresolved) = &self.unresolved else { return Ok(()) };
        self.shared.fence_open_writes()?;
        let keys: Vec<Vec<u8>> = unresolved.witnesses.iter().map(|row| row.key.clone()).collect();
        let stored = self.shared.store.rows_of(SPACE, &keys)?;
        // A popup that was removed meanwhile took its counts along. Any row that is left tells, for all were written
        // together.
        let is_stored = unresolved.witnesses.iter().zip(stored).any(|(row, stored)| stored == row.value);
        let Some(UnresolvedWrite { mut records, users, changes, .. }) = self.unresolved.take() else { return Ok(()) };
        self.mark_users(users, is_stored);
        self.settle_changes(changes, is_stored);
        if is_stored {
            self.shared.write_queue.complete(records.len(), 0);
        } else {
            records.append(&mut self.retry);
            self.retry = records;
        }
        Ok(())
    }

    pub(super) fn failed(&mut self, error: StoreError) -> Refusal {
        self.counts.discard_changes();
        if !self.shared.write_queue.set_failing(true) {
            tracing::warn!(%error, "popups could not be written to the store; the write is retried");
        }
        store_refusal(error)
    }
}

fn answer_waiters(waiters: Vec<DurabilityWaiter>, stored: Result<(), Refusal>) {
    for waiter in waiters {
        // The caller may have given up.
        let _ = waiter.send(stored.clone());
    }
}
