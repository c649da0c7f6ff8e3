//! A batch that is decided in memory, over the rows that were locked and loaded. Positions are not known yet: an entry has
//! its offset in the batch instead.

use super::{
    commit_orders::CommitOrders,
    entries::{kept_by, qualified_id},
    numbers::Numbers,
};
use crate::rows::encode;
use rustc_hash::{FxHashMap, FxHashSet};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};
use tidings_domain::{
    commit_log::Change,
    decide::{StagedRows, decide},
    model::*,
    store::*,
};

/// The bit that marks a position as an offset from the position before this batch.
pub(crate) const BATCH_RELATIVE: Position = 1 << 63;

/// The stored state that the batch touches; each decided proposal changes it.
#[derive(Default)]
pub(crate) struct LoadedState {
    pub users: FxHashMap<UserNo, User>,
    pub user_nos: FxHashMap<String, UserNo>,
    pub heads: FxHashMap<ConversationNo, Head>,
    pub conversations: FxHashMap<ConversationNo, Conversation>,
    pub conversation_nos: FxHashMap<String, ConversationNo>,
    pub memberships: FxHashMap<(ConversationNo, UserNo), Membership>,
    /// The results of first sends, by conversation, author and client message id.
    pub first_results: FxHashMap<(ConversationNo, UserNo, String), FirstResult>,
    /// By whom and under which plain id first results are kept, whichever conversation they are of.
    pub taken_ids: FxHashSet<(i64, String)>,
    /// Entries that proposals change, each with the partition that it is in.
    pub entries: FxHashMap<(ConversationNo, u64), (i32, StoredEntry)>,
    pub chat_rows: FxHashMap<Vec<u8>, Vec<u8>>,
    /// Conversations that a member has left within the last minute.
    pub recently_left: FxHashSet<ConversationNo>,
    /// Senders to such conversations who are not members.
    pub non_members: FxHashSet<(ConversationNo, UserNo)>,
    /// First results whose entries retention removed: their ids may be used again.
    pub expired_results: Vec<(i64, String, Position)>,
    /// Those users that exist, of the ones whom proposals name by number as members to be.
    pub named_users: FxHashSet<UserNo>,
    /// The numbers for new users and conversations; as many as the batch can need.
    pub numbers: Numbers,
}

/// An entry with its sequence in its conversation.
pub(crate) struct Entry<'a> {
    /// The entry's offset in the batch, from 1.
    pub offset: u64,
    pub conversation: ConversationNo,
    pub seq: u64,
    pub at: u64,
    pub content: Cow<'a, NewEntry>,
    /// The id under which the first result is kept; `None`: its own, if it has one.
    pub kept_as: Option<String>,
}

/// What is to be written: entries, and the keys of changed rows, whose values are in [`LoadedState`].
#[derive(Default)]
pub(crate) struct Changes<'a> {
    /// The number of positions that the batch takes.
    pub positions: u64,
    pub entries: Vec<Entry<'a>>,
    /// Stored entries whose content has changed.
    pub rewritten: BTreeSet<(ConversationNo, u64)>,
    /// Keys of changed chat rows; those that are not loaded any more are deleted.
    pub chat_rows: BTreeSet<Vec<u8>>,
    /// The encoded changes for the commit log, each with its offset in the batch.
    pub logged: Vec<(u64, Vec<u8>)>,
    pub users: BTreeSet<UserNo>,
    /// Those of them that are new.
    pub new_users: BTreeSet<UserNo>,
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
    /// Sends whose first results are forgotten: the conversation, by whom they are kept, and the id.
    pub forgotten: Vec<(ConversationNo, i64, String)>,
    /// Users who are erased, with their ids from now on.
    pub erased: BTreeMap<UserNo, String>,
    pub outbox_done: Option<Position>,
    /// Notifications to store; `None`: to remove.
    pub notifications: BTreeMap<NotificationKey, Option<&'a StoredNotification>>,
}

impl Changes<'_> {
    fn next_offset(&mut self) -> u64 {
        self.positions += 1;
        self.positions
    }
}

/// A batch that is being decided: the loaded rows as it has changed them so far, and its changes.
pub(crate) struct StagedBatch<'a> {
    pub state: LoadedState,
    pub changes: Changes<'a>,
    orders: &'a CommitOrders,
}

impl<'a> StagedBatch<'a> {
    pub(crate) fn new(state: LoadedState, orders: &'a CommitOrders) -> Self {
        StagedBatch { state, changes: Changes::default(), orders }
    }

    /// Decides one proposal.
    ///
    /// # Errors
    /// A loaded row is damaged: the whole batch must be dropped.
    pub(crate) fn propose(&mut self, proposal: &'a Proposal, now_ms: u64) -> StoreResult<Outcome> {
        let outcome = decide(self, proposal, now_ms)?;
        if !matches!(outcome, Outcome::Rejected(_)) {
            self.log(proposal, &outcome);
        }
        Ok(outcome)
    }

    /// Adds the change that other nodes must learn to the commit log, at the position of the proposal's entry if it has one.
    fn log(&mut self, proposal: &Proposal, outcome: &Outcome) {
        let Some(change) = Change::of(proposal, outcome) else { return };
        let at_entry = outcome.appended().map(|appended| appended.position);
        let at_entry = at_entry.filter(|position| position & BATCH_RELATIVE != 0).map(|p| p & !BATCH_RELATIVE);
        let offset = at_entry.unwrap_or_else(|| self.changes.next_offset());
        self.changes.logged.push((offset, encode(&change)));
    }
}

impl<'a> StagedRows<'a> for StagedBatch<'a> {
    type SendKey = (ConversationNo, UserNo, String);

    fn send_key(&self, conversation: ConversationNo, author: UserNo, client_msg_id: &'a str) -> Self::SendKey {
        (conversation, author, client_msg_id.to_owned())
    }

    fn first_result(&self, key: &Self::SendKey) -> StoreResult<Option<FirstResult>> {
        Ok(self.state.first_results.get(key).copied())
    }

    fn has_just_left(&self, conversation: ConversationNo, user: UserNo) -> bool {
        let has_joined = self.changes.joined.get(&(user, conversation)).copied();
        self.state.recently_left.contains(&conversation)
            && !has_joined.unwrap_or_else(|| !self.state.non_members.contains(&(conversation, user)))
    }

    fn index_number(&self, head: &Head) -> u64 {
        self.orders.index_number(head.last_position, head.last_at)
    }

    fn head(&self, conversation: ConversationNo) -> StoreResult<Option<Head>> {
        Ok(self.state.heads.get(&conversation).copied())
    }

    fn next_position(&mut self) -> Position {
        BATCH_RELATIVE | self.changes.next_offset()
    }

    fn append(
        &mut self,
        content: Cow<'a, NewEntry>,
        appended: Appended,
        head: Head,
        send: Option<Self::SendKey>,
    ) -> StoreResult<()> {
        let Appended { conversation, seq, at, position, .. } = appended;
        self.state.heads.insert(conversation, head);
        let mut kept_as = None;
        if let Some(send) = send {
            let (_, author, id) = &send;
            if !self.state.taken_ids.insert((kept_by(conversation, *author), id.clone())) {
                kept_as = Some(qualified_id(conversation, id));
            }
            let appended = Appended { duplicate: true, ..appended };
            self.state.first_results.insert(send, FirstResult { appended, request: content.request.digest });
        }
        let offset = position & !BATCH_RELATIVE;
        self.changes.entries.push(Entry { offset, conversation, seq, at, content, kept_as });
        Ok(())
    }

    fn entry(&self, conversation: ConversationNo, seq: u64) -> StoreResult<Option<StoredEntry>> {
        let mut of_batch = self.changes.entries.iter();
        if let Some(entry) = of_batch.find(|entry| entry.conversation == conversation && entry.seq == seq) {
            let Entry { offset, seq, at, content, .. } = entry;
            let position = BATCH_RELATIVE | offset;
            return Ok(Some(StoredEntry { seq: *seq, position, at: *at, content: content.clone().into_owned() }));
        }
        Ok(self.state.entries.get(&(conversation, seq)).map(|(_, entry)| entry.clone()))
    }

    fn put_entry(&mut self, conversation: ConversationNo, changed: StoredEntry) -> StoreResult<()> {
        let seq = changed.seq;
        let mut of_batch = self.changes.entries.iter_mut();
        if let Some(entry) = of_batch.find(|entry| entry.conversation == conversation && entry.seq == seq) {
            entry.content = Cow::Owned(changed.content);
        } else if let Some((_, entry)) = self.state.entries.get_mut(&(conversation, seq)) {
            *entry = changed;
            self.changes.rewritten.insert((conversation, seq));
        }
        Ok(())
    }

    fn chat_row(&self, key: &[u8]) -> StoreResult<Option<Vec<u8>>> {
        Ok(self.state.chat_rows.get(key).cloned())
    }

    fn put_chat_row(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        match value {
            Some(value) => drop(self.state.chat_rows.insert(key.clone(), value)),
            None => drop(self.state.chat_rows.remove(&key)),
        }
        self.changes.chat_rows.insert(key);
    }

    fn is_user(&self, no: UserNo) -> StoreResult<bool> {
        Ok(self.state.named_users.contains(&no) || self.state.users.contains_key(&no))
    }

    fn user_no(&self, id: &str) -> StoreResult<Option<UserNo>> {
        Ok(self.state.user_nos.get(id).copied())
    }

    fn user(&self, no: UserNo) -> StoreResult<Option<User>> {
        Ok(self.state.users.get(&no).cloned())
    }

    fn new_user_no(&mut self, id: &'a str) -> UserNo {
        let no = self.state.numbers.take_user();
        self.changes.new_users.insert(no);
        self.state.user_nos.insert(id.to_owned(), no);
        no
    }

    fn put_user(&mut self, user: User) {
        self.changes.users.insert(user.no);
        self.state.users.insert(user.no, user);
    }

    fn put_revoked(&mut self, user: User) {
        self.changes.revoked.insert(user.no, user.revoked_at);
        self.state.users.insert(user.no, user);
    }

    fn put_last_seen(&mut self, user: UserNo, at: u64) {
        self.changes.last_seen.insert(user, at);
    }

    fn conversation_no(&self, id: &str) -> StoreResult<Option<ConversationNo>> {
        Ok(self.state.conversation_nos.get(id).copied())
    }

    fn conversation(&self, no: ConversationNo) -> StoreResult<Option<Conversation>> {
        Ok(self.state.conversations.get(&no).cloned())
    }

    fn new_conversation_no(&mut self, id: &'a str) -> ConversationNo {
        let no = self.state.numbers.take_conversation();
        self.state.conversation_nos.insert(id.to_owned(), no);
        no
    }

    fn create_conversation(&mut self, conversation: Conversation) {
        self.state.heads.insert(conversation.no, Head { first_seq: 1, ..Head::default() });
        self.changes.created.insert(conversation.no);
        self.put_conversation(conversation);
    }

    fn put_conversation(&mut self, conversation: Conversation) {
        self.changes.conversations.insert(conversation.no);
        self.state.conversations.insert(conversation.no, conversation);
    }

    fn membership(&self, conversation: ConversationNo, user: UserNo) -> StoreResult<Option<Membership>> {
        Ok(self.state.memberships.get(&(conversation, user)).cloned())
    }

    fn add_member(&mut self, conversation: &Conversation, user: UserNo, membership: Membership) {
        self.put_membership(conversation.no, user, membership);
        self.changes.joined.insert((user, conversation.no), true);
    }

    fn put_membership(&mut self, conversation: ConversationNo, user: UserNo, membership: Membership) {
        self.state.memberships.insert((conversation, user), membership);
        self.changes.memberships.insert((conversation, user));
    }

    fn remove_member(&mut self, conversation: &Conversation, user: UserNo) {
        let conversation = conversation.no;
        self.state.memberships.remove(&(conversation, user));
        self.changes.memberships.insert((conversation, user));
        self.changes.joined.insert((user, conversation), false);
        self.state.recently_left.insert(conversation);
        self.changes.left.insert(conversation);
    }

    fn forget_send(&mut self, conversation: ConversationNo, author: UserNo, client_msg_id: &str) -> StoreResult<()> {
        self.changes.forgotten.push((conversation, kept_by(conversation, author), client_msg_id.to_owned()));
        Ok(())
    }

    fn rename_conversation(&mut self, former: &str, conversation: Conversation) {
        self.state.conversation_nos.remove(former);
        self.state.conversation_nos.insert(conversation.id.clone(), conversation.no);
        self.put_conversation(conversation);
    }

    fn erase_user(&mut self, former: &str, user: User) {
        self.state.user_nos.remove(former);
        self.state.user_nos.insert(user.id.clone(), user.no);
        self.changes.erased.insert(user.no, user.id.clone());
        self.put_user(user);
    }

    fn advance_outbox(&mut self, through: Position, dead: &'a [StoredNotification]) -> StoreResult<()> {
        self.changes.outbox_done = self.changes.outbox_done.max(Some(through));
        self.changes.notifications.extend(dead.iter().map(|notification| (notification.key, Some(notification))));
        Ok(())
    }

    fn delete_notifications(&mut self, keys: &'a [NotificationKey]) {
        self.changes.notifications.extend(keys.iter().map(|key| (*key, None)));
    }
}

/// Replaces an outcome's offset in the batch by its position, now that the position before the batch (`base`) is known.
pub(crate) fn resolve_position(outcome: &mut Outcome, base: Position) {
    let Some(appended) = outcome.appended_mut() else { return };
    if appended.position & BATCH_RELATIVE != 0 {
        appended.position = base + (appended.position & !BATCH_RELATIVE);
    }
}
