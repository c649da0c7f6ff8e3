//! Pushes that devices do not acknowledge in time fall back to the providers of these devices.

use crate::provider_world::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tidings_domain::{
    chat_row_kind::ChatRowKind,
    clock::Clock,
    model::DailyWindow,
    providers::{Notification, NotificationSubject, ProviderAnswer, Retry},
    push_store::{DeviceNo, FallbackDevices, PushChange, PushKey, PushRow, PushStore, StoredFallbackTimer},
    store::{RowSpace, Term},
};
use tidings_protocol::http::*;
use tidings_push::PushReports;
use tidings_store::{EmbeddedOptions, EmbeddedStore};
use tidings_testkit::MemoryStore;

const SECOND: Duration = Duration::from_secs(1);
const HOUR_MS: u64 = 60 * 60 * 1_000;

fn fallback(after_s: u64) -> Value {
    json!({ "after_s": after_s, "template": { "title": "Offer", "body": "half price" },
        "templates": { "de": { "title": "Angebot", "body": "halber Preis" } } })
}

fn offer(users: &[&str], after_s: u64) -> Value {
    json!({ "to": { "users": users }, "type": "offer", "body": { "id": 7 }, "ttl_s": 3600, "fallback": fallback(after_s) })
}

impl World {
    /// People whose phones have bound for pushes and are away. The tokens of their phones are their ids.
    async fn with_phones(self, people: &[&str]) -> (World, BTreeMap<String, DeviceNo>) {
        let world = self.with_room(people).await;
        let mut phones = BTreeMap::new();
        for user in people {
            let phone = world.bind(user, "phone");
            world.unbind(user, phone);
            phones.insert((*user).to_owned(), phone);
        }
        (world, phones)
    }

    fn status(&self, push: u64) -> PushStatus {
        self.engine.push.status(push).unwrap()
    }

    fn acknowledge(&self, phone: DeviceNo, push: u64) {
        let mut reports = PushReports::default();
        reports.add_acknowledged(phone, &[push]);
        self.engine.push.report(reports);
        self.engine.push.settle().unwrap();
    }

    /// Waits until the state of a push says that the providers took so many notifications.
    async fn until_sent(&self, push: u64, expected: &[(PushProvider, u64)]) {
        let expected: BTreeMap<_, _> = expected.iter().copied().collect();
        let sent = || self.status(push).fallback.unwrap().sent;
        let is_so = async {
            while sent() != expected {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, is_so).await.unwrap_or_else(|_| panic!("{:?}", sent()));
    }

    /// Waits until no device is to fall back now, and no provider has anything to do.
    async fn until_quiet(&self) {
        let store = &self.engine.store;
        let (from, to) = ChatRowKind::ChannelJob.all();
        let is_quiet = || {
            self.engine.push.due_fallback().unwrap().is_none()
                && store.rows(RowSpace::Chat, &from, &to, 1).unwrap().is_empty()
        };
        let quiet = async {
            while !is_quiet() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, quiet).await.expect("nothing is left to be done");
    }
}

fn about_push(notification: &Notification) -> (u64, &str) {
    match &notification.subject {
        NotificationSubject::Push { push, content_type } => (*push, content_type),
        NotificationSubject::Message { .. } => panic!("a notification of a message"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_has_not_acknowledged_a_push_in_time_is_notified_once_and_keeps_the_push() {
    let (world, phones) = world(Setup::default()).with_phones(&["ben"]).await;
    let push = world.push(offer(&["ben"], 30)).await;
    world.clock.advance(SECOND * 29);
    assert!(world.engine.push.due_fallback().unwrap().is_none(), "a second is left");
    assert_eq!(world.status(push).fallback, Some(PushFallbackStatus { after_s: 30, sent: BTreeMap::new() }));
    world.clock.advance(SECOND);
    let (token, shown) = next(&world.fcm);
    assert_eq!((token.as_str(), shown.title.as_str(), shown.body.as_str()), ("ben", "Offer", "half price"));
    assert_eq!((about_push(&shown), shown.expires_at), ((push, "offer"), NOON + HOUR_MS));
    assert_eq!((shown.urgent, shown.badge, shown.removes), (false, None, false));
    world.until_sent(push, &[(PushProvider::Fcm, 1)]).await;
    assert_eq!((world.status(push).state, world.status(push).counts.pending), (PushState::Running, 1));
    let devices = world.engine.push.devices(push, None, None, 0).unwrap().devices;
    assert_eq!((devices[0].state, devices[0].fallback), (DeviceState::Pending, Some(PushProvider::Fcm)));

    world.acknowledge(phones["ben"], push);
    let counts = world.status(push).counts;
    assert_eq!((counts.acknowledged, counts.pending), (1, 0));
    let about = world.engine.push.user_delivery(push, "ben").unwrap().devices.remove(0);
    println!("{}", about.summary);
    assert!(about.summary.ends_with("a notification in its place went out by fcm"), "{}", about.summary);
    assert_eq!((about.state, about.fallback), (Some(DeviceState::Acknowledged), Some(PushProvider::Fcm)));
    world.until_quiet().await;
    world.stop();
    assert!(world.fcm.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_key_time_and_priority_are_those_of_the_fallback_else_of_the_push() {
    let (world, _) = world(Setup::default()).with_phones(&["ben", "cleo"]).await;
    world.engine.set_locale("cleo", SetLocale { language: Some("de-AT".into()), time_zone: None }).await.unwrap();
    let mut own = offer(&["ben", "cleo"], 0);
    own["priority"] = json!("high");
    own["collapse_key"] = json!("offers");
    let first = world.push(own.clone()).await;
    let mut shown: Vec<_> = (0..2).map(|_| next(&world.fcm)).collect();
    shown.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(shown.iter().map(|(_, shown)| shown.title.as_str()).collect::<Vec<_>>(), ["Offer", "Angebot"]);
    assert!(shown.iter().all(|(_, shown)| shown.urgent && shown.expires_at == NOON + HOUR_MS));
    own["fallback"] = json!({ "after_s": 0, "template": { "title": "", "body": "B", "image": "https://a.example/i.png" },
        "ttl_s": 60, "priority": "normal", "sound": "bell", "collapse_key": "news" });
    own["to"] = json!({ "users": ["ben"] });
    let second = world.push(own).await;
    let (_, other) = next(&world.fcm);
    assert_eq!((about_push(&shown[0].1).0, about_push(&other).0), (first, second));
    assert_eq!((other.urgent, other.expires_at, other.sound.as_deref()), (false, NOON + 60_000, Some("bell")));
    assert_eq!((other.body.as_str(), other.image.as_deref()), ("B", Some("https://a.example/i.png")));
    assert!(other.collapse_key != shown[0].1.collapse_key && other.id != shown[0].1.id);
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fallback_at_once_gives_a_connected_device_ten_seconds() {
    let (world, phones) = world(Setup::default()).with_phones(&["away", "there", "answers"]).await;
    for user in ["there", "answers"] {
        assert_eq!(world.bind(user, "phone"), phones[user]);
    }
    let push = world.push(offer(&["away", "there", "answers"], 0)).await;
    assert_eq!(next(&world.fcm).0, "away");
    world.until_quiet().await;
    world.acknowledge(phones["answers"], push);
    world.clock.advance(SECOND * 10);
    assert_eq!(next(&world.fcm).0, "there");
    world.until_sent(push, &[(PushProvider::Fcm, 2)]).await;
    world.until_quiet().await;
    world.stop();
    assert!(world.fcm.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_device_is_notified_by_its_own_provider_also_of_a_push_to_all() {
    let people: Vec<String> = (0..240).map(|n| format!("user{n:03}")).collect();
    let people: Vec<&str> = people.iter().map(String::as_str).collect();
    let (world, _) = world(Setup::default()).with_phones(&people).await;
    for user in people.iter().step_by(3) {
        let token = user.replace("user", "a");
        world.register(user, "phone", Some(apns(&format!("{token:0>64}")))).await.unwrap();
    }
    for user in people.iter().skip(1).step_by(3) {
        world.register(user, "phone", None).await.unwrap();
    }
    let mut all = offer(&[], 5);
    all["to"] = json!({ "all": true });
    let push = world.push(all).await;
    world.clock.advance(SECOND * 5);
    world.until_sent(push, &[(PushProvider::Fcm, 80), (PushProvider::Apns, 80)]).await;
    world.until_quiet().await;
    let page = world.engine.push.devices(push, None, None, 0).unwrap().devices;
    let by = |provider| page.iter().filter(|device| device.fallback == provider).count();
    assert_eq!([Some(PushProvider::Fcm), Some(PushProvider::Apns), None].map(by), [80; 3]);
    world.stop();
    assert_eq!((world.fcm.try_iter().count(), world.apns.try_iter().count()), (80, 80));
}

/// What happens to a user's push before it is due, and whether the user's phone is notified nevertheless.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_before_only_those_who_still_lack_the_push_and_want_to_know_are_notified() {
    // The same ones each time; another number tries others.
    let seed = std::env::var("FALLBACK_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    for seed in (0..10_u64).map(|run| run.wrapping_add(seed)) {
        println!("FALLBACK_SEED={seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let store: Arc<MemoryStore> = Arc::default();
        let setup = || Setup { store: store.clone(), ..Setup::default() };
        let people: Vec<String> = (0..12).map(|n| format!("user{n:02}")).collect();
        let names: Vec<&str> = people.iter().map(String::as_str).collect();
        let (mut world, phones) = world(setup()).with_phones(&names).await;
        let mut expected = Vec::new();
        for user in &names {
            let after_s = random.random_range(0..60);
            let mut own = offer(&[user], 60 + after_s);
            own["collapse_key"] = json!("offers");
            let push = world.push(own.clone()).await;
            match random.random_range(0..8) {
                0 => world.acknowledge(phones[*user], push),
                1 => drop(world.engine.push.cancel(push).unwrap()),
                2 => {
                    own["fallback"] = Value::Null;
                    world.push(own).await;
                }
                3 => {
                    let off = NotificationPreferences { off: vec![PolicyChannel::Providers], ..Default::default() };
                    world.notifications.set_notification_preferences(user, off).await.unwrap();
                }
                4 => world.register(user, "phone", None).await.unwrap(),
                5 => world.engine.push.remove_device(user, "phone").unwrap(),
                6 => {
                    let snoozed = NotificationPreferences {
                        snooze_until: Some(NOON + 2 * HOUR_MS),
                        ..NotificationPreferences::default()
                    };
                    world.notifications.set_notification_preferences(user, snoozed).await.unwrap();
                }
                _ => expected.push((*user).to_owned()),
            }
            if random.random_bool(0.1) {
                let now = world.clock.now_ms();
                world.stop();
                world = crate::provider_world::world(setup());
                world.clock.set(now);
            }
        }
        world.clock.advance(SECOND * 200);
        let told = next_tokens(&world.fcm, expected.len());
        world.until_quiet().await;
        world.clock.set(NOON + 3 * HOUR_MS);
        world.until_quiet().await;
        world.stop();
        assert_eq!(told, expected, "FALLBACK_SEED={seed}");
        assert!(world.fcm.try_recv().is_err(), "FALLBACK_SEED={seed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn quiet_hours_defer_a_fallback_as_long_as_the_push_lives() {
    let (world, _) = world(Setup::default()).with_phones(&["short", "long"]).await;
    for user in ["short", "long"] {
        let window = DailyWindow { start: "11:00".into(), end: "19:00".into(), time_zone: "UTC".into() };
        world.engine.set_do_not_disturb(user, Some(window)).await.unwrap();
    }
    world.push(offer(&["short"], 30)).await;
    let mut long = offer(&["long"], 30);
    long["ttl_s"] = json!(24 * 3600);
    long["fallback"]["ttl_s"] = json!(3600);
    let push = world.push(long).await;
    world.clock.advance(SECOND * 30);
    world.until_quiet().await;
    world.clock.set(NOON + 7 * HOUR_MS);
    let (token, shown) = next(&world.fcm);
    assert_eq!(
        (token.as_str(), shown.expires_at),
        ("long", NOON + 8 * HOUR_MS),
        "it counts from the end of quiet hours"
    );
    world.until_sent(push, &[(PushProvider::Fcm, 1)]).await;
    world.stop();
    assert!(world.fcm.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notification_that_failed_is_tried_again_after_a_restart_and_a_page_that_comes_twice_is_sent_once() {
    let store: Arc<MemoryStore> = Arc::default();
    let setup = |answers| Setup { store: store.clone(), answers, ..Setup::default() };
    let away = Setup { backoff: Duration::from_secs(48 * 60 * 60), ..setup(vec![later(), later()]) };
    let (before, _) = world(away).with_phones(&["ben", "cleo"]).await;
    let push = before.push(offer(&["ben", "cleo"], 30)).await;
    before.clock.advance(SECOND * 30);
    assert_eq!(next_tokens(&before.fcm, 2), ["ben", "cleo"]);
    before.until_counted("retried", 2).await;
    before.stop();
    // The process had died before the page was noted as dealt with.
    let timer = StoredFallbackTimer { at: NOON + 30_000, push, whom: FallbackDevices::All, next: 0 };
    store.write_push(Term::ALONE, &[PushChange::Put(PushRow::FallbackTimer(timer))]).unwrap();

    let after = world(setup(vec![]));
    after.clock.set(NOON + 31_000);
    assert_eq!(next_tokens(&after.fcm, 2), ["ben", "cleo"]);
    after.until_sent(push, &[(PushProvider::Fcm, 2)]).await;
    after.until_quiet().await;
    // And once more, when both are notified.
    store.write_push(Term::ALONE, &[PushChange::Put(PushRow::FallbackTimer(timer))]).unwrap();
    after.stop();
    let again = world(setup(vec![]));
    again.clock.set(NOON + 32_000);
    again.until_quiet().await;
    again.stop();
    assert!(after.fcm.try_recv().is_err() && again.fcm.try_recv().is_err());
    let (first, last) = (PushKey::FallbackTimer(0, 0), PushKey::FallbackTimer(u64::MAX, u64::MAX));
    assert!(store.push_rows(&first, &last, 10).unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_provider_refused_is_a_dead_letter_of_the_push_and_is_replayed_while_the_push_waits() {
    let never = ProviderAnswer::Refused { code: "INVALID_ARGUMENT".into(), retry: Retry::Never };
    let gone = ProviderAnswer::TokenGone { since: None };
    let (world, phones) = world(Setup { answers: vec![never.clone(), never.clone()], ..Setup::default() })
        .with_phones(&["ben", "cleo"])
        .await;
    let push = world.push(offer(&["ben", "cleo"], 0)).await;
    let letters = world.until_dead(2).await;
    assert!(letters.iter().all(|letter| letter.subject == DeadLetterSubject::Push { push } && letter.attempts == 1));
    assert_eq!(serde_json::to_value(&letters[0]).unwrap()["push"], json!(push));
    assert_eq!(next_tokens(&world.fcm, 2), ["ben", "cleo"]);
    world.acknowledge(phones["cleo"], push);
    let replayed = world.replay(SelectDeadLetters::default()).await.unwrap();
    let reasons: Vec<_> = replayed.dropped.iter().map(|dropped| dropped.reason).collect();
    assert_eq!((replayed.replayed, reasons), (1, vec![NotificationOutcome::Acknowledged]));
    assert_eq!(next(&world.fcm).0, "ben");
    world.until_sent(push, &[(PushProvider::Fcm, 1)]).await;
    world.stop();

    let (world, _) =
        crate::provider_world::world(Setup { answers: vec![gone], ..Setup::default() }).with_phones(&["ben"]).await;
    world.push(offer(&["ben"], 0)).await;
    world.until_counted("token_gone", 1).await;
    assert_eq!(world.devices("ben"), [""; 0], "the token is removed");
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_of_a_push_must_ask_for_the_same_fallback() {
    let (world, _) = world(Setup::default()).with_phones(&["ben"]).await;
    let mut request = offer(&["ben"], 30);
    request["client_push_id"] = json!("offer-7");
    let push = world.push(request.clone()).await;
    assert_eq!(world.push(request.clone()).await, push);
    request["fallback"]["after_s"] = json!(31);
    let prepared = world.engine.push.prepare(serde_json::from_value(request).unwrap()).unwrap();
    let refusal = world.engine.push.accept(prepared).await.unwrap_err();
    assert_eq!(refusal.code, tidings_protocol::error::ErrorCode::ClientPushIdReused);
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_folder_keeps_long_fallbacks_over_restarts_until_their_pushes_are_purged() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let options = EmbeddedOptions { outbox: true, disk_reserve_bytes: 0, ..EmbeddedOptions::new(folder.path()) };
        Arc::new(EmbeddedStore::open(options).unwrap())
    };
    let languages = ["de", "fr", "it", "es", "pt", "nl", "pl", "sv"];
    let text = |language: &str| json!({ "title": language, "body": language.repeat(400) });
    let templates: BTreeMap<_, _> = languages.iter().map(|language| (*language, text(language))).collect();
    let mut later = offer(&["ben"], 30);
    later["fallback"]["templates"] = json!(templates);
    later["send_at"] = json!(NOON + HOUR_MS);
    let (before, _) = world_on(open(), Setup::default()).with_phones(&["ben"]).await;
    before.engine.set_locale("ben", SetLocale { language: Some("sv".into()), time_zone: None }).await.unwrap();
    let push = before.push(later).await;
    before.stop();
    drop(before);

    let store = open();
    let after = world_on(store.clone(), Setup::default());
    after.clock.set(NOON + HOUR_MS);
    after.engine.push.settle().unwrap();
    after.clock.advance(SECOND * 30);
    assert_eq!(next(&after.fcm).1.title, "sv");
    after.until_sent(push, &[(PushProvider::Fcm, 1)]).await;
    let (first, last) = PushKey::all_of_fallback(push);
    assert!(store.push_rows(&first, &last, 100).unwrap().len() > 2, "some parts, and whom the provider reached");
    // It expires, and is purged when its status is no longer kept.
    for _ in 0..2 {
        after.clock.advance(Duration::from_secs(8 * 24 * 60 * 60));
        after.engine.push.settle().unwrap();
    }
    assert!(after.engine.push.status(push).is_err());
    assert_eq!(store.push_rows(&first, &last, 100).unwrap(), []);
    after.stop();
}
