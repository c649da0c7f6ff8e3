//! What callers ask of messages that grow: chunks are appended in memory, and an end is committed as an edit is.

use super::{GrowingBody, NewStream, StreamKey, stream_elsewhere, worker::end_entry};
use crate::{Engine, access::Writing, shards::SessionReply};
use serde_json::value::RawValue;
use std::sync::Arc;
use tidings_domain::{
    model::*,
    refusals::{proposal_refusal, store_refusal},
    request_digest::digest_of_end,
    store::{MessageChange, Rejection},
};
use tidings_protocol::{
    depth::check_depth,
    error::{ErrorCode, Refusal},
    http::ChangeReceipt,
    limits::BODY_BYTES_MAX,
};

impl Engine {
    /// Makes an entry one of a message that grows. `conversation`: absent if it is the first message.
    pub(crate) fn prepare_stream(
        &self,
        actor: &Actor,
        conversation: Option<ConversationNo>,
        entry: &mut NewEntry,
        session: Option<(usize, u64)>,
    ) -> Result<Box<NewStream>, Refusal> {
        let body = GrowingBody::parse(&entry.body)?;
        let beginner = actor.user().map(|user| user.person());
        let permit = self.streams.reserve(conversation, beginner, body.bytes())?;
        if let Some(details) = entry.message_details_mut() {
            details.stream = StreamState::Open { node: self.streams.node() };
        }
        Ok(Box::new(NewStream { permit, body, beginner, session }))
    }

    /// Appends a chunk to a message that grows, at the offset of the text in bytes of UTF-8. Answers the length of the text.
    /// Nothing is written to the disk before the next checkpoint. `None`: this node does not know of such a message;
    /// [`Engine::why_no_stream`] says why.
    ///
    /// # Errors
    /// `conflict`: the chunk does not fit, and the detail names the length of the text; `limit_exceeded`, `forbidden`,
    /// `stream_ended`, `stream_elsewhere`, `not_found`, `not_a_member`; `rate_limited` for users, `queue_full`.
    pub fn append_to_stream(
        &self,
        actor: &Actor,
        conversation: &str,
        seq: u64,
        offset: u64,
        chunk: &str,
    ) -> Result<Option<u64>, Refusal> {
        let (ref actor, conversation) = self.enter(actor, conversation)?;
        if let Actor::User(user) = actor {
            self.check_may_write(actor, user, &conversation, Writing::Content)?;
            self.append_rate.check(user.person())?;
        }
        let key = StreamKey { conversation: conversation.no, seq };
        let appended = self.streams.append(key, actor, offset, chunk);
        let appended = appended.or_else(|refusal| self.refusal_for(actor, &conversation, seq, refusal))?;
        let Some((length, touch)) = appended else { return Ok(None) };
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
        self.begin_stream_end(actor, conversation, seq, body, None)?.await
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
        self.begin_stream_end(&actor, conversation, seq, body, Some(reply)).map(drop)
    }

    fn begin_stream_end(
        &self,
        actor: &Actor,
        conversation: &str,
        seq: u64,
        body: Option<Box<RawValue>>,
        reply: Option<SessionReply>,
    ) -> Result<impl Future<Output = Result<ChangeReceipt, Refusal>> + use<>, Refusal> {
        let (ref actor, conversation) = self.enter(actor, conversation)?;
        if let Actor::User(user) = actor {
            self.check_may_write(actor, user, &conversation, Writing::Content)?;
        }
        if let Some(body) = &body {
            let bytes = body.get().len();
            if bytes > BODY_BYTES_MAX {
                return Err(Refusal::limit("body (bytes)", BODY_BYTES_MAX as u64, bytes as u64));
            }
            check_depth("body", body.get())?;
        }
        let key = StreamKey { conversation: conversation.no, seq };
        let ending = self.streams.begin_end(key, actor);
        let (sender, so_far) = match ending.or_else(|refusal| self.refusal_for(actor, &conversation, seq, refusal))? {
            Some(ending) => (ending.sender, ending.body),
            // It may be a retry, which the commit answers.
            None => {
                let message = self.ended_stream(actor, &conversation, seq)?;
                (message.content.sender, message.content.body)
            }
        };
        let digest = body.as_ref().map(|body| digest_of_end(body.get()));
        let mut entry = end_entry(sender, body.map_or(so_far, |body| body.into()));
        entry.request.digest = digest;
        let change = MessageChange::EndStream { interrupted: false };
        self.submit_change(actor, conversation, seq, change, entry, reply).inspect_err(|_| self.streams.resume(key))
    }

    /// Refuses a caller who did not begin the message: as one that does not exist, if it does not for the caller. Who began it may
    /// go on with it, also after having cleared it.
    fn refusal_for<T>(
        &self,
        actor: &Actor,
        conversation: &Conversation,
        seq: u64,
        refusal: Refusal,
    ) -> Result<T, Refusal> {
        match refusal.code {
            ErrorCode::Forbidden | ErrorCode::NotAMessage => {
                self.check_exists_for(actor, conversation, seq).and(Err(refusal))
            }
            _ => Err(refusal),
        }
    }

    /// The message that this node does not hold as a stream, if the actor may have begun it and it does not grow elsewhere.
    fn ended_stream(&self, actor: &Actor, conversation: &Conversation, seq: u64) -> Result<StoredEntry, Refusal> {
        let message = self.stored_message(conversation, seq);
        let message = message.or_else(|refusal| self.refusal_for(actor, conversation, seq, refusal))?;
        let sender = message.content.sender.as_ref().map(|sender| sender.no);
        let details = message.content.message_details();
        if actor.user().is_some_and(|user| Some(user.no) != sender) {
            let refusal = Refusal::new(ErrorCode::Forbidden, "only the caller who began the message may go on with it");
            return self.refusal_for(actor, conversation, seq, refusal);
        }
        if details.recalled.is_some() {
            return Err(proposal_refusal(&Rejection::MessageRecalled(seq)));
        }
        match details.stream {
            StreamState::Open { node } if node != self.streams.node() => Err(stream_elsewhere()),
            // Its beginning was never acknowledged, or its end is on its way.
            StreamState::Open { .. } => Err(proposal_refusal(&Rejection::StreamEnded(seq))),
            StreamState::Whole | StreamState::Interrupted => Ok(message),
        }
    }

    /// Why this node takes no chunk of a message. Blocks for a read of the store.
    pub fn why_no_stream(&self, actor: &Actor, conversation: &str, seq: u64) -> Refusal {
        let found = self.enter(actor, conversation);
        let found = found.and_then(|(actor, conversation)| self.ended_stream(&actor, &conversation, seq));
        found.err().unwrap_or_else(|| proposal_refusal(&Rejection::StreamEnded(seq)))
    }

    /// The boot id of another node that takes the chunks of a message; `None`: it is this node, or the message does not
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
                match found.first().map(|message| message.content.message_details().stream) {
                    Some(StreamState::Open { node }) => node,
                    _ => 0,
                }
            }
        };
        Ok(Some(owner).filter(|owner| *owner != 0 && *owner != self.streams.node()))
    }

    /// The JSON of a `stream` frame with the text of a message from `offset` on, if it still grows and there is such text.
    pub fn stream_chunk_from(&self, conversation: ConversationNo, seq: u64, offset: u64) -> Option<Vec<u8>> {
        self.streams.chunk_from(StreamKey { conversation, seq }, offset)
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
