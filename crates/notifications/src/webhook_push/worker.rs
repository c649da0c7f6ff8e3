//! What a worker does for the webhook: it delivers the events of rows in batches, retries those that failed, and replays dead letters.

use super::{
    WebhookPushConfig, WebhookPushContext, backoff,
    circuit_breaker::CircuitBreaker,
    dead_letters,
    events::{Event, JobEvent, event_of_job},
    recipients::{Recheck, recheck},
    retry_queue::{self, RetryKey, RetryQueue},
};
use crate::{
    channel_jobs::{Job, JobPlace, JobQueue, RoundEnd},
    channel_worker::{Attempt, Driver, Round, StopSignal, WRITE_RETRY_PAUSE},
    log::{Record, Source, Whom},
    message_runs::{fitting, newest_and_older},
    notification_rows::{self, RowForm},
    offline_recipients::RoundPeople,
    stage::StageProgress,
    webhook::{Webhook, WebhookDelivery, WebhookError, sign},
};
use crossbeam_channel::Receiver;
use serde_json::value::RawValue;
use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::{failure_log::FailureLog, model::ConversationNo, notification_counts::ChannelEvent, store::*};
use tidings_protocol::http::{Channel, NotificationOutcome};

/// Rows in one round.
const JOBS_PER_ROUND: usize = 100;
/// Dead letters replayed in a round, before new entries.
const REPLAYS_PER_ROUND: usize = 20;
/// Records of members of a row who are not notified any more have this bit in place of an event's id.
const LEFT_OUT: u64 = 1 << 63;
/// Likewise, of recipients of a stored event, with the event's id below: no row of the webhook has this bit in its part.
const LEFT_OUT_OF_STORED: u64 = LEFT_OUT | 1 << 61;
/// Bytes of events after which a delivery is closed.
const DELIVERY_BYTES_MAX: usize = 1024 * 1024;
/// Events retried in a round, before new entries.
const RETRIES_PER_ROUND: usize = 20;
/// Rows of records in one write.
const ROWS_PER_WRITE: usize = 500;

pub(super) struct Worker {
    context: Arc<WebhookPushContext>,
    webhook: Arc<dyn Webhook>,
    config: WebhookPushConfig,
    /// Requests to replay dead letters.
    requests: Receiver<Vec<u64>>,
    progress: Arc<StageProgress>,
    /// Dead letters to replay. A set, so that repeated requests take no more memory.
    replays: BTreeSet<u64>,
    /// Present while this node leads.
    retry_queue: Option<RetryQueue>,
    breaker: CircuitBreaker,
}

/// An event that was not delivered, with the number of its attempts.
struct Undelivered {
    event: Event,
    attempts: u32,
    error: String,
}

impl Driver for Worker {
    fn channel(&self) -> Channel {
        Channel::Webhook
    }

    /// The replays that this node was asked for go on after it has ceased to lead.
    fn rest(&mut self, stop: &StopSignal) -> Attempt<RoundEnd> {
        self.retry_queue = None;
        self.breaker = CircuitBreaker::new(self.now());
        self.context.metrics.webhook_lag.set(0);
        self.show(0);
        self.replay(stop)
    }

    fn prepare(&mut self, round: &mut Round<'_>) -> Attempt<(usize, RoundEnd)> {
        let replayed = self.replay(round.stop)?;
        self.set_lag(round.queue)?;
        let (retried, has_room) = self.with_retry_queue(|worker, queue| {
            let retried = worker.retry_due(queue, round.stop)?;
            Ok((retried, queue.has_room()))
        })?;
        // While the breaker is open, one new row is tried now and then.
        let limit = if self.breaker.is_open() { 1 } else { JOBS_PER_ROUND };
        let may_begin = self.breaker.allows_new(self.now()) && has_room;
        Ok((if may_begin { limit } else { 0 }, retried.max(replayed)))
    }

    fn deliver(&mut self, round: &mut Round<'_>, jobs: Vec<(Vec<u8>, Job)>) -> Attempt<RoundEnd> {
        self.with_retry_queue(|worker, queue| worker.deliver_jobs(queue, round, jobs))?;
        Ok(RoundEnd::Worked)
    }
}

impl Worker {
    pub(super) fn new(
        context: Arc<WebhookPushContext>,
        webhook: Arc<dyn Webhook>,
        config: WebhookPushConfig,
        requests: Receiver<Vec<u64>>,
        progress: Arc<StageProgress>,
    ) -> Self {
        let (replays, breaker) = (BTreeSet::new(), CircuitBreaker::new(context.clock.monotonic()));
        Worker { context, webhook, config, requests, progress, replays, retry_queue: None, breaker }
    }

    /// The time by which retries are due.
    fn now(&self) -> Instant {
        self.context.clock.monotonic()
    }

    /// Works with the retry queue, which is loaded when this node begins to lead.
    fn with_retry_queue<T>(&mut self, work: impl FnOnce(&mut Worker, &mut RetryQueue) -> Attempt<T>) -> Attempt<T> {
        let mut queue = match self.retry_queue.take() {
            Some(queue) => queue,
            None => RetryQueue::load(&*self.context.store, self.now())?,
        };
        let done = work(self, &mut queue);
        self.show(queue.events());
        self.retry_queue = Some(queue);
        done
    }

    fn show(&self, events: usize) {
        self.context.metrics.webhook_parked.set(events as i64);
        self.context.metrics.webhook_failing.set(i64::from(self.breaker.is_open()));
    }

    /// Shows how far the webhook is behind the commits: by what is not decided yet, or by its oldest row.
    fn set_lag(&self, jobs: &JobQueue) -> StoreResult<()> {
        let store = &*self.context.store;
        let oldest = match jobs.oldest() {
            Some(oldest) => Some(oldest),
            None => store.outbox(self.progress.decided(), 1)?.first().map(|first| first.position),
        };
        let lag = oldest.map_or(0, |oldest| store.last_position().saturating_sub(oldest) + 1);
        self.context.metrics.webhook_lag.set(lag as i64);
        Ok(())
    }

    /// Delivers the events of these rows in batches, and removes the rows.
    fn deliver_jobs(&mut self, queue: &mut RetryQueue, round: &Round<'_>, jobs: Vec<(Vec<u8>, Job)>) -> Attempt<()> {
        let (mut batch, mut bytes, mut done, mut records) = (Vec::new(), 0, Vec::new(), Vec::new());
        let mut people = RoundPeople::default();
        for (key, job) in jobs {
            let JobPlace { position, part } = JobPlace::of_key(&key);
            let JobEvent { event, left_out, deferred } = event_of_job(&self.context, &job, part, &mut people)?;
            let (message, now_ms) = ((ConversationNo(job.conversation), job.seq), self.context.clock.now_ms());
            let source = Source::Webhook { event: LEFT_OUT | part.number(), attempt: 0 };
            self.context.trace.add(message, source, now_ms, left_out, &mut records);
            if let Some(part) = part.deferred() {
                deferred.add_rows(&job, JobPlace { position, part }, &mut records);
            }
            if let Some(event) = event {
                // A full batch is delivered only when the next event is known: then it is known which rows the batch
                // completes.
                if batch.len() >= self.config.events_per_delivery.max(1) || bytes >= DELIVERY_BYTES_MAX {
                    bytes = 0;
                    let (batch, done) = (std::mem::take(&mut batch), std::mem::take(&mut done));
                    // A slow webhook takes its time: who reads meanwhile is not notified.
                    people = RoundPeople::default();
                    self.deliver_batch(queue, round, batch, done, std::mem::take(&mut records))?;
                }
                bytes += event.json.get().len();
                batch.push(event);
            }
            done.push(key);
        }
        self.deliver_batch(queue, round, batch, done, records)
    }

    /// Delivers a batch; then queues the failed events for a retry, and removes the rows of all. One write has these changes and
    /// the removal: each write is synced to the disk, and the commits of messages wait meanwhile.
    fn deliver_batch(
        &mut self,
        queue: &mut RetryQueue,
        round: &Round<'_>,
        batch: Vec<Event>,
        done: Vec<Vec<u8>>,
        mut changes: Vec<RowChange>,
    ) -> Attempt<()> {
        // An event goes behind queued ones of its conversation, or it would overtake them.
        let (behind, free): (Vec<Event>, Vec<Event>) =
            batch.into_iter().partition(|event| queue.holds(&event.conversation));
        let mut left: Vec<Undelivered> = Vec::new();
        left.extend(behind.into_iter().map(|event| Undelivered { event, attempts: 0, error: String::new() }));
        self.deliver_by_halves(free, round.stop, &mut left, &mut changes)?;
        let rows = left.into_iter().map(|left| self.row_of(queue, left)).collect();
        self.record_rows(queue, rows, round.stop)?;
        changes.extend(done.into_iter().map(|key| RowChange { key, value: None }));
        for changes in changes.chunks(ROWS_PER_WRITE) {
            round.store(changes)?;
        }
        Ok(())
    }

    /// Delivers events; a batch that fails is tried in halves, so that one event holds up no other conversation.
    /// The rows that tell what became of them are added to `changes`.
    fn deliver_by_halves(
        &mut self,
        mut events: Vec<Event>,
        stop: &StopSignal,
        left: &mut Vec<Undelivered>,
        changes: &mut Vec<RowChange>,
    ) -> Attempt<()> {
        if events.is_empty() {
            return Ok(());
        }
        stop.check()?;
        if !self.breaker.allows_new(self.now()) {
            left.extend(events.into_iter().map(|event| Undelivered { event, attempts: 0, error: String::new() }));
            return Ok(());
        }
        let was_open = self.breaker.is_open();
        let Err(error) = self.deliver(&events) else {
            changes.extend(events.iter_mut().flat_map(|event| std::mem::take(&mut event.marks)));
            self.add_trace(&events, 0, NotificationOutcome::Accepted, None, changes);
            return Ok(());
        };
        if let Some(time) = error.retry_after {
            // It is no event's fault: all wait, and none counts an attempt.
            self.breaker.leave_alone(time, self.now());
            self.add_trace(&events, 0, NotificationOutcome::Retried, Some(&error.reason), changes);
            let reason = error.reason;
            left.extend(events.into_iter().map(|event| Undelivered { event, attempts: 0, error: reason.clone() }));
            return Ok(());
        }
        let error = error.reason;
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
                self.deliver_by_halves(events, stop, left, changes)?;
                self.deliver_by_halves(second, stop, left, changes)
            }
            None => {
                if !was_open {
                    tracing::warn!(
                        conversation = &*middle,
                        error,
                        "the webhook did not take an event; its conversation waits, others go on"
                    );
                }
                self.add_trace(&events[..1], 0, NotificationOutcome::Retried, Some(&error), changes);
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
    fn retry_due(&mut self, queue: &mut RetryQueue, stop: &StopSignal) -> Attempt<RoundEnd> {
        let mut end = RoundEnd::Idle;
        for _ in 0..RETRIES_PER_ROUND {
            if !self.breaker.allows_retry(self.now()) {
                break;
            }
            let Some((conversation, key)) = queue.due(self.now()) else { break };
            stop.check()?;
            end = RoundEnd::MoreIsDue;
            let Some(row) = notification_rows::find(&*self.context.store, key.row)? else {
                queue.remove(&conversation, key, self.now());
                continue;
            };
            let Some(row) = self.still_wanted(row)? else {
                self.record(Proposal::DeleteStoredNotifications { keys: vec![key.row] }, stop)?;
                queue.remove(&conversation, key, self.now());
                continue;
            };
            let was_open = self.breaker.is_open();
            self.context.metrics.webhook_retries.inc();
            let event = retry_queue::event_of(&row);
            match self.deliver(std::slice::from_ref(&event)) {
                Ok(()) => {
                    self.trace(&[event], row.attempts, NotificationOutcome::Accepted, None);
                    self.record(Proposal::DeleteStoredNotifications { keys: vec![key.row] }, stop)?;
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
                Err(WebhookError { reason, retry_after }) => {
                    if let Some(time) = retry_after {
                        self.breaker.leave_alone(time, self.now());
                    }
                    self.record_failed_retry(queue, &conversation, key, row, reason, stop)?;
                }
            }
        }
        Ok(end)
    }

    /// The row with those recipients who may still be notified; `None`: nobody may. Why others may not is recorded.
    fn still_wanted(&self, row: StoredNotification) -> StoreResult<Option<StoredNotification>> {
        let attempt = row.attempts.into();
        let Recheck { row, left_out, message, event } = recheck(&self.context, row)?;
        let mut changes = Vec::new();
        if let Some(message) = message {
            let source = Source::Webhook { event: LEFT_OUT_OF_STORED | event, attempt };
            self.context.trace.add(message, source, self.context.clock.now_ms(), left_out, &mut changes);
        }
        self.write_trace(changes);
        Ok(row)
    }

    /// Records a failed retry of a conversation's first event: the event waits longer, or becomes a dead letter.
    fn record_failed_retry(
        &mut self,
        queue: &mut RetryQueue,
        conversation: &Arc<str>,
        key: RetryKey,
        row: StoredNotification,
        error: String,
        stop: &StopSignal,
    ) -> Attempt<()> {
        let attempts = row.attempts + 1;
        let is_dead = attempts >= self.config.attempts_max.max(1);
        let outcome = if is_dead { NotificationOutcome::Refused } else { NotificationOutcome::Retried };
        self.trace(&[retry_queue::event_of(&row)], row.attempts, outcome, Some(&error));
        let row = StoredNotification {
            failed_at: self.context.clock.now_ms(),
            attempts,
            last_error: error.chars().take(500).collect(),
            ..row
        };
        if !is_dead {
            queue.postpone(conversation, self.now() + backoff(&self.config, attempts));
            return self.record(Proposal::AdvanceOutbox { through: 0, dead: vec![row] }, stop);
        }
        let event = retry_queue::event_id(key.row);
        self.report_dead_letter(conversation, event, attempts, &error);
        let row = StoredNotification { key: dead_letters::key_of(event), ..row };
        self.record(Proposal::AdvanceOutbox { through: 0, dead: vec![row] }, stop)?;
        self.record(Proposal::DeleteStoredNotifications { keys: vec![key.row] }, stop)?;
        queue.remove(conversation, key, self.now());
        Ok(())
    }

    fn report_dead_letter(&self, conversation: &str, id: u64, attempts: u32, error: &str) {
        self.context.metrics.webhook_dead.inc();
        tracing::warn!(conversation, id, attempts, error, "an event failed for the last time; it is a dead letter now");
    }

    /// The row of an undelivered event: queued for a retry, or a dead letter after the last attempt.
    fn row_of(&self, queue: &mut RetryQueue, left: Undelivered) -> StoredNotification {
        let Undelivered { event, attempts, error } = left;
        let is_dead = attempts >= self.config.attempts_max.max(1);
        if is_dead {
            self.report_dead_letter(&event.conversation, event.id, attempts, &error);
        }
        let (due, form) = (self.now() + backoff(&self.config, attempts), RowForm::of(&self.context.gates));
        StoredNotification {
            key: if is_dead { dead_letters::key_of(event.id) } else { queue.put(&event, due, form) },
            failed_at: self.context.clock.now_ms(),
            attempts,
            last_error: error.chars().take(500).collect(),
            event: event.json.get().to_owned(),
        }
    }

    fn record_rows(&self, queue: &RetryQueue, rows: Vec<StoredNotification>, stop: &StopSignal) -> Attempt<()> {
        if rows.is_empty() {
            return Ok(());
        }
        // Position 0 stores the rows and moves nothing.
        let recorded = self.record(Proposal::AdvanceOutbox { through: 0, dead: rows }, stop);
        self.context.metrics.webhook_parked.set(queue.events() as i64);
        recorded
    }

    /// Commits the result of a delivery. It waits while the commit queue or the disk is full: to
    /// deliver the same events again would be worse.
    fn record(&self, proposal: Proposal, stop: &StopSignal) -> Attempt<()> {
        let failures = FailureLog::new("the webhook cannot record its progress; it tries again");
        while let Err(refusal) = self.context.proposals.propose_blocking(proposal.clone()) {
            failures.failed(&refusal);
            stop.pause(WRITE_RETRY_PAUSE)?;
        }
        failures.succeeded();
        Ok(())
    }

    /// Replays some of the requested dead letters, and deletes those that are delivered.
    fn replay(&mut self, stop: &StopSignal) -> Attempt<RoundEnd> {
        self.replays.extend(self.requests.try_iter().flatten());
        let mut taken = Vec::new();
        let mut tried = 0;
        while tried < REPLAYS_PER_ROUND
            && !stop.wait(Duration::ZERO)
            && let Some(id) = self.replays.pop_first()
        {
            tried += 1;
            let Some(dead) = dead_letters::of_number(&*self.context.store, id)? else { continue };
            let key = dead.key;
            let Some(dead) = self.still_wanted(dead)? else {
                taken.push(key);
                continue;
            };
            let event = retry_queue::event_of(&dead);
            if self.call(&[&event.json]).is_ok() {
                self.trace(&[event], dead.attempts, NotificationOutcome::Accepted, None);
                self.context.metrics.webhook_delivered.inc();
                taken.push(key);
            }
        }
        if !taken.is_empty() {
            self.record(Proposal::DeleteStoredNotifications { keys: taken }, stop)?;
        }
        Ok(if tried > 0 { RoundEnd::MoreIsDue } else { RoundEnd::Idle })
    }

    /// Counts what became of events, once for each of their recipients; with the time since their messages, if they were taken.
    fn count_notifications(&self, events: &[Event], outcome: NotificationOutcome) {
        let event_of = match outcome {
            NotificationOutcome::Accepted => ChannelEvent::Accepted,
            NotificationOutcome::Refused => ChannelEvent::Refused,
            _ => ChannelEvent::Retried,
        };
        let now_ms = self.context.clock.now_ms();
        for event in events {
            let recipients = event.recipients.len() as u64;
            let took = (event_of == ChannelEvent::Accepted).then(|| now_ms.saturating_sub(event.sent_at));
            let notifications = &self.context.metrics.notifications;
            notifications.add(Channel::Webhook, ChannelEvent::Attempted, now_ms, recipients, None);
            notifications.add(Channel::Webhook, event_of, now_ms, recipients, took);
        }
    }

    /// Records what became of events, for those who ask why somebody was notified. A record that is lost changes nothing else.
    fn trace(&self, events: &[Event], attempt: u32, outcome: NotificationOutcome, cause: Option<&str>) {
        let mut changes = Vec::new();
        self.add_trace(events, attempt, outcome, cause, &mut changes);
        self.write_trace(changes);
    }

    fn write_trace(&self, changes: Vec<RowChange>) {
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
        outcome: NotificationOutcome,
        cause: Option<&str>,
        changes: &mut Vec<RowChange>,
    ) {
        let context = &*self.context;
        self.count_notifications(events, outcome);
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
    fn deliver(&mut self, events: &[Event]) -> Result<(), WebhookError> {
        let json: Vec<&RawValue> = events.iter().map(|event| &*event.json).collect();
        match self.call(&json) {
            Ok(()) => {
                self.breaker.record_success();
                self.context.metrics.webhook_delivered.inc_by(events.len() as u64);
                Ok(())
            }
            Err(error) => {
                let mut conversations = events.iter().map(|event| &event.conversation);
                // Which of several conversations fails shows when they are tried apart.
                let first = conversations.next();
                let only = first.filter(|first| conversations.all(|other| other == *first));
                self.breaker.record_failure(only, &error.reason, &self.config, self.now());
                Err(error)
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
