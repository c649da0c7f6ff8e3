//! Attention: whether somebody looks at a session, and whether its client has stored what it was handed.
//!
//! Offline push counts a user as reached while somebody looks at one of their sessions. Two things correct that afterwards: a
//! session that does not answer ([`super::probing`]), and a client that acknowledges messages but not these.
//!
//! ```text
//! handed a message ──▶ unacknowledged ── `ack_timeout` ──▶ offline push
//!                        └── `stored` covers it ──▶ done
//! ```
//! A client acknowledges messages from its first `stored` frame on; nothing is expected of one that never sends it.

use super::{FrameOutcome, Shard, decoding::missing_field, probing::push_unacknowledged};
use crate::{
    connection::{Connection, HandedMessage, Phase, SessionBinding, UnacknowledgedDelivery},
    timer_wheel::{TICK, TimerWheel, ticks},
};
use std::time::Duration;
use tidings_domain::{model::*, notification_counts::ChannelEvent};
use tidings_notifications::SilentSession;
use tidings_protocol::{frames::RawClientFrame, http::Channel};

/// The time that a client has to acknowledge a message, in ticks.
#[derive(Clone, Copy)]
pub(super) struct AckPolicy {
    /// `None`: nothing is expected of any client.
    timeout: Option<u32>,
}

impl AckPolicy {
    pub(super) fn new(timeout: Duration) -> Self {
        AckPolicy { timeout: (!timeout.is_zero()).then(|| ticks(timeout)) }
    }

    /// A session whose client acknowledges is handed a message at this time; answers whether it is the first one that it has not
    /// acknowledged.
    pub(super) fn begin(
        self,
        connection: &mut Connection,
        key: usize,
        tick: u32,
        at: u64,
        timers: &mut TimerWheel,
    ) -> bool {
        let Some(timeout) = self.timeout.filter(|_| connection.phase == Phase::Live) else { return false };
        let (since, due) = (connection.cursor, tick + timeout);
        if let Some(unacknowledged) = &mut connection.unacknowledged {
            if unacknowledged.hand(since.positions, HandedMessage { timeout, due, at }) {
                connection.arm(key, due, timers);
            }
            return false;
        }
        let in_background = connection.binding.as_ref().is_some_and(|binding| binding.background);
        // The session may be back in the foreground before this message is looked at, and then counts as having it.
        let until = in_background.then_some(since.positions);
        connection.unacknowledged =
            Some(Box::new(UnacknowledgedDelivery { since, until, due, timeout, at, later: Vec::new() }));
        connection.arm(key, due, timers);
        true
    }
}

impl Shard {
    /// How long clients have to acknowledge messages of this lane: as the notification policy or else the settings say.
    pub(super) fn ack_policy(&self, lane: Lane) -> AckPolicy {
        let kind = match lane {
            Lane::Direct => ConversationKind::Direct,
            Lane::Group => ConversationKind::Group,
            Lane::Broadcast => ConversationKind::Official,
        };
        let default_ms = u64::try_from(self.parts.config.ack_timeout.as_millis()).unwrap_or(u64::MAX);
        AckPolicy::new(Duration::from_millis(self.parts.notifications.policies.ack_timeout_ms(kind, default_ms)))
    }

    /// Whether somebody looks at the session from here on.
    pub(super) fn handle_attention(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
        let Some(state) = frame.state else {
            return self.refuse(key, frame.reference, missing_field("state", "attention"));
        };
        let connection = &mut self.connections[key];
        let Some(binding) = &mut connection.binding else { return FrameOutcome::Continue };
        let background = !state.is_foreground();
        if std::mem::replace(&mut binding.background, background) != background {
            self.parts.engine.presence.set_background(binding.user.no, connection.session, background);
            if let Some(unacknowledged) = &mut connection.unacknowledged {
                unacknowledged.until = background.then(|| self.delivery.positions());
            }
        }
        self.send_ok(key, frame.reference)
    }

    /// The client has stored all up to the cursor, as it says.
    pub(super) fn note_acknowledged(&mut self, key: usize, stored: &Cursor) {
        let tick = self.tick();
        let connection = &mut self.connections[key];
        connection.acknowledges = true;
        if stored.epoch != connection.cursor.epoch {
            return;
        }
        let Some(unacknowledged) = &mut connection.unacknowledged else { return };
        let (since, handed) = (&mut unacknowledged.since, connection.cursor.positions);
        for ((since, stored), handed) in since.positions.iter_mut().zip(stored.positions).zip(handed) {
            *since = stored.min(handed).max(*since);
        }
        if since.positions.iter().zip(handed).all(|(since, handed)| *since >= handed)
            && connection.outbound.queued_bytes() == 0
        {
            let (at, now) = (unacknowledged.at, self.parts.engine.clock.now_ms());
            connection.unacknowledged = None;
            let took = Some(now.saturating_sub(at));
            self.parts.engine.metrics.notifications.add(Channel::Session, ChannelEvent::Acknowledged, now, 1, took);
        } else {
            unacknowledged.extend(tick);
        }
    }

    /// The time is over in which the client was to acknowledge messages.
    pub(super) fn push_unacknowledged(&mut self, key: usize, tick: u32) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.readable {
            // Bytes wait to be read: a busy shard is no proof of a client that stores nothing.
            if let Some(unacknowledged) = &mut connection.unacknowledged {
                unacknowledged.due = tick + 1;
            }
            self.arm_timer(key, tick + 1);
            return;
        }
        let Some(unacknowledged) = connection.unacknowledged.take() else { return };
        let (since, background_from) = (unacknowledged.since, unacknowledged.until);
        // What was handed out later has its own time.
        let mut until = self.delivery.positions();
        if let Some((from, rest)) = unacknowledged.rest() {
            until = from;
            self.arm_timer(key, rest.due);
            self.connections[key].unacknowledged = Some(rest);
        }
        if let Some(background_from) = background_from {
            until.iter_mut().zip(background_from).for_each(|(until, from)| *until = from.min(*until));
        }
        // Messages may have been stored that came in the background.
        until.iter_mut().zip(since.positions).for_each(|(until, since)| *until = since.max(*until));
        let connection = &self.connections[key];
        let Some(binding) = &connection.binding else { return };
        let engine = &self.parts.engine;
        engine.metrics.notifications.add(Channel::Session, ChannelEvent::Expired, engine.clock.now_ms(), 1, None);
        // To a session in the background nobody has come back: it counts as if it had ended.
        let session = SilentSession { session: connection.session, stays: !binding.background, acknowledges: true };
        let user = binding.user.clone();
        self.push_offline(user, session, since, until);
    }

    /// A session has ended with messages that its client had not stored. Its user may be back within the time that was left to
    /// acknowledge them, as after a page is loaded again; otherwise they go out by offline push.
    pub(super) fn push_unacknowledged_later(
        &self,
        session: u64,
        binding: &SessionBinding,
        unacknowledged: &UnacknowledgedDelivery,
    ) {
        let notifications = self.parts.notifications.clone();
        if !notifications.has_offline_push() {
            return;
        }
        let left = TICK * unacknowledged.due.saturating_sub(self.tick());
        let (user, since) = (binding.user.clone(), unacknowledged.since);
        let until = unacknowledged.until.unwrap_or(self.delivery.positions());
        let session = SilentSession { session, stays: false, acknowledges: true };
        self.parts.runtime.spawn(async move {
            tokio::time::sleep(left).await;
            let push = move || push_unacknowledged(&notifications, &user, session, &since, until);
            let _ = tokio::task::spawn_blocking(push).await;
        });
    }
}
