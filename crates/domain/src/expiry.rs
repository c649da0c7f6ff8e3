//! When messages disappear, as the leader finds them: an index by time, those that wait to be read, and those that a legal hold keeps.

use crate::{
    chat_row_kind::ChatRowKind,
    chat_rows::{encode, number_in},
    model::*,
    store::RowChange,
    store_error::{StoreError, StoreResult},
};
use serde::{Deserialize, Serialize};

/// A message that disappears once it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitsToBeRead {
    /// When it disappears if it is not read.
    pub last_time: u64,
    /// Milliseconds from when it was read.
    pub after_read_ms: u64,
    /// Who need not read it; [`UserNo::NOBODY`]: all members are to read it.
    pub sender: UserNo,
}

/// What the leader does with a message in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// It disappears.
    Expire,
    /// The same, and it may be among those that wait to be read.
    ExpireUnread,
    /// It is new among those that wait to be read.
    Watch,
}

/// Where the index has a message.
pub fn due_key(at: u64, conversation: ConversationNo, seq: u64) -> Vec<u8> {
    ChatRowKind::Expiry.key(&[0, at, conversation.0, seq])
}

/// The range of all that is due between these times, both included.
pub fn due_between(from_ms: u64, now_ms: u64) -> (Vec<u8>, Vec<u8>) {
    (due_key(from_ms, ConversationNo(0), 0), due_key(now_ms, ConversationNo(u64::MAX), u64::MAX))
}

/// The message of a key that [`due_key`] made.
pub fn due_in(key: &[u8]) -> Option<(ConversationNo, u64)> {
    Some((ConversationNo(number_in(key, 2)?), number_in(key, 3)?))
}

/// What is to be done with a message whose row in the index has this value.
pub fn due_of(value: &[u8]) -> Due {
    match value {
        b"w" => Due::Watch,
        b"u" => Due::ExpireUnread,
        _ => Due::Expire,
    }
}

/// A message that waits to be read.
pub fn waiting_key(conversation: ConversationNo, seq: u64) -> Vec<u8> {
    ChatRowKind::Expiry.key(&[1, conversation.0, seq])
}

/// The range of all messages that wait to be read.
pub fn all_waiting() -> (Vec<u8>, Vec<u8>) {
    (waiting_key(ConversationNo(0), 0), waiting_key(ConversationNo(u64::MAX), u64::MAX))
}

/// A message that a legal hold keeps.
pub fn held_key(conversation: ConversationNo, seq: u64) -> Vec<u8> {
    ChatRowKind::Expiry.key(&[2, conversation.0, seq])
}

/// The range of the messages that legal holds keep, of this conversation and those with higher numbers.
pub fn held_from(conversation: ConversationNo) -> (Vec<u8>, Vec<u8>) {
    (held_key(conversation, 0), held_key(ConversationNo(u64::MAX), u64::MAX))
}

/// The message of a key that [`waiting_key`] or [`held_key`] made.
pub fn message_in(key: &[u8]) -> Option<(ConversationNo, u64)> {
    Some((ConversationNo(number_in(key, 1)?), number_in(key, 2)?))
}

impl WaitsToBeRead {
    /// Reads a row.
    ///
    /// # Errors
    /// The row is damaged.
    pub fn decode(row: &[u8]) -> StoreResult<WaitsToBeRead> {
        serde_json::from_slice(row).map_err(|error| StoreError::Damaged(format!("a message that disappears: {error}")))
    }
}

/// The rows that a message gets when it is stored.
pub fn rows_of(conversation: ConversationNo, seq: u64, at: u64, entry: &NewEntry) -> Vec<RowChange> {
    let Some(expiry) = entry.message_details().expires else { return Vec::new() };
    let put = |key, value| RowChange { key, value: Some(value) };
    let stored_at = entry.kept_since(at);
    let last_time = expiry.last_time(stored_at);
    let is_watched = expiry.after_read_s.is_some();
    let value = if is_watched { b"u".to_vec() } else { Vec::new() };
    let mut rows = vec![put(due_key(last_time, conversation, seq), value)];
    if let Some(after_read_s) = expiry.after_read_s {
        let sender = entry.sender.as_ref().map_or(UserNo::NOBODY, |sender| sender.no);
        let waits = WaitsToBeRead { last_time, after_read_ms: u64::from(after_read_s) * 1_000, sender };
        rows.push(put(waiting_key(conversation, seq), encode(&waits)));
        rows.push(put(due_key(stored_at, conversation, seq), b"w".to_vec()));
    }
    rows
}

/// A conversation that keeps its messages for another time than all others.
pub fn own_retention_key(conversation: ConversationNo) -> Vec<u8> {
    ChatRowKind::Expiry.key(&[3, conversation.0])
}

/// The range of all of them.
pub fn all_own_retentions() -> (Vec<u8>, Vec<u8>) {
    (own_retention_key(ConversationNo(0)), own_retention_key(ConversationNo(u64::MAX)))
}

/// The conversation of a key that [`own_retention_key`] made.
pub fn own_retention_in(key: &[u8]) -> Option<ConversationNo> {
    number_in(key, 1).map(ConversationNo)
}
