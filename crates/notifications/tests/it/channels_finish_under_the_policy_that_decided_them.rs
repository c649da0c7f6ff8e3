//! The version of the policy that decided a message says what becomes of its channels to the end, whatever policy holds by then; also after
//! a restart, and when a provider's notification is tried again or replayed. Rows of the form before do not name a version.

use crate::provider_world::*;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tidings_domain::{
    chat_rows::{channel_job_key, policy_head_key, policy_version_key, provider_dead_letter_key, waiting_until},
    leadership::Term,
    model::Actor,
    providers::{ProviderAnswer, Retry},
    store::{RowChange, RowSpace, RowStore},
};
use tidings_popups::Precondition;
use tidings_protocol::http::*;
use tidings_testkit::MemoryStore;

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn setup(store: &Arc<MemoryStore>) -> Setup {
    Setup { store: store.clone(), webhook: Some(false), ..Setup::default() }
}

impl World {
    async fn put_policy(&self, rules: Value) -> u32 {
        let policies = self.notifications.policies.clone();
        let text = json!({ "rules": rules }).to_string();
        let put = move || policies.put(text.as_bytes(), None, Precondition::None).unwrap().version;
        tokio::task::spawn_blocking(put).await.unwrap()
    }

    /// Waits until this many rows of channels wait for their time.
    async fn until_waiting(&self, store: &MemoryStore, rows: usize) {
        let waiting = async {
            while waiting_rows(store).len() != rows {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("rows of channels that wait");
    }

    /// The users whom the next event of the webhook names.
    fn next_recipients(&self) -> Vec<String> {
        let delivery = self.webhook.recv_timeout(PATIENCE).expect("a call of the webhook");
        let body: Value = serde_json::from_slice(&delivery.body).unwrap();
        serde_json::from_value(body["events"][0]["recipients"].clone()).unwrap()
    }

    fn last_step(&self, seq: u64, user: &str) -> String {
        let notifications = self.notifications.message_notifications("room", seq, user).unwrap();
        let step = notifications.steps.iter().rfind(|step| step.at.is_some()).unwrap();
        format!("{:?} {} {}", step.outcome, step.rule.as_deref().unwrap_or("-"), step.cause.as_deref().unwrap_or("-"))
    }
}

fn waiting_rows(store: &MemoryStore) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (from, to) = waiting_until(u64::MAX);
    store.rows(RowSpace::Chat, &from, &to, 1_000).unwrap()
}

fn webhook_after(seconds: u64) -> Value {
    json!([{ "id": "mine", "channels": [{ "channel": "session" }, { "channel": "webhook", "after_s": seconds }] }])
}

fn nobody() -> Value {
    json!([{ "id": "none", "channels": [{ "channel": "session" }] }])
}

fn never() -> ProviderAnswer {
    ProviderAnswer::Refused { code: "400".into(), retry: Retry::Never }
}

/// Changes the JSON of rows, as a node of the version before would have written it, or not.
fn rewrite(store: &MemoryStore, rows: Vec<(Vec<u8>, Vec<u8>)>, change: impl Fn(&mut serde_json::Map<String, Value>)) {
    assert!(!rows.is_empty());
    let changed = rows.into_iter().map(|(key, row)| {
        let mut row: Value = serde_json::from_slice(&row).unwrap();
        change(row.as_object_mut().unwrap());
        RowChange { key, value: Some(row.to_string().into_bytes()) }
    });
    store.write_rows(Term::ALONE, RowSpace::Chat, changed.collect()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_that_waits_is_taken_as_the_policy_of_its_message_says() {
    let store: Arc<MemoryStore> = Arc::default();
    let world = world(setup(&store)).with_room(&["ada", "ben", "cleo"]).await;
    world.put_policy(webhook_after(60)).await;
    world.say("decided by the first").await;
    world.until_waiting(&store, 1).await;
    world.put_policy(nobody()).await;
    world.say("decided by the second").await;
    // What people want counts as it is then.
    world.engine.set_mute(&world.user("cleo"), "room", Mute { muted: true, until: None }).await.unwrap();
    world.clock.advance(MINUTE);
    assert_eq!(world.next_recipients(), ["ben"]);
    world.until_waiting(&store, 0).await;
    world.until_reached(1, "ben", NotificationOutcome::Accepted).await;
    assert_eq!(world.last_step(1, "cleo"), "Muted mine webhook");
    world.stop();
    assert!(world.webhook.try_recv().is_err(), "the second message takes no channel");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_so_after_a_restart_and_for_the_default_that_no_version_was_stored_of() {
    let store: Arc<MemoryStore> = Arc::default();
    let plan = || {
        let webhook = tidings_notifications::channel_plan::PlannedChannel {
            channel: PolicyChannel::Webhook,
            after_ms: 60_000,
            stops_others: false,
        };
        tidings_notifications::channel_plan::ChannelPlan { channels: vec![webhook] }
    };
    let before = world(Setup { plan: plan(), ..setup(&store) }).with_room(&["ada", "ben"]).await;
    before.say("by the default").await;
    before.until_waiting(&store, 1).await;
    before.put_policy(webhook_after(120)).await;
    before.say("by the first version").await;
    before.until_waiting(&store, 2).await;
    before.put_policy(nobody()).await;
    before.stop();

    let after = world(Setup { plan: plan(), ..setup(&store) });
    after.clock.advance(MINUTE);
    assert_eq!(after.next_recipients(), ["ben"]);
    after.until_waiting(&store, 1).await;
    after.clock.advance(MINUTE);
    assert_eq!(after.next_recipients(), ["ben"]);
    after.until_waiting(&store, 0).await;
    after.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_without_a_version_and_one_whose_version_is_gone_go_by_the_present_policy() {
    for is_gone in [false, true] {
        let store: Arc<MemoryStore> = Arc::default();
        let before = world(setup(&store)).with_room(&["ada", "ben"]).await;
        let version = before.put_policy(webhook_after(60)).await;
        before.say("one").await;
        before.until_waiting(&store, 1).await;
        before.put_policy(nobody()).await;
        before.stop();
        let rows = waiting_rows(&store);
        if is_gone {
            let (from, to) = (policy_version_key(version, 0), policy_version_key(version, u64::MAX));
            let parts = store.rows(RowSpace::Chat, &from, &to, 10).unwrap();
            let changes = parts.into_iter().map(|(key, _)| RowChange { key, value: None }).collect();
            store.write_rows(Term::ALONE, RowSpace::Chat, changes).unwrap();
        } else {
            rewrite(&store, rows, |row| assert_eq!(row.remove("v"), Some(json!(version))));
        }
        let after = world(setup(&store));
        after.clock.advance(MINUTE);
        after.until_waiting(&store, 0).await;
        assert_eq!(after.last_step(1, "ben"), "Cancelled - another policy");

        // A rule of the same name is the same rule.
        after.put_policy(webhook_after(60)).await;
        after.say("two").await;
        after.until_waiting(&store, 1).await;
        rewrite(&store, waiting_rows(&store), |row| drop(row.remove("v")));
        after.clock.advance(MINUTE);
        assert_eq!(after.next_recipients(), ["ben"]);
        after.stop();
    }
}

fn by_providers(id: &str, title: &str, expires_s: u64) -> Value {
    json!([{ "id": id, "channels": [{ "channel": "session" },
        { "channel": "providers", "expires_s": expires_s, "template": { "title": title, "body": "{text}" } }] }])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notification_that_is_tried_again_or_replayed_looks_as_the_policy_of_its_message_says() {
    let store: Arc<MemoryStore> = Arc::default();
    let setup = Setup { answers: vec![later(), never()], backoff: MINUTE, ..setup(&store) };
    let world = world(setup).with_room(&["ada", "ben"]).await;
    world.put_policy(by_providers("first", "first title", 3_600)).await;
    world.say("hello").await;
    assert_eq!(next(&world.fcm).1.title, "first title");
    world.until_counted("retried", 1).await;
    world.put_policy(by_providers("second", "second title", 30)).await;
    // By the second policy its time would be over.
    world.clock.advance(MINUTE);
    assert_eq!(next(&world.fcm).1.title, "first title");
    world.until_dead(1).await;
    assert_eq!(world.last_step(1, "ben"), "Refused first 400");

    world.put_policy(nobody()).await;
    assert_eq!(world.replay(SelectDeadLetters::default()).await.unwrap().replayed, 1);
    assert_eq!(next(&world.fcm).1.title, "first title");
    world.until_counted("accepted", 1).await;
    world.until_reached(1, "ben", NotificationOutcome::Accepted).await;
    assert_eq!(world.last_step(1, "ben"), "Accepted first -");
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_asks_the_condition_and_the_wishes_of_its_time() {
    let store: Arc<MemoryStore> = Arc::default();
    let answers = (0..4).map(|_| never()).collect();
    let world = world(Setup { answers, ..setup(&store) }).with_room(&["ada", "ben", "cleo", "dan", "eve"]).await;
    let plan = |plan: &str| Some(json!({ "plan": plan }));
    let upsert = |id: &str, attributes| UserUpsert { id: id.into(), attributes, ..UserUpsert::default() };
    let users = ["ben", "cleo", "dan", "eve"].map(|id| upsert(id, plan("gold")));
    world.engine.upsert_users(users.into()).await.unwrap();
    let gold = json!({ "attribute": "user.plan", "op": "eq", "value": "gold" });
    let of_gold = json!([{ "id": "gold", "channels": [{ "channel": "providers", "when": gold }] }]);
    world.put_policy(of_gold).await;
    world.say("hello").await;
    world.until_dead(4).await;
    world.put_policy(nobody()).await;
    world.engine.upsert_users(vec![upsert("cleo", plan("free"))]).await.unwrap();
    world.engine.set_mute(&world.user("dan"), "room", Mute { muted: true, until: None }).await.unwrap();
    // A letter of the form before names no rule, so that no condition is known.
    let key = |letter: &DeadLetter| match letter.id {
        DeadLetterId::Provider(number) => provider_dead_letter_key(number),
        DeadLetterId::Webhook(_) => panic!("{letter:?}"),
    };
    world.engine.upsert_users(vec![upsert("eve", plan("free"))]).await.unwrap();
    let letters = world.letters(SelectDeadLetters::default());
    let of_eve = key(letters.iter().find(|letter| letter.users == ["eve"]).unwrap());
    let row = store.row(RowSpace::Chat, &of_eve).unwrap().unwrap();
    rewrite(&store, vec![(of_eve, row)], |row| ["p", "r", "i"].iter().for_each(|field| drop(row.remove(*field))));

    let answer = world.replay(SelectDeadLetters::default()).await.unwrap();
    let mut dropped: Vec<_> = answer.dropped.iter().map(|dropped| format!("{:?}", dropped.reason)).collect();
    dropped.sort();
    assert_eq!((answer.replayed, dropped), (2, vec!["ConditionFalse".to_owned(), "Muted".to_owned()]));
    world.fcm.try_iter().for_each(drop);
    world.until_counted("accepted", 2).await;
    world.stop();
    assert_eq!(waiting_jobs(&store), 0);
}

fn waiting_jobs(store: &MemoryStore) -> usize {
    let number = PushProvider::Fcm as u64;
    let (from, to) = (channel_job_key(number, 0, 0), channel_job_key(number, u64::MAX, u64::MAX));
    store.rows(RowSpace::Chat, &from, &to, 1_000).unwrap().len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wish_that_ends_before_a_channel_is_due_does_not_hold_it_back() {
    let store: Arc<MemoryStore> = Arc::default();
    let world = world(setup(&store)).with_room(&["ada", "ben", "cleo", "dan", "eve"]).await;
    let mute = |until| Mute { muted: true, until };
    world.engine.set_mute(&world.user("ben"), "room", mute(Some(NOON + 59_000))).await.unwrap();
    world.engine.set_mute(&world.user("cleo"), "room", mute(Some(NOON + 90_000))).await.unwrap();
    let snooze = |until| NotificationPreferences { snooze_until: Some(until), ..Default::default() };
    world.notifications.set_notification_preferences("dan", snooze(NOON + 60_000)).await.unwrap();
    world.notifications.set_notification_preferences("eve", snooze(NOON + 60_001)).await.unwrap();
    world.put_policy(webhook_after(60)).await;
    world.say("hello").await;
    world.until_waiting(&store, 1).await;
    world.clock.advance(MINUTE);
    assert_eq!(world.next_recipients(), ["ben", "dan"]);
    for (user, outcome) in [("cleo", NotificationOutcome::Muted), ("eve", NotificationOutcome::Snoozed)] {
        world.until_reached(1, user, outcome).await;
    }
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_is_kept_while_channels_may_wait_and_no_longer() {
    let store: Arc<MemoryStore> = Arc::default();
    let world = world(setup(&store)).with_room(&["ada", "ben"]).await;
    let oldest = |store: &MemoryStore| {
        let head = store.row(RowSpace::Chat, &policy_head_key()).unwrap().unwrap();
        serde_json::from_slice::<Value>(&head).unwrap()["oldest"].as_u64().unwrap()
    };
    let month = webhook_after(30 * 24 * 60 * 60);
    world.put_policy(month).await;
    world.say("in a month").await;
    world.until_waiting(&store, 1).await;
    for _ in 0..60 {
        world.put_policy(nobody()).await;
    }
    assert_eq!(oldest(&store), 1);
    assert_eq!(world.notifications.policies.versions().unwrap().versions.len(), 50);
    world.clock.advance(DAY * 30);
    world.put_policy(nobody()).await;
    assert_eq!(oldest(&store), 1, "its channel is due now");
    world.until_waiting(&store, 0).await;
    // Each write drops a few of those that nothing can wait for any more.
    world.clock.advance(DAY * 2);
    world.put_policy(nobody()).await;
    assert_eq!(oldest(&store), 5);
    for _ in 0..20 {
        world.put_policy(nobody()).await;
    }
    assert_eq!(oldest(&store), 83 - 49, "the newest fifty");
    // However long a channel may wait, there is a bound.
    for _ in 0..520 {
        world.put_policy(nobody()).await;
    }
    let (from, to) = (policy_version_key(0, 0), policy_version_key(u32::MAX, u64::MAX));
    assert_eq!(store.rows(RowSpace::Chat, &from, &to, 10_000).unwrap().len(), 500);
    world.engine.recall_message(&Actor::App, "room", 1, None, None).await.unwrap();
    world.stop();
}
