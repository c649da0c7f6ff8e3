//! Which popup to show: rules, schedules and caps together, without side effects.
//!
//! For each popup of the placement the earliest time is computed at which it could be shown if nothing else changed.
//! The first popup in order for which that time is now is chosen; if there is none, the earliest of these times is when
//! to ask again.

use super::{
    UserKey,
    caps::{CapReached, Caps},
    configuration::{Configuration, Placement, Popup},
    frequency::{CounterKey, FrequencyCounters},
    journeys::position::JourneyPopup,
    reactions::ReactionCause,
    rules::{Attributes, CompiledRule, Profile},
    timetable::{Days, Phase},
    zone_clock::ZoneClock,
};
use smallvec::SmallVec;
use std::sync::Arc;

/// Rounds in which schedule and caps may delay each other. After the last, the time reached so far is the answer: it is
/// not too late, and a question at that time goes on from there.
const ROUNDS_MAX: usize = 64;

/// A question with what is known of the user.
pub(super) struct EvaluationInput<'a> {
    pub(super) user: UserKey,
    /// The session's name, hashed for frequency counters.
    pub(super) session: Option<u64>,
    pub(super) placement: &'a Placement,
    pub(super) profile: Profile<'a>,
    /// The event with its properties; absent: a page view.
    pub(super) event: Option<(&'a str, &'a Attributes<'a>)>,
    pub(super) now_ms: u64,
    /// The time zone of the user's profile.
    pub(super) user_zone: Option<&'a str>,
    /// The user is never shown any popup, and is asked about to be compared with others.
    pub(super) is_held_out: bool,
}

/// Whether a popup can be shown now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Eligibility {
    /// The popup can be shown now, in this variant.
    Now(usize),
    /// The popup could be shown now, but the user is in its control group.
    Control,
    /// The popup can be shown from this time on if nothing else changes.
    NotBefore { at: u64, reason: BlockReason },
    /// Time alone will not make the popup eligible.
    No { reason: BlockReason },
}

/// The part of the configuration that keeps a popup from being shown; caps by their name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockReason {
    State,
    Schedule,
    Event,
    EventCondition,
    Audience,
    /// The audience holds now, but not at the time `at`, from which on caps and schedule allow the popup; and time alone
    /// will not make it hold again.
    AudienceThen {
        at: u64,
    },
    Reaction(ReactionCause),
    /// The user does not stand at a step of the popup's journey that shows it.
    Journey,
    Caps(&'static str),
    PlacementCaps(&'static str),
    GlobalCaps(&'static str),
}

/// What an evaluation came to.
pub(super) struct Choice {
    /// The popup to show, with the index of its variant.
    pub(super) chosen: Option<(Arc<Popup>, usize)>,
    /// Popups before it that would have been shown if the user were not in their control group.
    pub(super) controls: SmallVec<[Arc<Popup>; 1]>,
    /// If nothing was chosen: when a popup could be shown; `u64::MAX`: never by time alone.
    pub(super) next_at: u64,
    /// Before this time the same question has the same answer.
    pub(super) until: u64,
}

/// Caps with the counter that they limit.
struct CapScope<'a> {
    caps: &'a Caps,
    key: CounterKey,
    days: &'a Days,
    reason: fn(&'static str) -> BlockReason,
}

/// The earliest time at which something is allowed, with the reason of the first delay if there was one; or the reason
/// why it never is.
type Earliest = Result<(u64, Option<BlockReason>), BlockReason>;

/// The earliest time from `at` on at which all of these caps, and the timetable and reactions of the popup, if there is
/// one, allow an exposure.
fn earliest(
    (at, reason): (u64, Option<BlockReason>),
    popup: Option<PopupScope<'_>>,
    scopes: &[CapScope<'_>],
    counters: &FrequencyCounters,
    session: Option<u64>,
) -> Earliest {
    let (mut at, mut delayed_by) = (at, reason);
    'rounds: for _ in 0..ROUNDS_MAX {
        match popup.map(|scope| scope.clock.timetable.at(at)) {
            None | Some(Phase::Open { .. }) => {}
            Some(Phase::Closed { opens_at: Some(opens_at) }) => {
                (at, delayed_by) = (opens_at, delayed_by.or(Some(BlockReason::Schedule)));
                continue;
            }
            // What has delayed the popup until then is what keeps it now.
            Some(Phase::Closed { opens_at: None }) => return Err(delayed_by.unwrap_or(BlockReason::Schedule)),
        }
        if let Some(block) = popup.and_then(|scope| scope.popup.reactions.block(counters, at)) {
            let reason = BlockReason::Reaction(block.cause);
            (at, delayed_by) = (block.until.ok_or(reason)?, delayed_by.or(Some(reason)));
            continue;
        }
        if let Some(scope) = popup
            && let Some(journey) = &scope.popup.journey
        {
            let from = scope.journey_from(journey, counters, at);
            let from = from.ok_or(delayed_by.unwrap_or(BlockReason::Journey))?;
            if from > at {
                (at, delayed_by) = (from, delayed_by.or(Some(BlockReason::Journey)));
                continue;
            }
        }
        for scope in scopes {
            match scope.caps.reached(scope.key, counters, session, scope.days, at) {
                None => {}
                Some(CapReached { cap, until: None }) => return Err((scope.reason)(cap)),
                Some(CapReached { cap, until: Some(until) }) => {
                    (at, delayed_by) = (until.max(at + 1), delayed_by.or(Some((scope.reason)(cap))));
                    continue 'rounds;
                }
            }
        }
        break;
    }
    Ok((at, delayed_by))
}

/// A popup with what its journey depends on.
#[derive(Clone, Copy)]
struct PopupScope<'a> {
    popup: &'a Popup,
    clock: &'a ZoneClock,
    configuration: &'a Configuration,
    placement: CounterKey,
    now_ms: u64,
}

impl PopupScope<'_> {
    /// The first time from `at` on at which the user stands at a step that shows the popup.
    fn journey_from(self, journey: &str, counters: &FrequencyCounters, at: u64) -> Option<u64> {
        let shown = JourneyPopup { journey, popup: self.popup.no, placement: self.placement };
        self.configuration.journeys.shows_from(shown, counters, at, self.now_ms)
    }
}

impl Configuration {
    fn popup_scope<'a>(
        &'a self,
        (popup, clock): (&'a Popup, &'a ZoneClock),
        input: &EvaluationInput<'_>,
    ) -> PopupScope<'a> {
        let placement = input.placement.counter_key;
        PopupScope { popup, clock, configuration: self, placement, now_ms: input.now_ms }
    }

    /// The caps that hold for every popup of the placement.
    fn shared_scopes<'a>(&'a self, placement: &'a Placement) -> [CapScope<'a>; 2] {
        let days = &*self.global.days;
        [
            CapScope { caps: &self.global.caps, key: CounterKey::ALL, days, reason: BlockReason::GlobalCaps },
            CapScope { caps: &placement.caps, key: placement.counter_key, days, reason: BlockReason::PlacementCaps },
        ]
    }

    /// The earliest time at which the shared caps allow any popup of the placement.
    fn floor(&self, counters: &FrequencyCounters, input: &EvaluationInput<'_>) -> Earliest {
        earliest((input.now_ms, None), None, &self.shared_scopes(input.placement), counters, input.session)
    }

    /// The earliest time at which all caps and the schedule allow this popup.
    fn earliest(
        &self,
        popup: &Popup,
        counters: &FrequencyCounters,
        input: &EvaluationInput<'_>,
        floor: &Earliest,
    ) -> Earliest {
        let clock = popup.clock(input.user_zone);
        let own = CapScope { caps: &popup.caps, key: popup.counter_key, days: &clock.days, reason: BlockReason::Caps };
        let (session, floor) = (input.session, (*floor)?);
        let (at, reason) = earliest(
            floor,
            Some(self.popup_scope((popup, &clock), input)),
            std::slice::from_ref(&own),
            counters,
            session,
        )?;
        if at == floor.0 {
            return Ok((at, reason));
        }
        // The shared caps allowed the time of the floor. At a later time one of them may forbid an exposure again.
        self.earliest_after(popup, counters, input, (at, reason))
    }

    /// The same, from a time on that may be later than the floor.
    fn earliest_after(
        &self,
        popup: &Popup,
        counters: &FrequencyCounters,
        input: &EvaluationInput<'_>,
        from: (u64, Option<BlockReason>),
    ) -> Earliest {
        let [all, placement] = self.shared_scopes(input.placement);
        let clock = popup.clock(input.user_zone);
        let own = CapScope { caps: &popup.caps, key: popup.counter_key, days: &clock.days, reason: BlockReason::Caps };
        earliest(from, Some(self.popup_scope((popup, &clock), input)), &[all, placement, own], counters, input.session)
    }

    /// Whether one popup can be shown, cheap conditions first. The audience of a popup that caps and schedule keep
    /// until `no_later_than` or longer is not evaluated: another popup can be shown by then.
    fn eligibility_before(
        &self,
        popup: &Popup,
        counters: &FrequencyCounters,
        input: &EvaluationInput<'_>,
        floor: &Earliest,
        no_later_than: u64,
    ) -> Eligibility {
        if !popup.is_published() {
            return Eligibility::No { reason: BlockReason::State };
        }
        if let Err(reason) = check_trigger(popup, input) {
            return Eligibility::No { reason };
        }
        let (mut at, mut reason) = match self.earliest(popup, counters, input, floor) {
            Ok(found) => found,
            Err(reason) => return Eligibility::No { reason },
        };
        if let Some(reason) = reason
            && at >= no_later_than
        {
            return Eligibility::NotBefore { at, reason };
        }
        if let Some(audience) = &popup.audience {
            match self.audience_allows(audience, popup, counters, input, (at, reason)) {
                Ok(allowed) => (at, reason) = allowed,
                Err(reason) => return Eligibility::No { reason },
            }
        }
        match reason {
            Some(reason) if at > input.now_ms => Eligibility::NotBefore { at, reason },
            _ if popup.is_control(input.user) => Eligibility::Control,
            _ => Eligibility::Now(popup.variant_of(input.user)),
        }
    }

    /// The earliest time from `at` on at which the audience holds, and caps and schedule allow the popup.
    fn audience_allows(
        &self,
        audience: &CompiledRule,
        popup: &Popup,
        counters: &FrequencyCounters,
        input: &EvaluationInput<'_>,
        (mut at, reason): (u64, Option<BlockReason>),
    ) -> Earliest {
        if !audience.is_timed() {
            return if audience.holds(&input.profile) { Ok((at, reason)) } else { Err(BlockReason::Audience) };
        }
        let holds_now = audience.holds(&input.profile);
        let mut reason = if holds_now { reason } else { Some(BlockReason::Audience) };
        for _ in 0..ROUNDS_MAX {
            match audience.holds_from(&input.profile, at) {
                Some(holds_at) if holds_at == at => break,
                // Once the unread message or the event is old enough, the window may be over; and while the window is
                // awaited, the event may become too old.
                Some(holds_at) => {
                    let delayed_by = reason.or(Some(BlockReason::Audience));
                    (at, reason) = self.earliest_after(popup, counters, input, (holds_at, delayed_by))?;
                }
                None if holds_now => return Err(BlockReason::AudienceThen { at }),
                None => return Err(BlockReason::Audience),
            }
        }
        Ok((at, reason))
    }

    /// Whether one popup can be shown, with the exact time if only time keeps it.
    pub(super) fn eligibility(
        &self,
        popup: &Popup,
        counters: &FrequencyCounters,
        input: &EvaluationInput<'_>,
    ) -> Eligibility {
        self.eligibility_before(popup, counters, input, &self.floor(counters, input), u64::MAX)
    }

    /// Chooses the popup to show now.
    pub(super) fn choose(&self, counters: &FrequencyCounters, input: &EvaluationInput<'_>) -> Choice {
        let placement = input.placement;
        let mut choice = Choice { chosen: None, controls: SmallVec::new(), next_at: u64::MAX, until: u64::MAX };
        let floor = self.floor(counters, input);
        let Ok((floor_at, _)) = floor else { return choice };
        let mut ranks = Vec::new();
        placement.index.candidates(&input.profile, &mut ranks);
        for rank in ranks {
            let popup = &placement.popups[rank as usize];
            // A journey would send its pushes to users who have not been shown its popups.
            if input.is_held_out && popup.journey.is_some() {
                continue;
            }
            match self.eligibility_before(popup, counters, input, &floor, choice.next_at) {
                Eligibility::Now(variant) => {
                    choice.chosen = Some((popup.clone(), variant));
                    return choice;
                }
                Eligibility::Control => choice.controls.push(popup.clone()),
                // For a popup whose audience was not evaluated `at` may be too early. That changes nothing: `next_at`
                // is no later already, and a smaller `until` is only cautious.
                Eligibility::NotBefore { at, .. } => {
                    // At `at` a user of the control group is not shown the popup either, so it is no reason to ask
                    // again; but the question then has another effect: the popup's control group is counted.
                    choice.until = choice.until.min(at);
                    if !popup.is_control(input.user) {
                        choice.next_at = choice.next_at.min(at);
                    }
                }
                Eligibility::No { .. } => {}
            }
            // Nothing can be shown before the floor, and one popup can be shown then.
            if floor_at > input.now_ms && choice.next_at == floor_at {
                break;
            }
        }
        choice
    }
}

/// Whether the popup's trigger fits the question: the right event with the right properties, or a page view.
fn check_trigger(popup: &Popup, input: &EvaluationInput<'_>) -> Result<(), BlockReason> {
    match (&popup.trigger, input.event) {
        (None, None) => Ok(()),
        (Some(_), event) if popup.reactions.is_delayed() => event.map_or(Ok(()), |_| Err(BlockReason::Event)),
        (Some(trigger), Some((event, properties))) if *trigger.event == *event => match &trigger.condition {
            Some((condition, slots)) => {
                let profile = slots.profile(input.user, properties, None, None, input.now_ms);
                if condition.holds(&profile) { Ok(()) } else { Err(BlockReason::EventCondition) }
            }
            None => Ok(()),
        },
        _ => Err(BlockReason::Event),
    }
}
