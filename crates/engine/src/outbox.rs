//! Offline push: messages for members without a live session go to the app's webhook.
//!
//! The store keeps, with the commit itself, which entries may need push; nothing is written per
//! recipient. One worker walks that list in commit order, works out for each entry who is offline and
//! wants to know, delivers, and then moves the durable mark. A crash repeats what was under way, so
//! events come at least once, and each has an id by which a receiver notices.
//!
//! A webhook that is down lets the outbox lag; it holds up no sender and no live delivery.

use crate::{
    engine::Engine,
    lanes::encode_entry,
    model::*,
    store::{DeadNotification, End, OutboxItem, Proposal, StoreResult},
    users::{attributes_value, window_covers},
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use hmac::{Hmac, KeyInit, Mac};
use parking_lot::Mutex;
use serde_json::{json, value::RawValue};
use std::{
    sync::{Arc, OnceLock},
    thread::JoinHandle,
    time::Duration,
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{DeadLetter, DeadLetterPage, Replayed},
};

/// How often the list is looked at when it was empty.
const POLL: Duration = Duration::from_millis(100);
/// Entries taken from the list at once.
const ITEMS_PER_LOOK: usize = 100;
/// Replays that may wait for the worker. Full: refused with `queue_full`.
const REPLAYS_WAITING: usize = 16;
/// Dead letters in a page.
const DEAD_LETTERS_PAGE_MAX: usize = 500;
/// An event's id is its entry's position and which part of the recipients it names.
const PARTS_BITS: u32 = 12;

/// Delivers to the app. Blocking: it is called from the outbox's own thread.
pub trait Webhook: Send + Sync + 'static {
    /// `Ok` only when the receiver answered that it has taken it.
    fn deliver(&self, delivery: &WebhookDelivery) -> Result<(), WebhookError>;
}

/// One request to the webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookDelivery {
    /// `{"events":[…]}`.
    pub body: Vec<u8>,
    /// Seconds since 1970 UTC; part of what is signed, so that an old request cannot be sent again.
    pub timestamp: u64,
    /// HMAC-SHA256 over the timestamp, a dot and the body, in hex.
    pub signature: String,
}

/// Why a delivery was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct WebhookError {
    pub reason: String,
}

#[derive(Debug, Clone)]
pub struct OutboxConfig {
    /// The key of the signatures.
    pub secret: String,
    pub events_per_delivery: usize,
    pub recipients_per_event: usize,
    /// After so many attempts the events become dead letters.
    pub attempts_max: u32,
    pub backoff_min: Duration,
    pub backoff_max: Duration,
}

impl Default for OutboxConfig {
    fn default() -> Self {
        OutboxConfig {
            secret: String::new(),
            events_per_delivery: 100,
            recipients_per_event: 1_000,
            attempts_max: 10,
            backoff_min: Duration::from_secs(1),
            backoff_max: Duration::from_secs(300),
        }
    }
}

/// The engine's hold on the worker; empty when there is no webhook.
#[derive(Default)]
pub struct Outbox {
    worker: OnceLock<Handle>,
}

struct Handle {
    commands: Sender<Command>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

enum Command {
    Replay(Vec<u64>),
    Stop,
}

/// What happened while the worker waited.
enum Waited {
    TimeIsOver,
    Stop,
}

/// An event and its id.
struct Event {
    id: u64,
    json: Box<RawValue>,
}

impl Outbox {
    pub(crate) fn start(engine: &Arc<Engine>, webhook: Arc<dyn Webhook>, config: OutboxConfig) {
        let (commands, inbox) = bounded(REPLAYS_WAITING);
        let worker = Worker { engine: engine.clone(), webhook, config, inbox, replays: Vec::new(), stopping: false };
        let thread = std::thread::Builder::new().name("outbox".into()).spawn(move || worker.run());
        let thread = Mutex::new(thread.inspect_err(|error| tracing::error!(%error, "no outbox thread")).ok());
        let _ = engine.outbox.worker.set(Handle { commands, thread });
    }

    pub(crate) fn stop(&self) {
        if let Some(handle) = self.worker.get()
            && let Some(thread) = handle.thread.lock().take()
        {
            let _ = handle.commands.send(Command::Stop);
            let _ = thread.join();
        }
    }
}

impl Engine {
    /// Events that were given up, oldest first.
    pub fn dead_letters(&self, after: Option<u64>, limit: usize) -> Result<DeadLetterPage, Refusal> {
        let limit = if limit == 0 { DEAD_LETTERS_PAGE_MAX } else { limit };
        if limit > DEAD_LETTERS_PAGE_MAX {
            return Err(Refusal::limit("limit (dead letters)", DEAD_LETTERS_PAGE_MAX as u64, limit as u64));
        }
        let dead = self.store.dead_notifications(after, limit + 1).map_err(crate::commit::store_refusal)?;
        let next = (dead.len() > limit).then(|| dead[limit - 1].id);
        let dead_letters = dead.into_iter().take(limit).map(|dead| DeadLetter {
            id: dead.id,
            failed_at: dead.failed_at,
            attempts: dead.attempts,
            last_error: dead.last_error,
            event: RawValue::from_string(dead.event).unwrap_or_else(|_| RawValue::NULL.to_owned()),
        });
        Ok(DeadLetterPage { dead_letters: dead_letters.collect(), next })
    }

    /// Has dead letters delivered again: the named ones, or all. They stay listed until they are taken.
    pub async fn replay_dead_letters(&self, ids: Option<Vec<u64>>) -> Result<Replayed, Refusal> {
        let Some(handle) = self.outbox.worker.get() else {
            return Err(Refusal::new(ErrorCode::Conflict, "no webhook is configured"));
        };
        let mut known = Vec::new();
        let mut after = None;
        loop {
            let page = self.store.dead_notifications(after, DEAD_LETTERS_PAGE_MAX);
            let page = page.map_err(crate::commit::store_refusal)?;
            let Some(last) = page.last() else { break };
            after = Some(last.id);
            known.extend(page.iter().map(|dead| dead.id));
        }
        if let Some(ids) = ids {
            if let Some(unknown) = ids.iter().find(|id| !known.contains(id)) {
                return Err(Refusal::not_found("dead letter", &unknown.to_string()));
            }
            known = ids;
        }
        let replayed = known.len();
        handle.commands.try_send(Command::Replay(known)).map_err(|_| {
            Refusal::new(ErrorCode::QueueFull, "replays are waiting already; nothing was started").retry_after(1_000)
        })?;
        Ok(Replayed { replayed })
    }
}

struct Worker {
    engine: Arc<Engine>,
    webhook: Arc<dyn Webhook>,
    config: OutboxConfig,
    inbox: Receiver<Command>,
    /// Asked for, not delivered again yet.
    replays: Vec<u64>,
    /// Told to stop, perhaps in the middle of a wait between two attempts: from then on no wait is one.
    stopping: bool,
}

impl Worker {
    fn run(mut self) {
        loop {
            let waited = match self.round() {
                Ok(true) => self.wait(Duration::ZERO),
                Ok(false) => self.wait(POLL),
                Err(refusal) => {
                    tracing::warn!(error = %refusal, "the outbox could not go on; it tries again");
                    self.wait(self.config.backoff_min)
                }
            };
            if matches!(waited, Waited::Stop) {
                return;
            }
        }
    }

    /// Waits, taking commands meanwhile.
    fn wait(&mut self, time: Duration) -> Waited {
        loop {
            if self.stopping {
                return Waited::Stop;
            }
            match self.inbox.recv_timeout(time) {
                Ok(Command::Replay(ids)) => self.replays.extend(ids),
                Ok(Command::Stop) | Err(RecvTimeoutError::Disconnected) => self.stopping = true,
                Err(RecvTimeoutError::Timeout) => return Waited::TimeIsOver,
            }
        }
    }

    /// Deals with what waits; answers whether there was anything.
    fn round(&mut self) -> Result<bool, Refusal> {
        let replayed = self.replay()?;
        let store = self.engine.store.clone();
        let done = store.outbox_done().map_err(crate::commit::store_refusal)?;
        let items = store.outbox(done, ITEMS_PER_LOOK).map_err(crate::commit::store_refusal)?;
        let lag = items.first().map_or(0, |first| store.last_position().saturating_sub(first.position) + 1);
        self.engine.metrics.outbox_lag.set(lag as i64);
        let Some(last) = items.last().map(|item| item.position) else { return Ok(replayed) };
        let mut events = Vec::new();
        for item in &items {
            events.extend(self.events(item).map_err(crate::commit::store_refusal)?);
        }
        let mut dead = Vec::new();
        for batch in events.chunks(self.config.events_per_delivery.max(1)) {
            match self.deliver(batch) {
                Delivered::Taken => self.engine.metrics.outbox_delivered.inc_by(batch.len() as u64),
                Delivered::GivenUp { attempts, error } => {
                    self.engine.metrics.outbox_dead.inc_by(batch.len() as u64);
                    dead.extend(batch.iter().map(|event| self.dead(event, attempts, &error)));
                    0
                }
                // The mark stays where it is: after the restart these are delivered again.
                Delivered::Stopped => return Ok(true),
            };
        }
        self.engine.committer.propose_blocking(Proposal::OutboxDone { through: last, dead })?;
        Ok(true)
    }

    fn dead(&self, event: &Event, attempts: u32, error: &str) -> DeadNotification {
        DeadNotification {
            id: event.id,
            failed_at: self.engine.clock.now_ms(),
            attempts,
            last_error: error.chars().take(500).collect(),
            event: event.json.get().to_owned(),
        }
    }

    /// Delivers again what was asked for; what is taken is a dead letter no more.
    fn replay(&mut self) -> Result<bool, Refusal> {
        let ids = std::mem::take(&mut self.replays);
        for id in &ids {
            let found = self.engine.store.dead_notifications(id.checked_sub(1), 1);
            let found = found.map_err(crate::commit::store_refusal)?.into_iter().find(|dead| dead.id == *id);
            let Some(dead) = found else { continue };
            let json = RawValue::from_string(dead.event).unwrap_or_else(|_| RawValue::NULL.to_owned());
            let event = Event { id: *id, json };
            if matches!(self.deliver(&[event]), Delivered::Taken) {
                self.engine.metrics.outbox_delivered.inc();
                self.engine.committer.propose_blocking(Proposal::DropDead { ids: vec![*id] })?;
            }
        }
        Ok(!ids.is_empty())
    }

    /// The events of one entry: who is offline and wants to know, in parts.
    fn events(&self, item: &OutboxItem) -> StoreResult<Vec<Event>> {
        let engine = &self.engine;
        let Some(conversation) = engine.directory.conversation(item.conversation)? else { return Ok(vec![]) };
        // Removed by retention before it could be pushed: there is nothing to show any more.
        let found = engine.store.entries(item.conversation, item.seq, item.seq, 1, End::Oldest)?;
        let Some(entry) = found.into_iter().next() else { return Ok(vec![]) };
        let recipients = self.recipients(&conversation, &entry)?;
        let sender = entry.content.sender.as_ref().map(|s| engine.directory.user(s.no)).transpose()?.flatten();
        let sender = sender.map(|user| {
            let attributes = attributes_value(user.attributes.as_deref());
            json!({ "id": user.id, "name": user.name, "avatar": user.avatar, "attributes": attributes })
        });
        let card = json!({
            "id": conversation.id,
            "kind": conversation.kind,
            "name": conversation.name,
            "avatar": conversation.avatar,
        });
        let mut encoded = Vec::new();
        encode_entry(&mut encoded, &conversation.id, &entry);
        let encoded = String::from_utf8(encoded).ok().and_then(|text| RawValue::from_string(text).ok());
        let parts = recipients.chunks(self.config.recipients_per_event.max(1)).enumerate();
        Ok(parts
            .filter_map(|(part, recipients)| {
                let id = item.position << PARTS_BITS | part as u64;
                #[derive(serde::Serialize)]
                struct Wire<'a> {
                    event: &'static str,
                    id: u64,
                    conversation: &'a serde_json::Value,
                    sender: &'a Option<serde_json::Value>,
                    entry: &'a Option<Box<RawValue>>,
                    recipients: &'a [String],
                }
                let wire =
                    Wire { event: "message", id, conversation: &card, sender: &sender, entry: &encoded, recipients };
                let json = serde_json::value::to_raw_value(&wire).ok()?;
                Some(Event { id, json })
            })
            .collect())
    }

    /// Members without a live session who have not read it, muted it, or asked for quiet now.
    fn recipients(&self, conversation: &Conversation, entry: &StoredEntry) -> StoreResult<Vec<String>> {
        const PAGE: usize = 1_000;
        let engine = &self.engine;
        let now_ms = engine.clock.now_ms();
        let sender = entry.content.sender.as_ref().map(|s| s.no);
        let mut recipients = Vec::new();
        let mut after = None;
        loop {
            let page = engine.store.members(conversation.no, after, PAGE)?;
            after = page.last().map(|(user, _)| *user);
            for (no, membership) in &page {
                let wants = Some(*no) != sender
                    && membership.joined_seq < entry.seq
                    && membership.read_seq < entry.seq
                    && !membership.mute.is_muted(now_ms)
                    && !engine.presence.is_online(*no);
                if !wants {
                    continue;
                }
                let Some(user) = engine.directory.user(*no)? else { continue };
                if !user.do_not_disturb.as_ref().is_some_and(|window| window_covers(window, now_ms)) {
                    recipients.push(user.id.clone());
                }
            }
            if page.len() < PAGE {
                return Ok(recipients);
            }
        }
    }

    fn deliver(&mut self, events: &[Event]) -> Delivered {
        #[derive(serde::Serialize)]
        struct Body<'a> {
            events: Vec<&'a RawValue>,
        }
        let body = serde_json::to_vec(&Body { events: events.iter().map(|e| &*e.json).collect() }).unwrap_or_default();
        let mut error = String::new();
        for attempt in 0..self.config.attempts_max.max(1) {
            if attempt > 0 {
                self.engine.metrics.outbox_retries.inc();
                if let Waited::Stop = self.wait(backoff(&self.config, attempt)) {
                    return Delivered::Stopped;
                }
            }
            let timestamp = self.engine.clock.now_ms() / 1_000;
            let signature = sign(&self.config.secret, timestamp, &body);
            match self.webhook.deliver(&WebhookDelivery { body: body.clone(), timestamp, signature }) {
                Ok(()) => return Delivered::Taken,
                Err(WebhookError { reason }) => {
                    tracing::debug!(attempt, reason, "a webhook delivery was not taken");
                    error = reason;
                }
            }
        }
        Delivered::GivenUp { attempts: self.config.attempts_max.max(1), error }
    }
}

enum Delivered {
    Taken,
    GivenUp { attempts: u32, error: String },
    Stopped,
}

/// Doubling with jitter: many servers whose webhook comes back do not knock at once.
fn backoff(config: &OutboxConfig, attempt: u32) -> Duration {
    let longest = config.backoff_min.saturating_mul(1 << attempt.min(20)).min(config.backoff_max);
    longest.mul_f64(rand::random_range(0.5..=1.0))
}

/// The signature that a receiver compares: HMAC-SHA256 over `timestamp.body`, in hex.
pub fn sign(secret: &str, timestamp: u64, body: &[u8]) -> String {
    // HMAC takes a key of any length.
    let Ok(mut mac) = Hmac::<sha2::Sha256>::new_from_slice(secret.as_bytes()) else { return String::new() };
    mac.update(format!("{timestamp}.").as_bytes());
    mac.update(body);
    mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}
