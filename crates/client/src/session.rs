//! A blocking WebSocket session for tests and commands: one call at a time, in the order of the test.

use crate::{
    ClientError,
    wire::{parse_response_head, put_upgrade},
};
use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};
use tidings_protocol::{
    frames::{Attention, Bind, Bound, ClientFrame, ServerFrame},
    http::NewMessage,
    ws::{Assembly, Control, Data, OpCode, Received, derive_accept_key, put_client_frame, take_frame},
};

/// The path of the WebSocket upgrade.
pub const CONNECT_PATH: &str = "/v1/connect";
/// The longest frame that is accepted from the server, in bytes; a `messages` frame stays far below.
pub const SERVER_FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// A WebSocket connection to a server. It answers WebSocket pings by itself and nothing else.
#[derive(Debug)]
pub struct Session {
    stream: TcpStream,
    buffer: Vec<u8>,
    assembly: Assembly,
    /// The server's `bound` frame, once the session is bound.
    pub bound: Option<Bound>,
    /// The newest cursor that the server sent.
    pub cursor: Option<String>,
}

impl Session {
    /// Connects and upgrades, without a bind.
    ///
    /// # Errors
    /// The connection failed or timed out, or the server refused the upgrade.
    pub fn connect(address: SocketAddr) -> Result<Self, ClientError> {
        Session::connect_within(address, CONNECT_TIMEOUT)
    }

    /// The same with a timeout for each step, for callers that can try another server.
    ///
    /// # Errors
    /// As [`Session::connect`].
    pub fn connect_within(address: SocketAddr, timeout: Duration) -> Result<Self, ClientError> {
        let mut stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        let mut buffer = Vec::new();
        let key = put_upgrade(&mut buffer, CONNECT_PATH);
        stream.write_all(&buffer)?;
        buffer.clear();
        loop {
            if let Some(head) = parse_response_head(&buffer).map_err(ClientError::Protocol)? {
                if head.status != 101 {
                    return Err(ClientError::Protocol(format!("the upgrade was answered with {}", head.status)));
                }
                if head.accept.is_none_or(|accept| accept != derive_accept_key(key.as_bytes())) {
                    return Err(ClientError::Protocol(
                        "the upgrade was answered with a wrong Sec-WebSocket-Accept".into(),
                    ));
                }
                buffer.drain(..head.body_start);
                return Ok(Session { stream, buffer, assembly: Assembly::default(), bound: None, cursor: None });
            }
            let mut part = [0; 1024];
            match stream.read(&mut part)? {
                0 => return Err(std::io::Error::from(ErrorKind::UnexpectedEof).into()),
                count => buffer.extend_from_slice(&part[..count]),
            }
        }
    }

    /// Connects and binds with this token and device, without pushes.
    ///
    /// # Errors
    /// As [`Session::connect`] and [`Session::bind`].
    pub fn open(address: SocketAddr, token: &str, device_id: &str, cursor: Option<&str>) -> Result<Self, ClientError> {
        let mut session = Session::connect(address)?;
        session.bind(token, device_id, cursor)?;
        Ok(session)
    }

    /// Binds, and returns when the server has answered with `bound`.
    ///
    /// # Errors
    /// [`ClientError::Ended`] if the server refused the bind; the connection failed, or no answer came in 30 s.
    pub fn bind(&mut self, token: &str, device_id: &str, cursor: Option<&str>) -> Result<(), ClientError> {
        self.write(&ClientFrame::Bind(Bind {
            token: token.into(),
            device_id: device_id.into(),
            device_kind: "web".into(),
            app_version: None,
            cursor: cursor.map(str::to_owned),
            push: false,
            attention: Attention::Foreground,
            compact: false,
        }))?;
        match self.next(CONNECT_TIMEOUT)? {
            Some(ServerFrame::Bound(_)) => Ok(()),
            Some(ServerFrame::Error { code, message, retry_after_ms, .. }) => {
                Err(ClientError::Ended { code: code.as_str().into(), message, retry_after_ms })
            }
            Some(other) => Err(ClientError::Protocol(format!("a bind was answered with {other:?}"))),
            None => Err(std::io::Error::from(ErrorKind::TimedOut).into()),
        }
    }

    /// Writes one frame.
    ///
    /// # Errors
    /// The connection failed.
    pub fn write(&mut self, frame: &ClientFrame) -> Result<(), ClientError> {
        let payload = serde_json::to_vec(frame).map_err(ClientError::protocol)?;
        self.write_text(&payload)
    }

    /// Writes any text as a frame, for tests of what the server must refuse.
    ///
    /// # Errors
    /// The connection failed.
    pub fn write_text(&mut self, payload: &[u8]) -> Result<(), ClientError> {
        let mut bytes = Vec::with_capacity(payload.len() + 14);
        put_client_frame(&mut bytes, OpCode::Data(Data::Text), payload, random_mask());
        self.write_bytes(&bytes)
    }

    /// Writes bytes as they are, for tests of what the server must refuse.
    ///
    /// # Errors
    /// The connection failed.
    pub fn write_bytes(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        Ok(self.stream.write_all(bytes)?)
    }

    /// Sends a message to a conversation; the answer comes as a `sent` frame with the same `reference`.
    ///
    /// # Errors
    /// The connection failed.
    pub fn send(&mut self, reference: u64, conversation: &str, message: NewMessage) -> Result<(), ClientError> {
        self.write(&ClientFrame::Send(tidings_protocol::frames::Send {
            reference: Some(reference),
            conversation: Some(conversation.into()),
            to: None,
            message,
        }))
    }

    /// The next frame; `None` when no frame has arrived in time.
    ///
    /// # Errors
    /// [`ClientError::Closed`] if the server sent a close frame; the connection failed, or a frame breaks the protocol.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<ServerFrame>, ClientError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(frame) =
                take_frame(&mut self.buffer, false, SERVER_FRAME_BYTES_MAX).map_err(ClientError::protocol)?
            {
                let end = frame.payload.end;
                let payload = self.buffer[frame.payload.clone()].to_vec();
                self.buffer.drain(..end);
                let received = self.assembly.take(&frame, &payload, SERVER_FRAME_BYTES_MAX);
                match received.map_err(ClientError::protocol)? {
                    Received::Text(text) => return self.read_frame(text.as_bytes()).map(Some),
                    Received::Ping => {
                        let mut pong = Vec::new();
                        put_client_frame(&mut pong, OpCode::Control(Control::Pong), &payload, random_mask());
                        self.write_bytes(&pong)?;
                    }
                    Received::Close(_) => return Err(closed_error(&payload)),
                    Received::Part | Received::Binary(_) | Received::Pong => {}
                }
                continue;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut part = [0; 16 * 1024];
            match self.stream.read(&mut part) {
                Ok(0) => return Err(std::io::Error::from(ErrorKind::UnexpectedEof).into()),
                Ok(count) => self.buffer.extend_from_slice(&part[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads until a frame satisfies `wanted`, dropping others; `None` when no such frame arrived in time.
    ///
    /// # Errors
    /// As [`Session::next`].
    pub fn next_where(
        &mut self,
        timeout: Duration,
        mut wanted: impl FnMut(&ServerFrame) -> bool,
    ) -> Result<Option<ServerFrame>, ClientError> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.next(deadline.saturating_duration_since(Instant::now()))? {
                Some(frame) if wanted(&frame) => return Ok(Some(frame)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    /// Parses a frame, and keeps its `bound` and cursor for later calls.
    fn read_frame(&mut self, payload: &[u8]) -> Result<ServerFrame, ClientError> {
        let frame: ServerFrame = serde_json::from_slice(payload)
            .map_err(|error| ClientError::Protocol(format!("{error}: {}", String::from_utf8_lossy(payload))))?;
        match &frame {
            ServerFrame::Bound(bound) => {
                self.cursor = Some(bound.cursor.clone());
                self.bound = Some(bound.clone());
            }
            ServerFrame::Messages { cursor, .. } => self.cursor = Some(cursor.clone()),
            _ => {}
        }
        Ok(frame)
    }
}

/// The mask of one frame. RFC 6455, 5.3, wants a new and unpredictable one for each frame. Tests gain from that too: a
/// server that unmasks wrongly may still be right for one fixed mask.
pub fn random_mask() -> [u8; 4] {
    rand::random()
}

/// The error for a close frame with this payload.
pub fn closed_error(payload: &[u8]) -> ClientError {
    let code = payload.get(..2).map_or(1005, |code| u16::from_be_bytes([code[0], code[1]]));
    let reason = String::from_utf8_lossy(payload.get(2..).unwrap_or_default()).into_owned();
    ClientError::Closed { code, reason }
}
