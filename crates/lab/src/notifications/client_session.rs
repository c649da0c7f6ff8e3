//! One user's session: its handshake, what it hears, and what it says.

use super::participants::AckHabit;
use crate::client_engine::{
    ConnectionError,
    session::{FrameView, bind_of, parse, put_frame, user_token},
    websocket::WebSocket,
};
use tidings_protocol::frames::{Attention, Bind, ClientFrame};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Closed,
    /// Connecting, or upgrading.
    Opening,
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
}

#[derive(Debug, Default)]
pub(super) struct ClientSession {
    pub(super) websocket: WebSocket,
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

impl ClientSession {
    pub(super) fn new(habit: AckHabit) -> ClientSession {
        ClientSession { habit, ..ClientSession::default() }
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

    pub(super) fn put_bind(&mut self, user: &str, token_key: &str, out: &mut Vec<u8>) {
        (self.phase, self.notified_looks) = (Phase::Binding, self.looks);
        let frame = ClientFrame::Bind(Bind {
            cursor: self.cursor.clone(),
            attention: if self.looks { Attention::Foreground } else { Attention::Background },
            ..bind_of(user_token(token_key, user), "app")
        });
        put_frame(out, &frame);
    }

    /// What a frame says, if this bench has use for it.
    pub(super) fn read(&mut self, payload: &[u8]) -> Result<Option<ServerAnswer>, ConnectionError> {
        Ok(hear(parse(payload)?, &mut self.cursor))
    }
}

fn hear(frame: FrameView<'_>, cursor: &mut Option<String>) -> Option<ServerAnswer> {
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
