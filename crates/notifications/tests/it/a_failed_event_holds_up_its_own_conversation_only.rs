//! An event that the webhook does not take waits with its conversation, in order, across restarts and on both stores;
//! all other conversations go on. A webhook that takes nothing is an outage, which ends with the first successful
//! delivery.
#![expect(clippy::disallowed_methods, reason = "a channel of a test ends with it")]

use crate::support::*;
use crossbeam_channel::{Receiver, unbounded};
use parking_lot::Mutex;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::{
    model::{Actor, Cursor, LANES},
    store::Store,
};
use tidings_engine::{Engine, EngineParts, config::EngineConfig, presence::PresenceSession, shards::Wake};
use tidings_notifications::{
    NotificationParts, Notifications, SilentSession,
    webhook::{Webhook, WebhookDelivery, WebhookError},
    webhook_push::WebhookPushConfig,
};
use tidings_protocol::http::*;
use tidings_store::{EmbeddedOptions, EmbeddedStore};
use tidings_testkit::{ManualClock, MemoryStore};

struct Asleep;
impl Wake for Asleep {
    fn wake(&self) {}
}

/// An app that answers 500 to a call with a text that it cannot read, and shows the events that it took.
#[derive(Default)]
pub(crate) struct App {
    pub(crate) unreadable: Mutex<BTreeSet<String>>,
    is_down: Mutex<bool>,
}

pub(crate) struct ToApp {
    pub(crate) app: Arc<App>,
    pub(crate) taken: crossbeam_channel::Sender<Value>,
    pub(crate) attempts: crossbeam_channel::Sender<()>,
}

impl Webhook for ToApp {
    fn deliver(&self, delivery: &WebhookDelivery) -> Result<(), WebhookError> {
        let _ = self.attempts.send(());
        let body = std::str::from_utf8(&delivery.body).unwrap();
        if *self.app.is_down.lock() || self.app.unreadable.lock().iter().any(|text| body.contains(text)) {
            return Err(WebhookError::new("the webhook answered 500"));
        }
        let body: Value = serde_json::from_str(body).unwrap();
        body["events"].as_array().unwrap().iter().for_each(|event| drop(self.taken.send(event.clone())));
        Ok(())
    }
}

pub(crate) struct World {
    app: Arc<App>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) notifications: Arc<Notifications>,
    taken: Receiver<Value>,
    attempts: Receiver<()>,
}

/// A world that retries failed events after `wait`.
pub(crate) fn world(store: Arc<dyn Store>, app: &Arc<App>, wait: Duration, attempts_max: u32) -> World {
    let clock = Arc::new(ManualClock::default());
    clock.set(NOON);
    let (take, taken) = unbounded();
    let (attempt, attempts) = unbounded();
    let webhook = Arc::new(ToApp { app: app.clone(), taken: take, attempts: attempt });
    let config = WebhookPushConfig {
        secret: "secret".into(),
        attempts_max,
        backoff_min: wait,
        backoff_max: wait,
        ..WebhookPushConfig::default()
    };
    // Nobody has a session. Without receivers the lanes hand out to nobody, and do not wait once a shard's queue is full.
    let (engine, _) = Engine::start(EngineParts {
        config: patient(EngineConfig::default()),
        clock: clock.clone(),
        store,
        wakes: vec![Arc::new(Asleep)],
        cluster: None,
    });
    let parts = NotificationParts { webhook: Some((webhook, config)), ..NotificationParts::default() };
    let notifications = Notifications::start(&engine, parts);
    World { app: app.clone(), clock, engine, notifications, taken, attempts }
}

const AT_ONCE: Duration = Duration::ZERO;
const BACKOFF: Duration = Duration::from_secs(300);
pub(crate) const NEVER: Duration = Duration::from_secs(3_600);

impl World {
    pub(crate) fn stop(&self) {
        self.notifications.stop();
        self.engine.stop();
    }

    pub(crate) async fn rooms(&self, rooms: &[&str]) {
        let users = ["ada", "ben"].map(|id| UserUpsert { id: id.into(), ..UserUpsert::default() });
        self.engine.upsert_users(users.into()).await.unwrap();
        for room in rooms {
            let room = serde_json::json!({ "id": room, "kind": "group", "members": ["ada", "ben"] });
            self.engine.create_conversation(&Actor::App, serde_json::from_value(room).unwrap()).await.unwrap();
        }
    }

    pub(crate) async fn say(&self, room: &str, text: &str) {
        self.engine.send(&Actor::App, message("ada", room, text)).await.unwrap();
    }

    /// Receives `count` events; answers their texts by conversation, in order.
    pub(crate) fn taken(&self, count: usize) -> BTreeMap<String, Vec<String>> {
        let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for _ in 0..count {
            let event = self.taken.recv_timeout(PATIENCE).expect("another event is taken");
            let word = |value: &Value| value.as_str().unwrap().to_owned();
            texts.entry(word(&event["conversation"]["id"])).or_default().push(word(&event["entry"]["body"]));
        }
        texts
    }

    pub(crate) fn gauge(&self, name: &str) -> i64 {
        let text = self.engine.metrics.render();
        let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap_or_else(|| panic!("{name}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }
}

pub(crate) fn texts(expected: &[(&str, &[&str])]) -> BTreeMap<String, Vec<String>> {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    expected.iter().map(|(room, texts)| ((*room).to_owned(), owned(texts))).collect()
}

#[track_caller]
pub(crate) fn until(what: &str, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::yield_now();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_conversations_go_on_while_one_is_retried() {
    let app = Arc::new(App::default());
    app.unreadable.lock().insert("poison".into());
    let world = world(Arc::new(MemoryStore::default()), &app, NEVER, 10);
    world.rooms(&["a", "b", "c"]).await;
    // With the poison in the middle of a batch, however the messages fall into batches.
    world.say("a", "a1").await;
    for text in ["b1", "poison", "b2"] {
        world.say("b", text).await;
    }
    for (room, text) in [("c", "c1"), ("a", "a2"), ("b", "b3"), ("c", "c2")] {
        world.say(room, text).await;
    }
    let mut taken = world.taken(4);
    // Events before the poison in its conversation may have been in one call with it, and wait too.
    let before = taken.remove("b");
    let others = world.taken(usize::from(before.is_some()));
    for (room, more) in others {
        taken.entry(room).or_default().extend(more);
    }
    assert_eq!(taken, texts(&[("a", &["a1", "a2"]), ("c", &["c1", "c2"])]));
    until("the rest of its conversation waits", || world.gauge("tidings_webhook_parked") >= 3);
    until("nothing else does", || world.gauge("tidings_webhook_lag") == 0);
    assert_eq!(world.gauge("tidings_webhook_failing"), 0, "one conversation is no outage");
    assert_eq!(
        world.notifications.dead_letters(None, 0, &SelectDeadLetters::default()).unwrap().dead_letters.len(),
        0,
        "queued events are no dead letters"
    );
    world.stop();
}

/// The next engine on the store loads the retry queue.
async fn check_restart(open: impl Fn() -> Arc<dyn Store>) {
    let app = Arc::new(App::default());
    app.unreadable.lock().insert("poison".into());
    let first = world(open(), &app, NEVER, 10);
    first.rooms(&["a", "b"]).await;
    first.say("b", "poison").await;
    until("it waits", || first.gauge("tidings_webhook_parked") == 1);
    for text in ["b1", "b2"] {
        first.say("b", text).await;
    }
    first.say("a", "a1").await;
    assert_eq!(first.taken(1), texts(&[("a", &["a1"])]));
    until("its conversation waits behind it", || first.gauge("tidings_webhook_parked") == 3);
    first.stop();
    drop(first);

    app.unreadable.lock().clear();
    let second = world(open(), &app, NEVER, 10);
    assert_eq!(second.taken(3), texts(&[("b", &["poison", "b1", "b2"])]), "all of it, in order");
    until("nothing waits any more", || second.gauge("tidings_webhook_parked") == 0);
    second.stop();
    assert!(second.taken.try_recv().is_err(), "twice");
    assert!(stored(&*second.engine.store).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_retry_queue_survives_a_restart_on_the_memory_store() {
    let store = Arc::new(MemoryStore::default());
    check_restart(|| store.clone()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_retry_queue_survives_a_restart_on_the_embedded_store() {
    let folder = tempfile::tempdir().unwrap();
    check_restart(|| {
        let options = EmbeddedOptions { outbox: true, disk_reserve_bytes: 0, ..EmbeddedOptions::new(folder.path()) };
        Arc::new(EmbeddedStore::open(options).unwrap())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_event_is_retried_after_its_backoff_and_not_before() {
    let app = Arc::new(App::default());
    app.unreadable.lock().insert("poison".into());
    let world = world(Arc::new(MemoryStore::default()), &app, BACKOFF, 10);
    world.rooms(&["a", "b"]).await;
    world.say("b", "poison").await;
    until("it waits", || world.gauge("tidings_webhook_parked") == 1);
    assert_eq!(world.attempts.try_iter().count(), 1);
    // A backoff is at least half of the configured one.
    world.clock.advance(BACKOFF / 2 - Duration::from_millis(1));
    world.say("a", "a1").await;
    assert_eq!(world.taken(1), texts(&[("a", &["a1"])]));
    assert_eq!(world.attempts.try_iter().count(), 1, "the round that delivered a1 had looked for retries before");
    app.unreadable.lock().clear();
    world.clock.advance(BACKOFF / 2 + Duration::from_millis(1));
    assert_eq!(world.taken(1), texts(&[("b", &["poison"])]));
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_told_of_a_message_that_was_recalled_while_its_event_waited() {
    let app = Arc::new(App::default());
    app.unreadable.lock().insert("poison".into());
    let world = world(Arc::new(MemoryStore::default()), &app, BACKOFF, 10);
    world.rooms(&["b"]).await;
    let sent = world.engine.send(&Actor::App, message("ada", "b", "poison")).await.unwrap();
    until("it waits", || world.gauge("tidings_webhook_parked") == 1);
    world.say("b", "b1").await;
    until("the next one waits behind it", || world.gauge("tidings_webhook_parked") == 2);
    world.engine.recall_message(&Actor::App, "b", sent.seq, None, None).await.unwrap();
    app.unreadable.lock().clear();
    world.clock.advance(BACKOFF);
    assert_eq!(world.taken(1), texts(&[("b", &["b1"])]));
    until("nothing waits", || world.gauge("tidings_webhook_parked") == 0);
    assert!(world.taken.try_recv().is_err());
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_always_fails_becomes_a_dead_letter_and_its_conversation_goes_on() {
    let app = Arc::new(App::default());
    app.unreadable.lock().insert("poison".into());
    let world = world(Arc::new(MemoryStore::default()), &app, AT_ONCE, 3);
    world.rooms(&["b"]).await;
    for text in ["poison", "b1", "b2"] {
        world.say("b", text).await;
    }
    assert_eq!(world.taken(2), texts(&[("b", &["b1", "b2"])]));
    let dead = world.notifications.dead_letters(None, 0, &SelectDeadLetters::default()).unwrap().dead_letters;
    assert_eq!(dead.iter().map(|dead| dead.attempts).collect::<Vec<_>>(), [3]);
    assert!(
        dead[0].event.as_ref().unwrap().get().contains("poison") && dead[0].cause.as_ref().unwrap().contains("500"),
        "{dead:?}"
    );
    until("nothing waits", || world.gauge("tidings_webhook_parked") == 0);
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_removes_dead_letters_of_recalled_messages_and_no_others_once_the_recall_is_old_enough() {
    const AGE: Duration = Duration::from_secs(3_600);
    let app = Arc::new(App::default());
    app.unreadable.lock().extend(["poison".into(), "venom".into()]);
    let world = world(Arc::new(MemoryStore::default()), &app, AT_ONCE, 1);
    world.rooms(&["b"]).await;
    let recalled = world.engine.send(&Actor::App, message("ada", "b", "poison")).await.unwrap();
    world.say("b", "venom").await;
    let texts_of_dead_letters = || {
        let dead = world.notifications.dead_letters(None, 0, &SelectDeadLetters::default()).unwrap().dead_letters;
        ["poison", "venom"]
            .map(|text| dead.iter().filter(|dead| dead.event.as_ref().unwrap().get().contains(text)).count())
    };
    until("both are dead letters", || texts_of_dead_letters() == [1, 1]);
    let purge = || tokio::task::block_in_place(|| world.notifications.purge_recalled(AGE).unwrap());
    assert!(!purge(), "nothing was recalled");
    world.engine.recall_message(&Actor::App, "b", recalled.seq, None, None).await.unwrap();
    world.clock.advance(AGE - Duration::from_secs(1));
    assert!(!purge(), "it is too early");
    assert_eq!(texts_of_dead_letters(), [1, 1]);
    world.clock.advance(Duration::from_secs(1));
    assert!(purge());
    assert_eq!(texts_of_dead_letters(), [0, 1]);
    assert!(!purge(), "all is purged");
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_webhook_loses_no_event_and_keeps_the_order() {
    let app = Arc::new(App::default());
    *app.is_down.lock() = true;
    let world = world(Arc::new(MemoryStore::default()), &app, AT_ONCE, u32::MAX);
    let rooms: Vec<String> = (0..8).map(|n| format!("r{n}")).collect();
    world.rooms(&rooms.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let mut said = 0;
    for n in 0..20 {
        for room in &rooms {
            world.say(room, &format!("{room}-{n}")).await;
            said += 1;
        }
    }
    until("the webhook is known to be out", || world.gauge("tidings_webhook_failing") == 1);
    *world.app.is_down.lock() = false;
    let taken = world.taken(said);
    for room in &rooms {
        let expected: Vec<String> = (0..20).map(|n| format!("{room}-{n}")).collect();
        assert_eq!(taken[room], expected);
    }
    until("it is well again", || world.gauge("tidings_webhook_failing") == 0);
    assert!(world.notifications.dead_letters(None, 0, &SelectDeadLetters::default()).unwrap().dead_letters.is_empty());
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn four_failing_conversations_do_not_hold_up_a_fifth() {
    let app = Arc::new(App::default());
    app.unreadable.lock().insert("poison".into());
    let world = world(Arc::new(MemoryStore::default()), &app, AT_ONCE, u32::MAX);
    let rooms = ["a", "b", "c", "d", "e", "sound"];
    world.rooms(&rooms).await;
    for room in &rooms[..5] {
        world.say(room, &format!("{room}-poison")).await;
    }
    until("they look like an outage", || world.gauge("tidings_webhook_failing") == 1);
    world.say("sound", "hello").await;
    assert_eq!(world.taken(1), texts(&[("sound", &["hello"])]));
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn unacknowledged_messages_are_pushed_unless_the_user_is_back() {
    let app = Arc::new(App::default());
    let world = world(Arc::new(MemoryStore::default()), &app, AT_ONCE, 3);
    world.rooms(&["a", "b"]).await;
    let ben = world.engine.directory.require_user("ben").unwrap();
    let device = |session: u64| {
        let (node, device_id, device_kind) = (Default::default(), format!("d{session}").into(), "web".into());
        PresenceSession { session, node, device_id, device_kind, since: 0, chat: true, background: false }
    };
    world.engine.presence.register(ben.no, device(7));
    world.engine.presence.register(world.engine.directory.require_user("ada").unwrap().no, device(1));
    let before = Cursor { epoch: world.engine.store.epoch(), positions: [world.engine.store.last_position(); LANES] };
    world.say("a", "a1").await;
    world.say("b", "b1").await;
    let silent = SendRequest { silent: true, ..message("ada", "b", "silent") };
    world.engine.send(&Actor::App, silent).await.unwrap();
    world.engine.send(&Actor::App, message("ben", "b", "own")).await.unwrap();
    world.say("b", "read").await;
    world.engine.mark_read(&ben, "a", 100).await.unwrap();
    until("the list is walked: ben was here", || {
        world.engine.store.outbox(0, 10).unwrap().is_empty() && world.gauge("tidings_webhook_lag") == 0
    });
    assert!(world.attempts.try_recv().is_err(), "a user who is online gets no event");
    let until_now = [world.engine.store.last_position(); LANES];
    let (notifications, clock) = (world.notifications.clone(), world.clock.clone());
    let tell = |session: u64, stays: bool| {
        let (notifications, ben) = (notifications.clone(), ben.clone());
        std::thread::spawn(move || {
            let session = SilentSession { session, stays, acknowledges: false };
            notifications.push_unacknowledged(&ben, session, &before, until_now).unwrap();
        })
        .join()
        .unwrap();
        // What nodes have stored is read once a second.
        clock.advance(Duration::from_secs(1));
    };
    // Another session of his receives messages.
    world.engine.presence.register(world.engine.directory.require_user("ben").unwrap().no, device(8));
    tell(7, false);
    let no = world.engine.directory.require_user("ben").unwrap().no;
    world.engine.presence.unregister(no, 8, NOON);
    world.engine.presence.unregister(no, 7, NOON);
    tell(7, false);
    let taken = world.taken(2);
    assert_eq!(taken, texts(&[("b", &["b1", "read"])]), "no message that he has read or sent, and no silent one");
    // A user who is back has got the messages again.
    world.engine.presence.register(no, device(9));
    let noted = world.gauge("tidings_webhook_unheard_total");
    tell(9, false);
    until("they are stored", || world.gauge("tidings_webhook_unheard_total") == noted + 2);
    until("they are deleted", || stored(&*world.engine.store).is_empty());
    assert!(world.taken.try_recv().is_err());
    // Unless the session itself goes on and cannot be probed.
    tell(9, true);
    assert_eq!(world.taken(2), texts(&[("b", &["b1", "read"])]));
    world.stop();
}
