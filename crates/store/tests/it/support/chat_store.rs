//! A store with chats in PostgreSQL and all other rows in memory: an engine's background work sends no statement to the
//! database, so that the statements of one operation can be counted.

use std::sync::Arc;
use tidings_domain::{model::*, push_store::*, store::*, stored_id::StoredId};
use tidings_store::PostgresStore;
use tidings_testkit::MemoryStore;

pub(crate) struct ChatStore {
    pub chat: Arc<PostgresStore>,
    pub rest: MemoryStore,
    /// Reads of many as single reads.
    pub singly: bool,
}

impl Store for ChatStore {
    fn commit(&self, batch: &[Proposal], now_ms: u64) -> StoreResult<Vec<Outcome>> {
        self.chat.commit(batch, now_ms)
    }
    fn commit_in_order(&self, batch: &[Proposal], now_ms: u64) -> StoreResult<(Vec<Outcome>, PositionRange)> {
        self.chat.commit_in_order(batch, now_ms)
    }
    fn log_after(&self, after: Position, limit: usize) -> StoreResult<tidings_domain::log_records::LogPage> {
        self.chat.log_after(after, limit)
    }
    fn log_start(&self) -> StoreResult<Option<Position>> {
        self.chat.log_start()
    }
    fn epoch(&self) -> u64 {
        self.chat.epoch()
    }
    fn last_position(&self) -> Position {
        self.chat.last_position()
    }
    fn last_numbers(&self) -> StoreResult<LastNumbers> {
        self.chat.last_numbers()
    }
    fn find_user(&self, id: StoredId<'_>) -> StoreResult<Option<UserNo>> {
        self.chat.find_user(id)
    }
    fn user(&self, no: UserNo) -> StoreResult<Option<User>> {
        self.chat.user(no)
    }
    fn last_seen(&self, no: UserNo) -> StoreResult<Option<u64>> {
        self.chat.last_seen(no)
    }
    fn find_conversation(&self, id: StoredId<'_>) -> StoreResult<Option<ConversationNo>> {
        self.chat.find_conversation(id)
    }
    fn conversation(&self, no: ConversationNo) -> StoreResult<Option<Conversation>> {
        self.chat.conversation(no)
    }
    fn head(&self, no: ConversationNo) -> StoreResult<Head> {
        self.chat.head(no)
    }
    fn membership(&self, conversation: ConversationNo, user: UserNo) -> StoreResult<Option<Membership>> {
        self.chat.membership(conversation, user)
    }
    fn members(&self, c: ConversationNo, after: Option<UserNo>, n: usize) -> StoreResult<Vec<(UserNo, Membership)>> {
        self.chat.members(c, after, n)
    }
    fn conversations_of(&self, user: UserNo, direct: bool, n: usize) -> StoreResult<Vec<UserConversation>> {
        self.chat.conversations_of(user, direct, n)
    }
    fn entries(&self, c: ConversationNo, a: u64, b: u64, n: usize, from: End) -> StoreResult<Vec<StoredEntry>> {
        self.chat.entries(c, a, b, n, from)
    }
    fn conversation_states(
        &self,
        user: UserNo,
        filter: ConversationFilter,
        limit: usize,
    ) -> StoreResult<Vec<ConversationState>> {
        if self.singly {
            batch_reads::conversation_states(self, user, filter, limit)
        } else {
            self.chat.conversation_states(user, filter, limit)
        }
    }
    fn heads(&self, nos: &[ConversationNo]) -> StoreResult<Vec<Head>> {
        if self.singly { batch_reads::heads(self, nos) } else { self.chat.heads(nos) }
    }
    fn conversations(&self, nos: &[ConversationNo]) -> StoreResult<Vec<Option<Conversation>>> {
        if self.singly { batch_reads::conversations(self, nos) } else { self.chat.conversations(nos) }
    }
    fn positions_at(&self, entries: &[(ConversationNo, u64)]) -> StoreResult<Vec<Option<Position>>> {
        if self.singly { batch_reads::positions_at(self, entries) } else { self.chat.positions_at(entries) }
    }
    fn find_ids(
        &self,
        of: NamedKind,
        prefix: Option<StoredId<'_>>,
        after: Option<StoredId<'_>>,
        limit: usize,
    ) -> StoreResult<Vec<(String, u64)>> {
        self.chat.find_ids(of, prefix, after, limit)
    }
    fn stored_seqs(&self, requests: &[(ConversationNo, UserNo, &str)]) -> StoreResult<Vec<Option<u64>>> {
        self.chat.stored_seqs(requests)
    }
    fn pages(&self, asked: &[PageRequest], bytes_max: usize) -> StoreResult<Vec<Vec<StoredEntry>>> {
        if self.singly { batch_reads::pages(self, asked, bytes_max) } else { self.chat.pages(asked, bytes_max) }
    }
    fn missed(&self, tails: &[Tail], query: MissedQuery) -> StoreResult<MissedEntries> {
        if self.singly { batch_reads::missed(self, tails, query) } else { self.chat.missed(tails, query) }
    }
    fn seq_at(&self, conversation: ConversationNo, at_ms: u64) -> StoreResult<u64> {
        self.chat.seq_at(conversation, at_ms)
    }
    fn outbox(&self, after: Position, limit: usize) -> StoreResult<Vec<OutboxItem>> {
        self.chat.outbox(after, limit)
    }
    fn outbox_position(&self) -> StoreResult<Position> {
        self.chat.outbox_position()
    }
    fn stored_notifications(
        &self,
        table: NotificationTable,
        after: Option<u64>,
        limit: usize,
    ) -> StoreResult<Vec<StoredNotification>> {
        self.chat.stored_notifications(table, after, limit)
    }
    fn retain_but(&self, retention: Retention, except: &[ConversationNo], now_ms: u64) -> StoreResult<u64> {
        self.chat.retain_but(retention, except, now_ms)
    }
    fn retain_in(&self, conversation: ConversationNo, retention: Retention, now_ms: u64) -> StoreResult<RetainedIn> {
        self.chat.retain_in(conversation, retention, now_ms)
    }
    fn stats(&self) -> StoreStats {
        self.chat.stats()
    }
}

impl PushStore for ChatStore {
    fn write_push(&self, term: Term, changes: &[PushChange]) -> StoreResult<()> {
        self.rest.write_push(term, changes)
    }
    fn push_row(&self, key: &PushKey) -> StoreResult<Option<PushRow>> {
        self.rest.push_row(key)
    }
    fn push_rows(&self, from: &PushKey, to: &PushKey, limit: usize) -> StoreResult<Vec<PushRow>> {
        self.rest.push_rows(from, to, limit)
    }
}

impl RowStore for ChatStore {
    fn write_rows(&self, term: Term, space: RowSpace, changes: Vec<RowChange>) -> StoreResult<()> {
        self.rest.write_rows(term, space, changes)
    }
    fn row(&self, space: RowSpace, key: &[u8]) -> StoreResult<Option<Vec<u8>>> {
        self.rest.row(space, key)
    }
    fn rows(&self, space: RowSpace, from: &[u8], to: &[u8], limit: usize) -> StoreResult<Vec<(Vec<u8>, Vec<u8>)>> {
        self.rest.rows(space, from, to, limit)
    }
}
