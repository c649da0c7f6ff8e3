//! The database that is being filled. Until it is complete, no server opens it: a row in the list of migrations says that it needs a
//! program that there is none of, which also the programs of earlier versions heed. How far the copy has come is stored together
//! with the rows that were copied, so that a copy that ends anywhere goes on where it was.

use super::{CopyError, batch::Batch, source::Place};
use crate::postgres::{
    PostgresOptions,
    connection::{Call, Connection, Connector, Purpose, bigint, number},
    failure::Failure,
    migrations::{self, Found, UNFINISHED},
    partitions::{Partitions, create_partition},
    versions::KNOWN,
};
use std::{collections::BTreeSet, sync::Arc};
use tidings_domain::store::StoreError;

/// What the folder's rows of one row each say, and whose rows they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct History {
    pub(super) epoch: u64,
    pub(super) users: u64,
    pub(super) conversations: u64,
    pub(super) position: u64,
    pub(super) outbox_done: u64,
    /// From where on there is a log of changes.
    pub(super) log_start: u64,
    /// The ordinal of the folder's newest write.
    pub(super) last_batch: u64,
}

impl History {
    /// What tells this state of this folder from every other.
    fn source(&self) -> String {
        let History { epoch, last_batch, position, .. } = self;
        format!("epoch {epoch}, write {last_batch}, position {position}")
    }
}

pub(super) struct Target {
    connector: Arc<Connector>,
    connection: Connection,
    pub(super) partitions: Partitions,
    /// Parts of the timeline that have a table.
    parts: BTreeSet<i32>,
    /// Where the next batch begins.
    pub(super) place: Place,
}

impl Target {
    /// Begins a copy, or goes on with one. `None`: it was complete before, and servers may have gone on since.
    pub(super) fn open(options: &PostgresOptions, history: &History) -> Result<Option<Target>, CopyError> {
        let connector = Arc::new(Connector::new(options)?);
        let opened = connector.block_on(async {
            let connection = connector.connect_to_any_version(Purpose::Maintenance).await?;
            for _ in 0..2 {
                match migrations::found(&connection).await? {
                    None => migrations::create(&connection, &begin_script(options.part_days, history)).await?,
                    Some(Found { needs: UNFINISHED, .. }) => {
                        let (place, part_days) = resume(&connection, history).await?;
                        return Ok(Some((connection, place, part_days)));
                    }
                    Some(_) => {
                        let rows = connection.query("SELECT epoch FROM history", &[]).await?;
                        let is_same = rows.first().is_some_and(|row| number(row, 0) == history.epoch);
                        return if is_same { Ok(None) } else { Err(CopyError::Occupied) };
                    }
                }
            }
            Err(CopyError::Write(StoreError::Unavailable("another process is creating the tables".into())))
        })?;
        let Some((connection, place, part_days)) = opened else { return Ok(None) };
        let (partitions, parts) = (Partitions::new(part_days), BTreeSet::new());
        Ok(Some(Target { connector, connection, partitions, parts, place }))
    }

    /// Stores a batch, and that the copy has come to `place`.
    pub(super) fn write(&mut self, mut batch: Batch, place: Place) -> Result<(), CopyError> {
        self.connector.block_on(async {
            for part in batch.parts() {
                if self.parts.insert(part) {
                    self.connection.batch(&create_partition(part)).await?;
                }
            }
            batch.add_sums();
            let (space, rows) = (bigint(place.space as u64), bigint(batch.rows() as u64));
            let mut calls = vec![Call::new("BEGIN", &[])];
            calls.extend(batch.inserts());
            calls.push(Call::new(ADVANCE, &[&space, &place.after, &rows]));
            calls.push(Call::new("COMMIT", &[]));
            self.connection.pipeline(&calls).await
        })?;
        self.place = place;
        Ok(())
    }

    /// How many rows of a batch are stored otherwise than they are in it, with the names of their tables.
    pub(super) fn differences(&self, batch: &Batch) -> Result<Vec<(&'static str, u64)>, CopyError> {
        let (mut tables, mut calls) = (Vec::new(), Vec::new());
        for (table, expected, call) in batch.comparisons() {
            tables.push((table, expected));
            calls.push(call);
        }
        let answers = self.connector.block_on(self.connection.pipeline(&calls))?;
        let found = answers.iter().map(|rows| rows.first().map_or(0, |row| number(row, 0)));
        let compared = tables.into_iter().zip(found);
        Ok(compared
            .filter(|((_, expected), found)| found != expected)
            .map(|((table, expected), found)| (table.name(), expected.abs_diff(found)))
            .collect())
    }

    /// The first column of the first row of a statement.
    pub(super) fn number(&self, sql: &'static str) -> Result<u64, CopyError> {
        let rows = self.connector.block_on(self.connection.query(sql, &[]))?;
        Ok(rows.first().map_or(0, |row| number(row, 0)))
    }

    /// Has the planner join whole tables, as checks do: the settings of a session keep it from that.
    pub(super) fn plan_for_whole_tables(&self) -> Result<(), CopyError> {
        Ok(self.connector.block_on(self.connection.batch(WHOLE_TABLES))?)
    }

    /// Completes the copy: from here on servers open the database. Before, the planner learns what the tables hold.
    pub(super) fn finish(&self, history: &History) -> Result<(), CopyError> {
        let History { users, conversations, position, outbox_done, log_start, .. } = history;
        let finish = format!(
            "BEGIN; UPDATE counters SET users = {users}, conversations = {conversations}, position = {position}, \
             outbox_done = {outbox_done}; UPDATE history SET changes_pruned = {log_start}; \
             DELETE FROM migrations WHERE version = 0; DROP TABLE folder_copy; COMMIT"
        );
        self.connector.block_on(async {
            self.connection.batch("ANALYZE").await?;
            self.connection.transaction(&finish).await
        })?;
        Ok(())
    }
}

/// Which program copies: rows that another one has encoded may differ from those that this one compares them with.
fn program() -> String {
    format!("{}, tables {KNOWN}", env!("CARGO_PKG_VERSION"))
}

/// Follows the creation of the tables, in one transaction with it. Texts are ours and numbers: nothing is to be quoted.
fn begin_script(part_days: u32, history: &History) -> String {
    let (part_days, epoch, source, program) = (part_days.max(1), history.epoch, history.source(), program());
    format!(
        "INSERT INTO history (epoch, part_days) VALUES ({epoch}, {part_days}); \
         CREATE TABLE folder_copy (source text NOT NULL, program text NOT NULL, space bigint NOT NULL DEFAULT 0, \
           after bytea NOT NULL DEFAULT '', batches bigint NOT NULL DEFAULT 0, rows bigint NOT NULL DEFAULT 0); \
         INSERT INTO folder_copy (source, program) VALUES ('{source}', '{program}'); \
         INSERT INTO migrations (version, name, needs_program) VALUES (0, 'copy of a data folder, not complete', {UNFINISHED})"
    )
}

/// Where the copy goes on, and the days of a part of the timeline.
async fn resume(connection: &Connection, history: &History) -> Result<(Place, u64), CopyError> {
    let rows = connection.query(PROGRESS, &[]).await?;
    let empty = || CopyError::Write(StoreError::Damaged("the table folder_copy is empty".into()));
    let row = rows.first().ok_or_else(empty)?;
    let (source, by): (String, String) = (row.get(0), row.get(1));
    if by != program() {
        return Err(CopyError::OtherProgram(by));
    }
    if source != history.source() {
        return Err(CopyError::OtherFolder { found: history.source(), begun: source });
    }
    Ok((Place { space: number(row, 2) as usize, after: row.get(3) }, number(row, 4)))
}

const PROGRESS: &str =
    "SELECT f.source, f.program, f.space, f.after, h.part_days::bigint FROM folder_copy f, history h";
const ADVANCE: &str = "UPDATE folder_copy SET space = $1, after = $2, batches = batches + 1, rows = rows + $3";
const WHOLE_TABLES: &str = "SET enable_seqscan = on; SET enable_hashjoin = on; SET enable_mergejoin = on; SET enable_sort = on; \
     SET plan_cache_mode = auto";

impl From<Failure> for CopyError {
    fn from(failure: Failure) -> Self {
        CopyError::Write(failure.into())
    }
}
