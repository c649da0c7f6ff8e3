//! The link: sessions here whose connections another process holds.
//!
//! ```text
//! device ══ socket ══ relay (role = gateway) ══ packets ══ link ── virtual connection ── shard (core)
//! ```
//! A core's shard serves a virtual connection like one of its own sockets: what differs is where its
//! bytes go. What travels is packets (open, bytes up, bytes down, close), each naming one connection,
//! so that whatever carries packets between two nodes can take the place of the TCP links here.
//!
//! A relay's thread has one link to each shard of the core: no lock, no thread in between. A link
//! that is lost, or silent for longer than the lease, takes its sessions with it: their devices are
//! handed what they missed when the relay opens them anew.

pub mod door;
pub(crate) mod handshake;
pub(crate) mod packet;
pub(crate) mod virtual_connections;

use parking_lot::Mutex;
use std::{
    io::{self, ErrorKind, Write},
    sync::Arc,
};

/// Bytes waiting on one link. Above: its connections are blocked as if their sockets were full.
const LINK_BYTES_MAX: usize = 16 * 1024 * 1024;
/// A link drained to here lets blocked connections go on.
const LINK_BYTES_LOW: usize = 4 * 1024 * 1024;
/// A larger buffer is given back once it is empty.
const LINK_BUFFER_KEPT: usize = 1024 * 1024;

/// A process of `role = gateway`, for as long as it runs, and one of its threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RelayThread {
    pub node: u32,
    pub thread: u16,
}

/// Packets on their way to the other side.
#[derive(Debug, Default)]
pub(crate) struct LinkOut {
    bytes: Vec<u8>,
    /// How much of `bytes` the kernel has.
    written: usize,
    /// Connections that found the link full.
    pub blocked: Vec<usize>,
}

impl LinkOut {
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() - self.written > LINK_BYTES_MAX
    }

    pub(crate) fn waits(&self) -> usize {
        self.bytes.len() - self.written
    }

    pub(crate) fn put(&mut self, kind: packet::Kind, id: u64, payload: &[u8]) {
        packet::put(&mut self.bytes, kind, id, payload);
    }

    /// Writes what the socket takes. Answers the connections that may go on.
    pub(crate) fn flush(&mut self, socket: &mut impl Write) -> io::Result<Vec<usize>> {
        while self.written < self.bytes.len() {
            match socket.write(&self.bytes[self.written..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.written += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.written == self.bytes.len() {
            self.bytes.clear();
            self.written = 0;
            if self.bytes.capacity() > LINK_BUFFER_KEPT {
                self.bytes = Vec::new();
            }
        } else if self.written > self.bytes.len() / 2 {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
        Ok(if self.waits() <= LINK_BYTES_LOW { std::mem::take(&mut self.blocked) } else { Vec::new() })
    }
}

/// A virtual connection's end of its link.
pub(crate) struct LinkEnd {
    pub out: Arc<Mutex<LinkOut>>,
    pub relay: RelayThread,
    /// The connection's name at the relay.
    pub remote: u64,
    /// The connection's name here, told before the first byte.
    pub session: u64,
    pub announced: bool,
}

impl LinkEnd {
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut out = self.out.lock();
        if out.is_full() {
            out.blocked.push((self.session & u64::from(u32::MAX)) as usize);
            return Err(ErrorKind::WouldBlock.into());
        }
        if !self.announced {
            self.announced = true;
            out.put(packet::Kind::Opened, self.remote, &self.session.to_le_bytes());
        }
        for piece in bytes.chunks(packet::PAYLOAD_BYTES_MAX) {
            out.put(packet::Kind::Data, self.remote, piece);
        }
        Ok(bytes.len())
    }

    /// The relay closes the connection once everything before this is written.
    pub(crate) fn close(&mut self) {
        self.out.lock().put(packet::Kind::Close, self.remote, &[]);
    }
}
