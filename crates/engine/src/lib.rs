//! The domain of Tidings: what it means to accept, order, commit, fan out and resume.
//!
//! The engine decides; it opens no socket and no file. The disk is behind the [`store`] port, other
//! nodes are behind the [`hub`] port, sockets are in the gateway, time is in [`clock`]. In reading order:
//! - [`model`]: users, conversations, entries, lanes;
//! - [`store`], [`hub`]: the two ports;
//! - [`engine`]: the handle that the doors hold;
//! - [`send`]: accept: who may send what where, before anything is stored;
//! - [`commit`]: the one committer: gathers proposals, commits a batch, answers, publishes;
//! - [`lanes`]: stage 1: per conversation, look-ups and encoding once per message;
//! - [`shards`], [`delivery`]: stage 2: per recipient, sharded by user;
//! - [`reads`], [`resume`]: history, lists, unread counts, inboxes;
//! - [`access`]: what a caller's token allows; [`limits`], [`rate`]: how often;
//! - [`users`], [`conversations`]: cards, members, mutes;
//! - [`outbox`]: offline push by webhook;
//! - [`push`]: data to devices, stored until acknowledged;
//! - [`popups`]: which in-app message suits a user now;
//! - [`cluster`]: several nodes on one store;
//! - [`presence`], [`directory`], [`metrics`]: who is online, what is cached, what is counted.

pub mod access;
pub mod cluster;
pub mod commit;
pub mod config;
pub mod conversations;
pub mod delivery;
pub mod directory;
pub mod engine;
mod history;
pub mod hub;
pub mod lanes;
pub mod limits;
pub mod outbox;
mod popup_trigger;
pub mod presence;
pub mod reads;
pub mod resume;
pub mod send;
pub mod shards;
mod unread;
pub mod users;

pub use engine::Engine;
