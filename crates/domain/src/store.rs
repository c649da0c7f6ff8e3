//! The `Store` port: everything that must outlive the process.
//!
//! One batch of proposals commits as a whole and is durable when `commit` returns: the embedded
//! store assigns numbers and `seq` from memory and fsyncs; a PostgreSQL store does the same under
//! row locks. Calls block: the committer and readers make them from their own threads (or
//! `spawn_blocking`), never from a thread that serves sockets.
//!
//! In reading order: `proposals` (what is written, and with which outcome), `orders` (in how many orders commits are made), this file (reads and the port), [`batch_reads`]
//! (batched reads as sequences of single ones), `rows` (rows whose meaning only their writer knows). Errors are in
//! [`store_error`](crate::store_error), terms in [`leadership`](crate::leadership).

pub mod batch_reads;
mod orders;
mod proposals;
mod rows;

pub use crate::model::PositionRange;
pub use crate::{
    leadership::Term,
    store_error::{StoreError, StoreResult},
};
use crate::{
    log_records::{LogPage, PruneProgress},
    model::*,
    push_store::PushStore,
    stored_id::StoredId,
};
pub use orders::Orders;
pub use proposals::{
    Appended, FirstResult, MemberAct, MessageChange, NewConversation, NotificationKey, NotificationTable, Outcome,
    PreferencesPatch, Proposal, Rejection, StoredMove, StoredNotification, UserPatch,
};
pub use rows::{CheckedRows, ROW_BYTES_MAX, ROW_KEY_BYTES_MAX, RowChange, RowSpace, RowStore, RowsCheck};
use std::time::Duration;

/// The end of a range from which a page is read. A page is oldest first either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The entries with the lowest `seq`.
    Oldest,
    /// The entries with the highest `seq`.
    Newest,
}

/// What has an id that app servers gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedKind {
    /// A user.
    User,
    /// A conversation.
    Conversation,
}

/// A conversation in a user's list of memberships.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserConversation {
    /// The conversation's number.
    pub conversation: ConversationNo,
    /// Its kind, so that direct ones are told apart without a read.
    pub kind: ConversationKind,
}

/// Selects some of a user's conversations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConversationFilter {
    /// Conversations of every kind.
    All,
    /// Conversations of two users.
    Direct,
    /// Groups and official accounts.
    NonDirect,
}

/// A conversation of a user: its head, and the user's membership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConversationState {
    /// The conversation's number.
    pub conversation: ConversationNo,
    /// The conversation's kind.
    pub kind: ConversationKind,
    /// How far the timeline goes.
    pub head: Head,
    /// The user's own, with the read mark.
    pub membership: Membership,
}

/// Requests a page of a timeline: the oldest `limit` entries with `from_seq <= seq <= to_seq`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRequest {
    /// The conversation whose timeline is read.
    pub conversation: ConversationNo,
    /// The lowest `seq` of the page.
    pub from_seq: u64,
    /// The highest `seq` of the page; it may be beyond the newest entry.
    pub to_seq: u64,
    /// Entries of the page at most.
    pub limit: usize,
}

/// The part of a timeline that may have been missed: entries with `floor_seq <= seq <= newest_seq` and
/// `after < position <= until`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tail {
    /// The conversation whose timeline it is.
    pub conversation: ConversationNo,
    /// The lowest `seq` that the reader may see.
    pub floor_seq: u64,
    /// The highest `seq` to look at.
    pub newest_seq: u64,
    /// No entry up to `newest_seq` has a higher position.
    pub newest_position: Position,
    /// The reader has everything up to this position.
    pub after: Position,
    /// The reader gets what comes after this position in another way.
    pub until: Position,
}

/// How many missed entries to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissedQuery {
    /// The limit for entries of all tails together.
    pub entries_max: usize,
    /// The limit for the bytes of all bodies; the entry that reaches it is the last.
    pub bytes_max: usize,
    /// Whether to answer the ranges of older missed entries that are not among those read.
    pub ranges: bool,
}

/// The answer to a [`MissedQuery`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MissedEntries {
    /// The newest entries of all tails together, newest first, each with the index of its tail.
    pub entries: Vec<(usize, StoredEntry)>,
    /// The older entries that were not read: the index of a tail, and the first and last `seq` of its remaining
    /// entries, in the order of tails.
    pub remaining: Vec<(usize, u64, u64)>,
}

/// An entry that may need offline push, by its position and its place in a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutboxItem {
    /// The place in the commit order, by which the outbox is read on.
    pub position: Position,
    /// The conversation that the entry is in.
    pub conversation: ConversationNo,
    /// The entry's number there.
    pub seq: u64,
}

/// When to remove old entries. A limit that is absent removes nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    /// Entries that are older are removed.
    pub age_max: Option<Duration>,
    /// The limit for the bytes of all timelines together, before compression.
    pub bytes_max: Option<u64>,
}

/// What [`Store::retain_in`] has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RetainedIn {
    /// Entries that were removed.
    pub removed: u64,
    /// Entries before this time go; `None`: none do, or this machine's clock must be wrong.
    pub kept_from: Option<u64>,
}

/// How far this machine's clock may be beyond the time at which the newest entry would be removed, in milliseconds,
/// before the clock is taken to be wrong. A store without new messages is emptied before that, since retention runs far
/// more often.
const CLOCK_BELIEVED_MS: u64 = 7 * 24 * 60 * 60 * 1_000;

impl Retention {
    /// The time from which on entries are kept by age. `newest_ms` is the time of the newest entry, or a little later.
    /// `None`: there is no limit, or even the newest entry is so old that this machine's clock must be wrong. Some
    /// clocks start years ahead until they have synchronized, and a removed entry does not come back.
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

/// The figures of a store, for metrics.
#[derive(Debug, Clone, Copy, Default)]
pub struct StoreStats {
    /// Bytes on disk: of the data folder, or of the database.
    pub disk_bytes: u64,
    /// Bytes of all timelines, as [`Retention::bytes_max`] counts them.
    pub timeline_bytes: u64,
    /// Journal files of the embedded store; 0 for a database.
    pub journals: u64,
    /// Statements sent to a database, without begin and commit, and without those of reads on standbys.
    pub statements: u64,
    /// How often an answer of the database was waited for.
    pub round_trips: u64,
    /// What became of reads that a standby may serve; zeros without one.
    pub standby_reads: StandbyReads,
}

/// What became of a read that a standby may serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StandbyOutcome {
    /// The standby has answered. In all other cases the primary did.
    Served,
    /// The standby had not come as far as the read needed.
    Behind,
    /// The standby showed a commit that the primary did not confirm yet.
    Ahead,
    /// The standby cancelled the read, for it had to remove what the read saw.
    Conflict,
    /// The standby answered with an error, or not in time.
    Failed,
    /// All connections to the standby were in use.
    Busy,
    /// No standby was tried: none may be used, or all have failed just before.
    Away,
}

impl StandbyOutcome {
    /// All of them, in order.
    pub const ALL: [StandbyOutcome; 7] = [
        StandbyOutcome::Served,
        StandbyOutcome::Behind,
        StandbyOutcome::Ahead,
        StandbyOutcome::Conflict,
        StandbyOutcome::Failed,
        StandbyOutcome::Busy,
        StandbyOutcome::Away,
    ];

    /// As metrics spell it.
    pub fn name(self) -> &'static str {
        match self {
            StandbyOutcome::Served => "served",
            StandbyOutcome::Behind => "behind",
            StandbyOutcome::Ahead => "ahead",
            StandbyOutcome::Conflict => "conflict",
            StandbyOutcome::Failed => "failed",
            StandbyOutcome::Busy => "busy",
            StandbyOutcome::Away => "away",
        }
    }
}

/// How many reads came to each outcome, in the order of [`StandbyOutcome::ALL`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StandbyReads(pub [u64; StandbyOutcome::ALL.len()]);

impl StandbyReads {
    /// How many came to this outcome.
    pub fn of(self, outcome: StandbyOutcome) -> u64 {
        self.0[outcome as usize]
    }
}

/// The highest numbers that were given. Some below them may belong to nobody.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LastNumbers {
    /// The highest [`UserNo`].
    pub users: u64,
    /// The highest [`ConversationNo`].
    pub conversations: u64,
}

/// The durable state of the server.
///
/// # Errors
/// Reads fail with [`StoreError::Unavailable`] when the store cannot answer now, and with [`StoreError::Damaged`] when
/// stored bytes cannot be understood. The errors of writes are at their methods.
pub trait Store: PushStore + RowStore {
    /// Commits a batch as a whole; the outcomes, one for each proposal and in their order, are durable. `now_ms` is the
    /// time of the new entries; after a jump back of the clock, `at` still never decreases within a conversation.
    ///
    /// # Errors
    /// [`StoreError::DiskFull`]: nothing was stored. [`StoreError::Unavailable`] and [`StoreError::Damaged`]: nothing
    /// was acknowledged, but the batch may have been stored; a retry of a send with its `client_msg_id` finds out.
    fn commit(&self, batch: &[Proposal], now_ms: u64) -> StoreResult<Vec<Outcome>>;

    /// In how many orders it commits, side by side.
    fn orders(&self) -> Orders {
        Orders::ONE
    }

    /// A number of the [index](crate::desks::index_key) of an account's conversations: those with entries after a position have at least
    /// this one. Others may have it, too.
    ///
    /// # Errors
    /// Those of reads.
    fn index_after(&self, after: Position) -> StoreResult<u64> {
        Ok(after.saturating_add(1))
    }

    /// Commits a batch, and answers its range of the commit order too. Where several nodes write, all proposals are of one of
    /// [`Store::orders`]; batches of different orders may be committed at the same time. The default is for a store that one node
    /// writes.
    ///
    /// # Errors
    /// Those of [`Store::commit`].
    fn commit_in_order(&self, batch: &[Proposal], now_ms: u64) -> StoreResult<(Vec<Outcome>, PositionRange)> {
        let after = self.last_position();
        let outcomes = self.commit(batch, now_ms)?;
        Ok((outcomes, PositionRange { after, through: self.last_position() }))
    }

    /// The epoch of the history in the store; a restore gives it another.
    fn epoch(&self) -> u64;
    /// The highest position that is committed.
    fn last_position(&self) -> Position;

    /// The highest numbers of users and conversations.
    ///
    /// # Errors
    /// Those of reads.
    fn last_numbers(&self) -> StoreResult<LastNumbers>;
    /// The number of the user with this id; `None`: there is no such user.
    ///
    /// # Errors
    /// Those of reads.
    fn find_user(&self, id: StoredId<'_>) -> StoreResult<Option<UserNo>>;
    /// The same for any text.
    ///
    /// # Errors
    /// Those of reads.
    fn user_no(&self, id: &str) -> StoreResult<Option<UserNo>> {
        StoredId::parse(id).map_or(Ok(None), |id| self.find_user(id))
    }
    /// The user with this number.
    ///
    /// # Errors
    /// Those of reads.
    fn user(&self, no: UserNo) -> StoreResult<Option<User>>;
    /// The user with this id.
    ///
    /// # Errors
    /// Those of reads.
    fn user_with_id(&self, id: StoredId<'_>) -> StoreResult<Option<User>> {
        self.find_user(id)?.map_or(Ok(None), |no| self.user(no))
    }
    /// When the user's last session ended, in milliseconds since 1970 UTC; `None`: never announced as offline.
    ///
    /// # Errors
    /// Those of reads.
    fn last_seen(&self, no: UserNo) -> StoreResult<Option<u64>>;
    /// The number of the conversation with this id.
    ///
    /// # Errors
    /// Those of reads.
    fn find_conversation(&self, id: StoredId<'_>) -> StoreResult<Option<ConversationNo>>;
    /// The same for any text.
    ///
    /// # Errors
    /// Those of reads.
    fn conversation_no(&self, id: &str) -> StoreResult<Option<ConversationNo>> {
        StoredId::parse(id).map_or(Ok(None), |id| self.find_conversation(id))
    }
    /// The ids of users, or of conversations, that begin with `prefix` and come after `after`: in the order of their bytes, each with
    /// its number, and at most `limit`.
    ///
    /// # Errors
    /// Those of reads.
    fn find_ids(
        &self,
        of: NamedKind,
        prefix: Option<StoredId<'_>>,
        after: Option<StoredId<'_>>,
        limit: usize,
    ) -> StoreResult<Vec<(String, u64)>>;
    /// The same by texts, of which an empty one stands for none. What is no id comes ahead of nothing, and nothing begins with it.
    ///
    /// # Errors
    /// Those of reads.
    fn ids(&self, of: NamedKind, prefix: &str, after: &str, limit: usize) -> StoreResult<Vec<(String, u64)>> {
        let (first, last) = (StoredId::parse(prefix), StoredId::parse(after));
        if (first.is_none() && !prefix.is_empty()) || (last.is_none() && !after.is_empty()) {
            return Ok(Vec::new());
        }
        self.find_ids(of, first, last, limit)
    }
    /// The conversation with this number.
    ///
    /// # Errors
    /// Those of reads.
    fn conversation(&self, no: ConversationNo) -> StoreResult<Option<Conversation>>;
    /// How far the conversation's timeline goes. Of a conversation that does not exist it is that of an empty timeline.
    ///
    /// # Errors
    /// Those of reads.
    fn head(&self, no: ConversationNo) -> StoreResult<Head>;
    /// The user's membership of the conversation; `None`: no member.
    ///
    /// # Errors
    /// Those of reads.
    fn membership(&self, conversation: ConversationNo, user: UserNo) -> StoreResult<Option<Membership>>;
    /// Members in the order of their numbers, from the first one after `after`.
    ///
    /// # Errors
    /// Those of reads.
    fn members(
        &self,
        conversation: ConversationNo,
        after: Option<UserNo>,
        limit: usize,
    ) -> StoreResult<Vec<(UserNo, Membership)>>;
    /// A user's conversations, without direct ones if `direct` is false; at most `limit`.
    ///
    /// # Errors
    /// Those of reads.
    fn conversations_of(&self, user: UserNo, direct: bool, limit: usize) -> StoreResult<Vec<UserConversation>>;
    /// Entries with `from_seq <= seq <= to_seq`, at most `limit` from the end `from`, oldest first.
    ///
    /// # Errors
    /// Those of reads.
    fn entries(
        &self,
        conversation: ConversationNo,
        from_seq: u64,
        to_seq: u64,
        limit: usize,
        from: End,
    ) -> StoreResult<Vec<StoredEntry>>;

    /// Fences the writes of the term: once this has returned, each write that failed with
    /// [`StoreError::OutcomeUnknown`] is stored or never will be. A later write does the same before it begins; a
    /// caller that goes on by what it reads must call this first.
    ///
    /// # Errors
    /// [`StoreError::StaleTerm`]: the term is over. Any other: the outcome is still unknown.
    fn fence_writes(&self, _: Term) -> StoreResult<()> {
        Ok(())
    }

    // Batched reads. A store with a round trip for each read overrides them with single ones; for others the defaults
    // are as good.

    /// A user's conversations, at most `limit`. A change during the read may be among them or not.
    ///
    /// # Errors
    /// Those of reads.
    fn conversation_states(
        &self,
        user: UserNo,
        filter: ConversationFilter,
        limit: usize,
    ) -> StoreResult<Vec<ConversationState>> {
        batch_reads::conversation_states(self, user, filter, limit)
    }
    /// The heads of these conversations, in the same order.
    ///
    /// # Errors
    /// Those of reads.
    fn heads(&self, conversations: &[ConversationNo]) -> StoreResult<Vec<Head>> {
        batch_reads::heads(self, conversations)
    }
    /// The details of these conversations, in the same order.
    ///
    /// # Errors
    /// Those of reads.
    fn conversations(&self, conversations: &[ConversationNo]) -> StoreResult<Vec<Option<Conversation>>> {
        batch_reads::conversations(self, conversations)
    }
    /// These users, in the same order.
    ///
    /// # Errors
    /// Those of reads.
    fn users(&self, users: &[UserNo]) -> StoreResult<Vec<Option<User>>> {
        batch_reads::users(self, users)
    }
    /// The memberships of a user in these conversations, in the same order.
    ///
    /// # Errors
    /// Those of reads.
    fn memberships(&self, user: UserNo, conversations: &[ConversationNo]) -> StoreResult<Vec<Option<Membership>>> {
        batch_reads::memberships(self, user, conversations)
    }
    /// The positions of these entries (conversation and `seq`), in the same order.
    ///
    /// # Errors
    /// Those of reads.
    fn positions_at(&self, entries: &[(ConversationNo, u64)]) -> StoreResult<Vec<Option<Position>>> {
        batch_reads::positions_at(self, entries)
    }
    /// Whether a request with this id of its author's own is stored already, for each of them (conversation, author and
    /// `client_msg_id`), in the same order.
    ///
    /// # Errors
    /// Those of reads.
    fn are_stored(&self, requests: &[(ConversationNo, UserNo, &str)]) -> StoreResult<Vec<bool>> {
        Ok(self.stored_seqs(requests)?.iter().map(Option::is_some).collect())
    }
    /// The `seq` of the first result of each such request, in the same order; `None`: none is stored.
    ///
    /// # Errors
    /// Those of reads.
    fn stored_seqs(&self, requests: &[(ConversationNo, UserNo, &str)]) -> StoreResult<Vec<Option<u64>>>;
    /// The requested pages, in the same order. Once about `bytes_max` bytes are read, each further page has its first
    /// entry alone: entries may follow a page that is shorter than its limit.
    ///
    /// # Errors
    /// Those of reads.
    fn pages(&self, requests: &[PageRequest], bytes_max: usize) -> StoreResult<Vec<Vec<StoredEntry>>> {
        batch_reads::pages(self, requests, bytes_max)
    }
    /// The newest entries of all tails, merged in commit order.
    ///
    /// # Errors
    /// Those of reads.
    fn missed(&self, tails: &[Tail], query: MissedQuery) -> StoreResult<MissedEntries> {
        batch_reads::missed(self, tails, query)
    }

    /// The `seq` of the first entry at or after `at_ms`; `last_seq + 1` if there is none.
    ///
    /// # Errors
    /// Those of reads.
    fn seq_at(&self, conversation: ConversationNo, at_ms: u64) -> StoreResult<u64>;

    /// Entries that may need offline push, after a position, in commit order. Empty unless the store
    /// was opened with an outbox.
    ///
    /// # Errors
    /// Those of reads.
    fn outbox(&self, after: Position, limit: usize) -> StoreResult<Vec<OutboxItem>>;
    /// The position up to which the outbox's consumer has dealt with all items.
    ///
    /// # Errors
    /// Those of reads.
    fn outbox_position(&self) -> StoreResult<Position>;
    /// Notifications of a table with an id above `after`, in the order of ids.
    ///
    /// # Errors
    /// Those of reads.
    fn stored_notifications(
        &self,
        table: NotificationTable,
        after: Option<u64>,
        limit: usize,
    ) -> StoreResult<Vec<StoredNotification>>;

    /// The records of the commit order after a position, for the feed of events: all of them, or the next `limit` or so.
    ///
    /// # Errors
    /// [`StoreError::Pruned`]: some of them are not kept any more, or never were. Others are those of reads.
    fn log_after(&self, after: Position, limit: usize) -> StoreResult<LogPage>;
    /// The position after which the log has all records; `None`: it keeps none.
    ///
    /// # Errors
    /// Those of reads.
    fn log_start(&self) -> StoreResult<Option<Position>>;
    /// Removes one chunk of the records from before this time, oldest first. A store that several nodes write does so by
    /// [`CommitLog::prune`](crate::commit_log::CommitLog::prune) instead.
    ///
    /// # Errors
    /// Those of [`Store::retain`].
    fn prune_log(&self, _before_ms: u64) -> StoreResult<PruneProgress> {
        Ok(PruneProgress::default())
    }
    /// Removes entries beyond the limits of retention; answers how many. It may run beside commits.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] and [`StoreError::Damaged`]: some entries may be removed; the next call goes on from
    /// there.
    fn retain(&self, retention: Retention, now_ms: u64) -> StoreResult<u64> {
        self.retain_but(retention, &[], now_ms)
    }
    /// The same, but for these conversations, in the order of their numbers, of which nothing is removed.
    ///
    /// # Errors
    /// Those of [`Store::retain`].
    fn retain_but(&self, retention: Retention, except: &[ConversationNo], now_ms: u64) -> StoreResult<u64>;
    /// Removes entries of one conversation by age, and keeps the newest.
    ///
    /// # Errors
    /// Those of [`Store::retain`].
    fn retain_in(&self, conversation: ConversationNo, retention: Retention, now_ms: u64) -> StoreResult<RetainedIn>;
    /// Has the store's files lose the bytes of rows that were replaced or removed before the call. It runs beside commits
    /// and may take minutes. A store without files has nothing to do.
    ///
    /// # Errors
    /// [`StoreError::DiskFull`]: the disk has no room for it. [`StoreError::Unavailable`] and [`StoreError::Damaged`]: some
    /// bytes may be left. A later call begins anew.
    fn purge(&self) -> StoreResult<()> {
        Ok(())
    }
    /// The figures of the store now; zeros where it cannot be asked.
    fn stats(&self) -> StoreStats;

    /// The damage that the store has found in its files so far; an operator must act. It reads nothing.
    fn damage(&self) -> Option<String> {
        None
    }
}
