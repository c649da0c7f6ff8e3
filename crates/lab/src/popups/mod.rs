//! Benches with popup decisions, tens of thousands a second; every answer is verified.
//!
//! In reading order: [`home_page`] is `bench popup`; `growth`, `caps` and `crash` are the other benches. `catalogue` has the
//! configured popups and `user_profiles` the users; `mix` is the traffic of a home page, `answer_verifier` and `balance`
//! verify it; `load_loop` is the load client's loop, `wire` its HTTP; `fixture` sets up a run, `nginx` is the baseline;
//! `metrics` and `output` are small.

mod answer_verifier;
pub mod args;
mod balance;
pub(crate) mod caps;
mod catalogue;
pub(crate) mod crash;
mod fixture;
pub(crate) mod growth;
pub(crate) mod home_page;
mod load_loop;
mod metrics;
mod mix;
mod nginx;
mod output;
mod user_profiles;
mod wire;
