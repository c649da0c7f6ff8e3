//! A relay's end of one link.

use crate::{
    link::{LinkOut, packet::Kind},
    shard::ticks,
};
use mio::{Interest, Registry, Token, net::TcpStream};
use std::{
    io::{self, ErrorKind, Read},
    time::Duration,
};

const READ_BYTES: usize = 256 * 1024;

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

    /// Reads a piece; answers all that has not been taken. An error: the link is of no use any more.
    pub(super) fn read(&mut self, tick: u32) -> io::Result<Vec<u8>> {
        let start = self.partial.len();
        self.partial.resize(start + READ_BYTES, 0);
        let read = self.socket.read(&mut self.partial[start..]);
        self.partial.truncate(start + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => self.heard = tick,
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(std::mem::take(&mut self.partial))
    }

    /// What had not come whole.
    pub(super) fn keep(&mut self, bytes: Vec<u8>) {
        self.partial = bytes;
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
