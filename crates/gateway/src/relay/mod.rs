//! The relay: what a process of `role = gateway` runs. It holds devices' connections for a core.
//!
//! ```text
//! MIOP listener ─▶ adopt ─▶ a thread: sockets, frame boundaries, heartbeats, time-outs ── links ──▶ the core's shards
//! ```
//! A relay decides nothing about users, messages or pushes. It answers heartbeats, closes connections that are silent, too
//! slow or break the protocol, and carries whole frames to the core and bytes back.
//!
//! In front of a cluster each of its nodes is a core. Each tells the relay of all others, and every thread of the relay spreads
//! its devices over them: a device's session is on the core that had the fewest when the device bound.
//!
//! When a core goes away, devices that want pushes alone stay connected. The relay binds them again with the bind frame
//! that they sent, at another core or once one is back: a restart of a core causes no storm of a million connects. A device
//! that wants chat is asked to connect again, since only the device knows which messages it has.

mod attach;
mod core;
mod device_connection;
mod thread;
mod upstream;

use crate::{
    miop_listener::ConnectionHost,
    open_connections::{EnteredConnection, OpenConnections},
    session_config::SessionConfig,
    transport::Protocol,
    wake::{ShardWake, WAKE},
};
use attach::Links;
use crossbeam_channel::{Sender, unbounded};
use mio::{Poll, Waker};
use parking_lot::Mutex;
use std::{
    hash::RandomState,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use thread::RelayLoop;
use tidings_domain::metrics::Metrics;
use tidings_engine::shards::Wake;
use tidings_listen::{ClientAddress, MaybeTlsSocket};

/// The cores' addresses, and how this relay presents itself to them.
#[derive(Clone)]
pub struct RelayConfig {
    /// The core, or some nodes of a cluster, as `host:port`.
    pub cores: Vec<String>,
    pub secret: String,
    /// This node's name: one process at a time has it.
    pub name: String,
    /// The address that devices connect to, for devices that are redirected here.
    pub address: String,
    pub sessions: SessionConfig,
}

/// Commands to a relay thread. The queue needs no bound of its own: connections are bounded, and an attach begins when the
/// links of the one before are lost.
pub(crate) enum Command {
    Adopt {
        socket: MaybeTlsSocket,
        already_read: Vec<u8>,
        entered: EnteredConnection,
    },
    /// A device that has not bound, or whose connection is closing, gives way to another one.
    EndUnbound {
        id: u64,
    },
    /// A device that does not read has the memory that others need.
    CloseSlowReader {
        id: u64,
    },
    Attached {
        core: String,
        links: Links,
    },
    /// A core of an earlier version serves no devices, and names the one that does.
    Redirected {
        core: String,
    },
    Drain {
        spread_ms: u64,
    },
    Stop,
}

#[derive(Clone)]
pub(crate) struct ThreadHandle {
    commands: Sender<Command>,
    wake: Arc<ShardWake>,
}

impl ThreadHandle {
    pub(crate) fn send(&self, command: Command) {
        if self.commands.send(command).is_ok() {
            self.wake.wake();
        }
    }
}

/// The handle of a relay: takes connections, drains them.
pub struct Relay {
    threads: Vec<ThreadHandle>,
    next: AtomicUsize,
    shared: Arc<SharedState>,
    joins: Mutex<Vec<JoinHandle<()>>>,
}

/// Counters and flags that a relay's threads share.
pub(crate) struct SharedState {
    pub open: Arc<OpenConnections>,
    pub bound: AtomicUsize,
    /// Threads that have links to every shard of at least one core.
    pub attached: AtomicUsize,
    /// Cores that threads have links to, summed over the threads.
    pub attachments: AtomicUsize,
    pub stopping: AtomicBool,
    pub metrics: Arc<Metrics>,
    /// Hashes users' ids.
    pub hasher: RandomState,
}

impl Relay {
    /// Starts the relay's threads, which attach to the cores.
    ///
    /// # Errors
    /// The system refuses a poll or a thread.
    pub fn start(config: RelayConfig, metrics: Arc<Metrics>) -> io::Result<Arc<Relay>> {
        let shared = Arc::new(SharedState {
            open: config.sessions.open_connections(),
            bound: AtomicUsize::new(0),
            attached: AtomicUsize::new(0),
            attachments: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            metrics,
            hasher: RandomState::new(),
        });
        let boot_id = rand::random();
        let (mut threads, mut joins) = (Vec::new(), Vec::new());
        for index in 0..config.sessions.shards.max(1) {
            let poll = Poll::new()?;
            let wake =
                Arc::new(ShardWake { waker: Waker::new(poll.registry(), WAKE)?, asleep: AtomicBool::new(false) });
            #[expect(clippy::disallowed_methods, reason = "bounded by connections and attaches: see Command")]
            let (commands, inbox) = unbounded();
            let handle = ThreadHandle { commands, wake: wake.clone() };
            let attacher = attach::Attacher {
                config: config.clone(),
                boot_id,
                thread: index as u16,
                handle: handle.clone(),
                shared: shared.clone(),
                attached: Arc::default(),
            };
            threads.push(handle);
            let relay = RelayLoop::new(poll, wake, inbox, config.sessions.clone(), shared.clone(), attacher);
            joins.push(std::thread::Builder::new().name(format!("relay-{index}")).spawn(move || relay.run())?);
        }
        Ok(Arc::new(Relay { threads, next: AtomicUsize::new(0), shared, joins: Mutex::new(joins) }))
    }

    /// Whether every thread is attached to a core.
    pub fn is_attached(&self) -> bool {
        self.shared.attached.load(Ordering::Acquire) == self.threads.len()
    }

    /// Cores that threads are attached to, summed over the threads.
    pub fn attachments(&self) -> usize {
        self.shared.attachments.load(Ordering::Acquire)
    }

    pub fn connections(&self) -> usize {
        self.shared.open.count()
    }

    /// Tells all devices to connect again, spread over the deadline; waits until their connections are closed or the
    /// deadline has passed; then ends the threads.
    pub fn drain(&self, deadline: Duration) {
        let end = Instant::now() + deadline;
        for thread in &self.threads {
            thread.send(Command::Drain { spread_ms: deadline.as_millis() as u64 });
        }
        while self.connections() > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.shared.stopping.store(true, Ordering::Release);
        for thread in &self.threads {
            thread.send(Command::Stop);
        }
        for join in std::mem::take(&mut *self.joins.lock()) {
            let _ = join.join();
        }
    }
}

impl ConnectionHost for Relay {
    fn adopt(&self, socket: MaybeTlsSocket, _protocol: Protocol, already_read: Vec<u8>, client: ClientAddress) -> bool {
        let thread = &self.threads[self.next.fetch_add(1, Ordering::Relaxed) % self.threads.len()];
        let of_thread = thread.clone();
        let entered = self.shared.open.enter(client.address, move |id| of_thread.send(Command::EndUnbound { id }));
        let Some(entered) = entered else { return false };
        self.shared.metrics.connections_opened.inc();
        thread.send(Command::Adopt { socket, already_read, entered });
        true
    }

    fn has_room(&self) -> bool {
        self.shared.open.has_room()
    }

    fn evict_unbound(&self) -> bool {
        self.shared.open.unbound.evict_oldest()
    }

    fn unbound(&self) -> usize {
        self.connections().saturating_sub(self.shared.bound.load(Ordering::Relaxed))
    }

    fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }
}
