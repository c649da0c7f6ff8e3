//! The side of the core: the links, and the packets that come on them.

use super::{RECONNECT_SPREAD_MS, RelayLoop};
use crate::{
    link::{
        LINK_TOKENS,
        packet::{self, Packet, PacketKind},
    },
    relay::{
        device_connection::{DeviceConnection, Phase},
        upstream::Upstream,
    },
    timer_wheel::ticks,
};
use mio::Token;
use std::{
    hash::BuildHasher,
    io,
    net::TcpStream,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};
use tidings_protocol::miop::{Frame, decode, take_head};

/// Devices bound again in a turn, after the core came back.
const REOPENED_PER_TURN: usize = 256;
/// How often the relay checks whether the core has moved.
const CORE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl RelayLoop {
    /// Leaves a core that has handed its work to another one, in case that core does not close the links itself.
    pub(super) fn follow_core(&mut self) {
        let tick = self.tick();
        if !self.is_attached || tick < self.next_core_check {
            return;
        }
        self.next_core_check = tick + ticks(CORE_CHECK_INTERVAL);
        if self.attacher.config.cores.has_moved(&self.core) {
            tracing::info!(core = self.core, "the core has moved");
            self.lose_core();
        }
    }

    pub(super) fn attached(&mut self, core: String, links: Vec<TcpStream>, lease: Duration) {
        let tick = self.tick();
        for (index, socket) in links.into_iter().enumerate() {
            match Upstream::register(socket, self.poll.registry(), Token(LINK_TOKENS + index), lease, tick) {
                Ok(upstream) => self.upstreams.push(upstream),
                Err(error) => {
                    tracing::warn!(%error, "a link could not be registered");
                    return self.lose_core();
                }
            }
        }
        tracing::info!(links = self.upstreams.len(), core, "attached to the core");
        (self.is_attached, self.core) = (true, core);
        self.shared.attached.fetch_add(1, Ordering::AcqRel);
        self.reopen = self.devices.iter().filter(|(_, d)| d.phase == Phase::Detached).map(|(key, _)| key).collect();
    }

    /// A link is lost: the core is away, or has dropped this relay.
    fn lose_core(&mut self) {
        for upstream in &mut self.upstreams {
            upstream.deregister(self.poll.registry());
        }
        if std::mem::take(&mut self.is_attached) {
            self.away_since = self.tick();
            self.shared.attached.fetch_sub(1, Ordering::AcqRel);
        }
        self.upstreams.clear();
        self.reopen.clear();
        let keys: Vec<usize> = self.devices.iter().map(|(key, _)| key).collect();
        for key in keys {
            let device = &mut self.devices[key];
            device.session = None;
            match device.phase {
                Phase::Live | Phase::Reopening if device.bind.is_some() => device.phase = Phase::Detached,
                Phase::Unbound | Phase::Closing | Phase::Detached => {}
                Phase::Opening | Phase::Live | Phase::Reopening => {
                    let after_ms = rand::random_range(0..=RECONNECT_SPREAD_MS);
                    self.redirect(key, after_ms, "the core is away");
                }
            }
        }
        if !self.stopping {
            self.attacher.begin();
        }
    }

    /// Sends the binds of some devices that stayed while the core was away.
    pub(super) fn reopen_devices(&mut self) {
        if self.upstreams.is_empty() || self.is_congested() {
            return;
        }
        let tick = self.tick();
        for _ in 0..REOPENED_PER_TURN {
            let Some(key) = self.reopen.pop_front() else { return };
            let Some(device) = self.devices.get_mut(key).filter(|device| device.phase == Phase::Detached) else {
                continue;
            };
            let Some(bind) = device.bind.take() else { continue };
            device.phase = Phase::Reopening;
            device.last_heard = tick;
            self.open_upstream(key, &bind);
            self.devices[key].bind = Some(bind);
            self.arm_timer(key, tick + ticks(self.config.bind_timeout));
        }
    }

    pub(super) fn read_upstreams(&mut self) {
        for index in 0..self.upstreams.len() {
            if !self.upstreams.get(index).is_some_and(|upstream| upstream.readable) {
                continue;
            }
            let tick = self.tick();
            let mut buffer = std::mem::take(&mut self.read_buffer);
            let read = self.upstreams[index].read(tick, &mut buffer);
            let read = read.and_then(|end| self.handle_packets(index, &buffer[..end]));
            self.read_buffer = buffer;
            if let Err(error) = read {
                tracing::warn!(%error, "the link to the core is lost");
                return self.lose_core();
            }
        }
    }

    fn handle_packets(&mut self, index: usize, bytes: &[u8]) -> io::Result<()> {
        let mut at = 0;
        while let Some(Packet { kind, id, payload }) = packet::take(&bytes[at..]).map_err(io::Error::other)? {
            self.handle_packet(index, kind, id, &bytes[at + payload.start..at + payload.end]);
            at += payload.end;
        }
        if at < bytes.len() {
            self.upstreams[index].keep(&bytes[at..]);
        }
        Ok(())
    }

    fn handle_packet(&mut self, index: usize, kind: PacketKind, id: u64, payload: &[u8]) {
        let key = (id & u64::from(u32::MAX)) as usize;
        let is_here = self.devices.get(key).is_some_and(|device| device.id == id);
        match kind {
            PacketKind::Opened => {
                let Ok(session) = payload.try_into().map(u64::from_le_bytes) else { return };
                if is_here {
                    let device = &mut self.devices[key];
                    (device.session, device.upstream_index) = (Some(session), index as u16);
                } else {
                    // The device disconnected while its bind was with the core.
                    self.upstreams[index].put(PacketKind::Closed, session, &[]);
                }
            }
            PacketKind::Data if is_here => self.handle_data(key, payload),
            PacketKind::Close if is_here => self.finish(key),
            PacketKind::ListSessions => self.list_sessions(index, id),
            PacketKind::UnknownSession => self.redirect_unknown(index, id),
            _ => {}
        }
    }

    /// Bytes for a device. The first of them are its `bound` or a refusal.
    fn handle_data(&mut self, key: usize, bytes: &[u8]) {
        let phase = self.devices[key].phase;
        if phase == Phase::Closing {
            // Bytes that the core sent before it knew of the closing must not follow the last frame.
            return;
        }
        let mut bytes = bytes;
        if matches!(phase, Phase::Opening | Phase::Reopening)
            && let Ok(Some(head)) = take_head(bytes, usize::MAX)
            && let Ok(Frame::Bound(bound)) = decode(head.kind, &bytes[head.payload.clone()])
        {
            let device = &mut self.devices[key];
            (device.phase, device.unbound) = (Phase::Live, None);
            // Which user it is does not matter here, only that it is the same one.
            device.user = self.shared.hasher.hash_one(bound.user).max(1);
            self.set_heartbeat(key, (bound.heartbeat_s as u32).saturating_mul(1_000));
            if phase == Phase::Opening {
                self.shared.bound.fetch_add(1, Ordering::Relaxed);
            } else {
                bytes = &bytes[head.payload.end..];
            }
        }
        if !bytes.is_empty() {
            self.write(key, bytes);
        }
        if phase == Phase::Opening && self.devices.get(key).is_some_and(|device| device.phase == Phase::Live) {
            let waiting = std::mem::take(&mut self.devices[key].partial);
            self.handle_frames(key, &waiting);
            if let Some(device) = self.devices.get_mut(key).filter(|device| !device.readable) {
                device.readable = true;
                self.readable.push_back(key);
            }
        }
    }

    /// The core does not know this session: its device must connect again.
    fn redirect_unknown(&mut self, index: usize, session: u64) {
        let is_session = |d: &DeviceConnection| d.session == Some(session) && usize::from(d.upstream_index) == index;
        let found = self.devices.iter().find(|(_, device)| is_session(device)).map(|(key, _)| key);
        if let Some(key) = found {
            self.redirect(key, rand::random_range(0..=RECONNECT_SPREAD_MS), "the core does not know it");
        }
    }

    /// Sends the core the ids of the live sessions of one link.
    fn list_sessions(&mut self, index: usize, request: u64) {
        let mut sessions = Vec::new();
        for (_, device) in self.devices.iter() {
            if let (Phase::Live, Some(session)) = (device.phase, device.session)
                && usize::from(device.upstream_index) == index
            {
                sessions.extend_from_slice(&session.to_le_bytes());
            }
        }
        let upstream = &mut self.upstreams[index];
        for chunk in sessions.chunks(packet::PAYLOAD_BYTES_MAX / 8 * 8) {
            upstream.put(PacketKind::Sessions, request, chunk);
        }
        upstream.put(PacketKind::Sessions, request, &[]);
    }

    pub(super) fn flush_upstreams(&mut self) {
        let (tick, now) = (self.tick(), Instant::now());
        let flushed: io::Result<()> = self.upstreams.iter_mut().try_for_each(|upstream| upstream.flush(tick, now));
        if let Err(error) = flushed {
            tracing::warn!(%error, "the link to the core is lost");
            self.lose_core();
        }
    }
}
