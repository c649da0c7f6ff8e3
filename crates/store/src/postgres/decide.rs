//! What becomes of each proposal of a batch, decided in memory over what was locked and read. The same
//! decisions as the embedded store's; numbers of entries in the commit order are not known yet.

use crate::rows::{damaged, encode};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};
use tidings_engine::{cluster::log::Change, model::*, store::*};

/// Marks a position that counts from where this batch will begin.
const FROM_BATCH: Position = 1 << 63;

/// What is stored, as far as the batch touches it, and then what it will be.
#[derive(Default)]
pub(crate) struct Known {
    pub users: FxHashMap<UserNo, User>,
    pub user_nos: FxHashMap<String, UserNo>,
    pub heads: FxHashMap<ConversationNo, Head>,
    pub conversations: FxHashMap<ConversationNo, Conversation>,
    pub conversation_nos: FxHashMap<String, ConversationNo>,
    pub memberships: FxHashMap<(ConversationNo, UserNo), Membership>,
    pub sends: FxHashMap<(UserNo, String), Appended>,
    /// Conversations that somebody has just left, and who sends to them without being a member.
    pub left_lately: FxHashSet<ConversationNo>,
    pub strangers: FxHashSet<(ConversationNo, UserNo)>,
    /// First results whose entries retention removed: their ids may be used again.
    pub gone_sends: Vec<(UserNo, String, Position)>,
    /// Users have the numbers from 1 to this.
    pub users_counted: u64,
    /// The last number given to a conversation.
    pub conversations_counted: u64,
    /// Whether numbers may be given out: nobody else gives out any until this is written.
    pub counters_locked: bool,
}

/// An entry with its place in its conversation.
pub(crate) struct Entry<'a> {
    /// Its place in the batch, from 1.
    pub place: u64,
    pub conversation: ConversationNo,
    pub seq: u64,
    pub at: u64,
    pub content: &'a NewEntry,
}

/// What is to be written, beside what [`Known`] holds of these keys.
#[derive(Default)]
pub(crate) struct Changes<'a> {
    /// Positions that the batch takes.
    pub places: u64,
    pub entries: Vec<Entry<'a>>,
    /// What other nodes must learn beside entries, each with its place in the batch, encoded.
    pub logged: Vec<(u64, Vec<u8>)>,
    pub users: BTreeSet<UserNo>,
    pub conversations: BTreeSet<ConversationNo>,
    pub created: BTreeSet<ConversationNo>,
    pub memberships: BTreeSet<(ConversationNo, UserNo)>,
    /// Who came (true) and went.
    pub came_and_went: BTreeMap<(UserNo, ConversationNo), bool>,
    /// Conversations that somebody left.
    pub left: BTreeSet<ConversationNo>,
    pub last_seen: BTreeMap<UserNo, u64>,
    /// Before when users' tokens are revoked.
    pub revoked: BTreeMap<UserNo, u64>,
    pub outbox_done: Option<Position>,
    pub dead: BTreeMap<u64, Option<&'a DeadNotification>>,
}

pub(crate) struct Decider<'a> {
    pub known: Known,
    pub changes: Changes<'a>,
    now_ms: u64,
}

/// A proposal that was turned down, or a store that failed.
enum Stop {
    Refused(Refused),
    Failed(StoreError),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Stop::Failed(error)
    }
}

impl From<Refused> for Stop {
    fn from(refused: Refused) -> Self {
        Stop::Refused(refused)
    }
}

impl Changes<'_> {
    fn next_place(&mut self) -> u64 {
        self.places += 1;
        self.places
    }
}

impl<'a> Decider<'a> {
    pub(crate) fn new(known: Known, now_ms: u64) -> Self {
        Decider { known, changes: Changes::default(), now_ms }
    }

    pub(crate) fn propose(&mut self, proposal: &'a Proposal) -> StoreResult<Outcome> {
        match self.decide(proposal) {
            Ok(outcome) => {
                self.log(proposal, &outcome);
                Ok(outcome)
            }
            Err(Stop::Refused(refused)) => Ok(Outcome::Refused(refused)),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    /// Notes what others must learn; at its entry's place, if it made one.
    fn log(&mut self, proposal: &Proposal, outcome: &Outcome) {
        let Some(change) = Change::of(proposal, outcome) else { return };
        let at_entry = match outcome {
            Outcome::Appended(appended) | Outcome::MembersChanged { notice: Some(appended), .. } => {
                Some(appended.position).filter(|position| position & FROM_BATCH != 0).map(|p| p & !FROM_BATCH)
            }
            _ => None,
        };
        let place = at_entry.unwrap_or_else(|| self.changes.next_place());
        self.changes.logged.push((place, encode(&change)));
    }

    fn decide(&mut self, proposal: &'a Proposal) -> Result<Outcome, Stop> {
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
                let membership = self.known.memberships.get_mut(&(*conversation, *user)).ok_or(Refused::NotAMember)?;
                let last = self.known.heads.get(conversation).ok_or(Refused::NoSuchConversation)?.last_seq;
                let moved = membership.read_seq.max((*seq).min(last));
                let has_moved = moved != membership.read_seq;
                if has_moved {
                    membership.read_seq = moved;
                    self.changes.memberships.insert((*conversation, *user));
                }
                Ok(Outcome::Read { seq: moved, moved: has_moved })
            }
            Proposal::SetMute { conversation, user, mute } => {
                let membership = self.known.memberships.get_mut(&(*conversation, *user)).ok_or(Refused::NotAMember)?;
                membership.mute = *mute;
                self.changes.memberships.insert((*conversation, *user));
                Ok(Outcome::Done)
            }
            Proposal::SetDoNotDisturb { user, window } => {
                let found = self.known.users.get_mut(user).ok_or(Refused::NoSuchUser(*user))?;
                found.do_not_disturb = window.clone().map(Box::new);
                self.changes.users.insert(*user);
                Ok(Outcome::Done)
            }
            Proposal::Revoke { user, before, .. } => {
                if !self.known.users.contains_key(user) {
                    return Err(Refused::NoSuchUser(*user).into());
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
            Proposal::OutboxDone { through, dead } => {
                self.changes.outbox_done = self.changes.outbox_done.max(Some(*through));
                self.changes.dead.extend(dead.iter().map(|dead| (dead.id, Some(dead))));
                Ok(Outcome::Done)
            }
            Proposal::DropDead { ids } => {
                self.changes.dead.extend(ids.iter().map(|id| (*id, None)));
                Ok(Outcome::Done)
            }
        }
    }

    /// As [`Self::append`], by a member: its node may not know yet that it is none any more.
    fn send(&mut self, conversation: ConversationNo, content: &'a NewEntry) -> Result<Appended, Stop> {
        let sender = content.sender.as_ref().map(|sender| sender.no);
        let is_repeated =
            sender.zip(content.client_msg_id.clone()).is_some_and(|send| self.known.sends.contains_key(&send));
        match sender {
            Some(sender) if !is_repeated && self.has_just_left(conversation, sender) => Err(Refused::NotAMember.into()),
            _ => self.append(conversation, content),
        }
    }

    fn has_just_left(&self, conversation: ConversationNo, user: UserNo) -> bool {
        let there = self.changes.came_and_went.get(&(user, conversation)).copied();
        self.known.left_lately.contains(&conversation)
            && !there.unwrap_or_else(|| !self.known.strangers.contains(&(conversation, user)))
    }

    fn append(&mut self, conversation: ConversationNo, content: &'a NewEntry) -> Result<Appended, Stop> {
        let send = content.sender.as_ref().zip(content.client_msg_id.as_ref());
        let send = send.map(|(sender, id)| (sender.no, id.clone()));
        if let Some(first) = send.as_ref().and_then(|send| self.known.sends.get(send)) {
            return match first.conversation == conversation {
                true => Ok(*first),
                false => Err(Refused::ClientMsgIdReused.into()),
            };
        }
        let head = self.known.heads.get_mut(&conversation).ok_or(Refused::NoSuchConversation)?;
        let place = self.changes.next_place();
        let position = FROM_BATCH | place;
        head.last_seq += 1;
        head.last_at = head.last_at.max(self.now_ms);
        head.last_position = position;
        let (seq, at) = (head.last_seq, head.last_at);
        self.changes.entries.push(Entry { place, conversation, seq, at, content });
        let appended = Appended { conversation, seq, at, position, duplicate: false };
        if let Some(send) = send {
            self.known.sends.insert(send, Appended { duplicate: true, ..appended });
        }
        Ok(appended)
    }

    fn put_users(&mut self, patches: &[UserPatch]) -> Result<Outcome, Stop> {
        let (mut created, mut updated) = (0, 0);
        for patch in patches {
            let user = match self.known.user_nos.get(&patch.id) {
                Some(no) => {
                    updated += 1;
                    self.known.users.get_mut(no).ok_or_else(|| damaged("a user has a number and no row"))?
                }
                None => {
                    created += 1;
                    self.known.users_counted += 1;
                    let no = UserNo(self.known.users_counted);
                    self.known.user_nos.insert(patch.id.clone(), no);
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
                    self.known.users.entry(no).or_insert(user)
                }
            };
            user.name = patch.name.clone().or(user.name.take());
            user.avatar = patch.avatar.clone().or(user.avatar.take());
            user.attributes = patch.attributes.clone().or(user.attributes.take());
            self.changes.users.insert(user.no);
        }
        Ok(Outcome::Users { created, updated })
    }

    fn conversation(&mut self, no: ConversationNo) -> Result<&mut Conversation, Stop> {
        Ok(self.known.conversations.get_mut(&no).ok_or(Refused::NoSuchConversation)?)
    }

    fn create_conversation(&mut self, new: &NewConversation) -> Result<Outcome, Stop> {
        if let Some(no) = self.known.conversation_nos.get(&new.id) {
            let known = self.known.conversations.get(no);
            let conversation = known.cloned().ok_or_else(|| damaged("a conversation has a number and no row"))?;
            return match conversation.kind == new.kind {
                true => Ok(Outcome::Conversation { conversation, created: false }),
                false => Err(Refused::KindDiffers.into()),
            };
        }
        self.check_users(new.members.iter().map(|(user, _)| *user))?;
        // Whoever is named twice is one member, with the role named last.
        let members: BTreeMap<UserNo, Role> = new.members.iter().copied().collect();
        self.known.conversations_counted += 1;
        let no = ConversationNo(self.known.conversations_counted);
        let NewConversation { id, kind, pair, name, avatar, attributes, .. } = new.clone();
        let (created_at, member_count) = (self.now_ms, members.len() as u64);
        let conversation = Conversation { no, id, kind, pair, name, avatar, attributes, created_at, member_count };
        self.known.conversation_nos.insert(new.id.clone(), no);
        self.known.conversations.insert(no, conversation.clone());
        self.known.heads.insert(no, Head { first_seq: 1, ..Head::default() });
        self.changes.conversations.insert(no);
        self.changes.created.insert(no);
        for (user, role) in members {
            self.add_member(no, user, role, 0);
        }
        Ok(Outcome::Conversation { conversation, created: true })
    }

    fn check_users(&self, users: impl Iterator<Item = UserNo>) -> Result<(), Stop> {
        // Numbers are given out one after the other, so a number tells whether its user exists.
        let known = 1..=self.known.users_counted;
        match users.into_iter().find(|user| !known.contains(&user.0)) {
            Some(unknown) => Err(Refused::NoSuchUser(unknown).into()),
            None => Ok(()),
        }
    }

    fn add_member(&mut self, conversation: ConversationNo, user: UserNo, role: Role, last_seq: u64) {
        let (joined_at, mute) = (self.now_ms, MuteState::Off);
        let membership = Membership { role, joined_at, joined_seq: last_seq, read_seq: last_seq, mute };
        self.known.memberships.insert((conversation, user), membership);
        self.changes.memberships.insert((conversation, user));
        self.changes.came_and_went.insert((user, conversation), true);
    }

    fn change_members(
        &mut self,
        conversation: ConversationNo,
        add: &[(UserNo, Role)],
        remove: &[UserNo],
        members_max: u64,
        notice: Option<&'a NewEntry>,
    ) -> Result<Outcome, Stop> {
        let member_count = self.conversation(conversation)?.member_count;
        self.check_users(add.iter().map(|(user, _)| *user))?;
        // Whoever is named twice gets the role named last.
        let add: BTreeMap<UserNo, Role> = add.iter().copied().collect();
        let of = |user: &UserNo| self.known.memberships.get(&(conversation, *user));
        let added: Vec<_> = add.keys().copied().filter(|user| of(user).is_none()).collect();
        let changed: Vec<_> = add
            .iter()
            .filter(|(user, role)| of(user).is_some_and(|m| m.role != **role))
            .map(|(user, _)| *user)
            .collect();
        let removed: BTreeSet<_> = remove.iter().copied().filter(|user| of(user).is_some()).collect();
        let would_be = member_count + added.len() as u64 - removed.len() as u64;
        if would_be > members_max && !added.is_empty() {
            return Err(Refused::TooManyMembers { limit: members_max, would_be }.into());
        }
        let last_seq = self.known.heads.get(&conversation).ok_or(Refused::NoSuchConversation)?.last_seq;
        for user in &added {
            self.add_member(conversation, *user, add[user], last_seq);
        }
        for user in &changed {
            if let Some(membership) = self.known.memberships.get_mut(&(conversation, *user)) {
                membership.role = add[user];
            }
            self.changes.memberships.insert((conversation, *user));
        }
        for user in &removed {
            self.known.memberships.remove(&(conversation, *user));
            self.changes.memberships.insert((conversation, *user));
            self.changes.came_and_went.insert((*user, conversation), false);
        }
        if !removed.is_empty() {
            self.known.left_lately.insert(conversation);
            self.changes.left.insert(conversation);
        }
        self.conversation(conversation)?.member_count = would_be;
        self.changes.conversations.insert(conversation);
        let anything = !(added.is_empty() && removed.is_empty() && changed.is_empty());
        let notice = notice.filter(|_| anything).map(|notice| self.append(conversation, notice)).transpose()?;
        let removed = removed.into_iter().collect();
        Ok(Outcome::MembersChanged { added, removed, changed, member_count: would_be, notice })
    }
}

/// Places an outcome in the commit order, now that it is known where the batch begins.
pub(crate) fn place(outcome: &mut Outcome, base: Position) {
    let appended = match outcome {
        Outcome::Appended(appended) | Outcome::MembersChanged { notice: Some(appended), .. } => appended,
        _ => return,
    };
    if appended.position & FROM_BATCH != 0 {
        appended.position = base + (appended.position & !FROM_BATCH);
    }
}
