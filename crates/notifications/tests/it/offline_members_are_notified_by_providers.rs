//! Offline push by providers: each device with a token is notified at least once, across failures and restarts, and nobody waits for
//! a provider that is away.

use crate::provider_world::*;
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tidings_domain::{
    model::{Actor, Cursor, LANES},
    providers::{ProviderAnswer, Retry},
    store::Store,
};
use tidings_notifications::{SilentSession, provider_push::ProviderPushConfig};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
    limits::PUSH_TOKENS_PER_USER_MAX,
};
use tidings_testkit::MemoryStore;

#[tokio::test(flavor = "multi_thread")]
async fn devices_of_offline_members_are_notified_with_text_and_badge() {
    let world = world(Setup::default()).with_room(&["ada", "ben", "cleo", "dan"]).await;
    world.connect("cleo", true);
    // Dan's session is bound for pushes alone: it gets no messages.
    world.connect("dan", false);
    world.register("ben", "tablet", Some(apns("abcd"))).await.unwrap();
    world.say("hello").await;
    assert_eq!(next_tokens(&world.fcm, 2), ["ben", "dan"]);
    let (token, shown) = next(&world.apns);
    assert_eq!((token.as_str(), shown.title.as_str(), shown.body.as_str()), ("abcd", "Room", "ada: hello"));
    assert_eq!((shown.badge, message_of(&shown), shown.subject.thread()), (Some(1), 1, Some("room")));
    assert_eq!(shown.expires_at, NOON + 24 * 60 * 60 * 1_000);
    assert!(shown.collapse_key.len() <= 32);
    world.until_counted("accepted", 2).await;
    world.say("again").await;
    let (_, second) = next(&world.apns);
    assert_eq!(second.badge, Some(2));
    assert_eq!(second.collapse_key, shown.collapse_key, "the conversation's notifications take each other's place");
    assert_ne!(second.id, shown.id);
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_want_to_know_is_not_notified() {
    let world = world(Setup::default()).with_room(&["ada", "ben", "cleo", "dan", "eve"]).await;
    let user = |id: &str| world.engine.directory.require_user(id).unwrap();
    world.engine.set_mute(&user("ben"), "room", Mute { muted: true, until: None }).await.unwrap();
    world.engine.set_mute(&user("cleo"), "room", Mute { muted: true, until: Some(NOON) }).await.unwrap();
    let window = DailyWindow { start: "11:00".into(), end: "13:00".into(), time_zone: "UTC".into() };
    world.engine.set_do_not_disturb("dan", Some(window)).await.unwrap();
    world.register("eve", "phone", None).await.unwrap();
    for skipped in ["silent", "skip_push"] {
        world.send(json!({ "conversation": "room", "from": "ada", "body": {}, skipped: true })).await;
    }
    world.say("hello").await;
    let (token, shown) = next(&world.fcm);
    assert_eq!((token.as_str(), shown.body.as_str()), ("cleo", "ada: hello"));
    world.until_counted("accepted", 1).await;
    world.stop();
    assert!(world.fcm.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_notification_is_tried_again_with_the_same_id_also_after_a_restart() {
    let store: Arc<MemoryStore> = Arc::default();
    let setup = Setup { store: store.clone(), answers: vec![later(), later()], ..Setup::default() };
    let before = world(setup).with_room(&["ada", "ben"]).await;
    before.say("hello").await;
    let tries: Vec<_> = (0..3).map(|_| next(&before.fcm)).collect();
    assert!(tries.iter().all(|(token, shown)| token == "ben" && shown.id == tries[0].1.id), "{tries:?}");
    before.until_counted("accepted", 1).await;
    before.stop();
    assert_eq!(before.fcm.try_iter().count(), 0);

    // Stopped while the provider is away.
    let setup = Setup { store: store.clone(), is_away: true, ..Setup::default() };
    let stopped = world(setup);
    stopped.say("waiting").await;
    let (_, shown) = next(&stopped.fcm);
    stopped.stop();
    let after = world(Setup { store, ..Setup::default() });
    let (token, again) = next(&after.fcm);
    assert_eq!((token.as_str(), again.id, again.body.as_str()), ("ben", shown.id, "ada: waiting"));
    after.until_counted("accepted", 1).await;
    after.stop();
    assert_eq!(after.fcm.try_iter().count(), 0, "what was accepted before is not sent again");
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_a_provider_nor_a_webhook_that_is_away_holds_the_others_up() {
    let hour = Duration::from_secs(60 * 60);
    let setup = Setup { is_away: true, webhook: Some(true), backoff: hour, ..Setup::default() };
    let world = world(setup).with_room(&["ada", "ben"]).await;
    world.register("ben", "tablet", Some(apns("abcd"))).await.unwrap();
    for number in 1..=20_u64 {
        world.say(&format!("message {number}")).await;
        assert_eq!(message_of(&next(&world.apns).1), number);
    }
    world.webhook.recv_timeout(PATIENCE).expect("the webhook is called");
    world.stop();
    drop(world);

    // The webhook is told of all, though Firebase takes nothing.
    let setup = Setup { is_away: true, webhook: Some(false), backoff: hour, ..Setup::default() };
    let world = self::world(setup).with_room(&["ada", "ben"]).await;
    let mut told = 0;
    for number in 0..20 {
        world.say(&format!("message {number}")).await;
    }
    while told < 20 {
        let delivery = world.webhook.recv_timeout(PATIENCE).expect("a call of the webhook");
        let body: Value = serde_json::from_slice(&delivery.body).unwrap();
        told += body["events"].as_array().unwrap().len();
    }
    world.until_counted("retried", 1).await;
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn many_messages_at_once_reach_the_same_people_as_one() {
    const MESSAGES: u64 = 400;
    /// Messages of Ben and of Eve before them, which count as unread for the other.
    const EARLIER: [u64; 2] = [20, 130];
    const FIRST: u64 = EARLIER[0] + EARLIER[1] + 1;
    const LAST: u64 = FIRST + MESSAGES - 1;
    let setup = Setup { webhook: Some(false), ..Setup::default() };
    let world = world(setup).with_room(&["ada", "ben", "cleo", "dan", "eve"]).await;
    world.connect("cleo", true);
    let dan = world.engine.directory.require_user("dan").unwrap();
    world.engine.set_mute(&dan, "room", Mute { muted: true, until: None }).await.unwrap();
    for (from, messages) in ["ben", "eve"].into_iter().zip(EARLIER) {
        for _ in 0..messages {
            world.send(json!({ "conversation": "room", "from": from, "body": {}, "skip_push": true })).await;
        }
    }
    let sends: Vec<_> = (0..MESSAGES)
        .map(|number| {
            let engine = world.engine.clone();
            let message = json!({ "conversation": "room", "from": "ada", "body": { "text": number.to_string() } });
            let text = message.to_string();
            tokio::spawn(async move { engine.send(&Actor::App, serde_json::from_str(&text).unwrap()).await })
        })
        .collect();
    for send in sends {
        send.await.unwrap().unwrap();
    }
    // Of each message one notification for each of both devices: sent, or superseded by a newer one.
    let (mut shown, mut last) = (0, BTreeMap::new());
    while last.values().filter(|(seq, _)| *seq == LAST).count() < 2 {
        let (token, notification) = next(&world.fcm);
        let (before, _) = last.insert(token, (message_of(&notification), notification.badge)).unwrap_or_default();
        assert!(before < message_of(&notification), "a newer notification is never replaced by an older one");
        shown += 1;
    }
    let badge = |messages| Some(messages + MESSAGES);
    let expected = [("ben", badge(EARLIER[1])), ("eve", badge(EARLIER[0]))];
    assert_eq!(last, expected.into_iter().map(|(user, badge)| (user.to_owned(), (LAST, badge))).collect());
    world.until_counted("accepted", shown).await;
    world.until_counted("superseded", 2 * MESSAGES - shown).await;
    // The webhook is told of each message, for both.
    let mut told = BTreeMap::new();
    while told.values().sum::<u64>() < 2 * MESSAGES {
        let delivery = world.webhook.recv_timeout(PATIENCE).expect("a call of the webhook");
        let body: Value = serde_json::from_slice(&delivery.body).unwrap();
        for event in body["events"].as_array().unwrap() {
            for user in event["recipients"].as_array().unwrap() {
                *told.entry((user.to_string(), event["entry"]["seq"].as_u64().unwrap())).or_default() += 1;
            }
        }
    }
    let once =
        ["ben", "eve"].into_iter().flat_map(|user| (FIRST..=LAST).map(move |seq| ((json!(user).to_string(), seq), 1)));
    assert_eq!(told, once.collect());
    for (user, outcome) in [
        ("cleo", NotificationOutcome::Active),
        ("dan", NotificationOutcome::Muted),
        ("eve", NotificationOutcome::Accepted),
    ] {
        world.until_reached(LAST, user, outcome).await;
    }
    world.stop();
    assert_eq!(
        (world.fcm.try_iter().count(), world.count("accepted"), world.count("superseded")),
        (0, shown, 2 * MESSAGES - shown)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_is_told_again_after_a_moment_of_the_newest_message_then() {
    let second = Duration::from_secs(1);
    let setup = Setup { repeat_after: second, webhook: Some(false), ..Setup::default() };
    let world = world(setup).with_room(&["ada", "ben", "cleo"]).await;
    world.say("first").await;
    assert_eq!(next_tokens(&world.fcm, 2), ["ben", "cleo"]);
    world.until_counted("accepted", 2).await;
    for text in ["second", "third"] {
        world.say(text).await;
    }
    // Of another conversation a device is told at once.
    world.send(json!({ "to": "ben", "from": "ada", "body": { "text": "hi" } })).await;
    let (token, shown) = next(&world.fcm);
    assert_eq!((token.as_str(), shown.body.as_str()), ("ben", "hi"));
    world.clock.advance(second - Duration::from_millis(1));
    world.say("fourth").await;
    // The rows of the webhook are stored together with those of providers.
    let is_fourth =
        |event: &Value| (&event["entry"]["conversation"], &event["entry"]["seq"]) == (&json!("room"), &json!(4));
    loop {
        let delivery = world.webhook.recv_timeout(PATIENCE).expect("a call of the webhook");
        let body: Value = serde_json::from_slice(&delivery.body).unwrap();
        if body["events"].as_array().unwrap().iter().any(is_fourth) {
            break;
        }
    }
    world.until_reached(4, "ben", NotificationOutcome::Accepted).await;
    world.clock.advance(Duration::from_millis(1));
    let told: BTreeMap<_, _> = (0..2).map(|_| next(&world.fcm)).map(|(token, shown)| (token, shown.body)).collect();
    assert_eq!(told, ["ben", "cleo"].map(|user| (user.to_owned(), "ada: fourth".to_owned())).into());
    world.until_counted("accepted", 5).await;
    let by_fcm = |seq, user| {
        let steps = world.notifications.message_notifications("room", seq, user).unwrap().steps;
        steps.into_iter().find(|step| step.channel == Some(Channel::Fcm)).map(|step| step.outcome)
    };
    // What became of the older ones is stored with the next rows.
    for (seq, user) in [(2, "ben"), (3, "ben"), (2, "cleo"), (3, "cleo")] {
        let superseded = async {
            while by_fcm(seq, user) != Some(NotificationOutcome::Superseded) {
                tokio::task::yield_now().await;
            }
        };
        let superseded = tokio::time::timeout(PATIENCE, superseded).await;
        superseded.unwrap_or_else(|_| panic!("{seq} {user}: {:?}", by_fcm(seq, user)));
    }
    world.stop();
    assert_eq!(world.fcm.try_iter().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_that_the_provider_asks_for_is_kept() {
    let pause = Duration::from_secs(30);
    let answer = ProviderAnswer::Refused { code: "429".into(), retry: Retry::After(Some(pause)) };
    let world = world(Setup { answers: vec![answer], ..Setup::default() }).with_room(&["ada", "ben"]).await;
    world.say("hello").await;
    let (_, first) = next(&world.fcm);
    world.until_counted("retried", 1).await;
    world.clock.advance(pause - Duration::from_millis(1));
    // Another user's notification goes out meanwhile, in a later round.
    world.send(json!({ "to": "ada", "from": "ben", "body": { "text": "hi" } })).await;
    assert_eq!(next(&world.fcm).0, "ada");
    world.until_counted("accepted", 1).await;
    world.clock.advance(Duration::from_millis(1));
    assert_eq!(next(&world.fcm).1.id, first.id);
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_does_not_take_the_place_of_a_newer_message() {
    let minute = Duration::from_secs(60);
    let answers = vec![later()];
    let setup = Setup { answers, backoff: minute, ..Setup::default() };
    let world = world(setup).with_room(&["ada", "ben"]).await;
    world.say("first").await;
    assert_eq!(next(&world.fcm).1.body, "ada: first");
    world.until_counted("retried", 1).await;
    world.say("second").await;
    assert_eq!(next(&world.fcm).1.body, "ada: second");
    world.until_counted("accepted", 1).await;
    world.clock.advance(minute);
    world.until_counted("superseded", 1).await;
    world.stop();
    assert_eq!(world.fcm.try_iter().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_obsolete_by_the_time_of_a_retry_is_not_sent() {
    let minute = Duration::from_secs(60);
    let away = |store| Setup { store, is_away: true, backoff: minute, ..Setup::default() };
    // Recalled, read, connected again, and too old.
    let world = world(away(Arc::default())).with_room(&["ada", "ben", "cleo", "dan"]).await;
    world.say("hello").await;
    assert_eq!(next_tokens(&world.fcm, 3), ["ben", "cleo", "dan"]);
    world.until_counted("retried", 3).await;
    let ben = world.engine.directory.require_user("ben").unwrap();
    world.engine.mark_read(&ben, "room", 1).await.unwrap();
    world.connect("cleo", true);
    world.clock.advance(minute);
    assert_eq!(next(&world.fcm).0, "dan");
    world.until_counted("obsolete", 2).await;
    world.until_counted("retried", 4).await;
    world.clock.advance(ProviderPushConfig::default().time_to_live);
    world.until_counted("dead_expired", 1).await;
    world.stop();
    assert_eq!(world.fcm.try_iter().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_gone_is_removed_unless_it_was_registered_later() {
    let gone = |since| ProviderAnswer::TokenGone { since };
    let answers = vec![gone(Some(NOON - 1)), gone(Some(NOON))];
    let world = world(Setup { answers, ..Setup::default() }).with_room(&["ada", "ben"]).await;
    world.say("hello").await;
    world.until_counted("dead_refused", 1).await;
    assert_eq!(world.devices("ben"), ["phone fcm"], "it was registered after the provider had last seen it gone");
    world.say("again").await;
    world.until_counted("token_gone", 1).await;
    let removed = async {
        while !world.devices("ben").is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, removed).await.expect("the token is removed");
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn registrations_are_checked_and_bounded() {
    let world = world(Setup::default()).with_room(&["ada", "ben"]).await;
    let code = |result: Result<(), Refusal>| result.unwrap_err().code;
    for (token, expected) in [
        (fcm(""), ErrorCode::InvalidField),
        (fcm("two words"), ErrorCode::InvalidField),
        (fcm("elsewhere"), ErrorCode::InvalidField),
        (apns("abc"), ErrorCode::InvalidField),
        (apns("xyzx"), ErrorCode::InvalidField),
        (fcm(&"t".repeat(5_000)), ErrorCode::LimitExceeded),
        (
            PushToken::WebPush {
                subscription: WebPushSubscription {
                    endpoint: "https://push.example.com/x".into(),
                    expiration_time: Default::default(),
                    keys: WebPushKeys { p256dh: "A".repeat(87), auth: "A".repeat(22) },
                },
            },
            // The settings do not name this provider.
            ErrorCode::InvalidField,
        ),
    ] {
        let result = world.register("ben", "other", Some(token.clone())).await;
        let expected = if token.provider() == PushProvider::WebPush { ErrorCode::Conflict } else { expected };
        assert_eq!(code(result), expected, "{}", token.address());
    }
    for device in ["", "me", "a/b"] {
        assert_eq!(code(world.register("ben", device, Some(fcm("t"))).await), ErrorCode::InvalidField, "{device}");
    }
    for number in 1..PUSH_TOKENS_PER_USER_MAX {
        world.register("ben", &format!("device-{number:02}"), Some(fcm(&format!("token-{number}")))).await.unwrap();
    }
    assert_eq!(code(world.register("ben", "one-more", Some(fcm("t"))).await), ErrorCode::LimitExceeded);
    // A device that has a token gets another one, and another user takes the device over.
    world.register("ben", "phone", Some(fcm("new"))).await.unwrap();
    world.register("ada", "phone", Some(fcm("token-1"))).await.unwrap();
    assert_eq!(world.devices("ben").len(), PUSH_TOKENS_PER_USER_MAX - 1);
    assert_eq!(world.devices("ada"), ["phone fcm"]);
    world.register("ben", "never-registered", None).await.unwrap();
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn registrations_at_one_moment_do_not_exceed_the_devices_that_a_user_may_have() {
    let world = Arc::new(world(Setup::default()).with_room(&["ada", "ben"]).await);
    let registrations: Vec<_> = (0..2 * PUSH_TOKENS_PER_USER_MAX)
        .map(|number| {
            let world = world.clone();
            tokio::spawn(async move {
                world.register("ben", &format!("device-{number}"), Some(fcm(&format!("token-{number}")))).await
            })
        })
        .collect();
    let (mut registered, mut refused) = (0, 0);
    for registration in registrations {
        match registration.await.unwrap() {
            Ok(()) => registered += 1,
            Err(refusal) => {
                assert_eq!(refusal.code, ErrorCode::LimitExceeded, "{refusal}");
                refused += 1;
            }
        }
    }
    // He has had one from the beginning.
    assert_eq!((registered, refused), (PUSH_TOKENS_PER_USER_MAX - 1, PUSH_TOKENS_PER_USER_MAX + 1));
    assert_eq!(world.devices("ben").len(), PUSH_TOKENS_PER_USER_MAX);
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_message_that_is_refused_for_good_does_not_make_the_provider_failing() {
    let never = ProviderAnswer::Refused { code: "PayloadTooLarge".into(), retry: Retry::Never };
    let world = world(Setup { answers: vec![never, later()], ..Setup::default() }).with_room(&["ada", "ben"]).await;
    let failing = || world.engine.metrics.render().contains("tidings_provider_failing{provider=\"fcm\"} 1");
    world.say("too large").await;
    world.until_counted("dead_refused", 1).await;
    assert!(!failing());
    world.say("later").await;
    world.until_counted("accepted", 1).await;
    assert!(!failing());
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_of_entries_is_cut_behind_all_that_read_it() {
    for webhook in [None, Some(false)] {
        let store: Arc<MemoryStore> = Arc::default();
        let setup = Setup { store: store.clone(), webhook, ..Setup::default() };
        let world = world(setup).with_room(&["ada", "ben"]).await;
        world.say("hello").await;
        next(&world.fcm);
        let cut = async {
            while !store.outbox(0, 10).unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, cut).await.expect("the list is cut");
        world.stop();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_a_session_did_not_acknowledge_is_notified_unless_the_user_is_back() {
    let world = world(Setup::default()).with_room(&["ada", "ben"]).await;
    world.connect("ben", true);
    let ben = world.engine.directory.require_user("ben").unwrap();
    let position = || [world.engine.store.last_position(); LANES];
    let before = Cursor { epoch: world.engine.store.epoch(), positions: position() };
    world.say("first").await;
    world.say("second").await;
    let until_now = position();
    // The search has passed them: he was connected.
    let searched = async {
        while !world.engine.store.outbox(0, 10).unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, searched).await.expect("the list is cut");
    let tell = async |stays: bool| {
        let (notifications, ben) = (world.notifications.clone(), ben.clone());
        let session = SilentSession { session: ben.no.0, stays, acknowledges: false };
        let tell = move || notifications.push_unacknowledged(&ben, session, &before, until_now).unwrap();
        tokio::task::spawn_blocking(tell).await.unwrap();
        // What nodes have stored is read once a second.
        world.clock.advance(Duration::from_secs(1));
    };
    let taken = async || {
        while !crate::support::stored(&*world.engine.store).is_empty() {
            tokio::task::yield_now().await;
        }
    };
    // He is connected again: the new session has got them.
    tell(false).await;
    tokio::time::timeout(PATIENCE, taken()).await.expect("they are dropped");
    assert!(world.fcm.try_recv().is_err());
    // The session goes on, and cannot be asked.
    tell(true).await;
    let (token, shown) = next(&world.fcm);
    assert_eq!((token.as_str(), shown.body.as_str(), shown.badge), ("ben", "ada: second", Some(2)));
    world.until_counted("accepted", 1).await;
    // He is gone.
    world.engine.presence.unregister(ben.no, ben.no.0, NOON);
    world.say("third").await;
    assert_eq!(next(&world.fcm).1.body, "ada: third");
    world.until_counted("accepted", 2).await;
    world.stop();
    assert_eq!(world.fcm.try_iter().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_reads_the_same_list_takes_no_notification_away() {
    let world = world(Setup { webhook: Some(false), ..Setup::default() });
    let people: Vec<String> = (0..20).map(|number| format!("user-{number:02}")).collect();
    let people: Vec<&str> = people.iter().map(String::as_str).chain(["ada"]).collect();
    let world = world.with_room(&people).await;
    // Whoever reads first would cut the list: in one of many rounds that is the webhook.
    for round in 0..10 {
        for user in &people[..20] {
            world.send(json!({ "to": user, "from": "ada", "body": { "text": format!("{round}") } })).await;
        }
        let told: Vec<_> = (0..20).map(|_| next(&world.fcm)).collect();
        let mut users: Vec<&str> = told.iter().map(|(token, _)| token.as_str()).collect();
        users.sort_unstable();
        users.dedup();
        let newest = told.iter().filter(|(_, shown)| shown.body == round.to_string()).count();
        assert_eq!((users.len(), newest), (20, 20), "round {round}");
    }
    world.stop();
}
