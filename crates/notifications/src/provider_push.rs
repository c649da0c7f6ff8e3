//! Offline push by providers: messages for members without a live session go to APNs, FCM and browsers' push services.
//!
//! The [notification stage](crate::stage) stores a row for each provider and message, with up to some dozens of devices. One thread for
//! each provider ([`provider_worker`]) hands these to the provider, and removes a row when all of its devices are dealt with.
//!
//! ```text
//! notification stage ─┬▶ rows of APNs ─▶ worker ─▶ APNs
//!              └▶ rows of FCM  ─▶ worker ─▶ FCM
//!                      ▲            │
//!                      └────────────┘ later, until its time is over
//! ```
//! A provider that is away holds nobody else up. After a crash a row is sent again, with the same id and collapse key. In a cluster
//! the leader does all this.
//!
//! In reading order: this file, [`provider_worker`], [`health`] (does the provider take anything?), [`dead_letters`] (what was given
//! up), [`rendering`] (what a device shows).

pub(crate) mod dead_letters;
mod health;
mod provider_worker;
mod rendering;

pub(crate) use rendering::{Appearance, DeviceText, MessageText};

use crate::{
    channel_jobs::{Due, Job, JobNews, JobPart, JobPlace, JobSignals},
    channel_worker::Workers,
    message_runs::SPAN_OF_MESSAGES_MAX,
    offline_recipients::OfflinePushContext,
};
use dead_letters::{ProviderDeadLetters, Replay};
use provider_worker::ProviderWorker;
pub use rendering::{Template, Templates};
use std::{sync::Arc, time::Duration};
use tidings_domain::{
    leadership::Term,
    model::UserNo,
    providers::Provider,
    store::{OutboxItem, RowSpace, StoreResult},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{PushProvider, PushToken},
};

/// How offline push by providers is done.
#[derive(Debug, Clone)]
pub struct ProviderPushConfig {
    pub templates: Templates,
    /// From the message on. What was not handed to the provider by then is given up.
    pub time_to_live: Duration,
    /// Whether notifications carry the number of unread messages.
    pub badge: bool,
    /// A device that was notified of a conversation is notified of it again after this time, of the newest message then.
    pub repeat_after: Duration,
    pub backoff_min: Duration,
    pub backoff_max: Duration,
    /// For how long notifications that were given up are kept; 0: they are not.
    pub dead_letters_kept: Duration,
}

impl Default for ProviderPushConfig {
    fn default() -> Self {
        ProviderPushConfig {
            templates: Templates::default(),
            time_to_live: Duration::from_secs(24 * 60 * 60),
            badge: true,
            repeat_after: Duration::from_secs(1),
            backoff_min: Duration::from_secs(1),
            backoff_max: Duration::from_secs(300),
            dead_letters_kept: Duration::from_secs(7 * 24 * 60 * 60),
        }
    }
}

/// What [`Notifications::start`](crate::Notifications::start) needs for offline push by providers.
pub struct ProviderPushParts {
    pub providers: Vec<Arc<dyn Provider>>,
    pub config: ProviderPushConfig,
}

/// Rows in one read.
const JOBS_READ_MAX: usize = 1_000;

/// A device to which a provider is still to deliver a message.
pub(crate) struct Waiting {
    pub(crate) device: String,
}

/// The handle of the threads.
pub(crate) struct ProviderPush {
    context: Arc<OfflinePushContext>,
    providers: Vec<Arc<dyn Provider>>,
    dead_letters: Arc<ProviderDeadLetters>,
    signals: Arc<JobSignals>,
    workers: Workers,
}

impl ProviderPush {
    pub(crate) fn start(
        context: Arc<OfflinePushContext>,
        parts: ProviderPushParts,
        dead_letters: Arc<ProviderDeadLetters>,
        signals: &Arc<JobSignals>,
    ) -> ProviderPush {
        let ProviderPushParts { providers, config } = parts;
        let workers = Workers::new();
        for provider in &providers {
            let name = format!("push-{}", provider.provider().name());
            let worker = ProviderWorker::new(context.clone(), provider.clone(), config.clone(), dead_letters.clone());
            workers.start(&name, &context, signals, worker);
        }
        ProviderPush { context, providers, dead_letters, signals: signals.clone(), workers }
    }

    pub(crate) fn stop(&self) {
        self.workers.signal();
        self.providers.iter().for_each(|provider| provider.stop());
        self.workers.stop();
    }

    /// Whether the provider is set up.
    pub(crate) fn has(&self, provider: PushProvider) -> bool {
        self.providers.iter().any(|known| known.provider() == provider)
    }

    /// Makes jobs of the dead letters with these numbers, of those whose users are still to be notified.
    pub(crate) fn replay(&self, term: Term, numbers: &[u64]) -> StoreResult<Replay> {
        let replay = self.dead_letters.replay(&self.context, term, numbers)?;
        self.signals.note(&JobNews::of(&replay.jobs));
        Ok(replay)
    }

    /// The devices of a user to which a provider is still to deliver this message, or a newer one in its place.
    pub(crate) fn waiting_for(
        &self,
        provider: PushProvider,
        message: OutboxItem,
        user: UserNo,
    ) -> StoreResult<Vec<Waiting>> {
        let OutboxItem { position, conversation, seq } = message;
        let due = Due::Now(provider.into());
        let (mut from, to) =
            (due.key(position, JobPart::FIRST), due.key(position.saturating_add(SPAN_OF_MESSAGES_MAX), JobPart::LAST));
        let mut waiting = Vec::new();
        loop {
            let rows = self.context.store.rows(RowSpace::Chat, &from, &to, JOBS_READ_MAX)?;
            let Some((last, _)) = rows.last() else { return Ok(waiting) };
            from = [&last[..], &[0]].concat();
            for (_, row) in rows.into_iter().filter(|(key, _)| !JobPlace::of_key(key).part.is_push()) {
                let job = Job::decode(&row)?;
                if job.conversation == conversation.0
                    && !job.removes
                    && (job.seq == seq || job.older().any(|older| older == seq))
                {
                    let of_user = job.targets.into_iter().filter(|target| target.0 == user.0);
                    waiting.extend(of_user.map(|target| Waiting { device: target.1 }));
                }
            }
        }
    }

    /// Whether the token can be used here.
    ///
    /// # Errors
    /// `conflict` when the settings do not name its provider; `invalid_field`.
    pub(crate) fn check_token(&self, token: &PushToken) -> Result<(), Refusal> {
        match self.providers.iter().find(|provider| provider.provider() == token.provider()) {
            Some(provider) => provider.check_token(token),
            None => Err(no_provider(token.provider())),
        }
    }
}

/// The refusal of a token that nobody could use.
pub(crate) fn no_provider(provider: PushProvider) -> Refusal {
    let name = provider.name();
    Refusal::new(
        ErrorCode::Conflict,
        format!("offline push by {name} is not set up: the settings [{name}] are missing"),
    )
}
