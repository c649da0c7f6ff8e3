//! The channel `popup` of the notification policy: who has missed a message gets an event, on which popups and journeys react at the next
//! visit.

use crate::support::*;
use serde_json::{Value, json};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::model::Actor;
use tidings_engine::config::EngineConfig;
use tidings_notifications::internal_channels::InternalChannelsConfig;
use tidings_popups::Precondition;
use tidings_protocol::{http::*, ids::direct_id};
use tidings_testkit::MemoryStore;

const PATIENCE: Duration = Duration::from_secs(300);

/// A person who has not read a message after a minute has missed it.
fn world() -> World {
    let internal_channels = InternalChannelsConfig { popup: true, ..InternalChannelsConfig::default() };
    let parts = with_internal_channels(internal_channels);
    let world = World::with(EngineConfig::default(), Arc::new(MemoryStore::default()), parts);
    world.engine.popups.flush().unwrap();
    world.users(&["ann", "ben", "cleo"]);
    world.conversation(ConversationKind::Group, "room", &["ann", "ben", "cleo"]);
    let policy = json!({"rules": [{"id": "missed", "channels": [
        {"channel": "session"}, {"channel": "popup", "event": "message_missed", "after_s": 60}]}]});
    world.notifications.policies.put(policy.to_string().as_bytes(), None, Precondition::None).unwrap();
    world
}

fn say(world: &World, text: &str) -> SendReceipt {
    let body = serde_json::value::to_raw_value(&json!({"text": text})).unwrap();
    let receipt = world.wait(world.engine.send(&Actor::App, SendRequest { body, ..message("ann", "room", text) }));
    world.take_fanouts();
    receipt.unwrap()
}

/// The recorded steps, as `channel outcome cause`.
fn steps(world: &World, conversation: &str, seq: u64, user: &str) -> Vec<String> {
    let word = |value: Value| value.as_str().map(str::to_owned);
    let notifications = world.notifications.message_notifications(conversation, seq, user).unwrap();
    let words = |step: &NotificationStep| {
        let channel = step.channel.and_then(|channel| word(json!(channel)));
        [channel, word(json!(step.outcome)), step.cause.clone()].into_iter().flatten().collect::<Vec<_>>().join(" ")
    };
    notifications.steps.iter().filter(|step| step.at.is_some()).map(words).collect()
}

#[track_caller]
fn until_steps(world: &World, (conversation, seq): (&str, u64), user: &str, expected: &[&str]) {
    let deadline = Instant::now() + PATIENCE;
    while steps(world, conversation, seq, user) != expected {
        let steps = steps(world, conversation, seq, user);
        assert!(Instant::now() < deadline, "{user}: {steps:?}, not {expected:?}");
        std::thread::yield_now();
    }
}

const TOLD: [&str; 2] = ["waiting popup", "popup accepted"];

/// Has those who have not read the message by now miss it.
fn miss(world: &World, message: (&str, u64), user: &str) {
    until_steps(world, message, user, &TOLD[..1]);
    world.clock.advance(Duration::from_secs(60));
    until_steps(world, message, user, &TOLD);
}

fn missed(world: &World) -> Vec<(String, Value)> {
    let events = world.export(None, None, None).into_iter();
    events.map(|event| (event.user.clone(), json!(event.properties.as_ref().unwrap()))).collect()
}

#[test]
fn a_message_that_is_not_read_in_time_becomes_a_popup_at_the_next_visit() {
    let world = world();
    world.put_popup("missed", json!({"trigger": {"event": "message_missed", "delay_s": 1}}));
    let visit = |user: &str| world.decide(user).is_some();
    let first = say(&world, "one");
    assert!(!visit("ben"), "ben may read it yet");
    until_steps(&world, ("room", first.seq), "cleo", &TOLD[..1]);
    world.wait(world.engine.mark_read(&world.user("cleo"), "room", first.seq)).unwrap();
    miss(&world, ("room", first.seq), "ben");
    until_steps(&world, ("room", first.seq), "cleo", &["waiting popup", "read popup"]);
    world.clock.advance(Duration::from_secs(1));
    assert!(visit("ben"));
    assert!(!visit("ben"), "once for each time");
    assert!(!visit("cleo") && !visit("ann"));
    let properties = json!({"conversation": "room", "kind": "group", "seq": first.seq});
    assert_eq!(missed(&world), [("ben".to_owned(), properties)]);
    let notifications = world.notifications.message_notifications("room", first.seq, "ben").unwrap();
    assert_eq!(notifications.steps.iter().find_map(|step| step.rule.clone()).as_deref(), Some("missed"));
    // Several messages of a conversation are one popup.
    let more = [say(&world, "two"), say(&world, "three")].map(|receipt| receipt.seq);
    more.iter().for_each(|seq| until_steps(&world, ("room", *seq), "ben", &TOLD[..1]));
    world.clock.advance(Duration::from_secs(60));
    more.iter().for_each(|seq| until_steps(&world, ("room", *seq), "ben", &TOLD));
    world.clock.advance(Duration::from_secs(1));
    assert!(visit("ben"));
    assert!(!visit("ben"));
    let stats = world.notifications.notification_stats(None, None).unwrap();
    let channel = json!(stats.channels.iter().find(|channel| channel.channel == Channel::Popup));
    // Ben missed three, cleo the last two.
    assert_eq!((&channel["attempted"], &channel["accepted"]), (&json!(5), &json!(5)), "{channel}");
}

#[test]
fn an_event_that_was_recorded_before_a_crash_counts_once() {
    let world = world();
    let receipt = say(&world, "one");
    let room = world.engine.directory.conversation_by_id("room").unwrap().unwrap().no.0;
    let id = format!("reach-{room}-{}", receipt.seq);
    let event = PopupEvent {
        name: Some("message_missed".into()),
        user: Some("ben".into()),
        ..PopupEvent::new(id, PopupEventKind::Custom)
    };
    assert_eq!(world.report(vec![event]).unwrap().accepted, 1);
    miss(&world, ("room", receipt.seq), "ben");
    until_steps(&world, ("room", receipt.seq), "cleo", &TOLD);
    let mut users: Vec<_> = world.export(None, None, None).into_iter().map(|event| event.user).collect();
    users.sort_unstable();
    assert_eq!(users, ["ben", "cleo"]);
}

#[test]
fn a_popup_about_direct_messages_is_removed_when_they_are_read() {
    let world = world();
    world.put_popup(
        "missed",
        json!({"audience": {"all": [{"event": {"name": "message_missed"}}, {"unread_direct": {"older_than_s": 60}}]}}),
    );
    let request = SendRequest { conversation: None, to: Some("ben".into()), ..message("ann", "", "hello") };
    let receipt = world.wait(world.engine.send(&Actor::App, request)).unwrap();
    world.take_fanouts();
    let conversation = direct_id("ann", "ben");
    miss(&world, (&conversation, receipt.seq), "ben");
    assert!(world.decide("ben").is_some());
    world.wait(world.engine.mark_read(&world.user("ben"), &conversation, receipt.seq)).unwrap();
    assert!(world.decide("ben").is_none(), "nothing is unread any more");
}

#[test]
fn a_journey_begins_with_a_missed_message_of_a_group() {
    let world = world();
    let journey = json!({"state": "live",
        "entry": {"event": "message_missed", "where": {"attribute": "kind", "op": "eq", "value": "group"}},
        "steps": [{"id": "visit", "type": "popup", "popup": "missed"}]});
    world.put_popup("missed", json!({"journey": "come-back"}));
    world.engine.popups.put_journey("come-back", journey.to_string().as_bytes(), None, Precondition::None).unwrap();
    assert!(world.decide("ben").is_none());
    let receipt = say(&world, "one");
    miss(&world, ("room", receipt.seq), "ben");
    assert!(world.decide("ben").is_some());
    assert!(world.decide("ann").is_none(), "her own message");
}
