//! Probes: a session that was handed messages and has sent nothing since is pinged once. Without an answer it counts as
//! gone, and the messages go out by offline push.
//!
//! ```text
//! handed a message ──▶ waits ── silent for `probe_after` ──▶ probed ── silent for `probe_timeout` ──▶ gone
//!                        └──────────── a byte is received ─────┘
//! ```
//! An idle client costs nothing: a session without deliveries is not probed. A delivery costs one comparison, and the first
//! one since the session last sent something costs one entry in the shard's timer wheel.
//!
//! A device that has not declared that it answers probes cannot be probed. Its messages go out by offline push as if it
//! had not answered, but its session stays: the device may be silent for as long as its heartbeat allows.

use super::Shard;
use crate::{
    connection::{Connection, Phase, UnconfirmedDelivery},
    timer_wheel::{TICK, TimerWheel, ticks},
    transport::Protocol,
};
use std::{sync::Arc, time::Duration};
use tidings_domain::model::*;
use tidings_notifications::{Notifications, SilentSession};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    event_stream::{StreamProbe, named_event},
    miop,
    ws::Control,
};

/// Probes of sessions that were handed the same message are spread over this many ticks, one second.
const SPREAD_TICKS: u32 = 10;

/// The probe settings, in ticks.
pub(super) struct ProbePolicy {
    after: u32,
    /// `None`: no session is probed.
    timeout: Option<u32>,
}

impl ProbePolicy {
    pub(super) fn new(after: Duration, timeout: Duration) -> Self {
        ProbePolicy { after: ticks(after), timeout: (!timeout.is_zero()).then(|| ticks(timeout)) }
    }

    /// What asks the client of an event stream for an answer.
    fn event(&self) -> Vec<u8> {
        let timeout_ms = u64::from(self.timeout.unwrap_or_default()) * TICK.as_millis() as u64;
        named_event("probe", &StreamProbe { timeout_ms })
    }

    /// The session is handed the first message since it sent something; `since` is its cursor before.
    pub(super) fn begin(
        &self,
        connection: &mut Connection,
        key: usize,
        since: Cursor,
        tick: u32,
        timers: &mut TimerWheel,
    ) {
        if self.timeout.is_none() || connection.unconfirmed.is_some() || connection.phase != Phase::Live {
            return;
        }
        let next = (connection.last_heard + self.after).max(tick + 1 + key as u32 % SPREAD_TICKS);
        connection.unconfirmed = Some(Box::new(UnconfirmedDelivery { since, next_tick: next, probed: false }));
        connection.arm(key, next, timers);
    }

    /// A full socket has room again, so the client still reads: its time-out begins anew.
    pub(super) fn note_write_progress(&self, connection: &mut Connection, tick: u32) {
        if let (Some(unconfirmed), Some(timeout)) = (&mut connection.unconfirmed, self.timeout)
            && unconfirmed.probed
        {
            unconfirmed.next_tick = unconfirmed.next_tick.max(tick + timeout);
        }
    }
}

impl Shard {
    /// Probes the session, or ends it when its probe has timed out.
    pub(super) fn probe(&mut self, key: usize, tick: u32) {
        let Some(timeout) = self.probe_policy.timeout else { return };
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(unconfirmed) = &mut connection.unconfirmed else { return };
        let can_probe = connection.binding.as_ref().is_some_and(|binding| binding.answers_probes);
        if !std::mem::replace(&mut unconfirmed.probed, true) {
            unconfirmed.next_tick = tick + timeout;
            let next = unconfirmed.next_tick;
            if can_probe {
                match connection.protocol {
                    Protocol::WebSocket => connection.queue_control(Control::Ping, &[]),
                    Protocol::EventStream(_) => connection.outbound.queue_frame(self.probe_policy.event()),
                    Protocol::Miop => connection.outbound.queue_frame(miop::PROBE.to_vec()),
                }
                self.scheduler.flush_soon(connection, key);
            }
            self.arm_timer(key, next);
            return;
        }
        if connection.readable {
            // Bytes wait to be read: a busy shard is no proof of a silent client.
            unconfirmed.next_tick = tick + 1;
            self.arm_timer(key, tick + 1);
            return;
        }
        if can_probe {
            self.parts.engine.metrics.heartbeat_timeouts.inc();
            let why = "a ping was not answered, nor was anything else heard; connect again with the last cursor";
            self.close_unconfirmed(key, Refusal::new(ErrorCode::HeartbeatTimeout, why));
        } else {
            self.push_unconfirmed_offline(key, true);
        }
    }

    /// Closes a session whose client may be gone; its unconfirmed messages go out by offline push.
    pub(super) fn close_unconfirmed(&mut self, key: usize, refusal: Refusal) {
        // What a client has not acknowledged is known more exactly: the end of its session pushes that.
        let unconfirmed = self.connections.get_mut(key).and_then(|c| c.unconfirmed.take().filter(|_| !c.acknowledges));
        let user = self.user(key);
        let session = self.connections.get(key).map(|connection| connection.session);
        // Closed first: the engine must not count this session as online when it looks for the user's others.
        self.close(key, refusal);
        if let (Some(unconfirmed), Some(user), Some(session)) = (unconfirmed, user, session) {
            let session = SilentSession { session, stays: false, acknowledges: false };
            self.push_offline(user, session, unconfirmed.since, self.delivery.positions());
        }
    }

    /// Sends a session's unconfirmed messages by offline push, because its client may never have received them.
    pub(super) fn push_unconfirmed_offline(&mut self, key: usize, stays: bool) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let (session, Some(unconfirmed)) = (connection.session, connection.unconfirmed.take()) else { return };
        let acknowledges = connection.acknowledges;
        let Some(user) = self.user(key) else { return };
        if !stays {
            self.unbind(key);
        }
        if !acknowledges {
            let session = SilentSession { session, stays, acknowledges };
            self.push_offline(user, session, unconfirmed.since, self.delivery.positions());
        }
    }

    /// Sends the messages that a session was handed between these by offline push.
    pub(super) fn push_offline(
        &self,
        user: Arc<User>,
        session: SilentSession,
        since: Cursor,
        until: [Position; LANES],
    ) {
        let notifications = self.parts.notifications.clone();
        if notifications.has_offline_push() {
            let push = move || push_unacknowledged(&notifications, &user, session, &since, until);
            self.parts.runtime.spawn_blocking(push);
        }
    }
}

/// Blocks.
pub(super) fn push_unacknowledged(
    notifications: &Notifications,
    user: &Arc<User>,
    session: SilentSession,
    since: &Cursor,
    until: [Position; LANES],
) {
    if let Err(refusal) = notifications.push_unacknowledged(user, session, since, until) {
        tracing::warn!(error = %refusal, "messages that a session did not confirm could not be handed to offline push");
    }
}
