//! One blocking MIOP connection, for saying what no device would.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};
use tidings_protocol::miop::{Bind, Frame, VERSION, decode, take_head, wants};

/// An answer longer than this is none.
const ANSWER_BYTES_MAX: usize = 1 << 20;

pub(crate) struct Caller {
    stream: TcpStream,
    bytes: Vec<u8>,
}

/// What the server said last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Heard {
    Bound,
    Beat,
    /// A refusal with this code.
    Refused(String),
    /// It closed without a word.
    Closed,
    /// Nothing in time.
    Nothing,
    Other,
}

impl std::fmt::Display for Heard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Heard::Refused(code) => f.write_str(code),
            other => f.write_str(&format!("{other:?}").to_lowercase()),
        }
    }
}

/// A bind as the lab's devices write it.
pub(crate) fn bind(token: &str, device_id: &str) -> Vec<u8> {
    Frame::Bind(Bind { version: VERSION, token, device_id, wants: Some(wants::PUSH), ..Bind::default() }).to_bytes()
}

impl Caller {
    pub(crate) fn connect(door: SocketAddr, patience: Duration) -> std::io::Result<Self> {
        let stream = TcpStream::connect_timeout(&door, patience)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Caller { stream, bytes: Vec::new() })
    }

    /// Writes as much as the server takes: it may have closed already, which the answer tells.
    pub(crate) fn say(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// The next thing that the server says.
    pub(crate) fn hear(&mut self, patience: Duration) -> std::io::Result<Heard> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(heard) = self.take()? {
                return Ok(heard);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Heard::Nothing);
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut part = [0; 4096];
            match self.stream.read(&mut part) {
                Ok(0) => return Ok(Heard::Closed),
                Ok(count) => self.bytes.extend_from_slice(&part[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Ok(Heard::Nothing);
                }
                // What we sent was closed upon unread: an end like any other.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(Heard::Closed),
                Err(error) => return Err(error),
            }
        }
    }

    fn take(&mut self) -> std::io::Result<Option<Heard>> {
        let Some(head) = take_head(&self.bytes, ANSWER_BYTES_MAX).map_err(std::io::Error::other)? else {
            return Ok(None);
        };
        let end = head.payload.end;
        let heard = match decode(head.kind, &self.bytes[head.payload]).map_err(std::io::Error::other)? {
            Frame::Bound(_) => Heard::Bound,
            Frame::Heartbeat { .. } => Heard::Beat,
            Frame::Error(error) => Heard::Refused(error.code.to_owned()),
            _ => Heard::Other,
        };
        self.bytes.drain(..end);
        Ok(Some(heard))
    }
}
