//! A write whose answer is lost may arrive at the database long after. It does not overwrite a later write of the same node,
//! and it does not change what was read after the node had settled it.

use crate::support::postgres::*;
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
use tidings_domain::{
    commit_log::{CommitLog, NodeDetails, NodeInfo},
    function::Function,
    store::*,
};
use tidings_store::{PostgresOptions, PostgresStore};

const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Default)]
struct State {
    /// No byte passes on the held connections, either way.
    is_holding: AtomicBool,
    /// The number of held connections: the first ones that were made.
    held: AtomicUsize,
    made: AtomicUsize,
    /// Bytes held on their way to the database.
    waiting: AtomicUsize,
    /// Bytes that came back on held connections after their release.
    answered: AtomicUsize,
}

/// A proxy to the database that can hold up its present connections while new ones pass.
struct Proxy {
    folder: tempfile::TempDir,
    state: Arc<State>,
}

impl Proxy {
    fn to(socket: String) -> Proxy {
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
        Proxy { folder, state }
    }

    fn hold(&self) {
        self.state.held.store(self.state.made.load(SeqCst), SeqCst);
        self.state.is_holding.store(true, SeqCst);
    }

    /// Lets the held bytes pass, and waits until the database has answered them.
    fn release(&self) {
        assert!(self.state.waiting.load(SeqCst) > 0, "nothing is held");
        self.state.is_holding.store(false, SeqCst);
        until("the held bytes are answered", || self.state.answered.load(SeqCst) > 0);
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
        while state.is_holding.load(SeqCst) && number < state.held.load(SeqCst) {
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
    NodeInfo {
        name: boot_id.to_string(),
        boot_id,
        address,
        link,
        version: "1".into(),
        roles: "all".into(),
        details: NodeDetails::of_this_program(),
    }
}

fn lead(store: &PostgresStore) -> Term {
    lead_as(store, u64::MAX - 7)
}

fn lead_as(store: &PostgresStore, boot_id: u64) -> Term {
    let beat = store.heartbeat(&node(boot_id), 60_000, &Function::ALL, true).unwrap();
    let leader = beat.leader(Function::Push).unwrap();
    assert_eq!(leader.boot_id, boot_id);
    leader.term
}

/// Runs `then` with a store behind a proxy that holds up its second write. After that the node still leads and writes.
fn with_a_write_under_way(lead: impl Fn(&PostgresStore) -> Term, then: impl FnOnce(&PostgresStore, &Proxy, Term)) {
    with_a_lead_and_a_write_under_way(&lead, |store, proxy, term, _| {
        then(store, proxy, term);
        // The leader keeps its term, and its writes are accepted.
        assert_eq!(lead(store), term);
        put(store, term, b"9").unwrap();
        assert_eq!(value(store), b"9");
    });
}

fn with_a_lead_and_a_write_under_way(
    lead: impl Fn(&PostgresStore) -> Term,
    then: impl FnOnce(&PostgresStore, &Proxy, Term, &str),
) {
    let server = PostgresServer::shared();
    let url = server.database();
    let proxy = Proxy::to(format!("{}/.s.PGSQL.5432", server.folder().display()));
    // With more connections the next write would take another one. The short time-out ends the held write soon.
    let statement_timeout = Duration::from_millis(500);
    let options = PostgresOptions { connections: 1, statement_timeout, ..options_at(&proxy.url(&url)) };
    let store = PostgresStore::open(options).unwrap();
    let term = lead(&store);
    put(&store, term, b"0").unwrap();
    proxy.hold();
    assert!(matches!(put(&store, term, b"1"), Err(StoreError::OutcomeUnknown(_))));
    then(&store, &proxy, term, &url);
}

#[test]
fn a_late_write_does_not_overwrite_a_later_one() {
    for lead in [lead, |_: &PostgresStore| Term::ALONE] {
        with_a_write_under_way(lead, |store, proxy, term| {
            until("a new connection writes", || put(store, term, b"2").is_ok());
            proxy.release();
            assert_eq!(value(store), b"2");
        });
    }
}

#[test]
fn a_late_write_is_not_stored_after_it_was_settled() {
    for lead in [lead, |_: &PostgresStore| Term::ALONE] {
        with_a_write_under_way(lead, |store, proxy, term| {
            until("a new connection settles the write", || store.fence_writes(term).is_ok());
            assert_eq!(value(store), b"0");
            proxy.release();
            assert_eq!(value(store), b"0");
        });
    }
}

#[test]
fn another_nodes_lead_ends_a_raised_term() {
    with_a_lead_and_a_write_under_way(lead, |store, proxy, term, url| {
        until("a new connection writes", || put(store, term, b"2").is_ok());
        let other = open_at(url);
        other.release_lease(u64::MAX - 7).unwrap();
        let second = lead_as(&other, 1);
        assert!(second > term);
        put(&other, second, b"3").unwrap();
        assert!(matches!(put(store, term, b"4"), Err(StoreError::StaleTerm)));
        proxy.release();
        assert_eq!(value(store), b"3");
        // The first node leads again, in a new term.
        other.release_lease(1).unwrap();
        let third = lead(store);
        assert!(third > second);
        assert!(matches!(put(store, term, b"5"), Err(StoreError::StaleTerm)));
        assert!(matches!(put(&other, second, b"5"), Err(StoreError::StaleTerm)));
        put(store, third, b"6").unwrap();
        assert_eq!(value(store), b"6");
    });
}

#[test]
fn another_nodes_lead_settles_a_pending_write() {
    with_a_lead_and_a_write_under_way(lead, |store, proxy, term, url| {
        let other = open_at(url);
        other.release_lease(u64::MAX - 7).unwrap();
        let second = lead_as(&other, 1);
        until("a new connection settles the write", || matches!(store.fence_writes(term), Err(StoreError::StaleTerm)));
        assert!(matches!(put(store, term, b"4"), Err(StoreError::StaleTerm)));
        proxy.release();
        assert_eq!(value(store), b"0");
        put(&other, second, b"3").unwrap();
    });
}
