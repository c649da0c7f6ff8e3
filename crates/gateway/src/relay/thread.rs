//! One thread of a relay: its devices' sockets, and a link to each shard of the core.

use super::{
    Command, Shared,
    attach::Attacher,
    device::{Device, Phase, Written},
    upstream::Upstream,
};
use crate::{
    binding::FIRST_FRAME_BYTES_MAX,
    connection::fatal_error,
    gateway::{GatewayConfig, ShardWake, WAKE},
    link::{
        packet::{self, Kind, Packet},
        virtual_connections::LINK_TOKENS,
    },
    shard::{TICK, silence_max, ticks},
    transport::Transport,
    wheel::Wheel,
};
use crossbeam_channel::Receiver;
use mio::{Events, Poll, Token};
use slab::Slab;
use std::{
    collections::VecDeque,
    io::{ErrorKind, Read},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use tidings_listen::Carrier;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    limits::FRAME_BYTES_MAX,
    miop::{self, Frame, decode, take_head, wants},
};

/// One read buffer for all devices; a whole frame of the greatest length fits.
/// Readable devices served before the links have their turn.
const READERS_PER_TURN: usize = 128;
const READS_PER_TURN: usize = 4;
const COMMANDS_PER_TURN: usize = 256;
/// Devices opened anew in a turn, after the core came back.
const REOPENED_PER_TURN: usize = 256;
/// Bytes waiting on a link above which devices are not read: the core is behind.
const CONGESTED_BYTES: usize = 8 * 1024 * 1024;
/// A device that comes while the core is away is told to come back after this, and as much again at random.
const CORE_AWAY_MS: u64 = 1_000;
/// How long devices that must connect again are spread over when a link is lost.
const RECONNECT_SPREAD_MS: u64 = 5_000;
/// Devices that stayed are sent away when the core is not back by then.
const AWAY_MAX: Duration = Duration::from_secs(600);
/// How often a core is asked about that may move.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(super) struct RelayLoop {
    poll: Poll,
    wake: Arc<ShardWake>,
    inbox: Receiver<Command>,
    config: GatewayConfig,
    shared: Arc<Shared>,
    attacher: Attacher,
    devices: Slab<Device>,
    upstreams: Vec<Upstream>,
    is_attached: bool,
    core: String,
    /// The tick at which it is asked next whether the core has moved.
    look_at: u32,
    /// The tick at which the core went away.
    away_since: u32,
    wheel: Wheel,
    readable: VecDeque<usize>,
    /// Devices that wait to be opened anew.
    reopen: VecDeque<usize>,
    read_buffer: Vec<u8>,
    generation: u64,
    started: Instant,
    draining: bool,
    stopping: bool,
}

impl RelayLoop {
    pub(super) fn new(
        poll: Poll,
        wake: Arc<ShardWake>,
        inbox: Receiver<Command>,
        config: GatewayConfig,
        shared: Arc<Shared>,
        attacher: Attacher,
    ) -> Self {
        RelayLoop {
            poll,
            wake,
            inbox,
            config,
            shared,
            attacher,
            devices: Slab::new(),
            upstreams: Vec::new(),
            is_attached: false,
            core: String::new(),
            look_at: 0,
            away_since: 0,
            wheel: Wheel::new(),
            readable: VecDeque::new(),
            reopen: VecDeque::new(),
            read_buffer: vec![0; packet::READ_BUFFER_BYTES],
            generation: 0,
            started: Instant::now(),
            draining: false,
            stopping: false,
        }
    }

    pub(super) fn run(mut self) {
        self.attacher.begin();
        let mut events = Events::with_capacity(1_024);
        while !self.stopping {
            self.wait(&mut events);
            self.take_commands();
            self.read_some();
            self.read_upstreams();
            self.reopen_some();
            self.check_times();
            self.serve_upstreams();
            self.follow_core();
        }
    }

    /// Leaves a core that has given its work to another one, should it not say so itself.
    fn follow_core(&mut self) {
        let tick = self.tick();
        if !self.is_attached || tick < self.look_at {
            return;
        }
        self.look_at = tick + ticks(LOOK_EVERY);
        if self.attacher.config.cores.has_moved(&self.core) {
            tracing::info!(core = self.core, "the core has moved");
            self.lose_core();
        }
    }

    fn tick(&self) -> u32 {
        (self.started.elapsed().as_millis() / TICK.as_millis()) as u32
    }

    fn is_congested(&self) -> bool {
        self.upstreams.iter().any(|upstream| upstream.out.waits() > CONGESTED_BYTES)
    }

    fn wait(&mut self, events: &mut Events) {
        let busy = |relay: &RelayLoop| {
            (!relay.readable.is_empty() && !relay.is_congested())
                || !relay.inbox.is_empty()
                || !relay.reopen.is_empty()
                || relay.upstreams.iter().any(|upstream| upstream.readable)
        };
        let mut timeout = Duration::ZERO;
        if !busy(self) {
            self.wake.asleep.store(true, Ordering::SeqCst);
            // What was put in after the first look would not have woken us.
            if busy(self) {
                self.wake.asleep.store(false, Ordering::SeqCst);
            } else {
                timeout = TICK;
            }
        }
        if let Err(error) = self.poll.poll(events, Some(timeout))
            && error.kind() != ErrorKind::Interrupted
        {
            tracing::error!(%error, "poll failed");
        }
        self.wake.asleep.store(false, Ordering::SeqCst);
        for event in events.iter() {
            let key = event.token().0;
            if event.token() == WAKE {
                continue;
            }
            if key >= LINK_TOKENS {
                if let Some(upstream) = self.upstreams.get_mut(key - LINK_TOKENS) {
                    upstream.readable = true;
                }
                continue;
            }
            let Some(device) = self.devices.get_mut(key) else { continue };
            device.ending |= event.is_read_closed() || event.is_error();
            if (event.is_readable() || device.ending) && !device.readable {
                device.readable = true;
                self.readable.push_back(key);
            }
            if event.is_writable() && (device.blocked || device.transport.holds_unsent()) {
                let written = device.go_on();
                self.after_write(key, written);
            }
        }
    }

    fn take_commands(&mut self) {
        for _ in 0..COMMANDS_PER_TURN {
            let Ok(command) = self.inbox.try_recv() else { return };
            match command {
                Command::Adopt { carrier, already_read } => self.adopt(carrier, already_read),
                Command::Attached { core, links, lease } => self.attached(core, links, lease),
                Command::Drain { spread_ms } => self.drain(spread_ms),
                Command::Stop => self.stopping = true,
            }
        }
    }

    fn adopt(&mut self, carrier: Carrier, already_read: Vec<u8>) {
        let tick = self.tick();
        let entry = self.devices.vacant_entry();
        let key = entry.key();
        let transport = match Transport::register(carrier, self.poll.registry(), key) {
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

    fn attached(&mut self, core: String, links: Vec<std::net::TcpStream>, lease: Duration) {
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

    /// A link is lost: the core is away, or has forgotten us.
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

    /// Some of the devices that stayed while the core was away.
    fn reopen_some(&mut self) {
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
            device.heard = tick;
            self.open(key, &bind);
            self.devices[key].bind = Some(bind);
            self.arm(key, tick + ticks(self.config.bind_timeout));
        }
    }

    fn read_some(&mut self) {
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
    fn take_frames(&mut self, key: usize, bytes: &[u8]) {
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
            (Phase::Live, _) => {
                if let Some(session) = device.session
                    && let Some(upstream) = self.upstreams.get_mut(usize::from(device.upstream))
                {
                    upstream.out.put(Kind::Data, session, frame);
                }
            }
            // Acknowledgements of pushes that will come again.
            _ => {}
        }
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

    fn open(&mut self, key: usize, bind: &[u8]) {
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

    fn beat_every(&mut self, key: usize, heartbeat_ms: u32) {
        let tick = self.tick();
        self.devices[key].heartbeat_ms = heartbeat_ms;
        self.arm(key, tick + silence_max(heartbeat_ms));
    }

    fn read_upstreams(&mut self) {
        for index in 0..self.upstreams.len() {
            if !self.upstreams.get(index).is_some_and(|upstream| upstream.readable) {
                continue;
            }
            let tick = self.tick();
            let mut buffer = std::mem::take(&mut self.read_buffer);
            let read = self.upstreams[index].read(tick, &mut buffer);
            let read = read.and_then(|end| self.take_packets(index, &buffer[..end]));
            self.read_buffer = buffer;
            if let Err(error) = read {
                tracing::warn!(%error, "the link to the core is lost");
                return self.lose_core();
            }
        }
    }

    fn take_packets(&mut self, index: usize, bytes: &[u8]) -> std::io::Result<()> {
        let mut at = 0;
        while let Some(Packet { kind, id, payload }) = packet::take(&bytes[at..]).map_err(std::io::Error::other)? {
            self.take_packet(index, kind, id, &bytes[at + payload.start..at + payload.end]);
            at += payload.end;
        }
        if at < bytes.len() {
            self.upstreams[index].keep(&bytes[at..]);
        }
        Ok(())
    }

    fn take_packet(&mut self, index: usize, kind: Kind, id: u64, payload: &[u8]) {
        let key = (id & u64::from(u32::MAX)) as usize;
        let is_here = self.devices.get(key).is_some_and(|device| device.name == id);
        match kind {
            Kind::Opened => {
                let Ok(session) = payload.try_into().map(u64::from_le_bytes) else { return };
                if is_here {
                    let device = &mut self.devices[key];
                    (device.session, device.upstream) = (Some(session), index as u16);
                } else {
                    // It went while its bind was with the core.
                    self.upstreams[index].out.put(Kind::Closed, session, &[]);
                }
            }
            Kind::Data if is_here => self.take_data(key, payload),
            Kind::Close if is_here => self.finish(key),
            Kind::List => self.list_sessions(index, id),
            Kind::Forget => self.forget(index, id),
            _ => {}
        }
    }

    /// Bytes for a device. The first of them are its `bound`, or why not.
    fn take_data(&mut self, key: usize, bytes: &[u8]) {
        let phase = self.devices[key].phase;
        let mut bytes = bytes;
        if matches!(phase, Phase::Opening | Phase::Reopening)
            && let Ok(Some(head)) = take_head(bytes, usize::MAX)
            && let Ok(Frame::Bound(bound)) = decode(head.kind, &bytes[head.payload.clone()])
        {
            self.devices[key].phase = Phase::Live;
            self.beat_every(key, (bound.heartbeat_s as u32).saturating_mul(1_000));
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
            self.take_frames(key, &waiting);
            if let Some(device) = self.devices.get_mut(key).filter(|device| !device.readable) {
                device.readable = true;
                self.readable.push_back(key);
            }
        }
    }

    /// The core does not know this session: its device must come anew.
    fn forget(&mut self, index: usize, session: u64) {
        let is_it = |d: &Device| d.session == Some(session) && usize::from(d.upstream) == index;
        if let Some(key) = self.devices.iter().find(|(_, device)| is_it(device)).map(|(key, _)| key) {
            self.redirect(key, rand::random_range(0..=RECONNECT_SPREAD_MS), "the core does not know it");
        }
    }

    /// The names of our live sessions behind one link, for a comparison.
    fn list_sessions(&mut self, index: usize, question: u64) {
        let mut names = Vec::new();
        for (_, device) in &self.devices {
            if let (Phase::Live, Some(session)) = (device.phase, device.session)
                && usize::from(device.upstream) == index
            {
                names.extend_from_slice(&session.to_le_bytes());
            }
        }
        let out = &mut self.upstreams[index].out;
        for piece in names.chunks(crate::link::packet::PAYLOAD_BYTES_MAX / 8 * 8) {
            out.put(Kind::Sessions, question, piece);
        }
        out.put(Kind::Sessions, question, &[]);
    }

    fn write(&mut self, key: usize, bytes: &[u8]) {
        let buffer_max = self.config.session_buffer_bytes;
        let written = self.devices[key].write(bytes, buffer_max);
        self.after_write(key, written);
    }

    fn after_write(&mut self, key: usize, written: Written) {
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
    fn close(&mut self, key: usize, refusal: &Refusal) {
        if self.devices[key].phase == Phase::Closing {
            return;
        }
        self.shared.metrics.count_refusal(refusal.code);
        self.leave(key);
        self.closing(key);
        self.write(key, &fatal_error(refusal));
    }

    fn redirect(&mut self, key: usize, after_ms: u64, why: &'static str) {
        tracing::debug!(why, "a device is sent away");
        self.leave(key);
        self.closing(key);
        self.write(key, &Frame::Redirect { address: None, after_ms }.to_bytes());
    }

    /// The core has said all that it had to say.
    fn finish(&mut self, key: usize) {
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

    fn remove(&mut self, key: usize) {
        self.leave(key);
        let device = self.devices.remove(key);
        device.transport.end(self.poll.registry());
        self.shared.metrics.connections.dec();
        self.shared.open.fetch_sub(1, Ordering::Relaxed);
    }

    fn arm(&mut self, key: usize, tick: u32) {
        if let Some(device) = self.devices.get_mut(key).filter(|device| tick < device.due) {
            device.due = self.wheel.put(key, tick);
        }
    }

    fn check_times(&mut self) {
        let tick = self.tick();
        for (due, key) in self.wheel.advance(tick) {
            let Some(device) = self.devices.get_mut(key).filter(|device| device.due == due) else { continue };
            device.due = u32::MAX;
            let (limit, code) = match device.phase {
                Phase::Unbound | Phase::Opening | Phase::Reopening => {
                    (ticks(self.config.bind_timeout), Some(ErrorCode::BindTimeout))
                }
                Phase::Live | Phase::Detached => (silence_max(device.heartbeat_ms), Some(ErrorCode::HeartbeatTimeout)),
                Phase::Closing => (ticks(self.config.closing_timeout), None),
            };
            if device.phase == Phase::Detached && tick > self.away_since + ticks(AWAY_MAX) {
                self.redirect(key, rand::random_range(0..=RECONNECT_SPREAD_MS), "the core stayed away");
                continue;
            }
            if tick < device.heard + limit {
                let again = device.heard + limit;
                self.arm(key, again);
                continue;
            }
            match code {
                None => self.remove(key),
                Some(code) => {
                    let metrics = &self.shared.metrics;
                    if code == ErrorCode::BindTimeout { &metrics.bind_timeouts } else { &metrics.heartbeat_timeouts }
                        .inc();
                    self.close(key, &Refusal::new(code, "nothing was heard in time"));
                }
            }
        }
    }

    fn serve_upstreams(&mut self) {
        let tick = self.tick();
        let served: std::io::Result<()> = self.upstreams.iter_mut().try_for_each(|upstream| upstream.serve(tick));
        if let Err(error) = served {
            tracing::warn!(%error, "the link to the core is lost");
            self.lose_core();
        }
    }

    fn drain(&mut self, spread_ms: u64) {
        self.draining = true;
        let keys: Vec<usize> = self.devices.iter().map(|(key, _)| key).collect();
        for key in keys {
            if self.devices[key].phase != Phase::Closing {
                self.redirect(key, rand::random_range(0..=spread_ms.max(1)), "the gateway is draining");
            }
        }
    }
}
