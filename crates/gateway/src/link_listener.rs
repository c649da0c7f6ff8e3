//! Listens for the links of relays, and performs their handshakes.

use crate::{
    commands::Command,
    link::{
        RelayThread,
        handshake::{self, HandshakeError, Hello, Welcome},
    },
    session_server::SessionServer,
};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// Handshakes at once; each takes a thread for a moment.
const HANDSHAKES_MAX: usize = 64;
/// Relay processes that may be attached.
const RELAYS_MAX: usize = 4_096;

#[derive(Debug, Clone)]
pub struct LinkConfig {
    pub listen: SocketAddr,
    /// The secret that both sides know; a process that knows it can speak for any connection.
    pub secret: String,
    /// A relay that is silent for longer is given up, and its sessions are closed.
    pub lease: Duration,
}

/// The listener for relays.
pub struct LinkListener {
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct LinkAcceptor {
    config: LinkConfig,
    session_server: Arc<SessionServer>,
    /// Per name the present process: its boot id and its node number.
    relays: Mutex<FxHashMap<String, (u64, u32)>>,
    handshakes: AtomicUsize,
}

impl LinkListener {
    /// Listens, and accepts links on a thread of its own.
    ///
    /// # Errors
    /// The address cannot be bound, or the system refuses a thread.
    pub fn start(config: LinkConfig, session_server: Arc<SessionServer>) -> io::Result<LinkListener> {
        let listener = TcpListener::bind(config.listen)?;
        let address = listener.local_addr()?;
        let stopping = Arc::new(AtomicBool::new(false));
        let acceptor = Arc::new(LinkAcceptor {
            config,
            session_server,
            relays: Mutex::default(),
            handshakes: AtomicUsize::new(0),
        });
        let stop = stopping.clone();
        let accept = move || {
            for socket in listener.incoming() {
                if stop.load(Ordering::Acquire) {
                    return;
                }
                match socket {
                    Ok(socket) => LinkAcceptor::begin(&acceptor, socket),
                    Err(error) => tracing::warn!(%error, "a link could not be accepted"),
                }
            }
        };
        let thread = std::thread::Builder::new().name("link-listener".into()).spawn(accept)?;
        Ok(LinkListener { address, stopping, thread: Mutex::new(Some(thread)) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// No new links from here on.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        // A connection makes the blocking accept return.
        if TcpStream::connect(self.address).is_ok()
            && let Some(thread) = self.thread.lock().take()
        {
            let _ = thread.join();
        }
    }
}

impl LinkAcceptor {
    fn begin(this: &Arc<Self>, mut socket: TcpStream) {
        if this.handshakes.fetch_add(1, Ordering::AcqRel) >= HANDSHAKES_MAX {
            this.handshakes.fetch_sub(1, Ordering::AcqRel);
            handshake::refuse(&mut socket, "too many relays attach at once; try again");
            return;
        }
        let acceptor = this.clone();
        let spawned = std::thread::Builder::new().name("link-handshake".into()).spawn(move || {
            if let Err(error) = acceptor.attach(socket) {
                tracing::warn!(%error, "a relay could not attach");
            }
            acceptor.handshakes.fetch_sub(1, Ordering::AcqRel);
        });
        if let Err(error) = spawned {
            this.handshakes.fetch_sub(1, Ordering::AcqRel);
            tracing::error!(%error, "no thread for a link's handshake");
        }
    }

    fn attach(&self, mut socket: TcpStream) -> Result<(), HandshakeError> {
        let hello = handshake::receive(&mut socket, &self.config.secret, rand::random())?;
        let shards = self.session_server.shard_count();
        let Some(node) = self.node_number(&hello).filter(|_| usize::from(hello.shard) < shards) else {
            let why = "no such shard, or the limit of relays is reached";
            handshake::refuse(&mut socket, why);
            return Err(HandshakeError::Refused(why.into()));
        };
        let lease_ms = self.config.lease.as_millis() as u64;
        let welcome = Welcome { shards: shards as u16, lease_ms };
        let welcome = handshake::welcome(&self.config.secret, &hello, &welcome)?;
        socket.set_read_timeout(None)?;
        socket.set_write_timeout(None)?;
        if hello.thread == 0 && hello.shard == 0 {
            tracing::info!(name = hello.name, boot_id = hello.boot_id, address = hello.address, "a relay attached");
        }
        let relay = RelayThread { node, thread: hello.thread };
        let follows_cores = hello.follows_cores && hello.shard == 0;
        let adopt = Command::AdoptLink { socket, relay, lease: self.config.lease, welcome, follows_cores };
        self.session_server.send(usize::from(hello.shard), adopt);
        Ok(())
    }

    /// The node number of a relay process. When a successor attaches, the links of its predecessor are dropped at once.
    fn node_number(&self, hello: &Hello) -> Option<u32> {
        let mut relays = self.relays.lock();
        if let Some((boot_id, node)) = relays.get(&hello.name)
            && *boot_id == hello.boot_id
            && self.session_server.knows_node(*node)
        {
            return Some(*node);
        }
        if relays.len() >= RELAYS_MAX {
            // Names of processes that are gone make room.
            relays.retain(|_, (_, node)| self.session_server.is_node_alive(*node));
        }
        if relays.len() >= RELAYS_MAX && !relays.contains_key(&hello.name) {
            return None;
        }
        let node = self.session_server.attach_node(&hello.name, hello.boot_id, &hello.address, self.config.lease);
        if let Some((_, predecessor)) = relays.insert(hello.name.clone(), (hello.boot_id, node)) {
            self.session_server.detach_node(predecessor);
        }
        Some(node)
    }
}
