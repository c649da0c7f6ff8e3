//! Events: what users did with popups, as clients report it. An event is accepted once it is durable, and counted once.

use super::{PopupService, Shared, check::check_word, decision_id::DecisionId};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use tidings_domain::model::Actor;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
    ids::check_id,
    limits::POPUP_EVENTS_BATCH_MAX,
};
use tokio::sync::oneshot;

/// An event whose decision id has a valid signature.
pub(super) struct VerifiedEvent {
    pub(super) event: PopupEvent,
    pub(super) decision: DecisionId,
}

/// The events of one call, which are stored as a whole.
pub(super) struct EventBatch {
    pub(super) events: Vec<VerifiedEvent>,
    pub(super) reply: oneshot::Sender<Result<PopupEventsAccepted, Refusal>>,
}

impl PopupService {
    /// Reports what users did with popups; returns once the events are durable.
    ///
    /// # Errors
    /// All events of the call are refused together: if one is malformed or names a decision that this server did not sign
    /// (`invalid_field`), a button that the popup never had (`invalid_field`) or another user's decision (`forbidden`), if
    /// too many wait to be stored (`rate_limited`), or if the store fails or another node leads.
    pub async fn report_events(&self, actor: &Actor, events: Vec<PopupEvent>) -> Result<PopupEventsAccepted, Refusal> {
        let shared = self.shared()?;
        Shared::report(&shared, actor, events).await
    }
}

/// A button that the popup's newest version does not have: (index in the call, popup, variant, button).
type UnknownButton = (usize, Arc<str>, String, String);

impl Shared {
    async fn report(self: &Arc<Self>, actor: &Actor, events: Vec<PopupEvent>) -> Result<PopupEventsAccepted, Refusal> {
        if events.len() > POPUP_EVENTS_BATCH_MAX {
            return Err(Refusal::limit("events", POPUP_EVENTS_BATCH_MAX as u64, events.len() as u64));
        }
        let signer = self.signer.get().ok_or_else(super::loading)?;
        let verified = events.into_iter().enumerate().map(|(at, event)| {
            check_id(&format!("events[{at}].id"), &event.id)?;
            if let Some(button) = &event.button {
                check_word(&format!("events[{at}].button"), button)?;
            }
            if event.kind == PopupEventKind::Button && event.button.is_none() {
                return Err(Refusal::field(&format!("events[{at}].button"), "is missing"));
            }
            let decision = signer.verify(&event.decision);
            let decision = decision.ok_or_else(|| {
                Refusal::field(&format!("events[{at}].decision"), "is not one that this server gave out")
            })?;
            match actor {
                Actor::User(user) if user.id != decision.user => {
                    Err(Refusal::new(ErrorCode::Forbidden, format!("events[{at}].decision: is another user's")))
                }
                _ => Ok(VerifiedEvent { event, decision }),
            }
        });
        let mut verified = verified.collect::<Result<Vec<_>, Refusal>>()?;
        self.check_buttons(&verified).await?;
        let all = verified.len();
        // Events of test users are accepted and not counted.
        verified.retain(|event| !event.decision.test);
        let tests = all - verified.len();
        if verified.is_empty() {
            return Ok(PopupEventsAccepted { accepted: tests, duplicates: 0 });
        }
        let (reply, answer) = oneshot::channel();
        self.write_queue.push_events(EventBatch { events: verified, reply })?;
        let mut accepted = answer.await.unwrap_or_else(|_| Err(self.worker_gone()))?;
        accepted.accepted += tests;
        Ok(accepted)
    }

    /// Refuses a button that no kept version of the popup has. The popup may have changed since the decision, so a
    /// button that the newest version lacks is looked up in the older versions; only then the caller waits for the
    /// store.
    async fn check_buttons(self: &Arc<Self>, verified: &[VerifiedEvent]) -> Result<(), Refusal> {
        if verified.iter().all(|event| event.event.button.is_none()) {
            return Ok(());
        }
        let configuration = self.configuration()?;
        let unknown = verified.iter().enumerate().filter_map(|(at, VerifiedEvent { event, decision })| {
            let button = event.button.as_deref()?;
            // The versions of a deleted popup are gone: any button is accepted.
            let popup = configuration.by_no.get(&decision.popup)?;
            let variant = popup.variants.iter().find(|variant| variant.id == decision.variant);
            let has = variant.is_some_and(|variant| variant.buttons.iter().any(|known| **known == *button));
            (!has).then(|| (at, popup.id.clone(), decision.variant.clone(), button.to_owned()))
        });
        let unknown: Vec<UnknownButton> = unknown.collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let shared = self.clone();
        let checked = tokio::task::spawn_blocking(move || shared.check_in_versions(&unknown)).await;
        checked.unwrap_or_else(|_| Err(self.worker_gone()))
    }

    /// Refuses the first button that no kept version has. Blocks.
    fn check_in_versions(&self, unknown: &[UnknownButton]) -> Result<(), Refusal> {
        let mut buttons_of: FxHashMap<&str, FxHashSet<(String, String)>> = FxHashMap::default();
        for (at, popup, variant, button) in unknown {
            if !buttons_of.contains_key(&**popup) {
                let versions = match self.versions(popup) {
                    Ok(kept) => kept.versions,
                    // The popup was deleted meanwhile.
                    Err(refusal) if refusal.code == ErrorCode::NotFound => continue,
                    Err(refusal) => return Err(refusal),
                };
                let variants = versions.into_iter().flat_map(|card| card.spec.variants);
                let buttons = variants.flat_map(|variant| {
                    let id = variant.id;
                    variant.content.buttons.into_iter().map(move |button| (id.clone(), button.id))
                });
                buttons_of.insert(popup, buttons.collect());
            }
            let known =
                buttons_of.get(&**popup).is_none_or(|buttons| buttons.contains(&(variant.clone(), button.clone())));
            if !known {
                let why = format!("popup {popup:?} has no button {button:?} in its variant {variant:?}");
                return Err(Refusal::field(&format!("events[{at}].button"), why));
            }
        }
        Ok(())
    }
}
