//! The side of the devices: the frames that they send, and the bytes that are written to them.

use super::{RECONNECT_SPREAD_MS, RelayLoop};
use crate::{
    connection::FIRST_FRAME_BYTES_MAX,
    encoding::fatal_error,
    link::packet::PacketKind,
    open_connections::EnteredConnection,
    relay::{
        Command,
        device_connection::{DeviceConnection, Phase, WriteOutcome},
        upstream::Upstream,
    },
    session_config::silence_max,
    timer_wheel::ticks,
    transport::Transport,
};
use std::{
    io::{ErrorKind, Read},
    sync::atomic::Ordering,
};
use tidings_listen::{Client, MaybeTlsSocket};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    limits::FRAME_BYTES_MAX,
    miop::{self, Frame, decode, take_head, wants},
};

/// Readable devices served before the links have their turn.
const READERS_PER_TURN: usize = 128;
const READS_PER_TURN: usize = 4;
/// A device that connects while the core is away is asked to retry after this, plus as much again at random.
const CORE_AWAY_RETRY_MS: u64 = 1_000;

impl RelayLoop {
    pub(super) fn adopt(&mut self, socket: MaybeTlsSocket, already_read: Vec<u8>, entered: EnteredConnection) {
        let tick = self.tick();
        let entry = self.devices.vacant_entry();
        let key = entry.key();
        let transport = match Transport::register(socket, self.poll.registry(), key) {
            Ok(transport) => transport,
            Err(error) => {
                tracing::debug!(%error, "a connection could not be registered");
                self.shared.open.leave();
                return;
            }
        };
        self.generation += 1;
        let device = entry.insert(DeviceConnection::new(transport, (self.generation << 32) | key as u64, tick));
        if device.transport.may_have_buffered_input() {
            device.readable = true;
            self.readable.push_back(key);
        }
        self.shared.metrics.connections.inc();
        device.unbound = entered.begin(device.id);
        if device.unbound.is_none() {
            let id = device.id;
            return self.end_unbound(id);
        }
        self.arm_timer(key, tick + ticks(self.config.bind_timeout));
        if self.draining {
            self.close(
                key,
                &Refusal::new(ErrorCode::Draining, "the gateway is draining").retry_after(CORE_AWAY_RETRY_MS),
            );
        } else if !already_read.is_empty() {
            self.handle_frames(key, &already_read);
        }
    }

    pub(super) fn read_devices(&mut self) {
        for _ in 0..READERS_PER_TURN.min(self.readable.len()) {
            let Some(key) = self.readable.pop_front() else { return };
            let Some(device) = self.devices.get_mut(key) else { continue };
            if let Some(core) = device.core.and_then(|core| self.cores.list.get_mut(usize::from(core)))
                && core.is_congested()
                && !device.read_closed
            {
                core.waiting.push(key);
                continue;
            }
            device.readable = false;
            if device.phase != Phase::Opening || device.read_closed {
                self.read(key);
            }
        }
    }

    fn read(&mut self, key: usize) {
        let tick = self.tick();
        let mut buffer = std::mem::take(&mut self.read_buffer);
        for round in 0.. {
            let Some(device) = self.devices.get_mut(key) else { break };
            if round == READS_PER_TURN {
                device.readable = true;
                self.readable.push_back(key);
                break;
            }
            let partial = std::mem::take(&mut device.partial);
            if partial.len() >= buffer.len() {
                // The device sent more than a frame before the core has answered its bind.
                self.close(key, &Refusal::new(ErrorCode::LimitExceeded, "too much was sent before `bound`"));
                break;
            }
            buffer[..partial.len()].copy_from_slice(&partial);
            match device.transport.read(&mut buffer[partial.len()..]) {
                Ok(0) => {
                    self.remove(key);
                    break;
                }
                Ok(n) => {
                    if device.phase == Phase::Closing {
                        continue;
                    }
                    device.last_heard = tick;
                    let end = partial.len() + n;
                    // The end comes without another event.
                    let ends = device.read_closed;
                    let drained = end < buffer.len();
                    self.handle_frames(key, &buffer[..end]);
                    let is_opening = self.devices.get(key).is_some_and(|device| device.phase == Phase::Opening);
                    if !ends && (drained || is_opening) {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    device.partial = partial;
                    break;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => device.partial = partial,
                Err(_) => {
                    self.remove(key);
                    break;
                }
            }
        }
        self.read_buffer = buffer;
    }

    /// Handles the complete frames; an incomplete one is kept with the connection.
    pub(super) fn handle_frames(&mut self, key: usize, bytes: &[u8]) {
        let mut rest = bytes;
        loop {
            let Some(device) = self.devices.get_mut(key) else { return };
            let limit = match device.phase {
                Phase::Closing => return,
                Phase::Opening => {
                    device.partial = rest.to_vec();
                    return;
                }
                Phase::Unbound => FIRST_FRAME_BYTES_MAX,
                Phase::Live | Phase::Detached | Phase::Reopening => FRAME_BYTES_MAX,
            };
            match take_head(rest, limit) {
                Ok(Some(head)) => {
                    let (frame, following) = rest.split_at(head.payload.end);
                    rest = following;
                    self.handle_frame(key, head.kind, frame, &frame[head.payload]);
                }
                Ok(None) => {
                    device.partial = rest.to_vec();
                    return;
                }
                Err(error) => return self.close(key, &Refusal::new(error.code(), error.to_string())),
            }
        }
    }

    fn handle_frame(&mut self, key: usize, kind: u8, frame: &[u8], payload: &[u8]) {
        let device = &mut self.devices[key];
        match (device.phase, kind) {
            (Phase::Unbound, miop::kind::BIND) => self.handle_bind(key, frame, payload),
            (Phase::Unbound, kind) if kind & 0x80 != 0 => {}
            (Phase::Unbound, _) => self.close(key, &Refusal::new(ErrorCode::NotBound, "bind first")),
            (_, miop::kind::HEARTBEAT) => self.handle_heartbeat(key, payload),
            (_, miop::kind::UNBIND) => self.handle_unbind(key, frame, payload),
            (Phase::Live, kind) => self.forward(key, kind, frame),
            // No core is there to take it, and it may have a token that replaces the one of the bind.
            (Phase::Detached | Phase::Reopening, miop::kind::CHAT) => {
                self.redirect(key, rand::random_range(0..=RECONNECT_SPREAD_MS), "it said something between two cores");
            }
            // Acknowledgements while the core is away: their pushes will come again.
            _ => {}
        }
    }

    /// Forwards a frame to the core, if the core has the session.
    fn forward(&mut self, key: usize, kind: u8, frame: &[u8]) {
        let Some((session, upstream)) = self.session(key) else { return };
        match kind {
            miop::kind::ACK => upstream.put_acknowledgement(session, frame),
            _ => upstream.put(PacketKind::Data, session, frame),
        }
        if kind == miop::kind::CHAT {
            // A token may come this way that replaces the one of the bind. Only the device has it.
            self.devices[key].bind = None;
        }
    }

    /// The device's session at its core, and the link to it.
    fn session(&mut self, key: usize) -> Option<(u64, &mut Upstream)> {
        let device = &self.devices[key];
        let core = self.cores.list.get_mut(usize::from(device.core?))?;
        Some((device.session?, core.links.get_mut(usize::from(device.upstream_index))?))
    }

    /// Handles an unbind, also while the core is away. The core ends the session when it reads this frame, after all earlier
    /// frames of the device; later frames are discarded here.
    fn handle_unbind(&mut self, key: usize, frame: &[u8], payload: &[u8]) {
        if let Err(error) = decode(miop::kind::UNBIND, payload) {
            return self.close(key, &Refusal::new(error.code(), error.to_string()));
        }
        if self.devices[key].phase == Phase::Live {
            self.forward(key, miop::kind::UNBIND, frame);
            // The core learns of the end by the forwarded frame; no `Closed` need follow.
            self.devices[key].session = None;
        }
        self.end_session(key);
        self.begin_closing(key);
        self.after_write(key, WriteOutcome::Accepted);
    }

    fn handle_bind(&mut self, key: usize, frame: &[u8], payload: &[u8]) {
        let bind = match decode(miop::kind::BIND, payload) {
            Ok(Frame::Bind(bind)) => bind,
            Ok(_) => return,
            Err(error) => return self.close(key, &Refusal::new(error.code(), error.to_string())),
        };
        let Some(core) = self.cores.for_new_device(self.tick()) else {
            return self.close_for_a_while(key, "the core is away; connect again");
        };
        let device = &mut self.devices[key];
        if bind.wants.is_some_and(|wants| wants & wants::CHAT == 0) {
            device.bind = Some(frame.into());
        }
        device.phase = Phase::Opening;
        self.open_at(core, key, frame);
    }

    /// Opens the device's connection at a core, which has links.
    pub(super) fn open_at(&mut self, place: usize, key: usize, bind: &[u8]) {
        let tick = self.tick();
        let (device, core) = (&mut self.devices[key], &mut self.cores.list[place]);
        device.core = Some(place as u16);
        core.devices += 1;
        let link = core.link_of(device.id);
        let mut payload = Vec::with_capacity(bind.len() + 1);
        payload.push(1);
        payload.extend_from_slice(bind);
        core.links[link].put_open(tick, device.id, &payload);
    }

    /// The device is no longer at its core, which is notified.
    pub(super) fn leave_core(&mut self, key: usize) {
        if let Some((session, upstream)) = self.session(key) {
            upstream.put(PacketKind::Closed, session, &[]);
        } else if matches!(self.devices[key].phase, Phase::Opening | Phase::Reopening) {
            self.withdraw_open(key);
        }
        self.forget_core(key);
    }

    /// The device has no session at its core any more.
    pub(super) fn forget_core(&mut self, key: usize) {
        let device = &mut self.devices[key];
        device.session = None;
        if let Some(core) = device.core.take() {
            self.cores.list[usize::from(core)].devices -= 1;
        }
    }

    /// The device leaves before its core has answered. A core that has not come to its bind must not end the session that the device
    /// has begun elsewhere meanwhile.
    fn withdraw_open(&mut self, key: usize) {
        let device = &self.devices[key];
        let core = device.core.and_then(|core| self.cores.list.get_mut(usize::from(core)));
        if let Some(core) = core.filter(|core| core.names_nodes && !core.links.is_empty()) {
            let link = core.link_of(device.id);
            core.links[link].put(PacketKind::Left, device.id, &[]);
        }
    }

    /// Another id for the connection, which is to be opened anew: what a core still sends under the former one is for nobody.
    pub(super) fn renew_id(&mut self, key: usize) {
        self.generation += 1;
        let device = &mut self.devices[key];
        device.id = (self.generation << 32) | key as u64;
        // What closes a slow reader knows the former id.
        if device.holding.take().is_some() {
            self.hold_unread(key);
        }
    }

    fn handle_heartbeat(&mut self, key: usize, payload: &[u8]) {
        let proposed = match decode(miop::kind::HEARTBEAT, payload) {
            Ok(Frame::Heartbeat { interval_s }) => interval_s,
            Ok(_) => None,
            Err(error) => return self.close(key, &Refusal::new(error.code(), error.to_string())),
        };
        let Some(proposed) = proposed else { return self.write(key, &miop::HEARTBEAT) };
        let granted = self.config.granted_heartbeat_s(Some(proposed));
        self.set_heartbeat(key, granted as u32 * 1_000);
        self.write(key, &Frame::Heartbeat { interval_s: Some(granted) }.to_bytes());
    }

    pub(super) fn set_heartbeat(&mut self, key: usize, heartbeat_ms: u32) {
        self.devices[key].heartbeat_ms = heartbeat_ms;
        self.arm_heartbeat(key);
    }

    /// Has the device's silence noticed.
    pub(super) fn arm_heartbeat(&mut self, key: usize) {
        let due = self.tick() + silence_max(self.devices[key].heartbeat_ms);
        self.arm_timer(key, due);
    }

    pub(super) fn write(&mut self, key: usize, bytes: &[u8]) {
        let buffer_max = self.config.session_buffer_bytes;
        let written = self.devices[key].write(bytes, buffer_max);
        self.after_write(key, written);
    }

    pub(super) fn after_write(&mut self, key: usize, written: WriteOutcome) {
        let device = &mut self.devices[key];
        match written {
            WriteOutcome::Accepted if !device.unwritten.is_empty() => self.hold_unread(key),
            WriteOutcome::Accepted => {
                device.holding = None;
                if device.phase == Phase::Closing {
                    device.transport.finish_writing();
                }
            }
            WriteOutcome::BufferFull => self.remove_slow_reader(key),
            WriteOutcome::Disconnected => self.remove(key),
        }
    }

    /// Counts what the device has not read against the budget of all connections.
    fn hold_unread(&mut self, key: usize) {
        let device = &mut self.devices[key];
        let holding = device.holding.get_or_insert_with(|| {
            let client = if device.user == 0 { Client::Unauthenticated } else { Client::User(device.user) };
            let (thread, id) = (self.attacher.handle.clone(), device.id);
            let close = Box::new(move || thread.send(Command::CloseSlowReader { id }));
            Box::new(self.config.outbound_budget.hold(client, close))
        });
        holding.set(device.unwritten.len());
    }

    fn remove_slow_reader(&mut self, key: usize) {
        self.shared.metrics.slow_readers_closed.inc();
        self.shared.metrics.count_refusal(ErrorCode::SlowReader);
        self.remove(key);
    }

    fn find(&self, id: u64) -> Option<usize> {
        let key = (id & u64::from(u32::MAX)) as usize;
        self.devices.get(key).filter(|device| device.id == id).map(|_| key)
    }

    /// Removes a device that does not read, for the sake of others.
    pub(super) fn close_slow_reader(&mut self, id: u64) {
        self.find(id).into_iter().for_each(|key| self.remove_slow_reader(key));
    }

    /// Removes a device that has not bound, or whose connection is closing, for the sake of another one.
    pub(super) fn end_unbound(&mut self, id: u64) {
        let Some(key) = self.find(id) else { return };
        if matches!(self.devices[key].phase, Phase::Unbound | Phase::Opening | Phase::Closing) {
            self.shared.metrics.unbound_evictions.inc();
            self.remove(key);
        }
    }

    /// Writes the reason, then closes the connection.
    pub(super) fn close(&mut self, key: usize, refusal: &Refusal) {
        if self.devices[key].phase == Phase::Closing {
            return;
        }
        self.shared.metrics.count_refusal(refusal.code);
        self.end_session(key);
        self.begin_closing(key);
        self.write(key, &fatal_error(refusal));
    }

    /// Asks the device to connect again a little later.
    pub(super) fn close_for_a_while(&mut self, key: usize, why: &str) {
        let after_ms = CORE_AWAY_RETRY_MS + rand::random_range(0..=CORE_AWAY_RETRY_MS);
        self.close(key, &Refusal::new(ErrorCode::NodeUnavailable, why).retry_after(after_ms));
    }

    pub(super) fn redirect(&mut self, key: usize, after_ms: u64, why: &'static str) {
        tracing::debug!(why, "a device is redirected");
        self.end_session(key);
        self.begin_closing(key);
        self.write(key, &Frame::Redirect { address: None, after_ms }.to_bytes());
    }

    /// The core has closed the connection: it is closed here once its last bytes are written.
    pub(super) fn finish(&mut self, key: usize) {
        self.forget_core(key);
        self.end_session(key);
        self.begin_closing(key);
        self.after_write(key, WriteOutcome::Accepted);
    }

    fn begin_closing(&mut self, key: usize) {
        let tick = self.tick();
        let device = &mut self.devices[key];
        device.phase = Phase::Closing;
        device.last_heard = tick;
        device.partial = Vec::new();
        if device.unbound.is_none() {
            let (thread, id) = (self.attacher.handle.clone(), device.id);
            let end = Box::new(move || thread.send(Command::EndUnbound { id }));
            device.unbound = Some(Box::new(self.shared.open.unbound.wait_for_end(end)));
        }
        self.arm_timer(key, tick + ticks(self.config.closing_timeout));
    }

    /// Ends the device's session: its bind is dropped, and the core is notified.
    fn end_session(&mut self, key: usize) {
        let device = &mut self.devices[key];
        device.bind = None;
        if matches!(device.phase, Phase::Live | Phase::Detached | Phase::Reopening) {
            self.shared.bound.fetch_sub(1, Ordering::Relaxed);
        }
        self.leave_core(key);
    }

    pub(super) fn remove(&mut self, key: usize) {
        self.end_session(key);
        let device = self.devices.remove(key);
        device.transport.end();
        self.shared.metrics.connections.dec();
        self.shared.open.leave();
    }

    pub(super) fn drain(&mut self, spread_ms: u64) {
        self.draining = true;
        let keys: Vec<usize> = self.devices.iter().map(|(key, _)| key).collect();
        for key in keys {
            if self.devices[key].phase != Phase::Closing {
                self.redirect(key, rand::random_range(0..=spread_ms.max(1)), "the gateway is draining");
            }
        }
    }
}
