//! PostgreSQL is killed, stopped, stuck or interrupted: no acknowledged message is lost, callers get an error in time, and
//! the store recovers by itself.

use crate::support::{postgres::*, *};
use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    time::{Duration, Instant},
};
use tidings_domain::{model::*, store::*};
use tidings_store::{PostgresOptions, PostgresStore};

/// Longer than an immediate answer takes, and shorter than any time-out.
const AT_ONCE: Duration = Duration::from_secs(60);

/// Repeats until an attempt succeeds, for a while.
fn eventually<T>(mut attempt: impl FnMut() -> StoreResult<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        match attempt() {
            Ok(done) => return done,
            Err(error) => assert!(Instant::now() < deadline, "the store did not recover: {error}"),
        }
    }
}

/// Sends until `stop` is set, each id until it is acknowledged; answers the acknowledged results.
fn send(store: &dyn Store, rooms: &[ConversationNo], stop: &AtomicBool, sent: &AtomicU64) -> HashMap<String, Appended> {
    // Nobody waits for a sender that has failed.
    scopeguard::defer! { sent.store(u64::MAX, Ordering::Release) }
    let mut acknowledged = HashMap::new();
    for round in 0.. {
        let batch: Vec<_> = rooms.iter().map(|room| append(*room, &format!("{}-{round}", room.0))).collect();
        for outcome in eventually(|| store.commit(&batch, NOON)).into_iter().zip(rooms) {
            let (Outcome::Appended(appended), room) = outcome else { panic!("{outcome:?}") };
            acknowledged.insert(format!("{}-{round}", room.0), Appended { duplicate: false, ..appended });
        }
        sent.store(round, Ordering::Release);
        if stop.load(Ordering::Acquire) {
            break;
        }
    }
    acknowledged
}

#[test]
fn acknowledged_messages_survive_a_kill_under_load() {
    [1, 3].into_iter().for_each(survive_a_kill);
}

fn survive_a_kill(orders: u16) {
    let server = PostgresServer::start(&[]);
    let url = server.database_in_orders(orders);
    // Another node sends, too: what it is given must not be what this one has lost.
    let (store, other) = (open_at(&url), open_at(&url));
    populate(&store);
    let rooms: Vec<_> = (0..8).map(|n| group(&store, &format!("room-{n}"))).collect();
    let (stop, sent, sent_by_other) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let reach = |rounds: u64| {
        let until = sent.load(Ordering::Acquire).saturating_add(rounds);
        while sent.load(Ordering::Acquire) < until {
            std::thread::yield_now();
        }
    };
    let acknowledged = std::thread::scope(|scope| {
        let stopping = scopeguard::guard((), |()| stop.store(true, Ordering::Release));
        let sender = scope.spawn(|| send(&store, &rooms[..4], &stop, &sent));
        let other = scope.spawn(|| send(&other, &rooms[4..], &stop, &sent_by_other));
        for _ in 0..3 {
            reach(20);
            server.kill();
            // The server's processes end when they notice that their parent has.
            let deadline = Instant::now() + AT_ONCE;
            while store.head(rooms[0]).is_ok() {
                assert!(Instant::now() < deadline, "a killed server still answers");
            }
            server.launch();
        }
        reach(20);
        drop(stopping);
        let mut acknowledged = sender.join().unwrap();
        acknowledged.extend(other.join().unwrap());
        acknowledged
    });
    println!("{} acknowledged", acknowledged.len());
    holds(&store, &rooms, &acknowledged);
}

/// Asserts that each acknowledged message is stored once, with its acknowledged result, and no other message is.
fn holds(store: &dyn Store, rooms: &[ConversationNo], acknowledged: &HashMap<String, Appended>) {
    let mut stored = HashMap::new();
    for room in rooms {
        let entries = store.entries(*room, 0, u64::MAX, usize::MAX, End::Oldest).unwrap();
        assert!(entries.iter().map(|entry| entry.seq).eq(1..=entries.len() as u64), "a hole or a double");
        for StoredEntry { seq, position, at, content } in entries {
            let appended = Appended { conversation: *room, seq, at, position, duplicate: false };
            assert_eq!(stored.insert(content.client_msg_id.unwrap(), appended), None);
        }
    }
    assert_eq!(&stored, acknowledged);
}

#[test]
fn acknowledged_messages_survive_the_loss_of_the_primary() {
    [1, 3].into_iter().for_each(survive_the_loss_of_the_primary);
}

fn survive_the_loss_of_the_primary(orders: u16) {
    let primary = PostgresServer::start(&["fsync=off"]);
    let url = primary.database_in_orders(orders);
    let database = url.rsplit('/').next().unwrap();
    let standby = primary.synchronous_standby(&["fsync=off"]);
    let [store, other] = [(); 2].map(|()| open_at(&primary.url_with(&standby, database)));
    populate(&store);
    let rooms: Vec<_> = (0..8).map(|n| group(&store, &format!("room-{n}"))).collect();
    let (stop, sent, sent_by_other) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let acknowledged = std::thread::scope(|scope| {
        let stopping = scopeguard::guard((), |()| stop.store(true, Ordering::Release));
        let sender = scope.spawn(|| send(&store, &rooms[..4], &stop, &sent));
        let other = scope.spawn(|| send(&other, &rooms[4..], &stop, &sent_by_other));
        let reach = |rounds: u64| {
            let until = sent.load(Ordering::Acquire).saturating_add(rounds);
            while sent.load(Ordering::Acquire) < until {
                std::thread::yield_now();
            }
        };
        reach(50);
        primary.kill();
        standby.promote();
        reach(20);
        drop(stopping);
        let mut acknowledged = sender.join().unwrap();
        acknowledged.extend(other.join().unwrap());
        acknowledged
    });
    println!("{} acknowledged", acknowledged.len());
    holds(&store, &rooms, &acknowledged);
}

#[test]
fn a_stopped_server_refuses_callers_at_once() {
    let server = PostgresServer::start(&["fsync=off"]);
    let url = server.database();
    let store = open_at(&url);
    let room = populate(&store);
    say(&store, room, ["a", "b"], NOON);
    let newest = store.last_position();
    server.stop();
    let began = Instant::now();
    for _ in 0..20 {
        assert!(matches!(store.commit(&[append(room, "c")], NOON), Err(StoreError::Unavailable(_))));
        assert!(matches!(store.entries(room, 1, 9, 9, End::Oldest), Err(StoreError::Unavailable(_))));
        assert_eq!(store.last_position(), newest, "the newest that was seen");
    }
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    server.launch();
    eventually(|| store.commit(&[append(room, "c")], NOON));
    assert_eq!(stored_ids(&store, room), ["a", "b", "c"]);
}

/// Two nodes commit, and one cut has both commits.
#[test]
fn a_commit_in_the_cut_of_another_node_waits_for_the_standby_by_itself() {
    let server = PostgresServer::start(&["fsync=off"]);
    let url = server.database_in_orders(3);
    let before = open_at(&url);
    let rooms = [populate(&before), group(&before, "other")];
    rooms.iter().for_each(|room| say(&before, *room, ["before"], NOON));
    drop(before);
    server.sql(&url, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    server.stop();
    server.launch();
    let nodes = [open_at(&url), open_at(&url)];
    let held = server.hold(&url, "LOCK TABLE tidings.cutting IN EXCLUSIVE MODE");
    let count = |event: &str| {
        let waiting = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event = '{event}' AND datname = current_database()"
        );
        server.sql(&url, &waiting)
    };
    let done = AtomicUsize::new(0);
    let interrupted = std::thread::scope(|scope| {
        let send = |node: usize| {
            let (nodes, done) = (&nodes, &done);
            move || {
                let committed = nodes[node].commit(&[append(rooms[node], "a")], NOON);
                done.fetch_add(1, Ordering::AcqRel);
                committed
            }
        };
        let commits = [0, 1].map(|node| scope.spawn(send(node)));
        while count("relation") != "2" {
            std::thread::yield_now();
        }
        drop(held);
        for cancelled in 0..2 {
            server.wait_for_event(&url, "SyncRep");
            assert_eq!(done.load(Ordering::Acquire), cancelled, "nothing is acknowledged before");
            server.sql(&url, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'");
            while done.load(Ordering::Acquire) == cancelled {
                std::thread::yield_now();
            }
        }
        commits.map(|commit| commit.join().unwrap())
    });
    assert!(interrupted.iter().all(|commit| matches!(commit, Err(StoreError::Unavailable(_)))), "{interrupted:?}");
    server.sql(&url, "ALTER SYSTEM RESET synchronous_standby_names");
    server.sql(&url, "SELECT pg_reload_conf()");
    for (node, room) in nodes.iter().zip(rooms) {
        let again = eventually(|| node.commit(&[append(room, "a")], NOON)).remove(0);
        assert!(matches!(again, Outcome::Appended(Appended { seq: 2, duplicate: true, .. })), "{again:?}");
    }
}

#[test]
fn a_commit_that_a_standby_may_not_have_is_not_acknowledged() {
    for orders in [1, 3] {
        stops_waiting_for_its_standby(orders);
    }
}

fn stops_waiting_for_its_standby(orders: u16) {
    let server = PostgresServer::start(&["fsync=off"]);
    let url = server.database_in_orders(orders);
    let room = populate(&open_at(&url));
    say(&open_at(&url), room, ["before"], NOON);
    // Commits wait for a standby that never connects.
    server.sql(&url, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    server.stop();
    server.launch();
    let store = open_at(&url);
    let interrupted = std::thread::scope(|scope| {
        let commit = scope.spawn(|| store.commit(&[append(room, "a")], NOON));
        server.wait_for_event(&url, "SyncRep");
        server.sql(&url, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'");
        commit.join().unwrap()
    });
    // PostgreSQL answered "COMMIT", and warned that the standby may not have it.
    assert!(matches!(interrupted, Err(StoreError::Unavailable(_))), "{interrupted:?}");
    server.sql(&url, "ALTER SYSTEM RESET synchronous_standby_names");
    server.sql(&url, "SELECT pg_reload_conf()");
    let again = eventually(|| store.commit(&[append(room, "a")], NOON)).remove(0);
    assert!(matches!(again, Outcome::Appended(Appended { seq: 2, duplicate: true, .. })), "{again:?}");
}

#[test]
fn a_commit_that_waits_too_long_for_a_lock_is_refused_and_not_stored() {
    let server = PostgresServer::shared();
    let url = server.database();
    let short = PostgresOptions { lock_timeout: Duration::from_millis(100), ..options_at(&url) };
    let store = PostgresStore::open(short).unwrap();
    let room = populate(&store);
    let lock = format!("UPDATE tidings.heads SET last_at = last_at WHERE conversation = {}", room.0);
    let held = server.hold(&url, &lock);
    let began = Instant::now();
    let refused = store.commit(&[append(room, "a")], NOON);
    assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    assert!(began.elapsed() < AT_ONCE, "the commit waited for the lock without a limit");
    assert_eq!(store.head(room).unwrap().last_seq, 0);
    drop(held);
    // The session that held the lock may not have ended yet.
    eventually(|| store.commit(&[append(room, "a")], NOON));
    assert_eq!(stored_ids(&store, room), ["a"]);
}

#[test]
fn a_read_is_refused_if_all_connections_stay_busy() {
    let server = PostgresServer::shared();
    let url = server.database();
    let small = PostgresOptions { connections: 1, acquire_timeout: Duration::from_millis(50), ..options_at(&url) };
    let store = PostgresStore::open(small).unwrap();
    let room = populate(&store);
    std::thread::scope(|scope| {
        let held = server.hold(&url, "LOCK TABLE tidings.heads");
        let reader = scope.spawn(|| store.head(room));
        server.wait_for_event(&url, "relation");
        let refused = store.head(room).unwrap_err().to_string();
        assert!(refused.contains("busy"), "{refused}");
        drop(held);
        assert!(reader.join().unwrap().is_ok());
    });
}

#[test]
fn calls_from_a_runtimes_threads_do_not_panic() {
    let server = PostgresServer::shared();
    let store = open_at(&server.database());
    let room = populate(&store);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let head = runtime.block_on(async {
        store.commit(&[append(room, "a")], NOON).unwrap();
        let head = store.head(room).unwrap();
        drop(store);
        head
    });
    assert_eq!(head.last_seq, 1);
}

#[test]
fn a_connection_to_a_read_only_server_is_replaced() {
    let server = PostgresServer::shared();
    let url = server.database();
    let store = open_at(&url);
    let room = populate(&store);
    // As a primary that became a standby answers on its old connections; a new connection leads to the new primary.
    let database = url.rsplit('/').next().unwrap();
    server.sql(&url, &format!("ALTER DATABASE {database} SET default_transaction_read_only = on"));
    server.sql(&url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()");
    let refused = loop {
        match store.commit(&[append(room, "a")], NOON).unwrap_err() {
            // The error of the connection that was closed.
            StoreError::Unavailable(why) if !why.contains("read-only") => {}
            refused => break refused,
        }
    };
    assert!(matches!(refused, StoreError::Unavailable(_)), "{refused}");
    server.sql(
        &url,
        &format!("SET transaction_read_only = off; ALTER DATABASE {database} RESET default_transaction_read_only"),
    );
    eventually(|| store.commit(&[append(room, "a")], NOON));
    assert_eq!(stored_ids(&store, room), ["a"]);
}
