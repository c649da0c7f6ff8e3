//! Which popup: the rules put together, without a side effect.
//!
//! For each popup the earliest time is found at which it could be shown, were nothing else to change. The first in
//! order for which that is now is chosen; if there is none, the earliest of those times is when to ask again.

use super::{
    UserKey,
    caps::{Caps, Kept},
    configuration::{Configuration, Placement, Popup},
    marks::{Marks, What},
    rules::{Attributes, Profile},
    timetable::{Days, Phase, Timetable},
};
use smallvec::SmallVec;
use std::sync::Arc;

/// Rounds until schedule and caps agree on a time; with more the popup is looked at again from there.
const ROUNDS_MAX: usize = 64;

/// Who asks, and about what.
pub(super) struct Question<'a> {
    pub(super) user: UserKey,
    /// As marks know it.
    pub(super) session: Option<u64>,
    pub(super) placement: &'a Placement,
    /// What rules look at.
    pub(super) profile: Profile<'a>,
    /// Absent: a page view.
    pub(super) event: Option<(&'a str, &'a Attributes<'a>)>,
    pub(super) now_ms: u64,
}

/// What keeps a popup from being shown now, by the name of the part of its configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Look {
    /// It can be shown now, with this variant.
    Due(usize),
    /// It could, but the user is in its control group.
    Control,
    /// From then on, as far as time alone can tell.
    NotBefore { at: u64, by: By },
    /// Never, as things are.
    No { by: By },
}

/// The part of the configuration that keeps a popup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    State,
    Schedule,
    Event,
    EventCondition,
    Audience,
    Caps(&'static str),
    PlacementCaps(&'static str),
    AllCaps(&'static str),
}

/// The popup to be shown, if one is due, and those that would have been but for their control group.
pub(super) struct Choice {
    pub(super) chosen: Option<(Arc<Popup>, usize)>,
    pub(super) controls: SmallVec<[Arc<Popup>; 1]>,
    /// When something could be shown next; `u64::MAX`: time alone will never do. Only if nothing was chosen.
    pub(super) next_at: u64,
    /// Until here the same question has the same answer.
    pub(super) until: u64,
}

/// Caps, and what they count.
struct Limit<'a> {
    caps: &'a Caps,
    what: What,
    days: &'a Days,
    by: fn(&'static str) -> By,
}

/// From when on something is allowed, and what moved that furthest from now on first; or what forbids it.
type Earliest = Result<(u64, Option<By>), By>;

/// From `at` on, the first time that all of these limits, and the time table if there is one, allow.
fn earliest(
    (at, by): (u64, Option<By>),
    timetable: Option<&Timetable>,
    limits: &[Limit<'_>],
    marks: &Marks,
    session: Option<u64>,
) -> Earliest {
    let (mut at, mut moved_by) = (at, by);
    'rounds: for _ in 0..ROUNDS_MAX {
        match timetable.map(|timetable| timetable.at(at)) {
            None | Some(Phase::Open { .. }) => {}
            Some(Phase::Closed { opens_at: Some(opens_at) }) => {
                (at, moved_by) = (opens_at, moved_by.or(Some(By::Schedule)));
                continue;
            }
            Some(Phase::Closed { opens_at: None }) => return Err(By::Schedule),
        }
        for limit in limits {
            match limit.caps.keep(limit.what, marks, session, limit.days, at) {
                None => {}
                Some(Kept { by, until: None }) => return Err((limit.by)(by)),
                Some(Kept { by, until: Some(until) }) => {
                    (at, moved_by) = (until.max(at + 1), moved_by.or(Some((limit.by)(by))));
                    continue 'rounds;
                }
            }
        }
        break;
    }
    Ok((at, moved_by))
}

impl Configuration {
    /// The limits that hold for every popup of the placement.
    fn common<'a>(&'a self, placement: &'a Placement) -> [Limit<'a>; 2] {
        let days = &*self.above.days;
        [
            Limit { caps: &self.above.caps, what: What::ALL, days, by: By::AllCaps },
            Limit { caps: &placement.caps, what: placement.what, days, by: By::PlacementCaps },
        ]
    }

    /// From when on any popup of the placement could be shown.
    fn floor(&self, marks: &Marks, question: &Question<'_>) -> Earliest {
        earliest((question.now_ms, None), None, &self.common(question.placement), marks, question.session)
    }

    /// From when on caps and schedule all allow this popup.
    fn earliest(&self, popup: &Popup, marks: &Marks, question: &Question<'_>, floor: &Earliest) -> Earliest {
        let own = Limit { caps: &popup.caps, what: popup.what, days: &popup.days, by: By::Caps };
        let (session, floor) = (question.session, (*floor)?);
        let (at, by) = earliest(floor, Some(&popup.timetable), std::slice::from_ref(&own), marks, session)?;
        if at == floor.0 {
            return Ok((at, by));
        }
        // Later, a limit of all may hold that did not before.
        self.later(popup, marks, question, (at, by))
    }

    /// From a later time on, when caps and schedule all allow this popup.
    fn later(&self, popup: &Popup, marks: &Marks, question: &Question<'_>, from: (u64, Option<By>)) -> Earliest {
        let [all, placement] = self.common(question.placement);
        let own = Limit { caps: &popup.caps, what: popup.what, days: &popup.days, by: By::Caps };
        earliest(from, Some(&popup.timetable), &[all, placement, own], marks, question.session)
    }

    /// What can be said of one popup. One that could not be shown before `no_later_than` is not looked at further.
    /// Cheap conditions come first.
    fn look_before(
        &self,
        popup: &Popup,
        marks: &Marks,
        question: &Question<'_>,
        floor: &Earliest,
        no_later_than: u64,
    ) -> Look {
        if !popup.is_published() {
            return Look::No { by: By::State };
        }
        if let Err(by) = asks_for(popup, question) {
            return Look::No { by };
        }
        let (mut at, mut by) = match self.earliest(popup, marks, question, floor) {
            Ok(found) => found,
            Err(by) => return Look::No { by },
        };
        if let Some(by) = by
            && at >= no_later_than
        {
            return Look::NotBefore { at, by };
        }
        if let Some(audience) = &popup.audience
            && !audience.holds(&question.profile)
        {
            let due_at = audience.unread_due_at(&question.profile).ok_or(By::Audience);
            // When the message is old enough, the window may be over.
            let due =
                due_at.and_then(|due_at| self.later(popup, marks, question, (at.max(due_at), Some(By::Audience))));
            match due {
                Ok(due) => (at, by) = due,
                Err(by) => return Look::No { by },
            }
        }
        match by {
            Some(by) if at > question.now_ms => Look::NotBefore { at, by },
            _ if popup.is_control(question.user) => Look::Control,
            _ => Look::Due(popup.variant_of(question.user)),
        }
    }

    /// All that can be said of one popup.
    pub(super) fn look(&self, popup: &Popup, marks: &Marks, question: &Question<'_>) -> Look {
        self.look_before(popup, marks, question, &self.floor(marks, question), u64::MAX)
    }

    /// The popup for this user now.
    pub(super) fn choose(&self, marks: &Marks, question: &Question<'_>) -> Choice {
        let placement = question.placement;
        let mut choice = Choice { chosen: None, controls: SmallVec::new(), next_at: u64::MAX, until: u64::MAX };
        let floor = self.floor(marks, question);
        let Ok((floor_at, _)) = floor else { return choice };
        let mut ranks = Vec::new();
        placement.index.candidates(&question.profile, &mut ranks);
        for rank in ranks {
            let popup = &placement.popups[rank as usize];
            match self.look_before(popup, marks, question, &floor, choice.next_at) {
                Look::Due(variant) => {
                    choice.chosen = Some((popup.clone(), variant));
                    return choice;
                }
                Look::Control => choice.controls.push(popup.clone()),
                // Also if it was not looked at further: then there is one that is not later.
                Look::NotBefore { at, .. } => {
                    // A control group's member is not shown it then either, but it is counted then.
                    choice.until = choice.until.min(at);
                    if !popup.is_control(question.user) {
                        choice.next_at = choice.next_at.min(at);
                    }
                }
                Look::No { .. } => {}
            }
            // Nothing can be earlier, and nothing is due.
            if floor_at > question.now_ms && choice.next_at == floor_at {
                break;
            }
        }
        choice
    }
}

/// Whether what happened is what the popup waits for.
fn asks_for(popup: &Popup, question: &Question<'_>) -> Result<(), By> {
    match (&popup.trigger, question.event) {
        (None, None) => Ok(()),
        (Some(trigger), Some((event, properties))) if *trigger.event == *event => match &trigger.condition {
            Some((condition, names)) => {
                let profile = names.profile(question.user, properties, None, None, question.now_ms);
                if condition.holds(&profile) { Ok(()) } else { Err(By::EventCondition) }
            }
            None => Ok(()),
        },
        _ => Err(By::Event),
    }
}
