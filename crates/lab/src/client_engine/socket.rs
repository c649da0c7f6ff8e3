//! One socket of the reactor: plain, or with TLS. It holds buffers of its own only while a message is incomplete, or while the
//! kernel takes no more bytes, so that idle clients take little memory.

use super::tls::TlsTrust;
use mio::net::TcpStream;
use rustls::ClientConnection;
use std::{
    io::{self, ErrorKind, Read, Write},
    net::SocketAddr,
};

/// What is decrypted of a TLS connection at once.
const PLAIN_BYTES: usize = 16 * 1024;
/// A buffer up to this size is kept for its next use; a larger one is freed.
const KEPT_BYTES_MAX: usize = 64 * 1024;
/// How many buffers without a socket are kept: enough for those that are in use for a moment.
const SPARE_MAX: usize = 256;
/// Linux's "in progress" for a nonblocking connect.
const EINPROGRESS: i32 = 115;

#[derive(Debug)]
pub(super) struct Socket {
    pub(super) stream: TcpStream,
    buffers: Option<Box<Buffers>>,
}

#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// The beginning of a message that the last read did not complete.
    partial: Vec<u8>,
    /// The bytes to send; those before `written` are sent.
    out: Vec<u8>,
    written: usize,
    /// Why writing failed, until a read or an event finds that the connection has ended.
    failure: Option<io::Error>,
    tls: Option<Box<Tls>>,
}

#[derive(Debug)]
struct Tls {
    connection: ClientConnection,
    /// What is still to be encrypted.
    plain: Vec<u8>,
}

/// Buffers that no socket needs at the moment, so that writing and reading allocate nothing.
#[derive(Debug, Default)]
#[expect(clippy::vec_box, reason = "the box is what is used again")]
pub(super) struct SpareBuffers(Vec<Box<Buffers>>);

/// What a read came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// There may be more.
    More,
    /// The socket is drained: the next event announces more (epoll(7)).
    Drained,
    /// Nothing had come.
    Nothing,
    /// The other side has closed.
    Ended,
}

/// Whether the socket is full, empty, or not connected yet.
fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected)
}

impl Socket {
    /// Starts to connect, from `source` if given, so that more connections than one address has ports can be held; a port
    /// other than 0 spares the kernel the search for a free one.
    pub(super) fn connect(
        address: SocketAddr,
        source: Option<SocketAddr>,
        trust: Option<&TlsTrust>,
    ) -> io::Result<Self> {
        let kind = socket2::Type::STREAM.nonblocking();
        let socket = socket2::Socket::new(socket2::Domain::for_address(address), kind, Some(socket2::Protocol::TCP))?;
        // Without these a connection is only slower.
        let _ = socket.set_tcp_nodelay(true);
        if address.ip().is_loopback() {
            // Congestion control that models the path costs time on a loopback.
            let _ = socket.set_tcp_congestion(b"reno");
        }
        if let Some(source) = source {
            socket.set_reuse_address(true)?;
            match socket.bind(&source.into()) {
                // Another process listens on that port of all addresses: let the kernel choose a port.
                Err(error) if error.kind() == ErrorKind::AddrInUse => {
                    socket.bind(&SocketAddr::new(source.ip(), 0).into())?;
                }
                bound => bound?,
            }
        }
        match socket.connect(&address.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(EINPROGRESS) => {}
            Err(error) => return Err(error),
        }
        let buffers = match trust {
            None => None,
            Some(trust) => {
                let tls = Some(Box::new(Tls { connection: trust.begin()?, plain: Vec::new() }));
                Some(Box::new(Buffers { tls, ..Buffers::default() }))
            }
        };
        Ok(Socket { stream: TcpStream::from_std(socket.into()), buffers })
    }

    fn buffers(&mut self, spare: &mut SpareBuffers) -> &mut Buffers {
        self.buffers.get_or_insert_with(|| spare.0.pop().unwrap_or_default())
    }

    /// The bytes to be written by the next [`flush`](Self::flush): append to them.
    pub(super) fn out(&mut self, spare: &mut SpareBuffers) -> &mut Vec<u8> {
        let Buffers { out, tls, .. } = self.buffers(spare);
        match tls {
            None => out,
            Some(tls) => &mut tls.plain,
        }
    }

    /// How many bytes wait for the kernel.
    pub(super) fn unsent(&self) -> usize {
        self.buffers.as_ref().map_or(0, |buffers| {
            let plain = buffers.tls.as_ref().map_or(0, |tls| tls.plain.len());
            buffers.out.len() - buffers.written + plain
        })
    }

    /// Writes `bytes`, and keeps what the kernel does not take.
    pub(super) fn send(&mut self, mut bytes: &[u8], spare: &mut SpareBuffers) -> io::Result<()> {
        if self.buffers.is_none() {
            bytes = &bytes[write_some(&mut self.stream, bytes)?..];
            if bytes.is_empty() {
                return Ok(());
            }
        }
        self.out(spare).extend_from_slice(bytes);
        self.flush(spare)
    }

    /// Writes the bytes that wait, as far as the kernel takes them.
    pub(super) fn flush(&mut self, spare: &mut SpareBuffers) -> io::Result<()> {
        let Some(buffers) = &mut self.buffers else { return Ok(()) };
        if let Some(tls) = &mut buffers.tls {
            if !tls.plain.is_empty() {
                tls.connection.writer().write_all(&tls.plain)?;
                tls.plain.clear();
            }
            while tls.connection.wants_write() {
                tls.connection.write_tls(&mut buffers.out)?;
            }
        }
        buffers.written += write_some(&mut self.stream, &buffers.out[buffers.written..])?;
        if buffers.written == buffers.out.len() {
            buffers.written = 0;
            buffers.out.clear();
            self.give_back(spare);
        }
        Ok(())
    }

    /// As [`flush`](Self::flush); a failure is kept for who reads next, since a refusal may still be read before it.
    pub(super) fn try_flush(&mut self, spare: &mut SpareBuffers) {
        if let Err(error) = self.flush(spare) {
            self.buffers(spare).failure.get_or_insert(error);
        }
    }

    /// Why the connection has ended.
    pub(super) fn end(&mut self) -> io::Error {
        let failure = self.buffers.as_mut().and_then(|buffers| buffers.failure.take());
        failure.unwrap_or_else(|| ErrorKind::UnexpectedEof.into())
    }

    /// Reads once, after what was left of the last read, and has `take` take of it; it says how many bytes it has taken, and
    /// bounds what is left: it fails for a message that is too long. `buffer` grows when a message does not fit.
    pub(super) fn read<E: From<io::Error>>(
        &mut self,
        buffer: &mut Vec<u8>,
        spare: &mut SpareBuffers,
        mut take: impl FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> Result<Progress, E> {
        let tls = self.buffers.as_mut().is_some_and(|buffers| buffers.tls.is_some());
        let kept = self.buffers.as_ref().filter(|_| !tls).map_or(0, |buffers| buffers.partial.len());
        if kept >= buffer.len() / 2 {
            buffer.resize(kept * 4, 0);
        }
        if let Some(buffers) = self.buffers.as_ref().filter(|_| kept > 0) {
            buffer[..kept].copy_from_slice(&buffers.partial);
        }
        let room = buffer.len() - kept;
        let count = match self.stream.read(&mut buffer[kept..]) {
            Ok(0) => return Ok(Progress::Ended),
            Ok(count) => count,
            Err(error) if would_block(&error) => return Ok(Progress::Nothing),
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(Progress::More),
            Err(error) => return Err(error.into()),
        };
        let bytes = &mut buffer[..kept + count];
        if tls {
            self.decrypt(bytes, take)?;
        } else {
            let taken = take(bytes)?;
            self.keep(&bytes[taken..], spare);
        }
        Ok(if count < room { Progress::Drained } else { Progress::More })
    }

    fn decrypt<E: From<io::Error>>(
        &mut self,
        mut bytes: &[u8],
        mut take: impl FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), E> {
        let Some(Buffers { partial, tls: Some(tls), .. }) = self.buffers.as_deref_mut() else { return Ok(()) };
        while !bytes.is_empty() {
            tls.connection.read_tls(&mut bytes)?;
            let processed = tls.connection.process_new_packets();
            processed.map_err(|error| io::Error::other(format!("TLS: {error}")))?;
            append_plain(&mut tls.connection, partial)?;
            if !partial.is_empty() {
                let taken = take(partial)?;
                partial.drain(..taken);
            }
        }
        Ok(())
    }

    /// Keeps the beginning of an incomplete message for the next read.
    fn keep(&mut self, rest: &[u8], spare: &mut SpareBuffers) {
        if rest.is_empty() && self.buffers.is_none() {
            return;
        }
        let partial = &mut self.buffers(spare).partial;
        partial.clear();
        partial.extend_from_slice(rest);
        if rest.is_empty() {
            self.give_back(spare);
        }
    }

    /// Gives the buffers back if they hold nothing.
    fn give_back(&mut self, spare: &mut SpareBuffers) {
        let is_empty =
            |buffers: &Buffers| buffers.tls.is_none() && buffers.out.is_empty() && buffers.partial.is_empty();
        if let Some(mut buffers) = self.buffers.take_if(|buffers| is_empty(buffers))
            && spare.0.len() < SPARE_MAX
        {
            for kept in [&mut buffers.partial, &mut buffers.out] {
                if kept.capacity() > KEPT_BYTES_MAX {
                    *kept = Vec::new();
                }
            }
            spare.0.push(buffers);
        }
    }
}

/// Writes what the socket takes; returns how many bytes.
fn write_some(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<usize> {
    let mut written = 0;
    while written < bytes.len() {
        match stream.write(&bytes[written..]) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => written += count,
            Err(error) if would_block(&error) => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(written)
}

/// Appends what has been decrypted.
fn append_plain(connection: &mut ClientConnection, plain: &mut Vec<u8>) -> io::Result<()> {
    let mut part = [0; PLAIN_BYTES];
    loop {
        match connection.reader().read(&mut part) {
            Ok(0) => return Ok(()),
            Ok(count) => plain.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
