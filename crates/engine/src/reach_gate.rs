//! Whether a person may be told of a message by a road now, as far as the person decides: mutes, do-not-disturb, snoozing and
//! preferences. Every road asks here, so that all of them honour the same.
//!
//! | | live session | popup | device push, vendors, webhook |
//! | --- | --- | --- | --- |
//! | a road that is off | | held back | held back |
//! | a muted conversation, `only_mentions` | | held back | held back |
//! | do-not-disturb, snoozing | | | held back |

use crate::daily_window::{window_covers, window_end};
use tidings_domain::model::*;
use tidings_protocol::http::{PolicyRoad, ReachOutcome};

/// Why a user is not to know of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unwanted {
    pub(crate) outcome: ReachOutcome,
    /// Until when that holds, in milliseconds since 1970 UTC, if an end is known.
    pub(crate) until: Option<u64>,
}

impl Unwanted {
    /// Without a known end.
    pub(crate) fn always(outcome: ReachOutcome) -> Unwanted {
        Unwanted { outcome, until: None }
    }
}

/// A message, as far as a person's wishes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WantedMessage {
    pub(crate) kind: ConversationKind,
    /// Whether it mentions the person, or all members.
    pub(crate) mentions_person: bool,
    /// The person's mute of the conversation.
    pub(crate) mute: MuteState,
}

/// Why the person is not to be told of the message by this road now; `None`: the person may be.
pub(crate) fn why_not_by(road: PolicyRoad, message: WantedMessage, user: &User, now_ms: u64) -> Option<Unwanted> {
    if road == PolicyRoad::Session {
        return None;
    }
    if let Some(muted) = muted(message.mute, now_ms) {
        return Some(muted);
    }
    if let Some(reach) = &user.reach {
        let of_kind = match message.kind {
            ConversationKind::Direct => &reach.direct,
            ConversationKind::Group => &reach.group,
            ConversationKind::Official => &reach.official,
        };
        if reach.off.contains(&road) || of_kind.as_ref().is_some_and(|kind| kind.off.contains(&road)) {
            return Some(Unwanted::always(ReachOutcome::RoadOff));
        }
        if of_kind.as_ref().is_some_and(|kind| kind.only_mentions) && !message.mentions_person {
            return Some(Unwanted::always(ReachOutcome::OnlyMentions));
        }
    }
    // A popup is shown when the person comes back by own will.
    (road != PolicyRoad::Popup).then(|| disturbed_until(user, now_ms)).flatten()
}

/// Why the person is to be told by none of the roads that disturb; `None`: the person may be by at least one.
pub(crate) fn why_not_by_any(message: WantedMessage, user: &User, now_ms: u64) -> Option<Unwanted> {
    let [first, others @ ..] = [PolicyRoad::Webhook, PolicyRoad::Vendors, PolicyRoad::DevicePush];
    let why_not = why_not_by(first, message, user, now_ms)?;
    others.iter().all(|road| why_not_by(*road, message, user, now_ms).is_some()).then_some(why_not)
}

/// Whether a mute holds now.
pub(crate) fn muted(mute: MuteState, now_ms: u64) -> Option<Unwanted> {
    let until = if let MuteState::Until(end) = mute { Some(end) } else { None };
    mute.is_muted(now_ms).then_some(Unwanted { outcome: ReachOutcome::Muted, until })
}

/// Whether do-not-disturb or snoozing holds back what would disturb the person now.
pub(crate) fn disturbed_until(user: &User, now_ms: u64) -> Option<Unwanted> {
    if let Some(end) = user.reach.as_ref().and_then(|reach| reach.snooze_until).filter(|end| now_ms < *end) {
        return Some(Unwanted { outcome: ReachOutcome::Snoozed, until: Some(end) });
    }
    let window = user.do_not_disturb.as_ref().filter(|window| window_covers(window, now_ms))?;
    Some(Unwanted { outcome: ReachOutcome::DoNotDisturb, until: window_end(window, now_ms) })
}
