//! Links: sessions of this process whose connections another process holds.
//!
//! ```text
//! device ══ socket ══ relay (role = gateway) ══ packets ══ link ── virtual connection ── shard (core)
//! ```
//! A core's shard serves a virtual connection like one of its own sockets; only the destination of its bytes differs. A
//! link carries packets (open, bytes up, bytes down, close), each of which names one connection, so that any transport
//! of packets between two nodes could replace the TCP links.
//!
//! A relay thread has one link to each shard of the core: no lock and no thread in between. When a link is lost, or silent
//! for longer than the lease, its sessions end; their devices receive what they missed when the relay opens them again.

pub(crate) mod handshake;
pub(crate) mod packet;

use parking_lot::Mutex;
use std::{
    io::{self, ErrorKind, Write},
    sync::Arc,
};

/// Bytes that may wait on one link. Above: its connections are blocked as if their sockets were full.
const LINK_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Below this many waiting bytes, blocked connections may write again.
const LINK_BYTES_LOW: usize = 4 * 1024 * 1024;
/// A larger buffer is freed once it is empty.
const LINK_BUFFER_KEPT: usize = 1024 * 1024;

/// Poll tokens from here on belong to links, those below to connections.
pub(crate) const LINK_TOKENS: usize = usize::MAX / 2;

/// One thread of a relay process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RelayThread {
    pub node: u32,
    pub thread: u16,
}

/// Packets that wait to be sent over a link.
#[derive(Debug, Default)]
pub(crate) struct LinkBuffer {
    bytes: Vec<u8>,
    /// How much of `bytes` the kernel has taken.
    written: usize,
    /// Keys of connections that found the link full.
    pub blocked: Vec<usize>,
}

impl LinkBuffer {
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() - self.written > LINK_BYTES_MAX
    }

    pub(crate) fn pending_bytes(&self) -> usize {
        self.bytes.len() - self.written
    }

    pub(crate) fn put(&mut self, kind: packet::PacketKind, id: u64, payload: &[u8]) {
        packet::put(&mut self.bytes, kind, id, payload);
    }

    /// Writes as much as the socket takes. Answers the connections that may write again.
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
        Ok(if self.pending_bytes() <= LINK_BYTES_LOW { std::mem::take(&mut self.blocked) } else { Vec::new() })
    }
}

/// The transport of a virtual connection: it writes packets to its link.
pub(crate) struct VirtualStream {
    pub out: Arc<Mutex<LinkBuffer>>,
    pub relay: RelayThread,
    /// The connection's id at the relay.
    pub remote: u64,
    /// The connection's id here, which is announced to the relay before the first byte.
    pub session: u64,
    pub announced: bool,
}

impl VirtualStream {
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut out = self.out.lock();
        if out.is_full() {
            out.blocked.push((self.session & u64::from(u32::MAX)) as usize);
            return Err(ErrorKind::WouldBlock.into());
        }
        if !self.announced {
            self.announced = true;
            out.put(packet::PacketKind::Opened, self.remote, &self.session.to_le_bytes());
        }
        for chunk in bytes.chunks(packet::PAYLOAD_BYTES_MAX) {
            out.put(packet::PacketKind::Data, self.remote, chunk);
        }
        Ok(bytes.len())
    }

    /// Has the relay close the connection once all earlier bytes are written.
    pub(crate) fn close(&mut self) {
        self.out.lock().put(packet::PacketKind::Close, self.remote, &[]);
    }
}
