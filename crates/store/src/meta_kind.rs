//! The kinds of rows of the space `meta`. The byte begins the keys of a kind, so that no two kinds have the same.
//!
//! Keys of the space are made of a kind and nothing else, and who copies a folder goes through the kinds by a `match` without a
//! last arm for the others: a new kind is a compile error where it would be left behind.

macro_rules! meta_kinds {
    ($($(#[$doc:meta])* $kind:ident = $byte:literal;)*) => {
        /// A kind of rows. Its number is the byte by which it is stored, which never changes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum MetaKind { $($(#[$doc])* $kind = $byte,)* }

        impl MetaKind {
            /// The kind of a key; `None`: this program knows no such kind.
            pub(crate) fn of(key: &[u8]) -> Option<MetaKind> {
                match key.first() {
                    $(Some(&$byte) => Some(MetaKind::$kind),)*
                    _ => None,
                }
            }
        }
    };
}

meta_kinds! {
    /// The epoch.
    Epoch = b'e';
    /// Counters: users, conversations, last position.
    Counters = b'n';
    /// By a user's id: the number.
    UserId = b'u';
    /// A user.
    User = b'U';
    /// By a conversation's id: the number.
    ConversationId = b'c';
    /// A conversation.
    Conversation = b'C';
    /// By conversation and user: membership, read mark, mute.
    Member = b'm';
    /// By user, kind and conversation: nothing. The index of a user's conversations.
    UserConversation = b'r';
    /// By user: when the last session ended.
    LastSeen = b's';
    /// By user: the time of revocation. Tokens issued before it are refused.
    Revoked = b'v';
    /// By conversation: the oldest sequence that retention left.
    FirstSeq = b'f';
    /// By position: entries that await offline push.
    OutboxItems = b'o';
    /// How far the outbox's consumer has come, and the first row left.
    OutboxProgress = b'O';
    /// A notification that is a dead letter.
    DeadLetter = b'd';
    /// A notification that waits for another attempt.
    Retry = b'q';
    /// A message that a session did not acknowledge.
    Unacknowledged = b'k';
    /// By name: nothing. The gate is open.
    Gate = b'g';
    /// By position and part: a part of the log of a batch with this last position.
    LogRecords = b'x';
    /// Where the log begins.
    LogStart = b'X';
    /// By UTC day: the bytes of its entries.
    DayBytes = b'b';
    /// A row of `RowSpace::Chat`.
    Chat = b'a';
}

impl MetaKind {
    /// The first byte of its keys.
    pub(crate) fn byte(self) -> u8 {
        self as u8
    }

    /// The key of a kind that has one row.
    pub(crate) fn only_key(self) -> Vec<u8> {
        vec![self.byte()]
    }
}
