//! A blocking MIOP session, one call at a time: what a test of the device door reads like.

use crate::ClientError;
use rustls::{ClientConfig, ClientConnection, StreamOwned, pki_types::ServerName};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_protocol::{
    frames::{ClientFrame, Resume, ServerFrame},
    miop::{self, Bind, Frame, decode, take_head},
};

/// The longest payload that a server may send (`docs/miop.md`, 2.2).
const SERVER_PAYLOAD_BYTES_MAX: usize = 16 * 1024 * 1024;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection to the MIOP door. Nothing is answered behind the caller's back: heartbeats are sent and
/// pushes acknowledged by whoever holds it.
#[derive(Debug)]
pub struct DeviceSession {
    wire: Wire,
    /// What has come and was not read as a frame yet.
    buffer: Vec<u8>,
    /// What `Bound` said, once bound.
    pub bound: Option<DeviceBound>,
    /// The newest chat cursor that was handed over.
    pub cursor: Option<String>,
    /// The heartbeat interval that holds now, in seconds.
    pub heartbeat_s: u64,
}

#[derive(Debug)]
enum Wire {
    Plain(TcpStream),
    Secure(Box<StreamOwned<ClientConnection, TcpStream>>),
}

/// What a server sends, owned.
#[derive(Debug, Clone)]
pub enum DeviceFrame {
    /// With an interval: the one that holds from now on.
    Heartbeat {
        interval_s: Option<u64>,
    },
    Bound(DeviceBound),
    Push(DevicePush),
    Chat(ServerFrame),
    /// Connect again, to `address` if one is given; the server closes.
    Redirect {
        address: Option<String>,
        after_ms: u64,
    },
    /// Something was refused and the session goes on. A fatal one is [`ClientError::Ended`].
    Error {
        code: String,
        message: String,
        retry: bool,
        retry_after_ms: Option<u64>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceBound {
    pub version: u64,
    pub session: String,
    pub user: String,
    pub heartbeat_s: u64,
    pub frame_bytes_max: u64,
    pub cursor: Option<String>,
    pub resume: Option<Resume>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevicePush {
    pub push: u64,
    /// Milliseconds since 1970 UTC.
    pub expires_at: u64,
    pub collapse_key: Option<String>,
    pub priority: u64,
    pub content_type: String,
    pub body: Vec<u8>,
}

impl DeviceSession {
    /// Connects, without a bind.
    pub fn connect(address: SocketAddr) -> Result<Self, ClientError> {
        DeviceSession::connect_within(address, CONNECT_TIMEOUT)
    }

    /// The same for those who have another server to go to: each wait on the way there lasts so long at most.
    pub fn connect_within(address: SocketAddr, timeout: Duration) -> Result<Self, ClientError> {
        Ok(DeviceSession::over(Wire::Plain(socket_to(address, timeout)?)))
    }

    /// Connects and shakes hands by TLS, without a bind. `name` is whom the certificate must name.
    pub fn connect_securely(address: SocketAddr, config: Arc<ClientConfig>, name: &str) -> Result<Self, ClientError> {
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let session = ClientConnection::new(config, name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(session, socket_to(address, CONNECT_TIMEOUT)?);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(DeviceSession::over(Wire::Secure(Box::new(stream))))
    }

    /// Connects and binds.
    pub fn open(address: SocketAddr, bind: &Bind<'_>) -> Result<Self, ClientError> {
        let mut session = DeviceSession::connect(address)?;
        session.bind(bind)?;
        Ok(session)
    }

    fn over(wire: Wire) -> Self {
        DeviceSession { wire, buffer: Vec::new(), bound: None, cursor: None, heartbeat_s: 0 }
    }

    /// Binds, and waits for the answer.
    pub fn bind(&mut self, bind: &Bind<'_>) -> Result<(), ClientError> {
        self.write(&Frame::Bind(bind.clone()))?;
        match self.next(CONNECT_TIMEOUT)? {
            Some(DeviceFrame::Bound(_)) => Ok(()),
            Some(other) => Err(ClientError::Protocol(format!("a bind was answered with {other:?}"))),
            None => Err(io::Error::from(ErrorKind::TimedOut).into()),
        }
    }

    /// Writes one frame.
    pub fn write(&mut self, frame: &Frame<'_>) -> Result<(), ClientError> {
        self.write_bytes(&frame.to_bytes())
    }

    /// Writes bytes as they are, for tests of what the server must refuse.
    pub fn write_bytes(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        self.wire.write_all(bytes)?;
        Ok(self.wire.flush()?)
    }

    /// Says that this side is alive; the server answers with a heartbeat.
    pub fn heartbeat(&mut self) -> Result<(), ClientError> {
        self.write_bytes(&miop::HEARTBEAT)
    }

    /// Asks for another interval; the server's heartbeat says which holds from then on.
    pub fn propose_heartbeat(&mut self, interval_s: u64) -> Result<(), ClientError> {
        self.write(&Frame::Heartbeat { interval_s: Some(interval_s) })
    }

    /// Says that this device has these pushes.
    pub fn acknowledge(&mut self, pushes: &[u64]) -> Result<(), ClientError> {
        self.write(&Frame::Ack { pushes: pushes.to_vec() })
    }

    /// Sends an operation of the WebSocket door.
    pub fn write_chat(&mut self, frame: &ClientFrame) -> Result<(), ClientError> {
        let json = serde_json::to_vec(frame).map_err(ClientError::protocol)?;
        self.write(&Frame::Chat { json: &json })
    }

    /// Ends the session, and waits until the server has closed; what it still sent is thrown away.
    pub fn unbind(mut self, reason: Option<&str>) -> Result<(), ClientError> {
        self.write(&Frame::Unbind { reason })?;
        loop {
            match self.next(CONNECT_TIMEOUT) {
                Ok(Some(_)) => {}
                Ok(None) => return Err(io::Error::from(ErrorKind::TimedOut).into()),
                Err(ClientError::Io(error)) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// The next frame; `None` when none has come in time. Optional kinds are skipped. The server's end
    /// of the connection is an `UnexpectedEof`.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<DeviceFrame>, ClientError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(head) = take_head(&self.buffer, SERVER_PAYLOAD_BYTES_MAX).map_err(ClientError::protocol)? {
                let end = head.payload.end;
                let frame = owned(decode(head.kind, &self.buffer[head.payload]).map_err(ClientError::protocol)?);
                self.buffer.drain(..end);
                match frame? {
                    None => continue,
                    Some(frame) => return Ok(Some(self.note(frame))),
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.wire.socket().set_read_timeout(Some(left))?;
            let mut part = [0; 16 * 1024];
            match self.wire.read(&mut part) {
                Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
                Ok(count) => self.buffer.extend_from_slice(&part[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads until a frame satisfies `wanted`, dropping others; `None` when none did in time.
    pub fn next_where(
        &mut self,
        timeout: Duration,
        mut wanted: impl FnMut(&DeviceFrame) -> bool,
    ) -> Result<Option<DeviceFrame>, ClientError> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.next(deadline.saturating_duration_since(Instant::now()))? {
                Some(frame) if wanted(&frame) => return Ok(Some(frame)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    /// Keeps what later calls need of a frame.
    fn note(&mut self, frame: DeviceFrame) -> DeviceFrame {
        match &frame {
            DeviceFrame::Bound(bound) => {
                self.heartbeat_s = bound.heartbeat_s;
                self.cursor = bound.cursor.clone();
                self.bound = Some(bound.clone());
            }
            DeviceFrame::Heartbeat { interval_s: Some(interval_s) } => self.heartbeat_s = *interval_s,
            DeviceFrame::Chat(ServerFrame::Messages { cursor, .. }) => self.cursor = Some(cursor.clone()),
            _ => {}
        }
        frame
    }
}

fn socket_to(address: SocketAddr, timeout: Duration) -> Result<TcpStream, ClientError> {
    let socket = TcpStream::connect_timeout(&address, timeout)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(timeout))?;
    socket.set_write_timeout(Some(timeout))?;
    Ok(socket)
}

/// The frame as the caller keeps it; `None` for one to be skipped.
fn owned(frame: Frame<'_>) -> Result<Option<DeviceFrame>, ClientError> {
    Ok(Some(match frame {
        Frame::Heartbeat { interval_s } => DeviceFrame::Heartbeat { interval_s },
        Frame::Bound(bound) => DeviceFrame::Bound(DeviceBound {
            version: bound.version,
            session: bound.session.into(),
            user: bound.user.into(),
            heartbeat_s: bound.heartbeat_s,
            frame_bytes_max: bound.frame_bytes_max,
            cursor: bound.cursor.map(str::to_owned),
            resume: bound.resume.map(serde_json::from_slice).transpose().map_err(ClientError::protocol)?,
        }),
        Frame::Push(push) => DeviceFrame::Push(DevicePush {
            push: push.push,
            expires_at: push.expires_at,
            collapse_key: push.collapse_key.map(str::to_owned),
            priority: push.priority,
            content_type: push.content_type.into(),
            body: push.body.to_vec(),
        }),
        Frame::Chat { json } => DeviceFrame::Chat(
            serde_json::from_slice(json)
                .map_err(|error| ClientError::Protocol(format!("{error}: {}", String::from_utf8_lossy(json))))?,
        ),
        Frame::Redirect { address, after_ms } => {
            DeviceFrame::Redirect { address: address.map(str::to_owned), after_ms }
        }
        Frame::Error(error) if error.fatal => {
            return Err(ClientError::Ended {
                code: error.code.into(),
                message: error.message.into(),
                retry_after_ms: error.retry_after_ms,
            });
        }
        Frame::Error(error) => DeviceFrame::Error {
            code: error.code.into(),
            message: error.message.into(),
            retry: error.retry,
            retry_after_ms: error.retry_after_ms,
        },
        Frame::Skipped { .. } => return Ok(None),
        frame @ (Frame::Bind(_) | Frame::Ack { .. } | Frame::Unbind { .. }) => {
            return Err(ClientError::Protocol(format!("a server sent {frame:?}")));
        }
    }))
}

impl Wire {
    fn socket(&self) -> &TcpStream {
        match self {
            Wire::Plain(socket) => socket,
            Wire::Secure(stream) => &stream.sock,
        }
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(socket) => socket.read(buffer),
            Wire::Secure(stream) => stream.read(buffer),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(socket) => socket.write(bytes),
            Wire::Secure(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Wire::Plain(socket) => socket.flush(),
            Wire::Secure(stream) => stream.flush(),
        }
    }
}
