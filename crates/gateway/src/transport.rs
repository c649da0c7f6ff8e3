//! The transport of a connection's bytes: a TCP socket, plain or under TLS, or a link to the process that holds the socket.

mod tls;

use crate::link::{RelayThread, VirtualStream};
use mio::{Interest, Registry, Token, net::TcpStream};
use std::{
    io::{self, Read, Write},
    net::Shutdown,
};
use tidings_listen::MaybeTlsSocket;
use tls::TlsStream;

/// The protocol that a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// JSON in text frames; the HTTP handshake is done.
    WebSocket,
    /// Server-sent events; the head of the response is written. The client's frames come by other requests.
    EventStream(BodyFraming),
    Miop,
}

impl Protocol {
    /// The name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Protocol::WebSocket => "websocket",
            Protocol::EventStream(_) => "event_stream",
            Protocol::Miop => "miop",
        }
    }
}

/// How the end of an event stream is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyFraming {
    /// By the last chunk (RFC 9112, 7.1).
    Chunked,
    /// By the end of the connection, since the client speaks HTTP/1.0.
    UntilClose,
}

/// A connection that has left one shard's poll and is on its way to its user's shard.
pub(crate) enum DetachedConnection {
    Socket(MaybeTlsSocket),
    /// A virtual connection: the other shard has a link to the same relay thread.
    Link {
        relay: RelayThread,
        remote: u64,
    },
}

/// Reads and writes like a non-blocking socket. The transport may hold written bytes back: the kernel has them once
/// `flush` succeeds; until then flush again at each writable event.
pub(crate) enum Transport {
    Plain(TcpStream),
    Tls(TlsStream),
    Link(Box<VirtualStream>),
}

impl Transport {
    /// Registers the socket with the poll. It neither blocks nor delays: the listener's socket was made so ([`tidings_listen::socket::listen`]),
    /// and each that it accepts is like it.
    pub(crate) fn register(socket: MaybeTlsSocket, registry: &Registry, key: usize) -> io::Result<Self> {
        let prepare = |socket: std::net::TcpStream| {
            let mut socket = TcpStream::from_std(socket);
            registry.register(&mut socket, Token(key), Interest::READABLE | Interest::WRITABLE)?;
            Ok::<_, io::Error>(socket)
        };
        Ok(match socket {
            MaybeTlsSocket::Plain(socket) => Transport::Plain(prepare(socket)?),
            MaybeTlsSocket::Tls(socket, session) => Transport::Tls(TlsStream { socket: prepare(socket)?, session }),
        })
    }

    /// Takes the connection out of the poll, for another shard.
    pub(crate) fn detach(mut self, registry: &Registry) -> DetachedConnection {
        if let Some(socket) = self.socket() {
            let _ = registry.deregister(socket);
        }
        match self {
            Transport::Plain(socket) => DetachedConnection::Socket(MaybeTlsSocket::Plain(socket.into())),
            Transport::Tls(TlsStream { socket, session }) => {
                DetachedConnection::Socket(MaybeTlsSocket::Tls(socket.into(), session))
            }
            Transport::Link(end) => DetachedConnection::Link { relay: end.relay, remote: end.remote },
        }
    }

    /// Ends the connection. A poll forgets a socket that is closed.
    pub(crate) fn end(mut self) {
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

    /// Whether another process holds the connection; that process keeps its time-outs too.
    pub(crate) fn is_virtual(&self) -> bool {
        matches!(self, Transport::Link(_))
    }

    /// Whether input may be buffered here that the poll will not announce, since it has left the socket.
    pub(crate) fn may_have_buffered_input(&self) -> bool {
        matches!(self, Transport::Tls(_))
    }

    /// Whether output waits for the socket to be writable, a part of a handshake, say.
    pub(crate) fn has_unsent(&self) -> bool {
        matches!(self, Transport::Tls(stream) if stream.session.wants_write())
    }

    /// Closes the sending side; input is still read to its end.
    pub(crate) fn finish_writing(&mut self) {
        if let Transport::Tls(stream) = self {
            stream.send_close_notify();
        }
        // The relay is notified of a virtual connection's end when the shard removes the connection.
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
            // The link hands over the input of its connections itself.
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
