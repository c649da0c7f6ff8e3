//! Several orders of commits in one database, and the one commit order that is laid over them.
//!
//! ```text
//! order 0   ▪▪▪▪▪│▪▪│▪▪▪▪            a transaction takes positions of one order, and holds up that order alone
//! order 1     ▪▪▪│  │▪▪▪▪▪▪▪
//!                │  │      └ committed, not cut yet: the next cut takes it
//!                cuts: what each order has committed since the last one, one order after the other
//! ```
//! A cut is a short transaction of its own. It looks how far each order has come, and gives what is new there the next positions of
//! the one commit order, which everybody outside this module means by a position. Rows of the log hold the positions of their
//! orders ("local"): whoever reads one looks up its cut ([`Globals`]).
//!
//! A commit is done when it is cut. Transactions of orders wait for no disk and no standby: those are waited for by the cut, which comes
//! behind them in PostgreSQL's log, for all nodes whose commits it has. Until then nobody is shown their entries: a read passes over
//! what has no position yet. Of a node that ends in between, the next cut takes the commits, whoever makes it; if nobody commits, one of
//! those who follow the log does ([`PostgresStore::newest_followed`]).
//!
//! A database of one order has no cuts, and its rows hold positions as they are.

use super::{
    PostgresStore,
    connection::{Call, Connection, Connector, Purpose, bigint, number},
    failure::{Failure, failure_text},
    shared_rounds::SharedRounds,
};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};
use tidings_domain::{
    model::{ConversationNo, Position},
    store::{Orders, PositionRange, StoreError, StoreResult},
};
use tokio_postgres::Row;

/// The number of an order is in the bits of its positions from here on.
pub(crate) const ORDER_SHIFT: u32 = 48;
/// The cuts of each order that are kept in memory.
const KNOWN_CUTS_MAX: usize = 4_096;
/// How often a cut is tried whose connection breaks: it may be made twice.
const CUT_ATTEMPTS_MAX: usize = 3;
/// How far the clocks of nodes may differ.
const CLOCKS_DIFFER_MS: u64 = 10 * 60 * 1_000;

/// How far the order `$ord` is in the commit order through `$position`: the local position.
macro_rules! local_through {
    ($ord:literal, $position:literal) => {
        concat!(
            "coalesce((SELECT c.local_through - CASE WHEN ",
            $position,
            " > c.through - c.count THEN c.through - ",
            $position,
            " ELSE c.count END FROM cuts c WHERE c.local_through >> 48 = ",
            $ord,
            " AND c.through >= ",
            $position,
            " ORDER BY c.through LIMIT 1), (SELECT c.local_through FROM cuts c WHERE c.local_through >> 48 = ",
            $ord,
            " ORDER BY c.through DESC LIMIT 1), ",
            $ord,
            "::bigint << 48)"
        )
    };
}
pub(crate) use local_through;

/// Waits for the cut that is under way. A lock of a row would be written to the log, also by those who find that this cut has what they
/// want: each would wait for the disk, one after the other.
const LOCK: &str = "LOCK TABLE cutting IN EXCLUSIVE MODE";
/// Cuts what every order has committed, unless all that is wanted ($1, local positions) is cut. The statement begins when no other is
/// under way, and sees the cuts before it.
const CUT: &str = "WITH fresh AS MATERIALIZED (SELECT o.ord, o.position AS local_through, o.position - c.cuts[o.ord + 1] AS count, c.position \
       FROM counters c, orders o WHERE o.position > c.cuts[o.ord + 1] \
       AND EXISTS (SELECT FROM unnest($1::bigint[]) AS w (local) WHERE c.cuts[(w.local >> 48) + 1] < w.local)), \
     placed AS MATERIALIZED (SELECT local_through, count, \
       (position + sum(count) OVER (ORDER BY ord))::bigint AS through FROM fresh), \
     i AS (INSERT INTO cuts (through, local_through, count, at) SELECT through, local_through, count, $2 FROM placed), \
     u AS (UPDATE counters SET position = (SELECT max(through) FROM placed), cut_through = (SELECT max(through) FROM placed), \
       cuts = ARRAY(SELECT position FROM orders ORDER BY ord) WHERE EXISTS (SELECT FROM placed)) \
     SELECT through, local_through, count FROM placed";
const WAITS_FOR_STANDBYS: &str = "SELECT current_setting('synchronous_standby_names') <> ''";
/// Writes to the log, and so waits until the disk and the standbys have all that is before. It does so without the lock: nodes wait
/// together.
const FLUSH: &str = "SELECT FROM pg_logical_emit_message(true, 'tidings', '')";
/// The newest position, how far orders have committed that are not cut so far, how far each is cut, and when the server began: one that
/// takes another's place may have lost cuts.
const NEWEST: &str = "SELECT c.position, ARRAY(SELECT o.position FROM orders o WHERE o.position > c.cuts[o.ord + 1]), \
     c.cuts, (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint FROM counters c";
/// The cuts that have these local positions.
const CUTS_OF: &str = "SELECT c.through, c.local_through, c.count FROM unnest($1::bigint[]) AS k (local) CROSS JOIN LATERAL \
     (SELECT through, local_through, count FROM cuts WHERE local_through >= k.local ORDER BY local_through LIMIT 1) c \
     WHERE k.local > c.local_through - c.count";
/// The cuts behind a position, in their order.
const CUTS_AFTER: &str =
    "SELECT through, local_through, count FROM cuts WHERE through > $1 AND through <= $2 ORDER BY through LIMIT $3";
/// The time of the commits in the first cut behind a position.
const CUT_AT: &str = "SELECT at FROM cuts WHERE through > $1 ORDER BY through LIMIT 1";
const LOCALS: &str = concat!(
    "SELECT ",
    local_through!("k.ord", "k.position"),
    " FROM unnest($1::smallint[], $2::bigint[]) AS k (ord, position)"
);

/// The position of a local one; null: it is not cut.
macro_rules! position_of {
    ($local:literal) => {
        concat!(
            "(SELECT CASE WHEN ",
            $local,
            " > x.local_through - x.count THEN x.through - x.local_through + ",
            $local,
            " END FROM (SELECT through, local_through, count FROM cuts WHERE local_through >= ",
            $local,
            " ORDER BY local_through LIMIT 1) x)"
        )
    };
}
pub(crate) use position_of;

/// What one cut took of one order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Its last position, and the same in its order.
    pub through: Position,
    pub local_through: u64,
    pub count: u64,
}

impl Cut {
    fn of(row: &Row) -> Cut {
        let [through, local_through, count] = [0, 1, 2].map(|column| number(row, column));
        Cut { through, local_through, count }
    }

    fn position(&self, local: u64) -> Option<Position> {
        let is_in = local <= self.local_through && local > self.local_through - self.count;
        is_in.then(|| self.through - (self.local_through - local))
    }
}

/// The positions of local ones.
pub(crate) struct Globals(Option<FxHashMap<u64, Position>>);

impl Globals {
    /// For rows that have positions as they are.
    pub(crate) fn as_they_are() -> Globals {
        Globals(None)
    }

    /// The position of a local one, which is among those that were looked up; `None`: it is not cut.
    pub(crate) fn of(&self, local: u64) -> Option<Position> {
        self.0.as_ref().map_or(Some(local), |found| found.get(&local).copied())
    }

    pub(crate) fn at(&self, row: &Row, column: usize) -> Option<Position> {
        self.of(number(row, column))
    }
}

/// What the next cut is to have.
#[derive(Default)]
struct Wanted {
    /// The ends of commits, as local positions.
    locals: Vec<i64>,
    /// The earliest time of these commits, in milliseconds since 1970 UTC; 0: that of one is unknown.
    at: i64,
    /// What was committed before is to be on the disk and on standbys, whether there is anything to cut or not.
    flushes: bool,
}

/// Names the connection that cuts. A server that crashes, or that another takes the place of, ends it, and may have lost commits that
/// were not cut: their positions are given again, to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Generation(u64);

/// How a connection for transactions of one of several orders commits.
pub(crate) const UNTIL_CUT: &str = "SET synchronous_commit = off";

pub(crate) struct CommitOrders {
    pub orders: Orders,
    /// Positions up to this one are from before the database was divided into orders.
    one_order_through: Position,
    /// Cuts that were seen lately, for each order by their last local position.
    known: Vec<Mutex<BTreeMap<u64, Cut>>>,
    cutting: SharedRounds<Result<Generation, String>>,
    wanted: Mutex<Wanted>,
    connection: Mutex<Option<Connection>>,
    /// Of the open connection; 0: there is none.
    generation: AtomicU64,
    connections: AtomicU64,
    /// Commits that were not cut at the last look, and whether a thread cuts what was left.
    uncut: Mutex<Vec<i64>>,
    cuts_leftovers: AtomicBool,
    /// When the server began that was looked at last.
    server: AtomicU64,
}

impl CommitOrders {
    pub(crate) fn new(orders: Orders, one_order_through: Position) -> CommitOrders {
        let known = (0..orders.count()).map(|_| Mutex::default()).collect();
        CommitOrders {
            orders,
            one_order_through,
            known,
            cutting: SharedRounds::default(),
            wanted: Mutex::default(),
            connection: Mutex::default(),
            generation: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            uncut: Mutex::default(),
            cuts_leftovers: AtomicBool::new(false),
            server: AtomicU64::new(0),
        }
    }

    /// Whether rows hold positions as they are.
    pub(crate) fn are_one(&self) -> bool {
        self.orders == Orders::ONE
    }

    /// The number by which a conversation with this newest entry stands in the index of an account: its local position says nothing
    /// beside those of other orders, so that it is its time.
    pub(crate) fn index_number(&self, last_position: u64, last_at: u64) -> u64 {
        if self.are_one() || last_position <= self.one_order_through { last_position } else { last_at }
    }

    fn known(&self, local: u64) -> Option<Position> {
        if local <= self.one_order_through {
            return Some(local);
        }
        let of_order = self.known.get((local >> ORDER_SHIFT) as usize)?.lock();
        of_order.range(local..).next().and_then(|(_, cut)| cut.position(local))
    }

    fn note(&self, cuts: impl IntoIterator<Item = Cut>) {
        for cut in cuts {
            let Some(of_order) = self.known.get((cut.local_through >> ORDER_SHIFT) as usize) else { continue };
            let mut of_order = of_order.lock();
            of_order.insert(cut.local_through, cut);
            if of_order.len() > KNOWN_CUTS_MAX {
                of_order.pop_first();
            }
        }
    }

    /// The connection by which the next cut is made unless it breaks. Noted before a commit: what a later one finds need not be that
    /// commit.
    pub(crate) fn generation(&self, connector: &Arc<Connector>) -> StoreResult<Generation> {
        let mut kept = match self.generation.load(Ordering::Acquire) {
            0 => self.connection.lock(),
            generation => match self.connection.try_lock() {
                Some(kept) if kept.as_ref().is_none_or(Connection::is_closed) => kept,
                // Or a cut is under way, and notices by itself.
                _ => return Ok(Generation(generation)),
            },
        };
        *kept = Some(connector.block_on(self.connect(connector, kept.take()))?);
        Ok(Generation(self.generation.load(Ordering::Acquire)))
    }

    /// The connection that was kept, or another one if it has ended.
    async fn connect(&self, connector: &Arc<Connector>, kept: Option<Connection>) -> Result<Connection, Failure> {
        if let Some(connection) = kept.filter(|connection| !connection.is_closed()) {
            connection.renew_plans().await?;
            return Ok(connection);
        }
        self.generation.store(0, Ordering::Release);
        let connection = connector.connect(Purpose::Commit).await?;
        let number = self.connections.fetch_add(1, Ordering::AcqRel) + 1;
        self.generation.store(number, Ordering::Release);
        Ok(connection)
    }

    /// Cuts what is committed, and so these local positions if they are. `at`: the time of their commit, if it is known. `flushes`: see
    /// [`Wanted::flushes`]. Answers the connection by which it was made.
    fn cut(
        &self,
        connector: &Arc<Connector>,
        locals: impl IntoIterator<Item = i64>,
        at: Option<u64>,
        flushes: bool,
    ) -> StoreResult<Generation> {
        let at = at.map_or(0, bigint);
        {
            let mut wanted = self.wanted.lock();
            wanted.at = if wanted.locals.is_empty() { at } else { wanted.at.min(at) };
            wanted.locals.extend(locals);
            wanted.flushes |= flushes;
        }
        let cut = self.cutting.join(|| {
            let wanted = std::mem::take(&mut *self.wanted.lock());
            let mut kept = self.connection.lock();
            let mut failed = String::new();
            for _ in 0..CUT_ATTEMPTS_MAX {
                match connector.block_on(self.cut_once(connector, &mut kept, &wanted)) {
                    Ok(Some(cuts)) => {
                        self.note(cuts);
                        return Ok(Generation(self.generation.load(Ordering::Acquire)));
                    }
                    Ok(None) => {
                        self.generation.store(0, Ordering::Release);
                        return Err("it stopped waiting for its standby".into());
                    }
                    Err(failure) => failed = failure_text(&failure),
                }
                self.generation.store(0, Ordering::Release);
            }
            Err(failed)
        });
        cut.map_err(|why| StoreError::Unavailable(format!("PostgreSQL: the commit order could not be extended: {why}")))
    }

    /// Cuts, unless what is wanted is cut. `None`: the database has it, and a standby that it waits for may not.
    async fn cut_once(
        &self,
        connector: &Arc<Connector>,
        kept: &mut Option<Connection>,
        wanted: &Wanted,
    ) -> Result<Option<Vec<Cut>>, Failure> {
        connector.check_liveness()?;
        let connection = self.connect(connector, kept.take()).await?;
        connection.take_commit_warning();
        let calls = [
            Call::new("BEGIN", &[]),
            Call::new(LOCK, &[]),
            Call::new(CUT, &[&wanted.locals, &wanted.at]),
            Call::new(CUTS_OF, &[&wanted.locals]),
            Call::new(WAITS_FOR_STANDBYS, &[]),
            Call::new("COMMIT", &[]),
        ];
        // A connection whose transaction failed is not kept.
        let answers = connection.pipeline(&calls).await?;
        let (made, found) = (&answers[2], &answers[3]);
        let waits_for_standbys = answers[4].first().is_some_and(|row| row.get(0));
        // Another node has cut, which is on the disk, and is perhaps no longer waiting for a standby.
        if made.is_empty() && (wanted.flushes || waits_for_standbys) {
            connection.query(FLUSH, &[]).await?;
        }
        if connection.take_commit_warning() {
            return Ok(None);
        }
        *kept = Some(connection);
        Ok(Some(made.iter().chain(found).map(Cut::of).collect()))
    }
}

fn uncut() -> StoreError {
    StoreError::Unavailable("PostgreSQL: a commit is not in the commit order".into())
}

impl PostgresStore {
    /// The newest position, for who follows the log. A commit that was not cut at the look before, whose node has ended perhaps, is cut
    /// by a thread: a cut waits for standbys, and those who follow do not.
    pub(super) fn newest_followed(&self) -> StoreResult<Position> {
        if self.orders.are_one() {
            return self.fetch_position();
        }
        let rows = self.query(NEWEST, &[])?;
        let Some(row) = rows.first() else { return Ok(0) };
        let (uncut, cuts): (Vec<i64>, Vec<i64>) = (row.get(1), row.get(2));
        if self.orders.server.swap(number(row, 3), Ordering::AcqRel) != number(row, 3) {
            self.orders.known.iter().for_each(|of_order| of_order.lock().clear());
        }
        let is_left = |local: &i64| cuts.get((*local >> ORDER_SHIFT) as usize).is_some_and(|cut| cut < local);
        let before = std::mem::replace(&mut *self.orders.uncut.lock(), uncut);
        if before.iter().any(is_left) && !self.orders.cuts_leftovers.swap(true, Ordering::AcqRel) {
            let (orders, connector) = (self.orders.clone(), self.connector.clone());
            let cut = move || {
                if let Err(error) = orders.cut(&connector, before, None, false) {
                    tracing::warn!(%error, "commits that a node left are not in the commit order yet");
                }
                orders.cuts_leftovers.store(false, Ordering::Release);
            };
            if std::thread::Builder::new().name("cut".into()).spawn(cut).is_err() {
                self.orders.cuts_leftovers.store(false, Ordering::Release);
            }
        }
        self.position.fetch_max(number(row, 0), Ordering::AcqRel);
        Ok(number(row, 0))
    }

    /// Cuts what an earlier process may have left, when the store is opened.
    pub(super) fn cut_leftovers(&self) -> StoreResult<()> {
        if self.orders.are_one() {
            return Ok(());
        }
        let rows = self.query(NEWEST, &[])?;
        let uncut: Vec<i64> = rows.first().map(|row| row.get(1)).unwrap_or_default();
        if uncut.is_empty() { Ok(()) } else { self.orders.cut(&self.connector, uncut, None, false).map(drop) }
    }

    /// Has a commit of this time, with what it rests on, on the disk and on standbys, and cuts it if it took positions. Answers its
    /// last position. `generation`: that from before the commit.
    pub(super) fn cut_commit(
        &self,
        local: PositionRange,
        generation: Generation,
        now_ms: u64,
    ) -> StoreResult<Option<Position>> {
        let has_positions = local.through > local.after;
        let wanted = has_positions.then(|| bigint(local.through));
        // Also what another node has cut: that may not be on a standby.
        if self.orders.cut(&self.connector, wanted, Some(now_ms), !has_positions)? != generation {
            return Err(StoreError::Unavailable(
                "the connection to PostgreSQL broke before a commit was durable".into(),
            ));
        }
        wanted.map(|_| self.globals([local.through])?.of(local.through).ok_or_else(uncut)).transpose()
    }

    /// The positions of local ones of earlier commits, which are cut if they are not.
    pub(super) fn globals_of_commits(&self, locals: &[u64]) -> StoreResult<Globals> {
        let globals = self.globals(locals.iter().copied())?;
        let missing: Vec<i64> =
            locals.iter().filter(|local| globals.of(**local).is_none()).map(|local| bigint(*local)).collect();
        if missing.is_empty() {
            return Ok(globals);
        }
        self.orders.cut(&self.connector, missing, None, false)?;
        let globals = self.globals(locals.iter().copied())?;
        if locals.iter().all(|local| globals.of(*local).is_some()) { Ok(globals) } else { Err(uncut()) }
    }

    /// Looks up the positions of local ones, which rows have shown.
    pub(super) fn globals(&self, locals: impl IntoIterator<Item = u64>) -> StoreResult<Globals> {
        if self.orders.are_one() {
            return Ok(Globals::as_they_are());
        }
        let (mut found, mut missing) = (FxHashMap::default(), Vec::new());
        for local in locals {
            match self.orders.known(local) {
                Some(position) => drop(found.insert(local, position)),
                None => missing.push(local),
            }
        }
        if !missing.is_empty() {
            let asked: Vec<i64> = missing.iter().copied().map(bigint).collect();
            let cuts: Vec<Cut> = self.query(CUTS_OF, &[&asked])?.iter().map(Cut::of).collect();
            let by_local: BTreeMap<u64, Cut> = cuts.iter().map(|cut| (cut.local_through, *cut)).collect();
            let position = |local: u64| by_local.range(local..).next().and_then(|(_, cut)| cut.position(local));
            found.extend(missing.into_iter().filter_map(|local| Some((local, position(local)?))));
            self.orders.note(cuts);
        }
        Ok(Globals(Some(found)))
    }

    /// The same for a column of these rows.
    pub(super) fn globals_in(&self, rows: &[Row], column: usize) -> StoreResult<Globals> {
        self.globals(rows.iter().filter_map(|row| row.get::<_, Option<i64>>(column)).map(|local| local as u64))
    }

    /// The local positions through which the conversations are in the commit order through these positions.
    pub(super) fn locals(&self, asked: &[(ConversationNo, Position)]) -> StoreResult<Vec<u64>> {
        if self.orders.are_one() {
            return Ok(asked.iter().map(|(_, position)| *position).collect());
        }
        let order = |conversation| self.orders.orders.of_conversation(conversation);
        let mut found: BTreeMap<(u16, Position), u64> =
            asked.iter().map(|(of, position)| ((order(*of), *position), 0)).collect();
        let orders: Vec<i16> = found.keys().map(|(order, _)| *order as i16).collect();
        let positions: Vec<i64> = found.keys().map(|(_, position)| bigint(*position)).collect();
        let rows = self.query(LOCALS, &[&orders, &positions])?;
        found.values_mut().zip(&rows).for_each(|(local, row)| *local = number(row, 0));
        let one_order_through = self.orders.one_order_through;
        let local = |(of, position): &(ConversationNo, Position)| match *position {
            // What the conversation has from before is in the first order.
            position if position <= one_order_through => position,
            position => found[&(order(*of), position)],
        };
        Ok(asked.iter().map(local).collect())
    }

    /// The cuts after a position, in their order and at most `positions` long together, each without what is not after it.
    pub(super) fn cuts_after(&self, after: Position, newest: Position, positions: usize) -> StoreResult<Vec<Cut>> {
        let positions = bigint(positions.max(1) as u64);
        let rows = self.query(CUTS_AFTER, &[&bigint(after), &bigint(newest), &positions])?;
        let (mut cuts, mut left) = (Vec::new(), positions as u64);
        for mut cut in rows.iter().map(Cut::of) {
            self.orders.note([cut]);
            cut.count = cut.count.min(cut.through - after);
            if cut.count > left {
                let beyond = cut.count - left;
                cut = Cut { through: cut.through - beyond, local_through: cut.local_through - beyond, count: left };
            }
            left -= cut.count;
            if cut.count > 0 {
                cuts.push(cut);
            }
        }
        Ok(cuts)
    }

    /// See [`tidings_domain::store::Store::index_after`].
    pub(super) fn read_index_after(&self, after: Position) -> StoreResult<u64> {
        if self.orders.are_one() || after < self.orders.one_order_through {
            return Ok(after.saturating_add(1));
        }
        let rows = self.query(CUT_AT, &[&bigint(after)])?;
        // Nothing comes after the newest cut.
        Ok(rows.first().map_or(u64::MAX, |row| number(row, 0).saturating_sub(CLOCKS_DIFFER_MS)))
    }
}
