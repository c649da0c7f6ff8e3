//! What a device shows of a message that its user has read elsewhere, has cleared, or that was recalled, is taken away: once, only if
//! a provider had accepted it, and not if a newer message has taken its place.

use crate::provider_world::*;
use std::{sync::Arc, time::Duration};
use tidings_domain::{
    model::Actor,
    providers::{ProviderAnswer, Retry},
    store::{Proposal, Store},
};
use tidings_protocol::http::*;
use tidings_testkit::MemoryStore;

impl World {
    async fn read(&self, user: &str, seq: u64) {
        let user = self.engine.directory.require_user(user).unwrap();
        self.engine.mark_read(&user, "room", seq).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reading_takes_the_notification_away_once() {
    let world = world(Setup::default()).with_room(&["ada", "ben", "cleo"]).await;
    world.say("hello").await;
    assert_eq!(next_tokens(&world.fcm, 2), ["ben", "cleo"]);
    world.until_counted("accepted", 2).await;
    world.say("again").await;
    let newest: Vec<_> = (0..2).map(|_| next(&world.fcm).1).collect();
    world.until_counted("accepted", 4).await;
    // The newest is shown, and he has not read it.
    world.read("ben", 1).await;
    world.read("cleo", 2).await;
    let (token, taken) = next(&world.fcm);
    assert_eq!((token.as_str(), taken.removes, message_of(&taken)), ("cleo", true, 2));
    assert_eq!(taken.collapse_key, newest[0].collapse_key);
    assert!(newest.iter().all(|shown| shown.id != taken.id && !shown.removes));
    assert_eq!((taken.title.as_str(), taken.body.as_str(), taken.urgent), ("", "", false));
    world.until_counted("removed", 1).await;
    let notifications = world.notifications.message_notifications("room", 2, "cleo").unwrap();
    assert!(notifications.steps.iter().any(|step| step.outcome == NotificationOutcome::Removed), "{notifications:?}");
    world.read("ben", 2).await;
    let (token, taken) = next(&world.fcm);
    assert_eq!((token.as_str(), taken.removes), ("ben", true));
    world.until_counted("removed", 2).await;
    world.read("ben", 2).await;
    world.say("third").await;
    assert_eq!(next_tokens(&world.fcm, 2), ["ben", "cleo"], "notifications, no removals");
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_provider_accepted_is_not_removed() {
    let minute = Duration::from_secs(60);
    let setup = Setup { is_away: true, backoff: minute, ..Setup::default() };
    let world = world(setup).with_room(&["ada", "ben"]).await;
    world.say("hello").await;
    next(&world.fcm);
    world.until_counted("retried", 1).await;
    world.read("ben", 1).await;
    world.clock.advance(minute);
    world.until_counted("obsolete", 1).await;
    world.say("again").await;
    let (_, shown) = next(&world.fcm);
    assert_eq!((message_of(&shown), shown.removes), (2, false));
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_read_while_no_node_led_is_removed_and_a_removal_is_tried_again() {
    let store: Arc<MemoryStore> = Arc::default();
    let before = world(Setup { store: store.clone(), ..Setup::default() }).with_room(&["ada", "ben", "cleo"]).await;
    before.say("hello").await;
    assert_eq!(next_tokens(&before.fcm, 2), ["ben", "cleo"]);
    before.until_counted("accepted", 2).await;
    let ben = before.engine.directory.require_user("ben").unwrap().no;
    before.stop();

    let conversation = store.conversation_no("room").unwrap().unwrap();
    store.commit(&[Proposal::MarkRead { conversation, user: ben, seq: 1 }], NOON).unwrap();
    let answers = vec![later()];
    let after = world(Setup { store, answers, ..Setup::default() });
    let tries: Vec<_> = (0..2).map(|_| next(&after.fcm)).collect();
    assert!(tries.iter().all(|(token, taken)| token == "ben" && taken.removes && taken.id == tries[0].1.id));
    after.until_counted("removed", 1).await;
    after.stop();
    assert_eq!(after.fcm.try_iter().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recall_takes_away_what_devices_show_of_the_message() {
    let world = world(Setup { has_browsers: true, ..Setup::default() }).with_room(&["ada", "ben", "cleo"]).await;
    let keys = WebPushKeys { p256dh: "A".repeat(87), auth: "A".repeat(22) };
    let subscription =
        WebPushSubscription { endpoint: "https://push.example/1".into(), expiration_time: Default::default(), keys };
    world.register("ben", "browser", Some(PushToken::WebPush { subscription })).await.unwrap();
    world.say("hello").await;
    assert_eq!(next_tokens(&world.fcm, 2), ["ben", "cleo"]);
    let shown = next(&world.web).1;
    assert_eq!((shown.title.as_str(), shown.body.as_str()), ("Room", "ada: hello"));
    world.until_counted("accepted", 2).await;
    world.until_reached(1, "ben", NotificationOutcome::Accepted).await;
    world.engine.recall_message(&Actor::App, "room", 1, None, None).await.unwrap();
    let mut taken: Vec<_> = (0..2).map(|_| next(&world.fcm)).collect();
    taken.sort_by(|a, b| a.0.cmp(&b.0));
    for ((token, taken), user) in taken.iter().zip(["ben", "cleo"]) {
        assert_eq!((token.as_str(), taken.removes, message_of(taken), taken.body.as_str()), (user, true, 1, ""));
    }
    // A browser may not stay silent: it shows a line in the same place, without the text and without a sound.
    let replaced = next(&world.web).1;
    assert_eq!((replaced.title.as_str(), replaced.body.as_str()), ("Room", "ada: Message deleted"));
    assert_eq!((replaced.removes, &replaced.collapse_key, message_of(&replaced)), (false, &shown.collapse_key, 1));
    assert_eq!((replaced.sound.as_deref(), replaced.urgent), (Some(""), false));
    assert_ne!(replaced.id, shown.id);
    world.until_counted("removed", 2).await;
    world.say("again").await;
    assert_eq!(next_tokens(&world.fcm, 2), ["ben", "cleo"], "notifications, no removals");
    // An older message is not what devices show.
    world.say("newest").await;
    next_tokens(&world.fcm, 2);
    world.until_counted("accepted", 6).await;
    world.engine.recall_message(&Actor::App, "room", 3, None, None).await.unwrap();
    world.read("cleo", 4).await;
    let (token, taken) = next(&world.fcm);
    assert_eq!((token.as_str(), taken.removes, message_of(&taken)), ("cleo", true, 4));
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_recalled_while_no_node_led_is_removed() {
    let store: Arc<MemoryStore> = Arc::default();
    let before = world(Setup { store: store.clone(), ..Setup::default() }).with_room(&["ada", "ben"]).await;
    before.say("hello").await;
    next(&before.fcm);
    before.until_counted("accepted", 1).await;
    before.stop();
    let without = world(Setup { store: store.clone(), has_providers: false, ..Setup::default() });
    without.engine.recall_message(&Actor::App, "room", 1, None, None).await.unwrap();
    without.stop();
    let after = world(Setup { store, ..Setup::default() });
    let (token, taken) = next(&after.fcm);
    assert_eq!((token.as_str(), taken.removes, message_of(&taken)), ("ben", true, 1));
    after.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn clearing_takes_the_notification_away_and_nothing_cleared_is_notified() {
    let minute = Duration::from_secs(60);
    let setup = Setup { answers: vec![later()], backoff: minute, ..Setup::default() };
    let world = world(setup).with_room(&["ada", "ben"]).await;
    let clear = async |seq| {
        let update = UpdatePreferences { clear_to_seq: Some(seq), ..UpdatePreferences::default() };
        world.engine.set_preferences(&world.user("ben"), "room", update).await.unwrap();
    };
    world.say("hello").await;
    next(&world.fcm);
    world.until_counted("retried", 1).await;
    clear(1).await;
    world.clock.advance(minute);
    world.until_counted("obsolete", 1).await;
    world.say("again").await;
    assert_eq!(message_of(&next(&world.fcm).1), 2);
    world.until_counted("accepted", 1).await;
    clear(2).await;
    let (_, taken) = next(&world.fcm);
    assert_eq!((taken.removes, message_of(&taken)), (true, 2));
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_waits_for_the_newer_notification_that_is_to_take_its_place() {
    let (store, minute): (Arc<MemoryStore>, _) = (Arc::default(), Duration::from_secs(60));
    let shared = || Setup { store: store.clone(), backoff: minute, ..Setup::default() };
    let shown = world(shared()).with_room(&["ada", "ben"]).await;
    shown.say("hello").await;
    next(&shown.fcm);
    shown.until_counted("accepted", 1).await;
    shown.stop();

    let away = world(Setup { is_away: true, ..shared() });
    away.read("ben", 1).await;
    assert!(next(&away.fcm).1.removes);
    away.until_counted("retried", 1).await;
    away.say("again").await;
    assert!(!next(&away.fcm).1.removes);
    away.until_counted("retried", 2).await;
    away.stop();

    // Both are tried in the first round, and the provider never takes the newer one.
    let refused = ProviderAnswer::Refused { retry: Retry::Never, code: "no".into() };
    let after = world(Setup { answers: vec![refused], ..shared() });
    let (_, newer) = next(&after.fcm);
    assert_eq!((message_of(&newer), newer.removes), (2, false));
    after.until_counted("dead_refused", 1).await;
    after.clock.advance(minute);
    let (_, taken) = next(&after.fcm);
    assert_eq!((message_of(&taken), taken.removes), (1, true));
    after.until_counted("removed", 1).await;
    after.stop();
}
