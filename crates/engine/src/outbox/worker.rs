//! The one worker: walks the list of entries, delivers their events, records its progress, and retries.

use super::{
    Command, OutboxConfig, OutboxContext, backoff,
    circuit_breaker::CircuitBreaker,
    events::{Event, EventExpansion},
    retry_queue::{self, RETRY_IDS, RetryQueue},
};
use crate::{
    offline_recipients::{SESSION_STAYS, unacknowledged_rows},
    reach_trace::{Record, Source, Whom},
    webhook::{Webhook, WebhookDelivery, WebhookError, sign},
};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use serde_json::value::RawValue;
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tidings_domain::{model::Position, store::*};
use tidings_protocol::http::ReachOutcome;

/// How often the list is read when it was empty.
const POLL: Duration = Duration::from_millis(100);
/// Entries of the list in one read.
const ITEMS_PER_READ: usize = 100;
/// Dead letters replayed in a round, before new entries.
const REPLAYS_PER_ROUND: usize = 20;
/// Bytes of events after which a delivery is closed.
const DELIVERY_BYTES_MAX: usize = 1024 * 1024;
/// Events retried in a round, before new entries.
const RETRIES_PER_ROUND: usize = 20;
/// Rows of records in one write.
const ROWS_PER_WRITE: usize = 500;
/// How often unacknowledged messages of other nodes are read.
const UNACKNOWLEDGED_POLL: Duration = Duration::from_secs(1);

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
    /// How far another reader of the list has come. The list is cut behind this worker, so it must not be ahead.
    searched: Option<Arc<AtomicU64>>,
    /// Dead letters to replay. A set, so that repeated requests take no more memory.
    replays: BTreeSet<u64>,
    /// Present while this node leads.
    retry_queue: Option<RetryQueue>,
    /// When unacknowledged messages were last read.
    unacknowledged_polled_at: Option<Instant>,
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
        (inbox, searched): (Receiver<Command>, Option<Arc<AtomicU64>>),
    ) -> Self {
        let (replays, breaker) = (BTreeSet::new(), CircuitBreaker::new(context.clock.monotonic()));
        Worker {
            context,
            webhook,
            config,
            inbox,
            searched,
            replays,
            retry_queue: None,
            unacknowledged_polled_at: None,
            breaker,
            stopping: false,
        }
    }

    pub(super) fn run(mut self) {
        let mut told = false;
        loop {
            let time = match self.round() {
                Ok(Ok(true)) => Duration::ZERO,
                Ok(Ok(false)) => POLL,
                Ok(Err(Stopped)) => return,
                Err(error) => {
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

    /// Does one round of work; answers whether there was any.
    fn round(&mut self) -> StoreResult<Result<bool, Stopped>> {
        let mut worked = match self.replay()? {
            Ok(replayed) => replayed,
            Err(Stopped) => return Ok(Err(Stopped)),
        };
        if !self.context.lead.leads() {
            (self.retry_queue, self.unacknowledged_polled_at) = (None, None);
            self.breaker = CircuitBreaker::new(self.now());
            self.context.metrics.outbox_lag.set(0);
            self.context.metrics.outbox_parked.set(0);
            self.context.metrics.outbox_failing.set(0);
            return Ok(Ok(worked));
        }
        let mut queue = match self.retry_queue.take() {
            Some(queue) => queue,
            None => RetryQueue::load(&*self.context.store, self.now())?,
        };
        let done = self.round_of_leader(&mut queue);
        self.context.metrics.outbox_parked.set(queue.events() as i64);
        self.context.metrics.outbox_failing.set(i64::from(self.breaker.is_open()));
        self.retry_queue = Some(queue);
        Ok(match done? {
            Ok(more) => {
                worked |= more;
                Ok(worked)
            }
            Err(Stopped) => Err(Stopped),
        })
    }

    fn round_of_leader(&mut self, queue: &mut RetryQueue) -> StoreResult<Result<bool, Stopped>> {
        if let Some(term) = self.context.lead.term() {
            self.context.trace.prune(&*self.context.store, term, self.context.clock.now_ms())?;
        }
        let mut worked = match self.retry_due(queue)? {
            Ok(tried) => tried,
            Err(Stopped) => return Ok(Err(Stopped)),
        };
        let now = self.now();
        let is_due = |at| now.saturating_duration_since(at) >= UNACKNOWLEDGED_POLL;
        if self.unacknowledged_polled_at.is_none_or(is_due) && queue.has_room() {
            self.unacknowledged_polled_at = Some(now);
            match self.deliver_unacknowledged(queue)? {
                Ok(found) => worked |= found,
                Err(Stopped) => return Ok(Err(Stopped)),
            }
        }
        let store = self.context.store.clone();
        let items = store.outbox(store.outbox_position()?, ITEMS_PER_READ)?;
        let lag = items.first().map_or(0, |first| store.last_position().saturating_sub(first.position) + 1);
        self.context.metrics.outbox_lag.set(lag as i64);
        // While the breaker is open, one new entry is tried now and then.
        let mut items = items;
        if let Some(searched) = &self.searched {
            let searched = searched.load(Ordering::Acquire);
            items.retain(|item| item.position <= searched);
        }
        items.truncate(if self.breaker.is_open() { 1 } else { ITEMS_PER_READ });
        let may_begin = self.breaker.allows_new(self.now());
        let Some(last) = items.last().map(|item| item.position).filter(|_| may_begin && queue.has_room()) else {
            return Ok(Ok(worked));
        };
        let (mut batch, mut bytes, mut left_out) = (Vec::new(), 0, Vec::new());
        let mut through = None;
        for item in &items {
            let mut expansion = EventExpansion::of(&self.context, item, self.config.recipients_per_event.max(1))?;
            while let Some(expansion) = &mut expansion
                && let Some(event) = expansion.next(&self.context)?
            {
                // A full batch is delivered only when the next event is known: then it is known which entries the batch
                // completes.
                if batch.len() >= self.config.events_per_delivery.max(1) || bytes >= DELIVERY_BYTES_MAX {
                    bytes = 0;
                    if let Err(Stopped) = self.deliver_batch(queue, std::mem::take(&mut batch), through.take()) {
                        return Ok(Err(Stopped));
                    }
                }
                bytes += event.json.get().len();
                batch.push(event);
            }
            // Where vendors are set up, their search records these.
            if let Some(expansion) = expansion.filter(|_| self.searched.is_none()) {
                left_out.extend(expansion.records);
            }
            through = Some(item.position);
        }
        self.write_trace(&left_out);
        Ok(self.deliver_batch(queue, batch, Some(last)).map(|()| true))
    }

    /// Delivers a batch; then moves the outbox's position and queues the failed events for a retry, in one commit.
    fn deliver_batch(
        &mut self,
        queue: &mut RetryQueue,
        batch: Vec<Event>,
        through: Option<Position>,
    ) -> Result<(), Stopped> {
        // An event goes behind queued ones of its conversation, or it would overtake them.
        let (behind, free): (Vec<Event>, Vec<Event>) =
            batch.into_iter().partition(|event| queue.holds(&event.conversation));
        let mut left: Vec<Undelivered> = Vec::new();
        left.extend(behind.into_iter().map(|event| Undelivered { event, attempts: 0, error: String::new() }));
        self.deliver_by_halves(free, &mut left)?;
        let rows = left.into_iter().map(|left| self.row_of(queue, left)).collect();
        self.record_rows(queue, rows, through)
    }

    /// Delivers events; a batch that fails is tried in halves, so that one event holds up no other conversation.
    fn deliver_by_halves(&mut self, mut events: Vec<Event>, left: &mut Vec<Undelivered>) -> Result<(), Stopped> {
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
            self.trace(&events, 0, ReachOutcome::Accepted, None);
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
                self.deliver_by_halves(events, left)?;
                self.deliver_by_halves(second, left)
            }
            None => {
                if !was_open {
                    tracing::warn!(
                        conversation = &*middle,
                        error,
                        "the webhook did not take an event; its conversation waits, others go on"
                    );
                }
                self.trace(&events[..1], 0, ReachOutcome::Retried, Some(&error));
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

    /// Delivers the unacknowledged messages that nodes have stored.
    fn deliver_unacknowledged(&mut self, queue: &mut RetryQueue) -> StoreResult<Result<bool, Stopped>> {
        let rows = unacknowledged_rows(&*self.context.store, 0, ITEMS_PER_READ)?;
        if rows.is_empty() {
            return Ok(Ok(false));
        }
        let keys: Vec<u64> = rows.iter().map(|row| row.id).collect();
        let mut events: Vec<Event> = Vec::new();
        for row in &rows {
            // A user with a new session has got the message again.
            let came_back = |user: &String| {
                let user = self.context.directory.user_by_id(user).ok().flatten();
                user.is_some_and(|user| self.context.presence.is_active(user.no))
            };
            if row.id & SESSION_STAYS != 0 || !retry_queue::recipients_of(row).iter().all(came_back) {
                events.push(retry_queue::event_of(row));
            }
        }
        if let Err(Stopped) = self.deliver_batch(queue, events, None) {
            return Ok(Err(Stopped));
        }
        // Those that failed are in the retry queue by now, under ids of their own.
        Ok(self.record(Proposal::DeleteDeadLetters { ids: keys }).map(|()| true))
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

    fn record_rows(
        &mut self,
        queue: &mut RetryQueue,
        rows: Vec<DeadNotification>,
        through: Option<Position>,
    ) -> Result<(), Stopped> {
        if rows.is_empty() && through.is_none() {
            return Ok(());
        }
        // Position 0 stores the rows and moves nothing.
        let recorded = self.record(Proposal::AdvanceOutbox { through: through.unwrap_or(0), dead: rows });
        self.context.metrics.outbox_parked.set(queue.events() as i64);
        recorded
    }

    /// Commits the result of a delivery. It waits while the commit queue or the disk is full: to
    /// deliver the same events again would be worse.
    fn record(&mut self, proposal: Proposal) -> Result<(), Stopped> {
        let mut told = false;
        while let Err(refusal) = self.context.committer.propose_blocking(proposal.clone()) {
            if !std::mem::replace(&mut told, true) {
                tracing::warn!(error = %refusal, "the outbox cannot record its progress; it tries again");
            }
            if let WaitOutcome::Stop = self.wait(POLL) {
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

    /// Records what became of events, for those who ask why somebody was told. A record that is lost changes nothing else.
    fn trace(&self, events: &[Event], attempt: u32, outcome: ReachOutcome, cause: Option<&str>) {
        let context = &*self.context;
        if !context.trace.is_on() {
            return;
        }
        let mut changes = Vec::new();
        for event in events {
            let Some((conversation, seq, recipients)) = retry_queue::told_by(event) else { continue };
            let Ok(Some(conversation)) = context.directory.conversation_by_id(&conversation) else { continue };
            let record = |id| Record { whom: Whom::Id(id), outcome, cause: cause.map(str::to_owned) };
            let source = Source::Webhook { event: event.id, attempt: attempt.into() };
            let records = recipients.into_iter().map(record);
            context.trace.add((conversation.no, seq), source, context.clock.now_ms(), records, &mut changes);
        }
        self.write_trace(&changes);
    }

    fn write_trace(&self, changes: &[RowChange]) {
        let Some(term) = self.context.lead.term() else { return };
        for changes in changes.chunks(ROWS_PER_WRITE) {
            if let Err(error) = self.context.store.write_rows(term, RowSpace::Chat, changes.to_vec()) {
                tracing::debug!(%error, "how users were reached was not recorded");
                return;
            }
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
        let body = serde_json::to_vec(&Body { events }).unwrap_or_default();
        let timestamp = self.context.clock.now_ms() / 1_000;
        let signature = sign(&self.config.secret, timestamp, &body);
        self.webhook.deliver(&WebhookDelivery { body, timestamp, signature })
    }
}
