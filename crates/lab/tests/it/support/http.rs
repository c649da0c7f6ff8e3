//! As much of HTTP as servers of trials need: requests with a body by its length, answers in JSON.

use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
};

pub(crate) struct Request {
    pub(crate) target: String,
    /// With names in lower case.
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    /// The next request; nothing once the client has closed its connection.
    pub(crate) fn read(reader: &mut BufReader<TcpStream>) -> Option<Self> {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
        let mut request = Request { target: line.split(' ').nth(1)?.to_owned(), headers: Vec::new(), body: Vec::new() };
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok().filter(|count| *count > 0)?;
            let Some((name, value)) = header.split_once(": ") else { break };
            request.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        request.body = vec![0; request.header("content-length").parse().unwrap_or(0)];
        reader.read_exact(&mut request.body).ok()?;
        Some(request)
    }

    /// Empty if there is none.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }
}

pub(crate) fn answer(stream: &mut TcpStream, status: &str, answer: &Value) -> Option<()> {
    let answer = answer.to_string();
    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{answer}", answer.len());
    stream.write_all(answer.as_bytes()).ok()
}
