//! A nonblocking socket that a poll loop drives.
//!
//! The lab holds ten thousand of these, nearly all idle: so reading goes through one buffer that all
//! sockets of a thread share, and a socket keeps bytes of its own only while a frame is incomplete or
//! the kernel's send buffer is full.

use mio::net::TcpStream;
use std::{
    io::{self, ErrorKind, Read, Write},
    net::SocketAddr,
};

/// A socket with its incomplete input and its unsent output.
#[derive(Debug)]
pub struct NonblockingSocket {
    stream: TcpStream,
    /// The beginning of a frame that the last read did not complete.
    partial: Vec<u8>,
    /// The bytes to send; those before `written` are sent.
    out: Vec<u8>,
    written: usize,
}

/// Why reading stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadOutcome {
    /// The socket is drained; wait for the next event.
    Drained,
    /// The other side closed.
    Ended,
}

impl NonblockingSocket {
    /// Starts to connect, from `source` if given (port 0), so that more connections than one
    /// address has ports can be held.
    ///
    /// # Errors
    /// The socket could not be made or bound, or the connection was refused at once. A later refusal shows when the socket is
    /// read or written.
    pub fn connect(address: SocketAddr, source: Option<SocketAddr>) -> io::Result<Self> {
        let stream = match source {
            None => TcpStream::connect(address)?,
            Some(source) => {
                let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
                socket.set_nonblocking(true)?;
                socket.set_reuse_address(true)?;
                socket.bind(&source.into())?;
                match socket.connect(&address.into()) {
                    Ok(()) => {}
                    Err(error) if error.raw_os_error() == Some(EINPROGRESS) => {}
                    Err(error) => return Err(error),
                }
                TcpStream::from_std(socket.into())
            }
        };
        // Fails on some systems until the connection is established; without it the connection is only slower.
        let _ = stream.set_nodelay(true);
        Ok(NonblockingSocket { stream, partial: Vec::new(), out: Vec::new(), written: 0 })
    }

    /// The socket, to register it with a poll.
    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// The bytes to be written: append, then [`flush`](Self::flush).
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Whether bytes wait for the socket.
    pub fn has_unwritten(&self) -> bool {
        self.written < self.out.len()
    }

    /// Writes the bytes that wait, as far as the kernel takes them; call it again when the socket is writable.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn flush(&mut self) -> io::Result<()> {
        while self.written < self.out.len() {
            match self.stream.write(&self.out[self.written..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.written = 0;
        self.out.clear();
        if self.out.capacity() > KEPT_BYTES_MAX {
            self.out = Vec::new();
        }
        Ok(())
    }

    /// Reads until the socket is drained. `take` is called with the bytes that have arrived and returns how many of them it
    /// consumed; the rest is passed to it again, in front of the next bytes. `buffer` grows when a frame does not fit.
    ///
    /// # Errors
    /// The connection is broken, or `take` failed.
    pub fn read<E: From<io::Error>>(
        &mut self,
        buffer: &mut Vec<u8>,
        mut take: impl FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> Result<ReadOutcome, E> {
        loop {
            let kept = self.partial.len();
            if kept >= buffer.len() / 2 {
                // `take` bounds this: it fails for a frame that is too long.
                buffer.resize((kept * 2).max(BUFFER_BYTES_MIN), 0);
            }
            buffer[..kept].copy_from_slice(&self.partial);
            let count = match self.stream.read(&mut buffer[kept..]) {
                Ok(0) => return Ok(ReadOutcome::Ended),
                Ok(count) => count,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => {
                    return Ok(ReadOutcome::Drained);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            let filled = kept + count;
            let taken = take(&mut buffer[..filled])?;
            self.partial.clear();
            if taken < filled {
                self.partial.extend_from_slice(&buffer[taken..filled]);
            } else if self.partial.capacity() > 0 {
                self.partial = Vec::new();
            }
            // A short read drained the socket: the next event announces more (epoll(7)).
            if filled < buffer.len() {
                return Ok(ReadOutcome::Drained);
            }
        }
    }
}

/// The smallest shared read buffer.
const BUFFER_BYTES_MIN: usize = 16 * 1024;
/// A write buffer up to this size is kept for the next write; a larger one is freed once it is sent.
const KEPT_BYTES_MAX: usize = 64 * 1024;
/// Linux's "in progress" for a nonblocking connect.
const EINPROGRESS: i32 = 115;
