//! A small server that others might have written: topics over WebSocket in two protocols, with faults on demand.
//!
//! `/connection/websocket` and `POST /api/publish` are as much of Centrifugo's JSON protocol as the shipped driver needs; `/text`
//! is a protocol of words, with tokens from `/token`, answers, acknowledgements and heartbeats.

use super::http::{Request, listen, read_request, write_answer, write_frame};
use serde_json::{Value, json};
use std::{
    io::{BufReader, Read, Write},
    net::{Shutdown, TcpStream},
    sync::{Arc, Mutex},
};
use tidings_protocol::ws::{OpCode, take_frame};

/// What is wrong with the twentieth message, towards the first receiver.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    None,
    Lose,
    Double,
    Reorder,
    Alter,
    /// The message is refused, and reaches nobody.
    Refuse,
    /// The message is refused, and reaches everybody but the first receiver.
    RefuseAndDeliver,
    /// The first receiver gets nothing from then on.
    Starve,
    /// The connection of the first receiver ends.
    Disconnect,
    RefuseLogin,
    /// Publishes are never answered.
    NoAnswer,
    /// None, but messages come in several frames, with pings between them.
    Fragments,
    /// The message also reaches the first subscriber of all, who is not subscribed to it. If that one is, the fault waits for
    /// the next message: senders on connections of their own may overtake each other.
    Stray,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Protocol {
    Centrifugo,
    Text,
}

struct Subscriber {
    protocol: Protocol,
    channel: String,
    stream: TcpStream,
    /// Deliveries that were not acknowledged.
    unacknowledged: usize,
    has_answered_ping: bool,
}

#[derive(Default)]
struct State {
    published: u64,
    subscribers: Vec<Subscriber>,
    held: Option<String>,
    has_strayed: bool,
    heartbeats: u64,
}

#[derive(Clone)]
pub(crate) struct ForeignServer {
    fault: Fault,
    state: Arc<Mutex<State>>,
    pub(crate) url: String,
}

impl ForeignServer {
    pub(crate) fn start(fault: Fault) -> Self {
        let mut server = ForeignServer { fault, state: Arc::default(), url: String::new() };
        let serving = server.clone();
        server.url = format!("http://{}", listen(move |stream| serving.connection(stream)));
        server
    }

    pub(crate) fn heartbeats(&self) -> u64 {
        self.state.lock().unwrap().heartbeats
    }

    pub(crate) fn unacknowledged(&self) -> usize {
        self.state.lock().unwrap().subscribers.iter().map(|subscriber| subscriber.unacknowledged).sum()
    }

    fn connection(&self, mut stream: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        loop {
            let Request { path: target, api_key: key, body, .. } = read_request(&mut reader)?;
            let (status, answer) = match target.split('?').next()? {
                "/connection/websocket" => return self.session(stream, reader, Protocol::Centrifugo),
                "/text" => return self.session(stream, reader, Protocol::Text),
                "/token" => ("200 OK", json!({ "auth": { "t": format!("token-of-{}", target.split_once('=')?.1) } })),
                "/api/publish" if key == "secret-key" => {
                    let request: Value = serde_json::from_slice(&body).ok()?;
                    let marker = request["data"]["lab"].as_str()?;
                    match self.publish(request["channel"].as_str()?, marker) {
                        _ if self.fault == Fault::NoAnswer => continue,
                        true => ("200 OK", json!({ "result": {} })),
                        false => ("200 OK", json!({ "error": { "code": 111, "message": "try again" } })),
                    }
                }
                _ => ("401 Unauthorized", json!({})),
            };
            write_answer(&mut stream, status, "", &answer.to_string())?;
        }
    }

    fn session(&self, mut stream: TcpStream, mut reader: BufReader<TcpStream>, protocol: Protocol) -> Option<()> {
        stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\n\r\n").ok()?;
        let mut bytes = Vec::new();
        let mut number = None;
        loop {
            while let Some(frame) = take_frame(&mut bytes, true, 1 << 16).ok()? {
                let text = String::from_utf8(bytes[frame.payload.clone()].to_vec()).ok()?;
                bytes.drain(..frame.payload.end);
                match protocol {
                    // The answers to pings between fragments.
                    _ if !matches!(frame.opcode, OpCode::Data(_)) => {}
                    Protocol::Centrifugo => self.take_json(&text, &mut stream, &mut number)?,
                    Protocol::Text => self.take_words(&text, &mut stream, &mut number)?,
                }
            }
            let mut part = [0; 4096];
            let count = reader.read(&mut part).ok().filter(|count| *count > 0)?;
            bytes.extend_from_slice(&part[..count]);
        }
    }

    fn take_json(&self, text: &str, stream: &mut TcpStream, number: &mut Option<usize>) -> Option<()> {
        if text == "{}" {
            let mut state = self.state.lock().unwrap();
            state.subscribers[(*number)?].has_answered_ping = true;
            return Some(());
        }
        let request: Value = serde_json::from_str(text).ok()?;
        let id = &request["id"];
        if let Some(connect) = request.get("connect") {
            let is_known = connect["token"].as_str()?.split('.').count() == 3 && self.fault != Fault::RefuseLogin;
            let answer = if is_known {
                json!({ "id": id, "connect": { "client": "c", "ping": 25, "pong": true } })
            } else {
                json!({ "id": id, "error": { "code": 101, "message": "unauthorized" } })
            };
            write_frame(stream, &answer.to_string());
        } else if let Some(subscribe) = request.get("subscribe") {
            let channel = subscribe["channel"].as_str()?;
            let ping = if number.is_none() { "\n{}" } else { "" };
            *number = Some(self.subscribe(stream, Protocol::Centrifugo, channel, || {
                format!("{}{ping}", json!({ "id": id, "subscribe": {} }))
            })?);
        }
        Some(())
    }

    fn take_words(&self, text: &str, stream: &mut TcpStream, number: &mut Option<usize>) -> Option<()> {
        let words: Vec<&str> = text.split(' ').collect();
        match *words.as_slice() {
            ["login", user, token] if token == format!("token-of-{user}") && self.fault != Fault::RefuseLogin => {
                write_frame(stream, "welcome");
            }
            ["login", ..] => write_frame(stream, "no you do not"),
            ["join", channel] => {
                *number = Some(self.subscribe(stream, Protocol::Text, channel, || "joined".into())?);
            }
            ["say", count, channel, marker] => {
                // The frames of a sender are numbered: its login was the first.
                assert!(count.parse::<u64>().unwrap() > 1);
                match self.publish(channel, marker) {
                    _ if self.fault == Fault::NoAnswer => {}
                    true => write_frame(stream, "ok"),
                    false => write_frame(stream, "no thanks"),
                }
            }
            ["ack", id] => {
                assert!(id.parse::<u64>().is_ok());
                self.state.lock().unwrap().subscribers[(*number)?].unacknowledged -= 1;
            }
            ["beat"] => self.state.lock().unwrap().heartbeats += 1,
            _ => panic!("{text:?}"),
        }
        Some(())
    }

    /// Answers with the list locked, so that the subscriber gets all that is published from then on, and nothing before.
    fn subscribe(
        &self,
        stream: &mut TcpStream,
        protocol: Protocol,
        channel: &str,
        answer: impl Fn() -> String,
    ) -> Option<usize> {
        let mut state = self.state.lock().unwrap();
        write_frame(stream, &answer());
        state.subscribers.push(Subscriber {
            protocol,
            channel: channel.to_owned(),
            stream: stream.try_clone().ok()?,
            unacknowledged: 0,
            has_answered_ping: false,
        });
        Some(state.subscribers.len() - 1)
    }

    /// Delivers to all subscribers; false: refused.
    fn publish(&self, channel: &str, marker: &str) -> bool {
        let mut state = self.state.lock().unwrap();
        state.published += 1;
        let is_faulty = state.published == 20;
        if is_faulty && self.fault == Fault::Refuse {
            return false;
        }
        let has_starved = self.fault == Fault::Starve && state.published >= 20;
        let held = state.held.take();
        let id = state.published;
        let is_due = self.fault == Fault::Stray && state.published >= 20 && !state.has_strayed;
        let is_stray = is_due && state.subscribers.first().is_some_and(|first| first.channel != channel);
        state.has_strayed |= is_stray;
        let all = state.subscribers.iter_mut().enumerate();
        let meant = all.filter(|(number, one)| one.channel == channel || is_stray && *number == 0);
        for (number, (_, subscriber)) in meant.enumerate() {
            let mut markers = vec![marker.to_owned()];
            if number == 0 {
                match self.fault {
                    Fault::Lose | Fault::Reorder | Fault::RefuseAndDeliver if is_faulty => markers.clear(),
                    Fault::Double if is_faulty => markers.push(marker.to_owned()),
                    Fault::Alter if is_faulty => markers = vec![format!("{marker}x")],
                    Fault::Disconnect if is_faulty => drop(subscriber.stream.shutdown(Shutdown::Both)),
                    _ if has_starved => markers.clear(),
                    _ => {}
                }
                markers.extend(held.clone());
            }
            if markers.is_empty() {
                continue;
            }
            let frames = markers.iter().map(|marker| match subscriber.protocol {
                Protocol::Centrifugo => {
                    json!({ "push": { "channel": channel, "pub": { "data": { "lab": marker } } } }).to_string()
                }
                Protocol::Text => format!("msg {id} <{marker}>"),
            });
            match subscriber.protocol {
                // Several messages in one frame, as the protocol allows.
                Protocol::Centrifugo => {
                    self.deliver(&mut subscriber.stream, &frames.collect::<Vec<_>>().join("\n"));
                }
                Protocol::Text => {
                    for frame in frames {
                        subscriber.unacknowledged += 1;
                        self.deliver(&mut subscriber.stream, &frame);
                    }
                }
            }
        }
        if is_faulty && self.fault == Fault::Reorder {
            state.held = Some(marker.to_owned());
        }
        !(is_faulty && self.fault == Fault::RefuseAndDeliver)
    }

    fn deliver(&self, stream: &mut TcpStream, text: &str) {
        match self.fault {
            Fault::Fragments => write_fragments(stream, text),
            _ => write_frame(stream, text),
        }
    }

    /// Whether every subscriber has answered the server's ping.
    pub(crate) fn all_have_answered_the_ping(&self) -> bool {
        self.state.lock().unwrap().subscribers.iter().all(|subscriber| subscriber.has_answered_ping)
    }
}

/// A message in three frames, with a ping between them.
fn write_fragments(stream: &mut TcpStream, text: &str) {
    const TEXT: u8 = 1;
    const CONTINUATION: u8 = 0;
    const FINAL: u8 = 0x80;
    const PING: u8 = 0x89;
    let (first, rest) = text.as_bytes().split_at(text.len() / 3);
    let (second, third) = rest.split_at(rest.len() / 2);
    let mut bytes = Vec::new();
    for (head, payload) in [(TEXT, first), (PING, b"there?"), (CONTINUATION, second), (CONTINUATION | FINAL, third)] {
        bytes.push(head);
        match payload.len() {
            length @ 0..126 => bytes.push(length as u8),
            length => {
                bytes.push(126);
                bytes.extend_from_slice(&(length as u16).to_be_bytes());
            }
        }
        bytes.extend_from_slice(payload);
    }
    let _ = stream.write_all(&bytes);
}
