//! Conversations and their members.

use super::Expires;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
    /// Changes the details and the members, too, and writes in an official account.
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

/// What a block between two users means in a conversation that both are members of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BlocksMode {
    /// The messages come as all others do; mentions by a blocked user count as none.
    #[default]
    Ignore,
    /// The messages come, and who blocks their sender is not notified of them.
    Hide,
}

/// Who may send messages in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Posting {
    /// Every member.
    #[default]
    Members,
    /// The owner and admins, as in an official account.
    Admins,
}

/// What the owner and admins forbid a user in a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RestrictionKind {
    /// The member reads, and writes nothing.
    Mute,
    /// The user is removed, and does not become a member again.
    Ban,
}

/// Which reactions may be given to messages of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AllowedReactions {
    /// Any, at most 20 different ones to a message.
    #[default]
    Any,
    /// These, at most 20; none: no reactions.
    Only(Vec<String>),
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
    /// Which reactions may be given; absent: any, in official accounts 👍 ❤️ 😂 😮 😢 🙏. Not for direct conversations, which begin with any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reactions: Option<AllowedReactions>,
    /// Whether members are notified of messages of those whom they block; absent: `ignore`, they are. Not for direct conversations,
    /// in which nobody sends while one blocks the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<BlocksMode>,
    /// Who may send: `admins` makes it announce-only. Only for groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub posting: Option<Posting>,
    /// A member may send one message in so many seconds, at most 86,400 (a day); 0: no slow mode. The owner, admins and app servers are
    /// exempt. Only for groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_mode_s: Option<u32>,
    /// Whether users may ask to become members; absent in a new one: they may not. Only for groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join_requests: Option<bool>,
    /// When messages disappear that are sent from now on: what a sender says may only be earlier. Without a field in it: they do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Expires>,
}

/// How long the messages of one conversation are kept, in place of what holds for all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "keep_days": 30 }))]
#[serde(deny_unknown_fields)]
pub struct ConversationRetention {
    /// Days, 1 to 36,500 (a hundred years), which may be more or fewer than for all; absent: as for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_days: Option<u32>,
    /// The newest message goes, too, when its time is over: it is recalled by nobody. Otherwise a conversation keeps it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removes_newest: bool,
}

/// The changes of a conversation's details. What is absent stays as it was.
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
    /// Which reactions may be given from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reactions: Option<AllowedReactions>,
    /// Whether members are notified of messages of those whom they block. Not for direct conversations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<BlocksMode>,
    /// Who may send: `admins` makes it announce-only. Only for groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub posting: Option<Posting>,
    /// A member may send one message in so many seconds, at most 86,400 (a day); 0: no slow mode. The owner, admins and app servers are
    /// exempt. Only for groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_mode_s: Option<u32>,
    /// Whether users may ask to become members; absent in a new one: they may not. Only for groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join_requests: Option<bool>,
    /// When messages disappear that are sent from now on: what a sender says may only be earlier. Without a field in it: they do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Expires>,
    /// How long its messages are kept; without a field in it: as for all. For app servers alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<ConversationRetention>,
}

/// A conversation, without its members and entries.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ConversationDetails {
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
    /// Which reactions may be given: as was set, or what follows from the kind.
    #[serde(default)]
    pub reactions: AllowedReactions,
    /// Whether members are notified of messages of those whom they block.
    #[serde(default)]
    pub blocks: BlocksMode,
    /// Who may send: as was set, or what follows from the kind.
    #[serde(default)]
    pub posting: Posting,
    /// A member may send one message in so many seconds; 0: as many as the member likes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub slow_mode_s: u32,
    /// Users may ask to become members.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub join_requests: bool,
    /// When messages disappear that are sent from now on; absent: they do not, unless their senders say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Expires>,
    /// How long its messages are kept, if that is not as for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<ConversationRetention>,
    /// The history of another system is being imported: members read, and nobody sends before the import is finished.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub importing: bool,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A mute or a ban.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Restrict {
    /// A mute or a ban.
    pub kind: RestrictionKind,
    /// When it ends by itself, in milliseconds since 1970 UTC; absent: when it is lifted.
    #[serde(default, deserialize_with = "crate::time::time", skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// Why, for members: at most 512 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The user in whose name an app server acts. With a user's token that user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// A user's mute or ban in a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RestrictionView {
    /// The user's id.
    pub user: String,
    /// A mute or a ban.
    pub kind: RestrictionKind,
    /// Since when, in milliseconds since 1970 UTC.
    pub at: u64,
    /// When it ends by itself, in milliseconds since 1970 UTC; absent: when it is lifted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// Who decided it; absent: an app server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The mutes and bans of a conversation, page by page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RestrictionPage {
    /// Those that hold, on this page.
    pub restrictions: Vec<RestrictionView>,
    /// Hand back as `after` for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// To whom a group is handed over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HandOver {
    /// The member who owns it from now on.
    pub to: String,
    /// The owner who is an admin from now on; with a user's token that user, who need not be named. Without one an app server makes
    /// `to` an owner beside those there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
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
    /// The user's name for display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The address of the user's picture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avatar: Option<String>,
    /// What the user may do there.
    pub role: Role,
    /// Milliseconds since 1970 UTC.
    pub joined_at: u64,
    /// The member is muted now: reads, and writes nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub muted: bool,
}
