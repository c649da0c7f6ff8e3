//! Proposals, the outcomes that the store answers, and its reasons to reject one.

use crate::model::*;

/// A write to be committed. Each proposal gets one [`Outcome`]; a rejected one leaves the rest of its batch alone.
#[derive(Debug, Clone)]
pub enum Proposal {
    /// Appends to a timeline, once per (sender, client_msg_id). A store that several nodes write rejects a sender who
    /// has just left the conversation: the sender's node may not know of it yet.
    Append {
        conversation: ConversationNo,
        entry: NewEntry,
    },
    /// Creates or changes users; a field that is `None` in a patch stays as it was.
    PutUsers(Vec<UserPatch>),
    /// Creates a conversation with its first members, or answers with the existing one of this id.
    CreateConversation(NewConversation),
    UpdateConversation {
        conversation: ConversationNo,
        name: Option<String>,
        avatar: Option<String>,
        attributes: Option<String>,
        notice: Option<NewEntry>,
    },
    /// Adds members (or changes the role of present ones) and removes members. `notice` is appended
    /// to the timeline in the same batch if anything changed.
    ChangeMembers {
        conversation: ConversationNo,
        add: Vec<(UserNo, Role)>,
        remove: Vec<UserNo>,
        members_max: u64,
        notice: Option<NewEntry>,
    },
    /// Moves a read mark forward, never back and never past the head.
    MarkRead {
        conversation: ConversationNo,
        user: UserNo,
        seq: u64,
    },
    SetMute {
        conversation: ConversationNo,
        user: UserNo,
        mute: MuteState,
    },
    SetDoNotDisturb {
        user: UserNo,
        window: Option<DailyWindow>,
    },
    /// Sets when users' last sessions ended, in milliseconds since 1970 UTC.
    SetLastSeen(Vec<(UserNo, u64)>),
    /// Ends sessions of a user, one device's or all. The store keeps only the change that tells other nodes.
    Kick {
        user: UserNo,
        device_id: Option<String>,
        reason: String,
    },
    /// From here on, the user's tokens that were issued before this time (milliseconds since 1970 UTC) are refused.
    /// Other nodes learn of it by the change of a [`Proposal::Kick`] of all the user's sessions.
    Revoke {
        user: UserNo,
        before: u64,
        reason: String,
    },
    /// Moves the outbox's position: every item up to and including `through` is delivered or stored in `dead`.
    /// `through` 0 moves nothing. The ids of `dead` tell dead letters from notifications that wait for a retry.
    AdvanceOutbox {
        through: Position,
        dead: Vec<DeadNotification>,
    },
    /// Deletes notifications that were stored by [`Proposal::AdvanceOutbox`] and are delivered now.
    DeleteDeadLetters {
        ids: Vec<u64>,
    },
}

#[derive(Debug, Clone, Default)]
pub struct UserPatch {
    pub id: String,
    pub name: Option<String>,
    pub avatar: Option<String>,
    pub attributes: Option<String>,
}

#[derive(Debug, Clone)]
pub struct NewConversation {
    pub id: String,
    pub kind: ConversationKind,
    pub pair: Option<(UserNo, UserNo)>,
    pub name: Option<String>,
    pub avatar: Option<String>,
    pub attributes: Option<String>,
    pub members: Vec<(UserNo, Role)>,
}

/// A webhook event that was not delivered: a dead letter, or one that waits for a retry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadNotification {
    pub id: u64,
    pub failed_at: u64,
    pub attempts: u32,
    pub last_error: String,
    /// JSON text.
    pub event: String,
}

/// The result of a proposal.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    Appended(Appended),
    Users {
        created: usize,
        updated: usize,
    },
    /// `created` is false when a conversation had the id already.
    Conversation {
        conversation: Conversation,
        created: bool,
    },
    MembersChanged {
        added: Vec<UserNo>,
        removed: Vec<UserNo>,
        changed: Vec<UserNo>,
        member_count: u64,
        notice: Option<Appended>,
    },
    /// The read mark now, and whether the proposal moved it.
    Read {
        seq: u64,
        moved: bool,
    },
    Done,
    Rejected(Rejection),
}

/// The place of an appended entry. `duplicate`: an earlier proposal appended it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    pub conversation: ConversationNo,
    pub seq: u64,
    pub at: u64,
    pub position: Position,
    pub duplicate: bool,
}

/// A range of the commit order: the positions after `after`, up to and including `through`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PositionRange {
    pub after: Position,
    pub through: Position,
}

/// Why the store rejected one proposal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejection {
    NoSuchConversation,
    NoSuchUser(UserNo),
    NotAMember,
    /// (sender, client_msg_id) names an entry of another conversation.
    ClientMsgIdReused,
    /// A conversation of another kind has the id.
    KindDiffers,
    TooManyMembers {
        limit: u64,
        would_be: u64,
    },
}
