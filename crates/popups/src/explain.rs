//! Why each popup is or is not chosen: the same evaluation as a decision's, without its side effects.

use super::{
    PopupService, Shared, UserKey,
    attempt::Question,
    configuration::Popup,
    context::UserContext,
    evaluate::{BlockReason, Eligibility, EvaluationInput},
    frequency::FrequencyCounters,
};
use tidings_protocol::{
    error::Refusal,
    http::{ExplainedOutcome, ExplainedPopup, Explanation},
    ids::check_id,
};

impl PopupService {
    /// Explains the answer that the question would get now. Blocks.
    ///
    /// # Errors
    /// The user's id is malformed, another node leads, or the store cannot be read.
    pub fn explain(&self, question: &Question<'_>) -> Result<Explanation, Refusal> {
        check_id("user", question.user)?;
        let shared = self.shared()?;
        shared.load_counters(UserKey::of(question.user))?;
        let configuration = shared.configuration()?;
        let required = configuration.placements.get(question.placement).map(|placement| placement.required_context());
        let context = required.map(|required| self.read_context(question.user, required)).transpose()?;
        shared.explain(question, &context.unwrap_or_default())
    }
}

impl Shared {
    fn explain(&self, question: &Question<'_>, context: &UserContext) -> Result<Explanation, Refusal> {
        let configuration = self.configuration()?;
        let (key, now_ms) = (UserKey::of(question.user), self.clock.now_ms());
        let mut explanation = Explanation { at: now_ms, chosen: None, next_at: None, popups: Vec::new() };
        let Some(placement) = configuration.placements.get(question.placement) else { return Ok(explanation) };
        let counters =
            self.users.stripe(key).get(key).map_or_else(FrequencyCounters::default, |user| user.counters.clone());
        let card = context.card_attributes();
        let input = configuration.evaluation_input((key, question), placement, context, card.as_ref(), now_ms);
        let held_out = configuration.global.is_held_out(key);
        let tester = placement.tested.iter().find(|popup| popup.testers.contains(&key));
        explanation.chosen = match tester {
            Some(popup) => Some(popup.id.to_string()),
            None if held_out => None,
            None => {
                let choice = configuration.choose(&counters, &input);
                explanation.next_at = (choice.chosen.is_none() && choice.next_at < u64::MAX).then_some(choice.next_at);
                choice.chosen.map(|(popup, _)| popup.id.to_string())
            }
        };
        for popup in &placement.all {
            let mut explained = explain_popup(popup, configuration.eligibility(popup, &counters, &input), &input);
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

fn explain_popup(popup: &Popup, eligibility: Eligibility, input: &EvaluationInput<'_>) -> ExplainedPopup {
    let (outcome, reason, not_before) = match eligibility {
        Eligibility::Now(_) => (ExplainedOutcome::Outranked, None, None),
        Eligibility::Control => (ExplainedOutcome::Control, None, None),
        Eligibility::NotBefore { at, reason } => (ExplainedOutcome::NotYet, Some(reason), Some(at)),
        Eligibility::No { reason } => (ExplainedOutcome::No, Some(reason), None),
    };
    let (field, detail) = match (reason, outcome) {
        (Some(reason), _) => {
            let (field, detail) = describe(popup, reason, input);
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

/// The part of the configuration that keeps the popup, by the app server's name for it, and a sentence.
fn describe(popup: &Popup, reason: BlockReason, input: &EvaluationInput<'_>) -> (String, String) {
    let pair = |field: &str, detail: String| (field.to_owned(), detail);
    match reason {
        BlockReason::State => pair("state", format!("it is {:?}", popup.state).to_lowercase()),
        BlockReason::Schedule => {
            pair("windows", "its time has not come, or is over (starts_at, ends_at, windows)".into())
        }
        BlockReason::Event => match &popup.trigger {
            Some(trigger) => pair("trigger.event", format!("it waits for the event {:?}", trigger.event)),
            None => pair("trigger", "it waits for a page view".into()),
        },
        BlockReason::EventCondition => {
            let condition = popup.trigger.as_ref().and_then(|trigger| trigger.condition.as_ref());
            let path = condition.zip(input.event).and_then(|((condition, slots), (_, properties))| {
                condition.why_not(&slots.profile(input.user, properties, None, None, input.now_ms))
            });
            pair(&join_path("trigger.where", path), "the event's properties do not fit".into())
        }
        BlockReason::Audience => {
            let path = popup.audience.as_ref().and_then(|audience| audience.why_not(&input.profile));
            pair(&join_path("audience", path), "this condition does not hold for the user".into())
        }
        BlockReason::Caps(cap) => pair(&format!("caps.{cap}"), describe_cap(cap, input)),
        BlockReason::PlacementCaps(cap) => pair(&format!("settings.placements.caps.{cap}"), describe_cap(cap, input)),
        BlockReason::GlobalCaps(cap) => pair(&format!("settings.caps.{cap}"), describe_cap(cap, input)),
    }
}

fn describe_cap(cap: &str, input: &EvaluationInput<'_>) -> String {
    match (cap, input.session) {
        ("per_session", None) => "the question names no session".into(),
        ("gap_s", _) => "it is too soon after the last one".into(),
        _ => "the user was shown it as often as that allows".into(),
    }
}

fn join_path(root: &str, path: Option<String>) -> String {
    match path.as_deref() {
        None | Some("") => root.to_owned(),
        Some(path) => format!("{root}.{path}"),
    }
}
