//! TLS over a socket that does not block, by rustls: it keeps the state, the bytes are moved here.

use mio::net::TcpStream;
use rustls::ServerConnection;
use std::{
    io::{self, ErrorKind, Read, Write},
    net::Shutdown,
};

/// Plaintext that is encrypted before what came of it is sent: a record's most (RFC 8446, 5.1). A slow reader costs us
/// this much beyond its session's buffer.
const PIECE_BYTES: usize = 16 * 1024;

pub(crate) struct TlsStream {
    pub(super) socket: TcpStream,
    pub(super) session: Box<ServerConnection>,
}

impl TlsStream {
    /// Sends what is encrypted. `WouldBlock`: some of it waits for the socket.
    fn send(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut self.socket) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Takes what the socket has: a piece of the handshake, or records. Answers whether it had anything but its end.
    fn receive(&mut self) -> io::Result<bool> {
        let received = self.session.read_tls(&mut self.socket)?;
        let processed = self.session.process_new_packets();
        // An answer of the handshake, or the alert that says what was wrong. What does not go out now waits for
        // the socket to be writable.
        let sent = self.send();
        if let Err(error) = processed {
            return Err(io::Error::new(ErrorKind::InvalidData, error));
        }
        match sent {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(received > 0),
        }
    }

    /// The client's end, which is told apart from what came before it.
    fn end(&self, filled: usize) -> io::Result<usize> {
        if filled > 0 {
            // Who read this much may wait for the socket's next event. An end by `close_notify` alone makes none; this does.
            let _ = self.socket.shutdown(Shutdown::Read);
        }
        Ok(filled)
    }

    /// No more from us (RFC 8446, 6.1), as far as the socket takes it at once.
    pub(super) fn say_end(&mut self) {
        self.session.send_close_notify();
        let _ = self.send();
    }
}

impl Read for TlsStream {
    /// Fills the buffer as far as there are bytes: less than a full buffer, or `WouldBlock`, mean that both the
    /// socket and the state are empty, so that the socket's next event is not waited for in vain.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.session.reader().read(&mut buffer[filled..]) {
                Ok(0) => return self.end(filled),
                Ok(n) => {
                    filled += n;
                    continue;
                }
                // The socket's end without a `close_notify`: every frame says its length, so nothing is cut unnoticed.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return self.end(filled),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            match self.receive() {
                Ok(true) => {}
                Ok(false) => return self.end(filled),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && filled > 0 => break,
                // What came before it is good; a broken connection is still broken at the next read.
                Err(_) if filled > 0 => return self.end(filled),
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}

impl Write for TlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // First what is held, so that it is never more than a piece.
        self.send()?;
        let taken = self.session.writer().write(&bytes[..bytes.len().min(PIECE_BYTES)])?;
        match self.send() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}
