//! The client's side of WebSocket (RFC 6455) without a socket: the upgrade, messages, pings.

use super::ConnectionError;
use std::borrow::Cow;
use tidings_client::{
    session::{SERVER_FRAME_BYTES_MAX, closed_error, random_mask},
    wire::{parse_response_head, put_upgrade},
};
use tidings_protocol::ws::{Assembly, Control, Data, OpCode, Received, put_client_frame, take_frame};

/// One connection. Between messages it holds no buffer.
#[derive(Debug, Default)]
pub(crate) struct WebSocket {
    /// The server has answered the upgrade.
    is_open: bool,
    has_parts: bool,
    assembly: Assembly,
}

/// What a server has sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    /// The connection is upgraded.
    Opened,
    /// That it is UTF-8 is for the reader to check, who parses it anyway.
    Text(Cow<'a, [u8]>),
    Binary(Cow<'a, [u8]>),
    /// The server closes, with this payload of code and reason.
    Closed(&'a [u8]),
}

impl Message<'_> {
    /// A close that nobody asked for, as an error.
    pub(crate) fn unasked(payload: &[u8]) -> ConnectionError {
        ConnectionError::Protocol(closed_error(payload).to_string())
    }
}

impl WebSocket {
    /// One that has no upgrade: the other end is a bare loop.
    pub(crate) fn without_upgrade() -> Self {
        WebSocket { is_open: true, ..WebSocket::default() }
    }

    /// Begins with the upgrade of `path`; of a connection that was used before, too.
    pub(crate) fn begin(&mut self, path: &str, out: &mut Vec<u8>) {
        *self = WebSocket::default();
        put_upgrade(out, path);
    }

    /// The next message in `bytes`, and how many of them are taken. Pings are answered to `out`.
    pub(crate) fn take<'a>(
        &mut self,
        bytes: &'a mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Option<Message<'a>>), ConnectionError> {
        if !self.is_open {
            let Some(head) = parse_response_head(bytes).map_err(ConnectionError::Protocol)? else {
                return Ok((0, None));
            };
            if head.status != 101 {
                let (status, retry_after) = (head.status, head.retry_after);
                return Err(ConnectionError::NotUpgraded { status, retry_after });
            }
            self.is_open = true;
            return Ok((head.body_start, Some(Message::Opened)));
        }
        let mut taken = 0;
        let protocol = |error: tidings_protocol::ws::FrameError| ConnectionError::Protocol(error.to_string());
        loop {
            let Some(frame) = take_frame(&mut bytes[taken..], false, SERVER_FRAME_BYTES_MAX).map_err(protocol)? else {
                return Ok((taken, None));
            };
            let payload = taken + frame.payload.start..taken + frame.payload.end;
            taken = payload.end;
            if frame.is_final && frame.opcode == OpCode::Data(Data::Text) && !self.has_parts {
                return Ok((taken, Some(Message::Text(Cow::Borrowed(&bytes[payload])))));
            }
            if frame.opcode == OpCode::Control(Control::Close) {
                return Ok((taken, Some(Message::Closed(&bytes[payload]))));
            }
            let received = self.assembly.take(&frame, &bytes[payload.clone()], SERVER_FRAME_BYTES_MAX);
            match received.map_err(protocol)? {
                Received::Part => self.has_parts = true,
                Received::Text(text) => {
                    self.has_parts = false;
                    return Ok((taken, Some(Message::Text(Cow::Owned(text.into_owned().into_bytes())))));
                }
                Received::Binary(data) => {
                    self.has_parts = false;
                    return Ok((taken, Some(Message::Binary(Cow::Owned(data.into_owned())))));
                }
                Received::Ping => {
                    put_client_frame(out, OpCode::Control(Control::Pong), &bytes[payload], random_mask());
                }
                Received::Pong | Received::Close(_) => {}
            }
        }
    }
}

/// Appends a text message, masked.
pub(crate) fn put_text(out: &mut Vec<u8>, payload: &[u8]) {
    put_client_frame(out, OpCode::Data(Data::Text), payload, random_mask());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tidings_protocol::ws::put_server_frame;

    /// Everything that `bytes` brings when they arrive in two reads, cut at every place.
    fn check(bytes: &[u8], expected: &[&str], answers: &[u8]) {
        for cut in 0..=bytes.len() {
            let (mut socket, mut out, mut got) = (WebSocket::default(), Vec::new(), Vec::new());
            socket.begin("/path", &mut Vec::new());
            let (mut kept, mut rest) = (bytes[..cut].to_vec(), &bytes[cut..]);
            loop {
                let (taken, message) = socket.take(&mut kept, &mut out).unwrap();
                let name = message.map(|message| match message {
                    Message::Text(text) => String::from_utf8_lossy(&text).into_owned(),
                    other => format!("{other:?}"),
                });
                kept.drain(..taken);
                match name {
                    Some(name) => got.push(name),
                    None if rest.is_empty() => break,
                    None => kept.extend(std::mem::take(&mut rest)),
                }
            }
            assert_eq!(got, expected, "cut at {cut}");
            // The pong: two bytes of header, four of the mask, and the payload under it.
            let plain: Vec<u8> =
                out[6..].iter().zip(out[2..6].iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
            assert_eq!(plain, answers, "cut at {cut}");
        }
    }

    #[test]
    fn messages_come_whole_however_their_bytes_are_cut() {
        let mut bytes = b"HTTP/1.1 101 Switching Protocols\r\n\r\n".to_vec();
        put_server_frame(&mut bytes, OpCode::Data(Data::Text), b"one");
        put_server_frame(&mut bytes, OpCode::Control(Control::Ping), b"hi");
        // In two fragments.
        bytes.extend_from_slice(b"\x01\x02tw\x80\x01o");
        put_server_frame(&mut bytes, OpCode::Control(Control::Close), b"");
        check(&bytes, &["Opened", "one", "two", "Closed([])"], b"hi");
    }

    #[test]
    fn an_upgrade_that_is_refused_is_an_error() {
        let mut socket = WebSocket::default();
        let refused = socket.take(&mut b"HTTP/1.1 503 No\r\n\r\n".to_vec(), &mut Vec::new()).unwrap_err();
        assert_eq!(refused.to_string(), "the upgrade was answered with 503");
    }
}
