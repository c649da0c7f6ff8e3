//! What carries a connection's bytes: a TCP socket, bare or under TLS, or a link to who has the socket.

mod tls;

use crate::link::{LinkEnd, RelayThread};
use mio::{Interest, Registry, Token, net::TcpStream};
use std::{
    io::{self, Read, Write},
    net::Shutdown,
};
pub(crate) use tidings_listen::MaybeTlsSocket;
use tls::TlsStream;

/// Which protocol a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// JSON in text frames; the HTTP handshake is done.
    WebSocket,
    Miop,
}

/// A connection on its way to its user's shard.
pub(crate) enum Passage {
    Socket(MaybeTlsSocket),
    /// It will be found behind the same relay's link to the other shard.
    Link {
        relay: RelayThread,
        remote: u64,
    },
}

/// Reads and writes as a socket does that does not block. What was written may still be held here: it is with the
/// kernel once `flush` says so; until then the next writable event goes on.
pub(crate) enum Transport {
    Plain(TcpStream),
    Tls(TlsStream),
    Link(Box<LinkEnd>),
}

impl Transport {
    /// Prepares the socket for a poll and registers it there.
    pub(crate) fn register(socket: MaybeTlsSocket, registry: &Registry, key: usize) -> io::Result<Self> {
        let prepare = |socket: std::net::TcpStream| {
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
            let mut socket = TcpStream::from_std(socket);
            registry.register(&mut socket, Token(key), Interest::READABLE | Interest::WRITABLE)?;
            Ok::<_, io::Error>(socket)
        };
        Ok(match socket {
            MaybeTlsSocket::Plain(socket) => Transport::Plain(prepare(socket)?),
            MaybeTlsSocket::Tls(socket, session) => Transport::Tls(TlsStream { socket: prepare(socket)?, session }),
        })
    }

    /// Takes it out of the poll, to go on elsewhere.
    pub(crate) fn into_passage(mut self, registry: &Registry) -> Passage {
        if let Some(socket) = self.socket() {
            let _ = registry.deregister(socket);
        }
        match self {
            Transport::Plain(socket) => Passage::Socket(MaybeTlsSocket::Plain(socket.into())),
            Transport::Tls(TlsStream { socket, session }) => {
                Passage::Socket(MaybeTlsSocket::Tls(socket.into(), session))
            }
            Transport::Link(end) => Passage::Link { relay: end.relay, remote: end.remote },
        }
    }

    /// The connection is over.
    pub(crate) fn end(mut self, registry: &Registry) {
        if let Some(socket) = self.socket() {
            let _ = registry.deregister(socket);
        }
        if let Transport::Link(end) = &mut self {
            end.close();
        }
    }

    fn socket(&mut self) -> Option<&mut TcpStream> {
        match self {
            Transport::Plain(socket) => Some(socket),
            Transport::Tls(stream) => Some(&mut stream.socket),
            Transport::Link(_) => None,
        }
    }

    /// The number of the node that holds the connection; 0: this process.
    pub(crate) fn node(&self) -> u32 {
        match self {
            Transport::Link(end) => end.relay.node,
            Transport::Plain(_) | Transport::Tls(_) => 0,
        }
    }

    /// Whether another process holds the connection: its time-outs are that one's too.
    pub(crate) fn is_virtual(&self) -> bool {
        matches!(self, Transport::Link(_))
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
        // A virtual connection's end is told when it is forgotten here.
        if let Some(socket) = self.socket() {
            let _ = socket.shutdown(Shutdown::Write);
        }
    }
}

impl Read for Transport {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(socket) => socket.read(buffer),
            Transport::Tls(stream) => stream.read(buffer),
            // What comes over a link is handed over by the link.
            Transport::Link(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl Write for Transport {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(socket) => socket.write(bytes),
            Transport::Tls(stream) => stream.write(bytes),
            Transport::Link(end) => end.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Transport::Plain(_) | Transport::Link(_) => Ok(()),
            Transport::Tls(stream) => stream.flush(),
        }
    }
}
