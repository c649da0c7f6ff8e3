//! Frames between a device and a listener, in the bytes of MIOP or WebSocket.

use super::{
    ConnectionError,
    session::{bind_of, put_frame, put_ping},
    websocket::{Message, WebSocket},
};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;
use tidings_client::session::SERVER_FRAME_BYTES_MAX;
use tidings_protocol::{
    frames::{Bind, ClientFrame},
    miop::{self, Frame, HEARTBEAT, decode, take_head, wants},
};

/// The protocol that devices connect by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceProtocol {
    #[default]
    Miop,
    Miops,
    Ws,
}

/// A message of the server, of either protocol.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ServerMessage<'a> {
    /// The WebSocket upgrade is done: bind now.
    Upgraded,
    Bound {
        user: Cow<'a, str>,
        heartbeat_ms: u64,
        /// Whether pushes come over this session.
        pushes: bool,
    },
    /// The answer to a heartbeat.
    Heartbeat,
    Push {
        id: u64,
        body: &'a [u8],
    },
    Refused {
        code: Cow<'a, str>,
        retry: bool,
        retry_after_ms: Option<u64>,
        /// The server closes the connection after it.
        fatal: bool,
    },
    /// How users whom the session watches are: the JSON of the changes.
    Presence {
        changes: &'a str,
    },
    /// Connect again, at `address` if one is given.
    Redirect {
        address: Option<&'a str>,
        after_ms: u64,
    },
    /// A message that a device of the lab ignores.
    Ignored,
}

/// What a device binds as.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceBind<'a> {
    pub(crate) token: &'a str,
    pub(crate) device_id: &'a str,
    pub(crate) device_kind: &'a str,
    pub(crate) pushes: bool,
    /// Over MIOP: what a chat's session gets.
    pub(crate) chats: bool,
    /// Over MIOP: the interval that it proposes.
    pub(crate) heartbeat_s: Option<u64>,
}

pub(crate) fn put_bind(via: DeviceProtocol, out: &mut Vec<u8>, bind: &DeviceBind<'_>) {
    let DeviceBind { token, device_id, device_kind, pushes, chats, heartbeat_s } = *bind;
    let wanted = [(pushes, wants::PUSH), (chats, wants::CHAT)].into_iter().filter(|(is_wanted, _)| *is_wanted);
    match via {
        DeviceProtocol::Miop | DeviceProtocol::Miops => Frame::Bind(miop::Bind {
            version: miop::VERSION,
            token,
            device_id,
            device_kind: Some(device_kind),
            wants: Some(wanted.fold(0, |all, (_, one)| all | one)),
            heartbeat_s,
            ..miop::Bind::default()
        })
        .put(out),
        DeviceProtocol::Ws => {
            let bind = Bind { device_kind: device_kind.into(), push: pushes, ..bind_of(token.into(), device_id) };
            put_frame(out, &ClientFrame::Bind(bind));
        }
    }
}

pub(crate) fn put_unbind(via: DeviceProtocol, out: &mut Vec<u8>) {
    match via {
        DeviceProtocol::Miop | DeviceProtocol::Miops => Frame::Unbind { reason: None }.put(out),
        DeviceProtocol::Ws => put_frame(out, &ClientFrame::Unbind),
    }
}

pub(crate) fn put_heartbeat(via: DeviceProtocol, out: &mut Vec<u8>) {
    match via {
        DeviceProtocol::Miop | DeviceProtocol::Miops => out.extend_from_slice(&HEARTBEAT),
        DeviceProtocol::Ws => put_ping(out),
    }
}

pub(crate) fn put_ack(via: DeviceProtocol, out: &mut Vec<u8>, pushes: Vec<u64>) {
    match via {
        DeviceProtocol::Miop | DeviceProtocol::Miops => Frame::Ack { pushes }.put(out),
        DeviceProtocol::Ws => put_frame(out, &ClientFrame::Ack { pushes }),
    }
}

/// Reads the first message in `bytes`, with its length; `None` when more bytes are needed. `websocket` is the connection's, with
/// that protocol.
pub(crate) fn take_message<'a>(
    via: DeviceProtocol,
    websocket: &mut WebSocket,
    bytes: &'a mut [u8],
    out: &mut Vec<u8>,
) -> Result<Option<(usize, ServerMessage<'a>)>, String> {
    if via != DeviceProtocol::Ws {
        return take_miop(bytes);
    }
    let length = bytes.len();
    let (taken, message) = match websocket.take(bytes, out) {
        Ok(taken) => taken,
        Err(ConnectionError::NotUpgraded { status, retry_after }) => {
            let (code, retry) = (format!("http_{status}").into(), matches!(status, 429 | 503));
            let retry_after_ms = retry_after.map(|seconds| seconds * 1000);
            return Ok(Some((length, ServerMessage::Refused { code, retry, retry_after_ms, fatal: true })));
        }
        Err(error) => return Err(error.to_string()),
    };
    Ok(match message {
        None if taken == 0 => None,
        None | Some(Message::Binary(_)) => Some((taken, ServerMessage::Ignored)),
        Some(Message::Opened) => Some((taken, ServerMessage::Upgraded)),
        Some(Message::Text(Cow::Borrowed(text))) => Some((taken, read_text(text)?)),
        Some(Message::Text(Cow::Owned(_))) => {
            return Err("a message in fragments, which the server never writes".into());
        }
        Some(Message::Closed(payload)) => {
            let code = payload.get(..2).map_or(1005, |code| u16::from_be_bytes([code[0], code[1]]));
            let code = Cow::Owned(format!("close_{code}"));
            Some((taken, ServerMessage::Refused { code, retry: true, retry_after_ms: None, fatal: true }))
        }
    })
}

fn take_miop(bytes: &[u8]) -> Result<Option<(usize, ServerMessage<'_>)>, String> {
    let Some(head) = take_head(bytes, SERVER_FRAME_BYTES_MAX).map_err(|error| error.to_string())? else {
        return Ok(None);
    };
    let end = head.payload.end;
    let message = match decode(head.kind, &bytes[head.payload]).map_err(|error| error.to_string())? {
        Frame::Bound(bound) if bound.version == miop::VERSION && !bound.session.is_empty() => ServerMessage::Bound {
            user: Cow::Borrowed(bound.user),
            heartbeat_ms: bound.heartbeat_s * 1000,
            pushes: bound.pushes != Some(false),
        },
        Frame::Bound(bound) => return Err(format!("bound with version {} and {:?}", bound.version, bound.session)),
        Frame::Heartbeat { .. } => ServerMessage::Heartbeat,
        Frame::Push(push) => ServerMessage::Push { id: push.push, body: push.body },
        Frame::Redirect { address, after_ms } => ServerMessage::Redirect { address, after_ms },
        Frame::Error(error) => ServerMessage::Refused {
            code: Cow::Borrowed(error.code),
            retry: error.retry,
            retry_after_ms: error.retry_after_ms,
            fatal: error.fatal,
        },
        Frame::Unbind { .. } => {
            ServerMessage::Refused { code: "unbind".into(), retry: true, retry_after_ms: None, fatal: true }
        }
        Frame::Chat { .. } | Frame::Skipped { .. } => ServerMessage::Ignored,
        Frame::Bind(_) | Frame::Ack { .. } => return Err(format!("a frame of kind {} from a server", head.kind)),
    };
    Ok(Some((end, message)))
}

/// The fields of a WebSocket text frame that a device reads.
#[derive(Deserialize)]
struct JsonFrame<'a> {
    #[serde(borrow)]
    t: Cow<'a, str>,
    #[serde(borrow)]
    user: Option<Cow<'a, str>>,
    heartbeat_ms: Option<u64>,
    pushes: Option<bool>,
    push: Option<u64>,
    #[serde(borrow)]
    changes: Option<&'a RawValue>,
    #[serde(borrow)]
    body: Option<&'a RawValue>,
    #[serde(borrow)]
    code: Option<Cow<'a, str>>,
    #[serde(default)]
    retry: bool,
    retry_after_ms: Option<u64>,
    after_ms: Option<u64>,
}

fn read_text(payload: &[u8]) -> Result<ServerMessage<'_>, String> {
    let text: JsonFrame = serde_json::from_slice(payload).map_err(|error| error.to_string())?;
    let missing = || format!("a {} frame without all of its fields", text.t);
    Ok(match text.t.as_ref() {
        "bound" => ServerMessage::Bound {
            user: text.user.clone().ok_or_else(missing)?,
            heartbeat_ms: text.heartbeat_ms.ok_or_else(missing)?,
            pushes: text.pushes != Some(false),
        },
        "presence" => ServerMessage::Presence { changes: text.changes.ok_or_else(missing)?.get() },
        "pong" => ServerMessage::Heartbeat,
        "push" => ServerMessage::Push {
            id: text.push.ok_or_else(missing)?,
            body: text.body.ok_or_else(missing)?.get().as_bytes(),
        },
        "reconnect" => ServerMessage::Redirect { address: None, after_ms: text.after_ms.ok_or_else(missing)? },
        "error" => ServerMessage::Refused {
            code: text.code.clone().ok_or_else(missing)?,
            retry: text.retry,
            retry_after_ms: text.retry_after_ms,
            fatal: false,
        },
        _ => ServerMessage::Ignored,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tidings_protocol::ws::{Data, OpCode, put_server_frame};

    fn check(via: DeviceProtocol, bytes: &[u8], expected: ServerMessage<'_>) {
        let take = |bytes: &mut [u8]| {
            let taken = take_message(via, &mut WebSocket::without_upgrade(), bytes, &mut Vec::new());
            taken.map(|taken| taken.map(|(length, message)| (length, message == expected)))
        };
        for cut in 0..bytes.len() {
            assert_eq!(take(&mut bytes[..cut].to_vec()), Ok(None), "cut at {cut}");
        }
        assert_eq!(take(&mut bytes.to_vec()), Ok(Some((bytes.len(), true))));
    }

    #[test]
    fn bound_is_read_alike_in_both_protocols() {
        let bound = miop::Bound { version: 1, session: "s", user: "u", heartbeat_s: 60, ..Default::default() };
        check(
            DeviceProtocol::Miop,
            &Frame::Bound(bound).to_bytes(),
            ServerMessage::Bound { user: "u".into(), heartbeat_ms: 60_000, pushes: true },
        );
        let mut text = Vec::new();
        let json = br#"{"t":"bound","session":"s","user":"u","heartbeat_ms":60000,"cursor":"","resume":{}}"#;
        put_server_frame(&mut text, OpCode::Data(Data::Text), json);
        check(DeviceProtocol::Ws, &text, ServerMessage::Bound { user: "u".into(), heartbeat_ms: 60_000, pushes: true });
    }

    #[test]
    fn a_client_frame_from_a_server_is_an_error() {
        assert!(take_miop(&Frame::Ack { pushes: vec![1] }.to_bytes()).is_err());
    }
}
