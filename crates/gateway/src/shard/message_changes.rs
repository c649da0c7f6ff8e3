//! Edits and recalls of bound sessions. Each reads the message first, and so runs on a thread for reads of the store; the
//! reply comes back as that of a send.

use super::{FrameOutcome, Shard, decoding::missing_field};
use crate::encoding::error_json;
use std::sync::Arc;
use tidings_domain::model::User;
use tidings_engine::{Engine, engine::send::SessionReply};
use tidings_protocol::{error::Refusal, frames::RawClientFrame, http::EditMessage};

impl Shard {
    pub(super) fn handle_edit(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
        let Some(body) = frame.body else {
            return self.refuse(key, frame.reference, missing_field("body", "an edit"));
        };
        let edit = EditMessage {
            from: None,
            client_msg_id: frame.client_msg_id.as_deref().map(str::to_owned),
            content_type: frame.content_type.as_deref().map(str::to_owned),
            body: body.to_owned(),
            mentions: frame.mentions.clone(),
            if_version: frame.if_version,
        };
        self.change_message(key, frame, "an edit", move |engine, user, conversation, seq, reply| {
            engine.submit_edit(user, conversation, seq, edit, reply)
        })
    }

    pub(super) fn handle_recall(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
        let client_msg_id = frame.client_msg_id.as_deref().map(str::to_owned);
        self.change_message(key, frame, "a recall", move |engine, user, conversation, seq, reply| {
            engine.submit_recall(user, conversation, seq, client_msg_id, reply)
        })
    }

    /// Submits a change of the message that the frame names.
    fn change_message(
        &mut self,
        key: usize,
        frame: &RawClientFrame<'_>,
        what: &str,
        submit: impl FnOnce(&Engine, &Arc<User>, &str, u64, SessionReply) -> Result<(), Refusal> + Send + 'static,
    ) -> FrameOutcome {
        let Some(user) = self.user(key) else { return FrameOutcome::Continue };
        let Some(conversation) = frame.conversation.as_deref().map(str::to_owned) else {
            return self.refuse(key, frame.reference, missing_field("conversation", what));
        };
        let Some(seq) = frame.seq else {
            return self.refuse(key, frame.reference, missing_field("seq", what));
        };
        let (session, reference) = (self.connections[key].session, frame.reference);
        let reply = SessionReply { shard: self.parts.index, session, reference };
        self.spawn_store_read(key, reference, move |engine| {
            submit(engine, &user, &conversation, seq, reply).err().map(|refusal| {
                engine.metrics.count_refusal(refusal.code);
                error_json(reference, &refusal)
            })
        })
    }
}
