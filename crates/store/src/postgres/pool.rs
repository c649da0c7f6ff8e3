//! The pool of connections for readers, of a fixed size. A reader that finds all connections busy waits for a while and is
//! then refused.

use super::{
    Params,
    connection::{Connection, Connector, Purpose},
    failure::Failure,
};
use crossbeam_channel::{Receiver, Sender, bounded};
use std::{sync::Arc, time::Duration};
use tidings_domain::store::{StoreError, StoreResult};
use tokio_postgres::Row;

pub(crate) struct Pool {
    connector: Arc<Connector>,
    /// The free slots, each with the connection that was left in it, if any.
    free: Receiver<Option<Connection>>,
    released: Sender<Option<Connection>>,
    acquire_timeout: Duration,
}

impl Pool {
    pub(crate) fn new(connector: Arc<Connector>, connections: usize, acquire_timeout: Duration) -> Pool {
        let connections = connections.max(1);
        let (released, free) = bounded(connections);
        for _ in 0..connections {
            // The slot gets its connection when it is first used.
            let _ = released.try_send(None);
        }
        Pool { connector, free, released, acquire_timeout }
    }

    pub(crate) fn connector(&self) -> &Arc<Connector> {
        &self.connector
    }

    /// Executes a statement. A connection that broke while it was idle is replaced once.
    pub(crate) fn query(&self, sql: &'static str, params: Params<'_>) -> StoreResult<Vec<Row>> {
        self.connector.check_liveness()?;
        let mut reader = self.acquire()?;
        let mut attempt = || {
            let result = self.connector.block_on(async { reader.connection().await?.query(sql, params).await });
            if result.as_ref().is_err_and(Failure::breaks_connection) {
                reader.discard();
            }
            result
        };
        match attempt() {
            Err(Failure::Disconnected(_)) => Ok(attempt()?),
            result => Ok(result?),
        }
    }

    /// Takes a slot.
    ///
    /// # Errors
    /// No slot became free within the time for it.
    pub(crate) fn acquire(&self) -> StoreResult<PooledConnection<'_>> {
        match self.free.recv_timeout(self.acquire_timeout) {
            Ok(connection) => Ok(PooledConnection { pool: self, connection }),
            Err(_) => Err(StoreError::Unavailable("all connections to PostgreSQL are busy".into())),
        }
    }
}

/// A slot of the pool, given back when dropped.
pub(crate) struct PooledConnection<'a> {
    pool: &'a Pool,
    connection: Option<Connection>,
}

impl PooledConnection<'_> {
    /// The slot's connection; connects if there is none or it has broken.
    pub(crate) async fn connection(&mut self) -> Result<&Connection, Failure> {
        let open = self.connection.take().filter(|connection| !connection.is_closed());
        let connection = match open {
            Some(connection) => {
                connection.renew_plans().await?;
                connection
            }
            None => self.pool.connector.connect(Purpose::Read).await?,
        };
        Ok(self.connection.insert(connection))
    }

    /// Closes the connection. Required after a time-out: the late answer may still arrive on it.
    pub(crate) fn discard(&mut self) {
        self.connection = None;
    }
}

impl Drop for PooledConnection<'_> {
    fn drop(&mut self) {
        // The channel has room: it holds as many slots as the pool has.
        let _ = self.pool.released.try_send(self.connection.take());
    }
}
