//! Benches with popup decisions, tens of thousands a second; every answer is verified.
//!
//! In reading order: [`home_page`] is `bench popup`; `growth`, `caps` and `crash` are the other benches. `catalogue` has the
//! configured popups and `user_profiles` the users; `mix` is the traffic of a home page, `answer_verifier` and `balance`
//! verify it; `load_loop` makes the load; `fixture` sets up a run, `nginx` is the baseline;
//! `metrics` and `output` are small.

pub(crate) mod answer_verifier;
pub mod args;
pub(crate) mod balance;
pub(crate) mod caps;
pub(crate) mod catalogue;
pub(crate) mod crash;
pub(crate) mod fixture;
pub(crate) mod growth;
pub(crate) mod home_page;
pub(crate) mod load_loop;
mod metrics;
pub(crate) mod mix;
mod nginx;
pub(crate) mod output;
pub(crate) mod user_profiles;
