//! The commit log keeps the changes that nodes may still need and no more, whatever the nodes' clocks say. A database that
//! has gone back is noticed, also by a node that saw later positions.

use crate::support::{postgres::*, *};
use tidings_domain::{commit_log::*, model::*, store::*};
use tidings_store::PostgresStore;

const HOUR: u64 = 3_600_000;

/// Commits so many changes and nothing else in one batch, on a node whose clock shows `now_ms`.
fn kick(store: &PostgresStore, times: usize, now_ms: u64) {
    let kick = || Proposal::Kick { user: UserNo(1), device_id: None, reason: "test".into() };
    store.commit(&(0..times).map(|_| kick()).collect::<Vec<_>>(), now_ms).unwrap();
}

fn pruned(server: &PostgresServer, url: &str) -> u64 {
    server.sql(url, "SELECT changes_pruned FROM tidings.history").parse().unwrap()
}

#[test]
fn a_read_mark_that_does_not_move_is_not_logged() {
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
    assert_eq!(mark(2), (Outcome::Read { seq: 2, before: 0 }, 1));
    assert_eq!(mark(2), (Outcome::Read { seq: 2, before: 2 }, 0));
    assert_eq!(mark(1), (Outcome::Read { seq: 2, before: 2 }, 0));
    assert_eq!(mark(99), (Outcome::Read { seq: 2, before: 2 }, 0));
}

#[test]
fn old_changes_are_pruned_in_chunks_and_the_newest_are_kept() {
    let server = PostgresServer::shared();
    let url = server.database();
    let store = open_at(&url);
    kick(&store, 34_000, NOON);
    assert_eq!(store.prune(HOUR).unwrap(), PruneProgress { removed: 0, more: false }, "no change is an hour old");
    server.sql(&url, "UPDATE tidings.changes SET at = at - 2 * 3600000");
    let mut chunks = Vec::new();
    while {
        chunks.push(store.prune(HOUR).unwrap());
        chunks.last().unwrap().more
    } {}
    assert_eq!(chunks.iter().map(|chunk| chunk.removed).collect::<Vec<_>>(), [10_000, 10_000, 4_000]);
    assert_eq!(pruned(&server, &url), 24_000);
    assert!(matches!(store.committed_after(23_999, 10), Err(StoreError::Pruned(_))));
    assert_eq!(store.committed_after(24_000, 20_000).unwrap().records.len(), 10_000);
}

#[test]
fn changes_are_pruned_by_the_databases_clock_alone() {
    let server = PostgresServer::shared();
    let url = server.database();
    let (behind, ahead) = (open_at(&url), open_at(&url));
    kick(&ahead, 6_000, u64::MAX >> 2);
    kick(&behind, 12_000, 0);
    // A commit with entries and changes uses another statement.
    let room = populate(&behind);
    let mute = Proposal::SetMute { conversation: room, user: UserNo(1), mute: MuteState::Forever };
    behind.commit(&[append(room, "a"), mute], 0).unwrap();
    for store in [&behind, &ahead] {
        assert_eq!(store.prune(HOUR).unwrap(), PruneProgress::default());
    }
    assert_eq!(pruned(&server, &url), 0);
    // Old changes are removed up to the first young one; those behind it stay, so that the log has no hole.
    server.sql(&url, "UPDATE tidings.changes SET at = 0 WHERE position <= 100 OR position > 200");
    assert_eq!(behind.prune(HOUR).unwrap().removed, 100);
    assert_eq!(pruned(&server, &url), 100);
}

#[test]
fn a_position_that_the_database_has_lost_is_not_reported() {
    let server = PostgresServer::shared();
    let url = server.database();
    let store = open_at(&url);
    let room = populate(&store);
    say(&store, room, ["a", "b", "c"], NOON);
    let newest = store.last_position();
    // As on a standby that lacks the newest commits.
    server.sql(&url, "UPDATE tidings.counters SET position = position - 2");
    assert_eq!(store.newest_position().unwrap(), newest - 2);
    assert_eq!(store.log_head().unwrap().newest, newest - 2);
    assert_eq!(store.last_position(), newest - 2, "a cursor beyond it belongs to another history");
    let through = |after| store.committed_after(after, 100).unwrap().span.through;
    assert_eq!(
        (through(newest - 3), through(newest)),
        (newest - 2, newest),
        "a position that is not there yet is not skipped"
    );
}

#[test]
fn all_nodes_take_the_epoch_that_the_first_one_sets() {
    let server = PostgresServer::shared();
    let url = server.database();
    let nodes = [(); 3].map(|()| open_at(&url));
    let before = nodes[0].epoch();
    nodes[0].bump_epoch(before).unwrap();
    let turned = nodes[0].epoch();
    assert_ne!(turned, before);
    nodes[1].log_head().unwrap();
    assert_eq!(nodes[1].epoch(), turned);
    // A node that notices later does not change the epoch again, whether it knows the new one or not.
    nodes[1].bump_epoch(before).unwrap();
    nodes[2].bump_epoch(before).unwrap();
    assert_eq!((nodes[2].epoch(), open_at(&url).epoch()), (turned, turned));
}

#[test]
fn a_restarted_server_has_another_server_id() {
    let server = PostgresServer::start(&["fsync=off"]);
    let store = open_at(&server.database());
    let first = store.log_head().unwrap();
    assert_eq!(store.log_head().unwrap(), first);
    assert_ne!(first.server, 0);
    server.stop();
    server.launch();
    let then = loop {
        if let Ok(head) = store.log_head() {
            break head;
        }
    };
    assert_eq!(then.newest, first.newest);
    assert_ne!(then.server, first.server);
}

#[test]
fn a_promoted_standby_without_the_newest_commits_is_noticed() {
    let primary = PostgresServer::start(&["fsync=off"]);
    let url = primary.database();
    let standby = primary.synchronous_standby(&["fsync=off"]);
    let store = open_at(&primary.url_with(&standby, url.rsplit('/').next().unwrap()));
    let room = populate(&store);
    say(&store, room, ["kept"], NOON);
    let kept = store.log_head().unwrap();
    // Commits do not wait for the standby any more, and it misses one.
    primary.sql(&url, "ALTER SYSTEM RESET synchronous_standby_names");
    primary.sql(&url, "SELECT pg_reload_conf()");
    standby.stop();
    say(&store, room, ["lost"], NOON);
    let known = store.committed_after(kept.newest, 10).unwrap();
    primary.kill();
    standby.launch();
    standby.promote();
    let head = loop {
        if let Ok(head) = store.log_head() {
            break head;
        }
    };
    assert_eq!(head.newest, kept.newest);
    assert_ne!(head.server, kept.server);
    assert_eq!(store.last_position(), kept.newest, "whatever position this node saw before");
    while store.commit(&[append(room, "instead"), append(room, "more")], NOON).is_err() {}
    let now = store.committed_after(kept.newest, 10).unwrap();
    assert_eq!(now.span.through, kept.newest + 2, "the new history is longer than the lost part");
    assert_eq!(now.records[0].position, known.records[0].position);
    assert_ne!(now.records[0], known.records[0]);
}
