//! The settings of the store: a data folder, or a database that several nodes share.

use super::{Settings, macros::settings};
use anyhow::{Result, bail};
use std::{path::PathBuf, time::Duration};
use tidings_store::{EmbeddedOptions, JOURNAL_BYTES_MIN, MEMTABLE_BYTES_MIN, PostgresOptions};

settings! {
    /// The data folder's engine, or a database.
    Store {
        /// Space left free on the disk: below it sends are refused until there is room again.
        disk_reserve_bytes: u64 = EmbeddedOptions::new("").disk_reserve_bytes,
        /// Writes gathered in memory before they are sorted into a file; smaller memtables stall less. At least 65536.
        memtable_bytes: u64 = EmbeddedOptions::new("").memtable_bytes,
        /// Journals that the next start reads again; above this size they are flushed to tables. At least 67108864 (64 MiB).
        journal_bytes: u64 = EmbeddedOptions::new("").journal_bytes,
        /// Blocks of files kept in memory.
        cache_bytes: u64 = EmbeddedOptions::new("").cache_bytes,
        /// A PostgreSQL database instead of the data folder: `postgres://user:password@host:5432/database`. Several
        /// hosts, separated by commas, are tried in turn. `?sslmode=require`: encrypted, and the server's name proven.
        url: Option<String> = None,
        /// Standbys of that database, one url each, from which history, lists and what sessions missed are read while they are as new
        /// as the primary. `tls_ca_file` holds for them, too; each has `connections_max` connections.
        read_url: Vec<String> = Vec::new(),
        /// The authorities that sign the database's certificate (PEM). Unset: those that the system trusts.
        tls_ca_file: Option<PathBuf> = None,
        /// Connections for reads; commits have one more. All busy: a read waits for `acquire_timeout_ms`, and is then refused.
        connections_max: usize = PostgresOptions::new("").connections,
        /// How long a read waits for a connection.
        acquire_timeout_ms: u64 = PostgresOptions::new("").acquire_timeout.as_millis() as u64,
        /// How long connecting to one host may take.
        connect_timeout_ms: u64 = PostgresOptions::new("").connect_timeout.as_millis() as u64,
        /// How long a read may take in the database.
        read_timeout_ms: u64 = PostgresOptions::new("").statement_timeout.as_millis() as u64,
        /// How long a statement waits for rows that another node has locked.
        lock_timeout_ms: u64 = PostgresOptions::new("").lock_timeout.as_millis() as u64,
        /// The days of messages in one partition of the timeline, which retention drops as a whole. Fixed when a database is
        /// first used.
        part_days: u32 = PostgresOptions::new("").part_days,
        /// In how many orders a new database commits, side by side: 1 to 256. One commits after the other; more commit at once, and
        /// each message waits for a second, short transaction. For databases that wait for a slow disk or a standby. Fixed when a
        /// database is first used; `tidings divide` changes one of 1.
        orders: u32 = u32::from(PostgresOptions::new("").orders),
    }
}

impl Settings {
    pub(super) fn check_store(&self) -> Result<()> {
        let url = self.store.url.as_deref().unwrap_or_default();
        if !url.is_empty() && !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            bail!("[store] url is not one of PostgreSQL: postgres://user:password@host:port/database");
        }
        if !self.store.read_url.is_empty() && url.is_empty() {
            bail!("[store] read_url names standbys of no database: set url to that of their primary");
        }
        for standby in &self.store.read_url {
            let parsed = reqwest::Url::parse(standby);
            let has_one_host = |url: &reqwest::Url| url.host_str().is_some_and(|host| !host.contains(','));
            if !parsed.is_ok_and(|url| matches!(url.scheme(), "postgres" | "postgresql") && has_one_host(&url)) {
                bail!(
                    "[store] read_url: each must be like postgres://user:password@10.0.0.12:5432/database, with one host"
                );
            }
        }
        for (name, bytes, least) in [
            ("journal_bytes", self.store.journal_bytes, JOURNAL_BYTES_MIN),
            ("memtable_bytes", self.store.memtable_bytes, MEMTABLE_BYTES_MIN),
        ] {
            if bytes < least {
                bail!("[store] {name} is {bytes}; it must be at least {least}");
            }
        }
        Ok(())
    }

    pub(crate) fn embedded_options(&self) -> EmbeddedOptions {
        let store = &self.store;
        EmbeddedOptions {
            path: self.data_dir.clone(),
            outbox: self.has_offline_push(),
            event_log: self.events.keep_days > 0,
            disk_reserve_bytes: store.disk_reserve_bytes,
            memtable_bytes: store.memtable_bytes,
            journal_bytes: store.journal_bytes,
            cache_bytes: store.cache_bytes,
        }
    }

    /// The same settings with another database.
    pub(crate) fn with_database(mut self, url: String) -> Result<Settings> {
        self.store.url = Some(url);
        self.check_store()?;
        Ok(self)
    }

    /// The database, if the settings name one.
    pub(crate) fn postgres_options(&self) -> Option<PostgresOptions> {
        let store = &self.store;
        Some(PostgresOptions {
            url: store.url.clone().filter(|url| !url.is_empty())?,
            read_urls: store.read_url.clone(),
            outbox: self.has_offline_push(),
            tls_ca_file: store.tls_ca_file.clone(),
            connections: store.connections_max,
            acquire_timeout: Duration::from_millis(store.acquire_timeout_ms),
            connect_timeout: Duration::from_millis(store.connect_timeout_ms),
            statement_timeout: Duration::from_millis(store.read_timeout_ms),
            lock_timeout: Duration::from_millis(store.lock_timeout_ms),
            part_days: store.part_days,
            orders: u16::try_from(store.orders).unwrap_or(u16::MAX),
            ..PostgresOptions::new("")
        })
    }

    /// Refuses a command for data folders when the store is a database.
    pub(crate) fn needs_folder(&self, command: &str, instead: &str) -> Result<()> {
        match self.postgres_options() {
            Some(_) => bail!("[store] url names a database: `tidings {command}` is for data folders. {instead}"),
            None => Ok(()),
        }
    }
}
