//! Why each popup is or is not chosen: the same evaluation as a decision's, without its side effects.

use super::{
    PopupService, Shared, UserKey,
    attempt::Question,
    configuration::{Configuration, Popup},
    context::UserContext,
    evaluate::{BlockReason, Eligibility, EvaluationInput},
    frequency::{CounterKey, FrequencyCounters, SESSION_COUNTERS_MAX},
    journeys::position::positions,
    reactions::ReactionCause,
};
use tidings_protocol::{
    error::Refusal,
    http::{ExplainedJourney, ExplainedOutcome, ExplainedPopup, Explanation},
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
        let mut explanation =
            Explanation { at: now_ms, chosen: None, next_at: None, popups: Vec::new(), journeys: Vec::new() };
        let counters =
            self.users.stripe(key).get(key).map_or_else(FrequencyCounters::default, |user| user.counters.clone());
        explanation.journeys = explain_journeys(&configuration, &counters, now_ms);
        let Some(placement) = configuration.placements.get(question.placement) else { return Ok(explanation) };
        let of_profile = context.profile_attributes();
        let named = (key, question);
        let of_profile = of_profile.as_ref();
        let input = configuration.evaluation_input(named, placement, context, of_profile, &counters, now_ms);
        let held_out = configuration.global.is_held_out(key);
        let tester = placement.tested.iter().find(|popup| popup.testers.contains(&key));
        explanation.chosen = match tester {
            Some(popup) => Some(popup.id.to_string()),
            None if held_out && !placement.is_measured => None,
            None => {
                let choice = configuration.choose(&counters, &input);
                explanation.next_at = (choice.chosen.is_none() && choice.next_at < u64::MAX).then_some(choice.next_at);
                choice.chosen.filter(|_| !held_out).map(|(popup, _)| popup.id.to_string())
            }
        };
        for popup in &placement.all {
            let mut explained = explain_popup(
                &explanation.journeys,
                popup,
                configuration.eligibility(popup, &counters, &input),
                (&input, &counters),
            );
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

/// Where the user stands by now in each journey.
fn explain_journeys(configuration: &Configuration, counters: &FrequencyCounters, now_ms: u64) -> Vec<ExplainedJourney> {
    let explain = |position| {
        let (position, until) = configuration.journeys.standing(position, counters, now_ms)?;
        let journey = configuration.journeys.by_no(position.journey)?;
        Some(ExplainedJourney {
            journey: journey.id.to_string(),
            version: u32::from(position.version),
            step: journey.step_id(position.version, position.step).to_owned(),
            since: position.since,
            until,
        })
    };
    positions(counters).filter_map(explain).collect()
}

fn explain_popup(
    journeys: &[ExplainedJourney],
    popup: &Popup,
    eligibility: Eligibility,
    known: (&EvaluationInput<'_>, &FrequencyCounters),
) -> ExplainedPopup {
    let (outcome, reason, not_before) = match eligibility {
        Eligibility::Now(_) => (ExplainedOutcome::Outranked, None, None),
        Eligibility::Control => (ExplainedOutcome::Control, None, None),
        Eligibility::NotBefore { at, reason } => (ExplainedOutcome::NotYet, Some(reason), Some(at)),
        Eligibility::No { reason } => (ExplainedOutcome::No, Some(reason), None),
    };
    let (field, detail) = match (reason, outcome) {
        (Some(reason), _) => {
            let (field, detail) = match (reason, &popup.journey) {
                (BlockReason::Journey, Some(journey)) => describe_journey(journey, journeys),
                _ => describe(popup, reason, known),
            };
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

/// Where the user stands instead of at a step that shows the popup.
fn describe_journey(journey: &str, journeys: &[ExplainedJourney]) -> (String, String) {
    let detail = match journeys.iter().find(|one| one.journey == journey) {
        None => format!("the user has not entered the journey {journey:?}, or there is none"),
        Some(ExplainedJourney { version, step, since, .. }) => {
            format!("the user stands at {step:?} of the journey {journey:?}, version {version}, since {since}")
        }
    };
    ("journey".to_owned(), detail)
}

/// The part of the configuration that keeps the popup, by the app server's name for it, and a sentence.
fn describe(
    popup: &Popup,
    reason: BlockReason,
    (input, counters): (&EvaluationInput<'_>, &FrequencyCounters),
) -> (String, String) {
    let pair = |field: &str, detail: String| (field.to_owned(), detail);
    match reason {
        BlockReason::State => pair("state", format!("it is {:?}", popup.state).to_lowercase()),
        BlockReason::Schedule => match popup.clock(input.user_zone).timetable.closed_by(input.now_ms) {
            field @ "starts_at" => pair(field, "its time has not come".into()),
            field @ "ends_at" => pair(field, "its time is over".into()),
            field => pair(field, "it is shown at other times of the week".into()),
        },
        BlockReason::Event => match &popup.trigger {
            Some(trigger) if popup.reactions.is_delayed() && input.event.is_some() => {
                pair("trigger.delay_s", "it waits for a page view".into())
            }
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
        BlockReason::AudienceThen { at } => {
            let path = popup.audience.as_ref().and_then(|audience| audience.why_not_at(&input.profile, at));
            let why = "this condition holds for the user now, but not any more when the rest allows it";
            pair(&join_path("audience", path), why.into())
        }
        BlockReason::Journey => pair("journey", "a journey shows it".into()),
        BlockReason::Reaction(cause) => match (cause, &popup.trigger) {
            (ReactionCause::Snooze, _) => pair("snooze", "the user has asked not to be shown it for a while".into()),
            (ReactionCause::After(kind), _) => {
                let why = format!("it is not shown so soon after the user's last {}", kind.name());
                pair(&format!("after.{}", kind.name()), why)
            }
            (ReactionCause::TriggerDelay, Some(trigger)) => {
                pair("trigger.delay_s", format!("it is too soon after the event {:?}", trigger.event))
            }
            (ReactionCause::Trigger, Some(trigger)) => {
                let why = format!("it waits for a report of the event {:?}, since it was shown last", trigger.event);
                pair("trigger.event", why)
            }
            (_, None) => pair("trigger", "it waits for an event".into()),
        },
        BlockReason::Caps(cap) => pair(&format!("caps.{cap}"), describe_cap(cap, popup.counter_key, input, counters)),
        BlockReason::PlacementCaps(cap) => pair(
            &format!("settings.placements.caps.{cap}"),
            describe_cap(cap, input.placement.counter_key, input, counters),
        ),
        BlockReason::GlobalCaps(cap) => {
            pair(&format!("settings.caps.{cap}"), describe_cap(cap, CounterKey::ALL, input, counters))
        }
    }
}

fn describe_cap(cap: &str, key: CounterKey, input: &EvaluationInput<'_>, counters: &FrequencyCounters) -> String {
    match (cap, input.session) {
        ("per_session", None) => "the question names no session".into(),
        ("per_session", Some(session)) if !counters.knows_session(key, session, input.now_ms) => {
            format!("the user has {SESSION_COUNTERS_MAX} live sessions, and there is no room for another one's counter")
        }
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
