//! A nonblocking socket that a poll loop drives.
//!
//! A lab holds ten thousand of these, nearly all idle: so reading goes through one buffer that all
//! links of a thread share, and a link keeps bytes of its own only while a frame is cut or the
//! kernel's send buffer is full.

use mio::net::TcpStream;
use std::{
    io::{self, ErrorKind, Read, Write},
    net::SocketAddr,
};

/// A socket and what is under way on it.
#[derive(Debug)]
pub struct Link {
    stream: TcpStream,
    /// The head of what comes next, cut by the end of the last read.
    cut: Vec<u8>,
    /// What is still to be written, from `written` on.
    out: Vec<u8>,
    written: usize,
}

/// What reading came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// The socket is drained; wait for the next event.
    Drained,
    /// The other side closed.
    Ended,
}

impl Link {
    /// Starts to connect, from `source` if given (port 0), so that more connections than one
    /// address has ports can be held.
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
        // Fails while the connection is under way on some systems, and is only a matter of speed.
        let _ = stream.set_nodelay(true);
        Ok(Link { stream, cut: Vec::new(), out: Vec::new(), written: 0 })
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

    /// Writes what has gathered, as far as the kernel takes it; the rest goes when the socket is writable.
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

    /// Reads until the socket is drained. `take` is shown what has come and says how much of it it took;
    /// what it leaves is shown again with what comes next. `buffer` grows when a frame does not fit.
    pub fn read<E: From<io::Error>>(
        &mut self,
        buffer: &mut Vec<u8>,
        mut take: impl FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> Result<Reading, E> {
        loop {
            let kept = self.cut.len();
            if kept >= buffer.len() / 2 {
                // What `take` refuses to take bounds this: it knows the longest frame.
                buffer.resize((kept * 2).max(BUFFER_BYTES_MIN), 0);
            }
            buffer[..kept].copy_from_slice(&self.cut);
            let count = match self.stream.read(&mut buffer[kept..]) {
                Ok(0) => return Ok(Reading::Ended),
                Ok(count) => count,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => {
                    return Ok(Reading::Drained);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            let filled = kept + count;
            let taken = take(&mut buffer[..filled])?;
            self.cut.clear();
            if taken < filled {
                self.cut.extend_from_slice(&buffer[taken..filled]);
            } else if self.cut.capacity() > 0 {
                self.cut = Vec::new();
            }
            // A short read drained the socket: the next event tells of more (epoll(7)).
            if filled < buffer.len() {
                return Ok(Reading::Drained);
            }
        }
    }
}

/// A shared read buffer is never smaller.
const BUFFER_BYTES_MIN: usize = 16 * 1024;
/// A write buffer up to this size is kept for the next write; idle links keep none worth counting.
const KEPT_BYTES_MAX: usize = 64 * 1024;
/// Linux's "in progress" for a nonblocking connect.
const EINPROGRESS: i32 = 115;
