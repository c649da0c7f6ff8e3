//! A timeline entry, as clients see it in history, sync and live batches.

mod kind;

pub use kind::EntryKind;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// One entry of a conversation's timeline. The field order is the order on the wire.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Entry {
    /// The id of the conversation whose timeline it is in.
    pub conversation: String,
    /// 1, 2, 3, … within the conversation, without a hole.
    pub seq: u64,
    /// A message, or which notice of the server.
    pub kind: EntryKind,
    /// When it was committed, in milliseconds since 1970 UTC; never decreases with `seq`.
    pub at: u64,
    /// The sender's user id; absent when the app server acted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Of an account's entry: the agent who acted for it, as far as the account lets the reader know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The sender's own id for the send; absent when the sender gave none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_msg_id: Option<String>,
    /// The app's own kind of content, such as `text` or `image`.
    #[serde(rename = "type")]
    pub content_type: String,
    /// The content: any JSON, carried unchanged. Of an edit it is the message's new content. `null` in a message that was
    /// recalled, and in an edit that a later edit or a recall has made obsolete.
    #[schema(value_type = serde_json::Value)]
    pub body: Box<RawValue>,
    /// User ids, or `@all`, as the sender named them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mentions: Vec<String>,
    /// Neither counted as unread nor pushed to offline devices.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub silent: bool,
    /// The app server's hook has hidden the message. To everybody but its sender and app servers it has no content, and `hidden` as its `type`;
    /// it is not counted as unread.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
    /// The `seq` of the message that this entry changes; absent in messages and notices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<u64>,
    /// Of a message that was edited, and of an edit: the version of the body. Absent: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// When the message was edited last, in milliseconds since 1970 UTC; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edited_at: Option<u64>,
    /// The user who edited the message last; absent when the app server did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edited_by: Option<String>,
    /// The message was recalled: its body and mentions are gone for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recalled: Option<RecalledBy>,
    /// The reactions to the message, in the order in which each was given first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reactions: Vec<Reaction>,
    /// The message that this one answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<ReplyTo>,
    /// The message is pinned in its conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<PinnedBy>,
    /// Of a message that grows, and of one that was interrupted; the entry that interrupted it has it, too. Absent: the
    /// body is whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<StreamMark>,
    /// When the message disappears.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<ExpiresAt>,
    /// Of a recall: nobody recalled the message, its time was over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub expired: bool,
}

impl Entry {
    /// A message that nobody has changed.
    pub fn message(conversation: String, seq: u64, at: u64, content_type: String, body: Box<RawValue>) -> Entry {
        Entry {
            conversation,
            seq,
            kind: EntryKind::Message,
            at,
            from: None,
            agent: None,
            client_msg_id: None,
            content_type,
            body,
            mentions: Vec::new(),
            silent: false,
            hidden: false,
            target: None,
            version: None,
            edited_at: None,
            edited_by: None,
            recalled: None,
            reactions: Vec::new(),
            reply_to: None,
            pinned: None,
            stream: None,
            expires: None,
            expired: false,
        }
    }
}

/// How often a reaction was given to a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Reaction {
    /// The reaction, such as an emoji.
    pub key: String,
    /// Users who gave it.
    pub count: u32,
    /// Some of them, the newest first.
    pub users: Vec<String>,
}

/// The message that another one answers, as it is now.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ReplyTo {
    /// Its number in the conversation.
    pub seq: u64,
    /// Its sender; absent when the app server spoke as the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The app's own kind of content.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Its content; absent if that is longer than 1 KiB, or the message was recalled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub body: Option<Box<RawValue>>,
    /// The message was recalled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recalled: bool,
}

impl PartialEq for ReplyTo {
    fn eq(&self, other: &Self) -> bool {
        (self.seq, &self.from, &self.content_type, self.recalled)
            == (other.seq, &other.from, &other.content_type, other.recalled)
            && self.body.as_ref().map(|body| body.get()) == other.body.as_ref().map(|body| body.get())
    }
}

/// When a message was pinned, and by whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PinnedBy {
    /// In milliseconds since 1970 UTC.
    pub at: u64,
    /// The user who pinned the message; absent when the app server did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// Why the body of a message is not whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StreamMark {
    /// Chunks of its text are still appended.
    Open,
    /// Its beginner went away before the end: the body is what had come until then.
    Interrupted,
}

/// When a message was recalled, and by whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RecalledBy {
    /// In milliseconds since 1970 UTC.
    pub at: u64,
    /// The user who recalled the message; absent when the app server did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Nobody did: the message has disappeared when its time was over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub expired: bool,
}

/// When a message disappears.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ExpiresAt {
    /// At the latest at this time, in milliseconds since 1970 UTC.
    pub at: u64,
    /// Before that, so many seconds after every other member has read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_read_s: Option<u32>,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        let key = |e: &Entry| (e.seq, e.kind, e.at, e.silent, e.target, e.version, e.edited_at);
        key(self) == key(other)
            && self.edited_by == other.edited_by
            && self.recalled == other.recalled
            && self.reactions == other.reactions
            && self.reply_to == other.reply_to
            && self.pinned == other.pinned
            && self.stream == other.stream
            && self.expires == other.expires
            && self.expired == other.expired
            && self.conversation == other.conversation
            && self.from == other.from
            && self.agent == other.agent
            && self.client_msg_id == other.client_msg_id
            && self.content_type == other.content_type
            && self.body.get() == other.body.get()
            && self.mentions == other.mentions
    }
}
