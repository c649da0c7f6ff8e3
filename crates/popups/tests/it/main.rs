//! Popups, by what can be observed: a module for each behaviour.
#![allow(clippy::unwrap_used)]

mod journey_world;
mod journeys_match_a_reference;
mod journeys_survive_bad_days;
