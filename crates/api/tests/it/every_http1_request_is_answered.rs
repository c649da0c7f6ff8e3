//! Every request gets its response at once, complete and in order, whatever follows it and however its bytes are split. Responses are read
//! by a parser of this file's own.

use crate::support::*;
use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
};

/// The parts of a response that tests check.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    body: String,
}

/// A client that writes given bytes, and parses responses by RFC 9112.
struct Caller {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Caller {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Caller { stream, read: Vec::new() }
    }

    /// False at the end of the stream.
    fn more(&mut self) -> bool {
        let mut part = [0; 4_096];
        match self.stream.read(&mut part) {
            Ok(count) => {
                self.read.extend_from_slice(&part[..count]);
                count > 0
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                panic!("no answer in time; so far {:?}", self.text())
            }
            Err(error) => panic!("{error}; so far {:?}", self.text()),
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.read).into_owned()
    }

    /// Reads up to and with `end`; gives back what stands before it.
    fn until(&mut self, end: &str) -> Option<String> {
        loop {
            if let Some(at) = self.text().find(end) {
                let rest = self.read.split_off(at + end.len());
                let found = std::mem::replace(&mut self.read, rest);
                return Some(String::from_utf8(found[..at].to_vec()).unwrap());
            }
            if !self.more() {
                assert_eq!(self.text(), "", "an answer broke off");
                return None;
            }
        }
    }

    fn exactly(&mut self, count: usize) -> String {
        while self.read.len() < count {
            assert!(self.more(), "a body broke off: {:?}", self.text());
        }
        let rest = self.read.split_off(count);
        String::from_utf8(std::mem::replace(&mut self.read, rest)).unwrap()
    }

    /// The next final response; `None` at the end of the stream.
    fn answer(&mut self) -> Option<Answer> {
        loop {
            let head = self.until("\r\n\r\n")?;
            let status: u16 = head.strip_prefix("HTTP/1.").unwrap()[2..5].parse().unwrap();
            if status == 100 {
                continue;
            }
            let header = |name: &str| {
                let mut lines = head.lines().skip(1).filter_map(|line| line.split_once(':'));
                lines.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_owned())
            };
            let body = match header("content-length") {
                Some(length) => self.exactly(length.parse().unwrap()),
                None if header("transfer-encoding").is_some() => self.chunks(),
                None => String::new(),
            };
            return Some(Answer { status, body });
        }
    }

    fn chunks(&mut self) -> String {
        let mut body = String::new();
        loop {
            let size = usize::from_str_radix(&self.until("\r\n").unwrap(), 16).unwrap();
            body += &self.exactly(size);
            assert_eq!(self.exactly(2), "\r\n");
            if size == 0 {
                return body;
            }
        }
    }
}

/// How a request declares its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Length,
    Chunks,
    ChunksWithTrailers,
}

/// A request, and the status of its response.
#[derive(Debug, Clone, Copy)]
struct TestRequest {
    method: &'static str,
    path: &'static str,
    body: &'static str,
    key: &'static str,
    status: u16,
}

const SEND: TestRequest = TestRequest {
    method: "POST",
    path: "/v1/messages",
    body: r#"{"conversation":"g","from":"alice","type":"text","body":{"text":"hello"}}"#,
    key: API_KEY,
    status: 200,
};
/// On the fast path.
const DECIDE: TestRequest =
    TestRequest { path: "/v1/popups/decide", body: r#"{"user":"alice","placement":"home"}"#, status: 204, ..SEND };
const REPORT: TestRequest = TestRequest {
    path: "/v1/popup-events",
    body: r#"{"events":[{"id":"e1","decision":"unknown","type":"click"}]}"#,
    status: 422,
    ..SEND
};
const READ: TestRequest =
    TestRequest { method: "GET", path: "/v1/conversations/g/messages?limit=1", body: "", status: 200, key: API_KEY };
const HEALTH: TestRequest = TestRequest { path: "/healthz", ..READ };
const NOWHERE: TestRequest = TestRequest { path: "/v1/nowhere", status: 404, ..SEND };
/// Refused before its body is read.
const STRANGER: TestRequest = TestRequest { key: "a stranger's", status: 401, ..SEND };
const STRANGE_QUESTION: TestRequest = TestRequest { key: "a stranger's", status: 401, ..DECIDE };

impl TestRequest {
    /// The request's bytes, with these lines added to the head.
    fn request(self, version: &str, headers: &str, framing: Framing) -> Vec<u8> {
        let TestRequest { method, path, body, key, .. } = self;
        let mut text =
            format!("{method} {path} HTTP/{version}\r\nHost: tidings\r\nAuthorization: Bearer {key}\r\n{headers}");
        if body.is_empty() {
            return (text + "\r\n").into();
        }
        text += "Content-Type: application/json\r\n";
        let (first, second) = body.split_at(body.len() / 2);
        let (one, two) = (first.len(), second.len());
        text += &match framing {
            Framing::Length => format!("Content-Length: {}\r\n\r\n{body}", body.len()),
            Framing::Chunks => {
                format!(
                    "Transfer-Encoding: chunked\r\n\r\n{one:x}\r\n{first}\r\n{two:X};last=yes\r\n{second}\r\n0\r\n\r\n"
                )
            }
            Framing::ChunksWithTrailers => format!(
                "Transfer-Encoding: chunked\r\nTrailer: Sum\r\n\r\n{one:x}\r\n{first}\r\n{two:x}\r\n{second}\r\n0\r\nSum: 7\r\n\r\n"
            ),
        };
        text.into()
    }
}

/// What follows a request on the connection.
#[derive(Debug, Clone, Copy)]
enum Then {
    Nothing,
    LineEnd,
    LineEnds,
    /// The same again, in the same packet.
    Same,
    /// A request that takes the other path (fast path or library).
    Other,
    /// The beginning of another request; its rest is sent once the first is answered.
    PartOfLine,
    PartOfHead,
    PartOfBody,
    Garbage,
    GarbageOfHeads,
    HalfClose,
    LineEndAndHalfClose,
    PartAndHalfClose,
}

const THENS: [Then; 13] = [
    Then::Nothing,
    Then::LineEnd,
    Then::LineEnds,
    Then::Same,
    Then::Other,
    Then::PartOfLine,
    Then::PartOfHead,
    Then::PartOfBody,
    Then::Garbage,
    Then::GarbageOfHeads,
    Then::HalfClose,
    Then::LineEndAndHalfClose,
    Then::PartAndHalfClose,
];

/// How the bytes are split into packets.
#[derive(Debug, Clone, Copy)]
enum Cut {
    Whole,
    /// Between the request and what follows it.
    After,
    /// Within the head, between head and body, within the body, after the request, and within what follows it.
    Odd,
}

fn cut(request: &[u8], after: &[u8], cut: Cut) -> Vec<Vec<u8>> {
    let whole = [request, after].concat();
    let head = request.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let mut at = match cut {
        Cut::Whole => vec![],
        Cut::After => vec![request.len()],
        Cut::Odd => {
            let body = (head + request.len()) / 2;
            vec![3, head - 3, head, body, request.len() - 1, request.len(), (request.len() + whole.len()) / 2]
        }
    };
    at.extend([0, whole.len()]);
    at.sort_unstable();
    at.dedup();
    at.windows(2).map(|ends| whole[ends[0]..ends[1]].to_vec()).collect()
}

/// Writes a request and what follows it, and checks that everything is answered before anything else is written.
fn check(server: &Server, pacer: &mut Caller, request: &[u8], asked: TestRequest, then: Then, by: Cut) {
    let shape = format!("{} {} {then:?} {by:?}\n{}", asked.method, asked.path, String::from_utf8_lossy(request));
    let follower = if asked.path == DECIDE.path { SEND } else { DECIDE };
    let other = follower.request("1.1", "", Framing::Length);
    let head = other.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let part = match then {
        Then::PartOfLine | Then::PartAndHalfClose => 7,
        Then::PartOfHead => head - 9,
        Then::PartOfBody => other.len() - 5,
        _ => 0,
    };
    // The bytes that follow the request, and the responses that they get.
    let (after, also): (&[u8], &[u16]) = match then {
        Then::Nothing | Then::HalfClose => (b"", &[]),
        Then::LineEnd | Then::LineEndAndHalfClose => (b"\r\n", &[]),
        Then::LineEnds => (b"\r\n\r\n", &[]),
        Then::Same => (request, &[asked.status]),
        Then::Other => (&other, &[follower.status]),
        Then::PartOfLine | Then::PartOfHead | Then::PartOfBody | Then::PartAndHalfClose => (&other[..part], &[]),
        Then::Garbage => (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", &[400]),
        Then::GarbageOfHeads => (b"what is this\r\nno request\r\n\r\n", &[400]),
    };
    let mut caller = Caller::connect(server.address);
    for packet in cut(request, after, by) {
        caller.stream.write_all(&packet).unwrap();
        // By now the server has had time to answer.
        pacer.stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: tidings\r\n\r\n").unwrap();
        assert_eq!(pacer.answer().unwrap().status, 200);
    }
    let half_closed = matches!(then, Then::HalfClose | Then::LineEndAndHalfClose | Then::PartAndHalfClose);
    if half_closed {
        caller.stream.shutdown(Shutdown::Write).unwrap();
    }
    for expected in std::iter::once(&asked.status).chain(also) {
        let answer = caller.answer().unwrap_or_else(|| panic!("closed without an answer: {shape}"));
        assert_eq!(answer.status, *expected, "{shape}{}", answer.body);
        if *expected == 200 && asked.path == SEND.path && answer.status == asked.status {
            assert!(answer.body.contains("\"seq\":"), "{shape}{}", answer.body);
        }
    }
    if part > 0 && !half_closed {
        caller.stream.write_all(&other[part..]).unwrap();
        let answer = caller.answer().unwrap_or_else(|| panic!("the rest was not answered: {shape}"));
        assert_eq!(answer.status, follower.status, "{shape}{}", answer.body);
    } else if half_closed || also == [400] {
        assert_eq!(caller.answer(), None, "{shape}");
    }
}

fn people() -> Server {
    Server::start().with_people()
}

#[test]
fn every_request_is_answered_whatever_follows_it() {
    let server = people();
    let mut pacer = Caller::connect(server.address);
    let mut shapes = 0;
    for asked in [SEND, DECIDE, REPORT, READ, HEALTH, NOWHERE, STRANGER, STRANGE_QUESTION] {
        for then in THENS {
            for by in [Cut::Whole, Cut::After, Cut::Odd] {
                check(&server, &mut pacer, &asked.request("1.1", "", Framing::Length), asked, then, by);
                shapes += 1;
            }
        }
    }
    assert!(shapes >= 120, "{shapes}");
}

#[test]
fn bodies_in_chunks_are_answered_whatever_follows_them() {
    let server = people();
    let mut pacer = Caller::connect(server.address);
    for asked in [SEND, DECIDE] {
        for framing in [Framing::Chunks, Framing::ChunksWithTrailers] {
            for then in THENS {
                for by in [Cut::Whole, Cut::Odd] {
                    check(&server, &mut pacer, &asked.request("1.1", "", framing), asked, then, by);
                }
            }
        }
    }
}

#[test]
fn a_body_sent_after_100_continue_is_answered() {
    let server = people();
    let mut pacer = Caller::connect(server.address);
    for asked in [SEND, DECIDE] {
        for framing in [Framing::Length, Framing::Chunks] {
            for then in THENS {
                let request = asked.request("1.1", "Expect: 100-continue\r\n", framing);
                check(&server, &mut pacer, &request, asked, then, Cut::Whole);
                check(&server, &mut pacer, &request, asked, then, Cut::Odd);
            }
        }
    }
}

#[test]
fn a_request_with_connection_close_is_answered_before_the_close() {
    let server = people();
    for asked in [SEND, DECIDE, REPORT, READ, HEALTH, NOWHERE, STRANGER, STRANGE_QUESTION] {
        for (version, headers) in [("1.1", "Connection: close\r\n"), ("1.0", ""), ("1.0", "Connection: close\r\n")] {
            for after in ["", "\r\n", "GET /he", "GET /healthz HTTP/1.1\r\n\r\n", "\x16\x03\x01"] {
                for half_close in [false, true] {
                    let mut caller = Caller::connect(server.address);
                    let mut bytes = asked.request(version, headers, Framing::Length);
                    bytes.extend_from_slice(after.as_bytes());
                    caller.stream.write_all(&bytes).unwrap();
                    if half_close {
                        caller.stream.shutdown(Shutdown::Write).unwrap();
                    }
                    let shape = format!("{} HTTP/{version} {headers:?} {after:?} {half_close}", asked.path);
                    assert_eq!(caller.answer().map(|answer| answer.status), Some(asked.status), "{shape}");
                    assert_eq!(caller.answer(), None, "{shape}");
                }
            }
        }
    }
}

#[test]
fn http_1_0_is_kept_alive_when_asked() {
    let server = people();
    for asked in [SEND, DECIDE, READ] {
        let mut caller = Caller::connect(server.address);
        for _ in 0..3 {
            caller.stream.write_all(&asked.request("1.0", "Connection: keep-alive\r\n", Framing::Length)).unwrap();
            assert_eq!(caller.answer().map(|answer| answer.status), Some(asked.status), "{}", asked.path);
        }
    }
}

#[test]
fn a_hundred_pipelined_requests_are_answered_in_order() {
    let server = people();
    for asked in [SEND, DECIDE] {
        let mut caller = Caller::connect(server.address);
        let mut bytes: Vec<u8> = (0..100).flat_map(|_| asked.request("1.1", "", Framing::Length)).collect();
        bytes.extend_from_slice(b"POST /v1/mes");
        caller.stream.write_all(&bytes).unwrap();
        let seqs: Vec<u64> = (0..100)
            .map(|_| {
                let answer = caller.answer().unwrap();
                assert_eq!(answer.status, asked.status);
                let seq = answer.body.split_once("\"seq\":").map_or("0", |(_, rest)| rest);
                seq.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
            })
            .collect();
        assert!(seqs.is_sorted(), "{seqs:?}");
    }
}

/// Writes as much as the server accepts, as a client does that has not seen the refusal yet; then reads.
fn refused_early(server: &Server, head: &str, body_bytes: usize) -> Answer {
    let mut caller = Caller::connect(server.address);
    caller.stream.write_all(head.as_bytes()).unwrap();
    let part = [b' '; 64 * 1024];
    for _ in 0..body_bytes.div_ceil(part.len()) {
        caller.stream.write_all(&part).expect("the connection was reset while it was written to");
    }
    let answer = caller.answer().expect("closed without an answer");
    assert_eq!(caller.answer(), None, "{answer:?}");
    answer
}

#[test]
fn a_client_refused_while_still_sending_reads_the_refusal() {
    let server = people();
    let long = "x".repeat(200 * 1024);
    let authorization = format!("Authorization: Bearer {API_KEY}\r\nContent-Type: application/json\r\n");
    let head = |path: &str, length: usize| {
        format!("POST {path} HTTP/1.1\r\nHost: tidings\r\n{authorization}Content-Length: {length}\r\n\r\n")
    };
    let cases = [
        ("a head that is too long", format!("GET /healthz HTTP/1.1\r\nHost: tidings\r\nX: {long}\r\n\r\n"), 0, 431),
        ("a path that is too long", format!("GET /{long} HTTP/1.1\r\nHost: tidings\r\n\r\n"), 0, 431),
        ("a question whose head is too long", format!("POST /v1/popups/decide HTTP/1.1\r\nX: {long}\r\n\r\n"), 0, 431),
        ("no request", format!("what is this\r\n{long}"), 0, 400),
        ("another protocol", format!("\x16\x03\x01{long}"), 0, 400),
        ("a body that is too long", head("/v1/messages", 20 << 20), 20 << 20, 413),
        ("a batch that is too long", head("/v1/messages/batch", 20 << 20), 20 << 20, 413),
        ("a question that is too long", head("/v1/popups/decide", 20 << 20), 20 << 20, 413),
        (
            "a stranger's body",
            format!("POST /v1/messages HTTP/1.1\r\nHost: tidings\r\nContent-Length: {}\r\n\r\n", 8 << 20),
            8 << 20,
            401,
        ),
        ("a body for nothing", head("/v1/nowhere", 8 << 20), 8 << 20, 404),
    ];
    for (name, head, body_bytes, status) in cases {
        let answer = refused_early(&server, &head, body_bytes);
        assert_eq!(answer.status, status, "{name}");
        // The refusal has the same form, whether the library or the server makes it.
        let problem: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(problem["status"], status, "{name}: {problem}");
        assert!(problem["code"].is_string() && problem["detail"].is_string(), "{name}: {problem}");
    }
}

#[test]
fn a_request_without_a_host_or_with_two_is_refused() {
    let server = people();
    let key = API_KEY;
    let body = r#"{"placement":"home","user":"alice"}"#;
    let heads = [
        ("GET /v1/users/alice", "", 200),
        ("GET /healthz", "", 200),
        ("POST /v1/popups/decide", body, 204),
        ("POST /v1/popup-events", r#"{"events":[]}"#, 202),
    ];
    for (line, body, good) in heads {
        for (version, hosts, status) in [
            ("1.1", "Host: x\r\n", good),
            ("1.1", "Host: x:80\r\n", good),
            ("1.1", "", 400),
            ("1.1", "Host: x\r\nHost: x\r\n", 400),
            ("1.1", "host: x\r\nHOST: y\r\n", 400),
            ("1.0", "Host: x\r\nHost: y\r\n", 400),
            ("1.0", "", good),
        ] {
            let length = body.len();
            let request = format!(
                "{line} HTTP/{version}\r\n{hosts}Authorization: Bearer {key}\r\nConnection: close\r\n\
                 Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
            );
            let answer = server.raw(request.as_bytes());
            let begin = answer.split(' ').nth(1).unwrap_or_default();
            assert_eq!(begin, status.to_string(), "{request}\n{answer}");
            assert_eq!(answer.contains("\"malformed\""), status == 400, "{answer}");
        }
    }
}
