//! What a session sets for conversations of its user's list.

use super::{FrameOutcome, Shard, decoding::missing_field};
use tidings_protocol::{frames::RawClientFrame, http::UpdatePreferences};

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
        self.confirm_later(key, frame.reference, move |engine, _| async move {
            engine.set_preferences(&user, &conversation, update).await.map(drop)
        })
    }
}
