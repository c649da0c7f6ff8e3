//! Attaches a relay thread to a core: connects its links, with retries until the core accepts them.

use super::{Command, RelayConfig, SharedState, ThreadHandle};
use crate::link::handshake::{self, HandshakeError, Hello, VERSION};
use parking_lot::Mutex;
use std::{
    collections::HashSet,
    io,
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tidings_domain::end_reason::required;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Backoff between attempts: doubled from the first to the last value, plus as much again at random, so that the relays
/// of a restarting core do not come in step.
const PAUSE_FIRST_MS: u64 = 50;
const PAUSE_LAST_MS: u64 = 2_000;
/// Failures are logged once the pause is this long: a core that restarts or moves is expected to be away for a moment.
const PAUSE_LOGGED_MS: u64 = 400;

/// The links to all shards of a core, in order.
pub(crate) struct Links {
    pub address: SocketAddr,
    pub sockets: Vec<TcpStream>,
    /// A side that is silent for longer is given up.
    pub lease: Duration,
}

#[derive(Clone)]
pub(super) struct Attacher {
    pub config: RelayConfig,
    pub boot_id: u64,
    pub thread: u16,
    pub handle: ThreadHandle,
    pub shared: Arc<SharedState>,
    /// The addresses that this thread is attached to, or that an attempt is made at: a core serves a thread over one set of links.
    pub attached: Arc<Mutex<HashSet<SocketAddr>>>,
}

impl Attacher {
    /// Attaches on a thread of its own, for as long as `goes_on` is set; the links arrive as a command.
    pub(super) fn begin(&self, core: String, goes_on: Arc<AtomicBool>) {
        let attacher = self.clone();
        let spawned =
            std::thread::Builder::new().name("relay-attach".into()).spawn(move || attacher.run(&core, &goes_on));
        // Without it the devices of this thread would wait for good.
        drop(required("relay-attach", spawned));
    }

    fn run(self, core: &str, goes_on: &AtomicBool) {
        let mut pause_ms = PAUSE_FIRST_MS;
        let mut logged = false;
        while goes_on.load(Ordering::Acquire) && !self.shared.stopping.load(Ordering::Acquire) {
            match self.attach(core, goes_on) {
                Ok(links) => return self.handle.send(Command::Attached { core: core.to_owned(), links }),
                // The named core is attached to instead, and this one is asked again.
                Err(HandshakeError::Redirect(named)) if !named.is_empty() => {
                    self.handle.send(Command::Redirected { core: named });
                }
                // One line per outage.
                Err(error) if pause_ms >= PAUSE_LOGGED_MS && !std::mem::replace(&mut logged, true) => {
                    tracing::warn!(%error, core, "the core cannot be reached; trying again");
                }
                Err(_) => {}
            }
            std::thread::sleep(Duration::from_millis(pause_ms + rand::random_range(0..=pause_ms)));
            pause_ms = (pause_ms * 2).min(PAUSE_LAST_MS);
        }
    }

    fn attach(&self, core: &str, goes_on: &AtomicBool) -> Result<Links, HandshakeError> {
        // Once for all links: a name may stand for several cores.
        let address = core.to_socket_addrs()?.next();
        let address = address.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        if !self.attached.lock().insert(address) {
            let why = "this gateway is attached to the same address under another name";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why).into());
        }
        let links = self.attach_to(address, goes_on);
        if links.is_err() {
            self.attached.lock().remove(&address);
        }
        links
    }

    fn attach_to(&self, address: SocketAddr, goes_on: &AtomicBool) -> Result<Links, HandshakeError> {
        let (first, welcome) = self.attach_to_shard(address, 0)?;
        let mut sockets = vec![first];
        for shard in 1..welcome.shards {
            sockets.push(self.attach_to_shard(address, shard)?.0);
        }
        for socket in &sockets {
            socket.set_read_timeout(None)?;
            socket.set_write_timeout(None)?;
        }
        match goes_on.load(Ordering::Acquire) {
            true => Ok(Links { address, sockets, lease: Duration::from_millis(welcome.lease_ms) }),
            false => Err(io::Error::from(io::ErrorKind::Interrupted).into()),
        }
    }

    fn attach_to_shard(
        &self,
        address: SocketAddr,
        shard: u16,
    ) -> Result<(TcpStream, handshake::Welcome), HandshakeError> {
        let mut socket = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
        let hello = Hello {
            version: VERSION,
            name: self.config.name.clone(),
            boot_id: self.boot_id,
            address: self.config.address.clone(),
            thread: self.thread,
            shard,
            nonce: rand::random(),
            follows_cores: true,
        };
        let welcome = handshake::attach(&mut socket, &self.config.secret, &hello)?;
        Ok((socket, welcome))
    }
}
