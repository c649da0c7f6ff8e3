//! One connection. Statements that do not need each other's answers travel together; what went wrong is
//! told as what is certain about it.

use super::{Params, PostgresOpenError, PostgresOptions, migrations, pulse::Pulse, tls};
use futures_util::future::join_all;
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    future::{Future, poll_fn},
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tidings_engine::store::StoreError;
use tokio::{runtime::Runtime, time::timeout};
use tokio_postgres::{
    AsyncMessage, Client, Config, Row, Socket, Statement,
    error::{DbError, Severity, SqlState},
    types::ToSql,
};
use tokio_postgres_rustls::MakeRustlsConnect;

/// After a failed attempt to connect, others are answered with its error for so long: a database that comes
/// back is not met by a storm.
const CONNECT_PAUSE: Duration = Duration::from_millis(200);
/// How long bytes may go unacknowledged until a connection counts as broken.
const SILENCE_MAX: Duration = Duration::from_secs(8);
/// What a commit may take beyond the waits that the database itself bounds, such as for a slow disk or standby.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the answer to a statement with a limit may be late before the connection is given up.
const ANSWER_GRACE: Duration = Duration::from_secs(2);

/// What went wrong, and whether anything may have been stored.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The database answered with an error: the statement's transaction was not committed.
    Refused { code: SqlState, message: String },
    /// The connection broke: what was sent last may or may not have been done.
    Lost(String),
    /// There was no answer in time; the connection is given up.
    Late,
    /// There was no connection to be had: nothing was sent.
    NotConnected(String),
    /// The database holds what this program cannot understand.
    Unfit(String),
}

impl Failure {
    /// Whether the connection that it came by must not be used again.
    pub(crate) fn spoils_connection(&self) -> bool {
        matches!(self, Failure::Lost(_) | Failure::Late)
    }

    pub(crate) fn is(&self, state: &SqlState) -> bool {
        matches!(self, Failure::Refused { code, .. } if code == state)
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        // The detail of what the database says is left out: it quotes what is stored.
        match error.as_db_error() {
            Some(last) if ends_connection(last) => {
                Failure::Lost(format!("{} ({})", last.message(), last.code().code()))
            }
            Some(refused) => Failure::Refused { code: refused.code().clone(), message: refused.message().to_owned() },
            None => Failure::Lost(with_cause(&error)),
        }
    }
}

/// Whether a connection is of no use after this: the database ends it, or it leads to a server that has become a
/// standby, or its statements were prepared for tables that have changed since.
fn ends_connection(said: &DbError) -> bool {
    matches!(said.parsed_severity(), Some(Severity::Fatal | Severity::Panic))
        || [&SqlState::READ_ONLY_SQL_TRANSACTION, &SqlState::FEATURE_NOT_SUPPORTED].contains(&said.code())
}

fn with_cause(error: &tokio_postgres::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused { code, .. } if code == SqlState::DISK_FULL => StoreError::DiskFull,
            Failure::Refused { code, message }
                if code == SqlState::DATA_CORRUPTED || code == SqlState::INDEX_CORRUPTED =>
            {
                StoreError::Damaged(format!("PostgreSQL: {message} ({})", code.code()))
            }
            Failure::Refused { code, message } => {
                StoreError::Unavailable(format!("PostgreSQL: {message} ({})", code.code()))
            }
            Failure::Lost(why) => StoreError::Unavailable(format!("the connection to PostgreSQL broke: {why}")),
            Failure::Late => StoreError::Unavailable("PostgreSQL did not answer in time".into()),
            Failure::NotConnected(why) => StoreError::Unavailable(format!("no connection to PostgreSQL: {why}")),
            Failure::Unfit(why) => StoreError::Unavailable(why),
        }
    }
}

/// What connections are made of: where to, and the thread that moves their bytes.
pub(crate) struct Connector {
    config: Config,
    tls: MakeRustlsConnect,
    settings: [String; 2],
    connect_timeout: Duration,
    answer_timeout: [Duration; 2],
    /// Callers wait on their own threads, whatever those are; this one only reads and writes sockets.
    runtime: Option<Runtime>,
    paused: Mutex<Option<(Instant, String)>>,
    pulse: Pulse,
    statements: AtomicU64,
    round_trips: AtomicU64,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Read = 0,
    Commit = 1,
}

impl Connector {
    pub(crate) fn new(options: &PostgresOptions) -> Result<Connector, PostgresOpenError> {
        let mut config = Config::from_str(&options.url).map_err(|error| PostgresOpenError::Url(with_cause(&error)))?;
        let tls = tls::of(options, &mut config)?;
        config.connect_timeout(options.connect_timeout);
        // A server that is cut off says nothing, not even that.
        config.tcp_user_timeout(SILENCE_MAX).keepalives_idle(SILENCE_MAX / 2).keepalives_interval(SILENCE_MAX / 4);
        if config.get_application_name().is_none() {
            config.application_name("tidings");
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("postgres")
            .enable_all()
            .build()
            .map_err(PostgresOpenError::Thread)?;
        let lock_timeout = options.lock_timeout;
        Ok(Connector {
            config,
            tls,
            settings: [
                session_settings(options.statement_timeout, lock_timeout),
                session_settings(Duration::ZERO, lock_timeout),
            ],
            connect_timeout: options.connect_timeout,
            answer_timeout: [options.statement_timeout + ANSWER_GRACE, lock_timeout + COMMIT_TIMEOUT],
            runtime: Some(runtime),
            paused: Mutex::new(None),
            pulse: Pulse::new(options.silent_after),
            statements: AtomicU64::new(0),
            round_trips: AtomicU64::new(0),
        })
    }

    pub(crate) fn statements(&self) -> u64 {
        self.statements.load(Ordering::Relaxed)
    }

    /// How often an answer was waited for; statements that travel together wait once.
    pub(crate) fn round_trips(&self) -> u64 {
        self.round_trips.load(Ordering::Relaxed)
    }

    /// From now on a database that falls silent is waited for by nobody.
    pub(crate) fn feel_pulse(&self) {
        if let Some(runtime) = &self.runtime {
            self.pulse.begin(runtime, self.config.clone(), self.tls.clone());
        }
    }

    /// An error while the database is silent: nothing is to be sent then.
    pub(crate) fn check_pulse(&self) -> Result<(), Failure> {
        match self.pulse.is_silent() {
            true => Err(Failure::NotConnected("PostgreSQL does not answer".into())),
            false => Ok(()),
        }
    }

    /// Waits on the caller's thread. Unlike a runtime's own `block_on` it may be called on any thread, also
    /// on one of a runtime: there, a look-up that misses its cache does.
    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        let _time_and_sockets = self.runtime.as_ref().map(Runtime::enter);
        pollster::block_on(work)
    }

    /// A new connection, set up and of a database that this program knows.
    pub(crate) async fn connect(self: &Arc<Self>, of: Use) -> Result<Connection, Failure> {
        let connection = self.connect_to_any_version(of).await?;
        let rows = connection.query(migrations::NEEDS_PROGRAM, &[]).await?;
        migrations::check_running(rows.first().map_or(0, |row| number(row, 0))).map_err(Failure::Unfit)?;
        Ok(connection)
    }

    pub(crate) async fn connect_to_any_version(self: &Arc<Self>, of: Use) -> Result<Connection, Failure> {
        self.check_pulse()?;
        if let Some((at, why)) = &*self.paused.lock()
            && at.elapsed() < CONNECT_PAUSE
        {
            return Err(Failure::NotConnected(why.clone()));
        }
        let connected = self.connect_now(of).await;
        *self.paused.lock() = match &connected {
            Ok(_) => None,
            Err(failure) => Some((Instant::now(), failure_text(failure))),
        };
        connected.map_err(|failure| Failure::NotConnected(failure_text(&failure)))
    }

    async fn connect_now(self: &Arc<Self>, of: Use) -> Result<Connection, Failure> {
        // Its own limit is per host and for connecting alone; this one is for the whole of it.
        let limit = self.connect_timeout * (self.config.get_hosts().len().max(1) as u32) + ANSWER_GRACE;
        let set_up = async {
            let (client, connection) = self.config.connect(self.tls.clone()).await?;
            let doubt = Arc::new(AtomicBool::new(false));
            if let Some(runtime) = &self.runtime {
                runtime.spawn(drive(connection, doubt.clone()));
            }
            client.batch_execute(&self.settings[of as usize]).await?;
            let statements = Mutex::new(HashMap::new());
            Ok(Connection { connector: self.clone(), of, client, statements, doubt })
        };
        timeout(limit, set_up).await.unwrap_or(Err(Failure::Late))
    }
}

pub(crate) fn failure_text(failure: &Failure) -> String {
    match failure {
        Failure::Refused { message, code } => format!("{message} ({})", code.code()),
        Failure::Lost(why) | Failure::NotConnected(why) | Failure::Unfit(why) => why.clone(),
        Failure::Late => "no answer in time".into(),
    }
}

impl Drop for Connector {
    /// Without waiting: the last owner may sit on a thread of another runtime.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Every statement of ours finds its rows by key. The planner, which knows nothing of a table that was empty
/// a minute ago, is kept from reading it whole, and plans each statement once.
fn session_settings(statement_timeout: Duration, lock_timeout: Duration) -> String {
    format!(
        "SET search_path = tidings; \
         SET statement_timeout = {}; SET lock_timeout = {}; SET idle_in_transaction_session_timeout = 5000; \
         SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_sort = off; SET jit = off; \
         SET plan_cache_mode = force_generic_plan; \
         SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'",
        statement_timeout.as_millis(),
        lock_timeout.as_millis()
    )
}

/// Moves a connection's bytes until it ends, and notes what casts doubt on a commit: stopped while it waited for
/// a standby, it is answered as done, and only a warning says that the standby may not have it.
pub(crate) async fn drive<S>(mut connection: tokio_postgres::Connection<Socket, S>, doubt: Arc<AtomicBool>)
where
    S: tokio_postgres::tls::TlsStream + Unpin,
{
    loop {
        match poll_fn(|context| connection.poll_message(context)).await {
            Some(Ok(AsyncMessage::Notice(notice))) => {
                tracing::debug!(code = notice.code().code(), message = notice.message(), "PostgreSQL says");
                if [&SqlState::WARNING, &SqlState::ADMIN_SHUTDOWN].contains(&notice.code()) {
                    doubt.store(true, Ordering::Release);
                }
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                tracing::debug!(error = with_cause(&error), "a connection to PostgreSQL ended");
                return;
            }
            None => return,
        }
    }
}

/// A statement and its parameters, to be sent with others.
pub(crate) struct Call<'a> {
    pub sql: &'static str,
    pub params: Vec<&'a (dyn ToSql + Sync)>,
}

impl<'a> Call<'a> {
    pub(crate) fn new(sql: &'static str, params: &[&'a (dyn ToSql + Sync)]) -> Self {
        Call { sql, params: params.to_vec() }
    }
}

pub(crate) struct Connection {
    connector: Arc<Connector>,
    of: Use,
    client: Client,
    statements: Mutex<HashMap<&'static str, Statement>>,
    doubt: Arc<AtomicBool>,
}

impl Connection {
    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Whether the database warned since the last time that was asked.
    pub(crate) fn take_doubt(&self) -> bool {
        self.doubt.swap(false, Ordering::AcqRel)
    }

    /// Several statements at once, whose text alone says all.
    pub(crate) async fn batch(&self, sql: &str) -> Result<(), Failure> {
        self.in_time(self.client.batch_execute(sql)).await
    }

    pub(crate) async fn query(&self, sql: &'static str, params: Params<'_>) -> Result<Vec<Row>, Failure> {
        self.connector.statements.fetch_add(1, Ordering::Relaxed);
        let statement = self.statement(sql).await?;
        self.in_time(self.client.query(&statement, params)).await
    }

    /// Sends all statements before it waits for the first answer: one round trip. The first that fails is told;
    /// within a transaction those after it do nothing.
    pub(crate) async fn together(&self, calls: &[Call<'_>]) -> Result<Vec<Vec<Row>>, Failure> {
        let mut prepared = Vec::with_capacity(calls.len());
        for call in calls {
            prepared.push(self.statement(call.sql).await?);
        }
        let counted = calls.iter().filter(|call| !["BEGIN", "COMMIT"].contains(&call.sql)).count();
        self.connector.statements.fetch_add(counted as u64, Ordering::Relaxed);
        // Each is sent when it is first polled, and `join_all` polls in order.
        let sent = calls.iter().zip(&prepared).map(|(call, statement)| self.client.query(statement, &call.params));
        let answers = self.in_time(async { Ok(join_all(sent).await) }).await?;
        answers.into_iter().map(|answer| answer.map_err(Failure::from)).collect()
    }

    /// Prepared once per connection.
    async fn statement(&self, sql: &'static str) -> Result<Statement, Failure> {
        if let Some(statement) = self.statements.lock().get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.in_time(self.client.prepare(sql)).await?;
        self.statements.lock().insert(sql, statement.clone());
        Ok(statement)
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Failure> {
        self.connector.round_trips.fetch_add(1, Ordering::Relaxed);
        tokio::select! {
            result = timeout(self.connector.answer_timeout[self.of as usize], work) => match result {
                Ok(result) => Ok(result?),
                Err(_) => Err(Failure::Late),
            },
            () = self.connector.pulse.falls_silent() => Err(Failure::Late),
        }
    }
}

/// A column that holds one of our numbers. What stands there is never negative.
pub(crate) fn number(row: &Row, column: usize) -> u64 {
    row.get::<_, i64>(column) as u64
}

/// A number as the database holds it; what asks for "all" asks for its highest.
pub(crate) fn stored(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(code: SqlState) -> StoreError {
        Failure::Refused { code, message: "why".into() }.into()
    }

    #[test]
    fn a_full_disk_is_told_as_such_and_damage_as_damage() {
        assert!(matches!(told(SqlState::DISK_FULL), StoreError::DiskFull));
        assert!(matches!(told(SqlState::INDEX_CORRUPTED), StoreError::Damaged(_)));
        assert!(matches!(told(SqlState::DATA_CORRUPTED), StoreError::Damaged(_)));
        for code in [SqlState::LOCK_NOT_AVAILABLE, SqlState::QUERY_CANCELED, SqlState::TOO_MANY_CONNECTIONS] {
            assert!(matches!(told(code.clone()), StoreError::Unavailable(why) if why.contains(code.code())));
        }
    }

    #[test]
    fn numbers_beyond_what_the_database_holds_ask_for_its_highest() {
        assert_eq!((stored(0), stored(7), stored(u64::MAX)), (0, 7, i64::MAX));
    }
}
