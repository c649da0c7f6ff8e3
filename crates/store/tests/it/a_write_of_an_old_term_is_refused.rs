//! The leader's writes are accepted while its term runs, and refused once another term has begun, also if they were on their
//! way then.

use crate::support::postgres::*;
use std::time::Duration;
use tidings_domain::{
    commit_log::{ClusterView, CommitLog, NodeDetails, NodeInfo},
    function::Function,
    push_store::*,
    store::*,
};
use tidings_store::PostgresStore;

const LEASE_MS: u64 = 300;

fn node(name: &str, boot_id: u64) -> NodeInfo {
    let (address, link) = Default::default();
    NodeInfo {
        name: name.into(),
        boot_id,
        address,
        link,
        version: "1".into(),
        roles: "all".into(),
        details: NodeDetails::of_this_program(),
    }
}

fn beat(store: &PostgresStore, node: &NodeInfo) -> ClusterView {
    store.heartbeat(node, LEASE_MS, &Function::ALL, true).unwrap()
}

/// Beats until the node leads: the lease of the leader before must end.
fn lead(store: &PostgresStore, node: &NodeInfo) -> Term {
    loop {
        let beat = beat(store, node);
        if let Some(leader) = beat.leader(Function::Push).filter(|leader| leader.boot_id == node.boot_id) {
            return leader.term;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn put(store: &PostgresStore, term: Term, value: &[u8]) -> StoreResult<()> {
    let change = RowChange { key: b"k".to_vec(), value: Some(value.to_vec()) };
    store.write_rows(term, RowSpace::Popups, vec![change])
}

fn push(push: u64) -> [PushChange; 1] {
    [PushChange::Put(PushRow::RecoveryIndex { index: RecoveryIndex::Live, push })]
}

fn value(store: &PostgresStore) -> Option<Vec<u8>> {
    store.row(RowSpace::Popups, b"k").unwrap()
}

#[test]
fn only_writes_of_the_current_term_are_accepted() {
    let server = PostgresServer::shared();
    let url = server.database();
    let [one, other] = [(); 2].map(|()| open_at(&url));
    let (a, b) = (node("a", 1), node("b", u64::MAX));
    let first = lead(&one, &a);
    assert_eq!(lead(&one, &a), first, "renewing the lease keeps the term");
    put(&one, first, b"1").unwrap();
    one.write_push(first, &push(1)).unwrap();
    let second = lead(&other, &b);
    assert!(second > first);
    assert!(matches!(put(&one, first, b"2"), Err(StoreError::StaleTerm)));
    assert!(matches!(one.write_push(first, &push(2)), Err(StoreError::StaleTerm)));
    assert!(matches!(put(&one, Term { number: second.number + 1, ..second }, b"2"), Err(StoreError::StaleTerm)));
    assert_eq!(value(&other).unwrap(), b"1");
    assert_eq!(other.push_row(&PushKey::RecoveryIndex(RecoveryIndex::Live, 2)).unwrap(), None);
    put(&other, second, b"3").unwrap();
    // A lease that has run out and that no other node took over keeps its term.
    std::thread::sleep(Duration::from_millis(LEASE_MS + 50));
    put(&other, second, b"4").unwrap();
    assert_eq!(lead(&other, &b), second);
    // The first node leads again: its writes of the earlier term stay refused.
    other.release_lease(b.boot_id).unwrap();
    let third = lead(&one, &a);
    assert!(third > second);
    assert!(matches!(put(&one, first, b"5"), Err(StoreError::StaleTerm)));
    put(&one, third, b"6").unwrap();
    assert_eq!(value(&one).unwrap(), b"6");
    // A process without a cluster writes with `Term::ALONE`.
    put(&other, Term::ALONE, b"7").unwrap();
    assert_eq!(value(&one).unwrap(), b"7");
}

#[test]
fn a_term_that_the_database_has_lost_is_not_given_to_another_node() {
    let server = PostgresServer::shared();
    let url = server.database();
    let [one, other] = [(); 2].map(|()| open_at(&url));
    let (a, b) = (node("a", 1), node("b", 2));
    let kept = lead(&other, &b);
    other.release_lease(b.boot_id).unwrap();
    let lost = lead(&one, &a);
    put(&one, lost, b"1").unwrap();
    // As after a failover to a standby that lacks the last term.
    server.sql(&url, &format!("UPDATE tidings.leader SET term = {}, boot_id = 2, lease_until = now()", kept.number));
    let again = lead(&other, &b);
    assert_eq!(again, kept, "its own term goes on");
    server.sql(&url, "UPDATE tidings.leader SET boot_id = 3, lease_until = now() - interval '1 hour'");
    let next = lead(&other, &b);
    assert!(next > lost, "a number is not given out twice");
    assert!(matches!(put(&one, lost, b"2"), Err(StoreError::StaleTerm)));
    // Nor if the number were given out twice: nodes of an earlier version count on from the last one.
    server.sql(&url, &format!("UPDATE tidings.leader SET term = {}", lost.number));
    assert!(matches!(put(&one, lost, b"3"), Err(StoreError::StaleTerm)));
    put(&other, lost, b"4").unwrap();
    assert_eq!(value(&one).unwrap(), b"4");
}

#[test]
fn the_next_leader_waits_for_a_write_that_is_under_way() {
    let server = PostgresServer::shared();
    let url = server.database();
    let [one, other] = [(); 2].map(|()| open_at(&url));
    let first = lead(&one, &node("a", 1));
    put(&one, first, b"0").unwrap();
    let waiting = |what: &str| {
        let count = format!("SELECT count(*) FROM pg_stat_activity WHERE {what} AND datname = current_database()");
        server.sql(&url, &count).parse::<usize>().unwrap()
    };
    std::thread::scope(|scope| {
        // A lock on the row holds the write up in its midst.
        let held = server.hold(&url, "SELECT 1 FROM tidings.popup_rows FOR UPDATE");
        let writing = scope.spawn(|| put(&one, first, b"1"));
        server.wait_for_event(&url, "transactionid");
        let leading = scope.spawn(|| lead(&other, &node("b", 2)));
        while waiting("wait_event = 'transactionid'") < 2 {}
        assert!(!leading.is_finished(), "the write is not done");
        drop(held);
        writing.join().unwrap().unwrap();
        let second = leading.join().unwrap();
        assert_eq!(value(&other).unwrap(), b"1", "the next leader sees the write");
        assert!(matches!(put(&one, first, b"2"), Err(StoreError::StaleTerm)));
        put(&other, second, b"3").unwrap();
    });
}
