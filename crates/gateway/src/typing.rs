//! That somebody types: worth a frame to each who is there, and nobody's wait for anything else.

use crate::{
    connection::{Phase, json, json_frame},
    decoding::missing,
    shard::{After, Shard, ticks},
    transport::Door,
};
use rustc_hash::FxHasher;
use smallvec::SmallVec;
use std::{
    hash::Hasher,
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_engine::{
    model::Lane,
    shards::{Hearers, Typing},
};
use tidings_protocol::frames::{RawClientFrame, ServerFrame};

/// In this time a session is heard to type once in a conversation, and in so many conversations.
const HEARD_ONCE_IN: Duration = Duration::from_secs(1);
const CONVERSATIONS_MAX: usize = 5;
/// Time for telling of it before sockets are read again.
const TELLING_TURN: Duration = Duration::from_millis(1);

/// Where a session typed a moment ago: the tick, and the hash of the conversation's id. Two of one hash
/// cost the session that named both a signal.
#[derive(Default)]
pub(crate) struct Typed(SmallVec<[(u32, u64); CONVERSATIONS_MAX]>);

impl Typed {
    /// Whether others are to hear of it, counted if so.
    fn is_news(&mut self, conversation: &str, tick: u32) -> bool {
        let mut hasher = FxHasher::default();
        hasher.write(conversation.as_bytes());
        let hash = hasher.finish();
        self.0.retain(|(at, _)| tick.saturating_sub(*at) < ticks(HEARD_ONCE_IN));
        if self.0.len() == CONVERSATIONS_MAX || self.0.iter().any(|(_, typed)| *typed == hash) {
            return false;
        }
        self.0.push((tick, hash));
        true
    }
}

/// A frame that many sessions are handed, encoded once.
pub(crate) struct SharedFrame {
    websocket: Arc<[u8]>,
    miop: Arc<[u8]>,
}

impl SharedFrame {
    pub(crate) fn of(frame: &ServerFrame) -> Self {
        let json = json(frame);
        let [websocket, miop] = [Door::WebSocket, Door::Miop].map(|door| json_frame(door, &json).into());
        SharedFrame { websocket, miop }
    }

    pub(crate) fn through(&self, door: Door) -> &Arc<[u8]> {
        match door {
            Door::WebSocket => &self.websocket,
            Door::Miop => &self.miop,
        }
    }
}

impl Shard {
    pub(crate) fn take_typing(&mut self, key: usize, frame: &RawClientFrame<'_>) -> After {
        let (Some(user), Some(conversation)) = (self.user(key), &frame.conversation) else {
            return self.refuse(key, frame.reference, missing("conversation", "typing"));
        };
        // Before anything is looked up: it is what a client could send without end.
        let tick = self.tick();
        if !self.connections[key].typed.get_or_insert_default().is_news(conversation, tick) {
            return After::Stays;
        }
        match self.parts.engine.typing(&user, conversation) {
            Ok(()) => After::Stays,
            Err(refusal) => self.refuse(key, frame.reference, refusal),
        }
    }

    pub(crate) fn tell_of_typing(&mut self) {
        let now = Instant::now();
        loop {
            let Ok(Typing { conversation, user, hearers }) = self.parts.receivers.typing.try_recv() else { return };
            let (lane, keys) = match hearers {
                Hearers::User(user) => (Lane::Direct, self.sessions_of(user)),
                Hearers::Members { conversation, but } => {
                    let others = self.delivery.audience(conversation).filter(|(user, _)| *user != but);
                    (Lane::Group, others.flat_map(|(_, sessions)| sessions.iter().copied()).collect())
                }
            };
            if !keys.is_empty() {
                let frame = ServerFrame::Typing { conversation: conversation.to_string(), user: user.to_string() };
                let frame = SharedFrame::of(&frame);
                keys.into_iter().for_each(|key| self.let_hear(key, &frame, lane, now));
            }
            if now.elapsed() >= TELLING_TURN {
                return;
            }
        }
    }

    /// A session with something else to write hears of it in time, or not at all.
    fn let_hear(&mut self, key: usize, frame: &SharedFrame, lane: Lane, now: Instant) {
        let connection = &mut self.connections[key];
        let has_chat = connection.bound.as_ref().is_some_and(|bound| bound.chat);
        if has_chat && connection.phase == Phase::Live && !connection.blocked {
            connection.outgoing.push_shared(frame.through(connection.door));
            self.schedule.flush_gathered(connection, key, lane, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::TICK;

    #[test]
    fn a_session_is_heard_once_a_second_in_each_of_a_few_conversations() {
        let second = ticks(HEARD_ONCE_IN);
        assert_eq!(TICK * second, HEARD_ONCE_IN);
        let mut typed = Typed::default();
        assert!(typed.is_news("a", 7));
        assert!(!typed.is_news("a", 7) && !typed.is_news("a", 6 + second));
        assert!(typed.is_news("a", 7 + second));
        let heard = |typed: &mut Typed, tick| (0..20).filter(|n| typed.is_news(&n.to_string(), tick)).count();
        assert_eq!(heard(&mut typed, 8 + second), CONVERSATIONS_MAX - 1);
        assert_eq!(heard(&mut typed, 7 + 2 * second), 1);
        assert_eq!(heard(&mut typed, 100 + 2 * second), CONVERSATIONS_MAX);
    }
}
