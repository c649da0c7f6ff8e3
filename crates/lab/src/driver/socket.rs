//! The socket of a connection to a server that others wrote: plain, or with TLS.

use super::target::TlsTrust;
use mio::net::TcpStream;
use rustls::ClientConnection;
use std::{
    io::{self, ErrorKind, Read, Write},
    net::SocketAddr,
};
use tidings_client::nonblocking::{NonblockingSocket, ReadOutcome};

/// What is read of a TLS connection at once.
const PLAIN_BYTES: usize = 16 * 1024;

/// Why a connection cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Protocol(String),
}

#[derive(Debug)]
pub(super) struct LinkSocket {
    socket: NonblockingSocket,
    tls: Option<Box<TlsState>>,
}

#[derive(Debug)]
struct TlsState {
    connection: ClientConnection,
    /// Decrypted bytes of a message that is not complete yet.
    partial: Vec<u8>,
}

impl LinkSocket {
    pub(super) fn connect(address: SocketAddr, trust: Option<&TlsTrust>) -> io::Result<Self> {
        let tls = trust.map(|trust| {
            let mut connection = trust.begin()?;
            // What a client says waits for the handshake here; the lab bounds it by what it publishes.
            connection.set_buffer_limit(None);
            Ok::<_, io::Error>(Box::new(TlsState { connection, partial: Vec::new() }))
        });
        Ok(LinkSocket { socket: NonblockingSocket::connect(address, None)?, tls: tls.transpose()? })
    }

    /// The socket, to register it with a poll.
    pub(super) fn stream(&mut self) -> &mut TcpStream {
        self.socket.stream()
    }

    /// How many bytes wait for the kernel.
    pub(super) fn unwritten(&mut self) -> usize {
        self.socket.out().len()
    }

    /// Takes bytes to be written by the next [`flush`](Self::flush).
    pub(super) fn write(&mut self, bytes: &mut Vec<u8>) -> io::Result<()> {
        match &mut self.tls {
            None => self.socket.out().append(bytes),
            Some(tls) => {
                tls.connection.writer().write_all(bytes)?;
                bytes.clear();
            }
        }
        Ok(())
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            while tls.connection.wants_write() {
                tls.connection.write_tls(self.socket.out())?;
            }
        }
        self.socket.flush()
    }

    /// Reads until the socket is drained; `take` says how many of the bytes it has consumed, and gets the rest again.
    pub(super) fn read(
        &mut self,
        buffer: &mut Vec<u8>,
        mut take: impl FnMut(&mut [u8]) -> Result<usize, LinkError>,
    ) -> Result<ReadOutcome, LinkError> {
        let Some(tls) = &mut self.tls else { return self.socket.read(buffer, take) };
        let TlsState { connection, partial } = &mut **tls;
        self.socket.read(buffer, |bytes| {
            let (length, mut rest) = (bytes.len(), &*bytes);
            while !rest.is_empty() {
                connection.read_tls(&mut rest)?;
                connection.process_new_packets().map_err(|error| LinkError::Protocol(format!("TLS: {error}")))?;
                decrypt(connection, partial)?;
                if !partial.is_empty() {
                    let taken = take(partial)?;
                    partial.drain(..taken);
                }
            }
            Ok(length)
        })
    }
}

/// Appends what has been decrypted.
fn decrypt(connection: &mut ClientConnection, plain: &mut Vec<u8>) -> io::Result<()> {
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
