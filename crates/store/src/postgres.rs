//! The `Store` port on PostgreSQL: for several nodes on one database.
//!
//! It knows rows, locks and transactions, and that other nodes commit to the same database. In reading order:
//! - [`options`]: where the database is, and how long to wait for it;
//! - [`tls`]: whether connections are encrypted; [`failure`]: failures of statements, which say whether anything may be
//!   stored; [`connection`]: a connection that pipelines statements, and [`driver`], which moves its bytes; [`pool`]: the
//!   connections of readers; [`liveness`]: whether the database answers at all;
//! - [`versions`]: the versions of the tables; [`migrations`]: the tables, created and changed once by the first node that
//!   starts;
//! - [`commit`]: one batch: the rows that it touches are loaded ([`load`], [`checked_read`]), the batch is decided in memory ([`staged_batch`])
//!   and written ([`mod@write`]), in two round trips whatever its size; [`append`] does the same for a batch of nothing but
//!   entries, in one; [`numbers`]: the numbers of new users and conversations; [`entries`]: the columns of entries, for both;
//!   [`clock`]: the database's time in statements; [`commit_orders`]: several orders of commits, and the one that is laid over them;
//! - [`commit_log`]: the commit order read back, and the nodes that share it; [`life_signs`]: how a node sees that the leader
//!   has ended; [`node_settings`]: what nodes have set;
//! - [`read`]: single reads; [`batch_reads`]: reads of many things in one statement; [`missed_statement`]: the longest of
//!   these statements;
//! - [`read_place`]: which reads a standby may serve; [`shared_rounds`], [`newest_commit`], [`standby`], [`standbys`]: how one is known to be as new as
//!   the primary;
//! - [`byte_rows`]: rows that a part of the server encodes itself; [`terms`]: the fencing of their writes;
//! - [`partitions`]: the timeline's partitions, and how old ones are dropped;
//! - [`from_folder`]: a data folder becomes a database; [`mod@divide`]: one of one order is divided into several.
//!
//! # Locks
//! A transaction takes row locks in one order, so that no two transactions wait for each other: users by number, heads of
//! conversations by number, then the new users and conversations by their ids (whoever stores an id holds up who stores it
//! too), and last the one row of counters. A transaction that has locked the counters waits for no other lock. Positions come
//! from the counters, and the row stays locked until the commit is done: a reader that sees a position sees every smaller one.
//! In a database of several orders they come from the row of the transaction's order, which is locked before the counters are, and first
//! results are stored in the order of their keys: two orders may store the same ids. A cut locks the table `cutting` and then the counters.
//!
//! A lock is taken in the round trip that ends its transaction, and so held only while the database works: a node that stops
//! holds nobody up. The one exception is in [`commit`], with its limit. Maintenance keeps to it as well: [`migrations`] and
//! [`partitions`] send a transaction as one message.

mod append;
mod batch_reads;
mod byte_rows;
mod checked_read;
mod clock;
mod commit;
mod commit_log;
mod commit_orders;
mod connection;
mod divide;
mod driver;
mod entries;
mod failure;
mod from_folder;
mod life_signs;
mod liveness;
mod load;
mod migrations;
mod missed_statement;
mod newest_commit;
mod node_settings;
mod notification_tables;
mod numbers;
mod options;
mod partitions;
mod pool;
mod read;
mod read_place;
mod server_settings;
mod shared_rounds;
mod staged_batch;
mod standby;
mod standbys;
mod terms;
mod tls;
mod versions;
mod write;

pub use divide::{DivideError, divide_database};
pub use from_folder::{CopyError, CopyProgress, CopyReport, copy_folder};
pub use migrations::MigrationError;
pub use options::PostgresOptions;
pub use server_settings::read_server_settings;

use commit::Writer;
use commit_orders::CommitOrders;
use connection::Connector;
use failure::{Failure, failure_text};
use parking_lot::Mutex;
use partitions::Partitions;
use pool::Pool;
use read_place::{Place, Read};
use standbys::Standbys;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use terms::Terms;
use tidings_domain::{
    installation::InstallationId,
    store::{StoreError, StoreResult},
};
use tokio_postgres::{Row, types::ToSql};

/// A statement's parameters.
pub(crate) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Why a database could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum PostgresOpenError {
    /// The text says what is wrong with the url and quotes nothing of it: it holds the password.
    #[error("the database's url: {0}")]
    Url(String),
    #[error("the certificates to verify the database's certificate with: {0}")]
    Tls(String),
    #[error("the thread for connections could not be started: {0}")]
    Thread(std::io::Error),
    #[error("standby {place} of the settings: {why}")]
    Standby { place: usize, why: String },
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
    standbys: Standbys,
    orders: Arc<CommitOrders>,
    /// One for each order.
    writers: Vec<Mutex<Writer>>,
    partitions: Partitions,
    /// May change while the store is open: a node that finds that the database has gone back gives it a new epoch.
    epoch: AtomicU64,
    terms: Terms,
    installation: InstallationId,
    sign_session: life_signs::SignSession,
    /// The highest position that this node has seen: the answer while the database is away.
    position: AtomicU64,
}

impl PostgresStore {
    /// Connects, and creates or migrates the tables where needed. Blocks.
    ///
    /// # Errors
    /// - [`PostgresOpenError::Url`], [`PostgresOpenError::Tls`]: the options are wrong;
    /// - [`PostgresOpenError::Thread`]: the system starts no thread for the connections;
    /// - [`PostgresOpenError::Standby`]: a standby of the options is another database;
    /// - [`PostgresOpenError::Migration`]: the database cannot be reached, a newer program has changed the tables, or
    ///   changing them failed;
    /// - [`PostgresOpenError::Store`]: a read after that failed.
    pub fn open(options: PostgresOptions) -> Result<PostgresStore, PostgresOpenError> {
        let connector = Arc::new(Connector::new(&options)?);
        let history = migrations::run(&connector, &options)?;
        let store = PostgresStore {
            readers: Pool::new(connector.clone(), options.connections, options.acquire_timeout),
            standbys: Standbys::open(&options, history.installation, connector.clone())?,
            writers: Writer::of_orders(history.orders),
            orders: Arc::new(CommitOrders::new(history.orders, history.one_order_through)),
            partitions: Partitions::new(history.part_days),
            epoch: AtomicU64::new(history.epoch),
            terms: Terms::default(),
            installation: history.installation,
            sign_session: life_signs::SignSession::default(),
            position: AtomicU64::new(0),
            outbox: options.outbox,
            connector,
        };
        store.cut_leftovers()?;
        store.fetch_position()?;
        store.connector.watch_liveness();
        Ok(store)
    }

    /// Statements sent to the primary so far, without `BEGIN` and `COMMIT`.
    pub fn statements(&self) -> u64 {
        self.connector.statements()
    }

    /// Round trips so far: how often the store has waited for an answer of the database.
    pub fn round_trips(&self) -> u64 {
        self.connector.round_trips()
    }

    /// Serves a read of the port at its place.
    pub(crate) fn read(&self, read: Read, sql: &'static str, params: Params<'_>) -> StoreResult<Vec<Row>> {
        let from_standby = match read.place() {
            Place::Standby => self.standbys.query(sql, params),
            Place::Primary => None,
        };
        from_standby.map_or_else(|| self.query(sql, params), Ok)
    }

    /// Executes a statement on the primary, on a connection of the pool.
    pub(crate) fn query(&self, sql: &'static str, params: Params<'_>) -> StoreResult<Vec<Row>> {
        self.readers.query(sql, params)
    }

    /// Writes with one statement outside a commit, and so all or nothing. Not tried again: the first attempt may still run
    /// in the database and end after a later write. [`terms`] fences such writes off.
    pub(crate) fn write_statement(&self, sql: &'static str, params: Params<'_>) -> StoreResult<Vec<Row>> {
        self.connector.check_liveness()?;
        let mut writer = self.readers.acquire()?;
        let (written, commit_warning) = self.connector.block_on(async {
            let connection = match writer.connection().await {
                Ok(connection) => connection,
                Err(failure) => return (Err(failure), false),
            };
            connection.take_commit_warning();
            let written = connection.query(sql, params).await;
            (written, connection.take_commit_warning())
        });
        if written.as_ref().is_err_and(Failure::breaks_connection) {
            writer.discard();
        }
        match written {
            _ if commit_warning => Err(StoreError::OutcomeUnknown("PostgreSQL stopped waiting for its standby".into())),
            Err(failure) if failure.breaks_connection() => Err(StoreError::OutcomeUnknown(failure_text(&failure))),
            written => Ok(written?),
        }
    }

    /// The position that the database has now. It may be lower than one that was seen: the database may have gone back.
    fn fetch_position(&self) -> StoreResult<u64> {
        let rows = self.query("SELECT position FROM counters", &[])?;
        let position = rows.first().map_or(0, |row| connection::number(row, 0));
        self.position.fetch_max(position, Ordering::AcqRel);
        Ok(position)
    }
}

impl Drop for PostgresStore {
    /// Gives back the numbers that were reserved and not given out, if nobody has reserved more since.
    fn drop(&mut self) {
        for writer in &mut self.writers {
            let Writer { connection: Some(connection), numbers, .. } = writer.get_mut() else { continue };
            if let Some(give_back) = numbers.give_back() {
                let _ = self.connector.block_on(connection.transaction(&give_back));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;

    #[test]
    fn an_error_and_its_sources_say_the_cause_only_once() {
        let cause = || StoreError::Unavailable("refused".into());
        for error in [PostgresOpenError::from(cause()), MigrationError::from(cause()).into()] {
            let (mut texts, mut next) = (Vec::new(), Some(&error as &dyn Error));
            while let Some(error) = next {
                texts.push(error.to_string());
                next = error.source();
            }
            assert_eq!(texts, ["the store is unavailable: refused"]);
        }
    }
}
