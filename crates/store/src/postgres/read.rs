//! Single reads of the store: each is a statement or two on a connection of the pool.

use super::{
    PostgresStore,
    commit_orders::{Globals, local_through, position_of},
    connection::{Purpose, bigint, number},
    failure::Failure,
    load::membership,
    notification_tables::Statements,
    read_place::Read,
};
use crate::rows::{NotificationRow, decode, decode_content, decode_conversation, decode_user, kind_byte, kind_of};
use std::sync::atomic::Ordering;
use tidings_domain::{
    chat_row_kind::ChatRowKind,
    chat_rows::{UserSettings, settings_key},
    commit_log::LogPage,
    model::*,
    store::*,
    stored_id::StoredId,
};
use tidings_protocol::limits::CONVERSATION_ID_BYTES_MAX;
use tokio_postgres::Row;

/// A limit as the database's type.
pub(super) fn rows_max(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// Reads the partitions that may hold sequences from $2 to $3, each only if the partitions before it did not fill the page.
macro_rules! entries {
    ($order:literal) => {
        concat!(
            "SELECT e.seq, e.position, e.at, e.content FROM (SELECT part, first_seq FROM chapters WHERE conversation = $1 ",
            "AND first_seq <= $3 AND first_seq >= coalesce((SELECT max(first_seq) FROM chapters ",
            "WHERE conversation = $1 AND first_seq <= $2), 0)) c CROSS JOIN LATERAL ",
            "(SELECT seq, position, at, content FROM entries WHERE part = c.part AND conversation = $1 ",
            "AND seq BETWEEN $2 AND $3 ORDER BY seq ", $order, " LIMIT $4) e ",
            "ORDER BY c.first_seq ", $order, ", e.seq ", $order, " LIMIT $4"
        )
    };
}
/// The tables whose rows hold bodies: messages, and webhook events that wait or have failed.
const VACUUM: &str = "VACUUM entries, dead_notifications, notification_retries";
/// Entries that are looked through at once for one that is in the commit order.
const UNCUT_AT_ONCE: usize = 64;
const FROM_OLDEST: &str = entries!("ASC");
const FROM_NEWEST: &str = entries!("DESC");
const HEAD: &str = "SELECT h.last_seq, h.last_at, h.last_position, \
     coalesce((SELECT min(c.first_seq) FROM chapters c WHERE c.conversation = h.conversation), h.last_seq + 1) \
     FROM heads h WHERE h.conversation = $1";
const OUTBOX: &str = "SELECT position, conversation, seq FROM outbox \
     WHERE position > greatest($1, (SELECT outbox_done FROM counters)) ORDER BY position LIMIT $2";
/// The same of several orders: the first items of each, in the order of their positions.
const OUTBOX_OF_ORDERS: &str = concat!(
    "SELECT p.position, o.conversation, o.seq FROM (SELECT greatest($1, outbox_done) AS after FROM counters) d \
     CROSS JOIN orders r CROSS JOIN LATERAL (SELECT position, conversation, seq FROM outbox WHERE position > ",
    local_through!("r.ord", "d.after"),
    " AND position < (r.ord::bigint + 1) << 48 ORDER BY position LIMIT $2) o CROSS JOIN LATERAL (SELECT ",
    position_of!("o.position"),
    " AS position) p WHERE p.position IS NOT NULL ORDER BY p.position LIMIT $2"
);
const ENTRY_AT: &str = "SELECT at FROM entries WHERE conversation = $1 AND seq = $2 AND part = \
     (SELECT part FROM chapters WHERE conversation = $1 AND first_seq <= $2 ORDER BY first_seq DESC LIMIT 1)";

impl PostgresStore {
    /// The first column of the first row.
    fn first_number(&self, read: Read, sql: &'static str, params: super::Params<'_>) -> StoreResult<Option<u64>> {
        Ok(self.read(read, sql, params)?.first().map(|row| number(row, 0)))
    }
}

/// An entry from four columns, `first` and those behind it; `None`: it is not in the commit order yet.
pub(super) fn entry_at(row: &Row, first: usize, globals: &Globals) -> Option<StoreResult<StoredEntry>> {
    let position = globals.at(row, first + 1)?;
    Some(decode_content(number(row, first), position, number(row, first + 2), row.get(first + 3)))
}

impl PostgresStore {
    /// A head from four columns, `first` and those behind it.
    pub(super) fn head_at(
        &self,
        conversation: ConversationNo,
        row: &Row,
        first: usize,
        globals: &Globals,
    ) -> StoreResult<Head> {
        let [last_seq, last_at, first_seq] = [0, 1, 3].map(|column| number(row, first + column));
        if let Some(last_position) = globals.at(row, first + 2) {
            return Ok(Head { last_seq, last_at, last_position, first_seq });
        }
        // The newest entries are not in the commit order yet: the head is that of the ones before.
        let mut next = last_seq;
        while next > first_seq {
            let page = self.entries(conversation, first_seq, next - 1, UNCUT_AT_ONCE, End::Newest)?;
            if let Some(StoredEntry { seq, position, at, .. }) = page.last() {
                return Ok(Head { last_seq: *seq, last_at: *at, last_position: *position, first_seq });
            }
            next = next.saturating_sub(UNCUT_AT_ONCE as u64);
        }
        Ok(Head { last_seq: first_seq.saturating_sub(1), first_seq, ..Head::default() })
    }
}

/// A user from three columns: the card, when tokens were revoked and the settings, `first` and those behind it.
pub(super) fn user_at(no: UserNo, row: &Row, first: usize) -> StoreResult<User> {
    let user = User { revoked_at: number(row, first + 1), ..decode_user(no, row.get(first))? };
    Ok(UserSettings::decode(row.get(first + 2))?.of_user(user))
}

impl Store for PostgresStore {
    fn fence_writes(&self, term: Term) -> StoreResult<()> {
        self.fence_open_writes(term)
    }

    fn commit(&self, batch: &[Proposal], now_ms: u64) -> StoreResult<Vec<Outcome>> {
        Ok(self.commit_batch(batch, now_ms)?.0)
    }

    fn log_after(&self, after: Position, limit: usize) -> StoreResult<LogPage> {
        self.log_page([Read::FeedEntries, Read::FeedChanges], after, limit)
    }

    fn log_start(&self) -> StoreResult<Option<Position>> {
        Ok(self.read(Read::LogStart, "SELECT changes_pruned FROM history", &[])?.first().map(|row| number(row, 0)))
    }

    fn commit_in_order(&self, batch: &[Proposal], now_ms: u64) -> StoreResult<(Vec<Outcome>, PositionRange)> {
        self.commit_batch(batch, now_ms)
    }

    fn orders(&self) -> Orders {
        self.orders.orders
    }

    fn index_after(&self, after: Position) -> StoreResult<u64> {
        self.read_index_after(after)
    }

    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Asks the database, since other nodes commit too. While it cannot be reached: the highest position that was seen.
    fn last_position(&self) -> Position {
        self.fetch_position().unwrap_or_else(|_| self.position.load(Ordering::Acquire))
    }

    fn last_numbers(&self) -> StoreResult<LastNumbers> {
        let sql = "SELECT c.users, coalesce((SELECT (max(o.conversations) + 1) * h.orders - 1 FROM orders o), c.conversations)::bigint \
                   FROM counters c, history h";
        let rows = self.read(Read::LastNumbers, sql, &[])?;
        let numbers = rows.first().map(|row| LastNumbers { users: number(row, 0), conversations: number(row, 1) });
        Ok(numbers.unwrap_or_default())
    }

    fn find_user(&self, id: StoredId<'_>) -> StoreResult<Option<UserNo>> {
        Ok(self.first_number(Read::UserNumber, "SELECT no FROM users WHERE id = $1", &[&id.as_str()])?.map(UserNo))
    }

    fn find_ids(
        &self,
        of: NamedKind,
        prefix: Option<StoredId<'_>>,
        after: Option<StoredId<'_>>,
        limit: usize,
    ) -> StoreResult<Vec<(String, u64)>> {
        let (prefix, after) = (prefix.map_or("", StoredId::as_str), after.map_or("", StoredId::as_str));
        // The columns are compared by bytes, and their unique indexes are read in that order.
        let sql = match of {
            NamedKind::User => "SELECT id, no FROM users WHERE id >= $1 AND id > $2 AND id < $3 ORDER BY id LIMIT $4",
            NamedKind::Conversation => {
                "SELECT id, no FROM conversations WHERE id >= $1 AND id > $2 AND id < $3 ORDER BY id LIMIT $4"
            }
        };
        // Behind every id with the prefix: no id is as long as this.
        let end =
            format!("{prefix}{}", char::MAX.to_string().repeat(CONVERSATION_ID_BYTES_MAX / char::MAX.len_utf8() + 1));
        let rows = self.read(Read::Ids, sql, &[&prefix, &after, &end.as_str(), &rows_max(limit)])?;
        Ok(rows.iter().map(|row| (row.get(0), number(row, 1))).collect())
    }

    fn user(&self, no: UserNo) -> StoreResult<Option<User>> {
        let sql =
            "SELECT u.card, u.revoked_at, s.value FROM users u LEFT JOIN chat_rows s ON s.key = $2 WHERE u.no = $1";
        let rows = self.read(Read::User, sql, &[&bigint(no.0), &settings_key(no)])?;
        rows.first().map(|row| user_at(no, row, 0)).transpose()
    }

    fn user_with_id(&self, id: StoredId<'_>) -> StoreResult<Option<User>> {
        let sql = "SELECT u.no, u.card, u.revoked_at, s.value FROM users u \
                   LEFT JOIN chat_rows s ON s.key = $2 || int8send(u.no) WHERE u.id = $1";
        let settings = ChatRowKind::UserSettings.key(&[]);
        let rows = self.read(Read::User, sql, &[&id.as_str(), &settings])?;
        rows.first().map(|row| user_at(UserNo(number(row, 0)), row, 1)).transpose()
    }

    fn last_seen(&self, no: UserNo) -> StoreResult<Option<u64>> {
        self.first_number(Read::LastSeen, "SELECT at FROM last_seen WHERE user_no = $1", &[&bigint(no.0)])
    }

    fn find_conversation(&self, id: StoredId<'_>) -> StoreResult<Option<ConversationNo>> {
        Ok(self
            .first_number(Read::ConversationNumber, "SELECT no FROM conversations WHERE id = $1", &[&id.as_str()])?
            .map(ConversationNo))
    }

    fn conversation(&self, no: ConversationNo) -> StoreResult<Option<Conversation>> {
        let rows = self.read(Read::Conversation, "SELECT card FROM conversations WHERE no = $1", &[&bigint(no.0)])?;
        rows.first().map(|row| decode_conversation(no, row.get(0))).transpose()
    }

    fn head(&self, no: ConversationNo) -> StoreResult<Head> {
        let rows = self.read(Read::Head, HEAD, &[&bigint(no.0)])?;
        let Some(row) = rows.first() else { return Ok(Head { first_seq: 1, ..Head::default() }) };
        self.head_at(no, row, 0, &self.globals_in(&rows, 2)?)
    }

    fn membership(&self, conversation: ConversationNo, user: UserNo) -> StoreResult<Option<Membership>> {
        let sql = "SELECT role, joined_at, joined_seq, read_seq, muted_until FROM members \
                   WHERE conversation = $1 AND user_no = $2";
        let rows = self.read(Read::Membership, sql, &[&bigint(conversation.0), &bigint(user.0)])?;
        rows.first().map(|row| membership(row, 0)).transpose()
    }

    fn members(
        &self,
        conversation: ConversationNo,
        after: Option<UserNo>,
        limit: usize,
    ) -> StoreResult<Vec<(UserNo, Membership)>> {
        let sql = "SELECT user_no, role, joined_at, joined_seq, read_seq, muted_until FROM members \
                   WHERE conversation = $1 AND user_no > $2 ORDER BY user_no LIMIT $3";
        let after = after.map_or(-1, |user| bigint(user.0));
        let rows = self.read(Read::Members, sql, &[&bigint(conversation.0), &after, &rows_max(limit)])?;
        rows.iter().map(|row| Ok((UserNo(number(row, 0)), membership(row, 1)?))).collect()
    }

    fn conversations_of(&self, user: UserNo, direct: bool, limit: usize) -> StoreResult<Vec<UserConversation>> {
        let first = if direct { ConversationKind::Direct } else { ConversationKind::Group };
        let sql = "SELECT conversation, kind FROM places WHERE user_no = $1 AND kind >= $2 \
                   ORDER BY kind, conversation LIMIT $3";
        let rows =
            self.read(Read::ConversationsOf, sql, &[&bigint(user.0), &i16::from(kind_byte(first)), &rows_max(limit)])?;
        let user_conversation = |row: &Row| UserConversation {
            conversation: ConversationNo(number(row, 0)),
            kind: kind_of(row.get::<_, i16>(1) as u8),
        };
        Ok(rows.iter().map(user_conversation).collect())
    }

    fn entries(
        &self,
        conversation: ConversationNo,
        from_seq: u64,
        to_seq: u64,
        limit: usize,
        from: End,
    ) -> StoreResult<Vec<StoredEntry>> {
        let sql = if from == End::Oldest { FROM_OLDEST } else { FROM_NEWEST };
        let read = if limit == 1 { Read::Entry } else { Read::Entries };
        let (from_seq, to_seq) = (bigint(from_seq), bigint(to_seq));
        let rows = self.read(read, sql, &[&bigint(conversation.0), &from_seq, &to_seq, &rows_max(limit)])?;
        let globals = self.globals_in(&rows, 1)?;
        let entry = |row| entry_at(row, 0, &globals);
        match from {
            End::Oldest => rows.iter().filter_map(entry).collect(),
            End::Newest => rows.iter().rev().filter_map(entry).collect(),
        }
    }

    fn conversation_states(
        &self,
        user: UserNo,
        filter: ConversationFilter,
        limit: usize,
    ) -> StoreResult<Vec<ConversationState>> {
        self.read_conversation_states(user, filter, limit)
    }

    fn heads(&self, conversations: &[ConversationNo]) -> StoreResult<Vec<Head>> {
        self.read_heads(conversations)
    }

    fn conversations(&self, conversations: &[ConversationNo]) -> StoreResult<Vec<Option<Conversation>>> {
        self.read_cards(conversations)
    }

    fn users(&self, users: &[UserNo]) -> StoreResult<Vec<Option<User>>> {
        self.read_users(users)
    }

    fn memberships(&self, user: UserNo, conversations: &[ConversationNo]) -> StoreResult<Vec<Option<Membership>>> {
        self.read_memberships(user, conversations)
    }

    fn positions_at(&self, entries: &[(ConversationNo, u64)]) -> StoreResult<Vec<Option<Position>>> {
        self.read_positions(entries)
    }

    fn stored_seqs(&self, requests: &[(ConversationNo, UserNo, &str)]) -> StoreResult<Vec<Option<u64>>> {
        self.read_stored_seqs(requests)
    }

    fn pages(&self, asked: &[PageRequest], bytes_max: usize) -> StoreResult<Vec<Vec<StoredEntry>>> {
        self.read_pages(asked, bytes_max)
    }

    fn missed(&self, tails: &[Tail], query: MissedQuery) -> StoreResult<MissedEntries> {
        self.read_missed(tails, query)
    }

    fn seq_at(&self, conversation: ConversationNo, at_ms: u64) -> StoreResult<u64> {
        let head = self.head(conversation)?;
        // `at` never decreases with `seq`, so a binary search finds the first.
        let (mut low, mut high) = (head.first_seq, head.last_seq + 1);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.first_number(Read::EntryTime, ENTRY_AT, &[&bigint(conversation.0), &bigint(middle)])? {
                Some(at) if at >= at_ms => high = middle,
                _ => low = middle + 1,
            }
        }
        Ok(low)
    }

    fn outbox(&self, after: Position, limit: usize) -> StoreResult<Vec<OutboxItem>> {
        let sql = if self.orders.are_one() { OUTBOX } else { OUTBOX_OF_ORDERS };
        let rows = self.read(Read::Outbox, sql, &[&bigint(after), &rows_max(limit)])?;
        let item = |row: &Row| OutboxItem {
            position: number(row, 0),
            conversation: ConversationNo(number(row, 1)),
            seq: number(row, 2),
        };
        Ok(rows.iter().map(item).collect())
    }

    fn outbox_position(&self) -> StoreResult<Position> {
        Ok(self.first_number(Read::OutboxPosition, "SELECT outbox_done FROM counters", &[])?.unwrap_or(0))
    }

    fn stored_notifications(
        &self,
        table: NotificationTable,
        after: Option<u64>,
        limit: usize,
    ) -> StoreResult<Vec<StoredNotification>> {
        let rows =
            self.read(Read::Notifications, Statements::of(table).read, &[&after.map_or(-1, bigint), &rows_max(limit)])?;
        let notification = |row: &Row| {
            let key = NotificationKey { table, id: number(row, 0) };
            Ok(decode::<NotificationRow>(row.get(1))?.notification(key))
        };
        rows.iter().map(notification).collect()
    }

    fn retain_but(&self, retention: Retention, except: &[ConversationNo], now_ms: u64) -> StoreResult<u64> {
        self.remove_old(retention, except, now_ms)
    }

    fn retain_in(&self, conversation: ConversationNo, retention: Retention, now_ms: u64) -> StoreResult<RetainedIn> {
        self.remove_old_in(conversation, retention, now_ms)
    }

    fn purge(&self) -> StoreResult<()> {
        let purged = self.connector.block_on(async {
            let connection = self.connector.connect(Purpose::Maintenance).await?;
            connection.batch(VACUUM).await
        });
        purged.map_err(|failure: Failure| failure.into())
    }

    fn stats(&self) -> StoreStats {
        let sql = "SELECT pg_database_size(current_database()), (coalesce((SELECT sum(bytes) FROM parts), 0) \
                   + coalesce((SELECT sum(bytes) FROM order_parts), 0))::bigint";
        let rows = self.read(Read::Sizes, sql, &[]).unwrap_or_default();
        let row = rows.first();
        let [disk_bytes, timeline_bytes] = [0, 1].map(|column| row.map_or(0, |row| number(row, column)));
        StoreStats {
            disk_bytes,
            timeline_bytes,
            journals: 0,
            statements: self.connector.statements(),
            round_trips: self.connector.round_trips(),
            standby_reads: self.standbys.reads(),
        }
    }
}
