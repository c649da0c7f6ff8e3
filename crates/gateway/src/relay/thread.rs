//! One thread of a relay: its devices' sockets, and a link to each shard of the core.
//!
//! In reading order: this file has the poll loop and the time-outs; `devices` the side of the devices; `links` the side of
//! the core.

mod devices;
mod links;

use super::{
    Command, SharedState,
    attach::Attacher,
    device_connection::{DeviceConnection, Phase},
    upstream::Upstream,
};
use crate::{
    link::{LINK_TOKENS, packet},
    session_config::{SessionConfig, silence_max},
    timer_wheel::{TICK, TimerWheel, ticks},
    wake::{ShardWake, WAKE},
};
use crossbeam_channel::Receiver;
use mio::{Events, Poll};
use std::{
    collections::VecDeque,
    io::ErrorKind,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use tidings_engine::chunked_slab::ChunkedSlab;
use tidings_protocol::error::{ErrorCode, Refusal};

const COMMANDS_PER_TURN: usize = 256;
/// With more bytes waiting on a link than this, devices are not read: the core is behind.
const CONGESTED_BYTES: usize = 8 * 1024 * 1024;
/// The time over which the reconnects of devices are spread when a link is lost.
const RECONNECT_SPREAD_MS: u64 = 5_000;
/// Devices that stayed are asked to connect again when the core is not back by then.
const CORE_AWAY_MAX: Duration = Duration::from_secs(600);

pub(super) struct RelayLoop {
    poll: Poll,
    wake: Arc<ShardWake>,
    inbox: Receiver<Command>,
    config: SessionConfig,
    shared: Arc<SharedState>,
    attacher: Attacher,
    devices: ChunkedSlab<DeviceConnection>,
    upstreams: Vec<Upstream>,
    is_attached: bool,
    core: String,
    /// The tick of the next check whether the core has moved.
    next_core_check: u32,
    /// The tick at which the core went away.
    away_since: u32,
    timers: TimerWheel,
    readable: VecDeque<usize>,
    /// Devices whose binds are still to be sent to the core again.
    reopen: VecDeque<usize>,
    /// The buffer of all reads; the longest frame fits.
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
        config: SessionConfig,
        shared: Arc<SharedState>,
        attacher: Attacher,
    ) -> Self {
        RelayLoop {
            poll,
            wake,
            inbox,
            config,
            shared,
            attacher,
            devices: ChunkedSlab::default(),
            upstreams: Vec::new(),
            is_attached: false,
            core: String::new(),
            next_core_check: 0,
            away_since: 0,
            timers: TimerWheel::new(),
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
            self.process_commands();
            self.read_devices();
            self.read_upstreams();
            self.reopen_devices();
            self.check_timeouts();
            self.flush_upstreams();
            self.follow_core();
        }
    }

    fn tick(&self) -> u32 {
        (self.started.elapsed().as_millis() / TICK.as_millis()) as u32
    }

    fn is_congested(&self) -> bool {
        self.upstreams.iter().any(|upstream| upstream.pending_bytes() > CONGESTED_BYTES)
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
            // Commands sent between the first look and the flag would not have woken this thread.
            if busy(self) {
                self.wake.asleep.store(false, Ordering::SeqCst);
            } else {
                let due = self.upstreams.iter().filter_map(Upstream::batch_due_at).min();
                timeout = due.map_or(TICK, |due| due.saturating_duration_since(Instant::now()).min(TICK));
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
            device.read_closed |= event.is_read_closed() || event.is_error();
            if (event.is_readable() || device.read_closed) && !device.readable {
                device.readable = true;
                self.readable.push_back(key);
            }
            if event.is_writable() && (device.blocked || device.transport.has_unsent()) {
                let written = device.resume_write();
                self.after_write(key, written);
            }
        }
    }

    fn process_commands(&mut self) {
        for _ in 0..COMMANDS_PER_TURN {
            let Ok(command) = self.inbox.try_recv() else { return };
            match command {
                Command::Adopt { socket, already_read, entered } => self.adopt(socket, already_read, entered),
                Command::EndUnbound { id } => self.end_unbound(id),
                Command::CloseSlowReader { id } => self.close_slow_reader(id),
                Command::Attached { core, links, lease } => self.attached(core, links, lease),
                Command::Drain { spread_ms } => self.drain(spread_ms),
                Command::Stop => self.stopping = true,
            }
        }
    }

    fn arm_timer(&mut self, key: usize, tick: u32) {
        if let Some(device) = self.devices.get_mut(key).filter(|device| tick < device.timer_due) {
            device.timer_due = self.timers.put(key, tick);
        }
    }

    fn check_timeouts(&mut self) {
        let tick = self.tick();
        for (due, key) in self.timers.advance(tick) {
            let Some(device) = self.devices.get_mut(key).filter(|device| device.timer_due == due) else { continue };
            device.timer_due = u32::MAX;
            let (limit, code) = match device.phase {
                Phase::Unbound | Phase::Opening | Phase::Reopening => {
                    (ticks(self.config.bind_timeout), Some(ErrorCode::BindTimeout))
                }
                Phase::Live | Phase::Detached => (silence_max(device.heartbeat_ms), Some(ErrorCode::HeartbeatTimeout)),
                Phase::Closing => (ticks(self.config.closing_timeout), None),
            };
            if device.phase == Phase::Detached && tick > self.away_since + ticks(CORE_AWAY_MAX) {
                self.redirect(key, rand::random_range(0..=RECONNECT_SPREAD_MS), "the core stayed away");
                continue;
            }
            if tick < device.last_heard + limit {
                let again = device.last_heard + limit;
                self.arm_timer(key, again);
                continue;
            }
            match code {
                None => self.remove(key),
                Some(code) => {
                    let metrics = &self.shared.metrics;
                    if code == ErrorCode::BindTimeout { &metrics.bind_timeouts } else { &metrics.heartbeat_timeouts }
                        .inc();
                    self.close(key, &Refusal::new(code, "the client sent nothing in time"));
                }
            }
        }
    }
}
