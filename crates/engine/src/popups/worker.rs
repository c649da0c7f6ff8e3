//! The worker: one thread that makes showings and events durable, in batches, in the order in which they came.

use super::{
    Shared, UserKey,
    counts::{Counts, HOUR_MS},
    events::Batch,
    inbox::{Durable, Record},
    rows::{self, Counted, ROWS_PER_WRITE, SPACE},
    sweep::Sweep,
    users::Kept,
};
use crate::{
    commit::store_refusal,
    store::{RowChange, StoreError, StoreResult},
};
use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tidings_protocol::error::Refusal;

/// How often the worker looks at what time alone brings.
const TICK: Duration = Duration::from_secs(1);
/// The same where the lead may go to another node.
const LEAD_TICK: Duration = Duration::from_millis(100);
/// The store is left alone for at least and at most so long after each write.
const REST_MIN: Duration = Duration::from_millis(2);
const REST_MAX: Duration = Duration::from_millis(20);
/// The wait after a store that failed.
const STORE_FAILED_TICK: Duration = Duration::from_millis(500);
/// Time tables and days are made anew so often: they are fast for fifteen days ahead.
const REFRESH_EVERY_MS: u64 = HOUR_MS;
/// Tries to store what is left when the server stops.
const LAST_TRIES: usize = 5;

struct Closing(Arc<Shared>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.inbox.close();
    }
}

/// A write that may have been stored. Its counts tell, for each write makes them higher.
struct Unsure {
    counts: Vec<RowChange>,
    records: Vec<Record>,
    users: BTreeSet<UserKey>,
}

pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) counts: Counts,
    /// Could not be stored yet.
    again: Vec<Record>,
    /// Nothing is written until it is known what became of this.
    unsure: Option<Unsure>,
    /// Wait for another turn.
    pub(super) events: VecDeque<Batch>,
    pub(super) last_taken_at: u64,
    refreshed_at: u64,
    refreshing: Option<JoinHandle<()>>,
    sweep: Sweep,
    /// The store is left alone until then.
    rests_until: Instant,
}

impl Worker {
    /// Until the end, or until another node leads; answers whether it is the end.
    pub(super) fn run(shared: Arc<Shared>) -> bool {
        // However this ends: nobody may wait for an answer that does not come.
        let closing = Closing(shared.clone());
        let mut told = None;
        let last_taken_at = loop {
            match shared.recover() {
                Ok(last_taken_at) => break last_taken_at,
                // Tried twice a second, told once.
                Err(error) if told.replace(error.to_string()).as_deref() != Some(error.to_string().as_str()) => {
                    tracing::warn!(%error, "popups could not take up what is stored; they try again until they can");
                }
                Err(_) => {}
            }
            if shared.inbox.is_stopping_within(STORE_FAILED_TICK) {
                return true;
            }
            if shared.is_over() {
                return false;
            }
        };
        let noting = shared.store.has_side_log().then(|| {
            let noting = shared.clone();
            std::thread::Builder::new().name("popup notes".into()).spawn(move || noting.note())
        });
        let noting = noting.transpose().inspect_err(|error| {
            tracing::error!(%error, "no thread for notes of popups: nothing is shown while the disk stalls");
        });
        let now_ms = shared.clock.now_ms();
        let mut worker = Worker {
            counts: Counts::default(),
            again: Vec::new(),
            unsure: None,
            events: VecDeque::new(),
            last_taken_at,
            refreshed_at: now_ms,
            refreshing: None,
            sweep: Sweep::new(now_ms),
            rests_until: Instant::now(),
            shared,
        };
        let is_end = loop {
            if !worker.turn() {
                break true;
            }
            if worker.shared.is_over() {
                break false;
            }
        };
        drop(closing);
        // They hold the store, which who stopped us wants to close.
        let _ = worker.refreshing.take().map(JoinHandle::join);
        let _ = noting.map(|noting| noting.map(JoinHandle::join));
        is_end
    }

    /// One turn; answers whether there is another.
    fn turn(&mut self) -> bool {
        let patience = match self.again.is_empty() && self.unsure.is_none() {
            // More is to be done, after a rest.
            _ if self.has_work() => self.rests_until.saturating_duration_since(Instant::now()),
            true if self.shared.lead.is_clustered() => LEAD_TICK,
            true => TICK,
            false => STORE_FAILED_TICK,
        };
        // Before the take: what is noted until then is among what is taken, or taken already.
        self.shared.store.rotate_side_log();
        let waiting = self.shared.inbox.take(patience, self.rests_until);
        let began = Instant::now();
        let known = self.find_out().map_err(|error| self.failed(error));
        let mut records = std::mem::take(&mut self.again);
        records.extend(waiting.records);
        self.events.extend(waiting.events);
        // What would be forgotten goes first: who reports events waits for the answer and can report again.
        let stored = self.store_records(records).and(known);
        if stored.is_ok()
            && let Err(error) = self.shared.store.truncate_rotated_side_log()
        {
            tracing::warn!(%error, "notes of popups that are stored could not be forgotten; it is tried again");
        }
        answer(waiting.durable, stored);
        self.store_events();
        if waiting.stopping {
            self.store_the_rest();
            return false;
        }
        self.look_at_the_clock();
        let took = began.elapsed();
        self.shared.metrics.popup_store_busy_seconds.inc_by(took.as_secs_f64());
        // As long as it was at work, so that it is busy for half of the time at most: chat commits to it too, and what
        // comes meanwhile is written together.
        self.rests_until = Instant::now() + took.clamp(REST_MIN, REST_MAX);
        true
    }

    /// Whether something is left for the next turn that need not wait for anything.
    fn has_work(&self) -> bool {
        !self.events.is_empty() || self.sweep.is_under_way()
    }

    fn store_the_rest(&mut self) {
        while !self.events.is_empty() {
            self.store_events();
        }
        for _ in 0..LAST_TRIES {
            let known = self.find_out();
            let records = std::mem::take(&mut self.again);
            if known.is_ok() && records.is_empty() {
                return;
            }
            let _ = self.store_records(records);
            if !self.again.is_empty() || self.unsure.is_some() {
                std::thread::sleep(STORE_FAILED_TICK);
            }
        }
        let showings = self.again.len() + self.unsure.as_ref().map_or(0, |unsure| unsure.records.len());
        tracing::error!(showings, "what was shown could not be stored before the stop");
    }

    fn look_at_the_clock(&mut self) {
        let now_ms = self.shared.clock.now_ms();
        if now_ms.abs_diff(self.refreshed_at) >= REFRESH_EVERY_MS {
            self.refresh(now_ms);
        }
        if let Err(error) = self.sweep.work(&self.shared, now_ms) {
            tracing::warn!(%error, "what is old of popups could not be removed; it is tried again");
        }
    }

    /// On a thread of its own: of many popups it takes seconds, and showings would wait to be stored.
    fn refresh(&mut self, now_ms: u64) {
        if self.refreshing.as_ref().is_some_and(|refreshing| !refreshing.is_finished()) {
            return;
        }
        let shared = self.shared.clone();
        match std::thread::Builder::new().name("popup times".into()).spawn(move || shared.refresh()) {
            Ok(refreshing) => (self.refreshing, self.refreshed_at) = (Some(refreshing), now_ms),
            Err(error) => tracing::warn!(%error, "no thread for time tables of popups: they go on, more slowly"),
        }
    }

    /// Stores what users were shown, and counts it, a bounded piece in each write.
    fn store_records(&mut self, records: Vec<Record>) -> Result<(), Refusal> {
        let mut records = records.into_iter().peekable();
        while records.peek().is_some() {
            let piece: Vec<Record> = records.by_ref().take(ROWS_PER_WRITE).collect();
            // In the order of their rows: neighbours are found faster.
            let users: BTreeSet<UserKey> = piece.iter().map(|record| record.user).collect();
            match self.write_records(&piece, &users) {
                Ok(()) => {
                    self.shared.inbox.done(piece.len(), 0);
                    self.settle_users(users, true);
                }
                Err(error @ StoreError::Unsure(_)) => {
                    if let Some(unsure) = &mut self.unsure {
                        (unsure.records, unsure.users) = (piece, users);
                    }
                    self.again = records.collect();
                    return Err(self.failed(error));
                }
                Err(error) => {
                    self.settle_users(users, false);
                    self.again = piece.into_iter().chain(records).collect();
                    return Err(self.failed(error));
                }
            }
        }
        Ok(())
    }

    fn write_records(&mut self, records: &[Record], users: &BTreeSet<UserKey>) -> StoreResult<()> {
        let mut changes = Vec::with_capacity(users.len() + 64);
        for key in users {
            let mut table = self.shared.users.table(*key);
            if let Some(user) = table.get(*key) {
                user.kept = Kept::BeingWritten;
                rows::put_long(&mut changes, &rows::user_key(*key), &user.marks.to_bytes());
            }
        }
        let counted = records.iter().map(|record| (record.popup.no, record.variant_id(), record.at));
        self.counts.hold(&*self.shared.store, counted)?;
        for record in records {
            let what = if record.control { Counted::Control } else { Counted::Shown };
            self.counts.count(record.popup.no, record.variant_id(), what, record.at);
        }
        self.write(changes)
    }

    /// What was written is stored, unless it changed again meanwhile; what failed is to be written again.
    fn settle_users(&self, users: BTreeSet<UserKey>, stored: bool) {
        for key in users {
            let mut table = self.shared.users.table(key);
            if let Some(user) = table.get(key)
                && user.kept == Kept::BeingWritten
            {
                user.kept = if stored { Kept::Stored } else { Kept::Changed };
            }
        }
    }

    /// Writes these rows and the counts that changed, as a whole.
    pub(super) fn write(&mut self, mut changes: Vec<RowChange>) -> StoreResult<()> {
        if self.unsure.is_some() {
            self.counts.forget_changed();
            return Err(StoreError::Unavailable(
                "whether earlier showings or events were stored is not known yet".into(),
            ));
        }
        self.counts.put_changed(&mut changes);
        let written = self.shared.write(changes);
        match &written {
            Ok(()) => {
                self.counts.stored();
                self.shared.inbox.set_failing(false);
            }
            Err(error) => {
                if matches!(error, StoreError::Unsure(_)) {
                    let mut counts = Vec::new();
                    self.counts.put_changed(&mut counts);
                    self.unsure = Some(Unsure { counts, records: Vec::new(), users: BTreeSet::new() });
                }
                self.counts.forget_changed();
            }
        }
        written
    }

    /// What became of a write that may have been stored: it is done, or is to be done again.
    fn find_out(&mut self) -> StoreResult<()> {
        let Some(unsure) = &self.unsure else { return Ok(()) };
        self.shared.settle_writes()?;
        let keys: Vec<Vec<u8>> = unsure.counts.iter().map(|count| count.key.clone()).collect();
        let stored = self.shared.store.rows_of(SPACE, &keys)?;
        // A popup that was removed meanwhile took its counts along: any one tells, for they were written together.
        let is_stored = unsure.counts.iter().zip(stored).any(|(count, stored)| stored == count.value);
        let Some(Unsure { mut records, users, .. }) = self.unsure.take() else { return Ok(()) };
        self.settle_users(users, is_stored);
        if is_stored {
            self.shared.inbox.done(records.len(), 0);
        } else {
            records.append(&mut self.again);
            self.again = records;
        }
        Ok(())
    }

    pub(super) fn failed(&mut self, error: StoreError) -> Refusal {
        self.counts.forget_changed();
        if !self.shared.inbox.set_failing(true) {
            tracing::warn!(%error, "popups could not store; they try again");
        }
        store_refusal(error)
    }
}

fn answer(durable: Vec<Durable>, stored: Result<(), Refusal>) {
    for waiting in durable {
        // Who asked may have gone.
        let _ = waiting.send(stored.clone());
    }
}
