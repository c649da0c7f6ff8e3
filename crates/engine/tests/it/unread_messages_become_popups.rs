//! Chat and popups together: an unread direct message older than ten minutes becomes a popup on the next page view.

use crate::popup_support::*;
use crate::support::*;
use serde_json::{Value, json};
use std::sync::Arc;
use tidings_domain::model::Actor;
use tidings_popups::PopupsConfig;
use tidings_protocol::{
    http::{ConversationKind, ExplainedOutcome},
    ids::direct_id,
};
use tidings_testkit::MemoryStore;

const MINUTE: u64 = 60 * SECOND;

fn world(store: &Arc<MemoryStore>) -> World {
    let world = start(PopupsConfig::default(), store.clone());
    world.users(&["ann", "ben", "cyd"]);
    world
}

fn with_reminder(parts: Value) -> World {
    let world = world(&Arc::new(MemoryStore::default()));
    let mut reminder = json!({"audience": {"unread_direct": {"older_than_s": 600}}});
    reminder.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
    world.put_popup("reminder", reminder);
    world
}

/// Sends a message at this time; returns its `seq`.
fn send(world: &World, at: u64, from: &str, to: &str, silent: bool) -> u64 {
    world.clock.set(at);
    let text = format!("{from}-{to}-{at}");
    let request = tidings_protocol::http::SendRequest {
        conversation: None,
        to: Some(to.into()),
        body: serde_json::value::to_raw_value("hello").unwrap(),
        silent,
        ..message(from, "", &text)
    };
    let receipt = world.wait(world.engine.send(&Actor::App, request)).unwrap();
    world.take_fanouts();
    receipt.seq
}

fn read(world: &World, user: &str, other: &str, seq: u64) {
    let conversation = direct_id(user, other);
    world.wait(world.engine.mark_read(&world.user(user), &conversation, seq)).unwrap();
}

/// Asserts the answer to a page view at each time: `Ok` if the popup is shown, else after how long to ask again.
fn views(world: &World, user: &str, expected: &[(u64, Result<(), Option<u64>>)]) {
    for (at, expected) in expected {
        world.clock.set(*at);
        let explanation = world.explain(user, json!({}));
        let decided = world.decide_with(user, json!({})).unwrap();
        let answer = decided.exposure.as_ref().map(drop).ok_or(decided.retry_after_ms);
        assert_eq!(answer, *expected, "{user} at {} minutes", (at - NOON) / MINUTE);
        assert_eq!(explanation.chosen.is_some(), expected.is_ok());
        assert_eq!(explanation.next_at, expected.err().flatten().map(|after| at + after));
    }
}

#[test]
fn an_unread_message_is_due_when_it_is_ten_minutes_old() {
    let world = with_reminder(json!({}));
    views(&world, "ann", &[(NOON, Err(None))]);
    let seq = send(&world, NOON, "ben", "ann", false);
    let due = NOON + 10 * MINUTE;
    views(&world, "ann", &[(NOON, Err(Some(10 * MINUTE))), (due - 1, Err(Some(1))), (due, Ok(())), (due, Ok(()))]);
    let explanation = world.explain("ben", json!({}));
    assert_eq!(explanation.popups[0].field.as_deref(), Some("audience"));
    views(&world, "ben", &[(due, Err(None))]);
    read(&world, "ann", "ben", seq);
    views(&world, "ann", &[(due, Err(None)), (due + DAY, Err(None))]);
    // The age of the next message counts from its own time.
    send(&world, due + DAY, "ben", "ann", false);
    views(&world, "ann", &[(due + DAY, Err(Some(10 * MINUTE))), (due + DAY + 10 * MINUTE, Ok(()))]);
}

#[test]
fn own_silent_and_group_messages_do_not_count() {
    let world = with_reminder(json!({}));
    world.conversation(ConversationKind::Group, "g", &["ann", "ben", "cyd"]);
    world.wait(world.engine.send(&Actor::App, message("ben", "g", "hello"))).unwrap();
    send(&world, NOON, "ben", "ann", true);
    send(&world, NOON, "ann", "ben", false);
    views(&world, "ann", &[(NOON + DAY, Err(None))]);
    views(&world, "ben", &[(NOON + DAY, Ok(()))]);
    views(&world, "cyd", &[(NOON + DAY, Err(None))]);
    views(&world, "nobody", &[(NOON + DAY, Err(None))]);
    // Behind these messages comes one that counts, from its own time on.
    send(&world, NOON + DAY, "ben", "ann", false);
    views(&world, "ann", &[(NOON + DAY, Err(Some(10 * MINUTE))), (NOON + DAY + 10 * MINUTE, Ok(()))]);
}

#[test]
fn the_oldest_unread_message_decides() {
    let world = with_reminder(json!({}));
    let first = send(&world, NOON, "ben", "ann", false);
    let second = send(&world, NOON + 2 * MINUTE, "ben", "ann", false);
    send(&world, NOON + 5 * MINUTE, "cyd", "ann", false);
    let now = NOON + 6 * MINUTE;
    views(&world, "ann", &[(now, Err(Some(4 * MINUTE)))]);
    read(&world, "ann", "ben", first);
    views(&world, "ann", &[(now, Err(Some(6 * MINUTE)))]);
    read(&world, "ann", "ben", second);
    views(&world, "ann", &[(now, Err(Some(9 * MINUTE))), (NOON + 15 * MINUTE, Ok(()))]);
}

#[test]
fn unread_messages_and_caps_survive_a_restart() {
    let store = Arc::new(MemoryStore::default());
    {
        let world = world(&store);
        world
            .put_popup("reminder", json!({"audience": {"unread_direct": {"older_than_s": 600}}, "caps": {"total": 1}}));
        send(&world, NOON, "ben", "ann", false);
        views(&world, "ann", &[(NOON, Err(Some(10 * MINUTE)))]);
    }
    {
        let world = world(&store);
        views(&world, "ann", &[(NOON + MINUTE, Err(Some(9 * MINUTE))), (NOON + 10 * MINUTE, Ok(()))]);
    }
    views(&world(&store), "ann", &[(NOON + 11 * MINUTE, Err(None))]);
}

#[test]
fn retry_after_accounts_for_windows_and_caps() {
    // It is noon, and when the message is old enough the window is over.
    let world = with_reminder(json!({"windows": [{"from": "11:00", "to": "12:05"}]}));
    send(&world, NOON, "ben", "ann", false);
    views(&world, "ann", &[(NOON, Err(Some(23 * HOUR))), (NOON + 23 * HOUR, Ok(()))]);
    let explanation = world.explain("ann", json!({}));
    assert_eq!(explanation.popups[0].outcome, ExplainedOutcome::Chosen);

    let world = with_reminder(json!({"caps": {"gap_s": 3_600}}));
    let seq = send(&world, NOON, "ben", "ann", false);
    let shown_at = NOON + 10 * MINUTE;
    views(&world, "ann", &[(shown_at, Ok(())), (shown_at, Err(Some(HOUR)))]);
    read(&world, "ann", "ben", seq);
    send(&world, shown_at, "ben", "ann", false);
    views(&world, "ann", &[(shown_at, Err(Some(HOUR))), (shown_at + HOUR, Ok(()))]);
    send(&world, shown_at + HOUR, "cyd", "ben", false);
    views(&world, "ben", &[(shown_at + HOUR, Err(Some(10 * MINUTE)))]);
    // Another popup is due sooner, so its time is when to ask again.
    world.put_popup("soon", json!({"starts_at": shown_at + HOUR + MINUTE}));
    views(&world, "ben", &[(shown_at + HOUR, Err(Some(MINUTE)))]);
}

#[test]
fn a_rule_can_require_that_no_message_is_unread() {
    let world = world(&Arc::new(MemoryStore::default()));
    world.put_popup("calm", json!({"audience": {"not": {"unread_direct": {"older_than_s": 600}}}}));
    let seq = send(&world, NOON, "ben", "ann", false);
    views(&world, "ann", &[(NOON, Ok(())), (NOON + 10 * MINUTE - 1, Ok(())), (NOON + 10 * MINUTE, Err(None))]);
    read(&world, "ann", "ben", seq);
    views(&world, "ann", &[(NOON + 10 * MINUTE, Ok(()))]);
}
