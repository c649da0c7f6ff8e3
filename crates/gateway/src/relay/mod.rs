//! The relay: a process of `role = gateway` that holds devices' connections for a core.
//!
//! ```text
//! MIOP door ─▶ adopt ─▶ a thread: sockets, frames' boundaries, heartbeats, time-outs ── links ──▶ the core's shards
//! ```
//! It decides nothing about users, messages or pushes: it answers heartbeats, ends who is silent, too
//! slow or out of protocol, and carries whole frames to the core and bytes back.
//!
//! When the core goes away, devices that want pushes alone stay connected and are bound anew, by the
//! bind that they sent, once it is back: a restart of the core is no storm of a million connects. Who
//! wants chat is told to connect again, since only the device knows what it has seen. Of several cores one takes devices: which it
//! is, any of them tells.

mod attach;
mod device;
mod thread;
mod upstream;

use crate::{
    door::Host,
    gateway::{GatewayConfig, ShardWake, WAKE},
    transport::Door,
};
use crossbeam_channel::{Sender, unbounded};
use mio::{Poll, Waker};
use parking_lot::Mutex;
use std::{
    io,
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use thread::RelayLoop;
use tidings_engine::{metrics::Metrics, shards::Wake};
use tidings_listen::{MaybeTlsSocket, ThrottleKey};

/// Finds the core to attach to.
pub trait FindCore: Send + Sync + 'static {
    /// Where it may be, as `host:port`, likeliest first; each is asked, and may name another one.
    fn candidates(&self) -> Vec<String>;

    /// Whether it is known to be elsewhere than here by now.
    fn has_moved(&self, _from: &str) -> bool {
        false
    }
}

/// These, by name.
impl FindCore for Vec<String> {
    fn candidates(&self) -> Vec<String> {
        self.clone()
    }
}

/// Where the core is, and who we are to it.
#[derive(Clone)]
pub struct RelayConfig {
    pub cores: Arc<dyn FindCore>,
    pub secret: String,
    /// This node's name: one process at a time has it.
    pub name: String,
    /// Where devices connect, for those that are sent here.
    pub address: String,
    pub sessions: GatewayConfig,
}

/// What other threads tell a relay's thread.
pub(crate) enum Command {
    Adopt {
        socket: MaybeTlsSocket,
        already_read: Vec<u8>,
    },
    /// Links to all the shards of this core, in order.
    Attached {
        core: String,
        links: Vec<TcpStream>,
        lease: Duration,
    },
    Drain {
        spread_ms: u64,
    },
    Stop,
}

struct Thread {
    commands: Sender<Command>,
    wake: Arc<ShardWake>,
}

impl Thread {
    fn tell(&self, command: Command) {
        if self.commands.send(command).is_ok() {
            self.wake.wake();
        }
    }
}

/// The handle: takes connections, drains them.
pub struct Relay {
    threads: Vec<Thread>,
    next: AtomicUsize,
    shared: Arc<Shared>,
    connections_max: usize,
    joins: Mutex<Vec<JoinHandle<()>>>,
}

/// What a relay's threads count together.
pub(crate) struct Shared {
    pub open: AtomicUsize,
    pub bound: AtomicUsize,
    /// Threads that have their links.
    pub attached: AtomicUsize,
    pub stopping: AtomicBool,
    pub metrics: Arc<Metrics>,
}

impl Relay {
    pub fn start(config: RelayConfig, metrics: Arc<Metrics>) -> io::Result<Arc<Relay>> {
        let shared = Arc::new(Shared {
            open: AtomicUsize::new(0),
            bound: AtomicUsize::new(0),
            attached: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            metrics,
        });
        let boot_id = rand::random();
        let (mut threads, mut joins) = (Vec::new(), Vec::new());
        for index in 0..config.sessions.shards.max(1) {
            let poll = Poll::new()?;
            let wake =
                Arc::new(ShardWake { waker: Waker::new(poll.registry(), WAKE)?, asleep: AtomicBool::new(false) });
            let (commands, inbox) = unbounded();
            let attacher = attach::Attacher {
                config: config.clone(),
                boot_id,
                thread: index as u16,
                commands: commands.clone(),
                wake: wake.clone(),
                shared: shared.clone(),
            };
            threads.push(Thread { commands, wake: wake.clone() });
            let relay = RelayLoop::new(poll, wake, inbox, config.sessions.clone(), shared.clone(), attacher);
            joins.push(std::thread::Builder::new().name(format!("relay-{index}")).spawn(move || relay.run())?);
        }
        let connections_max = config.sessions.connections_max;
        Ok(Arc::new(Relay { threads, next: AtomicUsize::new(0), shared, connections_max, joins: Mutex::new(joins) }))
    }

    /// Whether every thread is attached to the core.
    pub fn is_attached(&self) -> bool {
        self.shared.attached.load(Ordering::Acquire) == self.threads.len()
    }

    pub fn connections(&self) -> usize {
        self.shared.open.load(Ordering::Relaxed)
    }

    /// Tells all devices to connect again, spread over the deadline, waits until they are gone or the
    /// deadline is over, and ends the threads.
    pub fn drain(&self, deadline: Duration) {
        let end = Instant::now() + deadline;
        for thread in &self.threads {
            thread.tell(Command::Drain { spread_ms: deadline.as_millis() as u64 });
        }
        while self.connections() > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.shared.stopping.store(true, Ordering::Release);
        for thread in &self.threads {
            thread.tell(Command::Stop);
        }
        for join in std::mem::take(&mut *self.joins.lock()) {
            let _ = join.join();
        }
    }
}

impl Host for Relay {
    fn adopt(&self, socket: MaybeTlsSocket, _door: Door, already_read: Vec<u8>, _throttle_key: ThrottleKey) -> bool {
        self.shared.open.fetch_add(1, Ordering::Relaxed);
        self.shared.metrics.connections_opened.inc();
        let thread = self.next.fetch_add(1, Ordering::Relaxed) % self.threads.len();
        self.threads[thread].tell(Command::Adopt { socket, already_read });
        true
    }

    fn has_room(&self) -> bool {
        self.connections() < self.connections_max
    }

    fn unbound(&self) -> usize {
        self.connections().saturating_sub(self.shared.bound.load(Ordering::Relaxed))
    }

    fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }
}
