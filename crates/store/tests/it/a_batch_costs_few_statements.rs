//! The number of statements that a batch takes does not depend on its size.

use crate::support::{postgres::*, *};
use tidings_domain::{model::*, store::*};
use tidings_store::PostgresStore;

fn statements(store: &PostgresStore, batch: &[Proposal]) -> u64 {
    let before = store.statements();
    store.commit(batch, NOON).unwrap();
    store.statements() - before
}

#[test]
fn a_batch_of_entries_takes_two_statements_and_a_mixed_one_nine() {
    let server = PostgresServer::shared();
    let store = open_at(&server.database());
    let room = populate(&store);
    let rooms: Vec<_> = (0..50).map(|n| group(&store, &format!("room-{n}"))).collect();
    for size in [1, 10, 100, 500] {
        let batch: Vec<_> = (0..size).map(|n| append(rooms[n % 50], &format!("{size}-{n}"))).collect();
        let (appends, retries) = (statements(&store, &batch), statements(&store, &batch));
        println!("{size} entries: {appends} statements, one round trip; sent again: {retries}");
        assert_eq!((appends, retries), (2, 2));
    }
    for size in [1, 100] {
        let mut batch: Vec<_> = (0..size).map(|n| append(room, &format!("mixed-{size}-{n}"))).collect();
        for user in (1..=3).map(UserNo) {
            batch.push(Proposal::MarkRead { conversation: room, user, seq: u64::MAX });
            batch.push(Proposal::SetMute { conversation: room, user, mute: MuteState::Forever });
        }
        batch.push(Proposal::SetLastSeen(vec![(UserNo(1), NOON)]));
        let mixed = statements(&store, &batch);
        println!("{size} entries with marks, mutes and last-seens: {mixed} statements, two round trips");
        assert_eq!(mixed, 9);
    }
}

/// The cut is one round trip, of four statements, whatever is in it.
#[test]
fn a_batch_of_one_of_several_orders_takes_one_more_round_trip() {
    let server = PostgresServer::shared();
    let [one, several] = [1, 3].map(|orders| open_at(&server.database_in_orders(orders)));
    let [cost_of_one, cost_of_several] = [&one, &several].map(|store| {
        let room = populate(store);
        // Connections are open and statements prepared from here on.
        say(store, room, ["first"], NOON);
        [1, 100].map(|size| {
            let batch: Vec<_> = (0..size).map(|n| append(room, &format!("{size}-{n}"))).collect();
            let trips = store.round_trips();
            let statements = statements(store, &batch);
            (statements, store.round_trips() - trips)
        })
    });
    assert_eq!((cost_of_one, cost_of_several), ([(2, 1); 2], [(6, 2); 2]));
}
