//! Who is to be told of an entry while no session of theirs takes messages. The webhook and the vendors ask the same.

use crate::{commit::Committer, daily_window::window_covers, directory::Directory, presence::Presence};
use std::sync::Arc;
use tidings_domain::{
    chat_rows,
    clock::Clock,
    desks::{Assignment, assignment_key},
    leadership::Leadership,
    metrics::Metrics,
    model::*,
    store::{DeadNotification, End, RowSpace, Store, StoreResult},
};

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
}

/// An entry, and those who are to be told of it. They are found page by page: the members of a conversation with a million
/// followers are never in memory all at once.
pub(crate) struct OfflineRecipients {
    pub(crate) conversation: Arc<Conversation>,
    pub(crate) entry: StoredEntry,
    after: Option<UserNo>,
    all_seen: bool,
}

impl OfflineRecipients {
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
    pub(crate) fn next_page(&mut self, context: &OfflinePushContext) -> StoreResult<Option<Vec<Arc<User>>>> {
        if self.all_seen {
            return Ok(None);
        }
        let now_ms = context.clock.now_ms();
        let page = context.store.members(self.conversation.no, self.after, MEMBERS_AT_ONCE)?;
        self.after = page.last().map(|(user, _)| *user);
        self.all_seen = page.len() < MEMBERS_AT_ONCE;
        let mut recipients = Vec::new();
        for (no, membership) in &page {
            if !self.is_unread_by(*no, membership, now_ms) {
                continue;
            }
            let people = self.people_of(context, *no)?;
            if people.iter().any(|person| context.presence.is_active(*person)) {
                continue;
            }
            for person in people {
                recipients.extend(context.directory.user(person)?.filter(|user| !is_disturbed(user, now_ms)));
            }
        }
        Ok(Some(recipients))
    }

    /// Whether this one user, online or not, wants to know of the entry.
    pub(crate) fn is_wanted_by(&self, context: &OfflinePushContext, user: &User) -> StoreResult<bool> {
        let now_ms = context.clock.now_ms();
        // An agent is told for the account.
        let sides = context.directory.desks.sides(self.conversation.pair);
        let served = sides.filter(|sides| user.no != sides.customer && sides.desk.has_agent(user.no));
        let no = served.map_or(user.no, |sides| sides.desk.desk.user.no);
        let membership = context.store.membership(self.conversation.no, no)?;
        let wants = membership.is_some_and(|membership| self.is_unread_by(no, &membership, now_ms));
        Ok(wants && !is_disturbed(user, now_ms))
    }

    /// Whether the member has not read the entry, did not send it, and has not muted the conversation.
    fn is_unread_by(&self, user: UserNo, membership: &Membership, now_ms: u64) -> bool {
        let sender = self.entry.content.sender.as_ref().map(|sender| sender.no);
        Some(user) != sender
            && membership.joined_seq < self.entry.seq
            && membership.read_seq < self.entry.seq
            && !membership.mute.is_muted(now_ms)
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
