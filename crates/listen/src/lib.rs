//! How connections come in: what every door does with a socket before its own protocol begins.
//!
//! ```text
//! kernel's backlog ─▶ admission ─▶ places ─▶ descriptors ─▶ PROXY header ─▶ TLS ─▶ the door's own protocol
//! ```
//! It does not know MIOP, HTTP or sessions, and it moves no bytes itself: doors bring their own poll loop
//! or runtime, and ask here what is allowed.
//!
//! In reading order: [`socket`] (a listening socket and its backlog), [`admission`] (how fast connections are
//! taken), [`throttle`] (who failed to authenticate too often), [`places`] (how many there may be, and who gives way), [`descriptors`] (what is kept for others), [`proxy`] (who is behind a load balancer), [`tls`]
//! (certificates that may change), [`carrier`] (a connection on its way between doors and threads).

pub mod admission;
pub mod carrier;
pub mod descriptors;
pub mod places;
pub mod proxy;
pub mod socket;
pub mod throttle;
pub mod tls;

pub use admission::Admission;
pub use carrier::Carrier;
pub use descriptors::Descriptors;
pub use places::{Place, Places, PlacesConfig, Standing};
pub use throttle::{Origin, Throttle};

/// When who was refused for want of room should come back, in milliseconds: spread, so that a crowd that was
/// refused together does not come back together.
pub fn come_back_after_ms() -> u64 {
    rand::random_range(1_000..10_000)
}
