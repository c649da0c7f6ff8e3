//! The timeline's parts: tables of some days each, made ahead of need and dropped whole when all in them is old.
//!
//! A conversation keeps its newest entry, whatever its age: before a part goes, such entries move to part 0.
//! What is dropped costs as much as there are conversations in it, not entries.

use super::{
    PostgresStore,
    connection::{Connection, Failure, Use, number, stored},
    migrations::LOCK_KEY,
};
use crate::commit::{DAY_MS, day_of};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use tidings_engine::store::{Retention, StoreResult};

/// The part of entries whose own part is gone.
const KEPT: i32 = 0;
/// Positions that one statement sweeps first results of.
const SWEPT_AT_ONCE: u64 = 20_000;

pub(crate) struct Parts {
    days: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    there: BTreeSet<i32>,
    /// Met without being there, or about to be needed.
    wanted: BTreeSet<i32>,
}

impl Parts {
    pub(crate) fn new(days: u64) -> Parts {
        Parts { days, state: Mutex::default() }
    }

    pub(crate) fn days(&self) -> u64 {
        self.days
    }

    /// The part of an entry of this time.
    pub(crate) fn of(&self, at_ms: u64) -> i32 {
        i32::try_from(day_of(at_ms) / self.days).map_or(i32::MAX, |part| part.saturating_add(1))
    }

    /// When a part is over.
    fn end_of(&self, part: i32) -> u64 {
        u64::try_from(part).unwrap_or(0).saturating_mul(self.days * DAY_MS)
    }

    /// Makes the part of this time and the next one, so that no commit waits for a table at midnight.
    pub(crate) async fn ensure(&self, connection: &Connection, now_ms: u64) -> Result<(), Failure> {
        let now = self.of(now_ms);
        let missing: Vec<i32> = {
            let state = self.state.lock();
            let needed = [now, now.saturating_add(1)].into_iter().chain(state.wanted.iter().copied());
            needed.filter(|part| !state.there.contains(part)).collect()
        };
        for part in missing {
            connection.batch(&make_part(part)).await?;
            let mut state = self.state.lock();
            state.wanted.remove(&part);
            state.there.insert(part);
        }
        Ok(())
    }

    /// One of these was not there when it was written to: another node dropped it, or a clock ran ahead.
    pub(crate) fn miss(&self, parts: impl Iterator<Item = i32>) {
        let mut state = self.state.lock();
        state.there.clear();
        state.wanted.extend(parts);
    }
}

/// Attached rather than made in place, which would stop all readers.
fn make_part(part: i32) -> String {
    format!(
        "SELECT pg_advisory_xact_lock({LOCK_KEY}); \
         DO $$ BEGIN IF to_regclass('tidings.entries_{part}') IS NULL THEN \
         CREATE TABLE entries_{part} (LIKE entries INCLUDING ALL); \
         ALTER TABLE entries ATTACH PARTITION entries_{part} FOR VALUES IN ({part}); \
         END IF; END $$"
    )
}

/// What is known of a part without looking into it.
struct Part {
    part: i32,
    entries: u64,
    bytes: u64,
    last_position: u64,
}

impl PostgresStore {
    fn parts_there(&self) -> StoreResult<Vec<Part>> {
        let rows = self.query("SELECT part, entries, bytes, last_position FROM parts ORDER BY part", &[])?;
        let part = |row: &tokio_postgres::Row| Part {
            part: row.get(0),
            entries: number(row, 1),
            bytes: number(row, 2),
            last_position: number(row, 3),
        };
        Ok(rows.iter().map(part).collect())
    }

    /// Whole parts go: by age once the last of their days is too old, by size the oldest first, today's never.
    pub(crate) fn remove_old(&self, retention: Retention, now_ms: u64) -> StoreResult<u64> {
        let parts = self.parts_there()?;
        let Some(newest) = parts.iter().rfind(|part| part.entries > 0).map(|part| part.part) else { return Ok(0) };
        let kept_from = retention.kept_from(now_ms, self.parts.end_of(newest));
        let mut first_kept = kept_from.map_or(KEPT, |at_ms| self.parts.of(at_ms));
        let mut bytes: u64 = parts.iter().map(|part| part.bytes).sum();
        // Nor the newest part: by a clock that is ahead, today's is long over.
        for part in parts.iter().filter(|part| part.part < newest.min(self.parts.of(now_ms))) {
            if bytes <= retention.bytes_max.unwrap_or(u64::MAX) {
                break;
            }
            bytes -= part.bytes;
            first_kept = first_kept.max(part.part + 1);
        }
        let mut removed = 0;
        let mut through = 0;
        for part in parts.iter().filter(|part| part.part < first_kept) {
            removed += self.drop_part(part)?;
            through = part.last_position;
        }
        self.sweep_sends(through)?;
        Ok(removed)
    }

    /// Answers how many entries went.
    fn drop_part(&self, part: &Part) -> StoreResult<u64> {
        let removed = self.connector.block_on(async {
            // A connection of its own: what it waits for must hold up neither commits nor reads.
            let connection = self.connector.connect(Use::Commit).await?;
            // All of a table's rows are looked at here, unlike anywhere else.
            let set_up = "BEGIN; SET LOCAL enable_seqscan = on; SET LOCAL enable_hashjoin = on; \
                          SET LOCAL plan_cache_mode = auto; SET LOCAL lock_timeout = 1000";
            connection.batch(set_up).await?;
            connection.query("SELECT pg_advisory_xact_lock($1)", &[&LOCK_KEY]).await?;
            if connection.query("DELETE FROM parts WHERE part = $1 RETURNING part", &[&part.part]).await?.is_empty() {
                // Another node was here first.
                return Ok(0);
            }
            let swept = connection.query(DROP_KEPT, &[]).await?.len() as u64;
            let kept = connection.query(KEEP_NEWEST, &[&part.part]).await?.len() as u64;
            connection.query("DELETE FROM chapters WHERE part = $1", &[&part.part]).await?;
            // Last, for from here on nobody reads or writes the timeline until the commit.
            let number = part.part;
            connection
                .batch(&format!("ALTER TABLE entries DETACH PARTITION entries_{number}; DROP TABLE entries_{number}"))
                .await?;
            connection.batch("COMMIT").await?;
            Ok(part.entries.saturating_sub(kept) + swept)
        });
        self.parts.state.lock().there.remove(&part.part);
        removed.map_err(|failure: Failure| failure.into())
    }

    /// Removes first results of entries that are gone, up to this position. They no longer count as it is; this is for
    /// the room that they take.
    fn sweep_sends(&self, through: u64) -> StoreResult<()> {
        let rows = self.query("SELECT dedupe_swept FROM history", &[])?;
        let mut swept = rows.first().map_or(0, |row| number(row, 0));
        while swept < through {
            let next = through.min(swept + SWEPT_AT_ONCE);
            self.query(SWEEP_SENDS, &[&stored(swept), &stored(next)])?;
            self.query("UPDATE history SET dedupe_swept = greatest(dedupe_swept, $1)", &[&stored(next)])?;
            swept = next;
        }
        Ok(())
    }
}

/// Entries that were kept as the newest of their conversation, and are no longer.
const DROP_KEPT: &str = "WITH gone AS (DELETE FROM entries e USING heads h \
       WHERE e.part = 0 AND h.conversation = e.conversation AND e.seq < h.last_seq RETURNING e.conversation), \
     c AS (DELETE FROM chapters USING gone WHERE part = 0 AND chapters.conversation = gone.conversation) \
     SELECT conversation FROM gone";
const KEEP_NEWEST: &str = "WITH kept AS (INSERT INTO entries (conversation, seq, part, position, at, content) \
       SELECT e.conversation, e.seq, 0, e.position, e.at, e.content FROM chapters c \
       JOIN heads h ON h.conversation = c.conversation \
       JOIN entries e ON e.part = $1 AND e.conversation = c.conversation AND e.seq = h.last_seq \
       WHERE c.part = $1 RETURNING conversation, seq), \
     c AS (INSERT INTO chapters (conversation, part, first_seq) SELECT conversation, 0, seq FROM kept) \
     SELECT conversation FROM kept";
const SWEEP_SENDS: &str = "DELETE FROM dedupe d WHERE d.position > $1 AND d.position <= $2 AND NOT EXISTS \
     (SELECT FROM chapters c WHERE c.conversation = d.conversation AND c.first_seq <= d.seq)";
