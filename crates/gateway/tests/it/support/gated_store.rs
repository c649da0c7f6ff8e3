//! A store in memory whose commits and defects a test decides.
#![allow(unreachable_pub)]

use crossbeam_channel::{Receiver, bounded};
use std::sync::atomic::{AtomicBool, Ordering};
use tidings_domain::{model::*, push_store::*, store::*, stored_id::StoredId};
use tidings_testkit::MemoryStore;

/// A store that commits one batch per token of the gate, loses the answer to the removal of a device, and has a defect when a test
/// wants one.
pub struct Gated {
    inner: MemoryStore,
    gate: Receiver<()>,
    /// Look-ups of users, conversations and entries panic.
    pub panics: AtomicBool,
}

impl Gated {
    pub fn behind(gate: Receiver<()>) -> Self {
        Gated { inner: MemoryStore::default(), gate, panics: AtomicBool::new(false) }
    }

    /// The gate stands open.
    pub fn open() -> Self {
        Gated::behind(bounded(0).1)
    }

    fn sound(&self) -> &MemoryStore {
        assert!(!self.panics.load(Ordering::SeqCst), "a defect, on purpose");
        &self.inner
    }
}

impl PushStore for Gated {
    fn write_push(&self, term: Term, changes: &[PushChange]) -> StoreResult<()> {
        self.inner.write_push(term, changes)?;
        if changes.iter().any(|change| matches!(change, PushChange::Delete(PushKey::Device(_)))) {
            Err(StoreError::OutcomeUnknown("the answer was lost".into()))
        } else {
            Ok(())
        }
    }
    fn push_row(&self, key: &PushKey) -> StoreResult<Option<PushRow>> {
        self.inner.push_row(key)
    }
    fn push_rows(&self, from: &PushKey, to: &PushKey, limit: usize) -> StoreResult<Vec<PushRow>> {
        self.inner.push_rows(from, to, limit)
    }
}

impl RowStore for Gated {
    fn write_rows(&self, term: Term, space: RowSpace, changes: Vec<RowChange>) -> StoreResult<()> {
        self.inner.write_rows(term, space, changes)
    }
    fn row(&self, space: RowSpace, key: &[u8]) -> StoreResult<Option<Vec<u8>>> {
        self.inner.row(space, key)
    }
    fn rows(&self, space: RowSpace, from: &[u8], to: &[u8], limit: usize) -> StoreResult<Vec<(Vec<u8>, Vec<u8>)>> {
        self.inner.rows(space, from, to, limit)
    }
}

impl Store for Gated {
    fn commit(&self, batch: &[Proposal], now_ms: u64) -> StoreResult<Vec<Outcome>> {
        // A dropped gate is open.
        let _ = self.gate.recv();
        self.inner.commit(batch, now_ms)
    }
    fn log_after(&self, after: Position, limit: usize) -> StoreResult<tidings_domain::log_records::LogPage> {
        self.inner.log_after(after, limit)
    }
    fn find_ids(
        &self,
        of: NamedKind,
        prefix: Option<StoredId<'_>>,
        after: Option<StoredId<'_>>,
        limit: usize,
    ) -> StoreResult<Vec<(String, u64)>> {
        self.inner.find_ids(of, prefix, after, limit)
    }
    fn stored_seqs(&self, requests: &[(ConversationNo, UserNo, &str)]) -> StoreResult<Vec<Option<u64>>> {
        self.inner.stored_seqs(requests)
    }
    fn log_start(&self) -> StoreResult<Option<Position>> {
        self.inner.log_start()
    }
    fn last_numbers(&self) -> StoreResult<tidings_domain::store::LastNumbers> {
        self.inner.last_numbers()
    }
    fn epoch(&self) -> u64 {
        self.inner.epoch()
    }
    fn last_position(&self) -> Position {
        self.inner.last_position()
    }
    fn find_user(&self, id: StoredId<'_>) -> StoreResult<Option<UserNo>> {
        self.sound().find_user(id)
    }
    fn user(&self, no: UserNo) -> StoreResult<Option<User>> {
        self.inner.user(no)
    }
    fn last_seen(&self, no: UserNo) -> StoreResult<Option<u64>> {
        self.inner.last_seen(no)
    }
    fn find_conversation(&self, id: StoredId<'_>) -> StoreResult<Option<ConversationNo>> {
        self.sound().find_conversation(id)
    }
    fn conversation(&self, no: ConversationNo) -> StoreResult<Option<Conversation>> {
        self.inner.conversation(no)
    }
    fn head(&self, no: ConversationNo) -> StoreResult<Head> {
        self.inner.head(no)
    }
    fn membership(&self, conversation: ConversationNo, user: UserNo) -> StoreResult<Option<Membership>> {
        self.inner.membership(conversation, user)
    }
    fn members(&self, c: ConversationNo, after: Option<UserNo>, n: usize) -> StoreResult<Vec<(UserNo, Membership)>> {
        self.inner.members(c, after, n)
    }
    fn conversations_of(&self, user: UserNo, direct: bool, n: usize) -> StoreResult<Vec<UserConversation>> {
        self.sound().conversations_of(user, direct, n)
    }
    fn entries(&self, c: ConversationNo, a: u64, b: u64, n: usize, from: End) -> StoreResult<Vec<StoredEntry>> {
        self.sound().entries(c, a, b, n, from)
    }
    fn seq_at(&self, conversation: ConversationNo, at_ms: u64) -> StoreResult<u64> {
        self.inner.seq_at(conversation, at_ms)
    }
    fn outbox(&self, after: Position, limit: usize) -> StoreResult<Vec<OutboxItem>> {
        self.inner.outbox(after, limit)
    }
    fn outbox_position(&self) -> StoreResult<Position> {
        self.inner.outbox_position()
    }
    fn stored_notifications(
        &self,
        table: NotificationTable,
        after: Option<u64>,
        limit: usize,
    ) -> StoreResult<Vec<StoredNotification>> {
        self.inner.stored_notifications(table, after, limit)
    }
    fn retain_but(&self, retention: Retention, except: &[ConversationNo], now_ms: u64) -> StoreResult<u64> {
        self.inner.retain_but(retention, except, now_ms)
    }
    fn retain_in(&self, conversation: ConversationNo, retention: Retention, now_ms: u64) -> StoreResult<RetainedIn> {
        self.inner.retain_in(conversation, retention, now_ms)
    }
    fn stats(&self) -> StoreStats {
        self.inner.stats()
    }
}
