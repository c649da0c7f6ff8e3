//! Notifications have the texts, the badge and the priority of the policy's channel, in the user's language; and users are told by
//! the channels that they want.

use crate::provider_world::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tidings_domain::providers::Notification;
use tidings_popups::Precondition;
use tidings_protocol::http::*;

fn put(world: &World, policy: &Value) {
    world.notifications.policies.put(policy.to_string().as_bytes(), None, Precondition::None).unwrap();
}

async fn speaks(world: &World, user: &str, language: &str) {
    let locale = SetLocale { language: Some(language.into()), time_zone: None };
    world.engine.set_locale(user, locale).await.unwrap();
}

/// The next notifications by Firebase, by their users.
fn notified(world: &World, count: usize) -> BTreeMap<String, Notification> {
    (0..count).map(|_| next(&world.fcm)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_are_those_of_the_users_language_and_of_the_rule() {
    let world = world(Setup::default()).with_room(&["ada", "ben", "cleo", "dan"]).await;
    speaks(&world, "ben", "de-AT").await;
    speaks(&world, "cleo", "fr").await;
    put(
        &world,
        &json!({"rules": [
        {"id": "mention", "when": {"attribute": "mention", "op": "eq", "value": true}, "channels": [{"channel": "session"},
            {"channel": "providers", "providers": ["apns"], "template": {"title": "for Apple", "body": ""}},
            {"channel": "providers", "providers": ["fcm"], "template": {"title": "{sender} mentions you", "body": "{text}"}}]},
        {"id": "rest", "channels": [{"channel": "session"}, {"channel": "providers", "badge": false, "priority": "normal",
            "template": {"title": "{sender} in {conversation}", "body": "{text}"},
            "templates": {"de": {"title": "{sender} in {conversation}", "body": "{unread} neu: {text}"}}}]}]}),
    );
    world.send(json!({"conversation": "room", "from": "ada", "body": {"text": "hello"}, "mentions": ["dan"]})).await;
    let shown = notified(&world, 3);
    let texts =
        |user: &str| (shown[user].title.as_str(), shown[user].body.as_str(), shown[user].badge, shown[user].urgent);
    assert_eq!(texts("ben"), ("ada in Room", "1 neu: hello", None, false));
    assert_eq!(texts("cleo"), ("ada in Room", "hello", None, false));
    assert_eq!(texts("dan"), ("ada mentions you", "hello", Some(1), true));

    // Without a policy the settings say.
    world.notifications.policies.remove(None, Precondition::None).unwrap();
    world.say("again").await;
    let shown = notified(&world, 3);
    let ben = &shown["ben"];
    assert_eq!((ben.title.as_str(), ben.body.as_str(), ben.badge, ben.urgent), ("Room", "ada: again", Some(2), true));
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_collapses_is_what_the_policy_says() {
    let world = world(Setup::default()).with_room(&["ada", "ben"]).await;
    let mut keys = Vec::new();
    for collapse in ["conversation", "conversation", "message", "message"] {
        put(&world, &json!({"rules": [{"id": "a", "channels": [{"channel": "providers", "collapse": collapse}]}]}));
        world.say("hello").await;
        keys.push(next(&world.fcm).1.collapse_key);
    }
    assert!(keys.iter().all(|key| key.len() <= 32 && key.bytes().all(|byte| byte.is_ascii_alphanumeric())), "{keys:?}");
    assert_eq!(keys[0], keys[1]);
    keys.remove(0);
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 3, "each message has its own");
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn users_are_told_by_the_channels_that_they_want() {
    let world = world(Setup { webhook: Some(false), ..Setup::default() });
    let world = world.with_room(&["ada", "ben", "cleo", "dan", "eve", "fay"]).await;
    let wants = async |user: &str, preferences: Value| {
        let preferences = serde_json::from_value(preferences).unwrap();
        world.notifications.set_notification_preferences(user, preferences).await.unwrap();
    };
    wants("ben", json!({"off": ["providers"]})).await;
    wants("cleo", json!({"group": {"off": ["webhook"]}})).await;
    wants("dan", json!({"snooze_until": NOON + 1})).await;
    wants("eve", json!({"group": {"only_mentions": true}, "direct": {"off": ["providers", "webhook"]}})).await;
    let recipients = || {
        let mut recipients = Vec::new();
        while recipients.is_empty() || recipients.len() == 1 {
            let call: Value = serde_json::from_slice(&world.webhook.recv_timeout(PATIENCE).unwrap().body).unwrap();
            for event in call["events"].as_array().unwrap() {
                recipients
                    .extend(event["recipients"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()));
            }
        }
        recipients.sort();
        recipients
    };
    world.say("hello").await;
    assert_eq!(next_tokens(&world.fcm, 2), ["cleo", "fay"]);
    assert_eq!(recipients(), ["ben", "fay"]);

    // The snooze is over, and eve is mentioned.
    world.clock.set(NOON + 1);
    world.send(json!({"conversation": "room", "from": "ada", "body": {"text": "all"}, "mentions": ["@all"]})).await;
    assert_eq!(next_tokens(&world.fcm, 4), ["cleo", "dan", "eve", "fay"]);
    assert_eq!(recipients(), ["ben", "dan", "eve", "fay"]);
    world.stop();
    assert!(world.fcm.try_recv().is_err() && world.webhook.try_recv().is_err());
}
