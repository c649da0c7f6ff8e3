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

use crate::{error::ErrorCode, limits::*};
use std::ops::Range;

/// The version that this code speaks.
pub const VERSION: u64 = 1;
/// A plain heartbeat: a frame without a payload.
pub const HEARTBEAT: [u8; 2] = [kind::HEARTBEAT, 0];
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
}

/// What a device wants to be sent, as bits of [`Bind::wants`].
pub mod wants {
    pub const PUSH: u64 = 1;
    pub const CHAT: u64 = 2;
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

/// The first frame of `bytes`, if it has come whole. A payload over `limit` is refused by its header.
pub fn take_head(bytes: &[u8], limit: usize) -> Result<Option<Head>, MiopError> {
    let Some((&kind, rest)) = bytes.split_first() else { return Ok(None) };
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

/// The frame that a head announced.
pub fn decode(kind: u8, payload: &[u8]) -> Result<Frame<'_>, MiopError> {
    match kind {
        kind::HEARTBEAT => {
            let mut interval_s = None;
            each_field(payload, |tag, value| match tag {
                1 => set(&mut interval_s, tag, number(value)?),
                _ => unknown(tag),
            })?;
            Ok(Frame::Heartbeat { interval_s })
        }
        kind::BIND => Bind::decode(payload).map(Frame::Bind),
        kind::BOUND => Bound::decode(payload).map(Frame::Bound),
        kind::PUSH => Push::decode(payload).map(Frame::Push),
        kind::ACK => {
            let mut pushes = None;
            each_field(payload, |tag, value| match tag {
                1 => set(&mut pushes, tag, numbers(value)?),
                _ => unknown(tag),
            })?;
            Ok(Frame::Ack { pushes: pushes.ok_or(MiopError::MissingField("pushes"))? })
        }
        kind::CHAT => Ok(Frame::Chat { json: payload }),
        kind::UNBIND => {
            let mut reason = None;
            each_field(payload, |tag, value| match tag {
                1 => set(&mut reason, tag, text("reason", value, NAME_BYTES_MAX)?),
                _ => unknown(tag),
            })?;
            Ok(Frame::Unbind { reason })
        }
        kind::REDIRECT => {
            let (mut address, mut after_ms) = (None, None);
            each_field(payload, |tag, value| match tag {
                1 => set(&mut address, tag, text("address", value, NAME_BYTES_MAX)?),
                2 => set(&mut after_ms, tag, number(value)?),
                _ => unknown(tag),
            })?;
            Ok(Frame::Redirect { address, after_ms: after_ms.ok_or(MiopError::MissingField("after_ms"))? })
        }
        kind::ERROR => ErrorFrame::decode(payload).map(Frame::Error),
        kind if kind & OPTIONAL != 0 => Ok(Frame::Skipped { kind }),
        kind => Err(MiopError::UnknownKind(kind)),
    }
}

impl<'a> Bind<'a> {
    fn decode(payload: &'a [u8]) -> Result<Self, MiopError> {
        let (mut version, mut token, mut device_id, mut device_kind) = (None, None, None, None);
        let (mut app_version, mut cursor, mut wants, mut heartbeat_s) = (None, None, None, None);
        each_field(payload, |tag, value| match tag {
            1 => set(&mut version, tag, number(value)?),
            2 => set(&mut token, tag, text("token", value, usize::MAX)?),
            3 => set(&mut device_id, tag, text("device_id", value, ID_BYTES_MAX)?),
            4 => set(&mut device_kind, tag, text("device_kind", value, TYPE_BYTES_MAX)?),
            5 => set(&mut app_version, tag, text("app_version", value, TYPE_BYTES_MAX)?),
            6 => set(&mut cursor, tag, text("cursor", value, NAME_BYTES_MAX)?),
            7 => set(&mut wants, tag, number(value)?),
            8 => set(&mut heartbeat_s, tag, number(value)?),
            _ => unknown(tag),
        })?;
        Ok(Bind {
            version: version.ok_or(MiopError::MissingField("version"))?,
            token: token.ok_or(MiopError::MissingField("token"))?,
            device_id: device_id.ok_or(MiopError::MissingField("device_id"))?,
            device_kind,
            app_version,
            cursor,
            wants,
            heartbeat_s,
        })
    }
}

impl<'a> Bound<'a> {
    fn decode(payload: &'a [u8]) -> Result<Self, MiopError> {
        let (mut version, mut session, mut user, mut heartbeat_s) = (None, None, None, None);
        let (mut frame_bytes_max, mut cursor, mut resume) = (None, None, None);
        each_field(payload, |tag, value| match tag {
            1 => set(&mut version, tag, number(value)?),
            2 => set(&mut session, tag, text("session", value, ID_BYTES_MAX)?),
            3 => set(&mut user, tag, text("user", value, ID_BYTES_MAX)?),
            4 => set(&mut heartbeat_s, tag, number(value)?),
            5 => set(&mut frame_bytes_max, tag, number(value)?),
            6 => set(&mut cursor, tag, text("cursor", value, NAME_BYTES_MAX)?),
            7 => set(&mut resume, tag, value),
            _ => unknown(tag),
        })?;
        Ok(Bound {
            version: version.ok_or(MiopError::MissingField("version"))?,
            session: session.ok_or(MiopError::MissingField("session"))?,
            user: user.ok_or(MiopError::MissingField("user"))?,
            heartbeat_s: heartbeat_s.ok_or(MiopError::MissingField("heartbeat_s"))?,
            frame_bytes_max: frame_bytes_max.ok_or(MiopError::MissingField("frame_bytes_max"))?,
            cursor,
            resume,
        })
    }
}

impl<'a> Push<'a> {
    fn decode(payload: &'a [u8]) -> Result<Self, MiopError> {
        let (mut push, mut expires_at, mut collapse_key) = (None, None, None);
        let (mut priority, mut content_type, mut body) = (None, None, None);
        each_field(payload, |tag, value| match tag {
            1 => set(&mut push, tag, number(value)?),
            2 => set(&mut expires_at, tag, number(value)?),
            3 => set(&mut collapse_key, tag, text("collapse_key", value, ID_BYTES_MAX)?),
            4 => set(&mut priority, tag, number(value)?),
            5 => set(&mut content_type, tag, text("type", value, TYPE_BYTES_MAX)?),
            6 => set(&mut body, tag, value),
            _ => unknown(tag),
        })?;
        Ok(Push {
            push: push.ok_or(MiopError::MissingField("push"))?,
            expires_at: expires_at.ok_or(MiopError::MissingField("expires_at"))?,
            collapse_key,
            priority: priority.unwrap_or(0),
            content_type: content_type.ok_or(MiopError::MissingField("type"))?,
            body: body.ok_or(MiopError::MissingField("body"))?,
        })
    }
}

impl<'a> ErrorFrame<'a> {
    fn decode(payload: &'a [u8]) -> Result<Self, MiopError> {
        let (mut code, mut message, mut retry) = (None, None, None);
        let (mut retry_after_ms, mut fatal) = (None, None);
        each_field(payload, |tag, value| match tag {
            1 => set(&mut code, tag, text("code", value, ID_BYTES_MAX)?),
            2 => set(&mut message, tag, text("message", value, usize::MAX)?),
            3 => set(&mut retry, tag, number(value)?),
            4 => set(&mut retry_after_ms, tag, number(value)?),
            5 => set(&mut fatal, tag, number(value)?),
            _ => unknown(tag),
        })?;
        Ok(ErrorFrame {
            code: code.ok_or(MiopError::MissingField("code"))?,
            message: message.ok_or(MiopError::MissingField("message"))?,
            retry: retry.is_some_and(|n| n != 0),
            retry_after_ms,
            fatal: fatal.is_some_and(|n| n != 0),
        })
    }
}

impl Frame<'_> {
    /// Appends the frame, header and all.
    pub fn put(&self, out: &mut Vec<u8>) {
        let mut payload = Vec::new();
        let kind = match self {
            Frame::Heartbeat { interval_s } => {
                put_optional_number(&mut payload, 1, *interval_s);
                kind::HEARTBEAT
            }
            Frame::Bind(bind) => {
                put_number_field(&mut payload, 1, bind.version);
                put_field(&mut payload, 2, bind.token.as_bytes());
                put_field(&mut payload, 3, bind.device_id.as_bytes());
                put_optional(&mut payload, 4, bind.device_kind);
                put_optional(&mut payload, 5, bind.app_version);
                put_optional(&mut payload, 6, bind.cursor);
                put_optional_number(&mut payload, 7, bind.wants);
                put_optional_number(&mut payload, 8, bind.heartbeat_s);
                kind::BIND
            }
            Frame::Bound(bound) => {
                put_number_field(&mut payload, 1, bound.version);
                put_field(&mut payload, 2, bound.session.as_bytes());
                put_field(&mut payload, 3, bound.user.as_bytes());
                put_number_field(&mut payload, 4, bound.heartbeat_s);
                put_number_field(&mut payload, 5, bound.frame_bytes_max);
                put_optional(&mut payload, 6, bound.cursor);
                if let Some(resume) = bound.resume {
                    put_field(&mut payload, 7, resume);
                }
                kind::BOUND
            }
            Frame::Push(push) => {
                put_number_field(&mut payload, 1, push.push);
                put_number_field(&mut payload, 2, push.expires_at);
                put_optional(&mut payload, 3, push.collapse_key);
                if push.priority != 0 {
                    put_number_field(&mut payload, 4, push.priority);
                }
                put_field(&mut payload, 5, push.content_type.as_bytes());
                put_field(&mut payload, 6, push.body);
                kind::PUSH
            }
            Frame::Ack { pushes } => {
                let mut list = Vec::with_capacity(pushes.len() * 4);
                for push in pushes {
                    put_number(&mut list, *push);
                }
                put_field(&mut payload, 1, &list);
                kind::ACK
            }
            Frame::Chat { json } => {
                put_head(out, kind::CHAT, json.len());
                out.extend_from_slice(json);
                return;
            }
            Frame::Unbind { reason } => {
                put_optional(&mut payload, 1, *reason);
                kind::UNBIND
            }
            Frame::Redirect { address, after_ms } => {
                put_optional(&mut payload, 1, *address);
                put_number_field(&mut payload, 2, *after_ms);
                kind::REDIRECT
            }
            Frame::Error(error) => {
                put_field(&mut payload, 1, error.code.as_bytes());
                put_field(&mut payload, 2, error.message.as_bytes());
                put_number_field(&mut payload, 3, u64::from(error.retry));
                put_optional_number(&mut payload, 4, error.retry_after_ms);
                put_number_field(&mut payload, 5, u64::from(error.fatal));
                kind::ERROR
            }
            Frame::Skipped { kind } => *kind,
        };
        put_head(out, kind, payload.len());
        out.extend_from_slice(&payload);
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(&mut out);
        out
    }
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

/// A number and the bytes after it; `None` when it is cut short.
fn take_number(bytes: &[u8]) -> Result<Option<(u64, &[u8])>, MiopError> {
    let mut number = 0_u64;
    for (at, byte) in bytes.iter().enumerate() {
        let bits = u64::from(byte & 0x7f);
        // The tenth byte has room for one bit; a last byte of zero says that fewer bytes would do.
        if at == 9 && *byte > 1 || at > 0 && *byte == 0 {
            return Err(MiopError::BadNumber);
        }
        number |= bits << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(Some((number, &bytes[at + 1..])));
        }
    }
    Ok(None)
}

/// A field's value that is one number.
fn number(value: &[u8]) -> Result<u64, MiopError> {
    match take_number(value)? {
        Some((number, [])) => Ok(number),
        _ => Err(MiopError::BadNumber),
    }
}

fn numbers(mut value: &[u8]) -> Result<Vec<u64>, MiopError> {
    let mut list = Vec::new();
    while !value.is_empty() {
        let (number, rest) = take_number(value)?.ok_or(MiopError::CutField)?;
        if list.len() == ACKS_PER_FRAME_MAX {
            let (limit, got) = (ACKS_PER_FRAME_MAX as u64, ACKS_PER_FRAME_MAX as u64 + 1);
            return Err(MiopError::OverLimit { name: "pushes in one ack", limit, got });
        }
        list.push(number);
        value = rest;
    }
    Ok(list)
}

fn text<'a>(name: &'static str, value: &'a [u8], limit: usize) -> Result<&'a str, MiopError> {
    if value.len() > limit {
        return Err(MiopError::OverLimit { name, limit: limit as u64, got: value.len() as u64 });
    }
    std::str::from_utf8(value).map_err(|_| MiopError::NotText(name))
}

fn each_field<'a>(
    mut payload: &'a [u8],
    mut field: impl FnMut(u8, &'a [u8]) -> Result<(), MiopError>,
) -> Result<(), MiopError> {
    while let Some((&tag, rest)) = payload.split_first() {
        let (length, rest) = take_number(rest)?.ok_or(MiopError::CutField)?;
        let length = usize::try_from(length).ok().filter(|length| *length <= rest.len()).ok_or(MiopError::CutField)?;
        let (value, rest) = rest.split_at(length);
        field(tag, value)?;
        payload = rest;
    }
    Ok(())
}

fn set<T>(place: &mut Option<T>, tag: u8, value: T) -> Result<(), MiopError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(MiopError::RepeatedField(tag)),
    }
}

fn unknown(tag: u8) -> Result<(), MiopError> {
    if tag & CRITICAL == 0 { Ok(()) } else { Err(MiopError::UnknownField(tag)) }
}

fn put_field(out: &mut Vec<u8>, tag: u8, value: &[u8]) {
    out.push(tag);
    put_number(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn put_number_field(out: &mut Vec<u8>, tag: u8, number: u64) {
    let mut value = Vec::with_capacity(10);
    put_number(&mut value, number);
    put_field(out, tag, &value);
}

fn put_optional(out: &mut Vec<u8>, tag: u8, text: Option<&str>) {
    if let Some(text) = text {
        put_field(out, tag, text.as_bytes());
    }
}

fn put_optional_number(out: &mut Vec<u8>, tag: u8, number: Option<u64>) {
    if let Some(number) = number {
        put_number_field(out, tag, number);
    }
}
