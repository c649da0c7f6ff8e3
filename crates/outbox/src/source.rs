//! A database with an outbox, as a follower uses it.

use crate::{
    mysql::MysqlSource,
    postgres::PostgresSource,
    row::{Outcome, Row},
    sql,
};
use std::{path::PathBuf, time::Duration};
use tidings_protocol::http::RefusedOutboxRow;

/// The most rows on a page.
pub(crate) const PAGE_ROWS: usize = 256;
/// Rows that are removed in one statement.
const REMOVED_ROWS: i64 = 1_000;
/// Rows that wait are counted up to this number.
pub(crate) const COUNTED_MAX: i64 = 100_000;
/// Refused rows that the status shows.
pub(crate) const REFUSED_SHOWN: i64 = 20;
/// A statement that takes longer has failed.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The kinds of databases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Database {
    Postgres,
    /// MariaDB, too.
    Mysql,
}

impl Database {
    /// The kind that a url names.
    pub fn of_url(url: &str) -> Option<Database> {
        match url.split_once("://")?.0 {
            "postgres" | "postgresql" => Some(Database::Postgres),
            "mysql" | "mariadb" => Some(Database::Mysql),
            _ => None,
        }
    }
}

/// A source, as the settings have it.
#[derive(Clone)]
pub struct SourceConfig {
    pub name: String,
    pub url: String,
    pub table: String,
    /// The authorities that sign the database's certificate (PEM). Absent: those that the system trusts.
    pub tls_ca_file: Option<PathBuf>,
    /// The key of the app server that the rows' requests are made for.
    pub api_key: String,
    /// How often a database that tells of no rows by itself is asked.
    pub poll: Duration,
    /// How long finished rows are kept. Zero: for ever.
    pub keep: Duration,
}

/// Why a source cannot be followed now.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceError {
    #[error("its url: {0}")]
    Url(String),
    #[error("the certificates to verify the database's certificate with: {0}")]
    Tls(String),
    // What a driver says names hosts and roles, and never a password.
    #[error("PostgreSQL: {}", with_cause(.0))]
    Postgres(#[from] tokio_postgres::Error),
    #[error("MySQL: {0}")]
    Mysql(#[from] mysql_async::Error),
    #[error("the database does not answer")]
    TimedOut,
    #[error("another follower has begun: two servers, or two names, must not have one table")]
    Displaced,
}

fn with_cause(error: &tokio_postgres::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

pub(crate) type SourceResult<T> = Result<T, SourceError>;

/// What waits in a source.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Up to [`COUNTED_MAX`].
    pub(crate) waiting: i64,
    /// Up to [`COUNTED_MAX`].
    pub(crate) refused: i64,
    /// The age of the oldest row that waits for nothing but Tidings, by the database's clock.
    pub(crate) lag_ms: i64,
    /// The oldest of them.
    pub(crate) refused_rows: Vec<RefusedOutboxRow>,
}

/// A connection to a source.
pub(crate) enum Source {
    Postgres(PostgresSource),
    Mysql(MysqlSource),
}

/// The statements are the same but for the placeholders and what the two call alike.
macro_rules! both {
    ($source:expr, $of:pat => $call:expr) => {
        in_time(async {
            match $source {
                Source::Postgres($of) => $call.await,
                Source::Mysql($of) => $call.await,
            }
        })
        .await
    };
}

impl Source {
    pub(crate) async fn connect(config: &SourceConfig) -> SourceResult<Source> {
        let connect = async {
            match Database::of_url(&config.url) {
                Some(Database::Postgres) => Ok(Source::Postgres(PostgresSource::connect(config).await?)),
                Some(Database::Mysql) => Ok(Source::Mysql(MysqlSource::connect(config).await?)),
                None => Err(SourceError::Url("it begins with neither postgres:// nor mysql://".into())),
            }
        };
        tokio::time::timeout(CONNECT_TIMEOUT, connect).await.unwrap_or(Err(SourceError::TimedOut))
    }

    /// Begins to follow: whoever has followed until now is told by [`Source::keep`].
    pub(crate) async fn claim(&mut self, owner: &str) -> SourceResult<()> {
        both!(self, source => source.claim(owner))
    }

    /// Commits a change of this follower's own. Call between reading rows and taking them: see the crate's page.
    ///
    /// # Errors
    /// [`SourceError::Displaced`]: another follower has begun.
    pub(crate) async fn keep(&mut self, owner: &str) -> SourceResult<()> {
        match both!(self, source => source.keep(owner))? {
            true => Ok(()),
            false => Err(SourceError::Displaced),
        }
    }

    /// Rows that wait and whose conversation waits for nobody's decision, in the order of their numbers: at most [`PAGE_ROWS`].
    pub(crate) async fn read(&mut self, after: i64) -> SourceResult<Vec<Row>> {
        both!(self, source => source.read(after))
    }

    /// Writes back what became of rows.
    pub(crate) async fn finish(&mut self, outcomes: &[Outcome]) -> SourceResult<()> {
        if outcomes.is_empty() {
            return Ok(());
        }
        both!(self, source => source.finish(outcomes))
    }

    pub(crate) async fn counts(&mut self) -> SourceResult<Counts> {
        both!(self, source => source.counts())
    }

    /// Removes rows that were finished longer ago than this. Answers whether there may be more.
    pub(crate) async fn remove_old(&mut self, keep: Duration) -> SourceResult<bool> {
        let seconds = i64::try_from(keep.as_secs()).unwrap_or(i64::MAX);
        let removed = both!(self, source => source.remove_old(seconds, REMOVED_ROWS))?;
        Ok(removed >= REMOVED_ROWS as u64)
    }

    /// Waits for rows, at most until the next time that they are to be asked for.
    pub(crate) async fn wait(&mut self) {
        match self {
            Source::Postgres(source) => source.wait().await,
            Source::Mysql(source) => source.wait().await,
        }
    }
}

async fn in_time<T>(work: impl Future<Output = SourceResult<T>>) -> SourceResult<T> {
    tokio::time::timeout(STATEMENT_TIMEOUT, work).await.unwrap_or(Err(SourceError::TimedOut))
}

/// A statement on the table of a source.
pub(crate) fn statement(config: &SourceConfig, sql: &str) -> String {
    sql::with_table(sql, &config.table)
}
