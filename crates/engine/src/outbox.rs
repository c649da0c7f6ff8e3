//! Offline push: messages for members without a live session go to the app's webhook.
//!
//! The store keeps, with the commit itself, which entries may need push; nothing is written per
//! recipient. One worker walks that list in commit order, works out for each entry who is offline and
//! wants to know ([`events`]), delivers in batches, and after each moves the durable mark. A crash
//! repeats what was under way: events come at least once.
//!
//! Of several nodes the one that leads does this. When the lead moves in the middle, a delivery may come twice.
//!
//! A webhook that is down lets the outbox lag; it holds up no sender and no live delivery.

mod events;

use crate::{commit::store_refusal, engine::Engine, model::Position, store::*};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use events::{Event, Expansion};
use hmac::{Hmac, KeyInit, Mac};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use std::{
    collections::{BTreeSet, HashSet},
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
/// Dead letters delivered again before new entries have their turn.
const REPLAYS_PER_ROUND: usize = 20;
/// Dead letters in a page.
const DEAD_LETTERS_PAGE_MAX: usize = 500;
/// Dead letters read at once while looking for those to replay.
const DEAD_LETTERS_AT_ONCE: usize = 100;
/// Bytes of events after which a delivery is closed.
const DELIVERY_BYTES_MAX: usize = 1024 * 1024;

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

impl Outbox {
    pub(crate) fn start(engine: &Arc<Engine>, webhook: Arc<dyn Webhook>, config: OutboxConfig) {
        let (commands, inbox) = bounded(REPLAYS_WAITING);
        let worker =
            Worker { engine: engine.clone(), webhook, config, inbox, replays: BTreeSet::new(), stopping: false };
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
        let dead = self.store.dead_notifications(after, limit + 1).map_err(store_refusal)?;
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

    /// Has dead letters delivered again: the named ones, or all. Each is tried once, by itself, so that
    /// one that cannot be taken keeps none of the others; they stay listed until they are taken.
    pub async fn replay_dead_letters(&self, ids: Option<Vec<u64>>) -> Result<Replayed, Refusal> {
        let Some(handle) = self.outbox.worker.get() else {
            return Err(Refusal::new(ErrorCode::Conflict, "no webhook is configured"));
        };
        let mut known = HashSet::new();
        let mut after = None;
        loop {
            let page = self.store.dead_notifications(after, DEAD_LETTERS_AT_ONCE).map_err(store_refusal)?;
            let Some(last) = page.last() else { break };
            after = Some(last.id);
            known.extend(page.iter().map(|dead| dead.id));
        }
        if let Some(ids) = ids {
            if let Some(unknown) = ids.iter().find(|id| !known.contains(id)) {
                return Err(Refusal::not_found("dead letter", &unknown.to_string()));
            }
            known = ids.into_iter().collect();
        }
        let replayed = known.len();
        handle.commands.try_send(Command::Replay(known.into_iter().collect())).map_err(|_| {
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
    /// Asked for, not tried again yet. A set: asking again and again takes no more room.
    replays: BTreeSet<u64>,
    /// Told to stop, perhaps in the middle of a wait between two attempts: from then on no wait is one.
    stopping: bool,
}

/// The worker was told to stop in the middle: what is not on record is done again after the restart.
struct Stopped;

impl Worker {
    fn run(mut self) {
        loop {
            let time = match self.round() {
                Ok(Ok(true)) => Duration::ZERO,
                Ok(Ok(false)) => POLL,
                Ok(Err(Stopped)) => return,
                Err(error) => {
                    tracing::warn!(%error, "the outbox could not read; it tries again");
                    self.config.backoff_min
                }
            };
            if let Waited::Stop = self.wait(time) {
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
    fn round(&mut self) -> StoreResult<Result<bool, Stopped>> {
        let replayed = match self.replay()? {
            Ok(replayed) => replayed,
            Err(Stopped) => return Ok(Err(Stopped)),
        };
        if !self.engine.leads() {
            self.engine.metrics.outbox_lag.set(0);
            return Ok(Ok(replayed));
        }
        let store = self.engine.store.clone();
        let items = store.outbox(store.outbox_done()?, ITEMS_PER_LOOK)?;
        let lag = items.first().map_or(0, |first| store.last_position().saturating_sub(first.position) + 1);
        self.engine.metrics.outbox_lag.set(lag as i64);
        let Some(last) = items.last().map(|item| item.position) else { return Ok(Ok(replayed)) };
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let mut through = None;
        for item in &items {
            let mut expansion = Expansion::of(&self.engine, item, self.config.recipients_per_event.max(1))?;
            while let Some(expansion) = &mut expansion
                && let Some(event) = expansion.next(&self.engine)?
            {
                // Only now, with the next event at hand, is it known which entries the full batch completes.
                if batch.len() >= self.config.events_per_delivery.max(1) || bytes >= DELIVERY_BYTES_MAX {
                    bytes = 0;
                    if let Err(Stopped) = self.deliver_and_record(&mut batch, through.take()) {
                        return Ok(Err(Stopped));
                    }
                }
                bytes += event.json.get().len();
                batch.push(event);
            }
            through = Some(item.position);
        }
        Ok(self.deliver_and_record(&mut batch, Some(last)).map(|()| true))
    }

    /// Delivers a batch; then moves the mark, and keeps what was given up as dead letters.
    fn deliver_and_record(&mut self, batch: &mut Vec<Event>, through: Option<Position>) -> Result<(), Stopped> {
        let mut dead = Vec::new();
        if !batch.is_empty() {
            match self.deliver(batch, self.config.attempts_max.max(1))? {
                Delivered::Taken => {
                    self.engine.metrics.outbox_delivered.inc_by(batch.len() as u64);
                }
                Delivered::GivenUp { attempts, error } => {
                    self.engine.metrics.outbox_dead.inc_by(batch.len() as u64);
                    dead.extend(batch.iter().map(|event| self.dead(event, attempts, &error)));
                }
            }
            batch.clear();
        }
        match (through, dead.is_empty()) {
            (None, true) => Ok(()),
            // Position 0 moves no mark: only the dead letters are kept.
            _ => self.record(Proposal::OutboxDone { through: through.unwrap_or(0), dead }),
        }
    }

    /// Commits what became of a delivery. While senders fill the commit queue, or the disk is full, it
    /// waits: delivering again what was taken would be worse.
    fn record(&mut self, proposal: Proposal) -> Result<(), Stopped> {
        let mut told = false;
        while let Err(refusal) = self.engine.committer.propose_blocking(proposal.clone()) {
            if !std::mem::replace(&mut told, true) {
                tracing::warn!(error = %refusal, "the outbox cannot record its progress; it tries again");
            }
            if let Waited::Stop = self.wait(POLL) {
                return Err(Stopped);
            }
        }
        Ok(())
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

    /// Tries some of what was asked for again; what is taken is a dead letter no more.
    fn replay(&mut self) -> StoreResult<Result<bool, Stopped>> {
        let mut taken = Vec::new();
        let mut tried = 0;
        while tried < REPLAYS_PER_ROUND
            && !self.stopping
            && let Some(id) = self.replays.pop_first()
        {
            tried += 1;
            let found = self.engine.store.dead_notifications(id.checked_sub(1), 1)?;
            let Some(dead) = found.into_iter().find(|dead| dead.id == id) else { continue };
            let json = RawValue::from_string(dead.event).unwrap_or_else(|_| RawValue::NULL.to_owned());
            if let Ok(Delivered::Taken) = self.deliver(&[Event { id, json }], 1) {
                self.engine.metrics.outbox_delivered.inc();
                taken.push(id);
            }
        }
        if !taken.is_empty()
            && let Err(Stopped) = self.record(Proposal::DropDead { ids: taken })
        {
            return Ok(Err(Stopped));
        }
        Ok(Ok(tried > 0))
    }

    fn deliver(&mut self, events: &[Event], attempts: u32) -> Result<Delivered, Stopped> {
        #[derive(serde::Serialize)]
        struct Body<'a> {
            events: Vec<&'a RawValue>,
        }
        let body = serde_json::to_vec(&Body { events: events.iter().map(|e| &*e.json).collect() }).unwrap_or_default();
        let mut error = String::new();
        for attempt in 0..attempts {
            if attempt > 0 {
                self.engine.metrics.outbox_retries.inc();
                if let Waited::Stop = self.wait(backoff(&self.config, attempt)) {
                    return Err(Stopped);
                }
            }
            let timestamp = self.engine.clock.now_ms() / 1_000;
            let signature = sign(&self.config.secret, timestamp, &body);
            match self.webhook.deliver(&WebhookDelivery { body: body.clone(), timestamp, signature }) {
                Ok(()) => return Ok(Delivered::Taken),
                Err(WebhookError { reason }) => {
                    tracing::debug!(attempt, reason, "a webhook delivery was not taken");
                    error = reason;
                }
            }
        }
        Ok(Delivered::GivenUp { attempts, error })
    }
}

enum Delivered {
    Taken,
    GivenUp { attempts: u32, error: String },
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
