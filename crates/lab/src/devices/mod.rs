//! Devices by the hundred thousand: who connects, how long it takes, what it costs, and whether every push arrives.
//!
//! In reading order: [`connect`], `storm`, `push`, `failover`, `exceptions`, `scenario` are the commands; `stage` is
//! what they share; `cluster` is the server with its gateways, `fleet` the client processes; `job` is what is said to
//! those, `tally` what they answer; `memory`, `push_body` and `show` are small.

pub mod args;
mod bare_accept;
mod caller;
pub(crate) mod cluster;
pub(crate) use bare_accept::main as bare_accept_main;
pub(crate) mod connect;
pub(crate) mod exceptions;
pub(crate) mod failover;
pub(crate) mod fleet;
pub mod job;
pub(crate) mod memory;
pub(crate) mod push;
pub(crate) mod push_body;
pub(crate) mod pushing;
pub(crate) mod scenario;
mod show;
pub(crate) mod stage;
pub(crate) mod storm;
pub(crate) mod tally;
mod vectors;
