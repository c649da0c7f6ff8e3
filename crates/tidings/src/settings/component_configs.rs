//! The configuration of each part of the server, made from the settings.

use super::{Retention, Settings};
use anyhow::{Result, bail};
use std::{sync::Arc, time::Duration};
use tidings_api::ApiConfig;
use tidings_domain::store::Retention as Kept;
use tidings_engine::{
    config::{EngineConfig, MessagesConfig},
    presence::PresenceConfig,
    streams::StreamsConfig,
};
use tidings_gateway::SessionConfig;
use tidings_listen::{OutboundBudget, OutboundBudgetConfig};
use tidings_notifications::{NotificationsConfig, webhook_push::WebhookPushConfig};
use tidings_protocol::http::EventType;
use tidings_push::PushConfig;

/// No setting, since nobody but the lab has a reason to change it: `off` serves popup requests by the HTTP library, so that
/// `bench popup --set` can measure what the fast path gives.
pub(super) const FAST_PATH_VARIABLE: &str = "TIDINGS_LAB_FAST_PATH";

impl Settings {
    fn shards(&self) -> usize {
        match self.engine.shards {
            0 => EngineConfig::default().shards,
            shards => shards,
        }
    }

    pub(crate) fn engine_config(&self) -> EngineConfig {
        let engine = &self.engine;
        EngineConfig {
            shards: self.shards(),
            commit_queue: engine.commit_queue,
            commit_time_max: Duration::from_millis(engine.commit_time_max_ms),
            commit_batch: engine.commit_batch,
            lane_queue: engine.lane_queue,
            shard_queue: engine.shard_queue,
            cache_entries: engine.cache_entries,
            presence: PresenceConfig { grace_ms: self.presence.grace_ms, watches_max: self.presence.watches_max },
            sessions_per_kind: self.session.per_device_kind_max,
            sessions_per_user: self.session.per_user_max,
            sends_per_second: engine.sends_per_second,
            sends_burst: engine.sends_burst,
            limits: self.limits_config(),
            messages: self.messages_config(),
            streams: self.streams_config(),
            public_attributes: self.public_attributes.clone(),
            push: PushConfig {
                pending_per_device: self.push.pending_per_device_max.min(usize::from(u16::MAX)),
                running_to_many: self.push.running_to_many_max,
                scheduled: self.push.scheduled_max,
                retention: Duration::from_secs(self.push.kept_days * 24 * 60 * 60),
                flush_interval: Duration::from_millis(self.push.flush_interval_ms),
                new_devices: self.new_devices(),
            },
            popups: self.popups_config(),
            events_keep: Duration::from_secs(self.events.keep_days.saturating_mul(24 * 60 * 60)),
            // Checked when the settings were read.
            events_also: self.events_also().unwrap_or_default(),
            // It needs the runtime: see `hook_config`.
            hook: None,
        }
    }

    /// The events that are in the feed beside those of chat.
    pub(super) fn events_also(&self) -> Result<Vec<EventType>> {
        let mut also = Vec::new();
        for word in &self.events.also {
            let found = EventType::OPTIONAL.into_iter().filter(|kind| kind.is_asked_for_by(word));
            let before = also.len();
            also.extend(found);
            if also.len() == before {
                let known = EventType::OPTIONAL.map(|kind| kind.to_string()).join(", ");
                bail!("[events] also: {word:?} stands for no type of event that can be added; there are {known}");
            }
        }
        Ok(also)
    }

    fn streams_config(&self) -> StreamsConfig {
        let streams = &self.streams;
        StreamsConfig {
            open_max: streams.open_max,
            open_per_user_max: streams.open_per_user_max,
            open_per_conversation_max: streams.open_per_conversation_max,
            bytes_max: streams.bytes_max,
            timeout: Duration::from_millis(streams.timeout_ms),
            appends_per_second: streams.appends_per_second,
        }
    }

    fn messages_config(&self) -> MessagesConfig {
        let messages = &self.messages;
        let edit = [messages.direct_edit_window_ms, messages.group_edit_window_ms, messages.official_edit_window_ms];
        let recall =
            [messages.direct_recall_window_ms, messages.group_recall_window_ms, messages.official_recall_window_ms];
        MessagesConfig {
            edit_window: edit.map(Duration::from_millis),
            recall_window: recall.map(Duration::from_millis),
            edit_history: messages.edit_history,
        }
    }

    pub(crate) fn notifications_config(&self) -> NotificationsConfig {
        NotificationsConfig {
            notification_log_days: self.notifications.log_days,
            channel_plan: self.channel_plan(),
            internal_channels: self.internal_channels_config(),
            quiet_hours: self.quiet_hours(),
        }
    }

    pub(crate) fn webhook_push_config(&self) -> WebhookPushConfig {
        let webhook = &self.webhook;
        WebhookPushConfig {
            secret: webhook.secret.clone().unwrap_or_default(),
            messages: self.webhook_tells(),
            presence: webhook.presence,
            attempts_max: webhook.attempts_max,
            backoff_min: Duration::from_millis(webhook.backoff_min_ms),
            backoff_max: Duration::from_millis(webhook.backoff_max_ms),
            ..WebhookPushConfig::default()
        }
    }

    /// The memory for what clients have not read: one for the process.
    pub(crate) fn outbound_budget(&self) -> Arc<OutboundBudget> {
        let (bytes_max, user_bytes_max) = (self.unread_bytes_max, self.unread_bytes_per_user_max);
        OutboundBudget::new(OutboundBudgetConfig { bytes_max, user_bytes_max })
    }

    pub(crate) fn session_config(&self, outbound_budget: Arc<OutboundBudget>) -> SessionConfig {
        let session = &self.session;
        SessionConfig {
            shards: self.shards(),
            heartbeat: Duration::from_millis(session.heartbeat_ms),
            heartbeat_min: Duration::from_secs(session.heartbeat_s_min),
            heartbeat_max: Duration::from_secs(session.heartbeat_s_max),
            probe_after: Duration::from_millis(session.probe_after_ms),
            probe_timeout: Duration::from_millis(session.probe_timeout_ms),
            ack_timeout: Duration::from_millis(self.notifications.ack_timeout_ms),
            keep_alive: Duration::from_millis(session.keep_alive_ms),
            bind_timeout: Duration::from_millis(session.bind_timeout_ms),
            session_buffer_bytes: session.buffer_bytes,
            session_requests: session.requests_max,
            session_reads: session.reads_max,
            outbound_budget,
            connections_max: session.connections_max,
            unbound_per_address_max: session.unbound_per_address_max,
            flush_interval: Duration::from_micros(session.flush_interval_us),
            ..SessionConfig::default()
        }
    }

    pub(crate) fn api_config(&self) -> Result<ApiConfig> {
        Ok(ApiConfig {
            connections_max: self.http_connections_max,
            connections_per_address_max: self.http_connections_per_address_max,
            connections_per_user_max: self.http_connections_per_user_max,
            body_bytes_max: self.http_body_bytes_max,
            reads_max: self.http_reads_max,
            backup_dir: self.backup_dir.clone(),
            cors: self.cors()?,
            fast_path: std::env::var_os(FAST_PATH_VARIABLE).is_none_or(|value| value != "off"),
            ..ApiConfig::default()
        })
    }

    /// How long messages are kept; `None`: for ever.
    pub(crate) fn retention(&self) -> Option<Kept> {
        let Retention { age_days_max, bytes_max, .. } = self.retention;
        let age_max = age_days_max.map(|days| Duration::from_secs(days * 24 * 60 * 60));
        (age_max.is_some() || bytes_max.is_some()).then_some(Kept { age_max, bytes_max })
    }
}
