//! What carries a connection's bytes: a TCP socket, bare or under TLS.

use mio::{Interest, Registry, Token, net::TcpStream};
use std::{
    io::{self, Read, Write},
    net::Shutdown,
};
pub(crate) use tidings_listen::Carrier;

/// Which protocol a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// JSON in text frames; the HTTP handshake is done.
    WebSocket,
    Miop,
}

pub(crate) enum Transport {
    Plain(TcpStream),
}

impl Transport {
    /// Prepares the carrier for a poll and registers it there.
    pub(crate) fn register(carrier: Carrier, registry: &Registry, key: usize) -> io::Result<Self> {
        let Carrier::Plain(socket) = carrier;
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let mut socket = TcpStream::from_std(socket);
        registry.register(&mut socket, Token(key), Interest::READABLE | Interest::WRITABLE)?;
        Ok(Transport::Plain(socket))
    }

    pub(crate) fn deregister(mut self, registry: &Registry) -> Carrier {
        let Transport::Plain(socket) = &mut self;
        let _ = registry.deregister(socket);
        let Transport::Plain(socket) = self;
        Carrier::Plain(socket.into())
    }

    /// Ours is said; what the client still says is read until its end.
    pub(crate) fn finish_writing(&mut self) {
        let Transport::Plain(socket) = self;
        let _ = socket.shutdown(Shutdown::Write);
    }
}

impl Read for Transport {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Transport::Plain(socket) = self;
        socket.read(buffer)
    }
}

impl Write for Transport {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Transport::Plain(socket) = self;
        socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
