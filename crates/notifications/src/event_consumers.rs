//! Consumers of the feed of events, whose places the server keeps: some read their events, others have a webhook to which the leader
//! sends them.
//!
//! - [`EventConsumers`]: what the listeners ask; it starts and stops a task for each webhook while this node leads;
//! - `worker`: that task; `deliveries`: what is sent in which order; `stored`: the rows.

mod deliveries;
mod stored;
mod worker;

use crate::webhook::{WebhookCaller, WebhookSecret};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};
use stored::{StoredConsumer, StoredWebhook};
use tidings_domain::{
    end_reason::required,
    failure_log::FailureLog,
    function::Function,
    gates::Gate,
    leadership::Term,
    metrics::ConsumerLabel,
    refusals::{leader_unavailable, store_refusal},
    store::{RowChange, RowSpace},
};
use tidings_engine::Engine;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
    limits::{
        DEAD_EVENTS_PAGE_DEFAULT, DEAD_EVENTS_PAGE_MAX, EVENT_CONSUMER_NAME_BYTES_MAX, EVENT_CONSUMER_TYPES_MAX,
        EVENT_CONSUMERS_MAX, EVENTS_PAGE_MAX, WEBHOOK_URL_BYTES_MAX,
    },
};
use tokio::{runtime::Handle, sync::oneshot, task::JoinHandle};
use worker::{Worker, WorkerParts, query_of};

/// How often this node looks whether it leads.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often it looks for webhooks without a task, and shows how far everybody is behind.
const READ_EVERY: Duration = Duration::from_secs(2);
/// For how long requests are signed with a former secret, too.
const FORMER_SECRET_MS: u64 = 24 * 60 * 60 * 1_000;
const BATCH_DEFAULT: u32 = 100;
const BATCH_MAX: u32 = EVENTS_PAGE_MAX as u32;
const PARALLEL_DEFAULT: u32 = 8;
const PARALLEL_MAX: u32 = 32;
const TIMEOUT_MS_DEFAULT: u64 = 10_000;
const TIMEOUT_MS: std::ops::RangeInclusive<u64> = 100..=60_000;
const GIVE_UP_S_DEFAULT: u64 = 24 * 60 * 60;
const GIVE_UP_S_MAX: u64 = 7 * 24 * 60 * 60;

/// How far a consumer is, as its task has it.
#[derive(Debug, Clone)]
struct Status {
    state: EventConsumerState,
    /// As it is stored; absent: nothing was stored since the task began.
    cursor: Option<String>,
    aside: u64,
    dead_letters: u64,
    delivered: u64,
    last_error: Option<EventConsumerError>,
}

impl Status {
    fn of(state: EventConsumerState) -> Status {
        Status { state, cursor: None, aside: 0, dead_letters: 0, delivered: 0, last_error: None }
    }
}

/// What the tasks share.
struct Context {
    engine: Arc<Engine>,
    /// Absent: webhooks are not called.
    caller: Option<Arc<dyn WebhookCaller>>,
}

/// A task that runs.
struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    status: Arc<Mutex<Status>>,
}

/// The tasks of a term.
#[derive(Default)]
struct Tasks {
    term: Option<Term>,
    running: HashMap<String, Running>,
}

/// Consumers, for all who ask.
pub struct EventConsumers {
    context: Arc<Context>,
    /// Locked while a consumer changes, so that no two changes are under way.
    tasks: tokio::sync::Mutex<Tasks>,
    /// Where tasks run, apart from all requests.
    runtime: Handle,
    stop: Mutex<Option<(oneshot::Sender<()>, std::thread::JoinHandle<()>)>>,
    failures: FailureLog,
}

impl EventConsumers {
    pub(crate) fn start(engine: &Arc<Engine>, caller: Option<Arc<dyn WebhookCaller>>) -> Arc<EventConsumers> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = required("event-consumers", runtime);
        let consumers = Arc::new(EventConsumers {
            context: Arc::new(Context { engine: engine.clone(), caller }),
            tasks: tokio::sync::Mutex::default(),
            runtime: runtime.handle().clone(),
            stop: Mutex::default(),
            failures: FailureLog::new("consumers of events could not be read; it is tried again"),
        });
        let (stop, stopped) = oneshot::channel::<()>();
        let watched = consumers.clone();
        let run = move || runtime.block_on(watched.watch(stopped));
        let thread = std::thread::Builder::new().name("event-consumers".into()).spawn(run);
        *consumers.stop.lock() = Some((stop, required("event-consumers", thread)));
        consumers
    }

    /// Ends the tasks, and the thread that they run on.
    pub(crate) fn stop(&self) {
        let Some((stop, thread)) = self.stop.lock().take() else { return };
        drop(stop);
        let _ = thread.join();
    }

    /// Starts the tasks when this node begins to lead, and ends them when it ceases to.
    async fn watch(self: Arc<Self>, mut stopped: oneshot::Receiver<()>) {
        let mut read_at = None::<Instant>;
        loop {
            let held = self.held_term();
            let mut tasks = self.tasks.lock().await;
            if tasks.begin(held).await {
                read_at = None;
            }
            if held.is_some() && read_at.is_none_or(|at| at.elapsed() >= READ_EVERY) {
                self.failures.note(&self.start_missing(&mut tasks).await);
                read_at = Some(Instant::now());
            }
            drop(tasks);
            tokio::select! {
                _ = &mut stopped => break,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
        self.tasks.lock().await.end_all().await;
    }

    fn held_term(&self) -> Option<Term> {
        let lead = self.context.engine.leadership(Function::EventConsumers);
        lead.term().filter(|term| lead.holds(*term))
    }

    /// Starts the tasks of webhooks that have none, and shows how far everybody is behind.
    async fn start_missing(&self, tasks: &mut Tasks) -> Result<(), Refusal> {
        if !self.context.engine.gates.is_open(Gate::EventConsumers) {
            return Ok(());
        }
        for (name, consumer) in
            self.read(|context| stored::consumers(&*context.engine.store).map_err(store_refusal)).await?
        {
            self.show_behind(&name, tasks).await;
            tasks.running.retain(|_, running| !running.task.is_finished());
            if !tasks.running.contains_key(&name) {
                self.start_task(name, consumer, tasks).await?;
            }
        }
        Ok(())
    }

    async fn show_behind(&self, name: &str, tasks: &Tasks) {
        let status = tasks.running.get(name).and_then(|running| running.status.lock().cursor.clone());
        let asked = name.to_owned();
        let behind = self.read(move |context| {
            let cursor = match status {
                Some(cursor) => Some(cursor),
                None => stored::cursor(&*context.engine.store, &asked).map_err(store_refusal)?,
            };
            cursor.map_or(Ok(0), |cursor| context.engine.events_behind(&cursor))
        });
        let label = ConsumerLabel { consumer: name.to_owned() };
        let behind = behind.await.unwrap_or(0);
        self.context.engine.metrics.consumer_behind.get_or_create(&label).set(behind as i64);
    }

    async fn start_task(&self, name: String, consumer: StoredConsumer, tasks: &mut Tasks) -> Result<(), Refusal> {
        let (Some(term), Some(caller)) = (tasks.term, self.context.caller.clone()) else { return Ok(()) };
        let Some(webhook) = consumer.webhook.clone() else { return Ok(()) };
        let status = Arc::new(Mutex::new(Status::of(EventConsumerState::Running)));
        let (context, shown) = (self.context.clone(), status.clone());
        let parts = WorkerParts { context, caller, term, name: name.clone(), consumer, webhook, status };
        let (stop, stopped) = oneshot::channel();
        let task = match self.read(move |_| Worker::new(parts)).await {
            Ok(worker) => self.runtime.spawn(worker.run(stopped)),
            Err(refusal) if !refusal.code.retryable() => {
                let at = self.context.engine.clock.now_ms();
                let mut status = shown.lock();
                status.state = EventConsumerState::Stopped;
                status.last_error = Some(EventConsumerError { at, detail: refusal.detail });
                // It has nothing to do until the consumer changes.
                self.runtime.spawn(async move { drop(stopped.await) })
            }
            Err(refusal) => return Err(refusal),
        };
        tasks.running.insert(name, Running { stop, task, status: shown });
        Ok(())
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Context) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let context = self.context.clone();
        let done = tokio::task::spawn_blocking(move || read(&context)).await;
        done.unwrap_or_else(|error| Err(Refusal::new(ErrorCode::Internal, error.to_string())))
    }

    async fn write(&self, term: Term, changes: Vec<RowChange>) -> Result<(), Refusal> {
        self.read(move |context| context.engine.store.write_rows(term, RowSpace::Chat, changes).map_err(store_refusal))
            .await
    }

    /// Removes what waits for another attempt, and the dead letters as well if asked.
    async fn remove_rows(&self, term: Term, name: &str, with_dead: bool) -> Result<(), Refusal> {
        loop {
            let asked = name.to_owned();
            let some = self.read(move |context| {
                stored::remove_some(&*context.engine.store, &asked, with_dead).map_err(store_refusal)
            });
            match some.await? {
                Some(changes) => self.write(term, changes).await?,
                None => return Ok(()),
            }
        }
    }

    /// The tasks, and the term in which consumers may be changed.
    async fn changing(&self) -> Result<(tokio::sync::MutexGuard<'_, Tasks>, Term), Refusal> {
        self.context.engine.gates.require(Gate::EventConsumers)?;
        let mut tasks = self.tasks.lock().await;
        let term = self.held_term().ok_or_else(leader_unavailable)?;
        tasks.begin(Some(term)).await;
        Ok((tasks, term))
    }

    /// Makes a consumer, or changes one.
    ///
    /// # Errors
    /// `invalid_field`, `limit_exceeded`; those of the feed; `not_yet_enabled`, `node_unavailable`, `store_unavailable`.
    pub async fn put(&self, name: &str, put: PutEventConsumer) -> Result<(bool, EventConsumer), Refusal> {
        check_name(name)?;
        let (mut tasks, term) = self.changing().await?;
        let now_ms = self.context.engine.clock.now_ms();
        let (asked, after) = (name.to_owned(), put.after.clone());
        let (before, count) = self
            .read(move |context| {
                let all = stored::consumers(&*context.engine.store).map_err(store_refusal)?;
                Ok((all.iter().find(|(name, _)| *name == asked).map(|(_, consumer)| consumer.clone()), all.len()))
            })
            .await?;
        let is_new = before.is_none();
        if is_new && count >= EVENT_CONSUMERS_MAX {
            return Err(Refusal::limit("consumers of events", EVENT_CONSUMERS_MAX as u64, count as u64 + 1));
        }
        let (consumer, secret) = checked(put, before.as_ref(), now_ms)?;
        if consumer.webhook.is_none() && before.is_some_and(|before| before.webhook.is_some()) {
            self.require_none_aside(name).await?;
        }
        // Also where nothing begins anew: the types are checked by it.
        let query = query_of(&consumer, after.filter(|_| is_new), 1);
        let cursor = self.read(move |context| Ok(context.engine.events_request(&query)?.cursor())).await?;
        tasks.end(name).await;
        let mut changes = vec![stored::put_consumer(name, &consumer)];
        if is_new {
            changes.push(stored::put_cursor(name, &cursor));
        }
        self.write(term, changes).await?;
        self.start_task(name.to_owned(), consumer, &mut tasks).await?;
        let shown = self.shown(name, &tasks).await?;
        Ok((is_new, EventConsumer { secret, ..shown }))
    }

    /// All consumers.
    ///
    /// # Errors
    /// `not_yet_enabled`, `node_unavailable`, `store_unavailable`.
    pub async fn list(&self) -> Result<tidings_protocol::http::EventConsumers, Refusal> {
        let (tasks, _) = self.changing().await?;
        let all = self.read(|context| stored::consumers(&*context.engine.store).map_err(store_refusal)).await?;
        let mut consumers = Vec::with_capacity(all.len());
        for (name, _) in all {
            consumers.push(self.shown(&name, &tasks).await?);
        }
        Ok(tidings_protocol::http::EventConsumers { consumers })
    }

    /// A consumer.
    ///
    /// # Errors
    /// `not_found`; as [`EventConsumers::list`].
    pub async fn get(&self, name: &str) -> Result<EventConsumer, Refusal> {
        let (tasks, _) = self.changing().await?;
        self.shown(name, &tasks).await
    }

    /// Removes a consumer, with all that it has still to do.
    ///
    /// # Errors
    /// As [`EventConsumers::get`].
    pub async fn delete(&self, name: &str) -> Result<(), Refusal> {
        let (mut tasks, term) = self.changing().await?;
        self.require(name).await?;
        tasks.end(name).await;
        self.remove_rows(term, name, true).await?;
        self.write(term, stored::remove_consumer(name)).await?;
        let label = ConsumerLabel { consumer: name.to_owned() };
        self.context.engine.metrics.forget_consumer(&label);
        Ok(())
    }

    /// Notes how far a consumer has dealt with the events that it reads.
    ///
    /// # Errors
    /// `conflict`: its events are sent to a webhook; `cursor_invalid`, `cursor_expired`; as [`EventConsumers::get`].
    pub async fn set_cursor(&self, name: &str, after: String) -> Result<EventConsumer, Refusal> {
        let consumer = self.require(name).await?;
        require_reader(&consumer)?;
        self.replay(name, after).await
    }

    /// Has a consumer go on from another place. What waited for another attempt is dropped: it is behind that place, or was asked to
    /// be left out.
    ///
    /// # Errors
    /// `cursor_invalid`, `cursor_expired`; as [`EventConsumers::get`].
    pub async fn replay(&self, name: &str, after: String) -> Result<EventConsumer, Refusal> {
        let (mut tasks, term) = self.changing().await?;
        let consumer = self.require(name).await?;
        let query = query_of(&consumer, Some(after), 1);
        let cursor = self
            .read(move |context| {
                let request = context.engine.events_request(&query)?;
                context.engine.read_events(&request)?;
                Ok(request.cursor())
            })
            .await?;
        tasks.end(name).await;
        if consumer.webhook.is_some() {
            self.remove_rows(term, name, false).await?;
        }
        self.write(term, vec![stored::put_cursor(name, &cursor)]).await?;
        self.start_task(name.to_owned(), consumer, &mut tasks).await?;
        self.shown(name, &tasks).await
    }

    /// What a consumer that reads its events asks the feed. Blocks not; every node may answer.
    ///
    /// # Errors
    /// `conflict`: its events are sent to a webhook; as [`EventConsumers::get`].
    pub async fn query(&self, name: &str, page: &ConsumerEventsQuery) -> Result<EventsQuery, Refusal> {
        self.context.engine.gates.require(Gate::EventConsumers)?;
        let consumer = self.require(name).await?;
        require_reader(&consumer)?;
        let asked = name.to_owned();
        let after =
            self.read(move |context| stored::cursor(&*context.engine.store, &asked).map_err(store_refusal)).await?;
        let ConsumerEventsQuery { limit, wait_s } = *page;
        Ok(EventsQuery { limit, wait_s, ..query_of(&consumer, after, 1) })
    }

    /// Events that the webhook did not take.
    ///
    /// # Errors
    /// As [`EventConsumers::get`]; `invalid_field`, `limit_exceeded`.
    pub async fn dead_letters(&self, name: &str, page: &DeadEventsQuery) -> Result<DeadEvents, Refusal> {
        let limit = page.limit.unwrap_or(DEAD_EVENTS_PAGE_DEFAULT);
        if limit == 0 {
            return Err(Refusal::field("limit", "must be at least 1"));
        }
        if limit > DEAD_EVENTS_PAGE_MAX {
            return Err(Refusal::limit("limit (dead letters)", DEAD_EVENTS_PAGE_MAX as u64, limit as u64));
        }
        let after = page.after.as_deref().map(str::parse::<u64>).transpose();
        let after = after.map_err(|_| Refusal::field("after", "must be the `next` of the page before"))?;
        self.require(name).await?;
        let (asked, from) = (name.to_owned(), after.map_or(0, |after| after.saturating_add(1)));
        let read = move |context: &Context| {
            stored::dead_from(&*context.engine.store, &asked, from, limit + 1).map_err(store_refusal)
        };
        let mut dead = self.read(read).await?;
        let has_more = dead.len() > limit;
        dead.truncate(limit);
        let next = dead.last().filter(|_| has_more).map(|(number, _)| number.to_string());
        Ok(DeadEvents { dead_letters: dead.into_iter().map(|(_, dead)| dead).collect(), next })
    }

    /// Deletes dead letters, or has them tried again.
    ///
    /// # Errors
    /// As [`EventConsumers::get`].
    pub async fn handle_dead(
        &self,
        name: &str,
        select: SelectDeadEvents,
        is_replay: bool,
    ) -> Result<DeadEventsHandled, Refusal> {
        let (mut tasks, term) = self.changing().await?;
        let consumer = self.require(name).await?;
        tasks.end(name).await;
        let asked = name.to_owned();
        let (dead, aside) = self
            .read(move |context| {
                let store = &*context.engine.store;
                let read = || Ok((stored::dead(store, &asked)?, stored::aside(store, &asked)?));
                tidings_domain::store::StoreResult::map_err(read(), store_refusal)
            })
            .await?;
        let last = dead.iter().map(|(number, _)| *number).chain(aside.iter().map(|row| row.event.number)).max();
        let selected =
            dead.into_iter().filter(|(_, dead)| select.ids.as_ref().is_none_or(|ids| ids.contains(&dead.id)));
        let (mut changes, mut handled) = (Vec::new(), 0);
        for ((number, dead), next) in selected.zip(last.unwrap_or(0) + 1..) {
            handled += 1;
            changes.push(stored::remove_dead(name, number));
            if is_replay {
                changes.push(stored::put_aside(name, &stored::revived(next, dead)));
            }
        }
        for changes in changes.chunks(ROWS_PER_WRITE) {
            self.write(term, changes.to_vec()).await?;
        }
        self.start_task(name.to_owned(), consumer, &mut tasks).await?;
        Ok(DeadEventsHandled { handled })
    }

    /// Who reads events gets none of those that are aside for a webhook.
    async fn require_none_aside(&self, name: &str) -> Result<(), Refusal> {
        let asked = name.to_owned();
        let aside = self.read(move |context| stored::aside(&*context.engine.store, &asked).map_err(store_refusal));
        match aside.await?.len() {
            0 => Ok(()),
            count => {
                let why = format!(
                    "{count} events wait for another attempt at the webhook: replay the consumer first, or delete it"
                );
                Err(Refusal::new(ErrorCode::Conflict, why))
            }
        }
    }

    async fn require(&self, name: &str) -> Result<StoredConsumer, Refusal> {
        let asked = name.to_owned();
        let found = self.read(move |context| stored::consumer(&*context.engine.store, &asked).map_err(store_refusal));
        found.await?.ok_or_else(|| Refusal::new(ErrorCode::NotFound, format!("no consumer of events {name:?}")))
    }

    /// A consumer as callers see it.
    async fn shown(&self, name: &str, tasks: &Tasks) -> Result<EventConsumer, Refusal> {
        let consumer = self.require(name).await?;
        let status = tasks.running.get(name).map(|running| running.status.lock().clone());
        let without_task = match consumer.webhook {
            Some(_) => EventConsumerState::Waiting,
            None => EventConsumerState::Read,
        };
        let status = status.unwrap_or_else(|| Status::of(without_task));
        let (asked, known) = (name.to_owned(), status.cursor);
        let (cursor, behind) = self
            .read(move |context| {
                let cursor = match known {
                    Some(cursor) => Some(cursor),
                    None => stored::cursor(&*context.engine.store, &asked).map_err(store_refusal)?,
                };
                let cursor = cursor.unwrap_or_default();
                let behind = context.engine.events_behind(&cursor).unwrap_or_default();
                Ok((cursor, behind))
            })
            .await?;
        let StoredConsumer { types, created_at, webhook } = consumer;
        let webhook = webhook.map(|webhook| {
            let StoredWebhook { url, batch, parallel, timeout_ms, give_up_s, .. } = webhook;
            EventWebhook { url, batch, parallel, timeout_ms, give_up_s }
        });
        let Status { state, aside, dead_letters, delivered, last_error, .. } = status;
        let (name, secret) = (name.to_owned(), None);
        Ok(EventConsumer {
            name,
            types,
            webhook,
            created_at,
            cursor,
            behind,
            state,
            aside,
            dead_letters,
            delivered,
            last_error,
            secret,
        })
    }
}

/// Rows of one write.
const ROWS_PER_WRITE: usize = 500;

impl Tasks {
    /// Ends the task of a consumer, and waits until it has stored how far it is.
    async fn end(&mut self, name: &str) {
        if let Some(Running { stop, task, .. }) = self.running.remove(name) {
            let _ = stop.send(());
            let _ = task.await;
        }
    }

    /// Ends the tasks of another term. Answers whether there was another.
    async fn begin(&mut self, term: Option<Term>) -> bool {
        let is_new = self.term != term;
        if is_new {
            self.end_all().await;
            self.term = term;
        }
        is_new
    }

    async fn end_all(&mut self) {
        let names: Vec<String> = self.running.keys().cloned().collect();
        for name in names {
            self.end(&name).await;
        }
    }
}

fn require_reader(consumer: &StoredConsumer) -> Result<(), Refusal> {
    match consumer.webhook {
        None => Ok(()),
        Some(_) => {
            Err(Refusal::new(ErrorCode::Conflict, "the consumer has a webhook, to which the server sends its events"))
        }
    }
}

fn check_name(name: &str) -> Result<(), Refusal> {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if name.is_empty() || !name.bytes().all(is_known) {
        return Err(Refusal::field("name", "a consumer's name is of letters, digits, '-', '_' and '.'"));
    }
    match name.len() {
        ..=EVENT_CONSUMER_NAME_BYTES_MAX => Ok(()),
        long => Err(Refusal::limit("name (bytes)", EVENT_CONSUMER_NAME_BYTES_MAX as u64, long as u64)),
    }
}

/// The consumer that a request asks for, and the secret that was made for it.
fn checked(
    put: PutEventConsumer,
    before: Option<&StoredConsumer>,
    now_ms: u64,
) -> Result<(StoredConsumer, Option<String>), Refusal> {
    let PutEventConsumer { types, after: _, webhook } = put;
    if types.len() > EVENT_CONSUMER_TYPES_MAX {
        return Err(Refusal::limit("types", EVENT_CONSUMER_TYPES_MAX as u64, types.len() as u64));
    }
    let (webhook, secret) = match webhook {
        Some(webhook) => {
            let before = before.and_then(|before| before.webhook.as_ref());
            let (webhook, secret) = checked_webhook(webhook, before, now_ms)?;
            (Some(webhook), secret)
        }
        None => (None, None),
    };
    let created_at = before.map_or(now_ms, |before| before.created_at);
    Ok((StoredConsumer { types, created_at, webhook }, secret))
}

fn checked_webhook(
    put: PutEventWebhook,
    before: Option<&StoredWebhook>,
    now_ms: u64,
) -> Result<(StoredWebhook, Option<String>), Refusal> {
    let PutEventWebhook { url, secret, batch, parallel, timeout_ms, give_up_s } = put;
    if url.len() > WEBHOOK_URL_BYTES_MAX {
        return Err(Refusal::limit("webhook.url (bytes)", WEBHOOK_URL_BYTES_MAX as u64, url.len() as u64));
    }
    let is_http = ["http://", "https://"].iter().any(|scheme| url.len() > scheme.len() && url.starts_with(scheme));
    if !is_http || url.chars().any(|c| c.is_whitespace() || c.is_control() || matches!(c, '"' | '\\')) {
        return Err(Refusal::field("webhook.url", "must be an address that begins with http:// or https://"));
    }
    let within = |name: &str, value: u64, range: std::ops::RangeInclusive<u64>| match range.contains(&value) {
        true => Ok(value),
        false => Err(Refusal::field(name, format!("must be {} to {}, got {value}", range.start(), range.end()))),
    };
    let batch = within("webhook.batch", batch.unwrap_or(BATCH_DEFAULT).into(), 1..=BATCH_MAX.into())? as u32;
    let parallel =
        within("webhook.parallel", parallel.unwrap_or(PARALLEL_DEFAULT).into(), 1..=PARALLEL_MAX.into())? as u32;
    let timeout_ms = within("webhook.timeout_ms", timeout_ms.unwrap_or(TIMEOUT_MS_DEFAULT), TIMEOUT_MS)?;
    let give_up_s = within("webhook.give_up_s", give_up_s.unwrap_or(GIVE_UP_S_DEFAULT), 0..=GIVE_UP_S_MAX)?;
    if secret.as_deref().is_some_and(|secret| WebhookSecret::parse(secret).is_none()) {
        return Err(Refusal::field("webhook.secret", "must be `whsec_` and 24 to 64 bytes as base64"));
    }
    let made = (secret.is_none() && before.is_none()).then(WebhookSecret::new_text);
    let former = match (&secret, before) {
        (Some(secret), Some(before)) if *secret != before.secret => {
            Some((before.secret.clone(), now_ms + FORMER_SECRET_MS))
        }
        (_, before) => before.and_then(|before| before.former.clone()),
    };
    let secret = secret.or_else(|| made.clone()).or_else(|| before.map(|before| before.secret.clone()));
    let secret = secret.unwrap_or_default();
    Ok((StoredWebhook { url, secret, former, batch, parallel, timeout_ms, give_up_s }, made))
}
