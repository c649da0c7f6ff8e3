//! `/v1/connect`: the handshake is checked, then the gateway gets the socket with all bytes that were read.

use crate::support::*;
use std::{
    io::{Read, Write},
    net::TcpStream,
};
use tidings_client::session::Session;
use tidings_protocol::{
    frames::ServerFrame,
    http::SendRequest,
    ws::{Data, OpCode, put_client_frame},
};

const HANDSHAKE: &[u8] =
    b"GET /v1/connect HTTP/1.1\r\nHost: example.org\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// Reads until this has come, or the server closes. Answers all that came.
fn read_until(stream: &mut TcpStream, wanted: &str) -> String {
    let (mut read, mut part) = (String::new(), [0; 4_096]);
    while !read.contains(wanted) {
        match stream.read(&mut part).unwrap() {
            0 => break,
            count => read.push_str(&String::from_utf8_lossy(&part[..count])),
        }
    }
    read
}

#[test]
fn a_message_over_http_reaches_a_bound_session() {
    let server = Server::start().with_people();
    let mut session = Session::open(server.address, &token("bob"), "d1", None).unwrap();
    let request: SendRequest =
        serde_json::from_str(r#"{"conversation":"g","from":"alice","body":{"text":"hello"}}"#).unwrap();
    let receipt = server.app().send(&request).unwrap();
    let frame = session.next_where(PATIENCE, |frame| matches!(frame, ServerFrame::Messages { .. }));
    let Some(ServerFrame::Messages { entries, .. }) = frame.unwrap() else { panic!("nothing came") };
    assert_eq!((entries[0].seq, entries[0].body.get()), (receipt.seq, r#"{"text":"hello"}"#));
    let online = expect_status(&mut server.app(), "POST", "/v1/presence/query", r#"{"users":["bob"]}"#, 200);
    assert!(online.contains(r#""online":true"#), "{online}");
}

#[test]
fn requests_that_are_no_handshake_are_refused() {
    let server = Server::start();
    let mut app = server.app();
    check_refused(&mut app, "GET", "/v1/connect", "", "malformed", "Upgrade");
    check_refused(&mut app, "POST", "/v1/connect", "{}", "method_not_allowed", "GET");
    server.engine.begin_drain();
    assert!(Session::connect(server.address).is_err());
}

#[test]
fn what_a_client_sends_before_it_is_accepted_is_answered_wherever_it_is_cut() {
    let mut server = Server::start().with_people();
    let mut bytes = HANDSHAKE.to_vec();
    let bind = format!(r#"{{"t":"bind","token":"{}","device_id":"d"}}"#, token("bob"));
    put_client_frame(&mut bytes, OpCode::Data(Data::Text), bind.as_bytes(), [1, 2, 3, 4]);
    let upgraded = HANDSHAKE.len();
    for cut in [0, 1, 20, upgraded - 1, upgraded, upgraded + 1, bytes.len() - 1, bytes.len()] {
        let mut stream = server.listen_once_connected(|address| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&bytes[..cut]).unwrap();
            stream
        });
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&bytes[cut..]).unwrap();
        let answer = read_until(&mut stream, r#""t":"bound""#);
        // The example of RFC 6455, 1.3.
        let expected = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
            sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n";
        assert!(answer.starts_with(expected) && answer.contains(r#""t":"bound""#), "cut at {cut}: {answer}");
    }
}

#[test]
fn other_requests_that_are_there_at_once_are_answered_whole() {
    let mut server = Server::start().with_people();
    let request = format!("GET /v1/users/bob HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {API_KEY}\r\n\r\n");
    let close = request.replace("Host: h", "Host: h\r\nConnection: close");
    // As one that no read of the listener's takes whole.
    let long = close.replace("Host: h", &format!("Host: h\r\nX-Padding: {}", "p".repeat(8_000)));
    for (requests, count) in [(close.clone(), 1), (request + &close, 2), (long, 1)] {
        let mut stream = server.listen_once_connected(|address| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(requests.as_bytes()).unwrap();
            stream
        });
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let answers = read_until(&mut stream, "no such text");
        assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), count, "{answers}");
    }
}

#[test]
fn a_handshake_that_is_there_at_once_is_refused_while_the_server_drains() {
    let mut server = Server::start();
    server.engine.begin_drain();
    let mut stream = server.listen_once_connected(|address| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(HANDSHAKE).unwrap();
        stream
    });
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let answer = read_until(&mut stream, r#""code":"draining""#);
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains(r#""code":"draining""#), "{answer}");
}
