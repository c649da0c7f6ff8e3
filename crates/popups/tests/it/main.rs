//! Popups, by what can be observed: a module for each behaviour.
#![allow(clippy::unwrap_used)]

mod intervals_of_lift_cover_the_truth;
mod journey_world;
mod journeys_match_a_reference;
mod journeys_survive_bad_days;
mod lift_is_measured_by_assignment_and_window;
