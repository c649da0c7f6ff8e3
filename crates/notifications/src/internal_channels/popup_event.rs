//! The channel `popup`: a custom event of the person, on which a popup or a journey reacts when the person comes back.

use super::{InternalChannel, Notified, Telling};
use crate::offline_recipients::OfflinePushContext;
use serde_json::{Map, json};
use std::{collections::HashSet, sync::Arc};
use tidings_domain::{model::User, notification_counts::ChannelEvent};
use tidings_engine::engine::port::PopupEventReports;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
    limits::POPUP_EVENTS_BATCH_MAX,
};
use tokio::runtime::Runtime;

pub(super) struct PopupEvents {
    context: Arc<OfflinePushContext>,
    reports: PopupEventReports,
    /// The thread of the channel belongs to no other.
    runtime: Runtime,
}

impl PopupEvents {
    pub(super) fn new(context: Arc<OfflinePushContext>, reports: PopupEventReports) -> std::io::Result<PopupEvents> {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        Ok(PopupEvents { context, reports, runtime })
    }
}

impl InternalChannel for PopupEvents {
    fn channel(&self) -> Channel {
        Channel::Popup
    }

    fn tell(&mut self, telling: &Telling<'_>, people: &[Arc<User>]) -> Result<Vec<Notified>, Refusal> {
        let notified =
            |outcome| people.iter().map(move |user| Notified { user: user.no, outcome, push: None }).collect();
        // The policy that decided is not kept any more, and the present one has no such channel.
        let Some(name) = telling.step.and_then(|step| step.event.as_deref()) else {
            return Ok(notified(NotificationOutcome::Cancelled));
        };
        let found = telling.found;
        let (conversation, seq) = (&found.conversation, found.entry.seq);
        // Ids are per user; that of a retry is the same, so that it counts once.
        let id = format!("reach-{}-{seq}", conversation.no.0);
        let properties = [
            ("conversation".to_owned(), json!(conversation.id)),
            ("seq".to_owned(), json!(seq)),
            ("kind".to_owned(), json!(conversation.kind)),
        ];
        let properties: Map<_, _> = properties.into_iter().collect();
        let event_of = |user: &Arc<User>| PopupEvent {
            name: Some(name.to_owned()),
            user: Some(user.id.clone()),
            properties: Some(properties.clone()),
            ..PopupEvent::new(id.clone(), PopupEventKind::Custom)
        };
        let (notifications, now_ms) = (&self.context.metrics.notifications, telling.now_ms);
        for people in people.chunks(POPUP_EVENTS_BATCH_MAX) {
            let events = people.iter().map(event_of).collect();
            notifications.add(Channel::Popup, ChannelEvent::Attempted, now_ms, people.len() as u64, None);
            let recorded = self.runtime.block_on(self.reports.report(events));
            let count = people.len() as u64;
            match recorded {
                Ok(_) => {
                    let took = now_ms.saturating_sub(found.entry.at);
                    notifications.add(Channel::Popup, ChannelEvent::Accepted, now_ms, count, Some(took));
                }
                // Trying again would not help.
                Err(refusal) if matches!(refusal.code, ErrorCode::InvalidField | ErrorCode::LimitExceeded) => {
                    tracing::warn!(%refusal, "the event of a missed message is refused");
                    notifications.add(Channel::Popup, ChannelEvent::Refused, now_ms, count, None);
                    return Ok(notified(NotificationOutcome::Refused));
                }
                Err(refusal) => {
                    notifications.add(Channel::Popup, ChannelEvent::Retried, now_ms, count, None);
                    return Err(refusal);
                }
            }
        }
        Ok(notified(NotificationOutcome::Accepted))
    }

    fn acknowledged(&mut self, _: &[u64]) -> Result<HashSet<String>, Refusal> {
        // Nobody knows when the person comes.
        Ok(HashSet::new())
    }
}
