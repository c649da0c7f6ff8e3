//! Events: what users did with popups. Taken when durable, each counted once.

use super::{Shared, check::check_word, decision_id::DecisionId};
use crate::engine::{Actor, Engine};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
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
        let shared = self.popups.shared()?;
        Shared::report(&shared, actor, events).await
    }
}

/// A button that the popup does not have as it is now: (place in the call, popup, variant, button).
type DoubtfulButton = (usize, Arc<str>, String, String);

impl Shared {
    async fn report(self: &Arc<Self>, actor: &Actor, events: Vec<PopupEvent>) -> Result<PopupEventsAccepted, Refusal> {
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
        self.check_buttons(&taken).await?;
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

    /// Refuses a button that the popup never had, as far back as its versions are kept. What a popup shows may have
    /// changed since the decision: only who names a button that the newest version lacks waits for the store.
    async fn check_buttons(self: &Arc<Self>, taken: &[Taken]) -> Result<(), Refusal> {
        if taken.iter().all(|taken| taken.event.button.is_none()) {
            return Ok(());
        }
        let configuration = self.configuration()?;
        let doubtful = taken.iter().enumerate().filter_map(|(at, Taken { event, decision })| {
            let button = event.button.as_deref()?;
            // Of a popup that is gone nothing can be said.
            let popup = configuration.by_no.get(&decision.popup)?;
            let variant = popup.variants.iter().find(|variant| variant.id == decision.variant);
            let has = variant.is_some_and(|variant| variant.buttons.iter().any(|known| **known == *button));
            (!has).then(|| (at, popup.id.clone(), decision.variant.clone(), button.to_owned()))
        });
        let doubtful: Vec<DoubtfulButton> = doubtful.collect();
        if doubtful.is_empty() {
            return Ok(());
        }
        let shared = self.clone();
        let looked = tokio::task::spawn_blocking(move || shared.look_for_buttons(&doubtful)).await;
        looked.unwrap_or_else(|_| Err(self.gone()))
    }

    /// Looks through the versions that are kept. Blocks.
    fn look_for_buttons(&self, doubtful: &[DoubtfulButton]) -> Result<(), Refusal> {
        let mut had: FxHashMap<&str, FxHashSet<(String, String)>> = FxHashMap::default();
        for (at, popup, variant, button) in doubtful {
            if !had.contains_key(&**popup) {
                let versions = match self.versions(popup) {
                    Ok(kept) => kept.versions,
                    // It was deleted meanwhile.
                    Err(refusal) if refusal.code == ErrorCode::NotFound => continue,
                    Err(refusal) => return Err(refusal),
                };
                let variants = versions.into_iter().flat_map(|card| card.spec.variants);
                let buttons = variants.flat_map(|variant| {
                    let id = variant.id;
                    variant.content.buttons.into_iter().map(move |button| (id.clone(), button.id))
                });
                had.insert(popup, buttons.collect());
            }
            let known = had.get(&**popup).is_none_or(|had| had.contains(&(variant.clone(), button.clone())));
            if !known {
                let why = format!("popup {popup:?} has no button {button:?} in its variant {variant:?}");
                return Err(Refusal::field(&format!("events[{at}].button"), why));
            }
        }
        Ok(())
    }
}
