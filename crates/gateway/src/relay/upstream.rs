//! A relay's end of one link.

use crate::{
    link::{
        LinkOut,
        packet::{self, Kind},
    },
    shard::ticks,
};
use mio::{Interest, Registry, Token, net::TcpStream};
use std::{
    io::{self, ErrorKind},
    time::Duration,
};

pub(super) struct Upstream {
    socket: TcpStream,
    pub out: LinkOut,
    partial: Vec<u8>,
    pub readable: bool,
    heard: u32,
    said: u32,
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
        let (out, partial) = (LinkOut::default(), Vec::new());
        Ok(Upstream { socket, out, partial, readable: true, heard: tick, said: tick, lease: ticks(lease) })
    }

    pub(super) fn deregister(&mut self, registry: &Registry) {
        let _ = registry.deregister(&mut self.socket);
    }

    /// Reads a piece; answers how much of `buffer` there is to take. An error: the link is of no use any more.
    pub(super) fn read(&mut self, tick: u32, buffer: &mut [u8]) -> io::Result<usize> {
        match packet::read(&mut self.socket, &mut self.partial, buffer) {
            Ok(end) => {
                self.heard = tick;
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

    /// What had not come whole.
    pub(super) fn keep(&mut self, bytes: &[u8]) {
        self.partial = bytes.to_vec();
    }

    /// Writes what waits, or that we live. An error: the link is lost.
    pub(super) fn serve(&mut self, tick: u32) -> io::Result<()> {
        if tick > self.heard + self.lease {
            return Err(ErrorKind::TimedOut.into());
        }
        if tick >= self.said + (self.lease / 3).max(1) {
            self.out.put(Kind::Ping, 0, &[]);
        }
        if self.out.waits() > 0 {
            self.said = tick;
            self.out.flush(&mut self.socket)?;
        }
        Ok(())
    }
}
