//! The `Store` port, twice: on an embedded engine (one data folder, no other process) and on PostgreSQL (several
//! nodes on one database).
//!
//! It knows keys, rows and fsyncs; it does not know who is online or what a message means.
//! In reading order:
//! - [`kv`]: the narrow port that an embedded engine must offer (atomic durable batch, get, scan
//!   from both ends, snapshot), and [`fjall_kv`], the engine we use;
//! - [`rows`]: which keys hold what, and in which bytes;
//! - [`embedded`]: the store: read and write; [`open`]: how it opens; [`reads`]: one record of a kind; [`commit`]: one batch of proposals, all or nothing;
//! - [`push`]: the same for devices and pushes, in a space of their own;
//! - `byte_rows`: rows whose bytes the engine makes itself; `side_log`: those on their way to the store;
//! - [`folder`]: lock, format version, epoch and the mark of an orderly close;
//! - what must be there: [`manifest`] (which journals and spaces), `acknowledged` (which batches), kept by `tracker`;
//! - what is there: [`journal`] and [`tables`] read the engine's files; [`inspect`] compares the two before the engine
//!   opens, and refuses with a [`Problem`]; `health` verifies tables while the store serves;
//! - [`repair`]: going on with what is left, and telling what is lost; [`restart`]: going on after a write that failed;
//! - [`backup`], [`check`], [`retention`]: copying, verifying and shortening a data folder;
//! - [`postgres`]: the same port on PostgreSQL;
//! - [`conformance`]: what every store must do, as a suite.

mod acknowledged;
pub mod backup;
mod byte_rows;
pub mod check;
mod check_push;
mod commit;
pub mod conformance;
pub mod embedded;
mod fjall_kv;
mod folder;
mod health;
mod inspect;
mod journal;
mod kv;
mod lost;
mod manifest;
mod open;
pub mod postgres;
mod problem;
mod push;
mod reads;
mod repair;
mod repair_tables;
mod restart;
mod retention;
mod rows;
mod said;
mod side_log;
mod tables;
mod tracker;

pub use embedded::{EmbeddedOptions, EmbeddedStore, JOURNAL_BYTES_MIN, MEMTABLE_BYTES_MIN, OpenError};
pub use postgres::{MigrationError, PostgresOpenError, PostgresOptions, PostgresStore};
pub use problem::{Damage, Problem, Remedy};
pub use repair::{LostSeqs, Repair, Repaired, repair};
