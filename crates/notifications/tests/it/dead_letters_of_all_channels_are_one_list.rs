//! What the webhook and what providers did not take is listed, replayed and deleted together, although it is stored separately.

use crate::provider_world::*;
use std::{sync::Arc, time::Duration};
use tidings_domain::providers::{ProviderAnswer, Retry};
use tidings_protocol::{error::ErrorCode, http::*};
use tidings_testkit::MemoryStore;

fn all() -> SelectDeadLetters {
    SelectDeadLetters::default()
}

fn with_ids(ids: impl IntoIterator<Item = DeadLetterId>) -> SelectDeadLetters {
    SelectDeadLetters { ids: Some(ids.into_iter().collect()), ..all() }
}

/// A world in which neither the webhook nor Firebase has taken two messages, `m1` and `m2`, of Ada to Ben and Cleo: first the two dead
/// letters of the webhook, then the four of Firebase.
async fn given_up(store: &Arc<MemoryStore>) -> (World, Vec<DeadLetter>) {
    let never = |code: &str| ProviderAnswer::Refused { code: code.into(), retry: Retry::Never };
    let answers = vec![never("SENDER_ID_MISMATCH"), never("INVALID_ARGUMENT"), never("X"), never("X")];
    let (webhook, webhook_attempts_max) = (Some(true), 1);
    let world = world(Setup { store: store.clone(), answers, webhook, webhook_attempts_max, ..Setup::default() });
    let world = world.with_room(&["ada", "ben", "cleo"]).await;
    world.say("m1").await;
    world.until_dead(3).await;
    // After a failure the webhook is called again a little later.
    world.clock.advance(Duration::from_secs(60));
    world.say("m2").await;
    let letters = world.until_dead(6).await;
    (world, letters)
}

fn ids(letters: &[DeadLetter]) -> Vec<DeadLetterId> {
    letters.iter().map(|letter| letter.id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_webhooks_come_first_and_pages_go_across_the_border() {
    let (world, letters) = given_up(&Arc::default()).await;
    let shown: Vec<_> = letters.iter().map(|letter| (letter.channel, seq_of(letter), letter.users.join(" "))).collect();
    assert_eq!(shown[0], (Channel::Webhook, 1, "ben cleo".into()));
    assert_eq!(shown[1], (Channel::Webhook, 2, "ben cleo".into()));
    assert!(shown[2..].iter().all(|(channel, ..)| *channel == Channel::Fcm), "{shown:?}");
    assert_eq!(shown[2..].iter().map(|(_, seq, _)| *seq).collect::<Vec<_>>(), [1, 1, 2, 2]);
    assert!(letters.is_sorted_by_key(|letter| letter.id));
    let of_room = |seq| DeadLetterSubject::Message { conversation: "room".into(), seq };
    let [event, .., notification] = &letters[..] else { panic!("{letters:?}") };
    assert_eq!(
        (&event.subject, event.outcome, event.cause.as_deref(), event.attempts, event.failed_at),
        (&of_room(1), NotificationOutcome::Refused, Some("no"), 1, NOON)
    );
    assert!(event.device_id.is_none() && event.event.as_ref().unwrap().get().contains("m1"));
    assert!(notification.device_id.as_deref() == Some("phone") && notification.event.is_none());

    for limit in 1..=6 {
        let (mut after, mut found) = (None, Vec::new());
        loop {
            let page = world.notifications.dead_letters(after, limit, &all()).unwrap();
            assert_eq!(page.dead_letters.len(), limit.min(6 - found.len()));
            found.extend(ids(&page.dead_letters));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(found, ids(&letters), "{limit} at once");
    }
    let limit = world.notifications.dead_letters(None, 501, &all()).unwrap_err();
    assert_eq!(limit.code, ErrorCode::LimitExceeded);
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_apply_to_both_kinds() {
    let (world, letters) = given_up(&Arc::default()).await;
    let counts = |select: SelectDeadLetters| {
        let found = world.letters(select);
        let webhooks = found.iter().filter(|letter| letter.channel == Channel::Webhook).count();
        (webhooks, found.len() - webhooks)
    };
    let of = |channel| SelectDeadLetters { channel: Some(channel), ..all() };
    assert_eq!(counts(of(Channel::Webhook)), (2, 0));
    assert_eq!(counts(of(Channel::Fcm)), (0, 4));
    assert_eq!(counts(of(Channel::Huawei)), (0, 0));
    assert_eq!(counts(SelectDeadLetters { user: Some("ben".into()), ..all() }), (2, 2));
    assert_eq!(counts(SelectDeadLetters { user: Some("ada".into()), ..all() }), (0, 0));
    assert_eq!(counts(SelectDeadLetters { cause: Some("no".into()), ..all() }), (2, 0));
    assert_eq!(counts(SelectDeadLetters { cause: Some("SENDER".into()), ..all() }), (0, 1));
    assert_eq!(counts(SelectDeadLetters { outcome: Some(NotificationOutcome::Refused), ..all() }), (2, 4));
    assert_eq!(counts(SelectDeadLetters { outcome: Some(NotificationOutcome::Expired), ..all() }), (0, 0));
    // A page of one kind goes on after an id of the other.
    let page = world.notifications.dead_letters(Some(letters[0].id), 0, &of(Channel::Fcm)).unwrap();
    assert_eq!(ids(&page.dead_letters), ids(&letters[2..]));

    let refused = |select: SelectDeadLetters| world.notifications.dead_letters(None, 0, &select).unwrap_err();
    for channel in [Channel::Session, Channel::DevicePush, Channel::Popup] {
        let refusal = refused(of(channel)).to_string();
        assert_eq!(refusal, "invalid_field: channel: must be one of webhook, apns, fcm, web_push, huawei");
    }
    assert_eq!(refused(SelectDeadLetters { user: Some("nobody".into()), ..all() }).code, ErrorCode::NotFound);
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_of_both_kinds_are_replayed_together() {
    let store: Arc<MemoryStore> = Arc::default();
    let (before, letters) = given_up(&store).await;
    before.stop();
    let world = world(Setup { store, webhook: Some(false), ..Setup::default() });
    world.engine.set_mute(&world.user("ben"), "room", Mute { muted: true, until: None }).await.unwrap();
    let of_ben = letters[2..].iter().find(|letter| letter.users == ["ben"]).unwrap().id;
    let of_cleo = letters[2..].iter().find(|letter| letter.users == ["cleo"]).unwrap().id;
    let unknown = [DeadLetterId::Webhook(12), DeadLetterId::Webhook(u64::MAX), DeadLetterId::Provider(12)];
    for unknown in unknown {
        let refusal = world.replay(with_ids([letters[0].id, of_cleo, unknown])).await.unwrap_err();
        assert_eq!(refusal.to_string(), format!("not_found: no dead letter \"{unknown}\""));
    }
    assert_eq!(ids(&world.letters(all())), ids(&letters), "nothing was replayed");

    // One that is named twice is replayed once.
    let replayed = world.replay(with_ids([letters[0].id, of_ben, of_cleo, letters[0].id])).await.unwrap();
    assert_eq!(replayed.replayed, 2);
    assert_eq!(replayed.dropped, [DroppedDeadLetter { id: of_ben, reason: NotificationOutcome::Muted }]);
    let delivery = world.webhook.recv_timeout(PATIENCE).unwrap();
    assert!(String::from_utf8(delivery.body).unwrap().contains("m1"));
    assert_eq!(next(&world.fcm).0, "cleo");
    let left: Vec<_> = ids(&letters).into_iter().filter(|id| ![letters[0].id, of_ben, of_cleo].contains(id)).collect();
    assert_eq!(ids(&world.until_dead(3).await), left);

    let rest = world.replay(all()).await.unwrap();
    assert_eq!((rest.replayed, rest.dropped.len()), (2, 1));
    world.until_dead(0).await;
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn both_kinds_are_deleted_by_id_and_by_condition() {
    let (world, letters) = given_up(&Arc::default()).await;
    let unknown = world.delete(with_ids([letters[0].id, DeadLetterId::Webhook(12)])).await.unwrap_err();
    assert_eq!((unknown.code, world.letters(all()).len()), (ErrorCode::NotFound, 6));
    let both = SelectDeadLetters { channel: Some(Channel::Webhook), ..with_ids([letters[0].id]) };
    assert_eq!(world.delete(both).await.unwrap_err().code, ErrorCode::InvalidField);
    let many = with_ids((0..501).map(DeadLetterId::Webhook));
    assert_eq!(world.delete(many).await.unwrap_err().code, ErrorCode::LimitExceeded);

    assert_eq!(world.delete(with_ids([letters[1].id, letters[5].id])).await.unwrap().deleted, 2);
    let left = [&letters[..1], &letters[2..5]].concat();
    assert_eq!(ids(&world.letters(all())), ids(&left));
    let cause = SelectDeadLetters { cause: Some("no".into()), ..all() };
    assert_eq!(world.delete(cause).await.unwrap().deleted, 1);
    assert_eq!(world.delete(all()).await.unwrap().deleted, 3);
    assert!(world.letters(all()).is_empty());
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_their_channels_dead_letters_are_listed_and_deleted_but_not_replayed() {
    let store: Arc<MemoryStore> = Arc::default();
    let (before, letters) = given_up(&store).await;
    before.stop();

    // Without the webhook.
    let half = world(Setup { store: store.clone(), ..Setup::default() });
    assert_eq!(ids(&half.letters(all())), ids(&letters));
    let refusal = half.replay(all()).await.unwrap_err();
    assert_eq!(refusal.to_string(), "conflict: offline push by webhook is not set up; no dead letter was replayed");
    let of_firebase = SelectDeadLetters { channel: Some(Channel::Fcm), ..all() };
    assert_eq!(half.letters(of_firebase.clone()).len(), 4);
    half.stop();

    // Without any channel.
    let bare = world(Setup { store, has_providers: false, ..Setup::default() });
    assert_eq!(ids(&bare.letters(all())), ids(&letters));
    assert_eq!(bare.replay(of_firebase.clone()).await.unwrap_err().code, ErrorCode::Conflict);
    assert_eq!(bare.replay(with_ids([letters[0].id])).await.unwrap_err().code, ErrorCode::Conflict);
    assert_eq!(ids(&bare.letters(all())), ids(&letters), "nothing was done");
    assert_eq!(bare.delete(of_firebase).await.unwrap().deleted, 4);
    assert_eq!(bare.delete(all()).await.unwrap().deleted, 2);
    assert!(bare.letters(all()).is_empty());
    let nothing = bare.replay(all()).await.unwrap();
    assert_eq!((nothing.replayed, nothing.dropped), (0, vec![]));
    bare.stop();
}
