//! Which popup suits this user now, asked tens of thousands of times a second; every answer is checked.
//!
//! In reading order: [`home`] is `bench popup`; `growth`, `caps`, `crash` are its companions. `catalogue` is what is
//! configured and `people` who is asked for; `mix` is what a home page asks, `judge` and `balance` what it makes of the
//! answers; `drive` is the load client's loop, `wire` its HTTP; `stage` is what runs share, `nginx` the yardstick;
//! `metrics` and `show` are small.

pub mod args;
mod balance;
pub(crate) mod caps;
mod catalogue;
pub(crate) mod crash;
mod drive;
pub(crate) mod growth;
pub(crate) mod home;
mod judge;
mod metrics;
mod mix;
mod nginx;
mod people;
mod show;
mod stage;
mod wire;
