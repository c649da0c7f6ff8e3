//! What stands in the commit log: records of entries and of changes, at positions of the one commit order.

use crate::{feed_note::FeedNote, model::*};
use serde::{Deserialize, Serialize};

/// What a commit changed outside timelines, as far as other nodes may hold it in memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Change {
    /// Users joined or left a conversation, or changed their roles in it. Those who joined or left see the entry at the
    /// same position; those who left see nothing after it.
    Members {
        /// The conversation whose members these are.
        conversation: ConversationNo,
        /// Users who were no members before the commit.
        joined: Vec<UserNo>,
        /// Users who are no members after the commit.
        left: Vec<UserNo>,
        /// Members whose roles changed.
        changed: Vec<UserNo>,
    },
    /// A conversation's name, avatar or attributes; of an official account also who answers for it.
    Conversation(ConversationNo),
    /// Names, avatars or attributes of users, by id.
    Users(Vec<String>),
    /// What the user has set for all conversations: the daily hours without offline push, or whether receipts are sent.
    DoNotDisturb(UserNo),
    /// A member has set something for a conversation: a mute, or what the own list shows of it.
    Mute {
        /// The conversation.
        conversation: ConversationNo,
        /// The member. Nothing changes for others.
        user: UserNo,
    },
    /// A member's read mark has moved forward.
    Read {
        /// The conversation in which the user has read.
        conversation: ConversationNo,
        /// The member whose read mark moved.
        user: UserNo,
        /// The mark after the commit: the newest `seq` that the member has read.
        seq: u64,
    },
    /// The app server ended sessions of a user: those of one device, or all.
    Kick {
        /// The user whose sessions end, on whichever node they are.
        user: UserNo,
        /// The device whose sessions end; absent: all of the user's sessions end.
        device_id: Option<String>,
        /// What the sessions are sent, in the app server's words or a sentence of our own.
        reason: String,
    },
    /// A user was suspended, which ends the user's sessions, or is suspended no longer.
    Suspension {
        /// The user.
        user: UserNo,
        /// Whether the user is suspended from here on.
        suspended: bool,
        /// When the suspension ends by itself, in milliseconds since 1970 UTC.
        until: Option<u64>,
        /// Why.
        reason: String,
        /// The operator or the API key that did it.
        by: String,
    },
    /// A user blocks another one, or does so no longer.
    Block {
        /// Who blocks.
        user: UserNo,
        /// Who is blocked.
        other: UserNo,
        /// Whether that is so from here on.
        blocked: bool,
    },
    /// A message was reported, or the report is in another state.
    Report {
        /// The message's conversation.
        conversation: ConversationNo,
        /// The message.
        seq: u64,
        /// Who reported it.
        reporter: UserNo,
    },
    /// What happened outside the commits of chat, as events of the feed. Nothing in memory is of it.
    Notes(Vec<FeedNote>),
    /// A user was erased, or a conversation deleted: ids of users and conversations, and entries, may be others than they were.
    Erased {
        /// The user, who has another id now; nobody, if it was a conversation.
        user: UserNo,
        /// The key of the job, which knows the former id for a while.
        erasure: Vec<u8>,
    },
    /// A kind of a later version: anything may have changed. Never written, and never sent on, since it has lost its content.
    #[serde(skip)]
    Opaque,
}

impl Change {
    /// The kinds that this version knows have the numbers below this one.
    pub const KINDS: u32 = 12;

    /// The conversation whose members this change concerns.
    pub fn members_of(&self) -> Option<ConversationNo> {
        match self {
            Change::Members { conversation, .. } => Some(*conversation),
            _ => None,
        }
    }
}

/// What the log has at one position: an entry, a change, or both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// The place in the commit order at which the entry and the change were committed.
    pub position: Position,
    /// The entry at this position, with its conversation.
    pub entry: Option<(ConversationNo, StoredEntry)>,
    /// The change at this position.
    pub change: Option<Change>,
    /// When the change was committed, in milliseconds since 1970 UTC, by the clock of the store; 0: there is none. An entry has its
    /// time.
    pub changed_at: u64,
}

/// One read of the log: all records in the span, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPage {
    /// The positions that were read: of those without a record nothing is to be learned.
    pub span: PositionRange,
    /// In commit order; at most one for each position of the span.
    pub records: Vec<LogRecord>,
}

/// What one call of pruning did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PruneProgress {
    /// Changes that this call removed.
    pub removed: u64,
    /// Another call may find more to remove.
    pub more: bool,
}
