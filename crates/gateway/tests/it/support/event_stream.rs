//! A client of event streams on plain sockets: what a session over them is seen by.
#![allow(unreachable_pub)]

use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
};
use tidings_protocol::frames::ServerFrame;

use super::support::PATIENCE;

/// One event: its name, its id if it has one, and its data. A comment is an event of the name `:`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub name: String,
    pub id: Option<String>,
    pub data: String,
}

pub struct EventStream {
    address: SocketAddr,
    socket: BufReader<TcpStream>,
    pub head: String,
    /// Bytes of the chunk that is being read; of a body without chunks, as many as come.
    left: Option<usize>,
    pub ends_with_last_chunk: bool,
    pub stream: String,
    pub secret: String,
    number: u64,
    pub cursor: Option<String>,
}

/// The answer to a request, to its end.
pub fn exchange(address: SocketAddr, request: &[u8]) -> (u16, String) {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.write_all(request).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

/// A request to open a stream.
pub fn open_request(version: &str, token: &str, headers: &str, bind: &[(&str, &str)]) -> String {
    let query: Vec<String> = bind.iter().map(|(name, value)| format!("{name}={}", value.replace(' ', "%20"))).collect();
    let query = query.join("&");
    format!("GET /v1/stream?{query} {version}\r\nhost: x\r\nauthorization: Bearer {token}\r\n{headers}\r\n")
}

impl EventStream {
    /// Opens a stream and reads until the session is bound.
    pub fn open(address: SocketAddr, token: &str, device: &str, cursor: Option<&str>) -> Self {
        let mut stream = Self::ask(address, &open_request("HTTP/1.1", token, "", &bind_of(device, cursor)));
        stream.begin();
        stream
    }

    /// Sends the request, and reads the head of the response.
    pub fn ask(address: SocketAddr, request: &str) -> Self {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(request.as_bytes()).unwrap();
        let mut socket = BufReader::new(socket);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(socket.read_line(&mut head).unwrap() > 0, "ended within the head: {head}");
        }
        let left = head.contains("transfer-encoding: chunked").then_some(0);
        let (stream, secret) = Default::default();
        let ends_with_last_chunk = false;
        EventStream { address, socket, head, left, ends_with_last_chunk, stream, secret, number: 0, cursor: None }
    }

    /// Reads `open` and `bound`.
    pub fn begin(&mut self) -> ServerFrame {
        let open = self.event().unwrap();
        assert_eq!(open.name, "open", "{open:?}");
        let open: Value = serde_json::from_str(&open.data).unwrap();
        self.stream = open["stream"].as_str().unwrap().to_owned();
        self.secret = open["secret"].as_str().unwrap().to_owned();
        let bound = self.frame();
        let ServerFrame::Bound(frame) = &bound else { panic!("{bound:?}") };
        self.cursor = Some(frame.cursor.clone());
        bound
    }

    fn byte(&mut self) -> Option<u8> {
        if self.left == Some(0) {
            let mut line = String::new();
            self.socket.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                // The end of the chunk before, or of the connection without a last chunk.
                line.clear();
                if self.socket.read_line(&mut line).unwrap() == 0 {
                    return None;
                }
            }
            let length = usize::from_str_radix(line.trim(), 16).unwrap();
            self.ends_with_last_chunk = length == 0;
            if length == 0 {
                return None;
            }
            self.left = Some(length);
        }
        let mut byte = [0];
        match self.socket.read(&mut byte) {
            Ok(0) | Err(_) => return None,
            Ok(_) => {}
        }
        self.left = self.left.map(|left| left - 1);
        Some(byte[0])
    }

    fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        loop {
            match self.byte()? {
                b'\n' => return Some(String::from_utf8(line).unwrap()),
                byte => line.push(byte),
            }
        }
    }

    /// The next event or comment. `None`: the stream has ended.
    pub fn event(&mut self) -> Option<Event> {
        let mut event = Event { name: String::new(), id: None, data: String::new() };
        loop {
            let line = self.line()?;
            match line.split_once(": ") {
                None if line == ":" => event.name = ":".into(),
                None => {
                    assert_eq!(line, "");
                    self.cursor = event.id.clone().or(self.cursor.take());
                    return Some(event);
                }
                Some(("event", name)) => event.name = name.to_owned(),
                Some(("id", id)) => event.id = Some(id.to_owned()),
                Some(("data", data)) => event.data = data.to_owned(),
                Some(other) => panic!("{other:?}"),
            }
        }
    }

    /// The next frame; comments and lines of the user's list are skipped.
    #[track_caller]
    pub fn frame(&mut self) -> ServerFrame {
        loop {
            let event = self.event().expect("a frame before the end");
            if event.name.is_empty() {
                let frame = serde_json::from_str(&event.data).unwrap();
                if !matches!(frame, ServerFrame::Conversation { .. }) {
                    return frame;
                }
            }
            assert!(["", ":", "probe"].contains(&&*event.name), "{event:?}");
        }
    }

    /// The code and the reason of the last event.
    #[track_caller]
    pub fn close(&mut self) -> (u64, String) {
        loop {
            let event = self.event().expect("a close before the end");
            if event.name == "close" {
                let close: Value = serde_json::from_str(&event.data).unwrap();
                assert_eq!(self.event(), None, "nothing follows");
                return (close["code"].as_u64().unwrap(), close["reason"].as_str().unwrap().to_owned());
            }
        }
    }

    /// Sends frames as the next request. Returns the answer.
    pub fn post(&mut self, frames: &[Value]) -> (u16, Value) {
        self.number += 1;
        let lines: Vec<String> = frames.iter().map(Value::to_string).collect();
        self.post_numbered(self.number, lines.join("\n").as_bytes())
    }

    pub fn post_numbered(&self, number: u64, lines: &[u8]) -> (u16, Value) {
        post(self.address, &self.stream, number, &self.secret, lines)
    }

    /// Sends a message, and returns the answer to it.
    #[track_caller]
    pub fn say(&mut self, conversation: &str, text: &str) {
        let send = json!({ "t": "send", "ref": 1, "conversation": conversation, "body": text });
        assert_eq!(self.post(&[send]).0, 202);
    }
}

pub fn bind_of<'a>(device: &'a str, cursor: Option<&'a str>) -> Vec<(&'static str, &'a str)> {
    let cursor = cursor.map(|cursor| ("cursor", cursor));
    [("device_id", device)].into_iter().chain(cursor).collect()
}

/// Sends frames to a stream.
pub fn post(address: SocketAddr, stream: &str, number: u64, secret: &str, lines: &[u8]) -> (u16, Value) {
    let head = format!(
        "POST /v1/stream/{stream}?number={number} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n",
        lines.len()
    );
    let (status, body) = exchange(address, &[head.as_bytes(), lines].concat());
    (status, serde_json::from_str(&body).unwrap())
}
