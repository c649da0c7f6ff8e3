//! What becomes of a message: what it means to accept, order, commit, fan out and resume.
//!
//! The engine decides; it opens no socket and no file. The disk, other nodes and time are behind the ports of
//! [`tidings_domain`], as is the model (users, conversations, entries, lanes); sockets are in the gateway. Push and popups
//! are crates of their own ([`tidings_push`], [`tidings_popups`]), which the engine starts, and for which it implements
//! their ports. In reading order, in which a module uses only those below it:
//! - [`engine`]: the handle that the doors hold; the operations are its modules, such as [`engine::send`];
//! - [`config`]: the settings;
//! - [`cluster`]: several nodes on one store;
//! - [`outbox`]: offline push by webhook; [`vendor_push`]: by vendors;
//! - [`reach_policy`]: what the app server says about roads; `reach_gate`: what people say about them;
//! - [`internal_roads`]: pushes to devices that hold a connection;
//! - `reach_stage`: decides who is told of a message; `road_plan`: in which order; `road_jobs`: what roads are
//!   still to do; `reached_marks`: whom they reached; `offline_recipients`: who is to be
//!   told; `reach_trace`: records of it; `message_runs`: several messages in one row;
//! - [`presence`]: who is online;
//! - `reach_stats`: the thread that stores how often each road was tried;
//! - `reaction_teller`: when members are told of reactions;
//! - [`commit`]: the one committer: gathers proposals, commits a batch, answers, publishes;
//! - `list_worker`, `list_changes`: lines of users' lists that have changed, sent to their sessions;
//! - `receipts_worker`, [`receipts`]: how far clients have come: stored, and told to live members once a second;
//! - `recent_acknowledgements`: when clients last said what they have stored;
//! - [`hub`]: where a commit goes next: to the lanes of this node, and to other nodes;
//! - `desk_worker`: unassigns the conversations of removed agents;
//! - `stream_worker`: the thread for messages that grow;
//! - [`lanes`]: stage 1: per conversation, look-ups and encoding once per message;
//! - [`streams`]: messages that grow, while they do;
//! - [`shards`], [`delivery`]: stage 2: per recipient, sharded by user;
//! - `desks`: who answers for which account;
//! - `unread_counts`: how many messages a user has not read;
//! - [`directory`]: what is cached of users and conversations; [`access`]: what a caller's token allows;
//! - [`webhook`], [`countdown_latch`], [`entry_view`], `fairness`, `attributes`, `daily_window`: what several of these share.

pub mod access;
mod attributes;
pub mod bulk_sends;
pub mod cluster;
mod commit;
pub mod config;
pub mod countdown_latch;
mod daily_window;
pub mod delivery;
mod desk_worker;
mod desks;
pub mod directory;
pub mod engine;
pub mod entry_view;
mod fairness;
pub mod hub;
pub mod internal_roads;
mod json_len;
pub mod lanes;
mod list_changes;
mod list_worker;
mod message_runs;
mod offline_recipients;
pub mod outbox;
pub mod presence;
mod reach_gate;
pub mod reach_policy;
mod reach_stage;
mod reach_stats;
mod reach_trace;
mod reached_marks;
mod reaction_teller;
pub mod receipts;
mod receipts_worker;
mod recent_acknowledgements;
mod road_jobs;
pub mod road_plan;
pub mod shards;
mod stream_worker;
pub mod streams;
mod unread_counts;
pub mod vendor_push;
pub mod webhook;

pub use engine::Engine;
