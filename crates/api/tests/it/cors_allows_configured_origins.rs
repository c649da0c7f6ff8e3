//! CORS: which origins' pages may use the API from a browser, and which headers the browser gets.

use crate::support::*;
use std::{
    io::{Read, Write},
    net::TcpStream,
};
use tidings_api::{ApiConfig, cors::Cors};

const PAGE: &str = "https://app.example.com";
const OTHER: &str = "https://evil.example.com";

fn server(origins: &[&str], credentials: bool) -> Server {
    let origins: Vec<String> = origins.iter().map(|origin| (*origin).to_owned()).collect();
    let cors = Cors::new(&origins, credentials, 600).unwrap();
    Server::with(ApiConfig { cors, ..ApiConfig::default() }).with_people()
}

/// Sends a request on a connection of its own, and returns the head of the response in lower case.
fn head_of(server: &Server, request: &str) -> String {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut read = Vec::new();
    let mut part = [0; 4_096];
    loop {
        let count = stream.read(&mut part).unwrap();
        assert!(count > 0, "closed without an answer: {request}");
        read.extend_from_slice(&part[..count]);
        if let Some((head, _)) = String::from_utf8_lossy(&read).split_once("\r\n\r\n") {
            return head.to_ascii_lowercase();
        }
    }
}

fn ask(server: &Server, line: &str, headers: &[(&str, &str)], body: &str) -> String {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    head_of(server, &format!("{line} HTTP/1.1\r\nHost: tidings\r\n{headers}Content-Length: {length}\r\n\r\n{body}"))
}

fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

const ALLOWED: &str = "access-control-allow-origin";
const KEY: (&str, &str) = ("Authorization", "Bearer the-key-of-the-app");
const JSON: (&str, &str) = ("Content-Type", "application/json");

#[test]
fn a_preflight_is_answered_without_a_credential() {
    let server = server(&[PAGE, "http://localhost:5173"], false);
    let preflight = |origin: &str, path: &str| {
        let headers = [
            ("Origin", origin),
            ("Access-Control-Request-Method", "POST"),
            ("Access-Control-Request-Headers", "authorization,content-type"),
        ];
        ask(&server, &format!("OPTIONS {path}"), &headers, "")
    };
    for path in ["/v1/messages", "/v1/popups/decide", "/v1/users/me/conversations", "/v1/nowhere"] {
        let head = preflight(PAGE, path);
        assert!(head.starts_with("http/1.1 204"), "{path}: {head}");
        assert_eq!(header(&head, ALLOWED), Some(PAGE), "{head}");
        assert!(header(&head, "access-control-allow-methods").unwrap().contains("put"), "{head}");
        let allowed = header(&head, "access-control-allow-headers").unwrap();
        assert!(allowed.contains("authorization") && allowed.contains("content-type"), "{head}");
        assert!(allowed.contains("last-event-id"), "an event stream resumes: {head}");
        assert_eq!(header(&head, "access-control-max-age"), Some("600"), "{head}");
        assert!(header(&head, "vary").unwrap().contains("origin"), "{head}");
        assert_eq!(header(&head, "access-control-allow-credentials"), None, "{head}");
    }
    let head = preflight(OTHER, "/v1/messages");
    assert!(head.starts_with("http/1.1 403") && header(&head, ALLOWED).is_none(), "{head}");
}

#[test]
fn every_response_carries_cors_headers_errors_included() {
    let server = server(&[PAGE], true);
    let send = r#"{"conversation":"g","from":"alice","body":1}"#;
    let question = r#"{"user":"alice","placement":"home"}"#;
    let long = " ".repeat(200_000);
    for (line, headers, body, status) in [
        ("POST /v1/messages", &[KEY, JSON][..], send, 200),
        ("POST /v1/messages", &[JSON], send, 401),
        ("POST /v1/messages", &[KEY, JSON], "{", 400),
        ("POST /v1/messages", &[KEY, JSON], &long, 413),
        ("POST /v1/popups/decide", &[KEY, JSON], question, 204),
        ("POST /v1/popups/decide", &[JSON], question, 401),
        ("POST /v1/popup-events", &[KEY, JSON], r#"{"events":[]}"#, 202),
        ("GET /v1/users/nobody", &[KEY], "", 404),
        ("GET /v1/users/nobody", &[], "", 401),
        ("GET /healthz", &[], "", 200),
        ("TRACE /v1/messages", &[], "", 405),
    ] {
        let with = |origin| ask(&server, line, &[headers, &[("Origin", origin)]].concat(), body);
        let head = with(PAGE);
        assert!(head.starts_with(&format!("http/1.1 {status}")), "{line}: {head}");
        assert_eq!(header(&head, ALLOWED), Some(PAGE), "{line}: {head}");
        assert_eq!(header(&head, "access-control-allow-credentials"), Some("true"), "{line}: {head}");
        assert!(header(&head, "access-control-expose-headers").unwrap().contains("retry-after"), "{line}: {head}");
        assert_eq!(header(&head, "vary"), Some("origin"), "{line}: {head}");
        let head = with(OTHER);
        assert!(head.starts_with(&format!("http/1.1 {status}")), "{line}: {head}");
        assert_eq!((header(&head, ALLOWED), header(&head, "vary")), (None, Some("origin")), "{line}: {head}");
    }
}

#[test]
fn the_wildcard_allows_every_origin() {
    let server = server(&["*"], false);
    let head = ask(&server, "GET /v1/users/nobody", &[KEY, ("Origin", OTHER)], "");
    assert_eq!(header(&head, ALLOWED), Some("*"), "{head}");
}

#[test]
fn no_cors_headers_are_sent_without_configured_origins() {
    let server = server(&[], false);
    for line in ["GET /v1/users/nobody", "OPTIONS /v1/messages", "POST /v1/popups/decide"] {
        let head = ask(&server, line, &[KEY, ("Origin", PAGE), ("Access-Control-Request-Method", "POST")], "");
        assert!(!head.contains("access-control") && !head.contains("vary"), "{line}: {head}");
    }
}

#[test]
fn a_websocket_upgrade_from_another_origin_is_refused() {
    let upgrade = |server: &Server, origin: Option<&str>| {
        let mut headers = vec![
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        headers.extend(origin.map(|origin| ("Origin", origin)));
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let request = format!("GET /v1/connect HTTP/1.1\r\nHost: tidings\r\nConnection: Upgrade\r\n{headers}\r\n");
        head_of(server, &request)[9..12].parse::<u16>().unwrap()
    };
    let some = server(&[PAGE], false);
    assert_eq!(upgrade(&some, None), 101);
    assert_eq!(upgrade(&some, Some(PAGE)), 101);
    assert_eq!(upgrade(&some, Some("http://tidings")), 101, "a page of the server's own");
    for other in [OTHER, "null", "http://tidings.example.com", "https://app.example.com.evil.com"] {
        assert_eq!(upgrade(&some, Some(other)), 403, "{other}");
    }
    assert_eq!(upgrade(&server(&["*"], false), Some(OTHER)), 101);
    assert_eq!(upgrade(&server(&[], false), Some(OTHER)), 101, "nothing is looked at when nothing is set");
}
