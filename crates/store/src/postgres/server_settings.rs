//! What a database is set to, for `tidings doctor`: read without opening a store in it.

use super::{
    connection::{Connector, Purpose},
    failure::failure_text,
    options::PostgresOptions,
};
use std::{collections::BTreeMap, sync::Arc};

/// The settings as they are for sessions that set nothing, in the units of `pg_settings`.
const SETTINGS: &str = "SELECT name, coalesce(reset_val, '') FROM pg_settings \
    WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'max_connections', 'superuser_reserved_connections', \
    'shared_buffers', 'max_wal_size', 'server_version', 'track_io_timing')";

/// Reads what the database is set to, by name. Nothing is written, and no table is made.
///
/// # Errors
/// The url is wrong, or the database cannot be reached. The text is for operators, and has no password.
pub fn read_server_settings(options: &PostgresOptions) -> Result<BTreeMap<String, String>, String> {
    let connector = Arc::new(Connector::new(options).map_err(|error| error.to_string())?);
    let rows = connector.block_on(async {
        let connection = connector.connect_to_any_version(Purpose::Read).await?;
        connection.query(SETTINGS, &[]).await
    });
    let rows = rows.map_err(|failure| failure_text(&failure))?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}
