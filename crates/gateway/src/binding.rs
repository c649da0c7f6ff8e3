//! Bind: verifies the token, closes the sessions that the new one replaces, and reads what the client missed.
//!
//! ```text
//! Unbound ── bind, token accepted ──▶ (the user's shard) Binding ── memberships, missed entries ──▶ Live
//! ```

use crate::{
    commands::{Command, MovedConnection, PendingBind, SessionBinding},
    connection::{Connection, Phase, json, json_frame},
    decoding::missing_field,
    outbound_queue::messages_frame,
    session_server::SessionConfig,
    shard::{FrameOutcome, Shard, silence_max},
    store_reads::is_session_live,
    transport::Protocol,
};
use smallvec::SmallVec;
use std::{borrow::Cow, sync::Arc};
use tidings_domain::{model::*, push_store::DeviceNo, refusals::store_refusal};
use tidings_engine::{
    access::{Scope, Scopes, TokenClaims},
    delivery::{BindOutcome, MembershipSnapshot},
    engine::resume::Inbox,
    presence::{NodeNo, PresenceSession},
    shards::shard_of,
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    frames::{Bound, RawClientFrame, ServerFrame},
    ids::check_new_id,
    limits::{FRAME_BYTES_MAX, TYPE_BYTES_MAX},
    miop::{self, Frame},
    resume::Resume,
};
use tidings_push::Register;

/// The first frame holds a token and little else; an unbound client gets no more memory than this.
pub(crate) const FIRST_FRAME_BYTES_MAX: usize = 16 * 1024;

/// The fields of a bind, of either protocol.
pub(crate) struct BindFields<'a> {
    pub token: Option<Cow<'a, str>>,
    pub device_id: Option<Cow<'a, str>>,
    pub device_kind: Cow<'a, str>,
    pub app_version: Option<Cow<'a, str>>,
    pub cursor: Option<Cow<'a, str>>,
    pub chat: bool,
    pub push: bool,
    pub answers_probes: bool,
    /// The client asked for pushes explicitly: without the scope the bind is refused, not granted without pushes.
    pub push_is_explicit: bool,
    pub heartbeat_ms: u32,
}

impl<'a> BindFields<'a> {
    pub(crate) fn of(frame: &RawClientFrame<'a>, config: &SessionConfig) -> Self {
        BindFields {
            token: frame.token.clone(),
            device_id: frame.device_id.clone(),
            device_kind: frame.device_kind.clone().unwrap_or(Cow::Borrowed("web")),
            app_version: frame.app_version.clone(),
            cursor: frame.cursor.clone(),
            chat: true,
            push: frame.push,
            // Every WebSocket client answers pings (RFC 6455, 5.5.3).
            answers_probes: true,
            push_is_explicit: true,
            heartbeat_ms: config.heartbeat.as_millis() as u32,
        }
    }

    /// Whether the session has chat and pushes, within what its token allows. Refused where a client would wait in vain for
    /// pushes that it asked for, or would hold a connection without any use.
    fn granted(&self, scopes: Scopes) -> Result<(bool, bool), Refusal> {
        let (chat, push) = (self.chat && scopes.contains(Scope::Read), self.push && scopes.contains(Scope::Push));
        if self.push && !push && self.push_is_explicit {
            scopes.check(Scope::Push)?;
        }
        if self.chat && !chat && !push && scopes == Scopes::NONE {
            scopes.check(Scope::Read)?;
        }
        if !self.chat && !push {
            scopes.check(Scope::Push)?;
        }
        Ok((chat, push))
    }
}

impl Shard {
    /// The first frame of a connection. `following` is what was read after it.
    pub(crate) fn handle_bind(&mut self, key: usize, fields: BindFields<'_>, following: &[u8]) -> FrameOutcome {
        let bind = match self.check_bind(key, &fields) {
            Ok(bind) => bind,
            Err(refusal) => {
                self.close(key, refusal);
                return FrameOutcome::Continue;
            }
        };
        let user_shard = shard_of(bind.user.no, self.parts.shards.len());
        if user_shard == self.parts.index {
            self.begin_bind(key, bind);
            return FrameOutcome::Continue;
        }
        let protocol = self.connections[key].protocol;
        let (connection, already_read) = (self.detach_connection(key), following.to_vec());
        self.parts.shards[user_shard].send(Command::Move(Box::new(MovedConnection {
            connection,
            protocol,
            already_read,
            bind,
        })));
        FrameOutcome::Moved
    }

    /// The user of a token, and what it allows. An address with too many rejected tokens is told to wait.
    fn check_token(&self, key: usize, token: &str) -> Result<(TokenClaims, Arc<User>), Refusal> {
        let checked = self.parts.tokens.verify(token).and_then(|claims| {
            let user = self.parts.engine.directory.require_user(&claims.user)?;
            claims.check_revoked(&user)?;
            Ok((claims, user))
        });
        checked.map_err(|refusal| {
            let is_failure = refusal.code == ErrorCode::Unauthorized;
            let throttle_key = self.connections[key].throttle_key;
            match is_failure.then(|| self.parts.tokens.count_failure(throttle_key)).flatten() {
                Some(wait_ms) => {
                    let why = "too many tokens from this address were not good; wait before the next";
                    Refusal::new(ErrorCode::RateLimited, why).retry_after(wait_ms)
                }
                None => refusal,
            }
        })
    }

    fn check_bind(&self, key: usize, frame: &BindFields<'_>) -> Result<SessionBinding, Refusal> {
        let token = frame.token.as_deref().ok_or_else(|| missing_field("token", "a bind"))?;
        let (claims, user) = self.check_token(key, token)?;
        let (chat, push) = frame.granted(claims.scopes)?;
        let device_id = frame.device_id.as_deref().ok_or_else(|| missing_field("device_id", "a bind"))?;
        check_new_id("device_id", device_id)?;
        let device_kind = &*frame.device_kind;
        if device_kind.is_empty() {
            return Err(Refusal::field("device_kind", "must not be empty"));
        }
        if device_kind.len() > TYPE_BYTES_MAX {
            return Err(Refusal::limit("device_kind (bytes)", TYPE_BYTES_MAX as u64, device_kind.len() as u64));
        }
        let cursor = frame.cursor.as_deref().map(str::parse).transpose();
        let cursor = cursor.map_err(|_| {
            Refusal::new(ErrorCode::CursorInvalid, "cursor: not one of this server's; drop it and bind without one")
        })?;
        let app_version = frame.app_version.as_deref();
        if let Some(version) = app_version.filter(|version| version.len() > TYPE_BYTES_MAX) {
            return Err(Refusal::limit("app_version (bytes)", TYPE_BYTES_MAX as u64, version.len() as u64));
        }
        Ok(SessionBinding {
            user,
            device_id: device_id.into(),
            device_kind: self.parts.engine.presence.kind(device_kind),
            since: self.parts.engine.clock.now_ms(),
            pending: (app_version.is_some() || cursor.is_some()).then(|| {
                Box::new(PendingBind { app_version: app_version.map(Into::into), cursor, ..PendingBind::default() })
            }),
            chat,
            push,
            answers_probes: frame.answers_probes,
            awaits_registration: false,
            heartbeat_ms: frame.heartbeat_ms,
            scopes: claims.scopes,
            issued_at: claims.issued_at,
            expires_at: claims.expires_at,
        })
    }

    /// Makes the connection a session of its user, on the user's own shard.
    pub(crate) fn begin_bind(&mut self, key: usize, mut bind: SessionBinding) {
        if self.connections[key].phase != Phase::Unbound {
            return;
        }
        // Checked again on the user's own shard, after any revocation that closed the user's sessions there: the user that
        // was looked up with the token may be older than it.
        if let Err(refusal) = self.check_not_revoked(&bind) {
            self.close(key, refusal);
            return;
        }
        let (user, heartbeat_ms) = (bind.user.no, bind.heartbeat_ms);
        self.close_replaced_sessions(&bind);
        let tick = self.tick();
        let connection = &mut self.connections[key];
        connection.phase = Phase::Binding;
        connection.last_heard = tick;
        connection.heartbeat_ms = heartbeat_ms;
        connection.cursor.epoch = self.parts.engine.store.epoch();
        let device = PresenceSession {
            session: connection.session,
            node: NodeNo(connection.transport.node()),
            device_id: bind.device_id.clone(),
            device_kind: bind.device_kind.clone(),
            since: bind.since,
            chat: bind.chat,
        };
        let (session, protocol) = (connection.session, connection.protocol);
        // Later than the user's sessions on other nodes, whatever their clocks say: the newest session stays.
        bind.since = self.parts.engine.presence.register(user, device);
        let register = bind.push.then(|| Register {
            shard: self.parts.index,
            session,
            user,
            device_id: bind.device_id.clone(),
            device_kind: bind.device_kind.clone(),
            app_version: bind.pending.as_ref().and_then(|pending| pending.app_version.clone()),
            since: bind.since,
            survives_failover: bind.receives_remote_pushes(protocol),
        });
        bind.awaits_registration = bind.push;
        if let Some(pending) = &mut bind.pending {
            pending.positions_at_bind = self.delivery.positions();
        }
        let expires_at = bind.expires_at;
        connection.binding = Some(Box::new(bind));
        self.arm_timeout(key, tick + silence_max(heartbeat_ms));
        self.end_with_token(key, expires_at);
        self.parts.engine.metrics.sessions.inc();
        self.parts.engine.metrics.sessions_opened.inc();
        for session in self.parts.engine.presence.outranked(user, self.parts.engine.config.sessions_per_kind.max(1)) {
            self.close_replaced(user, session);
        }
        match register.map(|register| self.parts.engine.push.register(register)) {
            None => self.begin_chat(key),
            Some(Ok(())) => {}
            Some(Err(refusal)) => self.continue_without_pushes(key, refusal),
        }
    }

    fn check_not_revoked(&self, bind: &SessionBinding) -> Result<(), Refusal> {
        let user = self.parts.engine.directory.user(bind.user.no).map_err(store_refusal)?;
        let user = user.as_deref().unwrap_or(&bind.user);
        let claims = TokenClaims {
            user: String::new(),
            scopes: bind.scopes,
            issued_at: bind.issued_at,
            expires_at: bind.expires_at,
            signed_by_node: false,
        };
        claims.check_revoked(user)
    }

    /// The session continues with a new token of the same user.
    pub(crate) fn handle_refresh(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
        let refreshed = frame.token.as_deref().ok_or_else(|| missing_field("token", "refresh"));
        match refreshed.and_then(|token| self.refresh(key, token)) {
            Ok(()) => self.send_ok(key, frame.reference),
            Err(refusal) => self.refuse(key, frame.reference, refusal),
        }
    }

    fn refresh(&mut self, key: usize, token: &str) -> Result<(), Refusal> {
        let (claims, user) = self.check_token(key, token)?;
        let Some(binding) = &mut self.connections[key].binding else { return Ok(()) };
        if user.no != binding.user.no {
            return Err(Refusal::new(ErrorCode::Forbidden, "token: it is another user's; bind on another connection"));
        }
        // Chat and pushes were granted at the bind; a new token must still allow them.
        for (has, scope) in [(binding.chat, Scope::Read), (binding.push, Scope::Push)] {
            if has {
                claims.scopes.check(scope)?;
            }
        }
        (binding.scopes, binding.issued_at, binding.expires_at) = (claims.scopes, claims.issued_at, claims.expires_at);
        self.end_with_token(key, claims.expires_at);
        Ok(())
    }

    /// The registration of the session's device has ended; once registered, the device is pushed to. Chat begins next, unless
    /// it began before.
    pub(crate) fn finish_registration(&mut self, session: u64, result: Result<DeviceNo, Refusal>) {
        let is_bound = |key: &usize| self.connections[*key].binding.is_some();
        let Some(key) = self.find(session).filter(is_bound) else {
            if let Ok(device) = result {
                self.parts.engine.push.session_ended(self.parts.index, session, Some(device));
            }
            return;
        };
        let connection = &mut self.connections[key];
        let awaited =
            connection.binding.as_mut().is_some_and(|binding| std::mem::take(&mut binding.awaits_registration));
        match result {
            Ok(device) => {
                connection.device = Some(device);
                if awaited {
                    self.begin_chat(key);
                }
            }
            Err(refusal) if awaited => self.continue_without_pushes(key, refusal),
            // The device was removed: its client binds again, as a new device.
            Err(refusal) if connection.device.take().is_some() => self.close(key, refusal),
            Err(_) => {}
        }
    }

    /// The node that leads push cannot be reached: the session begins without pushes, its client is told, and pushes come
    /// when the node can be reached. A device's connection is closed, so that it finds that node.
    fn continue_without_pushes(&mut self, key: usize, refusal: Refusal) {
        let connection = &self.connections[key];
        let stays =
            connection.binding.as_ref().is_some_and(|binding| binding.receives_remote_pushes(connection.protocol));
        match refusal.code == ErrorCode::NodeUnavailable && stays {
            true => self.begin_chat(key),
            false => self.close(key, refusal),
        }
    }

    fn begin_chat(&mut self, key: usize) {
        let connection = &self.connections[key];
        let (session, Some(binding)) = (connection.session, &connection.binding) else { return };
        let user = binding.user.no;
        if !binding.chat {
            // A session without chat is handed no entries: its cursor stays, or begins at the shard's positions.
            let cursor = binding.pending.as_ref().and_then(|pending| pending.cursor);
            let positions = self.delivery.positions();
            let connection = &mut self.connections[key];
            match cursor {
                Some(cursor) => connection.cursor = cursor,
                None => connection.cursor.positions = positions,
            }
            let resume = Resume { complete: true, reset: false, ranges: vec![] };
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
                let result = engine.catch_up(&cursor);
                shard.send(Command::CaughtUp { session, result });
            });
            return;
        }
        self.join_delivery(key, user);
    }

    /// This node has reached the position that the session had reached on another node.
    pub(crate) fn caught_up(&mut self, session: u64, result: Result<(), Refusal>) {
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
            BindOutcome::NeedsMemberships(number) => {
                let (engine, shard) = (self.parts.engine.clone(), self.parts.shards[self.parts.index].clone());
                let since = self.delivery.positions();
                self.parts.runtime.spawn_blocking(move || {
                    // Any session of the user may wait for the memberships, not only the one that asked.
                    if engine.presence.local_sessions(user).is_empty() {
                        return;
                    }
                    let result = engine.memberships_for_delivery(user, since);
                    shard.send(Command::Memberships { user, number, result });
                });
            }
        }
    }

    /// All sessions of a user on this node, also those without chat.
    pub(crate) fn sessions_of(&self, user: UserNo) -> SmallVec<[usize; 2]> {
        let devices = self.parts.engine.presence.local_sessions(user);
        devices.iter().filter_map(|device| self.find(device.session)).collect()
    }

    /// Closes the sessions that a new one replaces: an older one of its device, and the oldest of its device kind beyond the
    /// configured number.
    fn close_replaced_sessions(&mut self, bind: &SessionBinding) {
        let others: Vec<(usize, u64, bool)> = self
            .sessions_of(bind.user.no)
            .iter()
            .filter_map(|key| {
                let connection = &self.connections[*key];
                let other = connection
                    .binding
                    .as_ref()
                    .filter(|b| b.device_kind == bind.device_kind || b.device_id == bind.device_id)?;
                Some((*key, connection.session >> 32, other.device_id == bind.device_id))
            })
            .collect();
        for (key, ..) in others.iter().filter(|(.., same)| *same) {
            self.close(*key, Refusal::new(ErrorCode::Replaced, "a newer session of this device took the place"));
        }
        let mut kind: Vec<_> = others.iter().filter(|(.., same)| !same).collect();
        kind.sort_by_key(|(_, age, _)| *age);
        let over = (kind.len() + 1).saturating_sub(self.parts.engine.config.sessions_per_kind.max(1));
        for (key, ..) in kind.into_iter().take(over) {
            self.close(*key, Refusal::new(ErrorCode::Replaced, "the limit of sessions per device kind was reached"));
        }
    }

    /// Closes a session that a later one on another node replaces.
    pub(crate) fn close_replaced(&mut self, user: UserNo, session: u64) {
        let is_of_user = |key: &usize| self.connections[*key].binding.as_ref().is_some_and(|b| b.user.no == user);
        if let Some(key) = self.find(session).filter(is_of_user) {
            self.close(key, Refusal::new(ErrorCode::Replaced, "a newer session on another node took the place"));
        }
    }

    pub(crate) fn install_memberships(
        &mut self,
        user: UserNo,
        number: u64,
        result: Result<Vec<MembershipSnapshot>, Refusal>,
    ) {
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
            let resume = Resume { complete: true, reset: false, ranges: vec![] };
            self.go_live(session, Ok(Inbox { resume, json: vec![], entries: 0 }));
            return;
        };
        let (engine, shard) = (self.parts.engine.clone(), self.parts.shards[self.parts.index].clone());
        self.parts.runtime.spawn_blocking(move || {
            if !is_session_live(&engine, user, session) {
                return;
            }
            let result = engine.read_inbox(user, Some(&cursor), positions);
            shard.send(Command::Missed { session, result });
        });
    }

    pub(crate) fn go_live(&mut self, session: u64, missed: Result<Inbox, Refusal>) {
        let Some(key) = self.find(session) else { return };
        let missed = match missed {
            Ok(missed) => missed,
            Err(refusal) => {
                self.close(key, refusal);
                return;
            }
        };
        let connection = &mut self.connections[key];
        let (Phase::Binding, Some(binding)) = (connection.phase, &connection.binding) else { return };
        let cursor = cursor_before(connection, binding, &missed);
        let mut frames = vec![match connection.protocol {
            Protocol::WebSocket => {
                let frame = ServerFrame::Bound(Bound {
                    session: format!("{session:x}"),
                    user: binding.user.id.clone(),
                    heartbeat_ms: u64::from(connection.heartbeat_ms),
                    cursor,
                    resume: missed.resume,
                    pushes: (binding.push && connection.device.is_none()).then_some(false),
                    expires_at: Some(binding.expires_at),
                });
                json_frame(Protocol::WebSocket, &json(&frame))
            }
            Protocol::Miop => miop_bound(connection, binding, &cursor, &missed.resume),
        }];
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

    /// Ends the session; its connection may still write a close frame.
    pub(crate) fn unbind(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let session = connection.session;
        let Some(binding) = connection.binding.take() else { return };
        self.delivery.unbind(key, binding.user.no);
        if std::mem::take(&mut connection.watches_presence) {
            self.parts.engine.unwatch_all((self.parts.index as u16, session));
        }
        if binding.push {
            self.parts.engine.push.session_ended(self.parts.index, session, connection.device.take());
        }
        self.parts.engine.presence.unregister(binding.user.no, session, self.parts.engine.clock.now_ms());
        self.parts.engine.metrics.sessions.dec();
    }
}

/// The cursor in `bound`. It is the client's own when missed entries follow: a connection that breaks between the two frames
/// must not have moved the client's cursor past entries that it never received.
fn cursor_before(connection: &Connection, binding: &SessionBinding, missed: &Inbox) -> String {
    let own = binding.pending.as_ref().and_then(|pending| pending.cursor);
    let own = own.filter(|_| missed.entries > 0 && !missed.resume.reset);
    own.unwrap_or(connection.cursor).to_string()
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
    });
    frame.to_bytes()
}
