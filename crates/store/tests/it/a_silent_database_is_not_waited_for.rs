//! A database behind a network that is cut refuses nothing: it is only silent. The first callers get an error within seconds,
//! later ones at once, and a send whose outcome is unknown is stored once in the end.

use crate::support::{cuttable_link::CuttableLink, postgres::*, *};
use std::time::{Duration, Instant};
use tidings_domain::store::*;
use tidings_store::{PostgresOptions, PostgresStore};

/// Longer than a running server may be silent on a busy machine.
const SILENT_AFTER: Duration = Duration::from_secs(6);

#[test]
fn calls_to_a_silent_database_fail_at_once_until_it_answers() {
    let server = PostgresServer::shared();
    let url = server.database();
    let link = CuttableLink::to(server.folder());
    let url = link.url(&url);
    let store = PostgresStore::open(PostgresOptions { silent_after: SILENT_AFTER, ..options_at(&url) }).unwrap();
    let room = populate(&store);
    say(&store, room, ["a"], NOON);

    link.cut(true);
    assert!(matches!(store.commit(&[append(room, "b")], NOON), Err(StoreError::Unavailable(_))));
    let began = Instant::now();
    for _ in 0..50 {
        assert!(matches!(store.entries(room, 1, 9, 9, End::Oldest), Err(StoreError::Unavailable(_))));
        assert!(matches!(store.commit(&[append(room, "b")], NOON), Err(StoreError::Unavailable(_))));
    }
    // If each call waited for the time-out, a hundred would take a hundred times as long.
    assert!(began.elapsed() < SILENT_AFTER * 10, "{:?}", began.elapsed());

    link.cut(false);
    let deadline = Instant::now() + Duration::from_secs(120);
    while store.commit(&[append(room, "b")], NOON).is_err() {
        assert!(Instant::now() < deadline, "the store does not recover");
        std::thread::park_timeout(Duration::from_millis(20));
    }
    assert_eq!(stored_ids(&store, room), ["a", "b"], "the send with the unknown outcome is stored once");
}
