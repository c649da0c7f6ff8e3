//! The worker's connections and the poll that drives them: opening in waves, heartbeats, coming back.

use super::{
    connection::{Broken, Connection, Role, Stage, State},
    desk::Desk,
};
use crate::job::Open;
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

/// Handshakes under way at a time: what a server's accept queue holds without loss.
const OPENING_MAX: usize = 200;
/// One buffer for all reads.
const BUFFER_BYTES: usize = 1024 * 1024;
/// Connections from one source address, well below the range of ephemeral ports.
const PER_SOURCE: usize = 20_000;
/// A connection that broke is opened again after this.
const REOPEN_NS: u64 = 100_000_000;
/// And so much later at random where there are several servers: those that lost one do not fall upon the next together.
const REOPEN_JITTER_NS: u64 = 400_000_000;
/// How often silence is looked for.
const SILENCE_LOOK_NS: u64 = 250_000_000;
/// Wakes the loop for a command.
pub(crate) const WAKER: Token = Token(usize::MAX);
const ALARM: Token = Token(usize::MAX - 1);

pub(crate) struct Fleet {
    pub(crate) poll: Poll,
    events: Option<Events>,
    pub(crate) connections: Vec<Connection>,
    buffer: Vec<u8>,
    addresses: Vec<SocketAddr>,
    silence_ns: Option<u64>,
    last_look_at: u64,
    api_key: String,
    bare: bool,
    /// To be opened at a time.
    to_open: BinaryHeap<Reverse<(u64, usize)>>,
    opening: usize,
    pub(crate) reconnects: u64,
    next_ping: usize,
    last_ping_at: u64,
    dirty: Vec<usize>,
    /// Wakes the poll in time for what is due: the poll's own time-out counts in milliseconds.
    alarm: OwnedFd,
}

impl Fleet {
    pub(crate) fn new(open: &Open, poll: Poll, desk: &mut Desk) -> io::Result<Self> {
        let mut roles = Vec::new();
        for conversation in &open.conversations {
            desk.verifier.add_conversation(conversation.id.clone(), conversation.base_seq);
        }
        for receiver in &open.receivers {
            let index = desk.verifier.add_receiver(receiver.conversation);
            roles.push(Role::Receiver { index, user: receiver.user.clone() });
        }
        for user in &open.ws_senders {
            roles.push(Role::WsSender { user: user.clone(), in_flight: VecDeque::new() });
        }
        roles.extend((0..open.http_senders).map(|_| Role::HttpSender { in_flight: Vec::new() }));
        let mut fleet = Fleet {
            poll,
            events: Some(Events::with_capacity(4096)),
            connections: Vec::with_capacity(roles.len()),
            buffer: vec![0; BUFFER_BYTES],
            addresses: open.addresses.clone(),
            silence_ns: open.silence_ms.map(|ms| ms * 1_000_000),
            last_look_at: 0,
            api_key: open.api_key.clone(),
            bare: open.bare,
            to_open: BinaryHeap::new(),
            opening: 0,
            reconnects: 0,
            next_ping: 0,
            last_ping_at: 0,
            dirty: Vec::new(),
            alarm: timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?,
        };
        fleet.poll.registry().register(&mut SourceFd(&fleet.alarm.as_raw_fd()), ALARM, Interest::READABLE)?;
        for role in roles {
            let number = fleet.connections.len();
            // The bare loop takes its receivers to be those that connected first.
            let home = number % fleet.addresses.len();
            let link = fleet.open_link(number, home)?;
            let state = State { role, stage: Stage::Connecting, cursor: Vec::new(), reply: Vec::new() };
            fleet.connections.push(Connection { link, state, home, heard_at: desk.now() });
            while fleet.opening >= OPENING_MAX {
                fleet.turn(Duration::from_millis(10), desk)?;
            }
        }
        Ok(fleet)
    }

    fn open_link(&mut self, number: usize, home: usize) -> io::Result<NonblockingSocket> {
        let address = self.addresses[home];
        let source = match address.ip() {
            IpAddr::V4(ip) if ip.is_loopback() => {
                let host = 2 + (number / PER_SOURCE) as u8;
                Some(SocketAddr::from((Ipv4Addr::new(127, 0, (std::process::id() % 250) as u8, host), 0)))
            }
            _ => None,
        };
        let mut link = NonblockingSocket::connect(address, source)?;
        self.poll.registry().register(link.stream(), Token(number), Interest::READABLE | Interest::WRITABLE)?;
        self.opening += 1;
        Ok(link)
    }

    /// Whether every connection is ready for work.
    pub(crate) fn is_open(&self) -> bool {
        self.opening == 0 && self.to_open.is_empty()
    }

    /// Waits for events and handles them, and sends heartbeats.
    pub(crate) fn turn(&mut self, timeout: Duration, desk: &mut Desk) -> io::Result<()> {
        let Some(mut events) = self.events.take() else { return Ok(()) };
        // Whole milliseconds the poll can wait by itself.
        if !timeout.subsec_nanos().is_multiple_of(1_000_000) {
            let after = Timespec::try_from(timeout).unwrap_or_default();
            let alarm = Itimerspec { it_interval: Timespec::default(), it_value: after };
            timerfd_settime(&self.alarm, TimerfdTimerFlags::empty(), &alarm)?;
        }
        let polled = self.poll.poll(&mut events, Some(timeout));
        if polled.is_ok() {
            for event in events.iter().filter(|event| event.token() < ALARM) {
                self.handle(event, desk);
            }
        }
        self.events = Some(events);
        match polled {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        self.reopen(desk)?;
        self.heartbeat(desk);
        self.look_for_silence(desk);
        Ok(())
    }

    fn handle(&mut self, event: &Event, desk: &mut Desk) {
        let number = event.token().0;
        let Some(connection) = self.connections.get_mut(number) else { return };
        let before = connection.state.stage;
        // What happened to a socket before it was given up may be told after.
        if before == Stage::Away {
            return;
        }
        if event.is_readable() {
            connection.heard_at = desk.now();
        }
        let result = serve(connection, event, &mut self.buffer, desk, self.bare);
        if before != Stage::Live && connection.state.stage == Stage::Live {
            self.opening -= 1;
        }
        if let Err(broken) = result {
            self.lost(number, &broken, desk);
        }
    }

    fn lost(&mut self, number: usize, broken: &Broken, desk: &mut Desk) {
        let connection = &mut self.connections[number];
        let _ = self.poll.registry().deregister(connection.link.stream());
        if connection.state.stage != Stage::Live {
            self.opening -= 1;
        }
        connection.state.stage = Stage::Away;
        connection.state.reply.clear();
        connection.home = another(connection.home, self.addresses.len());
        let unanswered = connection.state.take_in_flight();
        desk.again(&unanswered);
        if !matches!(broken, Broken::Refused | Broken::Moved) {
            self.reconnects += 1;
            if self.reconnects <= 5 && desk.verifier.problems.len() < 20 {
                desk.verifier.problems.push(format!("connection {number} broke: {broken}"));
            }
        }
        self.open_later(number, desk);
    }

    /// Sends every connection back to the server that it was on at first.
    pub(crate) fn spread(&mut self, desk: &mut Desk) {
        for number in 0..self.connections.len() {
            let home = number % self.addresses.len();
            if self.connections[number].home != home && self.connections[number].state.stage != Stage::Away {
                self.lost(number, &Broken::Moved, desk);
            }
            self.connections[number].home = home;
        }
    }

    fn open_later(&mut self, number: usize, desk: &Desk) {
        let jitter = if self.addresses.len() > 1 { rand::random_range(0..REOPEN_JITTER_NS) } else { 0 };
        self.to_open.push(Reverse((desk.now() + REOPEN_NS + jitter, number)));
    }

    /// Gives up the connections on which nothing comes: a server that was cut off closes none.
    fn look_for_silence(&mut self, desk: &mut Desk) {
        let (now, Some(silence_ns)) = (desk.now(), self.silence_ns) else { return };
        if now < self.last_look_at + SILENCE_LOOK_NS {
            return;
        }
        self.last_look_at = now;
        for number in 0..self.connections.len() {
            let connection = &self.connections[number];
            let something_is_due = match (&connection.state.stage, &connection.state.role) {
                (Stage::Away, _) => false,
                (Stage::Live, Role::HttpSender { in_flight }) => !in_flight.is_empty(),
                // Live sessions are pinged, and opening ones are to be answered.
                _ => true,
            };
            if something_is_due && now > connection.heard_at + silence_ns {
                self.lost(number, &Broken::Silent, desk);
            }
        }
    }

    fn reopen(&mut self, desk: &mut Desk) -> io::Result<()> {
        let now = desk.now();
        while self.opening < OPENING_MAX
            && let Some(Reverse((at, number))) = self.to_open.peek().copied()
            && at <= now
        {
            self.to_open.pop();
            match self.open_link(number, self.connections[number].home) {
                Ok(link) => {
                    let connection = &mut self.connections[number];
                    (connection.link, connection.heard_at) = (link, now);
                    connection.state.stage = Stage::Connecting;
                }
                // Refused at once, as the loopback does: the next one's turn.
                Err(_) if self.addresses.len() > 1 => {
                    self.connections[number].home = another(self.connections[number].home, self.addresses.len());
                    self.open_later(number, desk);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Pings so many connections that each has its turn in half of its heartbeat.
    fn heartbeat(&mut self, desk: &Desk) {
        let now = desk.now();
        if self.bare || now < self.last_ping_at + 50_000_000 {
            return;
        }
        let all = self.connections.len();
        let interval_ns = (desk.heartbeat_ms * 1_000_000).min(self.silence_ns.unwrap_or(u64::MAX)) / 2;
        let count = (all as u64 * (now - self.last_ping_at) / interval_ns + 1).min(all as u64);
        self.last_ping_at = now;
        for _ in 0..count {
            let connection = &mut self.connections[self.next_ping];
            self.next_ping = (self.next_ping + 1) % all;
            if connection.state.stage == Stage::Live && !matches!(connection.state.role, Role::HttpSender { .. }) {
                put_client_frame(connection.link.out(), OpCode::Data(Data::Text), b"{\"t\":\"ping\"}", random_mask());
                // A failure shows as an event, too.
                let _ = connection.link.flush();
            }
        }
    }

    /// Puts a request on an idle HTTP connection.
    pub(crate) fn post(&mut self, number: usize, path: &str, body: &[u8], now: u64) {
        let connection = &mut self.connections[number];
        connection.heard_at = now;
        tidings_client::wire::put_request(connection.link.out(), "POST", path, &self.api_key, body);
        let _ = connection.link.flush();
    }

    /// Gathers a frame for a session; it goes out with [`flush`](Self::flush).
    pub(crate) fn gather(&mut self, number: usize, payload: &[u8]) {
        put_client_frame(self.connections[number].link.out(), OpCode::Data(Data::Text), payload, random_mask());
        if self.dirty.last() != Some(&number) {
            self.dirty.push(number);
        }
    }

    pub(crate) fn flush(&mut self) {
        for number in self.dirty.drain(..) {
            let _ = self.connections[number].link.flush();
        }
    }
}

/// Where to go from a server that is of no use: at random, so that those who lost one are spread over the others.
fn another(home: usize, servers: usize) -> usize {
    match servers {
        0 | 1 => home,
        _ => (home + rand::random_range(1..servers)) % servers,
    }
}

/// What an event asks for: the handshake's next step, reading, writing.
fn serve(
    connection: &mut Connection,
    event: &Event,
    buffer: &mut Vec<u8>,
    desk: &mut Desk,
    bare: bool,
) -> Result<(), Broken> {
    let Connection { link, state, .. } = connection;
    if event.is_error()
        && let Some(error) = link.stream().take_error()?
    {
        return Err(error.into());
    }
    if event.is_writable() {
        if state.stage == Stage::Connecting {
            if link.stream().peer_addr().is_err() {
                return Ok(());
            }
            match state.role {
                // Connecting => Live: HTTP needs no more, and neither does the bare loop.
                Role::HttpSender { .. } => state.stage = Stage::Live,
                _ if bare => state.stage = Stage::Live,
                // Connecting => Upgrading; the rest of the handshake is answered in `State::take`.
                _ => {
                    state.stage = Stage::Upgrading;
                    put_upgrade(link.out(), CONNECT_PATH);
                }
            }
        }
        link.flush()?;
    }
    if event.is_readable() || event.is_read_closed() {
        let mut reading = link.read(buffer, |bytes| state.take(bytes, desk))?;
        // The end may stand behind the last bytes.
        if event.is_read_closed() && reading == ReadOutcome::Drained {
            reading = link.read(buffer, |bytes| state.take(bytes, desk))?;
        }
        if !state.reply.is_empty() {
            link.out().append(&mut state.reply);
            link.flush()?;
        }
        if reading == ReadOutcome::Ended {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
    }
    Ok(())
}
