//! Where each read of the port is served: a new one has to choose here.

/// The reads of the port. Statements that are not among them write, or are about the nodes themselves: they go to the primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Read {
    Conversation,
    Conversations,
    ConversationNumber,
    ConversationStates,
    ConversationsOf,
    Entries,
    Entry,
    EntryTime,
    FeedChanges,
    FeedEntries,
    FollowedChanges,
    FollowedEntries,
    Head,
    Heads,
    Ids,
    LastNumbers,
    LastSeen,
    LogStart,
    Members,
    Membership,
    Memberships,
    Missed,
    Notifications,
    Outbox,
    OutboxPosition,
    Pages,
    Positions,
    RowRange,
    RowRanges,
    RowsByKey,
    Sizes,
    StoredSeqs,
    User,
    UserNumber,
    Users,
}

/// The server that a read asks first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Primary,
    /// A standby that shows all that the primary would; without one, the primary.
    Standby,
}

impl Read {
    pub(crate) fn place(self) -> Place {
        match self {
            // Many rows, and bodies: history, what a session missed, lists, exports, the feed. Each costs the primary far more
            // than the question how far its log is.
            Read::Entries | Read::Pages | Read::Missed => Place::Standby,
            Read::ConversationStates | Read::Heads | Read::Members | Read::Ids => Place::Standby,
            Read::FeedEntries | Read::FeedChanges => Place::Standby,
            // Who may do what: looked up before a write, or held in memory afterwards.
            Read::User | Read::Users | Read::Conversation | Read::Conversations => Place::Primary,
            Read::Membership | Read::Memberships | Read::ConversationsOf | Read::StoredSeqs => Place::Primary,
            // A few keys: as cheap as the question.
            Read::UserNumber | Read::ConversationNumber | Read::LastNumbers | Read::LastSeen => Place::Primary,
            Read::Entry | Read::EntryTime | Read::Head | Read::Positions | Read::Sizes => Place::Primary,
            // Commits of other nodes, to be handed out: a standby has them last.
            Read::FollowedEntries | Read::FollowedChanges | Read::LogStart => Place::Primary,
            // Queues of the workers that write them, which are mostly empty, settings, and rows that are decided by.
            Read::Outbox | Read::OutboxPosition | Read::Notifications => Place::Primary,
            Read::RowRange | Read::RowRanges | Read::RowsByKey => Place::Primary,
        }
    }
}
