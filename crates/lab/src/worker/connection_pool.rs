//! The worker's connections and the poll loop that drives them: opening, heartbeats, reconnects.

use super::{
    connection::{Client, Connection, ConnectionError, ConnectionState, Role},
    receivers::Receivers,
    shared_state::SharedState,
};
use crate::worker_protocol::WorkerConfig;
use mio::{Events, Interest, Poll, Token, event::Event, unix::SourceFd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::{AsRawFd, OwnedFd},
    time::Duration,
};
use tidings_client::{
    nonblocking::{NonblockingSocket, ReadOutcome},
    session::{CONNECT_PATH, random_mask},
    wire::put_upgrade,
};
use tidings_protocol::ws::{Data, OpCode, put_client_frame};

/// Concurrent handshakes: as many as a server's accept queue holds without loss.
const OPENING_MAX: usize = 200;
/// The size of the buffer that all reads share.
const BUFFER_BYTES: usize = 1024 * 1024;
/// Connections from one source address, well below the range of ephemeral ports.
const PER_SOURCE: usize = 20_000;
/// The delay before a connection that broke is opened again.
const REOPEN_NS: u64 = 100_000_000;
/// The longest random addition to that delay if there are several servers, so that the connections of a failed server do
/// not all reach the next one at once.
const REOPEN_JITTER_NS: u64 = 400_000_000;
/// How often connections are checked for silence.
const SILENCE_CHECK_NS: u64 = 250_000_000;
/// Wakes the poll loop for a command.
pub(crate) const WAKER: Token = Token(usize::MAX);
const TIMER: Token = Token(usize::MAX - 1);

pub(crate) struct ConnectionPool {
    pub(crate) poll: Poll,
    events: Option<Events>,
    pub(crate) connections: Vec<Connection>,
    buffer: Vec<u8>,
    addresses: Vec<SocketAddr>,
    /// See [`WorkerConfig::server_returns`].
    server_returns: bool,
    silence_timeout_ns: Option<u64>,
    last_silence_check_at: u64,
    api_key: String,
    bare: bool,
    /// Connections to be opened, by the time at which each is due.
    to_open: BinaryHeap<Reverse<(u64, usize)>>,
    opening: usize,
    pub(crate) reconnects: u64,
    next_ping: usize,
    last_ping_at: u64,
    unflushed: Vec<usize>,
    /// When the last poll returned.
    pub(crate) woke_at: u64,
    /// Wakes the poll for due messages to the nanosecond: the poll's own time-out counts in milliseconds.
    timer: OwnedFd,
}

/// The receivers are the first connections of the pool.
impl Receivers for ConnectionPool {
    fn is_live(&self, receiver: usize) -> bool {
        self.connections[receiver].client.state == ConnectionState::Live
    }

    fn cursor(&self, receiver: usize) -> &[u8] {
        &self.connections[receiver].client.cursor
    }

    fn expect_answer(&mut self, receiver: usize, operation: u32) {
        if let Role::Receiver { operations, .. } = &mut self.connections[receiver].client.role {
            operations.push(operation);
        }
    }

    fn queue_frame(&mut self, receiver: usize, payload: &[u8]) {
        self.queue_frame(receiver, payload);
    }
}

impl ConnectionPool {
    pub(crate) fn new(config: &WorkerConfig, poll: Poll, shared: &mut SharedState) -> io::Result<Self> {
        let mut roles = Vec::new();
        for conversation in &config.conversations {
            shared.verifier.add_conversation(conversation.id.clone(), conversation.base_seq);
        }
        for receiver in &config.receivers {
            let index = shared.verifier.add_receiver(receiver.conversation);
            roles.push(Role::Receiver { index, user: receiver.user.clone(), operations: Vec::new() });
        }
        for user in &config.ws_senders {
            roles.push(Role::WsSender { user: user.clone(), in_flight: VecDeque::new() });
        }
        roles.extend((0..config.http_senders).map(|_| Role::HttpSender { in_flight: Vec::new() }));
        let mut pool = ConnectionPool {
            poll,
            events: Some(Events::with_capacity(4096)),
            connections: Vec::with_capacity(roles.len()),
            buffer: vec![0; BUFFER_BYTES],
            addresses: config.addresses.clone(),
            server_returns: config.server_returns,
            silence_timeout_ns: config.silence_timeout_ms.map(|ms| ms * 1_000_000),
            last_silence_check_at: 0,
            api_key: config.api_key.clone(),
            bare: config.bare,
            to_open: BinaryHeap::new(),
            opening: 0,
            reconnects: 0,
            next_ping: 0,
            last_ping_at: 0,
            unflushed: Vec::new(),
            woke_at: 0,
            timer: timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?,
        };
        pool.poll.registry().register(&mut SourceFd(&pool.timer.as_raw_fd()), TIMER, Interest::READABLE)?;
        for role in roles {
            let number = pool.connections.len();
            // The bare server takes the connections that come first as its receivers.
            let server = number % pool.addresses.len();
            let socket = pool.open_socket(number, server)?;
            let client = Client::new(role);
            pool.connections.push(Connection { socket, client, server, last_receive_at: shared.now() });
            while pool.opening >= OPENING_MAX {
                pool.poll_once(Duration::from_millis(10), shared)?;
            }
        }
        Ok(pool)
    }

    fn open_socket(&mut self, number: usize, server: usize) -> io::Result<NonblockingSocket> {
        let address = self.addresses[server];
        let source = match address.ip() {
            IpAddr::V4(ip) if ip.is_loopback() => {
                let host = 2 + (number / PER_SOURCE) as u8;
                Some(SocketAddr::from((Ipv4Addr::new(127, 0, (std::process::id() % 250) as u8, host), 0)))
            }
            _ => None,
        };
        let mut socket = NonblockingSocket::connect(address, source)?;
        self.poll.registry().register(socket.stream(), Token(number), Interest::READABLE | Interest::WRITABLE)?;
        self.opening += 1;
        Ok(socket)
    }

    /// Whether every connection is open.
    pub(crate) fn is_open(&self) -> bool {
        self.opening == 0 && self.to_open.is_empty()
    }

    /// Waits for events and handles them, and sends heartbeats.
    pub(crate) fn poll_once(&mut self, timeout: Duration, shared: &mut SharedState) -> io::Result<()> {
        let Some(mut events) = self.events.take() else { return Ok(()) };
        // For a time-out of whole milliseconds the poll needs no timer.
        if !timeout.subsec_nanos().is_multiple_of(1_000_000) {
            let after = Timespec::try_from(timeout).unwrap_or_default();
            let timer = Itimerspec { it_interval: Timespec::default(), it_value: after };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer)?;
        }
        let polled = self.poll.poll(&mut events, Some(timeout));
        self.woke_at = shared.now();
        if polled.is_ok() {
            for event in events.iter().filter(|event| event.token() < TIMER) {
                self.handle(event, shared);
            }
        }
        self.events = Some(events);
        match polled {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        self.reopen_due(shared)?;
        self.send_heartbeats(shared);
        self.close_silent_connections(shared);
        Ok(())
    }

    fn handle(&mut self, event: &Event, shared: &mut SharedState) {
        let number = event.token().0;
        let Some(connection) = self.connections.get_mut(number) else { return };
        let before = connection.client.state;
        // An event of a socket may arrive after the socket was closed.
        if before == ConnectionState::Closed {
            return;
        }
        if event.is_readable() {
            connection.last_receive_at = shared.now();
        }
        let result = handle_event(connection, event, &mut self.buffer, shared, self.bare);
        if before != ConnectionState::Live && connection.client.state == ConnectionState::Live {
            self.opening -= 1;
        }
        if let Err(broken) = result {
            self.close_and_reopen(number, &broken, shared);
        }
    }

    fn close_and_reopen(&mut self, number: usize, broken: &ConnectionError, shared: &mut SharedState) {
        let connection = &mut self.connections[number];
        let _ = self.poll.registry().deregister(connection.socket.stream());
        if connection.client.state != ConnectionState::Live {
            self.opening -= 1;
        }
        connection.client.state = ConnectionState::Closed;
        connection.client.reply.clear();
        connection.server = another_server(connection.server, self.addresses.len());
        let unanswered = connection.client.take_in_flight();
        shared.requeue(&unanswered);
        if let Role::Receiver { index, .. } = connection.client.role {
            shared.receipts.forget_unanswered(index);
        }
        shared.mix.requeue(&connection.client.take_operations());
        if !matches!(broken, ConnectionError::Refused | ConnectionError::Rebalanced) {
            self.reconnects += 1;
            if self.reconnects <= 5 && shared.verifier.problems.len() < 20 {
                shared.verifier.problems.push(format!("connection {number} broke: {broken}"));
            }
        }
        self.schedule_reopen(number, shared);
    }

    /// Moves every connection back to its first server.
    pub(crate) fn rebalance(&mut self, shared: &mut SharedState) {
        for number in 0..self.connections.len() {
            let server = number % self.addresses.len();
            if self.connections[number].server != server
                && self.connections[number].client.state != ConnectionState::Closed
            {
                self.close_and_reopen(number, &ConnectionError::Rebalanced, shared);
            }
            self.connections[number].server = server;
        }
    }

    fn schedule_reopen(&mut self, number: usize, shared: &SharedState) {
        let jitter = if self.addresses.len() > 1 { rand::random_range(0..REOPEN_JITTER_NS) } else { 0 };
        self.to_open.push(Reverse((shared.now() + REOPEN_NS + jitter, number)));
    }

    /// Closes the connections that receive nothing although data is due: a server that is cut off closes none itself.
    fn close_silent_connections(&mut self, shared: &mut SharedState) {
        let (now, Some(silence_timeout_ns)) = (shared.now(), self.silence_timeout_ns) else { return };
        if now < self.last_silence_check_at + SILENCE_CHECK_NS {
            return;
        }
        self.last_silence_check_at = now;
        for number in 0..self.connections.len() {
            let connection = &self.connections[number];
            let something_is_due = match (&connection.client.state, &connection.client.role) {
                (ConnectionState::Closed, _) => false,
                (ConnectionState::Live, Role::HttpSender { in_flight }) => !in_flight.is_empty(),
                // Live sessions are pinged, and the server must answer a handshake.
                _ => true,
            };
            if something_is_due && now > connection.last_receive_at + silence_timeout_ns {
                self.close_and_reopen(number, &ConnectionError::SilenceTimeout, shared);
            }
        }
    }

    fn reopen_due(&mut self, shared: &mut SharedState) -> io::Result<()> {
        let now = shared.now();
        while self.opening < OPENING_MAX
            && let Some(Reverse((at, number))) = self.to_open.peek().copied()
            && at <= now
        {
            self.to_open.pop();
            match self.open_socket(number, self.connections[number].server) {
                Ok(socket) => {
                    let connection = &mut self.connections[number];
                    (connection.socket, connection.last_receive_at) = (socket, now);
                    connection.client.state = ConnectionState::Connecting;
                }
                // Refused at once, as on the loopback: try another server, or the same one later.
                Err(_) if self.addresses.len() > 1 || self.server_returns => {
                    self.connections[number].server =
                        another_server(self.connections[number].server, self.addresses.len());
                    self.schedule_reopen(number, shared);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Pings as many connections as needed for each to be pinged within half of its heartbeat interval.
    fn send_heartbeats(&mut self, shared: &SharedState) {
        let now = shared.now();
        if self.bare || now < self.last_ping_at + 50_000_000 {
            return;
        }
        let all = self.connections.len();
        let interval_ns = (shared.heartbeat_ms * 1_000_000).min(self.silence_timeout_ns.unwrap_or(u64::MAX)) / 2;
        let count = (all as u64 * (now - self.last_ping_at) / interval_ns + 1).min(all as u64);
        self.last_ping_at = now;
        for _ in 0..count {
            let connection = &mut self.connections[self.next_ping];
            self.next_ping = (self.next_ping + 1) % all;
            if connection.client.state == ConnectionState::Live
                && !matches!(connection.client.role, Role::HttpSender { .. })
            {
                put_client_frame(connection.socket.out(), OpCode::Data(Data::Text), b"{\"t\":\"ping\"}", random_mask());
                // A failure shows as an event as well.
                let _ = connection.socket.flush();
            }
        }
    }

    /// Sends a request on an idle HTTP connection.
    pub(crate) fn post(&mut self, number: usize, path: &str, body: &[u8], now: u64) {
        let connection = &mut self.connections[number];
        connection.last_receive_at = now;
        tidings_client::wire::put_request(connection.socket.out(), "POST", path, &self.api_key, body);
        let _ = connection.socket.flush();
    }

    /// Queues a frame of a session; [`flush`](Self::flush) sends it.
    pub(crate) fn queue_frame(&mut self, number: usize, payload: &[u8]) {
        put_client_frame(self.connections[number].socket.out(), OpCode::Data(Data::Text), payload, random_mask());
        if self.unflushed.last() != Some(&number) {
            self.unflushed.push(number);
        }
    }

    pub(crate) fn flush(&mut self) {
        for number in self.unflushed.drain(..) {
            let _ = self.connections[number].socket.flush();
        }
    }
}

/// Another server, at random, so that the connections of a failed server are spread over all others.
fn another_server(server: usize, servers: usize) -> usize {
    match servers {
        0 | 1 => server,
        _ => (server + rand::random_range(1..servers)) % servers,
    }
}

/// Handles an event of a connection: the next step of the handshake, reading, writing.
fn handle_event(
    connection: &mut Connection,
    event: &Event,
    buffer: &mut Vec<u8>,
    shared: &mut SharedState,
    bare: bool,
) -> Result<(), ConnectionError> {
    let Connection { socket, client, .. } = connection;
    if event.is_error()
        && let Some(error) = socket.stream().take_error()?
    {
        return Err(error.into());
    }
    if event.is_writable() {
        if client.state == ConnectionState::Connecting {
            if socket.stream().peer_addr().is_err() {
                return Ok(());
            }
            match client.role {
                // Connecting => Live: neither HTTP nor the bare server needs a handshake.
                Role::HttpSender { .. } => client.state = ConnectionState::Live,
                _ if bare => client.state = ConnectionState::Live,
                // Connecting => Upgrading; the rest of the handshake is in `Client::receive`.
                _ => {
                    client.state = ConnectionState::Upgrading;
                    put_upgrade(socket.out(), CONNECT_PATH);
                }
            }
        }
        socket.flush()?;
    }
    if event.is_readable() || event.is_read_closed() {
        let mut reading = socket.read(buffer, |bytes| client.receive(bytes, shared))?;
        // The end of the stream may follow the last bytes.
        if event.is_read_closed() && reading == ReadOutcome::Drained {
            reading = socket.read(buffer, |bytes| client.receive(bytes, shared))?;
        }
        if !client.reply.is_empty() {
            socket.out().append(&mut client.reply);
            socket.flush()?;
        }
        if reading == ReadOutcome::Ended {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
    }
    Ok(())
}
