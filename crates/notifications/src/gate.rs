//! Whether a person may be notified of a message by a channel now. It is asked here alone: when a message is decided, when a channel that
//! waited is due, at each attempt of each channel, when a dead letter is replayed, and by those who ask why. So all of them say the same.
//!
//! What the app server says about channels, the policy, is that of the version which decided the message. What this module looks at is as it is
//! when it asks:
//!
//! | | live session | popup | device push, providers | webhook |
//! | --- | --- | --- | --- | --- |
//! | sent by the person, before the person joined, or read | held back | held back | held back | held back |
//! | somebody looks at a session of the person | | held back | held back | |
//! | the person blocks the sender, and the conversation hides that | | held back | held back | held back |
//! | the person is suspended | | held back | held back | held back |
//! | a muted conversation | | held back | held back | held back |
//! | a channel that is off, `only_mentions` | | held back | held back | held back |
//! | do-not-disturb, snoozing | | | held back, or deferred to their end | held back, or deferred |
//! | the condition of the channel, when it is due | | held back | held back | held back |
//!
//! Devices that fall back to providers, since they have not acknowledged a push, are asked about by [`why_not_by_fallback`].
//!
//! The webhook is called also for a person who is back when its turn comes: the app server knows more than whether somebody looks at a session.
//! This module looks nothing up; [`offline_recipients`](crate::offline_recipients) does.

use crate::{
    daily_window::{window_covers, window_end},
    policy::{ChannelDelay, ChannelStep, CompiledPolicy, MessageFacts, PersonFacts, WhyNot},
};
use tidings_domain::model::*;
use tidings_protocol::http::{NotificationOutcome, PolicyChannel};

/// Why a user is not to know of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unwanted {
    pub(crate) outcome: NotificationOutcome,
    /// Until when that holds, in milliseconds since 1970 UTC, if an end is known.
    pub(crate) until: Option<u64>,
    /// When the user is to know of it instead; `None`: not at all.
    pub(crate) deferred_to: Option<u64>,
}

impl Unwanted {
    /// Without a known end.
    pub(crate) fn always(outcome: NotificationOutcome) -> Unwanted {
        Unwanted::until(outcome, None)
    }

    fn until(outcome: NotificationOutcome, until: Option<u64>) -> Unwanted {
        Unwanted { outcome, until, deferred_to: None }
    }
}

/// A message, as far as a person's wishes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WantedMessage {
    /// The person blocks the sender, and the conversation hides messages of those.
    pub(crate) is_hidden: bool,
    pub(crate) kind: ConversationKind,
    /// Whether it mentions the person, or all members.
    pub(crate) mentions_person: bool,
    /// The person's mute of the conversation.
    pub(crate) mute: MuteState,
    /// As [`ConversationMessage::defers_until`].
    pub(crate) defers_until: u64,
}

/// A message, as far as it concerns a member.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConversationMessage {
    pub(crate) kind: ConversationKind,
    pub(crate) seq: u64,
    /// Absent when the app server speaks as the conversation.
    pub(crate) sender: Option<UserNo>,
    /// Do-not-disturb and a snooze that end by then defer the message; others hold it back.
    pub(crate) defers_until: u64,
}

/// The member for whom a person is notified: the person, or the account whose agent the person is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member {
    pub(crate) user: UserNo,
    pub(crate) joined_seq: u64,
    pub(crate) read_seq: u64,
    pub(crate) mute: MuteState,
}

impl Member {
    pub(crate) fn of(user: UserNo, membership: &Membership) -> Member {
        let Membership { joined_seq, read_seq, mute, .. } = *membership;
        Member { user, joined_seq, read_seq, mute }
    }
}

/// A person, and a message of which the person may be notified.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) user: &'a User,
    /// `None`: neither the person nor an account of the person's is a member.
    pub(crate) member: Option<Member>,
    pub(crate) message: ConversationMessage,
    /// As [`WantedMessage::is_hidden`].
    pub(crate) is_hidden: bool,
    /// Whether the message mentions the person, or all members.
    pub(crate) mentions_person: bool,
    /// Whether somebody looks at a session of the person, which is notified instead.
    pub(crate) is_active: bool,
}

impl Asked<'_> {
    fn wanted(&self, mute: MuteState) -> WantedMessage {
        let ConversationMessage { kind, defers_until, .. } = self.message;
        WantedMessage { is_hidden: self.is_hidden, kind, mentions_person: self.mentions_person, mute, defers_until }
    }
}

/// A channel of the policy that is due, and what its condition looks at.
#[derive(Clone, Copy)]
pub(crate) struct DueChannel<'a> {
    pub(crate) policy: &'a CompiledPolicy,
    pub(crate) step: &'a ChannelStep,
    pub(crate) message: &'a MessageFacts<'a>,
    pub(crate) person: &'a PersonFacts<'a>,
}

/// Why a channel that is due is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Obstacle {
    Unwanted(Unwanted),
    /// Its condition does not hold.
    Condition(WhyNot),
}

impl DueChannel<'_> {
    /// Why the channel is not taken at this time, as far as the person's wishes and its condition go; `None`: it is.
    pub(crate) fn why_not_taken(&self, wanted: WantedMessage, now_ms: u64) -> Option<Obstacle> {
        let unwanted = why_not_by(self.step.channel, wanted, self.person.user, now_ms).map(Obstacle::Unwanted);
        unwanted.or_else(|| self.why_not_by_condition(now_ms).map(Obstacle::Condition))
    }

    /// Why its condition does not hold at this time; `None`: it does.
    pub(crate) fn why_not_by_condition(&self, now_ms: u64) -> Option<WhyNot> {
        self.policy.why_not_taken(self.step, self.message, self.person, now_ms)
    }
}

/// Why a channel does not notify a person of a message now; `None`: it may.
pub(crate) fn why_not(channel: PolicyChannel, asked: &Asked<'_>, now_ms: u64) -> Option<Unwanted> {
    why_not_of_member_or(asked, |message| {
        let is_notified_there = asked.is_active && channel != PolicyChannel::Webhook;
        let active = is_notified_there.then(|| Unwanted::always(NotificationOutcome::Active));
        active.or_else(|| why_not_by(channel, message, asked.user, now_ms))
    })
}

/// Why none of a policy's channels notifies a person of a message, whenever it is due; `None`: at least one may.
pub(crate) fn why_not_by_channels(asked: &Asked<'_>, times: DueTimes<'_>) -> Option<Unwanted> {
    why_not_of_member_or(asked, |message| why_not_by_any(message, asked.user, times))
}

fn why_not_of_member_or(
    asked: &Asked<'_>,
    why_not: impl FnOnce(WantedMessage) -> Option<Unwanted>,
) -> Option<Unwanted> {
    let Some(member) = &asked.member else { return Some(Unwanted::always(NotificationOutcome::NotAMember)) };
    why_not_of_member(asked.message, member).or_else(|| why_not(asked.wanted(member.mute)))
}

/// Why a member is notified of a message neither now nor later: the member has sent or read it, or was no member yet.
pub(crate) fn why_not_of_member(message: ConversationMessage, member: &Member) -> Option<Unwanted> {
    let causes = [
        (Some(member.user) == message.sender, NotificationOutcome::Sender),
        (member.joined_seq >= message.seq, NotificationOutcome::JoinedLater),
        (member.read_seq >= message.seq, NotificationOutcome::Read),
    ];
    causes.into_iter().find(|(holds, _)| *holds).map(|(_, outcome)| Unwanted::always(outcome))
}

/// Why the person is not to be notified of the message by this channel now; `None`: the person may be.
fn why_not_by(channel: PolicyChannel, message: WantedMessage, user: &User, now_ms: u64) -> Option<Unwanted> {
    if channel == PolicyChannel::Session {
        return None;
    }
    if message.is_hidden {
        return Some(Unwanted::always(NotificationOutcome::Blocked));
    }
    if let Some(suspended) = suspended(user, now_ms) {
        return Some(suspended);
    }
    if let Some(muted) = muted(message.mute, now_ms) {
        return Some(muted);
    }
    if let Some(notifications) = user.notifications() {
        let of_kind = match message.kind {
            ConversationKind::Direct => &notifications.direct,
            ConversationKind::Group => &notifications.group,
            ConversationKind::Official => &notifications.official,
        };
        if notifications.off.contains(&channel) || of_kind.as_ref().is_some_and(|kind| kind.off.contains(&channel)) {
            return Some(Unwanted::always(NotificationOutcome::ChannelOff));
        }
        if of_kind.as_ref().is_some_and(|kind| kind.only_mentions) && !message.mentions_person {
            return Some(Unwanted::always(NotificationOutcome::OnlyMentions));
        }
    }
    // A popup is shown when the person comes back by own will.
    let disturbed = (channel != PolicyChannel::Popup).then(|| disturbed_until(user, now_ms)).flatten()?;
    let deferred_to = quiet_end(user, &disturbed).filter(|end| (now_ms + 1..=message.defers_until).contains(end));
    Some(Unwanted { deferred_to, ..disturbed })
}

/// Why a person's devices do not fall back to providers now, for a push that lives until then; `None`: they do. `defers`: what comes in quiet
/// hours waits for their end.
///
/// A push is of no conversation, so mutes and `only_mentions` say nothing of it. Nor does a session at which the person looks: each device is
/// to have the push, and this one has not acknowledged it.
pub(crate) fn why_not_by_fallback(user: &User, expires_at: u64, defers: bool, now_ms: u64) -> Option<Unwanted> {
    if let Some(suspended) = suspended(user, now_ms) {
        return Some(suspended);
    }
    let off = user.notifications().is_some_and(|own| own.off.contains(&PolicyChannel::Providers));
    if off {
        return Some(Unwanted::always(NotificationOutcome::ChannelOff));
    }
    let disturbed = disturbed_until(user, now_ms)?;
    let end = quiet_end(user, &disturbed).filter(|end| defers && (now_ms + 1..expires_at).contains(end));
    Some(Unwanted { deferred_to: end, ..disturbed })
}

/// When the channels of a policy are due.
#[derive(Clone, Copy)]
pub(crate) struct DueTimes<'a> {
    pub(crate) delays: &'a [ChannelDelay],
    /// When the message was sent, and the time now.
    pub(crate) sent_at: u64,
    pub(crate) now_ms: u64,
}

impl DueTimes<'_> {
    fn of(self, delay: &ChannelDelay) -> u64 {
        self.sent_at.min(self.now_ms).saturating_add(delay.after_ms).max(self.now_ms)
    }

    /// When the last of them is.
    pub(crate) fn last(self) -> u64 {
        self.delays.iter().map(|delay| self.of(delay)).max().unwrap_or(self.now_ms)
    }
}

/// Why a person does not want to be notified of the message by any channel of a policy at the time at which it is due, if the wishes stay as
/// they are; `None`: by one at least.
pub(crate) fn why_not_by_any(message: WantedMessage, user: &User, times: DueTimes<'_>) -> Option<Unwanted> {
    let [first, others @ ..] = times.delays else { return None };
    let why_not = |delay: &ChannelDelay| {
        why_not_by(delay.channel, message, user, times.of(delay)).filter(|why| why.deferred_to.is_none())
    };
    let first = why_not(first)?;
    others.iter().all(|delay| why_not(delay).is_some()).then_some(first)
}

/// Whether the person is suspended at this time.
fn suspended(user: &User, now_ms: u64) -> Option<Unwanted> {
    let suspension = user.suspension_at(now_ms)?;
    Some(Unwanted::until(NotificationOutcome::Suspended, suspension.until))
}

/// Whether a mute holds at this time.
pub(crate) fn muted(mute: MuteState, now_ms: u64) -> Option<Unwanted> {
    let until = if let MuteState::Until(end) = mute { Some(end) } else { None };
    mute.is_muted(now_ms).then(|| Unwanted::until(NotificationOutcome::Muted, until))
}

/// When nothing holds back what would disturb the person any more: a snooze may end within do-not-disturb, or the other way round.
fn quiet_end(user: &User, disturbed: &Unwanted) -> Option<u64> {
    let mut end = disturbed.until?;
    for _ in 0..2 {
        match disturbed_until(user, end) {
            None => return Some(end),
            Some(next) => end = next.until.filter(|next| *next > end)?,
        }
    }
    Some(end)
}

/// Whether do-not-disturb or snoozing holds back what would disturb the person now.
fn disturbed_until(user: &User, now_ms: u64) -> Option<Unwanted> {
    let snoozed = user.notifications().and_then(|notifications| notifications.snooze_until);
    if let Some(end) = snoozed.filter(|end| now_ms < *end) {
        return Some(Unwanted::until(NotificationOutcome::Snoozed, Some(end)));
    }
    let window = user.do_not_disturb().filter(|window| window_covers(window, now_ms))?;
    Some(Unwanted::until(NotificationOutcome::DoNotDisturb, window_end(window, now_ms)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_protocol::http::{KindPreferences, NotificationPreferences};

    const NOON: u64 = 1_767_268_800_000;

    fn user(notifications: NotificationPreferences) -> User {
        let window = DailyWindow { start: "22:00".into(), end: "07:00".into(), time_zone: "UTC".into() };
        User::new(UserNo(1), "ben".into(), 0).with_extras(UserExtras {
            do_not_disturb: Some(Box::new(window)),
            notifications: Some(Box::new(notifications)),
            ..UserExtras::default()
        })
    }

    /// For each channel in the order of [`PolicyChannel::ALL`]: the outcome that holds it back, and until when.
    fn held(
        notifications: NotificationPreferences,
        message: WantedMessage,
        now_ms: u64,
    ) -> Vec<Option<(NotificationOutcome, Option<u64>)>> {
        let why = |channel| {
            why_not_by(channel, message, &user(notifications.clone()), now_ms).map(|why| (why.outcome, why.until))
        };
        PolicyChannel::ALL.map(why).to_vec()
    }

    #[test]
    fn each_wish_holds_back_the_channels_that_it_is_about() {
        let plain = WantedMessage {
            is_hidden: false,
            kind: ConversationKind::Group,
            mentions_person: false,
            mute: MuteState::Off,
            defers_until: 0,
        };
        let nothing = NotificationPreferences::default;
        let channels =
            |session, device_push, providers, popup, webhook| vec![session, device_push, providers, popup, webhook];
        let all_but_session = |why| channels(None, Some(why), Some(why), Some(why), Some(why));
        let disturbing = |why| channels(None, Some(why), Some(why), None, Some(why));
        assert_eq!(held(nothing(), plain, NOON), channels(None, None, None, None, None));
        let muted = WantedMessage { mute: MuteState::Until(NOON + 5), ..plain };
        assert_eq!(held(nothing(), muted, NOON), all_but_session((NotificationOutcome::Muted, Some(NOON + 5))));
        assert_eq!(held(nothing(), muted, NOON + 5), channels(None, None, None, None, None), "the mute is over");
        let forever = WantedMessage { mute: MuteState::Forever, ..plain };
        assert_eq!(held(nothing(), forever, NOON), all_but_session((NotificationOutcome::Muted, None)));
        let night = NOON + 11 * 60 * 60 * 1_000;
        let morning = NOON + 19 * 60 * 60 * 1_000;
        assert_eq!(held(nothing(), plain, night), disturbing((NotificationOutcome::DoNotDisturb, Some(morning))));
        let snoozing = NotificationPreferences { snooze_until: Some(NOON + 1), ..nothing() };
        assert_eq!(held(snoozing.clone(), plain, NOON), disturbing((NotificationOutcome::Snoozed, Some(NOON + 1))));
        assert_eq!(held(snoozing, plain, NOON + 1), channels(None, None, None, None, None), "it is over");
        let off = |of| KindPreferences { off: of, only_mentions: false };
        let group = Some(off(vec![PolicyChannel::Popup]));
        let direct = Some(off(vec![PolicyChannel::Webhook]));
        let some_off = NotificationPreferences { off: vec![PolicyChannel::Providers], group, direct, ..nothing() };
        let is_off = Some((NotificationOutcome::ChannelOff, None));
        assert_eq!(held(some_off, plain, NOON), channels(None, None, is_off, is_off, None));
        let only = Some(KindPreferences { off: vec![], only_mentions: true });
        let only = NotificationPreferences { group: only, ..nothing() };
        assert_eq!(held(only.clone(), plain, NOON), all_but_session((NotificationOutcome::OnlyMentions, None)));
        let mention = WantedMessage { mentions_person: true, ..plain };
        assert_eq!(held(only.clone(), mention, NOON), channels(None, None, None, None, None));
        let elsewhere = WantedMessage { kind: ConversationKind::Direct, ..plain };
        assert_eq!(held(only, elsewhere, NOON), channels(None, None, None, None, None));
    }

    #[test]
    fn a_person_is_left_out_only_if_all_channels_are_held_back_when_they_are_due() {
        let plain = WantedMessage {
            is_hidden: false,
            kind: ConversationKind::Group,
            mentions_person: false,
            mute: MuteState::Off,
            defers_until: 0,
        };
        let off =
            |off: &[PolicyChannel]| NotificationPreferences { off: off.to_vec(), ..NotificationPreferences::default() };
        let [push, providers, webhook] = [PolicyChannel::DevicePush, PolicyChannel::Providers, PolicyChannel::Webhook];
        let by = |channels: &[(PolicyChannel, u64)], message, preferences| {
            let delays: Vec<_> = channels
                .iter()
                .map(|(channel, after_ms)| ChannelDelay { channel: *channel, after_ms: *after_ms })
                .collect();
            let times = DueTimes { delays: &delays, sent_at: NOON, now_ms: NOON };
            why_not_by_any(message, &user(preferences), times).map(|why| why.outcome)
        };
        let all = [(push, 0), (providers, 0), (webhook, 0)];
        assert_eq!(by(&all, plain, off(&[providers, webhook])), None);
        assert_eq!(by(&all, plain, off(&[providers, webhook, push])), Some(NotificationOutcome::ChannelOff));
        assert_eq!(by(&all[1..], plain, off(&[providers, webhook])), Some(NotificationOutcome::ChannelOff));
        // A wish that is over when a channel is due does not hold it back.
        let muted = WantedMessage { mute: MuteState::Until(NOON + 5), ..plain };
        for (after, expected) in [(0, Some(NotificationOutcome::Muted)), (5, None)] {
            assert_eq!(by(&[(providers, 0), (webhook, after)], muted, off(&[])), expected);
            let snoozing = NotificationPreferences { snooze_until: Some(NOON + 5), ..off(&[]) };
            let expected = expected.map(|_| NotificationOutcome::Snoozed);
            assert_eq!(by(&[(providers, 0), (webhook, after)], plain, snoozing.clone()), expected);
            assert_eq!(by(&[(PolicyChannel::Popup, 0)], plain, snoozing), None, "a popup does not disturb");
        }
        assert_eq!(by(&[], muted, off(&[])), None);
    }
}
