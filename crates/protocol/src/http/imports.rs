//! Records of histories, as imports read them and exports write them: JSON, one in each line.

use super::{
    AllowedReactions, BlocksMode, ConversationKind, Expires, HistoryVisibility, MentionAll, Posting, ReceiptsMode, Role,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

/// What a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImportRecordType {
    /// An [`ImportUser`].
    User,
    /// An [`ImportConversation`].
    Conversation,
    /// An [`ImportMember`].
    Member,
    /// An [`ImportMessage`].
    Message,
    /// An [`ImportRead`].
    Read,
    /// An [`ImportState`]: members send from here on.
    Finish,
    /// An [`ImportState`]: only the import writes from here on, once more.
    Reopen,
}

/// A line of which only the type is looked at.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct ImportRecord {
    /// What it is.
    #[serde(rename = "type")]
    pub record: ImportRecordType,
}

/// A user. What is absent stays as it was.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportUser {
    /// `user`.
    #[serde(rename = "type")]
    pub record: ImportRecordType,
    /// The user's id, at most 64 bytes.
    pub id: String,
    /// For display, at most 512 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The address of a picture, at most 512 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avatar: Option<String>,
    /// The app's own data about the user: a JSON object of at most 2 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<serde_json::Value>,
    /// A BCP 47 language tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// An IANA time zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
}

/// A conversation, which is importing from here on if it is new. One that exists stays as it was.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportConversation {
    /// `conversation`.
    #[serde(rename = "type")]
    pub record: ImportRecordType,
    /// The id, at most 64 bytes; not of a direct conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Stays for the conversation's life.
    pub kind: ConversationKind,
    /// Of a direct conversation: its two users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct: Option<[String; 2]>,
    /// For display, at most 512 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The address of a picture, at most 512 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avatar: Option<String>,
    /// The app's own data: a JSON object of at most 2 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<serde_json::Value>,
    /// As of a conversation to create, as are those that follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipts: Option<ReceiptsMode>,
    /// Which entries from before their joining members may read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<HistoryVisibility>,
    /// Who may mention `@all`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mention_all: Option<MentionAll>,
    /// Which reactions may be given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reactions: Option<AllowedReactions>,
    /// Whether members are notified of messages of those whom they block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<BlocksMode>,
    /// Who may send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub posting: Option<Posting>,
    /// Slow mode, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_mode_s: Option<u32>,
    /// Whether users may ask to become members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join_requests: Option<bool>,
    /// When messages disappear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Expires>,
}

/// Which conversation a record is of: one of the two.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportTarget<'a> {
    /// The conversation's id.
    pub conversation: Option<&'a str>,
    /// Of a direct conversation, its two users.
    pub direct: Option<&'a [String; 2]>,
}

/// A member.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportMember {
    /// `member`.
    #[serde(rename = "type")]
    pub record: ImportRecordType,
    /// The conversation's id.
    pub conversation: String,
    /// The user's id.
    pub user: String,
    /// `member` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
}

/// A message.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportMessage {
    /// `message`.
    #[serde(rename = "type")]
    pub record: ImportRecordType,
    /// The conversation's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// Of a direct conversation, its two users, in place of its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct: Option<[String; 2]>,
    /// The message's id in the other system, one of its own in the conversation: at most 64 bytes without white space, `/` and `~`.
    pub id: String,
    /// The sender; absent: the conversation itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// When it was sent, in milliseconds since 1970 UTC.
    pub at: u64,
    /// The app's own kind of content; `text` when absent.
    #[serde(default = "super::text")]
    pub content_type: String,
    /// Any JSON of at most 64 KiB.
    pub body: Box<RawValue>,
    /// The ids of users, or `@all`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mentions: Vec<String>,
    /// Not counted as unread.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub silent: bool,
    /// The id of the message that this one answers, which is ahead of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
    /// When it was edited last; the body is what the edit has made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edited_at: Option<u64>,
    /// The reactions to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reactions: Vec<ImportReaction>,
    /// When it disappears, counted from the import.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Expires>,
}

/// A reaction, and who gave it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportReaction {
    /// The reaction, such as an emoji.
    pub key: String,
    /// The ids of users, the first to react first.
    pub users: Vec<String>,
}

/// How far a member has read.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportRead {
    /// `read`.
    #[serde(rename = "type")]
    pub record: ImportRecordType,
    /// The conversation's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// Of a direct conversation, its two users, in place of its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct: Option<[String; 2]>,
    /// The member.
    pub user: String,
    /// The id of the newest message that the member has read; `null`: the member has read nothing.
    pub message: Option<String>,
}

/// Another state of a conversation.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportState {
    /// `finish` or `reopen`.
    #[serde(rename = "type")]
    pub record: ImportRecordType,
    /// The conversation's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// Of a direct conversation, its two users, in place of its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct: Option<[String; 2]>,
}

/// What an import has stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImportResult {
    /// Lines that were read.
    pub lines: u64,
    /// Records of users.
    pub users: u64,
    /// Conversations that did not exist before.
    pub conversations: u64,
    /// Users who became members.
    pub members: u64,
    /// Messages that were not stored before.
    pub messages: u64,
    /// Messages that were stored already.
    pub duplicates: u64,
    /// Messages that were given the time of the one ahead of them, since their own was before it.
    pub times_moved: u64,
    /// Read marks.
    pub reads: u64,
    /// Conversations that were finished.
    pub finished: u64,
}

/// Which history to export.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct HistoryExportQuery {
    /// One conversation, by its id, with its members and senders; absent: everything.
    #[serde(default)]
    pub conversation: Option<String>,
}
