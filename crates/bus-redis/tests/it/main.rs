//! The bus on Redis, by what can be observed: a module for each behaviour.
#![allow(clippy::unwrap_used)]

mod bus_conformance;
mod connections_are_shared_paced_and_encrypted;
mod installations_share_a_redis;
mod support;
mod the_bus_survives_a_failing_cluster;
mod the_bus_survives_a_failing_server;
