//! The JSON bodies of the HTTP API. Unknown fields are refused in requests, so that a misspelt
//! option is noticed instead of ignored.

mod popups;
mod presence;
mod push;

pub use popups::*;
pub use presence::*;
pub use push::*;

use crate::{entry::Entry, error::ErrorCode, frames::Resume};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// RFC 9457 problem details, with a stable code.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// `urn:tidings:error:` followed by the code.
    #[serde(rename = "type")]
    pub problem_type: String,
    pub title: String,
    pub status: u16,
    pub detail: String,
    pub code: ErrorCode,
    /// Whether the same request may succeed later; when, is in `Retry-After`.
    pub retry: bool,
}

// ---- users

/// A user as the app server writes it. What is absent stays as it was.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UserUpsert {
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avatar: Option<String>,
    /// The app's own data about the user: a JSON object of at most 2 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub attributes: Option<serde_json::Value>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "users": [{ "id": "ada", "name": "Ada" }, { "id": "ben", "name": "Ben" }] }))]
#[serde(deny_unknown_fields)]
pub struct UsersUpsert {
    pub users: Vec<UserUpsert>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsersUpserted {
    pub created: usize,
    pub updated: usize,
}

/// A user's profile card.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UserCard {
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avatar: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub attributes: Option<serde_json::Value>,
    /// Milliseconds since 1970 UTC.
    pub created_at: u64,
    /// Only in answers to the user and to app servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub do_not_disturb: Option<DailyWindow>,
}

/// A daily time in which no offline push goes out, by the user's wall clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DailyWindow {
    /// `HH:MM`; may be later than `end`, the window then spans midnight.
    pub start: String,
    pub end: String,
    /// An IANA time zone, such as `Europe/Berlin`.
    pub time_zone: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "window": { "start": "22:00", "end": "07:00", "time_zone": "Europe/Berlin" } }))]
#[serde(deny_unknown_fields)]
pub struct SetDoNotDisturb {
    /// `null` ends it.
    pub window: Option<DailyWindow>,
}

// ---- conversations

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConversationKind {
    /// Two users; its id is theirs, joined by `~`.
    Direct,
    Group,
    /// An official account: members follow, only owner and admins (or the app server) send.
    Official,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Member,
    Admin,
    Owner,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "id": "house-7", "kind": "group", "name": "House 7", "owner": "alice", "members": ["bob"] }))]
#[serde(deny_unknown_fields)]
pub struct CreateConversation {
    /// The app's id for a group or official account; made up when absent. Absent for direct ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    pub kind: ConversationKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avatar: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub attributes: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// For a direct conversation: the two users. Otherwise its first members.
    #[serde(default)]
    pub members: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "name": "House 7" }))]
#[serde(deny_unknown_fields)]
pub struct UpdateConversation {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avatar: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub attributes: Option<serde_json::Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ConversationCard {
    pub id: String,
    pub kind: ConversationKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avatar: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub attributes: Option<serde_json::Value>,
    pub created_at: u64,
    pub member_count: u64,
    pub last_seq: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "add": ["carol"] }))]
#[serde(deny_unknown_fields)]
pub struct ChangeMembers {
    #[serde(default)]
    pub add: Vec<String>,
    #[serde(default)]
    pub remove: Vec<String>,
    /// The role of those added, or the new role of those who are members already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MembersChanged {
    pub added: usize,
    pub removed: usize,
    pub changed: usize,
    pub member_count: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct MemberPage {
    pub members: Vec<MemberView>,
    /// Hand back as `after` for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemberView {
    pub user: String,
    pub role: Role,
    pub joined_at: u64,
}

// ---- messages

/// The part of a send that is the message itself.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NewMessage {
    /// The sender's own id for this send: a retry with it answers with the first result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_msg_id: Option<String>,
    #[serde(rename = "type", default = "text")]
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
}

fn text() -> String {
    "text".into()
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
    /// The sender's own id for this send: a retry with it answers with the first result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_msg_id: Option<String>,
    /// The app's own kind of content; `text` when absent.
    #[serde(rename = "type", default = "text")]
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
}

impl SendRequest {
    /// Splits off the message from its addresses: (conversation, to, from, message).
    pub fn into_parts(self) -> (Option<String>, Option<String>, Option<String>, NewMessage) {
        let SendRequest { conversation, to, from, client_msg_id, content_type, body, mentions, silent, skip_push } =
            self;
        (conversation, to, from, NewMessage { client_msg_id, content_type, body, mentions, silent, skip_push })
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "messages": [{ "to": "bob", "from": "alice", "body": { "text": "hello" } }, { "to": "carol", "from": "alice", "body": { "text": "hello" } }] }))]
#[serde(deny_unknown_fields)]
pub struct SendBatch {
    pub messages: Vec<SendRequest>,
}

/// What a committed send answers; a retry gets the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SendReceipt {
    pub conversation: String,
    pub seq: u64,
    /// Milliseconds since 1970 UTC.
    pub at: u64,
    /// The send had been committed before; this is the first result.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
}

/// One result of a batch: a receipt or a problem.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum SendResult {
    Sent(SendReceipt),
    Refused { error: Problem },
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SendBatchResults {
    /// In the order of the request.
    pub results: Vec<SendResult>,
}

// ---- reading

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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_time: Option<u64>,
    /// Entries at or before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_time: Option<u64>,
    /// At most so many entries (default 50, limit 500). A page of large entries has fewer.
    #[param(minimum = 1, maximum = 500)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

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
    /// The oldest entry of the whole conversation; those below were removed by retention.
    #[serde(default)]
    pub conversation_first_seq: u64,
    /// The newest entry of the whole conversation, on this page or not.
    #[serde(default)]
    pub conversation_last_seq: u64,
    /// The same as `conversation_first_seq`, under its older name.
    #[schema(deprecated)]
    pub first_seq: u64,
    /// The same as `conversation_last_seq`, under its older name: of the whole conversation, not of this page. Who goes on
    /// from it leaves out what lies between: go on by `next`.
    #[schema(deprecated)]
    pub last_seq: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SyncAnswer {
    pub cursor: String,
    pub resume: Resume,
    /// Oldest first within each conversation.
    pub entries: Vec<Entry>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ConversationPage {
    pub conversations: Vec<ConversationView>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A conversation in a user's list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ConversationView {
    pub id: String,
    pub kind: ConversationKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avatar: Option<String>,
    pub role: Role,
    pub last_seq: u64,
    pub last_at: u64,
    pub read_seq: u64,
    /// Others' messages after `read_seq` that are not silent; exact unless `unread_capped`.
    pub unread: u64,
    /// Counting stopped, at 1,000 or after 5,000 entries of any kind: there are at least so many.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unread_capped: bool,
    /// How many of those mention this user.
    pub mentions: u64,
    pub muted: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub muted_until: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_entry: Option<Entry>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MarkRead {
    pub seq: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReadMark {
    pub conversation: String,
    pub seq: u64,
    pub unread: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Mute {
    pub muted: bool,
    /// Milliseconds since 1970 UTC; absent: until it is lifted.
    #[serde(default)]
    pub until: Option<u64>,
}

// ---- offline push

/// A notification that could not be delivered by webhook.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DeadLetter {
    pub id: u64,
    pub failed_at: u64,
    pub attempts: u32,
    pub last_error: String,
    #[schema(value_type = Object)]
    pub event: Box<RawValue>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DeadLetterPage {
    pub dead_letters: Vec<DeadLetter>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayDeadLetters {
    /// Which; absent: all.
    #[serde(default)]
    pub ids: Option<Vec<u64>>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Replayed {
    pub replayed: usize,
}
