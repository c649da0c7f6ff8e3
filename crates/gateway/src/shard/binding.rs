//! The first half of a bind: the connection becomes a session of its user, on the user's own shard. The session takes the
//! place of older ones, and has its device registered for pushes. The module `resume` has the second half.
//!
//! ```text
//! Unbound ── bind, token accepted ──▶ (the user's shard) Binding ── memberships, missed entries ──▶ Live
//! ```

use super::{FrameOutcome, Shard, decoding::missing_field, links::waited_too_long};
use crate::{
    commands::{Command, MovedConnection},
    connection::{PendingBind, Phase, SessionBinding},
    session_config::{SessionConfig, silence_max},
    transport::{Protocol, Transport},
};
use std::{borrow::Cow, num::NonZeroU64};
use tidings_domain::push_store::DeviceNo;
use tidings_engine::{
    access::{Operation, Scopes},
    presence::{NodeNo, PresenceSession},
    shards::shard_of,
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    frames::RawClientFrame,
    ids::check_new_id,
    limits::TYPE_BYTES_MAX,
};
use tidings_push::Register;

/// A bind that has waited for so long may have been overtaken by one that its device has sent since, to another node.
const LATE_MS: u64 = 1_000;

/// The fields of a bind, of either protocol.
pub(super) struct BindFields<'a> {
    pub token: Option<Cow<'a, str>>,
    pub device_id: Option<Cow<'a, str>>,
    pub device_kind: Cow<'a, str>,
    pub app_version: Option<Cow<'a, str>>,
    pub cursor: Option<Cow<'a, str>>,
    pub chat: bool,
    pub push: bool,
    pub answers_probes: bool,
    pub background: bool,
    pub compact: bool,
    /// The client asked for pushes explicitly: without the scope the bind is refused, not granted without pushes.
    pub push_is_explicit: bool,
    pub heartbeat_ms: u32,
}

impl<'a> BindFields<'a> {
    pub(super) fn of(frame: &RawClientFrame<'a>, config: &SessionConfig) -> Self {
        BindFields {
            token: frame.token.clone(),
            device_id: frame.device_id.clone(),
            device_kind: frame.device_kind.clone().unwrap_or(Cow::Borrowed("web")),
            app_version: frame.app_version.clone(),
            cursor: frame.cursor.clone(),
            chat: true,
            push: frame.push,
            // Every WebSocket client answers pings (RFC 6455, 5.5.3), and every client of an event stream its probes.
            answers_probes: true,
            background: !frame.attention.is_foreground(),
            compact: frame.compact,
            push_is_explicit: true,
            heartbeat_ms: config.heartbeat.as_millis() as u32,
        }
    }

    /// Whether the session has chat and pushes, within what its token allows. Refused where a client would wait in vain for
    /// pushes that it asked for, or would hold a connection without any use.
    fn granted(&self, scopes: Scopes) -> Result<(bool, bool), Refusal> {
        let chat = self.chat && scopes.allow(Operation::ReceiveMessages);
        let push = self.push && scopes.allow(Operation::ReceivePushes);
        if self.push && !push && self.push_is_explicit {
            scopes.check(Operation::ReceivePushes)?;
        }
        if self.chat && !chat && !push && scopes == Scopes::NONE {
            scopes.check(Operation::ReceiveMessages)?;
        }
        if !self.chat && !push {
            scopes.check(Operation::ReceivePushes)?;
        }
        Ok((chat, push))
    }
}

impl Shard {
    /// The first frame of a connection. `following` is what was read after it.
    pub(super) fn handle_bind(&mut self, key: usize, fields: BindFields<'_>, following: &[u8]) -> FrameOutcome {
        if self.connections[key].read_closed {
            // It must not end the session that its device has begun elsewhere meanwhile.
            self.close(key, Refusal::new(ErrorCode::NodeUnavailable, "the client left before its bind was read"));
            return FrameOutcome::Continue;
        }
        let bind = match self.check_bind(key, &fields) {
            Ok(bind) => bind,
            Err(refusal) => {
                self.close(key, refusal);
                return FrameOutcome::Continue;
            }
        };
        let user_shard = shard_of(bind.user.no, self.parts.shards.len());
        if user_shard == self.parts.index {
            self.begin_bind(key, bind, fields.heartbeat_ms);
            return FrameOutcome::Continue;
        }
        let protocol = self.connections[key].protocol;
        let (connection, already_read) = (self.detach_connection(key), following.to_vec());
        self.parts.shards[user_shard].send(Command::Move(Box::new(MovedConnection {
            connection,
            protocol,
            already_read,
            bind,
            heartbeat_ms: fields.heartbeat_ms,
        })));
        FrameOutcome::Moved
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
            Refusal::new(ErrorCode::CursorInvalid, "cursor: this server did not issue it; drop it and bind without one")
        })?;
        let app_version = frame.app_version.as_deref();
        if let Some(version) = app_version.filter(|version| version.len() > TYPE_BYTES_MAX) {
            return Err(Refusal::limit("app_version (bytes)", TYPE_BYTES_MAX as u64, version.len() as u64));
        }
        Ok(SessionBinding {
            user,
            device_id: device_id.into(),
            device_kind: self.parts.engine.presence.kind(device_kind),
            since: self.parts.engine.clock.now_ms().saturating_sub(self.waited_ms(key)),
            pending: (app_version.is_some() || cursor.is_some()).then(|| {
                Box::new(PendingBind { app_version: app_version.map(Into::into), cursor, ..PendingBind::default() })
            }),
            chat,
            sends_chat: frame.chat,
            push,
            answers_probes: frame.answers_probes,
            background: frame.background,
            compact: frame.compact,
            awaits_registration: false,
            scopes: claims.scopes,
            issued_at: claims.issued_at.and_then(NonZeroU64::new),
            expires_at: claims.expires_at,
        })
    }

    /// How long the client has waited for its bind to be read, behind a relay.
    fn waited_ms(&self, key: usize) -> u64 {
        match &self.connections[key].transport {
            Transport::Link(end) => end.waited_ms.into(),
            Transport::Plain(_) | Transport::Tls(_) => 0,
        }
    }

    /// Whether the device began a session after this bind was sent, which has waited since. The client of the bind may have left for it.
    fn is_overtaken(&self, bind: &SessionBinding) -> bool {
        let presence = &self.parts.engine.presence;
        let now_ms = self.parts.engine.clock.now_ms();
        // What began later than now was noted by a clock that goes ahead.
        let is_later = |other: &PresenceSession| {
            other.device_id == bind.device_id && other.since > bind.since && other.since <= now_ms
        };
        now_ms.saturating_sub(bind.since) >= LATE_MS && presence.sessions_of(bind.user.no).iter().any(is_later)
    }

    /// Makes the connection a session of its user, on the user's own shard.
    pub(super) fn begin_bind(&mut self, key: usize, mut bind: SessionBinding, heartbeat_ms: u32) {
        if self.connections[key].phase != Phase::Unbound {
            return;
        }
        // Checked again on the user's own shard, after any revocation or suspension that closed the user's sessions there: the user that
        // was looked up with the token may be older than it.
        if let Err(refusal) = self.check_user_of(&bind) {
            self.close(key, refusal);
            return;
        }
        if self.is_overtaken(&bind) {
            self.close(key, waited_too_long());
            return;
        }
        let user = bind.user.no;
        self.close_replaced_sessions(&bind);
        let tick = self.tick();
        let connection = &mut self.connections[key];
        (connection.phase, connection.unbound) = (Phase::Binding, None);
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
            background: bind.background,
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
        });
        bind.awaits_registration = bind.push;
        if let Some(pending) = &mut bind.pending {
            pending.positions_at_bind = self.delivery.positions_passed();
        }
        let expires_at = bind.expires_at;
        connection.is_compact = bind.compact;
        connection.binding = Some(Box::new(bind));
        self.arm_timeout(key, tick + silence_max(heartbeat_ms));
        self.end_with_token(key, expires_at);
        if let Protocol::EventStream(_) = protocol {
            self.begin_event_stream(key);
        }
        self.parts.engine.metrics.session_began(protocol.name());
        self.parts.engine.metrics.sessions_opened.inc();
        for session in self.parts.engine.presence.outranked(user, self.parts.engine.config.session_limits()) {
            self.close_replaced(user, session);
        }
        self.hand_over_reports();
        match register.map(|register| self.parts.engine.push.register(register)) {
            None => self.begin_chat(key),
            Some(Ok(())) => {}
            Some(Err(refusal)) => self.continue_without_pushes(key, refusal),
        }
    }

    /// The registration of the session's device has ended; once registered, the device is pushed to. Chat begins next, unless
    /// it began before.
    pub(super) fn finish_registration(&mut self, session: u64, result: Result<DeviceNo, Refusal>) {
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

    /// The node that leads push cannot be reached: the session begins without pushes, its client is notified, and pushes come
    /// when the node can be reached.
    fn continue_without_pushes(&mut self, key: usize, refusal: Refusal) {
        if refusal.code == ErrorCode::NodeUnavailable { self.begin_chat(key) } else { self.close(key, refusal) }
    }
}
