//! The client, by what can be observed: a module for each behaviour.
#![allow(clippy::unwrap_used)]

mod device_session_against_a_scripted_server;
