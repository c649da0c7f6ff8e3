//! One connection. Statements that do not need each other's answers are pipelined.

use super::{
    Params, PostgresOpenError,
    driver::drive,
    failure::{Failure, failure_text, with_cause},
    liveness::LivenessProbe,
    options::PostgresOptions,
    tls, versions,
};
use futures_util::future::join_all;
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    future::Future,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{runtime::Runtime, time::timeout};
use tokio_postgres::{Client, Config, Row, SimpleQueryMessage, Statement, types::ToSql};
use tokio_postgres_rustls::MakeRustlsConnect;

/// For so long after a failed attempt to connect, further attempts fail with its error at once, so that a database that
/// comes back does not meet a storm of connections.
const CONNECT_BACKOFF: Duration = Duration::from_millis(200);
/// How long bytes may go unacknowledged until a connection counts as broken.
const TCP_SILENCE_MAX: Duration = Duration::from_secs(8);
/// How long a commit may take beyond the waits that the database itself limits, such as for a slow disk or standby.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a statement may take that reads whole tables.
const MAINTENANCE_TIMEOUT: Duration = Duration::from_secs(60 * 60);
/// After how many uses of a connection its first plans are made anew, and how many times as many the next ones last.
const FIRST_PLANS_LAST: u64 = 16;
const PLANS_LAST_TIMES: u64 = 4;
/// How long after a statement's own limit its answer may arrive, before the connection is closed.
const ANSWER_GRACE: Duration = Duration::from_secs(2);

/// Makes connections, and has the thread that moves their bytes.
pub(crate) struct Connector {
    config: Config,
    tls: MakeRustlsConnect,
    settings: [String; 3],
    connect_timeout: Duration,
    answer_timeout: [Duration; 3],
    /// A runtime of one thread, which only reads and writes sockets. Callers wait on their own threads.
    runtime: Option<Runtime>,
    /// When the last attempt to connect failed, and its error.
    last_failure: Mutex<Option<(Instant, String)>>,
    liveness: LivenessProbe,
    statements: AtomicU64,
    round_trips: AtomicU64,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Read = 0,
    Commit = 1,
    /// Statements that read whole tables.
    Maintenance = 2,
}

impl Connector {
    pub(crate) fn new(options: &PostgresOptions) -> Result<Connector, PostgresOpenError> {
        let mut config = Config::from_str(&options.url).map_err(|error| PostgresOpenError::Url(with_cause(&error)))?;
        let tls = tls::tls_of(options, &mut config)?;
        config.connect_timeout(options.connect_timeout);
        // A server that is cut off sends nothing, not even an end of the connection.
        let silence_max = TCP_SILENCE_MAX;
        config.tcp_user_timeout(silence_max).keepalives_idle(silence_max / 2).keepalives_interval(silence_max / 4);
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
                session_settings(options.statement_timeout, options),
                session_settings(Duration::ZERO, options),
                session_settings(Duration::ZERO, options),
            ],
            connect_timeout: options.connect_timeout,
            answer_timeout: [
                options.statement_timeout + ANSWER_GRACE,
                lock_timeout + COMMIT_TIMEOUT,
                MAINTENANCE_TIMEOUT,
            ],
            runtime: Some(runtime),
            last_failure: Mutex::new(None),
            liveness: LivenessProbe::new(options.silent_after),
            statements: AtomicU64::new(0),
            round_trips: AtomicU64::new(0),
        })
    }

    pub(crate) fn statements(&self) -> u64 {
        self.statements.load(Ordering::Relaxed)
    }

    /// How often an answer was waited for; pipelined statements count once.
    pub(crate) fn round_trips(&self) -> u64 {
        self.round_trips.load(Ordering::Relaxed)
    }

    /// Starts the liveness probe: from now on statements fail at once while the database is silent.
    pub(crate) fn watch_liveness(&self) {
        if let Some(runtime) = &self.runtime {
            self.liveness.start(runtime, self.config.clone(), self.tls.clone());
        }
    }

    /// # Errors
    /// The database is silent: no statement may be sent.
    pub(crate) fn check_liveness(&self) -> Result<(), Failure> {
        if self.liveness.is_silent() { Err(Failure::NotConnected("PostgreSQL does not answer".into())) } else { Ok(()) }
    }

    /// Waits on the caller's thread. Unlike a runtime's own `block_on` this may be called on any thread, also on one of a
    /// runtime: a look-up there that misses its cache does so.
    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        let _timers_and_sockets = self.runtime.as_ref().map(Runtime::enter);
        pollster::block_on(work)
    }

    /// Connects to a database whose tables this program can work with.
    pub(crate) async fn connect(self: &Arc<Self>, purpose: Purpose) -> Result<Connection, Failure> {
        let connection = self.connect_to_any_version(purpose).await?;
        let rows = connection.query(versions::NEEDS_PROGRAM, &[]).await?;
        versions::check_running(rows.first().map_or(0, |row| number(row, 0))).map_err(Failure::Incompatible)?;
        Ok(connection)
    }

    pub(crate) async fn connect_to_any_version(self: &Arc<Self>, purpose: Purpose) -> Result<Connection, Failure> {
        self.check_liveness()?;
        if let Some((at, why)) = &*self.last_failure.lock()
            && at.elapsed() < CONNECT_BACKOFF
        {
            return Err(Failure::NotConnected(why.clone()));
        }
        let connected = self.connect_now(purpose).await;
        *self.last_failure.lock() = match &connected {
            Ok(_) => None,
            Err(failure) => Some((Instant::now(), failure_text(failure))),
        };
        connected.map_err(|failure| Failure::NotConnected(failure_text(&failure)))
    }

    async fn connect_now(self: &Arc<Self>, purpose: Purpose) -> Result<Connection, Failure> {
        // The client's own limit is per host and for connecting alone; this one includes the set-up.
        let limit = self.connect_timeout * (self.config.get_hosts().len().max(1) as u32) + ANSWER_GRACE;
        let set_up = async {
            let (client, connection) = self.config.connect(self.tls.clone()).await?;
            let commit_warning = Arc::new(AtomicBool::new(false));
            if let Some(runtime) = &self.runtime {
                runtime.spawn(drive(connection, commit_warning.clone()));
            }
            client.batch_execute(&self.settings[purpose as usize]).await?;
            let statements = Mutex::new(HashMap::new());
            let (uses, renew_after) = (AtomicU64::new(0), AtomicU64::new(FIRST_PLANS_LAST));
            Ok(Connection { connector: self.clone(), purpose, client, statements, uses, renew_after, commit_warning })
        };
        timeout(limit, set_up).await.unwrap_or(Err(Failure::TimedOut))
    }
}

impl Drop for Connector {
    /// Does not wait: the last owner may drop this on a thread of another runtime, where blocking would panic.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Each of our statements finds its rows by key. The planner has no statistics of a table that was empty a minute ago, so it is kept from
/// plans that read a whole table, and it plans each statement [a few times](Connection::renew_plans). It is kept from sorting, so that history
/// is read in the order of its index and no further than a page. Kept from sorting, it also reads a whole index that has the order a statement
/// wants, unless the statement leaves it nothing but the keys: see `USERS` and `append!`. Pages cost it little, as most are in memory: it would
/// otherwise walk through an index of hundreds of rows to save itself ten look-ups.
fn session_settings(statement_timeout: Duration, options: &PostgresOptions) -> String {
    format!(
        "SET search_path = tidings; \
         SET statement_timeout = {}; SET lock_timeout = {}; SET idle_in_transaction_session_timeout = {}; \
         SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_sort = off; SET jit = off; \
         SET seq_page_cost = 0.1; SET random_page_cost = 0.1; \
         SET plan_cache_mode = force_generic_plan; \
         SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'",
        statement_timeout.as_millis(),
        options.lock_timeout.as_millis(),
        options.idle_in_transaction_timeout.as_millis()
    )
}

/// A statement and its parameters, to be pipelined with others.
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
    purpose: Purpose,
    client: Client,
    statements: Mutex<HashMap<&'static str, Statement>>,
    /// How often the connection was used since it prepared a statement last, and after how many uses it has them planned anew.
    uses: AtomicU64,
    renew_after: AtomicU64,
    commit_warning: Arc<AtomicBool>,
}

impl Connection {
    /// Has PostgreSQL plan the statements anew from time to time: 16, 64, 256 uses and so on after one was prepared. What was planned for a
    /// table of a few rows reads all of them, and would until the table is analysed, however many there are by then. To be called before each
    /// use, while no transaction is open.
    pub(crate) async fn renew_plans(&self) -> Result<(), Failure> {
        let renew_after = self.renew_after.load(Ordering::Relaxed);
        if self.uses.fetch_add(1, Ordering::Relaxed) < renew_after {
            return Ok(());
        }
        self.renew_after.store(renew_after.saturating_mul(PLANS_LAST_TIMES), Ordering::Relaxed);
        self.in_time(self.client.batch_execute("DISCARD PLANS")).await
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Whether the database has sent a warning since the last call.
    pub(crate) fn take_commit_warning(&self) -> bool {
        self.commit_warning.swap(false, Ordering::AcqRel)
    }

    /// Executes statements without parameters or results.
    pub(crate) async fn batch(&self, sql: &str) -> Result<(), Failure> {
        self.counted(self.client.batch_execute(sql)).await
    }

    /// Executes a whole transaction that is one message, and so one round trip; answers the rows that each of its statements
    /// returned or changed.
    pub(crate) async fn transaction(&self, sql: &str) -> Result<Vec<u64>, Failure> {
        let messages = self.counted(self.client.simple_query(sql)).await?;
        let count = |message: &SimpleQueryMessage| match message {
            SimpleQueryMessage::CommandComplete(rows) => Some(*rows),
            _ => None,
        };
        Ok(messages.iter().filter_map(count).collect())
    }

    /// Executes scripts without parameters or results: sends all before it waits for the first answer.
    ///
    /// # Errors
    /// The place of the first script that failed, and its failure.
    pub(crate) async fn pipeline_scripts(&self, scripts: &[&str]) -> Result<(), (usize, Failure)> {
        let sent = scripts.iter().map(|script| self.client.batch_execute(script));
        let answers = self.counted(async { Ok(join_all(sent).await) }).await.map_err(|failure| (0, failure))?;
        let failed = answers.into_iter().enumerate().find_map(|(place, answer)| Some((place, answer.err()?)));
        failed.map_or(Ok(()), |(place, error)| Err((place, error.into())))
    }

    pub(crate) async fn query(&self, sql: &'static str, params: Params<'_>) -> Result<Vec<Row>, Failure> {
        self.connector.statements.fetch_add(1, Ordering::Relaxed);
        let statement = self.statement(sql).await?;
        self.counted(self.client.query(&statement, params)).await
    }

    /// Sends all statements before it waits for the first answer: one round trip. Within a transaction, the statements
    /// after a failed one do nothing.
    ///
    /// # Errors
    /// The failure of the first statement that failed.
    pub(crate) async fn pipeline(&self, calls: &[Call<'_>]) -> Result<Vec<Vec<Row>>, Failure> {
        let mut prepared = Vec::with_capacity(calls.len());
        for call in calls {
            prepared.push(self.statement(call.sql).await?);
        }
        let counted = calls.iter().filter(|call| !["BEGIN", "COMMIT"].contains(&call.sql)).count();
        self.connector.statements.fetch_add(counted as u64, Ordering::Relaxed);
        // A statement is sent when its future is first polled, and `join_all` polls in order.
        let sent = calls.iter().zip(&prepared).map(|(call, statement)| self.client.query(statement, &call.params));
        let answers = self.counted(async { Ok(join_all(sent).await) }).await?;
        answers.into_iter().map(|answer| answer.map_err(Failure::from)).collect()
    }

    /// The prepared statement; prepared once per connection.
    async fn statement(&self, sql: &'static str) -> Result<Statement, Failure> {
        if let Some(statement) = self.statements.lock().get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.counted(self.client.prepare(sql)).await?;
        self.statements.lock().insert(sql, statement.clone());
        self.uses.store(0, Ordering::Relaxed);
        self.renew_after.store(FIRST_PLANS_LAST, Ordering::Relaxed);
        Ok(statement)
    }

    /// A round trip of the work that a caller waits for.
    async fn counted<T>(&self, work: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Failure> {
        self.connector.round_trips.fetch_add(1, Ordering::Relaxed);
        self.in_time(work).await
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Failure> {
        tokio::select! {
            result = timeout(self.connector.answer_timeout[self.purpose as usize], work) => match result {
                Ok(result) => Ok(result?),
                Err(_) => Err(Failure::TimedOut),
            },
            () = self.connector.liveness.becomes_silent() => Err(Failure::TimedOut),
        }
    }
}

/// A column with one of our numbers, which are never negative.
pub(crate) fn number(row: &Row, column: usize) -> u64 {
    row.get::<_, i64>(column) as u64
}

/// A number as the database holds it. A greater number, such as the `u64::MAX` of a range without an end, becomes the
/// greatest that the database can hold.
pub(crate) fn bigint(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beyond_the_databases_range_become_its_greatest() {
        assert_eq!((bigint(0), bigint(7), bigint(u64::MAX)), (0, 7, i64::MAX));
    }
}
