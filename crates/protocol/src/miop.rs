//! MIOP/1: the binary frames of the device door, over plain byte buffers. `docs/miop.md` is the
//! normative text; the vectors in `fixtures/miop` pin every byte of it.
//!
//! ```text
//! frame   = kind (1 byte)  length (varint, at most 4 bytes)  payload
//! payload = fields, or for a chat frame the JSON of docs/websocket.md
//! field   = tag (1 byte)  length (varint)  value
//! ```
//! A kind from 0x80 on, or a field whose tag has no high bit, may be skipped by who does not know it;
//! any other unknown kind or field ends the connection. That is the whole rule for extensions.
//!
//! [`take_head`] finds a frame in a buffer, [`decode`] reads it, [`Frame::put`] writes one.

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
/// From a server: are you there? From a client: yes. A frame without a payload, of an optional kind.
pub const PROBE: [u8; 2] = [kind::PROBE, 0];
/// Bytes of a varint that gives a frame's length.
const LENGTH_BYTES_MAX: usize = 4;
/// A field with this bit must be understood, or the frame refused.
const CRITICAL: u8 = 0x80;
/// A kind with this bit may be skipped by who does not know it.
const OPTIONAL: u8 = 0x80;

/// The first byte of a frame.
pub mod kind {
    pub const HEARTBEAT: u8 = 0x01;
    pub const BIND: u8 = 0x02;
    pub const BOUND: u8 = 0x03;
    pub const PUSH: u8 = 0x04;
    pub const ACK: u8 = 0x05;
    pub const CHAT: u8 = 0x06;
    pub const UNBIND: u8 = 0x07;
    pub const REDIRECT: u8 = 0x08;
    pub const ERROR: u8 = 0x09;
    /// Optional: who does not know it skips it.
    pub const PROBE: u8 = 0x80;

    /// All that this version has.
    pub const ALL: [u8; 9] = [HEARTBEAT, BIND, BOUND, PUSH, ACK, CHAT, UNBIND, REDIRECT, ERROR];
}

/// What a device wants to be sent, as bits of [`Bind::wants`].
pub mod wants {
    pub const PUSH: u64 = 1;
    pub const CHAT: u64 = 2;
    /// Answers a probe.
    pub const PROBES: u64 = 4;
}

/// One frame, borrowed from the bytes that it came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Either side is alive. A client may propose another interval, the server answers what it grants.
    Heartbeat {
        interval_s: Option<u64>,
    },
    Bind(Bind<'a>),
    Bound(Bound<'a>),
    Push(Push<'a>),
    /// The device has these pushes and need not be handed them again.
    Ack {
        pushes: Vec<u64>,
    },
    /// One JSON frame of the WebSocket door, in either direction.
    Chat {
        json: &'a [u8],
    },
    /// The sender is done; the server closes.
    Unbind {
        reason: Option<&'a str>,
    },
    /// Connect again after `after_ms`, to `address` if one is given.
    Redirect {
        address: Option<&'a str>,
        after_ms: u64,
    },
    Error(ErrorFrame<'a>),
    /// An optional kind that this side does not know: to be skipped.
    Skipped {
        kind: u8,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bind<'a> {
    /// The highest version that the client speaks.
    pub version: u64,
    pub token: &'a str,
    pub device_id: &'a str,
    /// `phone`, `tv`, … the app's own word; absent: `device`.
    pub device_kind: Option<&'a str>,
    pub app_version: Option<&'a str>,
    /// The last cursor that this device was handed, for chat.
    pub cursor: Option<&'a str>,
    /// Bits of [`wants`]; absent: both.
    pub wants: Option<u64>,
    /// The interval that the client would like, in seconds.
    pub heartbeat_s: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bound<'a> {
    pub version: u64,
    pub session: &'a str,
    pub user: &'a str,
    /// The client sends something at least this often, in seconds.
    pub heartbeat_s: u64,
    /// The longest payload that the server takes, in bytes.
    pub frame_bytes_max: u64,
    /// Where chat stands for this device; absent when it does not want chat.
    pub cursor: Option<&'a str>,
    /// How the resume went, as the JSON object of the WebSocket door's `bound`.
    pub resume: Option<&'a [u8]>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Push<'a> {
    /// Names the push; a device that has seen it acknowledges it again and does nothing else.
    pub push: u64,
    /// Milliseconds since 1970 UTC.
    pub expires_at: u64,
    /// A newer push with the same key takes this one's place.
    pub collapse_key: Option<&'a str>,
    /// 0 normal, 1 high.
    pub priority: u64,
    /// The app's word for what the body is.
    pub content_type: &'a str,
    pub body: &'a [u8],
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ErrorFrame<'a> {
    /// An [`ErrorCode`]'s text.
    pub code: &'a str,
    pub message: &'a str,
    /// Whether the same may succeed later.
    pub retry: bool,
    pub retry_after_ms: Option<u64>,
    /// The server closes the connection after this frame.
    pub fatal: bool,
}

/// Why bytes are not a frame of this protocol. Each ends the connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MiopError {
    #[error("a frame's length has more than {LENGTH_BYTES_MAX} bytes")]
    LengthTooLong,
    #[error("a payload is limited to {limit} bytes, got {length}")]
    TooLong { limit: usize, length: usize },
    #[error("a number is not in its shortest form or over 64 bits")]
    BadNumber,
    #[error("version 0 is none")]
    NoVersion,
    #[error("unknown kind {0:#04x}")]
    UnknownKind(u8),
    #[error("unknown critical field {0:#04x}")]
    UnknownField(u8),
    #[error("field {0} came twice")]
    RepeatedField(u8),
    #[error("a field is cut short")]
    CutField,
    #[error("field {0} is missing")]
    MissingField(&'static str),
    #[error("field {0} is not UTF-8")]
    NotText(&'static str),
    #[error("{name} is limited to {limit}, got {got}")]
    OverLimit { name: &'static str, limit: u64, got: u64 },
}

impl MiopError {
    /// The code with which the connection is ended.
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
    pub kind: u8,
    pub payload: Range<usize>,
}

/// The first frame of `bytes`, if it has come whole. What its head already rules out is refused before
/// the rest has come: a kind that nobody knows (another protocol's client, say), a payload over `limit`.
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

/// A frame's kind and length.
pub fn put_head(out: &mut Vec<u8>, kind: u8, length: usize) {
    out.push(kind);
    put_number(out, length as u64);
}

/// A number in its shortest form: seven bits a byte, the lowest first.
pub fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}
