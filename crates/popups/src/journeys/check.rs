//! Validation of journeys as app servers write them. A refusal names the part that is wrong.

use crate::{
    check::{check_duration, check_word},
    rules::{self, MarkKind, Rule},
};
use std::sync::Arc;
use tidings_protocol::{
    depth::check_depth,
    error::Refusal,
    http::*,
    ids::{check_id, check_name},
    json,
    limits::*,
};

/// The place of a step among those of its version; [`END`] is behind the last.
pub(crate) type StepIndex = u16;

/// The journey's end.
pub(crate) const END: StepIndex = u16::MAX;
/// The word for it where steps are named.
pub(crate) const END_ID: &str = "end";

/// A journey's specification, validated and parsed.
#[derive(Debug, Clone)]
pub(crate) struct CheckedJourney {
    pub(crate) entry: CheckedMark,
    pub(crate) condition: Option<Rule>,
    pub(crate) steps: Vec<CheckedStep>,
}

/// Something that users do, by the names of the specification.
#[derive(Debug, Clone)]
pub(crate) enum CheckedMark {
    Event(String),
    PopupEvent(String, MarkKind),
}

#[derive(Debug, Clone)]
pub(crate) enum CheckedStep {
    Popup { popup: String, placement: Option<String>, within: Option<(u64, StepIndex)>, next: StepIndex },
    Wait { ms: u64, next: StepIndex },
    Branch { arms: Vec<(CheckedMark, StepIndex)>, within: Option<(u64, StepIndex)> },
    Push { push: Arc<PopupJourneyPush>, next: StepIndex },
}

impl CheckedJourney {
    /// The popups that it shows, with the names of the fields.
    pub(crate) fn shown(&self) -> impl Iterator<Item = (String, &str, Option<&str>)> {
        self.steps.iter().enumerate().filter_map(|(at, step)| match step {
            CheckedStep::Popup { popup, placement, .. } => {
                Some((format!("steps[{at}].popup"), popup.as_str(), placement.as_deref()))
            }
            _ => None,
        })
    }

    /// The popups that it names anywhere, with the names of the fields.
    pub(crate) fn popups(&self) -> Vec<(String, &str)> {
        let mut named: Vec<(String, &str)> = self.shown().map(|(field, popup, _)| (field, popup)).collect();
        if let CheckedMark::PopupEvent(popup, _) = &self.entry {
            named.push(("entry.popup_event.popup".into(), popup));
        }
        for (at, step) in self.steps.iter().enumerate() {
            let CheckedStep::Branch { arms, .. } = step else { continue };
            for (arm, (mark, _)) in arms.iter().enumerate() {
                if let CheckedMark::PopupEvent(popup, _) = mark {
                    named.push((format!("steps[{at}].on[{arm}].popup_event.popup"), popup));
                }
            }
        }
        named
    }

    /// Whether it looks at impressions.
    pub(crate) fn names_impressions(&self) -> bool {
        let is_impression = |mark: &CheckedMark| matches!(mark, CheckedMark::PopupEvent(_, MarkKind::Impression));
        is_impression(&self.entry)
            || self.steps.iter().any(|step| match step {
                CheckedStep::Branch { arms, .. } => arms.iter().any(|(mark, _)| is_impression(mark)),
                _ => false,
            })
    }
}

/// Parses a journey's specification.
pub(crate) fn read_journey(text: &[u8]) -> Result<PopupJourneySpec, Refusal> {
    if text.len() > POPUP_BYTES_MAX {
        return Err(Refusal::limit("journey (bytes)", POPUP_BYTES_MAX as u64, text.len() as u64));
    }
    json::read(text)
}

pub(crate) fn check_journey(spec: &PopupJourneySpec) -> Result<CheckedJourney, Refusal> {
    check_name("name", spec.name.as_deref())?;
    let entry = check_mark("entry", spec.entry.event.as_deref(), spec.entry.popup_event.as_ref())?;
    let condition =
        spec.entry.condition.as_ref().map(|rule| rules::parse_event_condition("entry.where", rule)).transpose()?;
    if condition.is_some() && matches!(entry, CheckedMark::PopupEvent(..)) {
        return Err(Refusal::field("entry.where", "is for custom events, which have properties"));
    }
    match spec.steps.len() {
        1..=JOURNEY_STEPS_MAX => {}
        0 => return Err(Refusal::field("steps", "there must be at least one")),
        count => return Err(Refusal::limit("steps", JOURNEY_STEPS_MAX as u64, count as u64)),
    }
    for (at, step) in spec.steps.iter().enumerate() {
        let field = format!("steps[{at}].id");
        check_word(&field, &step.id)?;
        if step.id == END_ID {
            return Err(Refusal::field(&field, "\"end\" is the journey's end"));
        }
        if spec.steps[..at].iter().any(|other| other.id == step.id) {
            return Err(Refusal::field(&field, format!("{:?} appears twice", step.id)));
        }
    }
    let steps = (0..spec.steps.len()).map(|at| check_step(spec, at)).collect::<Result<_, Refusal>>()?;
    Ok(CheckedJourney { entry, condition, steps })
}

fn check_mark(
    field: &str,
    event: Option<&str>,
    popup_event: Option<&JourneyPopupEvent>,
) -> Result<CheckedMark, Refusal> {
    match (event, popup_event) {
        (Some(event), None) => {
            check_word(&format!("{field}.event"), event)?;
            Ok(CheckedMark::Event(event.to_owned()))
        }
        (None, Some(JourneyPopupEvent { popup, kind })) => {
            check_id(&format!("{field}.popup_event.popup"), popup)?;
            let kind = MarkKind::named(kind).ok_or_else(|| {
                let known = MarkKind::ALL.map(MarkKind::name).join(", ");
                Refusal::field(
                    &format!("{field}.popup_event.type"),
                    format!("unknown type {kind:?}; known are {known}"),
                )
            })?;
            Ok(CheckedMark::PopupEvent(popup.clone(), kind))
        }
        (None, None) => Err(Refusal::field(&format!("{field}.event"), "give either event or popup_event")),
        (Some(_), Some(_)) => Err(Refusal::field(&format!("{field}.popup_event"), "cannot be combined with event")),
    }
}

fn check_step(spec: &PopupJourneySpec, at: usize) -> Result<CheckedStep, Refusal> {
    use PopupJourneyStepKind::{Branch, Popup, Push, Wait};
    let step = &spec.steps[at];
    let field = |part: &str| format!("steps[{at}].{part}");
    let missing = |part: &str| Refusal::field(&field(part), "is missing");
    let placed = [
        ("popup", step.popup.is_some(), &[Popup][..]),
        ("placement", step.placement.is_some(), &[Popup]),
        ("for", step.duration.is_some(), &[Wait]),
        ("on", !step.on.is_empty(), &[Branch]),
        ("within", step.within.is_some(), &[Popup, Branch]),
        ("else", step.otherwise.is_some(), &[Popup, Branch]),
        ("push", step.push.is_some(), &[Push]),
        ("next", step.next.is_some(), &[Popup, Wait, Push]),
    ];
    if let Some((part, ..)) = placed.iter().find(|(_, is_there, kinds)| *is_there && !kinds.contains(&step.kind)) {
        return Err(Refusal::field(&field(part), "is not allowed in a step of this type"));
    }
    if step.otherwise.is_some() && step.within.is_none() {
        return Err(Refusal::field(&field("else"), "requires within"));
    }
    let target = |part: &str, name: Option<&str>| find_step(spec, at, &field(part), name);
    let next = target("next", step.next.as_deref())?;
    let otherwise = target("else", step.otherwise.as_deref())?;
    let within = step.within.as_deref().map(|text| check_duration(&field("within"), text)).transpose()?;
    let within = within.map(|ms| (ms, otherwise));
    Ok(match step.kind {
        Popup => {
            let popup = step.popup.clone().ok_or_else(|| missing("popup"))?;
            check_id(&field("popup"), &popup)?;
            step.placement.as_deref().map_or(Ok(()), |placement| check_word(&field("placement"), placement))?;
            CheckedStep::Popup { popup, placement: step.placement.clone(), within, next }
        }
        Wait => {
            let duration = step.duration.as_deref().ok_or_else(|| missing("for"))?;
            CheckedStep::Wait { ms: check_duration(&field("for"), duration)?, next }
        }
        Branch => {
            match step.on.len() {
                1..=JOURNEY_BRANCHES_MAX => {}
                0 => return Err(missing("on")),
                count => return Err(Refusal::limit(&field("on"), JOURNEY_BRANCHES_MAX as u64, count as u64)),
            }
            let arm = |(arm, branch): (usize, &PopupJourneyBranch)| {
                let field = format!("steps[{at}].on[{arm}]");
                let mark = check_mark(&field, branch.event.as_deref(), branch.popup_event.as_ref())?;
                Ok((mark, find_step(spec, at, &format!("{field}.to"), Some(&branch.to))?))
            };
            let arms = step.on.iter().enumerate().map(arm).collect::<Result<_, Refusal>>()?;
            CheckedStep::Branch { arms, within }
        }
        Push => {
            let push = step.push.clone().ok_or_else(|| missing("push"))?;
            check_push(&field("push"), &push)?;
            CheckedStep::Push { push: Arc::new(push), next }
        }
    })
}

/// The step of this name, which must be a later one, so that no journey goes round in a circle.
fn find_step(spec: &PopupJourneySpec, at: usize, field: &str, name: Option<&str>) -> Result<StepIndex, Refusal> {
    let following = if at + 1 < spec.steps.len() { at as StepIndex + 1 } else { END };
    let Some(name) = name else { return Ok(following) };
    if name == END_ID {
        return Ok(END);
    }
    match spec.steps.iter().position(|step| step.id == name) {
        Some(to) if to > at => Ok(to as StepIndex),
        Some(_) => Err(Refusal::field(field, format!("{name:?} is not a later step"))),
        None => Err(Refusal::field(field, format!("unknown step {name:?}"))),
    }
}

fn check_push(field: &str, push: &PopupJourneyPush) -> Result<(), Refusal> {
    check_word(&format!("{field}.type"), &push.content_type)?;
    let length = push.body.get().len();
    if length > PUSH_BODY_BYTES_MAX {
        return Err(Refusal::limit(&format!("{field}.body (bytes)"), PUSH_BODY_BYTES_MAX as u64, length as u64));
    }
    check_depth(&format!("{field}.body"), push.body.get())?;
    if push.ttl_s.is_some_and(|ttl_s| !(1..=PUSH_TTL_S_MAX).contains(&ttl_s)) {
        return Err(Refusal::field(&format!("{field}.ttl_s"), format!("must be from 1 to {PUSH_TTL_S_MAX}")));
    }
    if let Some(fallback) = &push.fallback {
        fallback.check(&format!("{field}.fallback"), push.ttl_s.unwrap_or(PUSH_TTL_S_DEFAULT))?;
    }
    push.collapse_key.as_ref().map_or(Ok(()), |key| check_id(&format!("{field}.collapse_key"), key))
}
