//! The doors that hold connections, for WebSocket and for MIOP, with one session core for both.
//!
//! ```text
//! HTTP upgrade ──┐
//! MIOP, TLS ─────┼─▶ adopt ──▶ any shard ── bind ──▶ the user's shard ──▶ session
//! a gateway ─────┘
//! ```
//! A shard is a thread with one poll loop that owns its users' sockets, buffers and timers outright.
//! It knows nothing of disks: what needs the store runs on the runtime's blocking threads and comes
//! back as a command. It does not know HTTP either; the HTTP door hands over a socket after its 101.
//!
//! In reading order: [`door`] (how devices come in), [`gateway`] (the handle), [`transport`] (what carries bytes: a socket, TLS, a link), [`shard`] (the loop), [`reading`] (bytes into frames), [`decoding`] (JSON into frames), [`turn`] (fan-outs and flushes),
//! [`requests`] (what a client's frames do), [`reads`] (those that the store answers), [`typing`] (who types), [`miop`] (the binary door's frames), [`pushing`] (pushes to devices), [`probing`] (whether somebody is still there), [`binding`] (bind and resume), [`connection`] (a socket and
//! its state), [`outgoing`] (what waits to be written), [`wheel`] (time-outs).

mod binding;
mod commands;
mod connection;
mod decoding;
pub mod door;
pub mod gateway;
pub mod link;
mod listing;
mod miop;
mod outgoing;
mod popups;
mod probing;
mod pushing;
mod reading;
mod reads;
pub mod relay;
mod requests;
mod shard;
mod transport;
mod turn;
mod typing;
mod watching;
mod wheel;

pub use gateway::{Gateway, GatewayConfig, Prepared, VerifyToken};
pub use reads::SESSION_READS_RUNNING;
pub use tidings_listen::MaybeTlsSocket;
pub use transport::Door;
