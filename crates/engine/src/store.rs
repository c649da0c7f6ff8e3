//! The `Store` port: what must outlive the process.
//!
//! One batch of proposals commits as a whole and is durable when `commit` returns: the embedded
//! store assigns numbers and `seq` from memory and fsyncs; a PostgreSQL store does the same under
//! row locks. Calls block: they are made from the committer's and the readers' own threads (or
//! `spawn_blocking`), never from a thread that serves sockets.

use crate::{batch_reads, model::*, push::rows::PushStore};
use std::time::Duration;
use tidings_protocol::http::{ConversationKind, Role};

/// Something to be committed. Each gets one [`Outcome`]; a refused one leaves the rest of its batch alone.
#[derive(Debug, Clone)]
pub enum Proposal {
    /// Appends to a timeline, once per (sender, client_msg_id). A store that several nodes write refuses a sender who has
    /// just left the conversation: its node may not know yet.
    Append {
        conversation: ConversationNo,
        entry: NewEntry,
    },
    /// Creates or changes users; `None` in a patch leaves a field as it was.
    PutUsers(Vec<UserPatch>),
    /// Creates a conversation with its first members, or answers with the one that has the id.
    CreateConversation(NewConversation),
    UpdateConversation {
        conversation: ConversationNo,
        name: Option<String>,
        avatar: Option<String>,
        attributes: Option<String>,
        notice: Option<NewEntry>,
    },
    /// Adds members (or changes the role of those who are), removes members. `notice` is appended
    /// to the timeline in the same batch when anything changed.
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
    /// When users' last sessions ended, in milliseconds since 1970 UTC.
    SetLastSeen(Vec<(UserNo, u64)>),
    /// Ends sessions of a user, one device's or all: nothing is stored but that nodes must hear of it.
    Kick {
        user: UserNo,
        device_id: Option<String>,
        reason: String,
    },
    /// Tokens of the user that were issued before this time, in milliseconds since 1970 UTC, are refused from here on; nodes
    /// hear of it as of a [`Proposal::Kick`] of all the user's sessions.
    Revoke {
        user: UserNo,
        before: u64,
        reason: String,
    },
    /// The outbox's consumer has dealt with everything up to and including this position, and
    /// these notifications failed for good.
    AdvanceOutbox {
        through: Position,
        dead: Vec<DeadNotification>,
    },
    /// Takes dead notifications out again: they were replayed.
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

/// A webhook event that was given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadNotification {
    pub id: u64,
    pub failed_at: u64,
    pub attempts: u32,
    pub last_error: String,
    /// JSON text.
    pub event: String,
}

/// What became of a proposal.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    Appended(Appended),
    Users {
        created: usize,
        updated: usize,
    },
    /// `created` is false when the id stood for a conversation already.
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
    /// The mark as it stands now, and whether it stood elsewhere before.
    Read {
        seq: u64,
        moved: bool,
    },
    Done,
    Rejected(Rejection),
}

/// Where an entry stands. `duplicate`: it stood there before this proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    pub conversation: ConversationNo,
    pub seq: u64,
    pub at: u64,
    pub position: Position,
    pub duplicate: bool,
}

/// A stretch of the commit order: positions behind `after`, up to and including `through`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PositionRange {
    pub after: Position,
    pub through: Position,
}

/// Why the store did not do one proposal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejection {
    NoSuchConversation,
    NoSuchUser(UserNo),
    NotAMember,
    /// (sender, client_msg_id) stands for an entry of another conversation.
    ClientMsgIdReused,
    /// The conversation's id is taken by one of another kind.
    KindDiffers,
    TooManyMembers {
        limit: u64,
        would_be: u64,
    },
}

/// The store as a whole could not do it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Nothing of the batch was stored; the caller may retry once there is room.
    #[error("the disk is full")]
    DiskFull,
    /// Nothing was acknowledged. Of a commit, whether it was stored shows after a restart or reconnect; of any other write
    /// nothing was stored.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// Of a write that is no commit: it was stored, or it was not, or it will be any moment. [`Store::fence_writes`] ends that, and
    /// what is read then tells.
    #[error("the store may have taken it: {0}")]
    OutcomeUnknown(String),
    /// What is stored cannot be understood: an operator must look (`tidings check`).
    #[error("the store is damaged: {0}")]
    Damaged(String),
    /// What a node asks for of the commit log is removed: it was away for longer than changes are kept.
    #[error("{0}")]
    Pruned(String),
    /// The term that it was written in is over: another node does this work now, or will. Nothing was stored.
    #[error("another node leads")]
    StaleTerm,
}

/// A time in which one node does what one does for all; each has a higher number than the one before. What is written
/// names its term, and the store takes nothing in one that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Term(pub u64);

impl Term {
    /// Of a node that has the store to itself.
    pub const ALONE: Term = Term(0);
}

pub type StoreResult<T> = Result<T, StoreError>;

/// Which end of a range to read from. Pages are returned oldest first either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Oldest,
    Newest,
}

/// A conversation in a user's list of memberships.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserConversation {
    pub conversation: ConversationNo,
    pub kind: ConversationKind,
}

/// Which of a user's conversations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConversationFilter {
    All,
    Direct,
    /// All but the direct ones.
    NonDirect,
}

/// A user's place in a conversation, with what the conversation has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConversationState {
    pub conversation: ConversationNo,
    pub kind: ConversationKind,
    pub head: Head,
    pub membership: Membership,
}

/// A page of a timeline that is asked for: the oldest `limit` entries with `from_seq <= seq <= to_seq`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRequest {
    pub conversation: ConversationNo,
    pub from_seq: u64,
    pub to_seq: u64,
    pub limit: usize,
}

/// The part of a timeline that may have been missed: entries with `floor_seq <= seq <= newest_seq` and
/// `after < position <= until`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tail {
    pub conversation: ConversationNo,
    pub floor_seq: u64,
    pub newest_seq: u64,
    /// No entry up to `newest_seq` stands after this position.
    pub newest_position: Position,
    pub after: Position,
    pub until: Position,
}

/// How much of what was missed is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissedQuery {
    pub entries_max: usize,
    /// Of bodies; the entry that reaches it is the last.
    pub bytes_max: usize,
    /// Whether to tell what was left.
    pub ranges: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MissedEntries {
    /// The newest of all tails together, newest first, each with the index of its tail.
    pub entries: Vec<(usize, StoredEntry)>,
    /// Tails of which older entries were left, by index: the first and the last `seq` of those, in the order of tails.
    pub remaining: Vec<(usize, u64, u64)>,
}

/// An entry that may need offline push: where it is, and in which commit order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutboxItem {
    pub position: Position,
    pub conversation: ConversationNo,
    pub seq: u64,
}

/// When to remove old entries. Absent: never for this reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    pub age_max: Option<Duration>,
    /// Of all timelines together, as stored before compression.
    pub bytes_max: Option<u64>,
}

/// A clock is believed this far beyond the newest entry and the age at which that one would go, in milliseconds: a
/// store where nobody says anything any more is looked at often enough to be emptied before that.
const CLOCK_BELIEVED_MS: u64 = 7 * 24 * 60 * 60 * 1_000;

impl Retention {
    /// The time from which on entries are kept, by age. `None`: no limit, or all that is stored is so much older (`newest_ms`
    /// is when the newest of it was said, or a little later) that rather this machine's clock is wrong. Some start years
    /// ahead until they have asked what time it is, and what is removed does not come back.
    pub fn kept_from(self, now_ms: u64, newest_ms: u64) -> Option<u64> {
        let age_max_ms = u64::try_from(self.age_max?.as_millis()).unwrap_or(u64::MAX);
        let kept_from = now_ms.saturating_sub(age_max_ms);
        if kept_from <= newest_ms.saturating_add(CLOCK_BELIEVED_MS) {
            return Some(kept_from);
        }
        tracing::warn!(
            now_ms,
            newest_ms,
            "no messages are removed by age: by this machine's clock nothing was said for very long; \
             if the clock is right, the next message ends this"
        );
        None
    }
}

/// What the store tells about itself, for metrics.
#[derive(Debug, Clone, Copy, Default)]
pub struct StoreStats {
    pub disk_bytes: u64,
    pub timeline_bytes: u64,
    pub journals: u64,
    /// Statements sent to a database, begin and commit not counted, and how often its answer was waited for.
    pub statements: u64,
    pub round_trips: u64,
}

/// Parts of the engine that keep rows of their own making.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RowSpace {
    Popups,
}

/// A row's longest value in bytes: longer ones are cut into parts before the store.
pub const ROW_BYTES_MAX: usize = 3 * 1024;

/// A row to be written; without a value it is dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowChange {
    pub key: Vec<u8>,
    pub value: Option<Vec<u8>>,
}

/// Rows of bytes in the order of their keys. The store knows nothing of their meaning.
pub trait RowStore: Send + Sync + 'static {
    /// Writes all or nothing; durable when it returns.
    fn write_rows(&self, term: Term, space: RowSpace, changes: Vec<RowChange>) -> StoreResult<()>;
    fn row(&self, space: RowSpace, key: &[u8]) -> StoreResult<Option<Vec<u8>>>;
    /// Rows with `from <= key <= to`, in the order of keys, at most `limit`.
    fn rows(&self, space: RowSpace, from: &[u8], to: &[u8], limit: usize) -> StoreResult<Vec<(Vec<u8>, Vec<u8>)>>;

    /// The values of these keys, in the order in which they were asked for. A store that must travel for each answers them
    /// in one; to others single reads are as good.
    fn rows_of(&self, space: RowSpace, keys: &[Vec<u8>]) -> StoreResult<Vec<Option<Vec<u8>>>> {
        keys.iter().map(|key| self.row(space, key)).collect()
    }

    /// Whether the store has a side log: a file for rows on their way to the store, appended to without fsync.
    fn has_side_log(&self) -> bool {
        false
    }
    /// Appends rows to the side log, where they survive the end of this process, not that of the machine. Does not wait
    /// for a disk that stalls.
    fn append_to_side_log(&self, _: &[RowChange]) -> StoreResult<()> {
        Ok(())
    }
    /// Appends go to the side log's other file from here on, unless that file has not been truncated yet.
    fn rotate_side_log(&self) {}
    /// Empties the file that was appended to before the last rotation: its rows are stored.
    fn truncate_rotated_side_log(&self) -> StoreResult<()> {
        Ok(())
    }
    /// All rows of the side log, those of each file in the order of their appends.
    fn read_side_log(&self) -> StoreResult<Vec<RowChange>> {
        Ok(Vec::new())
    }
    /// Empties both files.
    fn truncate_side_log(&self) -> StoreResult<()> {
        Ok(())
    }
}

pub trait Store: PushStore + RowStore {
    /// Commits a batch; what it answered is durable. `now_ms` dates the entries (a clock that
    /// jumps back does not: `at` never decreases within a conversation).
    fn commit(&self, batch: &[Proposal], now_ms: u64) -> StoreResult<Vec<Outcome>>;

    /// The same, with the stretch of the commit order that the batch has. The default is for a store that one node writes.
    fn commit_in_order(&self, batch: &[Proposal], now_ms: u64) -> StoreResult<(Vec<Outcome>, PositionRange)> {
        let after = self.last_position();
        let outcomes = self.commit(batch, now_ms)?;
        Ok((outcomes, PositionRange { after, through: self.last_position() }))
    }

    /// Names this history; differs after a restore.
    fn epoch(&self) -> u64;
    /// The highest position given out and committed.
    fn last_position(&self) -> Position;

    fn user_no(&self, id: &str) -> StoreResult<Option<UserNo>>;
    fn user(&self, no: UserNo) -> StoreResult<Option<User>>;
    fn last_seen(&self, no: UserNo) -> StoreResult<Option<u64>>;
    fn conversation_no(&self, id: &str) -> StoreResult<Option<ConversationNo>>;
    fn conversation(&self, no: ConversationNo) -> StoreResult<Option<Conversation>>;
    fn head(&self, no: ConversationNo) -> StoreResult<Head>;
    fn membership(&self, conversation: ConversationNo, user: UserNo) -> StoreResult<Option<Membership>>;
    /// Members in the order of their numbers, after `after`.
    fn members(
        &self,
        conversation: ConversationNo,
        after: Option<UserNo>,
        limit: usize,
    ) -> StoreResult<Vec<(UserNo, Membership)>>;
    /// All conversations of a user but direct ones if `direct` is false; at most `limit`.
    fn conversations_of(&self, user: UserNo, direct: bool, limit: usize) -> StoreResult<Vec<UserConversation>>;
    /// Entries with `from_seq <= seq <= to_seq`, at most `limit`, taken from the named end, returned oldest first.
    fn entries(
        &self,
        conversation: ConversationNo,
        from_seq: u64,
        to_seq: u64,
        limit: usize,
        from: End,
    ) -> StoreResult<Vec<StoredEntry>>;

    /// Once this has returned, each write of the term that was answered with [`StoreError::OutcomeUnknown`] is stored or never will be.
    /// A later write does the same by itself before it begins; who goes on by what it reads must ask first.
    fn fence_writes(&self, _: Term) -> StoreResult<()> {
        Ok(())
    }

    // Reads of many at once. A store that must travel for each read answers them in one; to others single reads are
    // as good.

    /// A user's conversations, at most `limit`, as they stand at one moment or as they come to stand meanwhile.
    fn conversation_states(&self, user: UserNo, filter: ConversationFilter, limit: usize) -> StoreResult<Vec<ConversationState>> {
        batch_reads::conversation_states(self, user, filter, limit)
    }
    fn heads(&self, conversations: &[ConversationNo]) -> StoreResult<Vec<Head>> {
        batch_reads::heads(self, conversations)
    }
    /// Cards, in the order asked for.
    fn conversations(&self, conversations: &[ConversationNo]) -> StoreResult<Vec<Option<Conversation>>> {
        batch_reads::conversations(self, conversations)
    }
    /// Where entries stand that are named by conversation and `seq`.
    fn positions_at(&self, entries: &[(ConversationNo, u64)]) -> StoreResult<Vec<Option<Position>>> {
        batch_reads::positions_at(self, entries)
    }
    /// Pages from their oldest end, in the order asked for. Once about `bytes_max` are read, each page that is still to
    /// come has its first entry alone: a page that is shorter than asked for may go on.
    fn pages(&self, asked: &[PageRequest], bytes_max: usize) -> StoreResult<Vec<Vec<StoredEntry>>> {
        batch_reads::pages(self, asked, bytes_max)
    }
    /// The newest entries of several tails, merged in commit order.
    fn missed(&self, tails: &[Tail], query: MissedQuery) -> StoreResult<MissedEntries> {
        batch_reads::missed(self, tails, query)
    }

    /// The first `seq` whose entry is at or after `at_ms`; `last_seq + 1` if none is.
    fn seq_at(&self, conversation: ConversationNo, at_ms: u64) -> StoreResult<u64>;

    /// Entries awaiting offline push, after a position, in commit order. Only kept when the store
    /// was opened with an outbox.
    fn outbox(&self, after: Position, limit: usize) -> StoreResult<Vec<OutboxItem>>;
    /// How far the outbox's consumer had got.
    fn outbox_position(&self) -> StoreResult<Position>;
    fn dead_notifications(&self, after: Option<u64>, limit: usize) -> StoreResult<Vec<DeadNotification>>;

    /// Removes what retention no longer keeps; answers how many entries went. Runs beside commits.
    fn retain(&self, retention: Retention, now_ms: u64) -> StoreResult<u64>;
    fn stats(&self) -> StoreStats;

    /// What is wrong with what is stored, as far as the store knows: an operator must look. Looks nothing up.
    fn damage(&self) -> Option<String> {
        None
    }
}
