//! A shard's links, and the connections behind them.

use super::{
    LinkEnd, LinkOut, RelayThread,
    packet::{self, Kind, Packet},
};
use crate::{
    connection::{Connection, Phase},
    shard::{Shard, TICK, ticks},
    transport::{Door, Transport},
};
use mio::{Interest, Token, net::TcpStream};
use parking_lot::Mutex;
use std::{io::ErrorKind, sync::Arc, time::Duration};
use tidings_engine::presence::NodeNo;
use tidings_protocol::error::{ErrorCode, Refusal};

/// Tokens from here on are links', below are connections'.
pub(crate) const LINK_TOKENS: usize = usize::MAX / 2;
/// Reads of one link before others have their turn.
const READS_PER_TURN: usize = 4;
/// Bytes of a session that wait while something before them is done.
const WAITING_BYTES_MAX: usize = 1024 * 1024;

pub(crate) struct Link {
    socket: TcpStream,
    relay: RelayThread,
    out: Arc<Mutex<LinkOut>>,
    /// The head of a packet that has not come whole.
    partial: Vec<u8>,
    pub readable: bool,
    heard: u32,
    said: u32,
    lease: u32,
}

impl Shard {
    pub(crate) fn adopt_link(
        &mut self,
        socket: std::net::TcpStream,
        relay: RelayThread,
        lease: Duration,
        welcome: &[u8],
    ) {
        // It has just gone to another node.
        if !self.parts.engine.push.is_leader() {
            return;
        }
        // The relay has given the old one up, whether or not we have heard of it: what it is told there is lost.
        let old = self.links.iter().find(|(_, link)| link.relay == relay).map(|(index, _)| index);
        if let Some(old) = old {
            self.drop_link(old);
        }
        let tick = self.tick();
        let entry = self.links.vacant_entry();
        let token = Token(LINK_TOKENS + entry.key());
        let prepared = socket.set_nonblocking(true);
        let mut socket = TcpStream::from_std(socket);
        let interest = Interest::READABLE | Interest::WRITABLE;

        if let Err(error) = prepared.and_then(|()| self.parts.poll.registry().register(&mut socket, token, interest)) {
            tracing::warn!(%error, "a link could not be registered");
            return;
        }
        let mut out = LinkOut::default();
        out.put(Kind::Welcome, 0, welcome);
        entry.insert(Link {
            socket,
            relay,
            out: Arc::new(Mutex::new(out)),
            partial: Vec::new(),
            readable: true,
            heard: tick,
            said: tick,
            lease: ticks(lease),
        });
    }

    pub(crate) fn link_event(&mut self, index: usize) {
        if let Some(link) = self.links.get_mut(index) {
            link.readable = true;
        }
    }

    /// A piece of what has come on each link.
    pub(crate) fn read_links(&mut self) {
        for index in 0..self.links.capacity() {
            if self.links.get(index).is_some_and(|link| link.readable) && !self.read_link(index) {
                self.drop_link(index);
            }
        }
    }

    /// Answers whether the link is still good.
    fn read_link(&mut self, index: usize) -> bool {
        let mut buffer = std::mem::take(&mut self.read_buffer);
        let good = self.read_link_into(index, &mut buffer);
        self.read_buffer = buffer;
        good
    }

    fn read_link_into(&mut self, index: usize, buffer: &mut [u8]) -> bool {
        let tick = self.tick();
        for _ in 0..READS_PER_TURN {
            let link = &mut self.links[index];
            let end = match packet::read(&mut link.socket, &mut link.partial, buffer) {
                Ok(end) => end,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    link.readable = false;
                    return true;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return false,
            };
            if link.heard != tick {
                link.heard = tick;
                let lease_ms = u64::from(link.lease) * TICK.as_millis() as u64;
                let engine = &self.parts.engine;
                engine.presence.nodes.renew(NodeNo(link.relay.node), engine.clock.now_ms(), lease_ms);
            }
            let Some(taken) = self.take_packets(index, &buffer[..end]) else { return false };
            let Some(link) = self.links.get_mut(index) else { return true };
            link.partial = buffer[taken..end].to_vec();
        }
        true
    }

    /// Takes the packets that have come whole; answers how many bytes they were.
    fn take_packets(&mut self, index: usize, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while let Some(Packet { kind, id, payload }) = packet::take(&bytes[at..]).ok()? {
            let end = at + payload.end;
            self.take_packet(index, kind, id, &bytes[at + payload.start..end])?;
            at = end;
        }
        Some(at)
    }

    fn take_packet(&mut self, index: usize, kind: Kind, id: u64, payload: &[u8]) -> Option<()> {
        match kind {
            Kind::Open => {
                let (door, frames) = payload.split_first()?;
                let door = if *door == 0 { Door::WebSocket } else { Door::Miop };
                let key = self.register_virtual(self.links[index].relay, id, door)?;
                self.take_frames_of(key, frames);
            }
            Kind::Data => {
                let Some(key) = self.find_virtual(index, id) else { return Some(()) };
                let tick = self.tick();
                let connection = &mut self.connections[key];
                (connection.heard, connection.unheard) = (tick, None);
                if !connection.paused && connection.partial.is_empty() {
                    self.take_frames_of(key, payload);
                } else if connection.partial.len() + payload.len() <= WAITING_BYTES_MAX {
                    connection.partial.extend_from_slice(payload);
                } else {
                    self.close(key, Refusal::new(ErrorCode::RateLimited, "too much was sent before an answer"));
                }
            }
            Kind::Closed => {
                if let Some(key) = self.find_virtual(index, id) {
                    self.remove(key);
                }
            }
            Kind::Sessions => self.hear_sessions(index, id, payload),
            Kind::Ping => {}
            _ => return None,
        }
        Some(())
    }

    /// Whole frames of a virtual connection.
    fn take_frames_of(&mut self, key: usize, frames: &[u8]) {
        match self.connections[key].door {
            Door::Miop => drop(self.take_miop_frames(key, frames)),
            // Unmasking happens in place.
            Door::WebSocket => self.take_bytes(key, frames.to_vec()),
        }
    }

    /// A session that is still here, and behind this link: a relay speaks for its own connections only.
    fn find_virtual(&self, index: usize, session: u64) -> Option<usize> {
        let link = &self.links[index];
        self.find(session)
            .filter(|key| matches!(&self.connections[*key].transport, Transport::Link(end) if end.relay == link.relay))
    }

    /// A connection behind a relay's link to this shard, if there is one.
    pub(crate) fn register_virtual(&mut self, relay: RelayThread, remote: u64, door: Door) -> Option<usize> {
        let (_, link) = self.links.iter().find(|(_, link)| link.relay == relay)?;
        let out = link.out.clone();
        let tick = self.tick();
        self.generation += 1;
        let entry = self.connections.vacant_entry();
        let key = entry.key();
        let session = (self.generation << 32) | key as u64;
        let end = LinkEnd { out, relay, remote, session, announced: false };
        entry.insert(Connection::new(Transport::Link(Box::new(end)), door, session, tick));
        self.parts.engine.metrics.connections.inc();
        if self.draining {
            self.close(key, Refusal::new(ErrorCode::Draining, "the server is draining"));
        }
        Some(key)
    }

    /// Writes what waits, speaks where nothing else was said, and gives up who is silent.
    pub(crate) fn serve_links(&mut self) {
        if self.links.is_empty() {
            return;
        }
        let tick = self.tick();
        let mut lost = Vec::new();
        let mut unblocked = Vec::new();
        for (index, link) in &mut self.links {
            let mut out = link.out.lock();
            if tick >= link.said + (link.lease / 3).max(1) {
                out.put(Kind::Ping, 0, &[]);
            }
            if out.waits() > 0 {
                link.said = tick;
                match out.flush(&mut link.socket) {
                    Ok(keys) => unblocked.extend(keys),
                    Err(_) => lost.push(index),
                }
            }
            if tick > link.heard + link.lease {
                tracing::warn!(
                    node = link.relay.node,
                    silent_ms = u64::from(link.lease) * TICK.as_millis() as u64,
                    "a link is silent"
                );
                lost.push(index);
            }
        }
        for key in unblocked {
            if let Some(connection) = self.connections.get_mut(key).filter(|connection| connection.blocked) {
                connection.blocked = false;
                self.schedule.flush_soon(connection, key);
            }
        }
        for index in lost {
            self.drop_link(index);
        }
    }

    /// Whether a link needs a turn now.
    pub(crate) fn links_wait(&self) -> bool {
        self.links.iter().any(|(_, link)| link.readable)
    }

    /// Puts a question to every link; answers which.
    pub(crate) fn ask_links(&mut self, kind: Kind, question: u64) -> Vec<usize> {
        self.links.iter().for_each(|(_, link)| link.out.lock().put(kind, question, &[]));
        self.links.iter().map(|(index, _)| index).collect()
    }

    pub(crate) fn tell_link(&mut self, index: usize, kind: Kind, id: u64) {
        if let Some(link) = self.links.get(index) {
            link.out.lock().put(kind, id, &[]);
        }
    }

    pub(crate) fn drop_links_of(&mut self, node: u32) {
        let lost: Vec<usize> =
            self.links.iter().filter(|(_, link)| link.relay.node == node).map(|(index, _)| index).collect();
        for index in lost {
            self.drop_link(index);
        }
    }

    pub(crate) fn drop_all_links(&mut self) {
        let all: Vec<usize> = self.links.iter().map(|(index, _)| index).collect();
        for index in all {
            self.drop_link(index);
        }
    }

    /// A link's sessions end with it: nobody could hear them.
    fn drop_link(&mut self, index: usize) {
        let Some(mut link) = self.links.try_remove(index) else { return };
        self.await_no_more(index);
        let _ = self.parts.poll.registry().deregister(&mut link.socket);
        let behind = |connection: &Connection| matches!(&connection.transport, Transport::Link(end) if Arc::ptr_eq(&end.out, &link.out));
        let keys: Vec<usize> =
            self.connections.iter().filter(|(_, connection)| behind(connection)).map(|(key, _)| key).collect();
        tracing::info!(node = link.relay.node, sessions = keys.len(), "a link is gone");
        for key in keys {
            self.remove(key);
        }
    }

    /// A virtual connection is done when its last bytes are on the link.
    pub(crate) fn end_virtual(&mut self, key: usize) {
        if self.connections[key].phase == Phase::Closing {
            self.remove(key);
        }
    }
}
