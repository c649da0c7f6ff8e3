//! The MIOP listener: one thread that accepts devices' connections, as fast as admission allows, and hands them to the
//! shards.

mod pending_headers;
mod refusal;

use crate::{session_server::SessionServer, transport::Protocol};
use mio::{Events, Interest, Poll, Token, Waker, net::TcpListener};
use pending_headers::{AcceptedConnection, PendingHeaders};
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
use tidings_domain::metrics::Metrics;
use tidings_listen::{
    Admission, ClientAddress, Descriptors, MaybeTlsSocket, Throttle, ThrottleKey,
    admission::ConnectionClass,
    descriptors::{ReserveDescriptor, is_out_of_descriptors},
    proxy::TrustedProxies,
    socket::{BACKLOG, listen},
};
use tidings_protocol::error::ErrorCode;

/// Connections accepted from one socket before the others have their turn.
const ACCEPTS_PER_TURN: usize = 256;
/// How long accept pauses when too many connections are unbound, or after a failure for lack of resources.
const PAUSE: Duration = Duration::from_millis(20);

const WAKE: Token = Token(usize::MAX);

/// Serves accepted connections.
pub trait ConnectionHost: Send + Sync + 'static {
    /// Takes a connection over, with the bytes that were read from it already. Answers whether there was room; if not, the
    /// socket is closed.
    fn adopt(&self, socket: MaybeTlsSocket, protocol: Protocol, already_read: Vec<u8>, client: ClientAddress) -> bool;
    /// Whether another connection would be accepted now.
    fn has_room(&self) -> bool;
    /// Connections that have not bound, or are closing.
    fn unbound(&self) -> usize;
    /// Has the connection that has been unbound for longest give way. False: none has been for long enough.
    fn evict_unbound(&self) -> bool;
    fn metrics(&self) -> &Metrics;
}

impl ConnectionHost for SessionServer {
    fn adopt(&self, socket: MaybeTlsSocket, protocol: Protocol, already_read: Vec<u8>, client: ClientAddress) -> bool {
        SessionServer::adopt(self, socket, protocol, already_read, client)
    }

    fn has_room(&self) -> bool {
        SessionServer::has_room(self)
    }

    fn unbound(&self) -> usize {
        SessionServer::unbound(self)
    }

    fn evict_unbound(&self) -> bool {
        SessionServer::evict_unbound(self)
    }

    fn metrics(&self) -> &Metrics {
        &self.engine().metrics
    }
}

/// The addresses and limits of a [`MiopListener`].
#[derive(Clone)]
pub struct MiopListenerConfig {
    /// The addresses, each plain or with TLS.
    pub listen: Vec<(SocketAddr, Option<Arc<ServerConfig>>)>,
    /// The load balancers that all connections come from; absent: clients connect directly.
    pub proxies: Option<Arc<TrustedProxies>>,
    /// Connections that the kernel holds until they are accepted.
    pub backlog: u32,
    pub admission: Arc<Admission>,
    pub descriptors: Arc<Descriptors>,
    /// Counts failed binds per address. Absent: they are not counted.
    pub throttle: Option<Arc<Throttle>>,
}

impl MiopListenerConfig {
    /// Plain listeners with default limits, without load balancers.
    pub fn open(listen: Vec<SocketAddr>) -> Self {
        MiopListenerConfig {
            listen: listen.into_iter().map(|address| (address, None)).collect(),
            proxies: None,
            backlog: BACKLOG,
            admission: Arc::new(Admission::new(Default::default())),
            descriptors: Arc::new(Descriptors::new(u64::MAX, 0)),
            throttle: None,
        }
    }
}

/// Listens for MIOP connections. [`start`](MiopListener::start) begins to accept them.
pub struct MiopListener {
    config: MiopListenerConfig,
    poll: Poll,
    sockets: Vec<ListenerSocket>,
}

struct ListenerSocket {
    listener: TcpListener,
    address: SocketAddr,
    /// The TLS settings; absent: connections begin with MIOP at once.
    tls: Option<Arc<ServerConfig>>,
    /// Connections may wait in the backlog.
    ready: bool,
}

/// Stops the listener's thread, also when dropped.
pub struct StopHandle {
    stopping: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl StopHandle {
    /// Stops accepting connections; open ones stay.
    pub fn finish(self) {}
}

impl Drop for StopHandle {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "the MIOP listener could not be woken");
        } else if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl MiopListener {
    /// Binds the addresses.
    ///
    /// # Errors
    /// An address cannot be bound, or the system has no descriptor left.
    pub fn bind(config: MiopListenerConfig) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut sockets = Vec::new();
        for (address, tls) in &config.listen {
            let mut listener = TcpListener::from_std(listen(*address, config.backlog)?);
            poll.registry().register(&mut listener, Token(sockets.len()), Interest::READABLE)?;
            sockets.push(ListenerSocket { address: listener.local_addr()?, listener, tls: tls.clone(), ready: true });
        }
        Ok(MiopListener { config, poll, sockets })
    }

    /// The bound addresses, with the ports that the system chose, and whether each speaks TLS.
    pub fn addresses(&self) -> Vec<(SocketAddr, bool)> {
        self.sockets.iter().map(|listener| (listener.address, listener.tls.is_some())).collect()
    }

    /// Accepts connections on a thread of its own until it is stopped.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(self, host: Arc<dyn ConnectionHost>) -> io::Result<StopHandle> {
        let stopping = Arc::new(AtomicBool::new(false));
        let waker = Waker::new(self.poll.registry(), WAKE)?;
        let pending_headers = PendingHeaders::new(self.sockets.len());
        let running = Running { listener: self, host, pending_headers, first: 0, reserve: ReserveDescriptor::new() };
        let stop = stopping.clone();
        let thread = std::thread::Builder::new().name("miop-listener".into()).spawn(move || running.run(&stop))?;
        Ok(StopHandle { stopping, waker, thread: Some(thread) })
    }
}

struct Running {
    listener: MiopListener,
    host: Arc<dyn ConnectionHost>,
    pending_headers: PendingHeaders,
    /// The socket that has the first turn, which goes around.
    first: usize,
    reserve: ReserveDescriptor,
}

/// The result of an attempt to accept a connection.
enum AcceptOutcome {
    Accepted,
    /// The backlog is empty.
    Empty,
    /// Admission or a shortage forbids to accept now.
    Pause(Duration),
}

impl Running {
    fn run(mut self, stopping: &AtomicBool) {
        let mut events = Events::with_capacity(64);
        while !stopping.load(Ordering::Acquire) {
            let pause = self.accept_ready();
            let busy = self.listener.sockets.iter().any(|listener| listener.ready);
            let now = Instant::now();
            self.pending_headers.expire(now);
            let pause = if busy && pause.is_none() { Some(Duration::ZERO) } else { pause };
            let timeout = pause.into_iter().chain(self.pending_headers.time_until_due(now)).min();
            if let Err(error) = self.listener.poll.poll(&mut events, timeout)
                && error.kind() != ErrorKind::Interrupted
            {
                tracing::error!(%error, "poll failed");
            }
            for event in events.iter() {
                let token = event.token().0;
                if let Some(listener) = self.listener.sockets.get_mut(token) {
                    listener.ready = true;
                } else if let Some(connection) = self.pending_headers.read(token, self.listener.poll.registry()) {
                    self.hand_over(connection);
                }
            }
        }
    }

    /// Accepts a bounded number of connections from each socket. Answers how long to pause, if accept may not go on.
    fn accept_ready(&mut self) -> Option<Duration> {
        let sockets = self.listener.sockets.len();
        self.first += 1;
        for at in 0..sockets {
            let index = (self.first + at) % sockets;
            for _ in 0..ACCEPTS_PER_TURN {
                if !self.listener.sockets[index].ready {
                    break;
                }
                match self.accept_one(index) {
                    AcceptOutcome::Accepted => {}
                    AcceptOutcome::Empty => self.listener.sockets[index].ready = false,
                    AcceptOutcome::Pause(pause) => return Some(pause),
                }
            }
        }
        None
    }

    fn accept_one(&mut self, index: usize) -> AcceptOutcome {
        let config = &self.listener.config;
        // Clients that connect and never bind must not keep others waiting.
        let has_room = config.admission.has_room_for_unbound(self.host.unbound() + self.pending_headers.len())
            || self.host.evict_unbound();
        let pause = if has_room { config.admission.required_pause(ConnectionClass::Device) } else { Some(PAUSE) };
        if let Some(pause) = pause {
            self.host.metrics().accept_pauses.inc();
            return AcceptOutcome::Pause(pause);
        }
        match self.listener.sockets[index].listener.accept() {
            Ok((socket, peer)) => {
                config.admission.count_accepted();
                let tls = self.listener.sockets[index].tls.clone();
                self.admit(AcceptedConnection { socket, peer, tls });
                AcceptOutcome::Accepted
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => AcceptOutcome::Empty,
            // The peer closed the connection before it was accepted.
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {
                AcceptOutcome::Accepted
            }
            Err(error) if is_out_of_descriptors(&error) => self.refuse_with_reserve(index),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                AcceptOutcome::Pause(PAUSE)
            }
        }
    }

    /// Refuses the connection when there is no room. Behind load balancers it waits for its PROXY header first.
    fn admit(&mut self, mut connection: AcceptedConnection) {
        let config = &self.listener.config;
        let now = Instant::now();
        let room = config.descriptors.admits(&connection.socket);
        if !room {
            self.count_shortage();
        } else if !self.host.has_room() {
            self.host.metrics().count_refusal(ErrorCode::QueueFull);
        }
        if !room || !self.host.has_room() {
            return turn_away(&mut connection.socket, connection.tls.is_some());
        }
        config.descriptors.count_admitted(now);
        let Some(proxies) = &config.proxies else { return self.hand_over(connection) };
        let peer = connection.peer;
        if !proxies.contains(peer.ip()) {
            return tracing::debug!(%peer, "not a load balancer that is trusted");
        }
        if let Err(error) = self.pending_headers.put(connection, self.listener.poll.registry(), now) {
            tracing::warn!(%peer, %error, "a connection could not wait for its PROXY header");
        }
    }

    /// Hands the connection to a shard, where TLS and MIOP begin.
    fn hand_over(&self, connection: AcceptedConnection) {
        let AcceptedConnection { socket, peer, tls } = connection;
        let socket = match tls.map(ServerConnection::new).transpose() {
            Ok(None) => MaybeTlsSocket::Plain(socket.into()),
            Ok(Some(session)) => MaybeTlsSocket::Tls(socket.into(), Box::new(session)),
            Err(error) => return tracing::error!(%error, "a TLS session could not begin"),
        };
        tracing::debug!(%peer, "a device connected");
        let throttle = self.listener.config.throttle.as_ref();
        let throttle_key = throttle.map_or(ThrottleKey::UNKNOWN, |throttle| throttle.key(peer.ip()));
        self.host.adopt(socket, Protocol::Miop, Vec::new(), ClientAddress { address: Some(peer.ip()), throttle_key });
    }

    /// No descriptor is left: the reserve makes room to accept one connection, which is refused. (The kernel reports the
    /// shortage even when no connection waits.)
    fn refuse_with_reserve(&mut self, index: usize) -> AcceptOutcome {
        self.reserve.release();
        let listener = &self.listener.sockets[index];
        let accepted = match listener.listener.accept() {
            Ok((mut socket, _)) => {
                self.count_shortage();
                turn_away(&mut socket, listener.tls.is_some());
                AcceptOutcome::Accepted
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => AcceptOutcome::Empty,
            // Another thread has used the descriptor up.
            Err(_) => AcceptOutcome::Pause(PAUSE),
        };
        if self.reserve.reclaim() { accepted } else { AcceptOutcome::Pause(PAUSE) }
    }

    fn count_shortage(&self) {
        let metrics = self.host.metrics();
        metrics.count_refusal(ErrorCode::QueueFull);
        metrics.descriptor_refusals.inc();
        self.listener.config.descriptors.count_refused(Instant::now());
    }
}
