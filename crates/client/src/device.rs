//! A blocking MIOP session for tests and commands: one call at a time, in the order of the test.

use crate::ClientError;
use rustls::{ClientConfig, ClientConnection, StreamOwned, pki_types::ServerName};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_protocol::{
    frames::{ClientFrame, ServerFrame},
    miop::{self, Bind, Frame, decode, take_head},
    resume::Resume,
};

/// The longest payload that a server may send (`docs/miop.md`, 2.2).
const SERVER_PAYLOAD_BYTES_MAX: usize = 16 * 1024 * 1024;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// A MIOP connection to a server. It answers nothing by itself: the caller sends heartbeats and acknowledges pushes.
#[derive(Debug)]
pub struct DeviceSession {
    transport: Transport,
    /// Bytes that have arrived and are not read as a frame yet.
    buffer: Vec<u8>,
    /// The server's `Bound` frame, once the session is bound.
    pub bound: Option<DeviceBound>,
    /// The newest chat cursor that the server sent.
    pub cursor: Option<String>,
    /// The heartbeat interval that the server granted last, in seconds.
    pub heartbeat_s: u64,
}

#[derive(Debug)]
enum Transport {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

/// A server's frame that owns its data.
#[derive(Debug, Clone)]
pub enum DeviceFrame {
    /// With an interval, in seconds: the one that holds from now on.
    Heartbeat {
        interval_s: Option<u64>,
    },
    Bound(DeviceBound),
    Push(DevicePush),
    Chat(ServerFrame),
    /// The client must connect again, to `address` if one is given; the server closes.
    Redirect {
        address: Option<String>,
        after_ms: u64,
    },
    /// The server refused a request and the session goes on. A fatal error is [`ClientError::Ended`].
    Error {
        code: String,
        message: String,
        retry: bool,
        retry_after_ms: Option<u64>,
    },
}

/// The server's answer to a bind; its fields are those of [`miop::Bound`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceBound {
    pub version: u64,
    pub session: String,
    pub user: String,
    pub heartbeat_s: u64,
    pub frame_bytes_max: u64,
    pub cursor: Option<String>,
    pub resume: Option<Resume>,
    pub pushes: Option<bool>,
}

/// A push; its fields are those of [`miop::Push`].
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
    ///
    /// # Errors
    /// The connection failed or timed out.
    pub fn connect(address: SocketAddr) -> Result<Self, ClientError> {
        DeviceSession::connect_within(address, CONNECT_TIMEOUT)
    }

    /// The same with a timeout for each step, for callers that can try another server.
    ///
    /// # Errors
    /// The connection failed or timed out.
    pub fn connect_within(address: SocketAddr, timeout: Duration) -> Result<Self, ClientError> {
        Ok(DeviceSession::over(Transport::Plain(connect_socket(address, timeout)?)))
    }

    /// Connects and completes a TLS handshake, without a bind. `name` is the host name that the certificate must have.
    ///
    /// # Errors
    /// The connection or the handshake failed or timed out, or `name` is no host name.
    pub fn connect_securely(address: SocketAddr, config: Arc<ClientConfig>, name: &str) -> Result<Self, ClientError> {
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let session = ClientConnection::new(config, name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(session, connect_socket(address, CONNECT_TIMEOUT)?);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(DeviceSession::over(Transport::Tls(Box::new(stream))))
    }

    /// Connects and binds.
    ///
    /// # Errors
    /// As [`DeviceSession::connect`] and [`DeviceSession::bind`].
    pub fn open(address: SocketAddr, bind: &Bind<'_>) -> Result<Self, ClientError> {
        let mut session = DeviceSession::connect(address)?;
        session.bind(bind)?;
        Ok(session)
    }

    fn over(transport: Transport) -> Self {
        DeviceSession { transport, buffer: Vec::new(), bound: None, cursor: None, heartbeat_s: 0 }
    }

    /// Binds, and waits for the answer.
    ///
    /// # Errors
    /// [`ClientError::Ended`] if the server refused the bind; the connection failed, or no answer came in 30 s.
    pub fn bind(&mut self, bind: &Bind<'_>) -> Result<(), ClientError> {
        self.write(&Frame::Bind(bind.clone()))?;
        match self.next(CONNECT_TIMEOUT)? {
            Some(DeviceFrame::Bound(_)) => Ok(()),
            Some(other) => Err(ClientError::Protocol(format!("a bind was answered with {other:?}"))),
            None => Err(io::Error::from(ErrorKind::TimedOut).into()),
        }
    }

    /// Writes one frame.
    ///
    /// # Errors
    /// The connection failed.
    pub fn write(&mut self, frame: &Frame<'_>) -> Result<(), ClientError> {
        self.write_bytes(&frame.to_bytes())
    }

    /// Writes bytes as they are, for tests of what the server must refuse.
    ///
    /// # Errors
    /// The connection failed.
    pub fn write_bytes(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        self.transport.write_all(bytes)?;
        Ok(self.transport.flush()?)
    }

    /// Sends a heartbeat; the server answers with one.
    ///
    /// # Errors
    /// The connection failed.
    pub fn heartbeat(&mut self) -> Result<(), ClientError> {
        self.write_bytes(&miop::HEARTBEAT)
    }

    /// Proposes another heartbeat interval; the server answers with a heartbeat that carries the one that it grants.
    ///
    /// # Errors
    /// The connection failed.
    pub fn propose_heartbeat(&mut self, interval_s: u64) -> Result<(), ClientError> {
        self.write(&Frame::Heartbeat { interval_s: Some(interval_s) })
    }

    /// Acknowledges these pushes.
    ///
    /// # Errors
    /// The connection failed.
    pub fn acknowledge(&mut self, pushes: &[u64]) -> Result<(), ClientError> {
        self.write(&Frame::Ack { pushes: pushes.to_vec() })
    }

    /// Sends a JSON frame of the WebSocket protocol.
    ///
    /// # Errors
    /// The connection failed.
    pub fn write_chat(&mut self, frame: &ClientFrame) -> Result<(), ClientError> {
        let json = serde_json::to_vec(frame).map_err(ClientError::protocol)?;
        self.write(&Frame::Chat { json: &json })
    }

    /// Ends the session, and waits until the server has closed; frames that still arrive are dropped.
    ///
    /// # Errors
    /// The connection failed, or the server had not closed 30 s after its last frame.
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

    /// The next frame; `None` when no frame has arrived in time. Unknown optional kinds are skipped.
    ///
    /// # Errors
    /// [`ClientError::Ended`] for a fatal error frame, [`ClientError::Protocol`] for bytes that are not MIOP,
    /// [`ClientError::Io`] when the connection failed: with `UnexpectedEof` when the server has closed it.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<DeviceFrame>, ClientError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(head) = take_head(&self.buffer, SERVER_PAYLOAD_BYTES_MAX).map_err(ClientError::protocol)? {
                let end = head.payload.end;
                let frame = owned(decode(head.kind, &self.buffer[head.payload]).map_err(ClientError::protocol)?);
                self.buffer.drain(..end);
                match frame? {
                    None => continue,
                    Some(frame) => return Ok(Some(self.track(frame))),
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.transport.socket().set_read_timeout(Some(left))?;
            let mut part = [0; 16 * 1024];
            match self.transport.read(&mut part) {
                Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
                Ok(count) => self.buffer.extend_from_slice(&part[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads until a frame satisfies `wanted`, dropping others; `None` when no such frame arrived in time.
    ///
    /// # Errors
    /// As [`DeviceSession::next`].
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

    /// Keeps the bound, cursor and interval of a frame for later calls.
    fn track(&mut self, frame: DeviceFrame) -> DeviceFrame {
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

fn connect_socket(address: SocketAddr, timeout: Duration) -> Result<TcpStream, ClientError> {
    let socket = TcpStream::connect_timeout(&address, timeout)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(timeout))?;
    socket.set_write_timeout(Some(timeout))?;
    Ok(socket)
}

/// The frame with data of its own; `None` for a frame to be skipped.
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
            pushes: bound.pushes,
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

impl Transport {
    fn socket(&self) -> &TcpStream {
        match self {
            Transport::Plain(socket) => socket,
            Transport::Tls(stream) => &stream.sock,
        }
    }
}

impl Read for Transport {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(socket) => socket.read(buffer),
            Transport::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Transport {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(socket) => socket.write(bytes),
            Transport::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Transport::Plain(socket) => socket.flush(),
            Transport::Tls(stream) => stream.flush(),
        }
    }
}
