//! MIOP/1: the binary frames of the device protocol, over plain byte buffers. `docs/miop.md` is the
//! normative text; the vectors in `fixtures/miop` pin every byte of it.
//!
//! ```text
//! frame   = kind (1 byte)  length (varint, at most 4 bytes)  payload
//! payload = fields, or for a chat frame the JSON of docs/websocket.md
//! field   = tag (1 byte)  length (varint)  value
//! ```
//! A reader skips an unknown kind from 0x80 on, and an unknown field whose tag has no high bit; any other unknown kind or
//! field ends the connection. That is the whole rule for extensions.
//!
//! [`take_head`] finds a frame in a buffer, [`fn@decode`] reads it, [`Frame::put`] writes one.
//!
//! ```
//! use tidings_protocol::miop::{Frame, decode, take_head};
//!
//! let bytes = Frame::Ack { pushes: vec![7] }.to_bytes();
//! let head = take_head(&bytes, 1_024)?.expect("a complete frame");
//! assert_eq!(decode(head.kind, &bytes[head.payload])?, Frame::Ack { pushes: vec![7] });
//! # Ok::<(), tidings_protocol::miop::MiopError>(())
//! ```

mod decode;
mod encode;
mod fields;

pub use decode::decode;

use crate::error::ErrorCode;
use std::ops::Range;

/// The version that this code speaks.
pub const VERSION: u64 = 1;
/// A plain heartbeat: a frame without a payload.
pub const HEARTBEAT: [u8; 2] = [kind::HEARTBEAT, 0];
/// The server asks whether the client is there, and the client answers with the same frame: without a payload, of an
/// optional kind.
pub const PROBE: [u8; 2] = [kind::PROBE, 0];
/// Bytes of a varint that gives a frame's length.
const LENGTH_BYTES_MAX: usize = 4;
/// A reader that does not know a field with this bit refuses the frame.
const CRITICAL: u8 = 0x80;
/// A reader that does not know a kind with this bit skips the frame.
const OPTIONAL: u8 = 0x80;

/// The first byte of a frame.
pub mod kind {
    /// [`super::Frame::Heartbeat`]
    pub const HEARTBEAT: u8 = 0x01;
    /// [`super::Frame::Bind`]
    pub const BIND: u8 = 0x02;
    /// [`super::Frame::Bound`]
    pub const BOUND: u8 = 0x03;
    /// [`super::Frame::Push`]
    pub const PUSH: u8 = 0x04;
    /// [`super::Frame::Ack`]
    pub const ACK: u8 = 0x05;
    /// [`super::Frame::Chat`]
    pub const CHAT: u8 = 0x06;
    /// [`super::Frame::Unbind`]
    pub const UNBIND: u8 = 0x07;
    /// [`super::Frame::Redirect`]
    pub const REDIRECT: u8 = 0x08;
    /// [`super::Frame::Error`]
    pub const ERROR: u8 = 0x09;
    /// A probe ([`super::PROBE`]). Optional: a reader that does not know it skips it.
    pub const PROBE: u8 = 0x80;

    /// Every kind of this version that a reader must know.
    pub const ALL: [u8; 9] = [HEARTBEAT, BIND, BOUND, PUSH, ACK, CHAT, UNBIND, REDIRECT, ERROR];
}

/// What a device wants to be sent, as bits of [`Bind::wants`].
pub mod wants {
    /// Pushes.
    pub const PUSH: u64 = 1;
    /// The frames of the WebSocket protocol.
    pub const CHAT: u64 = 2;
    /// Probes, which the device answers.
    pub const PROBES: u64 = 4;
    /// Entries that leave out what the entry before them has, too.
    pub const COMPACT: u64 = 8;
}

/// One frame, borrowed from the bytes that it came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame<'a> {
    /// The sender is alive. A client may propose another interval, and the server answers with the one that it grants.
    Heartbeat {
        /// The interval that is proposed or granted, in seconds.
        interval_s: Option<u64>,
    },
    /// The client's first frame.
    Bind(Bind<'a>),
    /// The server's answer to a bind.
    Bound(Bound<'a>),
    /// A push for the device.
    Push(Push<'a>),
    /// The device has these pushes; the server need not send them again.
    Ack {
        /// The numbers of the pushes.
        pushes: Vec<u64>,
    },
    /// One JSON frame of the WebSocket protocol, in either direction.
    Chat {
        /// The frame's text.
        json: &'a [u8],
    },
    /// The client ends the session; the server closes the connection.
    Unbind {
        /// For the server's log.
        reason: Option<&'a str>,
    },
    /// The client must connect again after `after_ms`.
    Redirect {
        /// Where to connect; absent: to the same address.
        address: Option<&'a str>,
        /// The time to wait before, in milliseconds.
        after_ms: u64,
    },
    /// The server refuses something.
    Error(ErrorFrame<'a>),
    /// A frame of an optional kind that this version does not know: to be skipped.
    Skipped {
        /// The unknown kind.
        kind: u8,
    },
}

/// The client's first frame: whose session this is, and what the device wants.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bind<'a> {
    /// The highest version that the client speaks.
    pub version: u64,
    /// The user's token, as the app server signed it.
    pub token: &'a str,
    /// Names the device for as long as the app is installed.
    pub device_id: &'a str,
    /// `phone`, `tv`, … the app's own word; absent: `device`.
    pub device_kind: Option<&'a str>,
    /// The app's version, kept with the device.
    pub app_version: Option<&'a str>,
    /// The last cursor that this device was handed, for chat.
    pub cursor: Option<&'a str>,
    /// Bits of [`wants`]; absent: both.
    pub wants: Option<u64>,
    /// The interval that the client would like, in seconds.
    pub heartbeat_s: Option<u64>,
}

/// The server's answer to a bind.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bound<'a> {
    /// The version that both sides speak from now on.
    pub version: u64,
    /// Names the session, in logs and answers about presence.
    pub session: &'a str,
    /// The id of the user that the token names.
    pub user: &'a str,
    /// The client sends something at least this often, in seconds.
    pub heartbeat_s: u64,
    /// The longest payload that the server takes, in bytes.
    pub frame_bytes_max: u64,
    /// The cursor from which live delivery starts; absent when the device does not want chat.
    pub cursor: Option<&'a str>,
    /// How the resume went, as the JSON object in the WebSocket protocol's `bound`.
    pub resume: Option<&'a [u8]>,
    /// False: the server cannot reach what hands out pushes; they follow once it can.
    pub pushes: Option<bool>,
}

/// A push, as a device is sent it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Push<'a> {
    /// Names the push; a device that has seen it acknowledges it again and does nothing else.
    pub push: u64,
    /// When the server gives the push up, in milliseconds since 1970 UTC.
    pub expires_at: u64,
    /// A newer push with the same key takes this one's place.
    pub collapse_key: Option<&'a str>,
    /// 0 normal, 1 high.
    pub priority: u64,
    /// The app's word for what the body is.
    pub content_type: &'a str,
    /// The body: JSON when this server sends it.
    pub body: &'a [u8],
}

/// What the server refuses, and whether the session goes on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ErrorFrame<'a> {
    /// An [`ErrorCode`]'s text.
    pub code: &'a str,
    /// A sentence for a person.
    pub message: &'a str,
    /// Whether the same may succeed later.
    pub retry: bool,
    /// The time after which a retry makes sense, in milliseconds.
    pub retry_after_ms: Option<u64>,
    /// The server closes the connection after this frame.
    pub fatal: bool,
}

/// Why bytes are not a frame of this protocol. Each of these errors ends the connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MiopError {
    /// The varint of a frame's length does not end in time.
    #[error("a frame's length has more than {LENGTH_BYTES_MAX} bytes")]
    LengthTooLong,
    /// A frame declares a payload over the limit of the reader.
    #[error("a payload is limited to {limit} bytes, got {length}")]
    TooLong {
        /// The reader's limit, in bytes.
        limit: usize,
        /// The declared length, in bytes.
        length: usize,
    },
    /// A varint with more bytes than it needs, or beyond 64 bits.
    #[error("a number is not in its shortest form or over 64 bits")]
    BadNumber,
    /// A bind or bound of version 0; versions count from 1.
    #[error("version 0 does not exist")]
    NoVersion,
    /// A kind below 0x80 that this version does not know.
    #[error("unknown kind {0:#04x}")]
    UnknownKind(u8),
    /// A field with the critical bit that this version does not know, by its tag.
    #[error("unknown critical field {0:#04x}")]
    UnknownField(u8),
    /// A field that stands twice in a payload, by its tag.
    #[error("field {0} came twice")]
    RepeatedField(u8),
    /// A field that is longer than the rest of its payload.
    #[error("a field is cut short")]
    CutField,
    /// A required field that is absent, by its name.
    #[error("field {0} is missing")]
    MissingField(&'static str),
    /// A text field that is not UTF-8, by its name.
    #[error("field {0} is not UTF-8")]
    NotText(&'static str),
    /// A field over its limit.
    #[error("{name} is limited to {limit}, got {got}")]
    OverLimit {
        /// The field's name.
        name: &'static str,
        /// The limit, in bytes or items.
        limit: u64,
        /// The field's length, in bytes or items.
        got: u64,
    },
}

impl MiopError {
    /// The error code with which the server ends the connection.
    pub fn code(&self) -> ErrorCode {
        match self {
            MiopError::LengthTooLong | MiopError::TooLong { .. } | MiopError::OverLimit { .. } => {
                ErrorCode::LimitExceeded
            }
            _ => ErrorCode::Malformed,
        }
    }
}

/// Where a frame stands in a buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The frame's kind.
    pub kind: u8,
    /// The bytes of the payload in the buffer.
    pub payload: Range<usize>,
}

/// The first frame of `bytes`, if all of it has arrived. An error that the frame's head shows is returned before the rest
/// has arrived: an unknown kind (a client of another protocol, say), or a payload over `limit`.
///
/// # Errors
/// The head is not one of this protocol.
pub fn take_head(bytes: &[u8], limit: usize) -> Result<Option<Head>, MiopError> {
    let Some((&kind, rest)) = bytes.split_first() else { return Ok(None) };
    if kind & OPTIONAL == 0 && !kind::ALL.contains(&kind) {
        return Err(MiopError::UnknownKind(kind));
    }
    let mut length = 0_usize;
    for (at, byte) in rest.iter().take(LENGTH_BYTES_MAX).enumerate() {
        length |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            if at > 0 && *byte == 0 {
                return Err(MiopError::BadNumber);
            }
            if length > limit {
                return Err(MiopError::TooLong { limit, length });
            }
            let start = 2 + at;
            let whole = bytes.len() - start >= length;
            return Ok(whole.then(|| Head { kind, payload: start..start + length }));
        }
    }
    if rest.len() >= LENGTH_BYTES_MAX { Err(MiopError::LengthTooLong) } else { Ok(None) }
}

/// Appends a frame's kind and length.
pub fn put_head(out: &mut Vec<u8>, kind: u8, length: usize) {
    out.push(kind);
    put_number(out, length as u64);
}

/// Appends a number in its shortest form: seven bits a byte, the lowest first.
pub fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}
