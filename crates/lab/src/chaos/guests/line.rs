//! A device's connection, over MIOP or as a WebSocket session that is a device.

use super::slot::{Doors, Slot, Via};
use std::{io::ErrorKind, time::Duration};
use tidings_client::{
    ClientError,
    device::{DeviceFrame, DeviceSession},
    session::Session,
    token,
};
use tidings_protocol::{
    frames::{Bind, ClientFrame, ServerFrame},
    miop::{self, Frame, wants},
};

/// Longer than any run.
const TOKEN_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Another node may have an answer sooner than one that has none after this.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A node that has nobody to ask says so itself.
const BIND_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) enum Line {
    Miop(DeviceSession),
    WebSocket(Session),
}

/// What came.
pub(super) enum News {
    Push {
        id: u64,
        body: Vec<u8>,
    },
    /// Connect elsewhere.
    Leave,
    /// Bound anew, with or without pushes.
    Bound {
        pushes: bool,
    },
    /// Something was refused, by its code.
    Refused(String),
    /// Users whom it watches, and whether they are online.
    Presence(Vec<(String, bool)>),
    Other,
}

impl Line {
    /// Connects and binds. Also: whether pushes come to it.
    pub(super) fn open(slot: &Slot, doors: &Doors, node: usize) -> Result<(Self, bool), ClientError> {
        let token = token::sign(&doors.token_key, &slot.user, TOKEN_LIFETIME);
        let (http, miop) = doors.nodes[node];
        let mut line = match slot.via {
            Via::Miop { chats } => {
                let mut session = DeviceSession::connect_within(miop, CONNECT_TIMEOUT)?;
                session.write(&Frame::Bind(miop::Bind {
                    version: 1,
                    token: &token,
                    device_id: slot.device,
                    device_kind: Some(slot.device),
                    app_version: None,
                    cursor: None,
                    wants: Some(if chats { wants::PUSH | wants::CHAT } else { wants::PUSH }),
                    heartbeat_s: None,
                }))?;
                Line::Miop(session)
            }
            Via::WebSocket => {
                let mut session = Session::connect_within(http, CONNECT_TIMEOUT)?;
                session.write(&ClientFrame::Bind(Bind {
                    token,
                    device_id: slot.device.into(),
                    device_kind: slot.device.into(),
                    app_version: None,
                    cursor: None,
                    push: true,
                }))?;
                Line::WebSocket(session)
            }
        };
        match line.next(BIND_TIMEOUT)? {
            Some(News::Bound { pushes }) => Ok((line, pushes)),
            Some(answer) => {
                let code = match answer {
                    News::Refused(code) => code,
                    News::Leave => "told to connect again".to_owned(),
                    _ => return Err(ClientError::Protocol("a bind was answered with something else".into())),
                };
                Err(ClientError::Ended { code, message: "not bound".into(), retry_after_ms: None })
            }
            None => Err(std::io::Error::from(ErrorKind::TimedOut).into()),
        }
    }

    /// What comes next; none if nothing has in time.
    pub(super) fn next(&mut self, timeout: Duration) -> Result<Option<News>, ClientError> {
        match self {
            Line::Miop(session) => Ok(session.next(timeout)?.map(|frame| match frame {
                DeviceFrame::Push(push) => News::Push { id: push.push, body: push.body },
                DeviceFrame::Redirect { .. } => News::Leave,
                DeviceFrame::Bound(_) => News::Bound { pushes: true },
                DeviceFrame::Error { code, .. } => News::Refused(code),
                _ => News::Other,
            })),
            Line::WebSocket(session) => Ok(session.next(timeout)?.map(|frame| match frame {
                ServerFrame::Push(push) => News::Push { id: push.push, body: push.body.get().as_bytes().to_vec() },
                ServerFrame::Presence { changes, .. } => {
                    News::Presence(changes.into_iter().map(|change| (change.user, change.online)).collect())
                }
                ServerFrame::Reconnect { .. } => News::Leave,
                ServerFrame::Error { code, .. } => News::Refused(code.as_str().to_owned()),
                ServerFrame::Bound(bound) => News::Bound { pushes: bound.pushes != Some(false) },
                _ => News::Other,
            })),
        }
    }

    /// Says that this side is alive, and asks whether the other is.
    pub(super) fn beat(&mut self) -> Result<(), ClientError> {
        match self {
            Line::Miop(session) => session.heartbeat(),
            Line::WebSocket(session) => session.write(&ClientFrame::Ping { reference: None }),
        }
    }

    /// Asks to be told how all guests are. Devices over MIOP are not asked to watch: some want pushes alone.
    pub(super) fn watch(&mut self, doors: &Doors) -> Result<(), ClientError> {
        match self {
            Line::Miop(_) => Ok(()),
            Line::WebSocket(session) => session.write(&ClientFrame::WatchPresence {
                reference: None,
                conversation: Some(doors.group.clone()),
                users: doors.guests.clone(),
            }),
        }
    }

    pub(super) fn acknowledge(&mut self, id: u64) -> Result<(), ClientError> {
        match self {
            Line::Miop(session) => session.acknowledge(&[id]),
            Line::WebSocket(session) => session.write(&ClientFrame::Ack { pushes: vec![id] }),
        }
    }

    /// Ends the session, with a word or without one.
    pub(super) fn end(mut self, politely: bool) {
        if politely {
            let _ = match &mut self {
                Line::Miop(session) => session.write(&Frame::Unbind { reason: None }),
                Line::WebSocket(session) => session.write(&ClientFrame::Unbind),
            };
        }
    }
}
