//! Links: sessions of this process whose connections another process holds.
//!
//! ```text
//! device ══ socket ══ relay (role = gateway) ══ packets ══ link ── virtual connection ── shard (core)
//! ```
//! A core's shard serves a virtual connection like one of its own sockets; only the destination of its bytes differs. A
//! link carries packets (open, bytes up, bytes down, close), each of which names one connection, so that any transport
//! of packets between two nodes could replace the TCP links.
//!
//! A relay thread has one link to each shard of each core: no lock and no thread in between. When a link is lost, or silent
//! for longer than the lease, its sessions end; their devices receive what they missed when the relay opens them again.

pub(crate) mod delay;
pub(crate) mod handshake;
pub(crate) mod packet;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::{
    io::{self, ErrorKind, Write},
    sync::Arc,
    time::{Duration, Instant},
};

/// What can wait (a push to many, acknowledgements) is written at most so often to a link, unless so many bytes wait. Beside
/// many links each has a few packets at a time, and a write for them takes both ends longer than all else that they do.
const BATCH_INTERVAL: Duration = Duration::from_millis(10);
const BATCH_BYTES: usize = 16 * 1024;
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

/// What a core says about its cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct SessionNodes {
    /// Where relays attach to this core, as the cluster knows it.
    pub own: String,
    /// The same of every node that takes sessions, this core included if it does.
    pub all: Vec<String>,
}

/// Packets that wait to be sent over a link.
#[derive(Debug, Default)]
pub(crate) struct LinkBuffer {
    bytes: Vec<u8>,
    /// How much of `bytes` the kernel has taken.
    written: usize,
    /// When packets were written last.
    flushed_at: Option<Instant>,
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

    /// When packets that can wait are to be written.
    pub(crate) fn batch_due_at(&self) -> Option<Instant> {
        self.flushed_at.filter(|_| self.pending_bytes() < BATCH_BYTES).map(|at| at + BATCH_INTERVAL)
    }

    /// Whether packets are to be written now; `can_wait`: more may join them.
    pub(crate) fn is_due(&self, can_wait: bool, now: Instant) -> bool {
        self.pending_bytes() > 0 && !(can_wait && self.batch_due_at().is_some_and(|due| now < due))
    }

    /// Writes as much as the socket takes. Answers the connections that may write again.
    pub(crate) fn flush(&mut self, socket: &mut impl Write, now: Instant) -> io::Result<Vec<usize>> {
        self.flushed_at = Some(now);
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
    /// How long it had waited to be opened here.
    pub waited_ms: u32,
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

#[cfg(test)]
mod tests {
    use super::*;
    use packet::PacketKind;

    #[test]
    fn what_can_wait_is_written_at_intervals_or_once_it_is_much() {
        let (mut out, mut socket, began) = (LinkBuffer::default(), Vec::new(), Instant::now());
        assert!(!out.is_due(false, began), "nothing waits");
        out.put(PacketKind::Data, 1, b"first");
        assert!(out.is_due(true, began), "nothing was written lately");
        assert!(matches!(out.flush(&mut socket, began), Ok(blocked) if blocked.is_empty()));
        out.put(PacketKind::Data, 1, b"second");
        assert_eq!((out.is_due(true, began), out.is_due(false, began)), (false, true));
        assert_eq!(out.batch_due_at(), Some(began + BATCH_INTERVAL));
        assert!(out.is_due(true, began + BATCH_INTERVAL));
        out.put(PacketKind::Data, 1, &[0; BATCH_BYTES]);
        assert!(out.is_due(true, began));
    }
}
