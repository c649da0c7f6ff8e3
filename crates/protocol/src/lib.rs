//! The wire formats between Tidings and its clients: message types, codecs, limits and error codes.
//!
//! This crate opens no socket, reads no clock and does not know who is online. In reading order:
//! - [`error`]: the stable code that every refusal carries, over every protocol;
//! - [`limits`]: the one place where sizes and counts are bounded;
//! - [`depth`]: how deep JSON may be nested;
//! - [`ids`]: which ids users and conversations may have;
//! - [`entry`]: a timeline entry, as clients see it;
//! - [`cursor`]: how far a client has read, in one opaque string; [`resume`]: how a resume from a cursor went;
//! - [`time`]: the times that callers name;
//! - [`json`]: the one strict JSON reader for all callers' input, and the refusals that it writes;
//! - [`frames`]: the JSON frames of the WebSocket protocol;
//! - [`http`]: the JSON bodies of the HTTP API;
//! - [`ws`]: WebSocket framing over plain byte buffers;
//! - [`event_stream`]: the same frames as server-sent events, and the requests beside them;
//! - [`miop`]: the binary frames of the device protocol.
#![deny(missing_docs)]

pub mod cursor;
pub mod depth;
// The doc comments in `entry`, `frames`, `http` and `resume` are published as descriptions in docs/openapi.json and
// docs/asyncapi.json: they speak to those who write clients, and are short.
pub mod entry;
pub mod error;
pub mod event_stream;
pub mod frames;
pub mod http;
pub mod ids;
pub mod json;
pub mod limits;
pub mod miop;
pub mod resume;
pub mod time;
pub mod ws;
