//! Offline push by webhook: messages for members without a live session go to the app's webhook.
//!
//! The [notification stage](crate::stage) stores a row for each message with some members who are to be notified. One worker delivers
//! the events of these rows in batches ([`events`]), and removes the rows of each batch. After a crash it repeats the batch:
//! events come at least once.
//!
//! In a cluster the leader does this. When the leader changes during a delivery, the delivery may come twice.
//!
//! ```text
//! notification stage ─▶ rows ─▶ events ─▶ webhook ─ failed ─▶ retry queue, by conversation ─ due ─▶ webhook ─ last attempt failed ─▶ dead letter
//! ```
//! An event that the app cannot take stops its own conversation and no other ([`retry_queue`]). While the webhook is
//! down, its rows wait; senders and live delivery do not wait for it.
//!
//! In reading order: this file, [`events`] (what the webhook is sent), [`worker`], [`retry_queue`], [`recipients`] (of events that are tried once more), [`circuit_breaker`]
//! (does one event fail, or the whole webhook?), [`dead_letters`] (what was given up).

mod circuit_breaker;
pub(crate) mod dead_letters;
mod events;
mod recipients;
mod retry_queue;
mod worker;

use crate::{
    channel_jobs::{Due, Job, JobSignals},
    channel_worker::{self, Workers},
    offline_recipients::OfflinePushContext as WebhookPushContext,
    stage::StageProgress,
    webhook::Webhook,
};
use crossbeam_channel::{Sender, bounded};
use events::Event;
use std::{sync::Arc, time::Duration};
use tidings_domain::{
    model::{Position, UserNo},
    store::{End, RowSpace, Store, StoreResult, StoredNotification},
};
use tidings_engine::directory::Directory;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::Channel,
};
use worker::Worker;

/// Replays in the worker's queue. Full: refused with `queue_full`.
const REPLAYS_QUEUED_MAX: usize = 16;
/// Rows of one message that are read for one answer.
const JOBS_READ_MAX: usize = 1_000;

#[derive(Debug, Clone)]
pub struct WebhookPushConfig {
    /// The key of the signatures.
    pub secret: String,
    /// Whether the webhook is notified of messages; otherwise it may still be called with changes of presence.
    pub messages: bool,
    /// Whether the webhook is called with changes of presence.
    pub presence: bool,
    pub events_per_delivery: usize,
    pub recipients_per_event: usize,
    /// An event becomes a dead letter after this many attempts.
    pub attempts_max: u32,
    pub backoff_min: Duration,
    pub backoff_max: Duration,
}

impl Default for WebhookPushConfig {
    fn default() -> Self {
        WebhookPushConfig {
            secret: String::new(),
            messages: true,
            presence: false,
            events_per_delivery: 100,
            recipients_per_event: 1_000,
            attempts_max: 10,
            backoff_min: Duration::from_secs(1),
            backoff_max: Duration::from_secs(300),
        }
    }
}

/// The handle of the worker.
pub(crate) struct WebhookPush {
    context: Arc<WebhookPushContext>,
    requests: Sender<Vec<u64>>,
    workers: Workers,
}

impl WebhookPush {
    pub(crate) fn start(
        context: Arc<WebhookPushContext>,
        webhook: Arc<dyn Webhook>,
        config: WebhookPushConfig,
        signals: &Arc<JobSignals>,
        progress: Arc<StageProgress>,
    ) -> WebhookPush {
        let (requests, inbox) = bounded(REPLAYS_QUEUED_MAX);
        let workers = Workers::new();
        workers.start("webhook", &context, signals, Worker::new(context.clone(), webhook, config, inbox, progress));
        WebhookPush { context, requests, workers }
    }

    pub(crate) fn stop(&self) {
        self.workers.stop();
    }

    /// Whether the webhook is still to be notified of a message for this user.
    pub(crate) fn is_waiting_for(&self, position: Position, user: UserNo) -> StoreResult<bool> {
        let (from, to) = Due::Now(Channel::Webhook).keys_of(position);
        let rows = self.context.store.rows(RowSpace::Chat, &from, &to, JOBS_READ_MAX)?;
        for (_, row) in rows {
            if Job::decode(&row)?.users().any(|known| known == user) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Queues dead letters for another delivery.
    ///
    /// # Errors
    /// `queue_full`: none is queued.
    pub(crate) fn replay(&self, numbers: Vec<u64>) -> Result<(), Refusal> {
        self.requests.try_send(numbers).map_err(|_| {
            Refusal::new(ErrorCode::QueueFull, "replays are waiting already; nothing was started").retry_after(1_000)
        })
    }
}

/// Whether the message of a stored event was recalled since, or its conversation deleted: nobody is notified of it any more.
pub(crate) fn is_recalled(directory: &Directory, store: &dyn Store, row: &StoredNotification) -> StoreResult<bool> {
    let Event { conversation, seq, .. } = retry_queue::event_of(row);
    let Some(conversation) = directory.conversation_by_id(&conversation)? else { return Ok(false) };
    if conversation.is_deleted() {
        return Ok(true);
    }
    let found = store.entries(conversation.no, seq, seq, 1, End::Oldest)?;
    Ok(found.first().is_some_and(|entry| entry.content.is_recalled()))
}

/// The time before the next attempt.
fn backoff(config: &WebhookPushConfig, attempts: u32) -> Duration {
    channel_worker::backoff(config.backoff_min, config.backoff_max, attempts)
}
