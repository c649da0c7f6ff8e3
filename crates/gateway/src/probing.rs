//! Whether somebody is still there: a session that was handed messages, and from which nothing was heard since, is asked
//! once; without an answer it counts as gone, and what it was handed goes out by offline push.
//!
//! ```text
//! handed a message ──▶ Waits ── silent for `probe_after` ──▶ ping, Asked ── silent for `probe_timeout` ──▶ gone
//!                        └──────────── a byte is heard ────────┘
//! ```
//! An idle client costs nothing: without something to deliver nobody is asked. Of a delivery the cost is one comparison,
//! and one entry in the shard's wheel for the first since the session was last heard.
//!
//! A device that does not say that it answers probes cannot be asked. Its messages go out by offline push as if it had
//! not answered, but its session stays: it may be silent for as long as its heartbeat allows.

use crate::{
    connection::{Connection, Phase},
    shard::{Shard, ticks},
    transport::Door,
    wheel::Wheel,
};
use std::{sync::Arc, time::Duration};
use tidings_engine::model::*;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    miop,
    ws::Control,
};

/// Probes of sessions that were handed the same message are spread over so many ticks: a second.
const SPREAD_TICKS: u32 = 10;

/// What a session was handed since it was last heard.
pub(crate) struct Unheard {
    /// Where it stood before.
    since: Cursor,
    /// The tick of the next step.
    pub(crate) next: u32,
    asked: bool,
}

/// How patient a shard is, in ticks.
pub(crate) struct Probes {
    after: u32,
    /// `None`: nobody is asked.
    timeout: Option<u32>,
}

impl Probes {
    pub(crate) fn new(after: Duration, timeout: Duration) -> Self {
        Probes { after: ticks(after), timeout: (!timeout.is_zero()).then(|| ticks(timeout)) }
    }

    /// The session is handed the first message since it was heard; it stood at `since` before.
    pub(crate) fn begin(&self, connection: &mut Connection, key: usize, since: Cursor, tick: u32, wheel: &mut Wheel) {
        if self.timeout.is_none() || connection.unheard.is_some() || connection.phase != Phase::Live {
            return;
        }
        let next = (connection.heard + self.after).max(tick + 1 + key as u32 % SPREAD_TICKS);
        connection.unheard = Some(Box::new(Unheard { since, next, asked: false }));
        if next < connection.due {
            connection.due = wheel.put(key, next);
        }
    }

    /// Bytes left a socket that was full: somebody takes them.
    pub(crate) fn progressed(&self, connection: &mut Connection, tick: u32) {
        if let (Some(unheard), Some(timeout)) = (&mut connection.unheard, self.timeout)
            && unheard.asked
        {
            unheard.next = unheard.next.max(tick + timeout);
        }
    }
}

impl Shard {
    /// The time of a session's next step has come.
    pub(crate) fn probe(&mut self, key: usize, tick: u32) {
        let Some(timeout) = self.probes.timeout else { return };
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(unheard) = &mut connection.unheard else { return };
        let can_ask = connection.bound.as_ref().is_some_and(|bound| bound.answers_probes);
        if !std::mem::replace(&mut unheard.asked, true) {
            unheard.next = tick + timeout;
            let next = unheard.next;
            if can_ask {
                match connection.door {
                    Door::WebSocket => connection.push_control(Control::Ping, &[]),
                    Door::Miop => connection.outgoing.push_frame(miop::PROBE.to_vec()),
                }
                self.schedule.flush_soon(connection, key);
            }
            self.arm_any(key, next);
            return;
        }
        if connection.readable {
            // Something has come, and has yet to be read: a busy shard is no proof of a silent client.
            unheard.next = tick + 1;
            self.arm_any(key, tick + 1);
            return;
        }
        if can_ask {
            self.parts.engine.metrics.heartbeat_timeouts.inc();
            let why = "a ping was not answered, nor was anything else heard; connect again with the last cursor";
            self.close_unheard(key, Refusal::new(ErrorCode::HeartbeatTimeout, why));
        } else {
            self.tell_unheard(key, true);
        }
    }

    /// Closes a session that nobody may be at.
    pub(crate) fn close_unheard(&mut self, key: usize, refusal: Refusal) {
        let unheard = self.connections.get_mut(key).and_then(|connection| connection.unheard.take());
        let user = self.user(key);
        let session = self.connections.get(key).map(|connection| connection.session);
        // It must not count any more when the engine looks who is there.
        self.close(key, refusal);
        if let (Some(unheard), Some(user), Some(session)) = (unheard, user, session) {
            self.push_unheard(&unheard, user, (session, false));
        }
    }

    /// What a session was handed and may never have got goes out by offline push.
    pub(crate) fn tell_unheard(&mut self, key: usize, stays: bool) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let (session, Some(unheard)) = (connection.session, connection.unheard.take()) else { return };
        let Some(user) = self.user(key) else { return };
        if !stays {
            self.unbind(key);
        }
        self.push_unheard(&unheard, user, (session, stays));
    }

    fn push_unheard(&self, unheard: &Unheard, user: Arc<User>, session: (u64, bool)) {
        let (engine, since, until) = (self.parts.engine.clone(), unheard.since, self.delivery.positions());
        if !engine.pushes_offline() {
            return;
        }
        self.parts.runtime.spawn_blocking(move || {
            if let Err(refusal) = engine.push_unheard(&user, session, &since, until) {
                tracing::warn!(error = %refusal, "messages that a session did not get could not be noted for offline push");
            }
        });
    }
}
