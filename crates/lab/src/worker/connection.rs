//! One connection of the worker, and what its bytes mean: receivers' batches, senders' answers.

use super::{desk::Desk, ledger::json_string};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{borrow::Cow, collections::VecDeque, io};
use tidings_client::{
    nonblocking::NonblockingSocket,
    session::{SERVER_FRAME_BYTES_MAX, closed_error, random_mask},
    token,
    wire::parse_response_head,
};
use tidings_protocol::{
    frames::{Bind, ClientFrame, ServerFrame},
    http::Problem,
    ws::{Control, Data, OpCode, put_client_frame, take_frame},
};

/// Why a connection is of no more use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Protocol(String),
    /// The server refuses for the moment, and there are others.
    #[error("refused for the moment")]
    Refused,
    #[error("silent")]
    Silent,
    /// It goes back to where it was at first.
    #[error("goes home")]
    Moved,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) link: NonblockingSocket,
    pub(crate) state: State,
    /// Which of the servers it is on.
    pub(crate) home: usize,
    /// When something came, or was asked for after a rest: silence counts from here.
    pub(crate) heard_at: u64,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) role: Role,
    pub(crate) stage: Stage,
    /// The newest cursor; empty before the first.
    pub(crate) cursor: Vec<u8>,
    /// Bytes to write after reading.
    pub(crate) reply: Vec<u8>,
}

#[derive(Debug)]
pub(crate) enum Role {
    /// Gets everything of its conversation.
    Receiver { index: usize, user: String },
    /// Sends over HTTP, one request at a time.
    HttpSender { in_flight: Vec<u32> },
    /// Sends over a session of its own, several at a time. What it is sent itself is not judged.
    WsSender { user: String, in_flight: VecDeque<u32> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Broken, and not yet opened again.
    Away,
    Connecting,
    Upgrading,
    Binding,
    Live,
}

impl State {
    fn user(&self) -> &str {
        match &self.role {
            Role::Receiver { user, .. } | Role::WsSender { user, .. } => user,
            Role::HttpSender { .. } => "",
        }
    }

    /// What has come; returns how much of it was taken.
    pub(crate) fn take(&mut self, bytes: &mut [u8], desk: &mut Desk) -> Result<usize, Broken> {
        if let Role::HttpSender { .. } = self.role {
            return self.take_answers(bytes, desk);
        }
        let mut taken = 0;
        if self.stage == Stage::Upgrading {
            let Some(head) = parse_response_head(bytes).map_err(Broken::Protocol)? else { return Ok(0) };
            if head.status != 101 {
                return Err(Broken::Protocol(format!("the upgrade was answered with {}", head.status)));
            }
            taken = head.body_start;
            self.bind(desk);
        }
        while let Some(frame) = take_frame(&mut bytes[taken..], false, SERVER_FRAME_BYTES_MAX)
            .map_err(|error| Broken::Protocol(error.to_string()))?
        {
            let payload = taken + frame.payload.start..taken + frame.payload.end;
            taken = payload.end;
            match frame.opcode {
                OpCode::Data(Data::Text) => self.take_text(&bytes[payload], desk)?,
                OpCode::Control(Control::Ping) => {
                    put_client_frame(&mut self.reply, OpCode::Control(Control::Pong), &bytes[payload], random_mask());
                }
                OpCode::Control(Control::Close) => {
                    return Err(Broken::Protocol(closed_error(&bytes[payload]).to_string()));
                }
                _ => {}
            }
        }
        Ok(taken)
    }

    fn bind(&mut self, desk: &Desk) {
        self.stage = Stage::Binding;
        let frame = ClientFrame::Bind(Bind {
            token: token::sign(&desk.token_key, self.user(), TOKEN_LIFETIME),
            device_id: "lab".into(),
            device_kind: "web".into(),
            app_version: None,
            cursor: (!self.cursor.is_empty()).then(|| String::from_utf8_lossy(&self.cursor).into_owned()),
            push: false,
        });
        self.reply_with(&frame);
    }

    fn reply_with(&mut self, frame: &ClientFrame) {
        // Our own frames always serialize.
        let payload = serde_json::to_vec(frame).unwrap_or_default();
        put_client_frame(&mut self.reply, OpCode::Data(Data::Text), &payload, random_mask());
    }

    fn take_text(&mut self, payload: &[u8], desk: &mut Desk) -> Result<(), Broken> {
        let now = desk.now();
        if payload.starts_with(b"{\"t\":\"messages\"") {
            let Role::Receiver { index, .. } = self.role else { return Ok(()) };
            desk.pauses.heard(index, now);
            if let Some(cursor) = desk.verifier.take_messages(index, payload, &mut desk.ledger, now) {
                self.cursor.clear();
                self.cursor.extend_from_slice(&cursor);
            }
            return Ok(());
        }
        if payload.starts_with(b"{\"t\":\"sent\"") {
            let sent: SentView = parse(payload)?;
            for result in sent.results {
                self.answered(result.reference);
                desk.acknowledge(result.reference, result.seq, now);
            }
            return Ok(());
        }
        if payload.starts_with(b"{\"t\":\"history\"") {
            return self.take_history(payload, desk);
        }
        match parse::<ServerFrame>(payload)? {
            ServerFrame::Bound(bound) => {
                self.stage = Stage::Live;
                self.cursor = bound.cursor.into_bytes();
                desk.bound(bound.heartbeat_ms);
                if let Role::Receiver { index, .. } = self.role {
                    for range in bound.resume.ranges {
                        desk.verifier.skip_to(index, range.to_seq);
                        self.ask_history(range.conversation, range.from_seq, range.to_seq);
                    }
                }
            }
            ServerFrame::Messages { .. } => {
                return Err(Broken::Protocol("a batch whose fields stand in another order".into()));
            }
            ServerFrame::Error { reference, code, message, retry, .. } => match reference {
                Some(reference) => {
                    self.answered(reference as u32);
                    desk.refuse(&[reference as u32], retry, code.as_str(), &message);
                }
                None => return Err(Broken::Protocol(format!("{}: {message}", code.as_str()))),
            },
            _ => {}
        }
        Ok(())
    }

    fn answered(&mut self, message: u32) {
        if let Role::WsSender { in_flight, .. } = &mut self.role
            && let Some(place) = in_flight.iter().position(|other| *other == message)
        {
            in_flight.remove(place);
        }
    }

    fn ask_history(&mut self, conversation: String, from_seq: u64, to_seq: u64) {
        self.reply_with(&ClientFrame::History {
            // The answer repeats it: where the range ends.
            reference: Some(to_seq),
            conversation,
            query: tidings_protocol::http::HistoryQuery {
                from_seq: Some(from_seq),
                to_seq: Some(to_seq),
                limit: Some(tidings_protocol::limits::HISTORY_PAGE_MAX),
                ..Default::default()
            },
        });
    }

    fn take_history(&mut self, payload: &[u8], desk: &mut Desk) -> Result<(), Broken> {
        #[derive(Deserialize)]
        struct Page<'a> {
            #[serde(rename = "ref")]
            to_seq: u64,
            conversation: String,
            #[serde(borrow)]
            entries: Vec<&'a RawValue>,
            more: bool,
        }
        #[derive(Deserialize)]
        struct Seq {
            seq: u64,
        }
        let Role::Receiver { index, .. } = self.role else { return Ok(()) };
        let page: Page<'_> = parse(payload)?;
        let now = desk.now();
        for raw in &page.entries {
            desk.verifier.take_entry(index, raw.get(), true, &mut desk.ledger, now);
        }
        if let Some(last) = page.entries.last()
            && page.more
        {
            let last: Seq = parse(last.get().as_bytes())?;
            self.ask_history(page.conversation, last.seq + 1, page.to_seq);
        }
        Ok(())
    }

    /// Answers to HTTP sends. One is under way at a time, so one is expected at most.
    fn take_answers(&mut self, bytes: &[u8], desk: &mut Desk) -> Result<usize, Broken> {
        let Some(head) = parse_response_head(bytes).map_err(Broken::Protocol)? else { return Ok(0) };
        let Some(body) = bytes.get(head.body_start..head.body_start + head.body_length) else { return Ok(0) };
        let Role::HttpSender { in_flight } = &mut self.role else { return Ok(0) };
        let messages = std::mem::take(in_flight);
        let now = desk.now();
        let mut for_the_moment = false;
        match (head.status, messages.as_slice()) {
            (200..=299, _) if body.starts_with(b"{\"results\"") => {
                let answer: BatchView = parse(body)?;
                for (message, result) in messages.iter().zip(answer.results) {
                    match (result.seq, result.error) {
                        (Some(seq), _) => desk.acknowledge(*message, seq, now),
                        (None, Some(error)) => {
                            for_the_moment |= error.retry;
                            desk.refuse(&[*message], error.retry, error.code.as_str(), &error.detail);
                        }
                        (None, None) => return Err(Broken::Protocol("a result that is neither".into())),
                    }
                }
            }
            (200..=299, [message]) => {
                let receipt: ReceiptView = parse(body)?;
                desk.acknowledge(*message, receipt.seq, now);
            }
            _ => match serde_json::from_slice::<Problem>(body) {
                Ok(problem) => {
                    for_the_moment |= problem.retry;
                    desk.refuse(&messages, problem.retry, problem.code.as_str(), &problem.detail);
                }
                Err(_) => desk.refuse(&messages, false, "none", &format!("an answer with status {}", head.status)),
            },
        }
        match head.closes {
            _ if for_the_moment && desk.has_others => Err(Broken::Refused),
            true => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            false => Ok(head.body_start + head.body_length),
        }
    }

    /// What it had under way when its connection broke.
    pub(crate) fn take_in_flight(&mut self) -> Vec<u32> {
        match &mut self.role {
            Role::Receiver { .. } => Vec::new(),
            Role::HttpSender { in_flight } => std::mem::take(in_flight),
            Role::WsSender { in_flight, .. } => in_flight.drain(..).collect(),
        }
    }
}

/// A lab run is shorter than this.
const TOKEN_LIFETIME: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

#[derive(Deserialize)]
struct SentView {
    results: Vec<SentOne>,
}

#[derive(Deserialize)]
struct SentOne {
    #[serde(rename = "ref")]
    reference: u32,
    seq: u64,
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

fn parse<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T, Broken> {
    serde_json::from_slice(payload).map_err(|error| {
        let text: Cow<'_, str> = String::from_utf8_lossy(&payload[..payload.len().min(200)]);
        Broken::Protocol(format!("{error} in {}", json_string(&text)))
    })
}
