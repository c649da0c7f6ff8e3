//! The [`Store`](tidings_domain::store::Store) port, twice: on an embedded engine (one data folder, no other process) and
//! on PostgreSQL (several nodes on one database).
//!
//! It knows keys, rows and fsyncs; it does not know who is online or what a message means. What every store must do is
//! in the kit of tests, as a suite (`crates/testkit`).
//!
//! In reading order:
//! - [`kv`]: the narrow port that an embedded engine must offer (atomic durable batch, get, scan
//!   from both ends, snapshot), and [`fjall_kv`], the engine we use;
//! - [`rows`]: the keys of rows and their encoding, [`meta_kind`] of the kinds of most of them, [`first_results`] of those by which retries are recognized; [`errors`]: why a folder does not open, and errors of the engine;
//! - [`embedded`]: the store's reads and writes; [`options`] and [`open`]: opening it; [`epoch`]: the name of its history;
//!   [`reads`]: reads of single rows; [`commit`]: one batch of proposals, all or nothing;
//! - [`push`]: the same for devices and pushes, in a space of their own;
//! - [`byte_rows`]: rows that a part of the server encodes itself; [`side_log`]: such rows on their way to the store;
//! - [`folder`]: the data folder's lock, format version and marker of a clean shutdown; [`folder_view`]: a folder for commands
//!   that only read it; [`files`]: durable writes of files;
//! - which files and batches must be there: [`manifest`] names journals and spaces, [`ack_log`] names batches,
//!   [`batch_progress`] says how far a batch takes its conversations, and [`journal_tracker`] keeps all up to date;
//! - which files are there: [`journal`] and [`tables`] read the engine's files; [`inspect`] compares the two before the
//!   engine opens; [`damage`]: the faults that it finds; [`scrubber`] verifies tables while the store serves;
//! - [`mod@repair`]: keeping what can be read of a damaged folder, tables by [`repair_tables`], and reporting [`losses`];
//!   [`restart`]: restarting the engine after a failed write;
//! - [`backup`], [`check`], [`retention`], [`purge`]: copying, verifying and shortening a data folder, and having its files
//!   lose what was removed;
//! - [`postgres`]: the same port on PostgreSQL.

mod ack_log;
pub mod backup;
mod batch_progress;
mod byte_rows;
pub mod check;
mod commit;
mod damage;
mod embedded;
#[cfg(test)]
mod engine_layout;
mod epoch;
mod errors;
mod event_log;
mod files;
mod first_results;
mod fjall_kv;
mod folder;
mod folder_log;
mod folder_view;
mod gates;
mod inspect;
mod journal;
mod journal_tracker;
mod kept_memtables;
mod kv;
mod losses;
mod manifest;
mod meta_kind;
mod open;
mod options;
pub mod postgres;
mod purge;
mod push;
mod reads;
mod repair;
mod repair_tables;
mod restart;
mod retention;
mod rows;
mod scrubber;
mod side_log;
mod tables;
mod timeline_days;
mod zeros_ahead;

pub use damage::{DamageReport, FileFault, Remedy};
pub use embedded::EmbeddedStore;
pub use errors::OpenError;
pub use folder_view::FolderView;
pub use options::{EmbeddedOptions, JOURNAL_BYTES_MIN, MEMTABLE_BYTES_MIN};
pub use postgres::{
    CopyError, CopyProgress, CopyReport, DivideError, MigrationError, PostgresOpenError, PostgresOptions,
    PostgresStore, copy_folder, divide_database,
};
pub use repair::{LostSeqs, RepairReport, RepairedFile, repair};
