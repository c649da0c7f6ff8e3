//! A popup request is served without the HTTP library when it has the usual form, and through the library otherwise. Callers see no
//! difference, however the bytes are split.

use crate::support::*;
use std::{
    collections::BTreeMap,
    io::{ErrorKind, Read, Write},
    net::TcpStream,
};

const POPUP: &str = r#"{"state":"live","placements":["home"],"variants":[{"id":"a","content":{"title":"Hello"}}],
    "caps":{"total":1}}"#;

#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    headers: BTreeMap<String, String>,
    body: String,
}

struct Connection(TcpStream, Vec<u8>);

impl Connection {
    fn open(server: &Server) -> Self {
        let stream = TcpStream::connect(server.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Connection(stream, Vec::new())
    }

    fn read(&mut self) -> Answer {
        loop {
            let text = String::from_utf8_lossy(&self.1).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let mut lines = head.lines();
                let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
                let pairs = lines.map(|line| line.split_once(": ").unwrap());
                let mut headers: BTreeMap<_, _> = pairs.map(|(n, v)| (n.to_lowercase(), v.to_owned())).collect();
                let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
                if body.len() >= length {
                    let body = body[..length].to_owned();
                    self.1.drain(..head.len() + 4 + length);
                    assert!(headers.remove("date").is_some_and(|date| date.ends_with(" GMT")), "{text}");
                    return Answer { status, headers, body };
                }
            }
            let mut part = [0; 4096];
            let count = self.0.read(&mut part).unwrap();
            assert!(count > 0, "closed after {text:?}");
            self.1.extend_from_slice(&part[..count]);
        }
    }
}

fn question(credential: Option<&str>, more: &str, body: &str) -> String {
    let credential = credential.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
    format!(
        "POST /v1/popups/decide HTTP/1.1\r\nHost: x\r\n{credential}{more}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A header that sends the request through the library.
const LIBRARY: &str = "Expect-Nothing: 1\r\nConnection: keep-alive, x\r\n";

#[test]
fn fast_path_and_router_give_the_same_responses() {
    let server = Server::start().with_people();
    expect_status(&mut server.app(), "PUT", "/v1/popups/hello", POPUP, 201);
    let bad_json = r#"{"user":"#;
    let unknown = r#"{"user":"u","placement":"home","colour":1}"#;
    for (name, credential, body) in [
        ("no key", None, r#"{"user":"u","placement":"home"}"#),
        ("a wrong key", Some("wrong"), r#"{"user":"u","placement":"home"}"#),
        ("no JSON", Some(API_KEY), bad_json),
        ("an unknown field", Some(API_KEY), unknown),
        ("no user", Some(API_KEY), r#"{"placement":"home"}"#),
        ("a bad user", Some(API_KEY), r#"{"user":"a b","placement":"home"}"#),
        ("no such placement", Some(API_KEY), r#"{"user":"u","placement":"nowhere"}"#),
        ("a bad attribute", Some(API_KEY), r#"{"user":"u","placement":"home","attributes":{"a":{}}}"#),
        ("no body", Some(API_KEY), ""),
    ] {
        let ask = |more: &str| {
            let mut connection = Connection::open(&server);
            connection.0.write_all(question(credential, more, body).as_bytes()).unwrap();
            let mut answer = connection.read();
            // A response without a declared body has an empty one.
            answer.headers.remove("content-length");
            answer
        };
        assert_eq!(ask(""), ask(LIBRARY), "{name}");
    }
    for (name, credential, body) in [
        ("no key", None, r#"{"events":[]}"#),
        ("none", Some(API_KEY), r#"{"events":[]}"#),
        ("no JSON", Some(API_KEY), bad_json),
        ("no events", Some(API_KEY), "{}"),
        ("a foreign decision", Some(API_KEY), r#"{"events":[{"id":"e","decision":"x","type":"click"}]}"#),
    ] {
        let report = |more: &str| {
            let mut connection = Connection::open(&server);
            let request = question(credential, more, body).replace("popups/decide", "popup-events");
            connection.0.write_all(request.as_bytes()).unwrap();
            connection.read()
        };
        assert_eq!(report(""), report(LIBRARY), "{name}");
    }
    let to_ann = r#"{"to":{"users":["ann"]},"type":"t","body":1,"client_push_id":"p"}"#;
    for (name, status, credential, body) in [
        ("no key", 401, None, to_ann),
        ("a user's token", 403, Some(token("alice").as_str()), to_ann),
        ("a push", 202, Some(API_KEY), to_ann),
        ("a retry", 200, Some(API_KEY), to_ann),
        (
            "another push of the name",
            409,
            Some(API_KEY),
            r#"{"to":{"all":true},"type":"t","body":1,"client_push_id":"p"}"#,
        ),
        ("a dry run", 200, Some(API_KEY), r#"{"to":{"all":true},"type":"t","body":1,"dry_run":true}"#),
        ("no JSON", 400, Some(API_KEY), bad_json),
        ("nobody", 422, Some(API_KEY), r#"{"to":{},"type":"t","body":1}"#),
        (
            "a fallback without a template",
            422,
            Some(API_KEY),
            r#"{"to":{"all":true},"type":"t","body":1,"fallback":{"after_s":60}}"#,
        ),
    ] {
        let push = |more: &str| {
            let mut connection = Connection::open(&server);
            let request = question(credential, more, body).replace("popups/decide", "push");
            connection.0.write_all(request.as_bytes()).unwrap();
            connection.read()
        };
        let first = push("");
        assert_eq!(first.status, status, "{name}: {first:?}");
        if name == "a push" {
            assert_eq!(push(LIBRARY).status, 200, "it is known by its name");
        } else {
            assert_eq!(push(LIBRARY), first, "{name}");
        }
    }
    // The first of two requests gets the popup, whichever path it takes.
    for (user, first, second) in [("u1", "", LIBRARY), ("u2", LIBRARY, "")] {
        let body = format!(r#"{{"user":"{user}","placement":"home"}}"#);
        for (more, status) in [(first, 200), (second, 204)] {
            let mut connection = Connection::open(&server);
            connection.0.write_all(question(Some(API_KEY), more, &body).as_bytes()).unwrap();
            let answer = connection.read();
            assert_eq!(answer.status, status, "{user} {more:?}");
            assert_eq!(
                answer.body.contains(r#""popup":"hello","variant":"a","content":{"title":"Hello"}"#),
                status == 200
            );
        }
    }
}

#[test]
fn requests_are_answered_however_their_bytes_are_split() {
    let server = Server::start().with_people();
    expect_status(&mut server.app(), "PUT", "/v1/popups/hello", POPUP, 201);
    let ask = |user: &str| question(Some(API_KEY), "", &format!(r#"{{"user":"{user}","placement":"home"}}"#));
    let mut connection = Connection::open(&server);
    for byte in ask("u1").bytes() {
        connection.0.write_all(&[byte]).unwrap();
    }
    assert_eq!(connection.read().status, 200);
    // Several requests at once, answered in order; then another kind of request on the same connection, and a popup request again.
    let other = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
    let all = [ask("u2"), ask("u1"), ask("u3"), other.to_owned(), ask("u4"), ask("u4")].concat();
    connection.0.write_all(all.as_bytes()).unwrap();
    let statuses: Vec<u16> = (0..6).map(|_| connection.read().status).collect();
    assert_eq!(statuses, [200, 204, 200, 200, 200, 204]);
}

#[test]
fn a_websocket_upgrade_may_follow_a_popup_request_and_a_stop_ends_both() {
    let mut server = Server::start().with_people();
    let mut connection = Connection::open(&server);
    let upgrade = "GET /v1/connect HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                   Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let ask = question(Some(API_KEY), "", r#"{"user":"u","placement":"home"}"#);
    connection.0.write_all([ask.as_bytes(), upgrade.as_bytes()].concat().as_slice()).unwrap();
    assert_eq!(connection.read().status, 204);
    assert_eq!(connection.read().status, 101);
    // A masked frame of garbage: the session that begins with the upgrade must get it.
    connection.0.write_all(&[0x81, 0x80 | 2, 0, 0, 0, 0, b'{', b'}']).unwrap();
    let mut text = String::from_utf8_lossy(&connection.1).into_owned();
    while !text.contains("malformed") {
        let mut part = [0; 4096];
        let count = connection.0.read(&mut part).unwrap();
        assert!(count > 0, "closed after {text:?}");
        text.push_str(&String::from_utf8_lossy(&part[..count]));
    }
    // One connection that idles between requests, and one that has not finished its request.
    let mut idle = Connection::open(&server);
    idle.0.write_all(ask.as_bytes()).unwrap();
    assert_eq!(idle.read().status, 204);
    let mut half = Connection::open(&server);
    half.0.write_all(&ask.as_bytes()[..40]).unwrap();
    assert!(server.finish());
    for connection in [&mut idle, &mut half] {
        // With bytes unread, the close is a reset.
        let end = connection.0.read(&mut [0; 1]);
        assert!(matches!(&end, Ok(0)) || end.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
    }
}
