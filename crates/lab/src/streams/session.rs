//! A session of a writer or a reader: its handshake and its frames.

use serde::Deserialize;
use serde_json::value::RawValue;
use std::{borrow::Cow, io, time::Duration};
use tidings_client::{
    nonblocking::NonblockingSocket,
    session::{CONNECT_PATH, SERVER_FRAME_BYTES_MAX, closed_error, random_mask},
    token,
    wire::{parse_response_head, put_upgrade},
};
use tidings_protocol::{
    frames::{Attention, Bind, ClientFrame},
    ws::{Control, Data, OpCode, put_client_frame, take_frame},
};

/// Longer than any run.
const TOKEN_LIFETIME: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Protocol(String),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Role {
    /// Writes the streams of this number, and of those that follow it in steps of the number of writers.
    Writer(usize),
    /// Reads a stream, as the reader of this number.
    Reader { stream: usize, reader: usize },
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Connecting,
    Upgrading,
    Binding,
    Live,
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) socket: NonblockingSocket,
    pub(super) role: Role,
    user: String,
    state: State,
    reply: Vec<u8>,
}

/// A frame of the server, as far as this bench reads it.
#[derive(Debug, Deserialize)]
pub(super) struct Frame<'a> {
    pub(super) t: &'a str,
    #[serde(rename = "ref")]
    pub(super) reference: Option<u64>,
    #[serde(borrow)]
    pub(super) code: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) message: Option<Cow<'a, str>>,
    pub(super) offset: Option<usize>,
    #[serde(borrow)]
    pub(super) text: Option<Cow<'a, str>>,
    #[serde(default)]
    pub(super) results: Vec<Sent>,
    #[serde(borrow, default)]
    pub(super) entries: Vec<EntryView<'a>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Sent {
    #[serde(rename = "ref")]
    pub(super) reference: u64,
    pub(super) seq: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct EntryView<'a> {
    pub(super) kind: &'a str,
    #[serde(borrow)]
    pub(super) body: &'a RawValue,
}

impl Session {
    pub(super) fn new(socket: NonblockingSocket, role: Role, user: String) -> Self {
        Session { socket, role, user, state: State::Connecting, reply: Vec::new() }
    }

    pub(super) fn is_live(&self) -> bool {
        self.state == State::Live
    }

    /// The socket is writable: goes on with the handshake, and writes what waits.
    pub(super) fn write(&mut self) -> Result<(), SessionError> {
        if self.state == State::Connecting && self.socket.stream().peer_addr().is_ok() {
            // Connecting => Upgrading; the rest of the handshake is in `receive`.
            self.state = State::Upgrading;
            put_upgrade(self.socket.out(), CONNECT_PATH);
        }
        Ok(self.socket.flush()?)
    }

    pub(super) fn queue(&mut self, payload: &[u8]) {
        put_client_frame(self.socket.out(), OpCode::Data(Data::Text), payload, random_mask());
    }

    /// Reads what has come, and gives every frame to `take`.
    pub(super) fn read(
        &mut self,
        buffer: &mut Vec<u8>,
        token_key: &str,
        mut take: impl FnMut(Role, Frame<'_>) -> Result<(), SessionError>,
    ) -> Result<(), SessionError> {
        let Session { socket, role, user, state, reply } = self;
        let outcome = socket.read(buffer, |bytes| receive(bytes, *role, user, state, reply, token_key, &mut take))?;
        if !reply.is_empty() {
            socket.out().append(reply);
            socket.flush()?;
        }
        match outcome {
            tidings_client::nonblocking::ReadOutcome::Drained => Ok(()),
            tidings_client::nonblocking::ReadOutcome::Ended => {
                Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())
            }
        }
    }
}

fn receive(
    bytes: &mut [u8],
    role: Role,
    user: &str,
    state: &mut State,
    reply: &mut Vec<u8>,
    token_key: &str,
    take: &mut impl FnMut(Role, Frame<'_>) -> Result<(), SessionError>,
) -> Result<usize, SessionError> {
    let mut taken = 0;
    if *state == State::Upgrading {
        let Some(head) = parse_response_head(bytes).map_err(SessionError::Protocol)? else { return Ok(0) };
        if head.status != 101 {
            return Err(SessionError::Protocol(format!("the upgrade was answered with {}", head.status)));
        }
        taken = head.body_start;
        *state = State::Binding;
        put_bind(reply, user, token_key);
    }
    loop {
        let frame = take_frame(&mut bytes[taken..], false, SERVER_FRAME_BYTES_MAX);
        let Some(frame) = frame.map_err(|error| SessionError::Protocol(error.to_string()))? else { return Ok(taken) };
        let payload = taken + frame.payload.start..taken + frame.payload.end;
        taken = payload.end;
        let payload = &bytes[payload];
        match frame.opcode {
            OpCode::Data(Data::Text) => {
                let frame: Frame<'_> = serde_json::from_slice(payload).map_err(|error| {
                    SessionError::Protocol(format!("{error}: {}", String::from_utf8_lossy(payload)))
                })?;
                match frame.t {
                    "bound" => *state = State::Live,
                    _ => take(role, frame)?,
                }
            }
            OpCode::Control(Control::Ping) => {
                put_client_frame(reply, OpCode::Control(Control::Pong), payload, random_mask());
            }
            OpCode::Control(Control::Close) => return Err(SessionError::Protocol(closed_error(payload).to_string())),
            _ => {}
        }
    }
}

fn put_bind(reply: &mut Vec<u8>, user: &str, token_key: &str) {
    let frame = ClientFrame::Bind(Bind {
        token: token::sign(token_key, user, TOKEN_LIFETIME),
        device_id: "lab".into(),
        device_kind: "web".into(),
        app_version: None,
        cursor: None,
        push: false,
        attention: Attention::Foreground,
    });
    // Our own frames always serialize.
    let payload = serde_json::to_vec(&frame).unwrap_or_default();
    put_client_frame(reply, OpCode::Data(Data::Text), &payload, random_mask());
}
