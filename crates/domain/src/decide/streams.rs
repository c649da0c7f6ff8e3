//! Messages that grow: the list of those that still do, and their bodies in between.

use super::{Decider, ProposalError, StagedRows};
use crate::{chat_rows::stream_key, model::*, request_digest::digest_of_end, store::*};

impl<'a, R: StagedRows<'a>> Decider<'_, R> {
    /// Lists the message that is appended in this place, if it grows: after a crash it is found by that and ended.
    pub(super) fn note_open_stream(&mut self, conversation: ConversationNo, seq: u64, entry: &NewEntry) {
        if let StreamState::Open { node } = entry.message_details().stream {
            self.rows.put_chat_row(stream_key(conversation, seq), Some(node.to_be_bytes().to_vec()));
        }
    }

    pub(super) fn forget_open_stream(&mut self, conversation: ConversationNo, seq: u64) -> Outcome {
        self.rows.put_chat_row(stream_key(conversation, seq), None);
        Outcome::Done
    }

    pub(super) fn checkpoint_stream(
        &mut self,
        conversation: ConversationNo,
        target: u64,
        body: &str,
    ) -> Result<Outcome, ProposalError> {
        self.rows.head(conversation)?.ok_or(Rejection::NoSuchConversation)?;
        let mut message = self.rows.entry(conversation, target)?.ok_or(Rejection::NoSuchEntry(target))?;
        let details = message.content.message_details();
        if details.recalled.is_some() {
            return Err(Rejection::MessageRecalled(target).into());
        }
        if !details.stream.is_open() {
            return Err(Rejection::StreamEnded(target).into());
        }
        message.content.body = body.into();
        self.rows.put_entry(conversation, message)?;
        Ok(Outcome::Done)
    }

    /// The result of the end of a message that does not grow: that of the first end, unless that was an interruption or had
    /// another body. (Once the message is edited, the first end's body is gone, and any end is a retry.)
    pub(super) fn end_again(
        &mut self,
        conversation: ConversationNo,
        message: &StoredEntry,
        is_interruption: bool,
        request: &EntryRequest,
    ) -> Result<Outcome, ProposalError> {
        let details = message.content.message_details();
        let end = match details.stream_end {
            Some(seq) => self.rows.entry(conversation, seq)?,
            None => None,
        };
        let is_same = |end: &StoredEntry| {
            let body = &*end.content.body;
            body == NO_BODY || request.digest.is_none_or(|again| again == digest_of_end(body))
        };
        let was_interrupted = |end: &StoredEntry| end.content.edit_details().is_some_and(|end| end.interrupted);
        let is_retry = |end: &StoredEntry| !is_interruption && !was_interrupted(end);
        match end.filter(|end| is_retry(end) && is_same(end)) {
            Some(StoredEntry { seq, at, .. }) => {
                let appended = Appended { conversation, seq, at, position: 0, duplicate: true };
                Ok(Outcome::MessageChanged { appended, entry: None, version: details.version_left_by(seq) })
            }
            None => Err(Rejection::StreamEnded(message.seq).into()),
        }
    }
}
