//! The side of the devices: what they send, and what is written to them.

use super::RelayLoop;
use crate::{
    binding::FIRST_FRAME_BYTES_MAX,
    connection::fatal_error,
    link::packet::Kind,
    relay::device::{Device, Phase, Written},
    shard::{silence_max, ticks},
    transport::Transport,
};
use std::{
    io::{ErrorKind, Read},
    sync::atomic::Ordering,
};
use tidings_listen::MaybeTlsSocket;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    limits::FRAME_BYTES_MAX,
    miop::{self, Frame, decode, take_head, wants},
};

/// Readable devices served before the links have their turn.
const READERS_PER_TURN: usize = 128;
const READS_PER_TURN: usize = 4;
/// A device that comes while the core is away is told to come back after this, and as much again at random.
const CORE_AWAY_MS: u64 = 1_000;

impl RelayLoop {
    pub(super) fn adopt(&mut self, socket: MaybeTlsSocket, already_read: Vec<u8>) {
        let tick = self.tick();
        let entry = self.devices.vacant_entry();
        let key = entry.key();
        let transport = match Transport::register(socket, self.poll.registry(), key) {
            Ok(transport) => transport,
            Err(error) => {
                tracing::debug!(%error, "a connection could not be registered");
                self.shared.open.fetch_sub(1, Ordering::Relaxed);
                return;
            }
        };
        self.generation += 1;
        let device = entry.insert(Device::new(transport, (self.generation << 32) | key as u64, tick));
        if device.transport.may_hold_bytes() {
            device.readable = true;
            self.readable.push_back(key);
        }
        self.shared.metrics.connections.inc();
        self.arm(key, tick + ticks(self.config.bind_timeout));
        if self.draining {
            self.close(key, &Refusal::new(ErrorCode::Draining, "the gateway is draining").retry_after(CORE_AWAY_MS));
        } else if !already_read.is_empty() {
            self.take_frames(key, &already_read);
        }
    }

    pub(super) fn read_some(&mut self) {
        if self.is_congested() {
            return;
        }
        for _ in 0..READERS_PER_TURN.min(self.readable.len()) {
            let Some(key) = self.readable.pop_front() else { return };
            let Some(device) = self.devices.get_mut(key) else { continue };
            device.readable = false;
            if device.phase != Phase::Opening || device.ending {
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
                // More than a frame before the core has answered the bind.
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
                    device.heard = tick;
                    let end = partial.len() + n;
                    let drained = end < buffer.len() && !device.ending;
                    self.take_frames(key, &buffer[..end]);
                    if drained || self.devices.get(key).is_some_and(|device| device.phase == Phase::Opening) {
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

    /// Takes the frames that have come whole; the rest is kept with the device.
    pub(super) fn take_frames(&mut self, key: usize, bytes: &[u8]) {
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
                    self.take_frame(key, head.kind, frame, &frame[head.payload]);
                }
                Ok(None) => {
                    device.partial = rest.to_vec();
                    return;
                }
                Err(error) => return self.close(key, &Refusal::new(error.code(), error.to_string())),
            }
        }
    }

    fn take_frame(&mut self, key: usize, kind: u8, frame: &[u8], payload: &[u8]) {
        let device = &mut self.devices[key];
        match (device.phase, kind) {
            (Phase::Unbound, miop::kind::BIND) => self.take_bind(key, frame, payload),
            (Phase::Unbound, kind) if kind & 0x80 != 0 => {}
            (Phase::Unbound, _) => self.close(key, &Refusal::new(ErrorCode::NotBound, "bind first")),
            (_, miop::kind::HEARTBEAT) => self.take_heartbeat(key, payload),
            (_, miop::kind::UNBIND) => self.take_unbind(key, frame, payload),
            (Phase::Live, _) => self.pass_on(key, frame),
            // Acknowledgements of pushes that will come again.
            _ => {}
        }
    }

    /// Puts a frame on the link to the core, if the core has the session.
    fn pass_on(&mut self, key: usize, frame: &[u8]) {
        let device = &self.devices[key];
        if let Some(session) = device.session
            && let Some(upstream) = self.upstreams.get_mut(usize::from(device.upstream))
        {
            upstream.out.put(Kind::Data, session, frame);
        }
    }

    /// The device is done, also while the core is away. The core ends the session once it has come to this frame, behind
    /// all that the device sent before; what the device sends after it is thrown away here.
    fn take_unbind(&mut self, key: usize, frame: &[u8], payload: &[u8]) {
        if let Err(error) = decode(miop::kind::UNBIND, payload) {
            return self.close(key, &Refusal::new(error.code(), error.to_string()));
        }
        if self.devices[key].phase == Phase::Live {
            self.pass_on(key, frame);
            // The core need not be told twice.
            self.devices[key].session = None;
        }
        self.leave(key);
        self.closing(key);
        self.after_write(key, Written::Fine);
    }

    fn take_bind(&mut self, key: usize, frame: &[u8], payload: &[u8]) {
        let bind = match decode(miop::kind::BIND, payload) {
            Ok(Frame::Bind(bind)) => bind,
            Ok(_) => return,
            Err(error) => return self.close(key, &Refusal::new(error.code(), error.to_string())),
        };
        if self.upstreams.is_empty() {
            let after_ms = CORE_AWAY_MS + rand::random_range(0..=CORE_AWAY_MS);
            let refusal = Refusal::new(ErrorCode::NodeUnavailable, "the core is away; connect again");
            return self.close(key, &refusal.retry_after(after_ms));
        }
        let device = &mut self.devices[key];
        if bind.wants.is_some_and(|wants| wants & wants::CHAT == 0) {
            device.bind = Some(frame.into());
        }
        device.phase = Phase::Opening;
        self.open(key, frame);
    }

    pub(super) fn open(&mut self, key: usize, bind: &[u8]) {
        let device = &mut self.devices[key];
        // Any shard will do: the core moves the session to its user's.
        let index = device.name as usize % self.upstreams.len();
        let mut payload = Vec::with_capacity(bind.len() + 1);
        payload.push(1);
        payload.extend_from_slice(bind);
        self.upstreams[index].out.put(Kind::Open, device.name, &payload);
    }

    fn take_heartbeat(&mut self, key: usize, payload: &[u8]) {
        let proposed = match decode(miop::kind::HEARTBEAT, payload) {
            Ok(Frame::Heartbeat { interval_s }) => interval_s,
            Ok(_) => None,
            Err(error) => return self.close(key, &Refusal::new(error.code(), error.to_string())),
        };
        let Some(proposed) = proposed else { return self.write(key, &miop::HEARTBEAT) };
        let granted = self.config.granted_heartbeat_s(Some(proposed));
        self.beat_every(key, granted as u32 * 1_000);
        self.write(key, &Frame::Heartbeat { interval_s: Some(granted) }.to_bytes());
    }

    pub(super) fn beat_every(&mut self, key: usize, heartbeat_ms: u32) {
        let tick = self.tick();
        self.devices[key].heartbeat_ms = heartbeat_ms;
        self.arm(key, tick + silence_max(heartbeat_ms));
    }

    pub(super) fn write(&mut self, key: usize, bytes: &[u8]) {
        let buffer_max = self.config.session_buffer_bytes;
        let written = self.devices[key].write(bytes, buffer_max);
        self.after_write(key, written);
    }

    pub(super) fn after_write(&mut self, key: usize, written: Written) {
        let device = &mut self.devices[key];
        match written {
            Written::Fine => {
                if device.phase == Phase::Closing && device.rest.is_empty() {
                    device.transport.finish_writing();
                }
            }
            Written::TooSlow => {
                self.shared.metrics.slow_readers_closed.inc();
                self.shared.metrics.count_refusal(ErrorCode::SlowReader);
                self.remove(key);
            }
            Written::Gone => self.remove(key),
        }
    }

    /// Says why, then closes once that is written.
    pub(super) fn close(&mut self, key: usize, refusal: &Refusal) {
        if self.devices[key].phase == Phase::Closing {
            return;
        }
        self.shared.metrics.count_refusal(refusal.code);
        self.leave(key);
        self.closing(key);
        self.write(key, &fatal_error(refusal));
    }

    pub(super) fn redirect(&mut self, key: usize, after_ms: u64, why: &'static str) {
        tracing::debug!(why, "a device is sent away");
        self.leave(key);
        self.closing(key);
        self.write(key, &Frame::Redirect { address: None, after_ms }.to_bytes());
    }

    /// The core has said all that it had to say.
    pub(super) fn finish(&mut self, key: usize) {
        self.devices[key].session = None;
        self.leave(key);
        self.closing(key);
        self.after_write(key, Written::Fine);
    }

    fn closing(&mut self, key: usize) {
        let tick = self.tick();
        let device = &mut self.devices[key];
        device.phase = Phase::Closing;
        device.heard = tick;
        device.partial = Vec::new();
        self.arm(key, tick + ticks(self.config.closing_timeout));
    }

    /// The core need not speak to it any more.
    fn leave(&mut self, key: usize) {
        let device = &mut self.devices[key];
        device.bind = None;
        if matches!(device.phase, Phase::Live | Phase::Detached | Phase::Reopening) {
            self.shared.bound.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(session) = device.session.take()
            && let Some(upstream) = self.upstreams.get_mut(usize::from(device.upstream))
        {
            upstream.out.put(Kind::Closed, session, &[]);
        }
    }

    pub(super) fn remove(&mut self, key: usize) {
        self.leave(key);
        let device = self.devices.remove(key);
        device.transport.end(self.poll.registry());
        self.shared.metrics.connections.dec();
        self.shared.open.fetch_sub(1, Ordering::Relaxed);
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
