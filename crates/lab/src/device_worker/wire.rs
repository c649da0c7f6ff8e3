//! Frames between a device and a listener, in the bytes of MIOP or WebSocket.

use crate::devices::worker_protocol::DeviceProtocol;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use tidings_client::{
    session::{CONNECT_PATH, SERVER_FRAME_BYTES_MAX, random_mask},
    wire::{parse_response_head, put_upgrade},
};
use tidings_protocol::{
    frames::{Attention, ClientFrame},
    miop::{self, Frame, HEARTBEAT, decode, take_head, wants},
    ws::{Control, Data, OpCode, put_client_frame, take_frame},
};

/// A message of the server, of either protocol.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ServerMessage<'a> {
    /// The WebSocket upgrade is done: bind now.
    Upgraded,
    Bound {
        user: Cow<'a, str>,
        heartbeat_ms: u64,
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
    /// Connect again, at `address` if one is given.
    Redirect {
        address: Option<&'a str>,
        after_ms: u64,
    },
    /// A WebSocket ping, to be answered with the same payload (RFC 6455, 5.5.2).
    Ping {
        payload: &'a [u8],
    },
    /// A message that a device of the lab ignores.
    Ignored,
}

/// Appends the WebSocket upgrade; returns false for MIOP, whose connections begin with the bind.
pub(crate) fn put_handshake(via: DeviceProtocol, out: &mut Vec<u8>) -> bool {
    if via == DeviceProtocol::Ws {
        put_upgrade(out, CONNECT_PATH);
    }
    via == DeviceProtocol::Ws
}

pub(crate) fn put_bind(via: DeviceProtocol, out: &mut Vec<u8>, token: &str, device_id: &str, heartbeat_s: u64) {
    match via {
        DeviceProtocol::Miop | DeviceProtocol::Miops => Frame::Bind(miop::Bind {
            version: miop::VERSION,
            token,
            device_id,
            device_kind: Some("bench"),
            wants: Some(wants::PUSH),
            heartbeat_s: Some(heartbeat_s),
            ..miop::Bind::default()
        })
        .put(out),
        DeviceProtocol::Ws => put_json(
            out,
            &ClientFrame::Bind(tidings_protocol::frames::Bind {
                token: token.into(),
                device_id: device_id.into(),
                device_kind: "bench".into(),
                app_version: None,
                cursor: None,
                push: true,
                attention: Attention::Foreground,
            }),
        ),
    }
}

pub(crate) fn put_heartbeat(via: DeviceProtocol, out: &mut Vec<u8>) {
    match via {
        DeviceProtocol::Miop | DeviceProtocol::Miops => out.extend_from_slice(&HEARTBEAT),
        DeviceProtocol::Ws => put_client_frame(out, OpCode::Data(Data::Text), b"{\"t\":\"ping\"}", random_mask()),
    }
}

pub(crate) fn put_ack(via: DeviceProtocol, out: &mut Vec<u8>, pushes: Vec<u64>) {
    match via {
        DeviceProtocol::Miop | DeviceProtocol::Miops => Frame::Ack { pushes }.put(out),
        DeviceProtocol::Ws => put_json(out, &ClientFrame::Ack { pushes }),
    }
}

pub(crate) fn put_pong(out: &mut Vec<u8>, payload: &[u8]) {
    put_client_frame(out, OpCode::Control(Control::Pong), payload, random_mask());
}

fn put_json(out: &mut Vec<u8>, frame: &ClientFrame) {
    // These types hold nothing that does not serialize.
    let payload = serde_json::to_vec(frame).unwrap_or_default();
    put_client_frame(out, OpCode::Data(Data::Text), &payload, random_mask());
}

/// Reads the first whole frame of `bytes`, with its length; `None` when more bytes are needed.
pub(crate) fn take_message(
    via: DeviceProtocol,
    upgraded: bool,
    bytes: &mut [u8],
) -> Result<Option<(usize, ServerMessage<'_>)>, String> {
    match via {
        DeviceProtocol::Miop | DeviceProtocol::Miops => take_miop(bytes),
        DeviceProtocol::Ws if upgraded => take_ws(bytes),
        DeviceProtocol::Ws => match parse_response_head(bytes)? {
            None => Ok(None),
            Some(head) if head.status == 101 => Ok(Some((head.body_start, ServerMessage::Upgraded))),
            Some(head) => {
                let code = Cow::Owned(format!("http_{}", head.status));
                let retry_after_ms = head.retry_after.map(|seconds| seconds * 1000);
                let retry = matches!(head.status, 429 | 503);
                Ok(Some((bytes.len(), ServerMessage::Refused { code, retry, retry_after_ms, fatal: true })))
            }
        },
    }
}

fn take_miop(bytes: &[u8]) -> Result<Option<(usize, ServerMessage<'_>)>, String> {
    let Some(head) = take_head(bytes, SERVER_FRAME_BYTES_MAX).map_err(|error| error.to_string())? else {
        return Ok(None);
    };
    let end = head.payload.end;
    let message = match decode(head.kind, &bytes[head.payload]).map_err(|error| error.to_string())? {
        Frame::Bound(bound) if bound.version == miop::VERSION && !bound.session.is_empty() => {
            ServerMessage::Bound { user: Cow::Borrowed(bound.user), heartbeat_ms: bound.heartbeat_s * 1000 }
        }
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
    push: Option<u64>,
    #[serde(borrow)]
    body: Option<&'a RawValue>,
    #[serde(borrow)]
    code: Option<Cow<'a, str>>,
    #[serde(default)]
    retry: bool,
    retry_after_ms: Option<u64>,
    after_ms: Option<u64>,
}

fn take_ws(bytes: &mut [u8]) -> Result<Option<(usize, ServerMessage<'_>)>, String> {
    let Some(frame) = take_frame(bytes, false, SERVER_FRAME_BYTES_MAX).map_err(|error| error.to_string())? else {
        return Ok(None);
    };
    let end = frame.payload.end;
    let payload = &bytes[frame.payload];
    match frame.opcode {
        OpCode::Control(Control::Close) => {
            let code = payload.get(..2).map_or(1005, |code| u16::from_be_bytes([code[0], code[1]]));
            let code = Cow::Owned(format!("close_{code}"));
            return Ok(Some((end, ServerMessage::Refused { code, retry: true, retry_after_ms: None, fatal: true })));
        }
        OpCode::Control(Control::Ping) => return Ok(Some((end, ServerMessage::Ping { payload }))),
        OpCode::Data(Data::Text) => {}
        _ => return Ok(Some((end, ServerMessage::Ignored))),
    }
    let text: JsonFrame = serde_json::from_slice(payload).map_err(|error| error.to_string())?;
    let missing = || format!("a {} frame without all of its fields", text.t);
    let message = match text.t.as_ref() {
        "bound" => ServerMessage::Bound {
            user: text.user.clone().ok_or_else(missing)?,
            heartbeat_ms: text.heartbeat_ms.ok_or_else(missing)?,
        },
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
    };
    Ok(Some((end, message)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn check(via: DeviceProtocol, bytes: &[u8], expected: ServerMessage<'_>) {
        for cut in 0..bytes.len() {
            assert_eq!(take_message(via, true, &mut bytes[..cut].to_vec()), Ok(None), "cut at {cut}");
        }
        assert_eq!(take_message(via, true, &mut bytes.to_vec()), Ok(Some((bytes.len(), expected))));
    }

    #[test]
    fn bound_is_read_alike_in_both_protocols() {
        let bound = miop::Bound { version: 1, session: "s", user: "u", heartbeat_s: 60, ..Default::default() };
        check(
            DeviceProtocol::Miop,
            &Frame::Bound(bound).to_bytes(),
            ServerMessage::Bound { user: "u".into(), heartbeat_ms: 60_000 },
        );
        let mut text = Vec::new();
        let json = br#"{"t":"bound","session":"s","user":"u","heartbeat_ms":60000,"cursor":"","resume":{}}"#;
        tidings_protocol::ws::put_server_frame(&mut text, OpCode::Data(Data::Text), json);
        check(DeviceProtocol::Ws, &text, ServerMessage::Bound { user: "u".into(), heartbeat_ms: 60_000 });
    }

    #[test]
    fn a_ping_is_answered_with_its_payload() {
        check(DeviceProtocol::Ws, b"\x89\x02hi", ServerMessage::Ping { payload: b"hi" });
        let mut pong = Vec::new();
        put_pong(&mut pong, b"hi");
        assert_eq!(pong[..2], [0x8A, 0x82]);
        assert_eq!([pong[6] ^ pong[2], pong[7] ^ pong[3]], *b"hi");
    }

    #[test]
    fn a_client_frame_from_a_server_is_an_error() {
        assert!(take_message(DeviceProtocol::Miop, true, &mut Frame::Ack { pushes: vec![1] }.to_bytes()).is_err());
    }
}
