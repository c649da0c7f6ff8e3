//! The words that Tidings and its clients exchange: types, codecs, limits and error codes.
//!
//! Nothing here opens a socket, reads a clock or knows who is online. In reading order:
//! - [`error`]: the stable codes that every refusal carries, on every door;
//! - [`limits`]: the one place where sizes and counts are bounded;
//! - [`depth`]: how deep JSON may be nested;
//! - [`ids`]: what a user or conversation may be called;
//! - [`entry`]: a timeline entry, as clients see it;
//! - [`cursor`]: how far a client has read, in one opaque string;
//! - [`json`]: how what callers write is read, and refused, alike on every door;
//! - [`frames`]: the JSON frames of the WebSocket door;
//! - [`http`]: the JSON bodies of the HTTP door;
//! - [`ws`]: WebSocket framing over plain byte buffers;
//! - [`miop`]: the binary frames of the device door.

pub mod cursor;
pub mod depth;
pub mod entry;
pub mod error;
pub mod frames;
pub mod http;
pub mod ids;
pub mod json;
pub mod limits;
pub mod miop;
pub mod ws;
