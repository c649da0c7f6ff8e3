//! Bind: whose connection this is, which sessions it replaces, and what it missed.
//!
//! ```text
//! Unbound ── bind, token good ──▶ (the user's shard) Binding ── memberships, missed entries ──▶ Live
//! ```

use crate::{
    commands::{BindRequest, Command, Moving, Opening},
    connection::{Connection, Phase, json, json_frame},
    decoding::missing,
    gateway::GatewayConfig,
    outgoing::messages_frame,
    reads::is_here,
    shard::{After, Shard, silence_max},
    transport::Door,
};
use smallvec::SmallVec;
use std::{borrow::Cow, sync::Arc};
use tidings_engine::{
    commit::store_refusal,
    delivery::{Bind, Place},
    model::*,
    pass::{Pass, Scope, Scopes},
    presence::{Device, NodeNo},
    push::{DeviceNo, Register},
    resume::Missed,
    shards::shard_of,
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    frames::{Bound, RawClientFrame, Resume, ServerFrame},
    ids::check_new_id,
    limits::{FRAME_BYTES_MAX, TYPE_BYTES_MAX},
    miop::{self, Frame},
};

/// The first frame holds a token and little else; who has not bound gets no more memory than this.
pub(crate) const FIRST_FRAME_BYTES_MAX: usize = 16 * 1024;

/// What a bind says, whichever door it came through.
pub(crate) struct BindFields<'a> {
    pub token: Option<Cow<'a, str>>,
    pub device_id: Option<Cow<'a, str>>,
    pub device_kind: Cow<'a, str>,
    pub app_version: Option<Cow<'a, str>>,
    pub cursor: Option<Cow<'a, str>>,
    pub chat: bool,
    pub push: bool,
    pub answers_probes: bool,
    /// The client named pushes itself: without the scope they are refused, not left out.
    pub push_is_meant: bool,
    pub heartbeat_ms: u32,
}

impl<'a> BindFields<'a> {
    pub(crate) fn of(frame: &RawClientFrame<'a>, config: &GatewayConfig) -> Self {
        BindFields {
            token: frame.token.clone(),
            device_id: frame.device_id.clone(),
            device_kind: frame.device_kind.clone().unwrap_or(Cow::Borrowed("web")),
            app_version: frame.app_version.clone(),
            cursor: frame.cursor.clone(),
            chat: true,
            push: frame.push,
            // Every WebSocket does (RFC 6455, 5.5.3).
            answers_probes: true,
            push_is_meant: true,
            heartbeat_ms: config.heartbeat.as_millis() as u32,
        }
    }

    /// What the session has of chat and pushes: no more than its token allows. A client that asked for pushes must not wait
    /// for them in vain, nor one hold a connection that nothing comes by.
    fn granted(&self, scopes: Scopes) -> Result<(bool, bool), Refusal> {
        let (chat, push) = (self.chat && scopes.contains(Scope::Read), self.push && scopes.contains(Scope::Push));
        if self.push && !push && self.push_is_meant {
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
    pub(crate) fn take_bind(&mut self, key: usize, fields: BindFields<'_>, following: &[u8]) -> After {
        let bind = match self.check_bind(key, &fields) {
            Ok(bind) => bind,
            Err(refusal) => {
                self.close(key, refusal);
                return After::Stays;
            }
        };
        let owner = shard_of(bind.user.no, self.parts.shards.len());
        if owner == self.parts.index {
            self.begin_bind(key, bind);
            return After::Stays;
        }
        let door = self.connections[key].door;
        let (passage, already_read) = (self.take_out(key), following.to_vec());
        self.parts.shards[owner].tell(Command::Move(Box::new(Moving { passage, door, already_read, bind })));
        After::Moves
    }

    /// Whose a token is, and what it allows. Who brings many that are not good is told to wait.
    fn check_token(&self, key: usize, token: &str) -> Result<(Pass, Arc<User>), Refusal> {
        let checked = self.parts.tokens.verify(token).and_then(|pass| {
            let user = self.parts.engine.directory.require_user(&pass.user)?;
            pass.check_revoked(&user)?;
            Ok((pass, user))
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

    fn check_bind(&self, key: usize, frame: &BindFields<'_>) -> Result<BindRequest, Refusal> {
        let token = frame.token.as_deref().ok_or_else(|| missing("token", "a bind"))?;
        let (pass, user) = self.check_token(key, token)?;
        let (chat, push) = frame.granted(pass.scopes)?;
        let device_id = frame.device_id.as_deref().ok_or_else(|| missing("device_id", "a bind"))?;
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
        Ok(BindRequest {
            user,
            device_id: device_id.into(),
            device_kind: self.parts.engine.presence.kind(device_kind),
            since: self.parts.engine.clock.now_ms(),
            opening: (app_version.is_some() || cursor.is_some())
                .then(|| Box::new(Opening { app_version: app_version.map(Into::into), cursor, ..Opening::default() })),
            chat,
            push,
            answers_probes: frame.answers_probes,
            awaits_device: false,
            heartbeat_ms: frame.heartbeat_ms,
            scopes: pass.scopes,
            issued_at: pass.issued_at,
            expires_at: pass.expires_at,
        })
    }

    /// Makes a connection a session of its user, on the user's own shard.
    pub(crate) fn begin_bind(&mut self, key: usize, mut bind: BindRequest) {
        if self.connections[key].phase != Phase::Unbound {
            return;
        }
        // On the user's own shard, behind whatever ended the user's sessions a moment ago: what was looked up before may be
        // from before.
        if let Err(refusal) = self.check_not_revoked(&bind) {
            self.close(key, refusal);
            return;
        }
        let (user, heartbeat_ms) = (bind.user.no, bind.heartbeat_ms);
        self.make_room(&bind);
        let tick = self.tick();
        let connection = &mut self.connections[key];
        connection.phase = Phase::Binding;
        connection.heard = tick;
        connection.heartbeat_ms = heartbeat_ms;
        connection.cursor.epoch = self.parts.engine.store.epoch();
        let device = Device {
            session: connection.session,
            node: NodeNo(connection.transport.node()),
            device_id: bind.device_id.clone(),
            device_kind: bind.device_kind.clone(),
            since: bind.since,
            chat: bind.chat,
        };
        let (session, door) = (connection.session, connection.door);
        // Later than what other nodes have of the user, whatever their clocks say: this is the one that stays.
        bind.since = self.parts.engine.presence.arrived(user, device);
        let register = bind.push.then(|| Register {
            shard: self.parts.index,
            session,
            user,
            device_id: bind.device_id.clone(),
            device_kind: bind.device_kind.clone(),
            app_version: bind.opening.as_ref().and_then(|opening| opening.app_version.clone()),
            since: bind.since,
            survives_failover: bind.stays(door),
        });
        bind.awaits_device = bind.push;
        if let Some(opening) = &mut bind.opening {
            opening.bound_at = self.delivery.positions();
        }
        let expires_at = bind.expires_at;
        connection.bound = Some(Box::new(bind));
        self.arm(key, tick + silence_max(heartbeat_ms));
        self.end_with_token(key, expires_at);
        self.parts.engine.metrics.sessions.inc();
        self.parts.engine.metrics.sessions_opened.inc();
        for session in self.parts.engine.presence.outranked(user, self.parts.engine.config.sessions_per_kind.max(1)) {
            self.replace(user, session);
        }
        match register.map(|register| self.parts.engine.push.register(register)) {
            None => self.begin_chat(key),
            Some(Ok(())) => {}
            Some(Err(refusal)) => self.without_pushes(key, refusal),
        }
    }

    fn check_not_revoked(&self, bind: &BindRequest) -> Result<(), Refusal> {
        let user = self.parts.engine.directory.user(bind.user.no).map_err(store_refusal)?;
        let user = user.as_deref().unwrap_or(&bind.user);
        let pass = Pass {
            user: String::new(),
            scopes: bind.scopes,
            issued_at: bind.issued_at,
            expires_at: bind.expires_at,
            of_node: false,
        };
        pass.check_revoked(user)
    }

    /// The session goes on with a new token of the same user.
    pub(crate) fn take_refresh(&mut self, key: usize, frame: &RawClientFrame<'_>) -> After {
        let refreshed = frame.token.as_deref().ok_or_else(|| missing("token", "refresh"));
        match refreshed.and_then(|token| self.refresh(key, token)) {
            Ok(()) => self.say_ok(key, frame.reference),
            Err(refusal) => self.refuse(key, frame.reference, refusal),
        }
    }

    fn refresh(&mut self, key: usize, token: &str) -> Result<(), Refusal> {
        let (pass, user) = self.check_token(key, token)?;
        let Some(bound) = &mut self.connections[key].bound else { return Ok(()) };
        if user.no != bound.user.no {
            return Err(Refusal::new(ErrorCode::Forbidden, "token: it is another user's; bind on another connection"));
        }
        // What the session has of them was settled when it bound.
        for (has, scope) in [(bound.chat, Scope::Read), (bound.push, Scope::Push)] {
            if has {
                pass.scopes.check(scope)?;
            }
        }
        (bound.scopes, bound.issued_at, bound.expires_at) = (pass.scopes, pass.issued_at, pass.expires_at);
        self.end_with_token(key, pass.expires_at);
        Ok(())
    }

    /// The device is known now: what it is pushed from here on reaches it. Next, chat, unless that has begun without it.
    pub(crate) fn registered(&mut self, session: u64, result: Result<DeviceNo, Refusal>) {
        let bound = |key: &usize| self.connections[*key].bound.is_some();
        let Some(key) = self.find(session).filter(bound) else {
            if let Ok(device) = result {
                self.parts.engine.push.session_ended(self.parts.index, session, Some(device));
            }
            return;
        };
        let connection = &mut self.connections[key];
        let awaited = connection.bound.as_mut().is_some_and(|bound| std::mem::take(&mut bound.awaits_device));
        match result {
            Ok(device) => {
                connection.device = Some(device);
                if awaited {
                    self.begin_chat(key);
                }
            }
            Err(refusal) if awaited => self.without_pushes(key, refusal),
            // Its device was removed: it binds again, as a new one.
            Err(refusal) if connection.device.take().is_some() => self.close(key, refusal),
            Err(_) => {}
        }
    }

    /// The node that hands out pushes cannot be reached: chat goes on, the client is told, and pushes come when it can.
    /// A device without chat must find that node.
    fn without_pushes(&mut self, key: usize, refusal: Refusal) {
        let connection = &self.connections[key];
        let stays = connection.bound.as_ref().is_some_and(|bound| bound.stays(connection.door));
        match refusal.code == ErrorCode::NodeUnavailable && stays {
            true => self.begin_chat(key),
            false => self.close(key, refusal),
        }
    }

    fn begin_chat(&mut self, key: usize) {
        let connection = &self.connections[key];
        let (session, Some(bound)) = (connection.session, &connection.bound) else { return };
        let user = bound.user.no;
        if !bound.chat {
            // Nothing is handed over, so that it has come as far as it had, or as all who come now.
            let cursor = bound.opening.as_ref().and_then(|opening| opening.cursor);
            let positions = self.delivery.positions();
            let connection = &mut self.connections[key];
            match cursor {
                Some(cursor) => connection.cursor = cursor,
                None => connection.cursor.positions = positions,
            }
            let resume = Resume { complete: true, reset: false, ranges: vec![] };
            self.go_live(session, Ok(Missed { resume, json: vec![], entries: 0 }));
            return;
        }
        let cursor = bound.opening.as_ref().and_then(|opening| opening.cursor);
        if let Some(cursor) = cursor.filter(|cursor| self.parts.engine.is_behind(cursor, self.delivery.positions())) {
            let (engine, shard) = (self.parts.engine.clone(), self.parts.shards[self.parts.index].clone());
            self.parts.runtime.spawn_blocking(move || {
                if !is_here(&engine, user, session) {
                    return;
                }
                let result = engine.catch_up(&cursor);
                shard.tell(Command::CaughtUp { session, result });
            });
            return;
        }
        self.join(key, user);
    }

    /// This node has come as far as the session had come elsewhere.
    pub(crate) fn caught_up(&mut self, session: u64, result: Result<(), Refusal>) {
        let Some(key) = self.find(session).filter(|key| self.connections[*key].phase == Phase::Binding) else { return };
        match (result, &self.connections[key].bound) {
            (Ok(()), Some(bound)) => self.join(key, bound.user.no),
            (Ok(()), None) => {}
            (Err(refusal), _) => self.close(key, refusal),
        }
    }

    fn join(&mut self, key: usize, user: UserNo) {
        match self.delivery.bind(key, user) {
            Bind::Joined(positions) => self.resume(key, positions),
            Bind::Waiting => {}
            Bind::NeedsMemberships(number) => {
                let (engine, shard) = (self.parts.engine.clone(), self.parts.shards[self.parts.index].clone());
                let since = self.delivery.positions();
                self.parts.runtime.spawn_blocking(move || {
                    // Any session of the user may wait for it, not only the one that asked.
                    if engine.presence.registered(user).is_empty() {
                        return;
                    }
                    let result = engine.memberships_for_delivery(user, since);
                    shard.tell(Command::Memberships { user, number, result });
                });
            }
        }
    }

    /// All sessions of a user: those that are only there for pushes too.
    pub(crate) fn sessions_of(&self, user: UserNo) -> SmallVec<[usize; 2]> {
        let devices = self.parts.engine.presence.registered(user);
        devices.iter().filter_map(|device| self.find(device.session)).collect()
    }

    /// A device has one session; a kind of device as many as configured, the oldest goes.
    fn make_room(&mut self, bind: &BindRequest) {
        let others: Vec<(usize, u64, bool)> = self
            .sessions_of(bind.user.no)
            .iter()
            .filter_map(|key| {
                let connection = &self.connections[*key];
                let other = connection
                    .bound
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

    /// Another node has a later session in this one's place.
    pub(crate) fn replace(&mut self, user: UserNo, session: u64) {
        let is_theirs = |key: &usize| self.connections[*key].bound.as_ref().is_some_and(|b| b.user.no == user);
        if let Some(key) = self.find(session).filter(is_theirs) {
            self.close(key, Refusal::new(ErrorCode::Replaced, "a newer session on another node took the place"));
        }
    }

    pub(crate) fn install_memberships(&mut self, user: UserNo, number: u64, result: Result<Vec<Place>, Refusal>) {
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

    /// The session is live from `positions` on; what it missed before is read elsewhere.
    fn resume(&mut self, key: usize, positions: [Position; LANES]) {
        let connection = &mut self.connections[key];
        connection.cursor.positions = positions;
        let session = connection.session;
        let Some(bound) = &connection.bound else { return };
        let cursor = bound.opening.as_ref().and_then(|opening| opening.cursor);
        let (user, Some(cursor)) = (bound.user.no, cursor) else {
            let resume = Resume { complete: true, reset: false, ranges: vec![] };
            self.go_live(session, Ok(Missed { resume, json: vec![], entries: 0 }));
            return;
        };
        let (engine, shard) = (self.parts.engine.clone(), self.parts.shards[self.parts.index].clone());
        self.parts.runtime.spawn_blocking(move || {
            if !is_here(&engine, user, session) {
                return;
            }
            let result = engine.missed(user, Some(&cursor), positions);
            shard.tell(Command::Missed { session, result });
        });
    }

    pub(crate) fn go_live(&mut self, session: u64, missed: Result<Missed, Refusal>) {
        let Some(key) = self.find(session) else { return };
        let missed = match missed {
            Ok(missed) => missed,
            Err(refusal) => {
                self.close(key, refusal);
                return;
            }
        };
        let connection = &mut self.connections[key];
        let (Phase::Binding, Some(bound)) = (connection.phase, &connection.bound) else { return };
        let cursor = cursor_before(connection, bound, &missed);
        let mut frames = vec![match connection.door {
            Door::WebSocket => {
                let frame = ServerFrame::Bound(Bound {
                    session: format!("{session:x}"),
                    user: bound.user.id.clone(),
                    heartbeat_ms: u64::from(connection.heartbeat_ms),
                    cursor,
                    resume: missed.resume,
                    pushes: (bound.push && connection.device.is_none()).then_some(false),
                    expires_at: Some(bound.expires_at),
                });
                json_frame(Door::WebSocket, &json(&frame))
            }
            Door::Miop => miop_bound(connection, bound, &cursor, &missed.resume),
        }];
        if missed.entries > 0 {
            frames.push(messages_frame(connection.door, &connection.cursor, &missed.json));
        }
        // What came live meanwhile follows it, and is handed over with it.
        let handed = (missed.entries > 0 || connection.outgoing.queued_bytes() > 0)
            .then(|| bound.opening.as_ref().map_or(connection.cursor.positions, |opening| opening.bound_at))
            .map(|positions| Cursor { positions, ..connection.cursor });
        connection.outgoing.push_front_frames(frames);
        connection.phase = Phase::Live;
        if let Some(bound) = &mut connection.bound {
            bound.opening = None;
        }
        self.schedule.flush_soon(connection, key);
        if let Some(since) = handed {
            let tick = self.tick();
            self.probes.begin(&mut self.connections[key], key, since, tick, &mut self.wheel);
        }
    }

    /// The session ends; the connection may still say goodbye.
    pub(crate) fn unbind(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let session = connection.session;
        let Some(bound) = connection.bound.take() else { return };
        self.delivery.unbind(key, bound.user.no);
        if std::mem::take(&mut connection.watches) {
            self.parts.engine.unwatch_all((self.parts.index as u16, session));
        }
        if bound.push {
            self.parts.engine.push.session_ended(self.parts.index, session, connection.device.take());
        }
        self.parts.engine.presence.left(bound.user.no, session, self.parts.engine.clock.now_ms());
        self.parts.engine.metrics.sessions.dec();
    }
}

/// The cursor in `bound`: until what was missed has come too, the client's own. A connection that breaks between the two
/// must not have moved it past entries that nobody was handed.
fn cursor_before(connection: &Connection, bound: &BindRequest, missed: &Missed) -> String {
    let own = bound.opening.as_ref().and_then(|opening| opening.cursor);
    let own = own.filter(|_| missed.entries > 0 && !missed.resume.reset);
    own.unwrap_or(connection.cursor).to_string()
}

fn miop_bound(connection: &Connection, bound: &BindRequest, cursor: &str, resume: &Resume) -> Vec<u8> {
    let cursor = bound.chat.then_some(cursor);
    let resume = bound.chat.then(|| json(resume));
    let frame = Frame::Bound(miop::Bound {
        version: miop::VERSION,
        session: &format!("{:x}", connection.session),
        user: &bound.user.id,
        heartbeat_s: u64::from(connection.heartbeat_ms / 1_000),
        frame_bytes_max: FRAME_BYTES_MAX as u64,
        cursor,
        resume: resume.as_deref(),
    });
    frame.to_bytes()
}
