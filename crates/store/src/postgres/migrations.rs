//! Creating and migrating the tables. The first node that starts does it, under a lock and in one transaction, which it sends at
//! once. A node that starts must know the version that the newest tables need; of a newer version that needs no more it changes nothing.

use super::{
    commit_orders::ORDER_SHIFT,
    connection::{Connection, Connector, Purpose, bigint, number},
    failure::Failure,
    options::PostgresOptions,
    versions::{KNOWN, MIGRATIONS, Migration, needs_program},
};
use crate::epoch::fresh_epoch;
use std::sync::Arc;
use tidings_domain::{
    gates::Gate,
    installation::InstallationId,
    model::Position,
    store::{Orders, StoreError},
};
use tokio_postgres::error::SqlState;

/// "tidings" in ASCII: the advisory lock of a transaction that changes tables.
pub(crate) const LOCK_KEY: i64 = 0x0074_6964_696e_6773;

/// Why this program cannot start with the tables.
#[derive(Debug, thiserror::Error)]
pub enum MigrationError {
    #[error(
        "the database has version {found} of the tables, which needs a program that knows version {needs}; this program \
         knows {known}: a newer program has changed them. Start the newer program, or restore a backup from before"
    )]
    Newer { found: u64, needs: u64, known: u64 },
    #[error(
        "the gate {0:?} is open in this database, and this program does not know it: newer programs have written what this one \
         cannot read. Start the newer program, or restore a backup from before"
    )]
    UnknownGate(String),
    /// The migration failed, and its transaction was rolled back.
    #[error("changing the tables to version {version} ({name}): {why}")]
    Failed { version: u64, name: &'static str, why: StoreError },
    #[error(
        "a data folder is being copied into this database, and the copy is not complete: run `tidings migrate` again, with the same \
         folder, until it says that it is"
    )]
    Unfinished,
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
    pub installation: InstallationId,
    pub orders: Orders,
    /// Positions up to this one are from before there were several orders.
    pub one_order_through: Position,
}

/// The version that a database needs while a folder is being copied into it: no program knows it.
pub(crate) const UNFINISHED: u64 = i64::MAX as u64;

/// How often a node looks again at tables that another node was changing.
const ATTEMPTS_MAX: usize = 8;
/// The error of a migration whose tables another node has changed meanwhile: no other of our statements has it.
const CHANGED_MEANWHILE: &str = "TD001";

pub(crate) fn run(connector: &Arc<Connector>, options: &PostgresOptions) -> Result<History, MigrationError> {
    connector.block_on(async {
        let connection = connector.connect_to_any_version(Purpose::Commit).await?;
        for _ in 0..ATTEMPTS_MAX {
            let found = found(&connection).await?;
            match found {
                Some(Found { needs: UNFINISHED, .. }) => return Err(MigrationError::Unfinished),
                Some(Found { version: found, needs }) if needs > KNOWN => {
                    return Err(MigrationError::Newer { found, needs, known: KNOWN });
                }
                Some(Found { version: found, needs }) if found >= KNOWN => {
                    if found > KNOWN {
                        // A rollback, or a node that restarts during an upgrade.
                        tracing::warn!(
                            found,
                            needs,
                            known = KNOWN,
                            "a newer program has changed the database's tables; this one can work with them"
                        );
                    }
                    check_gates(&connection).await?;
                    return history(&connection, options).await;
                }
                found => migrate(&connection, found.map(|found| found.version), None).await?,
            }
        }
        Err(MigrationError::Store(StoreError::Unavailable("other nodes keep changing the tables".into())))
    })
}

/// Refuses a database in which a gate is open that this program does not know.
async fn check_gates(connection: &Connection) -> Result<(), MigrationError> {
    let open = connection.query("SELECT name FROM gates ORDER BY name", &[]).await?;
    let unknown = open.iter().map(|row| row.get::<_, String>(0)).find(|name| Gate::of_name(name).is_none());
    unknown.map_or(Ok(()), |name| Err(MigrationError::UnknownGate(name)))
}

/// The tables as they are.
pub(crate) struct Found {
    /// Their version.
    pub version: u64,
    /// The lowest version that a program must know to work with them.
    pub needs: u64,
}

/// `None` for a database without any.
pub(crate) async fn found(connection: &Connection) -> Result<Option<Found>, MigrationError> {
    let table = connection.query("SELECT 1 WHERE to_regclass('tidings.migrations') IS NOT NULL", &[]).await?;
    if table.is_empty() {
        return Ok(None);
    }
    let newest = "SELECT coalesce(max(version), 0), coalesce(max(needs_program), 0) FROM tidings.migrations";
    let newest = connection.query(newest, &[]).await?;
    let [version, needs] = [0, 1].map(|column| newest.first().map_or(0, |row| number(row, column)));
    Ok(Some(Found { version, needs }))
}

/// Creates the tables in an empty database, and executes a script in the same transaction.
pub(crate) async fn create(connection: &Connection, then: &str) -> Result<(), MigrationError> {
    migrate(connection, None, Some(then)).await
}

/// Changes the tables from the version `found`, in one transaction that is sent at once: a node that stops meanwhile does not
/// keep the others from starting. If another node has changed them first, nothing is done. `then`: a script at the end of it.
async fn migrate(connection: &Connection, found: Option<u64>, then: Option<&str>) -> Result<(), MigrationError> {
    let lock = format!("BEGIN; SELECT pg_advisory_xact_lock({LOCK_KEY})");
    let first = match found {
        None => CREATE_LIST.to_owned(),
        Some(version) => expect_version(version),
    };
    let due: Vec<&Migration> = MIGRATIONS.iter().filter(|migration| Some(migration.version) > found).collect();
    let steps: Vec<String> = due.iter().map(|migration| step(migration)).collect();
    let mut scripts = vec![lock.as_str(), first.as_str()];
    scripts.extend(steps.iter().map(String::as_str));
    let gates = open_all_gates();
    if found.is_none() {
        scripts.push(&gates);
    }
    scripts.extend(then);
    scripts.push("COMMIT");
    let Err((place, failure)) = connection.pipeline_scripts(&scripts).await else {
        for migration in due {
            let Migration { version, name, .. } = migration;
            tracing::info!(version, name, "the database's tables were changed");
        }
        return Ok(());
    };
    if failure.is(&SqlState::from_code(CHANGED_MEANWHILE)) {
        return Ok(());
    }
    match place.checked_sub(2).and_then(|place| due.get(place)) {
        Some(Migration { version, name, .. }) => {
            Err(MigrationError::Failed { version: *version, name, why: failure.into() })
        }
        None => Err(failure.into()),
    }
}

/// The list of migrations. The owner of the database may have created the schema for a user without the right to create one.
const CREATE_LIST: &str = "DO $$ BEGIN \
     IF to_regclass('tidings.migrations') IS NOT NULL THEN RAISE 'created meanwhile' USING ERRCODE = 'TD001'; END IF; \
     IF to_regnamespace('tidings') IS NULL THEN CREATE SCHEMA tidings; END IF; \
     CREATE TABLE tidings.migrations (version bigint PRIMARY KEY, name text NOT NULL, \
       needs_program bigint NOT NULL, applied_at timestamptz NOT NULL DEFAULT now()); END $$";

fn expect_version(version: u64) -> String {
    format!(
        "DO $$ BEGIN IF (SELECT coalesce(max(version), 0) FROM tidings.migrations) <> {version} \
         THEN RAISE 'changed meanwhile' USING ERRCODE = '{CHANGED_MEANWHILE}'; END IF; END $$"
    )
}

/// Opens every gate: no other program has ever worked with the database.
fn open_all_gates() -> String {
    format!(
        "INSERT INTO gates (name) SELECT unnest('{{{}}}'::text[]); \
         UPDATE migrations SET needs_program = version WHERE name = 'gates'",
        Gate::names().join(",")
    )
}

/// A migration, and its row in the list.
fn step(migration: &Migration) -> String {
    let Migration { version, name, sql } = *migration;
    let needs = needs_program(sql).unwrap_or(version);
    format!(
        "{sql};\nINSERT INTO tidings.migrations (version, name, needs_program) VALUES ({version}, '{name}', {needs})"
    )
}

/// Reads the database's history; begins one in an empty database.
async fn history(connection: &Connection, options: &PostgresOptions) -> Result<History, MigrationError> {
    let read = "SELECT epoch, part_days::bigint, replace(installation::text, '-', ''), orders::bigint, one_order_through FROM history";
    let mut found = connection.query(read, &[]).await?;
    if found.is_empty() {
        connection.batch(&begin_history(options)).await?;
        found = connection.query(read, &[]).await?;
    }
    let row = found.first().ok_or_else(|| StoreError::Damaged("the table history is empty".into()))?;
    let installation = u128::from_str_radix(row.get(2), 16).map(InstallationId);
    let installation = installation.map_err(|error| StoreError::Damaged(format!("the installation's id: {error}")))?;
    Ok(History {
        epoch: number(row, 0),
        part_days: number(row, 1).max(1),
        installation,
        orders: Orders::new(u16::try_from(number(row, 3)).unwrap_or(Orders::MAX)),
        one_order_through: number(row, 4),
    })
}

/// Begins the history of an empty database, unless another node has begun it.
fn begin_history(options: &PostgresOptions) -> String {
    let (epoch, part_days, orders) = (bigint(fresh_epoch()), options.part_days.max(1), Orders::new(options.orders));
    let divide = if orders == Orders::ONE { String::new() } else { divide(orders) };
    format!(
        "BEGIN; SELECT pg_advisory_xact_lock({LOCK_KEY}); \
         DO $$ BEGIN IF NOT EXISTS (SELECT FROM history) THEN \
         INSERT INTO history (epoch, part_days) VALUES ({epoch}, {part_days}); {divide} END IF; END $$; COMMIT"
    )
}

/// Divides a database of one order into several. No program may go on that takes positions from the counters.
pub(crate) fn divide(orders: Orders) -> String {
    let count = orders.count();
    format!(
        "PERFORM FROM counters FOR UPDATE; \
         INSERT INTO orders (ord, position, conversations) \
         SELECT o, CASE WHEN o = 0 THEN c.position ELSE o::bigint << {ORDER_SHIFT} END, (c.conversations + {count} - 1) / {count} \
         FROM counters c, generate_series(0, {count} - 1) o; \
         INSERT INTO cuts (through, local_through, count, at) SELECT position, position, position, 0 FROM counters WHERE position > 0; \
         UPDATE history SET orders = {count}, one_order_through = (SELECT position FROM counters); \
         UPDATE counters SET cut_through = position, cuts = ARRAY(SELECT position FROM orders ORDER BY ord); \
         UPDATE migrations SET needs_program = version WHERE name = 'orders'; "
    )
}
