//! One connection of the worker, and how it reads what arrives: batches of entries for receivers, answers for senders.

use super::shared_state::SharedState;
use crate::client_engine::{
    self,
    http::parse_answer,
    session::{self, Sent, bind_of, parse, put_frame, user_token},
    websocket::WebSocket,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{collections::VecDeque, io};
use tidings_protocol::{
    frames::{Bind, ClientFrame, ServerFrame},
    http::Problem,
};

/// Why a connection must be closed and opened again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("{0}")]
    Broken(#[from] client_engine::ConnectionError),
    /// The server refused a send with a retryable code, and there are other servers.
    #[error("refused for the moment")]
    Refused,
    #[error("received nothing for too long")]
    SilenceTimeout,
    /// The connection is moved back to its first server.
    #[error("rebalanced")]
    Rebalanced,
}

impl From<io::Error> for ConnectionError {
    fn from(error: io::Error) -> Self {
        ConnectionError::Broken(error.into())
    }
}

impl ConnectionError {
    fn protocol(why: String) -> Self {
        ConnectionError::Broken(client_engine::ConnectionError::Protocol(why))
    }
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) client: Client,
    /// The index of the server that the connection is to.
    pub(crate) server: usize,
    /// When data arrived last, or a request was sent on an idle connection: silence counts from here.
    pub(crate) last_receive_at: u64,
}

/// The client's side of a connection: its role and the state of its protocol.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) role: Role,
    pub(crate) state: ConnectionState,
    pub(crate) websocket: WebSocket,
    /// The newest cursor; empty before the first one.
    pub(crate) cursor: Vec<u8>,
    /// When the session was bound, and when it asked for history last.
    pub(crate) bound_at: u64,
    pub(crate) history_asked_at: u64,
    /// The next batch is what the session missed before it was bound.
    pub(crate) is_resuming: bool,
}

#[derive(Debug)]
pub(crate) enum Role {
    /// Receives every entry of its conversation. `operations`: those of the mix that it has sent and that are not answered.
    Receiver { index: usize, user: String, operations: Vec<u32> },
    /// Sends over HTTP, one request at a time.
    HttpSender { in_flight: Vec<u32> },
    /// Sends over a session of its own, several at a time. Its own deliveries are not verified.
    WsSender { user: String, in_flight: VecDeque<u32> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    /// Closed, and not yet opened again.
    Closed,
    /// Connecting, or upgrading.
    Opening,
    Binding,
    Live,
}

impl Client {
    pub(crate) fn new(role: Role) -> Self {
        Client {
            role,
            state: ConnectionState::Opening,
            cursor: Vec::new(),
            websocket: WebSocket::default(),
            bound_at: 0,
            history_asked_at: 0,
            is_resuming: false,
        }
    }

    fn user(&self) -> &str {
        match &self.role {
            Role::Receiver { user, .. } | Role::WsSender { user, .. } => user,
            Role::HttpSender { .. } => "",
        }
    }

    /// Reads the frames or the response in `bytes`; returns how many bytes were consumed.
    pub(crate) fn receive(
        &mut self,
        bytes: &mut [u8],
        out: &mut Vec<u8>,
        shared: &mut SharedState,
    ) -> Result<usize, ConnectionError> {
        if let Role::HttpSender { .. } = self.role {
            return self.receive_http_response(bytes, shared);
        }
        session::receive(
            self,
            |client| &mut client.websocket,
            bytes,
            out,
            |client, text, out| match text {
                None => {
                    client.bind(out, shared);
                    Ok(())
                }
                Some(text) => client.receive_frame(text, out, shared),
            },
        )
    }

    fn bind(&mut self, out: &mut Vec<u8>, shared: &SharedState) {
        self.state = ConnectionState::Binding;
        self.bound_at = shared.now();
        // A user whose messages a session sends may have another session, which receives.
        let device_id = if matches!(self.role, Role::WsSender { .. }) { "lab-sender" } else { "lab" };
        let frame = ClientFrame::Bind(Bind {
            compact: shared.compact && matches!(self.role, Role::Receiver { .. }),
            cursor: (!self.cursor.is_empty()).then(|| String::from_utf8_lossy(&self.cursor).into_owned()),
            ..bind_of(user_token(&shared.token_key, self.user()), device_id)
        });
        put_frame(out, &frame);
    }

    fn receive_frame(
        &mut self,
        payload: &[u8],
        out: &mut Vec<u8>,
        shared: &mut SharedState,
    ) -> Result<(), ConnectionError> {
        let now = shared.now();
        if payload.starts_with(b"{\"t\":\"messages\"") {
            let Role::Receiver { index, .. } = self.role else { return Ok(()) };
            shared.delivery_gaps.record_delivery(index, now);
            if self.is_resuming {
                shared.mix.begin_answer(index, self.bound_at);
            }
            let (verifier, mut traffic) = shared.verifier_and_traffic();
            if let Some(cursor) = verifier.receive_batch(index, payload, &mut traffic, now) {
                self.cursor.clear();
                self.cursor.extend_from_slice(&cursor);
            }
            if std::mem::take(&mut self.is_resuming) {
                shared.mix.end_of_answer(index);
            }
            return Ok(());
        }
        if payload.starts_with(b"{\"t\":\"sent\"") {
            let sent: SentView = parse(payload)?;
            for result in sent.results {
                if self.acknowledge_operation(result.reference, result.seq, shared) {
                    continue;
                }
                self.remove_in_flight(result.reference as u32);
                shared.acknowledge(result.reference as u32, result.seq, now);
            }
            return Ok(());
        }
        if payload.starts_with(b"{\"t\":\"history\"") {
            return self.receive_history(payload, out, shared);
        }
        match parse::<ServerFrame>(payload)? {
            ServerFrame::Bound(bound) => {
                self.state = ConnectionState::Live;
                // With entries to follow the server repeats the cursor of the bind.
                self.is_resuming = !self.cursor.is_empty() && self.cursor == bound.cursor.as_bytes();
                self.cursor = bound.cursor.into_bytes();
                shared.record_bind(bound.heartbeat_ms);
                if let Role::Receiver { index, .. } = self.role {
                    for range in bound.resume.ranges {
                        shared.verifier.mark_missing_to(index, range.to_seq);
                        self.history_asked_at = now;
                        request_history(out, range.conversation, range.from_seq, range.to_seq);
                    }
                }
            }
            ServerFrame::Messages { .. } => {
                return Err(ConnectionError::protocol("a batch whose fields stand in another order".into()));
            }
            ServerFrame::Ok { reference } if shared.receipts.acknowledge(reference) => {}
            ServerFrame::Ok { reference } => {
                self.acknowledge_operation(reference, 0, shared);
            }
            ServerFrame::Receipts { marks, moved, .. } => {
                let seen = marks.len() as u64 + moved.iter().map(|moved| moved.count).sum::<u64>();
                shared.mix.record_receipts(seen);
                shared.receipts.record_seen(seen);
            }
            ServerFrame::Error { reference, code, message, retry, .. } => match reference {
                Some(reference) => match self.take_operation(reference, shared) {
                    Some(operation) => shared.mix.refuse(operation, retry, code, &message, now),
                    None if shared.receipts.refuse(reference) => {}
                    None => {
                        self.remove_in_flight(reference as u32);
                        shared.record_refusal(&[reference as u32], retry, code.as_str(), &message);
                    }
                },
                None => return Err(ConnectionError::protocol(format!("{}: {message}", code.as_str()))),
            },
            _ => {}
        }
        Ok(())
    }

    /// The operation of the mix that an answer is to.
    fn take_operation(&mut self, reference: u64, shared: &SharedState) -> Option<u32> {
        match &mut self.role {
            Role::Receiver { operations, .. } => shared.mix.take_answered(reference, operations),
            _ => None,
        }
    }

    fn acknowledge_operation(&mut self, reference: u64, seq: u64, shared: &mut SharedState) -> bool {
        let operation = self.take_operation(reference, shared);
        if let Some(operation) = operation {
            shared.mix.acknowledge(operation, seq, shared.now());
        }
        operation.is_some()
    }

    fn remove_in_flight(&mut self, message: u32) {
        if let Role::WsSender { in_flight, .. } = &mut self.role
            && let Some(place) = in_flight.iter().position(|other| *other == message)
        {
            in_flight.remove(place);
        }
    }

    fn receive_history(
        &mut self,
        payload: &[u8],
        out: &mut Vec<u8>,
        shared: &mut SharedState,
    ) -> Result<(), ConnectionError> {
        #[derive(Deserialize)]
        struct Page<'a> {
            #[serde(rename = "ref")]
            to_seq: u64,
            conversation: String,
            #[serde(borrow)]
            entries: Vec<&'a RawValue>,
            more: bool,
        }
        let Role::Receiver { index, .. } = self.role else { return Ok(()) };
        let page: Page<'_> = parse(payload)?;
        let now = shared.now();
        shared.mix.begin_answer(index, self.history_asked_at);
        let (verifier, mut traffic) = shared.verifier_and_traffic();
        for raw in &page.entries {
            verifier.receive_entry(index, raw.get(), true, &mut traffic, now);
        }
        shared.mix.end_of_answer(index);
        self.history_asked_at = now;
        if let Some(last) = page.entries.last()
            && page.more
        {
            let last: ReceiptView = parse(last.get().as_bytes())?;
            request_history(out, page.conversation, last.seq + 1, page.to_seq);
        }
        Ok(())
    }

    /// Reads the response to an HTTP send. One request is in flight at a time, so there is at most one response.
    fn receive_http_response(&mut self, bytes: &[u8], shared: &mut SharedState) -> Result<usize, ConnectionError> {
        let Some(answer) = parse_answer(bytes).map_err(ConnectionError::protocol)? else { return Ok(0) };
        let body = &*answer.body;
        let Role::HttpSender { in_flight } = &mut self.role else { return Ok(0) };
        let messages = std::mem::take(in_flight);
        let now = shared.now();
        let mut retryable = false;
        match (answer.status, messages.as_slice()) {
            (200..=299, _) if body.starts_with(b"{\"results\"") => {
                let batch: BatchView = parse(body)?;
                for (message, result) in messages.iter().zip(batch.results) {
                    match (result.seq, result.error) {
                        (Some(seq), _) => shared.acknowledge(*message, seq, now),
                        (None, Some(error)) => {
                            retryable |= error.retry;
                            shared.record_refusal(&[*message], error.retry, error.code.as_str(), &error.detail);
                        }
                        (None, None) => return Err(ConnectionError::protocol("a result that is neither".into())),
                    }
                }
            }
            (200..=299, [message]) => {
                let receipt: ReceiptView = parse(body)?;
                shared.acknowledge(*message, receipt.seq, now);
            }
            _ => match serde_json::from_slice::<Problem>(body) {
                Ok(problem) => {
                    retryable |= problem.retry;
                    shared.record_refusal(&messages, problem.retry, problem.code.as_str(), &problem.detail);
                }
                Err(_) => {
                    shared.record_refusal(&messages, false, "none", &format!("an answer with status {}", answer.status))
                }
            },
        }
        if retryable && shared.has_other_servers {
            return Err(ConnectionError::Refused);
        }
        if answer.closes {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        Ok(bytes.len())
    }

    /// Takes the operations of the mix that were not answered when the connection broke.
    pub(crate) fn take_operations(&mut self) -> Vec<u32> {
        match &mut self.role {
            Role::Receiver { operations, .. } => std::mem::take(operations),
            Role::HttpSender { .. } | Role::WsSender { .. } => Vec::new(),
        }
    }

    /// Takes the messages that were in flight when the connection broke.
    pub(crate) fn take_in_flight(&mut self) -> Vec<u32> {
        match &mut self.role {
            Role::Receiver { .. } => Vec::new(),
            Role::HttpSender { in_flight } => std::mem::take(in_flight),
            Role::WsSender { in_flight, .. } => in_flight.drain(..).collect(),
        }
    }
}

fn request_history(out: &mut Vec<u8>, conversation: String, from_seq: u64, to_seq: u64) {
    let frame = ClientFrame::History {
        // The answer repeats the reference, which is thus the end of the range.
        reference: Some(to_seq),
        conversation,
        query: tidings_protocol::http::HistoryQuery {
            from_seq: Some(from_seq),
            to_seq: Some(to_seq),
            limit: Some(tidings_protocol::limits::HISTORY_PAGE_MAX),
            ..Default::default()
        },
    };
    put_frame(out, &frame);
}

#[derive(Deserialize)]
struct SentView {
    results: Vec<Sent>,
}

#[derive(Deserialize)]
struct ReceiptView {
    seq: u64,
}

#[derive(Deserialize)]
struct BatchView {
    results: Vec<ResultView>,
}

#[derive(Deserialize)]
struct ResultView {
    seq: Option<u64>,
    error: Option<Problem>,
}
