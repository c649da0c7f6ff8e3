//! The timeline's partitions (`part` in the tables): tables of some days each, created ahead of need and dropped whole when
//! all their entries are old.
//!
//! A conversation keeps its newest entry, whatever its age: before a partition is dropped, such entries move to partition
//! 0. Dropping a partition costs time by the number of its conversations, not of its entries.

use super::{
    PostgresStore,
    connection::{Connection, Purpose, bigint, number},
    failure::Failure,
    migrations::LOCK_KEY,
};
use crate::rows::{DAY_MS, day_of};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use tidings_domain::{model::*, store::*};
use tokio_postgres::error::SqlState;

/// The partition of newest entries whose own partition was dropped.
const KEPT: i32 = 0;
/// Entries of one conversation that one transaction removes.
const REMOVED_AT_ONCE: usize = 1_000;
/// The range of positions whose first results one statement sweeps.
const SWEPT_POSITIONS: u64 = 20_000;
/// The rows of first results that one statement looks at in a database of several orders.
const SWEPT_ROWS: i64 = 20_000;

pub(crate) struct Partitions {
    days: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Partitions that are known to exist.
    existing: BTreeSet<i32>,
    /// Partitions that a write has missed.
    missing: BTreeSet<i32>,
}

impl Partitions {
    pub(crate) fn new(days: u64) -> Partitions {
        Partitions { days, state: Mutex::default() }
    }

    pub(crate) fn days(&self) -> u64 {
        self.days
    }

    /// The partition of an entry of this time.
    pub(crate) fn of(&self, at_ms: u64) -> i32 {
        i32::try_from(day_of(at_ms) / self.days).map_or(i32::MAX, |part| part.saturating_add(1))
    }

    /// The end of a partition's days, in milliseconds since 1970 UTC.
    fn end_of(&self, partition: i32) -> u64 {
        u64::try_from(partition).unwrap_or(0).saturating_mul(self.days * DAY_MS)
    }

    /// Creates the partition of this time and the next one, so that no commit waits for a table at midnight.
    pub(crate) async fn ensure(&self, connection: &Connection, now_ms: u64) -> Result<(), Failure> {
        let now = self.of(now_ms);
        let needed: Vec<i32> = {
            let state = self.state.lock();
            let needed = [now, now.saturating_add(1)].into_iter().chain(state.missing.iter().copied());
            needed.filter(|partition| !state.existing.contains(partition)).collect()
        };
        for partition in needed {
            connection.batch(&create_partition(partition)).await?;
            let mut state = self.state.lock();
            state.missing.remove(&partition);
            state.existing.insert(partition);
        }
        Ok(())
    }

    /// Records that a write to these partitions has failed because one of them does not exist: another node dropped it, or
    /// a clock ran ahead. [`Self::ensure`] creates them.
    pub(crate) fn record_missing(&self, partitions: impl Iterator<Item = i32>) {
        let mut state = self.state.lock();
        state.existing.clear();
        state.missing.extend(partitions);
    }
}

/// Creates a table and attaches it: creating it as a partition at once would block all readers.
pub(crate) fn create_partition(part: i32) -> String {
    format!(
        "SELECT pg_advisory_xact_lock({LOCK_KEY}); \
         DO $$ BEGIN IF to_regclass('tidings.entries_{part}') IS NULL THEN \
         CREATE TABLE entries_{part} (LIKE entries INCLUDING ALL); \
         ALTER TABLE entries ATTACH PARTITION entries_{part} FOR VALUES IN ({part}); \
         END IF; END $$"
    )
}

/// A partition's row in the table `parts`.
struct PartitionStats {
    number: i32,
    entries: u64,
    bytes: u64,
    /// In a database of one order.
    last_position: u64,
}

impl PostgresStore {
    fn partition_stats(&self) -> StoreResult<Vec<PartitionStats>> {
        let rows = self.query(STATS, &[])?;
        let stats = |row: &tokio_postgres::Row| PartitionStats {
            number: row.get(0),
            entries: number(row, 1),
            bytes: number(row, 2),
            last_position: number(row, 3),
        };
        Ok(rows.iter().map(stats).collect())
    }

    /// Drops whole partitions: by age once the last of their days is too old, by size the oldest first. Today's partition
    /// is never dropped. Answers how many entries were removed.
    pub(crate) fn remove_old(&self, retention: Retention, except: &[ConversationNo], now_ms: u64) -> StoreResult<u64> {
        let partitions = self.partition_stats()?;
        let Some(newest) = partitions.iter().rfind(|stats| stats.entries > 0).map(|stats| stats.number) else {
            return Ok(0);
        };
        let kept_from = retention.kept_from(now_ms, self.partitions.end_of(newest));
        let mut first_kept = kept_from.map_or(KEPT, |at_ms| self.partitions.of(at_ms));
        let mut bytes: u64 = partitions.iter().map(|stats| stats.bytes).sum();
        // The newest partition is never dropped either: by a clock that runs ahead, its days are long over.
        let droppable_before = newest.min(self.partitions.of(now_ms));
        for stats in partitions.iter().filter(|stats| stats.number < droppable_before) {
            if bytes <= retention.bytes_max.unwrap_or(u64::MAX) {
                break;
            }
            bytes -= stats.bytes;
            first_kept = first_kept.max(stats.number + 1);
        }
        let mut removed = 0;
        let mut through = None;
        for stats in partitions.iter().filter(|stats| stats.number < first_kept) {
            removed += self.drop_partition(stats, except)?;
            through = Some(stats.last_position);
        }
        match through {
            Some(through) if self.orders.are_one() => self.sweep_first_results(through)?,
            Some(_) => self.sweep_all_first_results()?,
            None => {}
        }
        Ok(removed)
    }

    /// Drops a partition; answers how many entries were removed.
    fn drop_partition(&self, stats: &PartitionStats, except: &[ConversationNo]) -> StoreResult<u64> {
        let part = stats.number;
        let removed = self.connector.block_on(async {
            // A connection of its own: while it waits for locks it must hold up neither commits nor reads.
            let connection = self.connector.connect(Purpose::Maintenance).await?;
            match connection.transaction(&drop_partition(part, except)).await {
                Ok(counts) => match counts[..] {
                    [.., swept, kept, _chapters, _detached, _dropped, _committed] => {
                        Ok(stats.entries.saturating_sub(kept) + swept)
                    }
                    _ => Ok(0),
                },
                // Another node has dropped the partition first.
                Err(failure) if failure.is(&SqlState::DIVISION_BY_ZERO) => Ok(0),
                Err(failure) => Err(failure),
            }
        });
        self.partitions.state.lock().existing.remove(&part);
        removed.map_err(|failure: Failure| failure.into())
    }

    /// Removes entries of one conversation by age, some at a time, in whichever partitions they are.
    pub(crate) fn remove_old_in(
        &self,
        conversation: ConversationNo,
        retention: Retention,
        now_ms: u64,
    ) -> StoreResult<RetainedIn> {
        let newest = self.partition_stats()?.iter().rfind(|stats| stats.entries > 0).map_or(KEPT, |stats| stats.number);
        let mut done =
            RetainedIn { removed: 0, kept_from: retention.kept_from(now_ms, self.partitions.end_of(newest)) };
        let Some(cutoff) = done.kept_from else { return Ok(done) };
        let order = (!self.orders.are_one()).then(|| self.orders.orders.of_conversation(conversation));
        loop {
            let head = self.head(conversation)?;
            if head.first_seq >= head.last_seq {
                return Ok(done);
            }
            let page = self.entries(conversation, head.first_seq, head.last_seq - 1, REMOVED_AT_ONCE, End::Oldest)?;
            let old: Vec<StoredEntry> = page.into_iter().take_while(|entry| entry.kept_since() < cutoff).collect();
            let Some(last) = old.last() else { return Ok(done) };
            self.connector.block_on(async {
                let connection = self.connector.connect(Purpose::Maintenance).await?;
                connection.transaction(&remove_through(conversation, last.seq, order)).await
            })?;
            let sends = old.iter().filter_map(|entry| entry.content.idempotency_key());
            let (senders, ids): (Vec<i64>, Vec<&str>) = sends.map(|(sender, id)| (bigint(sender.0), id)).unzip();
            self.query(FORGET_SENDS, &[&senders, &ids, &bigint(conversation.0), &bigint(last.seq)])?;
            done.removed += old.len() as u64;
            if old.len() < REMOVED_AT_ONCE {
                return Ok(done);
            }
        }
    }

    /// Removes first results of entries that are gone, up to this position. Such rows are ignored in any case; removing
    /// them frees their room.
    fn sweep_first_results(&self, through: u64) -> StoreResult<()> {
        let rows = self.query("SELECT dedupe_swept FROM history", &[])?;
        let mut swept = rows.first().map_or(0, |row| number(row, 0));
        while swept < through {
            let next = through.min(swept + SWEPT_POSITIONS);
            self.query(SWEEP_SENDS, &[&bigint(swept), &bigint(next)])?;
            self.query("UPDATE history SET dedupe_swept = greatest(dedupe_swept, $1)", &[&bigint(next)])?;
            swept = next;
        }
        Ok(())
    }

    /// The same in a database of several orders, where no range of rows holds a range of positions: page by page of all.
    fn sweep_all_first_results(&self) -> StoreResult<()> {
        let (mut sender, mut id) = (i64::MIN, String::new());
        while let Some(last) = self.query(SWEEP_PAGE, &[&sender, &id, &SWEPT_ROWS])?.first() {
            (sender, id) = (last.get(0), last.get(1));
        }
        Ok(())
    }
}

/// Drops a partition in one transaction that is one message: no lock is held while it waits for this node. It divides by zero if
/// there is no such partition. The statements read a whole table, unlike all others. The last ones keep all transactions from
/// the timeline until the commit.
fn drop_partition(part: i32, except: &[ConversationNo]) -> String {
    let numbers: Vec<String> = except.iter().map(|no| no.0.to_string()).collect();
    let except = format!("'{{{}}}'::bigint[]", numbers.join(","));
    format!(
        "BEGIN; SET LOCAL enable_seqscan = on; SET LOCAL enable_hashjoin = on; SET LOCAL plan_cache_mode = auto; \
         SET LOCAL lock_timeout = 1000; SELECT pg_advisory_xact_lock({LOCK_KEY}); \
         WITH gone AS (DELETE FROM parts WHERE part = {part} RETURNING part), \
           of_orders AS (DELETE FROM order_parts WHERE part = {part} RETURNING part) \
           SELECT 1 / ((SELECT count(*) FROM gone) + (SELECT count(*) FROM of_orders)); \
         {}; {}; DELETE FROM chapters WHERE part = {part}; \
         ALTER TABLE entries DETACH PARTITION entries_{part}; DROP TABLE entries_{part}; COMMIT",
        DROP_KEPT.replace("$2", &except),
        KEEP.replace("$1", &part.to_string()).replace("$2", &except),
    )
}

/// Removes a conversation's entries up to this one, which is not the newest, in one transaction that is one message. The lock of the head
/// keeps commits of the conversation out, and comes before that of the counts, as in a commit.
fn remove_through(conversation: ConversationNo, seq: u64, order: Option<u16>) -> String {
    let (conversation, next) = (conversation.0, seq + 1);
    let gone = "(SELECT part, count(*) AS entries, sum(bytes)::bigint AS bytes FROM gone GROUP BY part) x";
    let count = match order {
        None => format!(
            "UPDATE parts SET entries = parts.entries - x.entries, bytes = parts.bytes - x.bytes FROM {gone} \
             WHERE parts.part = x.part"
        ),
        Some(order) => format!(
            "UPDATE order_parts o SET entries = o.entries - x.entries, bytes = o.bytes - x.bytes FROM {gone} \
             WHERE o.part = x.part AND o.ord = {order}"
        ),
    };
    format!(
        "BEGIN; SET LOCAL lock_timeout = 1000; SELECT FROM heads WHERE conversation = {conversation} FOR UPDATE; \
         WITH gone AS (DELETE FROM entries WHERE conversation = {conversation} AND seq < {next} \
           RETURNING part, length(content) AS bytes) {count}; \
         UPDATE chapters SET first_seq = {next} WHERE conversation = {conversation} AND part = (SELECT part FROM chapters \
           WHERE conversation = {conversation} AND first_seq <= {next} ORDER BY first_seq DESC LIMIT 1); \
         DELETE FROM chapters WHERE conversation = {conversation} AND first_seq < {next}; COMMIT"
    )
}

/// Of a database that was divided, entries from before are counted in `parts`, and may be subtracted from `order_parts`.
const STATS: &str = "SELECT part, greatest(sum(entries), 0)::bigint, greatest(sum(bytes), 0)::bigint, max(last_position) \
     FROM (SELECT part, entries, bytes, last_position FROM parts \
     UNION ALL SELECT part, entries, bytes, 0 FROM order_parts) p GROUP BY part ORDER BY part";
/// Removes the first results among so many rows behind a key whose entries are gone; answers the last of these rows.
const SWEEP_PAGE: &str = "WITH page AS MATERIALIZED (SELECT sender, client_msg_id, conversation, seq FROM dedupe \
       WHERE (sender, client_msg_id) > ($1, $2) ORDER BY sender, client_msg_id LIMIT $3), \
     gone AS (DELETE FROM dedupe d USING page p WHERE d.sender = p.sender AND d.client_msg_id = p.client_msg_id AND NOT EXISTS \
       (SELECT FROM chapters c WHERE c.conversation = p.conversation AND c.first_seq <= p.seq)) \
     SELECT sender, client_msg_id FROM page ORDER BY sender DESC, client_msg_id DESC LIMIT 1";
/// Removes the first results of entries that are gone.
const FORGET_SENDS: &str = "DELETE FROM dedupe d USING (SELECT k.sender, i.id FROM unnest($1::bigint[], $2::text[]) AS k (sender, id) \
       CROSS JOIN LATERAL unnest(ARRAY[k.id, $3::bigint || '/' || k.id]) AS i (id) OFFSET 0) k \
     WHERE d.sender = k.sender AND d.client_msg_id = k.id AND d.conversation = $3 AND d.seq <= $4";
/// Removes entries that were kept as the newest of their conversation, and are not the newest any more, and those that were kept since
/// they were in an exception, and are in none any more.
const DROP_KEPT: &str = "WITH gone AS (DELETE FROM entries e USING heads h \
       WHERE e.part = 0 AND h.conversation = e.conversation AND e.seq < h.last_seq AND NOT e.conversation = ANY($2) \
       RETURNING e.conversation), \
     left_ones AS (SELECT h.conversation, h.last_seq FROM heads h JOIN entries n ON n.part = 0 \
       AND n.conversation = h.conversation AND n.seq = h.last_seq WHERE h.conversation IN (SELECT conversation FROM gone)), \
     m AS (UPDATE chapters SET first_seq = l.last_seq FROM left_ones l \
       WHERE part = 0 AND chapters.conversation = l.conversation), \
     c AS (DELETE FROM chapters WHERE part = 0 AND conversation IN (SELECT conversation FROM gone) \
       AND conversation NOT IN (SELECT conversation FROM left_ones)) \
     SELECT conversation FROM gone";
/// Moves the newest entries of conversations from a partition to partition 0, and all entries of exceptions.
const KEEP: &str = "WITH kept AS (INSERT INTO entries (conversation, seq, part, position, at, content) \
       SELECT e.conversation, e.seq, 0, e.position, e.at, e.content FROM chapters c \
       JOIN heads h ON h.conversation = c.conversation \
       JOIN entries e ON e.part = $1 AND e.conversation = c.conversation AND (e.seq = h.last_seq OR e.conversation = ANY($2)) \
       WHERE c.part = $1 RETURNING conversation, seq), \
     c AS (INSERT INTO chapters (conversation, part, first_seq) SELECT conversation, 0, min(seq) FROM kept \
       GROUP BY conversation ON CONFLICT DO NOTHING) \
     SELECT conversation FROM kept";
const SWEEP_SENDS: &str = "DELETE FROM dedupe d WHERE d.position > $1 AND d.position <= $2 AND NOT EXISTS \
     (SELECT FROM chapters c WHERE c.conversation = d.conversation AND c.first_seq <= d.seq)";
