//! What Tidings' sessions over WebSocket have in common: the token, the bind, frames, pings.

use super::{
    ConnectionError,
    websocket::{Message, WebSocket, put_text},
};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{borrow::Cow, time::Duration};
use tidings_client::token;
use tidings_protocol::frames::{Attention, Bind, ClientFrame};

/// Longer than any run.
const TOKEN_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// A session that says nothing else says this so often: a third of the server's heartbeat interval.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(10);

/// Of a frame that cannot be read, in an error.
const SHOWN_BYTES: usize = 200;

/// A frame of the server, as far as sessions read it whose entries are not verified one by one.
#[derive(Debug, Deserialize)]
pub(crate) struct FrameView<'a> {
    pub(crate) t: &'a str,
    #[serde(rename = "ref")]
    pub(crate) reference: Option<u64>,
    #[serde(borrow)]
    pub(crate) code: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(crate) message: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(crate) cursor: Option<Cow<'a, str>>,
    pub(crate) resume: Option<Resume>,
    pub(crate) offset: Option<usize>,
    #[serde(borrow)]
    pub(crate) text: Option<Cow<'a, str>>,
    #[serde(default)]
    pub(crate) results: Vec<Sent>,
    #[serde(borrow, default)]
    pub(crate) entries: Vec<EntryHead<'a>>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Resume {
    pub(crate) complete: bool,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Sent {
    #[serde(rename = "ref")]
    pub(crate) reference: u64,
    pub(crate) seq: u64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct EntryHead<'a> {
    #[serde(borrow)]
    pub(crate) conversation: Cow<'a, str>,
    pub(crate) seq: u64,
    pub(crate) kind: &'a str,
    #[serde(borrow)]
    pub(crate) body: &'a RawValue,
}

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
