//! What becomes of a message: what it means to accept, order, commit, fan out and resume.
//!
//! The engine decides; it opens no socket and no file. The disk, other nodes and time are behind the ports of
//! [`tidings_domain`], as is the model (users, conversations, entries, lanes); sockets are in the gateway. Push and popups
//! are crates of their own ([`tidings_push`], [`tidings_popups`]), which the engine starts, and for which it implements
//! their ports. In reading order:
//! - [`engine`]: the handle that the doors hold;
//! - [`send`]: accept: who may send what where, before anything is stored;
//! - [`commit`]: the one committer: gathers proposals, commits a batch, answers, publishes;
//! - [`hub`]: where a commit goes next: to the lanes of this node, and to other nodes;
//! - [`lanes`]: stage 1: per conversation, look-ups and encoding once per message;
//! - [`shards`], [`delivery`]: stage 2: per recipient, sharded by user;
//! - [`reads`], [`resume`]: history, lists, unread counts, inboxes;
//! - [`access`]: what a caller's token allows; [`limits`]: how often;
//! - [`users`], [`conversations`]: cards, members, mutes;
//! - [`outbox`]: offline push by webhook;
//! - `popup_trigger`, `unread`: popups that the app server triggers, and the users as popups see them;
//! - [`cluster`]: several nodes on one store;
//! - [`presence`], [`directory`]: who is online, what is cached.

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
