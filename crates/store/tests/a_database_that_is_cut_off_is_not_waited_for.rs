//! A database behind a way that is cut: not refused, only silent. Callers learn so within seconds, all later ones at once, and
//! what may have been stored is told as unsure.
#![allow(clippy::unwrap_used)]

mod support;

use std::{
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use support::{postgres::*, *};
use tidings_engine::store::*;
use tidings_store::{PostgresOptions, PostgresStore};

/// Longer than one that runs is silent on a busy machine.
const SILENT_AFTER: Duration = Duration::from_secs(6);

/// Passes bytes on between a socket of its own and the database's, unless the way is cut: then they wait.
struct Way {
    folder: tempfile::TempDir,
    cut: Arc<AtomicBool>,
}

impl Way {
    fn to(socket: &str) -> Way {
        let (folder, cut) = (tempfile::tempdir().unwrap(), Arc::new(AtomicBool::new(false)));
        let listener = UnixListener::bind(folder.path().join(".s.PGSQL.5432")).unwrap();
        let (socket, is_cut) = (socket.to_owned(), cut.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = UnixStream::connect(&socket) else { continue };
                for (mut from, mut to) in [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)]
                {
                    let is_cut = is_cut.clone();
                    std::thread::spawn(move || {
                        let mut bytes = [0; 16 * 1024];
                        while let Ok(count @ 1..) = from.read(&mut bytes) {
                            while is_cut.load(Ordering::Acquire) {
                                std::thread::park_timeout(Duration::from_millis(5));
                            }
                            if to.write_all(&bytes[..count]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(std::net::Shutdown::Both);
                    });
                }
            }
        });
        Way { folder, cut }
    }
}

#[test]
fn who_asks_a_silent_database_is_told_so_and_it_heals() {
    let server = PostgresServer::shared();
    let url = server.database();
    let socket = format!("{}/.s.PGSQL.5432", server.folder().display());
    let way = Way::to(&socket);
    let database = url.rsplit('/').next().unwrap().split('?').next().unwrap();
    let host = way.folder.path().display().to_string().replace('/', "%2F");
    let url = format!("postgres://postgres@/{database}?host={host}");
    let store = PostgresStore::open(PostgresOptions { silent_after: SILENT_AFTER, ..options_at(&url) }).unwrap();
    let room = populate(&store);
    say(&store, room, ["a"], NOON);

    way.cut.store(true, Ordering::Release);
    assert!(matches!(store.commit(&[append(room, "b")], NOON), Err(StoreError::Unavailable(_))));
    let began = Instant::now();
    for _ in 0..50 {
        assert!(matches!(store.entries(room, 1, 9, 9, End::Oldest), Err(StoreError::Unavailable(_))));
        assert!(matches!(store.commit(&[append(room, "b")], NOON), Err(StoreError::Unavailable(_))));
    }
    // Each would have waited for seconds: a hundred times as long as one.
    assert!(began.elapsed() < SILENT_AFTER * 10, "{:?}", began.elapsed());

    way.cut.store(false, Ordering::Release);
    let deadline = Instant::now() + Duration::from_secs(120);
    while store.commit(&[append(room, "b")], NOON).is_err() {
        assert!(Instant::now() < deadline, "it does not heal");
        std::thread::park_timeout(Duration::from_millis(20));
    }
    assert_eq!(said(&store, room), ["a", "b"], "what may have been stored was, or is now, and once");
}
