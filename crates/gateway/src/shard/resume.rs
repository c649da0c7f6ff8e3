//! The second half of a bind: the session joins the delivery of its user's conversations, what the client missed is read,
//! and the session goes live.

use super::{Shard, defects::or_defect, store_reads::is_session_live};
use crate::{
    commands::{Command, MembershipRead},
    connection::{Connection, Phase, SessionBinding},
    encoding::{json, json_frame},
    outbound_queue::messages_frame,
    transport::Protocol,
};
use tidings_domain::model::*;
use tidings_engine::{delivery::BindOutcome, engine::resume::Inbox};
use tidings_protocol::{
    error::Refusal,
    frames::{Bound, ServerFrame},
    limits::FRAME_BYTES_MAX,
    miop::{self, Frame},
    resume::Resume,
};

/// Users whose memberships one thread reads. The first of them waits for the last.
const MEMBERSHIPS_PER_READ: usize = 16;

impl Shard {
    pub(super) fn begin_chat(&mut self, key: usize) {
        let connection = &self.connections[key];
        let (session, Some(binding)) = (connection.session, &connection.binding) else { return };
        let user = binding.user.no;
        if !binding.chat {
            // A session without chat is handed no entries: its cursor stays, or begins at the shard's positions.
            let cursor = binding.pending.as_ref().and_then(|pending| pending.cursor);
            let positions = self.delivery.positions_passed();
            let connection = &mut self.connections[key];
            match cursor {
                Some(cursor) => connection.cursor = cursor,
                None => connection.cursor.positions = positions,
            }
            let resume = Resume { complete: true, reset: false, ranges: vec![], removed: vec![] };
            self.go_live(session, Ok(Inbox { resume, json: vec![], entries: 0 }));
            return;
        }
        let cursor = binding.pending.as_ref().and_then(|pending| pending.cursor);
        if let Some(cursor) = cursor.filter(|cursor| self.parts.engine.is_behind(cursor, self.delivery.positions())) {
            let (engine, shard) = (self.parts.engine.clone(), self.parts.shards[self.parts.index].clone());
            self.parts.runtime.spawn_blocking(move || {
                if !is_session_live(&engine, user, session) {
                    return;
                }
                let result = or_defect(|| engine.catch_up(&cursor));
                shard.send(Command::CaughtUp { session, result });
            });
            return;
        }
        self.join_delivery(key, user);
    }

    /// This node has reached the position that the session had reached on another node.
    pub(super) fn caught_up(&mut self, session: u64, result: Result<(), Refusal>) {
        let Some(key) = self.find(session).filter(|key| self.connections[*key].phase == Phase::Binding) else { return };
        match (result, &self.connections[key].binding) {
            (Ok(()), Some(binding)) => self.join_delivery(key, binding.user.no),
            (Ok(()), None) => {}
            (Err(refusal), _) => self.close(key, refusal),
        }
    }

    fn join_delivery(&mut self, key: usize, user: UserNo) {
        match self.delivery.bind(key, user) {
            BindOutcome::Joined(positions) => self.resume(key, positions),
            BindOutcome::Loading => {}
            BindOutcome::NeedsMemberships(number) => self.unread_memberships.push((user, number)),
        }
    }

    /// Has the memberships of the users who have bound in this turn read by other threads, those of several users by one: where many
    /// bind at once, waking a thread for each costs more than the reads.
    pub(super) fn read_memberships(&mut self) {
        let (index, since) = (self.parts.index, self.delivery.positions());
        while !self.unread_memberships.is_empty() {
            let rest = self.unread_memberships.len().saturating_sub(MEMBERSHIPS_PER_READ);
            let users = self.unread_memberships.split_off(rest);
            let (engine, shard) = self.handles();
            self.parts.runtime.spawn_blocking(move || {
                let mut reads = Vec::with_capacity(users.len());
                let passed = or_defect(|| engine.pass_skipped(index, since));
                for (user, number) in users {
                    // Any session of the user may wait for the memberships, not only the one that asked.
                    if !engine.presence.local_sessions(user).is_empty() {
                        let read = || or_defect(|| engine.memberships_for_delivery(user, since));
                        let result = passed.clone().and_then(|()| read());
                        reads.push(MembershipRead { user, number, result });
                    }
                }
                shard.send(Command::Memberships(reads));
            });
        }
    }

    pub(super) fn install_memberships(&mut self, MembershipRead { user, number, result }: MembershipRead) {
        let refused = result.as_ref().err().cloned();
        let Some((sessions, positions)) = self.delivery.install(user, number, result.unwrap_or_default()) else {
            return;
        };
        for key in sessions {
            match &refused {
                None => self.resume(key, positions),
                Some(refusal) => self.close(key, refusal.clone()),
            }
        }
    }

    /// The session is live from `positions` on; a blocking thread reads the entries that it missed before.
    fn resume(&mut self, key: usize, positions: [Position; LANES]) {
        let connection = &mut self.connections[key];
        connection.cursor.positions = positions;
        let session = connection.session;
        let Some(binding) = &connection.binding else { return };
        let cursor = binding.pending.as_ref().and_then(|pending| pending.cursor);
        let (user, Some(cursor)) = (binding.user.no, cursor) else {
            let resume = Resume { complete: true, reset: false, ranges: vec![], removed: vec![] };
            self.go_live(session, Ok(Inbox { resume, json: vec![], entries: 0 }));
            return;
        };
        self.note_stored(key, cursor, positions);
        let (engine, shard) = (self.parts.engine.clone(), self.parts.shards[self.parts.index].clone());
        self.parts.runtime.spawn_blocking(move || {
            if !is_session_live(&engine, user, session) {
                return;
            }
            let result = or_defect(|| engine.read_inbox(user, Some(&cursor), positions));
            shard.send(Command::Missed { session, result });
        });
    }

    pub(super) fn go_live(&mut self, session: u64, missed: Result<Inbox, Refusal>) {
        let Some(key) = self.find(session) else { return };
        let missed = match missed {
            Ok(missed) => missed,
            Err(refusal) => {
                self.close(key, refusal);
                return;
            }
        };
        let opening = self.connections[key].event_stream().map(|stream| self.opening_event(stream, session));
        let connection = &mut self.connections[key];
        let (Phase::Binding, Some(binding)) = (connection.phase, &connection.binding) else { return };
        let cursor = cursor_before(connection, binding, &missed);
        let mut frames = Vec::new();
        frames.extend(opening);
        frames.push(match connection.protocol {
            Protocol::WebSocket | Protocol::EventStream(_) => {
                let frame = ServerFrame::Bound(Bound {
                    session: format!("{session:x}"),
                    user: binding.user.id.clone(),
                    heartbeat_ms: u64::from(connection.heartbeat_ms),
                    cursor,
                    resume: missed.resume,
                    pushes: has_pushes(connection, binding),
                    expires_at: Some(binding.expires_at),
                });
                json_frame(connection.protocol, &json(&frame))
            }
            Protocol::Miop => miop_bound(connection, binding, &cursor, &missed.resume),
        });
        if missed.entries > 0 {
            frames.push(messages_frame(connection.protocol, &connection.cursor, &missed.json));
        }
        // Live entries that came meanwhile follow; all of them count as handed over from here on.
        let handed = (missed.entries > 0 || connection.outbound.queued_bytes() > 0)
            .then(|| binding.pending.as_ref().map_or(connection.cursor.positions, |pending| pending.positions_at_bind))
            .map(|positions| Cursor { positions, ..connection.cursor });
        connection.outbound.queue_front(frames);
        connection.phase = Phase::Live;
        if let Some(binding) = &mut connection.binding {
            binding.pending = None;
        }
        self.scheduler.flush_soon(connection, key);
        if let Some(since) = handed {
            let tick = self.tick();
            self.probe_policy.begin(&mut self.connections[key], key, since, tick, &mut self.timers);
        }
    }
}

/// The cursor in `bound`. It is the client's own when missed entries follow: a connection that breaks between the two frames
/// must not have moved the client's cursor past entries that it never received.
fn cursor_before(connection: &Connection, binding: &SessionBinding, missed: &Inbox) -> String {
    let own = binding.pending.as_ref().and_then(|pending| pending.cursor);
    let own = own.filter(|_| missed.entries > 0 && !missed.resume.reset);
    own.unwrap_or(connection.cursor).to_string()
}

/// What `bound` says of pushes: nothing but that they follow later, if they do.
fn has_pushes(connection: &Connection, binding: &SessionBinding) -> Option<bool> {
    (binding.push && connection.device.is_none()).then_some(false)
}

fn miop_bound(connection: &Connection, binding: &SessionBinding, cursor: &str, resume: &Resume) -> Vec<u8> {
    let cursor = binding.chat.then_some(cursor);
    let resume = binding.chat.then(|| json(resume));
    let frame = Frame::Bound(miop::Bound {
        version: miop::VERSION,
        session: &format!("{:x}", connection.session),
        user: &binding.user.id,
        heartbeat_s: u64::from(connection.heartbeat_ms / 1_000),
        frame_bytes_max: FRAME_BYTES_MAX as u64,
        cursor,
        resume: resume.as_deref(),
        pushes: has_pushes(connection, binding),
    });
    frame.to_bytes()
}
