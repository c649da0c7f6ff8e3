//! The channel `device_push` of the notification policy: people are told of messages by pushes to their devices, and an acknowledged one
//! cancels the channels after it.
#![expect(clippy::disallowed_methods, reason = "a channel of a test ends with it")]

use crate::fake_shard::Shard;
use crate::support::*;
use crossbeam_channel::{Receiver, Sender, unbounded};
use serde_json::{Value, json};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::model::{Actor, ConversationKind};
use tidings_engine::config::EngineConfig;
use tidings_notifications::{
    NotificationParts,
    internal_channels::InternalChannelsConfig,
    webhook::{Webhook, WebhookDelivery, WebhookError},
    webhook_push::WebhookPushConfig,
};
use tidings_popups::Precondition;
use tidings_protocol::http::*;
use tidings_testkit::MemoryStore;

const PATIENCE: Duration = Duration::from_secs(300);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

struct Recorder(Sender<WebhookDelivery>);

impl Webhook for Recorder {
    fn deliver(&self, delivery: &WebhookDelivery) -> Result<(), WebhookError> {
        let _ = self.0.send(delivery.clone());
        Ok(())
    }
}

/// A push at once, and the webhook a minute after the message for those who do not have it by then.
fn policy() -> Value {
    json!({"rules": [{"id": "held", "channels": [
        {"channel": "session"},
        {"channel": "device_push", "badge": true, "template": {"title": "{conversation}", "body": "{sender}: {text}"},
         "templates": {"de": {"title": "{conversation}", "body": "{sender} schreibt: {text}"}}},
        {"channel": "webhook", "after_s": 60}]}]})
}

/// A group of ann, ben and cleo; ann writes.
fn world(store: Arc<MemoryStore>) -> (Shard, Receiver<WebhookDelivery>) {
    let internal_channels = InternalChannelsConfig { device_push: true, ..InternalChannelsConfig::default() };
    let config = EngineConfig { shards: 1, ..EngineConfig::default() };
    let (called, webhook) = unbounded();
    let webhook_config = WebhookPushConfig { secret: "s".into(), ..WebhookPushConfig::default() };
    let webhook_parts = Some((Arc::new(Recorder(called)) as Arc<dyn Webhook>, webhook_config));
    let parts = NotificationParts { webhook: webhook_parts, ..with_internal_channels(internal_channels) };
    let world = World::with(config, store, parts);
    (Shard::of(world), webhook)
}

fn world_with_room() -> (Shard, Receiver<WebhookDelivery>) {
    world_with_members(&["ann", "ben", "cleo"])
}

fn world_with_members(members: &[&str]) -> (Shard, Receiver<WebhookDelivery>) {
    let (shard, webhook) = world(Arc::default());
    shard.world.users(members);
    shard.world.conversation(ConversationKind::Group, "room", members);
    let put = shard.world.notifications.policies.put(policy().to_string().as_bytes(), None, Precondition::None);
    assert_eq!(put.unwrap().version, 1);
    (shard, webhook)
}

fn say(shard: &Shard, text: &str) {
    let body = serde_json::value::to_raw_value(&json!({"text": text})).unwrap();
    let request = SendRequest { body, ..message("ann", "room", text) };
    shard.world.wait(shard.world.engine.send(&Actor::App, request)).unwrap();
    shard.world.take_fanouts();
}

/// Waits for something, and meanwhile has the shard take what it is handed.
#[track_caller]
fn eventually<T>(shard: &mut Shard, what: &str, mut found: impl FnMut(&mut Shard) -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        shard.settle();
        if let Some(found) = found(shard) {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} has not come");
        std::thread::yield_now();
    }
}

#[track_caller]
fn next_push(shard: &mut Shard, device: &str) -> u64 {
    eventually(shard, "the push", |shard| shard.handed(device).first().copied())
}

/// The recorded steps, as `channel outcome cause`.
fn steps(shard: &Shard, user: &str) -> Vec<String> {
    let word = |value: Value| value.as_str().map(str::to_owned);
    let notifications = shard.world.notifications.message_notifications("room", 1, user).unwrap();
    let recorded = notifications.steps.iter().filter(|step| step.at.is_some());
    let words = |step: &NotificationStep| {
        let channel = step.channel.and_then(|channel| word(json!(channel)));
        [channel, word(json!(step.outcome)), step.cause.clone()].into_iter().flatten().collect::<Vec<_>>().join(" ")
    };
    recorded.map(words).collect()
}

#[track_caller]
fn until_steps(shard: &mut Shard, user: &str, expected: &[&str]) {
    let deadline = Instant::now() + PATIENCE;
    while steps(shard, user) != expected {
        assert!(Instant::now() < deadline, "{user}: {:?}, not {expected:?}", steps(shard, user));
        shard.settle();
        std::thread::yield_now();
    }
}

fn recipients(delivery: &WebhookDelivery) -> Value {
    let body: Value = serde_json::from_slice(&delivery.body).unwrap();
    body["events"][0]["recipients"].clone()
}

#[test]
fn a_push_that_is_acknowledged_cancels_the_channels_after_it_and_another_does_not() {
    let (mut shard, webhook) = world_with_room();
    shard.bind("ben/phone-1");
    shard.bind("cleo/phone-1");
    let (engine, german) =
        (shard.world.engine.clone(), SetLocale { language: Some("de-AT".into()), ..SetLocale::default() });
    shard.world.wait(engine.set_locale("cleo", german)).unwrap();
    say(&shard, "hello");
    let of_ben = next_push(&mut shard, "ben/phone-1");
    let of_cleo = next_push(&mut shard, "cleo/phone-1");
    let body = |push: u64| shard.frames[&push]["body"].clone();
    let expected = json!({"conversation": "room", "seq": 1, "title": "room", "body": "ann: hello", "badge": 1});
    assert_eq!(body(of_ben), expected, "{}", shard.frames[&of_ben]);
    assert_eq!(body(of_cleo)["body"], "ann schreibt: hello");
    assert_eq!(shard.status(of_ben).content_type, "message");
    shard.acknowledge("ben/phone-1", &[of_ben]);
    shard.world.clock.advance(SECOND);
    until_steps(&mut shard, "ben", &["waiting webhook", "device_push accepted", "device_push acknowledged"]);
    let notifications = shard.world.notifications.message_notifications("room", 1, "ben").unwrap();
    assert_eq!(notifications.steps.iter().find_map(|step| step.rule.clone()).as_deref(), Some("held"));
    shard.world.clock.advance(MINUTE);
    let delivery = webhook.recv_timeout(PATIENCE).unwrap();
    assert_eq!(recipients(&delivery), json!(["cleo"]), "her device has not acknowledged it");
    let all = ["waiting webhook", "device_push accepted", "device_push acknowledged", "cancelled webhook: device_push"];
    until_steps(&mut shard, "ben", &all);
}

#[test]
fn a_person_without_a_device_is_told_by_the_next_channel() {
    let (mut shard, webhook) = world_with_room();
    shard.bind("cleo/phone-1");
    say(&shard, "hello");
    next_push(&mut shard, "cleo/phone-1");
    until_steps(&mut shard, "ben", &["waiting webhook", "device_push no_device"]);
    shard.world.clock.advance(MINUTE);
    assert_eq!(recipients(&webhook.recv_timeout(PATIENCE).unwrap()), json!(["ben", "cleo"]));
}

#[test]
fn a_device_that_is_away_shows_the_newest_message_of_a_conversation_alone() {
    let (mut shard, _webhook) = world_with_room();
    shard.bind("ben/phone-1");
    shard.leave("ben/phone-1");
    for text in ["one", "two", "three"] {
        say(&shard, text);
    }
    let pushed = |shard: &mut Shard| (1..=3).all(|seq| accepted(shard, seq)).then_some(());
    eventually(&mut shard, "the third push", pushed);
    shard.bind("ben/phone-1");
    let push = next_push(&mut shard, "ben/phone-1");
    assert_eq!(shard.frames[&push]["body"]["seq"], 3);
    assert_eq!(shard.handed("ben/phone-1"), [] as [u64; 0]);
}

/// Whether the push store has taken the push of a message to ben.
fn accepted(shard: &Shard, seq: u64) -> bool {
    let notifications = shard.world.notifications.message_notifications("room", seq, "ben").unwrap();
    let is_accepted = |step: &NotificationStep| {
        (step.channel, step.outcome) == (Some(Channel::DevicePush), NotificationOutcome::Accepted)
    };
    notifications.steps.iter().any(is_accepted)
}

#[test]
fn a_restart_while_a_push_waits_for_its_device_tells_nobody_twice() {
    let store: Arc<MemoryStore> = Arc::default();
    let (mut shard, _webhook) = world(store.clone());
    shard.world.users(&["ann", "ben", "cleo"]);
    shard.world.conversation(ConversationKind::Group, "room", &["ann", "ben", "cleo"]);
    shard.world.notifications.policies.put(policy().to_string().as_bytes(), None, Precondition::None).unwrap();
    shard.bind("ben/phone-1");
    shard.leave("ben/phone-1");
    say(&shard, "hello");
    eventually(&mut shard, "the push", |shard| accepted(shard, 1).then_some(()));
    drop(shard);
    let (mut shard, webhook) = world(store);
    shard.bind("ben/phone-1");
    let push = next_push(&mut shard, "ben/phone-1");
    shard.acknowledge("ben/phone-1", &[push]);
    shard.world.clock.advance(SECOND);
    let is_acknowledged = |shard: &mut Shard| {
        let recorded = steps(shard, "ben");
        recorded.contains(&"device_push acknowledged".to_owned()).then_some(())
    };
    eventually(&mut shard, "the acknowledgement", is_acknowledged);
    shard.world.clock.advance(MINUTE);
    assert_eq!(recipients(&webhook.recv_timeout(PATIENCE).unwrap()), json!(["cleo"]));
    assert_eq!(shard.handed("ben/phone-1"), [] as [u64; 0]);
}

#[test]
fn acknowledgements_that_come_one_after_the_other_are_all_recorded() {
    let members = ["ann", "ben", "cleo", "dan", "eve", "fay"];
    let (mut shard, webhook) = world_with_members(&members);
    let people = &members[1..];
    people.iter().for_each(|user| shard.bind(&format!("{user}/phone-1")));
    say(&shard, "hello");
    let pushes: Vec<u64> = people.iter().map(|user| next_push(&mut shard, &format!("{user}/phone-1"))).collect();
    let is_acknowledged =
        |shard: &Shard, user: &str| steps(shard, user).iter().any(|step| step.ends_with("acknowledged"));
    // The worker asks after one second, two more, four more.
    for (at, (user, push)) in people.iter().zip(pushes).enumerate() {
        shard.acknowledge(&format!("{user}/phone-1"), &[push]);
        shard.world.clock.advance(SECOND * (1 << at));
        eventually(&mut shard, "the acknowledgement", |shard| is_acknowledged(shard, user).then_some(()));
    }
    let missing: Vec<_> = people.iter().filter(|user| !is_acknowledged(&shard, user)).collect();
    assert_eq!(missing, Vec::<&&str>::new());
    assert!(webhook.try_recv().is_err());
}

#[test]
fn a_large_group_is_told_in_rows_that_have_room_for_a_push_of_each_person() {
    let names: Vec<String> = (0..150).map(|n| format!("user-{n:04}")).collect();
    let members: Vec<&str> = ["ann"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let (mut shard, webhook) = world_with_members(&members);
    names.iter().for_each(|user| shard.bind(&format!("{user}/phone-1")));
    say(&shard, "hello");
    for user in &names {
        let device = format!("{user}/phone-1");
        let push = next_push(&mut shard, &device);
        shard.acknowledge(&device, &[push]);
    }
    shard.world.clock.advance(SECOND);
    for user in &names {
        until_steps(&mut shard, user, &["waiting webhook", "device_push accepted", "device_push acknowledged"]);
    }
    shard.world.clock.advance(MINUTE);
    let last = names.last().unwrap();
    let cancelled = "cancelled webhook: device_push";
    until_steps(&mut shard, last, &["waiting webhook", "device_push accepted", "device_push acknowledged", cancelled]);
    assert!(webhook.try_recv().is_err());
}
