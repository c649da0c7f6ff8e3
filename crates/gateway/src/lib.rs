//! The session layer: it holds the connections of clients, over WebSocket and over MIOP.
//!
//! ```text
//! HTTP upgrade ──┐
//! MIOP, TLS ─────┼─▶ adopt ──▶ any shard ── bind ──▶ the user's shard ──▶ session
//! a gateway ─────┘
//! ```
//! A shard is a thread with one poll loop that owns its users' sockets, buffers and timers outright.
//! It knows nothing of disks: what needs the store runs on the runtime's blocking threads and comes
//! back as a command. It does not know HTTP either: the HTTP listener hands over a socket after its 101.
//!
//! In reading order:
//!
//! - [`miop_listener`]: accepts devices' connections.
//! - [`session_server`]: the handle; starts the shards, hands them connections, drains them.
//! - [`transport`]: what carries a connection's bytes: a socket, TLS, or a link.
//! - [`shard`]: the poll loop.
//! - [`reading`], [`decoding`]: bytes into frames, JSON into frames.
//! - [`binding`]: bind and resume.
//! - [`requests`]: what the frames of a bound session do; [`miop`], [`store_reads`], [`typing`], [`popups`] and
//!   [`presence_watch`] have those of one kind each.
//! - [`scheduler`]: fan-outs and flushes; [`outbound_queue`]: what waits to be written to one session.
//! - [`push_delivery`]: pushes to devices; [`probing`]: whether the client of a session still answers.
//! - [`connection`]: a connection and the state of its session; [`timer_wheel`]: time-outs.
//! - [`session_listing`]: the sessions that exist, for comparison with the presence registry.
//! - [`link`] and [`relay`]: connections that a process of `role = gateway` holds for this one.

mod binding;
mod commands;
mod connection;
mod decoding;
pub mod link;
mod miop;
pub mod miop_listener;
mod outbound_queue;
mod popups;
mod presence_watch;
mod probing;
mod push_delivery;
mod reading;
pub mod relay;
mod requests;
mod scheduler;
mod session_listing;
pub mod session_server;
mod shard;
mod store_reads;
mod timer_wheel;
mod transport;
mod typing;

pub use session_server::{PreparedServer, SessionConfig, SessionServer, VerifyToken};
pub use store_reads::SESSION_READS_RUNNING;
pub use tidings_listen::MaybeTlsSocket;
pub use transport::Protocol;
