//! Events: what users did with popups, as clients report it. An event is accepted once it is durable, and counted once.

use super::{
    PopupService, Shared,
    check::check_word,
    decision_id::{DecisionId, DecisionSigner},
    rules::Attributes,
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use tidings_domain::model::Actor;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
    ids::check_id,
    limits::{CUSTOM_EVENT_PROPERTIES_BYTES_MAX, POPUP_EVENTS_BATCH_MAX, POPUP_GAP_S_MAX},
};
use tokio::sync::oneshot;

/// An event that was checked.
pub(super) struct VerifiedEvent {
    /// What it takes from its user's rate: 1, and 1 more for each whole KiB of its properties.
    units: usize,
    pub(super) event: PopupEvent,
    pub(super) subject: EventSubject,
}

/// What an event is about.
pub(super) enum EventSubject {
    /// A decision, whose id has a valid signature.
    Decision(DecisionId),
    /// A user's custom event.
    Custom { user: String, name: String },
}

impl VerifiedEvent {
    pub(super) fn user(&self) -> &str {
        match &self.subject {
            EventSubject::Decision(decision) => &decision.user,
            EventSubject::Custom { user, .. } => user,
        }
    }

    pub(super) fn decision(&self) -> Option<&DecisionId> {
        match &self.subject {
            EventSubject::Decision(decision) => Some(decision),
            EventSubject::Custom { .. } => None,
        }
    }
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
    /// the user reports too many (`rate_limited`, `limit_exceeded`) or too many wait to be stored (`rate_limited`), or if the
    /// store fails or another node leads.
    pub async fn report_events(&self, actor: &Actor, events: Vec<PopupEvent>) -> Result<PopupEventsAccepted, Refusal> {
        let shared = self.shared()?;
        Shared::report(&shared, actor, events).await
    }
}

/// Checks the fields of an event by themselves: an event has those of its kind only. Returns what the event takes from its
/// user's rate.
fn check_event(field: &str, event: &PopupEvent, now_ms: u64) -> Result<usize, Refusal> {
    check_id(&format!("{field}.id"), &event.id)?;
    if let Some(button) = &event.button {
        check_word(&format!("{field}.button"), button)?;
    }
    let is_custom = event.kind == PopupEventKind::Custom;
    let is_snooze = event.kind == PopupEventKind::Snooze;
    let misplaced = [
        ("decision", is_custom && !event.decision.is_empty(), "is for events with popups"),
        ("name", !is_custom && event.name.is_some(), "is only allowed in custom events"),
        ("user", !is_custom && event.user.is_some(), "is only allowed in custom events: a decision names its user"),
        ("properties", !is_custom && event.properties.is_some(), "is only allowed in custom events"),
        ("until", !is_snooze && event.until.is_some(), "is for snooze"),
        ("for_s", !is_snooze && event.for_s.is_some(), "is for snooze"),
        ("button", is_custom && event.button.is_some(), "is for events with popups"),
    ];
    if let Some((part, _, why)) = misplaced.into_iter().find(|(_, is_misplaced, _)| *is_misplaced) {
        return Err(Refusal::field(&format!("{field}.{part}"), why));
    }
    if event.kind == PopupEventKind::Button && event.button.is_none() {
        return Err(Refusal::field(&format!("{field}.button"), "is missing"));
    }
    if is_snooze {
        match (event.until, event.for_s) {
            (None, None) => return Err(Refusal::field(&format!("{field}.until"), "give either until or for_s")),
            (Some(_), Some(_)) => {
                return Err(Refusal::field(&format!("{field}.for_s"), "cannot be combined with until"));
            }
            (Some(until), None) if until > now_ms + POPUP_GAP_S_MAX * 1_000 => {
                return Err(Refusal::field(&format!("{field}.until"), "is more than ten years ahead"));
            }
            (None, Some(for_s)) if for_s > POPUP_GAP_S_MAX => {
                return Err(Refusal::field(&format!("{field}.for_s"), format!("must be at most {POPUP_GAP_S_MAX}")));
            }
            _ => {}
        }
    }
    if let Some(properties) = &event.properties {
        Attributes::from_json(&format!("{field}.properties"), properties)?;
        let length = serde_json::to_string(properties).map_or(usize::MAX, |text| text.len());
        if length > CUSTOM_EVENT_PROPERTIES_BYTES_MAX {
            let name = format!("{field}.properties (bytes)");
            return Err(Refusal::limit(&name, CUSTOM_EVENT_PROPERTIES_BYTES_MAX as u64, length as u64));
        }
        return Ok(1 + length / 1_024);
    }
    Ok(1)
}

/// Whose custom event it is: a user's token reports that user's only.
fn custom_subject(field: &str, actor: &Actor, event: &PopupEvent) -> Result<EventSubject, Refusal> {
    let name = event.name.as_deref().ok_or_else(|| Refusal::field(&format!("{field}.name"), "is missing"))?;
    check_word(&format!("{field}.name"), name)?;
    let user = match (actor, event.user.as_deref()) {
        (Actor::App, Some(user)) => user,
        (Actor::App, None) => return Err(Refusal::field(&format!("{field}.user"), "is missing")),
        (Actor::User(user), None | Some("me")) => &user.id,
        (Actor::User(user), Some(named)) if named == user.id => &user.id,
        (Actor::User(_), Some(_)) => {
            return Err(Refusal::new(ErrorCode::Forbidden, format!("{field}.user: is another user")));
        }
    };
    check_id(&format!("{field}.user"), user)?;
    Ok(EventSubject::Custom { user: user.to_owned(), name: name.to_owned() })
}

fn decision_subject(
    field: &str,
    actor: &Actor,
    signer: &DecisionSigner,
    event: &PopupEvent,
) -> Result<EventSubject, Refusal> {
    let field = format!("{field}.decision");
    if event.decision.is_empty() {
        return Err(Refusal::field(&field, "is missing"));
    }
    let decision = signer.verify(&event.decision);
    let decision = decision.ok_or_else(|| Refusal::field(&field, "was not issued by this server"))?;
    match actor {
        Actor::User(user) if user.id != decision.user => {
            Err(Refusal::new(ErrorCode::Forbidden, format!("{field}: is another user's")))
        }
        _ => Ok(EventSubject::Decision(decision)),
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
        let now_ms = self.clock.now_ms();
        let verified = events.into_iter().enumerate().map(|(at, event)| {
            let field = format!("events[{at}]");
            let units = check_event(&field, &event, now_ms)?;
            let subject = match event.kind {
                PopupEventKind::Custom => custom_subject(&field, actor, &event)?,
                _ => decision_subject(&field, actor, signer, &event)?,
            };
            Ok(VerifiedEvent { units, event, subject })
        });
        let mut verified = verified.collect::<Result<Vec<_>, Refusal>>()?;
        if let Actor::User(user) = actor {
            let units = verified.iter().map(|event| event.units).sum();
            self.event_limiter.take(user.no, units, || "events: the user reports too many".into())?;
        }
        self.check_buttons(&verified).await?;
        let all = verified.len();
        // Events of test users are accepted and not counted.
        verified.retain(|event| event.decision().is_none_or(|decision| !decision.test));
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
        let unknown = verified.iter().enumerate().filter_map(|(at, verified)| {
            let button = verified.event.button.as_deref()?;
            let decision = verified.decision()?;
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
                let variants = versions.into_iter().flat_map(|details| details.spec.variants);
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
