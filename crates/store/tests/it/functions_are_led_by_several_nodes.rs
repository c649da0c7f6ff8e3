//! Each function of a cluster has a lease and terms of its own in the database: it moves without the others, and a write in a term that
//! is over is refused whatever else its node leads. While an earlier program lives, one lead stands for all.

use crate::support::postgres::*;
use tidings_domain::{
    commit_log::*,
    function::Function::{self, *},
    gates::Gate,
    store::*,
};
use tidings_store::PostgresStore;

/// A lease that no test outlasts.
const LEASE_MS: u64 = 3_600_000;
const A: u64 = 1;
const B: u64 = u64::MAX;

fn node(boot_id: u64) -> NodeInfo {
    NodeInfo { name: boot_id.to_string(), boot_id, details: NodeDetails::of_this_program(), ..NodeInfo::default() }
}

fn beat(store: &PostgresStore, boot_id: u64, takes: &[Function]) -> ClusterView {
    store.heartbeat(&node(boot_id), LEASE_MS, takes, true).unwrap()
}

fn leaders(view: &ClusterView) -> Vec<(Function, u64)> {
    view.leaders.iter().map(|leader| (leader.term.function, leader.boot_id)).collect()
}

fn term(view: &ClusterView, function: Function) -> Term {
    view.leader(function).unwrap().term
}

fn put(store: &PostgresStore, term: Term, key: &str) -> StoreResult<()> {
    let change = RowChange { key: key.into(), value: Some(b"value".to_vec()) };
    store.write_rows(term, RowSpace::Chat, vec![change])
}

fn is_stored(store: &PostgresStore, key: &str) -> bool {
    store.row(RowSpace::Chat, key.as_bytes()).unwrap().is_some()
}

#[test]
fn a_function_is_handed_over_and_the_others_go_on_in_their_terms() {
    let server = PostgresServer::shared();
    let url = server.database();
    let [one, other] = [(); 2].map(|()| open_at(&url));
    let first = beat(&one, A, &Function::ALL);
    assert!(first.is_split());
    assert_eq!(leaders(&first), Function::ALL.map(|function| (function, A)));
    assert!(!one.hand_over(Presence, A, B, LEASE_MS).unwrap(), "nobody takes it");
    beat(&other, B, &Function::ALL);
    assert!(!other.hand_over(Presence, B, A, LEASE_MS).unwrap(), "it is not the other's");
    put(&one, term(&first, Presence), "before").unwrap();
    assert!(one.hand_over(Presence, A, B, LEASE_MS).unwrap());
    let second = beat(&other, B, &[]);
    let moved = term(&second, Presence);
    assert!(moved > term(&first, Presence));
    for function in Function::ALL.into_iter().filter(|function| *function != Presence) {
        assert_eq!(second.leader(function), first.leader(function));
        put(&one, term(&first, function), "kept").unwrap();
    }
    // Both believe that they lead: the loser writes nothing.
    assert!(matches!(put(&one, term(&first, Presence), "late"), Err(StoreError::StaleTerm)));
    assert!(!is_stored(&other, "late"));
    put(&other, moved, "after").unwrap();
    // A term of one function is none of another, though the numbers may be alike.
    let forged = Term { function: Presence, ..term(&first, Push) };
    assert!(matches!(put(&one, forged, "forged"), Err(StoreError::StaleTerm)));
    assert_eq!(beat(&one, A, &[]).leaders, second.leaders, "each renews what is its own");
}

#[test]
fn a_node_takes_the_functions_alone_that_it_asks_for() {
    let server = PostgresServer::shared();
    let url = server.database();
    let [one, other] = [(); 2].map(|()| open_at(&url));
    let before = beat(&one, A, &Function::ALL);
    one.release_lease(A).unwrap();
    let view = beat(&other, B, &[EventConsumers, Housekeeping]);
    assert_eq!(leaders(&view), [(EventConsumers, B), (Housekeeping, B)]);
    assert!(matches!(put(&one, term(&before, Housekeeping), "late"), Err(StoreError::StaleTerm)));
    // A lease that has ended and that nobody took keeps its term.
    put(&one, term(&before, Push), "kept").unwrap();
    let view = beat(&one, A, &[]);
    let kept = [Push, Popups, ScheduledMessages, EventConsumers, Outboxes, Presence, Housekeeping].map(|function| {
        match function {
            EventConsumers | Housekeeping => (function, B),
            _ => (function, A),
        }
    });
    assert_eq!(leaders(&view), kept, "what nobody took is its own still");
    assert_eq!(term(&view, Push), term(&before, Push));
}

#[test]
fn while_an_earlier_program_lives_one_lead_stands_for_all() {
    let server = PostgresServer::shared();
    let url = server.database();
    let [one, other] = [(); 2].map(|()| open_at(&url));
    server.sql(&url, &format!("DELETE FROM tidings.gates WHERE name = '{}'", Gate::FunctionLeases.name()));
    // As an earlier program does it, which knows the one row alone.
    let older =
        "INSERT INTO tidings.nodes (name, boot_id, card, lease_until) VALUES ('old', 9, '', now() + interval '1 hour')";
    server.sql(&url, older);
    let taken = "UPDATE tidings.leader SET term = term + 1, boot_id = 9, lease_until = now() + interval '1 hour' \
        WHERE true AND (boot_id = 9 OR lease_until < now())";
    server.sql(&url, taken);
    let view = beat(&one, A, &Function::ALL);
    assert_eq!((leaders(&view), view.is_split()), (Function::ALL.map(|function| (function, 9)).to_vec(), false));
    assert!(!one.hand_over(Push, 9, A, LEASE_MS).unwrap());
    // Its lease is over, and one of this program's nodes takes all of it; another asks in vain for a part.
    server.sql(&url, "UPDATE tidings.leader SET lease_until = now() - interval '1 second'");
    let led = beat(&one, A, &[Presence]);
    assert_eq!((leaders(&led), led.is_split()), (Function::ALL.map(|function| (function, A)).to_vec(), false));
    let terms: Vec<Term> = led.leaders.iter().map(|leader| leader.term).collect();
    assert!(terms.iter().all(|term| term.number == terms[0].number));
    for term in &terms {
        put(&one, *term, "in one").unwrap();
    }
    assert_eq!(leaders(&beat(&other, B, &Function::ALL)), leaders(&led));
    // The earlier program may come back as long as the gate is closed: it takes all, and nothing is written in the old terms.
    server.sql(&url, "UPDATE tidings.leader SET term = term + 1, boot_id = 9, lease_until = now() + interval '1 hour'");
    for term in &terms {
        assert!(matches!(put(&one, *term, "late"), Err(StoreError::StaleTerm)), "{term:?}");
    }
    server.sql(&url, "DELETE FROM tidings.nodes WHERE name = 'old'");
    server.sql(&url, "UPDATE tidings.leader SET lease_until = now() - interval '1 second'");
    let led = beat(&one, A, &Function::ALL);
    // The last one has gone: the gate opens, and the leader's heartbeat gives each function a lease, in the term that it has.
    one.open_gates(&[Gate::FunctionLeases.name()], &[A, B]).unwrap();
    assert!(!beat(&other, B, &Function::ALL).is_split(), "only the leader's does");
    let split = beat(&one, A, &[]);
    assert!(split.is_split());
    assert_eq!(split.leaders, led.leaders, "no term ends by it");
    for leader in &split.leaders {
        put(&one, leader.term, "split").unwrap();
    }
    assert!(beat(&other, B, &[]).is_split());
}

#[test]
fn a_leader_that_has_not_heard_of_the_leases_goes_on_in_its_terms() {
    let server = PostgresServer::shared();
    let url = server.database();
    let [one, other] = [(); 2].map(|()| open_at(&url));
    server.sql(&url, &format!("DELETE FROM tidings.gates WHERE name = '{}'", Gate::FunctionLeases.name()));
    let led = beat(&one, A, &Function::ALL);
    assert!(!led.is_split());
    put(&one, term(&led, Push), "before").unwrap();
    // Another process with its boot id stands for its own heartbeat, whose answer was lost.
    one.open_gates(&[Gate::FunctionLeases.name()], &[A]).unwrap();
    assert!(beat(&other, A, &[]).is_split());
    for function in Function::ALL {
        put(&one, term(&led, function), "between").unwrap();
        one.fence_writes(term(&led, function)).unwrap();
    }
    beat(&other, B, &[]);
    assert!(other.hand_over(Push, A, B, LEASE_MS).unwrap());
    assert!(matches!(put(&one, term(&led, Push), "late"), Err(StoreError::StaleTerm)));
    put(&one, term(&led, Presence), "kept").unwrap();
}

#[test]
fn a_write_that_waits_while_functions_get_their_leases_is_stored_in_its_own_term() {
    let server = PostgresServer::shared();
    let url = server.database();
    let one = open_at(&url);
    server.sql(&url, &format!("DELETE FROM tidings.gates WHERE name = '{}'", Gate::FunctionLeases.name()));
    let led = beat(&one, A, &Function::ALL);
    // As the leader's heartbeat does it, but slowly.
    let split = "BEGIN; UPDATE tidings.leader SET is_split = true; \
        INSERT INTO tidings.leader (function, boot_id, lease_until, term, is_split) \
        SELECT 'presence', boot_id, lease_until, term, true FROM tidings.leader; SELECT pg_sleep(0.5); COMMIT";
    std::thread::scope(|scope| {
        let splitting = scope.spawn(|| server.sql(&url, split));
        server.wait_for_event(&url, "PgSleep");
        put(&one, term(&led, Presence), "waits").unwrap();
        splitting.join().unwrap();
    });
    assert!(is_stored(&one, "waits"));
}

/// A database on which A leads functions with leases of their own, and popups with pushes, since an earlier program may come back.
fn with_popups_led_with_pushes(server: &PostgresServer) -> (String, PostgresStore, ClusterView) {
    let url = server.database();
    let one = open_at(&url);
    server.sql(&url, &format!("DELETE FROM tidings.gates WHERE name = '{}'", Gate::PopupsLease.name()));
    let led = beat(&one, A, &Function::ALL);
    assert!(led.is_split() && !led.leased.contains(&Popups) && led.leased.len() == Function::COUNT - 1);
    assert_eq!(term(&led, Popups).number, term(&led, Push).number);
    (url, one, led)
}

#[test]
fn popups_move_with_pushes_until_they_have_a_lease() {
    let server = PostgresServer::shared();
    let (url, one, led) = with_popups_led_with_pushes(&server);
    let other = open_at(&url);
    beat(&other, B, &[]);
    put(&one, term(&led, Popups), "under the lease of pushes").unwrap();
    assert!(!one.hand_over(Popups, A, B, LEASE_MS).unwrap(), "they have no lease to hand over");
    assert!(one.hand_over(Push, A, B, LEASE_MS).unwrap());
    let moved = beat(&other, B, &[]);
    assert_eq!((moved.leader(Popups).unwrap().boot_id, moved.leader(Presence).unwrap().boot_id), (B, A));
    assert!(matches!(put(&one, term(&led, Popups), "late"), Err(StoreError::StaleTerm)));
    put(&other, term(&moved, Popups), "after").unwrap();
    // The last node of the earlier program has gone. Who leads pushes gives popups a lease, and no term ends by it.
    one.open_gates(&[Gate::PopupsLease.name()], &[A, B]).unwrap();
    assert!(!beat(&one, A, &[]).leased.contains(&Popups), "only the leader of pushes does");
    let split = beat(&other, B, &[]);
    assert_eq!((split.leased.len(), &split.leaders), (Function::COUNT, &moved.leaders));
    put(&other, term(&moved, Popups), "in a row of its own").unwrap();
    put(&other, term(&moved, Push), "as before").unwrap();
    assert!(other.hand_over(Popups, B, A, LEASE_MS).unwrap());
    let popups = term(&beat(&one, A, &[]), Popups);
    assert!(matches!(put(&other, term(&moved, Popups), "late"), Err(StoreError::StaleTerm)));
    put(&other, term(&moved, Push), "kept").unwrap();
    put(&one, popups, "at the other").unwrap();
}

#[test]
fn a_leader_that_has_not_heard_of_the_lease_of_popups_writes_in_its_terms_until_they_move() {
    let server = PostgresServer::shared();
    let (url, one, led) = with_popups_led_with_pushes(&server);
    let other = open_at(&url);
    put(&one, term(&led, Popups), "before").unwrap();
    one.open_gates(&[Gate::PopupsLease.name()], &[A]).unwrap();
    // Another process with its boot id stands for its own heartbeat, whose answer was lost.
    assert_eq!(beat(&other, A, &[]).leased.len(), Function::COUNT);
    for function in [Push, Popups] {
        put(&one, term(&led, function), "between").unwrap();
        one.fence_writes(term(&led, function)).unwrap();
    }
    beat(&other, B, &[]);
    assert!(other.hand_over(Popups, A, B, LEASE_MS).unwrap());
    assert!(matches!(put(&one, term(&led, Popups), "late"), Err(StoreError::StaleTerm)));
    put(&one, term(&led, Push), "kept").unwrap();
}

#[test]
fn a_write_of_popups_that_waits_while_they_move_is_refused() {
    let server = PostgresServer::shared();
    let (url, one, led) = with_popups_led_with_pushes(&server);
    // As the leader's heartbeat and its next move do it, but slowly and in one.
    let moved = "BEGIN; UPDATE tidings.leader SET also_for = '{}' WHERE function = 'push'; \
        INSERT INTO tidings.leader (function, boot_id, lease_until, term, is_split) \
        SELECT 'popups', 2, lease_until, term + 1, true FROM tidings.leader WHERE function = 'push'; SELECT pg_sleep(0.5); COMMIT";
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| server.sql(&url, moved));
        server.wait_for_event(&url, "PgSleep");
        assert!(matches!(put(&one, term(&led, Popups), "waits"), Err(StoreError::StaleTerm)));
        moving.join().unwrap();
    });
    assert!(!is_stored(&one, "waits"));
    put(&one, term(&led, Push), "kept").unwrap();
}

#[test]
fn a_process_by_itself_ends_the_terms_of_all_functions() {
    let server = PostgresServer::shared();
    let url = server.database();
    let [one, alone] = [(); 2].map(|()| open_at(&url));
    let led = beat(&one, A, &Function::ALL);
    beat(&alone, B, &[]);
    assert!(one.hand_over(EventConsumers, A, B, LEASE_MS).unwrap());
    put(&alone, Term::ALONE, "alone").unwrap();
    for function in Function::ALL {
        assert!(matches!(put(&one, term(&led, function), "late"), Err(StoreError::StaleTerm)), "{function:?}");
    }
    put(&alone, Term::ALONE, "again").unwrap();
}
