//! What commits make of streams: the committer of this node reports its own, the applier of all nodes' entries.

use super::{GrowingBody, NewStream, Role, State, Stream, StreamKey, Streams, Touch};
use std::sync::Arc;
use tidings_domain::{
    model::*,
    store::{MessageChange, Outcome, Proposal, Rejection},
};

impl Streams {
    /// Takes note of an outcome, before its caller is answered.
    pub(crate) fn on_outcome(
        &self,
        proposal: &Proposal,
        outcome: &Outcome,
        conversation: Option<&Arc<Conversation>>,
        new: Option<Box<NewStream>>,
    ) {
        match proposal {
            Proposal::Append { entry, .. } | Proposal::OpenDirect { entry, .. } => {
                let begun = outcome.appended().filter(|appended| !appended.duplicate);
                if let (Some(appended), Some(new), Some(conversation)) = (begun, new, conversation) {
                    let key = StreamKey { conversation: appended.conversation, seq: appended.seq };
                    self.open(key, conversation, entry.sender.clone(), *new);
                }
            }
            Proposal::ChangeMessage { conversation, target, change, .. } => {
                let key = StreamKey { conversation: *conversation, seq: *target };
                match (change, outcome) {
                    (MessageChange::Edit { .. } | MessageChange::Pin { .. }, _) => {}
                    (_, Outcome::Rejected(rejection)) if !is_over(rejection) => self.resume(key),
                    _ => self.close(key),
                }
            }
            _ => {}
        }
    }

    /// Takes note of a proposal that was not committed.
    pub(crate) fn on_failure(&self, proposal: &Proposal) {
        if let Proposal::ChangeMessage { conversation, target, change: MessageChange::EndStream { .. }, .. } = proposal
        {
            self.resume(StreamKey { conversation: *conversation, seq: *target });
        }
    }

    /// The message grows no more.
    pub(crate) fn close(&self, key: StreamKey) {
        let stream = self.state.lock().remove(key);
        drop(stream);
    }

    /// Takes note of an entry that ends a message, before the lanes have it: no chunk follows the entry.
    pub(crate) fn on_end_entry(&self, conversation: ConversationNo, entry: &StoredEntry) {
        if let Some(seq) = entry.content.target().filter(|_| entry.content.kind != EntryKind::Pins) {
            self.close(StreamKey { conversation, seq });
        }
    }

    /// Takes note of a message that grows, once the lanes have its entry. Answers the stream if it must be queued.
    pub(crate) fn announce(&self, begun: BegunStream) -> Option<Touch> {
        let BegunStream { key, conversation, node, body } = begun;
        let mut state = self.state.lock();
        if let Some(stream) = state.streams.get_mut(&key) {
            stream.announced = true;
            if matches!(stream.role, Role::Copy { .. }) {
                // The owner's body came before the entry: the lanes have the entry's text and no more.
                stream.sent = stream.sent.min(GrowingBody::parse(&body).ok()?.text().len());
            }
            return stream.touch(key);
        }
        // A stream of this node that is not there any more has ended meanwhile.
        if node != self.node {
            self.copy(&mut state, key, &conversation, node, GrowingBody::parse(&body).ok()?, true);
        }
        None
    }

    /// Keeps a copy of another node's stream, if there is room. Unless the lanes have its entry, chunks wait a while for that.
    pub(super) fn copy(
        &self,
        state: &mut State,
        key: StreamKey,
        conversation: &Arc<Conversation>,
        node: u64,
        body: GrowingBody,
        announced: bool,
    ) {
        if !self.has_room_for_copy(state, body.bytes()) {
            return;
        }
        state.copied_bytes += body.bytes();
        let (conversation, sent) = (conversation.clone(), body.text().len());
        let role = Role::Copy { asked_at: 0, copied_at: self.clock.monotonic() };
        state.streams.insert(key, Stream { conversation, body, node, sent, queued: false, announced, role });
    }

    pub(super) fn has_room_for_copy(&self, state: &State, bytes: usize) -> bool {
        state.copied_bytes + bytes <= self.config.bytes_max
    }
}

/// Whether the rejection of an end means that the message has ended already.
fn is_over(rejection: &Rejection) -> bool {
    matches!(
        rejection,
        Rejection::StreamEnded(_)
            | Rejection::MessageRecalled(_)
            | Rejection::NoSuchEntry(_)
            | Rejection::NotAMessage(_)
            | Rejection::NoSuchConversation
    )
}

/// A message that grows, as its entry describes it.
pub(crate) struct BegunStream {
    key: StreamKey,
    conversation: Arc<Conversation>,
    node: u64,
    body: Box<str>,
}

/// The stream that an entry begins, if it does.
pub(crate) fn begun_stream(conversation: &Arc<Conversation>, entry: &StoredEntry) -> Option<BegunStream> {
    let StreamState::Open { node } = entry.content.message_details().stream else { return None };
    Some(BegunStream {
        key: StreamKey { conversation: conversation.no, seq: entry.seq },
        conversation: conversation.clone(),
        node,
        body: entry.content.body.clone(),
    })
}
