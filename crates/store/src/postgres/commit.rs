//! One batch, as one transaction: load under locks, decide, write and commit. Tried again only when it surely
//! was not stored; otherwise the caller learns that it may have been, and its next try finds out by the ids of
//! its sends.

use super::{
    PostgresStore,
    append::Appends,
    connection::{Connection, Failure, Use, number},
    decide::{Decider, Known, place},
    load::Touched,
    write::write,
};
use std::{sync::atomic::Ordering, time::Duration};
use tidings_engine::model::Position;
use tidings_engine::store::{Outcome, Proposal, Span, StoreError, StoreResult};
use tokio_postgres::error::SqlState;

/// How often a batch is tried that met another node's, or a connection that had ended.
const TRIES: u32 = 6;
/// The first wait between tries; it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(2);

/// What the one who commits owns.
#[derive(Default)]
pub(crate) struct Writer {
    connection: Option<Connection>,
}

/// Why a try came to nothing.
enum Stop {
    /// Nothing was stored.
    Before(Failure),
    /// It may have been.
    Unsure(Failure),
    Store(StoreError),
}

impl PostgresStore {
    /// Answers what became of each proposal, and which stretch of the commit order they have.
    pub(crate) fn commit_batch(&self, batch: &[Proposal], now_ms: u64) -> StoreResult<(Vec<Outcome>, Span)> {
        let appends = Appends::of(batch);
        let touched = Touched::by(batch);
        let mut writer = self.writer.lock();
        let writer = &mut *writer;
        self.connector.block_on(async {
            let mut wait = FIRST_WAIT;
            for tried in 1.. {
                let tried_batch = match &appends {
                    // What broke a constraint is decided the long way, which knows how to go on.
                    Some(appends) if tried == 1 => self.try_appends(writer, appends, now_ms).await,
                    _ => self.try_batch(writer, &touched, batch, now_ms).await,
                };
                match tried_batch {
                    Ok(done) => return Ok(done),
                    Err(Stop::Before(failure)) if tried < TRIES && may_try_again(&failure) => {
                        tracing::debug!(?failure, tried, "a batch is tried again");
                    }
                    Err(Stop::Before(failure) | Stop::Unsure(failure)) => return Err(failure.into()),
                    Err(Stop::Store(error)) => return Err(error),
                }
                tokio::time::sleep(wait).await;
                wait *= 2;
            }
            Err(StoreError::Unavailable("tried too often".into()))
        })
    }

    /// The writer's connection, taken from it: it is put back only when its transaction has ended.
    async fn take_connection(&self, writer: &mut Writer, now_ms: u64) -> Result<Connection, Stop> {
        self.connector.check_pulse().map_err(Stop::Before)?;
        let connection = match writer.connection.take().filter(|connection| !connection.is_closed()) {
            Some(connection) => connection,
            None => self.connector.connect(Use::Commit).await.map_err(Stop::Before)?,
        };
        self.parts.ensure(&connection, now_ms).await.map_err(Stop::Before)?;
        connection.take_doubt();
        Ok(connection)
    }

    async fn try_appends(
        &self,
        writer: &mut Writer,
        appends: &Appends<'_>,
        now_ms: u64,
    ) -> Result<(Vec<Outcome>, Span), Stop> {
        let connection = self.take_connection(writer, now_ms).await?;
        let committed = appends.commit(&connection, &self.parts, self.outbox, now_ms).await;
        let (outcomes, highest) = put_back(writer, connection, committed)?;
        let fresh = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Appended(a) if !a.duplicate)).count();
        Ok((outcomes, self.span(highest.map(|highest| highest - fresh as u64), fresh as u64)))
    }

    async fn try_batch(
        &self,
        writer: &mut Writer,
        touched: &Touched<'_>,
        batch: &[Proposal],
        now_ms: u64,
    ) -> Result<(Vec<Outcome>, Span), Stop> {
        let connection = self.take_connection(writer, now_ms).await?;
        let mut known = match touched.load(&connection).await {
            Ok(known) => known,
            Err(failure) => return Err(abandon(writer, connection, failure).await),
        };
        if let Err(failure) = lock_counters(&connection, touched, &mut known).await {
            return Err(abandon(writer, connection, failure).await);
        }
        let mut decider = Decider::new(known, now_ms);
        let decided = batch.iter().map(|proposal| decider.propose(proposal)).collect::<StoreResult<Vec<_>>>();
        // What cannot be understood here ends the transaction by dropping its connection.
        let mut outcomes = decided.map_err(Stop::Store)?;
        let Decider { known, changes, .. } = &decider;
        let written = write(&connection, known, changes, &self.parts, self.outbox).await;
        if written.as_ref().is_err_and(|failure| failure.is(&SqlState::CHECK_VIOLATION)) {
            self.parts.miss(changes.entries.iter().map(|entry| self.parts.of(entry.at)));
        }
        let base = put_back(writer, connection, written)?;
        if let Some(base) = base {
            outcomes.iter_mut().for_each(|outcome| place(outcome, base));
        }
        Ok((outcomes, self.span(base, changes.places)))
    }

    /// The stretch behind `base`, noted as seen. A batch that took no place has an empty one.
    fn span(&self, base: Option<Position>, places: u64) -> Span {
        let Some(after) = base else { return Span { after: 0, through: 0 } };
        self.position.fetch_max(after + places, Ordering::AcqRel);
        Span { after, through: after + places }
    }
}

/// What is certain after statements that ended with a commit; the connection goes back if its transaction ended.
fn put_back<T>(writer: &mut Writer, connection: Connection, committed: Result<T, Failure>) -> Result<T, Stop> {
    match committed {
        Ok(_) if connection.take_doubt() => {
            Err(Stop::Unsure(Failure::Lost("PostgreSQL stopped waiting for its standby".into())))
        }
        Ok(done) => {
            writer.connection = Some(connection);
            Ok(done)
        }
        // An answer with an error came before the commit's, which then undid everything.
        Err(failure @ Failure::Refused { .. }) => {
            writer.connection = Some(connection);
            Err(Stop::Before(failure))
        }
        // Nothing can have been sent before there was a connection.
        Err(failure @ (Failure::NotConnected(_) | Failure::Unfit(_))) => Err(Stop::Before(failure)),
        Err(failure) => Err(Stop::Unsure(failure)),
    }
}

/// Whether another try may end better, for a failure that left nothing behind.
fn may_try_again(failure: &Failure) -> bool {
    match failure {
        Failure::Refused { code, .. } => [
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
            // Another node made the same user, conversation or send first: the next try sees it.
            SqlState::UNIQUE_VIOLATION,
            // A part of the timeline is missing.
            SqlState::CHECK_VIOLATION,
        ]
        .contains(code),
        // The connection had ended while it was idle, or did now; a new one tells.
        Failure::Lost(_) => true,
        Failure::Late | Failure::NotConnected(_) | Failure::Unfit(_) => false,
    }
}

/// Ends a transaction in which nothing was written yet.
async fn abandon(writer: &mut Writer, connection: Connection, failure: Failure) -> Stop {
    if matches!(failure, Failure::Refused { .. }) && connection.batch("ROLLBACK").await.is_ok() {
        writer.connection = Some(connection);
    }
    Stop::Before(failure)
}

/// Locks the counters if users or conversations are to be made; what is given out is written with the batch.
async fn lock_counters(connection: &Connection, touched: &Touched<'_>, known: &mut Known) -> Result<(), Failure> {
    let all_users = touched.user_ids.iter().all(|id| known.user_nos.contains_key(*id));
    let all_conversations = touched.conversation_ids.iter().all(|id| known.conversation_nos.contains_key(*id));
    if all_users && all_conversations {
        return Ok(());
    }
    let rows = connection.query("SELECT users, conversations FROM counters FOR UPDATE", &[]).await?;
    if let Some(row) = rows.first() {
        (known.users_counted, known.conversations_counted) = (number(row, 0), number(row, 1));
    }
    known.counters_locked = true;
    Ok(())
}
