//! Offline push by webhook: messages for members without a live session go to the app's webhook.
//!
//! The [reach stage](crate::reach_stage) stores a row for each message with some members who are to be told. One worker delivers
//! the events of these rows in batches ([`events`]), and removes the rows of each batch. After a crash it repeats the batch:
//! events come at least once.
//!
//! In a cluster the leader does this. When the leader changes during a delivery, the delivery may come twice.
//!
//! ```text
//! reach stage ─▶ rows ─▶ events ─▶ webhook ─ failed ─▶ retry queue, by conversation ─ due ─▶ webhook ─ last attempt failed ─▶ dead letter
//! ```
//! An event that the app cannot take stops its own conversation and no other ([`retry_queue`]). While the webhook is
//! down, its rows wait; senders and live delivery do not wait for it.
//!
//! In reading order: this file, [`events`] (what the webhook is sent), [`worker`], [`retry_queue`], [`circuit_breaker`]
//! (does one event fail, or the whole webhook?).

mod circuit_breaker;
mod events;
mod retry_queue;
mod worker;

use crate::{
    directory::Directory,
    offline_recipients::OfflinePushContext as OutboxContext,
    reach_stage::StageProgress,
    road_jobs::{Job, JobRoad, JobSignals},
    webhook::Webhook,
};
use crossbeam_channel::{Sender, bounded};
use events::Event;
use parking_lot::Mutex;
use retry_queue::RETRY_IDS;
use serde_json::value::RawValue;
use std::{collections::HashSet, sync::Arc, thread::JoinHandle, time::Duration};
use tidings_domain::{
    model::{Position, UserNo},
    refusals::store_refusal,
    store::{DeadNotification, End, RowSpace, Store, StoreResult},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{DeadLetter, DeadLetterPage, Replayed},
};

/// Replays in the worker's queue. Full: refused with `queue_full`.
const REPLAYS_QUEUED_MAX: usize = 16;
/// Rows of one message that are read for one answer.
const JOBS_READ_MAX: usize = 1_000;
/// Dead letters in a page.
const DEAD_LETTERS_PAGE_MAX: usize = 500;
/// Dead letters read at once while looking for those to replay.
const DEAD_LETTERS_AT_ONCE: usize = 100;

#[derive(Debug, Clone)]
pub struct OutboxConfig {
    /// The key of the signatures.
    pub secret: String,
    /// Whether the webhook is told of messages; otherwise only presence calls it.
    pub messages: bool,
    pub events_per_delivery: usize,
    pub recipients_per_event: usize,
    /// An event becomes a dead letter after this many attempts.
    pub attempts_max: u32,
    pub backoff_min: Duration,
    pub backoff_max: Duration,
}

impl Default for OutboxConfig {
    fn default() -> Self {
        OutboxConfig {
            secret: String::new(),
            messages: true,
            events_per_delivery: 100,
            recipients_per_event: 1_000,
            attempts_max: 10,
            backoff_min: Duration::from_secs(1),
            backoff_max: Duration::from_secs(300),
        }
    }
}

/// The engine's handle of the worker.
pub(crate) struct Outbox {
    context: Arc<OutboxContext>,
    commands: Sender<Command>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

enum Command {
    Replay(Vec<u64>),
    Stop,
}

impl Outbox {
    pub(crate) fn start(
        context: Arc<OutboxContext>,
        webhook: Arc<dyn Webhook>,
        config: OutboxConfig,
        stage: (Arc<JobSignals>, Arc<StageProgress>),
    ) -> Outbox {
        let (commands, inbox) = bounded(REPLAYS_QUEUED_MAX);
        let worker = worker::Worker::new(context.clone(), webhook, config, inbox, stage);
        let thread = std::thread::Builder::new().name("outbox".into()).spawn(move || worker.run());
        let thread = Mutex::new(thread.inspect_err(|error| tracing::error!(%error, "no outbox thread")).ok());
        Outbox { context, commands, thread }
    }

    pub(crate) fn stop(&self) {
        if let Some(thread) = self.thread.lock().take() {
            let _ = self.commands.send(Command::Stop);
            let _ = thread.join();
        }
    }

    /// Whether the webhook is still to be told of a message for this user.
    pub(crate) fn is_waiting_for(&self, position: Position, user: UserNo) -> StoreResult<bool> {
        let (from, to) = JobRoad::Webhook.keys_of(position);
        let rows = self.context.store.rows(RowSpace::Chat, &from, &to, JOBS_READ_MAX)?;
        for (_, row) in rows {
            if Job::decode(&row)?.users().any(|known| known == user) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Queues dead letters for another delivery: the named ones, or all. Answers how many.
    ///
    /// # Errors
    /// `not_found` for an unknown id; `queue_full`; `store_unavailable`.
    pub(crate) fn replay(&self, ids: Option<Vec<u64>>) -> Result<Replayed, Refusal> {
        let mut known = HashSet::new();
        let mut after = None;
        loop {
            let page = self.context.store.dead_notifications(after, DEAD_LETTERS_AT_ONCE).map_err(store_refusal)?;
            let Some(last) = page.last().filter(|last| last.id < RETRY_IDS) else {
                known.extend(page.iter().map(|dead| dead.id).filter(|id| *id < RETRY_IDS));
                break;
            };
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
        self.commands.try_send(Command::Replay(known.into_iter().collect())).map_err(|_| {
            Refusal::new(ErrorCode::QueueFull, "replays are waiting already; nothing was started").retry_after(1_000)
        })?;
        Ok(Replayed { replayed })
    }
}

/// Whether the message of a stored event was recalled since: nobody is told of it any more.
pub(crate) fn is_recalled(directory: &Directory, store: &dyn Store, row: &DeadNotification) -> StoreResult<bool> {
    let Event { conversation, seq, .. } = retry_queue::event_of(row);
    let Some(conversation) = directory.conversation_by_id(&conversation)? else { return Ok(false) };
    let found = store.entries(conversation.no, seq, seq, 1, End::Oldest)?;
    Ok(found.first().is_some_and(|entry| entry.content.details().recalled.is_some()))
}

/// A page of the dead letters, oldest first.
///
/// # Errors
/// `limit_exceeded`; `store_unavailable`.
pub(crate) fn dead_letters(store: &dyn Store, after: Option<u64>, limit: usize) -> Result<DeadLetterPage, Refusal> {
    let limit = if limit == 0 { DEAD_LETTERS_PAGE_MAX } else { limit };
    if limit > DEAD_LETTERS_PAGE_MAX {
        return Err(Refusal::limit("limit (dead letters)", DEAD_LETTERS_PAGE_MAX as u64, limit as u64));
    }
    let mut dead = store.dead_notifications(after, limit + 1).map_err(store_refusal)?;
    dead.retain(|dead| dead.id < RETRY_IDS);
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

/// The time before the next attempt: doubles with each attempt, with jitter, so that many servers do not call a webhook
/// that is back all at once.
fn backoff(config: &OutboxConfig, attempt: u32) -> Duration {
    let longest = config.backoff_min.saturating_mul(1 << attempt.min(20)).min(config.backoff_max);
    longest.mul_f64(rand::random_range(0.5..=1.0))
}
