//! A MIOP connection that sends any bytes, for faults that no device should commit.

use std::{io::ErrorKind, net::SocketAddr, time::Duration};
use tidings_client::{
    ClientError,
    device::{DeviceFrame, DeviceSession},
};
use tidings_protocol::miop::{Bind, Frame, VERSION, wants};

pub(crate) struct RawConnection(DeviceSession);

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
    pub(crate) fn connect(listener: SocketAddr, patience: Duration) -> Result<Self, ClientError> {
        DeviceSession::connect_within(listener, patience).map(RawConnection)
    }

    /// Sends as many bytes as the server accepts. A server that has closed already is noticed by [`receive`](Self::receive).
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let _ = self.0.write_bytes(bytes);
    }

    /// Waits for the next frame of the server.
    pub(crate) fn receive(&mut self, patience: Duration) -> Result<ServerAnswer, ClientError> {
        match self.0.next(patience) {
            Ok(Some(DeviceFrame::Bound(_))) => Ok(ServerAnswer::Bound),
            Ok(Some(DeviceFrame::Heartbeat { .. })) => Ok(ServerAnswer::Heartbeat),
            Ok(Some(DeviceFrame::Error { code, .. })) | Err(ClientError::Ended { code, .. }) => {
                Ok(ServerAnswer::Refused(code))
            }
            Ok(Some(_)) => Ok(ServerAnswer::Other),
            Ok(None) => Ok(ServerAnswer::Timeout),
            // It may close before it has read all bytes.
            Err(ClientError::Io(error))
                if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) =>
            {
                Ok(ServerAnswer::Closed)
            }
            Err(error) => Err(error),
        }
    }
}
