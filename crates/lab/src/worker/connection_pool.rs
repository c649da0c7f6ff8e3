//! The worker's connections: opening, heartbeats, reconnects. The reactor drives their sockets.

use super::{
    connection::{Client, Connection, ConnectionError, ConnectionState, Role},
    receivers::Receivers,
    shared_state::SharedState,
};
use crate::{
    LabError,
    client_engine::{
        HANDSHAKES_MAX, other_than,
        reactor::{Clients, Reactor},
        session::put_ping,
        websocket::{WebSocket, put_text},
    },
    worker_protocol::WorkerConfig,
};
use std::{collections::VecDeque, net::SocketAddr, time::Duration};
use tidings_client::{session::CONNECT_PATH, wire::put_request};

/// The delay before a connection that broke is opened again.
const REOPEN_MS: u64 = 100;
/// The longest random addition to that delay if there are several servers, so that the connections of a failed server do
/// not all reach the next one at once.
const REOPEN_JITTER_MS: u64 = 400;
/// The delay while too many others are being opened.
const TURN_MS: u64 = 20;
/// How often connections are checked for silence.
const SILENCE_CHECK_NS: u64 = 250_000_000;

pub(crate) struct ConnectionPool {
    reactor: Reactor,
    pub(crate) connections: Vec<Connection>,
    addresses: Vec<SocketAddr>,
    /// See [`Participants::server_returns`](crate::worker_protocol::Participants::server_returns).
    server_returns: bool,
    silence_timeout_ns: Option<u64>,
    last_silence_check_at: u64,
    api_key: String,
    bare: bool,
    /// Connections that are being opened, and those that wait to be opened again.
    opening: usize,
    waiting: usize,
    pub(crate) reconnects: u64,
    next_ping: usize,
    last_ping_at: u64,
    /// When the last wait was over.
    pub(crate) woke_at: u64,
}

/// A turn of the reactor: the pool's connections, and what they share.
struct Turn<'a> {
    connections: &'a mut Vec<Connection>,
    addresses: &'a [SocketAddr],
    server_returns: bool,
    bare: bool,
    opening: &'a mut usize,
    waiting: &'a mut usize,
    reconnects: &'a mut u64,
    shared: &'a mut SharedState,
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
    pub(crate) fn new(config: &WorkerConfig, reactor: Reactor, shared: &mut SharedState) -> Result<Self, LabError> {
        let mut roles = Vec::new();
        let participants = &config.participants;
        for conversation in &participants.conversations {
            shared.verifier.add_conversation(conversation.id.clone(), conversation.base_seq);
        }
        for receiver in &participants.receivers {
            let index = shared.verifier.add_receiver(receiver.conversation);
            roles.push(Role::Receiver { index, user: receiver.user.clone(), operations: Vec::new() });
        }
        for user in &participants.ws_senders {
            roles.push(Role::WsSender { user: user.clone(), in_flight: VecDeque::new() });
        }
        roles.extend((0..participants.http_senders).map(|_| Role::HttpSender { in_flight: Vec::new() }));
        let mut pool = ConnectionPool {
            reactor,
            connections: Vec::with_capacity(roles.len()),
            addresses: config.addresses.clone(),
            server_returns: participants.server_returns,
            silence_timeout_ns: config.silence_timeout_ms.map(|ms| ms * 1_000_000),
            last_silence_check_at: 0,
            api_key: config.api_key.clone(),
            bare: config.bare,
            opening: 0,
            waiting: 0,
            reconnects: 0,
            next_ping: 0,
            last_ping_at: 0,
            woke_at: 0,
        };
        for role in roles {
            // The bare server takes the connections that come first as its receivers.
            let number = pool.connections.len();
            let server = number % pool.addresses.len();
            let client = Client::new(role);
            pool.connections.push(Connection { client, server, last_receive_at: shared.now() });
            let (reactor, mut turn) = pool.turn(shared);
            turn.open(reactor, number)?;
            while pool.opening >= HANDSHAKES_MAX {
                pool.poll_once(Duration::from_millis(10), shared)?;
            }
        }
        Ok(pool)
    }

    fn turn<'a>(&'a mut self, shared: &'a mut SharedState) -> (&'a mut Reactor, Turn<'a>) {
        let turn = Turn {
            connections: &mut self.connections,
            addresses: &self.addresses,
            server_returns: self.server_returns,
            bare: self.bare,
            opening: &mut self.opening,
            waiting: &mut self.waiting,
            reconnects: &mut self.reconnects,
            shared,
        };
        (&mut self.reactor, turn)
    }

    /// Whether every connection is open.
    pub(crate) fn is_open(&self) -> bool {
        self.opening == 0 && self.waiting == 0
    }

    /// Waits for events and handles them, and sends heartbeats.
    pub(crate) fn poll_once(&mut self, timeout: Duration, shared: &mut SharedState) -> Result<(), LabError> {
        let (reactor, mut turn) = self.turn(shared);
        reactor.turn(timeout, &mut turn)?;
        self.woke_at = shared.at_machine_ns(self.reactor.woke_ns());
        self.send_heartbeats(shared);
        self.close_silent_connections(shared);
        Ok(())
    }

    /// Moves every connection back to its first server.
    pub(crate) fn rebalance(&mut self, shared: &mut SharedState) {
        let (reactor, mut turn) = self.turn(shared);
        for number in 0..turn.connections.len() {
            let server = number % turn.addresses.len();
            let connection = &turn.connections[number];
            if connection.server != server && connection.client.state != ConnectionState::Closed {
                turn.close_and_reopen(reactor, number, &ConnectionError::Rebalanced);
            }
            turn.connections[number].server = server;
        }
    }

    /// Closes the connections that receive nothing although data is due: a server that is cut off closes none itself.
    fn close_silent_connections(&mut self, shared: &mut SharedState) {
        let (now, Some(silence_timeout_ns)) = (shared.now(), self.silence_timeout_ns) else { return };
        if now < self.last_silence_check_at + SILENCE_CHECK_NS {
            return;
        }
        self.last_silence_check_at = now;
        let (reactor, mut turn) = self.turn(shared);
        for number in 0..turn.connections.len() {
            let connection = &turn.connections[number];
            let something_is_due = match (&connection.client.state, &connection.client.role) {
                (ConnectionState::Closed, _) => false,
                (ConnectionState::Live, Role::HttpSender { in_flight }) => !in_flight.is_empty(),
                // Live sessions are pinged, and the server must answer a handshake.
                _ => true,
            };
            if something_is_due && now > connection.last_receive_at + silence_timeout_ns {
                turn.close_and_reopen(reactor, number, &ConnectionError::SilenceTimeout);
            }
        }
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
            let number = self.next_ping;
            let client = &self.connections[number].client;
            self.next_ping = (number + 1) % all;
            if client.state == ConnectionState::Live && !matches!(client.role, Role::HttpSender { .. }) {
                put_ping(self.reactor.out(number));
            }
        }
        self.reactor.flush();
    }

    /// Sends a request on an idle HTTP connection.
    pub(crate) fn post(&mut self, number: usize, path: &str, body: &[u8], now: u64) {
        self.connections[number].last_receive_at = now;
        put_request(self.reactor.out(number), "POST", path, &self.api_key, body);
        self.reactor.flush();
    }

    /// Queues a frame of a session; [`flush`](Self::flush) sends it.
    pub(crate) fn queue_frame(&mut self, number: usize, payload: &[u8]) {
        put_text(self.reactor.out(number), payload);
    }

    pub(crate) fn flush(&mut self) {
        self.reactor.flush();
    }
}

impl Turn<'_> {
    fn open(&mut self, reactor: &mut Reactor, number: usize) -> std::io::Result<()> {
        let connection = &mut self.connections[number];
        reactor.connect(number, self.addresses[connection.server], None)?;
        connection.client.state = ConnectionState::Opening;
        connection.last_receive_at = self.shared.now();
        *self.opening += 1;
        Ok(())
    }

    fn close_and_reopen(&mut self, reactor: &mut Reactor, number: usize, broken: &ConnectionError) {
        let Turn { connections, shared, .. } = self;
        let connection = &mut connections[number];
        reactor.close(number);
        if connection.client.state != ConnectionState::Live {
            *self.opening -= 1;
        }
        connection.client.state = ConnectionState::Closed;
        connection.server = other_than(connection.server, self.addresses.len());
        let unanswered = connection.client.take_in_flight();
        shared.requeue(&unanswered);
        if self.server_returns && !unanswered.is_empty() {
            shared.ask_again();
        }
        if let Role::Receiver { index, .. } = connection.client.role {
            shared.receipts.forget_unanswered(index);
        }
        shared.mix.requeue(&connection.client.take_operations());
        if !matches!(broken, ConnectionError::Refused | ConnectionError::Rebalanced) {
            *self.reconnects += 1;
            if *self.reconnects <= 5 && shared.verifier.findings.problems.len() < 20 {
                shared.verifier.findings.problems.push(format!("connection {number} broke: {broken}"));
            }
        }
        *self.waiting += 1;
        self.reopen_later(reactor, number);
    }

    fn reopen_later(&mut self, reactor: &mut Reactor, number: usize) {
        let jitter = if self.addresses.len() > 1 { rand::random_range(0..REOPEN_JITTER_MS) } else { 0 };
        reactor.set_timer(number, REOPEN_MS + jitter);
    }
}

impl Clients for Turn<'_> {
    type Error = ConnectionError;

    fn connected(&mut self, number: usize, out: &mut Vec<u8>) {
        let client = &mut self.connections[number].client;
        match client.role {
            Role::Receiver { .. } | Role::WsSender { .. } if !self.bare => client.websocket.begin(CONNECT_PATH, out),
            // Opening => Live: neither HTTP nor the bare server needs a handshake.
            _ => {
                client.websocket = WebSocket::without_upgrade();
                client.state = ConnectionState::Live;
                *self.opening -= 1;
            }
        }
    }

    fn receive(&mut self, number: usize, bytes: &mut [u8], out: &mut Vec<u8>) -> Result<usize, ConnectionError> {
        let connection = &mut self.connections[number];
        connection.last_receive_at = self.shared.now();
        let before = connection.client.state;
        let taken = connection.client.receive(bytes, out, self.shared);
        if before != ConnectionState::Live && connection.client.state == ConnectionState::Live {
            *self.opening -= 1;
        }
        taken
    }

    fn ended(&mut self, reactor: &mut Reactor, number: usize, why: ConnectionError) -> Result<(), LabError> {
        self.close_and_reopen(reactor, number, &why);
        Ok(())
    }

    /// Opens a connection again.
    fn expired(&mut self, reactor: &mut Reactor, number: usize) -> Result<(), LabError> {
        if *self.opening >= HANDSHAKES_MAX {
            reactor.set_timer(number, TURN_MS);
            return Ok(());
        }
        match self.open(reactor, number) {
            Ok(()) => *self.waiting -= 1,
            // Refused at once, as on the loopback: try another server, or the same one later.
            Err(_) if self.addresses.len() > 1 || self.server_returns => {
                let connection = &mut self.connections[number];
                connection.server = other_than(connection.server, self.addresses.len());
                self.reopen_later(reactor, number);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}
