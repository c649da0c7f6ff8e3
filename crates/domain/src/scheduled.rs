//! Messages for a later time, as the leader keeps them: an index by time, and for each message a header and its body in parts.

use crate::{
    chat_row_kind::ChatRowKind,
    chat_rows::{encode, number_in},
    model::*,
    request_digest::RequestDigest,
    store::{ROW_BYTES_MAX, RowChange},
    store_error::{StoreError, StoreResult},
};
use serde::{Deserialize, Serialize};

/// A message for a later time, without its body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduledHeader {
    /// When it is to be sent, in milliseconds since 1970 UTC.
    pub send_at: u64,
    /// When it was accepted, or changed last.
    pub at: u64,
    /// The conversation that it is for, or else `to`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<ConversationNo>,
    /// The user whose direct conversation with the sender it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<UserNo>,
    /// The sender's own id of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_msg_id: Option<String>,
    /// What a retry with the same id must ask for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestDigest>,
    /// The app's word for the kind of content.
    pub content_type: String,
    /// Whom it mentions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mentions: Vec<String>,
    /// As of a message.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub silent: bool,
    /// As of a message.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skip_push: bool,
    /// The message that it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<u64>,
    /// Rows of the body.
    pub parts: u64,
    /// It was refused when its time came: when, the code, and the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<(u64, String, String)>,
}

/// A message for a later time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduledMessage {
    /// Its number, given once.
    pub number: u64,
    /// The sender; [`UserNo::NOBODY`] if the app server speaks as the conversation.
    pub sender: UserNo,
    /// All but the body.
    pub header: ScheduledHeader,
    /// JSON text.
    pub body: String,
}

/// Where the index has a message that is due at this time.
pub fn due_key(send_at: u64, sender: UserNo, number: u64) -> Vec<u8> {
    ChatRowKind::ScheduledMessage.key(&[0, send_at, sender.0, number])
}

/// The range of all that is due up to this time.
pub fn due_until(now_ms: u64) -> (Vec<u8>, Vec<u8>) {
    (due_key(0, UserNo(0), 0), due_key(now_ms, UserNo(u64::MAX), u64::MAX))
}

/// The time, the sender and the number of a key that [`due_key`] made.
pub fn due_in(key: &[u8]) -> Option<(u64, UserNo, u64)> {
    let number = |place| number_in(key, place).filter(|_| number_in(key, 0) == Some(0));
    Some((number(1)?, UserNo(number(2)?), number(3)?))
}

/// A row of a message: 0 is its header.
pub fn part_key(sender: UserNo, number: u64, part: u64) -> Vec<u8> {
    ChatRowKind::ScheduledMessage.key(&[1, sender.0, number, part])
}

/// The range of the rows of a sender's messages behind one of them.
pub fn messages_of(sender: UserNo, after: u64) -> (Vec<u8>, Vec<u8>) {
    (part_key(sender, after.saturating_add(1), 0), part_key(sender, u64::MAX, u64::MAX))
}

/// The range of all rows of messages.
pub fn all_messages() -> (Vec<u8>, Vec<u8>) {
    (part_key(UserNo(0), 0, 0), part_key(UserNo(u64::MAX), u64::MAX, u64::MAX))
}

/// The sender, the number and the part of a key that [`part_key`] made.
pub fn part_in(key: &[u8]) -> Option<(UserNo, u64, u64)> {
    let number = |place| number_in(key, place).filter(|_| number_in(key, 0) == Some(1));
    Some((UserNo(number(1)?), number(2)?, number(3)?))
}

/// The highest number that was given.
pub fn last_number_key() -> Vec<u8> {
    ChatRowKind::ScheduledMessage.key(&[2])
}

/// Whose message a row is of.
pub fn sender_of(key: &[u8]) -> Option<UserNo> {
    part_in(key).map(|(sender, ..)| sender).or_else(|| due_in(key).map(|(_, sender, _)| sender))
}

impl ScheduledHeader {
    /// The header of a row.
    ///
    /// # Errors
    /// The row is damaged.
    pub fn decode(row: &[u8]) -> StoreResult<ScheduledHeader> {
        serde_json::from_slice(row).map_err(|error| StoreError::Damaged(format!("a scheduled message: {error}")))
    }
}

impl ScheduledMessage {
    /// The rows that store it. One that has failed is in no index.
    pub fn rows(&self) -> Vec<RowChange> {
        let parts: Vec<&[u8]> = self.body.as_bytes().chunks(ROW_BYTES_MAX).collect();
        let header = ScheduledHeader { parts: parts.len() as u64, ..self.header.clone() };
        let put = |key, value: Vec<u8>| RowChange { key, value: Some(value) };
        let mut rows = vec![put(part_key(self.sender, self.number, 0), encode(&header))];
        rows.extend(
            (1..).zip(parts).map(|(part, bytes)| put(part_key(self.sender, self.number, part), bytes.to_vec())),
        );
        if self.header.failed.is_none() {
            rows.push(put(due_key(self.header.send_at, self.sender, self.number), Vec::new()));
        }
        rows
    }

    /// The removal of all its rows.
    pub fn removal(&self) -> Vec<RowChange> {
        let keys = (0..=self.header.parts).map(|part| part_key(self.sender, self.number, part));
        let keys = keys.chain([due_key(self.header.send_at, self.sender, self.number)]);
        keys.map(|key| RowChange { key, value: None }).collect()
    }

    /// Takes messages from rows that follow each other.
    ///
    /// # Errors
    /// A row is damaged.
    pub fn read(rows: &[(Vec<u8>, Vec<u8>)]) -> StoreResult<Vec<ScheduledMessage>> {
        let mut found: Vec<(ScheduledMessage, Vec<u8>)> = Vec::new();
        for (key, row) in rows {
            let Some((sender, number, part)) = part_in(key) else { continue };
            if part == 0 {
                let header = ScheduledHeader::decode(row)?;
                found.push((ScheduledMessage { number, sender, header, body: String::new() }, Vec::new()));
            } else if let Some((_, body)) = found.last_mut().filter(|(message, _)| message.number == number) {
                body.extend_from_slice(row);
            }
        }
        let whole = |(message, body): (ScheduledMessage, Vec<u8>)| {
            let body = String::from_utf8(body).map_err(|_| StoreError::Damaged("a scheduled message's body".into()))?;
            Ok(ScheduledMessage { body, ..message })
        };
        found.into_iter().map(whole).collect()
    }
}
