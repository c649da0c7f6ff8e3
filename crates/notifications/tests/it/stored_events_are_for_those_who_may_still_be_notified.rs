//! An event that the webhook did not take is stored with its recipients. When it is tried again, or replayed as a dead letter, each recipient is
//! asked about anew: who has read the message or does not want to be notified any more is left out, and the log says why.

use crate::{provider_world::*, support::stored};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tidings_domain::model::Actor;
use tidings_protocol::http::*;
use tidings_testkit::MemoryStore;

/// A webhook that has refused a message for five people, of whom some have changed their minds since.
async fn refused(store: &Arc<MemoryStore>, attempts_max: u32) -> World {
    let setup = Setup {
        store: store.clone(),
        webhook: Some(true),
        webhook_attempts_max: attempts_max,
        has_providers: false,
        ..Setup::default()
    };
    let world = world(setup);
    let members = ["ada", "ben", "cleo", "dan", "eve", "fay"];
    let users = members.map(|id| UserUpsert { id: id.into(), ..UserUpsert::default() });
    world.engine.upsert_users(users.into()).await.unwrap();
    let room = json!({ "id": "room", "kind": "group", "name": "Room", "members": members });
    world.engine.create_conversation(&Actor::App, serde_json::from_value(room).unwrap()).await.unwrap();
    world.say("hello").await;
    let recipients = called(&world).1;
    assert_eq!(recipients, ["ben", "cleo", "dan", "eve", "fay"]);
    world.engine.mark_read(&world.user("ben"), "room", 1).await.unwrap();
    world.engine.set_mute(&world.user("cleo"), "room", Mute { muted: true, until: None }).await.unwrap();
    let off = NotificationPreferences { off: vec![PolicyChannel::Webhook], ..Default::default() };
    world.notifications.set_notification_preferences("dan", off).await.unwrap();
    world
}

/// The event of the next call, and its recipients.
fn called(world: &World) -> (Value, Vec<String>) {
    let delivery = world.webhook.recv_timeout(PATIENCE).expect("a call of the webhook");
    let mut body: Value = serde_json::from_slice(&delivery.body).unwrap();
    let recipients = serde_json::from_value(body["events"][0]["recipients"].take()).unwrap();
    (body, recipients)
}

/// Waits until the event that waits for another attempt was tried so often; then its pause has begun.
async fn until_tried(store: &MemoryStore, attempts: u32) {
    let tried = async {
        while stored(store).iter().all(|row| row.attempts < attempts) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, tried).await.expect("another attempt");
}

async fn all_outcomes(world: &World, of_others: NotificationOutcome) {
    for (user, outcome) in [
        ("ben", NotificationOutcome::Read),
        ("cleo", NotificationOutcome::Muted),
        ("dan", NotificationOutcome::ChannelOff),
        ("eve", of_others),
        ("fay", of_others),
    ] {
        world.until_reached(1, user, outcome).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_attempt_is_for_those_who_are_left() {
    let store: Arc<MemoryStore> = Arc::default();
    let world = refused(&store, 10).await;
    until_tried(&store, 1).await;
    world.clock.advance(Duration::from_secs(60));
    let (event, recipients) = called(&world);
    assert_eq!(recipients, ["eve", "fay"]);
    assert_eq!(event["events"][0]["entry"]["body"]["text"], "hello");
    // What is left is what is stored: who was left out stays so.
    world.engine.set_mute(&world.user("cleo"), "room", Mute { muted: false, until: None }).await.unwrap();
    world.engine.mark_read(&world.user("eve"), "room", 1).await.unwrap();
    until_tried(&store, 2).await;
    world.clock.advance(Duration::from_secs(60));
    assert_eq!(called(&world).1, ["fay"]);
    world.engine.mark_read(&world.user("fay"), "room", 1).await.unwrap();
    until_tried(&store, 3).await;
    world.clock.advance(Duration::from_secs(600));
    let gone = async {
        while !stored(&*store).is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("nothing waits any more");
    world.stop();
    assert!(world.webhook.try_recv().is_err(), "nobody is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_is_for_those_who_are_left() {
    let store: Arc<MemoryStore> = Arc::default();
    let before = refused(&store, 1).await;
    let letters = before.until_dead(1).await;
    assert_eq!(letters[0].users.len(), 5);
    before.stop();
    let world = world(Setup { store, webhook: Some(false), has_providers: false, ..Setup::default() });
    assert_eq!(world.replay(SelectDeadLetters::default()).await.unwrap().replayed, 1);
    assert_eq!(called(&world).1, ["eve", "fay"]);
    world.until_dead(0).await;
    all_outcomes(&world, NotificationOutcome::Accepted).await;
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_for_nobody_is_removed_without_a_call() {
    let store: Arc<MemoryStore> = Arc::default();
    let before = refused(&store, 1).await;
    before.until_dead(1).await;
    before.engine.recall_message(&Actor::App, "room", 1, None, None).await.unwrap();
    before.stop();
    let world = world(Setup { store, webhook: Some(false), has_providers: false, ..Setup::default() });
    world.replay(SelectDeadLetters::default()).await.unwrap();
    world.until_dead(0).await;
    world.stop();
    assert!(world.webhook.try_recv().is_err());
}
