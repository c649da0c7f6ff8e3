//! How connections come in: what every listener does with a socket before its own protocol begins.
//!
//! ```text
//! kernel's backlog ─▶ admission ─▶ connection slots ─▶ descriptors ─▶ PROXY header ─▶ TLS ─▶ the listener's own protocol
//! ```
//! This crate does not know MIOP, HTTP or sessions, and it moves no bytes itself: listeners bring their own poll
//! loop or runtime, and ask here what is allowed.
//!
//! In reading order: [`socket`] (a listening socket and its backlog), [`admission`] (how fast connections are
//! accepted), [`throttle`] (which addresses failed to authenticate too often), [`connection_slots`] (how many
//! connections may be open, and which one is evicted for another), [`unbound_connections`] (the same for connections that
//! have left their listener and not bound yet), [`client`] (whose a connection is), [`outbound_budget`] (the bytes that clients have
//! not read), [`descriptors`] (the file descriptors kept in
//! reserve), [`proxy`] (the client behind a load balancer), [`tls`] (certificates that may change),
//! [`maybe_tls_socket`] (a connection that passes from a listener to a thread).

pub mod admission;
pub mod client;
pub mod connection_slots;
pub mod descriptors;
pub mod maybe_tls_socket;
pub mod outbound_budget;
pub mod proxy;
pub mod socket;
pub mod throttle;
pub mod tls;
pub mod unbound_connections;

pub use admission::Admission;
pub use client::{Client, ClientAddress};
pub use connection_slots::{ConnectionActivity, ConnectionSlot, ConnectionSlots, ConnectionSlotsConfig};
pub use descriptors::Descriptors;
pub use maybe_tls_socket::MaybeTlsSocket;
pub use outbound_budget::{Holding, OutboundBudget, OutboundBudgetConfig};
pub use throttle::{Throttle, ThrottleKey};
pub use unbound_connections::{Unbound, UnboundConnections, UnboundConnectionsConfig};

/// When a client that found no room should connect again, in milliseconds. Random, so that clients that were refused
/// together do not come back together.
pub fn jittered_retry_after_ms() -> u64 {
    rand::random_range(1_000..10_000)
}
