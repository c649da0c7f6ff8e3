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

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct ConversationNo(pub u64);

/// A position in the store's one commit order. Every entry has its own; later commits have higher ones.
pub type Position = u64;

/// One of three paths of messages through the engine. Lanes share no queue and no worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Lane {
    Direct = 0,
    Group = 1,
    Broadcast = 2,
}

impl Lane {
    pub const ALL: [Lane; LANES] = [Lane::Direct, Lane::Group, Lane::Broadcast];

    /// A conversation keeps its lane for life; a change would let `n+1` overtake `n`.
    pub fn of(kind: ConversationKind) -> Lane {
        match kind {
            ConversationKind::Direct => Lane::Direct,
            ConversationKind::Group => Lane::Group,
            ConversationKind::Official => Lane::Broadcast,
        }
    }

    pub fn name(self) -> &'static str {
        ["direct", "group", "broadcast"][self as usize]
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct User {
    pub no: UserNo,
    pub id: String,
    pub name: Option<String>,
    pub avatar: Option<String>,
    /// JSON text.
    pub attributes: Option<String>,
    pub created_at: u64,
    /// Boxed because it is rare and the cache holds 100,000 users.
    pub do_not_disturb: Option<Box<DailyWindow>>,
    /// Tokens issued before this time (milliseconds since 1970 UTC) are refused; 0: none were revoked.
    pub revoked_at: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Conversation {
    pub no: ConversationNo,
    pub id: String,
    pub kind: ConversationKind,
    /// The two users of a direct conversation; the same user twice for notes to oneself.
    pub pair: Option<(UserNo, UserNo)>,
    pub name: Option<String>,
    pub avatar: Option<String>,
    /// JSON text.
    pub attributes: Option<String>,
    pub created_at: u64,
    pub member_count: u64,
}

impl Conversation {
    pub fn lane(&self) -> Lane {
        Lane::of(self.kind)
    }
}

/// The newest end of a timeline. The `last_` fields are 0 for an empty one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Head {
    pub last_seq: u64,
    pub last_at: u64,
    pub last_position: Position,
    /// The `seq` of the oldest entry that retention has kept; `last_seq + 1` when it has kept none, 1 at the start.
    pub first_seq: u64,
}

/// A user's membership of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    pub role: Role,
    pub joined_at: u64,
    /// The conversation's last `seq` when the user joined: entries up to it do not count as unread.
    pub joined_seq: u64,
    pub read_seq: u64,
    pub mute: MuteState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MuteState {
    #[default]
    Off,
    /// Until this time, in milliseconds since 1970 UTC.
    Until(u64),
    Forever,
}

impl MuteState {
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
    pub seq: u64,
    pub position: Position,
    pub at: u64,
    pub content: NewEntry,
}

/// A timeline entry before the store has given it `seq` and position.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NewEntry {
    pub kind: EntryKind,
    /// Absent when the app server speaks as the conversation itself.
    pub sender: Option<Sender>,
    pub client_msg_id: Option<String>,
    pub content_type: String,
    /// JSON text, at most 64 KiB.
    pub body: Box<str>,
    pub mentions: Vec<String>,
    pub silent: bool,
    pub skip_push: bool,
}

/// The sender of an entry. The number is for keys, the id for readers: rendering history needs no look-up per entry.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Sender {
    pub no: UserNo,
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
    pub fn user(&self) -> Option<&Arc<User>> {
        match self {
            Actor::App => None,
            Actor::User(user) => Some(user),
        }
    }
}
