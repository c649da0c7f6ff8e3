//! What is recorded of a message is its cause, not what its person wishes by now; and what is explained before a message is what becomes of it.

use crate::provider_world::*;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tidings_notifications::webhook::WebhookError;
use tidings_popups::Precondition;
use tidings_protocol::{http::*, ids::direct_id};

impl World {
    async fn put_rules(&self, rules: Value) {
        let policies = self.notifications.policies.clone();
        let text = json!({ "rules": rules }).to_string();
        let put = move || policies.put(text.as_bytes(), None, Precondition::None).map(drop).unwrap();
        tokio::task::spawn_blocking(put).await.unwrap();
    }

    async fn want(&self, user: &str, preferences: NotificationPreferences) {
        self.notifications.set_notification_preferences(user, preferences).await.unwrap();
    }

    fn summary(&self, user: &str, seq: u64) -> String {
        self.notifications.message_notifications("room", seq, user).unwrap().summary
    }

    fn explain(&self, ask: Value) -> NotificationExplanation {
        self.notifications.explain_notifications(&serde_json::from_value(ask).unwrap()).unwrap()
    }
}

async fn room() -> World {
    world(Setup { webhook: Some(false), ..Setup::default() }).with_room(&["ada", "ben"]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_a_provider_that_the_channel_does_not_name_is_no_device() {
    let world = room().await;
    world.put_rules(json!([{ "id": "apple", "channels": [{ "channel": "providers", "providers": ["apns"] }] }])).await;
    world.want("ben", NotificationPreferences { off: vec![PolicyChannel::Webhook], ..Default::default() }).await;
    world.say("hello").await;
    world.until_reached(1, "ben", NotificationOutcome::NoDevice).await;
    let summary = world.summary("ben", 1);
    println!("{summary}");
    assert!(summary.ends_with("that a provider of the notification policy's channel reaches"), "{summary}");
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mute_of_today_is_no_reason_for_what_no_rule_was_for() {
    let world = room().await;
    world
        .put_rules(json!([{ "id": "orders", "for": { "types": ["order"] }, "channels": [{ "channel": "providers" }] }]))
        .await;
    world.say("hello").await;
    world.until_reached(1, "ben", NotificationOutcome::NoRule).await;
    world.engine.set_mute(&world.user("ben"), "room", Mute { muted: true, until: None }).await.unwrap();
    println!("{}", world.summary("ben", 1));
    world.until_reached(1, "ben", NotificationOutcome::NoRule).await;
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_with_live_sessions_alone_says_so() {
    let world = room().await;
    world.put_rules(json!([{ "id": "live", "channels": [{ "channel": "session" }] }])).await;
    world.say("hello").await;
    world.until_reached(1, "ben", NotificationOutcome::NoRule).await;
    let summary = world.summary("ben", 1);
    println!("{summary}");
    assert!(
        summary.contains("the rule \"live\" of the notification policy notifies ben by live sessions alone"),
        "{summary}"
    );
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_message_that_is_explained_counts_as_unread() {
    let world = room().await;
    let unread = |at_least: u64| json!({ "attribute": "unread", "op": "gte", "value": at_least });
    let providers = json!([{ "channel": "providers" }]);
    let rules = json!([{ "id": "two", "when": unread(2), "channels": providers },
        { "id": "one", "when": unread(1), "channels": providers }, { "id": "none", "channels": providers }]);
    world.put_rules(rules).await;
    for (seq, rule) in [(1, "one"), (2, "two")] {
        let ask = json!({ "user": "ben", "conversation": "room", "from": "ada", "body": { "text": "hi" } });
        assert_eq!(world.explain(ask).rule.as_deref(), Some(rule), "explained");
        world.say("hi").await;
        world.until_reached(seq, "ben", NotificationOutcome::Accepted).await;
        let found = world.notifications.message_notifications("room", seq, "ben").unwrap();
        assert_eq!(found.steps.iter().find_map(|step| step.rule.as_deref()), Some(rule), "decided");
    }
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_somebody_looks_at_stops_the_webhook_in_explanations_too() {
    let world = room().await;
    let channels = json!([{ "channel": "session" }, { "channel": "providers" }, { "channel": "webhook" }]);
    world.put_rules(json!([{ "id": "all", "channels": channels }])).await;
    world.connect("ben", true);
    let found =
        world.explain(json!({ "user": "ben", "conversation": "room", "from": "ada", "body": { "text": "hi" } }));
    let found: Vec<_> = found.channels.iter().map(|channel| (channel.taken, channel.outcome)).collect();
    let stopped = (false, Some(NotificationOutcome::Active));
    assert_eq!(found, [(true, Some(NotificationOutcome::Active)), stopped, stopped]);
    world.say("hi").await;
    world.until_reached(1, "ben", NotificationOutcome::Active).await;
    world.stop();
    assert!(world.webhook.try_recv().is_err() && world.fcm.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_that_the_message_would_open_is_explained() {
    let world = world(Setup::default()).with_room(&["ada", "ben", "cleo"]).await;
    let ask = |user: &str| json!({ "user": user, "to": "ben", "from": "ada", "body": { "text": "hi" } });
    let found = world.explain(ask("ben"));
    assert_eq!(found.conversation, direct_id("ada", "ben"));
    let providers = &found.channels[1];
    assert_eq!((providers.taken, providers.devices.as_slice()), (true, &["phone".to_owned()][..]));
    assert_eq!(world.explain(ask("cleo")).outcome, Some(NotificationOutcome::NotAMember));
    assert_eq!(world.explain(ask("ada")).outcome, Some(NotificationOutcome::Sender));
    assert!(world.engine.directory.conversation_by_id(&found.conversation).unwrap().is_none(), "nothing is opened");
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_asks_for_a_pause_gets_it() {
    let pause = Duration::from_secs(120);
    let busy = WebhookError { reason: "429".into(), retry_after: Some(pause) };
    let setup = Setup { webhook: Some(false), webhook_answers: vec![busy], has_providers: false, ..Setup::default() };
    let world = world(setup).with_users_in_room(&["ada", "ben"]).await;
    world.say("one").await;
    let first = world.webhook.recv_timeout(PATIENCE).unwrap();
    assert_eq!(first.timestamp, NOON / 1_000);
    world.say("two").await;
    let mut events = 0;
    let waited = Instant::now();
    while events < 2 {
        assert!(waited.elapsed() < PATIENCE, "it is not called again");
        // The pause begins when the worker has read the answer, wherever the clock stands then.
        world.clock.advance(pause / 10);
        let Ok(delivery) = world.webhook.recv_timeout(Duration::from_millis(20)) else { continue };
        assert!(
            delivery.timestamp >= NOON / 1_000 + pause.as_secs(),
            "called again after {} s",
            delivery.timestamp - NOON / 1_000
        );
        let body: Value = serde_json::from_slice(&delivery.body).unwrap();
        events += body["events"].as_array().unwrap().len();
    }
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_badge_counts_what_is_in_the_list_and_removals_carry_it() {
    let world = world(Setup::default()).with_room(&["ada", "ben"]).await;
    let direct = |text: &str| json!({ "to": "ben", "from": "ada", "body": { "text": text } });
    world.send(direct("one")).await;
    assert_eq!(next(&world.fcm).1.badge, Some(1));
    world.until_counted("accepted", 1).await;
    let archived = serde_json::from_value(json!({ "archived": true })).unwrap();
    let id = direct_id("ada", "ben");
    world.engine.set_preferences(&world.user("ben"), &id, archived).await.unwrap();
    world.say("two").await;
    assert_eq!(next(&world.fcm).1.badge, Some(1), "the archived conversation does not count");
    world.until_counted("accepted", 2).await;
    world.engine.mark_read(&world.user("ben"), "room", 1).await.unwrap();
    let removal = next(&world.fcm).1;
    assert_eq!((removal.removes, removal.badge), (true, Some(0)));
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_with_a_notification_of_its_own_is_not_withdrawn_under_a_tag_that_was_never_shown() {
    let world = world(Setup::default()).with_room(&["ada", "ben"]).await;
    world.put_rules(json!([{ "id": "own", "channels": [{ "channel": "providers", "collapse": "message" }] }])).await;
    world.say("one").await;
    assert_eq!(message_of(&next(&world.fcm).1), 1);
    world.until_counted("accepted", 1).await;
    world.engine.mark_read(&world.user("ben"), "room", 1).await.unwrap();
    world.say("two").await;
    let (_, shown) = next(&world.fcm);
    assert_eq!((message_of(&shown), shown.removes), (2, false));
    world.until_counted("accepted", 2).await;
    world.stop();
    assert!(world.fcm.try_recv().is_err());
}
