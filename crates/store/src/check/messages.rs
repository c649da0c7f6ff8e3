//! What became of messages must agree: a message with the entries that changed it, and with the rows of reactions and pins.

use super::{CheckReport, desks::AccountConversations, scan_meta};
use crate::{kv::*, reads::read_parts, rows::*};
use std::collections::{BTreeSet, HashMap};
use tidings_domain::{
    chat_row_kind::ChatRowKind,
    chat_rows::{self, MentionPlace},
    model::*,
    store::{StoreError, StoreResult},
};

/// What rows other than entries must agree with, gathered from all entries.
#[derive(Default)]
pub(super) struct ChangedMessages {
    /// How many reactions each message has that was not recalled, by conversation and `seq`.
    reactions: HashMap<(u64, u64), u64>,
    /// How many messages are pinned in each conversation.
    pins: HashMap<u64, u64>,
    /// The messages of each conversation that still mention all members as when they were sent.
    mentions_of_all: HashMap<u64, BTreeSet<u64>>,
    accounts: AccountConversations,
}

impl ChangedMessages {
    /// Checks one entry against those that it names.
    pub(super) fn check_entry(
        &mut self,
        kv: &dyn KvRead,
        no: u64,
        first_seq: u64,
        entry: &StoredEntry,
        report: &mut CheckReport,
    ) {
        if entry.content.mentions_all() && entry.content.message_details().edits.is_empty() {
            self.mentions_of_all.entry(no).or_default().insert(entry.seq);
        }
        let Some(details) = &entry.content.details else { return };
        let seq = entry.seq;
        self.accounts.note_entry(no, entry);
        if let Some(target) = entry.content.target().filter(|target| *target >= first_seq) {
            let message = read_message(kv, no, target);
            let is_named = message.is_some_and(|message| {
                let of_message = message.content.message_details();
                match details.of_kind {
                    KindDetails::Edit(_) => of_message.edits.contains(&seq),
                    KindDetails::Recall { .. } => of_message.recalled.as_ref().is_some_and(|by| by.entry == seq),
                    _ => true,
                }
            });
            if !is_named {
                report.fault(format_args!(
                    "conversation {no}: entry {seq} and message {target}, which it changed, differ"
                ));
            }
        }
        let KindDetails::Message(details) = &details.of_kind else { return };
        if details.body_version() as usize != details.edits.len() + 1 {
            report.fault(format_args!("conversation {no}: message {seq} has another version than edits"));
        }
        if details.recalled.is_some() {
            let left = details.edits.iter().filter(|edit| **edit >= first_seq).any(|edit| has_body(kv, no, *edit));
            if left || &*entry.content.body != NO_BODY {
                report.fault(format_args!(
                    "conversation {no}: message {seq} was recalled, and a body of it is still there"
                ));
            }
            return;
        }
        let reactions = details.reactions.iter().map(|reaction| u64::from(reaction.count)).sum();
        if reactions > 0 {
            self.reactions.insert((no, seq), reactions);
        }
        *self.pins.entry(no).or_default() += u64::from(details.pinned.is_some());
    }

    /// Checks the rows of reactions and pins.
    pub(super) fn check_rows(
        mut self,
        kv: &dyn KvRead,
        first_seqs: &HashMap<u64, u64>,
        report: &mut CheckReport,
    ) -> StoreResult<()> {
        let mut given: HashMap<(u64, u64), u64> = HashMap::new();
        let mut damaged = Vec::new();
        let mut mentions_of_all: HashMap<u64, BTreeSet<u64>> = HashMap::new();
        scan_meta(kv, MetaKind::Chat, |key, row| {
            let key = &key[1..];
            let checked = match ChatRowKind::of(key) {
                Some(ChatRowKind::Reactions) => count_reactions(key, row, &mut given),
                Some(ChatRowKind::Pins) => self.check_pins(kv, key, row, first_seqs),
                Some(ChatRowKind::MentionOfAll) => Ok(note_mention_of_all(kv, key, first_seqs, &mut mentions_of_all)),
                Some(ChatRowKind::AccountIndex | ChatRowKind::Assignment) => {
                    self.accounts.note_row(key, row).map(|()| None)
                }
                _ => Ok(None),
            };
            match checked {
                Ok(fault) => damaged.extend(fault),
                Err(error) => damaged.push(error.to_string()),
            }
        })?;
        damaged.into_iter().for_each(|fault| report.fault(fault));
        self.accounts.check(report);
        for (no, rows) in mentions_of_all {
            let messages = self.mentions_of_all.remove(&no).unwrap_or_default();
            // Messages from before there were such rows have none.
            let first = rows.first().copied().unwrap_or(0);
            for seq in messages.range(first..).filter(|seq| !rows.contains(seq)) {
                report.fault(format_args!(
                    "conversation {no}: message {seq} mentions all members, and is not in the index of such messages"
                ));
            }
        }
        for ((no, seq), expected) in self.reactions {
            let found = given.get(&(no, seq)).copied().unwrap_or(0);
            if found != expected {
                report.fault(format_args!(
                    "conversation {no}: message {seq} counts {expected} reactions, and users gave {found}"
                ));
            }
        }
        for (no, _) in self.pins.into_iter().filter(|(_, count)| *count > 0) {
            report.fault(format_args!("conversation {no}: a pinned message is not in the list of pinned messages"));
        }
        Ok(())
    }

    fn check_pins(
        &mut self,
        kv: &dyn KvRead,
        key: &[u8],
        row: &[u8],
        first_seqs: &HashMap<u64, u64>,
    ) -> StoreResult<Option<String>> {
        let no = chat_rows::number_in(key, 0).unwrap_or(0);
        let pins: Vec<u64> = chat_rows::decode(Some(row))?;
        let first_seq = first_seqs.get(&no).copied().unwrap_or(1);
        let kept: Vec<u64> = pins.into_iter().filter(|seq| *seq >= first_seq).collect();
        let is_pinned =
            |seq: &u64| read_message(kv, no, *seq).is_some_and(|m| m.content.message_details().pinned.is_some());
        let wrong = kept.iter().find(|seq| !is_pinned(seq));
        let expected = self.pins.remove(&no).unwrap_or(0);
        Ok(match wrong {
            Some(seq) => {
                Some(format!("conversation {no}: message {seq} is in the list of pinned messages, and is not pinned"))
            }
            None if expected != kept.len() as u64 => {
                Some(format!("conversation {no} has {expected} pinned messages, and {} are in their list", kept.len()))
            }
            None => None,
        })
    }
}

/// Takes note of a row of the index of messages that mention all members.
fn note_mention_of_all(
    kv: &dyn KvRead,
    key: &[u8],
    first_seqs: &HashMap<u64, u64>,
    rows: &mut HashMap<u64, BTreeSet<u64>>,
) -> Option<String> {
    let Some(MentionPlace { at, conversation, seq }) = chat_rows::mention_in(key) else {
        return Some("the key of a message that mentions all members is damaged".into());
    };
    let no = conversation.0;
    // Retention removes a message first and its row later.
    if first_seqs.get(&no).is_some_and(|first_seq| seq < *first_seq) {
        return None;
    }
    rows.entry(no).or_default().insert(seq);
    match read_message(kv, no, seq) {
        Some(message) if message.at == at && message.content.kind == EntryKind::Message => None,
        _ => Some(format!("conversation {no}: the index names {seq} as a message that mentions all, which it is not")),
    }
}

/// Counts the reactions of one user to a message.
fn count_reactions(key: &[u8], row: &[u8], given: &mut HashMap<(u64, u64), u64>) -> StoreResult<Option<String>> {
    let own: Vec<String> = chat_rows::decode(Some(row))?;
    let (Some(no), Some(seq)) = (chat_rows::number_in(key, 0), chat_rows::number_in(key, 1)) else {
        return Err(StoreError::Damaged("the key of a user's reactions is damaged".into()));
    };
    *given.entry((no, seq)).or_default() += own.len() as u64;
    Ok(None)
}

fn has_body(kv: &dyn KvRead, no: u64, seq: u64) -> bool {
    let entry = read_message(kv, no, seq);
    entry.is_some_and(|entry| {
        &*entry.content.body != NO_BODY || entry.content.edit_details().is_some_and(|edit| edit.replaced.is_some())
    })
}

/// An entry that can be read; one that cannot is a fault of its own.
fn read_message(kv: &dyn KvRead, no: u64, seq: u64) -> Option<StoredEntry> {
    let conversation = ConversationNo(no);
    let row = kv.get(Space::Timeline, &entry_key(conversation, seq)).ok().flatten()?;
    decode_entry(seq, &row, |count| read_parts(kv, conversation, seq, count)).ok()
}
