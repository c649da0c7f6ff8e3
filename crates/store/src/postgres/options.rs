//! Where the database is, and how long to wait for it.

use std::{fmt, path::PathBuf, time::Duration};

/// How to open a store on PostgreSQL. Every wait has a limit: a database that does not answer makes the store unavailable
/// and holds no thread for good.
#[derive(Clone)]
pub struct PostgresOptions {
    /// `postgres://user:password@host:port/database`; several hosts, separated by commas, are tried in turn.
    /// Never printed.
    pub url: String,
    /// Standbys of the database, each by a url with one host. Empty: all reads go to the primary. Never printed.
    pub read_urls: Vec<String>,
    /// The certificate authority that signs the database's certificate, where the url says `sslmode=require`. Unset: the
    /// authorities that the system trusts.
    pub tls_ca_file: Option<PathBuf>,
    /// Whether to keep an outbox: the list of entries that await offline push.
    pub outbox: bool,
    /// Connections for readers; commits have one more.
    pub connections: usize,
    /// How long a reader waits for a connection.
    pub acquire_timeout: Duration,
    pub connect_timeout: Duration,
    /// How long a read may take in the database. Commits have no such limit: PostgreSQL answers a commit that is cancelled
    /// while it waits for a standby as if it were done.
    pub statement_timeout: Duration,
    /// How long a statement waits for another's locks.
    pub lock_timeout: Duration,
    /// How long a transaction that took its locks first may hold them while this node sends no statement. A node that stops
    /// there holds up others for as long; the batch of one that was only slow is tried again.
    pub idle_in_transaction_timeout: Duration,
    /// How long the liveness probe waits for an answer. After that the database counts as silent, and statements are
    /// refused until it answers. A busy database is slow, but not silent.
    pub silent_after: Duration,
    /// The days of entries in one partition of the timeline; fixed when the database is first opened.
    pub part_days: u32,
    /// In how many orders commits take positions, side by side; fixed when the database is first opened.
    pub orders: u16,
}

impl PostgresOptions {
    pub fn new(url: impl Into<String>) -> Self {
        PostgresOptions {
            url: url.into(),
            read_urls: Vec::new(),
            tls_ca_file: None,
            outbox: false,
            connections: 16,
            acquire_timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(15),
            lock_timeout: Duration::from_secs(5),
            idle_in_transaction_timeout: Duration::from_millis(250),
            silent_after: Duration::from_secs(3),
            part_days: 7,
            orders: 1,
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
