//! Schedules a shard's fan-outs and flushes.
//!
//! The lanes meet here, since a socket has one writer. Priority and small batches keep them apart: direct fan-outs and
//! the sessions that they wrote to come first, bulk flushes run in small batches, and between two batches the direct lane
//! is polled again.

use super::{Shard, attention::AckPolicy, probing::ProbePolicy};
use crate::{
    commands::Command,
    connection::{Connection, FlushState, Phase},
    encoding::{SharedFrame, json},
    outbound_queue::FlushOutcome,
    timer_wheel::TimerWheel,
};
use std::{
    collections::VecDeque,
    num::NonZeroU64,
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::{model::*, notification_counts::ChannelEvent};
use tidings_engine::{
    chunked_slab::ChunkedSlab,
    delivery::{Block, Chunk, Fanout, SessionKey, Sink},
    shards::{Control, Signal},
};
use tidings_listen::Client;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    frames::ServerFrame,
    http::Channel,
};

/// Direct fan-outs per poll of the lane.
const DIRECT_PER_POLL: usize = 8;
/// Sessions of the bulk queue flushed between two polls of the direct lane.
const BULK_BATCH: usize = 16;
/// Time for bulk flushes before sockets are read again.
const BULK_TURN: Duration = Duration::from_millis(2);
/// Controls processed per poll of their queue.
const CONTROLS_PER_POLL: usize = 64;

/// Which connections have something to write, and when they are flushed.
pub(super) struct FlushScheduler {
    urgent: VecDeque<usize>,
    bulk: VecDeque<usize>,
    /// Connections that were flushed a moment ago: they batch more entries until the instant. Ordered by time, since all
    /// have the same interval.
    delayed: VecDeque<(Instant, usize)>,
    interval: Duration,
    /// A connection was flushed whose bytes do not wait for others on its link.
    was_urgent: bool,
    /// What a connection's `flushed_at` counts from: eight bytes less than an instant, in each session.
    began: Instant,
}

impl FlushScheduler {
    pub(super) fn new(interval: Duration) -> Self {
        let [urgent, bulk] = Default::default();
        FlushScheduler { urgent, bulk, delayed: VecDeque::new(), interval, was_urgent: false, began: Instant::now() }
    }

    /// The connection is flushed now.
    fn note_flush(&self, connection: &mut Connection) {
        connection.flushed_at = NonZeroU64::new(self.began.elapsed().as_micros() as u64);
    }

    /// Whether a connection was flushed urgently since the last call.
    pub(super) fn take_was_urgent(&mut self) -> bool {
        std::mem::take(&mut self.was_urgent)
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.urgent.is_empty() || !self.bulk.is_empty()
    }

    /// Whether so many bulk sessions wait to be flushed that no further group or broadcast fan-outs are applied.
    pub(super) fn has_bulk_backlog(&self) -> bool {
        self.bulk.len() > BULK_BATCH * 4
    }

    pub(super) fn time_until_due(&self) -> Option<Duration> {
        self.delayed.front().map(|(due, _)| due.saturating_duration_since(Instant::now()))
    }

    /// Flushes the connection in this turn: an answer or a control frame waits.
    pub(super) fn flush_soon(&mut self, connection: &mut Connection, key: usize) {
        if !connection.blocked && connection.flush_state != FlushState::Urgent {
            connection.flush_state = FlushState::Urgent;
            self.urgent.push_back(key);
        }
    }

    /// Flushes a session with new entries: at once if it was not flushed lately, otherwise when the flush interval since
    /// then is over, so that more entries share one write.
    pub(super) fn flush_batched(&mut self, connection: &mut Connection, key: usize, lane: Lane, now: Instant) {
        if connection.blocked || connection.phase != Phase::Live || connection.flush_state != FlushState::Idle {
            return;
        }
        let due = connection.flushed_at.map(|at| self.began + Duration::from_micros(at.get()) + self.interval);
        let due = due.filter(|due| *due > now);
        let (flush_state, queue) = match (due, lane) {
            (Some(due), _) => {
                connection.flush_state = FlushState::Delayed;
                self.delayed.push_back((due, key));
                return;
            }
            (None, Lane::Direct) => (FlushState::Urgent, &mut self.urgent),
            (None, _) => (FlushState::Bulk, &mut self.bulk),
        };
        connection.flush_state = flush_state;
        queue.push_back(key);
    }

    fn move_due(&mut self, now: Instant) {
        while let Some((due, key)) = self.delayed.front().copied() {
            if due > now {
                return;
            }
            self.delayed.pop_front();
            self.bulk.push_back(key);
        }
    }
}

/// Queues a fan-out's entries on sessions.
struct SessionSink<'a> {
    connections: &'a mut ChunkedSlab<Connection>,
    scheduler: &'a mut FlushScheduler,
    buffer_max: usize,
    now: Instant,
    probe_policy: &'a ProbePolicy,
    ack_policy: AckPolicy,
    timers: &'a mut TimerWheel,
    tick: u32,
    now_ms: u64,
    /// Sessions that had acknowledged all before.
    begun: u64,
    /// Sessions whose buffer is over its limit.
    slow: Vec<SessionKey>,
    /// The frame of the chunk that was handed to a session last.
    frame: Option<(Arc<Chunk>, SharedFrame)>,
}

impl Sink for SessionSink<'_> {
    fn block(&mut self, session: SessionKey, block: &Arc<Block>, lane: Lane, through: Position) {
        let connection = &mut self.connections[session];
        connection.outbound.queue_block(block, lane, through, connection.is_compact);
        if connection.unconfirmed.is_none() {
            let since = connection.cursor;
            self.probe_policy.begin(connection, session, since, self.tick, self.timers);
        }
        if connection.acknowledges {
            let begun = self.ack_policy.begin(connection, session, self.tick, self.now_ms, self.timers);
            self.begun += u64::from(begun);
        }
        if connection.outbound.queued_bytes() > self.buffer_max {
            self.slow.push(session);
        }
        self.scheduler.flush_batched(connection, session, lane, self.now);
    }

    fn chunk(&mut self, session: SessionKey, chunk: &Arc<Chunk>, lane: Lane) {
        let connection = &mut self.connections[session];
        let follows_pending = connection.pending_chunks().is_some_and(|pending| pending.has(chunk));
        match connection.phase {
            Phase::Live if !connection.blocked && !follows_pending => {
                if self.frame.as_ref().is_none_or(|(of, _)| !Arc::ptr_eq(of, chunk)) {
                    self.frame = Some((chunk.clone(), SharedFrame::of_json(&chunk.json)));
                }
                if let Some((_, frame)) = &self.frame {
                    connection.outbound.queue_shared(frame.for_protocol(connection.protocol));
                }
                self.scheduler.flush_batched(connection, session, lane, self.now);
            }
            Phase::Live | Phase::Binding => {
                connection.extras_mut().pending_chunks.get_or_insert_default().add(chunk);
            }
            Phase::Unbound | Phase::Closing => {}
        }
    }

    fn left(&mut self, session: SessionKey, conversation: &Arc<str>) {
        let connection = &mut self.connections[session];
        let frame = ServerFrame::Membership { conversation: conversation.to_string(), member: false };
        connection.queue_json(&json(&frame));
        self.scheduler.flush_soon(connection, session);
    }
}

impl Shard {
    /// Applies direct fan-outs first, then a few of each other lane.
    pub(super) fn process_fanouts(&mut self) {
        self.process_lane(Lane::Direct, DIRECT_PER_POLL);
        // With a backlog here the lanes fill up, and refuse senders.
        if !self.scheduler.has_bulk_backlog() {
            self.process_lane(Lane::Group, 2);
            self.process_lane(Lane::Broadcast, 1);
        }
    }

    fn process_lane(&mut self, lane: Lane, fanouts_max: usize) {
        for _ in 0..fanouts_max {
            let Ok(fanout) = self.parts.receivers.lanes[lane as usize].try_recv() else { return };
            self.apply(&fanout);
        }
    }

    fn apply(&mut self, fanout: &Fanout) {
        let (tick, now_ms) = (self.tick(), self.parts.engine.clock.now_ms());
        let ack_policy = self.ack_policy(fanout.lane);
        let mut sink = SessionSink {
            connections: &mut self.connections,
            scheduler: &mut self.scheduler,
            buffer_max: self.parts.config.session_buffer_bytes,
            now: Instant::now(),
            probe_policy: &self.probe_policy,
            ack_policy,
            timers: &mut self.timers,
            tick,
            now_ms,
            begun: 0,
            slow: Vec::new(),
            frame: None,
        };
        let delivered = self.delivery.apply(fanout, &mut sink);
        let (slow, begun) = (sink.slow, sink.begun);
        self.parts.engine.metrics.notifications.add(Channel::Session, ChannelEvent::Attempted, now_ms, begun, None);
        let metrics = self.parts.engine.metrics.lane(fanout.lane);
        metrics.deliveries.inc_by(delivered);
        metrics.fanout_seconds.observe(fanout.committed_at.elapsed().as_secs_f64());
        for key in slow {
            if self.connections.get(key).is_some_and(|c| c.phase != Phase::Closing) {
                self.parts.engine.metrics.slow_readers_closed.inc();
                let why = "the session's buffer is full; connect again with the last cursor";
                self.close_unconfirmed(key, Refusal::new(ErrorCode::SlowReader, why));
            }
        }
    }

    pub(super) fn flush_connections(&mut self) {
        let started = Instant::now();
        self.scheduler.move_due(started);
        loop {
            while let Some(key) = self.scheduler.urgent.pop_front() {
                self.scheduler.was_urgent = true;
                self.flush(key);
            }
            for _ in 0..BULK_BATCH {
                let Some(key) = self.scheduler.bulk.pop_front() else { break };
                self.flush(key);
            }
            let direct = &self.parts.receivers.lanes[Lane::Direct as usize];
            if !direct.is_empty() || !self.parts.receivers.control.is_empty() {
                self.process_lane(Lane::Direct, DIRECT_PER_POLL);
                self.process_controls();
            }
            if !self.scheduler.has_ready() || started.elapsed() >= BULK_TURN {
                return;
            }
        }
    }

    fn flush(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.flush_state = FlushState::Idle;
        if connection.blocked || connection.phase == Phase::Binding {
            return;
        }
        let Connection { outbound, transport, protocol, cursor, .. } = connection;
        let (flushed, bytes, writes) = outbound.flush(transport, *protocol, cursor, &mut self.scratch);
        self.scheduler.note_flush(connection);
        self.parts.engine.metrics.flushes.inc_by(writes);
        self.parts.engine.metrics.flushed_bytes.inc_by(bytes as u64);
        match flushed {
            FlushOutcome::Complete if connection.phase == Phase::Closing => {
                // Our goodbye is written; the socket is removed when the client closes its side.
                connection.transport.finish_writing();
                if connection.transport.is_virtual() {
                    self.finish_virtual(key);
                }
            }
            FlushOutcome::Complete if connection.pending_chunks().is_some() => self.queue_pending_chunks(key),
            FlushOutcome::Complete => {}
            FlushOutcome::Blocked => {
                connection.blocked = true;
                let client = connection.binding.as_ref().map_or(Client::Unauthenticated, |b| Client::User(b.user.no.0));
                let (shard, session) = (&self.parts.shards[self.parts.index], connection.session);
                connection.outbound.hold(|| {
                    let shard = shard.clone();
                    let close = Box::new(move || shard.send(Command::CloseSlowReader { session }));
                    self.parts.config.outbound_budget.hold(client, close)
                });
            }
            FlushOutcome::Disconnected => self.remove(key),
        }
    }

    pub(super) fn process_controls(&mut self) {
        for _ in 0..CONTROLS_PER_POLL {
            let Ok(control) = self.parts.receivers.control.try_recv() else { return };
            match control {
                Control::Replies(replies) => self.answer_sends(replies),
                Control::Presence(told) => told.iter().for_each(|told| self.send_presence_changes(told)),
                Control::Signal { user, signal: Signal::FindPopupSession { answer } } => {
                    if let Some(key) = self.find_popup_session(user) {
                        // The caller may have timed out meanwhile.
                        let _ = answer.try_send(self.connections[key].session);
                    }
                }
                Control::Signal { signal: Signal::Popup { session, frame }, .. } => self.send_popup(session, &frame),
                Control::Signal { user, signal: Signal::Replaced { session } } => self.close_replaced(user, session),
                Control::Signal { user, signal: Signal::Kick { device_id, reason } } => {
                    self.kick(user, device_id.as_deref(), &reason);
                }
                Control::Signal { user, signal: Signal::Suspend { reason } } => self.end_suspended(user, &reason),
                Control::Signal { user, signal: Signal::Read { conversation, seq } } => {
                    self.send_read_mark(user, conversation, seq);
                }
                Control::Signal { user, signal: Signal::Frame { frame } } => self.send_to_user(user, &frame),
                Control::Frame { sessions, frame } => self.send_to_sessions(&sessions, &frame),
                Control::Receipts { conversation, frame } => self.send_receipts_to_members(conversation, &frame),
            }
        }
    }

    fn send_read_mark(&mut self, user: UserNo, conversation: ConversationNo, seq: u64) {
        let sessions = self.sessions_of(user);
        let Some(user) = sessions.first().and_then(|key| self.user(*key)) else { return };
        let Ok(Some(conversation)) = self.parts.engine.directory.conversation(conversation) else { return };
        let read = ServerFrame::Read { conversation: conversation.id.clone(), user: user.id.clone(), seq };
        let frame = SharedFrame::of(&read);
        for key in sessions {
            let connection = &mut self.connections[key];
            let has_chat = connection.binding.as_ref().is_some_and(|binding| binding.chat);
            if has_chat && connection.outbound.queued_bytes() <= self.parts.config.session_buffer_bytes {
                connection.outbound.queue_shared(frame.for_protocol(connection.protocol));
                self.scheduler.flush_soon(connection, key);
            }
        }
    }
}
