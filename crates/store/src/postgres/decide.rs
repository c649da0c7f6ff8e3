//! Decides the proposals of a batch in memory, over the rows that were locked and loaded. The decisions are the same as the
//! embedded store's. Positions are not known yet: an entry has its offset in the batch instead.

use crate::rows::{damaged, encode};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};
use tidings_domain::{commit_log::Change, model::*, store::*};

/// The bit that marks a position as an offset from the position before this batch.
const BATCH_RELATIVE: Position = 1 << 63;

/// The stored state that the batch touches; each decided proposal changes it.
#[derive(Default)]
pub(crate) struct LoadedState {
    pub users: FxHashMap<UserNo, User>,
    pub user_nos: FxHashMap<String, UserNo>,
    pub heads: FxHashMap<ConversationNo, Head>,
    pub conversations: FxHashMap<ConversationNo, Conversation>,
    pub conversation_nos: FxHashMap<String, ConversationNo>,
    pub memberships: FxHashMap<(ConversationNo, UserNo), Membership>,
    /// The results of first sends, by sender and client message id.
    pub first_results: FxHashMap<(UserNo, String), Appended>,
    /// Conversations that a member has left within the last minute.
    pub recently_left: FxHashSet<ConversationNo>,
    /// Senders to such conversations who are not members.
    pub non_members: FxHashSet<(ConversationNo, UserNo)>,
    /// First results whose entries retention removed: their ids may be used again.
    pub expired_results: Vec<(UserNo, String, Position)>,
    /// Users have the numbers from 1 to this.
    pub user_count: u64,
    /// The last number given to a conversation.
    pub conversation_count: u64,
    /// Whether the batch may give out numbers: it holds the lock of the counters.
    pub counters_locked: bool,
}

/// An entry with its sequence in its conversation.
pub(crate) struct Entry<'a> {
    /// The entry's offset in the batch, from 1.
    pub offset: u64,
    pub conversation: ConversationNo,
    pub seq: u64,
    pub at: u64,
    pub content: &'a NewEntry,
}

/// What is to be written: entries, and the keys of changed rows, whose values are in [`LoadedState`].
#[derive(Default)]
pub(crate) struct Changes<'a> {
    /// The number of positions that the batch takes.
    pub positions: u64,
    pub entries: Vec<Entry<'a>>,
    /// The encoded changes for the commit log, each with its offset in the batch.
    pub logged: Vec<(u64, Vec<u8>)>,
    pub users: BTreeSet<UserNo>,
    pub conversations: BTreeSet<ConversationNo>,
    pub created: BTreeSet<ConversationNo>,
    pub memberships: BTreeSet<(ConversationNo, UserNo)>,
    /// Whether users joined (true) or left conversations: changes of the table `places`.
    pub joined: BTreeMap<(UserNo, ConversationNo), bool>,
    /// Conversations that a member left.
    pub left: BTreeSet<ConversationNo>,
    pub last_seen: BTreeMap<UserNo, u64>,
    /// Times of revocation: tokens of the user that were issued before are refused.
    pub revoked: BTreeMap<UserNo, u64>,
    pub outbox_done: Option<Position>,
    pub dead: BTreeMap<u64, Option<&'a DeadNotification>>,
}

pub(crate) struct Decider<'a> {
    pub state: LoadedState,
    pub changes: Changes<'a>,
    now_ms: u64,
}

/// Why a proposal was not accepted: it was refused, or the store failed and with it the whole batch.
enum ProposalError {
    Rejected(Rejection),
    Failed(StoreError),
}

impl From<StoreError> for ProposalError {
    fn from(error: StoreError) -> Self {
        ProposalError::Failed(error)
    }
}

impl From<Rejection> for ProposalError {
    fn from(rejection: Rejection) -> Self {
        ProposalError::Rejected(rejection)
    }
}

impl Changes<'_> {
    fn next_offset(&mut self) -> u64 {
        self.positions += 1;
        self.positions
    }
}

impl<'a> Decider<'a> {
    pub(crate) fn new(state: LoadedState, now_ms: u64) -> Self {
        Decider { state, changes: Changes::default(), now_ms }
    }

    /// Decides one proposal.
    ///
    /// # Errors
    /// A loaded row is damaged: the whole batch must be dropped.
    pub(crate) fn propose(&mut self, proposal: &'a Proposal) -> StoreResult<Outcome> {
        match self.decide(proposal) {
            Ok(outcome) => {
                self.log(proposal, &outcome);
                Ok(outcome)
            }
            Err(ProposalError::Rejected(rejection)) => Ok(Outcome::Rejected(rejection)),
            Err(ProposalError::Failed(error)) => Err(error),
        }
    }

    /// Adds the change that other nodes must learn to the commit log, at the position of the proposal's entry if it has one.
    fn log(&mut self, proposal: &Proposal, outcome: &Outcome) {
        let Some(change) = Change::of(proposal, outcome) else { return };
        let at_entry = match outcome {
            Outcome::Appended(appended) | Outcome::MembersChanged { notice: Some(appended), .. } => {
                Some(appended.position).filter(|position| position & BATCH_RELATIVE != 0).map(|p| p & !BATCH_RELATIVE)
            }
            _ => None,
        };
        let offset = at_entry.unwrap_or_else(|| self.changes.next_offset());
        self.changes.logged.push((offset, encode(&change)));
    }

    fn decide(&mut self, proposal: &'a Proposal) -> Result<Outcome, ProposalError> {
        match proposal {
            Proposal::Append { conversation, entry } => self.send(*conversation, entry).map(Outcome::Appended),
            Proposal::PutUsers(patches) => self.put_users(patches),
            Proposal::CreateConversation(new) => self.create_conversation(new),
            Proposal::UpdateConversation { conversation, name, avatar, attributes, notice } => {
                let card = self.conversation(*conversation)?;
                card.name = name.clone().or(card.name.take());
                card.avatar = avatar.clone().or(card.avatar.take());
                card.attributes = attributes.clone().or(card.attributes.take());
                self.changes.conversations.insert(*conversation);
                match notice {
                    Some(notice) => self.append(*conversation, notice).map(Outcome::Appended),
                    None => Ok(Outcome::Done),
                }
            }
            Proposal::ChangeMembers { conversation, add, remove, members_max, notice } => {
                self.change_members(*conversation, add, remove, *members_max, notice.as_ref())
            }
            Proposal::MarkRead { conversation, user, seq } => {
                let membership =
                    self.state.memberships.get_mut(&(*conversation, *user)).ok_or(Rejection::NotAMember)?;
                let last = self.state.heads.get(conversation).ok_or(Rejection::NoSuchConversation)?.last_seq;
                let moved = membership.read_seq.max((*seq).min(last));
                let has_moved = moved != membership.read_seq;
                if has_moved {
                    membership.read_seq = moved;
                    self.changes.memberships.insert((*conversation, *user));
                }
                Ok(Outcome::Read { seq: moved, moved: has_moved })
            }
            Proposal::SetMute { conversation, user, mute } => {
                let membership =
                    self.state.memberships.get_mut(&(*conversation, *user)).ok_or(Rejection::NotAMember)?;
                membership.mute = *mute;
                self.changes.memberships.insert((*conversation, *user));
                Ok(Outcome::Done)
            }
            Proposal::SetDoNotDisturb { user, window } => {
                let found = self.state.users.get_mut(user).ok_or(Rejection::NoSuchUser(*user))?;
                found.do_not_disturb = window.clone().map(Box::new);
                self.changes.users.insert(*user);
                Ok(Outcome::Done)
            }
            Proposal::Revoke { user, before, .. } => {
                if !self.state.users.contains_key(user) {
                    return Err(Rejection::NoSuchUser(*user).into());
                }
                let revoked = self.changes.revoked.entry(*user).or_default();
                *revoked = (*revoked).max(*before);
                Ok(Outcome::Done)
            }
            Proposal::SetLastSeen(seen) => {
                self.changes.last_seen.extend(seen.iter().copied());
                Ok(Outcome::Done)
            }
            Proposal::Kick { .. } => Ok(Outcome::Done),
            Proposal::AdvanceOutbox { through, dead } => {
                self.changes.outbox_done = self.changes.outbox_done.max(Some(*through));
                self.changes.dead.extend(dead.iter().map(|dead| (dead.id, Some(dead))));
                Ok(Outcome::Done)
            }
            Proposal::DeleteDeadLetters { ids } => {
                self.changes.dead.extend(ids.iter().map(|id| (*id, None)));
                Ok(Outcome::Done)
            }
        }
    }

    /// Appends a message of a member. Refuses a sender who has just left: the sender's node may not know it yet.
    fn send(&mut self, conversation: ConversationNo, content: &'a NewEntry) -> Result<Appended, ProposalError> {
        let sender = content.sender.as_ref().map(|sender| sender.no);
        let is_retry =
            sender.zip(content.client_msg_id.clone()).is_some_and(|send| self.state.first_results.contains_key(&send));
        match sender {
            Some(sender) if !is_retry && self.has_just_left(conversation, sender) => Err(Rejection::NotAMember.into()),
            _ => self.append(conversation, content),
        }
    }

    fn has_just_left(&self, conversation: ConversationNo, user: UserNo) -> bool {
        let has_joined = self.changes.joined.get(&(user, conversation)).copied();
        self.state.recently_left.contains(&conversation)
            && !has_joined.unwrap_or_else(|| !self.state.non_members.contains(&(conversation, user)))
    }

    fn append(&mut self, conversation: ConversationNo, content: &'a NewEntry) -> Result<Appended, ProposalError> {
        let send = content.sender.as_ref().zip(content.client_msg_id.as_ref());
        let send = send.map(|(sender, id)| (sender.no, id.clone()));
        if let Some(first) = send.as_ref().and_then(|send| self.state.first_results.get(send)) {
            return match first.conversation == conversation {
                true => Ok(*first),
                false => Err(Rejection::ClientMsgIdReused.into()),
            };
        }
        let head = self.state.heads.get_mut(&conversation).ok_or(Rejection::NoSuchConversation)?;
        let offset = self.changes.next_offset();
        let position = BATCH_RELATIVE | offset;
        head.last_seq += 1;
        head.last_at = head.last_at.max(self.now_ms);
        head.last_position = position;
        let (seq, at) = (head.last_seq, head.last_at);
        self.changes.entries.push(Entry { offset, conversation, seq, at, content });
        let appended = Appended { conversation, seq, at, position, duplicate: false };
        if let Some(send) = send {
            self.state.first_results.insert(send, Appended { duplicate: true, ..appended });
        }
        Ok(appended)
    }

    fn put_users(&mut self, patches: &[UserPatch]) -> Result<Outcome, ProposalError> {
        let (mut created, mut updated) = (0, 0);
        for patch in patches {
            let user = match self.state.user_nos.get(&patch.id) {
                Some(no) => {
                    updated += 1;
                    self.state.users.get_mut(no).ok_or_else(|| damaged("a user has a number and no row"))?
                }
                None => {
                    created += 1;
                    self.state.user_count += 1;
                    let no = UserNo(self.state.user_count);
                    self.state.user_nos.insert(patch.id.clone(), no);
                    let (id, created_at) = (patch.id.clone(), self.now_ms);
                    let user = User {
                        no,
                        id,
                        name: None,
                        avatar: None,
                        attributes: None,
                        created_at,
                        do_not_disturb: None,
                        revoked_at: 0,
                    };
                    self.state.users.entry(no).or_insert(user)
                }
            };
            user.name = patch.name.clone().or(user.name.take());
            user.avatar = patch.avatar.clone().or(user.avatar.take());
            user.attributes = patch.attributes.clone().or(user.attributes.take());
            self.changes.users.insert(user.no);
        }
        Ok(Outcome::Users { created, updated })
    }

    fn conversation(&mut self, no: ConversationNo) -> Result<&mut Conversation, ProposalError> {
        Ok(self.state.conversations.get_mut(&no).ok_or(Rejection::NoSuchConversation)?)
    }

    fn create_conversation(&mut self, new: &NewConversation) -> Result<Outcome, ProposalError> {
        if let Some(no) = self.state.conversation_nos.get(&new.id) {
            let stored = self.state.conversations.get(no);
            let conversation = stored.cloned().ok_or_else(|| damaged("a conversation has a number and no row"))?;
            return match conversation.kind == new.kind {
                true => Ok(Outcome::Conversation { conversation, created: false }),
                false => Err(Rejection::KindDiffers.into()),
            };
        }
        self.check_users(new.members.iter().map(|(user, _)| *user))?;
        // A user who is named twice is one member, with the role named last.
        let members: BTreeMap<UserNo, Role> = new.members.iter().copied().collect();
        self.state.conversation_count += 1;
        let no = ConversationNo(self.state.conversation_count);
        let NewConversation { id, kind, pair, name, avatar, attributes, .. } = new.clone();
        let (created_at, member_count) = (self.now_ms, members.len() as u64);
        let conversation = Conversation { no, id, kind, pair, name, avatar, attributes, created_at, member_count };
        self.state.conversation_nos.insert(new.id.clone(), no);
        self.state.conversations.insert(no, conversation.clone());
        self.state.heads.insert(no, Head { first_seq: 1, ..Head::default() });
        self.changes.conversations.insert(no);
        self.changes.created.insert(no);
        for (user, role) in members {
            self.add_member(no, user, role, 0);
        }
        Ok(Outcome::Conversation { conversation, created: true })
    }

    fn check_users(&self, users: impl Iterator<Item = UserNo>) -> Result<(), ProposalError> {
        // Numbers are given out without a hole and users are never removed, so the counter tells which users exist.
        let existing = 1..=self.state.user_count;
        match users.into_iter().find(|user| !existing.contains(&user.0)) {
            Some(unknown) => Err(Rejection::NoSuchUser(unknown).into()),
            None => Ok(()),
        }
    }

    fn add_member(&mut self, conversation: ConversationNo, user: UserNo, role: Role, last_seq: u64) {
        let (joined_at, mute) = (self.now_ms, MuteState::Off);
        let membership = Membership { role, joined_at, joined_seq: last_seq, read_seq: last_seq, mute };
        self.state.memberships.insert((conversation, user), membership);
        self.changes.memberships.insert((conversation, user));
        self.changes.joined.insert((user, conversation), true);
    }

    fn change_members(
        &mut self,
        conversation: ConversationNo,
        add: &[(UserNo, Role)],
        remove: &[UserNo],
        members_max: u64,
        notice: Option<&'a NewEntry>,
    ) -> Result<Outcome, ProposalError> {
        let member_count = self.conversation(conversation)?.member_count;
        self.check_users(add.iter().map(|(user, _)| *user))?;
        // A user who is named twice gets the role named last.
        let add: BTreeMap<UserNo, Role> = add.iter().copied().collect();
        let of = |user: &UserNo| self.state.memberships.get(&(conversation, *user));
        let added: Vec<_> = add.keys().copied().filter(|user| of(user).is_none()).collect();
        let changed: Vec<_> = add
            .iter()
            .filter(|(user, role)| of(user).is_some_and(|m| m.role != **role))
            .map(|(user, _)| *user)
            .collect();
        let removed: BTreeSet<_> = remove.iter().copied().filter(|user| of(user).is_some()).collect();
        let would_be = member_count + added.len() as u64 - removed.len() as u64;
        if would_be > members_max && !added.is_empty() {
            return Err(Rejection::TooManyMembers { limit: members_max, would_be }.into());
        }
        let last_seq = self.state.heads.get(&conversation).ok_or(Rejection::NoSuchConversation)?.last_seq;
        for user in &added {
            self.add_member(conversation, *user, add[user], last_seq);
        }
        for user in &changed {
            if let Some(membership) = self.state.memberships.get_mut(&(conversation, *user)) {
                membership.role = add[user];
            }
            self.changes.memberships.insert((conversation, *user));
        }
        for user in &removed {
            self.state.memberships.remove(&(conversation, *user));
            self.changes.memberships.insert((conversation, *user));
            self.changes.joined.insert((*user, conversation), false);
        }
        if !removed.is_empty() {
            self.state.recently_left.insert(conversation);
            self.changes.left.insert(conversation);
        }
        self.conversation(conversation)?.member_count = would_be;
        self.changes.conversations.insert(conversation);
        let has_changed = !(added.is_empty() && removed.is_empty() && changed.is_empty());
        let notice = notice.filter(|_| has_changed).map(|notice| self.append(conversation, notice)).transpose()?;
        let removed = removed.into_iter().collect();
        Ok(Outcome::MembersChanged { added, removed, changed, member_count: would_be, notice })
    }
}

/// Replaces an outcome's offset in the batch by its position, now that the position before the batch (`base`) is known.
pub(crate) fn resolve_position(outcome: &mut Outcome, base: Position) {
    let appended = match outcome {
        Outcome::Appended(appended) | Outcome::MembersChanged { notice: Some(appended), .. } => appended,
        _ => return,
    };
    if appended.position & BATCH_RELATIVE != 0 {
        appended.position = base + (appended.position & !BATCH_RELATIVE);
    }
}
