//! The `Store` port, twice: on an embedded engine (one data folder, no other process) and on PostgreSQL (several
//! nodes on one database).
//!
//! It knows keys, rows and fsyncs; it does not know who is online or what a message means.
//! In reading order:
//! - [`kv`]: the narrow port that an embedded engine must offer (atomic durable batch, get, scan
//!   from both ends, snapshot), and [`fjall_kv`], the engine we use;
//! - [`rows`]: which keys hold what, and in which bytes;
//! - [`embedded`]: the store: open, read; [`reads`]: one record of a kind; [`commit`]: one batch of proposals, all or nothing;
//! - [`push`]: the same for devices and pushes, in a space of their own;
//! - `byte_rows`: rows whose bytes the engine makes itself; `notes`: those that are on their way;
//! - [`folder`]: lock, format version, epoch and the mark of an orderly close;
//! - [`journal`]: what may be cut from a damaged journal, and what may not; [`restart`]: going on after a write that failed;
//! - [`backup`], [`check`], [`retention`]: copying, verifying and shortening a data folder;
//! - [`postgres`]: the same port on PostgreSQL;
//! - [`conformance`]: what every store must do, as a suite.

pub mod backup;
mod byte_rows;
pub mod check;
mod check_push;
mod commit;
pub mod conformance;
pub mod embedded;
mod fjall_kv;
mod folder;
mod journal;
mod kv;
mod notes;
pub mod postgres;
mod push;
mod reads;
mod restart;
mod retention;
mod rows;

pub use embedded::{EmbeddedOptions, EmbeddedStore, OpenError};
pub use journal::{Repaired, repair};
pub use postgres::{MigrationError, PostgresOpenError, PostgresOptions, PostgresStore};
