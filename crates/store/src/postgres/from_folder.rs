//! A data folder becomes a database. It knows both forms of every row, and no server that runs on either.
//!
//! In reading order: [`source`] reads the folder's rows as rows of tables, [`mod@table`] has the tables' statements, [`batch`] gathers rows
//! for them, [`target`] stores batches and how far the copy has come, [`invariants`] checks the tables against each other.
//!
//! Positions, sequences, numbers and times stay as they are, and with them the epoch: a client's cursor means the same afterwards.

mod batch;
mod invariants;
mod source;
mod table;
mod target;

use super::{MigrationError, PostgresOpenError, PostgresOptions, partitions::Partitions};
use crate::{
    EmbeddedOptions, EmbeddedStore, FolderView, OpenError,
    check::{CheckReport, check},
    folder::Folder,
    kv::{Kv, KvRead, Space},
    reads::{read_counters, read_outbox_progress},
    rows::Counters,
};
use batch::Batch;
use source::{Place, Source};
use std::{collections::BTreeMap, ops::ControlFlow, path::Path, time::Duration};
use table::Table;
use target::{History, Target};
use tidings_domain::store::{RowStore, RowsCheck, Store, StoreError};

/// Differences that are named; further ones are only counted.
const DIFFERENCES_NAMED: usize = 20;

/// Why a folder was not copied, or not as a whole.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The folder does not open: the text says what to do.
    #[error(transparent)]
    Folder(#[from] OpenError),
    /// Nothing was copied.
    #[error(
        "the folder is not sound: {} faults, the first: {}. `tidings check --repair` keeps what can be read, or restore a \
         backup", .0.fault_count, .0.faults.first().map_or("", String::as_str)
    )]
    Unsound(Box<CheckReport>),
    /// Nothing was copied: the server stores them when it starts.
    #[error(
        "the folder's server ended before it had stored {0} exposures of popups: start the server on the folder once, stop it, and \
         migrate then"
    )]
    WaitingExposures(usize),
    /// Nothing was copied: the server gives the folder one when it starts.
    #[error("a repaired folder has no new epoch yet: start the server on the folder once, stop it, and migrate then")]
    NewEpochDue,
    /// Nothing was copied.
    #[error("the database has data of Tidings already, which is not of this folder: name an empty database")]
    Occupied,
    #[error(
        "another program has begun to copy into this database (version {0}): go on with that one, or remove what is there \
         (DROP SCHEMA tidings CASCADE) and begin again"
    )]
    OtherProgram(String),
    #[error(
        "the database holds a part of another folder, or of this one before it was written to again ({begun}; this is {found}): \
         remove what is there (DROP SCHEMA tidings CASCADE) and begin again"
    )]
    OtherFolder { begun: String, found: String },
    /// A row of the folder cannot be read.
    #[error(
        "the folder: {0}. `tidings check` says what is damaged, and `tidings check --repair` keeps what can be read"
    )]
    Read(StoreError),
    /// What is copied stays: the next attempt goes on there, once the database can take it.
    #[error("the database: {0}; what is copied stays there, and no server opens it: run the same command again")]
    Write(StoreError),
    /// The database is complete but not equal: a fault of this program, or somebody else has written into the database.
    #[error("{} differences between the folder and the database, the first: {}", .0.len(), .0.first().map_or("", String::as_str))]
    Different(Vec<String>),
    /// The database does not open.
    #[error(transparent)]
    Database(#[from] PostgresOpenError),
    #[error("stopped")]
    Stopped,
}

/// Of the folder: errors of the database are failures of statements.
impl From<StoreError> for CopyError {
    fn from(error: StoreError) -> Self {
        CopyError::Read(error)
    }
}

impl From<MigrationError> for CopyError {
    fn from(error: MigrationError) -> Self {
        CopyError::Database(error.into())
    }
}

/// How far a copy has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyProgress {
    /// The folder is sound, and has so many entries and users.
    Checked { entries: u64, users: u64 },
    /// An earlier attempt was here: it goes on behind what that has copied.
    Resumed,
    /// A batch was stored: so many rows by this attempt.
    Copied { rows: u64 },
    /// Rows were compared: so many.
    Compared { rows: u64 },
}

/// A copy that is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyReport {
    /// Of each table that is filled, how many rows it has; empty if the copy was complete before.
    pub tables: Vec<(&'static str, u64)>,
    pub epoch: u64,
    pub position: u64,
}

impl CopyReport {
    /// Whether an earlier attempt had completed the copy.
    pub fn was_complete(&self) -> bool {
        self.tables.is_empty()
    }
}

/// Copies a folder that no server has open into an empty database, or goes on with that. Nothing in the folder is changed. `rows_max`:
/// the rows of one transaction. `popups` checks the folder's popups. `tell` hears of the progress, and may stop the copy.
///
/// # Errors
/// [`CopyError`] says of each error what is stored then.
pub fn copy_folder(
    folder: &Path,
    options: &PostgresOptions,
    popups: RowsCheck,
    rows_max: usize,
    tell: &mut dyn FnMut(CopyProgress) -> ControlFlow<()>,
) -> Result<CopyReport, CopyError> {
    let view = FolderView::of(folder)?;
    let report = check(view.path(), popups)?;
    if !report.is_sound() {
        return Err(CopyError::Unsound(Box::new(report)));
    }
    let mut tell = |progress| match tell(progress) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(CopyError::Stopped),
    };
    tell(CopyProgress::Checked { entries: report.entries, users: report.users })?;
    if Folder::is_new_epoch_requested_at(view.path()) {
        return Err(CopyError::NewEpochDue);
    }
    let store = EmbeddedStore::open(EmbeddedOptions::new(view.path()))?;
    match store.read_side_log()?.len() {
        0 => {}
        waiting => return Err(CopyError::WaitingExposures(waiting)),
    }
    let (engine, _guard) = store.kv_for_long_read()?;
    let snapshot = engine.snapshot();
    let history = history(&store, &*snapshot, engine.last_batch())?;
    // A batch may take longer to arrive than a node may stand still: nobody else waits for its locks.
    let options = PostgresOptions { idle_in_transaction_timeout: Duration::ZERO, ..options.clone() };
    let Some(mut target) = Target::open(&options, &history)? else {
        return Ok(CopyReport { tables: Vec::new(), epoch: history.epoch, position: history.position });
    };
    if target.place != Place::START {
        tell(CopyProgress::Resumed)?;
    }
    let partitions = Partitions::new(target.partitions.days());
    let source = Source::new(&*snapshot, &partitions, rows_max)?;
    let mut rows = 0;
    let from = target.place.clone();
    source.batches(&from, &mut |batch: Batch, place| {
        rows += batch.rows() as u64;
        target.write(batch, place)?;
        tell(CopyProgress::Copied { rows })
    })?;
    let tables = compare(&source, &target, &mut tell)?;
    target.finish(&history)?;
    Ok(CopyReport { tables, epoch: history.epoch, position: history.position })
}

/// Without a log of changes there is nothing behind the newest position, and the position moves on by one, as when a folder's log begins:
/// whoever has all up to here may have missed what took no position.
fn history(store: &EmbeddedStore, kv: &dyn KvRead, last_batch: u64) -> Result<History, CopyError> {
    let counters = read_counters(kv)?;
    let Counters { users, conversations, mut position } = counters;
    let log_start = match store.log_start()? {
        Some(start) => start,
        None => {
            position += u64::from(counters != Counters::default());
            position
        }
    };
    let outbox_done = read_outbox_progress(kv)?.through;
    Ok(History { epoch: store.epoch(), users, conversations, position, outbox_done, log_start, last_batch })
}

/// Compares every row of the folder with the database's, counts both sides, and checks the tables against each other.
fn compare(
    source: &Source<'_>,
    target: &Target,
    tell: &mut dyn FnMut(CopyProgress) -> Result<(), CopyError>,
) -> Result<Vec<(&'static str, u64)>, CopyError> {
    let mut differences = Vec::new();
    let mut of_folder: BTreeMap<Table, u64> = BTreeMap::new();
    let mut rows = 0;
    source.batches(&Place::START, &mut |batch: Batch, place| {
        rows += batch.rows() as u64;
        for (table, count, _) in batch.comparisons() {
            *of_folder.entry(table).or_default() += count;
        }
        for (table, count) in target.differences(&batch)? {
            let space = Space::ALL.get(place.space).map_or("the end", |space| space.name());
            let what = format!("{count} rows of {table} are not as in the folder, before {space} {:02x?}", place.after);
            if differences.len() < DIFFERENCES_NAMED {
                differences.push(what);
            }
        }
        tell(CopyProgress::Compared { rows })
    })?;
    let mut tables = Vec::new();
    for table in Table::ALL {
        let count = target.number(&table.statements().count)?;
        let expected = of_folder.get(table).copied().unwrap_or(0);
        if !table.is_derived() && count != expected {
            differences.push(format!("{} has {count} rows, and the folder {expected}", table.name()));
        }
        tables.push((table.name(), count));
    }
    differences.extend(invariants::faults(target)?);
    if differences.is_empty() { Ok(tables) } else { Err(CopyError::Different(differences)) }
}
