//! Agents assign conversations of their account.

use super::{FrameOutcome, Shard, decoding::missing_field};
use crate::{
    commands::Command,
    encoding::{error_json, json},
};
use tidings_domain::model::Actor;
use tidings_protocol::{
    frames::{RawClientFrame, ServerFrame},
    http::Assign,
};

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
        let session = match self.begin_request(key) {
            Ok(session) => session,
            Err(refusal) => return self.refuse(key, frame.reference, refusal),
        };
        let reference = frame.reference;
        let (engine, shard) = self.handles();
        self.parts.runtime.spawn(async move {
            let json = match engine.assign(&Actor::User(user), &conversation, assign).await {
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
