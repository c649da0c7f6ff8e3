//! History, lists of conversations, and what users set and mark in them.

use super::{ConversationKind, Role, UserCard};
use crate::{entry::Entry, resume::Resume};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Which part of a timeline. Without bounds: the newest page. The pages beside it are had by its cursors.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams, ToSchema)]
#[into_params(parameter_in = Query)]
pub struct HistoryQuery {
    /// The `next` or `previous` of another page: the page after or before it, within the range that the first one was
    /// asked for. Besides it only `limit` may be given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// First `seq` wanted, inclusive: the page is the oldest entries from here on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_seq: Option<u64>,
    /// Last `seq` wanted, inclusive. Without `from_seq` the page is the newest entries up to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_seq: Option<u64>,
    /// Entries at or after this time, in milliseconds since 1970 UTC.
    #[serde(default, deserialize_with = "crate::time::time_or_zero", skip_serializing_if = "Option::is_none")]
    pub from_time: Option<u64>,
    /// Entries at or before this time.
    #[serde(default, deserialize_with = "crate::time::time_or_zero", skip_serializing_if = "Option::is_none")]
    pub to_time: Option<u64>,
    /// At most so many entries (default 50, limit 500). A page of large entries has fewer.
    #[param(minimum = 1, maximum = 500)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// A part of a timeline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HistoryPage {
    /// Oldest first.
    pub entries: Vec<Entry>,
    /// Hand it back as `cursor` for the page after this one (newer entries). Absent: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Hand it back as `cursor` for the page before this one (older entries). Absent: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
    /// Whether there is more in the direction of this page: newer entries when it was asked for by `from_seq`,
    /// `from_time` or a `next`, older ones otherwise.
    pub more: bool,
    /// The oldest entry of the whole conversation that the caller may read; those below were removed by retention, are from
    /// before the caller joined, or were cleared by the caller.
    #[serde(default)]
    pub conversation_first_seq: u64,
    /// The newest entry of the whole conversation, on this page or not.
    #[serde(default)]
    pub conversation_last_seq: u64,
    /// How the senders of these entries, and of the messages that they answer, are shown: each of them once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<UserCard>,
    /// The same as `conversation_first_seq`, under its older name.
    #[schema(deprecated)]
    pub first_seq: u64,
    /// The same as `conversation_last_seq`, under its older name: of the whole conversation, not of this page. Who goes on
    /// from it leaves out what lies between: go on by `next`.
    #[schema(deprecated)]
    pub last_seq: u64,
}

/// What a user has missed since a cursor.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SyncAnswer {
    /// Where the next sync goes on.
    pub cursor: String,
    /// Whether `entries` are all that was missed.
    pub resume: Resume,
    /// Oldest first within each conversation.
    pub entries: Vec<Entry>,
}

/// A user's conversations, page by page.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ConversationPage {
    /// Those that the user has pinned first, then the latest active. A page with a filter may have fewer than was asked for,
    /// and still lead on.
    pub conversations: Vec<ConversationView>,
    /// Hand back as `after` for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// How the other users of direct conversations, and the senders of the newest entries, are shown: each of them once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<UserCard>,
}

/// What a user has not read, in all conversations of the list: those that are neither archived nor hidden.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UnreadTotal {
    /// Unread messages, without those of muted conversations.
    pub unread: u64,
    /// Unread messages that mention the user, also in muted conversations.
    pub mentions: u64,
    /// Conversations with unread messages, or marked as unread; muted ones, too.
    pub conversations: u64,
    /// There is more: a conversation's count stopped (`unread_capped`), or more than 2,000 conversations may be unread, of which the
    /// latest active were counted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub capped: bool,
    /// The counts of the first 1,000 of these conversations, in the order of the list.
    pub lines: Vec<UnreadLine>,
}

/// What a user has not read in one conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UnreadLine {
    /// The conversation's id.
    pub conversation: String,
    /// Unread messages; 0 in a conversation that is only marked as unread.
    pub unread: u64,
    /// How many of them mention the user.
    pub mentions: u64,
    /// The user has muted the conversation: its messages do not count in the total.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub muted: bool,
}

/// What became of reading everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReadAll {
    /// Conversations whose read mark moved to the newest entry.
    pub marked: u64,
    /// There are more: call again.
    pub more: bool,
}

/// A conversation in a user's list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ConversationView {
    /// The conversation's id.
    pub id: String,
    /// What the conversation is for.
    pub kind: ConversationKind,
    /// For display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The address of a picture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avatar: Option<String>,
    /// What this user may do there.
    pub role: Role,
    /// The newest entry; 0: there is none.
    pub last_seq: u64,
    /// When the newest entry was committed, in milliseconds since 1970 UTC.
    pub last_at: u64,
    /// The newest entry that this user has read.
    pub read_seq: u64,
    /// Others' messages after `read_seq` that are not silent; exact unless `unread_capped`.
    pub unread: u64,
    /// Counting stopped, at 1,000 or after 5,000 entries of any kind: there are at least so many.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unread_capped: bool,
    /// How many of those mention this user.
    pub mentions: u64,
    /// Whether this user gets no offline push of it now.
    pub muted: bool,
    /// When the mute ends, in milliseconds since 1970 UTC; absent: when it is lifted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub muted_until: Option<u64>,
    /// When this user pinned it to the top of the list, in milliseconds since 1970 UTC; absent: not pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned_at: Option<u64>,
    /// This user keeps it apart from the list.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub archived: bool,
    /// This user has hidden it, and no message has come since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
    /// This user's own name for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// This user wants it to look unread. Reading ends that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub marked_unread: bool,
    /// This user has cleared the entries up to here; absent: none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cleared_seq: u64,
    /// Of a conversation with an official account: the account's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// In the account's list: the agent who has the conversation; absent: nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assigned_to: Option<String>,
    /// The newest message that was not recalled, if it is among the newest entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_message: Option<Entry>,
    /// The newest entry itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_entry: Option<Entry>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Which conversations of a list are wanted. Without a filter: those that are neither archived nor hidden.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ListFilter {
    /// Of those, the ones with unread messages or marked as unread.
    Unread,
    /// Of those, the ones with unread messages that mention the user.
    Mentions,
    /// Those that are archived.
    Archived,
}

/// What a user sets for one conversation of the list. What is absent stays as it was.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "pinned": true, "title": "The neighbours" }))]
#[serde(deny_unknown_fields)]
pub struct UpdatePreferences {
    /// Whether it stands at the top of the list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<bool>,
    /// Whether it is kept apart from the list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archived: Option<bool>,
    /// Whether it is left out of the list until the next message comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden: Option<bool>,
    /// The user's own name for it, at most 512 bytes; `null` removes it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::json::also_null")]
    #[schema(value_type = Option<String>)]
    pub title: Option<Option<String>>,
    /// Whether it looks unread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub marked_unread: Option<bool>,
    /// Entries up to this one are no longer shown to the user: not in history, counts, syncs and resumes. It cannot be taken
    /// back; a lower one than before changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clear_to_seq: Option<u64>,
}

/// How far the user has read.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MarkRead {
    /// The newest entry that is read; a lower one than before changes nothing.
    pub seq: u64,
}

/// How far the user has read, and what is left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReadMark {
    /// The conversation's id.
    pub conversation: String,
    /// The newest entry that is read.
    pub seq: u64,
    /// Others' messages after it that are not silent, counted to 1,000 at most.
    pub unread: u64,
}

/// Whether the user gets offline pushes of a conversation.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Mute {
    /// `false` ends a mute.
    pub muted: bool,
    /// Milliseconds since 1970 UTC; absent: until it is lifted.
    #[serde(default, deserialize_with = "crate::time::time")]
    pub until: Option<u64>,
}
