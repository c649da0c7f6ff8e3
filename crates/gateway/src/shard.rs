//! The loop of one shard: sockets, commands, fan-outs, timers, flushes, a bounded piece of each.

use crate::{
    commands::Command,
    connection::{Connection, Phase},
    gateway::{GatewayConfig, ShardHandle, ShardWake, VerifyToken, WAKE},
    link::{
        packet,
        virtual_connections::{LINK_TOKENS, Link},
    },
    listing::Listing,
    probing::Probes,
    pushing::Walk,
    reads::Reads,
    transport::{Door, MaybeTlsSocket, Passage, Transport},
    turn::Schedule,
    wheel::Wheel,
};
use crossbeam_channel::Receiver;
use mio::{Events, Poll};
use slab::Slab;
use std::{
    collections::VecDeque,
    io::ErrorKind,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tidings_engine::{Engine, delivery::Delivery, shards::ShardReceivers};
use tidings_protocol::error::{ErrorCode, Refusal};

/// Commands taken before others have their turn.
const COMMANDS_PER_TURN: usize = 256;
/// How long a session may go on whose token had just expired when it bound.
const TOKEN_GRACE: Duration = Duration::from_secs(5);
/// The wheel's tick: time-outs are kept to about this.
pub(crate) const TICK: Duration = Duration::from_millis(100);

pub(crate) struct ShardParts {
    pub index: usize,
    pub poll: Poll,
    pub wake: Arc<ShardWake>,
    pub inbox: Receiver<Command>,
    pub receivers: ShardReceivers,
    pub config: GatewayConfig,
    pub engine: Arc<Engine>,
    pub tokens: Arc<dyn VerifyToken>,
    pub shards: Vec<ShardHandle>,
    pub runtime: tokio::runtime::Handle,
    pub reads: Arc<Reads>,
    pub open: Arc<AtomicUsize>,
}

pub(crate) struct Shard {
    pub(crate) parts: ShardParts,
    pub(crate) connections: Slab<Connection>,
    pub(crate) links: Slab<Link>,
    pub(crate) listings: Vec<Listing>,
    pub(crate) questions: u64,
    pub(crate) delivery: Delivery,
    pub(crate) schedule: Schedule,
    pub(crate) wheel: Wheel,
    pub(crate) probes: Probes,
    pub(crate) readable: VecDeque<usize>,
    pub(crate) scratch: Vec<u8>,
    pub(crate) read_buffer: Vec<u8>,
    pub(crate) generation: u64,
    started: Instant,
    pub(crate) draining: bool,
    /// The push to many that is on its way.
    pub(crate) pushing: Option<Walk>,
    stopping: bool,
}

/// Whether the connection that was served is still here.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum After {
    Stays,
    /// Take no further frames now: what follows waits.
    Pauses,
    /// It moved to another shard, which takes what follows.
    Moves,
}

impl Shard {
    pub(crate) fn new(parts: ShardParts) -> Self {
        Shard {
            delivery: Delivery::starting_at(parts.engine.started_at()),
            schedule: Schedule::new(parts.config.flush_interval),
            connections: Slab::new(),
            links: Slab::new(),
            listings: Vec::new(),
            questions: 0,
            wheel: Wheel::new(),
            probes: Probes::new(parts.config.probe_after, parts.config.probe_timeout),
            readable: VecDeque::new(),
            scratch: Vec::new(),
            read_buffer: vec![0; packet::READ_BUFFER_BYTES],
            generation: 0,
            started: Instant::now(),
            draining: false,
            pushing: None,
            stopping: false,
            parts,
        }
    }

    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(1_024);
        while !self.stopping {
            self.wait(&mut events);
            self.take_commands();
            self.take_control();
            self.tell_of_typing();
            self.read_some();
            self.read_links();
            self.take_fanouts();
            self.take_pushes();
            self.check_times();
            self.flush_some();
            self.serve_links();
        }
        let keys: Vec<usize> = self.connections.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.remove(key);
        }
    }

    /// Sleeps until a socket, a command, a flush or the wheel needs a turn.
    fn wait(&mut self, events: &mut Events) {
        let wake = &self.parts.wake;
        let busy = |shard: &Shard| {
            shard.schedule.has_ready()
                || !shard.readable.is_empty()
                || shard.links_wait()
                || !shard.parts.inbox.is_empty()
                || !shard.parts.receivers.control.is_empty()
                || !shard.parts.receivers.typing.is_empty()
                || shard.parts.receivers.lanes.iter().any(|lane| !lane.is_empty())
                || shard.pushing.is_some()
                || !shard.parts.receivers.push.is_empty()
        };
        let mut timeout = Duration::ZERO;
        if !busy(self) {
            wake.asleep.store(true, Ordering::SeqCst);
            // What was put in after the first look would not have woken us.
            if busy(self) {
                wake.asleep.store(false, Ordering::SeqCst);
            } else {
                timeout = self.schedule.until_due().map_or(TICK, |due| due.min(TICK));
            }
        }
        if let Err(error) = self.parts.poll.poll(events, Some(timeout))
            && error.kind() != ErrorKind::Interrupted
        {
            tracing::error!(%error, "poll failed");
        }
        wake.asleep.store(false, Ordering::SeqCst);
        for event in events.iter() {
            if event.token() == WAKE {
                continue;
            }
            let key = event.token().0;
            if key >= LINK_TOKENS {
                self.link_event(key - LINK_TOKENS);
                continue;
            }
            let Some(connection) = self.connections.get_mut(key) else { continue };
            if event.is_writable() && (connection.blocked || connection.transport.holds_unsent()) {
                if connection.blocked {
                    let tick = (self.started.elapsed().as_millis() / TICK.as_millis()) as u32;
                    self.probes.progressed(connection, tick);
                }
                connection.blocked = false;
                self.schedule.flush_soon(connection, key);
            }
            connection.ending |= event.is_read_closed() || event.is_error();
            if (event.is_readable() || event.is_read_closed() || event.is_error()) && !connection.readable {
                connection.readable = true;
                self.readable.push_back(key);
            }
        }
    }

    fn take_commands(&mut self) {
        for _ in 0..COMMANDS_PER_TURN {
            let Ok(command) = self.parts.inbox.try_recv() else { return };
            match command {
                Command::Adopt { socket, door, already_read, throttle_key } => {
                    if let Some(key) = self.register(socket, door) {
                        self.connections[key].throttle_key = throttle_key;
                        self.take_bytes(key, already_read);
                    }
                }
                Command::Move(moving) => {
                    if let Some(key) = self.register_passage(moving.passage, moving.door) {
                        self.begin_bind(key, moving.bind);
                        self.take_bytes(key, moving.already_read);
                    }
                }
                Command::AdoptLink { socket, relay, lease, welcome } => self.adopt_link(socket, relay, lease, &welcome),
                Command::DropLinks { node } => self.drop_links_of(node),
                Command::List { user, reply } => self.begin_listing(user, reply),
                Command::Correct { corrections, reply } => {
                    corrections.iter().for_each(|correction| self.correct(correction));
                    drop(reply);
                }
                Command::Memberships { user, number, result } => self.install_memberships(user, number, result),
                Command::CaughtUp { session, result } => self.caught_up(session, result),
                Command::Missed { session, result } => self.go_live(session, result),
                Command::Answer { session, json } => {
                    if let Some(key) = self.find(session) {
                        let connection = &mut self.connections[key];
                        connection.requests = connection.requests.saturating_sub(1);
                        self.push(key, &json);
                    }
                }
                Command::GoOn { session } => {
                    if let Some(key) = self.find(session) {
                        self.connections[key].paused = false;
                        let waiting = std::mem::take(&mut self.connections[key].partial);
                        self.take_bytes(key, waiting);
                        if let Some(connection) = self.connections.get_mut(key).filter(|c| !c.readable) {
                            connection.readable = true;
                            self.readable.push_back(key);
                        }
                    }
                }
                Command::Drain { spread_ms } => self.drain(spread_ms),
                Command::Stop => self.stopping = true,
            }
        }
    }

    /// The key of a session that is still here.
    pub(crate) fn find(&self, session: u64) -> Option<usize> {
        let key = (session & u64::from(u32::MAX)) as usize;
        self.connections.get(key).filter(|c| c.session == session).map(|_| key)
    }

    pub(crate) fn tick(&self) -> u32 {
        (self.started.elapsed().as_millis() / TICK.as_millis()) as u32
    }

    fn register_passage(&mut self, passage: Passage, door: Door) -> Option<usize> {
        match passage {
            Passage::Socket(socket) => self.register(socket, door),
            Passage::Link { relay, remote } => self.register_virtual(relay, remote, door),
        }
    }

    fn register(&mut self, socket: MaybeTlsSocket, door: Door) -> Option<usize> {
        let entry = self.connections.vacant_entry();
        let key = entry.key();
        let transport = match Transport::register(socket, self.parts.poll.registry(), key) {
            Ok(transport) => transport,
            Err(error) => {
                tracing::debug!(%error, "a connection could not be registered");
                self.parts.open.fetch_sub(1, Ordering::Relaxed);
                return None;
            }
        };
        self.generation += 1;
        let session = (self.generation << 32) | key as u64;
        let tick = (self.started.elapsed().as_millis() / TICK.as_millis()) as u32;
        let connection = entry.insert(Connection::new(transport, door, session, tick));
        if connection.transport.may_hold_bytes() {
            connection.readable = true;
            self.readable.push_back(key);
        }
        self.parts.engine.metrics.connections.inc();
        self.arm(key, tick + ticks(self.parts.config.bind_timeout));
        if self.draining {
            self.close(key, Refusal::new(ErrorCode::Draining, "the server is draining"));
        }
        Some(key)
    }

    /// Forgets a connection whose socket is gone or no longer wanted.
    pub(crate) fn remove(&mut self, key: usize) {
        self.unbind(key);
        let connection = self.connections.remove(key);
        self.parts.engine.metrics.connections.dec();
        if !connection.transport.is_virtual() {
            self.parts.open.fetch_sub(1, Ordering::Relaxed);
        }
        connection.transport.end(self.parts.poll.registry());
    }

    /// Hands a connection to another shard: its socket, and nothing else of it.
    pub(crate) fn take_out(&mut self, key: usize) -> Passage {
        let connection = self.connections.remove(key);
        self.parts.engine.metrics.connections.dec();
        connection.transport.into_passage(self.parts.poll.registry())
    }

    /// Says why, then closes once that is written.
    pub(crate) fn close(&mut self, key: usize, refusal: Refusal) {
        self.close_answering(key, None, refusal);
    }

    /// The same as the answer to a request.
    pub(crate) fn close_answering(&mut self, key: usize, reference: Option<u64>, refusal: Refusal) {
        let close_code = refusal.code.close_code();
        self.close_with(key, reference, refusal, close_code);
    }

    /// The same with another number in a WebSocket's close frame.
    pub(crate) fn close_with(&mut self, key: usize, reference: Option<u64>, refusal: Refusal, close_code: u16) {
        self.unbind(key);
        let tick = self.tick();
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.phase == Phase::Closing {
            return;
        }
        self.parts.engine.metrics.count_refusal(refusal.code);
        connection.phase = Phase::Closing;
        connection.heard = tick;
        connection.partial = Vec::new();
        connection.assembly.clear();
        connection.outgoing.clear_items();
        connection.push_close(reference, &refusal, close_code);
        self.schedule.flush_soon(connection, key);
        self.arm(key, tick + ticks(self.parts.config.closing_timeout));
    }

    /// Has the connection looked at no later than `tick`, unless a relay holds it, which does that for it.
    pub(crate) fn arm(&mut self, key: usize, tick: u32) {
        if !self.connections.get(key).is_some_and(|connection| connection.transport.is_virtual()) {
            self.arm_any(key, tick);
        }
    }

    pub(crate) fn arm_any(&mut self, key: usize, tick: u32) {
        if let Some(connection) = self.connections.get_mut(key).filter(|connection| tick < connection.due) {
            connection.due = self.wheel.put(key, tick);
        }
    }

    /// Ends the session when its token's time is over.
    pub(crate) fn end_with_token(&mut self, key: usize, expires_at: u64) {
        // One that was taken though its time is just over, since clocks differ, has as much time as they may differ by.
        let left_ms = expires_at.saturating_sub(self.parts.engine.clock.now_ms());
        let left = if left_ms == 0 { TOKEN_GRACE } else { Duration::from_millis(left_ms) };
        let ticks = u32::try_from(left.as_millis().div_ceil(TICK.as_millis())).unwrap_or(u32::MAX);
        // The tick that it is now has begun already: never before the time.
        let expires = self.tick().saturating_add(ticks).saturating_add(1);
        self.connections[key].expires = expires;
        self.arm_any(key, expires);
    }

    fn check_times(&mut self) {
        let tick = self.tick();
        for (due, key) in self.wheel.advance(tick) {
            let Some(connection) = self.connections.get_mut(key).filter(|c| c.due == due) else { continue };
            connection.due = u32::MAX;
            let is_bound = matches!(connection.phase, Phase::Binding | Phase::Live);
            let (limit, code) = match connection.phase {
                Phase::Unbound => (ticks(self.parts.config.bind_timeout), Some(ErrorCode::BindTimeout)),
                Phase::Binding | Phase::Live => {
                    (silence_max(connection.heartbeat_ms), Some(ErrorCode::HeartbeatTimeout))
                }
                Phase::Closing => (ticks(self.parts.config.closing_timeout), None),
            };
            if is_bound && tick >= connection.expires {
                let why = "the token has expired (`exp`); bind again with a new one";
                self.close(key, Refusal::new(ErrorCode::TokenExpired, why));
                continue;
            }
            let probe = connection.unheard.as_ref().map(|unheard| unheard.next);
            if tick < connection.heard + limit || connection.transport.is_virtual() {
                let again = connection.heard + limit;
                let expires = if is_bound { connection.expires } else { u32::MAX };
                match probe {
                    Some(next) if next <= tick => self.probe(key, tick),
                    Some(next) => self.arm_any(key, next),
                    None => {}
                }
                self.arm(key, again);
                self.arm_any(key, expires);
                continue;
            }
            match code {
                None => self.remove(key),
                Some(code) => {
                    let counter = &self.parts.engine.metrics;
                    if code == ErrorCode::BindTimeout { &counter.bind_timeouts } else { &counter.heartbeat_timeouts }
                        .inc();
                    self.close_unheard(key, Refusal::new(code, "nothing was heard in time"));
                }
            }
        }
    }

    fn drain(&mut self, spread_ms: u64) {
        self.draining = true;
        let keys: Vec<usize> = self.connections.iter().map(|(key, _)| key).collect();
        for key in keys {
            let after_ms = rand::random_range(0..=spread_ms.max(1));
            let refusal =
                Refusal::new(ErrorCode::Draining, "the server is draining; connect again").retry_after(after_ms);
            let frame = self.connections[key].reconnect_frame(after_ms);
            // What a relay holds it keeps, until we are back or it has waited long enough.
            if self.connections[key].phase != Phase::Closing && !self.connections[key].transport.is_virtual() {
                self.close_after(key, frame, refusal);
            }
        }
    }
}

/// Ticks of silence after which a session with this heartbeat is given up: half as much again.
pub(crate) fn silence_max(heartbeat_ms: u32) -> u32 {
    ticks(Duration::from_millis(u64::from(heartbeat_ms) * 3 / 2))
}

pub(crate) fn ticks(duration: Duration) -> u32 {
    (duration.as_millis() / TICK.as_millis()).max(1) as u32
}
