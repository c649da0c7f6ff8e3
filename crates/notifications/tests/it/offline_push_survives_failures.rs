//! Offline push when groups are large, records cannot be stored, one event is always refused, or the process ends.
#![expect(clippy::disallowed_methods, reason = "a channel of a test ends with it")]

use crate::support::*;
use crossbeam_channel::{Receiver, unbounded};
use serde_json::Value;
use std::{
    collections::{BTreeSet, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tidings_domain::{model::Actor, store::Store};
use tidings_engine::{Engine, EngineParts, config::EngineConfig, shards::Wake};
use tidings_notifications::{
    NotificationParts, Notifications,
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

/// A webhook that accepts a delivery if a function says so.
struct Picky<F>(F);
impl<F: Fn(&str) -> bool + Send + Sync + 'static> Webhook for Picky<F> {
    fn deliver(&self, delivery: &WebhookDelivery) -> Result<(), WebhookError> {
        match (self.0)(std::str::from_utf8(&delivery.body).unwrap()) {
            true => Ok(()),
            false => Err(WebhookError::new("not that")),
        }
    }
}

fn config() -> WebhookPushConfig {
    WebhookPushConfig {
        secret: "secret".into(),
        attempts_max: 2,
        backoff_min: Duration::ZERO,
        backoff_max: Duration::ZERO,
        ..WebhookPushConfig::default()
    }
}

struct World {
    engine: Arc<Engine>,
    notifications: Arc<Notifications>,
}

impl World {
    fn stop(&self) {
        self.notifications.stop();
        self.engine.stop();
    }
}

/// An engine whose webhook accepts what `takes` accepts, and the bodies of every attempt.
fn start(
    store: Arc<dyn Store>,
    config: WebhookPushConfig,
    takes: impl Fn(&str) -> bool + Send + Sync + 'static,
) -> (World, Receiver<(bool, Value)>) {
    let clock = Arc::new(ManualClock::default());
    clock.set(NOON);
    let (shown, attempts) = unbounded();
    let webhook = Picky(move |body: &str| {
        let taken = takes(body);
        let _ = shown.send((taken, serde_json::from_str(body).unwrap()));
        taken
    });
    let parts = EngineParts {
        config: patient(EngineConfig::default()),
        clock,
        store,
        wakes: vec![Arc::new(Asleep)],
        cluster: None,
    };
    // Nobody has a session. Without receivers the lanes hand out to nobody, and do not wait once a shard's queue is full.
    let (engine, _) = Engine::start(parts);
    let parts = NotificationParts { webhook: Some((Arc::new(webhook), config)), ..NotificationParts::default() };
    let notifications = Notifications::start(&engine, parts);
    (World { engine, notifications }, attempts)
}

async fn room(engine: &Engine, members: &[String]) {
    let users = members.iter().map(|id| UserUpsert { id: id.clone(), ..UserUpsert::default() }).collect();
    engine.upsert_users(users).await.unwrap();
    let room = serde_json::json!({ "id": "room", "kind": "group", "members": members });
    engine.create_conversation(&Actor::App, serde_json::from_value(room).unwrap()).await.unwrap();
}

async fn say(engine: &Engine, text: &str) {
    engine.send(&Actor::App, message("u0", "room", text)).await.unwrap();
}

fn members(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("u{n}")).collect()
}

/// Texts, recipients and id of each event of a delivery.
fn events(body: &Value) -> Vec<(String, Vec<String>, u64)> {
    let of = |event: &Value| {
        let recipients = event["recipients"].as_array().unwrap();
        let recipients = recipients.iter().map(|r| r.as_str().unwrap().to_owned()).collect();
        (event["entry"]["body"].as_str().unwrap().to_owned(), recipients, event["id"].as_u64().unwrap())
    };
    body["events"].as_array().unwrap().iter().map(of).collect()
}

fn dead(world: &World) -> usize {
    world.notifications.dead_letters(None, 0, &SelectDeadLetters::default()).unwrap().dead_letters.len()
}

fn until(what: impl Fn() -> bool) {
    let started = Instant::now();
    while !what() {
        assert!(started.elapsed() < PATIENCE, "in vain");
        std::thread::yield_now();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_members_of_a_large_group_are_split_into_events_with_ids_of_their_own() {
    let config = WebhookPushConfig { recipients_per_event: 400, events_per_delivery: 3, ..config() };
    let store: Arc<MemoryStore> = Arc::default();
    let (world, attempts) = start(store.clone(), config, |_| true);
    room(&world.engine, &members(2_501)).await;
    say(&world.engine, "hi").await;
    let (mut named, mut ids, mut sizes) = (BTreeSet::new(), HashSet::new(), Vec::new());
    while named.len() < 2_500 {
        let (_, body) = attempts.recv_timeout(PATIENCE).unwrap();
        let events = events(&body);
        sizes.push(events.len());
        for (_, recipients, id) in events {
            assert!(recipients.len() <= 400 && ids.insert(id));
            assert!(recipients.into_iter().all(|user| user != "u0" && named.insert(user)), "named twice");
        }
    }
    assert_eq!(sizes, [3, 3, 1]);
    world.stop();
    assert_eq!(store.outbox_position().unwrap(), store.last_position());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_accepted_delivery_is_not_repeated_when_its_record_cannot_be_stored() {
    let store = Arc::new(Troubled::default());
    let full = store.clone();
    let (world, attempts) = start(store.clone(), config(), move |_| {
        full.fail(2);
        true
    });
    room(&world.engine, &members(2)).await;
    say(&world.engine, "once").await;
    assert_eq!(events(&attempts.recv_timeout(PATIENCE).unwrap().1)[0].0, "once");
    until(|| store.outbox_position().unwrap() == store.last_position());
    world.stop();
    assert!(attempts.try_recv().is_err(), "delivered a second time");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_is_always_refused_keeps_no_other_from_being_replayed() {
    let store: Arc<MemoryStore> = Arc::default();
    let up = Arc::new(AtomicBool::new(false));
    let is_up = up.clone();
    let (world, attempts) =
        start(store.clone(), config(), move |body| is_up.load(Ordering::SeqCst) && !body.contains("poison"));
    room(&world.engine, &members(2)).await;
    for text in ["first", "poison", "last"] {
        say(&world.engine, text).await;
    }
    until(|| dead(&world) == 3);
    up.store(true, Ordering::SeqCst);
    assert_eq!(world.notifications.replay_dead_letters(&SelectDeadLetters::default()).unwrap().replayed, 3);
    until(|| dead(&world) == 1);
    let left = world.notifications.dead_letters(None, 0, &SelectDeadLetters::default()).unwrap();
    assert!(left.dead_letters[0].event.as_ref().unwrap().get().contains("poison") && left.next.is_none());
    let taken: Vec<String> = attempts.try_iter().filter(|a| a.0).flat_map(|a| events(&a.1)).map(|e| e.0).collect();
    assert_eq!(taken, ["first", "last"]);
    // New messages go on beside it.
    say(&world.engine, "new").await;
    until(|| attempts.try_iter().any(|(taken, body)| taken && events(&body)[0].0 == "new"));
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reopened_store_goes_on_where_the_outbox_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let options = EmbeddedOptions { outbox: true, disk_reserve_bytes: 0, ..EmbeddedOptions::new(folder.path()) };
        Arc::new(EmbeddedStore::open(options).unwrap())
    };
    // The webhook accepts the first three deliveries and is then down for good.
    let patient = WebhookPushConfig {
        events_per_delivery: 1,
        attempts_max: u32::MAX,
        backoff_min: Duration::from_secs(600),
        backoff_max: Duration::from_secs(600),
        ..config()
    };
    let taken = std::sync::atomic::AtomicUsize::new(0);
    let (world, attempts) = start(open(), patient, move |_| taken.fetch_add(1, Ordering::SeqCst) < 3);
    room(&world.engine, &members(2)).await;
    for n in 0..6 {
        say(&world.engine, &n.to_string()).await;
    }
    until(|| attempts.len() == 4);
    // The engine stops at once, in the middle of a wait of ten minutes.
    let started = Instant::now();
    world.stop();
    assert!(started.elapsed() < Duration::from_secs(60));
    drop(world);

    let store = open();
    let (world, attempts) = start(store.clone(), config(), |_| true);
    let mut texts: Vec<String> = Vec::new();
    while texts.len() < 3 {
        let (_, body) = attempts.recv_timeout(PATIENCE).unwrap();
        texts.extend(events(&body).into_iter().map(|event| event.0));
    }
    until(|| store.outbox_position().unwrap() == store.last_position());
    world.stop();
    assert_eq!(texts, ["3", "4", "5"], "accepted deliveries are on record");
    assert!(attempts.try_recv().is_err() && crate::support::stored(&*store).is_empty());
}
