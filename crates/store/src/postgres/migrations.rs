//! Creating and migrating the tables. The first node that starts does it, under a lock and in one transaction. A node that
//! starts must know every migration.

use super::{
    connection::{Connection, Connector, Purpose, bigint, number},
    failure::Failure,
    versions::{KNOWN, MIGRATIONS, Migration, needs_program},
};
use crate::epoch::fresh_epoch;
use std::sync::Arc;
use tidings_domain::store::StoreError;

/// "tidings" in ASCII: the advisory lock of a transaction that changes tables.
pub(crate) const LOCK_KEY: i64 = 0x0074_6964_696e_6773;

/// Why this program cannot start with the tables.
#[derive(Debug, thiserror::Error)]
pub enum MigrationError {
    #[error(
        "the database has version {found} of the tables, and this program knows {known}: a newer program has changed \
         them. Start the newer program, or restore a backup from before"
    )]
    Newer { found: u64, known: u64 },
    /// The migration failed, and its transaction was rolled back.
    #[error("changing the tables to version {version} ({name}): {why}")]
    Failed { version: u64, name: &'static str, why: StoreError },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<Failure> for MigrationError {
    fn from(failure: Failure) -> Self {
        MigrationError::Store(failure.into())
    }
}

/// The history that a database holds, as in its table `history`.
pub(crate) struct History {
    pub epoch: u64,
    pub part_days: u64,
}

pub(crate) fn run(connector: &Arc<Connector>, part_days: u32) -> Result<History, MigrationError> {
    connector.block_on(async {
        let connection = connector.connect_to_any_version(Purpose::Commit).await?;
        connection.batch("BEGIN").await?;
        // The lock is held until the transaction ends.
        connection.query("SELECT pg_advisory_xact_lock($1)", &[&LOCK_KEY]).await?;
        let found = version(&connection).await?;
        if found > KNOWN {
            return Err(MigrationError::Newer { found, known: KNOWN });
        }
        for migration in MIGRATIONS.iter().filter(|migration| migration.version > found) {
            apply(&connection, migration).await?;
            tracing::info!(version = migration.version, name = migration.name, "the database's tables were changed");
        }
        let history = history(&connection, part_days).await?;
        connection.batch("COMMIT").await?;
        Ok(history)
    })
}

/// The version that the tables have; 0 for an empty database.
async fn version(connection: &Connection) -> Result<u64, MigrationError> {
    // The owner of the database may have created the schema for a user without the right to create one.
    let schema = connection.query("SELECT 1 FROM pg_namespace WHERE nspname = 'tidings'", &[]).await?;
    if schema.is_empty() {
        connection.batch("CREATE SCHEMA tidings").await?;
    }
    let table = connection.query("SELECT 1 WHERE to_regclass('tidings.migrations') IS NOT NULL", &[]).await?;
    if table.is_empty() {
        let create = "CREATE TABLE tidings.migrations (version bigint PRIMARY KEY, name text NOT NULL, \
                      needs_program bigint NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())";
        connection.batch(create).await?;
    }
    let newest = connection.query("SELECT coalesce(max(version), 0) FROM tidings.migrations", &[]).await?;
    Ok(newest.first().map_or(0, |row| number(row, 0)))
}

async fn apply(connection: &Connection, migration: &Migration) -> Result<(), MigrationError> {
    let Migration { version, name, sql } = *migration;
    let failed = |failure: Failure| MigrationError::Failed { version, name, why: failure.into() };
    connection.batch(sql).await.map_err(failed)?;
    let (number, needs) = (bigint(version), bigint(needs_program(sql).unwrap_or(version)));
    let note = "INSERT INTO tidings.migrations (version, name, needs_program) VALUES ($1, $2, $3)";
    connection.query(note, &[&number, &name, &needs]).await.map_err(failed)?;
    Ok(())
}

/// Reads the database's history; begins one in an empty database.
async fn history(connection: &Connection, part_days: u32) -> Result<History, MigrationError> {
    let read = "SELECT epoch, part_days::bigint FROM history";
    let found = connection.query(read, &[]).await?;
    if let Some(row) = found.first() {
        return Ok(History { epoch: number(row, 0), part_days: number(row, 1).max(1) });
    }
    let (epoch, part_days) = (fresh_epoch(), part_days.max(1));
    let begin = "INSERT INTO history (epoch, part_days) VALUES ($1, $2::bigint::integer)";
    connection.query(begin, &[&bigint(epoch), &i64::from(part_days)]).await?;
    Ok(History { epoch, part_days: part_days.into() })
}
