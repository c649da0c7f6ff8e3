//! Commits one batch as one transaction: load under locks, decide, write and commit. A batch is tried again only if it was
//! certainly not stored. Otherwise the caller learns that the outcome is unknown; a retry of its sends is answered by their
//! ids.

use super::{
    PostgresStore,
    append::AppendBatch,
    connection::{Connection, Purpose, number},
    failure::Failure,
    load::TouchedKeys,
    staged_batch::{LoadedState, StagedBatch, resolve_position},
    write::write,
};
use std::{sync::atomic::Ordering, time::Duration};
use tidings_domain::{
    model::Position,
    store::{Outcome, PositionRange, Proposal, StoreError, StoreResult},
};
use tokio_postgres::error::SqlState;

/// How often a batch is tried that conflicts with another node's, or whose connection had ended.
const ATTEMPTS_MAX: u32 = 6;
/// The wait before the second attempt; it doubles with each further one.
const FIRST_BACKOFF: Duration = Duration::from_millis(2);

/// The state of the one committer.
#[derive(Default)]
pub(crate) struct Writer {
    connection: Option<Connection>,
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
    /// Commits a batch; answers its outcomes and its span in the commit order.
    pub(crate) fn commit_batch(&self, batch: &[Proposal], now_ms: u64) -> StoreResult<(Vec<Outcome>, PositionRange)> {
        let appends = AppendBatch::of(batch);
        let keys = TouchedKeys::of(batch);
        let mut writer = self.writer.lock();
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
            None => self.connector.connect(Purpose::Commit).await.map_err(CommitError::NotStored)?,
        };
        self.partitions.ensure(&connection, now_ms).await.map_err(CommitError::NotStored)?;
        connection.take_commit_warning();
        Ok(connection)
    }

    async fn try_appends(
        &self,
        writer: &mut Writer,
        appends: &AppendBatch<'_>,
        now_ms: u64,
    ) -> Result<(Vec<Outcome>, PositionRange), CommitError> {
        let connection = self.take_connection(writer, now_ms).await?;
        let committed = appends.commit(&connection, &self.partitions, self.outbox, now_ms).await;
        let (outcomes, highest) = conclude(writer, connection, committed)?;
        let fresh = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Appended(a) if !a.duplicate)).count();
        Ok((outcomes, self.span(highest.map(|highest| highest - fresh as u64), fresh as u64)))
    }

    async fn try_batch(
        &self,
        writer: &mut Writer,
        keys: &TouchedKeys<'_>,
        batch: &[Proposal],
        now_ms: u64,
    ) -> Result<(Vec<Outcome>, PositionRange), CommitError> {
        let connection = self.take_connection(writer, now_ms).await?;
        let mut state = match keys.load(&connection).await {
            Ok(state) => state,
            Err(failure) => return Err(roll_back(writer, connection, failure).await),
        };
        if let Err(failure) = lock_counters(&connection, keys, &mut state).await {
            return Err(roll_back(writer, connection, failure).await);
        }
        let mut staged = StagedBatch::new(state);
        let decided = batch.iter().map(|proposal| staged.propose(proposal, now_ms)).collect::<StoreResult<Vec<_>>>();
        // On a damaged row the connection is dropped, which ends its transaction.
        let mut outcomes = decided.map_err(CommitError::Store)?;
        let StagedBatch { state, changes } = &staged;
        let written = write(&connection, state, changes, &self.partitions, self.outbox).await;
        if written.as_ref().is_err_and(|failure| failure.is(&SqlState::CHECK_VIOLATION)) {
            self.partitions.record_missing(changes.entries.iter().map(|entry| self.partitions.of(entry.at)));
        }
        let base = conclude(writer, connection, written)?;
        if let Some(base) = base {
            outcomes.iter_mut().for_each(|outcome| resolve_position(outcome, base));
        }
        Ok((outcomes, self.span(base, changes.positions)))
    }

    /// The span of `count` positions behind `base`, recorded as seen. A batch without positions has an empty span.
    fn span(&self, base: Option<Position>, count: u64) -> PositionRange {
        let Some(after) = base else { return PositionRange { after: 0, through: 0 } };
        self.position.fetch_max(after + count, Ordering::AcqRel);
        PositionRange { after, through: after + count }
    }
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
        // No statement was sent.
        Err(failure @ (Failure::NotConnected(_) | Failure::Incompatible(_))) => Err(CommitError::NotStored(failure)),
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
        ]
        .contains(code),
        // The connection had ended while it was idle, or ended just now: a new one may work.
        Failure::Disconnected(_) => true,
        Failure::TimedOut | Failure::NotConnected(_) | Failure::Incompatible(_) => false,
    }
}

/// Ends a transaction that has written nothing yet.
async fn roll_back(writer: &mut Writer, connection: Connection, failure: Failure) -> CommitError {
    if matches!(failure, Failure::Database { .. }) && connection.batch("ROLLBACK").await.is_ok() {
        writer.connection = Some(connection);
    }
    CommitError::NotStored(failure)
}

/// Locks the counters if the batch creates users or conversations; `write` stores the numbers that were given out.
async fn lock_counters(
    connection: &Connection,
    keys: &TouchedKeys<'_>,
    state: &mut LoadedState,
) -> Result<(), Failure> {
    let has_all_users = keys.user_ids.iter().all(|id| state.user_nos.contains_key(*id));
    let has_all_conversations = keys.conversation_ids.iter().all(|id| state.conversation_nos.contains_key(*id));
    if has_all_users && has_all_conversations {
        return Ok(());
    }
    let rows = connection.query("SELECT users, conversations FROM counters FOR UPDATE", &[]).await?;
    if let Some(row) = rows.first() {
        (state.user_count, state.conversation_count) = (number(row, 0), number(row, 1));
    }
    state.counters_locked = true;
    Ok(())
}
