//! Who is to be told of an entry while no session of theirs takes messages. The webhook and the vendors ask the same.

use crate::{
    commit::Committer,
    daily_window::{window_covers, window_end},
    directory::Directory,
    presence::Presence,
    reach_trace::{ReachTrace, Record, Source, Whom},
};
use std::sync::Arc;
use tidings_domain::{
    chat_rows,
    clock::Clock,
    desks::{Assignment, assignment_key},
    leadership::Leadership,
    metrics::Metrics,
    model::*,
    store::{DeadNotification, End, RowChange, RowSpace, Store, StoreResult},
};
use tidings_protocol::http::ReachOutcome;

/// Ids from here on, among those of stored notifications, are of messages that a session did not acknowledge: a node has
/// stored them for the leader.
pub(crate) const UNACKNOWLEDGED_IDS: u64 = 3 << 61;
/// The bit of those ids whose silent session goes on: that the user has a session does not make them obsolete.
pub(crate) const SESSION_STAYS: u64 = 1 << 60;
/// The bit of those ids that are for vendors; the others are for the webhook.
pub(crate) const FOR_VENDORS: u64 = 1 << 59;

/// The messages that sessions did not acknowledge, which nodes have stored for vendors or for the webhook; about `limit`.
pub(crate) fn unacknowledged_rows(store: &dyn Store, bit: u64, limit: usize) -> StoreResult<Vec<DeadNotification>> {
    let mut found = Vec::new();
    for first in [UNACKNOWLEDGED_IDS | bit, UNACKNOWLEDGED_IDS | SESSION_STAYS | bit] {
        let rows = store.dead_notifications(Some(first - 1), limit)?;
        found.extend(rows.into_iter().take_while(|row| row.id < first + FOR_VENDORS));
    }
    Ok(found)
}

/// The members of a conversation up to which it is recorded who was not told, and why: in larger ones most are not, and each costs a part of
/// a row with each message.
const TRACED_MEMBERS_MAX: u64 = 1_000;
/// Members in one read.
const MEMBERS_AT_ONCE: usize = 1_000;

/// The parts of the engine that offline push uses.
pub(crate) struct OfflinePushContext {
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub directory: Arc<Directory>,
    pub presence: Arc<Presence>,
    pub committer: Arc<Committer>,
    pub lead: Leadership,
    pub metrics: Arc<Metrics>,
    pub trace: Arc<ReachTrace>,
}

/// An entry, and those who are to be told of it. They are found page by page: the members of a conversation with a million
/// followers are never in memory all at once.
pub(crate) struct OfflineRecipients {
    pub(crate) conversation: Arc<Conversation>,
    pub(crate) entry: StoredEntry,
    after: Option<UserNo>,
    all_seen: bool,
}

/// Why a user is not to know of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unwanted {
    pub(crate) outcome: ReachOutcome,
    /// Until when that holds, if an end is known.
    pub(crate) until: Option<u64>,
}

/// Some members of a conversation, and whether they are to be told of an entry.
#[derive(Default)]
pub(crate) struct RecipientPage {
    pub(crate) told: Vec<Arc<User>>,
    /// Those who are not, and why; without the sender, and those who were no members yet.
    pub(crate) left_out: Vec<(UserNo, ReachOutcome)>,
}

impl OfflineRecipients {
    /// An entry that is at hand, to ask of one user.
    pub(crate) fn for_one(conversation: Arc<Conversation>, entry: StoredEntry) -> OfflineRecipients {
        OfflineRecipients { conversation, entry, after: None, all_seen: true }
    }

    /// `None` when there is nobody to be told any more: the message was recalled, or retention removed the entry.
    pub(crate) fn of(
        context: &OfflinePushContext,
        conversation: ConversationNo,
        seq: u64,
    ) -> StoreResult<Option<OfflineRecipients>> {
        let Some(conversation) = context.directory.conversation(conversation)? else { return Ok(None) };
        let found = context.store.entries(conversation.no, seq, seq, 1, End::Oldest)?;
        let is_recalled = |entry: &StoredEntry| entry.content.details().recalled.is_some();
        let entry = found.into_iter().next().filter(|entry| !is_recalled(entry));
        Ok(entry.map(|entry| OfflineRecipients { conversation, entry, after: None, all_seen: false }))
    }

    /// Those of the next members who are offline and want to know; `None` after the last. A page may be empty.
    pub(crate) fn next_page(&mut self, context: &OfflinePushContext) -> StoreResult<Option<RecipientPage>> {
        if self.all_seen {
            return Ok(None);
        }
        let now_ms = context.clock.now_ms();
        let members = context.store.members(self.conversation.no, self.after, MEMBERS_AT_ONCE)?;
        self.after = members.last().map(|(user, _)| *user);
        self.all_seen = members.len() < MEMBERS_AT_ONCE;
        let mut page = RecipientPage::default();
        for (no, membership) in &members {
            if let Some(Unwanted { outcome, .. }) = self.why_unwanted_by_member(*no, membership, now_ms) {
                if !matches!(outcome, ReachOutcome::Sender | ReachOutcome::JoinedLater) {
                    page.left_out.push((*no, outcome));
                }
                continue;
            }
            let people = self.people_of(context, *no)?;
            if people.iter().any(|person| context.presence.is_active(*person)) {
                page.left_out.extend(people.into_iter().map(|person| (person, ReachOutcome::Active)));
                continue;
            }
            for person in people {
                match context.directory.user(person)? {
                    Some(user) if is_disturbed(&user, now_ms) => {
                        page.left_out.push((person, ReachOutcome::DoNotDisturb));
                    }
                    user => page.told.extend(user),
                }
            }
        }
        Ok(Some(page))
    }

    /// Records why these members are not told. Of conversations above [`TRACED_MEMBERS_MAX`] nothing is recorded.
    pub(crate) fn record_left_out(
        &self,
        context: &OfflinePushContext,
        part: u64,
        left_out: Vec<(UserNo, ReachOutcome)>,
        changes: &mut Vec<RowChange>,
    ) {
        if self.conversation.member_count <= TRACED_MEMBERS_MAX {
            let record = |(user, outcome): (UserNo, _)| Record { whom: Whom::User(user.0), outcome, cause: None };
            let message = (self.conversation.no, self.entry.seq);
            let records = left_out.into_iter().map(record);
            context.trace.add(message, Source::Search { part }, context.clock.now_ms(), records, changes);
        }
    }

    /// Why this one user, online or not, is not to know of the entry; `None`: the user is.
    pub(crate) fn why_unwanted_by(&self, context: &OfflinePushContext, user: &User) -> StoreResult<Option<Unwanted>> {
        let now_ms = context.clock.now_ms();
        // An agent is told for the account.
        let sides = context.directory.desks.sides(self.conversation.pair);
        let served = sides.filter(|sides| user.no != sides.customer && sides.desk.has_agent(user.no));
        let no = served.map_or(user.no, |sides| sides.desk.desk.user.no);
        let Some(membership) = context.store.membership(self.conversation.no, no)? else {
            return Ok(Some(Unwanted { outcome: ReachOutcome::NotAMember, until: None }));
        };
        let why = self.why_unwanted_by_member(no, &membership, now_ms);
        Ok(why.or_else(|| {
            let window = user.do_not_disturb.as_ref().filter(|_| is_disturbed(user, now_ms))?;
            Some(Unwanted { outcome: ReachOutcome::DoNotDisturb, until: window_end(window, now_ms) })
        }))
    }

    /// Whether the member has read the entry, sent it, was no member yet, or has muted the conversation.
    fn why_unwanted_by_member(&self, user: UserNo, membership: &Membership, now_ms: u64) -> Option<Unwanted> {
        let sender = self.entry.content.sender.as_ref().map(|sender| sender.no);
        let causes = [
            (Some(user) == sender, ReachOutcome::Sender),
            (membership.joined_seq >= self.entry.seq, ReachOutcome::JoinedLater),
            (membership.read_seq >= self.entry.seq, ReachOutcome::Read),
            (membership.mute.is_muted(now_ms), ReachOutcome::Muted),
        ];
        let (_, outcome) = causes.into_iter().find(|(holds, _)| *holds)?;
        let until = match (outcome, membership.mute) {
            (ReachOutcome::Muted, MuteState::Until(end)) => Some(end),
            _ => None,
        };
        Some(Unwanted { outcome, until })
    }

    /// Who is to be told in a member's place: of an account the agent who has the conversation, or all agents if nobody has it.
    fn people_of(&self, context: &OfflinePushContext, member: UserNo) -> StoreResult<Vec<UserNo>> {
        let Some(desk) = context.directory.desks.of_user(member) else { return Ok(vec![member]) };
        let row = context.store.row(RowSpace::Chat, &assignment_key(self.conversation.no))?;
        let assignment: Option<Assignment> = chat_rows::decode(row.as_deref())?;
        let agent = assignment.and_then(|assignment| assignment.agent);
        Ok(match agent.filter(|agent| desk.has_agent(agent.no)) {
            Some(agent) => vec![agent.no],
            None => desk.agents.iter().map(|agent| agent.no).collect(),
        })
    }
}

/// Whether the user's do-not-disturb window covers this time.
fn is_disturbed(user: &User, now_ms: u64) -> bool {
    user.do_not_disturb.as_ref().is_some_and(|window| window_covers(window, now_ms))
}
