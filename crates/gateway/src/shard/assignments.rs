//! Agents assign conversations of their account.

use super::{FrameOutcome, Shard, decoding::missing_field};
use tidings_domain::model::Actor;
use tidings_protocol::{frames::RawClientFrame, http::Assign};

impl Shard {
    pub(super) fn handle_assign(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
        let Some(user) = self.user(key) else { return FrameOutcome::Continue };
        let Some(conversation) = frame.conversation.as_deref().map(str::to_owned) else {
            return self.refuse(key, frame.reference, missing_field("conversation", "assign"));
        };
        let Some(assigned_to) = frame.assigned_to.clone() else {
            return self.refuse(key, frame.reference, missing_field("assigned_to", "assign"));
        };
        let assign = Assign { assigned_to, if_assigned_to: frame.if_assigned_to.clone() };
        self.confirm_later(key, frame.reference, move |engine, _| async move {
            engine.assign(&Actor::User(user), &conversation, assign).await.map(drop)
        })
    }
}
