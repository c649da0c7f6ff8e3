//! What the databases of outboxes have in common.

use crate::sql;
use std::{path::PathBuf, time::Duration};
use tidings_protocol::http::RefusedOutboxRow;

/// The most rows on a page.
pub(crate) const PAGE_ROWS: usize = 256;
/// Rows that wait are counted up to this number.
pub(crate) const COUNTED_MAX: i64 = 100_000;
/// Refused rows that the status shows.
pub(crate) const REFUSED_SHOWN: i64 = 20;

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
    #[error("another reader has begun: two servers, or two names, must not have one table")]
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

/// A statement on the table of a source.
pub(crate) fn statement(config: &SourceConfig, sql: &str) -> String {
    sql::with_table(sql, &config.table)
}
