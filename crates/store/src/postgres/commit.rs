//! Commits one batch as one transaction: load, decide, write and commit. A batch is tried again only if it was certainly not
//! stored. Otherwise the caller learns that the outcome is unknown; a retry of its sends is answered by their ids.
//!
//! A batch locks rows in the round trip that commits it, where the database compares them with what was loaded. A node that
//! stops in between (its machine is moved, has no memory, is cut off) holds nobody up. When another node has changed the rows,
//! the batch is tried again with the locks first, as are the next ones: nodes that keep changing the same rows queue up at
//! them. The database ends such a transaction when its node stops for longer than `idle_in_transaction_timeout`.

use super::{
    PostgresStore,
    append::AppendBatch,
    checked_read::{CHANGED_MEANWHILE, Loaded, Locking},
    commit_orders::{Generation, UNTIL_CUT},
    connection::{Connection, Purpose},
    failure::Failure,
    load::TouchedKeys,
    numbers::Numbers,
    staged_batch::{StagedBatch, resolve_position},
    write::write,
};
use parking_lot::Mutex;
use std::{sync::atomic::Ordering, time::Duration};
use tidings_domain::{
    model::Position,
    store::{Orders, Outcome, PositionRange, Proposal, StoreError, StoreResult},
};
use tokio_postgres::error::SqlState;

/// How often a batch is tried that conflicts with another node's, or whose connection had ended.
const ATTEMPTS_MAX: u32 = 6;
/// The wait before the second attempt; it doubles with each further one.
const FIRST_BACKOFF: Duration = Duration::from_millis(2);

/// After another node has changed the rows of a batch, so many batches take their locks first.
const BATCHES_LOCKED_FIRST: u32 = 8;

/// The state of the one committer of an order.
pub(crate) struct Writer {
    order: u16,
    pub connection: Option<Connection>,
    pub numbers: Numbers,
    /// So many of the next batches take their locks first.
    locks_first: u32,
}

impl Writer {
    /// One for each order.
    pub(crate) fn of_orders(orders: Orders) -> Vec<Mutex<Writer>> {
        let writer =
            |order| Writer { order, connection: None, numbers: Numbers::of_order(order, orders), locks_first: 0 };
        (0..orders.count()).map(writer).map(Mutex::new).collect()
    }
}

/// Why an attempt to commit a batch failed.
enum CommitError {
    /// The batch was not stored.
    NotStored(Failure),
    /// The batch may have been stored.
    OutcomeUnknown(Failure),
    /// A loaded row is damaged; the batch was not stored.
    Store(StoreError),
}

impl PostgresStore {
    /// Commits a batch; answers its outcomes and its span in the commit order. A batch of several orders is committed part by part: its
    /// span has what others have committed between.
    pub(crate) fn commit_batch(&self, batch: &[Proposal], now_ms: u64) -> StoreResult<(Vec<Outcome>, PositionRange)> {
        let orders = self.orders.orders;
        let mut parts = batch.chunk_by(|one, next| orders.of(one) == orders.of(next));
        let first = parts.next().unwrap_or_default();
        let (mut outcomes, mut span) = self.commit_in(first.first().map_or(0, |one| orders.of(one)), first, now_ms)?;
        for part in parts {
            let committed = self.commit_in(orders.of(&part[0]), part, now_ms);
            // The parts before are stored.
            let (of_part, part_span) = committed.map_err(stored_perhaps)?;
            outcomes.extend(of_part);
            span = match span {
                PositionRange { through: 0, .. } => part_span,
                PositionRange { after, through } => PositionRange { after, through: through.max(part_span.through) },
            };
        }
        Ok((outcomes, span))
    }

    /// Commits a batch of one order.
    fn commit_in(&self, order: u16, batch: &[Proposal], now_ms: u64) -> StoreResult<(Vec<Outcome>, PositionRange)> {
        if self.orders.are_one() {
            let (outcomes, span) = self.commit_locally(order, batch, now_ms)?;
            self.position.fetch_max(span.through, Ordering::AcqRel);
            return Ok((outcomes, span));
        }
        let generation = self.orders.generation(&self.connector)?;
        let (outcomes, local) = self.commit_locally(order, batch, now_ms)?;
        self.place_commit(outcomes, local, generation, now_ms).map_err(stored_perhaps)
    }

    /// Cuts a commit; answers its outcomes and its span in the one commit order.
    fn place_commit(
        &self,
        mut outcomes: Vec<Outcome>,
        local: PositionRange,
        generation: Generation,
        now_ms: u64,
    ) -> StoreResult<(Vec<Outcome>, PositionRange)> {
        let mut span = PositionRange { after: 0, through: 0 };
        if let Some(through) = self.cut_commit(local, generation, now_ms)? {
            self.position.fetch_max(through, Ordering::AcqRel);
            span = PositionRange { after: through - (local.through - local.after), through };
        }
        let is_new = |position: Position| position > local.after && position <= local.through;
        let earlier = outcomes.iter().filter_map(Outcome::appended).map(|appended| appended.position);
        let earlier: Vec<u64> = earlier.filter(|position| !is_new(*position)).collect();
        let globals = self.globals_of_commits(&earlier)?;
        for appended in outcomes.iter_mut().filter_map(Outcome::appended_mut) {
            appended.position = match appended.position {
                new if is_new(new) => span.after + (new - local.after),
                earlier => globals.of(earlier).unwrap_or_default(),
            };
        }
        Ok((outcomes, span))
    }

    /// Commits a batch of one order; positions are those of the order.
    fn commit_locally(
        &self,
        order: u16,
        batch: &[Proposal],
        now_ms: u64,
    ) -> StoreResult<(Vec<Outcome>, PositionRange)> {
        let appends = AppendBatch::of(batch);
        let keys = TouchedKeys::of(batch);
        let mut writer = self.writers[usize::from(order)].lock();
        let writer = &mut *writer;
        self.connector.block_on(async {
            let mut backoff = FIRST_BACKOFF;
            for attempt in 1.. {
                let committed = match &appends {
                    // A batch of entries that violates a constraint is decided in memory, where such cases are handled.
                    Some(appends) if attempt == 1 => self.try_appends(writer, appends, now_ms).await,
                    _ => self.try_batch(writer, &keys, batch, now_ms).await,
                };
                match committed {
                    Ok(done) => return Ok(done),
                    Err(CommitError::NotStored(failure)) if attempt < ATTEMPTS_MAX && is_retryable(&failure) => {
                        tracing::debug!(?failure, attempt, "a batch is tried again");
                        if attempt > 1 && failure.is(&SqlState::UNIQUE_VIOLATION) {
                            // An id that another node took would have been found by now. So a number was: a failover has
                            // lost that it was reserved, or given back.
                            writer.numbers.forget();
                        }
                        if failure.is(&CHANGED_MEANWHILE) {
                            writer.locks_first = BATCHES_LOCKED_FIRST;
                            continue;
                        }
                    }
                    Err(CommitError::NotStored(failure) | CommitError::OutcomeUnknown(failure)) => {
                        return Err(failure.into());
                    }
                    Err(CommitError::Store(error)) => return Err(error),
                }
                tokio::time::sleep(backoff).await;
                backoff *= 2;
            }
            Err(StoreError::Unavailable("the batch was tried too often".into()))
        })
    }

    /// Takes the connection from the writer; connects if there is none. It is put back only when its transaction has ended.
    async fn take_connection(&self, writer: &mut Writer, now_ms: u64) -> Result<Connection, CommitError> {
        self.connector.check_liveness().map_err(CommitError::NotStored)?;
        let connection = match writer.connection.take().filter(|connection| !connection.is_closed()) {
            Some(connection) => connection,
            None => self.connect_writer().await.map_err(CommitError::NotStored)?,
        };
        connection.renew_plans().await.map_err(CommitError::NotStored)?;
        self.partitions.ensure(&connection, now_ms).await.map_err(CommitError::NotStored)?;
        connection.take_commit_warning();
        Ok(connection)
    }

    async fn connect_writer(&self) -> Result<Connection, Failure> {
        let connection = self.connector.connect(Purpose::Commit).await?;
        if !self.orders.are_one() {
            connection.batch(UNTIL_CUT).await?;
        }
        Ok(connection)
    }

    async fn try_appends(
        &self,
        writer: &mut Writer,
        appends: &AppendBatch<'_>,
        now_ms: u64,
    ) -> Result<(Vec<Outcome>, PositionRange), CommitError> {
        let connection = self.take_connection(writer, now_ms).await?;
        let committed = appends.commit(&connection, self.several(writer), &self.partitions, self.outbox, now_ms).await;
        let (outcomes, highest) = conclude(writer, connection, committed)?;
        let fresh = outcomes.iter().filter_map(Outcome::appended).filter(|appended| !appended.duplicate).count();
        Ok((outcomes, span(highest.map(|highest| highest - fresh as u64), fresh as u64)))
    }

    async fn try_batch(
        &self,
        writer: &mut Writer,
        keys: &TouchedKeys<'_>,
        batch: &[Proposal],
        now_ms: u64,
    ) -> Result<(Vec<Outcome>, PositionRange), CommitError> {
        let connection = self.take_connection(writer, now_ms).await?;
        let locking = if writer.locks_first > 0 { Locking::First } else { Locking::AtCommit };
        writer.locks_first = writer.locks_first.saturating_sub(1);
        let loaded = match keys.load(&connection, locking).await {
            Ok(loaded) => self.reserve_numbers(writer, &connection, keys, loaded, locking).await,
            Err(failure) => Err(failure),
        };
        let Loaded { state, reads } = match loaded {
            Ok(loaded) => loaded,
            Err(failure) => return Err(roll_back(writer, connection, failure, locking).await),
        };
        let mut staged = StagedBatch::new(state, &self.orders);
        let decided = batch.iter().map(|proposal| staged.propose(proposal, now_ms)).collect::<StoreResult<Vec<_>>>();
        // On a damaged row the connection is dropped, which ends its transaction.
        let mut outcomes = decided.map_err(CommitError::Store)?;
        let StagedBatch { state, changes, .. } = &staged;
        let unlocked = (locking == Locking::AtCommit).then_some(&reads[..]);
        let written =
            write(&connection, self.several(writer), state, unlocked, changes, &self.partitions, self.outbox).await;
        if written.as_ref().is_err_and(|failure| failure.is(&SqlState::CHECK_VIOLATION)) {
            self.partitions.record_missing(
                changes.entries.iter().map(|entry| self.partitions.of(entry.content.kept_since(entry.at))),
            );
        }
        let concluded = conclude(writer, connection, written);
        if !matches!(concluded, Err(CommitError::NotStored(_))) {
            writer.numbers = staged.state.numbers;
        }
        let base = concluded?;
        if let Some(base) = base {
            outcomes.iter_mut().for_each(|outcome| resolve_position(outcome, base));
        }
        Ok((outcomes, span(base, changes.positions)))
    }

    /// The order of the writer, if there are several.
    fn several(&self, writer: &Writer) -> Option<i16> {
        (!self.orders.are_one()).then_some(writer.order as i16)
    }

    /// Gives the batch the numbers that it may need for new users and conversations. While its transaction is open they are
    /// reserved on another connection, for the counters must not stay locked until the batch is written.
    async fn reserve_numbers<'a>(
        &self,
        writer: &mut Writer,
        connection: &Connection,
        keys: &TouchedKeys<'a>,
        mut loaded: Loaded<'a>,
        locking: Locking,
    ) -> Result<Loaded<'a>, Failure> {
        let state = &mut loaded.state;
        let new_users = keys.user_ids.iter().filter(|id| !state.user_nos.contains_key(**id)).count() as u64;
        let new_conversations =
            keys.conversation_ids.iter().filter(|id| !state.conversation_nos.contains_key(**id)).count() as u64;
        let (new_users, new_conversations) = (new_users + keys.freed.0, new_conversations + keys.freed.1);
        if !writer.numbers.suffice(new_users, new_conversations) {
            match locking {
                Locking::AtCommit => writer.numbers.reserve(connection, new_users, new_conversations).await?,
                Locking::First => {
                    let mut other = self.readers.acquire().map_err(|error| Failure::NotConnected(error.to_string()))?;
                    let reserved =
                        writer.numbers.reserve(other.connection().await?, new_users, new_conversations).await;
                    if reserved.as_ref().is_err_and(Failure::breaks_connection) {
                        other.discard();
                    }
                    reserved?;
                }
            }
        }
        state.numbers = writer.numbers;
        Ok(loaded)
    }
}

/// The error of a batch that may be stored, or a part of it.
fn stored_perhaps(error: StoreError) -> StoreError {
    match error {
        StoreError::DiskFull => StoreError::Unavailable("PostgreSQL's disk is full".into()),
        error => error,
    }
}

/// The span of `count` positions behind `base`. A batch without positions has an empty span.
fn span(base: Option<Position>, count: u64) -> PositionRange {
    base.map_or(PositionRange { after: 0, through: 0 }, |after| PositionRange { after, through: after + count })
}

/// Judges the result of statements that ended with `COMMIT`: was the batch stored? Puts the connection back if its
/// transaction has ended.
fn conclude<T>(writer: &mut Writer, connection: Connection, committed: Result<T, Failure>) -> Result<T, CommitError> {
    match committed {
        Ok(_) if connection.take_commit_warning() => {
            let why = "PostgreSQL stopped waiting for its standby";
            Err(CommitError::OutcomeUnknown(Failure::Disconnected(why.into())))
        }
        Ok(done) => {
            writer.connection = Some(connection);
            Ok(done)
        }
        // The error came before the answer to `COMMIT`, which then rolled the transaction back.
        Err(failure @ Failure::Database { .. }) => {
            writer.connection = Some(connection);
            Err(CommitError::NotStored(failure))
        }
        // No statement was sent, or the database had rolled the transaction back before.
        Err(failure @ (Failure::NotConnected(_) | Failure::Incompatible(_) | Failure::RolledBack(_))) => {
            Err(CommitError::NotStored(failure))
        }
        Err(failure) => Err(CommitError::OutcomeUnknown(failure)),
    }
}

/// Whether another attempt may succeed after a failure that stored nothing.
fn is_retryable(failure: &Failure) -> bool {
    match failure {
        Failure::Database { code, .. } => [
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
            // Another node created the same user, conversation or send first: the next attempt sees it.
            SqlState::UNIQUE_VIOLATION,
            // A partition of the timeline is missing.
            SqlState::CHECK_VIOLATION,
            // Another node changed a row that the batch was decided over.
            CHANGED_MEANWHILE,
        ]
        .contains(code),
        // The connection had ended while it was idle, or ended just now: a new one may work.
        Failure::Disconnected(_) | Failure::RolledBack(_) => true,
        Failure::TimedOut | Failure::NotConnected(_) | Failure::Incompatible(_) => false,
    }
}

/// Ends an attempt that has written nothing yet.
async fn roll_back(writer: &mut Writer, connection: Connection, failure: Failure, locking: Locking) -> CommitError {
    let may_go_on = match failure {
        Failure::Database { .. } if locking == Locking::First => connection.batch("ROLLBACK").await.is_ok(),
        Failure::Database { .. } => true,
        _ => false,
    };
    if may_go_on {
        writer.connection = Some(connection);
    }
    CommitError::NotStored(failure)
}
