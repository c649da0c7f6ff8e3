//! A leader whose process has ended is succeeded before its lease ends; one that lives is not, though its sign of life is gone.

use crate::support::postgres::*;
use std::sync::Arc;
use tidings_domain::{commit_log::*, function::Function};
use tidings_store::PostgresStore;

/// A lease that no test outlasts.
const LEASE_MS: u64 = 3_600_000;
const LEADER: u64 = 0xfedc_ba98_7654_3210;
const OTHER: u64 = 2;

fn beat(store: &PostgresStore, boot_id: u64) -> ClusterView {
    let me = NodeInfo { name: format!("node-{boot_id}"), boot_id, ..NodeInfo::default() };
    store.heartbeat(&me, LEASE_MS, &Function::ALL, true).unwrap()
}

fn leader_of(view: &ClusterView) -> Option<u64> {
    view.leader(Function::Push).map(|leader| leader.boot_id)
}

fn push_sign(other: &PostgresStore) -> LeaderSign {
    let signs = other.life_signs(OTHER).unwrap().leaders;
    assert_eq!(signs.len(), Function::COUNT);
    signs.into_iter().find(|sign| sign.function == Function::Push).unwrap()
}

/// A leader with its sign set, and another node that sees it.
fn leader_and_other() -> (Arc<PostgresServer>, String, PostgresStore, PostgresStore) {
    let server = PostgresServer::shared();
    let url = server.database();
    let [leader, other] = [(); 2].map(|()| open_at(&url));
    assert_eq!(leader_of(&beat(&leader, LEADER)), Some(LEADER));
    assert_eq!(leader_of(&beat(&other, OTHER)), Some(LEADER));
    assert_eq!(leader.life_signs(LEADER).unwrap().own, Some(1));
    let seen = push_sign(&other);
    assert_eq!((seen.boot_id, seen.is_set), (LEADER, true));
    (server, url, leader, other)
}

/// What the other sees once the leader's sign is gone: the database notices the end of a connection by itself.
fn wait_until_gone(other: &PostgresStore) -> LeaderSign {
    loop {
        let sign = push_sign(other);
        if !sign.is_set {
            return sign;
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_process_that_ended_is_succeeded_though_its_lease_runs() {
    let (_server, _, leader, other) = leader_and_other();
    let term = beat(&leader, LEADER).leader(Function::Push).unwrap().term;
    drop(leader);
    let lost = wait_until_gone(&other);
    assert_eq!(leader_of(&beat(&other, OTHER)), Some(LEADER), "the lease alone would have to end");
    assert!(other.succeed(OTHER, LEASE_MS, lost).unwrap());
    let view = beat(&other, OTHER);
    assert_eq!(leader_of(&view), Some(OTHER));
    assert!(view.leader(Function::Push).unwrap().term > term);
    assert_eq!(view.leader(Function::Presence).unwrap().boot_id, LEADER, "functions are succeeded one by one");
    assert!(!other.succeed(OTHER, LEASE_MS, lost).unwrap(), "the leader is another one by now");
}

#[test]
fn a_leader_with_its_sign_set_is_not_succeeded() {
    let (_server, _, leader, other) = leader_and_other();
    let seen = push_sign(&other);
    assert!(!other.succeed(OTHER, LEASE_MS, seen).unwrap());
    assert_eq!(leader_of(&beat(&leader, LEADER)), Some(LEADER));
}

#[test]
fn a_leader_that_lost_its_sign_and_renews_is_not_succeeded_and_sets_its_sign_again() {
    let (server, url, leader, other) = leader_and_other();
    let sessions = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND \
        database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND classid = 4275878552";
    assert_eq!(server.sql(&url, sessions), "t");
    let lost = wait_until_gone(&other);
    assert_eq!(leader_of(&beat(&leader, LEADER)), Some(LEADER));
    assert!(!other.succeed(OTHER, LEASE_MS, lost).unwrap());
    let own = loop {
        match leader.life_signs(LEADER) {
            Ok(LifeSigns { own: Some(number), .. }) => break number,
            // The connection was found to be closed.
            _ => std::thread::yield_now(),
        }
    };
    assert_eq!(own, 2, "it was set a second time");
    assert!(push_sign(&other).is_set);
}
