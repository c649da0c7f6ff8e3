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
    timetable::{Days, Phase},
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

/// A limit that holds for all popups of a placement, or for all.
struct Common<'a> {
    caps: &'a Caps,
    what: What,
    days: &'a Days,
    by: fn(&'static str) -> By,
}

impl Configuration {
    /// From `at` on, the first time that caps and schedule all allow; with what moved it last.
    fn earliest(&self, popup: &Popup, marks: &Marks, question: &Question<'_>) -> Result<(u64, Option<By>), By> {
        let commons = [
            Common { caps: &self.above.caps, what: What::ALL, days: &self.above.days, by: By::AllCaps },
            Common {
                caps: &question.placement.caps,
                what: question.placement.what,
                days: &self.above.days,
                by: By::PlacementCaps,
            },
            Common { caps: &popup.caps, what: popup.what, days: &popup.days, by: By::Caps },
        ];
        let mut at = question.now_ms;
        let mut moved_by = None;
        'rounds: for _ in 0..ROUNDS_MAX {
            match popup.timetable.at(at) {
                Phase::Open { .. } => {}
                Phase::Closed { opens_at: Some(opens_at) } => {
                    (at, moved_by) = (opens_at, moved_by.or(Some(By::Schedule)));
                    continue;
                }
                Phase::Closed { opens_at: None } => return Err(By::Schedule),
            }
            for common in &commons {
                match common.caps.keep(common.what, marks, question.session, common.days, at) {
                    None => {}
                    Some(Kept { by, until: None }) => return Err((common.by)(by)),
                    Some(Kept { by, until: Some(until) }) => {
                        (at, moved_by) = (until.max(at + 1), moved_by.or(Some((common.by)(by))));
                        continue 'rounds;
                    }
                }
            }
            break;
        }
        Ok((at, moved_by))
    }

    /// What can be said of one popup. Cheap conditions come first, and those that only an answer needs last.
    pub(super) fn look(&self, popup: &Popup, marks: &Marks, question: &Question<'_>) -> Look {
        if !popup.is_published() {
            return Look::No { by: By::State };
        }
        if let Err(by) = asks_for(popup, question) {
            return Look::No { by };
        }
        let (mut at, mut by) = match self.earliest(popup, marks, question) {
            Ok(found) => found,
            Err(by) => return Look::No { by },
        };
        if let Some(audience) = &popup.audience
            && !audience.holds(&question.profile)
        {
            match audience.unread_due_at(&question.profile) {
                Some(due_at) => (at, by) = (at.max(due_at), Some(By::Audience)),
                None => return Look::No { by: By::Audience },
            }
        }
        match by {
            Some(by) if at > question.now_ms => Look::NotBefore { at, by },
            _ if popup.is_control(question.user) => Look::Control,
            _ => Look::Due(popup.variant_of(question.user)),
        }
    }

    /// The popup for this user now.
    pub(super) fn choose(&self, marks: &Marks, question: &Question<'_>) -> Choice {
        let placement = question.placement;
        let mut choice = Choice { chosen: None, controls: SmallVec::new(), next_at: u64::MAX, until: u64::MAX };
        let mut ranks = Vec::new();
        placement.index.candidates(&question.profile, &mut ranks);
        for rank in ranks {
            let popup = &placement.popups[rank as usize];
            match self.look(popup, marks, question) {
                Look::Due(variant) => {
                    choice.chosen = Some((popup.clone(), variant));
                    return choice;
                }
                Look::Control => choice.controls.push(popup.clone()),
                Look::NotBefore { at, .. } => {
                    // A control group's member is not shown it then either, but it is counted then.
                    choice.until = choice.until.min(at);
                    if !popup.is_control(question.user) {
                        choice.next_at = choice.next_at.min(at);
                    }
                }
                Look::No { .. } => {}
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
