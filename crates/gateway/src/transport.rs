//! What carries a connection's bytes: a TCP socket, bare or under TLS.

mod tls;

use mio::{Interest, Registry, Token, net::TcpStream};
use std::{
    io::{self, Read, Write},
    net::Shutdown,
};
pub(crate) use tidings_listen::Carrier;
use tls::TlsStream;

/// Which protocol a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// JSON in text frames; the HTTP handshake is done.
    WebSocket,
    Miop,
}

/// Reads and writes as a socket does that does not block. What was written may still be held here: it is with the
/// kernel once `flush` says so; until then the next writable event goes on.
pub(crate) enum Transport {
    Plain(TcpStream),
    Tls(TlsStream),
}

impl Transport {
    /// Prepares the carrier for a poll and registers it there.
    pub(crate) fn register(carrier: Carrier, registry: &Registry, key: usize) -> io::Result<Self> {
        let prepare = |socket: std::net::TcpStream| {
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
            let mut socket = TcpStream::from_std(socket);
            registry.register(&mut socket, Token(key), Interest::READABLE | Interest::WRITABLE)?;
            Ok::<_, io::Error>(socket)
        };
        Ok(match carrier {
            Carrier::Plain(socket) => Transport::Plain(prepare(socket)?),
            Carrier::Tls(socket, session) => Transport::Tls(TlsStream { socket: prepare(socket)?, session }),
        })
    }

    pub(crate) fn deregister(mut self, registry: &Registry) -> Carrier {
        let _ = registry.deregister(self.socket());
        match self {
            Transport::Plain(socket) => Carrier::Plain(socket.into()),
            Transport::Tls(TlsStream { socket, session }) => Carrier::Tls(socket.into(), session),
        }
    }

    fn socket(&mut self) -> &mut TcpStream {
        match self {
            Transport::Plain(socket) => socket,
            Transport::Tls(stream) => &mut stream.socket,
        }
    }

    /// Whether there may be bytes to read that the socket will not announce, since they have left it.
    pub(crate) fn may_hold_bytes(&self) -> bool {
        matches!(self, Transport::Tls(_))
    }

    /// Whether something waits for the socket to be writable, a part of a handshake, say.
    pub(crate) fn holds_unsent(&self) -> bool {
        matches!(self, Transport::Tls(stream) if stream.session.wants_write())
    }

    /// Ours is said; what the client still says is read until its end.
    pub(crate) fn finish_writing(&mut self) {
        if let Transport::Tls(stream) = self {
            stream.say_end();
        }
        let _ = self.socket().shutdown(Shutdown::Write);
    }
}

impl Read for Transport {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(socket) => socket.read(buffer),
            Transport::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Transport {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(socket) => socket.write(bytes),
            Transport::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Transport::Plain(_) => Ok(()),
            Transport::Tls(stream) => stream.flush(),
        }
    }
}
