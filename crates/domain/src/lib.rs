//! The model of Tidings, and the ports behind which the disk, other nodes and time are.
//!
//! This crate decides nothing about messages, opens nothing and starts no thread. Push, popups and the engine are built on
//! its ports; the stores, the bus and the tests' kit implement them. In reading order:
//! - [`model`]: users, conversations, entries, lanes;
//! - [`store`]: the port of everything that must outlive the process; [`push_store`]: its part for push; [`store_error`]:
//!   the errors of both;
//! - [`commit_log`], [`bus`]: what several nodes share: the log of commits, leases, and messages between nodes;
//! - [`leadership`]: whether this node leads, and the port that says so;
//! - [`clock`], [`rate`], [`user_limiter`], [`refusals`], [`metrics`]: time, rate limits, refusals for callers, and counters.
#![warn(missing_docs)]

pub mod bus;
pub mod clock;
pub mod commit_log;
pub mod leadership;
pub mod metrics;
pub mod model;
pub mod push_store;
pub mod rate;
pub mod refusals;
pub mod store;
pub mod store_error;
pub mod user_limiter;
