//! The webhook is called with messages to offline members, at least once, across failures and restarts.
#![expect(clippy::disallowed_methods, reason = "a channel of a test ends with it")]

use crossbeam_channel::{Receiver, Sender, unbounded};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tidings_domain::{clock::Clock, model::Actor};
use tidings_engine::{Engine, EngineParts, config::EngineConfig, presence::PresenceSession, shards::Wake};
use tidings_notifications::{
    NotificationParts, Notifications,
    webhook::{Webhook, WebhookDelivery, WebhookError, sign},
    webhook_push::WebhookPushConfig,
};
use tidings_protocol::http::*;
use tidings_testkit::{ManualClock, MemoryStore};

/// 2026-03-01 12:00 UTC.
const NOON: u64 = 1_772_366_400_000;
const PATIENCE: Duration = Duration::from_secs(300);

struct Asleep;
impl Wake for Asleep {
    fn wake(&self) {}
}

/// A webhook that refuses a number of deliveries, then accepts and records them.
struct Fake {
    refusals: AtomicUsize,
    attempts: Sender<()>,
    taken: Sender<WebhookDelivery>,
}

impl Webhook for Fake {
    fn deliver(&self, delivery: &WebhookDelivery) -> Result<(), WebhookError> {
        self.attempts.send(()).unwrap();
        let refuse = |left: usize| left.checked_sub(1);
        if self.refusals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, refuse).is_ok() {
            return Err(WebhookError::new("no"));
        }
        self.taken.send(delivery.clone()).unwrap();
        Ok(())
    }
}

struct World {
    engine: Arc<Engine>,
    notifications: Arc<Notifications>,
    attempts: Receiver<()>,
    taken: Receiver<WebhookDelivery>,
}

/// An engine on a store, with a webhook that refuses so many deliveries.
fn world(store: Arc<MemoryStore>, refusals: usize) -> World {
    let clock = Arc::new(ManualClock::default());
    clock.set(NOON);
    let (attempt, attempts) = unbounded();
    let (take, taken) = unbounded();
    let webhook = Arc::new(Fake { refusals: AtomicUsize::new(refusals), attempts: attempt, taken: take });
    let config = WebhookPushConfig {
        secret: "secret".into(),
        attempts_max: 3,
        backoff_min: Duration::ZERO,
        backoff_max: Duration::ZERO,
        ..WebhookPushConfig::default()
    };
    let (engine, _receivers) = Engine::start(EngineParts {
        // No send is refused because commits are slow.
        config: EngineConfig { shards: 1, commit_time_max: PATIENCE, ..EngineConfig::default() },
        clock: clock as Arc<dyn Clock>,
        store,
        wakes: vec![Arc::new(Asleep)],
        cluster: None,
    });
    let parts = NotificationParts { webhook: Some((webhook, config)), ..NotificationParts::default() };
    let notifications = Notifications::start(&engine, parts);
    World { engine, notifications, attempts, taken }
}

impl World {
    fn stop(&self) {
        self.notifications.stop();
        self.engine.stop();
    }

    async fn with_room(self, members: &[&str]) -> World {
        let users = members.iter().map(|id| UserUpsert { id: (*id).into(), ..UserUpsert::default() }).collect();
        self.engine.upsert_users(users).await.unwrap();
        let members: Vec<&str> = members.to_vec();
        let room = json!({ "id": "room", "kind": "group", "members": members });
        self.engine.create_conversation(&Actor::App, serde_json::from_value(room).unwrap()).await.unwrap();
        self
    }

    async fn send(&self, message: Value) {
        let text = message.to_string();
        self.engine.send(&Actor::App, serde_json::from_str(&text).unwrap()).await.unwrap();
    }

    fn next_events(&self) -> Vec<Value> {
        let delivery = self.taken.recv_timeout(PATIENCE).expect("a delivery");
        assert_eq!(delivery.signature, sign("secret", delivery.timestamp, &delivery.body));
        assert_eq!(delivery.timestamp, NOON / 1_000);
        let body: Value = serde_json::from_slice(&delivery.body).unwrap();
        body["events"].as_array().unwrap().clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_webhook_names_offline_members_but_not_the_sender() {
    let world = world(Arc::default(), 0).with_room(&["ada", "ben", "cleo"]).await;
    // Ben's session is bound for pushes alone: it gets no messages.
    for (user, chat) in [("cleo", true), ("ben", false)] {
        let no = world.engine.directory.require_user(user).unwrap().no;
        let (session, node, device_id, device_kind) = (no.0, Default::default(), "d".into(), "phone".into());
        world
            .engine
            .presence
            .register(no, PresenceSession { session, node, device_id, device_kind, since: 0, chat, background: false });
        assert!(world.engine.presence.is_online(no));
    }
    world.send(json!({ "conversation": "room", "from": "ada", "body": "hi" })).await;
    let events = world.next_events();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["recipients"], json!(["ben"]));
    assert_eq!(events[0]["entry"]["body"], json!("hi"));
    assert_eq!((&events[0]["sender"]["id"], &events[0]["conversation"]["id"]), (&json!("ada"), &json!("room")));
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn muted_members_do_not_disturb_and_silent_messages_are_not_pushed() {
    let world = world(Arc::default(), 0).with_room(&["ada", "ben", "cleo", "dan", "eve"]).await;
    let user = |id: &str| world.engine.directory.require_user(id).unwrap();
    world.engine.set_mute(&user("ben"), "room", Mute { muted: true, until: None }).await.unwrap();
    world.engine.set_mute(&user("cleo"), "room", Mute { muted: true, until: Some(NOON) }).await.unwrap();
    let window = DailyWindow { start: "11:00".into(), end: "13:00".into(), time_zone: "UTC".into() };
    world.engine.set_do_not_disturb("dan", Some(window)).await.unwrap();
    world.send(json!({ "conversation": "room", "from": "ada", "body": 1, "silent": true })).await;
    world.send(json!({ "conversation": "room", "from": "ada", "body": 2, "skip_push": true })).await;
    world.send(json!({ "conversation": "room", "from": "ada", "body": 3 })).await;
    let events = world.next_events();
    assert_eq!(events.len(), 1, "silent and skipped messages are not pushed");
    assert_eq!(events[0]["entry"]["body"], json!(3));
    assert_eq!(
        events[0]["recipients"],
        json!(["cleo", "eve"]),
        "cleo's mute has ended; ben's has not, and dan is not to be disturbed"
    );
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_that_the_webhook_refuses_is_retried() {
    let world = world(Arc::default(), 2).with_room(&["ada", "ben"]).await;
    world.send(json!({ "conversation": "room", "from": "ada", "body": "hi" })).await;
    assert_eq!(world.next_events()[0]["recipients"], json!(["ben"]));
    assert_eq!(world.attempts.try_iter().count(), 3);
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_listed_and_can_be_replayed() {
    let store: Arc<MemoryStore> = Arc::default();
    let world = world(store.clone(), 3).with_room(&["ada", "ben"]).await;
    world.send(json!({ "conversation": "room", "from": "ada", "body": "first" })).await;
    world.send(json!({ "conversation": "room", "from": "ada", "body": "second" })).await;
    // The first delivery may hold one message or both; the deliveries after a dead one succeed.
    for _ in 0..3 {
        world.attempts.recv_timeout(PATIENCE).unwrap();
    }
    let dead = loop {
        let page = world.notifications.dead_letters(None, 0, &SelectDeadLetters::default()).unwrap();
        if !page.dead_letters.is_empty() {
            break page.dead_letters;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!((dead[0].attempts, dead[0].cause.as_deref()), (3, Some("no")));
    let replayed = world.notifications.replay_dead_letters(&SelectDeadLetters::default()).unwrap();
    assert_eq!(replayed.replayed, dead.len());
    let mut bodies = Vec::new();
    while bodies.len() < 2 {
        bodies.extend(world.next_events().iter().map(|event| event["entry"]["body"].as_str().unwrap().to_owned()));
    }
    bodies.sort();
    assert_eq!(bodies, ["first", "second"]);
    world.stop();
    assert_eq!(crate::support::stored(&*store), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_delivers_what_waited_and_nothing_twice() {
    let store: Arc<MemoryStore> = Arc::default();
    let before = world(store.clone(), 0).with_room(&["ada", "ben"]).await;
    before.send(json!({ "conversation": "room", "from": "ada", "body": "delivered" })).await;
    before.next_events();
    before.stop();

    // Stopped while its webhook refuses: nothing is delivered, nothing is lost.
    let stopped = world(store.clone(), usize::MAX);
    stopped.send(json!({ "conversation": "room", "from": "ada", "body": "waiting" })).await;
    stopped.attempts.recv_timeout(PATIENCE).unwrap();
    stopped.stop();
    let dead = stopped.notifications.dead_letters(None, 0, &SelectDeadLetters::default()).unwrap().dead_letters;

    let after = world(store.clone(), 0);
    if dead.is_empty() {
        assert_eq!(after.next_events()[0]["entry"]["body"], json!("waiting"));
    } else {
        assert!(
            dead[0].event.as_ref().unwrap().get().contains("waiting"),
            "given up before the stop: it is a dead letter then"
        );
    }
    after.stop();
    assert!(after.taken.try_recv().is_err(), "what was delivered before is not delivered again");
}
