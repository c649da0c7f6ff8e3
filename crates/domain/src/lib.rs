//! The model of Tidings, and the ports behind which the disk, other nodes and time are.
//!
//! This crate opens nothing and starts no thread, and of messages it decides only what becomes of them in a commit. Push,
//! popups and the engine are built on its ports; the stores, the bus and the tests' kit implement them. In reading order:
//! - [`model`]: users, conversations, entries, lanes;
//! - [`store`]: the port of everything that must outlive the process; [`push_store`]: its part for push; [`store_error`]:
//!   the errors of both; [`stored_id`]: the ids that a store can be asked for; [`stored_names`]: names that only rows have; [`request_digest`]: whether two requests are the same; [`decide`]: the rules of a commit, which every durable store follows; [`chat_rows`], [`chat_row_kind`]: the rows that
//!   it keeps besides entries, profiles and details; [`desks`]: those of accounts that answer; [`restrictions`]: mutes and bans; [`joining`]: invites and requests to join; [`row_keys`]: the form of their keys;
//! - [`erase_step`], [`erasure`]: what of all this is a person's, when the person is erased; [`scheduled`]: messages for a later time;
//! - [`push_tokens`], [`token_digest`], [`providers`]: where providers reach devices, and the port by which they do;
//! - [`commit_log`], [`bus`]: what several nodes share: the log of commits, leases, and messages between nodes;
//! - [`feed_note`], [`feed_notes`]: what comes into the log from outside the commits of chat;
//! - [`installation`], [`node_settings`]: which installation a node is of, and what its nodes must have set alike;
//! - [`function`]: what one node does for all; [`leadership`]: whether this node leads it, and the port that says so; [`gates`]: what all nodes understand; [`end_reason`]: why a server ends by itself;
//! - [`clock`], [`rate`], [`user_limiter`], [`refusals`], [`metrics`], [`notification_counts`], [`failure_log`]: time, rate limits, refusals for callers, counters, and
//!   how failures that repeat are logged.
#![warn(missing_docs)]

pub mod bus;
pub mod chat_row_kind;
pub mod chat_rows;
pub mod clock;
pub mod commit_log;
pub mod decide;
pub mod desks;
pub mod end_reason;
pub mod erase_step;
pub mod erasure;
pub mod expiry;
pub mod failure_log;
pub mod feed_note;
pub mod feed_notes;
pub mod function;
pub mod gates;
pub mod installation;
pub mod joining;
pub mod leadership;
pub mod log_records;
pub mod message_changes;
pub mod metrics;
pub mod model;
pub mod node_settings;
pub mod notification_counts;
pub mod providers;
pub mod push_store;
pub mod push_tokens;
pub mod rate;
pub mod refusals;
pub mod reports;
pub mod request_digest;
pub mod restrictions;
pub mod row_keys;
pub mod scheduled;
pub mod store;
pub mod store_error;
pub mod stored_id;
pub mod stored_names;
pub mod token_digest;
pub mod user_limiter;
