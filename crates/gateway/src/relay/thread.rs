//! One thread of a relay: its devices' sockets, and a link to each shard of each core.
//!
//! In reading order: this file has the poll loop and the time-outs; `devices` the side of the devices; `links` the side of
//! the cores.

mod devices;
mod links;

use super::{
    Command, SharedState,
    attach::Attacher,
    core::Cores,
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
use mio::{Events, Poll, Token};
use std::{
    collections::VecDeque,
    io::ErrorKind,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use tidings_engine::chunked_slab::ChunkedSlab;
use tidings_protocol::error::{ErrorCode, Refusal};

/// Where a link is: the place of its core, and its number there.
struct LinkPlace;

impl LinkPlace {
    const LINKS_MAX: usize = 1 << 16;

    fn token(core: usize, link: usize) -> Token {
        Token(LINK_TOKENS + core * Self::LINKS_MAX + link)
    }

    fn of_token(Token(token): Token) -> Option<(usize, usize)> {
        token.checked_sub(LINK_TOKENS).map(|place| (place / Self::LINKS_MAX, place % Self::LINKS_MAX))
    }
}

const COMMANDS_PER_TURN: usize = 256;
/// The time over which the reconnects of devices are spread when a link is lost.
const RECONNECT_SPREAD_MS: u64 = 5_000;
/// Devices that stayed are asked to connect again when no core is back by then.
const CORE_AWAY_MAX: Duration = Duration::from_secs(600);

pub(super) struct RelayLoop {
    poll: Poll,
    wake: Arc<ShardWake>,
    inbox: Receiver<Command>,
    config: SessionConfig,
    shared: Arc<SharedState>,
    attacher: Attacher,
    devices: ChunkedSlab<DeviceConnection>,
    cores: Cores,
    /// There are links to a core.
    is_attached: bool,
    /// The tick of the next check which cores to attach to, and whether devices are to move.
    next_core_check: u32,
    /// The tick at which the last core went away.
    away_since: u32,
    timers: TimerWheel,
    readable: VecDeque<usize>,
    /// Devices whose binds are to be sent to a core again.
    reopen: VecDeque<usize>,
    /// The same, each from a tick on: a core could not take them.
    reopen_later: VecDeque<(u32, usize)>,
    /// The key from which devices that move to another core are looked for.
    next_to_move: usize,
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
        let cores = Cores::new(attacher.config.cores.clone(), rand::random_range(0..usize::from(u16::MAX)));
        RelayLoop {
            poll,
            wake,
            inbox,
            config,
            shared,
            attacher,
            devices: ChunkedSlab::default(),
            cores,
            is_attached: false,
            next_core_check: 0,
            away_since: 0,
            timers: TimerWheel::new(),
            readable: VecDeque::new(),
            reopen: VecDeque::new(),
            reopen_later: VecDeque::new(),
            next_to_move: 0,
            read_buffer: vec![0; packet::READ_BUFFER_BYTES],
            generation: 0,
            started: Instant::now(),
            draining: false,
            stopping: false,
        }
    }

    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(1_024);
        while !self.stopping {
            self.follow_cores();
            self.wait(&mut events);
            self.process_commands();
            self.read_devices();
            self.read_upstreams();
            self.reopen_devices();
            self.check_timeouts();
            self.flush_upstreams();
        }
    }

    fn tick(&self) -> u32 {
        (self.started.elapsed().as_millis() / TICK.as_millis()) as u32
    }

    fn upstreams(&self) -> impl Iterator<Item = &Upstream> {
        self.cores.list.iter().flat_map(|core| &core.links)
    }

    fn wait(&mut self, events: &mut Events) {
        let busy = |relay: &RelayLoop| {
            !relay.readable.is_empty()
                || !relay.inbox.is_empty()
                || (!relay.reopen.is_empty() && relay.cores.next(relay.tick()).is_some())
                || relay.upstreams().any(|upstream| upstream.readable)
        };
        let mut timeout = Duration::ZERO;
        if !busy(self) {
            self.wake.asleep.store(true, Ordering::SeqCst);
            // Commands sent between the first look and the flag would not have woken this thread.
            if busy(self) {
                self.wake.asleep.store(false, Ordering::SeqCst);
            } else {
                let due = self.upstreams().filter_map(Upstream::batch_due_at).min();
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
            if let Some((core, link)) = LinkPlace::of_token(event.token()) {
                let core = self.cores.list.get_mut(core);
                if let Some(upstream) = core.and_then(|core| core.links.get_mut(link)) {
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
                Command::Attached { core, links } => self.attached(&core, links),
                Command::Redirected { core } => self.cores.note_redirect(core),
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
            let is_away = device.phase == Phase::Detached && !self.cores.any_attached();
            if is_away && tick > self.away_since + ticks(CORE_AWAY_MAX) {
                self.redirect(key, rand::random_range(0..=RECONNECT_SPREAD_MS), "no core came back");
                continue;
            }
            if tick < device.last_heard + limit {
                let again = device.last_heard + limit;
                self.arm_timer(key, again);
                continue;
            }
            match code {
                None => self.remove(key),
                Some(_) if device.phase == Phase::Reopening => self.detach_for_a_while(key),
                Some(_) if device.phase == Phase::Opening => {
                    self.close_for_a_while(key, "the core did not answer in time; connect again");
                }
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
