//! The commit order, read back; and the nodes that share it, with their leases.

use super::{
    PostgresStore,
    connection::{number, stored},
};
use crate::rows::{decode, decode_content, encode};
use std::collections::BTreeMap;
use tidings_engine::{cluster::log::*, model::*, store::*};

const ENTRIES: &str = "SELECT position, conversation, seq, at, content FROM entries \
     WHERE position > $1 AND position <= $2 ORDER BY position LIMIT $3";
const CHANGES: &str =
    "SELECT position, change FROM changes WHERE position > $1 AND position <= $2 ORDER BY position LIMIT $3";
/// A name goes to a process that starts, and stays with the one that had it last.
const BEAT: &str = "INSERT INTO nodes (name, boot_id, card, lease_until) \
     VALUES ($1, $2, $3, now() + $4 * interval '1 millisecond') ON CONFLICT (name) DO UPDATE \
     SET boot_id = excluded.boot_id, card = excluded.card, lease_until = excluded.lease_until \
     WHERE nodes.boot_id = excluded.boot_id OR $5 RETURNING 1";
const LEAD: &str = "UPDATE leader SET \
     term = term + CASE WHEN boot_id = $1 THEN 0 ELSE 1 END, boot_id = $1, lease_until = now() + $2 * interval '1 millisecond' WHERE $3 AND (boot_id = $1 OR lease_until < now())";
const LEADER: &str = "SELECT boot_id, term FROM leader WHERE lease_until >= now() AND boot_id <> 0";
const NODES: &str = "SELECT card FROM nodes WHERE lease_until >= now() ORDER BY name";
const GOODBYE: &str = "WITH l AS (UPDATE leader SET lease_until = now() - interval '1 millisecond' WHERE boot_id = $1) \
     DELETE FROM nodes WHERE boot_id = $1";
const PRUNE: &str = "WITH gone AS (DELETE FROM changes WHERE position IN \
     (SELECT position FROM changes WHERE at < $1 ORDER BY position LIMIT 10000) RETURNING position), \
     h AS (UPDATE history SET changes_pruned = greatest(changes_pruned, (SELECT max(position) FROM gone)) \
     WHERE EXISTS (SELECT FROM gone)) SELECT count(*) FROM gone";

/// A boot id as the database holds it: all of its bits.
fn boot(id: u64) -> i64 {
    id as i64
}

impl CommitLog for PostgresStore {
    fn committed_after(&self, after: Position, limit: usize) -> StoreResult<Stretch> {
        // Read first: what the next statements see goes at least so far, for positions become visible in order.
        let newest = self.fetch_position()?;
        if newest <= after {
            return Ok(Stretch { span: Span { after, through: after }, logged: vec![] });
        }
        let rows_max = i64::try_from(limit.max(1)).unwrap_or(i64::MAX);
        let (from, to) = (stored(after), stored(newest));
        let entries = self.query(ENTRIES, &[&from, &to, &rows_max])?;
        let changes = self.query(CHANGES, &[&from, &to, &rows_max])?;
        // Asked last: what was removed while the others were read counts.
        let pruned = self.query("SELECT changes_pruned FROM history", &[])?.first().map_or(0, |row| number(row, 0));
        if after < pruned {
            return Err(StoreError::Damaged(format!(
                "changes behind position {after} are removed up to {pruned}: this node was away for too long"
            )));
        }
        let mut through = newest;
        for rows in [&entries, &changes] {
            if let Some(last) = rows.last().filter(|_| rows.len() == limit.max(1)) {
                through = through.min(number(last, 0));
            }
        }
        let mut logged: BTreeMap<Position, Logged> = BTreeMap::new();
        for row in &entries {
            let position = number(row, 0);
            let entry = decode_content(number(row, 2), position, number(row, 3), row.get(4))?;
            let entry = Some((ConversationNo(number(row, 1)), entry));
            logged.insert(position, Logged { position, entry, change: None });
        }
        for row in &changes {
            let position = number(row, 0);
            let at = logged.entry(position).or_insert(Logged { position, entry: None, change: None });
            at.change = Some(decode::<Change>(row.get(1))?);
        }
        let logged = logged.into_values().filter(|logged| logged.position <= through).collect();
        Ok(Stretch { span: Span { after, through }, logged })
    }

    fn newest_position(&self) -> StoreResult<Position> {
        self.fetch_position()
    }

    fn prune(&self, older_than_ms: u64, now_ms: u64) -> StoreResult<u64> {
        let rows = self.query(PRUNE, &[&stored(now_ms.saturating_sub(older_than_ms))])?;
        Ok(rows.first().map_or(0, |row| number(row, 0)))
    }

    fn beat(&self, me: &Member, lease_ms: u64, may_lead: bool, took: bool) -> Result<Beat, BeatError> {
        let (id, lease) = (boot(me.boot_id), lease_ms as f64);
        let taken = self.query(BEAT, &[&me.name, &id, &encode(me), &lease, &took])?;
        if taken.is_empty() {
            return Err(BeatError::Displaced);
        }
        self.query(LEAD, &[&id, &lease, &may_lead])?;
        let leads = self.query(LEADER, &[])?.first().map(|row| (row.get::<_, i64>(0) as u64, Term(number(row, 1))));
        let (leader, term) = leads.map_or_else(Default::default, |(leader, term)| (Some(leader), term));
        let members =
            self.query(NODES, &[])?.iter().map(|row| decode::<Member>(row.get(0))).collect::<Result<_, _>>()?;
        Ok(Beat { members, leader, term })
    }

    fn goodbye(&self, boot_id: u64) -> StoreResult<()> {
        self.query(GOODBYE, &[&boot(boot_id)]).map(drop)
    }
}
