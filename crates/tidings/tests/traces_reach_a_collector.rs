//! With an `otlp_endpoint`, spans of requests and commits are posted to it at the latest when the server stops.
#![cfg(feature = "otel")]
#![allow(clippy::unwrap_used)]

mod support;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
};
use support::*;

/// Answers one OTLP request and returns its path and body.
fn collect(listener: &TcpListener) -> (String, Vec<u8>) {
    let (stream, _) = listener.accept().unwrap();
    let mut reader = BufReader::new(stream);
    let mut request = String::new();
    reader.read_line(&mut request).unwrap();
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
    (request, body)
}

#[test]
fn spans_are_posted_to_the_collector() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let folder = Folder::new();
    let flags = ["serve", "--dev", "--otlp-endpoint", &endpoint, "--otlp-sample-ratio", "1.0"];
    let mut server = Server::start(&mut folder.program(&flags));
    server.http().exchange("GET", "/healthz", b"").unwrap();
    server.signal("TERM");
    let (request, body) = collect(&listener);
    assert!(request.starts_with("POST /v1/traces "), "{request}");
    let body = text(&body);
    for span in ["request", "commit", "/healthz", "tidings"] {
        assert!(body.contains(span), "no {span} among the spans");
    }
    // What it sent is all that it had to send.
    drop(listener);
    server.wait();
}
