//! The `Store` port on PostgreSQL: for several nodes on one database.
//!
//! It knows rows, locks and transactions, and that other nodes commit beside it. In reading order:
//! - [`options`]: where the database is, and how long to wait for it;
//! - [`tls`]: whether connections are encrypted; [`connection`]: one of them, on which statements are sent together and
//!   answers tell for certain or do not; [`pool`]: several, for readers; [`pulse`]: whether it
//!   says anything;
//! - [`migrations`]: the tables, made and changed once by whoever comes first;
//! - [`commit`]: one batch: everything it touches is locked and loaded ([`load`]), decided in memory
//!   ([`decide`]) and written ([`write`]), in two round trips whatever its size; [`append`] is the same for
//!   entries alone, in one;
//! - [`commit_log`]: the commit order read back, and the nodes that share it;
//! - [`read`]: what others ask; [`many`]: the same of many things, in one statement; [`missed`]: the longest of those;
//! - [`byte_rows`]: rows that the engine makes itself; [`terms`]: which of their writes count;
//! - [`parts`]: the timeline in parts, and how old ones go.
//!
//! # Locks
//! A transaction takes row locks in one order, so that no two wait for each other: users by number,
//! heads of conversations by number, and last the one row of counters. Who holds the counters waits for
//! nobody. Positions come from there, and the row stays locked until the commit is done: a reader that sees
//! a position sees every smaller one.

mod append;
mod byte_rows;
mod commit;
mod commit_log;
mod connection;
mod decide;
mod load;
mod many;
mod migrations;
mod missed;
mod options;
mod parts;
mod pool;
mod pulse;
mod read;
mod terms;
mod tls;
mod write;

pub use migrations::MigrationError;
pub use options::PostgresOptions;

use commit::Writer;
use connection::{Connector, Failure, failure_text};
use parking_lot::Mutex;
use parts::Parts;
use pool::Pool;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use terms::Terms;
use tidings_engine::store::{StoreError, StoreResult};
use tokio_postgres::{Row, types::ToSql};

/// A statement's parameters.
pub(crate) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Why a database could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum PostgresOpenError {
    /// Says what is wrong with it, and nothing of what it says.
    #[error("the database's url: {0}")]
    Url(String),
    #[error("certificates to prove the database's with: {0}")]
    Tls(String),
    #[error("the thread for connections: {0}")]
    Thread(std::io::Error),
    #[error(transparent)]
    Migration(#[from] MigrationError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A store on a database that other nodes may use at the same time.
pub struct PostgresStore {
    connector: Arc<Connector>,
    outbox: bool,
    readers: Pool,
    writer: Mutex<Writer>,
    parts: Parts,
    /// May change: a node that finds the history to be another one says so to all.
    epoch: AtomicU64,
    terms: Terms,
    /// The highest position that this node has seen: the answer while the database is away.
    position: AtomicU64,
}

impl PostgresStore {
    /// Connects, and makes or changes the tables where that is due. Blocks.
    pub fn open(options: PostgresOptions) -> Result<PostgresStore, PostgresOpenError> {
        let connector = Arc::new(Connector::new(&options)?);
        let history = migrations::run(&connector, options.part_days)?;
        let store = PostgresStore {
            readers: Pool::new(connector.clone(), options.connections, options.acquire_timeout),
            writer: Mutex::new(Writer::default()),
            parts: Parts::new(history.part_days),
            epoch: AtomicU64::new(history.epoch),
            terms: Terms::default(),
            position: AtomicU64::new(0),
            outbox: options.outbox,
            connector,
        };
        store.fetch_position()?;
        store.connector.feel_pulse();
        Ok(store)
    }

    /// Statements sent so far, begin and commit not counted: what a message costs the database.
    pub fn statements(&self) -> u64 {
        self.connector.statements()
    }

    /// How often an answer of the database was waited for.
    pub fn round_trips(&self) -> u64 {
        self.connector.round_trips()
    }

    /// Reads, on a connection of the pool. A connection that broke while it was idle is replaced once.
    pub(crate) fn query(&self, sql: &'static str, params: Params<'_>) -> StoreResult<Vec<Row>> {
        self.connector.check_pulse()?;
        let mut reader = self.readers.take()?;
        let mut ask = || {
            let result = self.connector.block_on(async { reader.connection().await?.query(sql, params).await });
            if result.as_ref().is_err_and(Failure::spoils_connection) {
                reader.give_up();
            }
            result
        };
        match ask() {
            Err(Failure::Lost(_)) => Ok(ask()?),
            result => Ok(result?),
        }
    }

    /// Writes what is no commit: one statement, and so all or nothing. Not tried again: an earlier try that
    /// still runs could end after a later write. [`terms`] sees to it that none does.
    pub(crate) fn write_aside(&self, sql: &'static str, params: Params<'_>) -> StoreResult<Vec<Row>> {
        self.connector.check_pulse()?;
        let mut writer = self.readers.take()?;
        let (written, doubt) = self.connector.block_on(async {
            let connection = match writer.connection().await {
                Ok(connection) => connection,
                Err(failure) => return (Err(failure), false),
            };
            connection.take_doubt();
            let written = connection.query(sql, params).await;
            (written, connection.take_doubt())
        });
        if written.as_ref().is_err_and(Failure::spoils_connection) {
            writer.give_up();
        }
        match written {
            _ if doubt => Err(StoreError::Unsure("PostgreSQL stopped waiting for its standby".into())),
            Err(failure) if failure.spoils_connection() => Err(StoreError::Unsure(failure_text(&failure))),
            written => Ok(written?),
        }
    }

    /// What the database says, and not what it said before: it may have gone back.
    fn fetch_position(&self) -> StoreResult<u64> {
        let rows = self.query("SELECT position FROM counters", &[])?;
        let position = rows.first().map_or(0, |row| connection::number(row, 0));
        self.position.fetch_max(position, Ordering::AcqRel);
        Ok(position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;

    #[test]
    fn what_is_wrong_is_said_once() {
        let told = || StoreError::Unavailable("refused".into());
        for error in [PostgresOpenError::from(told()), MigrationError::from(told()).into()] {
            let (mut said, mut next) = (Vec::new(), Some(&error as &dyn Error));
            while let Some(error) = next {
                said.push(error.to_string());
                next = error.source();
            }
            assert_eq!(said, ["the store is unavailable: refused"]);
        }
    }
}
