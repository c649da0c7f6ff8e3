//! What Tidings' sessions over WebSocket have in common: the token, the bind, frames, pings.

use super::{
    ConnectionError,
    websocket::{Message, WebSocket, put_text},
};
use serde::Deserialize;
use std::time::Duration;
use tidings_client::token;
use tidings_protocol::frames::{Attention, Bind, ClientFrame};

/// Longer than any run.
const TOKEN_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// A session that says nothing else says this so often: a third of the server's heartbeat interval.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(10);

/// Of a frame that cannot be read, in an error.
const SHOWN_BYTES: usize = 200;

/// A user's token for the whole run.
pub(crate) fn user_token(token_key: &str, user: &str) -> String {
    token::sign(token_key, user, TOKEN_LIFETIME)
}

/// A bind without a cursor and without pushes, by a session that somebody looks at.
pub(crate) fn bind_of(token: String, device_id: &str) -> Bind {
    Bind {
        token,
        device_id: device_id.into(),
        device_kind: "web".into(),
        app_version: None,
        cursor: None,
        push: false,
        attention: Attention::Foreground,
        compact: false,
    }
}

pub(crate) fn put_frame(out: &mut Vec<u8>, frame: &ClientFrame) {
    // Our own frames always serialize.
    put_text(out, &serde_json::to_vec(frame).unwrap_or_default());
}

pub(crate) fn put_ping(out: &mut Vec<u8>) {
    put_text(out, br#"{"t":"ping"}"#);
}

/// Has a client take what came: each text, and before the first one `None`, when it is to bind. Returns how many bytes were consumed.
pub(crate) fn receive<C, E: From<ConnectionError>>(
    client: &mut C,
    websocket: impl Fn(&mut C) -> &mut WebSocket,
    bytes: &mut [u8],
    out: &mut Vec<u8>,
    mut take: impl FnMut(&mut C, Option<&[u8]>, &mut Vec<u8>) -> Result<(), E>,
) -> Result<usize, E> {
    let mut taken = 0;
    loop {
        let (length, message) = websocket(client).take(&mut bytes[taken..], out)?;
        taken += length;
        match message {
            None => return Ok(taken),
            Some(Message::Opened) => take(client, None, out)?,
            Some(Message::Text(text)) => take(client, Some(&text), out)?,
            Some(Message::Closed(payload)) => return Err(Message::unasked(payload).into()),
            Some(Message::Binary(_)) => {}
        }
    }
}

/// A frame of the server, as far as a client reads it.
pub(crate) fn parse<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T, ConnectionError> {
    serde_json::from_slice(payload).map_err(|error| {
        let shown = String::from_utf8_lossy(&payload[..payload.len().min(SHOWN_BYTES)]);
        ConnectionError::Protocol(format!("{error}: {shown}"))
    })
}
