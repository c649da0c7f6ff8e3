//! Why each popup was or was not chosen: the same look as a decision's, without its consequences.

use super::{
    Shared, UserKey,
    configuration::Popup,
    decide::{Ask, Facts},
    evaluate::{By, Look, Question},
    marks::Marks,
};
use crate::engine::Engine;
use tidings_protocol::{
    error::Refusal,
    http::{ExplainedOutcome, ExplainedPopup, Explanation},
    ids::check_id,
};

impl Engine {
    /// Blocks.
    pub fn explain_popups(&self, ask: &Ask<'_>) -> Result<Explanation, Refusal> {
        check_id("user", ask.user)?;
        let shared = self.popups.shared()?;
        shared.load(UserKey::of(ask.user))?;
        let configuration = shared.configuration()?;
        let needs = configuration.placements.get(ask.placement).map(|placement| placement.needs());
        let facts = needs.map(|needs| self.facts_of(ask.user, needs)).transpose()?.unwrap_or_default();
        shared.explain(ask, &facts)
    }
}

impl Shared {
    fn explain(&self, ask: &Ask<'_>, facts: &Facts) -> Result<Explanation, Refusal> {
        let configuration = self.configuration()?;
        let (key, now_ms) = (UserKey::of(ask.user), self.clock.now_ms());
        let mut explanation = Explanation { at: now_ms, chosen: None, next_at: None, popups: Vec::new() };
        let Some(placement) = configuration.placements.get(ask.placement) else { return Ok(explanation) };
        let marks = self.users.table(key).get(key).map_or_else(Marks::default, |user| user.marks.clone());
        let card = facts.card();
        let question = configuration.question((key, ask), placement, facts, card.as_ref(), now_ms);
        let held_out = configuration.above.is_held_out(key);
        let tester = placement.tested.iter().find(|popup| popup.testers.contains(&key));
        explanation.chosen = match tester {
            Some(popup) => Some(popup.id.to_string()),
            None if held_out => None,
            None => {
                let choice = configuration.choose(&marks, &question);
                explanation.next_at = (choice.chosen.is_none() && choice.next_at < u64::MAX).then_some(choice.next_at);
                choice.chosen.map(|(popup, _)| popup.id.to_string())
            }
        };
        for popup in &placement.all {
            let mut explained = explain_one(popup, configuration.look(popup, &marks, &question), &question);
            if tester.is_none() && held_out {
                explained.outcome = ExplainedOutcome::No;
                (explained.field, explained.not_before) = (Some("holdout_percent".into()), None);
                explained.detail = Some("the user is one of those who are never shown any".into());
            } else if explanation.chosen.as_deref() == Some(&*popup.id) {
                explained.outcome = ExplainedOutcome::Chosen;
                (explained.field, explained.not_before) = (None, None);
                explained.detail = Some("it can be shown, and none that can comes before it".into());
                if tester.is_some() {
                    explained.field = Some("test_users".into());
                    explained.detail = Some("the user is one of its test users".into());
                }
            }
            explained.variant = Some(popup.variants[popup.variant_of(key)].id.clone());
            explanation.popups.push(explained);
        }
        Ok(explanation)
    }
}

fn explain_one(popup: &Popup, look: Look, question: &Question<'_>) -> ExplainedPopup {
    let (outcome, by, not_before) = match look {
        Look::Due(_) => (ExplainedOutcome::Outranked, None, None),
        Look::Control => (ExplainedOutcome::Control, None, None),
        Look::NotBefore { at, by } => (ExplainedOutcome::NotYet, Some(by), Some(at)),
        Look::No { by } => (ExplainedOutcome::No, Some(by), None),
    };
    let (field, detail) = match (by, outcome) {
        (Some(by), _) => {
            let (field, detail) = name(popup, by, question);
            (Some(field), Some(detail))
        }
        (None, ExplainedOutcome::Control) => {
            (Some("control_percent".into()), Some("the user is in its control group".into()))
        }
        (None, _) => (None, Some("it could be shown, but another one comes before it".into())),
    };
    let (popup, version) = (popup.id.to_string(), popup.version);
    ExplainedPopup { popup, version, outcome, field, detail, not_before, variant: None }
}

/// The part of the configuration, as the app server names it, and a sentence.
fn name(popup: &Popup, by: By, question: &Question<'_>) -> (String, String) {
    let say = |field: &str, detail: String| (field.to_owned(), detail);
    match by {
        By::State => say("state", format!("it is {:?}", popup.state).to_lowercase()),
        By::Schedule => say("windows", "its time has not come, or is over (starts_at, ends_at, windows)".into()),
        By::Event => match &popup.trigger {
            Some(trigger) => say("trigger.event", format!("it waits for the event {:?}", trigger.event)),
            None => say("trigger", "it waits for a page view".into()),
        },
        By::EventCondition => {
            let condition = popup.trigger.as_ref().and_then(|trigger| trigger.condition.as_ref());
            let path = condition.zip(question.event).and_then(|((condition, names), (_, properties))| {
                condition.why_not(&names.profile(question.user, properties, None, None, question.now_ms))
            });
            say(&below("trigger.where", path), "the event's properties do not fit".into())
        }
        By::Audience => {
            let path = popup.audience.as_ref().and_then(|audience| audience.why_not(&question.profile));
            say(&below("audience", path), "this condition does not hold for the user".into())
        }
        By::Caps(cap) => say(&format!("caps.{cap}"), said_of(cap, question)),
        By::PlacementCaps(cap) => say(&format!("settings.placements.caps.{cap}"), said_of(cap, question)),
        By::AllCaps(cap) => say(&format!("settings.caps.{cap}"), said_of(cap, question)),
    }
}

fn said_of(cap: &str, question: &Question<'_>) -> String {
    match (cap, question.session) {
        ("per_session", None) => "the question names no session".into(),
        ("gap_s", _) => "it is too soon after the last one".into(),
        _ => "the user was shown it as often as that allows".into(),
    }
}

fn below(root: &str, path: Option<String>) -> String {
    match path.as_deref() {
        None | Some("") => root.to_owned(),
        Some(path) => format!("{root}.{path}"),
    }
}
