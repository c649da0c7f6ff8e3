//! Edits, recalls, reactions and pins of bound sessions. An edit or a recall reads the message first, and so runs on a
//! thread for reads of the store; its reply comes back as that of a send.

use super::{FrameOutcome, Shard, decoding::missing_field};
use crate::{commands::Command, encoding::error_json};
use std::sync::Arc;
use tidings_domain::model::{Actor, User};
use tidings_engine::{Engine, shards::SessionReply};
use tidings_protocol::{error::Refusal, frames::RawClientFrame, http::EditMessage};

/// A change that is answered with `ok`.
enum Change {
    React { key: String, add: bool },
    Pin { pinned: bool },
}

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

    pub(super) fn handle_react(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
        let Some(reaction) = frame.key.as_deref().map(str::to_owned) else {
            return self.refuse(key, frame.reference, missing_field("key", "a reaction"));
        };
        self.commit_change(key, frame, "a reaction", Change::React { key: reaction, add: !frame.remove })
    }

    pub(super) fn handle_pin(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
        self.commit_change(key, frame, "a pin", Change::Pin { pinned: !frame.remove })
    }

    /// Commits a change of the message that the frame names, and answers with `ok` if the frame has a `ref`.
    fn commit_change(&mut self, key: usize, frame: &RawClientFrame<'_>, what: &str, change: Change) -> FrameOutcome {
        let Some(user) = self.user(key) else { return FrameOutcome::Continue };
        let Some(conversation) = frame.conversation.as_deref().map(str::to_owned) else {
            return self.refuse(key, frame.reference, missing_field("conversation", what));
        };
        let Some(seq) = frame.seq else {
            return self.refuse(key, frame.reference, missing_field("seq", what));
        };
        self.confirm_later(key, frame.reference, move |engine, _| async move {
            let actor = Actor::User(user);
            match change {
                Change::React { key, add } => engine.react(&actor, None, &conversation, seq, &key, add).await.map(drop),
                Change::Pin { pinned } => engine.pin(&actor, None, &conversation, seq, pinned).await.map(drop),
            }
        })
    }

    /// Submits a change of the message that the frame names.
    pub(super) fn change_message(
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
        let (_, shard) = self.handles();
        self.spawn_in_order(key, reference, move |engine| match submit(engine, &user, &conversation, seq, reply) {
            Ok(()) => {
                // The commit's answer comes as that of a send does, which is no request of the session: without this the
                // session would be refused after as many changes as it may have requests under way.
                shard.send(Command::Submitted { session });
                None
            }
            Err(refusal) => {
                engine.metrics.count_refusal(refusal.code);
                Some(error_json(reference, &refusal))
            }
        })
    }
}
