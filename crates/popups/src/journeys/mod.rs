//! Journeys: users enter by an event, and go through steps that show popups, wait, branch on events and push.
//!
//! In reading order: `check`, what app servers write, validated; `position`, where a user stands and what moves the user on;
//! `entry`, a journey with its versions; `timers`, when users are looked at, and pushes. The catalog's operations are in
//! `journey_catalog`, what the worker does is in `journey_worker`.
//!
//! A position is one of the user's counters, and so in memory and durable as they are. Questions see where time has moved
//! the user by now; the row of the position follows when the popup is shown, an event comes, or the timer is due.

pub(super) mod check;
mod entry;
pub(super) mod position;
mod timers;

pub(super) use entry::{JourneyEntry, steps_of};
pub use timers::{JourneyPush, JourneyPushes, NoPushes};
pub(super) use timers::{JourneyTimers, JourneyTurn, PUSHES_MAX, PushDone, PushJob, WakeChange};
