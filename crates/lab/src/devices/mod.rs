//! Hundreds of thousands of devices: their load clients as a bench sees them, and what is asked of the server beside.
//!
//! In reading order: `device_clients` are the load clients, `client_link` one of them; `worker_protocol` has the commands to these,
//! `device_counts` their counts; `push_round` is one push to all, `push_body` its body; `memory` is what connections take. Of devices
//! that violate the protocol: `raw_connection`, `invalid_frames`. `bare_accept` is the baseline of connecting. Who runs them is
//! `scenario`.

pub(crate) mod bare_accept;
mod client_link;
pub(crate) mod device_clients;
pub(crate) mod device_counts;
pub(crate) mod invalid_frames;
pub(crate) mod memory;
pub(crate) mod push_body;
pub(crate) mod push_round;
pub(crate) mod raw_connection;
pub(crate) mod worker_protocol;
