//! A shard's links, and the virtual connections behind them.

use super::Shard;
use crate::{
    connection::{Connection, Phase},
    link::{
        LINK_TOKENS, LinkBuffer, RelayThread, SessionNodes, VirtualStream,
        delay::LinkDelay,
        packet::{self, Packet, PacketKind},
    },
    timer_wheel::{TICK, ticks},
    transport::{Protocol, Transport},
};
use mio::{Interest, Token, net::TcpStream};
use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use std::{
    io::ErrorKind,
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_engine::presence::NodeNo;
use tidings_protocol::error::{ErrorCode, Refusal};

/// How often a shard looks which nodes take sessions.
const NODES_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// When a device whose bind has waited for too long connects again, at the earliest.
const LATE_RETRY_MS: u64 = 1_000;
/// Reads of one link before other links have their turn.
const READS_PER_TURN: usize = 4;

pub(super) struct Link {
    socket: TcpStream,
    relay: RelayThread,
    out: Arc<Mutex<LinkBuffer>>,
    /// The received part of an incomplete packet.
    partial: Vec<u8>,
    /// The nodes that take sessions, as the relay was told last. `None`: it is not told.
    nodes_told: Option<Vec<u8>>,
    pub readable: bool,
    delay: LinkDelay,
    last_heard: u32,
    last_sent: u32,
    lease: u32,
}

/// The devices that have left before they were opened, as far as these bytes tell: a shard that is behind often reads both packets
/// at once.
fn those_that_left(bytes: &[u8]) -> FxHashSet<u64> {
    let mut at = 0;
    let packets = std::iter::from_fn(|| {
        let packet = packet::take(&bytes[at..]).ok()??;
        at += packet.payload.end;
        Some(packet)
    });
    packets.filter(|packet| packet.kind == PacketKind::Left).map(|packet| packet.id).collect()
}

/// The refusal of a bind that the core comes to late.
pub(super) fn waited_too_long() -> Refusal {
    let retry_after_ms = LATE_RETRY_MS + rand::random_range(0..=LATE_RETRY_MS);
    Refusal::new(ErrorCode::NodeUnavailable, "the bind has waited for too long; connect again")
        .retry_after(retry_after_ms)
}

impl Shard {
    pub(super) fn adopt_link(
        &mut self,
        socket: std::net::TcpStream,
        (relay, follows_cores): (RelayThread, bool),
        lease: Duration,
        welcome: &[u8],
    ) {
        // The relay has given up its old link, whether or not this shard has noticed: packets on it would be lost.
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
        let mut out = LinkBuffer::default();
        out.put(PacketKind::Welcome, 0, welcome);
        // With the next flush it is told.
        self.next_nodes_check = tick;
        entry.insert(Link {
            socket,
            relay,
            out: Arc::new(Mutex::new(out)),
            partial: Vec::new(),
            nodes_told: follows_cores.then(Vec::new),
            readable: true,
            delay: LinkDelay::default(),
            last_heard: tick,
            last_sent: tick,
            lease: ticks(lease),
        });
    }

    pub(super) fn mark_link_readable(&mut self, index: usize) {
        if let Some(link) = self.links.get_mut(index) {
            link.readable = true;
        }
    }

    /// Reads a bounded amount from each link.
    pub(super) fn read_links(&mut self) {
        for index in 0..self.links.capacity() {
            if self.links.get(index).is_some_and(|link| link.readable) && !self.read_link(index) {
                self.drop_link(index);
            }
        }
    }

    /// Answers whether the link can still be used.
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
            if link.last_heard != tick {
                link.last_heard = tick;
                let lease_ms = u64::from(link.lease) * TICK.as_millis() as u64;
                let engine = &self.parts.engine;
                engine.presence.nodes.renew(NodeNo(link.relay.node), engine.clock.now_ms(), lease_ms);
            }
            let Some(taken) = self.handle_packets(index, &buffer[..end]) else { return false };
            let Some(link) = self.links.get_mut(index) else { return true };
            link.partial = buffer[taken..end].to_vec();
        }
        true
    }

    /// Handles the complete packets and answers how many bytes they were. `None`: the link must be dropped.
    fn handle_packets(&mut self, index: usize, bytes: &[u8]) -> Option<usize> {
        let left = those_that_left(bytes);
        let mut at = 0;
        while let Some(Packet { kind, id, payload }) = packet::take(&bytes[at..]).ok()? {
            let end = at + payload.end;
            if kind != PacketKind::Open || !left.contains(&id) {
                self.handle_packet(index, kind, id, &bytes[at + payload.start..end])?;
            }
            at = end;
        }
        Some(at)
    }

    fn handle_packet(&mut self, index: usize, kind: PacketKind, id: u64, payload: &[u8]) -> Option<()> {
        match kind {
            PacketKind::Open => {
                let (protocol, frames) = payload.split_first()?;
                let protocol = if *protocol == 0 { Protocol::WebSocket } else { Protocol::Miop };
                let now_ms = self.started.elapsed().as_millis() as u64;
                let (relay, waited_ms) = (self.links[index].relay, self.links[index].delay.waited_ms(now_ms));
                let key = self.register_virtual(relay, id, protocol, waited_ms)?;
                if waited_ms < self.parts.config.bind_timeout.as_millis() as u64 {
                    self.handle_virtual_frames(key, frames);
                } else {
                    // The relay has given it up, or is about to: it may be bound elsewhere by now.
                    self.close(key, waited_too_long());
                }
            }
            PacketKind::Data => {
                let Some(key) = self.find_virtual(index, id) else { return Some(()) };
                let tick = self.tick();
                let connection = &mut self.connections[key];
                (connection.last_heard, connection.unconfirmed) = (tick, None);
                self.handle_virtual_frames(key, payload);
            }
            PacketKind::Closed => {
                if let Some(key) = self.find_virtual(index, id) {
                    self.remove(key);
                }
            }
            PacketKind::Sessions => self.receive_session_list(index, id, payload),
            PacketKind::Ping if id != 0 => {
                let now_ms = self.started.elapsed().as_millis() as u64;
                self.links[index].delay.note(id, now_ms);
            }
            PacketKind::Ping | PacketKind::Left => {}
            _ => return None,
        }
        Some(())
    }

    /// Handles whole frames of a virtual connection.
    fn handle_virtual_frames(&mut self, key: usize, frames: &[u8]) {
        match self.connections[key].protocol {
            Protocol::Miop => drop(self.handle_miop_frames(key, frames)),
            // Frames are unmasked in place.
            Protocol::WebSocket | Protocol::EventStream(_) => self.handle_bytes(key, frames.to_vec()),
        }
    }

    /// The key of a session behind this link: a relay may speak for its own connections only.
    fn find_virtual(&self, index: usize, session: u64) -> Option<usize> {
        let link = &self.links[index];
        self.find(session)
            .filter(|key| matches!(&self.connections[*key].transport, Transport::Link(end) if end.relay == link.relay))
    }

    /// Registers a connection behind the relay thread's link to this shard, if the link exists.
    pub(super) fn register_virtual(
        &mut self,
        relay: RelayThread,
        remote: u64,
        protocol: Protocol,
        waited_ms: u64,
    ) -> Option<usize> {
        let (_, link) = self.links.iter().find(|(_, link)| link.relay == relay)?;
        let out = link.out.clone();
        let tick = self.tick();
        self.generation += 1;
        let entry = self.connections.vacant_entry();
        let key = entry.key();
        let session = (self.generation << 32) | key as u64;
        let waited_ms = u32::try_from(waited_ms).unwrap_or(u32::MAX);
        let end = VirtualStream { out, relay, remote, session, announced: false, waited_ms };
        entry.insert(Connection::new(Transport::Link(Box::new(end)), protocol, session, tick));
        self.parts.engine.metrics.connections.inc();
        if self.draining {
            self.close(key, Refusal::new(ErrorCode::Draining, "the server is draining"));
        }
        Some(key)
    }

    /// Writes waiting packets, pings on links that have been idle, and drops links that are silent.
    pub(super) fn flush_links(&mut self) {
        let was_urgent = self.scheduler.take_was_urgent();
        if self.links.is_empty() {
            return;
        }
        // A scan visits its sessions in the order of their keys, and so a few of each link in a turn.
        let can_wait = self.push_scan.is_some() && !was_urgent;
        let now = Instant::now();
        let tick = self.tick();
        let mut lost = Vec::new();
        let mut unblocked = Vec::new();
        let nodes = self.session_nodes(tick);
        for (index, link) in &mut self.links {
            let mut out = link.out.lock();
            if let (Some(nodes), Some(told)) = (&nodes, &mut link.nodes_told)
                && told != nodes
            {
                told.clone_from(nodes);
                out.put(PacketKind::SessionNodes, 0, nodes);
            }
            if tick >= link.last_sent + (link.lease / 3).max(1) {
                out.put(PacketKind::Ping, 0, &[]);
            }
            if out.is_due(can_wait, now) {
                link.last_sent = tick;
                match out.flush(&mut link.socket, now) {
                    Ok(keys) => unblocked.extend(keys),
                    Err(_) => lost.push(index),
                }
            }
            if tick > link.last_heard + link.lease {
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
                self.scheduler.flush_soon(connection, key);
            }
        }
        for index in lost {
            self.drop_link(index);
        }
    }

    /// Which nodes take sessions, for relays, when it is time to look. `None` also where no other node could be attached to.
    fn session_nodes(&mut self, tick: u32) -> Option<Vec<u8>> {
        if tick < self.next_nodes_check {
            return None;
        }
        self.next_nodes_check = tick + ticks(NODES_CHECK_INTERVAL);
        let (own, all) = self.parts.engine.cluster.as_ref()?.nodes.session_links()?;
        postcard::to_stdvec(&SessionNodes { own, all }).ok()
    }

    /// Whether a link has bytes to read.
    pub(super) fn has_readable_links(&self) -> bool {
        self.links.iter().any(|(_, link)| link.readable)
    }

    /// Sends a request on every link; answers their indexes.
    pub(super) fn send_to_all_links(&mut self, kind: PacketKind, request: u64) -> Vec<usize> {
        self.links.iter().for_each(|(_, link)| link.out.lock().put(kind, request, &[]));
        self.links.iter().map(|(index, _)| index).collect()
    }

    pub(super) fn send_to_link(&mut self, index: usize, kind: PacketKind, id: u64) {
        if let Some(link) = self.links.get(index) {
            link.out.lock().put(kind, id, &[]);
        }
    }

    pub(super) fn drop_links_of(&mut self, node: u32) {
        let lost: Vec<usize> =
            self.links.iter().filter(|(_, link)| link.relay.node == node).map(|(index, _)| index).collect();
        for index in lost {
            self.drop_link(index);
        }
    }

    /// Drops a link and removes its sessions: their clients cannot be reached any more.
    fn drop_link(&mut self, index: usize) {
        let Some(mut link) = self.links.try_remove(index) else { return };
        self.drop_from_listings(index);
        let _ = self.parts.poll.registry().deregister(&mut link.socket);
        let behind = |connection: &Connection| matches!(&connection.transport, Transport::Link(end) if Arc::ptr_eq(&end.out, &link.out));
        let keys: Vec<usize> =
            self.connections.iter().filter(|(_, connection)| behind(connection)).map(|(key, _)| key).collect();
        tracing::info!(node = link.relay.node, sessions = keys.len(), "a link is gone");
        for key in keys {
            self.remove(key);
        }
    }

    /// A closing virtual connection is removed when its last bytes are on the link.
    pub(super) fn finish_virtual(&mut self, key: usize) {
        if self.connections[key].phase == Phase::Closing {
            self.remove(key);
        }
    }
}
