//! One blocking MIOP connection that sends any bytes, for faults that no device should commit.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};
use tidings_protocol::miop::{Bind, Frame, VERSION, decode, take_head, wants};

/// The longest frame that is accepted from the server.
const ANSWER_BYTES_MAX: usize = 1 << 20;

pub(crate) struct RawConnection {
    stream: TcpStream,
    bytes: Vec<u8>,
}

/// The server's answer, or its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ServerAnswer {
    Bound,
    Heartbeat,
    /// A refusal with this code.
    Refused(String),
    /// The server closed the connection without a frame.
    Closed,
    /// No answer came in time.
    Timeout,
    Other,
}

impl std::fmt::Display for ServerAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ServerAnswer::Refused(code) => f.write_str(code),
            other => f.write_str(&format!("{other:?}").to_lowercase()),
        }
    }
}

/// A bind frame like those of the lab's devices.
pub(crate) fn bind_frame(token: &str, device_id: &str) -> Vec<u8> {
    Frame::Bind(Bind { version: VERSION, token, device_id, wants: Some(wants::PUSH), ..Bind::default() }).to_bytes()
}

impl RawConnection {
    pub(crate) fn connect(listener: SocketAddr, patience: Duration) -> std::io::Result<Self> {
        let stream = TcpStream::connect_timeout(&listener, patience)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(patience))?;
        Ok(RawConnection { stream, bytes: Vec::new() })
    }

    /// Sends as many bytes as the server accepts. A server that has closed already is noticed by [`receive`](Self::receive).
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Waits for the next frame of the server.
    pub(crate) fn receive(&mut self, patience: Duration) -> std::io::Result<ServerAnswer> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(answer) = self.take_answer()? {
                return Ok(answer);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(ServerAnswer::Timeout);
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut part = [0; 4096];
            match self.stream.read(&mut part) {
                Ok(0) => return Ok(ServerAnswer::Closed),
                Ok(count) => self.bytes.extend_from_slice(&part[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Ok(ServerAnswer::Timeout);
                }
                // The server closed before it had read all bytes.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(ServerAnswer::Closed),
                Err(error) => return Err(error),
            }
        }
    }

    fn take_answer(&mut self) -> std::io::Result<Option<ServerAnswer>> {
        let Some(head) = take_head(&self.bytes, ANSWER_BYTES_MAX).map_err(std::io::Error::other)? else {
            return Ok(None);
        };
        let end = head.payload.end;
        let answer = match decode(head.kind, &self.bytes[head.payload]).map_err(std::io::Error::other)? {
            Frame::Bound(_) => ServerAnswer::Bound,
            Frame::Heartbeat { .. } => ServerAnswer::Heartbeat,
            Frame::Error(error) => ServerAnswer::Refused(error.code.to_owned()),
            _ => ServerAnswer::Other,
        };
        self.bytes.drain(..end);
        Ok(Some(answer))
    }
}
