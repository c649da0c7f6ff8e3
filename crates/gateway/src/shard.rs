//! The loop of one shard: sockets, commands, fan-outs, timers and flushes, a bounded amount of each per turn.
//!
//! Each module below this one has methods of [`Shard`]. In reading order:
//!
//! - [`reading`], [`decoding`]: bytes into frames, JSON into frames.
//! - [`binding`], [`resume`]: the two halves of a bind: a connection becomes its user's session, and the session goes live.
//! - [`session_tokens`]: the token that a session binds with, refreshes and ends with.
//! - [`requests`]: what the frames of a bound session do; [`miop`], [`store_reads`], [`receipts`], [`preferences`],
//!   [`typing`], [`streams`], [`popups`] and [`presence_watch`] have those of one kind each.
//! - [`defects`]: requests that panic on another thread, and are answered all the same.
//! - [`event_streams`]: sessions whose clients send frames by requests of their own.
//! - [`scheduler`]: fan-outs and flushes.
//! - [`push_delivery`]: pushes to devices; [`probing`]: whether the client of a session still answers.
//! - [`timeouts`], [`closing`]: when and how connections and their sessions end.
//! - [`links`]: the links to relays, and the connections behind them.
//! - [`session_listing`]: the sessions that exist, for comparison with the presence registry.

mod assignments;
mod attention;
mod binding;
mod closing;
mod decoding;
mod defects;
mod event_streams;
mod links;
mod message_changes;
mod miop;
mod popups;
mod preferences;
mod presence_watch;
mod probing;
mod push_delivery;
mod reading;
mod receipts;
mod requests;
mod resume;
mod scheduler;
mod session_listing;
mod session_tokens;
pub(crate) mod store_reads;
mod streams;
mod timeouts;
mod typing;

use crate::{
    commands::{Command, PostReply, ShardHandle},
    connection::{Connection, EndedStreams},
    link::{LINK_TOKENS, packet},
    open_connections::OpenConnections,
    session_config::SessionConfig,
    timer_wheel::{TICK, TimerWheel, ticks},
    token_verification::VerifyToken,
    transport::{DetachedConnection, Protocol, Transport},
    wake::{ShardWake, WAKE},
};
use crossbeam_channel::Receiver;
use links::Link;
use mio::{Events, Poll};
use probing::ProbePolicy;
use push_delivery::{PushScan, WaitingReports};
use scheduler::FlushScheduler;
use session_listing::SessionListing;
use slab::Slab;
use smallvec::SmallVec;
use std::{
    collections::VecDeque,
    io::ErrorKind,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use store_reads::StoreReads;
use tidings_domain::model::UserNo;
use tidings_engine::{Engine, chunked_slab::ChunkedSlab, delivery::Delivery, shards::ShardReceivers};
use tidings_listen::MaybeTlsSocket;
use tidings_notifications::Notifications;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    event_stream::StreamPost,
};

/// Commands processed before other work has its turn.
const COMMANDS_PER_TURN: usize = 256;

pub(crate) struct ShardParts {
    pub index: usize,
    pub poll: Poll,
    pub wake: Arc<ShardWake>,
    pub inbox: Receiver<Command>,
    pub receivers: ShardReceivers,
    pub config: SessionConfig,
    pub engine: Arc<Engine>,
    pub notifications: Arc<Notifications>,
    pub tokens: Arc<dyn VerifyToken>,
    pub shards: Vec<ShardHandle>,
    pub runtime: tokio::runtime::Handle,
    pub reads: Arc<StoreReads>,
    pub open: Arc<OpenConnections>,
}

pub(crate) struct Shard {
    parts: ShardParts,
    connections: ChunkedSlab<Connection>,
    links: Slab<Link>,
    /// The tick of the next look at which nodes take sessions.
    next_nodes_check: u32,
    listings: Vec<SessionListing>,
    listing_requests: u64,
    delivery: Delivery,
    scheduler: FlushScheduler,
    timers: TimerWheel,
    probe_policy: ProbePolicy,
    readable: VecDeque<usize>,
    /// The users whose memberships are to be read, with the numbers of the reads.
    unread_memberships: Vec<(UserNo, u64)>,
    /// Requests with frames for sessions over event streams.
    posts: VecDeque<(StreamPost, PostReply)>,
    ended_streams: EndedStreams,
    scratch: Vec<u8>,
    read_buffer: Vec<u8>,
    generation: u64,
    started: Instant,
    draining: bool,
    /// The push to many devices that is under way.
    push_scan: Option<PushScan>,
    push_reports: WaitingReports,
    stopping: bool,
}

/// What follows for a connection after one of its frames was handled.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum FrameOutcome {
    Continue,
    /// The connection is on its way to another shard, which handles the further frames, or is gone.
    Moved,
}

impl Shard {
    pub(crate) fn new(parts: ShardParts) -> Self {
        Shard {
            delivery: Delivery::starting_at(parts.engine.start_positions(), parts.engine.live_audience()),
            scheduler: FlushScheduler::new(parts.config.flush_interval),
            connections: ChunkedSlab::default(),
            links: Slab::new(),
            next_nodes_check: 0,
            listings: Vec::new(),
            listing_requests: 0,
            timers: TimerWheel::new(),
            probe_policy: ProbePolicy::new(parts.config.probe_after, parts.config.probe_timeout),
            readable: VecDeque::new(),
            unread_memberships: Vec::new(),
            posts: VecDeque::new(),
            ended_streams: EndedStreams::default(),
            scratch: Vec::new(),
            read_buffer: vec![0; packet::READ_BUFFER_BYTES],
            generation: 0,
            started: Instant::now(),
            draining: false,
            push_scan: None,
            push_reports: WaitingReports::default(),
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
            self.process_transient();
            self.read_connections();
            self.take_posts();
            self.read_links();
            self.process_fanouts();
            self.process_pushes();
            self.hand_over_due_reports();
            // Behind all that may begin a session's chat: what is left here would wait for the next turn, and nothing wakes that.
            self.read_memberships();
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
                || !shard.posts.is_empty()
                || shard.has_readable_links()
                || !shard.parts.inbox.is_empty()
                || !shard.parts.receivers.control.is_empty()
                || !shard.parts.receivers.transient.is_empty()
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
                let due = [self.scheduler.time_until_due(), self.push_reports.time_until_due()];
                timeout = due.into_iter().flatten().min().map_or(TICK, |due| due.min(TICK));
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
                Command::Adopt { socket, protocol, already_read, throttle_key, entered } => {
                    let Some(key) = self.register(socket, protocol) else { continue };
                    let connection = &mut self.connections[key];
                    (connection.throttle_key, connection.unbound) = (throttle_key, entered.begin(connection.session));
                    match connection.unbound {
                        Some(_) => self.handle_bytes(key, already_read),
                        None => self.end_unbound(key),
                    }
                }
                Command::EndUnbound { session } => self.find(session).into_iter().for_each(|key| self.end_unbound(key)),
                Command::CloseSlowReader { session } => {
                    self.find(session).into_iter().for_each(|key| self.close_slow_reader(key));
                }
                Command::Move(moved) => {
                    if let Some(key) = self.register_detached(moved.connection, moved.protocol) {
                        self.begin_bind(key, moved.bind, moved.heartbeat_ms);
                        self.handle_bytes(key, moved.already_read);
                    }
                }
                Command::Post { post, reply } => self.posts.push_back((post, reply)),
                Command::AdoptLink { socket, relay, lease, welcome, follows_cores } => {
                    self.adopt_link(socket, (relay, follows_cores), lease, &welcome);
                }
                Command::DropLinks { node } => self.drop_links_of(node),
                Command::List { user, reply } => self.start_listing(user, reply),
                Command::Correct { corrections, reply } => {
                    corrections.iter().for_each(|correction| self.correct(correction));
                    drop(reply);
                }
                Command::Memberships(reads) => reads.into_iter().for_each(|read| self.install_memberships(read)),
                Command::CaughtUp { session, result } => self.caught_up(session, result),
                Command::Missed { session, result } => self.go_live(session, result),
                Command::Submitted { session } => {
                    if let Some(key) = self.find(session) {
                        let connection = &mut self.connections[key];
                        connection.requests_in_flight = connection.requests_in_flight.saturating_sub(1);
                    }
                }
                Command::Answer { session, json, running } => {
                    drop(running);
                    if let Some(key) = self.find(session) {
                        let connection = &mut self.connections[key];
                        connection.requests_in_flight = connection.requests_in_flight.saturating_sub(1);
                        self.send_json(key, &json);
                    }
                }
                Command::Drain { spread_ms } => self.drain(spread_ms),
                Command::Stop => self.stopping = true,
            }
        }
    }

    /// The key of a session whose connection still exists.
    fn find(&self, session: u64) -> Option<usize> {
        let key = (session & u64::from(u32::MAX)) as usize;
        self.connections.get(key).filter(|c| c.session == session).map(|_| key)
    }

    /// All sessions of a user on this node, also those without chat.
    fn sessions_of(&self, user: UserNo) -> SmallVec<[usize; 2]> {
        let devices = self.parts.engine.presence.local_sessions(user);
        devices.iter().filter_map(|device| self.find(device.session)).collect()
    }

    fn tick(&self) -> u32 {
        (self.started.elapsed().as_millis() / TICK.as_millis()) as u32
    }

    fn register_detached(&mut self, connection: DetachedConnection, protocol: Protocol) -> Option<usize> {
        match connection {
            DetachedConnection::Socket(socket) => self.register(socket, protocol),
            DetachedConnection::Link { relay, remote } => self.register_virtual(relay, remote, protocol, 0),
        }
    }

    fn register(&mut self, socket: MaybeTlsSocket, protocol: Protocol) -> Option<usize> {
        let entry = self.connections.vacant_entry();
        let key = entry.key();
        let transport = match Transport::register(socket, self.parts.poll.registry(), key) {
            Ok(transport) => transport,
            Err(error) => {
                tracing::debug!(%error, "a connection could not be registered");
                self.parts.open.leave();
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
    fn remove(&mut self, key: usize) {
        self.unbind(key);
        let connection = self.connections.remove(key);
        self.parts.engine.metrics.connections.dec();
        if !connection.transport.is_virtual() {
            self.parts.open.leave();
        }
        connection.transport.end();
    }

    /// Takes a connection out of this shard for another one: its transport, and nothing else of its state.
    fn detach_connection(&mut self, key: usize) -> DetachedConnection {
        let connection = self.connections.remove(key);
        self.parts.engine.metrics.connections.dec();
        connection.transport.detach(self.parts.poll.registry())
    }
}
