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

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_protocol::http::{KindPreferences, ReachPreferences};

    const NOON: u64 = 1_767_268_800_000;

    fn user(reach: ReachPreferences) -> User {
        let window = DailyWindow { start: "22:00".into(), end: "07:00".into(), time_zone: "UTC".into() };
        User {
            no: UserNo(1),
            id: "ben".into(),
            name: None,
            avatar: None,
            attributes: None,
            created_at: 0,
            do_not_disturb: Some(Box::new(window)),
            locale: None,
            revoked_at: 0,
            receipts_off: false,
            reach: Some(Box::new(reach)),
            agent: None,
        }
    }

    /// For each road in the order of [`PolicyRoad::ALL`]: the outcome that holds it back, and until when.
    fn held(reach: ReachPreferences, message: WantedMessage, now_ms: u64) -> Vec<Option<(ReachOutcome, Option<u64>)>> {
        let why = |road| why_not_by(road, message, &user(reach.clone()), now_ms).map(|why| (why.outcome, why.until));
        PolicyRoad::ALL.map(why).to_vec()
    }

    #[test]
    fn each_wish_holds_back_the_roads_that_it_is_about() {
        let plain = WantedMessage { kind: ConversationKind::Group, mentions_person: false, mute: MuteState::Off };
        let nothing = ReachPreferences::default;
        let roads = |session, device_push, vendors, popup, webhook| vec![session, device_push, vendors, popup, webhook];
        let all_but_session = |why| roads(None, Some(why), Some(why), Some(why), Some(why));
        let disturbing = |why| roads(None, Some(why), Some(why), None, Some(why));
        assert_eq!(held(nothing(), plain, NOON), roads(None, None, None, None, None));
        let muted = WantedMessage { mute: MuteState::Until(NOON + 5), ..plain };
        assert_eq!(held(nothing(), muted, NOON), all_but_session((ReachOutcome::Muted, Some(NOON + 5))));
        assert_eq!(held(nothing(), muted, NOON + 5), roads(None, None, None, None, None), "the mute is over");
        let forever = WantedMessage { mute: MuteState::Forever, ..plain };
        assert_eq!(held(nothing(), forever, NOON), all_but_session((ReachOutcome::Muted, None)));
        let night = NOON + 11 * 60 * 60 * 1_000;
        let morning = NOON + 19 * 60 * 60 * 1_000;
        assert_eq!(held(nothing(), plain, night), disturbing((ReachOutcome::DoNotDisturb, Some(morning))));
        let snoozing = ReachPreferences { snooze_until: Some(NOON + 1), ..nothing() };
        assert_eq!(held(snoozing.clone(), plain, NOON), disturbing((ReachOutcome::Snoozed, Some(NOON + 1))));
        assert_eq!(held(snoozing, plain, NOON + 1), roads(None, None, None, None, None), "it is over");
        let off = |of| KindPreferences { off: of, only_mentions: false };
        let group = Some(off(vec![PolicyRoad::Popup]));
        let direct = Some(off(vec![PolicyRoad::Webhook]));
        let some_off = ReachPreferences { off: vec![PolicyRoad::Vendors], group, direct, ..nothing() };
        let is_off = Some((ReachOutcome::RoadOff, None));
        assert_eq!(held(some_off, plain, NOON), roads(None, None, is_off, is_off, None));
        let only = Some(KindPreferences { off: vec![], only_mentions: true });
        let only = ReachPreferences { group: only, ..nothing() };
        assert_eq!(held(only.clone(), plain, NOON), all_but_session((ReachOutcome::OnlyMentions, None)));
        let mention = WantedMessage { mentions_person: true, ..plain };
        assert_eq!(held(only.clone(), mention, NOON), roads(None, None, None, None, None));
        let elsewhere = WantedMessage { kind: ConversationKind::Direct, ..plain };
        assert_eq!(held(only, elsewhere, NOON), roads(None, None, None, None, None));
    }

    #[test]
    fn a_person_is_asked_by_no_road_only_if_all_that_disturb_are_held_back() {
        let plain = WantedMessage { kind: ConversationKind::Group, mentions_person: false, mute: MuteState::Off };
        let off = |off: &[PolicyRoad]| ReachPreferences { off: off.to_vec(), ..ReachPreferences::default() };
        let [push, vendors, webhook] = [PolicyRoad::DevicePush, PolicyRoad::Vendors, PolicyRoad::Webhook];
        assert_eq!(why_not_by_any(plain, &user(off(&[vendors, webhook])), NOON), None);
        let why = why_not_by_any(plain, &user(off(&[vendors, webhook, push])), NOON);
        assert_eq!(why.map(|why| why.outcome), Some(ReachOutcome::RoadOff));
    }
}
