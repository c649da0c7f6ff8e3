//! Ten stories of a message and a user, each with the sentence that a support person reads. `--nocapture` prints them.

use crate::provider_world::*;
use serde_json::json;
use std::time::Duration;
use tidings_domain::{
    model::{Actor, Cursor, LANES},
    providers::{ProviderAnswer, Retry},
};
use tidings_protocol::http::*;

const MINUTE: Duration = Duration::from_secs(60);

fn refused(code: &str, retry: Retry) -> ProviderAnswer {
    ProviderAnswer::Refused { code: code.into(), retry }
}

async fn story(setup: Setup) -> World {
    world(setup).with_room(&["ada", "ben"]).await
}

/// A world whose provider answers so first, and is asked again after a minute.
async fn failing(answers: Vec<ProviderAnswer>) -> World {
    story(Setup { answers, backoff: MINUTE, ..Setup::default() }).await
}

/// Waits until the provider's first answer is recorded.
async fn until_retried(world: &World) {
    let is_retried = |step: &NotificationStep| step.outcome == NotificationOutcome::Retried;
    let recorded = async {
        while !world.notifications.message_notifications("room", 1, "ben").unwrap().steps.iter().any(is_retried) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, recorded).await.expect("an attempt that failed");
}

/// What is answered about Ben and the message, once it is this outcome.
async fn tell(world: &World, seq: u64, outcome: NotificationOutcome) -> String {
    let told = async {
        loop {
            let notifications = world.notifications.message_notifications("room", seq, "ben").unwrap();
            if notifications.outcome == outcome {
                return notifications;
            }
            tokio::task::yield_now().await;
        }
    };
    let told = tokio::time::timeout(PATIENCE, told).await;
    let notifications =
        told.unwrap_or_else(|_| panic!("{:?}", world.notifications.message_notifications("room", seq, "ben")));
    world.stop();
    notifications.summary
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_stories_are_told_in_plain_sentences() {
    let mut stories = Vec::new();

    let world = story(Setup::default()).await;
    world.register("ben", "phone", None).await.unwrap();
    world.say("hello").await;
    stories.push(("Ben's app has registered no push token", tell(&world, 1, NotificationOutcome::NoDevice).await));

    let world = story(Setup::default()).await;
    let mute = Mute { muted: true, until: Some(NOON + 3_600_000) };
    world.engine.set_mute(&world.engine.directory.require_user("ben").unwrap(), "room", mute).await.unwrap();
    world.say("hello").await;
    stories.push(("Ben has muted the group for an hour", tell(&world, 1, NotificationOutcome::Muted).await));

    let world = story(Setup::default()).await;
    world.connect_on("ben", "phone-1");
    world.say("hello").await;
    world.until_reached(1, "ben", NotificationOutcome::Active).await;
    world.clock.advance(Duration::from_millis(80));
    let cursor = Cursor { epoch: world.engine.store.epoch(), positions: [u64::MAX; LANES] };
    world.engine.note_stored(world.engine.directory.require_user("ben").unwrap().no, &cursor);
    stories.push((
        "Ben looks at the app, which has the message after 80 ms",
        tell(&world, 1, NotificationOutcome::Acknowledged).await,
    ));

    let world = story(Setup::default()).await;
    let window = DailyWindow { start: "11:00".into(), end: "13:00".into(), time_zone: "UTC".into() };
    world.engine.set_do_not_disturb("ben", Some(window)).await.unwrap();
    world.say("hello").await;
    stories.push(("it is Ben's quiet time", tell(&world, 1, NotificationOutcome::DoNotDisturb).await));

    let world = failing(vec![ProviderAnswer::TokenGone { since: None }]).await;
    world.say("hello").await;
    stories.push(("the provider answers 410", tell(&world, 1, NotificationOutcome::TokenGone).await));

    let world = failing(vec![refused("503 UNAVAILABLE", Retry::After(None))]).await;
    world.say("hello").await;
    until_retried(&world).await;
    world.clock.advance(MINUTE);
    stories.push(("the provider is away for a minute", tell(&world, 1, NotificationOutcome::Accepted).await));

    let world = failing(vec![refused("503 UNAVAILABLE", Retry::After(None))]).await;
    world.say("hello").await;
    until_retried(&world).await;
    world.engine.mark_read(&world.engine.directory.require_user("ben").unwrap(), "room", 1).await.unwrap();
    world.clock.advance(MINUTE);
    stories.push((
        "Ben reads it at a computer before the provider takes it",
        tell(&world, 1, NotificationOutcome::Read).await,
    ));

    let world = failing(vec![refused("503 UNAVAILABLE", Retry::After(None))]).await;
    world.say("hello").await;
    until_retried(&world).await;
    world.engine.recall_message(&Actor::App, "room", 1, None, None).await.unwrap();
    world.clock.advance(MINUTE);
    stories
        .push(("Ada takes it back before the provider takes it", tell(&world, 1, NotificationOutcome::Recalled).await));

    let world = story(Setup::default()).await;
    world.send(json!({ "conversation": "room", "from": "ada", "body": {}, "skip_push": true })).await;
    stories.push(("Ada's app asks for no push", tell(&world, 1, NotificationOutcome::NotPushed).await));

    let world = failing(vec![refused("SENDER_ID_MISMATCH", Retry::Never)]).await;
    world.say("hello").await;
    world.until_reached(1, "ben", NotificationOutcome::Refused).await;
    world.clock.advance(10 * MINUTE);
    let replayed = world.replay(SelectDeadLetters::default()).await.unwrap();
    assert_eq!((replayed.replayed, replayed.dropped), (1, vec![]));
    stories.push((
        "an operator mends the settings and replays the dead letter",
        tell(&world, 1, NotificationOutcome::Accepted).await,
    ));

    for (number, (story, sentence)) in (1..).zip(&stories) {
        println!("{number:>2}. {story}:\n    {sentence}.");
    }
    let expected = [
        "ben has no device that notifications can be sent to: none has registered a push token",
        "ben had muted the conversation until 2026-03-01 13:00:00 UTC, so no notification was sent",
        "the app of ben, in use on phone-1, confirmed that it has the message 80 ms after it was sent",
        "ben was not to be disturbed until 2026-03-01 13:00:00 UTC, so no notification was sent",
        "Firebase (FCM) said at 2026-03-01 12:00:00 UTC that the push token of ben's device phone is not valid any more; it was removed, and the app must register a new one",
        "Firebase (FCM) took the notification for ben's device phone at 2026-03-01 12:01:00 UTC, after an attempt that failed (503 UNAVAILABLE)",
        "ben had read the message, so no notification was needed",
        "the message was recalled, so nobody is notified of it any more",
        "the message was sent as silent, or with skip_push, so nobody is notified of it",
        "Firebase (FCM) took the notification for ben's device phone at 2026-03-01 12:10:00 UTC",
    ];
    let told: Vec<&str> = stories.iter().map(|(_, sentence)| sentence.as_str()).collect();
    assert_eq!(told, expected);
}
