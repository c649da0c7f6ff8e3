//! One user's session: its handshake, what it hears, and what it says.

use super::cast::AckHabit;
use serde::Deserialize;
use std::{borrow::Cow, io, time::Duration};
use tidings_client::{
    nonblocking::{NonblockingSocket, ReadOutcome},
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Closed,
    Connecting,
    Upgrading,
    Binding,
    Live,
    /// Goes away; the server is to close the connection.
    Unbinding,
}

/// What a frame of the server says, as far as this bench reads it.
#[derive(Debug)]
pub(super) enum ServerAnswer {
    Bound {
        is_complete: bool,
    },
    /// Conversation and `seq` of each entry.
    Entries(Vec<(String, u64)>),
    Ok {
        reference: Option<u64>,
    },
    Error {
        code: String,
        message: String,
    },
    /// The server has closed the session, as it was asked to.
    Closed,
}

#[derive(Debug)]
pub(super) struct ClientSession {
    pub(super) socket: Option<NonblockingSocket>,
    pub(super) phase: Phase,
    pub(super) habit: AckHabit,
    /// Whether the user is to have a session, and whether somebody is to look at it.
    pub(super) is_wanted: bool,
    pub(super) looks: bool,
    /// What the server was notified last of `looks`.
    pub(super) notified_looks: bool,
    /// The reference of a change of attention that is not answered yet.
    pub(super) asked: Option<u64>,
    pub(super) cursor: Option<String>,
    /// No connection is tried before.
    pub(super) retry_at: u64,
    /// How many connections there were.
    pub(super) connection: u32,
    /// When the client is to say what it has stored, and since when it has something to say.
    pub(super) stored_due: Option<u64>,
    pub(super) unstored_since: u64,
}

#[derive(Deserialize)]
struct Frame<'a> {
    t: &'a str,
    #[serde(rename = "ref")]
    reference: Option<u64>,
    #[serde(borrow)]
    cursor: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    entries: Vec<EntryHead<'a>>,
    #[serde(borrow)]
    code: Option<Cow<'a, str>>,
    #[serde(borrow)]
    message: Option<Cow<'a, str>>,
    resume: Option<Resume>,
}

#[derive(Deserialize)]
struct EntryHead<'a> {
    #[serde(borrow)]
    conversation: Cow<'a, str>,
    seq: u64,
}

#[derive(Deserialize)]
struct Resume {
    complete: bool,
}

impl ClientSession {
    pub(super) fn new(habit: AckHabit) -> ClientSession {
        ClientSession {
            socket: None,
            phase: Phase::Closed,
            habit,
            is_wanted: false,
            looks: false,
            notified_looks: false,
            asked: None,
            cursor: None,
            retry_at: 0,
            connection: 0,
            stored_due: None,
            unstored_since: 0,
        }
    }

    /// Whether the session is as it is wanted, the server knows it, and nothing is left to be said.
    pub(super) fn is_settled(&self) -> bool {
        if self.is_wanted {
            self.phase == Phase::Live
                && self.asked.is_none()
                && self.notified_looks == self.looks
                && self.stored_due.is_none()
        } else {
            self.phase == Phase::Closed
        }
    }

    pub(super) fn queue(&mut self, payload: &[u8]) {
        if let Some(socket) = &mut self.socket {
            put_client_frame(socket.out(), OpCode::Data(Data::Text), payload, random_mask());
        }
    }

    /// The socket is writable: goes on with the handshake, and writes what waits.
    pub(super) fn write(&mut self) -> Result<(), SessionError> {
        let Some(socket) = &mut self.socket else { return Ok(()) };
        if self.phase == Phase::Connecting && socket.stream().peer_addr().is_ok() {
            self.phase = Phase::Upgrading;
            put_upgrade(socket.out(), CONNECT_PATH);
        }
        Ok(socket.flush()?)
    }

    /// Reads what has come, and whether the connection has ended.
    pub(super) fn read(&mut self, buffer: &mut Vec<u8>) -> Result<(Vec<ServerAnswer>, bool), SessionError> {
        let Some(socket) = &mut self.socket else { return Ok((Vec::new(), false)) };
        let (mut heard, mut pongs) = (Vec::new(), Vec::new());
        let (phase, cursor) = (&mut self.phase, &mut self.cursor);
        let outcome = socket.read(buffer, |bytes| take_bytes(bytes, phase, cursor, &mut heard, &mut pongs))?;
        if !pongs.is_empty() {
            socket.out().append(&mut pongs);
        }
        Ok((heard, outcome == ReadOutcome::Ended))
    }

    pub(super) fn queue_bind(&mut self, user: &str, token_key: &str) {
        self.notified_looks = self.looks;
        let frame = ClientFrame::Bind(Bind {
            token: token::sign(token_key, user, TOKEN_LIFETIME),
            device_id: "app".into(),
            device_kind: "web".into(),
            app_version: None,
            cursor: self.cursor.clone(),
            push: false,
            attention: if self.looks { Attention::Foreground } else { Attention::Background },
        });
        // Our own frames always serialize.
        self.queue(&serde_json::to_vec(&frame).unwrap_or_default());
    }
}

fn take_bytes(
    bytes: &mut [u8],
    phase: &mut Phase,
    cursor: &mut Option<String>,
    heard: &mut Vec<ServerAnswer>,
    pongs: &mut Vec<u8>,
) -> Result<usize, SessionError> {
    let mut taken = 0;
    if *phase == Phase::Upgrading {
        let Some(head) = parse_response_head(bytes).map_err(SessionError::Protocol)? else { return Ok(0) };
        if head.status != 101 {
            return Err(SessionError::Protocol(format!("the upgrade was answered with {}", head.status)));
        }
        taken = head.body_start;
        // The loop writes the bind.
        *phase = Phase::Binding;
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
                heard.extend(hear(frame, cursor));
            }
            OpCode::Control(Control::Ping) => {
                put_client_frame(pongs, OpCode::Control(Control::Pong), payload, random_mask());
            }
            OpCode::Control(Control::Close) if *phase == Phase::Unbinding => heard.push(ServerAnswer::Closed),
            OpCode::Control(Control::Close) => return Err(SessionError::Protocol(closed_error(payload).to_string())),
            _ => {}
        }
    }
}

fn hear(frame: Frame<'_>, cursor: &mut Option<String>) -> Option<ServerAnswer> {
    if let Some(newer) = &frame.cursor {
        *cursor = Some(newer.clone().into_owned());
    }
    match frame.t {
        "bound" => Some(ServerAnswer::Bound { is_complete: frame.resume.is_none_or(|resume| resume.complete) }),
        "messages" => {
            let entries = frame.entries.into_iter().map(|entry| (entry.conversation.into_owned(), entry.seq));
            Some(ServerAnswer::Entries(entries.collect()))
        }
        "ok" => Some(ServerAnswer::Ok { reference: frame.reference }),
        "error" => Some(ServerAnswer::Error {
            code: frame.code.unwrap_or_default().into_owned(),
            message: frame.message.unwrap_or_default().into_owned(),
        }),
        _ => None,
    }
}
