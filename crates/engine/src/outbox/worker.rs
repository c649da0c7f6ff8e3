//! The one worker: delivers the events of the webhook's rows, removes the rows, and retries.

use super::{
    Command, OutboxConfig, OutboxContext, backoff,
    circuit_breaker::CircuitBreaker,
    events::{Event, JobEvent, event_of_job},
    retry_queue::{self, RETRY_IDS, RetryQueue},
};
use crate::{
    message_runs::{fitting, newest_and_older},
    offline_recipients::RoundPeople,
    reach_stage::StageProgress,
    reach_trace::{Record, Source, Whom},
    road_jobs::{Job, JobQueue, JobRoad, JobSignals, RoundEnd},
    webhook::{Webhook, WebhookDelivery, WebhookError, sign},
};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use serde_json::value::RawValue;
use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::{
    chat_rows::number_in, leadership::Term, model::ConversationNo, reach_counts::ReachEvent, store::*,
};
use tidings_protocol::http::{ReachOutcome, ReachRoad};

/// The pause after the store could not be written.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Rows in one round.
const JOBS_PER_ROUND: usize = 100;
/// Dead letters replayed in a round, before new entries.
const REPLAYS_PER_ROUND: usize = 20;
/// Records of members of a row who are not told any more have this bit in place of an event's id.
const LEFT_OUT: u64 = 1 << 63;
/// Bytes of events after which a delivery is closed.
const DELIVERY_BYTES_MAX: usize = 1024 * 1024;
/// Events retried in a round, before new entries.
const RETRIES_PER_ROUND: usize = 20;
/// Rows of records in one write.
const ROWS_PER_WRITE: usize = 500;

/// Why a wait ended.
pub(super) enum WaitOutcome {
    TimedOut,
    Stop,
}

pub(super) struct Worker {
    context: Arc<OutboxContext>,
    webhook: Arc<dyn Webhook>,
    pub(super) config: OutboxConfig,
    inbox: Receiver<Command>,
    signals: Arc<JobSignals>,
    progress: Arc<StageProgress>,
    /// The rows that are still to be tried, in a term of this node.
    jobs: Option<(Term, JobQueue)>,
    /// Dead letters to replay. A set, so that repeated requests take no more memory.
    replays: BTreeSet<u64>,
    /// Present while this node leads.
    retry_queue: Option<RetryQueue>,
    breaker: CircuitBreaker,
    /// Set once the stop command came, perhaps during a wait between two attempts. From then on no wait blocks.
    stopping: bool,
}

/// The worker stops in the middle of a round. Work that is not recorded is done again after the restart.
pub(super) struct Stopped;

/// An event that was not delivered, with the number of its attempts.
struct Undelivered {
    event: Event,
    attempts: u32,
    error: String,
}

impl Worker {
    pub(super) fn new(
        context: Arc<OutboxContext>,
        webhook: Arc<dyn Webhook>,
        config: OutboxConfig,
        inbox: Receiver<Command>,
        (signals, progress): (Arc<JobSignals>, Arc<StageProgress>),
    ) -> Self {
        let (replays, breaker) = (BTreeSet::new(), CircuitBreaker::new(context.clock.monotonic()));
        Worker {
            context,
            webhook,
            config,
            inbox,
            signals,
            progress,
            jobs: None,
            replays,
            retry_queue: None,
            breaker,
            stopping: false,
        }
    }

    pub(super) fn run(mut self) {
        let mut told = false;
        loop {
            let time = match self.round() {
                Ok(Ok(end)) => end.pause(),
                Ok(Err(Stopped)) => return,
                Err(error) => {
                    // All rows are read again.
                    self.jobs = None;
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(%error, "the outbox could not read; it tries again until it can");
                    }
                    if let WaitOutcome::Stop = self.wait(self.config.backoff_min) {
                        return;
                    }
                    continue;
                }
            };
            if std::mem::take(&mut told) {
                tracing::info!("the outbox reads again");
            }
            if let WaitOutcome::Stop = self.wait(time) {
                return;
            }
        }
    }

    /// The time by which retries are due.
    fn now(&self) -> Instant {
        self.context.clock.monotonic()
    }

    /// Waits, taking commands meanwhile.
    pub(super) fn wait(&mut self, time: Duration) -> WaitOutcome {
        loop {
            if self.stopping {
                return WaitOutcome::Stop;
            }
            match self.inbox.recv_timeout(time) {
                Ok(Command::Replay(ids)) => self.replays.extend(ids),
                Ok(Command::Stop) | Err(RecvTimeoutError::Disconnected) => self.stopping = true,
                Err(RecvTimeoutError::Timeout) => return WaitOutcome::TimedOut,
            }
        }
    }

    /// Does one round of work.
    fn round(&mut self) -> StoreResult<Result<RoundEnd, Stopped>> {
        let replayed = match self.replay()? {
            Ok(true) => RoundEnd::MoreIsDue,
            Ok(false) => RoundEnd::Idle,
            Err(Stopped) => return Ok(Err(Stopped)),
        };
        if !self.context.lead.leads() {
            (self.retry_queue, self.jobs) = (None, None);
            self.breaker = CircuitBreaker::new(self.now());
            self.context.metrics.outbox_lag.set(0);
            self.context.metrics.outbox_parked.set(0);
            self.context.metrics.outbox_failing.set(0);
            return Ok(Ok(replayed));
        }
        let mut queue = match self.retry_queue.take() {
            Some(queue) => queue,
            None => RetryQueue::load(&*self.context.store, self.now())?,
        };
        let done = self.round_of_leader(&mut queue);
        self.context.metrics.outbox_parked.set(queue.events() as i64);
        self.context.metrics.outbox_failing.set(i64::from(self.breaker.is_open()));
        self.retry_queue = Some(queue);
        Ok(done?.map(|end| end.max(replayed)))
    }

    fn round_of_leader(&mut self, queue: &mut RetryQueue) -> StoreResult<Result<RoundEnd, Stopped>> {
        let retried = match self.retry_due(queue)? {
            Ok(true) => RoundEnd::MoreIsDue,
            Ok(false) => RoundEnd::Idle,
            Err(Stopped) => return Ok(Err(Stopped)),
        };
        let Some(term) = self.context.lead.term() else { return Ok(Ok(retried)) };
        let mut jobs = match self.jobs.take() {
            Some((known, jobs)) if known == term => jobs,
            _ => JobQueue::new(JobRoad::Webhook, 1, self.signals.clone()),
        };
        jobs.read_new(&*self.context.store, self.now())?;
        self.set_lag(&jobs)?;
        // While the breaker is open, one new row is tried now and then.
        let limit = if self.breaker.is_open() { 1 } else { JOBS_PER_ROUND };
        let may_begin = self.breaker.allows_new(self.now()) && queue.has_room();
        let keys = jobs.take_due(self.now(), if may_begin { limit } else { 0 });
        self.jobs = Some((term, jobs));
        if keys.is_empty() {
            return Ok(Ok(retried));
        }
        let end = if keys.len() == JOBS_PER_ROUND { RoundEnd::MoreIsDue } else { RoundEnd::Worked };
        Ok(self.deliver_jobs(queue, keys)?.map(|()| end.max(retried)))
    }

    /// Shows how far the webhook is behind the commits: by what is not decided yet, or by its oldest row.
    fn set_lag(&self, jobs: &JobQueue) -> StoreResult<()> {
        let store = &*self.context.store;
        let oldest = match jobs.oldest() {
            Some(oldest) => Some(oldest),
            None => store.outbox(self.progress.decided(), 1)?.first().map(|first| first.position),
        };
        let lag = oldest.map_or(0, |oldest| store.last_position().saturating_sub(oldest) + 1);
        self.context.metrics.outbox_lag.set(lag as i64);
        Ok(())
    }

    /// Delivers the events of these rows in batches, and removes the rows.
    fn deliver_jobs(&mut self, queue: &mut RetryQueue, keys: Vec<Vec<u8>>) -> StoreResult<Result<(), Stopped>> {
        let rows = self.context.store.rows_of(RowSpace::Chat, &keys)?;
        let (mut batch, mut bytes, mut done, mut records) = (Vec::new(), 0, Vec::new(), Vec::new());
        let mut people = RoundPeople::default();
        for (key, row) in keys.into_iter().zip(rows) {
            let Some(row) = row else { continue };
            let job = Job::decode(&row).unwrap_or_else(|error| {
                // A row that nobody can read must not hold up the others: it is deleted with this round.
                tracing::error!(%error, "an event is lost");
                Job::default()
            });
            let part = number_in(&key, 2).unwrap_or_default();
            let JobEvent { event, left_out } = event_of_job(&self.context, &job, part, &mut people)?;
            let (message, now_ms) = ((ConversationNo(job.conversation), job.seq), self.context.clock.now_ms());
            let source = Source::Webhook { event: LEFT_OUT | part, attempt: 0 };
            self.context.trace.add(message, source, now_ms, left_out, &mut records);
            if let Some(event) = event {
                // A full batch is delivered only when the next event is known: then it is known which rows the batch
                // completes.
                if batch.len() >= self.config.events_per_delivery.max(1) || bytes >= DELIVERY_BYTES_MAX {
                    bytes = 0;
                    let (batch, done) = (std::mem::take(&mut batch), std::mem::take(&mut done));
                    // A slow webhook takes its time: who reads meanwhile is not told.
                    people = RoundPeople::default();
                    if let Err(Stopped) = self.deliver_batch(queue, batch, done, std::mem::take(&mut records)) {
                        return Ok(Err(Stopped));
                    }
                }
                bytes += event.json.get().len();
                batch.push(event);
            }
            done.push(key);
        }
        Ok(self.deliver_batch(queue, batch, done, records))
    }

    /// Delivers a batch; then queues the failed events for a retry, and removes the rows of all. One write has these changes and
    /// the removal: each write is synced to the disk, and the commits of messages wait meanwhile.
    fn deliver_batch(
        &mut self,
        queue: &mut RetryQueue,
        batch: Vec<Event>,
        done: Vec<Vec<u8>>,
        mut changes: Vec<RowChange>,
    ) -> Result<(), Stopped> {
        // An event goes behind queued ones of its conversation, or it would overtake them.
        let (behind, free): (Vec<Event>, Vec<Event>) =
            batch.into_iter().partition(|event| queue.holds(&event.conversation));
        let mut left: Vec<Undelivered> = Vec::new();
        left.extend(behind.into_iter().map(|event| Undelivered { event, attempts: 0, error: String::new() }));
        self.deliver_by_halves(free, &mut left, &mut changes)?;
        let rows = left.into_iter().map(|left| self.row_of(queue, left)).collect();
        self.record_rows(queue, rows)?;
        changes.extend(done.into_iter().map(|key| RowChange { key, value: None }));
        self.write_results(&changes)
    }

    /// Delivers events; a batch that fails is tried in halves, so that one event holds up no other conversation.
    /// The rows that tell what became of them are added to `changes`.
    fn deliver_by_halves(
        &mut self,
        mut events: Vec<Event>,
        left: &mut Vec<Undelivered>,
        changes: &mut Vec<RowChange>,
    ) -> Result<(), Stopped> {
        if events.is_empty() {
            return Ok(());
        }
        if self.stopping {
            return Err(Stopped);
        }
        if !self.breaker.allows_new(self.now()) {
            left.extend(events.into_iter().map(|event| Undelivered { event, attempts: 0, error: String::new() }));
            return Ok(());
        }
        let was_open = self.breaker.is_open();
        let Err(error) = self.deliver(&events) else {
            changes.extend(events.iter_mut().flat_map(|event| std::mem::take(&mut event.marks)));
            self.add_trace(&events, 0, ReachOutcome::Accepted, None, changes);
            return Ok(());
        };
        self.breaker.pause_new(&self.config, self.now());
        // By conversation, and within each in the order of entries: the sort is stable.
        events.sort_by(|a, b| a.conversation.cmp(&b.conversation));
        let middle = events[events.len() / 2].conversation.clone();
        let half = match events.iter().position(|event| event.conversation == middle) {
            Some(0) => events.iter().position(|event| event.conversation > middle),
            half => half,
        };
        match half {
            Some(half) => {
                let second = events.split_off(half);
                self.deliver_by_halves(events, left, changes)?;
                self.deliver_by_halves(second, left, changes)
            }
            None => {
                if !was_open {
                    tracing::warn!(
                        conversation = &*middle,
                        error,
                        "the webhook did not take an event; its conversation waits, others go on"
                    );
                }
                self.add_trace(&events[..1], 0, ReachOutcome::Retried, Some(&error), changes);
                let parked = events.into_iter().enumerate().map(|(at, event)| Undelivered {
                    event,
                    attempts: u32::from(at == 0),
                    error: error.clone(),
                });
                left.extend(parked);
                Ok(())
            }
        }
    }

    /// Retries the first event of each conversation that is due.
    fn retry_due(&mut self, queue: &mut RetryQueue) -> StoreResult<Result<bool, Stopped>> {
        let mut worked = false;
        for _ in 0..RETRIES_PER_ROUND {
            if !self.breaker.allows_retry(self.now()) {
                break;
            }
            let Some((conversation, key)) = queue.due(self.now()) else { break };
            if self.stopping {
                return Ok(Err(Stopped));
            }
            worked = true;
            let found = self.context.store.dead_notifications(Some(key - 1), 1)?;
            let Some(row) = found.into_iter().find(|row| row.id == key) else {
                queue.remove(&conversation, key, self.now());
                continue;
            };
            if self.is_recalled(&row)? {
                if let Err(Stopped) = self.record(Proposal::DeleteDeadLetters { ids: vec![key] }) {
                    return Ok(Err(Stopped));
                }
                queue.remove(&conversation, key, self.now());
                continue;
            }
            let was_open = self.breaker.is_open();
            self.context.metrics.outbox_retries.inc();
            let event = retry_queue::event_of(&row);
            match self.deliver(std::slice::from_ref(&event)) {
                Ok(()) => {
                    self.trace(&[event], row.attempts, ReachOutcome::Accepted, None);
                    if let Err(Stopped) = self.record(Proposal::DeleteDeadLetters { ids: vec![key] }) {
                        return Ok(Err(Stopped));
                    }
                    queue.remove(&conversation, key, self.now());
                    if was_open {
                        queue.make_all_due(self.now());
                    } else if !queue.holds(&conversation) {
                        tracing::info!(
                            conversation = &*conversation,
                            "the webhook takes this conversation's events again"
                        );
                    }
                }
                Err(error) => {
                    if let Err(Stopped) = self.record_failed_retry(queue, &conversation, row, error) {
                        return Ok(Err(Stopped));
                    }
                }
            }
        }
        Ok(Ok(worked))
    }

    fn is_recalled(&self, row: &DeadNotification) -> StoreResult<bool> {
        super::is_recalled(&self.context.directory, &*self.context.store, row)
    }

    /// Records a failed retry of a conversation's first event: the event waits longer, or becomes a dead letter.
    fn record_failed_retry(
        &mut self,
        queue: &mut RetryQueue,
        conversation: &Arc<str>,
        row: DeadNotification,
        error: String,
    ) -> Result<(), Stopped> {
        let (key, attempts) = (row.id, row.attempts + 1);
        let is_dead = attempts >= self.config.attempts_max.max(1);
        let outcome = if is_dead { ReachOutcome::Refused } else { ReachOutcome::Retried };
        self.trace(&[retry_queue::event_of(&row)], row.attempts, outcome, Some(&error));
        let row = DeadNotification {
            failed_at: self.context.clock.now_ms(),
            attempts,
            last_error: error.chars().take(500).collect(),
            ..row
        };
        if !is_dead {
            self.record(Proposal::AdvanceOutbox { through: 0, dead: vec![row] })?;
            queue.postpone(conversation, self.now() + backoff(&self.config, attempts));
            return Ok(());
        }
        let id = key & !RETRY_IDS;
        self.report_dead_letter(conversation, id, attempts, &error);
        self.record(Proposal::AdvanceOutbox { through: 0, dead: vec![DeadNotification { id, ..row }] })?;
        self.record(Proposal::DeleteDeadLetters { ids: vec![key] })?;
        queue.remove(conversation, key, self.now());
        Ok(())
    }

    fn report_dead_letter(&self, conversation: &str, id: u64, attempts: u32, error: &str) {
        self.context.metrics.outbox_dead.inc();
        tracing::warn!(conversation, id, attempts, error, "an event failed for the last time; it is a dead letter now");
    }

    /// The row of an undelivered event: queued for a retry, or a dead letter after the last attempt.
    fn row_of(&self, queue: &mut RetryQueue, left: Undelivered) -> DeadNotification {
        let Undelivered { event, attempts, error } = left;
        let is_dead = attempts >= self.config.attempts_max.max(1);
        if is_dead {
            self.report_dead_letter(&event.conversation, event.id, attempts, &error);
        }
        let due = self.now() + backoff(&self.config, attempts);
        DeadNotification {
            id: if is_dead { event.id } else { queue.put(&event, due) },
            failed_at: self.context.clock.now_ms(),
            attempts,
            last_error: error.chars().take(500).collect(),
            event: event.json.get().to_owned(),
        }
    }

    fn record_rows(&mut self, queue: &mut RetryQueue, rows: Vec<DeadNotification>) -> Result<(), Stopped> {
        if rows.is_empty() {
            return Ok(());
        }
        // Position 0 stores the rows and moves nothing.
        let recorded = self.record(Proposal::AdvanceOutbox { through: 0, dead: rows });
        self.context.metrics.outbox_parked.set(queue.events() as i64);
        recorded
    }

    /// Writes what became of rows whose events are delivered, or queued for a retry, and removes them. It waits while the store
    /// takes nothing: to deliver the same events again would be worse.
    fn write_results(&mut self, changes: &[RowChange]) -> Result<(), Stopped> {
        let mut told = false;
        for changes in changes.chunks(ROWS_PER_WRITE) {
            while let Some(term) = self.context.lead.term() {
                match self.context.store.write_rows(term, RowSpace::Chat, changes.to_vec()) {
                    Ok(()) | Err(StoreError::StaleTerm) => break,
                    Err(error) if !std::mem::replace(&mut told, true) => {
                        tracing::warn!(%error, "the outbox cannot record its progress; it tries again");
                    }
                    Err(_) => {}
                }
                if let WaitOutcome::Stop = self.wait(RETRY_PAUSE) {
                    return Err(Stopped);
                }
            }
        }
        Ok(())
    }

    /// Commits the result of a delivery. It waits while the commit queue or the disk is full: to
    /// deliver the same events again would be worse.
    fn record(&mut self, proposal: Proposal) -> Result<(), Stopped> {
        let mut told = false;
        while let Err(refusal) = self.context.committer.propose_blocking(proposal.clone()) {
            if !std::mem::replace(&mut told, true) {
                tracing::warn!(error = %refusal, "the outbox cannot record its progress; it tries again");
            }
            if let WaitOutcome::Stop = self.wait(RETRY_PAUSE) {
                return Err(Stopped);
            }
        }
        Ok(())
    }

    /// Replays some of the requested dead letters, and deletes those that are delivered.
    fn replay(&mut self) -> StoreResult<Result<bool, Stopped>> {
        let mut taken = Vec::new();
        let mut tried = 0;
        while tried < REPLAYS_PER_ROUND
            && !self.stopping
            && let Some(id) = self.replays.pop_first()
        {
            tried += 1;
            let found = self.context.store.dead_notifications(id.checked_sub(1), 1)?;
            let Some(dead) = found.into_iter().find(|dead| dead.id == id) else { continue };
            if self.is_recalled(&dead)? {
                taken.push(id);
                continue;
            }
            let event = retry_queue::event_of(&dead);
            if self.call(&[&event.json]).is_ok() {
                self.trace(&[event], dead.attempts, ReachOutcome::Accepted, None);
                self.context.metrics.outbox_delivered.inc();
                taken.push(id);
            }
        }
        if !taken.is_empty()
            && let Err(Stopped) = self.record(Proposal::DeleteDeadLetters { ids: taken })
        {
            return Ok(Err(Stopped));
        }
        Ok(Ok(tried > 0))
    }

    /// Counts what became of events, once for each of their recipients; with the time since their messages, if they were taken.
    fn count_reach(&self, events: &[Event], outcome: ReachOutcome) {
        let event_of = match outcome {
            ReachOutcome::Accepted => ReachEvent::Accepted,
            ReachOutcome::Refused => ReachEvent::Refused,
            _ => ReachEvent::Retried,
        };
        let now_ms = self.context.clock.now_ms();
        for event in events {
            let recipients = event.recipients.len() as u64;
            let took = (event_of == ReachEvent::Accepted).then(|| now_ms.saturating_sub(event.sent_at));
            let reach = &self.context.metrics.reach;
            reach.add(ReachRoad::Webhook, ReachEvent::Attempted, now_ms, recipients, None);
            reach.add(ReachRoad::Webhook, event_of, now_ms, recipients, took);
        }
    }

    /// Records what became of events, for those who ask why somebody was told. A record that is lost changes nothing else.
    fn trace(&self, events: &[Event], attempt: u32, outcome: ReachOutcome, cause: Option<&str>) {
        let mut changes = Vec::new();
        self.add_trace(events, attempt, outcome, cause, &mut changes);
        let Some(term) = self.context.lead.term().filter(|_| !changes.is_empty()) else { return };
        if let Err(error) = self.context.store.write_rows(term, RowSpace::Chat, changes) {
            tracing::debug!(%error, "how users were reached was not recorded");
        }
    }

    /// Counts what became of events, and adds the rows that record it.
    fn add_trace(
        &self,
        events: &[Event],
        attempt: u32,
        outcome: ReachOutcome,
        cause: Option<&str>,
        changes: &mut Vec<RowChange>,
    ) {
        let context = &*self.context;
        self.count_reach(events, outcome);
        if !context.trace.is_on() {
            return;
        }
        let now_ms = context.clock.now_ms();
        let mut rest = events;
        while let Some(first) = rest.first() {
            // Messages of a busy group for the same people are recorded as one.
            let is_same =
                |event: &&Event| (&event.conversation, &event.recipients) == (&first.conversation, &first.recipients);
            let seqs: Vec<u64> = rest.iter().take_while(is_same).map(|event| event.seq).collect();
            let (same, others) = rest.split_at(fitting(&seqs));
            rest = others;
            let (Some(newest), Ok(Some(conversation))) =
                (same.last(), context.directory.conversation_by_id(&first.conversation))
            else {
                continue;
            };
            let record = |whom: &Whom| Record { cause: cause.map(str::to_owned), ..Record::new(whom.clone(), outcome) };
            let source = Source::Webhook { event: newest.id, attempt: attempt.into() };
            let (seq, older) = newest_and_older(&seqs[..same.len()]);
            let rows = context.trace.rows(source, now_ms, newest.recipients.iter().map(record));
            rows.add_to((conversation.no, seq), &older, changes);
        }
    }

    /// Makes one attempt to deliver events.
    fn deliver(&mut self, events: &[Event]) -> Result<(), String> {
        let json: Vec<&RawValue> = events.iter().map(|event| &*event.json).collect();
        match self.call(&json) {
            Ok(()) => {
                self.breaker.record_success();
                self.context.metrics.outbox_delivered.inc_by(events.len() as u64);
                Ok(())
            }
            Err(WebhookError { reason }) => {
                let mut conversations = events.iter().map(|event| &event.conversation);
                // Which of several conversations fails shows when they are tried apart.
                let first = conversations.next();
                let only = first.filter(|first| conversations.all(|other| other == *first));
                self.breaker.record_failure(only, &reason, &self.config, self.now());
                Err(reason)
            }
        }
    }

    fn call(&self, events: &[&RawValue]) -> Result<(), WebhookError> {
        #[derive(serde::Serialize)]
        struct Body<'a> {
            events: &'a [&'a RawValue],
        }
        let bytes: usize = events.iter().map(|event| event.get().len() + 1).sum();
        let mut body = Vec::with_capacity(bytes + 16);
        // Events are JSON already, and memory takes every write.
        let _ = serde_json::to_writer(&mut body, &Body { events });
        let timestamp = self.context.clock.now_ms() / 1_000;
        let signature = sign(&self.config.secret, timestamp, &body);
        self.webhook.deliver(&WebhookDelivery { body, timestamp, signature })
    }
}
