//! What sends a consumer's events to its webhook, as one task on the leader.

use super::{
    Context, Status,
    deliveries::{Answer, AsideEvent, AsideRow, Batch, Changes, Deliveries, Limits, ReadyEvent},
    stored::{self, StoredConsumer, StoredWebhook},
};
use crate::webhook::{CallError, WebhookCaller, WebhookRequest, WebhookSecret, signed_headers};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::to_raw_value;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::{
    failure_log::FailureLog,
    leadership::Term,
    metrics::ConsumerLabel,
    refusals::store_refusal,
    store::{RowChange, RowSpace, StoreError, StoreResult},
};
use tidings_engine::engine::events::{EventsRequest, ReadEvents};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{Event, EventConsumerError, EventConsumerState, EventsQuery},
    limits::DEAD_EVENTS_MAX,
};
use tokio::{sync::oneshot, task::JoinSet};

/// Events of one read.
const EVENTS_PER_READ: usize = 500;
/// How often it is stored how far the webhook has come: after a crash it gets what came since once more.
const SAVE_EVERY: Duration = Duration::from_secs(1);
/// Rows of one write.
const ROWS_PER_WRITE: usize = 500;
/// How long it waits at most before it looks at the clock again.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// After a failed read.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The media type of several events.
const CONTENT_TYPE: &str = "application/cloudevents-batch+json";

/// What [`Worker::new`] needs.
pub(super) struct WorkerParts {
    pub context: Arc<Context>,
    pub caller: Arc<dyn WebhookCaller>,
    pub term: Term,
    pub name: String,
    pub consumer: StoredConsumer,
    pub webhook: StoredWebhook,
    pub status: Arc<Mutex<Status>>,
}

pub(super) struct Worker {
    parts: WorkerParts,
    label: ConsumerLabel,
    deliveries: Deliveries,
    request: EventsRequest,
    /// What is not stored yet, by the keys of rows.
    unsaved: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    unsaved_cursor: Option<String>,
    /// Each write is synced to the disk, and commits wait meanwhile: never more often than [`SAVE_EVERY`].
    saved_at: Instant,
    /// The numbers of dead letters, the oldest first.
    dead: VecDeque<u64>,
    counted: u64,
    failures: FailureLog,
}

/// What may follow a read.
enum Next {
    /// Another read.
    Read,
    /// The wait for another commit.
    Wait(Box<ReadEvents>),
    /// Another attempt, from this time on.
    Again(Instant),
    /// Nothing: the consumer needs another cursor.
    Stopped,
}

impl Worker {
    /// Reads where the consumer is. Blocks.
    pub(super) fn new(parts: WorkerParts) -> Result<Worker, Refusal> {
        let WorkerParts { context, name, webhook, .. } = &parts;
        let store = &*context.engine.store;
        let read = || Ok((stored::cursor(store, name)?, stored::aside(store, name)?, stored::dead(store, name)?));
        let (cursor, aside, dead) = StoreResult::map_err(read(), store_refusal)?;
        let dead: VecDeque<u64> = dead.into_iter().map(|(number, _)| number).collect();
        let limits = Limits {
            batch: webhook.batch as usize,
            parallel: webhook.parallel as usize,
            give_up: Duration::from_secs(webhook.give_up_s),
        };
        let now = context.engine.clock.monotonic();
        let deliveries = Deliveries::new(limits, aside, dead.back().copied().unwrap_or(0), now);
        let request = context.engine.events_request(&parts.query(cursor, EVENTS_PER_READ))?;
        let label = ConsumerLabel { consumer: name.clone() };
        let failures = FailureLog::new(format!("the consumer {name} of events waits for the store"));
        Ok(Worker {
            label,
            deliveries,
            request,
            unsaved: BTreeMap::new(),
            unsaved_cursor: None,
            saved_at: Instant::now(),
            dead,
            counted: 0,
            failures,
            parts,
        })
    }

    fn now(&self) -> Instant {
        self.parts.context.engine.clock.monotonic()
    }

    pub(super) async fn run(mut self, mut stop: oneshot::Receiver<()>) {
        let mut calls: JoinSet<(Batch, Answer)> = JoinSet::new();
        let mut next = Next::Read;
        loop {
            while let Some(done) = calls.try_join_next() {
                let Ok(done) = done else { return };
                self.finish(done);
            }
            let is_due = match next {
                Next::Read => true,
                Next::Again(at) => at <= self.now(),
                Next::Wait(_) | Next::Stopped => false,
            };
            if is_due && self.deliveries.has_room() {
                next = self.read().await;
            }
            self.send(&mut calls).await;
            self.note_changes();
            if self.saved_at.elapsed() >= SAVE_EVERY {
                match self.save().await {
                    // Another node leads, and goes on from what is stored.
                    Err(StoreError::StaleTerm) => return,
                    saved => self.failures.note(&saved),
                }
            }
            self.show(matches!(next, Next::Stopped));
            let reads_on = matches!(next, Next::Read) && self.deliveries.has_room();
            if reads_on {
                tokio::task::yield_now().await;
                if stop.try_recv() == Err(oneshot::error::TryRecvError::Empty) {
                    continue;
                }
                break;
            }
            let engine = self.parts.context.engine.clone();
            let waits = matches!(next, Next::Wait(_)) && self.deliveries.has_room();
            let beyond = async {
                match &next {
                    Next::Wait(read) if waits => engine.events_beyond(read).await,
                    _ => std::future::pending().await,
                }
            };
            let came = tokio::select! {
                _ = &mut stop => break,
                Some(done) = calls.join_next(), if !calls.is_empty() => {
                    // A call that has panicked: another task goes on from what is stored.
                    let Ok(done) = done else { return };
                    self.finish(done);
                    false
                }
                came = beyond => {
                    if !came {
                        // The node drains: what is under way ends, and nothing more is waited for.
                        tokio::time::sleep(LOOK_EVERY).await;
                    }
                    came
                }
                () = tokio::time::sleep(LOOK_EVERY) => false,
            };
            if came {
                next = Next::Read;
            }
        }
        // Who is called meanwhile gets it once more.
        calls.abort_all();
        self.note_changes();
        let saved = self.save().await;
        self.failures.note(&saved);
    }

    /// Reads a page of events.
    async fn read(&mut self) -> Next {
        let (engine, request) = (self.parts.context.engine.clone(), self.request.clone());
        let before = request.cursor();
        let read = tokio::task::spawn_blocking(move || engine.read_events(&request)).await;
        let read = read.unwrap_or_else(|error| Err(Refusal::new(ErrorCode::Internal, error.to_string())));
        let read = match read {
            Ok(read) => read,
            Err(refusal) => {
                self.note_error(refusal.detail.clone());
                self.failures.failed(&refusal);
                let is_over = matches!(refusal.code, ErrorCode::CursorExpired | ErrorCode::CursorInvalid);
                return if is_over { Next::Stopped } else { Next::Again(self.now() + READ_AGAIN_AFTER) };
            }
        };
        self.request = self.request.clone().after(&read);
        let events = ready_events(before, &read.page.events);
        let now = self.now();
        self.deliveries.add(events, read.page.next.clone(), now);
        if read.page.more { Next::Read } else { Next::Wait(Box::new(read)) }
    }

    /// Makes the requests that may be made now.
    async fn send(&mut self, calls: &mut JoinSet<(Batch, Answer)>) {
        let now = self.now();
        while let Some(batch) = self.deliveries.next_batch(now) {
            self.call(batch, calls);
        }
        while let Some((subject, asked)) = self.deliveries.next_aside(now) {
            match self.read_again(&asked).await {
                Ok(found) => {
                    if let Some(batch) = self.deliveries.send_aside(&subject, &asked, found, now) {
                        self.call(batch, calls);
                    }
                }
                Err(refusal) => {
                    self.failures.failed(&refusal);
                    self.deliveries.postpone_aside(&subject, now);
                }
            }
        }
    }

    /// Events that were put aside, as they are now, with the numbers of their rows; without those that are gone.
    async fn read_again(&self, asked: &[AsideEvent]) -> Result<Vec<(ReadyEvent, u64)>, Refusal> {
        let engine = self.parts.context.engine.clone();
        let queries: Vec<(AsideEvent, EventsQuery)> =
            asked.iter().map(|event| (event.clone(), self.parts.query(Some(event.before.clone()), 1))).collect();
        let read = move || {
            let mut found = Vec::new();
            for (event, query) in queries {
                let read = engine.events_request(&query).and_then(|request| engine.read_events(&request));
                let page = match read {
                    Ok(read) => read.page,
                    // It is not kept any more.
                    Err(refusal) if matches!(refusal.code, ErrorCode::CursorExpired | ErrorCode::CursorInvalid) => {
                        continue;
                    }
                    Err(refusal) => return Err(refusal),
                };
                let first = ready_events(event.before, &page.events).into_iter().next();
                found.extend(first.filter(|first| first.id == event.id).map(|first| (first, event.number)));
            }
            Ok(found)
        };
        let read = tokio::task::spawn_blocking(read).await;
        read.unwrap_or_else(|error| Err(Refusal::new(ErrorCode::Internal, error.to_string())))
    }

    fn call(&self, batch: Batch, calls: &mut JoinSet<(Batch, Answer)>) {
        let WorkerParts { context, caller, name, webhook, .. } = &self.parts;
        let events = batch.parts.iter().flat_map(|part| &part.events);
        let bodies: Vec<&str> = events.clone().map(|(event, _)| event.json.get()).collect();
        let first = events.clone().next().map_or("", |(event, _)| &event.id);
        let (id, body) = (format!("{name}.{first}.{}", bodies.len()), format!("[{}]", bodies.join(",")).into_bytes());
        let now_ms = context.engine.clock.now_ms();
        let former = webhook.former.as_ref().filter(|(_, until)| *until > now_ms).map(|(secret, _)| secret);
        let secrets = std::iter::once(&webhook.secret).chain(former).filter_map(|text| WebhookSecret::parse(text));
        let mut headers = signed_headers(&secrets.collect::<Vec<_>>(), &id, now_ms / 1_000, &body);
        headers.push(("content-type", CONTENT_TYPE.into()));
        let timeout = Duration::from_millis(webhook.timeout_ms);
        let request = WebhookRequest { url: webhook.url.clone(), headers, body, timeout };
        let answer = caller.call(request);
        calls.spawn(async move {
            let answer = answer.await.map(|body| refused_in(&body));
            (batch, answer)
        });
    }

    fn finish(&mut self, (batch, answer): (Batch, Answer)) {
        let metrics = &self.parts.context.engine.metrics;
        if let Err(CallError { reason, .. }) = &answer {
            metrics.consumer_failed.get_or_create(&self.label).inc();
            tracing::debug!(consumer = self.parts.name, error = reason, "a request of events was not taken");
        }
        let (now, now_ms) = (self.now(), self.parts.context.engine.clock.now_ms());
        self.deliveries.finish(batch, answer, now, now_ms);
        metrics.consumer_delivered.get_or_create(&self.label).inc_by(self.deliveries.delivered - self.counted);
        self.counted = self.deliveries.delivered;
    }

    /// Takes over what is to be stored.
    fn note_changes(&mut self) {
        if let Some(error) = self.deliveries.last_error.take() {
            self.note_error(error);
        }
        let Some(Changes { cursor, put_aside, removed, dead }) = self.deliveries.take_changes() else { return };
        let name = self.parts.name.clone();
        let mut note = |change: RowChange| drop(self.unsaved.insert(change.key, change.value));
        put_aside.iter().for_each(|row| note(stored::put_aside(&name, row)));
        removed.iter().for_each(|number| note(stored::remove_aside(&name, *number)));
        let at = self.parts.context.engine.clock.now_ms();
        for row in &dead {
            let AsideRow { event, subject, attempts, error, .. } = row;
            tracing::warn!(consumer = name, id = event.id, %subject, attempts, error, "an event is given up");
            self.parts.context.engine.metrics.consumer_dead.get_or_create(&self.label).inc();
            note(stored::put_dead(&name, event.number, row, at));
            self.dead.push_back(event.number);
            if self.dead.len() > DEAD_EVENTS_MAX
                && let Some(oldest) = self.dead.pop_front()
            {
                note(stored::remove_dead(&name, oldest));
            }
        }
        self.unsaved_cursor = cursor.or(self.unsaved_cursor.take());
    }

    /// Stores what has changed: the cursor last, since all before it must be dealt with or aside.
    async fn save(&mut self) -> StoreResult<()> {
        self.saved_at = Instant::now();
        let mut changes: Vec<RowChange> = Vec::with_capacity(self.unsaved.len() + 1);
        changes.extend(self.unsaved.iter().map(|(key, value)| RowChange { key: key.clone(), value: value.clone() }));
        changes.extend(self.unsaved_cursor.iter().map(|cursor| stored::put_cursor(&self.parts.name, cursor)));
        if changes.is_empty() {
            return Ok(());
        }
        let (store, term) = (self.parts.context.engine.store.clone(), self.parts.term);
        let write = move || {
            changes.chunks(ROWS_PER_WRITE).try_for_each(|rows| store.write_rows(term, RowSpace::Chat, rows.to_vec()))
        };
        let written = tokio::task::spawn_blocking(write).await;
        written.unwrap_or_else(|error| Err(StoreError::Unavailable(error.to_string())))?;
        self.unsaved.clear();
        if let Some(cursor) = self.unsaved_cursor.take() {
            self.parts.status.lock().cursor = Some(cursor);
        }
        Ok(())
    }

    fn note_error(&self, detail: String) {
        let at = self.parts.context.engine.clock.now_ms();
        self.parts.status.lock().last_error = Some(EventConsumerError { at, detail });
    }

    fn show(&self, is_stopped: bool) {
        let mut status = self.parts.status.lock();
        status.state = match (is_stopped, self.deliveries.is_away()) {
            (true, _) => EventConsumerState::Stopped,
            (_, true) => EventConsumerState::Waiting,
            _ => EventConsumerState::Running,
        };
        status.aside = self.deliveries.aside_events() as u64;
        status.delivered = self.deliveries.delivered;
        status.dead_letters = self.dead.len() as u64;
        let metrics = &self.parts.context.engine.metrics;
        metrics.consumer_aside.get_or_create(&self.label).set(status.aside as i64);
    }
}

impl WorkerParts {
    fn query(&self, after: Option<String>, limit: usize) -> EventsQuery {
        query_of(&self.consumer, after, limit)
    }
}

/// The question of a consumer to the feed.
pub(super) fn query_of(consumer: &StoredConsumer, after: Option<String>, limit: usize) -> EventsQuery {
    let types = (!consumer.types.is_empty()).then(|| consumer.types.join(","));
    EventsQuery { after, types, limit: Some(limit), wait_s: None }
}

/// Events as they are sent; the first is read again after `before`.
fn ready_events(mut before: String, events: &[Event]) -> Vec<ReadyEvent> {
    let ready = |event: &Event| {
        let cursor = event.cursor.clone();
        let before = std::mem::replace(&mut before, cursor.clone());
        let (id, subject) = (event.id.clone(), event.subject.as_str().into());
        Some(ReadyEvent { id, subject, before, cursor, json: to_raw_value(event).ok()? })
    };
    events.iter().filter_map(ready).collect()
}

/// The events that a webhook says it has not taken, in the body of its answer.
fn refused_in(body: &[u8]) -> Vec<String> {
    #[derive(Deserialize)]
    struct Refused {
        failed: Vec<String>,
    }
    serde_json::from_slice::<Refused>(body).map(|Refused { failed }| failed).unwrap_or_default()
}
