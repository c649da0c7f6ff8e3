//! One batch of proposals. They are [decided](tidings_domain::decide) over the batch's own rows and the stored ones, then
//! written as one durable batch, and only then visible to the next batch. A failed write changes nothing in memory.

use crate::{
    errors::store_error,
    event_log::EventLog,
    first_results::*,
    kv::{Batch, Kv, Space, Write},
    reads::*,
    rows::*,
    timeline_days::{TimelineDays, day_key},
};
use quick_cache::sync::Cache;
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use tidings_domain::{
    commit_log::Change,
    decide::{StagedRows, decide},
    model::*,
    store::*,
};

/// Outbox items of one row: three numbers each, so that the row stays below the limit of values.
const OUTBOX_ITEMS_PER_ROW: usize = VALUE_BYTES_MAX / 24 - 1;

/// A batch that is being decided: its writes so far, over the stored rows.
pub(crate) struct StagedBatch<'a> {
    kv: &'a dyn Kv,
    /// Heads of conversations that were written to lately. Filled only from committed batches: a reader that filled it
    /// could put an old head back after a newer commit, and a sequence would be given out twice.
    heads_cache: &'a Cache<ConversationNo, Head>,
    days: &'a TimelineDays,
    outbox: bool,
    /// What the feed of events reads back; `None`: events are not kept.
    event_log: Option<EventLog>,
    batch: Batch,
    pub(crate) counters: Counters,
    pub(crate) heads: FxHashMap<ConversationNo, Head>,
    /// The ids of conversations whose first entry is in this batch.
    pub(crate) first_entry_ids: FxHashMap<ConversationNo, String>,
    /// The results of sends in this batch, by dedupe key.
    first_results: FxHashMap<Vec<u8>, FirstResult>,
    /// Whether there are first results of earlier versions.
    has_former_results: bool,
    users: FxHashMap<UserNo, User>,
    /// `None`: the batch has freed the id.
    user_nos: FxHashMap<String, Option<UserNo>>,
    conversations: FxHashMap<ConversationNo, Conversation>,
    conversation_nos: FxHashMap<String, Option<ConversationNo>>,
    memberships: FxHashMap<(ConversationNo, UserNo), Option<Membership>>,
    /// Chat rows that the batch has written or deleted.
    chat_rows: FxHashMap<Vec<u8>, Option<Vec<u8>>>,
    outbox_items: Vec<u64>,
    outbox_progress: Option<OutboxProgress>,
    /// Whether the batch may write a row more than once.
    rewrites: bool,
    /// By how many bytes the entries of each UTC day grow or shrink.
    day_bytes: FxHashMap<u64, i64>,
}

impl<'a> StagedBatch<'a> {
    pub(crate) fn new(
        kv: &'a dyn Kv,
        heads_cache: &'a Cache<ConversationNo, Head>,
        days: &'a TimelineDays,
        counters: Counters,
        outbox: bool,
        event_log: Option<EventLog>,
        has_former_results: bool,
    ) -> Self {
        StagedBatch {
            kv,
            heads_cache,
            days,
            outbox,
            event_log,
            counters,
            batch: Batch::default(),
            heads: FxHashMap::default(),
            first_entry_ids: FxHashMap::default(),
            first_results: FxHashMap::default(),
            has_former_results,
            users: FxHashMap::default(),
            user_nos: FxHashMap::default(),
            conversations: FxHashMap::default(),
            conversation_nos: FxHashMap::default(),
            memberships: FxHashMap::default(),
            chat_rows: FxHashMap::default(),
            outbox_items: Vec::new(),
            outbox_progress: None,
            rewrites: false,
            day_bytes: FxHashMap::default(),
        }
    }

    /// Decides one proposal.
    ///
    /// # Errors
    /// A stored row cannot be read: the whole batch must be dropped.
    pub(crate) fn propose(&mut self, proposal: &Proposal, now_ms: u64) -> StoreResult<Outcome> {
        let before = self.counters.position;
        let outcome = decide(self, proposal, now_ms)?;
        if let Some(log) = &mut self.event_log
            && let Some(change) = Change::of(proposal, &outcome)
        {
            // At the position of its entry, or at one of its own.
            self.counters.position = self.counters.position.max(before + 1);
            log.note_change(self.counters.position, &change);
        }
        Ok(outcome)
    }

    /// The batch to write, completed with the rows that are written once a batch: day sizes, outbox, log and counters.
    pub(crate) fn finish(&mut self, now_ms: u64) -> StoreResult<Batch> {
        for (day, bytes) in std::mem::take(&mut self.day_bytes) {
            self.days.add(day);
            let row_key = day_key(day);
            let before = self.get(Space::Meta, &row_key)?.and_then(|row| number_at(&row, 0)).unwrap_or(0);
            self.batch.put(Space::Meta, row_key, before.saturating_add_signed(bytes).to_be_bytes().to_vec());
        }
        let mut outbox_items = std::mem::take(&mut self.outbox_items);
        if let Some(progress) = self.outbox_progress {
            outbox_items =
                outbox_items.chunks_exact(3).filter(|item| item[0] > progress.through).flatten().copied().collect();
        }
        for items in outbox_items.chunks(OUTBOX_ITEMS_PER_ROW * 3) {
            self.batch.put(Space::Meta, key(MetaKind::OutboxItems, &items[..1]), numbers_row(items));
        }
        let mut batch = std::mem::take(&mut self.batch);
        if let Some(log) = self.event_log.take() {
            log.write(now_ms, &mut batch);
        }
        if self.rewrites {
            batch.keep_last_writes();
        }
        if !batch.writes.is_empty() {
            batch.put(Space::Meta, MetaKind::Counters.only_key(), self.counters.row());
        }
        Ok(batch)
    }

    fn get(&self, space: Space, key: &[u8]) -> StoreResult<Option<Vec<u8>>> {
        self.kv.get(space, key).map_err(store_error)
    }

    /// A row as the batch leaves it so far. It searches the whole batch: for rows that few proposals touch.
    fn staged(&self, space: Space, key: &[u8]) -> StoreResult<Option<Vec<u8>>> {
        match self.batch.writes.iter().rev().find(|write| write.space == space && write.key == key) {
            Some(write) => Ok(write.value.clone()),
            None => self.get(space, key),
        }
    }

    /// Writes an entry's row and the parts of its body; answers their bytes and the number of parts.
    fn write_entry(
        &mut self,
        conversation: ConversationNo,
        seq: u64,
        entry: &NewEntry,
        at: u64,
        position: Position,
    ) -> (i64, u16) {
        let (row, parts) = encode_entry(entry, at, position);
        let (mut bytes, count) = (row.len(), parts.len() as u16);
        self.batch.put(Space::Timeline, entry_key(conversation, seq), row);
        for (part, body) in parts.into_iter().enumerate() {
            bytes += body.len();
            self.batch.put(Space::Bodies, part_key(conversation, seq, part as u16), body);
        }
        (bytes as i64, count)
    }
}

impl StagedRows<'_> for StagedBatch<'_> {
    type SendKey = Vec<u8>;

    fn send_key(&self, conversation: ConversationNo, author: UserNo, client_msg_id: &str) -> Vec<u8> {
        dedupe_key(conversation, author, client_msg_id)
    }

    fn first_result(&self, key: &Vec<u8>) -> StoreResult<Option<FirstResult>> {
        if let Some(first) = self.first_results.get(key) {
            return Ok(Some(*first));
        }
        Ok(read_first_result(self.kv, key, self.has_former_results)?.map(|(first, _)| first))
    }

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

    fn next_position(&mut self) -> Position {
        self.counters.position += 1;
        self.counters.position
    }

    fn append(
        &mut self,
        entry: Cow<'_, NewEntry>,
        appended: Appended,
        head: Head,
        send: Option<Vec<u8>>,
    ) -> StoreResult<()> {
        let Appended { conversation, seq, at, position, .. } = appended;
        self.heads.insert(conversation, head);
        if seq == 1
            && let Some(details) = self.conversation(conversation)?
        {
            self.first_entry_ids.insert(conversation, details.id);
        }
        let (bytes, _) = self.write_entry(conversation, seq, &entry, at, position);
        *self.day_bytes.entry(day_of(entry.kept_since(at))).or_default() += bytes;
        if let Some(send) = send {
            let first =
                FirstResult { appended: Appended { duplicate: true, ..appended }, request: entry.request.digest };
            self.batch.put(Space::Dedupe, send.clone(), encode_first_result(&first));
            self.first_results.insert(send, first);
        }
        if let Some(log) = &mut self.event_log {
            log.note_entry(position, conversation, seq);
        }
        if self.outbox && entry.may_be_pushed() {
            self.outbox_items.extend([position, conversation.0, seq]);
        }
        Ok(())
    }

    fn entry(&self, conversation: ConversationNo, seq: u64) -> StoreResult<Option<StoredEntry>> {
        // An entry that retention has removed must not be written again.
        if self.head(conversation)?.is_none_or(|head| seq < head.first_seq) {
            return Ok(None);
        }
        let Some(row) = self.staged(Space::Timeline, &entry_key(conversation, seq))? else { return Ok(None) };
        let entry = decode_entry(seq, &row, |count| {
            let mut whole = Vec::new();
            for part in 0..count {
                let row = self.staged(Space::Bodies, &part_key(conversation, seq, part))?;
                whole.extend(
                    row.ok_or_else(|| damaged(format_args!("entry {seq}: part {part} of its body is missing")))?,
                );
            }
            Ok(whole)
        });
        entry.map(Some)
    }

    fn put_entry(&mut self, conversation: ConversationNo, entry: StoredEntry) -> StoreResult<()> {
        self.rewrites = true;
        let StoredEntry { seq, position, at, content } = entry;
        let row = self.staged(Space::Timeline, &entry_key(conversation, seq))?.unwrap_or_default();
        let (mut bytes_before, mut parts_before) = (row.len(), 0);
        decode_entry(seq, &row, |count| {
            parts_before = count;
            Ok(EMPTY_PARTS.to_vec())
        })?;
        for part in 0..parts_before {
            let row = self.staged(Space::Bodies, &part_key(conversation, seq, part))?;
            bytes_before += row.map_or(0, |row| row.len());
        }
        let (bytes, parts) = self.write_entry(conversation, seq, &content, at, position);
        for part in parts..parts_before {
            self.batch.remove(Space::Bodies, part_key(conversation, seq, part));
        }
        *self.day_bytes.entry(day_of(content.kept_since(at))).or_default() += bytes - bytes_before as i64;
        Ok(())
    }

    fn chat_row(&self, key: &[u8]) -> StoreResult<Option<Vec<u8>>> {
        match self.chat_rows.get(key) {
            Some(value) => Ok(value.clone()),
            None => self.get(Space::Meta, &chat_key(key)),
        }
    }

    fn put_chat_row(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        self.rewrites = true;
        self.batch.writes.push(Write { space: Space::Meta, key: chat_key(&key), value: value.clone() });
        self.chat_rows.insert(key, value);
    }

    fn is_user(&self, no: UserNo) -> StoreResult<bool> {
        Ok((1..=self.counters.users).contains(&no.0))
    }

    fn user_no(&self, id: &str) -> StoreResult<Option<UserNo>> {
        match self.user_nos.get(id) {
            Some(no) => Ok(*no),
            None => {
                Ok(self.get(Space::Meta, &id_key(MetaKind::UserId, id))?.and_then(|row| number_at(&row, 0)).map(UserNo))
            }
        }
    }

    fn user(&self, no: UserNo) -> StoreResult<Option<User>> {
        match self.users.get(&no) {
            Some(user) => Ok(Some(user.clone())),
            None => read_user(self.kv, no),
        }
    }

    fn new_user_no(&mut self, id: &str) -> UserNo {
        self.counters.users += 1;
        let no = UserNo(self.counters.users);
        self.batch.put(Space::Meta, id_key(MetaKind::UserId, id), no.0.to_be_bytes().to_vec());
        self.user_nos.insert(id.to_owned(), Some(no));
        no
    }

    fn put_user(&mut self, user: User) {
        self.batch.put(Space::Meta, key(MetaKind::User, &[user.no.0]), encode_user(&user));
        self.users.insert(user.no, user);
    }

    fn put_revoked(&mut self, user: User) {
        self.batch.put(Space::Meta, key(MetaKind::Revoked, &[user.no.0]), user.revoked_at.to_be_bytes().to_vec());
        self.users.insert(user.no, user);
    }

    fn put_last_seen(&mut self, user: UserNo, at: u64) {
        self.batch.put(Space::Meta, key(MetaKind::LastSeen, &[user.0]), at.to_be_bytes().to_vec());
    }

    fn conversation_no(&self, id: &str) -> StoreResult<Option<ConversationNo>> {
        match self.conversation_nos.get(id) {
            Some(no) => Ok(*no),
            None => {
                let row = self.get(Space::Meta, &id_key(MetaKind::ConversationId, id))?;
                Ok(row.and_then(|row| number_at(&row, 0)).map(ConversationNo))
            }
        }
    }

    fn conversation(&self, no: ConversationNo) -> StoreResult<Option<Conversation>> {
        match self.conversations.get(&no) {
            Some(conversation) => Ok(Some(conversation.clone())),
            None => read_conversation(self.kv, no),
        }
    }

    fn new_conversation_no(&mut self, id: &str) -> ConversationNo {
        self.counters.conversations += 1;
        let no = ConversationNo(self.counters.conversations);
        self.batch.put(Space::Meta, id_key(MetaKind::ConversationId, id), no.0.to_be_bytes().to_vec());
        self.conversation_nos.insert(id.to_owned(), Some(no));
        no
    }

    fn create_conversation(&mut self, conversation: Conversation) {
        self.heads.insert(conversation.no, Head { first_seq: 1, ..Head::default() });
        self.put_conversation(conversation);
    }

    fn put_conversation(&mut self, conversation: Conversation) {
        let row = encode_conversation(&conversation);
        self.batch.put(Space::Meta, key(MetaKind::Conversation, &[conversation.no.0]), row);
        self.conversations.insert(conversation.no, conversation);
    }

    fn membership(&self, conversation: ConversationNo, user: UserNo) -> StoreResult<Option<Membership>> {
        match self.memberships.get(&(conversation, user)) {
            Some(membership) => Ok(membership.clone()),
            None => read_membership(self.kv, conversation, user),
        }
    }

    fn add_member(&mut self, conversation: &Conversation, user: UserNo, membership: Membership) {
        self.put_membership(conversation.no, user, membership);
        self.batch.put(Space::Meta, user_conversation_key(user, conversation.kind, conversation.no), Vec::new());
    }

    fn put_membership(&mut self, conversation: ConversationNo, user: UserNo, membership: Membership) {
        let row = encode(&MembershipRow::of(&membership));
        self.batch.put(Space::Meta, key(MetaKind::Member, &[conversation.0, user.0]), row);
        self.memberships.insert((conversation, user), Some(membership));
    }

    fn remove_member(&mut self, conversation: &Conversation, user: UserNo) {
        self.batch.remove(Space::Meta, key(MetaKind::Member, &[conversation.no.0, user.0]));
        self.batch.remove(Space::Meta, user_conversation_key(user, conversation.kind, conversation.no));
        self.memberships.insert((conversation.no, user), None);
    }

    fn forget_send(&mut self, conversation: ConversationNo, author: UserNo, client_msg_id: &str) -> StoreResult<()> {
        self.rewrites = true;
        let key = dedupe_key(conversation, author, client_msg_id);
        let former = self.has_former_results.then(|| read_first_result(self.kv, &key, true)).transpose()?.flatten();
        self.first_results.remove(&key);
        self.batch.remove(Space::Dedupe, former.map_or(key, |(_, key)| key));
        Ok(())
    }

    fn rename_conversation(&mut self, former: &str, conversation: Conversation) {
        self.rewrites = true;
        self.batch.remove(Space::Meta, id_key(MetaKind::ConversationId, former));
        self.batch.put(
            Space::Meta,
            id_key(MetaKind::ConversationId, &conversation.id),
            conversation.no.0.to_be_bytes().to_vec(),
        );
        self.conversation_nos.insert(former.to_owned(), None);
        self.conversation_nos.insert(conversation.id.clone(), Some(conversation.no));
        self.put_conversation(conversation);
    }

    fn erase_user(&mut self, former: &str, user: User) {
        self.rewrites = true;
        self.batch.remove(Space::Meta, id_key(MetaKind::UserId, former));
        self.batch.put(Space::Meta, id_key(MetaKind::UserId, &user.id), user.no.0.to_be_bytes().to_vec());
        self.batch.remove(Space::Meta, key(MetaKind::Revoked, &[user.no.0]));
        self.batch.remove(Space::Meta, key(MetaKind::LastSeen, &[user.no.0]));
        self.user_nos.insert(former.to_owned(), None);
        self.user_nos.insert(user.id.clone(), Some(user.no));
        // First results are forgotten with their entries.
        self.put_user(user);
    }

    fn advance_outbox(&mut self, through: Position, dead: &[StoredNotification]) -> StoreResult<()> {
        let before = match self.outbox_progress {
            Some(progress) => progress,
            None => read_outbox_progress(self.kv)?,
        };
        if through > before.through {
            let (rows, progress) = consumed_outbox_rows(self.kv, before, through)?;
            rows.into_iter().for_each(|row| self.batch.remove(Space::Meta, row));
            self.batch.put(
                Space::Meta,
                MetaKind::OutboxProgress.only_key(),
                numbers_row(&[progress.through, progress.first_row]),
            );
            self.outbox_progress = Some(progress);
        }
        for notification in dead {
            self.batch.put(Space::Meta, notification_key(notification.key), encode(&NotificationRow::of(notification)));
        }
        Ok(())
    }

    fn delete_notifications(&mut self, keys: &[NotificationKey]) {
        keys.iter().for_each(|key| self.batch.remove(Space::Meta, notification_key(*key)));
    }
}
