//! The wire, by what can be observed: a module for each behaviour.
#![allow(clippy::unwrap_used)]

mod close_codes_are_documented;
mod json_depth_is_limited;
mod miop_fuzz;
mod miop_round_trips;
mod miop_vectors;
mod refusals_name_the_field_in_json_terms;
mod support;
mod times_are_in_milliseconds;
