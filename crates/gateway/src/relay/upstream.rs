//! A relay's end of one link.

use crate::{
    link::{
        LinkBuffer,
        packet::{self, PacketKind},
    },
    timer_wheel::{TICK, ticks},
};
use mio::{Interest, Registry, Token, net::TcpStream};
use std::{
    io::{self, ErrorKind},
    time::{Duration, Instant},
};

pub(super) struct Upstream {
    socket: TcpStream,
    out: LinkBuffer,
    /// A packet waits that does not wait for others, or the socket has not taken all.
    is_urgent: bool,
    partial: Vec<u8>,
    pub readable: bool,
    last_heard: u32,
    last_sent: u32,
    /// When the core was told the time last.
    timed: Option<u32>,
    lease: u32,
}

impl Upstream {
    pub(super) fn register(
        socket: std::net::TcpStream,
        registry: &Registry,
        token: Token,
        lease: Duration,
        tick: u32,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let mut socket = TcpStream::from_std(socket);
        registry.register(&mut socket, token, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Upstream {
            socket,
            out: LinkBuffer::default(),
            is_urgent: false,
            partial: Vec::new(),
            readable: true,
            last_heard: tick,
            last_sent: tick,
            timed: None,
            lease: ticks(lease),
        })
    }

    #[cfg(test)]
    pub(super) fn of_a_test(tick: u32) -> Self {
        let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
        let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let poll = mio::Poll::new().unwrap();
        let lease = crate::timer_wheel::TICK * 10;
        Upstream::register(socket, poll.registry(), Token(0), lease, tick).unwrap()
    }

    pub(super) fn put(&mut self, kind: PacketKind, id: u64, payload: &[u8]) {
        self.is_urgent = true;
        self.out.put(kind, id, payload);
    }

    /// Puts a device's bind, behind the time: the core must know how long the device has waited.
    pub(super) fn put_open(&mut self, tick: u32, id: u64, payload: &[u8]) {
        if self.timed != Some(tick) {
            self.put_time(tick);
        }
        self.put(PacketKind::Open, id, payload);
    }

    fn put_time(&mut self, tick: u32) {
        self.timed = Some(tick);
        self.put(PacketKind::Ping, 1 + u64::from(tick) * TICK.as_millis() as u64, &[]);
    }

    /// Puts a device's acknowledgement, which waits a moment for those of others: after a push to many they all come at once.
    pub(super) fn put_acknowledgement(&mut self, session: u64, frame: &[u8]) {
        self.out.put(PacketKind::Data, session, frame);
    }

    /// Whether the core was silent for so long that it may be gone. It says something three times in a lease.
    pub(super) fn is_silent(&self, tick: u32) -> bool {
        tick > self.last_heard + self.lease / 2
    }

    pub(super) fn pending_bytes(&self) -> usize {
        self.out.pending_bytes()
    }

    /// When acknowledgements that wait for others are to be written.
    pub(super) fn batch_due_at(&self) -> Option<Instant> {
        let waits = self.out.pending_bytes() > 0 && !self.is_urgent;
        waits.then(|| self.out.batch_due_at()).flatten()
    }

    pub(super) fn deregister(&mut self, registry: &Registry) {
        let _ = registry.deregister(&mut self.socket);
    }

    /// Reads once; answers how many bytes of `buffer` are to be parsed. After an error the link must be closed.
    pub(super) fn read(&mut self, tick: u32, buffer: &mut [u8]) -> io::Result<usize> {
        match packet::read(&mut self.socket, &mut self.partial, buffer) {
            Ok(end) => {
                self.last_heard = tick;
                Ok(end)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(0)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Keeps an incomplete packet for the next read.
    pub(super) fn keep(&mut self, bytes: &[u8]) {
        self.partial = bytes.to_vec();
    }

    /// Writes waiting packets, and from time to time a ping. An error: the link is lost.
    pub(super) fn flush(&mut self, tick: u32, now: Instant) -> io::Result<()> {
        if tick > self.last_heard + self.lease {
            return Err(ErrorKind::TimedOut.into());
        }
        // The core compares later times with this one, also on a link that is never idle.
        if self.timed.is_none_or(|timed| tick >= timed + (self.lease / 3).max(1)) {
            self.put_time(tick);
        }
        if self.out.is_due(!self.is_urgent, now) {
            self.last_sent = tick;
            self.out.flush(&mut self.socket, now)?;
            self.is_urgent = self.out.pending_bytes() > 0;
        }
        Ok(())
    }
}
