//! What a session sets for conversations of its user's list.

use super::{FrameOutcome, Shard, decoding::missing_field};
use crate::{
    commands::Command,
    encoding::{error_json, json},
};
use tidings_protocol::{
    frames::{RawClientFrame, ServerFrame},
    http::UpdatePreferences,
};

impl Shard {
    pub(super) fn handle_preferences(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
        let Some(user) = self.user(key) else { return FrameOutcome::Continue };
        let Some(conversation) = frame.conversation.as_deref().map(str::to_owned) else {
            return self.refuse(key, frame.reference, missing_field("conversation", "preferences"));
        };
        let update = UpdatePreferences {
            pinned: frame.pinned,
            archived: frame.archived,
            hidden: frame.hidden,
            title: frame.title.clone(),
            marked_unread: frame.marked_unread,
            clear_to_seq: frame.clear_to_seq,
        };
        let session = match self.begin_request(key) {
            Ok(session) => session,
            Err(refusal) => return self.refuse(key, frame.reference, refusal),
        };
        let reference = frame.reference;
        let (engine, shard) = self.handles();
        self.parts.runtime.spawn(async move {
            let json = match engine.set_preferences(&user, &conversation, update).await {
                Ok(_) => json(&ServerFrame::Ok { reference: reference.unwrap_or(0) }),
                Err(refusal) => {
                    engine.metrics.count_refusal(refusal.code);
                    error_json(reference, &refusal)
                }
            };
            shard.send(Command::Answer { session, json });
        });
        FrameOutcome::Continue
    }
}
