//! Typing notifications. They are best effort: a session whose socket is blocked gets none, and nothing waits for them.

use super::{FrameOutcome, Shard, decoding::missing_field};
use crate::{connection::Phase, encoding::SharedFrame};
use std::time::{Duration, Instant};
use tidings_domain::model::Lane;
use tidings_engine::shards::{Typing, TypingAudience};
use tidings_protocol::frames::{RawClientFrame, ServerFrame};

/// Time for typing notifications before sockets are read again.
const TYPING_TURN: Duration = Duration::from_millis(1);

impl Shard {
    pub(super) fn handle_typing(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
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

    pub(super) fn process_typing(&mut self) {
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
