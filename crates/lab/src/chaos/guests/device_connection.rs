//! A device's connection, over MIOP or WebSocket.

use super::device_handle::{DeviceHandle, GuestConfig, GuestProtocol};
use crate::client_engine::session::user_token;
use std::{io::ErrorKind, time::Duration};
use tidings_client::{
    ClientError,
    device::{DeviceFrame, DeviceSession},
    session::Session,
};
use tidings_protocol::{
    frames::{Attention, Bind, ClientFrame, ServerFrame},
    miop::{self, Frame, wants},
};

/// The longest wait for a connection: another node may answer sooner.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest wait for the answer to a bind; a node that cannot reach the leader refuses the bind itself.
const BIND_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) enum DeviceConnection {
    Miop(DeviceSession),
    WebSocket(Session),
}

/// What a device received.
pub(super) enum DeviceEvent {
    Push {
        id: u64,
        body: Vec<u8>,
    },
    /// The device must connect to another node.
    Reconnect,
    /// The session is bound, or bound anew, with or without pushes.
    Bound {
        pushes: bool,
    },
    /// A refusal, with its code.
    Refused(String),
    /// Users whom the device watches, and whether they are online.
    Presence(Vec<(String, bool)>),
    Other,
}

impl DeviceConnection {
    /// Connects and binds; also returns whether the session was bound with pushes.
    pub(super) fn open(handle: &DeviceHandle, config: &GuestConfig, node: usize) -> Result<(Self, bool), ClientError> {
        let token = user_token(&config.token_key, &handle.user);
        let (http, miop) = config.nodes[node];
        let mut connection = match handle.via {
            GuestProtocol::Miop { chats } => {
                let mut session = DeviceSession::connect_within(miop, CONNECT_TIMEOUT)?;
                session.write(&Frame::Bind(miop::Bind {
                    version: 1,
                    token: &token,
                    device_id: handle.device,
                    device_kind: Some(handle.device),
                    app_version: None,
                    cursor: None,
                    wants: Some(if chats { wants::PUSH | wants::CHAT } else { wants::PUSH }),
                    heartbeat_s: None,
                }))?;
                DeviceConnection::Miop(session)
            }
            GuestProtocol::WebSocket => {
                let mut session = Session::connect_within(http, CONNECT_TIMEOUT)?;
                session.write(&ClientFrame::Bind(Bind {
                    token,
                    device_id: handle.device.into(),
                    device_kind: handle.device.into(),
                    app_version: None,
                    cursor: None,
                    push: true,
                    attention: Attention::Foreground,
                }))?;
                DeviceConnection::WebSocket(session)
            }
        };
        match connection.next(BIND_TIMEOUT)? {
            Some(DeviceEvent::Bound { pushes }) => Ok((connection, pushes)),
            Some(answer) => {
                let code = match answer {
                    DeviceEvent::Refused(code) => code,
                    DeviceEvent::Reconnect => "told to connect again".to_owned(),
                    _ => return Err(ClientError::Protocol("a bind was answered with something else".into())),
                };
                Err(ClientError::Ended { code, message: "not bound".into(), retry_after_ms: None })
            }
            None => Err(std::io::Error::from(ErrorKind::TimedOut).into()),
        }
    }

    /// The next event; `None` if there was none in time.
    pub(super) fn next(&mut self, timeout: Duration) -> Result<Option<DeviceEvent>, ClientError> {
        match self {
            DeviceConnection::Miop(session) => Ok(session.next(timeout)?.map(|frame| match frame {
                DeviceFrame::Push(push) => DeviceEvent::Push { id: push.push, body: push.body },
                DeviceFrame::Redirect { .. } => DeviceEvent::Reconnect,
                DeviceFrame::Bound(_) => DeviceEvent::Bound { pushes: true },
                DeviceFrame::Error { code, .. } => DeviceEvent::Refused(code),
                _ => DeviceEvent::Other,
            })),
            DeviceConnection::WebSocket(session) => Ok(session.next(timeout)?.map(|frame| match frame {
                ServerFrame::Push(push) => {
                    DeviceEvent::Push { id: push.push, body: push.body.get().as_bytes().to_vec() }
                }
                ServerFrame::Presence { changes, .. } => {
                    DeviceEvent::Presence(changes.into_iter().map(|change| (change.user, change.online)).collect())
                }
                ServerFrame::Reconnect { .. } => DeviceEvent::Reconnect,
                ServerFrame::Error { code, .. } => DeviceEvent::Refused(code.as_str().to_owned()),
                ServerFrame::Bound(bound) => DeviceEvent::Bound { pushes: bound.pushes != Some(false) },
                _ => DeviceEvent::Other,
            })),
        }
    }

    /// Sends a heartbeat, which the server answers.
    pub(super) fn send_heartbeat(&mut self) -> Result<(), ClientError> {
        match self {
            DeviceConnection::Miop(session) => session.heartbeat(),
            DeviceConnection::WebSocket(session) => session.write(&ClientFrame::Ping { reference: None }),
        }
    }

    /// Watches the presence of all guests, over WebSocket. Devices over MIOP do not watch: some are bound for pushes alone.
    pub(super) fn watch(&mut self, config: &GuestConfig) -> Result<(), ClientError> {
        match self {
            DeviceConnection::Miop(_) => Ok(()),
            DeviceConnection::WebSocket(session) => session.write(&ClientFrame::WatchPresence {
                reference: None,
                conversation: Some(config.group.clone()),
                users: config.guests.clone(),
            }),
        }
    }

    pub(super) fn acknowledge(&mut self, id: u64) -> Result<(), ClientError> {
        match self {
            DeviceConnection::Miop(session) => session.acknowledge(&[id]),
            DeviceConnection::WebSocket(session) => session.write(&ClientFrame::Ack { pushes: vec![id] }),
        }
    }

    /// Closes the connection, with an unbind or without one.
    pub(super) fn close(mut self, with_unbind: bool) {
        if with_unbind {
            let _ = match &mut self {
                DeviceConnection::Miop(session) => session.write(&Frame::Unbind { reason: None }),
                DeviceConnection::WebSocket(session) => session.write(&ClientFrame::Unbind),
            };
        }
    }
}
