//! The stage that decides who is notified of a message while no session of theirs takes it: once for each message and person, whatever
//! channels there are.
//!
//! With each commit the store keeps a list of the entries that may need it; nothing is written per recipient. One thread walks that
//! list in commit order ([`worker`]). It finds the members who are to be notified of each entry, and stores for each channel a row with some
//! dozens of them ([`channel_jobs`](crate::channel_jobs)); then it moves its position, in the same write. The channels' own workers
//! ([`webhook_push`](crate::webhook_push), [`provider_push`](crate::provider_push)) do the rest.
//!
//! ```text
//!                                                    ┌▶ rows of the webhook ─▶ worker ─▶ webhook
//! commits ─▶ list ─▶ who is to be notified? ─ one write ─┼▶ rows of APNs ────────▶ worker ─▶ APNs
//! messages that were not acknowledged ──▲            └▶ rows of FCM ─────────▶ worker ─▶ FCM
//! ```
//! The stage waits for nobody but the store, so a channel that is away holds up neither another channel nor senders. After a crash an
//! entry is decided again, and rows that are stored already may be stored once more. In a cluster the leader does all this.
//!
//! A channel that is to be taken later is a row under its time; when it is due its people are looked at again ([`waiting`]).
//!
//! In reading order: this file, [`worker`], [`decision`] (the rows of one message), [`alike`] (of several), [`waiting`], [`unacknowledged`] (messages that a
//! session did not acknowledge), [`removal`] (what was read is taken away from devices), [`push_fallbacks`] (devices that have
//! not acknowledged a push are notified by providers, in `untried_pushes` no more than these can try).

mod alike;
mod decision;
mod push_fallbacks;
mod removal;
mod unacknowledged;
mod untried_pushes;
mod waiting;
mod worker;

use crate::{
    channel_jobs::JobSignals, internal_channels::InternalChannelsConfig, offline_recipients::OfflinePushContext,
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use tidings_domain::model::Position;
use tidings_engine::worker_thread::WorkerThread;
use tidings_protocol::http::{PolicyChannel, PushProvider};

/// The channels that are set up.
#[derive(Debug, Clone, Default)]
pub(crate) struct Channels {
    pub(crate) providers: Vec<PushProvider>,
    pub(crate) webhook: Option<WebhookChannel>,
    pub(crate) internal: InternalChannelsConfig,
    /// After a message, if the policy does not say when a channel expires.
    pub(crate) time_to_live_ms: u64,
}

impl Channels {
    /// Whether the channel is set up.
    pub(crate) fn has(&self, channel: PolicyChannel) -> bool {
        match channel {
            PolicyChannel::Providers => !self.providers.is_empty(),
            PolicyChannel::Webhook => self.webhook.is_some(),
            PolicyChannel::Session => false,
            PolicyChannel::DevicePush | PolicyChannel::Popup => self.internal.has(channel),
        }
    }
}

/// How the webhook is notified of messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WebhookChannel {
    /// The members that one event names.
    pub(crate) recipients_per_event: usize,
}

/// How far the stage has come, for those who measure.
#[derive(Default)]
pub(crate) struct StageProgress(AtomicU64);

impl StageProgress {
    /// The position through which all is decided; 0 while that is unknown.
    pub(crate) fn decided(&self) -> Position {
        self.0.load(Ordering::Acquire)
    }

    fn set(&self, through: Position) {
        self.0.store(through, Ordering::Release);
    }
}

/// The handle of the thread.
pub(crate) struct NotificationStage {
    context: Arc<OfflinePushContext>,
    channels: Channels,
    thread: WorkerThread,
}

impl NotificationStage {
    pub(crate) fn start(
        context: Arc<OfflinePushContext>,
        channels: Channels,
        signals: Arc<JobSignals>,
        progress: Arc<StageProgress>,
    ) -> NotificationStage {
        let worker = worker::Worker::new(context.clone(), channels.clone(), signals, progress);
        let thread = WorkerThread::start("notifications", 1, move |stopped| worker.run(&stopped));
        NotificationStage { context, channels, thread }
    }

    pub(crate) fn stop(&self) {
        self.thread.stop();
    }
}
