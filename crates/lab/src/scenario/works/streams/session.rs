//! A session of a writer or a reader.

use crate::client_engine::{
    ConnectionError,
    session::{self, FrameView, bind_of, parse, put_frame, user_token},
    websocket::WebSocket,
};
use tidings_protocol::frames::ClientFrame;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Role {
    /// Writes the streams of this number, and of those that follow it in steps of the number of writers.
    Writer(usize),
    /// Reads a stream, as the reader of this number.
    Reader { stream: usize, reader: usize },
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) role: Role,
    pub(super) websocket: WebSocket,
    pub(super) is_live: bool,
    user: String,
}

impl Session {
    pub(super) fn new(role: Role, user: String) -> Self {
        Session { role, websocket: WebSocket::default(), is_live: false, user }
    }

    /// Reads what has come, and gives every frame but the answer to the bind to `take`.
    pub(super) fn receive(
        &mut self,
        bytes: &mut [u8],
        out: &mut Vec<u8>,
        token_key: &str,
        mut take: impl FnMut(Role, &FrameView<'_>),
    ) -> Result<usize, ConnectionError> {
        session::receive(
            self,
            |session| &mut session.websocket,
            bytes,
            out,
            |session, text, out| {
                let Some(text) = text else {
                    put_frame(out, &ClientFrame::Bind(bind_of(user_token(token_key, &session.user), "lab")));
                    return Ok(());
                };
                let frame: FrameView<'_> = parse(text)?;
                match frame.t {
                    "bound" => session.is_live = true,
                    _ => take(session.role, &frame),
                }
                Ok(())
            },
        )
    }
}
