//! With an `otlp_endpoint`, the server posts the spans of requests and commits to it, at the latest when it stops.
#![cfg(feature = "otel")]

use crate::support::*;
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    sync::mpsc::{SyncSender, sync_channel},
};

/// Reads one OTLP request, passes its path and body to the test, and answers it.
fn collect(listener: &TcpListener, told: &SyncSender<(String, Vec<u8>)>) {
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
    told.send((request, body)).unwrap();
    reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
}

#[test]
fn spans_are_posted_to_the_collector() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (told, posted) = sync_channel(1_024);
    std::thread::spawn(move || {
        loop {
            collect(&listener, &told);
        }
    });
    let folder = Folder::new();
    let flags = ["serve", "--dev", "--otlp-endpoint", &endpoint, "--otlp-sample-ratio", "1.0"];
    let mut server = Server::start(&mut folder.program(&flags));
    server.http().exchange("GET", "/healthz", b"").unwrap();
    server.signal("TERM");
    server.wait();
    // A slow server may have posted some of the spans earlier.
    let posted: Vec<(String, Vec<u8>)> = posted.try_iter().collect();
    assert!(posted.iter().all(|(request, _)| request.starts_with("POST /v1/traces ")), "{posted:?}");
    let spans: String = posted.iter().map(|(_, body)| text(body)).collect();
    for span in ["request", "commit", "/healthz", "tidings"] {
        assert!(spans.contains(span), "no {span} among the spans");
    }
}
