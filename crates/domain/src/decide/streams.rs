//! Messages that grow: the list of those that still do, and their bodies in between.

use super::{Decider, ProposalError, StagedRows};
use crate::{chat_rows::stream_key, model::*, store::*};

impl<'a, R: StagedRows<'a>> Decider<'_, R> {
    /// Lists the message that is appended in this place, if it grows: after a crash it is found by that and ended.
    pub(super) fn note_open_stream(&mut self, conversation: ConversationNo, seq: u64, entry: &NewEntry) {
        let details = entry.details();
        if details.stream == StreamState::Open {
            self.rows.put_chat_row(stream_key(conversation, seq), Some(details.stream_node.to_be_bytes().to_vec()));
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
        let details = message.content.details();
        if details.recalled.is_some() {
            return Err(Rejection::MessageRecalled(target).into());
        }
        if details.stream != StreamState::Open {
            return Err(Rejection::StreamEnded(target).into());
        }
        message.content.body = body.into();
        self.rows.put_entry(conversation, message)?;
        Ok(Outcome::Done)
    }

    /// The result of the end of a message that does not grow: that of the first end, unless that was an interruption.
    pub(super) fn end_again(
        &mut self,
        conversation: ConversationNo,
        message: &StoredEntry,
        is_interruption: bool,
    ) -> Result<Outcome, ProposalError> {
        let details = message.content.details();
        let end = match details.stream_end {
            0 => None,
            seq => self.rows.entry(conversation, seq)?,
        };
        match end.filter(|end| !is_interruption && end.content.details().stream == StreamState::Whole) {
            Some(StoredEntry { seq, at, .. }) => {
                let appended = Appended { conversation, seq, at, position: 0, duplicate: true };
                Ok(Outcome::MessageChanged { appended, entry: None, version: details.body_version() })
            }
            None => Err(Rejection::StreamEnded(message.seq).into()),
        }
    }
}
