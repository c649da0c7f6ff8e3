//! Popup decisions and events, tens of thousands a second; every answer is verified.
//!
//! In reading order: `catalogue` has the configured popups and `user_profiles` the users; `mix` is the traffic of a home page,
//! `answer_verifier` and `balance` verify it; `load_loop` makes the load, `measurement` is what comes of it; `nginx` is the baseline,
//! `metrics` the server's counters. Scenarios drive these, and so does `bench popup`, which is one. `caps` and `crash` are benches of their own.

pub(crate) mod answer_verifier;
pub mod args;
pub(crate) mod balance;
pub(crate) mod caps;
pub(crate) mod catalogue;
pub(crate) mod crash;
pub(crate) mod load_loop;
pub(crate) mod measurement;
pub(crate) mod metrics;
pub(crate) mod mix;
pub(crate) mod nginx;
pub(crate) mod user_profiles;
