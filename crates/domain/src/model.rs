//! The stored types of the domain: users, conversations, memberships, timeline entries.

use std::sync::Arc;
pub use tidings_protocol::{
    cursor::{Cursor, LANES},
    entry::EntryKind,
    http::{ConversationKind, DailyWindow, Role},
};

/// A user's number, given once and never reused: ids are the app's, numbers are small and fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct UserNo(pub u64);

/// A conversation's number, given once and never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct ConversationNo(pub u64);

/// A position in the store's one commit order. Every entry has its own; later commits have higher ones.
pub type Position = u64;

/// One of three paths of messages through the engine. Lanes share no queue and no worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Lane {
    /// Conversations of two users. The committer and the shards take this lane first.
    Direct = 0,
    /// Conversations of several members.
    Group = 1,
    /// Official accounts: few writers, and most readers. Taken last.
    Broadcast = 2,
}

impl Lane {
    /// In the order in which they are taken, which is that of their numbers.
    pub const ALL: [Lane; LANES] = [Lane::Direct, Lane::Group, Lane::Broadcast];

    /// A conversation keeps its lane for life; a change would let `n+1` overtake `n`.
    pub fn of(kind: ConversationKind) -> Lane {
        match kind {
            ConversationKind::Direct => Lane::Direct,
            ConversationKind::Group => Lane::Group,
            ConversationKind::Official => Lane::Broadcast,
        }
    }

    /// The name in metrics and refusals.
    pub fn name(self) -> &'static str {
        ["direct", "group", "broadcast"][self as usize]
    }
}

/// A user as the store has it; members of the same conversations see it as a card.
#[derive(Debug, Clone, PartialEq)]
pub struct User {
    /// The number by which keys and other rows refer to the user.
    pub no: UserNo,
    /// The id that the app server gave; never changed.
    pub id: String,
    /// For display; absent until the app server sets one.
    pub name: Option<String>,
    /// The address of a picture, as the app server wrote it.
    pub avatar: Option<String>,
    /// JSON text.
    pub attributes: Option<String>,
    /// In milliseconds since 1970 UTC.
    pub created_at: u64,
    /// Boxed because it is rare and the cache holds 100,000 users.
    pub do_not_disturb: Option<Box<DailyWindow>>,
    /// Tokens issued before this time (milliseconds since 1970 UTC) are refused; 0: none were revoked.
    pub revoked_at: u64,
}

/// A conversation as the store has it, without its members and entries.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversation {
    /// The number by which keys and other rows refer to the conversation.
    pub no: ConversationNo,
    /// The id that the app server gave, or one made of the two users of a direct conversation; never changed.
    pub id: String,
    /// Direct, group or official; never changed, for the lane follows from it.
    pub kind: ConversationKind,
    /// The two users of a direct conversation; the same user twice for notes to oneself.
    pub pair: Option<(UserNo, UserNo)>,
    /// For display; absent where apps show the members instead.
    pub name: Option<String>,
    /// The address of a picture, as it was written.
    pub avatar: Option<String>,
    /// JSON text.
    pub attributes: Option<String>,
    /// In milliseconds since 1970 UTC.
    pub created_at: u64,
    /// Members now, the owner included.
    pub member_count: u64,
}

impl Conversation {
    /// The lane of its messages.
    pub fn lane(&self) -> Lane {
        Lane::of(self.kind)
    }
}

/// The newest end of a timeline. The `last_` fields are 0 for an empty one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Head {
    /// The `seq` of the newest entry.
    pub last_seq: u64,
    /// The time of the newest entry, in milliseconds since 1970 UTC.
    pub last_at: u64,
    /// The newest entry's place in the commit order.
    pub last_position: Position,
    /// The `seq` of the oldest entry that retention has kept; `last_seq + 1` when it has kept none, 1 at the start.
    pub first_seq: u64,
}

/// A user's membership of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// What the member may do in the conversation.
    pub role: Role,
    /// In milliseconds since 1970 UTC.
    pub joined_at: u64,
    /// The conversation's last `seq` when the user joined: entries up to it do not count as unread.
    pub joined_seq: u64,
    /// The newest `seq` that the member has read. It never goes back.
    pub read_seq: u64,
    /// Whether the member's devices are spared the offline pushes of the conversation.
    pub mute: MuteState,
}

/// A member's wish about offline pushes of one conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MuteState {
    /// Not muted.
    #[default]
    Off,
    /// Until this time, in milliseconds since 1970 UTC.
    Until(u64),
    /// Until the member ends the mute.
    Forever,
}

impl MuteState {
    /// Whether the mute holds at this time, in milliseconds since 1970 UTC.
    pub fn is_muted(self, now_ms: u64) -> bool {
        match self {
            MuteState::Off => false,
            MuteState::Until(end) => now_ms < end,
            MuteState::Forever => true,
        }
    }
}

/// A stored timeline entry, in no wire format.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct StoredEntry {
    /// The number in the conversation: 1, 2, 3, … without a hole.
    pub seq: u64,
    /// The place in the commit order of the whole store.
    pub position: Position,
    /// When it was committed, in milliseconds since 1970 UTC; never before the entry ahead of it in the conversation.
    pub at: u64,
    /// What was proposed.
    pub content: NewEntry,
}

/// A timeline entry before the store has given it `seq` and position.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NewEntry {
    /// A message, or a notice of the server.
    pub kind: EntryKind,
    /// Absent when the app server speaks as the conversation itself.
    pub sender: Option<Sender>,
    /// The sender's own id of the message: the sender's retry with it answers with the first result.
    pub client_msg_id: Option<String>,
    /// The app's word for the kind of content, such as `text`; the server does not read it.
    pub content_type: String,
    /// JSON text, at most 64 KiB.
    pub body: Box<str>,
    /// The ids of users, or `@all`; unread mentions are counted.
    pub mentions: Vec<String>,
    /// Neither counted as unread nor pushed to offline devices.
    pub silent: bool,
    /// Counted as unread, but not pushed to offline devices.
    pub skip_push: bool,
}

/// The sender of an entry. The number is for keys, the id for readers: rendering history needs no look-up per entry.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Sender {
    /// The number of the user.
    pub no: UserNo,
    /// The id of the user.
    pub id: String,
}

/// The caller of an operation. The doors find it out from an API key or a token; the engine checks what the actor may
/// do.
#[derive(Debug, Clone)]
pub enum Actor {
    /// An app server, which may do everything.
    App,
    /// A user with a token.
    User(Arc<User>),
}

impl Actor {
    /// The user who calls; `None` for an app server.
    pub fn user(&self) -> Option<&Arc<User>> {
        match self {
            Actor::App => None,
            Actor::User(user) => Some(user),
        }
    }
}
