//! Quiet hours defer: what do-not-disturb or a snooze holds back is told when they end, of each conversation the newest message that the
//! person may still be notified of.

use crate::provider_world::*;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tidings_domain::{
    chat_rows::{deferred_until, waiting_until},
    clock::Clock,
    gates::Gate,
    model::{Actor, DailyWindow},
    store::{RowSpace, RowStore},
};
use tidings_notifications::QuietHours;
use tidings_popups::Precondition;
use tidings_protocol::{http::*, ids::direct_id};
use tidings_testkit::MemoryStore;

const HOUR: Duration = Duration::from_secs(60 * 60);
const HOUR_MS: u64 = 60 * 60 * 1_000;
/// The end of quiet hours that begin before noon.
const MORNING: u64 = NOON + 7 * HOUR_MS;

impl World {
    /// People with phones, and no room.
    async fn with_people(self, people: &[&str]) -> World {
        self.with_room(people).await
    }

    /// Quiet hours from 11:00 to 19:00 UTC.
    async fn sleep(&self, user: &str) {
        let window = DailyWindow { start: "11:00".into(), end: "19:00".into(), time_zone: "UTC".into() };
        self.engine.set_do_not_disturb(user, Some(window)).await.unwrap();
    }

    async fn snooze(&self, user: &str, until: u64) {
        let preferences = NotificationPreferences { snooze_until: Some(until), ..Default::default() };
        self.notifications.set_notification_preferences(user, preferences).await.unwrap();
    }

    async fn put_night_policy(&self, rules: Value) {
        let policies = self.notifications.policies.clone();
        let text = json!({ "rules": rules }).to_string();
        let put = move || policies.put(text.as_bytes(), None, Precondition::None).map(drop).unwrap();
        tokio::task::spawn_blocking(put).await.unwrap();
    }

    /// A direct message of Ada's.
    async fn write(&self, to: &str, text: &str) {
        self.send(json!({ "to": to, "from": "ada", "body": { "text": text } })).await;
    }

    fn night_outcome(&self, user: &str, seq: u64) -> NotificationOutcome {
        self.why(user, seq).outcome
    }

    fn why(&self, user: &str, seq: u64) -> MessageNotifications {
        self.notifications.message_notifications(&direct_id("ada", user), seq, user).unwrap()
    }

    async fn until_why(&self, user: &str, seq: u64, outcome: NotificationOutcome) -> String {
        let found = async {
            while self.night_outcome(user, seq) != outcome {
                tokio::task::yield_now().await;
            }
        };
        let found = tokio::time::timeout(PATIENCE, found).await;
        found.unwrap_or_else(|_| panic!("{user} {seq} {outcome:?}: {:?}", self.why(user, seq)));
        self.why(user, seq).summary
    }
}

fn deferred_rows(store: &MemoryStore) -> usize {
    let (from, to) = deferred_until(u64::MAX - 1);
    store.rows(RowSpace::Chat, &from, &to, 1_000).unwrap().len()
}

fn waiting_rows(store: &MemoryStore) -> usize {
    let (from, to) = waiting_until(u64::MAX);
    store.rows(RowSpace::Chat, &from, &to, 1_000).unwrap().len()
}

/// Waits until the store has so many rows that wait for the end of quiet hours.
async fn until_deferred(store: &MemoryStore, rows: usize) {
    let deferred = async {
        while deferred_rows(store) != rows {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, deferred).await.unwrap_or_else(|_| panic!("{} rows", deferred_rows(store)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nights_messages_are_one_notification_in_the_morning() {
    let store: Arc<MemoryStore> = Arc::default();
    let setup = || Setup { store: store.clone(), webhook: Some(false), ..Setup::default() };
    let night = world(setup()).with_people(&["ada", "ben", "cleo"]).await;
    night.sleep("ben").await;
    for text in ["one", "two", "three"] {
        night.write("ben", text).await;
    }
    // For each message one row of providers and one of the webhook.
    until_deferred(&store, 6).await;
    let why = night.until_why("ben", 3, NotificationOutcome::Deferred).await;
    println!("{why}");
    assert!(why.starts_with("ben is not to be disturbed: the notification by "), "{why}");
    assert!(why.ends_with(" is deferred until 2026-03-01 19:00:00 UTC"), "{why}");
    night.clock.advance(HOUR * 6);
    night.stop();
    assert!(night.fcm.try_recv().is_err(), "ben sleeps");

    // The process has died meanwhile; the morning is an hour old when it is back.
    let morning = world(setup());
    morning.clock.set(MORNING + HOUR_MS);
    let (token, notification) = next(&morning.fcm);
    println!("in the morning: {token} {:?} {:?} badge {:?}", notification.title, notification.body, notification.badge);
    assert_eq!((token.as_str(), notification.body.as_str(), notification.badge), ("ben", "three", Some(3)));
    assert_eq!(notification.expires_at, MORNING + 24 * HOUR_MS, "its time to live counts from the end of quiet hours");
    let delivery = morning.webhook.recv_timeout(PATIENCE).unwrap();
    let event: Value = serde_json::from_slice(&delivery.body).unwrap();
    assert_eq!(event["events"][0]["recipients"], json!(["ben"]));
    assert_eq!((event["events"][0]["entry"]["seq"].as_u64(), event["events"].as_array().unwrap().len()), (Some(3), 1));
    for seq in [1, 2] {
        println!("{seq}: {}", morning.until_why("ben", seq, NotificationOutcome::Superseded).await);
    }
    println!("3: {}", morning.until_why("ben", 3, NotificationOutcome::Accepted).await);
    morning.stop();
    assert!(morning.fcm.try_recv().is_err() && morning.webhook.try_recv().is_err());
    assert_eq!(deferred_rows(&store) + waiting_rows(&store), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_read_recalled_or_muted_in_the_night_is_not_told_and_the_newest_that_is_left_is() {
    let store: Arc<MemoryStore> = Arc::default();
    let people = ["ada", "reads", "reads-some", "recalled", "mutes", "comes"];
    let world = world(Setup { store: store.clone(), ..Setup::default() }).with_people(&people).await;
    for user in &people[1..] {
        world.sleep(user).await;
        for text in ["one", "two", "three"] {
            world.write(user, text).await;
        }
    }
    until_deferred(&store, 15).await;
    let id = |user| direct_id("ada", user);
    world.engine.mark_read(&world.user("reads"), &id("reads"), 3).await.unwrap();
    world.engine.mark_read(&world.user("reads-some"), &id("reads-some"), 2).await.unwrap();
    world.engine.recall_message(&Actor::App, &id("recalled"), 3, None, None).await.unwrap();
    world.engine.set_mute(&world.user("mutes"), &id("mutes"), Mute { muted: true, until: None }).await.unwrap();
    world.connect("comes", true);
    world.clock.set(MORNING);
    let mut told: Vec<_> = (0..2).map(|_| next(&world.fcm)).map(|(token, told)| (token, told.body)).collect();
    told.sort();
    until_deferred(&store, 0).await;
    let expected =
        [("reads-some", "three"), ("recalled", "two")].map(|(user, text)| (user.to_owned(), text.to_owned()));
    assert_eq!(told, expected);
    let why = [
        ("reads", 3, NotificationOutcome::Read),
        ("reads-some", 2, NotificationOutcome::Read),
        ("recalled", 3, NotificationOutcome::Recalled),
        ("recalled", 1, NotificationOutcome::Superseded),
        ("mutes", 3, NotificationOutcome::Muted),
        ("comes", 3, NotificationOutcome::Cancelled),
    ];
    for (user, seq, outcome) in why {
        println!("{user} {seq}: {}", world.until_why(user, seq, outcome).await);
    }
    world.stop();
    assert!(world.fcm.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn channels_after_a_deferred_one_keep_their_distance() {
    let store: Arc<MemoryStore> = Arc::default();
    let setup = Setup { store: store.clone(), webhook: Some(false), answers: vec![later()], ..Setup::default() };
    let world = world(Setup { backoff: HOUR * 48, ..setup }).with_people(&["ada", "ben", "cleo"]).await;
    let channels = json!([{ "channel": "session" }, { "channel": "providers", "after_s": 5 }, { "channel": "webhook", "after_s": 60 }]);
    world.put_night_policy(json!([{ "id": "all", "channels": channels }])).await;
    for user in ["ben", "cleo"] {
        world.sleep(user).await;
        world.write(user, "hello").await;
    }
    let explain = |user: &str| {
        let ask = json!({ "user": user, "to": user, "from": "ada", "body": { "text": "hi" } });
        let found = world.notifications.explain_notifications(&serde_json::from_value(ask).unwrap()).unwrap();
        let of = |channel: &ExplainedChannel| (channel.at - NOON, channel.taken, channel.outcome, channel.until);
        found.channels.iter().skip(1).map(of).collect::<Vec<_>>()
    };
    let at = |after: u64| MORNING - NOON + after;
    let deferred = |after| (at(after), true, Some(NotificationOutcome::Deferred), Some(MORNING + after));
    assert_eq!(explain("ben"), [deferred(5_000), deferred(60_000)]);
    // Both channels come to their time while the people sleep.
    world.clock.advance(Duration::from_secs(61));
    until_deferred(&store, 4).await;
    world.clock.set(MORNING);
    until_deferred(&store, 0).await;
    world.clock.advance(Duration::from_secs(5));
    assert_eq!(next_tokens(&world.fcm, 2), ["ben", "cleo"]);
    let reached = async {
        let reached = || {
            let is_reached = |user: &&str| world.night_outcome(user, 1) == NotificationOutcome::Accepted;
            ["ben", "cleo"].into_iter().filter(is_reached).count()
        };
        while reached() != 1 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, reached).await.expect("one of them is reached");
    world.clock.advance(Duration::from_secs(55));
    // Firebase has not taken the notification of one of them.
    let delivery = world.webhook.recv_timeout(PATIENCE).unwrap();
    let body: Value = serde_json::from_slice(&delivery.body).unwrap();
    assert_eq!(body["events"][0]["recipients"].as_array().unwrap().len(), 1);
    world.stop();
    assert!(world.webhook.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn snoozes_defer_likewise_and_the_end_is_that_of_all_quiet_hours() {
    let store: Arc<MemoryStore> = Arc::default();
    let people = ["ada", "short", "both", "month"];
    let world = world(Setup { store: store.clone(), ..Setup::default() }).with_people(&people).await;
    world.snooze("short", NOON + HOUR_MS).await;
    world.snooze("both", NOON + HOUR_MS).await;
    world.sleep("both").await;
    world.snooze("month", NOON + 30 * 24 * HOUR_MS).await;
    for user in &people[1..] {
        world.write(user, "hello").await;
    }
    until_deferred(&store, 2).await;
    let why = world.until_why("month", 1, NotificationOutcome::Snoozed).await;
    println!("{why}");
    println!("{}", world.until_why("both", 1, NotificationOutcome::Deferred).await);
    world.clock.set(NOON + HOUR_MS);
    assert_eq!(next(&world.fcm).0, "short");
    world.clock.set(MORNING - 1);
    until_deferred(&store, 1).await;
    world.clock.set(MORNING);
    assert_eq!(next(&world.fcm).0, "both");
    world.until_why("both", 1, NotificationOutcome::Accepted).await;
    world.stop();
    assert!(world.fcm.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_and_nodes_that_do_not_know_of_it_hold_back() {
    for (quiet_hours, text) in [(QuietHours::DeferDirect, "group"), (QuietHours::DeferNone, "off")] {
        let store: Arc<MemoryStore> = Arc::default();
        let world =
            world(Setup { store: store.clone(), quiet_hours, ..Setup::default() }).with_room(&["ada", "ben"]).await;
        world.sleep("ben").await;
        world.say(text).await;
        world.until_reached(1, "ben", NotificationOutcome::DoNotDisturb).await;
        if quiet_hours == QuietHours::DeferNone {
            world.write("ben", text).await;
            world.until_why("ben", 1, NotificationOutcome::DoNotDisturb).await;
        }
        assert_eq!(deferred_rows(&store), 0);
        world.stop();
    }
    assert!(Gate::ALL.contains(&Gate::QuietHoursDefer));
}

fn browser() -> PushToken {
    let keys = json!({ "p256dh": "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4", "auth": "BTBZMqHH6r4Tts7J_aSIgg" });
    let subscription = json!({ "endpoint": "https://push.example.com/ben", "keys": keys });
    serde_json::from_value(json!({ "provider": "web_push", "subscription": subscription })).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_phones_night() {
    let store: Arc<MemoryStore> = Arc::default();
    let setup = Setup { store: store.clone(), has_browsers: true, ..Setup::default() };
    let world = world(setup).with_people(&["ada", "ben", "cleo"]).await;
    world.register("ben", "browser", Some(browser())).await.unwrap();
    let by_providers = |title: &str| {
        json!([{ "id": title, "channels": [{ "channel": "session" },
            { "channel": "providers", "template": { "title": title, "body": "{sender}: {text}" } }] }])
    };
    world.put_night_policy(by_providers("evening")).await;
    world.sleep("ben").await;
    world.write("ben", "one").await;
    world.write("ben", "two").await;
    world.write("ben", "three").await;
    world.send(json!({ "to": "ben", "from": "cleo", "body": { "text": "four" } })).await;
    world.say("five").await;
    // Of pushes to the phone the newest of its key is left, and one that does not live until the morning.
    let phone = world.bind("ben", "phone");
    world.unbind("ben", phone);
    let offer = |body: &str, ttl_s: u64| {
        json!({ "to": { "users": ["ben"] }, "type": "offer", "body": 1, "ttl_s": ttl_s, "collapse_key": format!("{ttl_s}"),
            "fallback": { "after_s": 30, "template": { "title": "Offer", "body": body } } })
    };
    world.push(offer("six", 24 * 3_600)).await;
    let seven = world.push(offer("seven", 24 * 3_600)).await;
    world.push(offer("gone by the morning", 3_600)).await;
    // The phones of the others are told of the group's message at once.
    assert_eq!(next(&world.fcm).0, "cleo");
    until_deferred(&store, 4).await;
    world.put_night_policy(json!([{ "id": "nobody", "channels": [{ "channel": "session" }] }])).await;
    world.clock.advance(HOUR);
    world.engine.mark_read(&world.user("ben"), &direct_id("ada", "ben"), 1).await.unwrap();
    world.engine.recall_message(&Actor::App, &direct_id("ada", "ben"), 3, None, None).await.unwrap();
    world.clock.set(MORNING);

    let line = |body: &str| ("evening".to_owned(), body.to_owned(), Some(3));
    let offer = ("Offer".to_owned(), "seven".to_owned(), None);
    for (device, shown, expected) in [
        ("phone", &world.fcm, vec![offer, line("ada: two"), line("cleo: four")]),
        ("browser", &world.web, vec![line("ada: two"), line("cleo: four")]),
    ] {
        let told = (0..expected.len()).map(|_| next(shown).1);
        let mut shown: Vec<_> = told.map(|told| (told.title, told.body, told.badge)).collect();
        shown.sort();
        println!("{device} in the morning: {shown:?}");
        assert_eq!(shown, expected);
    }
    until_deferred(&store, 0).await;
    assert_eq!(world.engine.push.status(seven).unwrap().counts.pending, 1, "the push waits for the phone");
    println!("{}", world.engine.push.user_delivery(seven, "ben").unwrap().devices[0].summary);
    let expected = [
        ("one", direct_id("ada", "ben"), 1, NotificationOutcome::Read),
        ("two", direct_id("ada", "ben"), 2, NotificationOutcome::Accepted),
        ("three", direct_id("ada", "ben"), 3, NotificationOutcome::Recalled),
        ("four", direct_id("cleo", "ben"), 1, NotificationOutcome::Accepted),
        ("five", "room".to_owned(), 1, NotificationOutcome::DoNotDisturb),
    ];
    for (text, conversation, seq, outcome) in expected {
        let why = async {
            loop {
                let why = world.notifications.message_notifications(&conversation, seq, "ben").unwrap();
                if why.outcome == outcome {
                    return why;
                }
                tokio::task::yield_now().await;
            }
        };
        let why = tokio::time::timeout(PATIENCE, why).await.expect(text);
        println!("{text}: {}", why.summary);
    }
    world.stop();
    assert!(world.fcm.try_recv().is_err() && world.web.try_recv().is_err());
}

/// A night of one conversation, message by message, against a list.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_in_a_night_the_morning_tells_the_newest_that_is_left() {
    // The same ones each time; another number tries others.
    let seed = std::env::var("NIGHT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut told_of = [0; 2];
    for seed in (0..25_u64).map(|run| run.wrapping_add(seed)) {
        println!("NIGHT_SEED={seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let store: Arc<MemoryStore> = Arc::default();
        let setup = || Setup { store: store.clone(), ..Setup::default() };
        let mut world = world(setup()).with_people(&["ada", "ben"]).await;
        world.sleep("ben").await;
        let id = direct_id("ada", "ben");
        // The numbers of messages; a recall is an entry, too.
        let (mut sent, mut last, mut read) = (Vec::<u64>::new(), 0, 0);
        let mut recalled = Vec::new();
        for _ in 0..random.random_range(1..12) {
            match random.random_range(0..6) {
                0..3 => {
                    last += 1;
                    world.write("ben", &format!("message {last}")).await;
                    sent.push(last);
                }
                3 if !sent.is_empty() => {
                    let seq = *sent.choose(&mut random).unwrap();
                    if !recalled.contains(&seq) {
                        last += 1;
                        world.engine.recall_message(&Actor::App, &id, seq, None, None).await.unwrap();
                        recalled.push(seq);
                    }
                }
                4 if !sent.is_empty() && random.random_bool(0.5) => {
                    read = read.max(*sent.choose(&mut random).unwrap());
                    world.engine.mark_read(&world.user("ben"), &id, read).await.unwrap();
                }
                5 => {
                    let now = world.clock.now_ms();
                    world.stop();
                    world = crate::provider_world::world(setup());
                    world.clock.set(now + *[0, HOUR_MS / 4].choose(&mut random).unwrap());
                }
                _ => {}
            }
        }
        let newest = sent.into_iter().rev().find(|seq| *seq > read && !recalled.contains(seq));
        // What is decided in the morning is told at once, beside what waited for it.
        world.until_decided().await;
        world.clock.set(MORNING);
        match newest {
            Some(seq) => {
                let (_, told) = next(&world.fcm);
                assert_eq!((message_of(&told), told.body), (seq, format!("message {seq}")), "NIGHT_SEED={seed}");
                world.until_why("ben", seq, NotificationOutcome::Accepted).await;
            }
            None => until_deferred(&store, 0).await,
        }
        until_deferred(&store, 0).await;
        told_of[usize::from(newest.is_some())] += 1;
        world.stop();
        assert!(world.fcm.try_iter().all(|shipment| shipment.notification.removes), "NIGHT_SEED={seed}");
    }
    println!("nothing was left in {} nights, something in {}", told_of[0], told_of[1]);
}
