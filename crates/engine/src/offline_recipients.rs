//! Who is to be told of an entry while no session of theirs takes messages. The webhook and the vendors ask the same.

use crate::{
    commit::Committer,
    daily_window::{window_covers, window_end},
    directory::{Directory, MemberList},
    presence::Presence,
    reach_trace::{ReachTrace, Record, Source},
};
use std::sync::Arc;
use tidings_domain::{
    chat_rows,
    clock::Clock,
    desks::{Assignment, assignment_key},
    leadership::Leadership,
    metrics::Metrics,
    model::*,
    store::{End, OutboxItem, RowChange, RowSpace, Store, StoreResult},
};
use tidings_protocol::http::ReachOutcome;

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

/// An entry, and those who are to be told of it. Those of a conversation that is too large for a list in memory are found page by
/// page: the members of a conversation with a million followers are never in memory all at once.
pub(crate) struct OfflineRecipients {
    pub(crate) conversation: Arc<Conversation>,
    pub(crate) entry: StoredEntry,
    members: Members,
}

/// The members of whom it is still to be asked.
enum Members {
    Listed(MemberList),
    After(Option<UserNo>),
    None,
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

impl RecipientPage {
    fn add(&mut self, context: &OfflinePushContext, user: UserNo, is_active: bool, now_ms: u64) -> StoreResult<()> {
        if is_active {
            self.left_out.push((user, ReachOutcome::Active));
            return Ok(());
        }
        match context.directory.user(user)? {
            Some(card) if is_disturbed(&card, now_ms) => self.left_out.push((user, ReachOutcome::DoNotDisturb)),
            card => self.told.extend(card),
        }
        Ok(())
    }
}

impl OfflineRecipients {
    /// An entry that is at hand, to ask of single users.
    pub(crate) fn for_one(conversation: Arc<Conversation>, entry: StoredEntry) -> OfflineRecipients {
        OfflineRecipients { conversation, entry, members: Members::None }
    }

    /// An entry that is at hand, to ask of all members. `is_current`: what the directory has is as new as the entry.
    pub(crate) fn for_all(
        context: &OfflinePushContext,
        conversation: Arc<Conversation>,
        entry: StoredEntry,
        is_current: bool,
    ) -> StoreResult<OfflineRecipients> {
        let listed = if is_current { context.directory.members(&conversation)? } else { None };
        let members = listed.map_or(Members::After(None), Members::Listed);
        Ok(OfflineRecipients { conversation, entry, members })
    }

    /// To ask of single users. `None` when there is nobody to be told any more: the message was recalled, or retention removed
    /// the entry.
    pub(crate) fn of(
        context: &OfflinePushContext,
        conversation: ConversationNo,
        seq: u64,
    ) -> StoreResult<Option<OfflineRecipients>> {
        let Some(conversation) = context.directory.conversation(conversation)? else { return Ok(None) };
        let found = context.store.entries(conversation.no, seq, seq, 1, End::Oldest)?;
        let entry = found.into_iter().next().filter(|entry| !is_recalled(entry));
        Ok(entry.map(|entry| OfflineRecipients::for_one(conversation, entry)))
    }

    /// Where the entry is.
    pub(crate) fn message(&self) -> OutboxItem {
        OutboxItem { position: self.entry.position, conversation: self.conversation.no, seq: self.entry.seq }
    }

    /// Those of the next members who are offline and want to know; `None` after the last. A page may be empty.
    pub(crate) fn next_page(&mut self, context: &OfflinePushContext) -> StoreResult<Option<RecipientPage>> {
        let found;
        let members: &[(UserNo, Membership)] = match std::mem::replace(&mut self.members, Members::None) {
            Members::None => return Ok(None),
            Members::Listed(list) => {
                found = list;
                &found
            }
            Members::After(after) => {
                found = Arc::new(context.store.members(self.conversation.no, after, MEMBERS_AT_ONCE)?);
                if found.len() == MEMBERS_AT_ONCE {
                    self.members = Members::After(found.last().map(|(user, _)| *user));
                }
                &found
            }
        };
        let now_ms = context.clock.now_ms();
        let is_account = |user: &UserNo| context.directory.desks.of_user(*user).is_some();
        let mut page = RecipientPage::default();
        for (no, membership) in members {
            if let Some(Unwanted { outcome, .. }) = self.why_unwanted_by_member(*no, membership, now_ms) {
                if !matches!(outcome, ReachOutcome::Sender | ReachOutcome::JoinedLater) {
                    page.left_out.push((*no, outcome));
                }
                continue;
            }
            if !is_account(no) {
                page.add(context, *no, context.presence.is_active(*no), now_ms)?;
                continue;
            }
            let people = self.people_of(context, *no)?;
            let is_active = people.iter().any(|person| context.presence.is_active(*person));
            people.into_iter().try_for_each(|person| page.add(context, person, is_active, now_ms))?;
        }
        Ok(Some(page))
    }

    /// Records what was decided of these members. Of conversations above [`TRACED_MEMBERS_MAX`] nothing is recorded.
    pub(crate) fn record_decisions(
        &self,
        context: &OfflinePushContext,
        part: u64,
        records: Vec<Record>,
        changes: &mut Vec<RowChange>,
    ) {
        if self.conversation.member_count <= TRACED_MEMBERS_MAX {
            let message = (self.conversation.no, self.entry.seq);
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
        let Some(membership) = context.directory.membership(self.conversation.no, no)? else {
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

pub(crate) fn is_recalled(entry: &StoredEntry) -> bool {
    entry.content.details().recalled.is_some()
}

/// Whether the user's do-not-disturb window covers this time.
fn is_disturbed(user: &User, now_ms: u64) -> bool {
    user.do_not_disturb.as_ref().is_some_and(|window| window_covers(window, now_ms))
}
