//! The commit log keeps what nodes look back to and no more, whatever their clocks say; and a database that has gone
//! back says so, also to a node that saw more.
#![allow(clippy::unwrap_used)]

mod support;

use support::{postgres::*, *};
use tidings_engine::{cluster::log::*, model::*, store::*};
use tidings_store::PostgresStore;

const HOUR: u64 = 3_600_000;

/// Changes and nothing else, in one commit; its node's clock stands at `now_ms`.
fn kick(store: &PostgresStore, times: usize, now_ms: u64) {
    let kick = || Proposal::Kick { user: UserNo(1), device_id: None, reason: "test".into() };
    store.commit(&(0..times).map(|_| kick()).collect::<Vec<_>>(), now_ms).unwrap();
}

fn pruned(server: &PostgresServer, url: &str) -> u64 {
    server.sql(url, "SELECT changes_pruned FROM tidings.history").parse().unwrap()
}

#[test]
fn a_mark_that_stays_where_it_was_is_not_logged() {
    let server = PostgresServer::shared();
    let store = open_at(&server.database());
    let room = populate(&store);
    say(&store, room, ["a", "b"], NOON);
    let mark = |seq| {
        let before = store.newest_position().unwrap();
        let mark = Proposal::MarkRead { conversation: room, user: UserNo(2), seq };
        let (outcomes, span) = store.commit_in_order(&[mark], NOON).unwrap();
        let records = store.committed_after(before, 10).unwrap().records;
        assert_eq!(span.through - span.after, records.len() as u64);
        assert!(records.iter().all(|record| matches!(record.change, Some(Change::Read { .. }))));
        (outcomes[0].clone(), records.len())
    };
    assert_eq!(mark(2), (Outcome::Read { seq: 2, moved: true }, 1));
    assert_eq!(mark(2), (Outcome::Read { seq: 2, moved: false }, 0));
    assert_eq!(mark(1), (Outcome::Read { seq: 2, moved: false }, 0));
    assert_eq!(mark(99), (Outcome::Read { seq: 2, moved: false }, 0));
}

#[test]
fn old_changes_go_in_pieces_until_none_is_left_but_the_newest() {
    let server = PostgresServer::shared();
    let url = server.database();
    let store = open_at(&url);
    kick(&store, 34_000, NOON);
    assert_eq!(store.prune(HOUR).unwrap(), PruneProgress { removed: 0, more: false }, "an hour is an hour");
    server.sql(&url, "UPDATE tidings.changes SET at = at - 2 * 3600000");
    let mut pieces = Vec::new();
    while {
        pieces.push(store.prune(HOUR).unwrap());
        pieces.last().unwrap().more
    } {}
    assert_eq!(pieces.iter().map(|piece| piece.removed).collect::<Vec<_>>(), [10_000, 10_000, 4_000]);
    assert_eq!(pruned(&server, &url), 24_000);
    assert!(matches!(store.committed_after(23_999, 10), Err(StoreError::Pruned(_))));
    assert_eq!(store.committed_after(24_000, 20_000).unwrap().records.len(), 10_000);
}

#[test]
fn clocks_of_nodes_remove_nothing() {
    let server = PostgresServer::shared();
    let url = server.database();
    let (behind, ahead) = (open_at(&url), open_at(&url));
    kick(&ahead, 6_000, u64::MAX >> 2);
    kick(&behind, 12_000, 0);
    // Entries and changes of one commit take the longer way.
    let room = populate(&behind);
    let mute = Proposal::SetMute { conversation: room, user: UserNo(1), mute: MuteState::Forever };
    behind.commit(&[append(room, "a"), mute], 0).unwrap();
    for store in [&behind, &ahead] {
        assert_eq!(store.prune(HOUR).unwrap(), PruneProgress::default());
    }
    assert_eq!(pruned(&server, &url), 0);
    // Those that are old go; what is behind a young one stays, so that the log has no hole.
    server.sql(&url, "UPDATE tidings.changes SET at = 0 WHERE position <= 100 OR position > 200");
    assert_eq!(behind.prune(HOUR).unwrap().removed, 100);
    assert_eq!(pruned(&server, &url), 100);
}

#[test]
fn what_the_database_says_counts_and_not_what_it_said_before() {
    let server = PostgresServer::shared();
    let url = server.database();
    let store = open_at(&url);
    let room = populate(&store);
    say(&store, room, ["a", "b", "c"], NOON);
    let newest = store.last_position();
    // As a standby has it that did not get the newest.
    server.sql(&url, "UPDATE tidings.counters SET position = position - 2");
    assert_eq!(store.newest_position().unwrap(), newest - 2);
    assert_eq!(store.log_head().unwrap().newest, newest - 2);
    assert_eq!(store.last_position(), newest - 2, "a cursor beyond is one of another history");
    let through = |after| store.committed_after(after, 100).unwrap().span.through;
    assert_eq!(
        (through(newest - 3), through(newest)),
        (newest - 2, newest),
        "nothing that is not there yet is passed over"
    );
}

#[test]
fn another_epoch_is_heard_by_all() {
    let server = PostgresServer::shared();
    let url = server.database();
    let nodes = [(); 3].map(|()| open_at(&url));
    let before = nodes[0].epoch();
    nodes[0].bump_epoch(before).unwrap();
    let turned = nodes[0].epoch();
    assert_ne!(turned, before);
    nodes[1].log_head().unwrap();
    assert_eq!(nodes[1].epoch(), turned);
    // Who notices later, having heard of it or not, does not turn it once more, and takes what the first one said.
    nodes[1].bump_epoch(before).unwrap();
    nodes[2].bump_epoch(before).unwrap();
    assert_eq!((nodes[2].epoch(), open_at(&url).epoch()), (turned, turned));
}

#[test]
fn another_server_is_told_from_the_one_before() {
    let server = PostgresServer::start(&["fsync=off"]);
    let store = open_at(&server.database());
    let first = store.log_head().unwrap();
    assert_eq!(store.log_head().unwrap(), first);
    assert_ne!(first.server, 0);
    server.stop();
    server.go();
    let then = loop {
        if let Ok(head) = store.log_head() {
            break head;
        }
    };
    assert_eq!(then.newest, first.newest);
    assert_ne!(then.server, first.server);
}

#[test]
fn a_standby_that_lacks_the_newest_is_another_server_that_goes_less_far() {
    let primary = PostgresServer::start(&["fsync=off"]);
    let url = primary.database();
    let standby = primary.synchronous_standby(&["fsync=off"]);
    let store = open_at(&primary.url_with(&standby, url.rsplit('/').next().unwrap()));
    let room = populate(&store);
    say(&store, room, ["kept"], NOON);
    let kept = store.log_head().unwrap();
    // Commits wait for the standby no longer, and it is gone for a while.
    primary.sql(&url, "ALTER SYSTEM RESET synchronous_standby_names");
    primary.sql(&url, "SELECT pg_reload_conf()");
    standby.stop();
    say(&store, room, ["lost"], NOON);
    let known = store.committed_after(kept.newest, 10).unwrap();
    primary.kill();
    standby.go();
    standby.promote();
    let head = loop {
        if let Ok(head) = store.log_head() {
            break head;
        }
    };
    assert_eq!(head.newest, kept.newest);
    assert_ne!(head.server, kept.server);
    assert_eq!(store.last_position(), kept.newest, "whatever this node saw before");
    while store.commit(&[append(room, "instead"), append(room, "more")], NOON).is_err() {}
    let now = store.committed_after(kept.newest, 10).unwrap();
    assert_eq!(now.span.through, kept.newest + 2, "it has come farther than what was lost");
    assert_eq!(now.records[0].position, known.records[0].position);
    assert_ne!(now.records[0], known.records[0]);
}
