//! Of each message and user it can be said why the user was, or was not, told: ten stories, and what is kept of them.

use crate::provider_world::*;
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tidings_domain::{
    chat_rows::notification_log_before,
    model::{Actor, Cursor, LANES},
    providers::{ProviderAnswer, Retry},
    store::{RowSpace, RowStore},
};
use tidings_protocol::{error::ErrorCode, http::*};
use tidings_testkit::MemoryStore;

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

impl World {
    fn notifications(&self, seq: u64, user: &str) -> MessageNotifications {
        self.notifications.message_notifications("room", seq, user).unwrap()
    }

    /// The answer, once it says this.
    async fn reached(&self, seq: u64, user: &str, outcome: NotificationOutcome) -> MessageNotifications {
        self.reached_as(seq, user, |notifications| notifications.outcome == outcome).await
    }

    async fn reached_as(
        &self,
        seq: u64,
        user: &str,
        holds: impl Fn(&MessageNotifications) -> bool,
    ) -> MessageNotifications {
        let told = async {
            loop {
                let notifications = self.notifications(seq, user);
                if holds(&notifications) {
                    return notifications;
                }
                tokio::task::yield_now().await;
            }
        };
        let told = tokio::time::timeout(PATIENCE, told).await;
        told.unwrap_or_else(|_| panic!("{user}: {:?}", self.notifications(seq, user)))
    }
}

/// The steps of a channel, as `outcome device cause`.
fn steps(notifications: &MessageNotifications, channel: Channel) -> Vec<String> {
    let of_channel = notifications.steps.iter().filter(|step| step.channel == Some(channel));
    let words = |step: &NotificationStep| {
        let outcome = serde_json::to_value(step.outcome).unwrap().as_str().unwrap().to_owned();
        [Some(outcome), step.device.clone(), step.cause.clone()].into_iter().flatten().collect::<Vec<_>>().join(" ")
    };
    of_channel.map(words).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_member_who_was_not_told_has_a_cause() {
    let members = ["ada", "ben", "cleo", "dan", "eve", "fay", "gus"];
    let world = world(Setup::default()).with_room(&members).await;
    world.connect("ben", true);
    world.engine.set_mute(&world.user("cleo"), "room", Mute { muted: true, until: Some(NOON + 60_000) }).await.unwrap();
    let window = DailyWindow { start: "11:00".into(), end: "13:00".into(), time_zone: "UTC".into() };
    world.engine.set_do_not_disturb("dan", Some(window)).await.unwrap();
    world.register("eve", "phone", None).await.unwrap();
    world.say("hello").await;
    let users = vec![UserUpsert { id: "hal".into(), ..UserUpsert::default() }];
    world.engine.upsert_users(users).await.unwrap();

    let told = world.reached(1, "fay", NotificationOutcome::Accepted).await;
    assert_eq!(steps(&told, Channel::Fcm), ["accepted phone"]);
    assert_eq!(told.summary, "Firebase (FCM) took the notification for fay's device phone at 2026-03-01 12:00:00 UTC");
    assert_eq!((told.conversation.as_str(), told.seq, told.sent_at), ("room", 1, NOON));
    for (user, outcome, summary) in [
        ("ada", NotificationOutcome::Sender, "ada sent the message, and is not notified of it"),
        (
            "ben",
            NotificationOutcome::Active,
            "ben was using the app on d at 2026-03-01 12:00:00 UTC, so no notification was sent",
        ),
        (
            "cleo",
            NotificationOutcome::Muted,
            "cleo had muted the conversation until 2026-03-01 12:01:00 UTC, so no notification was sent",
        ),
        (
            "dan",
            NotificationOutcome::DoNotDisturb,
            "dan was not to be disturbed until 2026-03-01 13:00:00 UTC, so no notification was sent",
        ),
        (
            "eve",
            NotificationOutcome::NoDevice,
            "eve has no device that notifications can be sent to: none has registered a push token",
        ),
        ("hal", NotificationOutcome::NotAMember, "hal is not a member of the conversation"),
    ] {
        let notifications = world.notifications(1, user);
        assert_eq!((notifications.outcome, notifications.summary.as_str()), (outcome, summary), "{notifications:?}");
    }

    let ends = |user| world.notifications(1, user).steps.iter().find_map(|step| step.until);
    assert_eq!((ends("cleo"), ends("dan")), (Some(NOON + 60_000), Some(NOON + 60 * 60 * 1_000)));

    // What was decided stays, though the mute and the window end.
    world.clock.set(NOON + 2 * 60 * 60 * 1_000);
    for (user, outcome) in [("cleo", NotificationOutcome::Muted), ("dan", NotificationOutcome::DoNotDisturb)] {
        let notifications = world.notifications(1, user);
        assert_eq!((notifications.outcome, notifications.steps[0].at), (outcome, Some(NOON)), "{notifications:?}");
    }
    // A client of ben's has stored it.
    let cursor = Cursor { epoch: world.engine.store.epoch(), positions: [u64::MAX; LANES] };
    world.engine.note_stored(world.user("ben").no, &cursor);
    world.reached(1, "ben", NotificationOutcome::Acknowledged).await;
    // A caller is answered before the node knows of the commit.
    world.engine.mark_read(&world.user("gus"), "room", 1).await.unwrap();
    let read = world.reached(1, "gus", NotificationOutcome::Read).await;
    assert_eq!(read.summary, "gus had read the message, so no notification was needed");
    world.engine.recall_message(&Actor::App, "room", 1, None, None).await.unwrap();
    let recalled = world.reached(1, "eve", NotificationOutcome::Recalled).await;
    assert_eq!(recalled.summary, "the message was recalled, so nobody is notified of it any more");
    assert_eq!(world.notifications(1, "fay").outcome, NotificationOutcome::Accepted, "before");
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_notified_of_mentions_by_somebody_whom_they_block_nor_of_anything_while_suspended() {
    let world = world(Setup::default()).with_room(&["ada", "ben", "cleo", "dan"]).await;
    let only_mentions = Some(KindPreferences { only_mentions: true, ..KindPreferences::default() });
    let preferences = NotificationPreferences { group: only_mentions, ..NotificationPreferences::default() };
    world.notifications.set_notification_preferences("ben", preferences).await.unwrap();
    world.engine.set_block(&Actor::App, &world.user("ben"), "ada", true).await.unwrap();
    world.engine.set_block(&Actor::App, &world.user("cleo"), "ada", true).await.unwrap();
    let suspend = Suspend { until: Some(NOON + 60_000), reason: None };
    world.engine.suspend("dan", suspend, "mod").await.unwrap();
    let mention =
        json!({ "conversation": "room", "from": "ada", "body": { "text": "hello" }, "mentions": ["@all", "ben"] });
    world.send(mention).await;
    world.reached(1, "ben", NotificationOutcome::OnlyMentions).await;
    world.reached(1, "cleo", NotificationOutcome::Accepted).await;
    let dan = world.reached(1, "dan", NotificationOutcome::Suspended).await;
    assert_eq!(dan.summary, "dan is suspended until 2026-03-01 12:01:00 UTC, so no notification was sent");
    let hide = UpdateConversation { blocks: Some(BlocksMode::Hide), ..UpdateConversation::default() };
    world.engine.update_conversation(&Actor::App, "room", hide).await.unwrap();
    world.say("hello again").await;
    let cleo = world.reached(3, "cleo", NotificationOutcome::Blocked).await;
    assert_eq!(cleo.summary, "cleo blocks the sender, so no notification was sent");
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_are_recorded_with_what_the_provider_said() {
    let refused = |code: &str, retry| ProviderAnswer::Refused { code: code.into(), retry };
    let answers = vec![
        refused("503 Service Unavailable", Retry::After(None)),
        ProviderAnswer::Accepted { id: Some("projects/p/messages/7".into()) },
        refused("SENDER_ID_MISMATCH", Retry::Never),
        ProviderAnswer::TokenGone { since: None },
    ];
    let world = world(Setup { answers, ..Setup::default() }).with_room(&["ada", "ben"]).await;
    world.say("one").await;
    let notifications = world.reached(1, "ben", NotificationOutcome::Accepted).await;
    let expected = ["retried phone 503 Service Unavailable", "accepted phone projects/p/messages/7"];
    assert_eq!(steps(&notifications, Channel::Fcm), expected);
    assert_eq!(steps(&notifications, Channel::Apns), ["no_device"]);
    assert_eq!(steps(&notifications, Channel::Webhook), ["not_set_up"]);
    world.say("two").await;
    let notifications = world.reached(2, "ben", NotificationOutcome::Refused).await;
    let summary = "Firebase (FCM) refused the notification for ben's device phone for good at 2026-03-01 12:00:00 UTC: \
                   SENDER_ID_MISMATCH";
    assert_eq!(notifications.summary, summary);
    world.say("three").await;
    let notifications = world.reached(3, "ben", NotificationOutcome::TokenGone).await;
    assert_eq!(steps(&notifications, Channel::Fcm), ["token_gone phone", "no_device"]);
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_said_to_wait_and_what_expired_to_be_given_up() {
    let setup = Setup { is_away: true, backoff: Duration::from_secs(60), ..Setup::default() };
    let world = world(setup).with_room(&["ada", "ben"]).await;
    world.say("hello").await;
    let expected = ["retried phone away", "waiting phone"];
    let notifications =
        world.reached_as(1, "ben", |notifications| steps(notifications, Channel::Fcm) == expected).await;
    let summary =
        "Firebase (FCM) is still to take the notification for ben's device phone; the attempt before failed: away";
    assert_eq!(notifications.summary, summary);
    world.clock.set(NOON + DAY_MS);
    world.clock.advance(Duration::from_secs(60));
    let notifications = world.reached(1, "ben", NotificationOutcome::Expired).await;
    assert_eq!(steps(&notifications, Channel::Fcm), ["retried phone away", "expired phone"]);
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_the_webhook_are_recorded() {
    for (refuses, outcome, expected) in
        [(false, NotificationOutcome::Accepted, "accepted"), (true, NotificationOutcome::Retried, "retried no")]
    {
        let setup = Setup { webhook: Some(refuses), ..Setup::default() };
        let world = world(setup).with_room(&["ada", "ben"]).await;
        world.register("ben", "phone", None).await.unwrap();
        world.say("hello").await;
        let notifications = world.reached(1, "ben", outcome).await;
        assert_eq!(steps(&notifications, Channel::Webhook), [expected]);
        world.stop();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_go_after_their_days_and_nothing_is_claimed_then() {
    let store: Arc<MemoryStore> = Arc::default();
    let world = world(Setup { store: store.clone(), ..Setup::default() }).with_room(&["ada", "ben"]).await;
    world.say("hello").await;
    world.reached(1, "ben", NotificationOutcome::Accepted).await;
    let records = || {
        let rows = |(from, to): (Vec<u8>, Vec<u8>)| store.rows(RowSpace::Chat, &from, &to, 100).unwrap().len();
        notification_log_before(u64::MAX).map(rows).iter().sum::<usize>()
    };
    assert_eq!(records(), 1);
    world.clock.set(NOON + 4 * DAY_MS);
    let notifications = world.reached(1, "ben", NotificationOutcome::NotRecorded).await;
    let summary = "nothing is recorded of ben and this message: it is too old, or its conversation too large";
    assert_eq!(notifications.summary, summary);
    let gone = async {
        while records() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("the records are removed");
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_messages_and_users_that_exist_are_asked_of() {
    let world = world(Setup::default()).with_room(&["ada", "ben"]).await;
    world.say("hello").await;
    world.send(json!({ "conversation": "room", "from": "ada", "body": {}, "silent": true })).await;
    assert_eq!(world.notifications(2, "ben").outcome, NotificationOutcome::NotPushed);
    for (conversation, seq, user) in [("rom", 1, "ben"), ("room", 9, "ben"), ("room", 1, "bea")] {
        let refusal = world.notifications.message_notifications(conversation, seq, user).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::NotFound, "{conversation} {seq} {user}");
    }
    world.stop();
}
