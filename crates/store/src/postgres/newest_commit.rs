//! How far the primary is: its log, and the commits that it shows. A read that sees this much of the log is as new as one on the
//! primary. Readers share the answer, so that the primary is asked once at a time.

use super::{pool::Pool, shared_rounds::SharedRounds};
use tokio_postgres::types::PgLsn;

/// A server that takes another's place has begun at another moment, to the microsecond.
const LOG_END: &str = "SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, pg_current_wal_flush_lsn(), \
     position FROM counters";

/// The end of the primary's log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogEnd {
    /// When the server that answered has begun.
    pub server: i64,
    /// Every commit that anybody sees or was told of lies before.
    pub flushed: PgLsn,
    /// The highest position that the primary shows.
    pub position: u64,
}

#[derive(Default)]
pub(crate) struct NewestCommit(SharedRounds<Option<LogEnd>>);

impl NewestCommit {
    /// Asks the primary, or takes the answer to another reader that asks after this call. `None`: the primary does not answer.
    pub(crate) fn read(&self, primary: &Pool) -> Option<LogEnd> {
        self.0.join(|| ask(primary))
    }
}

fn ask(primary: &Pool) -> Option<LogEnd> {
    let rows =
        primary.query(LOG_END, &[]).inspect_err(|error| tracing::debug!(%error, "the end of the log is unknown"));
    let row = rows.ok()?.into_iter().next()?;
    let position: i64 = row.try_get(2).ok()?;
    Some(LogEnd { server: row.try_get(0).ok()?, flushed: row.try_get(1).ok()?, position: position.try_into().ok()? })
}
