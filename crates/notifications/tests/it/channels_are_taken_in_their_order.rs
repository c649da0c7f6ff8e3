//! Channels that wait for their time are taken then, once, unless an earlier channel has reached the person, or the person does not need
//! the message any more; also after a restart, and whatever the clock does.

use crate::provider_world::*;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tidings_domain::{
    chat_rows::waiting_until,
    model::{Actor, Cursor, LANES},
    store::{RowSpace, RowStore},
};
use tidings_notifications::{
    SilentSession,
    channel_plan::{ChannelPlan, PlannedChannel},
};
use tidings_popups::Precondition;
use tidings_protocol::http::*;
use tidings_testkit::MemoryStore;

const MINUTE: Duration = Duration::from_secs(60);
const MOMENT: Duration = Duration::from_millis(1);

/// Providers at once, and the webhook a minute after the message for those whom they did not reach.
fn plan() -> ChannelPlan {
    let providers = PlannedChannel { channel: PolicyChannel::Providers, after_ms: 0, stops_others: true };
    let webhook = PlannedChannel { channel: PolicyChannel::Webhook, after_ms: 60_000, stops_others: false };
    ChannelPlan { channels: vec![providers, webhook] }
}

/// Providers that take nothing as `is_away` says, and a webhook that takes all.
fn setup(is_away: bool) -> Setup {
    Setup { is_away, backoff: Duration::from_secs(60 * 60), webhook: Some(false), plan: plan(), ..Setup::default() }
}

fn waiting(store: &MemoryStore) -> usize {
    let (from, to) = waiting_until(u64::MAX);
    store.rows(RowSpace::Chat, &from, &to, 1_000).unwrap().len()
}

impl World {
    /// The recorded steps, as `channel outcome cause`, once there are so many.
    async fn steps(&self, seq: u64, user: &str, count: usize) -> Vec<String> {
        let word = |value: Option<Value>| value.and_then(|value| value.as_str().map(str::to_owned));
        let steps = || {
            let notifications = self.notifications.message_notifications("room", seq, user).unwrap();
            let recorded = notifications.steps.iter().filter(|step| step.at.is_some());
            let words = |step: &NotificationStep| {
                let channel = word(step.channel.map(|channel| serde_json::to_value(channel).unwrap()));
                let outcome = word(Some(serde_json::to_value(step.outcome).unwrap()));
                [channel, outcome, step.cause.clone()].into_iter().flatten().collect::<Vec<_>>().join(" ")
            };
            recorded.map(words).collect::<Vec<_>>()
        };
        let all = async {
            while steps().len() < count {
                tokio::task::yield_now().await;
            }
            steps()
        };
        let all = tokio::time::timeout(PATIENCE, all).await;
        all.unwrap_or_else(|_| panic!("{user}: {:?}", steps()))
    }

    /// The users whom the next event of the webhook names, sorted.
    fn next_event(&self) -> Vec<String> {
        let delivery = self.webhook.recv_timeout(PATIENCE).expect("a call of the webhook");
        let body: Value = serde_json::from_slice(&delivery.body).unwrap();
        assert_eq!(body["events"].as_array().unwrap().len(), 1, "{body}");
        serde_json::from_value(body["events"][0]["recipients"].clone()).unwrap()
    }

    async fn until_nothing_waits(&self, store: &MemoryStore) {
        let done = async {
            while waiting(store) > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, done).await.expect("no channel waits");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_that_reached_the_person_cancels_those_after_it() {
    let store: Arc<MemoryStore> = Arc::default();
    let world = world(Setup { store: store.clone(), ..setup(false) }).with_room(&["ada", "ben", "cleo"]).await;
    // Cleo has no device: providers cannot reach her.
    world.register("cleo", "phone", None).await.unwrap();
    world.say("hello").await;
    assert_eq!(next(&world.fcm).0, "ben");
    world.until_counted("accepted", 1).await;
    assert_eq!(world.steps(1, "ben", 2).await, ["waiting webhook", "fcm accepted"]);
    let notifications = world.notifications.message_notifications("room", 1, "cleo").unwrap();
    assert_eq!(
        (notifications.outcome, notifications.steps[0].until),
        (NotificationOutcome::Waiting, Some(NOON + 60_000)),
        "{notifications:?}"
    );
    world.clock.advance(MINUTE);
    assert_eq!(world.next_event(), ["cleo"]);
    assert_eq!(world.steps(1, "ben", 3).await[2], "cancelled webhook: providers");
    assert_eq!(
        world.notifications.message_notifications("room", 1, "ben").unwrap().outcome,
        NotificationOutcome::Accepted
    );
    world.until_nothing_waits(&store).await;
    world.stop();
    assert!(world.webhook.try_recv().is_err(), "once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_is_taken_at_its_time_and_not_before_if_earlier_ones_failed() {
    let world = world(setup(true)).with_room(&["ada", "ben"]).await;
    world.say("hello").await;
    next(&world.fcm);
    world.until_counted("retried", 1).await;
    world.clock.advance(MINUTE - MOMENT);
    // The stage has looked at what is due before it decided this message.
    world.say("again").await;
    next(&world.fcm);
    assert!(world.webhook.try_recv().is_err(), "too early");
    world.clock.advance(MOMENT);
    assert_eq!(world.next_event(), ["ben"]);
    let steps = world.steps(1, "ben", 3).await;
    assert_eq!(steps, ["waiting webhook", "fcm retried away", "webhook accepted"]);
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_need_it_any_more_is_left_out_at_the_time_of_the_channel() {
    let store: Arc<MemoryStore> = Arc::default();
    let members = ["ada", "ben", "cleo", "dan", "eve", "fay"];
    let world = world(Setup { store: store.clone(), ..setup(true) }).with_room(&members).await;
    world.say("hello").await;
    world.until_counted("retried", 5).await;
    world.engine.mark_read(&world.user("ben"), "room", 1).await.unwrap();
    world.connect("cleo", true);
    world.engine.set_mute(&world.user("dan"), "room", Mute { muted: true, until: None }).await.unwrap();
    let window = DailyWindow { start: "11:00".into(), end: "13:00".into(), time_zone: "UTC".into() };
    world.engine.set_do_not_disturb("eve", Some(window)).await.unwrap();
    world.clock.advance(MINUTE);
    assert_eq!(world.next_event(), ["fay"]);
    for (user, expected) in [
        ("ben", "read webhook"),
        ("cleo", "cancelled webhook: session"),
        ("dan", "muted webhook"),
        ("eve", "do_not_disturb webhook"),
    ] {
        assert_eq!(world.steps(1, user, 3).await.last().unwrap(), expected, "{user}");
    }
    // Of a recalled message nobody is told.
    world.say("oops").await;
    world.until_counted("retried", 6).await;
    world.engine.recall_message(&Actor::App, "room", 2, None, None).await.unwrap();
    world.clock.advance(MINUTE);
    world.until_nothing_waits(&store).await;
    world.stop();
    assert!(world.webhook.try_recv().is_err(), "nobody else");
}

#[tokio::test(flavor = "multi_thread")]
async fn channels_wait_across_a_restart_and_a_clock_that_is_set_back() {
    let store: Arc<MemoryStore> = Arc::default();
    let before = world(Setup { store: store.clone(), ..setup(true) }).with_room(&["ada", "ben"]).await;
    before.say("hello").await;
    before.until_counted("retried", 1).await;
    before.stop();
    assert_eq!(waiting(&store), 1);

    let after = world(Setup { store: store.clone(), ..setup(true) });
    // The stage has seen the time before the clock is set back.
    after.say("again").await;
    let decided = async {
        while waiting(&store) < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, decided).await.expect("it is decided");
    after.clock.set(NOON - 24 * 60 * 60 * 1_000);
    after.clock.advance(MINUTE);
    assert_eq!(after.webhook.recv_timeout(PATIENCE).map(|_| ()), Ok(()), "the webhook is called");
    after.until_nothing_waits(&store).await;
    after.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_session_did_not_acknowledge_takes_the_same_channels() {
    let store: Arc<MemoryStore> = Arc::default();
    let world = world(Setup { store: store.clone(), ..setup(true) }).with_room(&["ada", "ben"]).await;
    world.connect("ben", true);
    let ben = world.user("ben");
    let position = || [world.engine.store.last_position(); LANES];
    let before = Cursor { epoch: world.engine.store.epoch(), positions: position() };
    world.say("hello").await;
    let until_now = position();
    let (notifications, user) = (world.notifications.clone(), ben.clone());
    let session = SilentSession { session: ben.no.0, stays: true, acknowledges: false };
    let tell = move || notifications.push_unacknowledged(&user, session, &before, until_now).unwrap();
    tokio::task::spawn_blocking(tell).await.unwrap();
    // What nodes have stored is read once a second.
    world.clock.advance(Duration::from_secs(1));
    assert_eq!(next(&world.fcm).0, "ben");
    assert_eq!(waiting(&store), 1);
    assert!(world.webhook.try_recv().is_err());
    // He has a session still, but it did not acknowledge the message.
    world.clock.advance(MINUTE);
    assert_eq!(world.next_event(), ["ben"]);
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_that_is_due_with_one_before_it_waits_for_that_ones_outcome() {
    let mut at_once = plan();
    at_once.channels[1].after_ms = 0;
    let world = world(Setup { plan: at_once, ..setup(true) }).with_room(&["ada", "ben", "cleo"]).await;
    world.register("cleo", "phone", None).await.unwrap();
    world.say("hello").await;
    assert_eq!(world.next_event(), ["cleo"], "she has no device, so there is no outcome to wait for");
    world.until_counted("retried", 1).await;
    world.clock.advance(Duration::from_secs(10));
    assert_eq!(world.next_event(), ["ben"]);
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_group_waits_in_rows_of_bounded_size() {
    let store: Arc<MemoryStore> = Arc::default();
    let world = world(Setup { store: store.clone(), ..setup(false) });
    let members: Vec<String> = (0..6_001).map(|n| format!("u{n}")).collect();
    for users in members.chunks(1_000) {
        let users = users.iter().map(|id| UserUpsert { id: id.clone(), ..UserUpsert::default() }).collect();
        world.engine.upsert_users(users).await.unwrap();
    }
    let room = json!({ "id": "room", "kind": "official", "name": "Room" });
    world.engine.create_conversation(&Actor::App, serde_json::from_value(room).unwrap()).await.unwrap();
    for users in members.chunks(1_000) {
        let change = json!({ "add": users });
        world.engine.change_members(&Actor::App, "room", serde_json::from_value(change).unwrap()).await.unwrap();
    }
    world.send(json!({ "conversation": "room", "body": { "text": "hello" } })).await;
    let rows = async {
        while waiting(&store) == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, rows).await.expect("rows");
    world.clock.advance(MINUTE);
    let mut named = std::collections::BTreeSet::new();
    while named.len() < members.len() {
        let delivery = world.webhook.recv_timeout(PATIENCE).expect("a call of the webhook");
        let body: Value = serde_json::from_slice(&delivery.body).unwrap();
        for event in body["events"].as_array().unwrap() {
            for user in event["recipients"].as_array().unwrap() {
                assert!(named.insert(user.as_str().unwrap().to_owned()), "{user} is named twice");
            }
        }
    }
    world.until_nothing_waits(&store).await;
    world.stop();
}

async fn put_policy(world: &World, rules: Value) {
    let policies = world.notifications.policies.clone();
    let text = json!({ "rules": rules }).to_string();
    let put = move || policies.put(text.as_bytes(), None, Precondition::None).unwrap();
    tokio::task::spawn_blocking(put).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_policy_decides_by_which_channels_each_person_is_told() {
    let store: Arc<MemoryStore> = Arc::default();
    let setup = Setup { store: store.clone(), ..setup(false) };
    let world = world(setup).with_room(&["ada", "ben", "cleo", "dan"]).await;
    world.register("dan", "tablet", Some(apns("abcd"))).await.unwrap();
    let mentioned = json!({ "attribute": "mention", "op": "eq", "value": true });
    put_policy(&world, json!([
        { "id": "loud", "for": { "types": ["alarm"] },
          "channels": [{ "channel": "session", "on_success": "continue" }, { "channel": "providers", "providers": ["fcm"] }] },
        { "id": "mentioned", "for": { "kinds": ["group"] }, "when": mentioned,
          "channels": [{ "channel": "session" }, { "channel": "webhook" }] },
        { "id": "rest", "for": { "kinds": ["group"] },
          "channels": [{ "channel": "session" }, { "channel": "providers", "providers": ["apns"] },
                    { "channel": "providers", "providers": ["fcm"], "after_s": 5 }, { "channel": "webhook", "after_s": 60 }] },
    ]))
    .await;
    world.send(json!({ "conversation": "room", "from": "ada", "body": { "text": "hi" }, "mentions": ["ben"] })).await;
    assert_eq!(world.next_event(), ["ben"], "the first rule that applies");
    assert_eq!(next(&world.apns).0, "abcd");
    let notifications = world.notifications.message_notifications("room", 1, "cleo").unwrap();
    let is_waiting = |step: &&NotificationStep| step.outcome == NotificationOutcome::Waiting;
    let (first, until) = (notifications.steps.iter().find(is_waiting).unwrap(), Some(NOON + 5_000));
    assert_eq!(
        (first.outcome, first.rule.as_deref(), first.until),
        (NotificationOutcome::Waiting, Some("rest"), until)
    );
    // Dan's tablet has taken it, so his phone is left alone.
    assert!(world.steps(1, "dan", 3).await.contains(&"apns accepted".to_owned()));
    world.clock.advance(Duration::from_secs(5));
    assert_eq!(next(&world.fcm).0, "cleo");
    let steps = world.steps(1, "dan", 4).await;
    assert!(steps.contains(&"cancelled providers: providers".to_owned()), "{steps:?}");
    world.until_counted("accepted", 1).await;
    world.clock.advance(MINUTE);
    world.until_nothing_waits(&store).await;

    // A message that no rule is for, and one that is told to those who have a session, too.
    world.send(json!({ "to": "ben", "from": "ada", "body": { "text": "hi" } })).await;
    world.connect("cleo", true);
    world.send(json!({ "conversation": "room", "from": "ada", "type": "alarm", "body": { "text": "fire" } })).await;
    assert_eq!(next_tokens(&world.fcm, 3), ["ben", "cleo", "dan"]);
    let direct = tidings_protocol::ids::direct_id("ada", "ben");
    assert_eq!(
        world.notifications.message_notifications(&direct, 1, "ben").unwrap().outcome,
        NotificationOutcome::NoRule
    );
    world.stop();
    assert!(world.webhook.try_recv().is_err() && world.fcm.try_recv().is_err() && world.apns.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_condition_is_looked_at_when_the_channel_is_due() {
    let store: Arc<MemoryStore> = Arc::default();
    let setup = Setup { store: store.clone(), ..setup(false) };
    let world = world(setup).with_room(&["ada", "ben", "cleo"]).await;
    let busy = json!({ "attribute": "unread", "op": "gte", "value": 2 });
    put_policy(
        &world,
        json!([{ "id": "all", "channels": [{ "channel": "session" }, { "channel": "webhook", "after_s": 60, "when": busy }] }]),
    )
    .await;
    world.say("one").await;
    world.say("two").await;
    let decided = async {
        while waiting(&store) < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, decided).await.expect("both wait");
    world.engine.mark_read(&world.user("cleo"), "room", 1).await.unwrap();
    world.clock.advance(MINUTE);
    world.until_nothing_waits(&store).await;
    assert_eq!(world.steps(2, "cleo", 2).await[1], "condition_false webhook: when");
    assert!(world.steps(2, "ben", 2).await[1].contains("accepted"));
    // The time of a channel is over before it is taken.
    let expires = json!({ "channel": "webhook", "after_s": 60, "expires_s": 90 });
    put_policy(&world, json!([{ "id": "short", "channels": [{ "channel": "session" }, expires] }])).await;
    world.say("late").await;
    let decided = async {
        while waiting(&store) == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, decided).await.expect("it waits");
    world.clock.advance(MINUTE * 2);
    world.until_nothing_waits(&store).await;
    assert_eq!(world.steps(3, "ben", 2).await[1], "expired webhook");
    // Another policy holds when the channel is due: the one that decided says what becomes of it.
    put_policy(
        &world,
        json!([{ "id": "slow", "channels": [{ "channel": "session" }, { "channel": "webhook", "after_s": 60 }] }]),
    )
    .await;
    world.say("three").await;
    let decided = async {
        while waiting(&store) == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, decided).await.expect("it waits");
    put_policy(&world, json!([{ "id": "none", "channels": [{ "channel": "session" }] }])).await;
    world.clock.advance(MINUTE);
    world.until_nothing_waits(&store).await;
    assert_eq!(world.steps(4, "ben", 2).await[1], "webhook accepted");
    world.stop();
}

/// The first of two messages was not acknowledged by a session, and so is told even if ben looks at one; the second is not then.
async fn the_newer_message_is_not_needed_after(failures: usize) {
    let hour = Duration::from_secs(60 * 60);
    let answers = (0..failures).map(|_| later()).collect();
    let world = world(Setup { answers, backoff: hour, ..Setup::default() }).with_room(&["ada", "ben"]).await;
    let ben = world.user("ben");
    world.connect("ben", true);
    let before = Cursor { epoch: world.engine.store.epoch(), positions: [world.engine.store.last_position(); LANES] };
    world.say("one").await;
    let until_now = [world.engine.store.last_position(); LANES];
    let (notifications, user) = (world.notifications.clone(), ben.clone());
    let session = SilentSession { session: ben.no.0, stays: true, acknowledges: false };
    let tell = move || notifications.push_unacknowledged(&user, session, &before, until_now).unwrap();
    tokio::task::spawn_blocking(tell).await.unwrap();
    world.clock.advance(Duration::from_secs(1));
    assert_eq!(next(&world.fcm).1.body, "ada: one");
    world.until_counted("retried", 1).await;
    world.engine.presence.unregister(ben.no, ben.no.0, NOON);
    world.say("two").await;
    assert_eq!(next(&world.fcm).1.body, "ada: two");
    for tried in 2..failures as u64 {
        world.until_counted("retried", tried).await;
        // At once, so that both are due: none waits longer.
        world.clock.advance(hour);
        assert_eq!(next(&world.fcm).1.body, "ada: two", "the newest of both");
    }
    world.until_counted("retried", failures as u64).await;
    world.connect("ben", true);
    assert_eq!(world.next_in_time().body, "ada: one");
    world.until_counted("accepted", 1).await;
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_message_that_is_not_needed_takes_no_older_ones_place() {
    the_newer_message_is_not_needed_after(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_message_that_the_provider_did_not_take_takes_no_older_ones_place() {
    the_newer_message_is_not_needed_after(3).await;
}
