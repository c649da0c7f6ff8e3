//! The commit log: the commit order read back, and the nodes that share it, with their leases.

use super::{
    PostgresStore,
    clock::now_ms,
    commit_orders::{Cut, local_through, position_of},
    connection::{bigint, number},
    node_settings::FORGET,
    read::rows_max,
    read_place::Read,
};
use crate::{
    epoch::fresh_epoch,
    rows::{decode_change, decode_content, decode_node, encode_node},
};
use std::{collections::BTreeMap, sync::atomic::Ordering};
use tidings_domain::{
    commit_log::*,
    function::Function,
    gates::Gate,
    installation::InstallationId,
    model::*,
    node_settings::{KnownSettings, NodeSettings},
    store::*,
};
use tokio_postgres::Row;

const ENTRIES: &str = "SELECT position, conversation, seq, at, content FROM entries \
     WHERE position > $1 AND position <= $2 ORDER BY position LIMIT $3";
const CHANGES: &str =
    "SELECT position, change, at FROM changes WHERE position > $1 AND position <= $2 ORDER BY position LIMIT $3";
/// The same of several ranges of positions of orders.
const CUT_ENTRIES: &str = "SELECT e.position, e.conversation, e.seq, e.at, e.content \
     FROM unnest($1::bigint[], $2::bigint[]) AS k (after, through) CROSS JOIN LATERAL \
     (SELECT position, conversation, seq, at, content FROM entries WHERE position > k.after AND position <= k.through) e";
const CUT_CHANGES: &str = "SELECT c.position, c.change, c.at FROM unnest($1::bigint[], $2::bigint[]) AS k (after, through) \
     CROSS JOIN LATERAL (SELECT position, change, at FROM changes WHERE position > k.after AND position <= k.through) c";
/// Renews a node's lease. A node's name is given to a process that starts ($5) and then stays with that process.
const BEAT: &str = "INSERT INTO nodes (name, boot_id, card, lease_until) \
     VALUES ($1, $2, $3, now() + $4 * interval '1 millisecond') ON CONFLICT (name) DO UPDATE \
     SET boot_id = excluded.boot_id, card = excluded.card, lease_until = excluded.lease_until \
     WHERE nodes.boot_id = excluded.boot_id OR $5 RETURNING 1";
/// Renews the leases by which a node leads, and takes those of the functions $3 that have ended. While one row stands for all
/// functions, whoever may take any takes it. The number of a new term is the time in milliseconds, unless the term before had a
/// higher one: a database that has gone back does not give out the terms that it lost once more.
const LEAD: &str = concat!(
    "UPDATE leader SET term = CASE WHEN boot_id = $1 THEN term ELSE greatest(term + 1, ",
    now_ms!(),
    ") END, boot_id = $1, lease_until = now() + $2 * interval '1 millisecond' \
     WHERE boot_id = $1 \
     OR lease_until < now() AND (function = ANY ($3::text[]) OR NOT is_split AND cardinality($3::text[]) > 0)"
);
const LEADERS: &str = "SELECT function, boot_id, term, lease_until >= now() AND boot_id <> 0 FROM leader";
/// Gives the functions $2 leases of their own, which the leader holds as it does the one under which they were led. A write that
/// began before and waits for the row is refused then, and finds its function's row at the next attempt.
const SPLIT: &str = "WITH first AS (UPDATE leader SET is_split = true, \
       also_for = array(SELECT unnest(also_for) EXCEPT SELECT unnest($2::text[])) \
     WHERE function = 'push' AND boot_id = $1 AND (NOT is_split OR also_for && $2::text[]) RETURNING boot_id, lease_until, term) \
     INSERT INTO leader (function, boot_id, lease_until, term, is_split) \
     SELECT f, boot_id, lease_until, term, true FROM first, unnest($2::text[]) f";
/// A node without a lease cannot take over: its lease as the leader would only delay others.
const HAND_OVER: &str = concat!(
    "UPDATE leader SET term = greatest(term + 1, ",
    now_ms!(),
    "), boot_id = $2, lease_until = now() + $3 * interval '1 millisecond' \
     WHERE function = $4 AND is_split AND boot_id = $1 \
     AND EXISTS (SELECT FROM nodes WHERE boot_id = $2 AND lease_until >= now()) RETURNING 1"
);
const NODES: &str = "SELECT card, name, boot_id FROM nodes WHERE lease_until >= now() ORDER BY name";
const GATES: &str = "SELECT name FROM gates ORDER BY name";
/// Opens the gates $1, if only the nodes $2 live. With the first one, programs that do not know gates cannot go on.
const OPEN_GATES: &str = "WITH g AS (INSERT INTO gates (name) SELECT unnest($1::text[]) \
     WHERE NOT EXISTS (SELECT FROM nodes WHERE lease_until >= now() AND boot_id <> ALL ($2::bigint[])) \
     ON CONFLICT DO NOTHING RETURNING 1) \
     UPDATE migrations SET needs_program = version WHERE name = 'gates' AND EXISTS (SELECT FROM g)";
const HOLDER: &str = "SELECT card FROM nodes WHERE name = $1 AND lease_until >= now()";
const GOODBYE: &str = "WITH l AS (UPDATE leader SET lease_until = now() - interval '1 millisecond' WHERE boot_id = $1) \
     DELETE FROM nodes WHERE boot_id = $1";
/// Changes that one statement removes: some ten milliseconds of work.
const PRUNED_PER_STATEMENT: i64 = 10_000;
const PRUNED_OF_AN_ORDER: i64 = 1_000;
/// The newest positions whose changes are kept, however old they seem: clocks err, and a follower that is nearly up to date
/// must find the next change.
const NEVER_PRUNED: i64 = 10_000;
/// Removes changes from where the last removal ended up to the first change that is too young, so that the remaining
/// changes have no hole.
const PRUNE: &str = concat!(
    "WITH chunk AS MATERIALIZED (SELECT c.position, c.at FROM changes c \
       WHERE c.position > (SELECT changes_pruned FROM history) \
       AND c.position <= (SELECT position FROM counters) - $2::bigint ORDER BY c.position LIMIT $3::bigint), \
     young AS (SELECT min(position) AS position FROM chunk WHERE at >= ",
    now_ms!(),
    " - $1::bigint), \
     gone AS (DELETE FROM changes c USING chunk p, young y \
       WHERE c.position = p.position AND (y.position IS NULL OR p.position < y.position) RETURNING c.position), \
     h AS (UPDATE history SET changes_pruned = greatest(changes_pruned, (SELECT max(position) FROM gone)) \
       WHERE EXISTS (SELECT FROM gone)) SELECT count(*) FROM gone"
);

/// The same of several orders: so many changes of each are looked at, up to the first one that is too young, or the last of these.
const PRUNE_ORDERS: &str = concat!(
    "WITH chunk AS MATERIALIZED (SELECT c.position AS local, p.position, c.at, c.n FROM (SELECT changes_pruned AS after FROM history) d \
       CROSS JOIN orders r CROSS JOIN LATERAL (SELECT position, at, row_number() OVER (ORDER BY position) AS n FROM changes \
         WHERE position > ",
    local_through!("r.ord", "d.after"),
    " AND position < (r.ord::bigint + 1) << 48 ORDER BY position LIMIT $3::bigint) c CROSS JOIN LATERAL (SELECT ",
    position_of!("c.position"),
    " AS position) p), \
     young AS (SELECT min(position) AS position FROM chunk WHERE n = $3::bigint \
       OR position > (SELECT position FROM counters) - $2::bigint OR at >= ",
    now_ms!(),
    " - $1::bigint), \
     gone AS (DELETE FROM changes c USING chunk p, young y WHERE c.position = p.local AND p.position IS NOT NULL \
       AND (y.position IS NULL OR p.position < y.position) RETURNING p.position), \
     h AS (UPDATE history SET changes_pruned = greatest(changes_pruned, (SELECT max(position) FROM gone)) \
       WHERE EXISTS (SELECT FROM gone)) SELECT count(*) FROM gone"
);

/// A server that takes another's place has begun at another moment, to the microsecond; so has one that came back.
const STAND: &str = "SELECT c.position, (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, h.epoch \
     FROM counters c, history h";

/// A boot id as the database holds it: all of its bits.
pub(super) fn boot(id: u64) -> i64 {
    id as i64
}

/// The row of this function's own lease, of these rows of `LEADERS`.
fn row_of(rows: &[Row], function: Function) -> Option<&Row> {
    rows.iter().find(|row| row.get::<_, &str>(0) == function.name())
}

/// The functions with leases of their own, of these rows of `LEADERS`.
fn leased(rows: &[Row]) -> Vec<Function> {
    Function::ALL.into_iter().filter(|function| row_of(rows, *function).is_some()).collect()
}

fn names(functions: &[Function]) -> Vec<&'static str> {
    functions.iter().map(|function| function.name()).collect()
}

impl PostgresStore {
    /// The leaders whose leases run, of these rows of `LEADERS`. A function without a row is led under the lease of the first.
    /// Functions that this program does not know are passed over.
    fn leaders(&self, own_boot_id: i64, rows: &[Row]) -> Vec<Leader> {
        self.terms.note_rows_of(&leased(rows));
        let mut leaders = Vec::with_capacity(Function::COUNT);
        for function in Function::ALL {
            let row = row_of(rows, function).or_else(|| row_of(rows, Function::ALL[0]));
            let Some(row) = row.filter(|row| row.get(3)) else { continue };
            let leader: i64 = row.get(1);
            let term = Term { function, number: number(row, 2) };
            let term = self.terms.on_heartbeat(own_boot_id, leader, term);
            leaders.push(Leader { boot_id: leader as u64, term });
        }
        leaders
    }

    /// Gives functions whose gates are open leases of their own, if this process leads them under that of the first; answers the rows
    /// of `LEADERS` then.
    fn split_leases(&self, own_boot_id: i64, rows: Vec<Row>, open_gates: &[String]) -> StoreResult<Vec<Row>> {
        let is_open = |gate: Gate| open_gates.iter().any(|open| open == gate.name());
        let leads = row_of(&rows, Function::ALL[0]).is_some_and(|first| first.get::<_, i64>(1) == own_boot_id);
        if !leads || !is_open(Gate::FunctionLeases) {
            return Ok(rows);
        }
        let is_due = |function: &Function| row_of(&rows, *function).is_none() && is_open(Gate::of_lease(*function));
        let due: Vec<Function> = Function::ALL.into_iter().filter(is_due).collect();
        if due.is_empty() {
            return Ok(rows);
        }
        self.query(SPLIT, &[&own_boot_id, &names(&due)])?;
        self.query(LEADERS, &[])
    }

    /// The records after a position; the reads are those of the entries and of the changes.
    pub(super) fn log_page(
        &self,
        [entries, changes]: [Read; 2],
        after: Position,
        limit: usize,
    ) -> StoreResult<LogPage> {
        // Read first: positions become visible in order, so the next statements see at least all entries and changes up to
        // this one.
        let newest = self.newest_followed()?;
        if newest <= after {
            return Ok(LogPage { span: PositionRange { after, through: after }, records: vec![] });
        }
        let read = if self.orders.are_one() { Self::read_log } else { Self::read_cut_log };
        let (mut rows, through) =
            read(self, [entries, changes], PositionRange { after, through: newest }, limit.max(1))?;
        // Read last, so that it shows changes that were removed while the others were read.
        let pruned = self.query("SELECT changes_pruned FROM history", &[])?.first().map_or(0, |row| number(row, 0));
        if after < pruned {
            return Err(StoreError::Pruned(format!(
                "changes behind position {after} are removed up to {pruned}: this node was away for too long"
            )));
        }
        let mut records: BTreeMap<Position, LogRecord> = BTreeMap::new();
        for (position, row) in std::mem::take(&mut rows.entries) {
            let entry = decode_content(number(&row, 2), position, number(&row, 3), row.get(4))?;
            let entry = Some((ConversationNo(number(&row, 1)), entry));
            records.insert(position, LogRecord { position, entry, change: None, changed_at: 0 });
        }
        for (position, row) in rows.changes {
            let empty = LogRecord { position, entry: None, change: None, changed_at: 0 };
            let record = records.entry(position).or_insert(empty);
            (record.change, record.changed_at) = (Some(decode_change(row.get(1))?), number(&row, 2));
        }
        let records = records.into_values().filter(|record| record.position <= through).collect();
        Ok(LogPage { span: PositionRange { after, through }, records })
    }
}

/// Rows of the log, with their positions.
struct LogRows {
    entries: Vec<(Position, Row)>,
    changes: Vec<(Position, Row)>,
}

impl PostgresStore {
    /// Reads a range of the log; answers how far the rows reach.
    fn read_log(
        &self,
        [entries, changes]: [Read; 2],
        span: PositionRange,
        limit: usize,
    ) -> StoreResult<(LogRows, Position)> {
        let (from, to) = (bigint(span.after), bigint(span.through));
        let mut through = span.through;
        let mut read = |read, sql| {
            let rows = self.read(read, sql, &[&from, &to, &rows_max(limit)])?;
            if let Some(last) = rows.last().filter(|_| rows.len() == limit) {
                through = through.min(number(last, 0));
            }
            Ok::<_, StoreError>(rows.into_iter().map(|row| (number(&row, 0), row)).collect())
        };
        Ok((LogRows { entries: read(entries, ENTRIES)?, changes: read(changes, CHANGES)? }, through))
    }

    /// The same of a log of several orders, cut by cut.
    fn read_cut_log(
        &self,
        [entries, changes]: [Read; 2],
        span: PositionRange,
        limit: usize,
    ) -> StoreResult<(LogRows, Position)> {
        let cuts = self.cuts_after(span.after, span.through, limit)?;
        let column = |of: fn(&Cut) -> u64| cuts.iter().map(|cut| bigint(of(cut))).collect::<Vec<_>>();
        let (after, through) = (column(|cut| cut.local_through - cut.count), column(|cut| cut.local_through));
        let read = |read, sql| {
            let rows = self.read(read, sql, &[&after, &through])?;
            let globals = self.globals_in(&rows, 0)?;
            Ok::<_, StoreError>(rows.into_iter().filter_map(|row| Some((globals.at(&row, 0)?, row))).collect())
        };
        let reached = cuts.last().map_or(span.through, |cut| cut.through);
        Ok((LogRows { entries: read(entries, CUT_ENTRIES)?, changes: read(changes, CUT_CHANGES)? }, reached))
    }
}

impl CommitLog for PostgresStore {
    fn committed_after(&self, after: Position, limit: usize) -> StoreResult<LogPage> {
        self.log_page([Read::FollowedEntries, Read::FollowedChanges], after, limit)
    }

    fn newest_position(&self) -> StoreResult<Position> {
        self.fetch_position()
    }

    fn log_head(&self) -> StoreResult<LogHead> {
        let rows = self.query(STAND, &[])?;
        let [newest, server, epoch] = [0, 1, 2].map(|column| rows.first().map_or(0, |row| number(row, column)));
        // Another node found that the history is another one.
        self.epoch.store(epoch, Ordering::Release);
        Ok(LogHead { newest, server })
    }

    fn known_epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    fn bump_epoch(&self, lost: u64) -> StoreResult<()> {
        let fresh = fresh_epoch();
        self.query("UPDATE history SET epoch = $2 WHERE epoch = $1", &[&bigint(lost), &bigint(fresh)])?;
        self.log_head().map(drop)
    }

    fn prune(&self, older_than_ms: u64) -> StoreResult<PruneProgress> {
        let is_one = self.orders.are_one();
        let (sql, at_once) = if is_one { (PRUNE, PRUNED_PER_STATEMENT) } else { (PRUNE_ORDERS, PRUNED_OF_AN_ORDER) };
        let rows = self.query(sql, &[&bigint(older_than_ms), &NEVER_PRUNED, &at_once])?;
        let removed = rows.first().map_or(0, |row| number(row, 0));
        Ok(PruneProgress { removed, more: if is_one { removed == at_once as u64 } else { removed > 0 } })
    }

    fn heartbeat(
        &self,
        me: &NodeInfo,
        lease_ms: u64,
        takes: &[Function],
        takes_name: bool,
    ) -> Result<ClusterView, HeartbeatError> {
        let (id, lease) = (boot(me.boot_id), lease_ms as f64);
        let taken = self.query(BEAT, &[&me.name, &id, &encode_node(me), &lease, &takes_name])?;
        if taken.is_empty() {
            return Err(HeartbeatError::Displaced);
        }
        self.query(LEAD, &[&id, &lease, &names(takes)])?;
        let leases = self.query(LEADERS, &[])?;
        let open_gates: Vec<String> = self.query(GATES, &[])?.iter().map(|row| row.get(0)).collect();
        let leases = self.split_leases(id, leases, &open_gates)?;
        let leaders = self.leaders(id, &leases);
        let node = |row: &Row| {
            let (name, boot_id) = (row.get(1), row.get::<_, i64>(2) as u64);
            // A later version may describe itself in another form: it is a node all the same.
            decode_node(row.get(0)).unwrap_or_else(|_| NodeInfo { name, boot_id, ..NodeInfo::default() })
        };
        let nodes = self.query(NODES, &[])?.iter().map(node).collect();
        Ok(ClusterView { nodes, leaders, leased: leased(&leases), open_gates })
    }

    fn hand_over(&self, function: Function, from: u64, to: u64, lease_ms: u64) -> StoreResult<bool> {
        let (from, to, lease) = (boot(from), boot(to), lease_ms as f64);
        Ok(!self.write_statement(HAND_OVER, &[&from, &to, &lease, &function.name()])?.is_empty())
    }

    fn open_gates(&self, gates: &[&'static str], known_by: &[u64]) -> StoreResult<()> {
        let known_by: Vec<i64> = known_by.iter().copied().map(boot).collect();
        self.query(OPEN_GATES, &[&gates, &known_by]).map(drop)
    }

    fn name_holder(&self, name: &str) -> StoreResult<Option<NodeInfo>> {
        self.query(HOLDER, &[&name])?.first().map(|row| decode_node(row.get(0))).transpose()
    }

    fn installation(&self) -> InstallationId {
        self.installation
    }

    fn put_node_settings(&self, boot_id: u64, settings: &NodeSettings) -> StoreResult<()> {
        self.put_settings(boot(boot_id), settings)
    }

    fn node_settings(&self) -> StoreResult<KnownSettings> {
        self.read_settings()
    }

    fn has_life_signs(&self) -> bool {
        true
    }

    fn life_signs(&self, boot_id: u64) -> StoreResult<LifeSigns> {
        self.look_at_life_signs(boot_id)
    }

    fn succeed(&self, boot_id: u64, lease_ms: u64, lost: LeaderSign) -> StoreResult<bool> {
        self.succeed_leader(boot_id, lease_ms, lost)
    }

    fn release_lease(&self, boot_id: u64) -> StoreResult<()> {
        self.query(GOODBYE, &[&boot(boot_id)])?;
        self.query(FORGET, &[&boot(boot_id)]).map(drop)
    }
}
