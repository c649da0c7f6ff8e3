//! Receipts: how far clients have stored what they were handed, and what members learn of each other.

use super::{FrameOutcome, Shard, decoding::missing_field, store_reads::answer_or_refusal};
use crate::encoding::SharedFrame;
use tidings_domain::model::*;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    frames::{RawClientFrame, ServerFrame},
    http::ConversationReceipts,
};

impl Shard {
    /// The client has stored all up to a cursor. Not answered.
    pub(super) fn handle_stored(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
        let Some(cursor) = &frame.cursor else {
            return self.refuse(key, frame.reference, missing_field("cursor", "stored"));
        };
        let Ok(cursor) = cursor.parse::<Cursor>() else {
            let why = "cursor: this server did not issue it";
            return self.refuse(key, frame.reference, Refusal::new(ErrorCode::CursorInvalid, why));
        };
        self.note_stored(key, cursor, self.connections[key].cursor.positions);
        self.note_acknowledged(key, &cursor);
        FrameOutcome::Continue
    }

    /// Takes note of what a session's client has stored, at most as far as the session was handed entries.
    pub(super) fn note_stored(&self, key: usize, mut cursor: Cursor, handed: [Position; LANES]) {
        let Some(binding) = self.connections[key].binding.as_ref().filter(|binding| binding.chat) else { return };
        cursor.positions.iter_mut().zip(handed).for_each(|(stored, handed)| *stored = handed.min(*stored));
        self.parts.engine.note_stored(binding.user.no, &cursor);
    }

    /// Sends a frame to all sessions of the user that have chat.
    pub(super) fn send_to_user(&mut self, user: UserNo, frame: &[u8]) {
        let frame = SharedFrame::of_json(frame);
        for key in self.sessions_of(user) {
            self.send_unless_full(key, &frame);
        }
    }

    /// Sends a frame to these sessions, as far as they have chat.
    pub(super) fn send_to_sessions(&mut self, sessions: &[u64], frame: &[u8]) {
        let frame = SharedFrame::of_json(frame);
        let keys: Vec<usize> = sessions.iter().filter_map(|session| self.find(*session)).collect();
        keys.into_iter().for_each(|key| self.send_unless_full(key, &frame));
    }

    /// How far the members of a conversation have come, as over HTTP.
    pub(super) fn handle_receipts(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
        let Some(user) = self.user(key) else { return FrameOutcome::Continue };
        let Some(conversation) = frame.conversation.as_deref().map(str::to_owned) else {
            return self.refuse(key, frame.reference, missing_field("conversation", "receipts"));
        };
        let reference = frame.reference;
        self.spawn_store_read(key, reference, move |engine| {
            let receipts = engine.conversation_receipts(&Actor::User(user), &conversation);
            Some(answer_or_refusal(engine, reference, receipts, |ConversationReceipts { marks, moved }| {
                ServerFrame::Receipts { reference, conversation, marks, moved }
            }))
        })
    }

    /// Tells the live members of a conversation of receipts, but those who send none of their own.
    pub(super) fn send_receipts_to_members(&mut self, conversation: ConversationNo, frame: &[u8]) {
        let engine = &self.parts.engine;
        let shows = |user: UserNo| matches!(engine.directory.user(user), Ok(Some(user)) if !user.receipts_off);
        let members = self.delivery.audience(conversation).filter(|(user, _)| shows(*user));
        let keys: Vec<usize> = members.flat_map(|(_, sessions)| sessions.iter().copied()).collect();
        if !keys.is_empty() {
            let frame = SharedFrame::of_json(frame);
            keys.into_iter().for_each(|key| self.send_unless_full(key, &frame));
        }
    }

    /// A session whose buffer is full gets none: what the frame tells can be read at any time.
    fn send_unless_full(&mut self, key: usize, frame: &SharedFrame) {
        let connection = &mut self.connections[key];
        let has_chat = connection.binding.as_ref().is_some_and(|binding| binding.chat);
        if has_chat && connection.outbound.queued_bytes() <= self.parts.config.session_buffer_bytes {
            connection.outbound.queue_shared(frame.for_protocol(connection.protocol));
            self.scheduler.flush_soon(connection, key);
        }
    }
}
