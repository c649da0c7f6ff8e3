//! One standby: its connections, whether it may be read from, and a read on it.
//!
//! # Whose standby it is
//! A number in the log means nothing on a server with another history: another database, a standby that was promoted, one that
//! follows a server whose place another has taken. So a thread writes marks to the primary and looks for them on the standby. One
//! that shows a mark which this primary took, since it began, has this primary's log. Both servers are known by when they
//! began; a change of either asks for a new proof, and a proof lasts for as long as new marks arrive.
//!
//! # What a read may show
//! All that the primary showed when the read began, and nothing that the primary does not show when it ends: a standby shows a
//! commit as soon as it has it, while the primary may still wait for another standby, and lose the commit with its machine.
//!
//! # When a read is refused
//! It goes to the primary, and so do others for a moment that grows while attempts fail.

use super::{
    Params, PostgresOpenError,
    connection::{Call, Connection, Connector, number},
    failure::Failure,
    newest_commit::{LogEnd, NewestCommit},
    options::PostgresOptions,
    pool::Pool,
};
use crate::epoch::fresh_epoch;
use parking_lot::Mutex;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::{installation::InstallationId, store::StandbyOutcome};
use tokio_postgres::{Row, error::SqlState, types::PgLsn};

/// How long a read waits for commits that the standby is about to replay, and for a connection.
const BEHIND_MAX: Duration = Duration::from_millis(10);
/// How soon a standby that is behind is asked again.
const LOOK_AGAIN: Duration = Duration::from_micros(500);
/// The limits of waits for a standby: the primary is there in any case.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(2);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const SILENT_AFTER: Duration = Duration::from_secs(1);
/// How long reads pass a standby by after attempts in a row that came to nothing: at first, then longer each time. One that was
/// behind a single time is tried again at once.
const BEHIND_REST: Duration = Duration::from_millis(20);
const FAILURE_REST: Duration = Duration::from_millis(500);
const REST_MAX: Duration = Duration::from_secs(5);
/// How long a proof counts when the thread that renews it gets no answer.
const PROOF_MAX: Duration = Duration::from_secs(5);
/// So many marks may be on their way to a standby that counts.
const MARKS_LATE_MAX: i64 = 3;

/// In front of each read: what the read sees is at least as new as what this tells.
const STAND: &str = "SELECT pg_is_in_recovery(), (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, \
     pg_last_wal_replay_lsn()";
/// Behind each read: what the read shows is at most as new.
const SHOWN: &str = "SELECT position FROM counters";
const SET_MARK: &str = "WITH gone AS (DELETE FROM standby_marks WHERE at < now() - interval '1 day' AND id <> $1) \
     INSERT INTO standby_marks (id, mark) VALUES ($1, $2) \
     ON CONFLICT (id) DO UPDATE SET mark = excluded.mark, at = now() \
     RETURNING (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint";
const LOOK: &str = "SELECT pg_is_in_recovery(), (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, \
     replace(h.installation::text, '-', ''), (SELECT mark FROM standby_marks WHERE id = $1) FROM history h";

pub(crate) struct Standby {
    /// The standby's place among the urls of the settings, from 1.
    pub place: usize,
    readers: Pool,
    /// One connection, which readers do not take.
    watcher: Pool,
    installation: InstallationId,
    /// Under which its marks are stored.
    id: i64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What was proven, and when.
    lineage: Option<(Lineage, Instant)>,
    resting_until: Option<Instant>,
    /// Attempts in a row that came to nothing.
    failures: u32,
}

/// When the primary and its standby have begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lineage {
    primary: i64,
    standby: i64,
}

/// The marks of one standby.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    newest: i64,
    /// The server that took it, and the first one that this server took.
    server: i64,
    first: i64,
}

/// Why a standby may not be read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// It belongs to another installation.
    Foreign,
    /// It takes writes itself.
    Promoted,
    /// It does not show what the primary took lately: it is too far behind, or follows another server.
    Unmarked,
    Unreachable(String),
}

impl std::fmt::Display for Unfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unfit::Foreign => write!(f, "it is another database than that of [store] url"),
            Unfit::Promoted => write!(f, "it is no standby: it takes writes itself"),
            Unfit::Unmarked => {
                write!(f, "it lacks what the primary has taken lately: it is behind, or follows another server")
            }
            Unfit::Unreachable(why) => write!(f, "{why}"),
        }
    }
}

impl Standby {
    pub(crate) fn new(
        place: usize,
        url: &str,
        options: &PostgresOptions,
        installation: InstallationId,
    ) -> Result<Standby, PostgresOpenError> {
        let options = PostgresOptions {
            url: url.to_owned(),
            connect_timeout: options.connect_timeout.min(CONNECT_TIMEOUT),
            statement_timeout: options.statement_timeout.min(STATEMENT_TIMEOUT),
            silent_after: options.silent_after.min(SILENT_AFTER),
            ..options.clone()
        };
        let connector = Arc::new(Connector::new(&options)?);
        let watcher = Pool::new(connector.clone(), 1, options.connect_timeout);
        let readers = Pool::new(connector, options.connections, BEHIND_MAX);
        Ok(Standby { place, readers, watcher, installation, id: fresh_epoch() as i64, state: Mutex::default() })
    }

    /// Starts the liveness probe.
    pub(crate) fn watch_liveness(&self) {
        self.readers.connector().watch_liveness();
    }

    /// Whether reads may try it now.
    pub(crate) fn is_open(&self) -> bool {
        let state = self.state.lock();
        state.lineage.is_some_and(|(_, at)| at.elapsed() < PROOF_MAX)
            && state.resting_until.is_none_or(|until| Instant::now() >= until)
    }

    /// Looks whose standby it is, without a mark.
    pub(crate) fn look(&self) -> Result<(), Unfit> {
        self.find_mark().map(drop)
    }

    /// Writes the next mark, and looks whether the standby shows it or one shortly before.
    pub(crate) fn prove(&self, primary: &Pool, marks: &mut Marks) -> Result<(), Unfit> {
        let proven = self.find_lineage(primary, marks);
        let lineage = match &proven {
            Ok(lineage) => Some((*lineage, Instant::now())),
            Err(Unfit::Foreign | Unfit::Promoted | Unfit::Unmarked) => None,
            // One of the servers has no time to answer, perhaps: the last proof counts until it is old.
            Err(Unfit::Unreachable(_)) => return proven.map(drop),
        };
        self.state.lock().lineage = lineage;
        proven.map(drop)
    }

    fn find_lineage(&self, primary: &Pool, marks: &mut Marks) -> Result<Lineage, Unfit> {
        let unreachable = |error| Unfit::Unreachable(format!("the primary took no mark: {error}"));
        marks.newest += 1;
        let taken = primary.query(SET_MARK, &[&self.id, &marks.newest]).map_err(unreachable)?;
        let server = taken.first().map_or(0, |row| row.get(0));
        if server != marks.server {
            (marks.server, marks.first) = (server, marks.newest);
        }
        let (standby, shown) = self.find_mark()?;
        match shown {
            Some(mark) if mark >= marks.first.max(marks.newest - MARKS_LATE_MAX) => {
                Ok(Lineage { primary: server, standby })
            }
            _ => Err(Unfit::Unmarked),
        }
    }

    /// When the server has begun, and the newest mark that it shows.
    fn find_mark(&self) -> Result<(i64, Option<i64>), Unfit> {
        let rows = self.watcher.query(LOOK, &[&self.id]).map_err(|error| Unfit::Unreachable(error.to_string()))?;
        let row = rows.first().ok_or(Unfit::Unmarked)?;
        match u128::from_str_radix(row.get(2), 16) {
            Ok(id) if id == self.installation.0 => {}
            _ => return Err(Unfit::Foreign),
        }
        if row.get(0) { Ok((row.get(1), row.get(3))) } else { Err(Unfit::Promoted) }
    }

    /// Reads what the primary shows.
    ///
    /// # Errors
    /// What became of the read instead.
    pub(crate) fn read(
        &self,
        primary: &Pool,
        newest_commit: &NewestCommit,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, StandbyOutcome> {
        let read = self.read_what_is_shown(primary, newest_commit, sql, params);
        let mut state = self.state.lock();
        let rest = match &read {
            Ok(_) => {
                state.failures = 0;
                return read;
            }
            // Readers took all connections, or know what reads cannot change.
            Err(StandbyOutcome::Served | StandbyOutcome::Busy | StandbyOutcome::Away) => return read,
            // Among many commits a read now and then is, and the next one is not.
            Err(StandbyOutcome::Behind | StandbyOutcome::Ahead | StandbyOutcome::Conflict) => {
                BEHIND_REST.saturating_mul((1 << state.failures.min(16)) - 1)
            }
            Err(StandbyOutcome::Failed) => FAILURE_REST.saturating_mul(1 << state.failures.min(16)),
        };
        // Readers that failed together count once.
        if state.resting_until.is_none_or(|until| Instant::now() >= until) {
            state.resting_until = Some(Instant::now() + rest.min(REST_MAX));
            state.failures += 1;
        }
        read
    }

    fn read_what_is_shown(
        &self,
        primary: &Pool,
        newest_commit: &NewestCommit,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, StandbyOutcome> {
        let ask = || newest_commit.read(primary).ok_or(StandbyOutcome::Away);
        let newest = ask()?;
        let (rows, shown) = self.read_since(newest, sql, params)?;
        if shown > newest.position {
            let newer = ask()?;
            if newer.server != newest.server || shown > newer.position {
                return Err(StandbyOutcome::Ahead);
            }
        }
        Ok(rows)
    }

    /// Reads what is at least as new; answers the highest position, too, that the rows may show.
    fn read_since(
        &self,
        newest: LogEnd,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<(Vec<Row>, u64), StandbyOutcome> {
        let proven = self.state.lock().lineage;
        let lineage = proven.map(|(lineage, _)| lineage).filter(|lineage| lineage.primary == newest.server);
        let lineage = lineage.ok_or(StandbyOutcome::Away)?;
        self.readers.connector().check_liveness().map_err(outcome)?;
        let mut reader = self.readers.acquire().map_err(|_| StandbyOutcome::Busy)?;
        let read: Result<_, Failure> = self.readers.connector().block_on(async {
            let connection = reader.connection().await?;
            let deadline = Instant::now() + BEHIND_MAX;
            let calls = [Call::new(STAND, &[]), Call::new(sql, params), Call::new(SHOWN, &[])];
            loop {
                let mut answers = connection.pipeline(&calls).await?.into_iter();
                let [stand, rows, shown] = std::array::from_fn(|_| answers.next().unwrap_or_default());
                match lineage.replayed(&stand) {
                    None => return Ok(Err(StandbyOutcome::Away)),
                    Some(replayed) if replayed >= newest.flushed => {
                        return Ok(Ok((rows, shown.first().map_or(u64::MAX, |row| number(row, 0)))));
                    }
                    Some(_) if !catches_up(connection, lineage, newest, deadline).await? => {
                        return Ok(Err(StandbyOutcome::Behind));
                    }
                    Some(_) => {}
                }
            }
        });
        if let Err(failure) = &read {
            tracing::debug!(?failure, standby = self.place, "a read on a standby failed");
            if failure.breaks_connection() {
                reader.discard();
            }
        }
        let read = read.map_err(outcome)?;
        if matches!(read, Err(StandbyOutcome::Away)) {
            self.state.lock().lineage = None;
        }
        read
    }
}

impl Lineage {
    /// How far the standby has replayed; `None`: it is another server, or no standby any more.
    fn replayed(self, stand: &[Row]) -> Option<PgLsn> {
        let row = stand.first()?;
        if row.get(0) && row.get::<_, i64>(1) == self.standby { row.get(2) } else { None }
    }
}

/// Waits until the standby has come as far; answers whether it has in time.
async fn catches_up(
    connection: &Connection,
    lineage: Lineage,
    newest: LogEnd,
    deadline: Instant,
) -> Result<bool, Failure> {
    while Instant::now() < deadline {
        tokio::time::sleep(LOOK_AGAIN).await;
        let stand = connection.query(STAND, &[]).await?;
        if lineage.replayed(&stand).is_some_and(|replayed| replayed >= newest.flushed) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn outcome(failure: Failure) -> StandbyOutcome {
    // "canceling statement due to conflict with recovery"
    if failure.is(&SqlState::T_R_SERIALIZATION_FAILURE) { StandbyOutcome::Conflict } else { StandbyOutcome::Failed }
}
