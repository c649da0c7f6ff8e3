//! Events: what users did with popups. Taken when durable, each counted once.

use super::{Shared, check::check_word, decision_id::DecisionId};
use crate::engine::{Actor, Engine};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
    ids::check_id,
    limits::POPUP_EVENTS_BATCH_MAX,
};
use tokio::sync::oneshot;

/// An event whose decision was read.
pub(super) struct Taken {
    pub(super) event: PopupEvent,
    pub(super) decision: DecisionId,
}

/// The events of one call, which are stored as a whole.
pub(super) struct Batch {
    pub(super) events: Vec<Taken>,
    pub(super) reply: oneshot::Sender<Result<PopupEventsAccepted, Refusal>>,
}

impl Engine {
    /// Answers once the events are durable.
    pub async fn report_popup_events(
        &self,
        actor: &Actor,
        events: Vec<PopupEvent>,
    ) -> Result<PopupEventsAccepted, Refusal> {
        self.popups.shared()?.report(actor, events).await
    }
}

impl Shared {
    async fn report(&self, actor: &Actor, events: Vec<PopupEvent>) -> Result<PopupEventsAccepted, Refusal> {
        if events.len() > POPUP_EVENTS_BATCH_MAX {
            return Err(Refusal::limit("events", POPUP_EVENTS_BATCH_MAX as u64, events.len() as u64));
        }
        let seal = self.seal.get().ok_or_else(super::loading)?;
        let taken = events.into_iter().enumerate().map(|(at, event)| {
            check_id(&format!("events[{at}].id"), &event.id)?;
            if let Some(button) = &event.button {
                check_word(&format!("events[{at}].button"), button)?;
            }
            if event.kind == PopupEventKind::Button && event.button.is_none() {
                return Err(Refusal::field(&format!("events[{at}].button"), "is missing"));
            }
            let decision = seal.read(&event.decision);
            let decision = decision.ok_or_else(|| {
                Refusal::field(&format!("events[{at}].decision"), "is not one that this server gave out")
            })?;
            match actor {
                Actor::User(user) if user.id != decision.user => {
                    Err(Refusal::new(ErrorCode::Forbidden, format!("events[{at}].decision: is another user's")))
                }
                _ => Ok(Taken { event, decision }),
            }
        });
        let mut taken = taken.collect::<Result<Vec<_>, Refusal>>()?;
        let all = taken.len();
        // Of decisions for test users nothing is counted.
        taken.retain(|taken| !taken.decision.test);
        let tests = all - taken.len();
        if taken.is_empty() {
            return Ok(PopupEventsAccepted { accepted: tests, duplicates: 0 });
        }
        let (reply, answer) = oneshot::channel();
        self.inbox.events(Batch { events: taken, reply })?;
        let mut accepted = answer.await.unwrap_or_else(|_| Err(self.gone()))?;
        accepted.accepted += tests;
        Ok(accepted)
    }
}
