//! From bytes to frames: fields in any order, each at most once, everything borrowed from the payload.

use super::{
    Bind, Bound, ErrorFrame, Frame, MiopError, OPTIONAL, Push,
    fields::{each_field, number, numbers, set, text, unknown},
    kind,
};
use crate::limits::*;

/// Reads the payload of a frame of this kind, both as [`super::take_head`] found them.
///
/// # Errors
/// The payload breaks the protocol: a field is unknown and critical, missing, given twice, too long or cut short.
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

/// Versions count from 1: a peer that names none or 0 cannot be spoken with.
fn version_of(version: Option<u64>) -> Result<u64, MiopError> {
    match version {
        None => Err(MiopError::MissingField("version")),
        Some(0) => Err(MiopError::NoVersion),
        Some(version) => Ok(version),
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
            version: version_of(version)?,
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
        let (mut frame_bytes_max, mut cursor, mut resume, mut pushes) = (None, None, None, None);
        each_field(payload, |tag, value| match tag {
            1 => set(&mut version, tag, number(value)?),
            2 => set(&mut session, tag, text("session", value, ID_BYTES_MAX)?),
            3 => set(&mut user, tag, text("user", value, ID_BYTES_MAX)?),
            4 => set(&mut heartbeat_s, tag, number(value)?),
            5 => set(&mut frame_bytes_max, tag, number(value)?),
            6 => set(&mut cursor, tag, text("cursor", value, NAME_BYTES_MAX)?),
            7 => set(&mut resume, tag, value),
            8 => set(&mut pushes, tag, number(value)? != 0),
            _ => unknown(tag),
        })?;
        Ok(Bound {
            version: version_of(version)?,
            session: session.ok_or(MiopError::MissingField("session"))?,
            user: user.ok_or(MiopError::MissingField("user"))?,
            heartbeat_s: heartbeat_s.ok_or(MiopError::MissingField("heartbeat_s"))?,
            frame_bytes_max: frame_bytes_max.ok_or(MiopError::MissingField("frame_bytes_max"))?,
            cursor,
            resume,
            pushes,
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
