//! Events that wait for another attempt, and messages that a session did not acknowledge, are in tables of their own. Rows of the form before,
//! which shared the table of dead letters, are read as ever, also beside new ones; while a node may be among the nodes that knows that form alone,
//! no other is written.
#![expect(clippy::disallowed_methods, reason = "a channel of a test ends with it")]

use crate::{
    a_failed_event_holds_up_its_own_conversation_only::{App, NEVER, ToApp, texts, until, world},
    support::*,
};
use crossbeam_channel::unbounded;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tidings_domain::{
    commit_log::*,
    function::Function,
    gates::Gate,
    model::{Actor, Cursor, LANES, Position},
    store::*,
};
use tidings_notifications::{NotificationParts, SilentSession, webhook_push::WebhookPushConfig};
use tidings_protocol::http::{ConversationKind, DeadLetterId, SelectDeadLetters};
use tidings_store::{EmbeddedOptions, EmbeddedStore};
use tidings_testkit::{LocalBus, MemoryStore};

fn in_table(store: &dyn Store, table: NotificationTable) -> usize {
    store.stored_notifications(table, None, 100).unwrap().len()
}

/// How many rows each table has.
fn counts(store: &dyn Store) -> [usize; 3] {
    NotificationTable::ALL.map(|table| in_table(store, table))
}

/// Writes all rows as the version before has them.
fn to_former_form(store: &dyn Store) {
    let rows = stored(store);
    let keys = rows.iter().map(|row| row.key).collect();
    let former = |row: StoredNotification| {
        let NotificationKey { table, id } = row.key;
        let id = match table {
            NotificationTable::DeadLetters => id,
            NotificationTable::Retries => 1 << 62 | id,
            NotificationTable::Unacknowledged => 3 << 61 | (id & 1) << 60 | 1 << 59 | id >> 1,
        };
        StoredNotification { key: NotificationKey { table: NotificationTable::DeadLetters, id }, ..row }
    };
    let dead = rows.into_iter().map(former).collect();
    let changes = [Proposal::DeleteStoredNotifications { keys }, Proposal::AdvanceOutbox { through: 0, dead }];
    store.commit(&changes, NOON).unwrap();
}

/// A store that the version before has left is taken over.
async fn check_former_rows(open: impl Fn() -> Arc<dyn Store>) {
    let app = Arc::new(App::default());
    app.unreadable.lock().extend(["poison".into(), "venom".into()]);
    let first = world(open(), &app, NEVER, 10);
    first.rooms(&["a", "b"]).await;
    first.say("b", "poison").await;
    until("it waits", || first.gauge("tidings_webhook_parked") == 1);
    first.say("b", "b1").await;
    until("the next one waits behind it", || first.gauge("tidings_webhook_parked") == 2);
    // What a session did not acknowledge is stored, and is decided a second later by the clock.
    let ben = first.engine.directory.require_user("ben").unwrap();
    let store = first.engine.store.clone();
    let since = Cursor { epoch: store.epoch(), positions: [store.last_position(); LANES] };
    first.say("a", "a1").await;
    assert_eq!(first.taken(1), texts(&[("a", &["a1"])]));
    let until_now = [store.last_position(); LANES];
    let notifications = first.notifications.clone();
    let session = SilentSession { session: 7, stays: true, acknowledges: false };
    let store_it = move || notifications.push_unacknowledged(&ben, session, &since, until_now).unwrap();
    tokio::task::spawn_blocking(store_it).await.unwrap();
    assert_eq!(counts(&*store), [0, 2, 1]);
    first.stop();
    to_former_form(&*store);
    assert_eq!(counts(&*store), [3, 0, 0]);
    drop((first, store));

    // Events of a conversation go on behind those of the form before.
    let second = world(open(), &app, NEVER, 10);
    assert_eq!(second.taken(1), texts(&[("a", &["a1"])]), "which was not acknowledged");
    until("those before are tried", || second.gauge("tidings_webhook_parked") == 2);
    second.say("b", "b2").await;
    until("both forms wait", || counts(&*second.engine.store) == [2, 1, 0]);
    let page = second.notifications.dead_letters(None, 0, &SelectDeadLetters::default()).unwrap();
    assert!(page.dead_letters.is_empty(), "none of these is a dead letter: {page:?}");
    let of_a_retry =
        second.notifications.dead_letters(Some(DeadLetterId::Webhook(1 << 62)), 0, &SelectDeadLetters::default());
    assert!(of_a_retry.unwrap().dead_letters.is_empty());
    second.stop();
    drop(second);

    app.unreadable.lock().clear();
    let third = world(open(), &app, NEVER, 10);
    assert_eq!(third.taken(3), texts(&[("b", &["poison", "b1", "b2"])]), "all of it, in order");
    until("nothing waits any more", || counts(&*third.engine.store) == [0, 0, 0]);
    third.stop();
    assert!(third.engine.store.outbox(0, 10).unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_the_form_before_are_dealt_with_on_the_memory_store() {
    let store = Arc::new(MemoryStore::default());
    check_former_rows(|| store.clone()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_the_form_before_are_dealt_with_on_the_embedded_store() {
    let folder = tempfile::tempdir().unwrap();
    check_former_rows(|| {
        let options = EmbeddedOptions { outbox: true, disk_reserve_bytes: 0, ..EmbeddedOptions::new(folder.path()) };
        Arc::new(EmbeddedStore::open(options).unwrap())
    })
    .await;
}

/// The log of a cluster in which a node of the version before lives, until it is gone.
struct OldNodeLog {
    store: Arc<MemoryStore>,
    is_gone: AtomicBool,
}

impl CommitLog for OldNodeLog {
    fn committed_after(&self, after: Position, limit: usize) -> StoreResult<LogPage> {
        self.store.committed_after(after, limit)
    }

    fn newest_position(&self) -> StoreResult<Position> {
        self.store.newest_position()
    }

    fn prune(&self, older_than_ms: u64) -> StoreResult<PruneProgress> {
        self.store.prune(older_than_ms)
    }

    fn heartbeat(
        &self,
        me: &NodeInfo,
        lease: u64,
        takes: &[Function],
        takes_name: bool,
    ) -> Result<ClusterView, HeartbeatError> {
        let mut view = self.store.heartbeat(me, lease, takes, takes_name)?;
        if !self.is_gone.load(Ordering::Acquire) {
            view.open_gates.retain(|gate| gate != Gate::NotificationTables.name());
        }
        Ok(view)
    }

    fn open_gates(&self, gates: &[&'static str], known_by: &[u64]) -> StoreResult<()> {
        self.store.open_gates(gates, known_by)
    }

    fn release_lease(&self, boot_id: u64) -> StoreResult<()> {
        self.store.release_lease(boot_id)
    }
}

#[test]
fn while_a_node_knows_the_form_before_alone_no_other_is_written() {
    let store = Arc::new(MemoryStore::default());
    let log = Arc::new(OldNodeLog { store: store.clone(), is_gone: AtomicBool::new(false) });
    let app = Arc::new(App::default());
    app.unreadable.lock().insert("poison".into());
    let (take, taken) = unbounded();
    let (attempt, _attempts) = unbounded();
    let webhook = Arc::new(ToApp { app: app.clone(), taken: take, attempts: attempt });
    let config = WebhookPushConfig {
        secret: "secret".into(),
        backoff_min: NEVER,
        backoff_max: NEVER,
        ..WebhookPushConfig::default()
    };
    // The lease is renewed often, so that the node learns soon which gates are open.
    let lease = Duration::from_secs(3);
    let parts = NotificationParts { webhook: Some((webhook, config)), ..NotificationParts::default() };
    let node = World::node_with_parts("a", &store, log.clone(), &LocalBus::default(), lease, parts);
    until("it leads", || node.engine.leads(Function::Push));
    node.users(&["ada", "ben"]);
    node.conversation(ConversationKind::Group, "room", &["ada", "ben"]);
    let say = |text| node.wait(node.engine.send(&Actor::App, message("ada", "room", text))).unwrap();
    say("poison");
    until("the form before is written", || counts(&*store) == [1, 0, 0]);
    say("second");
    until("also of what waits behind it", || counts(&*store) == [2, 0, 0]);
    assert!(stored(&*store).iter().all(|row| row.key.id >= 1 << 62));

    log.is_gone.store(true, Ordering::Release);
    until("the gate opens", || node.engine.gates.is_open(Gate::NotificationTables));
    say("third");
    until("the new form is beside it", || counts(&*store) == [2, 1, 0]);
    app.unreadable.lock().clear();
    node.clock.advance(NEVER);
    for expected in ["poison", "second", "third"] {
        let event: serde_json::Value = taken.recv_timeout(PATIENCE).unwrap();
        assert_eq!(event["entry"]["body"], expected);
    }
    until("nothing waits any more", || counts(&*store) == [0, 0, 0]);
    node.stop();
}
