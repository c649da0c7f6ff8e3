//! The kinds of rows of [`RowSpace::Chat`](crate::store::RowSpace::Chat). The byte begins the keys of a kind, so that no two kinds
//! have the same; [`chat_rows`](crate::chat_rows) says what the keys and values of each are.

/// A kind of rows. Its number is the byte by which it is stored, which never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ChatRowKind {
    /// A message that mentions a user.
    Mention = b'm',
    /// A message that mentions all members.
    MentionOfAll = b'A',
    /// A user's reactions to a message.
    Reactions = b'r',
    /// When members were last notified of reactions.
    ReactionsTold = b'T',
    /// The messages of whose reactions members are yet to be notified.
    ReactionsUntold = b'D',
    /// An answer to a message.
    Answer = b'y',
    /// A conversation's pinned messages.
    Pins = b'P',
    /// A recall whose body may still be in the files.
    Recall = b'R',
    /// A message that still grows.
    OpenStream = b's',
    /// How far a user's clients have stored what they were handed.
    Stored = b'd',
    /// What a user has set for a conversation.
    Preferences = b'p',
    /// A user's own settings.
    UserSettings = b'u',
    /// A user whom a user blocks.
    Block = b'K',
    /// A member's report of a message.
    Report = b'o',
    /// How far a bulk send has come.
    BulkSend = b'B',
    /// A part of what a bulk send sends.
    BulkSendPart = b'b',
    /// An account's desk.
    Desk = b'w',
    /// An agent of an account.
    Agent = b'g',
    /// Whose a conversation of an account is.
    Assignment = b'a',
    /// The index of an account's conversations.
    AccountIndex = b'i',
    /// Whose device a provider reaches by a token.
    PushToken = b't',
    /// The digest of a device's token.
    PushDevice = b'v',
    /// How often a device of a user got its first token.
    PushDeviceAdditions = b'V',
    /// How far it is decided who is notified.
    NotificationProgress = b'N',
    /// Versions of the notification policy.
    NotificationPolicy = b'j',
    /// What a channel is to do now.
    ChannelJob = b'n',
    /// What a channel is to do at a time.
    WaitingChannelJob = b'e',
    /// What a channel is to do when the quiet hours of its people end.
    DeferredChannelJob = b'E',
    /// What a device may still show.
    ShownNotification = b'h',
    /// Who was reached with a message.
    NotifiedMark = b'z',
    /// What became of a notification.
    LogRecord = b'q',
    /// What became of notifications of several messages.
    LogRecordOfSeveral = b'Q',
    /// A notification that a provider did not take.
    ProviderDeadLetter = b'x',
    /// How often a channel was tried.
    ChannelCounts = b'S',
    /// The keys of app servers.
    ApiKey = b'k',
    /// Who changed what with a key.
    AuditEntry = b'l',
    /// A user's mute and ban in a conversation.
    Restrictions = b'X',
    /// When a member of a conversation in slow mode sent last.
    LastSend = b'L',
    /// The invites of a conversation.
    Invites = b'I',
    /// A request to join a conversation, and how many wait.
    JoinRequest = b'J',
    /// A consumer of the feed of events, and what it has still to do.
    EventConsumer = b'c',
    /// A person is erased, or was.
    Erasure = b'F',
    /// Nothing may be erased from a conversation.
    LegalHold = b'H',
    /// A message for a later time.
    ScheduledMessage = b'G',
    /// Notes for the feed of events.
    FeedNotes = b'f',
    /// When a message disappears.
    Expiry = b'Y',
}

impl ChatRowKind {
    /// All of them.
    pub const ALL: [ChatRowKind; 46] = [
        ChatRowKind::Mention,
        ChatRowKind::MentionOfAll,
        ChatRowKind::Reactions,
        ChatRowKind::ReactionsTold,
        ChatRowKind::ReactionsUntold,
        ChatRowKind::Answer,
        ChatRowKind::Pins,
        ChatRowKind::Recall,
        ChatRowKind::OpenStream,
        ChatRowKind::Stored,
        ChatRowKind::Preferences,
        ChatRowKind::UserSettings,
        ChatRowKind::Block,
        ChatRowKind::Report,
        ChatRowKind::BulkSend,
        ChatRowKind::BulkSendPart,
        ChatRowKind::Desk,
        ChatRowKind::Agent,
        ChatRowKind::Assignment,
        ChatRowKind::AccountIndex,
        ChatRowKind::PushToken,
        ChatRowKind::PushDevice,
        ChatRowKind::PushDeviceAdditions,
        ChatRowKind::NotificationProgress,
        ChatRowKind::NotificationPolicy,
        ChatRowKind::ChannelJob,
        ChatRowKind::WaitingChannelJob,
        ChatRowKind::DeferredChannelJob,
        ChatRowKind::ShownNotification,
        ChatRowKind::NotifiedMark,
        ChatRowKind::LogRecord,
        ChatRowKind::LogRecordOfSeveral,
        ChatRowKind::ProviderDeadLetter,
        ChatRowKind::ChannelCounts,
        ChatRowKind::ApiKey,
        ChatRowKind::AuditEntry,
        ChatRowKind::Restrictions,
        ChatRowKind::LastSend,
        ChatRowKind::Invites,
        ChatRowKind::JoinRequest,
        ChatRowKind::EventConsumer,
        ChatRowKind::Erasure,
        ChatRowKind::LegalHold,
        ChatRowKind::ScheduledMessage,
        ChatRowKind::FeedNotes,
        ChatRowKind::Expiry,
    ];

    /// The first byte of its keys.
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// The kind of a key; `None`: it is of a newer version.
    pub fn of(key: &[u8]) -> Option<ChatRowKind> {
        ChatRowKind::ALL.into_iter().find(|kind| kind.has(key))
    }

    /// Whether this is a key of the kind.
    pub fn has(self, key: &[u8]) -> bool {
        key.first() == Some(&self.byte())
    }

    /// The key of a row with these numbers.
    pub fn key(self, numbers: &[u64]) -> Vec<u8> {
        crate::row_keys::key(self.byte(), numbers)
    }

    /// The range of all rows of the kind before the key with these numbers.
    pub fn before(self, numbers: &[u64]) -> (Vec<u8>, Vec<u8>) {
        (vec![self.byte()], self.key(numbers))
    }

    /// The range of all rows of the kind, whatever follows the byte.
    pub fn all(self) -> (Vec<u8>, Vec<u8>) {
        (vec![self.byte()], vec![self.byte() + 1])
    }
}
