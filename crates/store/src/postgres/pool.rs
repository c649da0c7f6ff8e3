//! Connections for readers: so many and no more. Who finds all of them taken waits a while, and is then refused.

use super::connection::{Connection, Connector, Failure, Use};
use crossbeam_channel::{Receiver, Sender, bounded};
use std::{sync::Arc, time::Duration};
use tidings_engine::store::{StoreError, StoreResult};

pub(crate) struct Pool {
    connector: Arc<Connector>,
    free: Receiver<Option<Connection>>,
    back: Sender<Option<Connection>>,
    acquire_timeout: Duration,
}

impl Pool {
    pub(crate) fn new(connector: Arc<Connector>, connections: usize, acquire_timeout: Duration) -> Pool {
        let connections = connections.max(1);
        let (back, free) = bounded(connections);
        for _ in 0..connections {
            // Connected when first used.
            let _ = back.try_send(None);
        }
        Pool { connector, free, back, acquire_timeout }
    }

    pub(crate) fn take(&self) -> StoreResult<Reader<'_>> {
        match self.free.recv_timeout(self.acquire_timeout) {
            Ok(connection) => Ok(Reader { pool: self, connection }),
            Err(_) => Err(StoreError::Unavailable("all connections to PostgreSQL are busy".into())),
        }
    }
}

/// A place in the pool, with the connection that was left there.
pub(crate) struct Reader<'a> {
    pool: &'a Pool,
    connection: Option<Connection>,
}

impl Reader<'_> {
    pub(crate) async fn connection(&mut self) -> Result<&Connection, Failure> {
        let open = self.connection.take().filter(|connection| !connection.is_closed());
        let connection = match open {
            Some(connection) => connection,
            None => self.pool.connector.connect(Use::Read).await?,
        };
        Ok(self.connection.insert(connection))
    }

    /// The connection is not to be used again: an answer may still come on it.
    pub(crate) fn give_up(&mut self) {
        self.connection = None;
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        // There is always room: each place was taken from there.
        let _ = self.pool.back.try_send(self.connection.take());
    }
}
