//! A session's request that meets a defect on another thread is answered, and the session goes on.

use crate::support::*;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use tidings_domain::{model::*, push_store::*, store::*, stored_id::StoredId};
use tidings_gateway::SessionConfig;
use tidings_protocol::{error::ErrorCode, frames::ServerFrame};
use tidings_testkit::MemoryStore;

/// A store whose look-ups panic from some time on.
#[derive(Default)]
struct Defective {
    inner: MemoryStore,
    panics: AtomicBool,
}

impl Defective {
    fn sound(&self) -> &MemoryStore {
        assert!(!self.panics.load(Ordering::SeqCst), "a defect, on purpose");
        &self.inner
    }
}

#[test]
fn every_request_that_panics_is_answered_with_internal() {
    let store = Arc::new(Defective::default());
    let config = SessionConfig { session_requests: 4, ..session_config() };
    let server = Server::with(config, store.clone());
    server.users(&["alice", "bob"]);
    server.group("g", &["alice", "bob"]);
    server.say("bob", "g", "hello");
    let mut session = server.open("alice", "phone");
    store.panics.store(true, Ordering::SeqCst);
    let requests = [
        r#""t":"history","conversation":"g""#,
        r#""t":"conversations""#,
        r#""t":"read","conversation":"unknown","seq":1"#,
        r#""t":"edit","conversation":"unknown","seq":1,"body":{}"#,
        r#""t":"recall","conversation":"unknown","seq":1"#,
        r#""t":"react","conversation":"unknown","seq":1,"key":"a""#,
        r#""t":"pin","conversation":"unknown","seq":1"#,
        r#""t":"preferences","conversation":"unknown","pinned":true"#,
        r#""t":"watch_presence","users":["unknown"]"#,
        r#""t":"assign","conversation":"unknown","assigned_to":"bob""#,
        r#""t":"stream_end","conversation":"unknown","seq":1"#,
    ];
    for (reference, request) in (1..).zip(requests) {
        session.write_text(format!(r#"{{"ref":{reference},{request}}}"#).as_bytes()).unwrap();
        let (answered, code, message) = error(&mut session);
        assert_eq!((answered, code), (Some(reference), ErrorCode::Internal), "{request}: {message}");
    }
    store.panics.store(false, Ordering::SeqCst);
    // More have panicked than a session may have under way: each has given its place back.
    session.write_text(br#"{"t":"history","ref":99,"conversation":"g"}"#).unwrap();
    assert!(matches!(next(&mut session), ServerFrame::History { reference: Some(99), .. }));
}

impl PushStore for Defective {
    fn write_push(&self, term: Term, changes: &[PushChange]) -> StoreResult<()> {
        self.inner.write_push(term, changes)
    }
    fn push_row(&self, key: &PushKey) -> StoreResult<Option<PushRow>> {
        self.inner.push_row(key)
    }
    fn push_rows(&self, from: &PushKey, to: &PushKey, limit: usize) -> StoreResult<Vec<PushRow>> {
        self.inner.push_rows(from, to, limit)
    }
}

impl RowStore for Defective {
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

impl Store for Defective {
    fn find_user(&self, id: StoredId<'_>) -> StoreResult<Option<UserNo>> {
        self.sound().find_user(id)
    }
    fn find_conversation(&self, id: StoredId<'_>) -> StoreResult<Option<ConversationNo>> {
        self.sound().find_conversation(id)
    }
    fn entries(&self, c: ConversationNo, a: u64, b: u64, n: usize, from: End) -> StoreResult<Vec<StoredEntry>> {
        self.sound().entries(c, a, b, n, from)
    }
    fn conversations_of(&self, user: UserNo, direct: bool, n: usize) -> StoreResult<Vec<UserConversation>> {
        self.sound().conversations_of(user, direct, n)
    }
    fn commit(&self, batch: &[Proposal], now_ms: u64) -> StoreResult<Vec<Outcome>> {
        self.inner.commit(batch, now_ms)
    }
    fn epoch(&self) -> u64 {
        self.inner.epoch()
    }
    fn last_position(&self) -> Position {
        self.inner.last_position()
    }
    fn user(&self, no: UserNo) -> StoreResult<Option<User>> {
        self.inner.user(no)
    }
    fn last_seen(&self, no: UserNo) -> StoreResult<Option<u64>> {
        self.inner.last_seen(no)
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
    fn seq_at(&self, conversation: ConversationNo, at_ms: u64) -> StoreResult<u64> {
        self.inner.seq_at(conversation, at_ms)
    }
    fn outbox(&self, after: Position, limit: usize) -> StoreResult<Vec<OutboxItem>> {
        self.inner.outbox(after, limit)
    }
    fn outbox_position(&self) -> StoreResult<Position> {
        self.inner.outbox_position()
    }
    fn dead_notifications(&self, after: Option<u64>, limit: usize) -> StoreResult<Vec<DeadNotification>> {
        self.inner.dead_notifications(after, limit)
    }
    fn retain(&self, retention: Retention, now_ms: u64) -> StoreResult<u64> {
        self.inner.retain(retention, now_ms)
    }
    fn stats(&self) -> StoreStats {
        self.inner.stats()
    }
}
