//! Messages for a later time, as the leader keeps them: an index by time, and for each message a header and its body in parts.

use crate::{
    chat_row_kind::ChatRowKind,
    chat_rows::{encode, number_in},
    model::*,
    request_digest::RequestDigest,
    store::{ROW_BYTES_MAX, RowChange, RowSpace, RowStore},
    store_error::{StoreError, StoreResult},
};
use serde::{Deserialize, Serialize};
use tidings_protocol::http::Expires;

/// A message for a later time, without its body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduledHeader {
    /// When it is to be sent, in milliseconds since 1970 UTC.
    pub send_at: u64,
    /// When it was accepted, or changed last.
    pub at: u64,
    /// An app server has scheduled it, and not the user whose it is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_app: bool,
    /// The account in whose name an agent speaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<UserNo>,
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
    /// When it disappears, from when it is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Expires>,
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

/// The header of a message.
pub fn header_key(sender: UserNo, number: u64) -> Vec<u8> {
    ChatRowKind::ScheduledMessage.key(&[1, sender.0, number])
}

/// The range of the headers of a sender's messages behind one of them.
pub fn headers_of(sender: UserNo, after: u64) -> (Vec<u8>, Vec<u8>) {
    (header_key(sender, after.saturating_add(1)), header_key(sender, u64::MAX))
}

/// The range of all headers.
pub fn all_headers() -> (Vec<u8>, Vec<u8>) {
    (header_key(UserNo(0), 0), header_key(UserNo(u64::MAX), u64::MAX))
}

/// The sender and the number of a key that [`header_key`] made.
pub fn header_in(key: &[u8]) -> Option<(UserNo, u64)> {
    let number = |place| number_in(key, place).filter(|_| number_in(key, 0) == Some(1));
    Some((UserNo(number(1)?), number(2)?))
}

/// The highest number that was given.
pub fn last_number_key() -> Vec<u8> {
    ChatRowKind::ScheduledMessage.key(&[2])
}

fn body_key(sender: UserNo, number: u64, part: u64) -> Vec<u8> {
    ChatRowKind::ScheduledMessage.key(&[3, sender.0, number, part])
}

/// Whose message a row is of.
pub fn sender_of(key: &[u8]) -> Option<UserNo> {
    match number_in(key, 0)? {
        0 => number_in(key, 2).map(UserNo),
        1 | 3 => number_in(key, 1).map(UserNo),
        _ => None,
    }
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
        let mut rows = vec![put(header_key(self.sender, self.number), encode(&header))];
        rows.extend(
            (0..).zip(parts).map(|(part, bytes)| put(body_key(self.sender, self.number, part), bytes.to_vec())),
        );
        if self.header.failed.is_none() {
            rows.push(put(due_key(self.header.send_at, self.sender, self.number), Vec::new()));
        }
        rows
    }

    /// The removal of all its rows.
    pub fn removal(&self) -> Vec<RowChange> {
        let body = (0..self.header.parts).map(|part| body_key(self.sender, self.number, part));
        let index = due_key(self.header.send_at, self.sender, self.number);
        let keys = body.chain([header_key(self.sender, self.number), index]);
        keys.map(|key| RowChange { key, value: None }).collect()
    }

    /// What replaces its rows by those of another form of it.
    pub fn replacement(&self, by: &ScheduledMessage) -> Vec<RowChange> {
        let rows = by.rows();
        let gone = self.removal().into_iter().filter(|gone| rows.iter().all(|row| row.key != gone.key));
        gone.chain(rows.iter().cloned()).collect()
    }

    /// The message with this header; its body is read.
    ///
    /// # Errors
    /// The store cannot be read, or the body is damaged.
    pub fn load(
        store: &(impl RowStore + ?Sized),
        sender: UserNo,
        number: u64,
        header: ScheduledHeader,
    ) -> StoreResult<ScheduledMessage> {
        let keys: Vec<Vec<u8>> = (0..header.parts).map(|part| body_key(sender, number, part)).collect();
        let parts = store.rows_of(RowSpace::Chat, &keys)?;
        let damaged = || StoreError::Damaged(format!("the body of scheduled message {number}"));
        let body: Vec<u8> = parts.into_iter().collect::<Option<Vec<_>>>().ok_or_else(damaged)?.concat();
        Ok(ScheduledMessage { number, sender, header, body: String::from_utf8(body).map_err(|_| damaged())? })
    }
}
