//! What a device shows of a message that its user has read elsewhere is taken away: once, only if a vendor had accepted it, and not
//! if a newer message has taken its place.

use crate::vendor_world::*;
use std::{sync::Arc, time::Duration};
use tidings_domain::store::{Proposal, Store};
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
    assert_eq!((token.as_str(), taken.withdraws, taken.seq), ("cleo", true, 2));
    assert_eq!(taken.collapse_key, newest[0].collapse_key);
    assert!(newest.iter().all(|shown| shown.id != taken.id && !shown.withdraws));
    assert_eq!((taken.title.as_str(), taken.body.as_str(), taken.urgent), ("", "", false));
    world.until_counted("withdrawn", 1).await;
    let reach = world.engine.message_reach("room", 2, "cleo").unwrap();
    assert!(reach.steps.iter().any(|step| step.outcome == ReachOutcome::Withdrawn), "{reach:?}");
    world.read("ben", 2).await;
    let (token, taken) = next(&world.fcm);
    assert_eq!((token.as_str(), taken.withdraws), ("ben", true));
    world.until_counted("withdrawn", 2).await;
    world.read("ben", 2).await;
    world.say("third").await;
    assert_eq!(next_tokens(&world.fcm, 2), ["ben", "cleo"], "notifications, no withdrawals");
    world.engine.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_vendor_accepted_is_not_withdrawn() {
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
    assert_eq!((shown.seq, shown.withdraws), (2, false));
    world.engine.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_read_while_no_node_led_is_withdrawn_and_a_withdrawal_is_tried_again() {
    let store: Arc<MemoryStore> = Arc::default();
    let before = world(Setup { store: store.clone(), ..Setup::default() }).with_room(&["ada", "ben", "cleo"]).await;
    before.say("hello").await;
    assert_eq!(next_tokens(&before.fcm, 2), ["ben", "cleo"]);
    before.until_counted("accepted", 2).await;
    let ben = before.engine.directory.require_user("ben").unwrap().no;
    before.engine.stop();

    let conversation = store.conversation_no("room").unwrap().unwrap();
    store.commit(&[Proposal::MarkRead { conversation, user: ben, seq: 1 }], NOON).unwrap();
    let answers = vec![later()];
    let after = world(Setup { store, answers, ..Setup::default() });
    let tries: Vec<_> = (0..2).map(|_| next(&after.fcm)).collect();
    assert!(tries.iter().all(|(token, taken)| token == "ben" && taken.withdraws && taken.id == tries[0].1.id));
    after.until_counted("withdrawn", 1).await;
    after.engine.stop();
    assert_eq!(after.fcm.try_iter().count(), 0);
}
