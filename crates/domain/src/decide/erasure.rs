//! The steps by which a person is erased.

use super::{Decider, ProposalError, StagedRows};
use crate::{
    erasure::{ERASED, EraseStep, Fate, StoredErasure, blank, fate_of_row, fate_of_row_in, redact_entry},
    model::*,
    store::*,
};

impl<'a, R: StagedRows<'a>> Decider<'_, R> {
    pub(super) fn erase(&mut self, step: &EraseStep) -> Result<Outcome, ProposalError> {
        match step {
            EraseStep::Begin { user, key, row, by } => {
                let before = self.rows.chat_row(key)?.map(|row| StoredErasure::decode(&row)).transpose()?;
                if before.is_some_and(|before| before.is_running() && before.no == *user) {
                    return Ok(Outcome::Done);
                }
                let (until, reason, by, at) = (None, ERASED.to_owned(), by.clone(), self.now_ms);
                self.change_settings(*user, |settings| {
                    settings.suspension = Some(Box::new(Suspension { until, reason, by, at }));
                })?;
                self.rows.put_chat_row(key.clone(), Some(row.clone()));
            }
            EraseStep::Entries { person, conversation, seqs } => {
                for seq in seqs {
                    let Some(mut entry) = self.rows.entry(*conversation, *seq)? else { continue };
                    let send = entry.content.idempotency_key().map(|(author, id)| (author, id.to_owned()));
                    if redact_entry(person, &mut entry.content) {
                        self.rows.put_entry(*conversation, entry)?;
                        if let Some((author, id)) = send.filter(|(author, _)| *author == person.no) {
                            self.rows.forget_send(*conversation, author, &id)?;
                        }
                    }
                }
            }
            EraseStep::Rows { person, keys } => {
                for key in keys {
                    let Some(row) = self.rows.chat_row(key)? else { continue };
                    match fate_of_row(person, key, &row) {
                        Fate::Keep => {}
                        Fate::Remove => self.rows.put_chat_row(key.clone(), None),
                        Fate::Rewrite(row) => self.rows.put_chat_row(key.clone(), Some(row)),
                    }
                }
            }
            EraseStep::Rename { conversation, id } => {
                let before = self.rows.conversation(*conversation)?.ok_or(Rejection::NoSuchConversation)?;
                if before.id != *id {
                    self.rows.rename_conversation(&before.id, Conversation { id: id.clone(), ..before.clone() });
                }
            }
            EraseStep::BeginConversation { key, row } => {
                let before = self.rows.chat_row(key)?.map(|row| StoredErasure::decode(&row)).transpose()?;
                if before.is_none_or(|before| !before.is_running()) {
                    self.rows.put_chat_row(key.clone(), Some(row.clone()));
                }
            }
            EraseStep::Blank { conversation, seqs } => {
                for seq in seqs {
                    let Some(mut entry) = self.rows.entry(*conversation, *seq)? else { continue };
                    let send = entry.content.idempotency_key().map(|(author, id)| (author, id.to_owned()));
                    if blank(&mut entry) {
                        self.rows.put_entry(*conversation, entry)?;
                        if let Some((author, id)) = send {
                            self.rows.forget_send(*conversation, author, &id)?;
                        }
                    }
                }
            }
            EraseStep::RowsIn { conversation, keys } => {
                for key in keys {
                    let Some(row) = self.rows.chat_row(key)? else { continue };
                    match fate_of_row_in(conversation, key, &row) {
                        Fate::Keep => {}
                        Fate::Remove => self.rows.put_chat_row(key.clone(), None),
                        Fate::Rewrite(row) => self.rows.put_chat_row(key.clone(), Some(row)),
                    }
                }
            }
            EraseStep::Details { conversation, .. } => {
                let before = self.rows.conversation(conversation.no)?.ok_or(Rejection::NoSuchConversation)?;
                let left = conversation.left_of(before.clone());
                if left != before {
                    self.rows.rename_conversation(&before.id, left);
                }
            }
            EraseStep::Profile { person, .. } => {
                let before = self.rows.user(person.no)?.ok_or(Rejection::NoSuchUser(person.no))?;
                if before.id != person.alias {
                    let suspension = before.suspension().cloned().map(Box::new);
                    let left = User::new(before.no, person.alias.clone(), before.created_at)
                        .with_extras(UserExtras { suspension, ..UserExtras::default() });
                    self.rows.erase_user(&before.id, left);
                }
            }
        }
        Ok(Outcome::Done)
    }
}
