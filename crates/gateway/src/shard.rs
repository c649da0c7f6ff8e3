//! The loop of one shard: sockets, commands, fan-outs, timers and flushes, a bounded amount of each per turn.

use crate::{
    commands::Command,
    connection::{Connection, Phase},
    link::{
        packet,
        virtual_connections::{LINK_TOKENS, Link},
    },
    probing::ProbePolicy,
    push_delivery::PushScan,
    scheduler::FlushScheduler,
    session_listing::SessionListing,
    session_server::{SessionConfig, ShardHandle, ShardWake, VerifyToken, WAKE},
    store_reads::StoreReads,
    timer_wheel::TimerWheel,
    transport::{DetachedConnection, MaybeTlsSocket, Protocol, Transport},
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

/// Commands processed before other work has its turn.
const COMMANDS_PER_TURN: usize = 256;
/// How long a session may last whose token had just expired when it bound.
const TOKEN_GRACE: Duration = Duration::from_secs(5);
/// The tick of the timer wheel: the precision of time-outs.
pub(crate) const TICK: Duration = Duration::from_millis(100);

pub(crate) struct ShardParts {
    pub index: usize,
    pub poll: Poll,
    pub wake: Arc<ShardWake>,
    pub inbox: Receiver<Command>,
    pub receivers: ShardReceivers,
    pub config: SessionConfig,
    pub engine: Arc<Engine>,
    pub tokens: Arc<dyn VerifyToken>,
    pub shards: Vec<ShardHandle>,
    pub runtime: tokio::runtime::Handle,
    pub reads: Arc<StoreReads>,
    pub open: Arc<AtomicUsize>,
}

pub(crate) struct Shard {
    pub(crate) parts: ShardParts,
    pub(crate) connections: Slab<Connection>,
    pub(crate) links: Slab<Link>,
    pub(crate) listings: Vec<SessionListing>,
    pub(crate) listing_requests: u64,
    pub(crate) delivery: Delivery,
    pub(crate) scheduler: FlushScheduler,
    pub(crate) timers: TimerWheel,
    pub(crate) probe_policy: ProbePolicy,
    pub(crate) readable: VecDeque<usize>,
    pub(crate) scratch: Vec<u8>,
    pub(crate) read_buffer: Vec<u8>,
    pub(crate) generation: u64,
    started: Instant,
    pub(crate) draining: bool,
    /// The push to many devices that is under way.
    pub(crate) push_scan: Option<PushScan>,
    stopping: bool,
}

/// What follows for a connection after one of its frames was handled.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum FrameOutcome {
    Continue,
    /// Handle no further frames now: they wait until the connection is unpaused.
    Paused,
    /// The connection is on its way to another shard, which handles the further frames, or is gone.
    Moved,
}

impl Shard {
    pub(crate) fn new(parts: ShardParts) -> Self {
        Shard {
            delivery: Delivery::starting_at(parts.engine.start_positions()),
            scheduler: FlushScheduler::new(parts.config.flush_interval),
            connections: Slab::new(),
            links: Slab::new(),
            listings: Vec::new(),
            listing_requests: 0,
            timers: TimerWheel::new(),
            probe_policy: ProbePolicy::new(parts.config.probe_after, parts.config.probe_timeout),
            readable: VecDeque::new(),
            scratch: Vec::new(),
            read_buffer: vec![0; packet::READ_BUFFER_BYTES],
            generation: 0,
            started: Instant::now(),
            draining: false,
            push_scan: None,
            stopping: false,
            parts,
        }
    }

    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(1_024);
        while !self.stopping {
            self.wait(&mut events);
            self.process_commands();
            self.process_controls();
            self.process_typing();
            self.read_connections();
            self.read_links();
            self.process_fanouts();
            self.process_pushes();
            self.check_timeouts();
            self.flush_connections();
            self.flush_links();
        }
        let keys: Vec<usize> = self.connections.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.remove(key);
        }
    }

    /// Sleeps until a socket, a command, a flush or a timer needs a turn.
    fn wait(&mut self, events: &mut Events) {
        let wake = &self.parts.wake;
        let busy = |shard: &Shard| {
            shard.scheduler.has_ready()
                || !shard.readable.is_empty()
                || shard.has_readable_links()
                || !shard.parts.inbox.is_empty()
                || !shard.parts.receivers.control.is_empty()
                || !shard.parts.receivers.typing.is_empty()
                || shard.parts.receivers.lanes.iter().any(|lane| !lane.is_empty())
                || shard.push_scan.is_some()
                || !shard.parts.receivers.push.is_empty()
        };
        let mut timeout = Duration::ZERO;
        if !busy(self) {
            wake.asleep.store(true, Ordering::SeqCst);
            // What was put in after the first look would not have woken us.
            if busy(self) {
                wake.asleep.store(false, Ordering::SeqCst);
            } else {
                timeout = self.scheduler.time_until_due().map_or(TICK, |due| due.min(TICK));
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
                self.mark_link_readable(key - LINK_TOKENS);
                continue;
            }
            let Some(connection) = self.connections.get_mut(key) else { continue };
            if event.is_writable() && (connection.blocked || connection.transport.has_unsent()) {
                if connection.blocked {
                    let tick = (self.started.elapsed().as_millis() / TICK.as_millis()) as u32;
                    self.probe_policy.note_write_progress(connection, tick);
                }
                connection.blocked = false;
                self.scheduler.flush_soon(connection, key);
            }
            connection.read_closed |= event.is_read_closed() || event.is_error();
            if (event.is_readable() || event.is_read_closed() || event.is_error()) && !connection.readable {
                connection.readable = true;
                self.readable.push_back(key);
            }
        }
    }

    fn process_commands(&mut self) {
        for _ in 0..COMMANDS_PER_TURN {
            let Ok(command) = self.parts.inbox.try_recv() else { return };
            match command {
                Command::Adopt { socket, protocol, already_read, throttle_key } => {
                    if let Some(key) = self.register(socket, protocol) {
                        self.connections[key].throttle_key = throttle_key;
                        self.handle_bytes(key, already_read);
                    }
                }
                Command::Move(moved) => {
                    if let Some(key) = self.register_detached(moved.connection, moved.protocol) {
                        self.begin_bind(key, moved.bind);
                        self.handle_bytes(key, moved.already_read);
                    }
                }
                Command::AdoptLink { socket, relay, lease, welcome } => self.adopt_link(socket, relay, lease, &welcome),
                Command::DropLinks { node } => self.drop_links_of(node),
                Command::List { user, reply } => self.start_listing(user, reply),
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
                        connection.requests_in_flight = connection.requests_in_flight.saturating_sub(1);
                        self.send_json(key, &json);
                    }
                }
                Command::Unpause { session } => {
                    if let Some(key) = self.find(session) {
                        self.connections[key].paused = false;
                        let waiting = std::mem::take(&mut self.connections[key].partial);
                        self.handle_bytes(key, waiting);
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

    /// The key of a session whose connection still exists.
    pub(crate) fn find(&self, session: u64) -> Option<usize> {
        let key = (session & u64::from(u32::MAX)) as usize;
        self.connections.get(key).filter(|c| c.session == session).map(|_| key)
    }

    pub(crate) fn tick(&self) -> u32 {
        (self.started.elapsed().as_millis() / TICK.as_millis()) as u32
    }

    fn register_detached(&mut self, connection: DetachedConnection, protocol: Protocol) -> Option<usize> {
        match connection {
            DetachedConnection::Socket(socket) => self.register(socket, protocol),
            DetachedConnection::Link { relay, remote } => self.register_virtual(relay, remote, protocol),
        }
    }

    fn register(&mut self, socket: MaybeTlsSocket, protocol: Protocol) -> Option<usize> {
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
        let connection = entry.insert(Connection::new(transport, protocol, session, tick));
        if connection.transport.may_have_buffered_input() {
            connection.readable = true;
            self.readable.push_back(key);
        }
        self.parts.engine.metrics.connections.inc();
        self.arm_timeout(key, tick + ticks(self.parts.config.bind_timeout));
        if self.draining {
            self.close(key, Refusal::new(ErrorCode::Draining, "the server is draining"));
        }
        Some(key)
    }

    /// Removes a connection whose socket is closed or no longer wanted.
    pub(crate) fn remove(&mut self, key: usize) {
        self.unbind(key);
        let connection = self.connections.remove(key);
        self.parts.engine.metrics.connections.dec();
        if !connection.transport.is_virtual() {
            self.parts.open.fetch_sub(1, Ordering::Relaxed);
        }
        connection.transport.end(self.parts.poll.registry());
    }

    /// Takes a connection out of this shard for another one: its transport, and nothing else of its state.
    pub(crate) fn detach_connection(&mut self, key: usize) -> DetachedConnection {
        let connection = self.connections.remove(key);
        self.parts.engine.metrics.connections.dec();
        connection.transport.detach(self.parts.poll.registry())
    }

    /// Queues the reason, and closes the connection once it is written.
    pub(crate) fn close(&mut self, key: usize, refusal: Refusal) {
        self.close_answering(key, None, refusal);
    }

    /// The same, with the reason as the answer to a request.
    pub(crate) fn close_answering(&mut self, key: usize, reference: Option<u64>, refusal: Refusal) {
        let close_code = refusal.code.close_code();
        self.close_with(key, reference, refusal, close_code);
    }

    /// The same, with another code in a WebSocket's close frame.
    pub(crate) fn close_with(&mut self, key: usize, reference: Option<u64>, refusal: Refusal, close_code: u16) {
        self.unbind(key);
        let tick = self.tick();
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.phase == Phase::Closing {
            return;
        }
        self.parts.engine.metrics.count_refusal(refusal.code);
        connection.phase = Phase::Closing;
        connection.last_heard = tick;
        connection.partial = Vec::new();
        connection.assembly.clear();
        connection.outbound.clear_queued();
        connection.queue_close(reference, &refusal, close_code);
        self.scheduler.flush_soon(connection, key);
        self.arm_timeout(key, tick + ticks(self.parts.config.closing_timeout));
    }

    /// Has the connection's time-outs checked at `tick` or earlier, unless a relay holds the connection: the relay checks
    /// them.
    pub(crate) fn arm_timeout(&mut self, key: usize, tick: u32) {
        if !self.connections.get(key).is_some_and(|connection| connection.transport.is_virtual()) {
            self.arm_timer(key, tick);
        }
    }

    /// The same for what a relay does not check: tokens and probes.
    pub(crate) fn arm_timer(&mut self, key: usize, tick: u32) {
        if let Some(connection) = self.connections.get_mut(key).filter(|connection| tick < connection.timer_due) {
            connection.timer_due = self.timers.put(key, tick);
        }
    }

    /// Ends the session when its token expires.
    pub(crate) fn end_with_token(&mut self, key: usize, expires_at: u64) {
        // A token that had just expired was accepted because clocks differ: the session has the time by which they may differ.
        let left_ms = expires_at.saturating_sub(self.parts.engine.clock.now_ms());
        let left = if left_ms == 0 { TOKEN_GRACE } else { Duration::from_millis(left_ms) };
        let ticks = u32::try_from(left.as_millis().div_ceil(TICK.as_millis())).unwrap_or(u32::MAX);
        // One more, since the current tick has begun already: the session never ends before its token.
        let expires = self.tick().saturating_add(ticks).saturating_add(1);
        self.connections[key].token_expires = expires;
        self.arm_timer(key, expires);
    }

    fn check_timeouts(&mut self) {
        let tick = self.tick();
        for (due, key) in self.timers.advance(tick) {
            let Some(connection) = self.connections.get_mut(key).filter(|c| c.timer_due == due) else { continue };
            connection.timer_due = u32::MAX;
            let is_bound = matches!(connection.phase, Phase::Binding | Phase::Live);
            let (limit, code) = match connection.phase {
                Phase::Unbound => (ticks(self.parts.config.bind_timeout), Some(ErrorCode::BindTimeout)),
                Phase::Binding | Phase::Live => {
                    (silence_max(connection.heartbeat_ms), Some(ErrorCode::HeartbeatTimeout))
                }
                Phase::Closing => (ticks(self.parts.config.closing_timeout), None),
            };
            if is_bound && tick >= connection.token_expires {
                let why = "the token has expired (`exp`); bind again with a new one";
                self.close(key, Refusal::new(ErrorCode::TokenExpired, why));
                continue;
            }
            let probe = connection.unconfirmed.as_ref().map(|unconfirmed| unconfirmed.next_tick);
            if tick < connection.last_heard + limit || connection.transport.is_virtual() {
                let again = connection.last_heard + limit;
                let expires = if is_bound { connection.token_expires } else { u32::MAX };
                match probe {
                    Some(next) if next <= tick => self.probe(key, tick),
                    Some(next) => self.arm_timer(key, next),
                    None => {}
                }
                self.arm_timeout(key, again);
                self.arm_timer(key, expires);
                continue;
            }
            match code {
                None => self.remove(key),
                Some(code) => {
                    let counter = &self.parts.engine.metrics;
                    if code == ErrorCode::BindTimeout { &counter.bind_timeouts } else { &counter.heartbeat_timeouts }
                        .inc();
                    self.close_unconfirmed(key, Refusal::new(code, "nothing was heard in time"));
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
            // A relay keeps its connections until this node is back or the relay has waited long enough.
            if self.connections[key].phase != Phase::Closing && !self.connections[key].transport.is_virtual() {
                self.close_after(key, frame, refusal);
            }
        }
    }
}

/// Ticks of silence after which a session is closed: its heartbeat interval and half as much again.
pub(crate) fn silence_max(heartbeat_ms: u32) -> u32 {
    ticks(Duration::from_millis(u64::from(heartbeat_ms) * 3 / 2))
}

pub(crate) fn ticks(duration: Duration) -> u32 {
    (duration.as_millis() / TICK.as_millis()).max(1) as u32
}
