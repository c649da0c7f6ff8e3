//! The MIOP door: one thread that accepts devices' connections, as fast as admission allows, and hands them to the shards.

mod newcomers;
mod refusal;

use crate::{gateway::Gateway, transport::Door};
use mio::{Events, Interest, Poll, Token, Waker, net::TcpListener};
use newcomers::{Newcomer, Newcomers};
use refusal::turn_away;
use rustls::{ServerConfig, ServerConnection};
use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tidings_engine::metrics::Metrics;
use tidings_listen::{
    Admission, Descriptors, MaybeTlsSocket, Throttle, ThrottleKey,
    admission::ConnectionClass,
    descriptors::{ReserveDescriptor, is_out_of_descriptors},
    proxy::TrustedProxies,
    socket::{BACKLOG, listen},
};
use tidings_protocol::error::ErrorCode;

/// Connections accepted of one listener before the others have their turn.
const ACCEPTS_PER_TURN: usize = 256;
/// How long accept pauses when too many have not bound, or it failed for want of something.
const PAUSE: Duration = Duration::from_millis(20);

const WAKE: Token = Token(usize::MAX);

/// Who serves the connections that come in.
pub trait Host: Send + Sync + 'static {
    /// Takes a connection, with what was read of it already. Answers whether there was room; if not
    /// the socket is closed.
    fn adopt(&self, socket: MaybeTlsSocket, door: Door, already_read: Vec<u8>, throttle_key: ThrottleKey) -> bool;
    /// Whether another connection would be taken now.
    fn has_room(&self) -> bool;
    /// Connections that have not bound, or are closing.
    fn unbound(&self) -> usize;
    fn metrics(&self) -> &Metrics;
}

impl Host for Gateway {
    fn adopt(&self, socket: MaybeTlsSocket, door: Door, already_read: Vec<u8>, throttle_key: ThrottleKey) -> bool {
        Gateway::adopt(self, socket, door, already_read, throttle_key)
    }

    fn has_room(&self) -> bool {
        Gateway::has_room(self)
    }

    fn unbound(&self) -> usize {
        Gateway::unbound(self)
    }

    fn metrics(&self) -> &Metrics {
        &self.engine().metrics
    }
}

/// Where the door listens, and by which rules.
#[derive(Clone)]
pub struct MiopDoorConfig {
    /// The addresses, each bare or with TLS.
    pub listen: Vec<(SocketAddr, Option<Arc<ServerConfig>>)>,
    /// The load balancers that connections come from, if they do.
    pub proxies: Option<Arc<TrustedProxies>>,
    /// Connections that the kernel holds until they are accepted.
    pub backlog: u32,
    pub admission: Arc<Admission>,
    pub descriptors: Arc<Descriptors>,
    /// Who failed to bind too often. Absent: it is not counted.
    pub throttle: Option<Arc<Throttle>>,
}

impl MiopDoorConfig {
    /// Without a rule that anybody would notice.
    pub fn open(listen: Vec<SocketAddr>) -> Self {
        MiopDoorConfig {
            listen: listen.into_iter().map(|address| (address, None)).collect(),
            proxies: None,
            backlog: BACKLOG,
            admission: Arc::new(Admission::new(Default::default())),
            descriptors: Arc::new(Descriptors::new(u64::MAX, 0)),
            throttle: None,
        }
    }
}

/// The listening door.
pub struct MiopDoor {
    config: MiopDoorConfig,
    poll: Poll,
    entrances: Vec<Entrance>,
}

struct Entrance {
    listener: TcpListener,
    address: SocketAddr,
    /// How its connections begin, if not with MIOP at once.
    tls: Option<Arc<ServerConfig>>,
    /// Connections may wait there.
    ready: bool,
}

/// Ends the door's thread; dropping it does too.
pub struct Stop {
    stopping: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Stop {
    /// No new connections from here on; those that are open stay.
    pub fn finish(self) {}
}

impl Drop for Stop {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "the MIOP door could not be woken");
        } else if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl MiopDoor {
    pub fn bind(config: MiopDoorConfig) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut entrances = Vec::new();
        for (address, tls) in &config.listen {
            let mut listener = TcpListener::from_std(listen(*address, config.backlog)?);
            poll.registry().register(&mut listener, Token(entrances.len()), Interest::READABLE)?;
            entrances.push(Entrance { address: listener.local_addr()?, listener, tls: tls.clone(), ready: true });
        }
        Ok(MiopDoor { config, poll, entrances })
    }

    /// Where it listens, with the ports that the system chose; the flag says whether with TLS.
    pub fn addresses(&self) -> Vec<(SocketAddr, bool)> {
        self.entrances.iter().map(|entrance| (entrance.address, entrance.tls.is_some())).collect()
    }

    /// Accepts on a thread of its own until it is stopped.
    pub fn start(self, host: Arc<dyn Host>) -> io::Result<Stop> {
        let stopping = Arc::new(AtomicBool::new(false));
        let waker = Waker::new(self.poll.registry(), WAKE)?;
        let newcomers = Newcomers::new(self.entrances.len());
        let running = Running { door: self, host, newcomers, first: 0, reserve: ReserveDescriptor::new() };
        let stop = stopping.clone();
        let thread = std::thread::Builder::new().name("miop-door".into()).spawn(move || running.run(&stop))?;
        Ok(Stop { stopping, waker, thread: Some(thread) })
    }
}

struct Running {
    door: MiopDoor,
    host: Arc<dyn Host>,
    newcomers: Newcomers,
    /// The listener that is served first in this turn.
    first: usize,
    reserve: ReserveDescriptor,
}

/// What became of an attempt to accept.
enum Accepted {
    One,
    /// Nobody waits there.
    None,
    /// Not now.
    Pause(Duration),
}

impl Running {
    fn run(mut self, stopping: &AtomicBool) {
        let mut events = Events::with_capacity(64);
        while !stopping.load(Ordering::Acquire) {
            let pause = self.accept_some();
            let busy = self.door.entrances.iter().any(|entrance| entrance.ready);
            let now = Instant::now();
            self.newcomers.expire(now);
            let pause = if busy && pause.is_none() { Some(Duration::ZERO) } else { pause };
            let timeout = pause.into_iter().chain(self.newcomers.until_due(now)).min();
            if let Err(error) = self.door.poll.poll(&mut events, timeout)
                && error.kind() != ErrorKind::Interrupted
            {
                tracing::error!(%error, "poll failed");
            }
            for event in events.iter() {
                let token = event.token().0;
                if let Some(entrance) = self.door.entrances.get_mut(token) {
                    entrance.ready = true;
                } else if let Some(newcomer) = self.newcomers.read(token, self.door.poll.registry()) {
                    self.let_in(newcomer);
                }
            }
        }
    }

    /// A piece of what waits at each listener. Answers how long to pause, if accept may not go on.
    fn accept_some(&mut self) -> Option<Duration> {
        let count = self.door.entrances.len();
        self.first += 1;
        for at in 0..count {
            let index = (self.first + at) % count;
            for _ in 0..ACCEPTS_PER_TURN {
                if !self.door.entrances[index].ready {
                    break;
                }
                match self.accept_one(index) {
                    Accepted::One => {}
                    Accepted::None => self.door.entrances[index].ready = false,
                    Accepted::Pause(pause) => return Some(pause),
                }
            }
        }
        None
    }

    fn accept_one(&mut self, index: usize) -> Accepted {
        let config = &self.door.config;
        let has_room = config.admission.has_room_for_unbound(self.host.unbound() + self.newcomers.len());
        let pause = if has_room { config.admission.required_pause(ConnectionClass::Device) } else { Some(PAUSE) };
        if let Some(pause) = pause {
            self.host.metrics().accept_pauses.inc();
            return Accepted::Pause(pause);
        }
        match self.door.entrances[index].listener.accept() {
            Ok((socket, peer)) => {
                config.admission.count_accepted();
                let tls = self.door.entrances[index].tls.clone();
                self.welcome(Newcomer { socket, peer, tls });
                Accepted::One
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Accepted::None,
            // The peer was gone before we came.
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {
                Accepted::One
            }
            Err(error) if is_out_of_descriptors(&error) => self.refuse_with_reserve(index),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                Accepted::Pause(PAUSE)
            }
        }
    }

    /// Turns it away when there is no room for it; a load balancer's has something to say first.
    fn welcome(&mut self, mut newcomer: Newcomer) {
        let config = &self.door.config;
        let now = Instant::now();
        let room = config.descriptors.admits(&newcomer.socket);
        if !room {
            self.count_shortage();
        } else if !self.host.has_room() {
            self.host.metrics().count_refusal(ErrorCode::QueueFull);
        }
        if !room || !self.host.has_room() {
            return turn_away(&mut newcomer.socket, newcomer.tls.is_some());
        }
        config.descriptors.count_admitted(now);
        let Some(proxies) = &config.proxies else { return self.let_in(newcomer) };
        let peer = newcomer.peer;
        if !proxies.contains(peer.ip()) {
            return tracing::debug!(%peer, "not a load balancer that is trusted");
        }
        if let Err(error) = self.newcomers.put(newcomer, self.door.poll.registry(), now) {
            tracing::warn!(%peer, %error, "a connection could not wait for its PROXY header");
        }
    }

    /// Hands it to a shard, where TLS and MIOP begin.
    fn let_in(&self, newcomer: Newcomer) {
        let Newcomer { socket, peer, tls } = newcomer;
        let socket = match tls.map(ServerConnection::new).transpose() {
            Ok(None) => MaybeTlsSocket::Plain(socket.into()),
            Ok(Some(session)) => MaybeTlsSocket::Tls(socket.into(), Box::new(session)),
            Err(error) => return tracing::error!(%error, "a TLS session could not begin"),
        };
        tracing::debug!(%peer, "a device connected");
        let throttle = self.door.config.throttle.as_ref();
        let throttle_key = throttle.map_or(ThrottleKey::UNKNOWN, |throttle| throttle.key(peer.ip()));
        self.host.adopt(socket, Door::Miop, Vec::new(), throttle_key);
    }

    /// No descriptor is left: the reserve makes room for one, which is told and closed. Accept finds that out before it
    /// looks whether anybody waits.
    fn refuse_with_reserve(&mut self, index: usize) -> Accepted {
        self.reserve.release();
        let entrance = &self.door.entrances[index];
        let accepted = match entrance.listener.accept() {
            Ok((mut socket, _)) => {
                self.count_shortage();
                turn_away(&mut socket, entrance.tls.is_some());
                Accepted::One
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Accepted::None,
            // Somebody else was faster.
            Err(_) => Accepted::Pause(PAUSE),
        };
        if self.reserve.reclaim() { accepted } else { Accepted::Pause(PAUSE) }
    }

    fn count_shortage(&self) {
        let metrics = self.host.metrics();
        metrics.count_refusal(ErrorCode::QueueFull);
        metrics.descriptor_refusals.inc();
        self.door.config.descriptors.count_refused(Instant::now());
    }
}
