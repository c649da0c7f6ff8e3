//! A write whose answer is lost may arrive at the database long after: what a later write of the same node has put in its
//! place stays, and what was read once the first was asked about stays true.
#![allow(clippy::unwrap_used)]

mod support;

use std::{
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};
use support::postgres::*;
use tidings_engine::{
    cluster::log::{CommitLog, NodeInfo},
    store::*,
};
use tidings_store::{PostgresOptions, PostgresStore};

const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Default)]
struct State {
    /// Of the connections made so far nothing passes, either way.
    holds: AtomicBool,
    /// How many connections that is.
    held: AtomicUsize,
    made: AtomicUsize,
    /// Bytes held on their way to the database.
    waiting: AtomicUsize,
    /// Bytes that came back on connections that were held, after they were let go.
    answered: AtomicUsize,
}

/// A way to the database on which what is under way can be held up while new connections are not.
struct Way {
    folder: tempfile::TempDir,
    state: Arc<State>,
}

impl Way {
    fn to(socket: String) -> Way {
        let (folder, state) = (tempfile::tempdir().unwrap(), Arc::new(State::default()));
        let listener = UnixListener::bind(folder.path().join(".s.PGSQL.5432")).unwrap();
        let for_thread = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = UnixStream::connect(&socket) else { continue };
                let number = for_thread.made.fetch_add(1, SeqCst);
                let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
                for (is_answer, (from, to)) in [(false, (client, server)), (true, back)] {
                    let state = for_thread.clone();
                    std::thread::spawn(move || pass(&state, number, is_answer, from, to));
                }
            }
        });
        Way { folder, state }
    }

    fn hold(&self) {
        self.state.held.store(self.state.made.load(SeqCst), SeqCst);
        self.state.holds.store(true, SeqCst);
    }

    /// Lets what was held arrive, and waits until it was answered.
    fn let_go(&self) {
        assert!(self.state.waiting.load(SeqCst) > 0, "nothing is held");
        self.state.holds.store(false, SeqCst);
        until("it is answered", || self.state.answered.load(SeqCst) > 0);
    }

    fn url(&self, url: &str) -> String {
        let database = url.rsplit('/').next().unwrap().split('?').next().unwrap();
        format!("postgres://postgres@/{database}?host={}", escaped(self.folder.path()))
    }
}

fn pass(state: &State, number: usize, is_answer: bool, mut from: UnixStream, mut to: UnixStream) {
    let mut bytes = [0; 16 * 1024];
    let mut was_held = false;
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        while state.holds.load(SeqCst) && number < state.held.load(SeqCst) {
            if !was_held && !is_answer {
                state.waiting.fetch_add(count, SeqCst);
            }
            was_held = true;
            std::thread::park_timeout(Duration::from_millis(5));
        }
        if is_answer && number < state.held.load(SeqCst) {
            state.answered.fetch_add(count, SeqCst);
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}

fn escaped(folder: &Path) -> String {
    folder.display().to_string().replace('/', "%2F")
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

fn put(store: &PostgresStore, term: Term, value: &[u8]) -> StoreResult<()> {
    let change = RowChange { key: b"k".to_vec(), value: Some(value.to_vec()) };
    store.write_rows(term, RowSpace::Popups, vec![change])
}

fn value(store: &PostgresStore) -> Vec<u8> {
    store.row(RowSpace::Popups, b"k").unwrap().unwrap()
}

fn node(boot_id: u64) -> NodeInfo {
    let (address, link) = Default::default();
    NodeInfo { name: boot_id.to_string(), boot_id, address, link, version: "1".into(), roles: "all".into() }
}

fn lead(store: &PostgresStore) -> Term {
    lead_as(store, u64::MAX - 7)
}

fn lead_as(store: &PostgresStore, boot_id: u64) -> Term {
    let beat = store.heartbeat(&node(boot_id), 60_000, true, true).unwrap();
    assert_eq!(beat.leader, Some(boot_id));
    beat.term
}

/// A store on a way of its own, which has written, and whose next write is held up; then the node goes on as before.
fn with_a_write_under_way(lead: impl Fn(&PostgresStore) -> Term, then: impl FnOnce(&PostgresStore, &Way, Term)) {
    with_a_lead_and_a_write_under_way(&lead, |store, way, term, _| {
        then(store, way, term);
        // Who leads goes on with its term, and so does what it writes.
        assert_eq!(lead(store), term);
        put(store, term, b"9").unwrap();
        assert_eq!(value(store), b"9");
    });
}

fn with_a_lead_and_a_write_under_way(
    lead: impl Fn(&PostgresStore) -> Term,
    then: impl FnOnce(&PostgresStore, &Way, Term, &str),
) {
    let server = PostgresServer::shared();
    let url = server.database();
    let way = Way::to(format!("{}/.s.PGSQL.5432", server.folder().display()));
    // One connection, or another one would take the write; and it is not waited for long.
    let statement_timeout = Duration::from_millis(500);
    let options = PostgresOptions { connections: 1, statement_timeout, ..options_at(&way.url(&url)) };
    let store = PostgresStore::open(options).unwrap();
    let term = lead(&store);
    put(&store, term, b"0").unwrap();
    way.hold();
    assert!(matches!(put(&store, term, b"1"), Err(StoreError::Unsure(_))));
    then(&store, &way, term, &url);
}

#[test]
fn a_write_that_arrives_late_does_not_take_the_place_of_a_later_one() {
    for lead in [lead, |_: &PostgresStore| Term::ALONE] {
        with_a_write_under_way(lead, |store, way, term| {
            until("a new connection writes", || put(store, term, b"2").is_ok());
            way.let_go();
            assert_eq!(value(store), b"2");
        });
    }
}

#[test]
fn a_write_that_arrives_late_is_not_read_once_it_was_asked_about() {
    for lead in [lead, |_: &PostgresStore| Term::ALONE] {
        with_a_write_under_way(lead, |store, way, term| {
            until("a new connection tells", || store.settle(term).is_ok());
            assert_eq!(value(store), b"0");
            way.let_go();
            assert_eq!(value(store), b"0");
        });
    }
}

#[test]
fn another_lead_ends_a_term_that_was_raised() {
    with_a_lead_and_a_write_under_way(lead, |store, way, term, url| {
        until("a new connection writes", || put(store, term, b"2").is_ok());
        let other = open_at(url);
        other.release_lease(u64::MAX - 7).unwrap();
        let second = lead_as(&other, 1);
        assert!(second > term);
        put(&other, second, b"3").unwrap();
        assert!(matches!(put(store, term, b"4"), Err(StoreError::TermIsOver)));
        way.let_go();
        assert_eq!(value(store), b"3");
        // The first leads again: in a term of its own.
        other.release_lease(1).unwrap();
        let third = lead(store);
        assert!(third > second);
        assert!(matches!(put(store, term, b"5"), Err(StoreError::TermIsOver)));
        assert!(matches!(put(&other, second, b"5"), Err(StoreError::TermIsOver)));
        put(store, third, b"6").unwrap();
        assert_eq!(value(store), b"6");
    });
}

#[test]
fn another_lead_that_comes_first_ends_the_doubt() {
    with_a_lead_and_a_write_under_way(lead, |store, way, term, url| {
        let other = open_at(url);
        other.release_lease(u64::MAX - 7).unwrap();
        let second = lead_as(&other, 1);
        until("a new connection tells", || matches!(store.settle(term), Err(StoreError::TermIsOver)));
        assert!(matches!(put(store, term, b"4"), Err(StoreError::TermIsOver)));
        way.let_go();
        assert_eq!(value(store), b"0");
        put(&other, second, b"3").unwrap();
    });
}
