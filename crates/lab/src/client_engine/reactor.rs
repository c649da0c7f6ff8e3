//! The reactor: the only event loop of the lab's clients. It owns the poll, the sockets and the timers of one thread.
//!
//! Clients are numbers to it. What belongs to a number is the owner's, which implements [`Clients`] and hands itself to every
//! [`turn`](Reactor::turn); so a client's state needs no lock and no reference to its socket.

use super::{
    socket::{Progress, Socket, SpareBuffers},
    timer_wheel::{TICK_MS, TimerWheel},
    tls::TlsTrust,
};
use crate::{LabError, clock::machine_ns, process::monotonic_ns};
use mio::{Events, Interest, Poll, Token, Waker, event::Event, unix::SourceFd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::{
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::{AsRawFd, OwnedFd},
    time::Duration,
};

/// The size of the buffer that all reads share.
const BUFFER_BYTES: usize = 1024 * 1024;
const EVENTS_MAX: usize = 4096;
/// Connections from one source address, well below the range of ephemeral ports.
const PER_SOURCE: usize = 20_000;
const WAKER: Token = Token(usize::MAX);
const TIMER: Token = Token(usize::MAX - 1);

/// The clients of a reactor, without their sockets. What they append to `out` is written once all that came is read.
pub(crate) trait Clients {
    /// Why a client ends its connection.
    type Error: From<io::Error>;

    /// The connection is established.
    fn connected(&mut self, _number: usize, _out: &mut Vec<u8>) {}

    /// Takes of the bytes that have come; returns how many. The rest comes again, in front of the next ones.
    fn receive(&mut self, number: usize, bytes: &mut [u8], out: &mut Vec<u8>) -> Result<usize, Self::Error>;

    /// In how many milliseconds the client's timer is to expire, after what it has received; `None`: as before.
    fn next_timer(&mut self, _number: usize) -> Option<u64> {
        None
    }

    /// The connection has failed, was ended by the server ([`ErrorKind::UnexpectedEof`]) or by the client; it is closed.
    fn ended(&mut self, reactor: &mut Reactor, number: usize, why: Self::Error) -> Result<(), LabError>;

    /// The client's timer has expired.
    fn expired(&mut self, _reactor: &mut Reactor, _number: usize) -> Result<(), LabError> {
        Ok(())
    }
}

pub(crate) struct Reactor {
    poll: Poll,
    events: Events,
    /// Wakes the poll to the nanosecond: the poll's own time-out counts in milliseconds. Set where that is worth a system call
    /// and a turn for every moment at which something is due.
    timer: Option<OwnedFd>,
    slots: Vec<Slot>,
    buffer: Vec<u8>,
    /// What the client that reads has to say.
    reply: Vec<u8>,
    spare: SpareBuffers,
    /// Clients with something to write.
    unflushed: Vec<u32>,
    timers: TimerWheel,
    armed: usize,
    expired: Vec<u32>,
    started_ns: u64,
    woke_ns: u64,
}

/// What the reactor has of a client.
#[derive(Debug, Default)]
struct Slot {
    socket: Option<Socket>,
    /// The tick at which its timer expires; 0: it has none.
    due_tick: u32,
    is_connecting: bool,
    is_unflushed: bool,
}

impl Reactor {
    pub(crate) fn new() -> io::Result<Self> {
        let poll = Poll::new()?;
        let now = monotonic_ns();
        Ok(Reactor {
            poll,
            events: Events::with_capacity(EVENTS_MAX),
            timer: None,
            slots: Vec::new(),
            buffer: vec![0; BUFFER_BYTES],
            reply: Vec::new(),
            spare: SpareBuffers::default(),
            unflushed: Vec::new(),
            timers: TimerWheel::new(),
            armed: 0,
            expired: Vec::new(),
            started_ns: now,
            woke_ns: now,
        })
    }

    /// Has turns wait to the nanosecond.
    pub(crate) fn wait_precisely(&mut self) -> io::Result<()> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        self.poll.registry().register(&mut SourceFd(&timer.as_raw_fd()), TIMER, Interest::READABLE)?;
        self.timer = Some(timer);
        Ok(())
    }

    /// Ends a turn's wait from another thread; there is one of a reactor.
    pub(crate) fn waker(&self) -> io::Result<Waker> {
        Waker::new(self.poll.registry(), WAKER)
    }

    /// When the wait of the last turn was over, by [`machine_ns`].
    pub(crate) fn woke_ns(&self) -> u64 {
        self.woke_ns
    }

    fn slot(&mut self, number: usize) -> &mut Slot {
        if number >= self.slots.len() {
            self.slots.resize_with(number + 1, Slot::default);
        }
        &mut self.slots[number]
    }

    /// Starts to connect a client, from a source address that has free ports. What it has to say may be written at once.
    pub(crate) fn connect(&mut self, number: usize, address: SocketAddr, trust: Option<&TlsTrust>) -> io::Result<()> {
        self.connect_from(number, address, source_of(number, address), trust)
    }

    /// The same from this source.
    pub(crate) fn connect_from(
        &mut self,
        number: usize,
        address: SocketAddr,
        source: Option<SocketAddr>,
        trust: Option<&TlsTrust>,
    ) -> io::Result<()> {
        let mut socket = Socket::connect(address, source, trust)?;
        self.poll.registry().register(&mut socket.stream, Token(number), Interest::READABLE | Interest::WRITABLE)?;
        let slot = self.slot(number);
        (slot.socket, slot.is_connecting) = (Some(socket), true);
        Ok(())
    }

    /// Closes a client's connection, if it has one. Its timer stays.
    pub(crate) fn close(&mut self, number: usize) {
        // The kernel drops what it polls with the descriptor.
        self.slot(number).socket = None;
    }

    /// What is to be written to a client's server: append to it. It is written with the next [`flush`](Self::flush) or turn;
    /// without a connection it goes nowhere.
    pub(crate) fn out(&mut self, number: usize) -> &mut Vec<u8> {
        let Some(Slot { socket: Some(socket), is_unflushed, .. }) = self.slots.get_mut(number) else {
            self.reply.clear();
            return &mut self.reply;
        };
        if !std::mem::replace(is_unflushed, true) {
            self.unflushed.push(number as u32);
        }
        socket.out(&mut self.spare)
    }

    /// How many bytes of a client its server has not taken.
    pub(crate) fn unsent(&self, number: usize) -> usize {
        self.slots.get(number).and_then(|slot| slot.socket.as_ref()).map_or(0, Socket::unsent)
    }

    /// Writes what clients have to say, as far as the kernel takes it; the rest follows in later turns.
    pub(crate) fn flush(&mut self) {
        for number in self.unflushed.drain(..) {
            let slot = &mut self.slots[number as usize];
            slot.is_unflushed = false;
            if let Some(socket) = &mut slot.socket {
                // A failure shows as an event as well.
                socket.try_flush(&mut self.spare);
            }
        }
    }

    /// Sets a client's only timer; one that it had does not expire. At most some 160 s, in steps of 20 ms.
    pub(crate) fn set_timer(&mut self, number: usize, in_ms: u64) {
        let now_ms = (monotonic_ns() - self.started_ns) / 1_000_000;
        if self.armed == 0 {
            self.timers.skip_to(now_ms);
        }
        let tick = self.timers.schedule(number as u32, now_ms, in_ms);
        let was = std::mem::replace(&mut self.slot(number).due_tick, tick);
        self.armed += usize::from(was == 0);
    }

    pub(crate) fn clear_timer(&mut self, number: usize) {
        let was = std::mem::take(&mut self.slot(number).due_tick);
        self.armed -= usize::from(was != 0);
    }

    /// Has timers expire, waits for events, and has the clients handle them.
    pub(crate) fn turn<C: Clients>(&mut self, timeout: Duration, clients: &mut C) -> Result<(), LabError> {
        self.expire(clients)?;
        self.flush();
        let longest = if self.armed > 0 { Duration::from_millis(TICK_MS) } else { timeout };
        self.wait(timeout.min(longest))?;
        self.woke_ns = machine_ns();
        let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        let handled = events.iter().filter(|event| event.token() < TIMER).try_for_each(|event| {
            let number = event.token().0;
            match self.handle(event, clients) {
                Ok(()) => Ok(()),
                Err(why) => {
                    self.close(number);
                    clients.ended(self, number, why)
                }
            }
        });
        self.events = events;
        self.flush();
        handled
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        // For a time-out of whole milliseconds the poll needs no timer.
        if let Some(timer) = &self.timer
            && !timeout.subsec_nanos().is_multiple_of(1_000_000)
        {
            let after = Timespec::try_from(timeout).unwrap_or_default();
            let expiry = Itimerspec { it_interval: Timespec::default(), it_value: after };
            timerfd_settime(timer, TimerfdTimerFlags::empty(), &expiry)?;
        }
        match self.poll.poll(&mut self.events, Some(timeout)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {
                self.events.clear();
                Ok(())
            }
            polled => polled,
        }
    }

    fn expire<C: Clients>(&mut self, clients: &mut C) -> Result<(), LabError> {
        if self.armed == 0 {
            return Ok(());
        }
        let now_ms = (monotonic_ns() - self.started_ns) / 1_000_000;
        let mut due = std::mem::take(&mut self.expired);
        while let Some(tick) = self.timers.advance(now_ms, &mut due) {
            for number in due.drain(..) {
                let number = number as usize;
                if self.slots[number].due_tick == tick {
                    self.clear_timer(number);
                    clients.expired(self, number)?;
                }
            }
        }
        self.expired = due;
        Ok(())
    }

    /// The next step of a connection. An event of an earlier socket of this number does no harm: whatever it says is looked at.
    fn handle<C: Clients>(&mut self, event: &Event, clients: &mut C) -> Result<(), C::Error> {
        let number = event.token().0;
        let Some(Slot { socket: Some(socket), is_connecting, .. }) = self.slots.get_mut(number) else {
            return Ok(());
        };
        if *is_connecting && socket.stream.peer_addr().is_ok() {
            *is_connecting = false;
            self.reply.clear();
            clients.connected(number, &mut self.reply);
            if !self.reply.is_empty() {
                socket.out(&mut self.spare).append(&mut self.reply);
            }
        }
        // Reading comes first: a server that refuses and closes may reset the connection after its last frame, which can still
        // be read, and then the error.
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            self.reply.clear();
            let read = read_all(socket, &mut self.buffer, &mut self.spare, event.is_read_closed(), |bytes| {
                clients.receive(number, bytes, &mut self.reply)
            });
            read?;
            socket.send(&self.reply, &mut self.spare)?;
            if let Some(in_ms) = clients.next_timer(number) {
                self.set_timer(number, in_ms);
            }
        }
        let Some(Slot { socket: Some(socket), .. }) = self.slots.get_mut(number) else { return Ok(()) };
        if event.is_error()
            && let Some(error) = socket.stream.take_error()?
        {
            return Err(error.into());
        }
        if event.is_writable() {
            socket.flush(&mut self.spare)?;
        }
        Ok(())
    }
}

/// Reads until the socket is drained; the end of the stream is an error.
fn read_all<E: From<io::Error>>(
    socket: &mut Socket,
    buffer: &mut Vec<u8>,
    spare: &mut SpareBuffers,
    is_closed: bool,
    mut take: impl FnMut(&mut [u8]) -> Result<usize, E>,
) -> Result<(), E> {
    loop {
        match socket.read(buffer, spare, &mut take)? {
            Progress::Ended => return Err(socket.end().into()),
            Progress::Nothing => return Ok(()),
            Progress::Drained if !is_closed => return Ok(()),
            // The end of the stream may follow the last bytes.
            Progress::Drained | Progress::More => {}
        }
    }
}

/// Of a server on this machine: an address of this process for every so many connections.
fn source_of(number: usize, address: SocketAddr) -> Option<SocketAddr> {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_loopback() => {
            let host = 2 + (number / PER_SOURCE) as u8;
            Some(SocketAddr::from((Ipv4Addr::new(127, 0, (std::process::id() % 250) as u8, host), 0)))
        }
        _ => None,
    }
}

/// What a client takes in the reactor while its connection is idle.
#[cfg(test)]
pub(crate) const IDLE_BYTES: usize = size_of::<Slot>();

#[cfg(test)]
mod tests;
