//! The end of a session, and of its connection: the client is sent the reason, and has a while to read it.

use super::Shard;
use crate::{
    commands::Command,
    connection::{Phase, SessionBinding},
    timer_wheel::ticks,
    transport::Protocol,
};
use smallvec::SmallVec;
use tidings_domain::model::UserNo;
use tidings_engine::access::suspension_refusal;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    ws::{Control, NORMAL},
};

impl Shard {
    /// Queues the reason, and closes the connection once it is written.
    pub(super) fn close(&mut self, key: usize, refusal: Refusal) {
        self.close_answering(key, None, refusal);
    }

    /// The same, with the reason as the answer to a request.
    pub(super) fn close_answering(&mut self, key: usize, reference: Option<u64>, refusal: Refusal) {
        let close_code = refusal.code.close_code();
        self.close_with(key, reference, refusal, close_code);
    }

    /// The same, with another code in a WebSocket's close frame.
    pub(super) fn close_with(&mut self, key: usize, reference: Option<u64>, refusal: Refusal, close_code: u16) {
        if self.connections.get(key).is_none_or(|connection| connection.phase == Phase::Closing) {
            return;
        }
        self.parts.engine.metrics.count_refusal(refusal.code);
        self.begin_closing(key);
        let connection = &mut self.connections[key];
        if let Some(stream) = connection.event_stream() {
            self.ended_streams.put(connection.session, stream.secret, &refusal);
        }
        connection.queue_close(reference, &refusal, close_code);
        self.scheduler.flush_soon(connection, key);
    }

    /// Ends the session. The connection may still write its last frames, and gives way to others from now on.
    fn begin_closing(&mut self, key: usize) {
        self.unbind(key);
        let (tick, shard) = (self.tick(), self.parts.shards[self.parts.index].clone());
        let connection = &mut self.connections[key];
        (connection.phase, connection.last_heard) = (Phase::Closing, tick);
        connection.partial = Box::default();
        connection.assembly.clear();
        connection.outbound.clear_queued();
        if connection.unbound.is_none() && !connection.transport.is_virtual() {
            let session = connection.session;
            let end = Box::new(move || shard.send(Command::EndUnbound { session }));
            connection.unbound = Some(Box::new(self.parts.open.unbound.wait_for_end(end)));
        }
        self.arm_timeout(key, tick + ticks(self.parts.config.closing_timeout));
    }

    /// Removes a connection that has not bound, or is closing, for the sake of another one.
    pub(super) fn end_unbound(&mut self, key: usize) {
        if matches!(self.connections[key].phase, Phase::Unbound | Phase::Closing) {
            self.parts.engine.metrics.unbound_evictions.inc();
            self.remove(key);
        }
    }

    /// Removes a connection whose client does not read, for the sake of others. A close frame would not reach it either, and what it
    /// has not read of a frame must not stay in memory.
    pub(super) fn close_slow_reader(&mut self, key: usize) {
        if self.connections[key].phase != Phase::Closing {
            self.parts.engine.metrics.slow_readers_closed.inc();
            let why = "what the session has not read is too much beside all others; connect again with the last cursor";
            self.close_unconfirmed(key, Refusal::new(ErrorCode::SlowReader, why));
        }
        self.remove(key);
    }

    /// Closes the connection with `frame` ahead of the close frames.
    pub(super) fn close_after(&mut self, key: usize, frame: Vec<u8>, refusal: Refusal) {
        self.close(key, refusal);
        if let Some(connection) = self.connections.get_mut(key) {
            connection.outbound.queue_front(vec![frame]);
        }
    }

    /// Closes as the client asked.
    pub(super) fn close_gracefully(&mut self, key: usize, payload: &[u8]) {
        self.begin_closing(key);
        let connection = &mut self.connections[key];
        match connection.protocol {
            Protocol::WebSocket => connection.queue_control(Control::Close, payload),
            Protocol::EventStream(_) => connection.queue_close_event(NORMAL, ""),
            // MIOP has no closing frame: the end of the stream is the answer.
            Protocol::Miop => {}
        }
        self.scheduler.flush_soon(connection, key);
    }

    /// Closes the sessions that a new one replaces: an older one of its device, the oldest of its device kind beyond the configured
    /// number, and the oldest of all beyond the number for a user.
    pub(super) fn close_replaced_sessions(&mut self, bind: &SessionBinding) {
        let limits = self.parts.engine.config.session_limits();
        let mut others = self.sessions_of(bind.user.no);
        others.sort_by_key(|key| self.connections[*key].session >> 32);
        let mut close =
            |others: &mut SmallVec<[usize; 2]>, is_one: &dyn Fn(&SessionBinding) -> bool, most, why: &str| {
                let is_one =
                    |key: &usize| self.connections[*key].binding.as_ref().is_some_and(|binding| is_one(binding));
                let ones: Vec<usize> = others.iter().copied().filter(is_one).collect();
                let over: Vec<usize> = ones.iter().copied().take((ones.len() + 1).saturating_sub(most)).collect();
                others.retain(|key| !over.contains(key));
                over.into_iter().for_each(|key| self.close(key, Refusal::new(ErrorCode::Replaced, why)));
            };
        let (device, kind) = (&bind.device_id, &bind.device_kind);
        close(&mut others, &|other| other.device_id == *device, 1, "a newer session of this device took the place");
        let why = "the limit of sessions per device kind was reached";
        close(&mut others, &|other| other.device_kind == *kind, limits.per_kind, why);
        close(&mut others, &|_| true, limits.per_user, "the limit of sessions per user was reached");
    }

    /// Closes a session that a later one on another node replaces.
    pub(super) fn close_replaced(&mut self, user: UserNo, session: u64) {
        let is_of_user = |key: &usize| self.connections[*key].binding.as_ref().is_some_and(|b| b.user.no == user);
        if let Some(key) = self.find(session).filter(is_of_user) {
            self.close(key, Refusal::new(ErrorCode::Replaced, "a newer session on another node took the place"));
        }
    }

    pub(super) fn kick(&mut self, user: UserNo, device_id: Option<&str>, reason: &str) {
        for key in self.sessions_of(user) {
            let binding = self.connections[key].binding.as_ref();
            if device_id.is_none_or(|id| binding.is_some_and(|binding| &*binding.device_id == id)) {
                self.close(key, Refusal::new(ErrorCode::Kicked, reason));
            }
        }
    }

    pub(super) fn end_suspended(&mut self, user: UserNo, reason: &str) {
        self.sessions_of(user).into_iter().for_each(|key| self.close(key, suspension_refusal(reason)));
    }

    pub(super) fn drain(&mut self, spread_ms: u64) {
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

    /// Ends the session; its connection may still write a close frame.
    pub(super) fn unbind(&mut self, key: usize) {
        self.hand_over_reports();
        let Some(connection) = self.connections.get_mut(key) else { return };
        let (session, protocol) = (connection.session, connection.protocol);
        let Some(binding) = connection.binding.take() else { return };
        if self.delivery.unbind(key, binding.user.no) {
            self.parts.engine.forget_cleared(binding.user.no);
        }
        connection.drop_pending_chunks();
        self.parts.engine.end_streams_of_session(self.parts.index, session);
        if std::mem::take(&mut connection.watches_presence) {
            self.parts.engine.unwatch_all((self.parts.index as u16, session));
        }
        if binding.push {
            self.parts.engine.push.session_ended(self.parts.index, session, connection.device.take());
        }
        let unacknowledged = connection.unacknowledged.take();
        self.parts.engine.presence.unregister(binding.user.no, session, self.parts.engine.clock.now_ms());
        if let Some(unacknowledged) = unacknowledged {
            self.push_unacknowledged_later(session, &binding, &unacknowledged);
        }
        self.parts.engine.metrics.session_ended(protocol.name());
    }
}
