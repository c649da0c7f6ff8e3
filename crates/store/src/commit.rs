//! One batch of proposals. They are decided against a staged state over the stored rows, then written as one durable
//! batch, and only then visible to the next batch. A failed write changes nothing in memory.

use crate::{
    errors::store_error,
    kv::{Batch, Kv, Space},
    reads::*,
    rows::*,
};
use quick_cache::sync::Cache;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use tidings_domain::{model::*, store::*};

/// Outbox items of one row: three numbers each, so that the row stays below the limit of values.
const OUTBOX_ITEMS_PER_ROW: usize = VALUE_BYTES_MAX / 24 - 1;

/// A batch that is being decided: its writes so far, over the stored rows.
pub(crate) struct StagedBatch<'a> {
    kv: &'a dyn Kv,
    /// Heads of conversations that were written to lately. Filled only from committed batches: a reader that filled it
    /// could put an old head back after a newer commit, and a sequence would be given out twice.
    heads_cache: &'a Cache<ConversationNo, Head>,
    outbox: bool,
    now_ms: u64,
    batch: Batch,
    pub(crate) counters: Counters,
    pub(crate) heads: FxHashMap<ConversationNo, Head>,
    /// The ids of conversations whose first entry is in this batch.
    pub(crate) first_entry_ids: FxHashMap<ConversationNo, String>,
    /// The results of sends in this batch, by dedupe key.
    first_results: FxHashMap<Vec<u8>, Appended>,
    users: FxHashMap<UserNo, User>,
    user_nos: FxHashMap<String, UserNo>,
    conversations: FxHashMap<ConversationNo, Conversation>,
    conversation_nos: FxHashMap<String, ConversationNo>,
    memberships: FxHashMap<(ConversationNo, UserNo), Option<Membership>>,
    outbox_items: Vec<u64>,
    outbox_progress: Option<OutboxProgress>,
    day_bytes: FxHashMap<u64, u64>,
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

impl<'a> StagedBatch<'a> {
    pub(crate) fn new(
        kv: &'a dyn Kv,
        heads_cache: &'a Cache<ConversationNo, Head>,
        counters: Counters,
        outbox: bool,
        now_ms: u64,
    ) -> Self {
        StagedBatch {
            kv,
            heads_cache,
            outbox,
            now_ms,
            counters,
            batch: Batch::default(),
            heads: FxHashMap::default(),
            first_entry_ids: FxHashMap::default(),
            first_results: FxHashMap::default(),
            users: FxHashMap::default(),
            user_nos: FxHashMap::default(),
            conversations: FxHashMap::default(),
            conversation_nos: FxHashMap::default(),
            memberships: FxHashMap::default(),
            outbox_items: Vec::new(),
            outbox_progress: None,
            day_bytes: FxHashMap::default(),
        }
    }

    /// Decides one proposal.
    ///
    /// # Errors
    /// The store failed: the whole batch must be dropped.
    pub(crate) fn propose(&mut self, proposal: &Proposal) -> StoreResult<Outcome> {
        match self.decide(proposal) {
            Ok(outcome) => Ok(outcome),
            Err(ProposalError::Rejected(rejection)) => Ok(Outcome::Rejected(rejection)),
            Err(ProposalError::Failed(error)) => Err(error),
        }
    }

    /// The batch to write, completed with the rows that are written once a batch: day sizes, outbox and counters.
    pub(crate) fn finish(&mut self) -> StoreResult<Batch> {
        for (day, bytes) in std::mem::take(&mut self.day_bytes) {
            let row_key = key(b'b', &[day]);
            let before = self.get(Space::Meta, &row_key)?.and_then(|row| number_at(&row, 0)).unwrap_or(0);
            self.batch.put(Space::Meta, row_key, (before + bytes).to_be_bytes().to_vec());
        }
        let mut outbox_items = std::mem::take(&mut self.outbox_items);
        if let Some(progress) = self.outbox_progress {
            outbox_items =
                outbox_items.chunks_exact(3).filter(|item| item[0] > progress.through).flatten().copied().collect();
        }
        for items in outbox_items.chunks(OUTBOX_ITEMS_PER_ROW * 3) {
            self.batch.put(Space::Meta, key(b'o', &items[..1]), numbers_row(items));
        }
        let mut batch = std::mem::take(&mut self.batch);
        if !batch.writes.is_empty() {
            batch.put(Space::Meta, vec![b'n'], self.counters.row());
        }
        Ok(batch)
    }

    fn get(&self, space: Space, key: &[u8]) -> StoreResult<Option<Vec<u8>>> {
        self.kv.get(space, key).map_err(store_error)
    }

    fn decide(&mut self, proposal: &Proposal) -> Result<Outcome, ProposalError> {
        match proposal {
            Proposal::Append { conversation, entry } => self.append(*conversation, entry).map(Outcome::Appended),
            Proposal::PutUsers(patches) => self.put_users(patches),
            Proposal::CreateConversation(new) => self.create_conversation(new),
            Proposal::UpdateConversation { conversation, name, avatar, attributes, notice } => {
                let mut card = self.conversation(*conversation)?.ok_or(Rejection::NoSuchConversation)?;
                card.name = name.clone().or(card.name);
                card.avatar = avatar.clone().or(card.avatar);
                card.attributes = attributes.clone().or(card.attributes);
                self.put_conversation(card);
                match notice {
                    Some(notice) => self.append(*conversation, notice).map(Outcome::Appended),
                    None => Ok(Outcome::Done),
                }
            }
            Proposal::ChangeMembers { conversation, add, remove, members_max, notice } => {
                self.change_members(*conversation, add, remove, *members_max, notice.as_ref())
            }
            Proposal::MarkRead { conversation, user, seq } => {
                let mut membership = self.membership(*conversation, *user)?.ok_or(Rejection::NotAMember)?;
                let last = self.head(*conversation)?.ok_or(Rejection::NoSuchConversation)?.last_seq;
                let moved = membership.read_seq.max((*seq).min(last));
                let has_moved = moved != membership.read_seq;
                if has_moved {
                    membership.read_seq = moved;
                    self.put_membership(*conversation, *user, membership);
                }
                Ok(Outcome::Read { seq: moved, moved: has_moved })
            }
            Proposal::SetMute { conversation, user, mute } => {
                let mut membership = self.membership(*conversation, *user)?.ok_or(Rejection::NotAMember)?;
                membership.mute = *mute;
                self.put_membership(*conversation, *user, membership);
                Ok(Outcome::Done)
            }
            Proposal::SetDoNotDisturb { user, window } => {
                let mut found = self.user(*user)?.ok_or(Rejection::NoSuchUser(*user))?;
                found.do_not_disturb = window.clone().map(Box::new);
                self.put_user(found);
                Ok(Outcome::Done)
            }
            Proposal::Revoke { user, before, .. } => {
                let mut found = self.user(*user)?.ok_or(Rejection::NoSuchUser(*user))?;
                found.revoked_at = found.revoked_at.max(*before);
                self.batch.put(Space::Meta, key(b'v', &[user.0]), found.revoked_at.to_be_bytes().to_vec());
                self.users.insert(*user, found);
                Ok(Outcome::Done)
            }
            Proposal::SetLastSeen(seen) => {
                for (user, at) in seen {
                    self.batch.put(Space::Meta, key(b's', &[user.0]), at.to_be_bytes().to_vec());
                }
                Ok(Outcome::Done)
            }
            Proposal::Kick { .. } => Ok(Outcome::Done),
            Proposal::AdvanceOutbox { through, dead } => self.outbox_done(*through, dead),
            Proposal::DeleteDeadLetters { ids } => {
                ids.iter().for_each(|id| self.batch.remove(Space::Meta, key(b'd', &[*id])));
                Ok(Outcome::Done)
            }
        }
    }

    fn append(&mut self, conversation: ConversationNo, entry: &NewEntry) -> Result<Appended, ProposalError> {
        let send = entry.sender.as_ref().zip(entry.client_msg_id.as_ref()).map(|(s, id)| dedupe_key(s.no, id));
        if let Some(send) = &send
            && let Some(first) = self.first_result(send)?
        {
            return match first.conversation == conversation {
                true => Ok(first),
                false => Err(Rejection::ClientMsgIdReused.into()),
            };
        }
        let mut head = self.head(conversation)?.ok_or(Rejection::NoSuchConversation)?;
        self.counters.position += 1;
        let position = self.counters.position;
        head.last_seq += 1;
        head.last_at = head.last_at.max(self.now_ms);
        head.last_position = position;
        self.heads.insert(conversation, head);
        if head.last_seq == 1
            && let Some(card) = self.conversation(conversation)?
        {
            self.first_entry_ids.insert(conversation, card.id);
        }
        let (seq, at) = (head.last_seq, head.last_at);

        let (row, parts) = encode_entry(entry, at, position);
        let mut bytes = row.len();
        self.batch.put(Space::Timeline, entry_key(conversation, seq), row);
        for (part, body) in parts.into_iter().enumerate() {
            bytes += body.len();
            self.batch.put(Space::Bodies, part_key(conversation, seq, part as u16), body);
        }
        *self.day_bytes.entry(day_of(at)).or_default() += bytes as u64;
        if let Some(send) = send {
            self.batch.put(Space::Dedupe, send.clone(), numbers_row(&[conversation.0, seq, at, position]));
            self.first_results.insert(send, Appended { conversation, seq, at, position, duplicate: true });
        }
        if self.outbox && entry.kind == EntryKind::Message && !entry.silent && !entry.skip_push {
            self.outbox_items.extend([position, conversation.0, seq]);
        }
        Ok(Appended { conversation, seq, at, position, duplicate: false })
    }

    /// The result of the first send with this dedupe key.
    fn first_result(&self, send: &[u8]) -> StoreResult<Option<Appended>> {
        if let Some(first) = self.first_results.get(send) {
            return Ok(Some(*first));
        }
        let Some(row) = self.get(Space::Dedupe, send)? else { return Ok(None) };
        match numbers(&row)[..] {
            [conversation, seq, at, position] => {
                let conversation = ConversationNo(conversation);
                Ok(Some(Appended { conversation, seq, at, position, duplicate: true }))
            }
            _ => Err(damaged("a dedupe row")),
        }
    }

    /// A conversation's head; `None` if it does not exist.
    fn head(&self, conversation: ConversationNo) -> StoreResult<Option<Head>> {
        if let Some(head) = self.heads.get(&conversation) {
            return Ok(Some(*head));
        }
        if let Some(head) = self.heads_cache.get(&conversation) {
            return Ok(Some(head));
        }
        match self.conversation(conversation)? {
            Some(_) => read_head(self.kv, conversation).map(Some),
            None => Ok(None),
        }
    }

    fn user_no(&self, id: &str) -> StoreResult<Option<UserNo>> {
        match self.user_nos.get(id) {
            Some(no) => Ok(Some(*no)),
            None => Ok(self.get(Space::Meta, &id_key(b'u', id))?.and_then(|row| number_at(&row, 0)).map(UserNo)),
        }
    }

    fn user(&self, no: UserNo) -> StoreResult<Option<User>> {
        match self.users.get(&no) {
            Some(user) => Ok(Some(user.clone())),
            None => read_user(self.kv, no),
        }
    }

    fn put_user(&mut self, user: User) {
        self.batch.put(Space::Meta, key(b'U', &[user.no.0]), encode(&UserRow::of(&user)));
        self.users.insert(user.no, user);
    }

    fn put_users(&mut self, patches: &[UserPatch]) -> Result<Outcome, ProposalError> {
        let (mut created, mut updated) = (0, 0);
        for patch in patches {
            let mut user = match self.user_no(&patch.id)? {
                Some(no) => {
                    updated += 1;
                    self.user(no)?.ok_or_else(|| damaged(format_args!("user {} has a number and no row", patch.id)))?
                }
                None => {
                    created += 1;
                    self.counters.users += 1;
                    let no = UserNo(self.counters.users);
                    self.batch.put(Space::Meta, id_key(b'u', &patch.id), no.0.to_be_bytes().to_vec());
                    self.user_nos.insert(patch.id.clone(), no);
                    let (id, created_at) = (patch.id.clone(), self.now_ms);
                    User {
                        no,
                        id,
                        name: None,
                        avatar: None,
                        attributes: None,
                        created_at,
                        do_not_disturb: None,
                        revoked_at: 0,
                    }
                }
            };
            user.name = patch.name.clone().or(user.name);
            user.avatar = patch.avatar.clone().or(user.avatar);
            user.attributes = patch.attributes.clone().or(user.attributes);
            self.put_user(user);
        }
        Ok(Outcome::Users { created, updated })
    }

    fn conversation(&self, no: ConversationNo) -> StoreResult<Option<Conversation>> {
        match self.conversations.get(&no) {
            Some(conversation) => Ok(Some(conversation.clone())),
            None => read_conversation(self.kv, no),
        }
    }

    fn put_conversation(&mut self, conversation: Conversation) {
        let row = encode(&ConversationRow::of(&conversation));
        self.batch.put(Space::Meta, key(b'C', &[conversation.no.0]), row);
        self.conversations.insert(conversation.no, conversation);
    }

    fn create_conversation(&mut self, new: &NewConversation) -> Result<Outcome, ProposalError> {
        let known = match self.conversation_nos.get(&new.id) {
            Some(no) => Some(*no),
            None => {
                let row = self.get(Space::Meta, &id_key(b'c', &new.id))?;
                row.and_then(|row| number_at(&row, 0)).map(ConversationNo)
            }
        };
        if let Some(no) = known {
            let conversation =
                self.conversation(no)?.ok_or_else(|| damaged("a conversation has a number and no row"))?;
            return match conversation.kind == new.kind {
                true => Ok(Outcome::Conversation { conversation, created: false }),
                false => Err(Rejection::KindDiffers.into()),
            };
        }
        self.check_users(new.members.iter().map(|(user, _)| *user))?;
        // A user who is named twice is one member, with the role named last.
        let members: BTreeMap<UserNo, Role> = new.members.iter().copied().collect();
        self.counters.conversations += 1;
        let no = ConversationNo(self.counters.conversations);
        self.batch.put(Space::Meta, id_key(b'c', &new.id), no.0.to_be_bytes().to_vec());
        self.conversation_nos.insert(new.id.clone(), no);
        let NewConversation { id, kind, pair, name, avatar, attributes, .. } = new.clone();
        let (created_at, member_count) = (self.now_ms, members.len() as u64);
        let conversation = Conversation { no, id, kind, pair, name, avatar, attributes, created_at, member_count };
        self.put_conversation(conversation.clone());
        self.heads.insert(no, Head { first_seq: 1, ..Head::default() });
        for (user, role) in members {
            self.add_member(&conversation, user, role, 0);
        }
        Ok(Outcome::Conversation { conversation, created: true })
    }

    fn check_users(&self, users: impl Iterator<Item = UserNo>) -> Result<(), ProposalError> {
        // Numbers are given out without a hole and users are never removed, so the counter tells which users exist.
        let existing = 1..=self.counters.users;
        match users.into_iter().find(|user| !existing.contains(&user.0)) {
            Some(unknown) => Err(Rejection::NoSuchUser(unknown).into()),
            None => Ok(()),
        }
    }

    fn membership(&self, conversation: ConversationNo, user: UserNo) -> StoreResult<Option<Membership>> {
        match self.memberships.get(&(conversation, user)) {
            Some(membership) => Ok(membership.clone()),
            None => read_membership(self.kv, conversation, user),
        }
    }

    fn put_membership(&mut self, conversation: ConversationNo, user: UserNo, membership: Membership) {
        let row = encode(&MembershipRow::of(&membership));
        self.batch.put(Space::Meta, key(b'm', &[conversation.0, user.0]), row);
        self.memberships.insert((conversation, user), Some(membership));
    }

    fn add_member(&mut self, conversation: &Conversation, user: UserNo, role: Role, last_seq: u64) {
        let (joined_at, mute) = (self.now_ms, MuteState::Off);
        let membership = Membership { role, joined_at, joined_seq: last_seq, read_seq: last_seq, mute };
        self.put_membership(conversation.no, user, membership);
        self.batch.put(Space::Meta, user_conversation_key(user, conversation.kind, conversation.no), Vec::new());
    }

    fn change_members(
        &mut self,
        conversation: ConversationNo,
        add: &[(UserNo, Role)],
        remove: &[UserNo],
        members_max: u64,
        notice: Option<&NewEntry>,
    ) -> Result<Outcome, ProposalError> {
        let mut card = self.conversation(conversation)?.ok_or(Rejection::NoSuchConversation)?;
        self.check_users(add.iter().map(|(user, _)| *user))?;
        // A user who is named twice gets the role named last.
        let add: BTreeMap<UserNo, Role> = add.iter().copied().collect();
        let mut added = BTreeSet::new();
        let mut changed = Vec::new();
        for (user, role) in &add {
            match self.membership(conversation, *user)? {
                Some(membership) if membership.role != *role => changed.push((*user, membership, *role)),
                Some(_) => {}
                None => drop(added.insert(*user)),
            }
        }
        let mut removed = BTreeSet::new();
        for user in remove {
            if self.membership(conversation, *user)?.is_some() {
                removed.insert(*user);
            }
        }
        let would_be = card.member_count + added.len() as u64 - removed.len() as u64;
        if would_be > members_max && !added.is_empty() {
            return Err(Rejection::TooManyMembers { limit: members_max, would_be }.into());
        }
        let last_seq = self.head(conversation)?.ok_or(Rejection::NoSuchConversation)?.last_seq;
        for (user, role) in &add {
            if added.contains(user) {
                self.add_member(&card, *user, *role, last_seq);
            }
        }
        for (user, membership, role) in &changed {
            self.put_membership(conversation, *user, Membership { role: *role, ..membership.clone() });
        }
        for user in &removed {
            self.batch.remove(Space::Meta, key(b'm', &[conversation.0, user.0]));
            self.batch.remove(Space::Meta, user_conversation_key(*user, card.kind, conversation));
            self.memberships.insert((conversation, *user), None);
        }
        card.member_count = would_be;
        self.put_conversation(card);
        let has_changed = !(added.is_empty() && removed.is_empty() && changed.is_empty());
        let notice = notice.filter(|_| has_changed).map(|notice| self.append(conversation, notice)).transpose()?;
        let (added, removed) = (added.into_iter().collect(), removed.into_iter().collect());
        let changed = changed.into_iter().map(|(user, ..)| user).collect();
        Ok(Outcome::MembersChanged { added, removed, changed, member_count: would_be, notice })
    }

    fn outbox_done(&mut self, through: Position, dead: &[DeadNotification]) -> Result<Outcome, ProposalError> {
        let before = match self.outbox_progress {
            Some(progress) => progress,
            None => read_outbox_progress(self.kv)?,
        };
        if through > before.through {
            let (rows, progress) = consumed_outbox_rows(self.kv, before, through)?;
            rows.into_iter().for_each(|row| self.batch.remove(Space::Meta, row));
            self.batch.put(Space::Meta, vec![b'O'], numbers_row(&[progress.through, progress.first_row]));
            self.outbox_progress = Some(progress);
        }
        for notification in dead {
            self.batch.put(Space::Meta, key(b'd', &[notification.id]), encode(&DeadRow::of(notification)));
        }
        Ok(Outcome::Done)
    }
}
