//! Messages: sending, chunks of those that grow, changes, reactions, pins and receipts.

use super::Problem;
use crate::entry::Entry;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// When messages disappear: what comes first of the two.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "after_s": 86400 }))]
#[serde(deny_unknown_fields)]
pub struct Expires {
    /// So many seconds after the message is stored, at most 31,536,000 (a year). Absent, with `after_read_s`: 2,592,000 (30 days).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_s: Option<u32>,
    /// So many seconds after every other member has read it, at most 604,800 (a week). Only where the conversation shows receipts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_read_s: Option<u32>,
}

/// The part of a send that is the message itself.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NewMessage {
    /// The sender's own id for this send: a retry with it answers with the first result, another request in the conversation is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_msg_id: Option<String>,
    /// The app's own kind of content; `text` when absent.
    #[serde(rename = "type", default = "super::text")]
    pub content_type: String,
    /// Any JSON of at most 64 KiB, carried unchanged.
    #[schema(value_type = serde_json::Value)]
    pub body: Box<RawValue>,
    /// User ids, or `@all`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mentions: Vec<String>,
    /// Neither counted as unread nor pushed to offline devices.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub silent: bool,
    /// Counted as unread, but not pushed to offline devices.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skip_push: bool,
    /// The `seq` of a message of the same conversation that this one answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<u64>,
    /// When the message disappears; absent: as the conversation says, or not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Expires>,
}

// `serde` cannot combine `flatten` with `deny_unknown_fields`, so the fields of [`NewMessage`] are repeated here.
/// A message to be sent, and where to: one of `conversation` and `to`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "conversation": "demo", "from": "alice", "body": { "text": "hello" } }))]
#[serde(deny_unknown_fields)]
pub struct SendRequest {
    /// The conversation's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// A user instead of a conversation: their direct conversation with the sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The sending user. App servers name it (or leave it out to speak as the conversation);
    /// with a user token it is the token's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The sender's own id for this send: a retry with it answers with the first result, another request in the conversation is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_msg_id: Option<String>,
    /// The app's own kind of content; `text` when absent.
    #[serde(rename = "type", default = "super::text")]
    pub content_type: String,
    /// Any JSON of at most 64 KiB, carried unchanged.
    #[schema(value_type = serde_json::Value)]
    pub body: Box<RawValue>,
    /// User ids, or `@all`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mentions: Vec<String>,
    /// Neither counted as unread nor pushed to offline devices.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub silent: bool,
    /// Counted as unread, but not pushed to offline devices.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skip_push: bool,
    /// The `seq` of a message of the same conversation that this one answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<u64>,
    /// When the message disappears; absent: as the conversation says, or not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Expires>,
}

impl SendRequest {
    /// Splits off the message from its addresses: (conversation, to, from, message).
    pub fn into_parts(self) -> (Option<String>, Option<String>, Option<String>, NewMessage) {
        let SendRequest { client_msg_id, content_type, body, mentions, silent, skip_push, reply_to, expires, .. } =
            self;
        let message = NewMessage { client_msg_id, content_type, body, mentions, silent, skip_push, reply_to, expires };
        (self.conversation, self.to, self.from, message)
    }
}

/// Messages to send, each by itself: one that is refused does not keep the others.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "messages": [{ "to": "bob", "from": "alice", "body": { "text": "hello" } }, { "to": "carol", "from": "alice", "body": { "text": "hello" } }] }))]
#[serde(deny_unknown_fields)]
pub struct SendBatch {
    /// At most 500.
    pub messages: Vec<SendRequest>,
}

/// What a committed send answers; a retry gets the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SendReceipt {
    /// The conversation's id, also of one that `to` has opened.
    pub conversation: String,
    /// The message's number there.
    pub seq: u64,
    /// Milliseconds since 1970 UTC.
    pub at: u64,
    /// The send had been committed before; this is the first result.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
}

/// A chunk of a message that grows.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "offset": 5, "text": ", Ben" }))]
#[serde(deny_unknown_fields)]
pub struct AppendChunk {
    /// The length of the text so far, in bytes of UTF-8. A lower one repeats what is known: a retry.
    pub offset: u64,
    /// What follows. Empty: the message does not grow, and is not ended for a while longer.
    pub text: String,
}

/// How far a message has grown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChunkReceipt {
    /// The length of the text now, in bytes of UTF-8: the `offset` of the next chunk.
    pub offset: u64,
}

/// The end of a message that grows.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "body": { "text": "hello, Ben", "sources": 3 } }))]
#[serde(deny_unknown_fields)]
pub struct EndStream {
    /// The whole body, any JSON of at most 64 KiB; absent: what was begun with, and all chunks.
    #[schema(value_type = Option<serde_json::Value>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Box<RawValue>>,
}

/// An edit: the message's new content.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "body": { "text": "hello, all" }, "if_version": 1 }))]
#[serde(deny_unknown_fields)]
pub struct EditMessage {
    /// The user in whose name an app server edits; absent: the app server itself. With a user token it is the token's
    /// user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The editor's own id for this edit: a retry with it answers with the first result, another request in the conversation is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_msg_id: Option<String>,
    /// The app's own kind of content; absent: as before.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Any JSON of at most 64 KiB, in place of the former body.
    #[schema(value_type = serde_json::Value)]
    pub body: Box<RawValue>,
    /// User ids, or `@all`, in place of the former mentions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mentions: Vec<String>,
    /// The edit is refused with `version_conflict` unless this is the message's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_version: Option<u32>,
}

/// What a committed edit or recall answers; a retry gets the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangeReceipt {
    /// The conversation's id.
    pub conversation: String,
    /// The number of the entry that tells the members of the change.
    pub seq: u64,
    /// When the change was committed, in milliseconds since 1970 UTC.
    pub at: u64,
    /// The version of the message's body that the change left. Of an edit that is the edit's own version, also when the
    /// message was edited again since.
    pub version: u32,
    /// The change had been committed before; this is the first result.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
}

/// The reactions to a message after a change of the caller's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MessageReactions {
    /// The conversation's id.
    pub conversation: String,
    /// The message's number there.
    pub seq: u64,
    /// The reactions to the message now.
    pub reactions: Vec<crate::entry::Reaction>,
}

/// A page of the users who reacted to a message.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ReactorPage {
    /// One for each user and reaction.
    pub reactions: Vec<Reactor>,
    /// Pass it as `after` for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A user's reaction to a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reactor {
    /// The user's id.
    pub user: String,
    /// The reaction.
    pub key: String,
}

/// Whether a message is pinned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PinState {
    /// The conversation's id.
    pub conversation: String,
    /// The message's number there.
    pub seq: u64,
    /// Whether the message is pinned now.
    pub pinned: bool,
}

/// Messages picked from timelines.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EntryPage {
    /// As they are now.
    pub entries: Vec<Entry>,
    /// Pass it as `after` for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// The bodies that a message has had.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BodyVersions {
    /// Oldest first; only the newest one unless the server keeps old bodies. None of a message that was recalled.
    pub versions: Vec<BodyVersion>,
}

/// One body of a message.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BodyVersion {
    /// 1 for the body that was sent.
    pub version: u32,
    /// When the version was made, in milliseconds since 1970 UTC.
    pub at: u64,
    /// The user who made it; absent when the app server did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The app's own kind of content.
    #[serde(rename = "type")]
    pub content_type: String,
    /// The content.
    #[schema(value_type = serde_json::Value)]
    pub body: Box<RawValue>,
}

/// How many members have a message, and how many have read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MessageReceipts {
    /// Members whose client has stored the message, those who have read it included.
    pub delivered: u64,
    /// Members who have read the message, without those who send no read receipts.
    pub read: u64,
    /// Members who were there when the message was sent, and still are; without the sender.
    pub members: u64,
    /// Each of them, in the order in which the users were created; only where the conversation shows members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipts: Option<Vec<MemberReceipt>>,
}

/// Whether a member has a message, and has read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemberReceipt {
    /// The member's id.
    pub user: String,
    /// The member's client has stored the message, or the member has read it.
    pub delivered: bool,
    /// The member has read the message; false for a member who sends no read receipts.
    pub read: bool,
}

/// How far the members of a conversation have come, as far as the conversation shows that.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConversationReceipts {
    /// Where the conversation shows members: each of them, at most 500. Without `read_seq` a member has read nothing, or sends no
    /// read receipts; without `delivered_seq` nothing of the newest 100 entries has reached the member's clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<ReceiptMark>,
    /// Where it shows counts: how many members but the caller have come past which of the newest 500 entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moved: Vec<MovedMarks>,
}

/// How far a member has come in a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReceiptMark {
    /// The member's id.
    pub user: String,
    /// The newest entry that the member has read; absent: as before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_seq: Option<u64>,
    /// The newest entry that the member's client has stored; absent: as before. Told live in direct conversations alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_seq: Option<u64>,
}

/// Members who have come past the same messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MovedMarks {
    /// What the members did.
    pub what: ReceiptKind,
    /// The first of these messages.
    pub from_seq: u64,
    /// The last of them.
    pub to_seq: u64,
    /// How many members: each of the messages has so many more.
    pub count: u64,
}

/// What a receipt tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReceiptKind {
    /// The member has read it.
    Read,
    /// The member's client has stored it.
    Delivered,
}

/// One result of a batch: a receipt or a problem.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum SendResult {
    /// The message is durable.
    Sent(SendReceipt),
    /// Nothing was stored.
    Refused {
        /// Why, as a response of its own would say.
        error: Problem,
    },
}

/// What became of each message of a batch.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SendBatchResults {
    /// In the order of the request.
    pub results: Vec<SendResult>,
}

/// Something for the members of a conversation who are there: not stored.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "type": "stop", "body": { "seq": 12 } }))]
#[serde(deny_unknown_fields)]
pub struct NewSignal {
    /// The app's own kind of signal, at most 32 bytes.
    #[serde(rename = "type")]
    pub signal_type: String,
    /// Any JSON of at most 1 KiB; absent: `null`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub body: Option<Box<RawValue>>,
    /// The member in whose name an app server signals; absent: the app server speaks itself. With a user's token it is the token's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}
