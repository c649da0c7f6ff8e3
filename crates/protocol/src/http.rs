//! The JSON bodies of the HTTP API. Unknown fields are refused in requests, so that a misspelt
//! option is noticed instead of ignored.

mod bulk_sends;
mod desks;
mod popups;
mod presence;
mod push;

pub use bulk_sends::*;
pub use desks::*;
pub use popups::*;
pub use presence::*;
pub use push::*;

use crate::{entry::Entry, error::ErrorCode, resume::Resume};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// RFC 9457 problem details, with a stable code.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// `urn:tidings:error:` followed by the code.
    #[serde(rename = "type")]
    pub problem_type: String,
    /// The code in words.
    pub title: String,
    /// The HTTP status, once more.
    pub status: u16,
    /// What was wrong with this request, for developers, in English; it may change.
    pub detail: String,
    /// Stable: act on this.
    pub code: ErrorCode,
    /// Whether the same request may succeed later; when, is in `Retry-After`.
    pub retry: bool,
}

// ---- users

/// A user as the app server writes it. What is absent stays as it was.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UserUpsert {
    /// The app's own id for the user, at most 64 bytes; the user is created if there is none with it.
    pub id: String,
    /// For display, at most 512 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The address of a picture, at most 512 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avatar: Option<String>,
    /// The app's own data about the user: a JSON object of at most 2 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub attributes: Option<serde_json::Value>,
}

/// Users to create or to change.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "users": [{ "id": "ada", "name": "Ada" }, { "id": "ben", "name": "Ben" }] }))]
#[serde(deny_unknown_fields)]
pub struct UsersUpsert {
    /// At most 10,000.
    pub users: Vec<UserUpsert>,
}

/// How many users were written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsersUpserted {
    /// Users who did not exist before.
    pub created: usize,
    /// Users who existed.
    pub updated: usize,
}

/// A user's profile card.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UserCard {
    /// The app's own id for the user.
    pub id: String,
    /// For display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The address of a picture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avatar: Option<String>,
    /// The app's own data about the user; others see only what the settings make public.
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
    /// `HH:MM`.
    pub end: String,
    /// An IANA time zone, such as `Europe/Berlin`.
    pub time_zone: String,
}

/// When the user is to get no offline push.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "window": { "start": "22:00", "end": "07:00", "time_zone": "Europe/Berlin" } }))]
#[serde(deny_unknown_fields)]
pub struct SetDoNotDisturb {
    /// `null` ends it.
    pub window: Option<DailyWindow>,
}

/// Whether others learn what the user has read.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetReceipts {
    /// `false`: others do not learn what the user has read, and the user does not learn what others have read.
    pub send: bool,
}

// ---- conversations

/// What a conversation is for, and who may write in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConversationKind {
    /// Two users; its id is theirs, joined by `~`.
    Direct,
    /// Any number of members, all of whom write.
    Group,
    /// An official account: members follow, only owner and admins (or the app server) send.
    Official,
}

/// The rights of a member in a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads, and in a group or a direct conversation writes.
    Member,
    /// Changes the card and the members, too, and writes in an official account.
    Admin,
    /// Gives roles, too.
    Owner,
}

/// What members learn of each other's receipts in a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReceiptsMode {
    /// Nothing.
    #[default]
    None,
    /// How many have a message, and how many have read it.
    Counts,
    /// Who has a message, and who has read it.
    Members,
}

/// Which entries a member may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HistoryVisibility {
    /// All.
    #[default]
    All,
    /// Those since the member joined.
    Join,
    /// Those since the member joined, and so many before.
    Last(u64),
}

/// Who may mention all members of a conversation. App servers always may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MentionAll {
    /// Only app servers.
    Nobody,
    /// The owner and admins.
    #[default]
    Admins,
    /// Every member who may send.
    Members,
}

/// A conversation to create.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "id": "house-7", "kind": "group", "name": "House 7", "owner": "alice", "members": ["bob"] }))]
#[serde(deny_unknown_fields)]
pub struct CreateConversation {
    /// The app's id for a group or official account; made up when absent. Absent for direct ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Stays for the conversation's life.
    pub kind: ConversationKind,
    /// For display, at most 512 bytes; not for direct conversations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The address of a picture, at most 512 bytes; not for direct conversations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avatar: Option<String>,
    /// The app's own data about the conversation: a JSON object of at most 2 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub attributes: Option<serde_json::Value>,
    /// The id of the user who owns it; with a user's token that user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// For a direct conversation: the two users. Otherwise its first members.
    #[serde(default)]
    pub members: Vec<String>,
    /// What members learn of each other's receipts. Absent: `counts` in groups of up to 500 members, `none` in larger ones
    /// and in official accounts. Not for direct conversations, which begin with `members`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipts: Option<ReceiptsMode>,
    /// Which entries from before their joining members may read; absent: all. Not for direct conversations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<HistoryVisibility>,
    /// Who may mention `@all`; absent: the owner and admins. Not for direct conversations, where both users may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mention_all: Option<MentionAll>,
}

/// The changes of a conversation's card. What is absent stays as it was.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "name": "House 7" }))]
#[serde(deny_unknown_fields)]
pub struct UpdateConversation {
    /// For display, at most 512 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The address of a picture, at most 512 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avatar: Option<String>,
    /// The app's own data about the conversation: a JSON object of at most 2 KiB, in place of all former ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub attributes: Option<serde_json::Value>,
    /// What members learn of each other's receipts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipts: Option<ReceiptsMode>,
    /// Which entries from before their joining members may read; it holds for present members, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<HistoryVisibility>,
    /// Who may mention `@all`. Not for direct conversations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mention_all: Option<MentionAll>,
}

/// A conversation, without its members and entries.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ConversationCard {
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
    /// The app's own data about the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub attributes: Option<serde_json::Value>,
    /// Milliseconds since 1970 UTC.
    pub created_at: u64,
    /// Members now, the owner included.
    pub member_count: u64,
    /// The newest entry; 0: there is none.
    pub last_seq: u64,
    /// What members learn of each other's receipts now: as was set, or what follows from the kind and the number of members.
    #[serde(default)]
    pub receipts: ReceiptsMode,
    /// Which entries from before their joining members may read.
    #[serde(default)]
    pub history: HistoryVisibility,
    /// Who may mention `@all`: as was set, or what follows from the kind.
    #[serde(default)]
    pub mention_all: MentionAll,
}

/// Users who join, leave, or get another role.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "add": ["carol"] }))]
#[serde(deny_unknown_fields)]
pub struct ChangeMembers {
    /// User ids, at most 10,000 with those of `remove`.
    #[serde(default)]
    pub add: Vec<String>,
    /// User ids; those who are no members are ignored.
    #[serde(default)]
    pub remove: Vec<String>,
    /// The role of those added, or the new role of those who are members already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
}

/// How many members changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MembersChanged {
    /// Users who were no members before.
    pub added: usize,
    /// Users who are no longer members.
    pub removed: usize,
    /// Members who have another role now.
    pub changed: usize,
    /// Members now.
    pub member_count: u64,
}

/// Members of a conversation, page by page.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct MemberPage {
    /// The members on this page.
    pub members: Vec<MemberView>,
    /// Hand back as `after` for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A member of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemberView {
    /// The user's id.
    pub user: String,
    /// What the user may do there.
    pub role: Role,
    /// Milliseconds since 1970 UTC.
    pub joined_at: u64,
}

// ---- messages

/// The part of a send that is the message itself.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NewMessage {
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
    /// The `seq` of a message of the same conversation that this one answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<u64>,
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
    /// The `seq` of a message of the same conversation that this one answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<u64>,
}

impl SendRequest {
    /// Splits off the message from its addresses: (conversation, to, from, message).
    pub fn into_parts(self) -> (Option<String>, Option<String>, Option<String>, NewMessage) {
        let SendRequest { client_msg_id, content_type, body, mentions, silent, skip_push, reply_to, .. } = self;
        let message = NewMessage { client_msg_id, content_type, body, mentions, silent, skip_push, reply_to };
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

/// A piece of a message that grows.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "offset": 5, "text": ", Ben" }))]
#[serde(deny_unknown_fields)]
pub struct AppendPiece {
    /// The length of the text so far, in bytes of UTF-8. A lower one repeats what is known: a retry.
    pub offset: u64,
    /// What follows. Empty: the message does not grow, and is not ended for a while longer.
    pub text: String,
}

/// How far a message has grown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PieceReceipt {
    /// The length of the text now, in bytes of UTF-8: the `offset` of the next piece.
    pub offset: u64,
}

/// The end of a message that grows.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "body": { "text": "hello, Ben", "sources": 3 } }))]
#[serde(deny_unknown_fields)]
pub struct EndStream {
    /// The whole body, any JSON of at most 64 KiB; absent: what was begun with, and all pieces.
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
    /// The caller's own id for this edit: a retry with it answers with the first result. It needs a user to belong to.
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
    /// The version of the message's body now.
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
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "also_null")]
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

/// Tells a field that is `null` from one that is absent.
fn also_null<'de, D: Deserializer<'de>, T: Deserialize<'de>>(json: D) -> Result<Option<T>, D::Error> {
    T::deserialize(json).map(Some)
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
    #[serde(default)]
    pub until: Option<u64>,
}

// ---- offline push

/// A notification that could not be delivered by webhook.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DeadLetter {
    /// Names it to be replayed. Ids grow with time.
    pub id: u64,
    /// When the last attempt failed, in milliseconds since 1970 UTC.
    pub failed_at: u64,
    /// How often it was tried.
    pub attempts: u32,
    /// Why the last attempt failed.
    pub last_error: String,
    /// What the webhook would have been sent.
    #[schema(value_type = Object)]
    pub event: Box<RawValue>,
}

/// Dead letters, page by page.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DeadLetterPage {
    /// The oldest first.
    pub dead_letters: Vec<DeadLetter>,
    /// Hand back as `after` for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// Dead letters to try once more.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayDeadLetters {
    /// Which; absent: all.
    #[serde(default)]
    pub ids: Option<Vec<u64>>,
}

/// What a replay begins.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Replayed {
    /// Dead letters that are tried once more. The answer does not wait for that.
    pub replayed: usize,
}
