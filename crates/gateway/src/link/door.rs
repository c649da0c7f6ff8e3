//! Where relays attach to a core.

use super::{
    RelayThread,
    handshake::{self, HandshakeError, Hello, Welcome},
};
use crate::{commands::Command, gateway::Gateway};
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

/// Handshakes at once; each is a thread for a moment.
const HANDSHAKES_MAX: usize = 64;
/// Processes that may be attached.
const RELAYS_MAX: usize = 4_096;

#[derive(Debug, Clone)]
pub struct LinkConfig {
    pub listen: SocketAddr,
    /// Both sides know it; whoever knows it can speak for any connection.
    pub secret: String,
    /// A relay that is silent for longer is given up, and its sessions with it.
    pub lease: Duration,
}

/// The listening door for relays.
pub struct LinkDoor {
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Attaching {
    config: LinkConfig,
    gateway: Arc<Gateway>,
    /// The number of each name's present process.
    relays: Mutex<FxHashMap<String, (u64, u32)>>,
    under_way: AtomicUsize,
}

impl LinkDoor {
    pub fn start(config: LinkConfig, gateway: Arc<Gateway>) -> io::Result<LinkDoor> {
        let listener = TcpListener::bind(config.listen)?;
        let address = listener.local_addr()?;
        let stopping = Arc::new(AtomicBool::new(false));
        let attaching =
            Arc::new(Attaching { config, gateway, relays: Mutex::default(), under_way: AtomicUsize::new(0) });
        let stop = stopping.clone();
        let accept = move || {
            for socket in listener.incoming() {
                if stop.load(Ordering::Acquire) {
                    return;
                }
                match socket {
                    Ok(socket) => Attaching::begin(&attaching, socket),
                    Err(error) => tracing::warn!(%error, "a link could not be accepted"),
                }
            }
        };
        let thread = std::thread::Builder::new().name("link-door".into()).spawn(accept)?;
        Ok(LinkDoor { address, stopping, thread: Mutex::new(Some(thread)) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// No new links from here on.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        // Its accept returns for a connection.
        if TcpStream::connect(self.address).is_ok()
            && let Some(thread) = self.thread.lock().take()
        {
            let _ = thread.join();
        }
    }
}

impl Attaching {
    fn begin(this: &Arc<Self>, mut socket: TcpStream) {
        if this.under_way.fetch_add(1, Ordering::AcqRel) >= HANDSHAKES_MAX {
            this.under_way.fetch_sub(1, Ordering::AcqRel);
            handshake::refuse(&mut socket, "too many relays attach at once; try again");
            return;
        }
        let attaching = this.clone();
        let spawned = std::thread::Builder::new().name("link-handshake".into()).spawn(move || {
            if let Err(error) = attaching.attach(socket) {
                tracing::warn!(%error, "a relay could not attach");
            }
            attaching.under_way.fetch_sub(1, Ordering::AcqRel);
        });
        if let Err(error) = spawned {
            this.under_way.fetch_sub(1, Ordering::AcqRel);
            tracing::error!(%error, "no thread for a link's handshake");
        }
    }

    fn attach(&self, mut socket: TcpStream) -> Result<(), HandshakeError> {
        let hello = handshake::receive(&mut socket, &self.config.secret, rand::random())?;
        if !self.gateway.engine().push.is_leader() {
            let leader = self.gateway.engine().cluster.as_ref().and_then(|cluster| cluster.nodes.leader());
            handshake::send_elsewhere(&mut socket, &leader.map(|leader| leader.link).unwrap_or_default());
            return Ok(());
        }
        let shards = self.gateway.shard_count();
        let Some(node) = self.number(&hello).filter(|_| usize::from(hello.shard) < shards) else {
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
        let adopt = Command::AdoptLink { socket, relay, lease: self.config.lease, welcome };
        self.gateway.tell(usize::from(hello.shard), adopt);
        Ok(())
    }

    /// The number of a relay's process. A successor's links take the place of its predecessor's at once.
    fn number(&self, hello: &Hello) -> Option<u32> {
        let mut relays = self.relays.lock();
        if let Some((boot_id, node)) = relays.get(&hello.name)
            && *boot_id == hello.boot_id
            && self.gateway.knows_node(*node)
        {
            return Some(*node);
        }
        if relays.len() >= RELAYS_MAX {
            // Names of processes that are gone make room.
            relays.retain(|_, (_, node)| self.gateway.is_node_alive(*node));
        }
        if relays.len() >= RELAYS_MAX && !relays.contains_key(&hello.name) {
            return None;
        }
        let node = self.gateway.node_attached(&hello.name, hello.boot_id, &hello.address, self.config.lease);
        if let Some((_, before)) = relays.insert(hello.name.clone(), (hello.boot_id, node)) {
            self.gateway.drop_node(before);
        }
        Some(node)
    }
}
