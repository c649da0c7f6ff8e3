//! The session layer: it holds the connections of clients, over WebSocket, server-sent events and MIOP.
//!
//! ```text
//! HTTP upgrade ──┐
//! event stream ──┤
//! MIOP, TLS ─────┼─▶ adopt ──▶ any shard ── bind ──▶ the user's shard ──▶ session
//! a gateway ─────┘
//! ```
//! A shard is a thread with one poll loop that owns its users' sockets, buffers and timers outright.
//! It knows nothing of disks: what needs the store runs on the runtime's blocking threads and comes
//! back as a command. It does not know HTTP either: the HTTP listener hands over a socket after its 101, or
//! after the head of an event stream.
//!
//! In reading order:
//!
//! - [`miop_listener`]: accepts devices' connections.
//! - [`session_server`]: the handle; starts the shards, hands them connections, drains them. [`session_config`] has its
//!   settings, [`token_verification`] the port that verifies tokens for it.
//! - [`shard`]: the poll loop; its parts are in the folder of that name, each with the shard's methods for one thing.
//! - [`commands`]: what other threads have a shard do; [`wake`]: how a sleeping shard learns of it.
//! - [`open_connections`]: how many there are, and which one gives way to another.
//! - [`connection`]: a connection and the state of its session; [`outbound_queue`]: what waits to be written to one
//!   session; [`encoding`]: frames for clients.
//! - [`transport`]: what carries a connection's bytes: a socket, TLS, or a link.
//! - [`timer_wheel`]: the entries of time-outs, by ticks.
//! - [`link`], [`link_listener`] and [`relay`]: connections that a process of `role = gateway` holds for this one.
//!
//! Imports form no circle: the types of a connection's state lie below [`shard`]; [`session_server`], the listeners and
//! [`relay`] lie above it.

mod commands;
mod connection;
mod encoding;
mod link;
pub mod link_listener;
pub mod miop_listener;
mod open_connections;
mod outbound_queue;
pub mod relay;
mod session_config;
pub mod session_server;
mod shard;
mod timer_wheel;
mod token_verification;
mod transport;
mod wake;

pub use session_config::SessionConfig;
pub use session_server::{PreparedServer, SessionServer};
pub use shard::store_reads::SESSION_READS_RUNNING;
pub use tidings_listen::MaybeTlsSocket;
pub use token_verification::VerifyToken;
pub use transport::{BodyFraming, Protocol};
