//! The handle that the listeners hold: every operation of notifications is a method of [`Notifications`], here or in the module of its
//! kind. In reading order:
//! - this file: start and stop, messages that a session did not acknowledge;
//! - `preferences`: what people set;
//! - `message_notifications`: why a user was, or was not, notified of a message, in `sentences`;
//! - `explain`: what would become of a message that was not sent;
//! - `stats`: how often each channel was tried;
//! - `dead_letters`: what the webhook or a provider did not take.

mod dead_letters;
mod explain;
mod message_notifications;
mod preferences;
mod sentences;
mod stats;

use crate::{
    channel_jobs::JobSignals,
    channel_plan::ChannelPlan,
    event_consumers::EventConsumers,
    internal_channels::{InternalChannels, InternalChannelsConfig},
    log::NotificationLog,
    notification_rows::{self, NotificationKind},
    offline_recipients::OfflinePushContext,
    policy::{CompiledPolicy, NotificationPolicies, PolicyParts},
    presence_webhook::PresenceWebhook,
    provider_push::{ProviderPush, ProviderPushParts, dead_letters::ProviderDeadLetters, no_provider},
    quiet_hours::QuietHours,
    stage::{Channels, NotificationStage, StageProgress, WebhookChannel},
    stats::{NotificationStatsParts, NotificationStatsWorker},
    webhook::{Webhook, WebhookCaller},
    webhook_push::{self, WebhookPush, WebhookPushConfig},
};
use std::{sync::Arc, time::Duration};
use tidings_domain::{
    erasure::{DeletedConversation, Erased, Person, is_event_of, redact_json},
    function::Function,
    model::*,
    refusals::store_refusal,
    store::{Proposal, StoredNotification},
};
use tidings_engine::Engine;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::PushToken,
    ids::check_new_id,
};

/// Stored webhook events that are read at once.
const EVENTS_AT_ONCE: usize = 100;

/// The settings that no channel has for itself.
#[derive(Debug, Clone)]
pub struct NotificationsConfig {
    /// For how many days it is recorded who was notified of a message, and why others were not; 0: it is not.
    pub notification_log_days: u32,
    /// By which channels those are notified whom no session reaches.
    pub channel_plan: ChannelPlan,
    /// Which channels a policy may name beside those that need a service elsewhere.
    pub internal_channels: InternalChannelsConfig,
    /// Of which conversations messages wait for the end of do-not-disturb or a snooze.
    pub quiet_hours: QuietHours,
}

impl Default for NotificationsConfig {
    fn default() -> Self {
        NotificationsConfig {
            notification_log_days: 3,
            channel_plan: ChannelPlan::default(),
            internal_channels: InternalChannelsConfig::default(),
            quiet_hours: QuietHours::default(),
        }
    }
}

/// What [`Notifications::start`] needs from outside.
#[derive(Default)]
pub struct NotificationParts {
    pub config: NotificationsConfig,
    /// Absent: no webhook is called with messages to offline users.
    pub webhook: Option<(Arc<dyn Webhook>, WebhookPushConfig)>,
    /// Absent: no provider is handed messages to offline users.
    pub providers: Option<ProviderPushParts>,
    /// Absent: consumers of events with a webhook are not called.
    pub webhook_caller: Option<Arc<dyn WebhookCaller>>,
}

/// A session that has not answered, or has not acknowledged in time, what it was handed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SilentSession {
    /// The session's number at this node.
    pub session: u64,
    /// Whether the session goes on.
    pub stays: bool,
    /// Whether its client tells what it has stored.
    pub acknowledges: bool,
}

/// Notifications of one process: its threads, and what the listeners ask of them.
pub struct Notifications {
    engine: Arc<Engine>,
    config: NotificationsConfig,
    context: Arc<OfflinePushContext>,
    /// Absent if no channel is set up.
    stage: Option<NotificationStage>,
    /// Absent without a webhook.
    webhook_push: Option<WebhookPush>,
    /// Absent without a provider.
    provider_push: Option<ProviderPush>,
    provider_dead_letters: Arc<ProviderDeadLetters>,
    internal_channels: InternalChannels,
    stats_worker: NotificationStatsWorker,
    /// Absent if no webhook is called with changes of presence.
    presence_webhook: Option<PresenceWebhook>,
    /// Who follows the feed of events.
    pub event_consumers: Arc<EventConsumers>,
    /// By which channels people are notified of messages.
    pub policies: Arc<NotificationPolicies>,
}

impl Notifications {
    /// Starts the threads, above an engine that runs.
    pub fn start(engine: &Arc<Engine>, parts: NotificationParts) -> Arc<Notifications> {
        let NotificationParts { config, webhook, providers, webhook_caller } = parts;
        let event_consumers = EventConsumers::start(engine, webhook_caller);
        let presence_webhook = webhook.as_ref().filter(|(_, config)| config.presence);
        let presence_webhook =
            presence_webhook.map(|(webhook, config)| PresenceWebhook::start(engine, webhook.clone(), &config.secret));
        let webhook = webhook.filter(|(_, config)| config.messages);
        let policies = NotificationPolicies::start(PolicyParts {
            store: engine.store.clone(),
            clock: engine.clock.clone(),
            lead: engine.leadership(Function::Push),
            popups: engine.popups.clone(),
            default: CompiledPolicy::default_document(&config.channel_plan, providers.is_some(), webhook.is_some()),
        });
        let context = Arc::new(OfflinePushContext {
            store: engine.store.clone(),
            clock: engine.clock.clone(),
            directory: engine.directory.clone(),
            presence: engine.presence.clone(),
            proposals: engine.proposals(),
            feed_notes: engine.feed_notes.clone(),
            lead: engine.leadership(Function::Push),
            metrics: engine.metrics.clone(),
            trace: Arc::new(
                NotificationLog::new(config.notification_log_days)
                    .with_feed(engine.feed_notes.clone(), engine.directory.clone()),
            ),
            policies: policies.clone(),
            quiet_hours: config.quiet_hours,
            users: engine.user_context(),
            gates: engine.gates.clone(),
            push: engine.push.clone(),
        });
        let stats_worker = NotificationStatsWorker::start(NotificationStatsParts {
            store: engine.store.clone(),
            clock: engine.clock.clone(),
            proposals: engine.proposals(),
            metrics: engine.metrics.clone(),
            lead: engine.leadership(Function::Push),
            boot: rand::random(),
            days: config.notification_log_days,
        });
        let time_to_live =
            providers.as_ref().map_or(config.internal_channels.time_to_live, |parts| parts.config.time_to_live);
        let channels = Channels {
            time_to_live_ms: u64::try_from(time_to_live.as_millis()).unwrap_or(u64::MAX),
            providers: providers
                .iter()
                .flat_map(|parts| &parts.providers)
                .map(|provider| provider.provider())
                .collect(),
            webhook: webhook
                .as_ref()
                .map(|(_, config)| WebhookChannel { recipients_per_event: config.recipients_per_event }),
            internal: config.internal_channels.clone(),
        };
        let has_channels = webhook.is_some() || providers.is_some() || config.internal_channels.is_any();
        let (signals, progress) = (Arc::<JobSignals>::default(), Arc::<StageProgress>::default());
        let webhook_push = webhook
            .map(|(webhook, config)| WebhookPush::start(context.clone(), webhook, config, &signals, progress.clone()));
        let dead_letters_kept = providers.as_ref().map_or(Duration::ZERO, |parts| parts.config.dead_letters_kept);
        let provider_dead_letters = Arc::new(ProviderDeadLetters::new(dead_letters_kept));
        let provider_push = providers
            .map(|providers| ProviderPush::start(context.clone(), providers, provider_dead_letters.clone(), &signals));
        let internal_channels = InternalChannels::start(
            context.clone(),
            config.internal_channels.clone(),
            engine.push.clone(),
            engine.popup_event_reports(),
            &signals,
        );
        let stage = has_channels.then(|| NotificationStage::start(context.clone(), channels, signals, progress));
        Arc::new(Notifications {
            engine: engine.clone(),
            config,
            context,
            stage,
            webhook_push,
            provider_push,
            provider_dead_letters,
            internal_channels,
            stats_worker,
            presence_webhook,
            event_consumers,
            policies,
        })
    }

    /// Stops the threads. The engine is stopped after it, since they commit what they have done.
    pub fn stop(&self) {
        self.event_consumers.stop();
        self.stage.iter().for_each(NotificationStage::stop);
        self.webhook_push.iter().for_each(WebhookPush::stop);
        self.provider_push.iter().for_each(ProviderPush::stop);
        self.internal_channels.stop();
        self.stats_worker.stop();
        self.policies.stop();
        self.presence_webhook.iter().for_each(PresenceWebhook::stop);
    }

    /// Has recalled bodies leave the store's files, as [`Engine::purge_recalled`] says, after the webhook's events of them. Blocks.
    ///
    /// # Errors
    /// `store_unavailable`, `queue_full`, `draining`: some bodies may be left; a later call begins anew.
    pub fn purge_recalled(&self, age_min: Duration) -> Result<bool, Refusal> {
        self.engine.purge_recalled(age_min, || self.delete_recalled_events())
    }

    /// Does a part of the erasure of a user, as [`Engine::work_on_erasures`] says, and of what waits for the webhook. Blocks.
    ///
    /// # Errors
    /// `store_unavailable`, `queue_full`, `draining`: a later call goes on.
    pub fn work_on_erasures(&self) -> Result<bool, Refusal> {
        self.engine.work_on_erasures(&|erased| match erased {
            Erased::Person(person) => self.redact_events(person),
            Erased::Conversation(conversation) => self.delete_events_of(conversation),
        })
    }

    /// Puts the alias of a person in place of the person's id in stored events; answers how many there were.
    fn redact_events(&self, person: &Person) -> Result<u64, Refusal> {
        let mut changed = 0;
        for kind in NotificationKind::ALL {
            let mut after = None;
            loop {
                let events = notification_rows::rows(&*self.context.store, kind, after, EVENTS_AT_ONCE);
                let events = events.map_err(store_refusal)?;
                let Some(last) = events.last() else { break };
                after = Some(last.key);
                let redacted = events.iter().filter_map(|stored| {
                    let mut event = serde_json::from_str(&stored.event).ok()?;
                    redact_json(person, &mut event)
                        .then(|| StoredNotification { event: event.to_string(), ..stored.clone() })
                });
                let dead: Vec<StoredNotification> = redacted.collect();
                if !dead.is_empty() {
                    changed += dead.len() as u64;
                    self.context.proposals.propose_blocking(Proposal::AdvanceOutbox { through: 0, dead })?;
                }
            }
        }
        Ok(changed)
    }

    /// Deletes the stored events of a conversation; answers how many there were.
    fn delete_events_of(&self, conversation: &DeletedConversation) -> Result<u64, Refusal> {
        let mut deleted = 0;
        for kind in NotificationKind::ALL {
            let mut after = None;
            loop {
                let events = notification_rows::rows(&*self.context.store, kind, after, EVENTS_AT_ONCE);
                let events = events.map_err(store_refusal)?;
                let Some(last) = events.last() else { break };
                after = Some(last.key);
                let its = events.iter().filter(|stored| is_event_of(conversation, &stored.event));
                let keys: Vec<_> = its.map(|stored| stored.key).collect();
                if !keys.is_empty() {
                    deleted += keys.len() as u64;
                    self.context.proposals.propose_blocking(Proposal::DeleteStoredNotifications { keys })?;
                }
            }
        }
        Ok(deleted)
    }

    fn delete_recalled_events(&self) -> Result<(), Refusal> {
        NotificationKind::ALL.into_iter().try_for_each(|kind| self.delete_recalled_events_of(kind))
    }

    fn delete_recalled_events_of(&self, kind: NotificationKind) -> Result<(), Refusal> {
        let store = &*self.context.store;
        let mut after = None;
        loop {
            let events = notification_rows::rows(store, kind, after, EVENTS_AT_ONCE).map_err(store_refusal)?;
            let Some(last) = events.last() else { return Ok(()) };
            after = Some(last.key);
            let mut keys = Vec::new();
            for event in &events {
                if webhook_push::is_recalled(&self.context.directory, store, event).map_err(store_refusal)? {
                    keys.push(event.key);
                }
            }
            if !keys.is_empty() {
                self.context.proposals.propose_blocking(Proposal::DeleteStoredNotifications { keys })?;
            }
        }
    }

    /// Whether messages to offline users go to a webhook or to providers.
    pub fn has_offline_push(&self) -> bool {
        self.stage.is_some()
    }

    /// Pushes offline the messages between `since` and `until` that a session of this node was sent and did not
    /// acknowledge, unless somebody looks at another session of the user, or, for a session that goes on and whose client
    /// acknowledges, unless another client of the user has stored them. Blocks.
    ///
    /// # Errors
    /// `store_unavailable` and `queue_full`: nothing was stored.
    pub fn push_unacknowledged(
        &self,
        user: &Arc<User>,
        SilentSession { session, stays, acknowledges }: SilentSession,
        since: &Cursor,
        until: [Position; LANES],
    ) -> Result<(), Refusal> {
        if !self.has_offline_push() {
            return Ok(());
        }
        let mut since = *since;
        if stays && acknowledges {
            let stored = self.engine.stored_positions(user.no).map_err(store_refusal)?;
            since.positions.iter_mut().zip(stored).for_each(|(since, stored)| *since = stored.max(*since));
        } else if self.context.presence.is_active_elsewhere(user.no, session) {
            return Ok(());
        }
        let handed = self.engine.handed_entries(user.no, &since, until)?;
        self.stage.as_ref().map_or(Ok(()), |stage| stage.store_unacknowledged(user, stays, handed))
    }

    /// Refuses what needs a provider, where none is set up.
    ///
    /// # Errors
    /// `conflict`.
    pub fn require_providers(&self) -> Result<(), Refusal> {
        match &self.provider_push {
            Some(_) => Ok(()),
            None => Err(Refusal::new(
                ErrorCode::Conflict,
                "fallback: no provider is set up, by which a device could be notified",
            )),
        }
    }

    /// Registers the token by which a provider reaches a device, as [`Engine::set_push_token`] does, or removes it. Blocks.
    ///
    /// # Errors
    /// `conflict` when the settings do not name the token's provider; else those of the engine.
    pub fn set_push_token(&self, user: &User, device: &str, token: Option<&PushToken>) -> Result<(), Refusal> {
        if let Some(token) = token {
            check_new_id("device_id", device)?;
            token.check()?;
            match &self.provider_push {
                Some(provider_push) => provider_push.check_token(token)?,
                None => return Err(no_provider(token.provider())),
            }
        }
        self.engine.set_push_token(user, device, token)
    }
}
