//! Benches with hundreds of thousands of devices: rates of connecting, memory per connection, and delivery of pushes.
//!
//! In reading order: [`connect`], `storm`, `push`, `failover`, `exceptions` are the commands; `fixture` is
//! what they share; `server_under_test` is the server with its gateways, `device_clients` the load clients, `client_link` one of them;
//! `worker_protocol` has the commands to these, `device_counts` their counts; `memory`, `push_body` and `output` are small.

pub mod args;
mod bare_accept;
mod raw_connection;
pub(crate) mod server_under_test;
pub(crate) use bare_accept::main as bare_accept_main;
mod client_link;
pub(crate) mod connect;
pub(crate) mod device_clients;
pub(crate) mod device_counts;
pub(crate) mod exceptions;
pub(crate) mod failover;
pub(crate) mod fixture;
mod invalid_frames;
pub(crate) mod memory;
pub(crate) mod output;
pub(crate) mod push;
pub(crate) mod push_body;
pub(crate) mod push_round;
pub(crate) mod storm;
pub mod worker_protocol;
