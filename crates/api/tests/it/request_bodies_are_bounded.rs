//! Request bodies are bounded: each one, all of them together, and the depth of stored JSON.

use crate::support::*;
use std::{
    io::{Read, Write},
    net::TcpStream,
};
use tidings_api::ApiConfig;

const MIB: usize = 1 << 20;

/// Begins a batch request that declares this length, and sends only a part of the body.
fn begin_batch(server: &Server, length: usize, sent: usize) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!(
        "POST /v1/messages/batch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {API_KEY}\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&vec![b' '; sent]).unwrap();
    stream
}

/// The value of a metric; 0 when it is absent.
fn figure(server: &Server, name: &str) -> usize {
    let metrics = expect_status(&mut server.app(), "GET", "/metrics", "", 200);
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map_or(0, |value| value.parse().unwrap())
}

fn held(server: &Server) -> usize {
    figure(server, r#"tidings_queue_depth{queue="http_body_bytes"}"#)
}

fn refused(server: &Server) -> usize {
    figure(server, r#"tidings_refused_total{code="queue_full"}"#)
}

#[test]
fn unfinished_bodies_share_a_budget_and_leave_room_for_sends() {
    let server = Server::with(ApiConfig { body_bytes_max: 16 * MIB, ..ApiConfig::default() }).with_people();
    let mut unfinished: Vec<TcpStream> = Vec::new();
    let mut refusal = loop {
        assert!(unfinished.len() < 4, "there is room for no more than 12 MiB");
        let next = begin_batch(&server, 8 * MIB, 4 * MIB);
        while held(&server) < (unfinished.len() + 1) * 4 * MIB && refused(&server) == 0 {}
        if refused(&server) > 0 {
            break next;
        }
        unfinished.push(next);
    };
    let mut answer = String::new();
    refusal.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("retry-after: 1\r\n"), "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
    assert!(!unfinished.is_empty() && held(&server) <= 12 * MIB);
    let mut app = server.app();
    for _ in 0..10 {
        let longest = format!(r#"{{"conversation":"g","from":"alice","body":"{}"}}"#, "x".repeat(64 * 1024 - 2));
        expect_status(&mut app, "POST", "/v1/messages", &longest, 200);
    }
    drop(unfinished);
    while held(&server) > 0 {}
    let longest = format!(r#"{{"messages":[]}}{}"#, " ".repeat(8_000_000));
    expect_status(&mut app, "POST", "/v1/messages/batch", &longest, 200);
    assert_eq!(held(&server), 0);
}

#[test]
fn each_operation_bounds_its_body_size() {
    let server = Server::start().with_people();
    let mut app = server.app();
    for (method, path, most) in [
        ("POST", "/v1/messages", 128 * 1024),
        ("POST", "/v1/messages/batch", 8 * MIB),
        ("POST", "/v1/popups/decide", MIB),
        ("PUT", "/v1/users/alice/conversations/g/read", MIB),
        ("PUT", "/v1/users", 8 * MIB),
    ] {
        let problem =
            check_refused(&mut app, method, path, &" ".repeat(most + 1), "limit_exceeded", "request body (bytes)");
        assert!(problem.detail.contains(&most.to_string()), "{path}: {}", problem.detail);
        let answer = app.exchange(method, path, " ".repeat(most).as_bytes()).unwrap();
        assert_eq!(answer.status, 400, "{path}: {}", String::from_utf8_lossy(&answer.body));
    }
}

fn nested(levels: usize) -> String {
    "[".repeat(levels) + &"]".repeat(levels)
}

#[test]
fn stored_json_is_refused_beyond_the_depth_limit() {
    let server = Server::start().with_people();
    let mut app = server.app();
    let popup = |data: &str| {
        format!(r#"{{"state":"live","placements":["home"],"variants":[{{"id":"a","content":{{"data":{data}}}}}]}}"#)
    };
    let object = |levels: usize| format!(r#"{{"a":{}}}"#, nested(levels - 1));
    // The deepest JSON that a field may hold; attributes are an object themselves, one level of it.
    type Body<'a> = &'a dyn Fn(usize) -> String;
    let cases: [(&str, &str, Body<'_>, &str); 6] = [
        ("POST", "/v1/messages", &|n| format!(r#"{{"conversation":"g","from":"alice","body":{}}}"#, nested(n)), "body"),
        ("PUT", "/v1/users", &|n| format!(r#"{{"users":[{{"id":"dora","attributes":{}}}]}}"#, object(n)), "attributes"),
        (
            "POST",
            "/v1/conversations",
            &|n| format!(r#"{{"id":"d{n}","kind":"group","owner":"alice","attributes":{}}}"#, object(n)),
            "attributes",
        ),
        ("PATCH", "/v1/conversations/g", &|n| format!(r#"{{"attributes":{}}}"#, object(n)), "attributes"),
        ("POST", "/v1/push", &|n| format!(r#"{{"to":{{"users":["bob"]}},"type":"t","body":{}}}"#, nested(n)), "body"),
        ("PUT", "/v1/popups/deep", &|n| popup(&nested(n)), "data"),
    ];
    for (method, path, request, field) in cases {
        let deepest = app.exchange(method, path, request(64).as_bytes()).unwrap();
        assert!(deepest.status < 300, "{method} {path}: {}", String::from_utf8_lossy(&deepest.body));
        for levels in [65, 100, 127, 200] {
            let problem = check_refused(&mut app, method, path, &request(levels), "limit_exceeded", "64 deep");
            assert!(levels > 100 || problem.detail.contains(field), "{method} {path}: {}", problem.detail);
        }
    }
    let many = r#"{"messages":[{"conversation":"g","from":"alice","body":1},{"conversation":"g","from":"alice","body":DEEP}]}"#;
    let results = expect_status(&mut app, "POST", "/v1/messages/batch", &many.replace("DEEP", &nested(20_000)), 200);
    assert!(results.contains("limit_exceeded") && results.contains("body"), "{results}");
    // Brackets in a string add no depth.
    let text = format!(r#"{{"conversation":"g","from":"alice","body":"{}"}}"#, "[".repeat(20_000));
    expect_status(&mut app, "POST", "/v1/messages", &text, 200);
}

#[test]
fn unfinished_popup_requests_use_the_same_budget() {
    let server = Server::start().with_people();
    let mut questions: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(server.address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let head = "POST /v1/popups/decide HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 20000\r\n";
            write!(stream, "{head}Authorization: Bearer {API_KEY}\r\n\r\n{}", " ".repeat(19_000)).unwrap();
            stream
        })
        .collect();
    while held(&server) < 100 * 19_000 {}
    let question = r#"{"user":"alice","placement":"home"}"#;
    for stream in &mut questions {
        write!(stream, "{question}{}", " ".repeat(1_000 - question.len())).unwrap();
        let mut start = [0; 12];
        stream.read_exact(&mut start).unwrap();
        assert_eq!(&start, b"HTTP/1.1 204");
    }
    while held(&server) > 0 {}
}
