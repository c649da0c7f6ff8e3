//! A notification that is given up is kept with its cause, can be looked for, replayed and deleted, and is bounded in number and time.

use crate::provider_world::*;
use std::{sync::Arc, time::Duration};
use tidings_domain::{
    providers::{ProviderAnswer, Retry},
    store::{RowSpace, RowStore},
};
use tidings_protocol::{error::ErrorCode, http::*};
use tidings_testkit::MemoryStore;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn never(code: &str) -> ProviderAnswer {
    ProviderAnswer::Refused { code: code.into(), retry: Retry::Never }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_notification_is_kept_with_its_cause_and_found_by_it() {
    let answers = vec![never("SENDER_ID_MISMATCH"), never("INVALID_ARGUMENT"), never("INVALID_ARGUMENT")];
    let world = world(Setup { answers, ..Setup::default() }).with_room(&["ada", "ben"]).await;
    world.say("a secret text").await;
    world.until_dead(1).await;
    world.clock.advance(Duration::from_secs(1));
    world.say("a secret text").await;
    world.until_dead(2).await;
    world.send(serde_json::json!({ "to": "ada", "from": "ben", "body": { "text": "a secret text" } })).await;
    let letters = world.until_dead(3).await;

    let expected = |letter: &DeadLetter| {
        (letter.users.concat(), letter.subject.clone(), letter.cause.clone().unwrap(), letter.failed_at)
    };
    let of = |conversation: &str, seq| DeadLetterSubject::Message { conversation: conversation.into(), seq };
    assert_eq!(
        letters.iter().map(expected).collect::<Vec<_>>(),
        [
            ("ben".into(), of("room", 1), "SENDER_ID_MISMATCH".into(), NOON),
            ("ben".into(), of("room", 2), "INVALID_ARGUMENT".into(), NOON + 1_000),
            ("ada".into(), of("ada~ben", 1), "INVALID_ARGUMENT".into(), NOON + 1_000),
        ]
    );
    assert!(letters.iter().all(|letter| letter.device_id.as_deref() == Some("phone") && letter.attempts == 1));
    assert!(letters.is_sorted_by_key(|letter| letter.id));
    let shown = serde_json::to_string(&letters).unwrap();
    assert!(!shown.contains("secret") && !shown.contains("token"), "{shown}");

    let found =
        |select| world.letters(select).iter().map(|letter| (letter.users.concat(), seq_of(letter))).collect::<Vec<_>>();
    let all = SelectDeadLetters::default;
    assert_eq!(found(SelectDeadLetters { user: Some("ada".into()), ..all() }), [("ada".into(), 1)]);
    assert_eq!(found(SelectDeadLetters { cause: Some("SENDER".into()), ..all() }), [("ben".into(), 1)]);
    assert_eq!(found(SelectDeadLetters { channel: Some(Channel::Apns), ..all() }), []);
    assert_eq!(found(SelectDeadLetters { outcome: Some(NotificationOutcome::Expired), ..all() }), []);
    assert_eq!(found(SelectDeadLetters { outcome: Some(NotificationOutcome::Refused), ..all() }).len(), 3);
    // Deleted, one by its id, and the others by their cause.
    let ids = |ids: Vec<DeadLetterId>| SelectDeadLetters { ids: Some(ids), ..all() };
    assert_eq!(world.delete(ids(vec![letters[0].id])).await.unwrap().deleted, 1);
    assert_eq!(world.delete(ids(vec![letters[0].id])).await.unwrap_err().code, ErrorCode::NotFound);
    let cause = SelectDeadLetters { cause: Some("INVALID".into()), ..all() };
    assert_eq!(world.delete(cause).await.unwrap().deleted, 2);
    assert!(world.letters(all()).is_empty());
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replayed_notification_has_its_whole_time_again_also_after_a_restart() {
    let store: Arc<MemoryStore> = Arc::default();
    let setup = Setup { store: store.clone(), answers: vec![never("SENDER_ID_MISMATCH")], ..Setup::default() };
    let before = world(setup).with_room(&["ada", "ben"]).await;
    before.say("hello").await;
    let (_, first) = next(&before.fcm);
    before.until_dead(1).await;
    before.stop();

    let world = world(Setup { store, ..Setup::default() });
    world.clock.set(NOON + 3 * 24 * 60 * 60 * 1_000);
    assert_eq!(world.until_dead(1).await.len(), 1);
    let replayed = world.replay(SelectDeadLetters::default()).await.unwrap();
    assert_eq!((replayed.replayed, replayed.dropped), (1, vec![]));
    let (token, again) = next(&world.fcm);
    assert_eq!((token.as_str(), again.id, again.body.as_str()), ("ben", first.id, "ada: hello"));
    assert_eq!(again.expires_at, NOON + 4 * 24 * 60 * 60 * 1_000);
    world.until_counted("accepted", 1).await;
    world.until_dead(0).await;
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_to_be_told_any_more_is_dropped_with_the_reason() {
    let members = ["ada", "ben", "cleo", "dan", "eve"];
    let answers = (0..4).map(|_| never("INVALID_ARGUMENT")).collect();
    let world = world(Setup { answers, ..Setup::default() }).with_room(&members).await;
    world.say("hello").await;
    let letters = world.until_dead(4).await;
    let user = |id: &str| world.engine.directory.require_user(id).unwrap();
    world.engine.mark_read(&user("ben"), "room", 1).await.unwrap();
    world.engine.set_mute(&user("cleo"), "room", Mute { muted: true, until: None }).await.unwrap();
    world.register("dan", "phone", None).await.unwrap();
    world.connect("eve", true);
    let replayed = world.replay(SelectDeadLetters::default()).await.unwrap();
    let reason_of = |user: &str| {
        let id = letters.iter().find(|letter| letter.users == [user]).unwrap().id;
        replayed.dropped.iter().find(|dropped| dropped.id == id).unwrap().reason
    };
    assert_eq!((replayed.replayed, replayed.dropped.len()), (0, 4));
    let reasons = ["ben", "cleo", "dan", "eve"].map(reason_of);
    use NotificationOutcome::*;
    assert_eq!(reasons, [Read, Muted, NoDevice, Active]);
    world.until_dead(0).await;
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_notification_is_kept_with_what_the_provider_said_last() {
    let setup = Setup { is_away: true, backoff: Duration::from_secs(60), ..Setup::default() };
    let world = world(setup).with_room(&["ada", "ben"]).await;
    world.say("hello").await;
    world.until_counted("retried", 1).await;
    world.clock.advance(DAY);
    let letters = world.until_dead(1).await;
    let letter = &letters[0];
    assert_eq!(
        (letter.outcome, letter.cause.as_deref(), letter.attempts),
        (NotificationOutcome::Expired, Some("away"), 1)
    );

    // It goes after its days.
    world.clock.advance(8 * DAY);
    world.say("hello again").await;
    world.until_dead(0).await;
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_are_kept_than_there_is_room_for_and_the_newest_stay() {
    let store: Arc<MemoryStore> = Arc::default();
    let first = world(Setup { store: store.clone(), answers: vec![never("OLD")], ..Setup::default() });
    let first = first.with_room(&["ada", "ben"]).await;
    first.say("hello").await;
    let template = first.until_dead(1).await.remove(0);
    first.stop();
    // As many rows as there may be, all newer than that one.
    let key = tidings_domain::chat_rows::provider_dead_letter_key;
    let DeadLetterId::Provider(number) = template.id else { panic!("{template:?}") };
    let row = store.row(RowSpace::Chat, &key(number)).unwrap().unwrap();
    let changes =
        (1..10_000).map(|n| tidings_domain::store::RowChange { key: key(number + n), value: Some(row.clone()) });
    store.write_rows(tidings_domain::leadership::Term::ALONE, RowSpace::Chat, changes.collect()).unwrap();

    let world = world(Setup { store, answers: vec![never("NEW")], ..Setup::default() });
    world.clock.set(NOON + 60_000);
    world.say("hello").await;
    let select = || SelectDeadLetters { cause: Some("NEW".into()), ..SelectDeadLetters::default() };
    let kept = async {
        while world.letters(select()).is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, kept).await.expect("the newest is kept");
    let all = || SelectDeadLetters::default();
    assert_eq!(
        world.notifications.dead_letters(None, 1, &all()).unwrap().dead_letters[0].id,
        DeadLetterId::Provider(number + 1)
    );
    assert!(world.engine.metrics.render().contains("tidings_provider_dead_letters 10000"));
    world.stop();
}
