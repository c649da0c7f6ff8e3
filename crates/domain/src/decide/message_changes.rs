//! Changes of messages that were sent before.

use super::{Decider, ProposalError, StagedRows};
use crate::{
    chat_rows,
    erasure::legal_hold_key,
    message_changes::{apply, body_to_be_replaced, remove_body},
    model::*,
    store::*,
};
use std::borrow::Cow;

impl<'a, R: StagedRows<'a>> Decider<'_, R> {
    pub(super) fn change_message(
        &mut self,
        conversation: ConversationNo,
        target: u64,
        change: &MessageChange,
        entry: &'a NewEntry,
    ) -> Result<Outcome, ProposalError> {
        let send = self.send_key(conversation, entry);
        if let Some(first) = self.first_result(send.as_ref(), entry)? {
            let message = self.rows.entry(conversation, target)?;
            let version = message.map_or(1, |message| message.content.message_details().version_left_by(first.seq));
            return Ok(Outcome::MessageChanged { appended: first, entry: None, version });
        }
        // The server ends the message of a sender who has left.
        let is_interruption = *change == MessageChange::EndStream { interrupted: true };
        if let Some(sender) = entry.sender.as_ref().filter(|_| !is_interruption)
            && self.rows.has_just_left(conversation, sender.no)
        {
            return Err(Rejection::NotAMember.into());
        }
        self.check_agent(entry)?;
        let head = self.rows.head(conversation)?.ok_or(Rejection::NoSuchConversation)?;
        if is_interruption && self.rows.entry(conversation, target)?.is_none() {
            return Ok(self.forget_open_stream(conversation, target));
        }
        if matches!(change, MessageChange::Pin { pinned: false, .. })
            && self.forget_pin_of_removed(conversation, target)?
        {
            return Ok(Outcome::Done);
        }
        let mut message = self.message(conversation, target)?;
        let details = message.content.message_details();
        let is_recall = matches!(change, MessageChange::Recall | MessageChange::Expire);
        if let Some(recalled) = details.recalled.as_ref().filter(|_| is_recall) {
            let (seq, at) = (recalled.entry, recalled.at);
            let appended = Appended { conversation, seq, at, position: 0, duplicate: true };
            return Ok(Outcome::MessageChanged { appended, entry: None, version: details.body_version() });
        }
        if details.recalled.is_some() {
            return Err(Rejection::MessageRecalled(target).into());
        }
        let is_open = details.stream.is_open();
        let mut content = entry.clone();
        let account = self.assignment(conversation)?.map(|assignment| assignment.account);
        let desk = desk_of_change(message.content.desk(), content.desk(), account);
        let of_kind = match change {
            MessageChange::Edit { .. } if is_open => return Err(Rejection::StreamOpen(target).into()),
            MessageChange::EndStream { .. } if !is_open => {
                return self.end_again(conversation, &message, is_interruption, &entry.request);
            }
            MessageChange::EndStream { .. } => {
                content.content_type = message.content.content_type.clone();
                content.mentions = message.content.mentions.clone();
                let version = details.body_version() + 1;
                KindDetails::Edit(EditDetails { target, version, replaced: None, interrupted: is_interruption })
            }
            MessageChange::Edit { if_version, keep_replaced, edits_max } => {
                let actual = details.body_version();
                if let Some(expected) = if_version.filter(|expected| *expected != actual) {
                    return Err(Rejection::VersionConflict { expected, actual }.into());
                }
                if details.edits.len() >= *edits_max {
                    return Err(Rejection::TooManyEdits { limit: *edits_max as u64 }.into());
                }
                if let Some(superseded) = details.edits.last() {
                    self.remove_body(conversation, *superseded, false)?;
                }
                let replaced = keep_replaced.then(|| body_to_be_replaced(&message));
                KindDetails::Edit(EditDetails { target, version: actual + 1, replaced, interrupted: false })
            }
            MessageChange::Recall | MessageChange::Expire => {
                let expired = *change == MessageChange::Expire;
                if expired {
                    if self.rows.chat_row(&legal_hold_key(conversation))?.is_some() {
                        return Err(Rejection::LegalHold.into());
                    }
                    content.content_type = message.content.content_type.clone();
                }
                let is_pinned = details.pinned.is_some();
                for edit in details.edits.clone() {
                    self.remove_body(conversation, edit, true)?;
                }
                if is_pinned {
                    self.put_pins(conversation, target, false, usize::MAX)?;
                }
                KindDetails::Recall { target, expired }
            }
            MessageChange::Pin { pinned, pins_max } => {
                if details.pinned.is_some() == *pinned {
                    return Ok(Outcome::Done);
                }
                self.put_pins(conversation, target, *pinned, *pins_max)?;
                let pinned = pinned.then(|| Pinned { at: head.last_at.max(self.now_ms), by: entry.sender.clone() });
                KindDetails::Pins { target, pinned }
            }
        };
        content.details = Some(Box::new(EntryDetails { desk, hidden: message.content.is_hidden(), ..of_kind.into() }));
        if is_open && !matches!(change, MessageChange::Pin { .. }) {
            self.forget_open_stream(conversation, target);
        }
        // The place that `append` gives the entry.
        let (seq, at) = (head.last_seq + 1, head.last_at.max(self.now_ms));
        let change = StoredEntry { seq, position: 0, at, content };
        apply(&mut message, &change);
        let version = message.content.message_details().body_version();
        self.rows.put_entry(conversation, message)?;
        let appended = self.append(conversation, Cow::Owned(change.content.clone()), send)?;
        if is_recall {
            // Not by position: in a database the batch gets its positions later.
            self.rows.put_chat_row(chat_rows::recall_key(appended.at, conversation, target), Some(Vec::new()));
        }
        Ok(Outcome::MessageChanged { appended, entry: Some(Box::new(change.content)), version })
    }

    /// Removes the pin of a message that retention has removed; answers whether there was one.
    fn forget_pin_of_removed(&mut self, conversation: ConversationNo, target: u64) -> Result<bool, ProposalError> {
        if self.rows.entry(conversation, target)?.is_some() {
            return Ok(false);
        }
        let pins = self.rows.chat_row(&chat_rows::pins_key(conversation))?;
        let was_pinned = chat_rows::decode::<Vec<u64>>(pins.as_deref())?.contains(&target);
        if was_pinned {
            self.put_pins(conversation, target, false, usize::MAX)?;
        }
        Ok(was_pinned)
    }

    /// Adds a message to the list of the conversation's pinned messages, or removes it.
    fn put_pins(
        &mut self,
        conversation: ConversationNo,
        seq: u64,
        pinned: bool,
        pins_max: usize,
    ) -> Result<(), ProposalError> {
        let key = chat_rows::pins_key(conversation);
        let mut pins: Vec<u64> = chat_rows::decode(self.rows.chat_row(&key)?.as_deref())?;
        pins.retain(|known| *known != seq);
        if pinned {
            if pins.len() >= pins_max {
                return Err(Rejection::TooManyPins { limit: pins_max as u64 }.into());
            }
            pins.push(seq);
        }
        self.rows.put_chat_row(key, (!pins.is_empty()).then(|| chat_rows::encode(&pins)));
        Ok(())
    }

    fn remove_body(&mut self, conversation: ConversationNo, seq: u64, replaced: bool) -> Result<(), ProposalError> {
        if let Some(mut edit) = self.rows.entry(conversation, seq)?
            && remove_body(&mut edit, replaced)
        {
            self.rows.put_entry(conversation, edit)?;
        }
        Ok(())
    }
}

/// What the entry of a change says of accounts: what its message says, or else that the conversation has an account by now.
fn desk_of_change(
    of_message: Option<&EntryDesk>,
    of_change: Option<&EntryDesk>,
    account: Option<ConversationNo>,
) -> Option<EntryDesk> {
    let for_customer = of_message.is_some_and(|desk| desk.for_customer);
    let named = of_message.or(of_change).map(|desk| desk.account);
    let agent = of_change.and_then(|desk| desk.agent.clone());
    named.or(account).map(|account| EntryDesk { account, agent, for_customer })
}
