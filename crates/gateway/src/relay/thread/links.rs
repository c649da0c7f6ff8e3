//! The side of the cores: the links, and the packets that come on them.

use super::{LinkPlace, RECONNECT_SPREAD_MS, RelayLoop};
use crate::{
    link::packet::{self, Packet, PacketKind},
    relay::{
        attach::Links,
        device_connection::{DeviceConnection, Phase},
        upstream::Upstream,
    },
    timer_wheel::ticks,
};
use std::{
    hash::BuildHasher,
    io,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};
use tidings_protocol::miop::{Frame, decode, take_head};

/// Devices bound again in a turn, after their core went away.
const REOPENED_PER_TURN: usize = 256;
/// How often the thread looks for cores to attach to, and for devices to move.
const CORE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a core is left alone after no device of it could move.
const NO_MOVES_FOR: Duration = Duration::from_secs(30);
/// After what time a device is offered to a core again that could not take it.
const REOPEN_AFTER: Duration = Duration::from_secs(1);
/// Devices that move to another core at each look.
const MOVED_PER_CHECK: usize = 64;

impl RelayLoop {
    /// Attaches to the cores that it is to be attached to, and evens out their devices.
    pub(super) fn follow_cores(&mut self) {
        let tick = self.tick();
        if tick < self.next_core_check || self.draining {
            return;
        }
        self.next_core_check = tick + ticks(CORE_CHECK_INTERVAL);
        for (core, goes_on) in self.cores.begin_attempts() {
            self.attacher.begin(core, goes_on);
        }
        if let Some((core, leaving)) = self.cores.overfull(tick)
            && !self.move_devices(core, leaving.min(MOVED_PER_CHECK))
        {
            self.cores.list[core].stays_until = tick + ticks(NO_MOVES_FOR);
        }
    }

    pub(super) fn attached(&mut self, core: &str, Links { address, sockets, lease }: Links) {
        let tick = self.tick();
        // The place is gone if the core was not wanted any more when its links came.
        let Some(place) = self.cores.find(core).filter(|place| self.cores.list[*place].links.is_empty()) else {
            self.attacher.attached.lock().remove(&address);
            return;
        };
        self.cores.list[place].end_attempt();
        self.cores.list[place].peer = Some(address);
        for (link, socket) in sockets.into_iter().enumerate() {
            match Upstream::register(socket, self.poll.registry(), LinkPlace::token(place, link), lease, tick) {
                Ok(upstream) => self.cores.list[place].links.push(upstream),
                Err(error) => {
                    tracing::warn!(%error, "a link could not be registered");
                    return self.lose_core(place);
                }
            }
        }
        tracing::info!(links = self.cores.list[place].links.len(), core, "attached to a core");
        self.cores.list[place].is_attached = true;
        self.shared.attachments.fetch_add(1, Ordering::AcqRel);
        if !std::mem::replace(&mut self.is_attached, true) {
            self.shared.attached.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// A link is lost: the core is away, or has dropped this relay.
    fn lose_core(&mut self, place: usize) {
        let core = &mut self.cores.list[place];
        if let Some(peer) = core.peer.take() {
            self.attacher.attached.lock().remove(&peer);
        }
        core.names_nodes = false;
        if std::mem::take(&mut core.is_attached) {
            self.shared.attachments.fetch_sub(1, Ordering::AcqRel);
        }
        for mut upstream in core.links.drain(..) {
            upstream.deregister(self.poll.registry());
        }
        self.readable.extend(core.waiting.drain(..));
        if !self.cores.any_attached() && std::mem::take(&mut self.is_attached) {
            self.away_since = self.tick();
            self.shared.attached.fetch_sub(1, Ordering::AcqRel);
        }
        let is_there = |device: &DeviceConnection| device.core == Some(place as u16);
        let keys: Vec<usize> = self.devices.iter().filter(|(_, device)| is_there(device)).map(|(key, _)| key).collect();
        for key in keys {
            match self.devices[key].phase {
                Phase::Live | Phase::Reopening if self.can_move(key) => self.detach(key),
                Phase::Unbound | Phase::Closing | Phase::Detached => {}
                Phase::Opening | Phase::Live | Phase::Reopening => {
                    let after_ms = rand::random_range(0..=RECONNECT_SPREAD_MS);
                    self.redirect(key, after_ms, "the core is away");
                }
            }
        }
        self.next_core_check = 0;
    }

    /// The device leaves its core, and is bound again at another one, or at the same once it is back.
    fn detach(&mut self, key: usize) {
        self.detach_until(key, self.tick());
    }

    /// The same where a core could not take the device now: the next attempt is made a moment later.
    pub(super) fn detach_for_a_while(&mut self, key: usize) {
        self.detach_until(key, self.tick() + ticks(REOPEN_AFTER));
    }

    fn detach_until(&mut self, key: usize, tick: u32) {
        self.leave_core(key);
        self.renew_id(key);
        let device = &mut self.devices[key];
        device.phase = Phase::Detached;
        // It may wait for the core that it leaves to catch up.
        if device.readable {
            self.readable.push_back(key);
        }
        self.arm_heartbeat(key);
        match tick > self.tick() {
            true => self.reopen_later.push_back((tick, key)),
            false => self.reopen.push_back(key),
        }
    }

    /// Whether the device can go on at another core: it wants pushes alone, and has whole frames.
    fn can_move(&self, key: usize) -> bool {
        self.devices.get(key).is_some_and(|device| device.bind.is_some() && !device.within_frame)
    }

    /// Has some devices leave a core for another one. Answers whether any could.
    fn move_devices(&mut self, from: usize, mut count: usize) -> bool {
        let end = self.devices.keys_end();
        let mut any = false;
        for _ in 0..end {
            if count == 0 {
                break;
            }
            let key = self.next_to_move % end;
            self.next_to_move = key + 1;
            let device = self.devices.get(key);
            let is_there = device.is_some_and(|device| device.phase == Phase::Live && device.core == Some(from as u16));
            if is_there && self.can_move(key) {
                self.detach(key);
                any = true;
                count -= 1;
            }
        }
        any
    }

    /// Sends the binds of some devices that have no core.
    pub(super) fn reopen_devices(&mut self) {
        let tick = self.tick();
        let due = self.reopen_later.iter().take_while(|(due, _)| *due <= tick).count();
        self.reopen.extend(self.reopen_later.drain(..due).map(|(_, key)| key));
        for _ in 0..REOPENED_PER_TURN.min(self.reopen.len()) {
            let Some(core) = self.cores.next(tick) else { return };
            let Some(key) = self.reopen.pop_front() else { return };
            let Some(device) = self.devices.get_mut(key).filter(|device| device.phase == Phase::Detached) else {
                continue;
            };
            let Some(bind) = device.bind.take() else { continue };
            device.phase = Phase::Reopening;
            device.last_heard = tick;
            self.open_at(core, key, &bind);
            self.devices[key].bind = Some(bind);
            self.arm_timer(key, tick + ticks(self.config.bind_timeout));
        }
    }

    pub(super) fn read_upstreams(&mut self) {
        for place in 0..self.cores.list.len() {
            for link in 0..self.cores.list[place].links.len() {
                if let Err(error) = self.read_upstream(place, link) {
                    tracing::warn!(%error, core = self.cores.list[place].address, "a link to a core is lost");
                    self.lose_core(place);
                    break;
                }
            }
        }
    }

    fn read_upstream(&mut self, place: usize, link: usize) -> io::Result<()> {
        let tick = self.tick();
        // A packet of an earlier link may have ended this one.
        let Some(upstream) = self.cores.list[place].links.get_mut(link).filter(|upstream| upstream.readable) else {
            return Ok(());
        };
        let mut buffer = std::mem::take(&mut self.read_buffer);
        let read = upstream.read(tick, &mut buffer);
        let read = read.and_then(|end| self.handle_packets(place, link, &buffer[..end]));
        self.read_buffer = buffer;
        read
    }

    fn handle_packets(&mut self, place: usize, link: usize, bytes: &[u8]) -> io::Result<()> {
        let mut at = 0;
        while let Some(Packet { kind, id, payload }) = packet::take(&bytes[at..]).map_err(io::Error::other)? {
            self.handle_packet(place, link, kind, id, &bytes[at + payload.start..at + payload.end]);
            at += payload.end;
        }
        if at < bytes.len()
            && let Some(upstream) = self.cores.list[place].links.get_mut(link)
        {
            upstream.keep(&bytes[at..]);
        }
        Ok(())
    }

    fn handle_packet(&mut self, place: usize, link: usize, kind: PacketKind, id: u64, payload: &[u8]) {
        let key = (id & u64::from(u32::MAX)) as usize;
        let is_here = self.devices.get(key).is_some_and(|device| device.id == id);
        match kind {
            PacketKind::Opened => {
                let Ok(session) = payload.try_into().map(u64::from_le_bytes) else { return };
                if is_here && self.devices[key].core == Some(place as u16) {
                    let device = &mut self.devices[key];
                    (device.session, device.upstream_index) = (Some(session), link as u16);
                } else if let Some(upstream) = self.cores.list[place].links.get_mut(link) {
                    // The device has disconnected, is being closed or was opened elsewhere while its bind was with the core.
                    upstream.put(PacketKind::Closed, session, &[]);
                }
            }
            PacketKind::Data if is_here => self.handle_data(key, payload),
            PacketKind::Close if is_here => self.finish(key),
            PacketKind::ListSessions => self.list_sessions(place, link, id),
            PacketKind::UnknownSession => self.redirect_unknown(place, link, id),
            PacketKind::SessionNodes => self.note_nodes(place, payload),
            _ => {}
        }
    }

    /// A core has said which nodes take sessions.
    fn note_nodes(&mut self, place: usize, payload: &[u8]) {
        let Ok(nodes) = postcard::from_bytes(payload) else { return };
        if let Some(double) = self.cores.note_announced(place, nodes) {
            self.lose_core(double);
        }
        self.next_core_check = 0;
    }

    /// Bytes for a device. The first of them are its `bound` or a refusal.
    fn handle_data(&mut self, key: usize, bytes: &[u8]) {
        let phase = self.devices[key].phase;
        if phase == Phase::Closing {
            // Bytes that the core sent before it knew of the closing must not follow the last frame.
            return;
        }
        self.devices[key].within_frame = bytes.len() == packet::PAYLOAD_BYTES_MAX;
        let mut bytes = bytes;
        if phase == Phase::Reopening
            && let Ok(Some(head)) = take_head(bytes, usize::MAX)
            && let Ok(Frame::Error(error)) = decode(head.kind, &bytes[head.payload])
            && error.retry
        {
            // The device is bound and need not know.
            self.forget_core(key);
            return self.detach_for_a_while(key);
        }
        if matches!(phase, Phase::Opening | Phase::Reopening)
            && let Ok(Some(head)) = take_head(bytes, usize::MAX)
            && let Ok(Frame::Bound(bound)) = decode(head.kind, &bytes[head.payload.clone()])
        {
            let device = &mut self.devices[key];
            (device.phase, device.unbound) = (Phase::Live, None);
            // Which user it is does not matter here, only that it is the same one.
            device.user = self.shared.hasher.hash_one(bound.user).max(1);
            if phase == Phase::Opening {
                self.set_heartbeat(key, (bound.heartbeat_s as u32).saturating_mul(1_000));
                self.shared.bound.fetch_add(1, Ordering::Relaxed);
            } else {
                // What the device was granted since its bind holds.
                self.arm_heartbeat(key);
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
    fn redirect_unknown(&mut self, place: usize, link: usize, session: u64) {
        let is_session = |d: &DeviceConnection| d.session == Some(session) && is_at(d, place, link);
        let found = self.devices.iter().find(|(_, device)| is_session(device)).map(|(key, _)| key);
        if let Some(key) = found {
            self.redirect(key, rand::random_range(0..=RECONNECT_SPREAD_MS), "the core does not know it");
        }
    }

    /// Sends the core the ids of the live sessions of one link.
    fn list_sessions(&mut self, place: usize, link: usize, request: u64) {
        let mut sessions = Vec::new();
        for (_, device) in self.devices.iter() {
            if let (Phase::Live, Some(session)) = (device.phase, device.session)
                && is_at(device, place, link)
            {
                sessions.extend_from_slice(&session.to_le_bytes());
            }
        }
        let Some(upstream) = self.cores.list[place].links.get_mut(link) else { return };
        for chunk in sessions.chunks(packet::PAYLOAD_BYTES_MAX / 8 * 8) {
            upstream.put(PacketKind::Sessions, request, chunk);
        }
        upstream.put(PacketKind::Sessions, request, &[]);
    }

    pub(super) fn flush_upstreams(&mut self) {
        let (tick, now) = (self.tick(), Instant::now());
        for place in 0..self.cores.list.len() {
            let core = &mut self.cores.list[place];
            let flushed: io::Result<()> = core.links.iter_mut().try_for_each(|upstream| upstream.flush(tick, now));
            if !core.waiting.is_empty() && !core.is_congested() {
                self.readable.extend(core.waiting.drain(..));
            }
            if let Err(error) = flushed {
                tracing::warn!(%error, core = core.address, "a link to a core is lost");
                self.lose_core(place);
            }
        }
    }
}

/// Whether the device's session is behind this link.
fn is_at(device: &DeviceConnection, place: usize, link: usize) -> bool {
    device.core == Some(place as u16) && usize::from(device.upstream_index) == link
}
