//! A relay's end of one link.

use crate::{
    link::{
        LinkBuffer,
        packet::{self, PacketKind},
    },
    timer_wheel::ticks,
};
use mio::{Interest, Registry, Token, net::TcpStream};
use std::{
    io::{self, ErrorKind},
    time::Duration,
};

pub(super) struct Upstream {
    socket: TcpStream,
    pub out: LinkBuffer,
    partial: Vec<u8>,
    pub readable: bool,
    last_heard: u32,
    last_sent: u32,
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
        let (out, partial) = (LinkBuffer::default(), Vec::new());
        Ok(Upstream { socket, out, partial, readable: true, last_heard: tick, last_sent: tick, lease: ticks(lease) })
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

    /// Writes waiting packets, or a ping on an idle link. An error: the link is lost.
    pub(super) fn flush(&mut self, tick: u32) -> io::Result<()> {
        if tick > self.last_heard + self.lease {
            return Err(ErrorKind::TimedOut.into());
        }
        if tick >= self.last_sent + (self.lease / 3).max(1) {
            self.out.put(PacketKind::Ping, 0, &[]);
        }
        if self.out.pending_bytes() > 0 {
            self.last_sent = tick;
            self.out.flush(&mut self.socket)?;
        }
        Ok(())
    }
}
