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
    rules::{Attributes, Profile},
    timetable::{Days, Phase, Timetable},
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

/// The earliest time from `at` on at which all of these caps and the timetable, if there is one, allow an exposure.
fn earliest(
    (at, reason): (u64, Option<BlockReason>),
    timetable: Option<&Timetable>,
    scopes: &[CapScope<'_>],
    counters: &FrequencyCounters,
    session: Option<u64>,
) -> Earliest {
    let (mut at, mut delayed_by) = (at, reason);
    'rounds: for _ in 0..ROUNDS_MAX {
        match timetable.map(|timetable| timetable.at(at)) {
            None | Some(Phase::Open { .. }) => {}
            Some(Phase::Closed { opens_at: Some(opens_at) }) => {
                (at, delayed_by) = (opens_at, delayed_by.or(Some(BlockReason::Schedule)));
                continue;
            }
            Some(Phase::Closed { opens_at: None }) => return Err(BlockReason::Schedule),
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

impl Configuration {
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
        let own = CapScope { caps: &popup.caps, key: popup.counter_key, days: &popup.days, reason: BlockReason::Caps };
        let (session, floor) = (input.session, (*floor)?);
        let (at, reason) = earliest(floor, Some(&popup.timetable), std::slice::from_ref(&own), counters, session)?;
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
        let own = CapScope { caps: &popup.caps, key: popup.counter_key, days: &popup.days, reason: BlockReason::Caps };
        earliest(from, Some(&popup.timetable), &[all, placement, own], counters, input.session)
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
        if let Some(audience) = &popup.audience
            && !audience.holds(&input.profile)
        {
            let due_at = audience.unread_due_at(&input.profile).ok_or(BlockReason::Audience);
            // Once the unread message is old enough, the window may be over.
            let due = due_at.and_then(|due_at| {
                self.earliest_after(popup, counters, input, (at.max(due_at), Some(BlockReason::Audience)))
            });
            match due {
                Ok(due) => (at, reason) = due,
                Err(reason) => return Eligibility::No { reason },
            }
        }
        match reason {
            Some(reason) if at > input.now_ms => Eligibility::NotBefore { at, reason },
            _ if popup.is_control(input.user) => Eligibility::Control,
            _ => Eligibility::Now(popup.variant_of(input.user)),
        }
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
