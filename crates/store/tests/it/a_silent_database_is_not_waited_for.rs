//! A database behind a network that is cut refuses nothing: it is only silent. The first callers get an error within seconds,
//! later ones at once, and a send whose outcome is unknown is stored once in the end.

use crate::support::{postgres::*, *};
use std::{
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tidings_domain::store::*;
use tidings_store::{PostgresOptions, PostgresStore};

/// Longer than a running server may be silent on a busy machine.
const SILENT_AFTER: Duration = Duration::from_secs(6);

/// A proxy between a socket of its own and the database's. While it is cut, bytes wait in it.
struct Proxy {
    folder: tempfile::TempDir,
    cut: Arc<AtomicBool>,
}

impl Proxy {
    fn to(socket: &str) -> Proxy {
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
        Proxy { folder, cut }
    }
}

#[test]
fn calls_to_a_silent_database_fail_at_once_until_it_answers() {
    let server = PostgresServer::shared();
    let url = server.database();
    let socket = format!("{}/.s.PGSQL.5432", server.folder().display());
    let proxy = Proxy::to(&socket);
    let database = url.rsplit('/').next().unwrap().split('?').next().unwrap();
    let host = proxy.folder.path().display().to_string().replace('/', "%2F");
    let url = format!("postgres://postgres@/{database}?host={host}");
    let store = PostgresStore::open(PostgresOptions { silent_after: SILENT_AFTER, ..options_at(&url) }).unwrap();
    let room = populate(&store);
    say(&store, room, ["a"], NOON);

    proxy.cut.store(true, Ordering::Release);
    assert!(matches!(store.commit(&[append(room, "b")], NOON), Err(StoreError::Unavailable(_))));
    let began = Instant::now();
    for _ in 0..50 {
        assert!(matches!(store.entries(room, 1, 9, 9, End::Oldest), Err(StoreError::Unavailable(_))));
        assert!(matches!(store.commit(&[append(room, "b")], NOON), Err(StoreError::Unavailable(_))));
    }
    // If each call waited for the time-out, a hundred would take a hundred times as long.
    assert!(began.elapsed() < SILENT_AFTER * 10, "{:?}", began.elapsed());

    proxy.cut.store(false, Ordering::Release);
    let deadline = Instant::now() + Duration::from_secs(120);
    while store.commit(&[append(room, "b")], NOON).is_err() {
        assert!(Instant::now() < deadline, "the store does not recover");
        std::thread::park_timeout(Duration::from_millis(20));
    }
    assert_eq!(stored_ids(&store, room), ["a", "b"], "the send with the unknown outcome is stored once");
}
