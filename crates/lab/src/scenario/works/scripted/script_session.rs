//! The session of a scripted client, over either protocol.

use crate::{
    client_engine::session::bind_of,
    scenario::script_file::{ExpectFile, ExpectedKind},
};
use serde_json::{Value, value::RawValue};
use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};
use tidings_client::{
    ClientError,
    device::{DeviceFrame, DeviceSession},
    session::Session,
};
use tidings_protocol::{
    entry::{Entry, EntryKind},
    frames::{Bind, ClientFrame, Send, ServerFrame},
    http::NewMessage,
    miop,
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A session without anything to say sends a heartbeat this often.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// What a scripted client is sent.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Received {
    Message {
        from: String,
        text: String,
    },
    Push {
        number: u64,
        text: String,
    },
    /// The answer to the send with this reference.
    Sent(u64),
    Refused {
        reference: Option<u64>,
        code: String,
    },
}

impl std::fmt::Display for Received {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Received::Message { from, text } => write!(f, "a message {text:?} from {from}"),
            Received::Push { text, .. } => write!(f, "a push {text:?}"),
            Received::Sent(reference) => write!(f, "the answer to send {reference}"),
            Received::Refused { code, .. } => write!(f, "refused with {code}"),
        }
    }
}

impl Received {
    /// What a message or push says.
    pub(super) fn text(self) -> Option<String> {
        match self {
            Received::Message { text, .. } | Received::Push { text, .. } => Some(text),
            Received::Sent(_) | Received::Refused { .. } => None,
        }
    }

    pub(super) fn is_expected(&self, expected: &ExpectFile) -> bool {
        let text = match (self, expected.kind) {
            (Received::Message { text, .. }, ExpectedKind::Message) => text,
            (Received::Push { text, .. }, ExpectedKind::Push) => text,
            _ => return false,
        };
        expected.body.as_ref().is_none_or(|body| body == text)
    }
}

pub(super) struct ScriptSession {
    transport: Transport,
    heartbeat_at: Instant,
}

enum Transport {
    WebSocket(Box<Session>),
    Device(Box<DeviceSession>),
}

impl ScriptSession {
    /// Connects and binds, with pushes.
    pub(super) fn open(
        address: SocketAddr,
        over_websocket: bool,
        token: &str,
        cursor: Option<&str>,
    ) -> Result<Self, ClientError> {
        let transport = if over_websocket {
            let mut session = Session::connect_within(address, CONNECT_TIMEOUT)?;
            let bind = Bind { cursor: cursor.map(str::to_owned), push: true, ..bind_of(token.into(), "lab") };
            session.write(&ClientFrame::Bind(bind))?;
            match session.next(CONNECT_TIMEOUT)? {
                Some(ServerFrame::Bound(_)) => {}
                other => return Err(ClientError::Protocol(format!("a bind was answered with {other:?}"))),
            }
            Transport::WebSocket(Box::new(session))
        } else {
            let mut session = DeviceSession::connect_within(address, CONNECT_TIMEOUT)?;
            session.bind(&miop::Bind {
                version: miop::VERSION,
                token,
                device_id: "lab",
                device_kind: None,
                app_version: None,
                cursor,
                wants: None,
                heartbeat_s: None,
            })?;
            Transport::Device(Box::new(session))
        };
        Ok(ScriptSession { transport, heartbeat_at: Instant::now() + HEARTBEAT })
    }

    /// The newest cursor that the server has sent.
    pub(super) fn cursor(self) -> Option<String> {
        match self.transport {
            Transport::WebSocket(session) => session.cursor,
            Transport::Device(session) => session.cursor,
        }
    }

    pub(super) fn acknowledge(&mut self, pushes: &[u64]) -> Result<(), ClientError> {
        match &mut self.transport {
            Transport::WebSocket(session) => session.write(&ClientFrame::Ack { pushes: pushes.to_vec() }),
            Transport::Device(session) => session.acknowledge(pushes),
        }
    }

    /// Sends to a user (`Ok`) or to a conversation (`Err`).
    pub(super) fn send(
        &mut self,
        reference: u64,
        address: Result<String, String>,
        client_msg_id: &str,
        body: Box<RawValue>,
    ) -> Result<(), ClientError> {
        let frame = ClientFrame::Send(Send {
            reference: Some(reference),
            conversation: address.as_ref().err().cloned(),
            to: address.ok(),
            message: NewMessage {
                client_msg_id: Some(client_msg_id.into()),
                content_type: "text".into(),
                body,
                mentions: Vec::new(),
                silent: false,
                skip_push: false,
                reply_to: None,
                expires: None,
            },
        });
        match &mut self.transport {
            Transport::WebSocket(session) => session.write(&frame),
            Transport::Device(session) => session.write_chat(&frame),
        }
    }

    /// What one frame brings, if one comes in time; sends a heartbeat when one is due.
    pub(super) fn next(&mut self, within: Duration) -> Result<Vec<Received>, ClientError> {
        let now = Instant::now();
        if now >= self.heartbeat_at {
            self.heartbeat_at = now + HEARTBEAT;
            match &mut self.transport {
                Transport::WebSocket(session) => session.write(&ClientFrame::Ping { reference: None })?,
                Transport::Device(session) => session.heartbeat()?,
            }
        }
        let within = within.min(self.heartbeat_at - now);
        match &mut self.transport {
            Transport::WebSocket(session) => Ok(session.next(within)?.map(of_frame).unwrap_or_default()),
            Transport::Device(session) => Ok(match session.next(within)? {
                Some(DeviceFrame::Chat(frame)) => of_frame(frame),
                Some(DeviceFrame::Push(push)) => {
                    vec![Received::Push { number: push.push, text: text_of(&push.body) }]
                }
                Some(DeviceFrame::Error { code, .. }) => vec![Received::Refused { reference: None, code }],
                _ => Vec::new(),
            }),
        }
    }
}

fn text_of(body: &[u8]) -> String {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    value["text"].as_str().unwrap_or_default().to_owned()
}

fn of_frame(frame: ServerFrame) -> Vec<Received> {
    match frame {
        ServerFrame::Messages { entries, .. } => entries.iter().filter_map(of_entry).collect(),
        ServerFrame::Sent { results } => {
            results.into_iter().filter_map(|sent| sent.reference).map(Received::Sent).collect()
        }
        ServerFrame::Push(push) => {
            vec![Received::Push { number: push.push, text: text_of(push.body.get().as_bytes()) }]
        }
        ServerFrame::Error { reference, code, .. } => {
            vec![Received::Refused { reference, code: code.as_str().to_owned() }]
        }
        _ => Vec::new(),
    }
}

fn of_entry(entry: &Entry) -> Option<Received> {
    let from = entry.from.clone().unwrap_or_default();
    (entry.kind == EntryKind::Message).then(|| Received::Message { from, text: text_of(entry.body.get().as_bytes()) })
}
