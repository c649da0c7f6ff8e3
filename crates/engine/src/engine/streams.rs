//! Messages that grow: begun as a message is sent, appended to in memory, and ended as a message is edited.

use crate::{
    engine::{
        Engine,
        message_changes::{CommittedChange, finish_change},
        send::{SendTarget, SessionReply, SubmitOutcome},
    },
    stream_worker::end_entry,
    streams::{GrowingBody, NewStream, StreamKey, stream_elsewhere},
};
use serde_json::value::RawValue;
use std::sync::Arc;
use tidings_domain::{
    model::*,
    refusals::{proposal_refusal, store_refusal},
    store::{MessageChange, Proposal, Rejection},
};
use tidings_protocol::{
    depth::check_depth,
    error::{ErrorCode, Refusal},
    http::{ChangeReceipt, NewMessage, SendReceipt, SendRequest},
    limits::BODY_BYTES_MAX,
};

impl Engine {
    /// Sends a message that grows; with the receipt it is durable. A retry with the same `client_msg_id` answers with the
    /// first result, whether the message still grows or not.
    ///
    /// # Errors
    /// Those of [`Engine::send`]; `queue_full` also if too many messages grow.
    pub async fn begin_stream(&self, actor: &Actor, request: SendRequest) -> Result<SendReceipt, Refusal> {
        self.send_as(actor, request, true).await
    }

    /// Submits a session's message that grows, as [`Engine::submit`] does a send. The message ends with the session.
    ///
    /// # Errors
    /// Those of [`Engine::begin_stream`] that are found before the commit.
    pub fn submit_stream(
        &self,
        sender: &Arc<User>,
        target: SendTarget<'_>,
        message: NewMessage,
        reply: SessionReply,
    ) -> Result<SubmitOutcome, Refusal> {
        self.submit_as(sender, target, message, reply, true)
    }

    /// Makes a send one of a message that grows.
    pub(super) fn prepare_stream(
        &self,
        actor: &Actor,
        proposal: &mut Proposal,
        session: Option<(usize, u64)>,
    ) -> Result<Option<Box<NewStream>>, Refusal> {
        let Proposal::Append { conversation, entry } = proposal else { return Ok(None) };
        let body = GrowingBody::parse(&entry.body)?;
        let beginner = actor.user().map(|user| user.person());
        let permit = self.streams.reserve(*conversation, beginner, body.bytes())?;
        let details = entry.details_mut();
        details.stream = StreamState::Open;
        details.stream_node = self.streams.node();
        Ok(Some(Box::new(NewStream { permit, body, beginner, session })))
    }

    /// Appends a piece to a message that grows, at the offset of the text in bytes of UTF-8. Answers the length of the text.
    /// Nothing is written to the disk before the next checkpoint. `None`: this node does not know of such a message;
    /// [`Engine::why_no_stream`] says why.
    ///
    /// # Errors
    /// `conflict`: the piece does not fit, and the detail names the length of the text; `limit_exceeded`, `forbidden`,
    /// `stream_ended`, `stream_elsewhere`, `not_found`, `not_a_member`; `rate_limited` for users, `queue_full`.
    pub fn append_to_stream(
        &self,
        actor: &Actor,
        conversation: &str,
        seq: u64,
        offset: u64,
        piece: &str,
    ) -> Result<Option<u64>, Refusal> {
        let (ref actor, conversation) = self.enter(actor, conversation)?;
        if let Actor::User(user) = actor {
            self.check_may_send(actor, user, &conversation)?;
            self.append_rate.check(user.person())?;
        }
        let key = StreamKey { conversation: conversation.no, seq };
        let Some((length, touch)) = self.streams.append(key, actor, offset, piece)? else { return Ok(None) };
        if let Some(touch) = touch {
            self.lanes.enqueue_stream(touch);
        }
        Ok(Some(length))
    }

    /// Ends a message that grows; with the receipt its whole body is durable. Without a body it is what has been appended.
    /// A repeated end answers with the first result. Blocks for a read of the store if this node does not know the message.
    ///
    /// # Errors
    /// Those of [`Engine::append_to_stream`] and of [`Engine::edit_message`].
    pub async fn end_stream(
        &self,
        actor: &Actor,
        conversation: &str,
        seq: u64,
        body: Option<Box<RawValue>>,
    ) -> Result<ChangeReceipt, Refusal> {
        let (conversation, committed) = self.begin_stream_end(actor, conversation, seq, body, None)?;
        finish_change(&conversation, committed).await
    }

    /// Submits a session's end of a message that grows; the reply comes to the shard as that of a send does. May block for
    /// a read of the store.
    ///
    /// # Errors
    /// Those of [`Engine::end_stream`] that are found before the commit.
    pub fn submit_stream_end(
        &self,
        user: &Arc<User>,
        conversation: &str,
        seq: u64,
        body: Option<Box<RawValue>>,
        reply: SessionReply,
    ) -> Result<(), Refusal> {
        let actor = Actor::User(user.clone());
        self.begin_stream_end(&actor, conversation, seq, body, Some(reply)).map(|_| ())
    }

    fn begin_stream_end(
        &self,
        actor: &Actor,
        conversation: &str,
        seq: u64,
        body: Option<Box<RawValue>>,
        reply: Option<SessionReply>,
    ) -> Result<(Arc<Conversation>, CommittedChange), Refusal> {
        let (ref actor, conversation) = self.enter(actor, conversation)?;
        if let Actor::User(user) = actor {
            self.check_may_send(actor, user, &conversation)?;
        }
        if let Some(body) = &body {
            let bytes = body.get().len();
            if bytes > BODY_BYTES_MAX {
                return Err(Refusal::limit("body (bytes)", BODY_BYTES_MAX as u64, bytes as u64));
            }
            check_depth("body", body.get())?;
        }
        let key = StreamKey { conversation: conversation.no, seq };
        let (sender, so_far) = match self.streams.begin_end(key, actor)? {
            Some(ending) => (ending.sender, ending.body),
            // It may be a retry, which the commit answers.
            None => {
                let message = self.ended_stream(actor, &conversation, seq)?;
                (message.content.sender, message.content.body)
            }
        };
        let entry = end_entry(sender, body.map_or(so_far, |body| body.into()));
        let change = MessageChange::EndStream { interrupted: false };
        self.submit_change(conversation, seq, change, entry, reply).inspect_err(|_| self.streams.resume(key))
    }

    /// The message that this node does not hold as a stream, if the actor may have begun it and it does not grow elsewhere.
    fn ended_stream(&self, actor: &Actor, conversation: &Conversation, seq: u64) -> Result<StoredEntry, Refusal> {
        let message = self.stored_message(conversation, seq)?;
        let sender = message.content.sender.as_ref().map(|sender| sender.no);
        let details = message.content.details();
        if actor.user().is_some_and(|user| Some(user.no) != sender) {
            return Err(Refusal::new(ErrorCode::Forbidden, "only the caller who began the message may go on with it"));
        }
        if details.recalled.is_some() {
            return Err(proposal_refusal(&Rejection::MessageRecalled(seq)));
        }
        match details.stream {
            StreamState::Open if details.stream_node != self.streams.node() => Err(stream_elsewhere()),
            // Its beginning was never acknowledged, or its end is on its way.
            StreamState::Open => Err(proposal_refusal(&Rejection::StreamEnded(seq))),
            StreamState::Whole | StreamState::Interrupted => Ok(message),
        }
    }

    /// Why this node takes no piece of a message. Blocks for a read of the store.
    pub fn why_no_stream(&self, actor: &Actor, conversation: &str, seq: u64) -> Refusal {
        let found = self.enter(actor, conversation);
        let found = found.and_then(|(actor, conversation)| self.ended_stream(&actor, &conversation, seq));
        found.err().unwrap_or_else(|| proposal_refusal(&Rejection::StreamEnded(seq)))
    }

    /// The boot id of another node that takes the pieces of a message; `None`: it is this node, or the message does not
    /// grow. May block for a read of the store.
    ///
    /// # Errors
    /// `not_found`; `store_unavailable`.
    pub fn stream_owner(&self, conversation: &str, seq: u64) -> Result<Option<u64>, Refusal> {
        let conversation = self.directory.require_conversation(conversation)?;
        let key = StreamKey { conversation: conversation.no, seq };
        let owner = match self.streams.owner(key) {
            Some(owner) => owner,
            None => {
                let end = tidings_domain::store::End::Oldest;
                let found = self.store.entries(key.conversation, seq, seq, 1, end).map_err(store_refusal)?;
                found.first().map_or(0, |message| message.content.details().stream_node)
            }
        };
        Ok(Some(owner).filter(|owner| *owner != 0 && *owner != self.streams.node()))
    }

    /// The JSON of a `stream` frame with the text of a message from `offset` on, if it still grows and there is such text.
    pub fn stream_piece_from(&self, conversation: ConversationNo, seq: u64, offset: u64) -> Option<Vec<u8>> {
        self.streams.piece_from(StreamKey { conversation, seq }, offset)
    }

    /// A session has ended: the messages that it began, and that still grow, are ended as interrupted.
    pub fn end_streams_of_session(&self, shard: usize, session: u64) {
        if self.streams.on_session_end((shard, session)) {
            self.stream_worker.look();
        }
    }

    /// Stores texts and ends messages as far as that is due, and waits until it is done.
    pub fn settle_streams(&self) {
        self.stream_worker.settle();
    }
}
