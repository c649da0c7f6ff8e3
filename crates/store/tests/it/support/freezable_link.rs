//! A way to a PostgreSQL server that can be frozen at each answer of the server, as if the process that asks stopped there: what
//! it has sent reaches the server, and nothing more.

use parking_lot::{Condvar, Mutex};
use std::{
    io::{Read, Write},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
};

/// A socket beside the server's. Every connection through it has the same state.
pub(crate) struct FreezableLink {
    folder: tempfile::TempDir,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Answers that are still let through; `None`: all.
    answers_left: Option<u64>,
    is_frozen: bool,
    is_closed: bool,
}

impl FreezableLink {
    /// A link to the server whose socket is in `server`, with the name of port 5432.
    pub(crate) fn to(server: &Path) -> FreezableLink {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(socket_in(folder.path())).unwrap();
        let (shared, server) = (Arc::<Shared>::default(), socket_in(server));
        let accepting = std::thread::spawn({
            let shared = shared.clone();
            move || {
                for client in listener.incoming() {
                    if shared.state.lock().is_closed {
                        return;
                    }
                    carry(client.unwrap(), UnixStream::connect(&server).unwrap(), &shared);
                }
            }
        });
        FreezableLink { folder, shared, accepting: Some(accepting) }
    }

    /// The url of a database through this link.
    pub(crate) fn url(&self, direct: &str) -> String {
        let database = direct.rsplit('/').next().unwrap();
        format!("postgres://postgres@{}/{database}", self.folder.path().display().to_string().replace('/', "%2F"))
    }

    /// Lets `answers` answers through from now on, and freezes the link at the next one: that one the server gives, but it does
    /// not arrive.
    pub(crate) fn freeze_after(&self, answers: u64) {
        self.shared.state.lock().answers_left = Some(answers);
    }

    /// Waits until the link is frozen, or `is_done`; answers whether it is frozen.
    pub(crate) fn wait_until_frozen(&self, is_done: impl Fn() -> bool) -> bool {
        let mut state = self.shared.state.lock();
        while !state.is_frozen && !is_done() {
            self.shared.changed.wait_for(&mut state, std::time::Duration::from_millis(5));
        }
        state.is_frozen
    }

    pub(crate) fn thaw(&self) {
        let mut state = self.shared.state.lock();
        (state.answers_left, state.is_frozen) = (None, false);
        self.shared.changed.notify_all();
    }
}

impl Drop for FreezableLink {
    fn drop(&mut self) {
        self.shared.state.lock().is_closed = true;
        self.thaw();
        let _ = UnixStream::connect(socket_in(self.folder.path()));
        let _ = self.accepting.take().unwrap().join();
    }
}

fn socket_in(folder: &Path) -> PathBuf {
    folder.join(".s.PGSQL.5432")
}

/// Carries the bytes of a connection in both directions until it ends.
fn carry(client: UnixStream, server: UnixStream, shared: &Arc<Shared>) {
    let prepares = Arc::new(Mutex::new(false));
    let (mut from_client, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    std::thread::spawn({
        let prepares = prepares.clone();
        move || {
            let mut bytes = [0; 65_536];
            while let Ok(read @ 1..) = from_client.read(&mut bytes) {
                // A message that prepares a statement. The connection of the liveness probe has none, and is left out: its
                // answers come at any time.
                *prepares.lock() |= bytes[..read].first() == Some(&b'P');
                if to_server.write_all(&bytes[..read]).is_err() {
                    break;
                }
            }
            let _ = to_server.shutdown(Shutdown::Both);
        }
    });
    let (mut from_server, mut to_client, shared) = (server, client, shared.clone());
    std::thread::spawn(move || {
        while let Ok(message) = read_message(&mut from_server) {
            // "Ready for query": the end of an answer.
            if message[0] == b'Z' && *prepares.lock() {
                shared.on_answer();
            }
            if to_client.write_all(&message).is_err() {
                break;
            }
        }
        let _ = to_client.shutdown(Shutdown::Both);
    });
}

impl Shared {
    /// Counts an answer; waits while the link is frozen.
    fn on_answer(&self) {
        let mut state = self.state.lock();
        match &mut state.answers_left {
            Some(0) => state.is_frozen = true,
            Some(left) => *left -= 1,
            None => {}
        }
        self.changed.notify_all();
        while state.is_frozen && !state.is_closed {
            self.changed.wait(&mut state);
        }
    }
}

/// A message of the server: its kind, its length, and the rest.
fn read_message(from: &mut UnixStream) -> std::io::Result<Vec<u8>> {
    let mut message = vec![0; 5];
    from.read_exact(&mut message)?;
    let length = u32::from_be_bytes(message[1..5].try_into().unwrap()) as usize;
    message.resize(1 + length, 0);
    from.read_exact(&mut message[5..])?;
    Ok(message)
}
