//! Typing notifications. They are best effort: a session whose socket is blocked gets none, and nothing waits for them.

use crate::{
    connection::{Phase, json, json_frame},
    decoding::missing_field,
    shard::{FrameOutcome, Shard, ticks},
    transport::Protocol,
};
use rustc_hash::FxHasher;
use smallvec::SmallVec;
use std::{
    hash::Hasher,
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::model::Lane;
use tidings_engine::shards::{Typing, TypingAudience};
use tidings_protocol::frames::{RawClientFrame, ServerFrame};

/// A session may notify once in this time per conversation, and in at most this many conversations.
const TYPING_INTERVAL: Duration = Duration::from_secs(1);
const CONVERSATIONS_MAX: usize = 5;
/// Time for typing notifications before sockets are read again.
const TYPING_TURN: Duration = Duration::from_millis(1);

/// The conversations in which a session typed a moment ago: the tick, and the hash of the conversation's id. When two
/// conversations of a session share a hash, one notification is lost.
#[derive(Default)]
pub(crate) struct TypingLimiter(SmallVec<[(u32, u64); CONVERSATIONS_MAX]>);

impl TypingLimiter {
    /// Whether this notification is within the limits; counts it if so.
    fn admit(&mut self, conversation: &str, tick: u32) -> bool {
        let mut hasher = FxHasher::default();
        hasher.write(conversation.as_bytes());
        let hash = hasher.finish();
        self.0.retain(|(at, _)| tick.saturating_sub(*at) < ticks(TYPING_INTERVAL));
        if self.0.len() == CONVERSATIONS_MAX || self.0.iter().any(|(_, typed)| *typed == hash) {
            return false;
        }
        self.0.push((tick, hash));
        true
    }
}

/// A frame for many sessions, encoded once per protocol.
pub(crate) struct SharedFrame {
    websocket: Arc<[u8]>,
    miop: Arc<[u8]>,
}

impl SharedFrame {
    pub(crate) fn of(frame: &ServerFrame) -> Self {
        let json = json(frame);
        let [websocket, miop] =
            [Protocol::WebSocket, Protocol::Miop].map(|protocol| json_frame(protocol, &json).into());
        SharedFrame { websocket, miop }
    }

    pub(crate) fn for_protocol(&self, protocol: Protocol) -> &Arc<[u8]> {
        match protocol {
            Protocol::WebSocket => &self.websocket,
            Protocol::Miop => &self.miop,
        }
    }
}

impl Shard {
    pub(crate) fn handle_typing(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
        let (Some(user), Some(conversation)) = (self.user(key), &frame.conversation) else {
            return self.refuse(key, frame.reference, missing_field("conversation", "typing"));
        };
        // Limited before anything is looked up: a client could send these frames without end.
        let tick = self.tick();
        if !self.connections[key].typing.get_or_insert_default().admit(conversation, tick) {
            return FrameOutcome::Continue;
        }
        match self.parts.engine.typing(&user, conversation) {
            Ok(()) => FrameOutcome::Continue,
            Err(refusal) => self.refuse(key, frame.reference, refusal),
        }
    }

    pub(crate) fn process_typing(&mut self) {
        let now = Instant::now();
        loop {
            let Ok(Typing { conversation, user, audience }) = self.parts.receivers.typing.try_recv() else { return };
            let (lane, keys) = match audience {
                TypingAudience::User(user) => (Lane::Direct, self.sessions_of(user)),
                TypingAudience::Members { conversation, except } => {
                    let others = self.delivery.audience(conversation).filter(|(user, _)| *user != except);
                    (Lane::Group, others.flat_map(|(_, sessions)| sessions.iter().copied()).collect())
                }
            };
            if !keys.is_empty() {
                let frame = ServerFrame::Typing { conversation: conversation.to_string(), user: user.to_string() };
                let frame = SharedFrame::of(&frame);
                keys.into_iter().for_each(|key| self.send_typing(key, &frame, lane, now));
            }
            if now.elapsed() >= TYPING_TURN {
                return;
            }
        }
    }

    /// Queues the notification, unless the socket is blocked: a late notification is worthless.
    fn send_typing(&mut self, key: usize, frame: &SharedFrame, lane: Lane, now: Instant) {
        let connection = &mut self.connections[key];
        let has_chat = connection.binding.as_ref().is_some_and(|binding| binding.chat);
        if has_chat && connection.phase == Phase::Live && !connection.blocked {
            connection.outbound.queue_shared(frame.for_protocol(connection.protocol));
            self.scheduler.flush_batched(connection, key, lane, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::TICK;

    #[test]
    fn typing_is_limited_to_once_a_second_in_a_few_conversations() {
        let second = ticks(TYPING_INTERVAL);
        assert_eq!(TICK * second, TYPING_INTERVAL);
        let mut limiter = TypingLimiter::default();
        assert!(limiter.admit("a", 7));
        assert!(!limiter.admit("a", 7) && !limiter.admit("a", 6 + second));
        assert!(limiter.admit("a", 7 + second));
        let admitted =
            |limiter: &mut TypingLimiter, tick| (0..20).filter(|n| limiter.admit(&n.to_string(), tick)).count();
        assert_eq!(admitted(&mut limiter, 8 + second), CONVERSATIONS_MAX - 1);
        assert_eq!(admitted(&mut limiter, 7 + 2 * second), 1);
        assert_eq!(admitted(&mut limiter, 100 + 2 * second), CONVERSATIONS_MAX);
    }
}
