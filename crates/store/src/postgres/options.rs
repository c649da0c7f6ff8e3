//! Where the database is, and how long to wait for it.

use std::{fmt, path::PathBuf, time::Duration};

/// How to open a store on PostgreSQL. Waiting has a limit everywhere: a database that does not answer is
/// told as unavailable, and no thread is held by it.
#[derive(Clone)]
pub struct PostgresOptions {
    /// `postgres://user:password@host:port/database`; several hosts, separated by commas, are tried in turn.
    /// Never printed.
    pub url: String,
    /// Who signs the database's certificate, where the url says `sslmode=require`; unset: whom the system trusts.
    pub tls_ca_file: Option<PathBuf>,
    /// Keep a list of entries for offline push.
    pub outbox: bool,
    /// Connections for readers; commits have one more.
    pub connections: usize,
    /// How long a reader waits for a connection.
    pub acquire_timeout: Duration,
    pub connect_timeout: Duration,
    /// How long a read may take. Commits have no such limit at the database: one that was stopped while it
    /// waited for a standby would be told as done.
    pub statement_timeout: Duration,
    /// How long a statement waits for another's locks.
    pub lock_timeout: Duration,
    /// A database that has said nothing for so long is waited for by nobody until it says something. A busy one is slow,
    /// and not silent.
    pub silent_after: Duration,
    /// The days of entries in one part of the timeline; fixed when the database is first opened.
    pub part_days: u32,
}

impl PostgresOptions {
    pub fn new(url: impl Into<String>) -> Self {
        PostgresOptions {
            url: url.into(),
            tls_ca_file: None,
            outbox: false,
            connections: 16,
            acquire_timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(15),
            lock_timeout: Duration::from_secs(5),
            silent_after: Duration::from_secs(3),
            part_days: 7,
        }
    }
}

impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PostgresOptions { outbox, connections, part_days, .. } = self;
        f.debug_struct("PostgresOptions")
            .field("outbox", outbox)
            .field("connections", connections)
            .field("part_days", part_days)
            .finish_non_exhaustive()
    }
}
