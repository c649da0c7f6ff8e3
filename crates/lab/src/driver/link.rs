//! One client of a server that others wrote, without its socket: a session over WebSocket or of a broker, or requests over HTTP one at a
//! time.

use super::{
    codec::{Packet, Protocol},
    description::{Acknowledge, Driver, Exchange, Publish, put_head},
    message::{Matcher, Message},
    template::{InFrames, Template, Values},
};
use crate::{
    client_engine::{
        ConnectionError,
        http::parse_answer,
        websocket::{Message as Received, WebSocket, put_text},
    },
    delivery_ledger::Ledger,
    problems::Problems,
};
use std::{collections::VecDeque, sync::Arc};
use tidings_protocol::ws::generate_key;

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

#[derive(Debug)]
pub(super) struct Client {
    pub(super) role: Role,
    pub(super) stage: Stage,
    pub(super) user: String,
    pub(super) token: String,
    /// What it is subscribed to; of a sender with several conversations, the first of them.
    pub(super) channel: String,
    websocket: WebSocket,
    /// Frames that were sent.
    frames: u64,
    /// Published and not answered, in this order.
    pub(super) in_flight: VecDeque<u32>,
    /// When it could send again after it could not.
    pub(super) free_since: u64,
    /// To be written.
    pub(super) out: Vec<u8>,
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS).collect()
}

impl Client {
    pub(super) fn new(role: Role, (user, token): (String, String), channel: String) -> Self {
        Client {
            role,
            stage: Stage::Connecting,
            user,
            token,
            channel,
            websocket: WebSocket::default(),
            frames: 0,
            in_flight: VecDeque::new(),
            free_since: 0,
            out: Vec::new(),
        }
    }

    /// Writes what a connection begins with.
    pub(super) fn greet(&mut self, common: &Common) {
        if self.role == Role::HttpSender {
            self.stage = Stage::Ready;
            return;
        }
        if let Some(broker) = common.driver.broker {
            let subscribes_to = matches!(self.role, Role::Receiver(_)).then_some(self.channel.as_str());
            self.stage = Stage::LoggingIn;
            return broker.put_hello(&self.user, subscribes_to, &mut self.out);
        }
        let (Client { user, token, channel, .. }, session) = (&*self, &common.driver.session);
        let values = Values { user, token, api_key: &common.api_key, channel, ..Values::default() };
        let mut head = Vec::new();
        put_head(&mut head, "GET", &session.path, &session.headers, &values, &common.host);
        let key = generate_key();
        head.extend_from_slice(
            format!(
                "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
            )
            .as_bytes(),
        );
        self.out.extend_from_slice(&head);
        (self.stage, self.websocket) = (Stage::Upgrading, WebSocket::default());
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
        put_text(&mut self.out, text.as_bytes());
    }

    pub(super) fn heartbeat(&mut self, common: &Common) {
        if let (Some(heartbeat), Stage::Ready, false) =
            (&common.driver.heartbeat, self.stage, self.role == Role::HttpSender)
        {
            self.put_frame(common, &heartbeat.frame, ("", ""));
        }
    }

    /// Publishes message `number` with this marker to a channel.
    pub(super) fn publish(&mut self, common: &Common, number: u32, channel: &str, marker: &str) {
        if let Some(broker) = common.driver.broker {
            return broker.put_publish(channel, marker.as_bytes(), &mut self.out);
        }
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
    ) -> Result<usize, ConnectionError> {
        if self.role == Role::HttpSender {
            return self.receive_answer(bytes, common, ledger, now);
        }
        if let Some(broker) = common.driver.broker {
            return self.receive_packets(broker, bytes, ledger, now);
        }
        let mut taken = 0;
        loop {
            let (length, message) = self.websocket.take(&mut bytes[taken..], &mut self.out)?;
            taken += length;
            match message {
                None => return Ok(taken),
                Some(Received::Opened) => {
                    self.stage = Stage::LoggingIn;
                    self.begin(&common.driver.login, common);
                }
                Some(Received::Text(text) | Received::Binary(text)) => {
                    let text = std::str::from_utf8(&text)
                        .map_err(|_| ConnectionError::Protocol("a message that is not text".into()))?;
                    self.take_text(text, common, ledger, now)?;
                }
                Some(Received::Closed(payload)) => return Err(Received::unasked(payload)),
            }
        }
    }

    /// Reads the packets of a broker.
    fn receive_packets(
        &mut self,
        broker: Protocol,
        bytes: &[u8],
        ledger: &mut Ledger,
        now: u64,
    ) -> Result<usize, ConnectionError> {
        let mut taken = 0;
        loop {
            let rest = &bytes[taken..];
            let read = broker.read(rest, matches!(self.role, Role::Receiver(_))).map_err(ConnectionError::Protocol)?;
            let Some((packet, length)) = read else { return Ok(taken) };
            match (packet, self.role) {
                (Packet::Message(range), Role::Receiver(receiver)) => ledger.deliver(receiver, &rest[range], now),
                (Packet::Ready, _) => self.stage = Stage::Ready,
                (Packet::Ping, _) => broker.put_pong(&mut self.out),
                (Packet::Message(_) | Packet::Other, _) => {}
            }
            taken += length;
        }
    }

    /// Takes the messages that a text has.
    fn take_text(&mut self, text: &str, common: &Common, ledger: &mut Ledger, now: u64) -> Result<(), ConnectionError> {
        if common.driver.session.lines {
            (text.lines().filter(|line| !line.is_empty()))
                .try_for_each(|line| self.take_message(&Message::new(line), common, ledger, now))
        } else {
            self.take_message(&Message::new(text), common, ledger, now)
        }
    }

    /// Sends the frame of the stage, and goes on at once where none is wanted or none is answered.
    fn begin(&mut self, exchange: &Option<Exchange<InFrames>>, common: &Common) {
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
    ) -> Result<(), ConnectionError> {
        let Driver { replies, refused, login, subscribe, publish, delivery, acknowledge, .. } = &*common.driver;
        if let Some(reply) = replies.iter().find(|reply| reply.to.matches(message)) {
            self.put_frame(common, &reply.frame, ("", ""));
            return Ok(());
        }
        let is_refusal = refused.as_ref().is_some_and(|refused| refused.matches(message));
        let answers = |exchange: &Option<Exchange<InFrames>>| {
            let answer = exchange.as_ref().and_then(|exchange| exchange.answer.as_ref());
            answer.is_some_and(|answer| answer.matches(message))
        };
        match (self.stage, self.role) {
            (Stage::LoggingIn | Stage::Subscribing, _) if is_refusal => {
                let what = if self.stage == Stage::LoggingIn { "login" } else { "subscription" };
                return Err(ConnectionError::Protocol(format!("the {what} was refused: {}", shown(message.text))));
            }
            (Stage::LoggingIn, _) if answers(login) => self.advance(common),
            (Stage::Subscribing, _) if answers(subscribe) => self.advance(common),
            (Stage::Ready, Role::Receiver(receiver)) => {
                let mut came = false;
                if let Some(delivery) = delivery {
                    delivery.marker.find(message, &mut |marker| {
                        came = true;
                        ledger.deliver(receiver, marker.as_bytes(), now);
                    });
                }
                if came && let Some(Acknowledge { id, frame }) = acknowledge {
                    let mut ids = Vec::new();
                    id.find(message, &mut |id| ids.push(id.to_owned()));
                    ids.iter().for_each(|id| self.put_frame(common, frame, ("", id)));
                }
                if is_refusal && !came {
                    ledger
                        .findings
                        .problems
                        .note(format!("receiver {receiver} was refused something: {}", shown(message.text)));
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
    ) -> Result<usize, ConnectionError> {
        let Some(answer) = parse_answer(bytes).map_err(ConnectionError::Protocol)? else { return Ok(0) };
        let (status, body) = (answer.status, String::from_utf8_lossy(&answer.body));
        let Some(number) = self.in_flight.pop_front() else {
            return Err(ConnectionError::Protocol(format!("an answer without a request: {status}")));
        };
        let refused = common.driver.refused.as_ref();
        match status {
            200..=299 if refused.is_some_and(|refused| refused.matches(&Message::new(&body))) => {
                ledger.refuse(number, "refused", &shown(&body));
            }
            200..=299 => ledger.answer(number, now),
            _ => ledger.refuse(number, &format!("http_{status}"), &format!("{status} {}", shown(&body))),
        }
        self.free_since = now;
        // One that the server closes after an answer is connected again.
        if answer.closes {
            Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into())
        } else {
            Ok(bytes.len())
        }
    }
}
