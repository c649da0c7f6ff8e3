//! Typing notifications and transient signals. They are best effort: a session whose socket is blocked gets none, and nothing waits for them.

use super::{FrameOutcome, Shard, decoding::missing_field};
use crate::{connection::Phase, encoding::SharedFrame};
use std::time::{Duration, Instant};
use tidings_domain::model::Actor;
use tidings_domain::model::Lane;
use tidings_engine::shards::{Transient, TransientAudience};
use tidings_protocol::frames::RawClientFrame;

/// Time for these before sockets are read again.
const TRANSIENT_TURN: Duration = Duration::from_millis(1);

impl Shard {
    pub(super) fn handle_typing(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
        let (Some(user), Some(conversation)) = (self.user(key), &frame.conversation) else {
            return self.refuse(key, frame.reference, missing_field("conversation", "typing"));
        };
        // Limited before anything is looked up: a client could send these frames without end.
        let tick = self.tick();
        if !self.connections[key].extras_mut().typing.admit(conversation, tick) {
            return FrameOutcome::Continue;
        }
        match self.parts.engine.typing(&user, conversation) {
            Ok(()) => FrameOutcome::Continue,
            Err(refusal) => self.refuse(key, frame.reference, refusal),
        }
    }

    pub(super) fn handle_signal(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
        let (Some(user), Some(conversation)) = (self.user(key), &frame.conversation) else {
            return self.refuse(key, frame.reference, missing_field("conversation", "signal"));
        };
        let Some(signal_type) = &frame.content_type else {
            return self.refuse(key, frame.reference, missing_field("type", "signal"));
        };
        match self.parts.engine.signal(&Actor::User(user), None, conversation, signal_type, frame.body) {
            Ok(()) => self.send_ok(key, frame.reference),
            Err(refusal) => self.refuse(key, frame.reference, refusal),
        }
    }

    pub(super) fn process_transient(&mut self) {
        let now = Instant::now();
        loop {
            let Ok(Transient { frame, audience }) = self.parts.receivers.transient.try_recv() else { return };
            let (lane, keys) = match audience {
                TransientAudience::User(user) => (Lane::Direct, self.sessions_of(user)),
                TransientAudience::Members { conversation, except } => {
                    let others = self.delivery.audience(conversation).filter(|(user, _)| *user != except);
                    (Lane::Group, others.flat_map(|(_, sessions)| sessions.iter().copied()).collect())
                }
            };
            if !keys.is_empty() {
                let frame = SharedFrame::of_json(&frame);
                keys.into_iter().for_each(|key| self.send_transient(key, &frame, lane, now));
            }
            if now.elapsed() >= TRANSIENT_TURN {
                return;
            }
        }
    }

    /// Queues the frame, unless the socket is blocked: a late one is worthless.
    fn send_transient(&mut self, key: usize, frame: &SharedFrame, lane: Lane, now: Instant) {
        let connection = &mut self.connections[key];
        let has_chat = connection.binding.as_ref().is_some_and(|binding| binding.chat);
        if has_chat && connection.phase == Phase::Live && !connection.blocked {
            connection.outbound.queue_shared(frame.for_protocol(connection.protocol));
            self.scheduler.flush_batched(connection, key, lane, now);
        }
    }
}
