//! A hundred thousand sessions that come and go: the announced changes, the calls of the webhook and the memory depend
//! on the number of users, and not on how often their sessions come and go.
#![expect(clippy::disallowed_methods, reason = "a channel of a test ends with it")]

use crate::support::{NOON, PATIENCE, World};
use crossbeam_channel::{Receiver, Sender, unbounded};
use serde_json::Value;
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};
use tidings_domain::model::UserNo;
use tidings_engine::{
    config::EngineConfig,
    presence::{NodeNo, Presence, PresenceConfig, PresenceSession},
};
use tidings_notifications::{
    NotificationParts,
    webhook::{Webhook, WebhookDelivery, WebhookError, sign},
    webhook_push::WebhookPushConfig,
};
use tidings_protocol::http::UserUpsert;
use tidings_testkit::MemoryStore;

const GRACE_MS: u64 = 5_000;

struct FakeWebhook {
    refusals: AtomicUsize,
    taken: Sender<WebhookDelivery>,
}

impl Webhook for FakeWebhook {
    fn deliver(&self, delivery: &WebhookDelivery) -> Result<(), WebhookError> {
        let refuse = |left: usize| left.checked_sub(1);
        if self.refusals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, refuse).is_ok() {
            return Err(WebhookError::new("not now"));
        }
        self.taken.send(delivery.clone()).unwrap();
        Ok(())
    }
}

struct WorldWithWebhook {
    world: World,
    taken: Receiver<WebhookDelivery>,
}

/// A server with users, and a webhook that refuses the first calls.
fn world_with_webhook(users: usize, refusals: usize) -> WorldWithWebhook {
    let (take, taken) = unbounded();
    let webhook = Arc::new(FakeWebhook { refusals: AtomicUsize::new(refusals), taken: take });
    let presence = PresenceConfig { grace_ms: GRACE_MS, ..PresenceConfig::default() };
    let config = EngineConfig { shards: 1, presence, ..EngineConfig::default() };
    let secret = WebhookPushConfig { secret: "secret".into(), presence: true, ..WebhookPushConfig::default() };
    let world = World::with(
        config,
        Arc::new(MemoryStore::default()),
        NotificationParts { webhook: Some((webhook, secret)), ..NotificationParts::default() },
    );
    let ids: Vec<usize> = (1..=users).collect();
    for part in ids.chunks(10_000) {
        let users = part.iter().map(|id| UserUpsert { id: id.to_string(), ..UserUpsert::default() }).collect();
        world.wait(world.engine.upsert_users(users)).unwrap();
    }
    WorldWithWebhook { world, taken }
}

impl WorldWithWebhook {
    fn next(&self) -> Value {
        let delivery = self.taken.recv_timeout(PATIENCE).expect("a call of the webhook");
        assert_eq!(delivery.signature, sign("secret", delivery.timestamp, &delivery.body));
        let body: Value = serde_json::from_slice(&delivery.body).unwrap();
        let events = body["events"].as_array().unwrap();
        assert_eq!((events.len(), events[0]["event"].as_str()), (1, Some("presence")));
        events[0].clone()
    }

    fn at(&self, now_ms: u64) {
        self.world.clock.set(now_ms);
        self.world.engine.settle_presence();
    }
}

fn device(session: u64) -> PresenceSession {
    PresenceSession {
        session,
        node: NodeNo(0),
        device_id: "phone".into(),
        device_kind: "ios".into(),
        since: NOON,
        chat: true,
        background: false,
    }
}

#[test]
fn the_webhook_is_called_with_the_latest_states_until_it_takes_them() {
    let world_with_webhook = world_with_webhook(2, 2);
    let presence = &world_with_webhook.world.engine.presence;
    presence.register(UserNo(1), device(1));
    presence.register(UserNo(2), device(2));
    world_with_webhook.at(NOON);
    presence.unregister(UserNo(1), 1, NOON + 10);
    world_with_webhook.at(NOON + 10 + GRACE_MS);
    let mut states = HashMap::new();
    let mut resets = Vec::new();
    while states.len() < 2 || states["1"] == Value::Bool(true) {
        let event = world_with_webhook.next();
        resets.push(event.get("reset").is_some());
        for change in event["changes"].as_array().unwrap() {
            states.insert(change["user"].as_str().unwrap().to_owned(), change["online"].clone());
        }
    }
    assert_eq!(states, HashMap::from([("1".into(), Value::Bool(false)), ("2".into(), Value::Bool(true))]));
    assert!(resets[0] && !resets[1..].contains(&true), "{resets:?}");
}

#[test]
fn a_storm_announces_a_user_once_and_calls_the_webhook_in_batches() {
    const USERS: u64 = 100_000;
    let world_with_webhook = world_with_webhook(USERS as usize, 0);
    let engine = &world_with_webhook.world.engine;
    let metrics = &engine.metrics;
    let began = Instant::now();
    for user in 1..=USERS {
        engine.presence.register(UserNo(user), device(user));
    }
    world_with_webhook.at(NOON);
    assert_eq!((metrics.presence_changes.get(), engine.presence.user_count()), (USERS, USERS as usize));

    for flap in 1..=10 {
        for user in 1..=USERS {
            let session = flap * USERS + user;
            engine.presence.unregister(UserNo(user), session - USERS, NOON + flap);
            engine.presence.register(UserNo(user), device(session));
        }
    }
    world_with_webhook.at(NOON + 60_000);
    assert_eq!(metrics.presence_changes.get(), USERS, "all are back: nothing to tell");
    assert_eq!(metrics.presence_coalesced.get(), 10 * USERS);

    for user in 1..=USERS {
        engine.presence.unregister(UserNo(user), 10 * USERS + user, NOON + 60_000);
    }
    world_with_webhook.at(NOON + 60_000 + GRACE_MS);
    assert_eq!(metrics.presence_changes.get(), 2 * USERS, "once online, once offline");
    assert_eq!((engine.presence.user_count(), engine.presence.session_count()), (0, 0));

    let (mut calls, mut told, mut offline) = (0, 0, 0);
    while offline < USERS {
        let event = world_with_webhook.next();
        let changes = event["changes"].as_array().unwrap();
        assert!(changes.len() <= 500);
        calls += 1;
        told += changes.len() as u64;
        offline += changes.iter().filter(|change| change["online"] == false).count() as u64;
    }
    println!("{calls} calls told {told} changes");
    // The last call after a round is not full, and there may be a round every half second.
    let rounds = 20 + began.elapsed().as_millis() as u64 / 500;
    assert!(told <= 2 * USERS && calls <= 2 * USERS / 500 + rounds, "{calls} calls, {told} changes");
    assert_eq!((offline, metrics.presence_dropped.get()), (USERS, 0));
}

/// Resident memory, in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4_096
}

/// `cargo test --release -p tidings-engine --test it <name> -- --ignored --nocapture`
#[test]
#[ignore = "a measurement: needs a process of its own and 200 MB"]
fn a_million_sessions_cost_about_a_hundred_bytes_each() {
    const SESSIONS: u64 = 1_000_000;
    let presence = Presence::new(PresenceConfig::default());
    let id: Arc<str> = "phone".into();
    let before = resident();
    // Not in the order of users' numbers: every third, then the others.
    for user in (0..3).flat_map(|start| (start..SESSIONS).step_by(3)) {
        presence.register(UserNo(user), PresenceSession { device_id: id.clone(), ..device(user) });
    }
    // The next round announces all changes.
    let announced = SESSIONS as usize * size_of::<UserNo>();
    let grown = resident() - before;
    println!("{} bytes a session, {announced} of them all until announced", grown / SESSIONS as usize);
    assert!(grown / SESSIONS as usize <= 128, "{grown}");
}
