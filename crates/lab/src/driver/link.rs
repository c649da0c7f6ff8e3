//! One connection to a server that others wrote: a session over WebSocket, or requests over HTTP one at a time.

use super::{
    description::{Driver, Exchange, Publish, put_head},
    message::{Matcher, Message},
    socket::{LinkError, LinkSocket},
    template::{Template, Values},
};
use crate::delivery_ledger::Ledger;
use std::{collections::VecDeque, io, sync::Arc};
use tidings_client::{
    session::{SERVER_FRAME_BYTES_MAX, closed_error, random_mask},
    wire::{parse_response_head, take_chunks},
};
use tidings_protocol::ws::{Assembly, Control, Data, OpCode, Received, generate_key, put_client_frame, take_frame};

/// Of a text that the server wrote, in a problem.
const SHOWN_CHARS: usize = 200;

/// What all connections to the server have in common.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) driver: Arc<Driver>,
    pub(super) host: String,
    pub(super) api_key: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Of this number.
    Receiver(usize),
    /// Publishes on its session.
    SessionSender,
    HttpSender,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(super) enum Stage {
    Connecting,
    Upgrading,
    LoggingIn,
    Subscribing,
    Ready,
    /// The server has ended it.
    Ended,
}

/// A connection: the socket, and the client's side of what is spoken over it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) socket: LinkSocket,
    pub(super) client: Client,
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) role: Role,
    pub(super) stage: Stage,
    pub(super) user: String,
    pub(super) token: String,
    /// What it is subscribed to; of a sender with several conversations, the first of them.
    pub(super) channel: String,
    /// Joins messages that come in several frames.
    assembly: Assembly,
    /// Frames that were sent.
    frames: u64,
    /// Published and not answered, in this order.
    pub(super) in_flight: VecDeque<u32>,
    /// When it could send again after it could not.
    pub(super) free_since: u64,
    /// The server closes after this answer.
    pub(super) closes: bool,
    /// To be written.
    pub(super) out: Vec<u8>,
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS).collect()
}

/// An answer over HTTP: its status, its body, and whether the connection ends with it. `Ok(None)`: more bytes are needed. With
/// one request at a time the answer is all that comes.
pub(super) fn take_answer(bytes: &[u8]) -> Result<Option<(u16, String, bool)>, String> {
    let Some(head) = parse_response_head(bytes)? else { return Ok(None) };
    let rest = &bytes[head.body_start..];
    let body = if head.chunked { take_chunks(rest)? } else { rest.get(..head.body_length).map(<[u8]>::to_vec) };
    Ok(body.map(|body| (head.status, String::from_utf8_lossy(&body).into_owned(), head.closes)))
}

impl Link {
    /// Writes what the client has to say, as far as the kernel takes it.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.socket.write(&mut self.client.out)?;
        self.socket.flush()
    }

    /// Whether less is unwritten than a sender may have.
    pub(super) fn has_room(&mut self, bytes_max: usize) -> bool {
        self.socket.unwritten() <= bytes_max
    }
}

impl Client {
    pub(super) fn new(role: Role, (user, token): (String, String), channel: String) -> Self {
        Client {
            role,
            stage: Stage::Connecting,
            user,
            token,
            channel,
            assembly: Assembly::default(),
            frames: 0,
            in_flight: VecDeque::new(),
            free_since: 0,
            closes: false,
            out: Vec::new(),
        }
    }

    /// Writes what a connection begins with.
    pub(super) fn greet(&mut self, common: &Common) {
        if self.role == Role::HttpSender {
            self.stage = Stage::Ready;
            return;
        }
        let Client { user, token, channel, .. } = &*self;
        let values = Values { user, token, api_key: &common.api_key, channel, ..Values::default() };
        let mut head = Vec::new();
        put_head(&mut head, "GET", &common.driver.path, &common.driver.headers, &values, &common.host);
        let key = generate_key();
        head.extend_from_slice(
            format!(
                "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
            )
            .as_bytes(),
        );
        self.out.extend_from_slice(&head);
        self.stage = Stage::Upgrading;
    }

    fn put_frame(&mut self, common: &Common, template: &Template, (marker, id): (&str, &str)) {
        let channel = std::mem::take(&mut self.channel);
        self.put_frame_for(&channel, common, template, (marker, id));
        self.channel = channel;
    }

    fn put_frame_for(&mut self, channel: &str, common: &Common, template: &Template, (marker, id): (&str, &str)) {
        self.frames += 1;
        let text = template.fill(&Values {
            user: &self.user,
            token: &self.token,
            api_key: &common.api_key,
            channel,
            number: self.frames,
            marker,
            id,
        });
        put_client_frame(&mut self.out, OpCode::Data(Data::Text), text.as_bytes(), random_mask());
    }

    pub(super) fn heartbeat(&mut self, common: &Common) {
        if let (Some((_, frame)), Stage::Ready, false) =
            (&common.driver.heartbeat, self.stage, self.role == Role::HttpSender)
        {
            self.put_frame(common, frame, ("", ""));
        }
    }

    /// Publishes message `number` with this marker to a channel.
    pub(super) fn publish(&mut self, common: &Common, number: u32, channel: &str, marker: &str) {
        match &common.driver.publish {
            Publish::Frame(exchange) => {
                self.put_frame_for(channel, common, &exchange.frame, (marker, ""));
                if exchange.answer.is_some() {
                    self.in_flight.push_back(number);
                }
            }
            Publish::Request(request) => {
                let Client { user, token, out, .. } = self;
                let values = Values { user, token, api_key: &common.api_key, channel, marker, ..Values::default() };
                request.put(&values, &common.host, out);
                self.in_flight.push_back(number);
            }
        }
    }

    /// Reads what has come; returns how many bytes were taken.
    pub(super) fn receive(
        &mut self,
        bytes: &mut [u8],
        common: &Common,
        ledger: &mut Ledger,
        now: u64,
    ) -> Result<usize, LinkError> {
        if self.role == Role::HttpSender {
            return self.receive_answer(bytes, common, ledger, now);
        }
        let mut taken = 0;
        if self.stage == Stage::Upgrading {
            let Some(head) = parse_response_head(bytes).map_err(LinkError::Protocol)? else { return Ok(0) };
            if head.status != 101 {
                return Err(LinkError::Protocol(format!("the upgrade was answered with {}", head.status)));
            }
            taken = head.body_start;
            self.stage = Stage::LoggingIn;
            self.begin(&common.driver.login, common);
        }
        while let Some(frame) = take_frame(&mut bytes[taken..], false, SERVER_FRAME_BYTES_MAX)
            .map_err(|error| LinkError::Protocol(error.to_string()))?
        {
            let payload = taken + frame.payload.start..taken + frame.payload.end;
            taken = payload.end;
            let payload = &bytes[payload];
            let received = self.assembly.take(&frame, payload, SERVER_FRAME_BYTES_MAX);
            match received.map_err(|error| LinkError::Protocol(error.to_string()))? {
                Received::Ping => {
                    put_client_frame(&mut self.out, OpCode::Control(Control::Pong), payload, random_mask());
                }
                Received::Close(_) => return Err(LinkError::Protocol(closed_error(payload).to_string())),
                Received::Text(text) => self.take_text(&text, common, ledger, now)?,
                Received::Binary(data) => {
                    let text = std::str::from_utf8(&data)
                        .map_err(|_| LinkError::Protocol("a message that is not text".into()))?;
                    self.take_text(text, common, ledger, now)?;
                }
                Received::Part | Received::Pong => {}
            }
        }
        Ok(taken)
    }

    /// Takes the messages that a text has.
    fn take_text(&mut self, text: &str, common: &Common, ledger: &mut Ledger, now: u64) -> Result<(), LinkError> {
        if common.driver.lines {
            (text.lines().filter(|line| !line.is_empty()))
                .try_for_each(|line| self.take_message(&Message::new(line), common, ledger, now))
        } else {
            self.take_message(&Message::new(text), common, ledger, now)
        }
    }

    /// Sends the frame of the stage, and goes on at once where none is wanted or none is answered.
    fn begin(&mut self, exchange: &Option<Exchange>, common: &Common) {
        if let Some(exchange) = exchange {
            self.put_frame(common, &exchange.frame, ("", ""));
            if exchange.answer.is_some() {
                return;
            }
        }
        self.advance(common);
    }

    fn advance(&mut self, common: &Common) {
        match (self.stage, self.role) {
            (Stage::LoggingIn, Role::Receiver(_)) => {
                self.stage = Stage::Subscribing;
                self.begin(&common.driver.subscribe, common);
            }
            _ => self.stage = Stage::Ready,
        }
    }

    fn take_message(
        &mut self,
        message: &Message<'_>,
        common: &Common,
        ledger: &mut Ledger,
        now: u64,
    ) -> Result<(), LinkError> {
        let Driver { replies, refused, login, subscribe, publish, marker, acknowledge, .. } = &*common.driver;
        if let Some((_, frame)) = replies.iter().find(|(to, _)| to.matches(message)) {
            self.put_frame(common, frame, ("", ""));
            return Ok(());
        }
        let is_refusal = refused.as_ref().is_some_and(|refused| refused.matches(message));
        let answers = |exchange: &Option<Exchange>| {
            let answer = exchange.as_ref().and_then(|exchange| exchange.answer.as_ref());
            answer.is_some_and(|answer| answer.matches(message))
        };
        match (self.stage, self.role) {
            (Stage::LoggingIn | Stage::Subscribing, _) if is_refusal => {
                let what = if self.stage == Stage::LoggingIn { "login" } else { "subscription" };
                return Err(LinkError::Protocol(format!("the {what} was refused: {}", shown(message.text))));
            }
            (Stage::LoggingIn, _) if answers(login) => self.advance(common),
            (Stage::Subscribing, _) if answers(subscribe) => self.advance(common),
            (Stage::Ready, Role::Receiver(receiver)) => {
                let mut came = false;
                marker.find(message, &mut |marker| {
                    came = true;
                    ledger.deliver(receiver, marker.as_bytes(), now);
                });
                if came && let Some((id, frame)) = acknowledge {
                    let mut ids = Vec::new();
                    id.find(message, &mut |id| ids.push(id.to_owned()));
                    ids.iter().for_each(|id| self.put_frame(common, frame, ("", id)));
                }
                if is_refusal && !came {
                    ledger.note(format!("receiver {receiver} was refused something: {}", shown(message.text)));
                }
            }
            (Stage::Ready, Role::SessionSender) => {
                let answer = match publish {
                    Publish::Frame(Exchange { answer, .. }) => answer.as_ref(),
                    Publish::Request(_) => None,
                };
                let is_answer = answer.is_some_and(|answer| Matcher::matches(answer, message));
                if is_refusal && let Some(number) = self.in_flight.pop_front() {
                    ledger.refuse(number, "refused", &shown(message.text));
                } else if is_answer && let Some(number) = self.in_flight.pop_front() {
                    ledger.answer(number, now);
                } else {
                    return Ok(());
                }
                self.free_since = now;
            }
            _ => {}
        }
        Ok(())
    }

    fn receive_answer(
        &mut self,
        bytes: &[u8],
        common: &Common,
        ledger: &mut Ledger,
        now: u64,
    ) -> Result<usize, LinkError> {
        let Some((status, body, closes)) = take_answer(bytes).map_err(LinkError::Protocol)? else { return Ok(0) };
        let Some(number) = self.in_flight.pop_front() else {
            return Err(LinkError::Protocol(format!("an answer without a request: {status}")));
        };
        let refused = common.driver.refused.as_ref();
        match status {
            200..=299 if refused.is_some_and(|refused| refused.matches(&Message::new(&body))) => {
                ledger.refuse(number, "refused", &shown(&body));
            }
            200..=299 => ledger.answer(number, now),
            _ => ledger.refuse(number, &format!("http_{status}"), &format!("{status} {}", shown(&body))),
        }
        (self.closes, self.free_since) = (closes, now);
        Ok(bytes.len())
    }
}
