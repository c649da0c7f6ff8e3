//! Proposals, the outcomes that the store answers, and its reasons to reject one.

use crate::{
    desks::*,
    erase_step::{EraseStep, LegalHold},
    feed_note::FeedNote,
    joining::*,
    model::*,
    reports::ReportKey,
    request_digest::RequestDigest,
    restrictions::*,
    token_digest::TokenDigest,
};
use tidings_protocol::{
    error::Refusal,
    http::{Channel, PushToken, ReportReason, ReportState},
};

/// A write to be committed. Each proposal gets one [`Outcome`]; a rejected one leaves the rest of its batch alone.
#[derive(Debug, Clone)]
pub enum Proposal {
    /// Appends to a timeline, once per (conversation, author, client_msg_id). A store that several nodes write rejects a
    /// sender who has just left the conversation: the sender's node may not know of it yet.
    Append {
        /// The conversation to append to.
        conversation: ConversationNo,
        /// What is appended.
        entry: NewEntry,
    },
    /// Opens a direct conversation by its first entry, in one: an entry that is rejected opens none. If there is the
    /// conversation already, nothing is stored, and the outcome names it as one that was not created: the entry is to be
    /// appended to it.
    OpenDirect {
        /// The conversation, if there is none with its id. Boxed, since all proposals are as large as the largest.
        new: Box<NewConversation>,
        /// What is appended.
        entry: NewEntry,
    },
    /// Changes a message that was sent before, and appends the entry that tells the members of it, in one.
    ChangeMessage {
        /// The conversation that the message is in.
        conversation: ConversationNo,
        /// The `seq` of the message.
        target: u64,
        /// What is changed.
        change: MessageChange,
        /// The entry of the change, without the details that follow from the message. With an id of the
        /// author's own, a retry answers with the first result.
        entry: NewEntry,
    },
    /// Gives a reaction to a message, or takes one back. A user gives each reaction once: a repeated one changes nothing.
    React {
        /// The conversation that the message is in.
        conversation: ConversationNo,
        /// The `seq` of the message.
        target: u64,
        /// The user whose reaction it is.
        user: Sender,
        /// The reaction, such as an emoji.
        key: String,
        /// Whether the reaction is given; otherwise it is taken back.
        add: bool,
        /// A message has at most this many different reactions.
        keys_max: usize,
        /// Members are notified of reactions by one entry for each such interval, in milliseconds.
        interval_ms: u64,
    },
    /// Appends the entry with the reactions since the last such entry, if there are any.
    TellReactions {
        /// The conversation.
        conversation: ConversationNo,
    },
    /// Replaces the body of a message that grows by a longer one. It has no entry: live members have the chunks. The
    /// proposal is rejected once the message is ended or recalled.
    CheckpointStream {
        /// The conversation that the message is in.
        conversation: ConversationNo,
        /// The `seq` of the message.
        target: u64,
        /// The body so far, as JSON text.
        body: Box<str>,
    },
    /// Creates or changes users; a field that is `None` in a patch stays as it was.
    PutUsers(Vec<UserPatch>),
    /// Creates a conversation with its first members, or answers with the existing one of this id.
    CreateConversation(NewConversation),
    /// Changes a conversation's details; a field that is `None` stays as it was.
    UpdateConversation {
        /// The conversation to change.
        conversation: ConversationNo,
        /// The new name, for display.
        name: Option<String>,
        /// The address of the new picture.
        avatar: Option<String>,
        /// The new attributes, as JSON text, in place of all former ones.
        attributes: Option<String>,
        /// The settings to change.
        settings: ConversationSettings,
        /// An entry that tells the members, appended in the same batch.
        notice: Option<NewEntry>,
    },
    /// Adds members (or changes the role of present ones) and removes members. `notice` is appended
    /// to the timeline in the same batch if anything changed.
    ChangeMembers {
        /// The conversation whose members change.
        conversation: ConversationNo,
        /// Users who are members with this role afterwards.
        add: Vec<(UserNo, Role)>,
        /// Users who are no members afterwards.
        remove: Vec<UserNo>,
        /// A member who owns the conversation afterwards, who may be its owner already: named when another owner leaves, so that
        /// two who leave at once do not leave it without one. A user who is no member any more rejects the proposal as a whole.
        heir: Option<UserNo>,
        /// What else becomes of one user.
        act: Option<Box<MemberAct>>,
        /// With more members than this the proposal is rejected as a whole.
        members_max: u64,
        /// An entry that tells the members.
        notice: Option<NewEntry>,
    },
    /// Changes who answers for an official account. The first change makes the account's user.
    SetDesk {
        /// The account.
        account: ConversationNo,
        /// The account's id.
        id: String,
        /// What is changed.
        patch: DeskPatch,
        /// With more agents than this the proposal is rejected as a whole.
        agents_max: u32,
        /// A user who has the account's id becomes the account's; otherwise the proposal is rejected. Agents read the
        /// conversations of that user.
        adopts_user: bool,
    },
    /// Assigns a conversation with an account to one of its agents, or to nobody. Nothing happens if that is so already.
    Assign {
        /// The conversation.
        conversation: ConversationNo,
        /// The account.
        account: ConversationNo,
        /// The agent; `None`: nobody.
        to: Option<Sender>,
        /// Who must have the conversation now; `None`: whoever has it.
        expected: Option<Option<UserNo>>,
        /// The entry of the assignment, without the details that follow from it.
        entry: NewEntry,
    },
    /// Moves a read mark forward, never back and never past the head.
    MarkRead {
        /// The conversation in which the user has read.
        conversation: ConversationNo,
        /// The member who has read.
        user: UserNo,
        /// The newest `seq` that the user has read.
        seq: u64,
    },
    /// Sets a member's mute of a conversation.
    SetMute {
        /// The conversation to mute or to unmute.
        conversation: ConversationNo,
        /// The member whose mute it is.
        user: UserNo,
        /// The mute from now on.
        mute: MuteState,
    },
    /// Sets the daily hours in which a user gets no offline push.
    SetDoNotDisturb {
        /// The user whose hours they are.
        user: UserNo,
        /// The hours, in the user's own time zone; absent: there are none from now on.
        window: Option<DailyWindow>,
    },
    /// Moves forward how far users' clients have stored what they were handed: a position for each lane, never back.
    SetStored(Vec<(UserNo, [Position; LANES])>),
    /// Changes what a member has set for a conversation of the list.
    SetPreferences {
        /// The conversation.
        conversation: ConversationNo,
        /// The member.
        user: UserNo,
        /// What is changed.
        patch: PreferencesPatch,
    },
    /// Sets whether others learn what the user has read, and the user what others have read.
    SetReceipts {
        /// The user whose setting it is.
        user: UserNo,
        /// Whether they do.
        send: bool,
    },
    /// Sets by which channels the user wants to be notified of messages.
    SetNotificationPreferences {
        /// The user whose preferences they are.
        user: UserNo,
        /// They replace the former ones.
        preferences: Box<NotificationPreferences>,
    },
    /// Sets or removes the token by which a provider reaches a device. A token that another device had moves to this one.
    SetPushToken {
        /// The user of the device.
        user: UserNo,
        /// The device's id.
        device: String,
        /// The token from now on; absent: none.
        token: Option<PushToken>,
        /// The token that the device has, as the proposer has found it; rejected if it has another.
        former: Option<TokenDigest>,
        /// The other device that has the new token, as the proposer has found it; rejected if another one has it.
        owner: Option<(UserNo, String)>,
        /// For a device that has no token: how often a device of the user that had none got one, as the proposer has found it
        /// before it counted the user's devices; rejected if another one got one since. Absent: that does not matter.
        additions: Option<u64>,
        /// What the feed is to say of it.
        notes: Vec<FeedNote>,
    },
    /// Sets what this boot of a node has counted on channels in an hour: the hour since 1970 UTC, the boot, the channel, and the row.
    SetNotificationCounts(Vec<(u64, u64, Channel, Vec<u8>)>),
    /// Adds events of what happened outside the commits of chat to the log.
    AddFeedNotes(Vec<FeedNote>),
    /// Sets when API keys were last used: the number of each, and the time in milliseconds since 1970 UTC.
    SetApiKeyUse(Vec<(u64, u64)>),
    /// Sets when users' last sessions ended, in milliseconds since 1970 UTC.
    SetLastSeen(Vec<(UserNo, u64)>),
    /// Ends sessions of a user, one device's or all. The store keeps only the change that tells other nodes.
    Kick {
        /// The user whose sessions end.
        user: UserNo,
        /// The device whose sessions end; absent: all of the user's.
        device_id: Option<String>,
        /// What the sessions are sent.
        reason: String,
    },
    /// From here on, the user's tokens that were issued before this time (milliseconds since 1970 UTC) are refused.
    /// Other nodes learn of it by the change of a [`Proposal::Kick`] of all the user's sessions.
    Revoke {
        /// The user whose tokens are revoked.
        user: UserNo,
        /// Tokens issued at this time or later are valid.
        before: u64,
        /// What the user's sessions, which end, are sent.
        reason: String,
    },
    /// Suspends a user, or lifts the suspension.
    SetSuspension {
        /// The user.
        user: UserNo,
        /// Whether the user is suspended from here on.
        suspended: bool,
        /// When the suspension ends by itself, in milliseconds since 1970 UTC.
        until: Option<u64>,
        /// Why the user is suspended, or is no longer.
        reason: String,
        /// The operator or the API key that does it.
        by: String,
    },
    /// A user blocks another one, or does so no longer.
    SetBlock {
        /// Who blocks.
        user: UserNo,
        /// Who is blocked.
        other: UserNo,
        /// Whether that is so from here on.
        blocked: bool,
        /// A user blocks at most so many others.
        blocks_max: u32,
    },
    /// Reports a message to moderators. A user's second report of a message changes nothing.
    Report {
        /// Which report.
        report: ReportKey,
        /// Of which kind the message is.
        reason: ReportReason,
        /// In the reporter's words.
        text: Option<String>,
        /// Who sent the message.
        reported: Option<UserNo>,
        /// A user has at most so many reports that are neither resolved nor dismissed.
        open_max: u32,
    },
    /// Changes the state of a report.
    SetReport {
        /// Which report.
        report: ReportKey,
        /// Rejected unless it is in this state; absent: in any.
        expected: Option<ReportState>,
        /// Its state from here on.
        state: ReportState,
        /// Why.
        note: Option<String>,
        /// The operator or the API key that does it.
        by: String,
    },
    /// A step by which a person is erased. Boxed, since it is rare.
    Erase(Box<EraseStep>),
    /// Sets or lifts the legal hold of a conversation.
    SetLegalHold {
        /// The conversation.
        conversation: ConversationNo,
        /// From now on; `None`: there is none.
        hold: Option<LegalHold>,
    },
    /// Moves the outbox's position: every item up to and including `through` is delivered or stored in `dead`.
    /// `through` 0 moves nothing.
    AdvanceOutbox {
        /// The position of the last item that is dealt with.
        through: Position,
        /// Events to store for a later attempt, or for an operator to look at.
        dead: Vec<StoredNotification>,
    },
    /// Deletes notifications that were stored by [`Proposal::AdvanceOutbox`] and are delivered now.
    DeleteStoredNotifications {
        /// A key that is not stored is ignored.
        keys: Vec<NotificationKey>,
    },
}

/// What becomes of one user in a conversation, beside joining, leaving and roles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberAct {
    /// The user is muted or banned, or no longer. Whoever bans a member removes the member as well.
    Restrict {
        /// The user, who is a member if it is a mute that is set.
        user: UserNo,
        /// Which restriction.
        kind: RestrictionKind,
        /// From now on; `None`: it is lifted.
        restriction: Option<Restriction>,
    },
    /// The owner becomes an admin, beside the heir. Rejected unless the user owns the conversation.
    StepDown(UserNo),
    /// There is one more invite. Those that have ended are removed.
    Invite {
        /// The new one.
        invite: Invite,
        /// With more invites than this the proposal is rejected.
        invites_max: usize,
    },
    /// The invite with this number is no more.
    RevokeInvite(u64),
    /// The user, whom the proposal adds, joins by an invite, which counts if the user was no member before.
    JoinByInvite {
        /// The user.
        user: UserNo,
        /// The invite's number.
        invite: u64,
    },
    /// The user asks to become a member, in place of a former request.
    Ask {
        /// The user, who is no member.
        user: UserNo,
        /// The request.
        request: JoinRequest,
        /// With more waiting requests in the conversation than this, and of the user, the proposal is rejected.
        waiting_max: (u64, u64),
    },
    /// The user's request, which waits, is granted: the proposal adds the user.
    Approve(UserNo),
    /// The user's request, which waits, is refused; `None`: it is withdrawn.
    Decline {
        /// The user.
        user: UserNo,
        /// How it was refused.
        refused: Option<RefusedRequest>,
    },
}

impl MemberAct {
    /// The user whose restrictions it looks at.
    pub fn restricted_user(&self) -> Option<UserNo> {
        match self {
            MemberAct::Restrict { user, .. } | MemberAct::Ask { user, .. } => Some(*user),
            _ => None,
        }
    }

    /// The user whom it concerns.
    pub fn user(&self) -> Option<UserNo> {
        match self {
            MemberAct::Restrict { user, .. }
            | MemberAct::StepDown(user)
            | MemberAct::JoinByInvite { user, .. }
            | MemberAct::Ask { user, .. }
            | MemberAct::Approve(user)
            | MemberAct::Decline { user, .. } => Some(*user),
            MemberAct::Invite { .. } | MemberAct::RevokeInvite(_) => None,
        }
    }

    /// The user whose number of waiting requests it changes.
    pub fn asker(&self) -> Option<UserNo> {
        match self {
            MemberAct::Ask { user, .. } | MemberAct::Approve(user) | MemberAct::Decline { user, .. } => Some(*user),
            _ => None,
        }
    }

    /// The rows of invites and requests that it needs.
    pub fn joining_keys(&self, conversation: ConversationNo) -> Vec<Vec<u8>> {
        match (self.asker(), self) {
            (Some(user), _) => {
                vec![join_request_key(conversation, user), waiting_in_key(conversation), waiting_of_key(user)]
            }
            (None, MemberAct::Invite { .. } | MemberAct::RevokeInvite(_) | MemberAct::JoinByInvite { .. }) => {
                vec![invites_key(conversation)]
            }
            (None, _) => Vec::new(),
        }
    }
}

/// A change of a message that was sent before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageChange {
    /// The message's kind of content, body and mentions become those of the change's entry.
    Edit {
        /// The edit is rejected unless this is the message's version; a message that was never edited has version 1.
        if_version: Option<u32>,
        /// Whether the replaced body is kept.
        keep_replaced: bool,
        /// Edits of a message beyond this are rejected.
        edits_max: usize,
    },
    /// The message's body, mentions and former bodies are removed for good.
    Recall,
    /// The same of a message whose time is over, unless the conversation is under a legal hold. The change's entry gets the message's
    /// kind of content.
    Expire,
    /// The message is pinned in its conversation, or no longer. Nothing happens if that is so already.
    Pin {
        /// Whether the message is pinned from now on.
        pinned: bool,
        /// A conversation has at most this many pinned messages.
        pins_max: usize,
    },
    /// The message grows no more: its body becomes that of the change's entry, which gets the message's kind of content
    /// and mentions. A repeated end answers with the first result.
    EndStream {
        /// The beginner went away, and the body is what had come until then. Such an end of a message that retention has
        /// removed is [`Outcome::Done`], and the message no longer counts as growing.
        interrupted: bool,
    },
}

/// What the app server says of a user.
#[derive(Debug, Clone, Default)]
pub struct UserPatch {
    /// The id of the user, who is created if there is none with it.
    pub id: String,
    /// The new name, for display.
    pub name: Option<String>,
    /// The address of the new picture.
    pub avatar: Option<String>,
    /// The new attributes, as JSON text, in place of all former ones.
    pub attributes: Option<String>,
    /// The new language, as a BCP 47 tag; an empty text removes it.
    pub language: Option<String>,
    /// The new IANA time zone; an empty text removes it.
    pub time_zone: Option<String>,
}

/// A conversation to be created.
#[derive(Debug, Clone)]
pub struct NewConversation {
    /// The id, which no other conversation may have.
    pub id: String,
    /// Decides the lane, for the conversation's life.
    pub kind: ConversationKind,
    /// Of a direct conversation, its two users.
    pub pair: Option<(UserNo, UserNo)>,
    /// For display.
    pub name: Option<String>,
    /// The address of a picture.
    pub avatar: Option<String>,
    /// JSON text.
    pub attributes: Option<String>,
    /// The first members, with their roles.
    pub members: Vec<(UserNo, Role)>,
    /// How it differs from others of its kind.
    pub settings: ConversationSettings,
}

/// A table of notifications.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NotificationTable {
    /// Webhook events that were given up. In the form before the gate `notification_tables`, the notifications of the other tables are here,
    /// too, under higher ids.
    DeadLetters,
    /// Webhook events that wait for another attempt.
    Retries,
    /// Messages that a session was handed and did not acknowledge.
    Unacknowledged,
}

impl NotificationTable {
    /// All tables.
    pub const ALL: [NotificationTable; 3] =
        [NotificationTable::DeadLetters, NotificationTable::Retries, NotificationTable::Unacknowledged];
}

/// Where a notification is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NotificationKey {
    /// Its table.
    pub table: NotificationTable,
    /// Below 2^63. A table lists its notifications in the order of ids.
    pub id: u64,
}

/// A notification that waits for another attempt or was given up, or a message of which it is still to be decided who is notified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredNotification {
    /// Made by who stores it.
    pub key: NotificationKey,
    /// When the row was written, in milliseconds since 1970 UTC: after the last attempt, or before the first one.
    pub failed_at: u64,
    /// Attempts so far; 0 for an event that is yet to be tried.
    pub attempts: u32,
    /// Why the last attempt failed, for an operator; empty before the first one.
    pub last_error: String,
    /// JSON text: what the webhook is sent, or which message it is.
    pub event: String,
}

/// The result of a proposal.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The entry is in its timeline.
    Appended(Appended),
    /// The message is changed, and the entry that tells so is in the timeline.
    MessageChanged {
        /// The place of the entry.
        appended: Appended,
        /// The entry as it was appended, with its details. Absent for a duplicate.
        entry: Option<Box<NewEntry>>,
        /// The version of the message's body now.
        version: u32,
    },
    /// The entry, an answer to another message, is in its timeline.
    Replied {
        /// The place of the entry.
        appended: Appended,
        /// What readers see of the answered message. Absent for a duplicate.
        preview: Option<ReplyPreview>,
    },
    /// The reactions of a message, or of a conversation, are as proposed.
    Reacted {
        /// The reactions of the message now.
        reactions: Vec<ReactionCount>,
        /// Whether the proposal changed them.
        changed: bool,
        /// The entry of reactions, if one was appended.
        told: Option<(Appended, Box<NewEntry>)>,
        /// When [`Proposal::TellReactions`] is due, in milliseconds since 1970 UTC, if reactions are yet to be reported.
        tell_at: Option<u64>,
    },
    /// The report is as proposed.
    Report {
        /// Whether it was another one before.
        moved: bool,
    },
    /// The block is as proposed.
    Block {
        /// Whether it was another one before.
        moved: bool,
    },
    /// The desk is as proposed.
    Desk(Desk),
    /// The conversation is assigned as proposed.
    Assigned {
        /// Its entry, as it was appended; absent if nothing changed.
        told: Option<(Appended, Box<NewEntry>)>,
    },
    /// The users are as the patches say.
    Users {
        /// Users who did not exist before.
        created: usize,
        /// Users who existed, whether anything differed or not.
        updated: usize,
    },
    /// `created` is false when a conversation had the id already.
    Conversation {
        /// The conversation, new or as it was.
        conversation: Conversation,
        /// Whether the proposal created it.
        created: bool,
    },
    /// The direct conversation is open, and the entry is its first.
    Opened {
        /// The new conversation.
        conversation: Conversation,
        /// The place of the entry.
        appended: Appended,
    },
    /// The members are as proposed.
    MembersChanged {
        /// Users who were no members before.
        added: Vec<UserNo>,
        /// Users who were members before and are no longer.
        removed: Vec<UserNo>,
        /// Members whose roles are other ones now.
        changed: Vec<UserNo>,
        /// Members now.
        member_count: u64,
        /// The place of the notice; absent if nothing changed or none was proposed.
        notice: Option<Appended>,
    },
    /// The read mark now, and before the proposal; both are the same if it moved nothing.
    Read {
        /// The read mark now.
        seq: u64,
        /// The read mark before the proposal.
        before: u64,
    },
    /// The preferences are as proposed.
    Preferences {
        /// Whether the proposal changed any.
        moved: bool,
    },
    /// The users whose stored positions the proposal moved.
    Stored(Vec<StoredMove>),
    /// Stored; there is nothing to tell.
    Done,
    /// Nothing was stored for this proposal.
    Rejected(Rejection),
}

/// The place in an outcome, borrowed as the outcome is. Whoever adds an outcome decides here whether it has one.
macro_rules! place_in {
    ($outcome:expr) => {
        match $outcome {
            Outcome::Appended(appended)
            | Outcome::MessageChanged { appended, .. }
            | Outcome::Replied { appended, .. }
            | Outcome::Opened { appended, .. }
            | Outcome::Reacted { told: Some((appended, _)), .. }
            | Outcome::Assigned { told: Some((appended, _)) }
            | Outcome::MembersChanged { notice: Some(appended), .. } => Some(appended),
            Outcome::Reacted { told: None, .. }
            | Outcome::Assigned { told: None }
            | Outcome::MembersChanged { notice: None, .. }
            | Outcome::Conversation { .. }
            | Outcome::Desk(_)
            | Outcome::Users { .. }
            | Outcome::Read { .. }
            | Outcome::Preferences { .. }
            | Outcome::Stored(_)
            | Outcome::Done
            | Outcome::Block { .. }
            | Outcome::Report { .. }
            | Outcome::Rejected(_) => None,
        }
    };
}

impl Outcome {
    /// The place of the entry that the proposal appended, or, marked as a duplicate, that an earlier proposal of the same
    /// request did. `None`: there is no such entry.
    pub fn appended(&self) -> Option<&Appended> {
        place_in!(self)
    }

    /// As [`Outcome::appended`], for a store that knows positions only when the batch is written.
    pub fn appended_mut(&mut self) -> Option<&mut Appended> {
        place_in!(self)
    }
}

/// A change of what a member has set for a conversation. A field that is `None` stays as it was.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PreferencesPatch {
    /// Whether the conversation stands at the top of the list.
    pub pinned: Option<bool>,
    /// Whether it is kept apart from the list.
    pub archived: Option<bool>,
    /// Whether it is hidden until the next message.
    pub hidden: Option<bool>,
    /// The member's own name for it; `Some(None)` removes the name.
    pub title: Option<Option<String>>,
    /// Whether it looks unread.
    pub marked_unread: Option<bool>,
    /// Entries up to this `seq` are no longer shown; never back, and not past the newest entry.
    pub clear_to_seq: Option<u64>,
}

/// How far a user's clients have stored what they were handed: before a proposal, and now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMove {
    /// The user.
    pub user: UserNo,
    /// The positions before, one for each lane.
    pub before: [Position; LANES],
    /// The positions now.
    pub now: [Position; LANES],
}

/// The first result of a request with an id of its author's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstResult {
    /// The place of the entry, marked as a duplicate.
    pub appended: Appended,
    /// What the request asked for; `None` for those that an earlier version stored.
    pub request: Option<RequestDigest>,
}

impl FirstResult {
    /// The result of a request with the same id.
    ///
    /// # Errors
    /// It asks for something else.
    pub fn answer(self, request: &EntryRequest) -> Result<Appended, Rejection> {
        match (self.request, request.digest) {
            (Some(first), Some(again)) if first != again => Err(Rejection::ClientMsgIdReused),
            _ => Ok(self.appended),
        }
    }
}

/// The place of an appended entry. `duplicate`: an earlier proposal appended it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// The conversation that the entry is in.
    pub conversation: ConversationNo,
    /// The entry's number in the conversation.
    pub seq: u64,
    /// The entry's time, in milliseconds since 1970 UTC.
    pub at: u64,
    /// The entry's place in the commit order.
    pub position: Position,
    /// Whether an earlier proposal of the same author with the same `client_msg_id` appended it.
    pub duplicate: bool,
}

/// Why the store rejected one proposal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejection {
    /// No conversation has the number.
    NoSuchConversation,
    /// No user has this number.
    NoSuchUser(UserNo),
    /// The user to be added is banned from the conversation, until then in milliseconds since 1970 UTC, or for good.
    Banned(UserNo, Option<u64>),
    /// There is no such invite, or it has ended or is used up.
    NoSuchInvite,
    /// The conversation has as many invites as are allowed.
    TooManyInvites {
        /// Invites allowed.
        limit: u64,
    },
    /// No request of the user waits.
    NoSuchRequest,
    /// As many requests wait, in the conversation or of the user, as are allowed.
    TooManyRequests {
        /// Requests allowed.
        limit: u64,
    },
    /// The user is a member already.
    AlreadyAMember,
    /// The user does not own the conversation, or no longer.
    NotTheOwner,
    /// The conversation is in slow mode, and the sender's last message is too recent: the next one may follow in so many milliseconds.
    TooSoon {
        /// In milliseconds.
        retry_after_ms: u64,
    },
    /// The sender has left the conversation, or the read mark or mute is of a user who is no member.
    NotAMember,
    /// The conversation is under a legal hold.
    LegalHold,
    /// The message ahead of an imported one is not stored: its commit failed. Repeat the import.
    PreviousNotStored,
    /// (conversation, author, client_msg_id) names an entry that another request appended.
    ClientMsgIdReused,
    /// The entry is no retry, and may not be appended for this reason.
    Refused(Box<Refusal>),
    /// The conversation has no entry with this `seq`, or retention has removed it.
    NoSuchEntry(u64),
    /// The entry is no message: there is nothing to change.
    NotAMessage(u64),
    /// The message was recalled.
    MessageRecalled(u64),
    /// The message still grows: it cannot be edited before it is ended.
    StreamOpen(u64),
    /// The message does not grow: it was sent whole, or has been ended.
    StreamEnded(u64),
    /// The message has another version than the change expects.
    VersionConflict {
        /// The version that the change expects.
        expected: u32,
        /// The version of the message.
        actual: u32,
    },
    /// The message was edited as often as is allowed.
    TooManyEdits {
        /// Edits allowed.
        limit: u64,
    },
    /// The message has as many different reactions as are allowed.
    TooManyReactions {
        /// Different reactions allowed.
        limit: u64,
    },
    /// The conversation has as many pinned messages as are allowed.
    TooManyPins {
        /// Pinned messages allowed.
        limit: u64,
    },
    /// The user blocks as many others as are allowed.
    TooManyBlocks {
        /// Blocks allowed.
        limit: u64,
    },
    /// The user has as many open reports as are allowed.
    TooManyReports {
        /// Reports allowed.
        limit: u64,
    },
    /// The user has not reported the message.
    NoSuchReport,
    /// The report is in this state, and not in the expected one.
    ReportIs(ReportState),
    /// A user has the account's id, and is not the account's.
    UserExists(String),
    /// The user is not an agent of the account.
    NotAnAgent(String),
    /// The user was removed from the agents a moment ago, and conversations are yet to be unassigned.
    AgentLeaves(String),
    /// The account has as many agents as are allowed.
    TooManyAgents {
        /// Agents allowed.
        limit: u64,
        /// Agents that there would be.
        would_be: u64,
    },
    /// Somebody else has the conversation: the agent with this id, or nobody.
    AssignedTo(Option<String>),
    /// The device, or the token, was registered anew since the proposer looked: look again.
    PushTokenMoved,
    /// A conversation of another kind has the id.
    KindDiffers,
    /// The conversation would have more members than allowed.
    TooManyMembers {
        /// Members allowed.
        limit: u64,
        /// Members that there would be.
        would_be: u64,
    },
}
