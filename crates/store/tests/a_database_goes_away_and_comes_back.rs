//! PostgreSQL is killed, stopped, stuck or interrupted: nothing that was acknowledged is lost, callers learn in time
//! that it is away, and the store heals by itself.
#![allow(clippy::unwrap_used)]

mod support;

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};
use support::{postgres::*, *};
use tidings_engine::{model::*, store::*};
use tidings_store::{PostgresOptions, PostgresStore};

/// Long for what is told at once, and short of all that would be waited for.
const AT_ONCE: Duration = Duration::from_secs(60);

/// Until it works again, for a while.
fn eventually<T>(mut attempt: impl FnMut() -> StoreResult<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        match attempt() {
            Ok(done) => return done,
            Err(error) => assert!(Instant::now() < deadline, "it did not heal: {error}"),
        }
    }
}

/// Sends until it is told to stop, each id until it is acknowledged; answers what the acknowledgements said.
fn send(store: &dyn Store, rooms: &[ConversationNo], stop: &AtomicBool, sent: &AtomicU64) -> HashMap<String, Appended> {
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
fn what_was_acknowledged_survives_a_kill_under_load() {
    let server = PostgresServer::start(&[]);
    let url = server.database();
    let store = open_at(&url);
    populate(&store);
    let rooms: Vec<_> = (0..4).map(|n| group(&store, &format!("room-{n}"))).collect();
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let reach = |rounds: u64| {
        let until = sent.load(Ordering::Acquire) + rounds;
        while sent.load(Ordering::Acquire) < until {
            std::thread::yield_now();
        }
    };
    let acknowledged = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send(&store, &rooms, &stop, &sent));
        for _ in 0..3 {
            reach(20);
            server.kill();
            // Its processes end when they see that the first one has.
            let deadline = Instant::now() + AT_ONCE;
            while store.head(rooms[0]).is_ok() {
                assert!(Instant::now() < deadline, "what does not run does not answer");
            }
            server.go();
        }
        reach(20);
        stop.store(true, Ordering::Release);
        sender.join().unwrap()
    });
    println!("{} acknowledged", acknowledged.len());
    holds(&store, &rooms, &acknowledged);
}

/// Each is there once, where its acknowledgement said, and nothing else is.
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
fn what_was_acknowledged_survives_the_loss_of_the_primary() {
    let primary = PostgresServer::start(&["fsync=off"]);
    let url = primary.database();
    let database = url.rsplit('/').next().unwrap();
    let standby = primary.synchronous_standby(&["fsync=off"]);
    let store = open_at(&primary.url_with(&standby, database));
    populate(&store);
    let rooms: Vec<_> = (0..4).map(|n| group(&store, &format!("room-{n}"))).collect();
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let acknowledged = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send(&store, &rooms, &stop, &sent));
        let reach = |rounds: u64| {
            let until = sent.load(Ordering::Acquire) + rounds;
            while sent.load(Ordering::Acquire) < until {
                std::thread::yield_now();
            }
        };
        reach(50);
        primary.kill();
        standby.promote();
        reach(20);
        stop.store(true, Ordering::Release);
        sender.join().unwrap()
    });
    println!("{} acknowledged", acknowledged.len());
    holds(&store, &rooms, &acknowledged);
}

#[test]
fn while_it_is_stopped_callers_learn_so_at_once() {
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
    server.go();
    eventually(|| store.commit(&[append(room, "c")], NOON));
    assert_eq!(said(&store, room), ["a", "b", "c"]);
}

#[test]
fn a_commit_that_a_standby_may_not_have_is_not_acknowledged() {
    let server = PostgresServer::start(&["fsync=off"]);
    let url = server.database();
    let room = populate(&open_at(&url));
    say(&open_at(&url), room, ["before"], NOON);
    // A standby that never comes: from the start on, commits wait for it.
    server.sql(&url, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    server.stop();
    server.go();
    let store = open_at(&url);
    let interrupted = std::thread::scope(|scope| {
        let commit = scope.spawn(|| store.commit(&[append(room, "a")], NOON));
        server.until_one_waits_for(&url, "SyncRep");
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
fn a_lock_that_is_held_too_long_refuses_and_nothing_is_stored() {
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
    assert!(began.elapsed() < AT_ONCE, "it is held for ever");
    assert_eq!(store.head(room).unwrap().last_seq, 0);
    drop(held);
    // Its session may still be at its end.
    eventually(|| store.commit(&[append(room, "a")], NOON));
    assert_eq!(said(&store, room), ["a"]);
}

#[test]
fn a_pool_that_is_taken_refuses_after_its_wait() {
    let server = PostgresServer::shared();
    let url = server.database();
    let small = PostgresOptions { connections: 1, acquire_timeout: Duration::from_millis(50), ..options_at(&url) };
    let store = PostgresStore::open(small).unwrap();
    let room = populate(&store);
    std::thread::scope(|scope| {
        let held = server.hold(&url, "LOCK TABLE tidings.heads");
        let reader = scope.spawn(|| store.head(room));
        server.until_one_waits_for(&url, "relation");
        let refused = store.head(room).unwrap_err().to_string();
        assert!(refused.contains("busy"), "{refused}");
        drop(held);
        assert!(reader.join().unwrap().is_ok());
    });
}

#[test]
fn it_may_be_asked_from_threads_of_a_runtime() {
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
fn a_server_that_turned_read_only_is_left_for_one_that_is_not() {
    let server = PostgresServer::shared();
    let url = server.database();
    let store = open_at(&url);
    let room = populate(&store);
    // As a primary that was made a standby answers on connections that it kept; a new connection leads elsewhere.
    let database = url.rsplit('/').next().unwrap();
    server.sql(&url, &format!("ALTER DATABASE {database} SET default_transaction_read_only = on"));
    server.sql(&url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()");
    let refused = loop {
        match store.commit(&[append(room, "a")], NOON).unwrap_err() {
            // The connection that was ended.
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
    assert_eq!(said(&store, room), ["a"]);
}
