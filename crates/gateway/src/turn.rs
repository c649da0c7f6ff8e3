//! A shard's turn at fan-outs and flushes.
//!
//! The lanes meet here, since a socket has one writer. What keeps them apart is the order and the
//! size of the pieces: direct fan-outs and their sessions come first, bulk flushes go in small
//! pieces, and between two pieces the direct lane is looked at again.

use crate::{
    connection::{Connection, Phase, Scheduled},
    outgoing::Flushed,
    probing::Probes,
    shard::Shard,
    typing::SharedFrame,
    wheel::Wheel,
};
use slab::Slab;
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_engine::{
    delivery::{Block, Fanout, SessionKey, Sink},
    hub::Signal,
    model::*,
    shards::Control,
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    frames::ServerFrame,
};

/// Direct fan-outs per look at the lane.
const DIRECT_PER_LOOK: usize = 8;
/// Bulk sessions flushed between two looks at the direct lane.
const BULK_PIECE: usize = 16;
/// Time for bulk flushes before sockets are read again.
const BULK_TURN: Duration = Duration::from_millis(2);
/// Controls taken per look.
const CONTROLS_PER_LOOK: usize = 64;

/// Which connections have something to write, and when.
pub(crate) struct Schedule {
    urgent: VecDeque<usize>,
    bulk: VecDeque<usize>,
    /// Written to a moment ago: they gather more until then. In order of time, since the interval is one.
    later: VecDeque<(Instant, usize)>,
    interval: Duration,
}

impl Schedule {
    pub(crate) fn new(interval: Duration) -> Self {
        Schedule { urgent: VecDeque::new(), bulk: VecDeque::new(), later: VecDeque::new(), interval }
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.urgent.is_empty() || !self.bulk.is_empty()
    }

    /// What is still to be flushed is not piled up further.
    pub(crate) fn bulk_waits(&self) -> bool {
        self.bulk.len() > BULK_PIECE * 4
    }

    pub(crate) fn until_due(&self) -> Option<Duration> {
        self.later.front().map(|(due, _)| due.saturating_duration_since(Instant::now()))
    }

    /// An answer or a control frame waits: it goes out in this turn.
    pub(crate) fn flush_soon(&mut self, connection: &mut Connection, key: usize) {
        if !connection.blocked && connection.scheduled != Scheduled::Urgent {
            connection.scheduled = Scheduled::Urgent;
            self.urgent.push_back(key);
        }
    }

    /// Entries wait. An idle session is written at once, a busy one when it has gathered for a while.
    pub(crate) fn flush_gathered(&mut self, connection: &mut Connection, key: usize, lane: Lane, now: Instant) {
        if connection.blocked || connection.phase != Phase::Live || connection.scheduled != Scheduled::No {
            return;
        }
        let idle = connection.flushed_at.is_none_or(|at| now.duration_since(at) >= self.interval);
        let (scheduled, queue) = match (idle, lane) {
            (false, _) => {
                connection.scheduled = Scheduled::Later;
                self.later.push_back((connection.flushed_at.unwrap_or(now) + self.interval, key));
                return;
            }
            (true, Lane::Direct) => (Scheduled::Urgent, &mut self.urgent),
            (true, _) => (Scheduled::Bulk, &mut self.bulk),
        };
        connection.scheduled = scheduled;
        queue.push_back(key);
    }

    fn take_due(&mut self, now: Instant) {
        while let Some((due, key)) = self.later.front().copied() {
            if due > now {
                return;
            }
            self.later.pop_front();
            self.bulk.push_back(key);
        }
    }
}

/// Puts a fan-out's entries to sessions.
struct ToSessions<'a> {
    connections: &'a mut Slab<Connection>,
    schedule: &'a mut Schedule,
    buffer_max: usize,
    now: Instant,
    probes: &'a Probes,
    wheel: &'a mut Wheel,
    tick: u32,
    /// Sessions whose buffer is over its limit.
    slow: Vec<SessionKey>,
}

impl Sink for ToSessions<'_> {
    fn block(&mut self, session: SessionKey, block: &Arc<Block>, lane: Lane, through: Position) {
        let connection = &mut self.connections[session];
        connection.outgoing.push_block(block, lane, through);
        if connection.unheard.is_none() {
            let since = connection.cursor;
            self.probes.begin(connection, session, since, self.tick, self.wheel);
        }
        if connection.outgoing.queued_bytes() > self.buffer_max {
            self.slow.push(session);
        }
        self.schedule.flush_gathered(connection, session, lane, self.now);
    }

    fn left(&mut self, session: SessionKey, conversation: &Arc<str>) {
        let connection = &mut self.connections[session];
        let frame = ServerFrame::Membership { conversation: conversation.to_string(), member: false };
        connection.push_json(&crate::connection::json(&frame));
        self.schedule.flush_soon(connection, session);
    }
}

impl Shard {
    /// Direct first, and all of it; then a piece of each of the others.
    pub(crate) fn take_fanouts(&mut self) {
        self.take_lane(Lane::Direct, DIRECT_PER_LOOK);
        // The lane waits then, and refuses senders.
        if !self.schedule.bulk_waits() {
            self.take_lane(Lane::Group, 2);
            self.take_lane(Lane::Broadcast, 1);
        }
    }

    fn take_lane(&mut self, lane: Lane, most: usize) {
        for _ in 0..most {
            let Ok(fanout) = self.parts.receivers.lanes[lane as usize].try_recv() else { return };
            self.apply(&fanout);
        }
    }

    fn apply(&mut self, fanout: &Fanout) {
        let tick = self.tick();
        let mut sink = ToSessions {
            connections: &mut self.connections,
            schedule: &mut self.schedule,
            buffer_max: self.parts.config.session_buffer_bytes,
            now: Instant::now(),
            probes: &self.probes,
            wheel: &mut self.wheel,
            tick,
            slow: Vec::new(),
        };
        let delivered = self.delivery.apply(fanout, &mut sink);
        let slow = sink.slow;
        let metrics = self.parts.engine.metrics.lane(fanout.lane);
        metrics.deliveries.inc_by(delivered);
        metrics.fanout_seconds.observe(fanout.committed_at.elapsed().as_secs_f64());
        for key in slow {
            if self.connections.get(key).is_some_and(|c| c.phase != Phase::Closing) {
                self.parts.engine.metrics.slow_readers_closed.inc();
                let why = "the session's buffer is full; connect again with the last cursor";
                self.close_unheard(key, Refusal::new(ErrorCode::SlowReader, why));
            }
        }
    }

    pub(crate) fn flush_some(&mut self) {
        let started = Instant::now();
        self.schedule.take_due(started);
        loop {
            while let Some(key) = self.schedule.urgent.pop_front() {
                self.flush(key);
            }
            for _ in 0..BULK_PIECE {
                let Some(key) = self.schedule.bulk.pop_front() else { break };
                self.flush(key);
            }
            let direct = &self.parts.receivers.lanes[Lane::Direct as usize];
            if !direct.is_empty() || !self.parts.receivers.control.is_empty() {
                self.take_lane(Lane::Direct, DIRECT_PER_LOOK);
                self.take_control();
            }
            if !self.schedule.has_ready() || started.elapsed() >= BULK_TURN {
                return;
            }
        }
    }

    fn flush(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.scheduled = Scheduled::No;
        if connection.blocked || connection.phase == Phase::Binding {
            return;
        }
        let Connection { outgoing, transport, door, cursor, .. } = connection;
        let (flushed, bytes, writes) = outgoing.flush(transport, *door, cursor, &mut self.scratch);
        connection.flushed_at = Some(Instant::now());
        self.parts.engine.metrics.flushes.inc_by(writes);
        self.parts.engine.metrics.flushed_bytes.inc_by(bytes as u64);
        match flushed {
            Flushed::All if connection.phase == Phase::Closing => {
                // Ours is said; the client's end of the conversation ends the socket.
                connection.transport.finish_writing();
                if connection.transport.is_virtual() {
                    self.end_virtual(key);
                }
            }
            Flushed::All => {}
            Flushed::Blocked => connection.blocked = true,
            Flushed::Gone => self.remove(key),
        }
    }

    pub(crate) fn take_control(&mut self) {
        for _ in 0..CONTROLS_PER_LOOK {
            let Ok(control) = self.parts.receivers.control.try_recv() else { return };
            match control {
                Control::Replies(replies) => self.answer_sends(replies),
                Control::Presence(told) => told.iter().for_each(|told| self.tell_changes(told)),
                Control::Signal { user, signal: Signal::FindPopupSession { answer } } => {
                    if let Some(key) = self.find_popup_session(user) {
                        // Who asked may have lost patience.
                        let _ = answer.try_send(self.connections[key].session);
                    }
                }
                Control::Signal { signal: Signal::Popup { session, frame }, .. } => self.send_popup(session, &frame),
                Control::Signal { user, signal: Signal::Replaced { session } } => self.replace(user, session),
                Control::Signal { user, signal: Signal::Kick { device_id, reason } } => {
                    self.kick(user, device_id.as_deref(), &reason);
                }
                Control::Signal { user, signal: Signal::Read { conversation, seq } } => {
                    self.tell_read(user, conversation, seq);
                }
            }
        }
    }

    fn kick(&mut self, user: UserNo, device_id: Option<&str>, reason: &str) {
        for key in self.sessions_of(user) {
            let bound = self.connections[key].bound.as_ref();
            if device_id.is_none_or(|id| bound.is_some_and(|bound| &*bound.device_id == id)) {
                self.close(key, Refusal::new(ErrorCode::Kicked, reason));
            }
        }
    }

    fn tell_read(&mut self, user: UserNo, conversation: ConversationNo, seq: u64) {
        let sessions = self.sessions_of(user);
        let Some(user) = sessions.first().and_then(|key| self.user(*key)) else { return };
        let Ok(Some(conversation)) = self.parts.engine.directory.conversation(conversation) else { return };
        let read = ServerFrame::Read { conversation: conversation.id.clone(), user: user.id.clone(), seq };
        let frame = SharedFrame::of(&read);
        for key in sessions {
            let connection = &mut self.connections[key];
            let has_chat = connection.bound.as_ref().is_some_and(|bound| bound.chat);
            if has_chat && connection.outgoing.queued_bytes() <= self.parts.config.session_buffer_bytes {
                connection.outgoing.push_shared(frame.through(connection.door));
                self.schedule.flush_soon(connection, key);
            }
        }
    }

    /// A frame of its own before the goodbye.
    pub(crate) fn close_after(&mut self, key: usize, frame: Vec<u8>, refusal: Refusal) {
        self.close(key, refusal);
        if let Some(connection) = self.connections.get_mut(key) {
            connection.outgoing.push_front_frames(vec![frame]);
        }
    }
}
