//! A database of one order is divided into several, while no node uses it. What is stored stays as it is: positions, cursors, and the
//! entries of each conversation, whose next ones come in the conversation's new order. It takes one short transaction, however much is
//! stored.

use super::{
    PostgresOpenError,
    connection::{Connector, Purpose, number},
    failure::Failure,
    migrations::{self, LOCK_KEY, divide},
    options::PostgresOptions,
};
use std::sync::Arc;
use tidings_domain::{
    model::Position,
    store::{Orders, StoreError},
};
use tokio_postgres::error::SqlState;

/// Why a database is not divided. It is as it was.
#[derive(Debug, thiserror::Error)]
pub enum DivideError {
    #[error("a database is divided into 2 to {max} orders, not into {0}", max = Orders::MAX)]
    Count(u16),
    #[error("the database has {0} orders already, and is not divided again")]
    Divided(u16),
    #[error(
        "nodes use the database: {0}. Stop all of them first; one that was killed is gone when its lease has ended"
    )]
    InUse(String),
    #[error(transparent)]
    Open(#[from] PostgresOpenError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The errors of the transaction below.
const DIVIDED: &str = "TD002";
const IN_USE: &str = "TD003";

/// Divides the database; answers its newest position, from which on it has several orders.
///
/// # Errors
/// See [`DivideError`].
pub fn divide_database(options: &PostgresOptions, orders: u16) -> Result<Position, DivideError> {
    if !(2..=Orders::MAX).contains(&orders) {
        return Err(DivideError::Count(orders));
    }
    let connector = Arc::new(Connector::new(options)?);
    // An empty database begins with one order, and is divided as any other.
    let options = PostgresOptions { orders: 1, ..options.clone() };
    let history = migrations::run(&connector, &options).map_err(PostgresOpenError::from)?;
    let divided: Result<Position, Failure> = connector.block_on(async {
        let connection = connector.connect(Purpose::Maintenance).await?;
        connection.transaction(&script(Orders::new(orders))).await?;
        let rows = connection.query("SELECT one_order_through FROM history", &[]).await?;
        Ok(rows.first().map_or(0, |row| number(row, 0)))
    });
    divided.map_err(|failure| match failure {
        Failure::Database { code, message } if code == SqlState::from_code(IN_USE) => DivideError::InUse(message),
        Failure::Database { code, .. } if code == SqlState::from_code(DIVIDED) => {
            DivideError::Divided(history.orders.count())
        }
        failure => DivideError::Store(failure.into()),
    })
}

/// One transaction that is one message. A program that is not among the nodes and takes positions from the counters afterwards violates a
/// check, and stores nothing.
fn script(orders: Orders) -> String {
    format!(
        "BEGIN; SELECT pg_advisory_xact_lock({LOCK_KEY}); DO $$ BEGIN \
         IF EXISTS (SELECT FROM history WHERE orders > 1) THEN RAISE 'divided' USING ERRCODE = '{DIVIDED}'; END IF; \
         IF EXISTS (SELECT FROM nodes WHERE lease_until >= now()) THEN \
           RAISE '%', (SELECT string_agg(name, ', ' ORDER BY name) FROM nodes WHERE lease_until >= now()) \
             USING ERRCODE = '{IN_USE}'; END IF; \
         {} END $$; COMMIT",
        divide(orders)
    )
}
