//! Creating and migrating the tables. The first node that starts does it, under a lock and in one transaction.
//!
//! Each file in `migrations/` has a line `needs program`: the lowest version of the tables that a running program must know
//! to go on. A migration that the previous program can work with names the previous version, and nodes that run it go on.
//! A node that starts must know every migration.

use super::connection::{Connection, Connector, Failure, Purpose, bigint, number};
use crate::open::fresh_epoch;
use std::sync::Arc;
use tidings_domain::store::StoreError;

struct Migration {
    version: u64,
    name: &'static str,
    sql: &'static str,
}

const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "first", sql: include_str!("migrations/0001_first.sql") },
    Migration { version: 2, name: "commit log", sql: include_str!("migrations/0002_commit_log.sql") },
    Migration { version: 3, name: "terms", sql: include_str!("migrations/0003_terms.sql") },
    Migration { version: 4, name: "left", sql: include_str!("migrations/0004_left.sql") },
    Migration { version: 5, name: "revoked", sql: include_str!("migrations/0005_revoked.sql") },
];

/// The version of the tables that this program knows.
const KNOWN: u64 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// The lowest version that a program must know to work with the tables as they are.
pub(crate) const NEEDS_PROGRAM: &str = "SELECT max(needs_program) FROM tidings.migrations";

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

/// Whether this program, while it runs, can go on with tables that need a program of version `needs`.
pub(crate) fn check_running(needs: u64) -> Result<(), String> {
    match needs > KNOWN {
        true => Err(format!(
            "the database's tables were changed for programs that know version {needs} of them; this program knows \
             {KNOWN} and must be replaced"
        )),
        false => Ok(()),
    }
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

/// The version in the file's line `needs program`.
fn needs_program(sql: &str) -> Option<u64> {
    sql.lines().find_map(|line| line.strip_prefix("-- needs program: "))?.trim().parse().ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_no_hole_and_each_names_the_program_that_it_needs() {
        for (index, migration) in MIGRATIONS.iter().enumerate() {
            assert_eq!(migration.version, index as u64 + 1);
            let needs = needs_program(migration.sql).unwrap();
            assert!((1..=migration.version).contains(&needs), "{} needs {needs}", migration.name);
        }
    }

    #[test]
    fn a_program_that_knows_too_low_a_version_is_refused() {
        assert!(check_running(KNOWN).is_ok());
        assert!(check_running(KNOWN + 1).unwrap_err().contains("must be replaced"));
    }
}
