//! Who is to be notified of a message when nobody looks, said once more and slowly: from what the lab did and saw, message by message
//! and member by member. It knows docs/offline-push.md and nothing of how the server decides.

use super::{
    participants::{AckHabit, Participants},
    records::{Look, Read, Records, SentMessage},
};
use std::collections::HashSet;

/// Whether a member is to be notified of a message, on each channel that the member has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    Must,
    /// Both are right: something changed while the server decided.
    May,
    MustNot,
}

/// Whether somebody looked at one of the user's sessions while the server may have decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Looked {
    Throughout,
    Perhaps,
    Never,
}

/// What the server is set to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChannelTimes {
    /// How long a client has to acknowledge a message.
    pub(crate) ack_timeout_ns: u64,
    /// How long after a message the webhook is notified of those whom no provider has reached; 0: at once, of all.
    pub(crate) webhook_after_ns: u64,
}

/// Whether providers have reached a user with a message, as their fakes saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotifiedByProviders {
    /// No device was notified.
    No,
    /// A device was notified at this time.
    At(u64),
    /// A device was notified of a newer message in its place.
    OfNewer,
}

/// A provider's answer is recorded within this.
const RECORDED_WITHIN_NS: u64 = 1_000_000_000;

/// What the model goes by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Model<'a> {
    pub(crate) participants: &'a Participants,
    pub(crate) records: &'a Records,
    pub(crate) times: ChannelTimes,
    /// Users whose clients the lab kept from acknowledging in time.
    pub(crate) slow: &'a HashSet<usize>,
    /// How long after its answer the server has decided about a message at the latest.
    pub(crate) decided_within_ns: u64,
}

impl Model<'_> {
    /// Whether providers are to tell the user, and the webhook if it does not wait for them.
    pub(crate) fn due(&self, message: &SentMessage, user: usize) -> Due {
        self.due_within(message, user, 0)
    }

    /// Whether the webhook is to tell the user, at its time.
    pub(crate) fn webhook_due(&self, message: &SentMessage, user: usize, reached: NotifiedByProviders) -> Due {
        let after = self.times.webhook_after_ns;
        let due = self.due_within(message, user, after);
        if after == 0 || due == Due::MustNot {
            return due;
        }
        let from = message.sent_at.saturating_add(after);
        let to = message.answered_at.saturating_add(after).saturating_add(self.decided_within_ns);
        match reached {
            NotifiedByProviders::No => due,
            // A server that was killed may have asked once more.
            NotifiedByProviders::At(at) if self.records.was_killed(at, to) => Due::May,
            NotifiedByProviders::At(at) if at.saturating_add(RECORDED_WITHIN_NS) < from => Due::MustNot,
            NotifiedByProviders::At(at) if at > to => due,
            NotifiedByProviders::At(_) | NotifiedByProviders::OfNewer => Due::May,
        }
    }

    /// Whether the user is to be notified on a channel that is taken so long after the message.
    fn due_within(&self, message: &SentMessage, user: usize, after_ns: u64) -> Due {
        let conversation = &self.participants.conversations[message.conversation];
        if !conversation.members.contains(&user) || user == message.sender {
            return Due::MustNot;
        }
        if message.silent || message.skip_push {
            return Due::MustNot;
        }
        if conversation.muted_by.contains(&user) || self.participants.users[user].undisturbed {
            return Due::MustNot;
        }
        let decided = message.answered_at.saturating_add(after_ns).saturating_add(self.decided_within_ns);
        let due = match self.looked(user, message.sent_at, decided) {
            Looked::Never => Due::Must,
            Looked::Perhaps => Due::May,
            Looked::Throughout if self.participants.users[user].habit == AckHabit::Freezes => {
                // The time to acknowledge must be over before anything changes.
                match self.looked(user, message.sent_at, decided.saturating_add(self.times.ack_timeout_ns)) {
                    Looked::Throughout => Due::Must,
                    _ => Due::May,
                }
            }
            Looked::Throughout if self.slow.contains(&user) => Due::May,
            Looked::Throughout => Due::MustNot,
        };
        match due {
            Due::Must if self.has_read(message, user) => Due::May,
            due => due,
        }
    }

    /// Who has read a message before it was notified is not notified any more.
    fn has_read(&self, message: &SentMessage, user: usize) -> bool {
        let covers = |seq: u64| seq >= message.seq;
        let mut reads = self.records.reads.iter();
        let is_of = |read: &Read| read.user == user && read.conversation == message.conversation;
        reads.any(|read| !read.in_peace && is_of(read) && covers(read.seq))
    }

    /// Whether somebody looked all the time, and the server must have known it.
    pub(crate) fn was_looked_at(&self, user: usize, from: u64, to: u64) -> bool {
        self.looked(user, from, to) == Looked::Throughout
    }

    /// Whether a user whose client acknowledges what it gets may have looked at any time from then to then.
    pub(crate) fn may_have_come(&self, user: usize, from: u64, to: u64) -> bool {
        self.participants.users[user].habit != AckHabit::Freezes && self.looked(user, from, to) != Looked::Never
    }

    fn looked(&self, user: usize, from: u64, to: u64) -> Looked {
        let looks = &self.records.looks[user];
        let is_possible = |look: &&Look| look.possible.0 <= to && from <= look.possible.1;
        if looks.iter().find(is_possible).is_none() {
            return Looked::Never;
        }
        if looks.iter().any(|look| look.certain.0 <= from && to <= look.certain.1) && !self.records.was_killed(from, to)
        {
            Looked::Throughout
        } else {
            Looked::Perhaps
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::participants::{ParticipantCounts, random_of},
        *,
    };

    const SECOND: u64 = 1_000_000_000;

    /// Two users in a conversation of their own; the second is as `change` makes it.
    fn due(
        look: Option<((u64, u64), (u64, u64))>,
        habit: AckHabit,
        change: impl Fn(&mut Participants, &mut Records),
    ) -> Due {
        let mut participants =
            Participants::draw("m", ParticipantCounts { users: 2, group_size: 2 }, &mut random_of(7));
        let mut records = Records { looks: vec![Vec::new(); 2], ..Records::default() };
        participants.conversations[0].muted_by.clear();
        (participants.users[1].undisturbed, participants.users[1].habit) = (false, habit);
        records.looks[1].extend(look.map(|(possible, certain)| Look { possible, certain }));
        change(&mut participants, &mut records);
        let message = SentMessage {
            conversation: 0,
            seq: 5,
            sender: 0,
            silent: false,
            skip_push: false,
            sent_at: 10 * SECOND,
            answered_at: 11 * SECOND,
        };
        let slow = HashSet::new();
        let times = ChannelTimes { ack_timeout_ns: 5 * SECOND, webhook_after_ns: 0 };
        let model =
            Model { participants: &participants, records: &records, times, slow: &slow, decided_within_ns: SECOND };
        model.due(&message, 1)
    }

    #[test]
    fn nobody_who_looks_is_told_and_everybody_else_is() {
        let throughout = Some(((0, u64::MAX), (SECOND, u64::MAX)));
        let as_is = |_: &mut Participants, _: &mut Records| {};
        assert_eq!(due(None, AckHabit::Stores, as_is), Due::Must);
        assert_eq!(due(throughout, AckHabit::Stores, as_is), Due::MustNot);
        assert_eq!(due(throughout, AckHabit::Silent, as_is), Due::MustNot);
        assert_eq!(due(throughout, AckHabit::Freezes, as_is), Due::Must);
    }

    #[test]
    fn a_change_on_the_way_allows_both() {
        let as_is = |_: &mut Participants, _: &mut Records| {};
        let until = |end| Some(((0, end + SECOND), (SECOND, end)));
        assert_eq!(due(until(11 * SECOND), AckHabit::Stores, as_is), Due::May);
        assert_eq!(due(until(14 * SECOND), AckHabit::Stores, as_is), Due::MustNot);
        assert_eq!(due(until(14 * SECOND), AckHabit::Freezes, as_is), Due::May, "its time was not over");
        assert_eq!(due(until(8 * SECOND), AckHabit::Stores, as_is), Due::Must, "it ended before");
        let kill = |_: &mut Participants, records: &mut Records| records.kills.push((11 * SECOND + 1, 12 * SECOND));
        assert_eq!(due(Some(((0, u64::MAX), (SECOND, u64::MAX))), AckHabit::Stores, kill), Due::May);
        assert_eq!(due(None, AckHabit::Stores, kill), Due::Must, "nobody looked at any time");
    }

    #[test]
    fn wishes_are_kept() {
        let muted = |participants: &mut Participants, _: &mut Records| {
            participants.conversations[0].muted_by.insert(1);
        };
        assert_eq!(due(None, AckHabit::Stores, muted), Due::MustNot);
        let undisturbed = |participants: &mut Participants, _: &mut Records| participants.users[1].undisturbed = true;
        assert_eq!(due(None, AckHabit::Stores, undisturbed), Due::MustNot);
    }
}
