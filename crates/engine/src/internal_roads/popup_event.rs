//! The road `popup`: a custom event of the person, on which a popup or a journey reacts when the person comes back.

use super::{InternalRoad, Telling, Told};
use crate::{offline_recipients::OfflinePushContext, road_jobs::JobRoad};
use serde_json::{Map, json};
use std::{collections::HashSet, sync::Arc};
use tidings_domain::{
    model::{Actor, User},
    reach_counts::ReachEvent,
};
use tidings_popups::PopupService;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
    limits::POPUP_EVENTS_BATCH_MAX,
};
use tokio::runtime::Runtime;

pub(super) struct PopupEvents {
    context: Arc<OfflinePushContext>,
    popups: Arc<PopupService>,
    /// The thread of the road belongs to no other.
    runtime: Runtime,
}

impl PopupEvents {
    pub(super) fn new(context: Arc<OfflinePushContext>, popups: Arc<PopupService>) -> std::io::Result<PopupEvents> {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        Ok(PopupEvents { context, popups, runtime })
    }
}

impl InternalRoad for PopupEvents {
    fn road(&self) -> ReachRoad {
        ReachRoad::Popup
    }

    fn policy_road(&self) -> PolicyRoad {
        PolicyRoad::Popup
    }

    fn job_road(&self) -> JobRoad {
        JobRoad::Popup
    }

    fn tell(&mut self, telling: &Telling<'_>, people: &[Arc<User>]) -> Result<Vec<Told>, Refusal> {
        let told = |outcome| people.iter().map(move |user| Told { user: user.no, outcome, push: None }).collect();
        // The policy has changed, and the road has no event any more.
        let Some(name) = telling.step.and_then(|step| step.event.as_deref()) else {
            return Ok(told(ReachOutcome::Cancelled));
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
        let (reach, now_ms) = (&self.context.metrics.reach, telling.now_ms);
        for people in people.chunks(POPUP_EVENTS_BATCH_MAX) {
            let events = people.iter().map(event_of).collect();
            reach.add(ReachRoad::Popup, ReachEvent::Attempted, now_ms, people.len() as u64, None);
            let recorded = self.runtime.block_on(self.popups.report_events(&Actor::App, events));
            let count = people.len() as u64;
            match recorded {
                Ok(_) => {
                    let took = now_ms.saturating_sub(found.entry.at);
                    reach.add(ReachRoad::Popup, ReachEvent::Accepted, now_ms, count, Some(took));
                }
                // Trying again would not help.
                Err(refusal) if matches!(refusal.code, ErrorCode::InvalidField | ErrorCode::LimitExceeded) => {
                    tracing::warn!(%refusal, "the event of a missed message is refused");
                    reach.add(ReachRoad::Popup, ReachEvent::Refused, now_ms, count, None);
                    return Ok(told(ReachOutcome::Refused));
                }
                Err(refusal) => {
                    reach.add(ReachRoad::Popup, ReachEvent::Retried, now_ms, count, None);
                    return Err(refusal);
                }
            }
        }
        Ok(told(ReachOutcome::Accepted))
    }

    fn acknowledged(&mut self, _: &[u64]) -> Result<HashSet<String>, Refusal> {
        // Nobody knows when the person comes.
        Ok(HashSet::new())
    }
}
