//! A session over server-sent events is the session of a WebSocket: the same frames, cursors, limits and endings.

use crate::event_stream::*;
use crate::support::*;
use serde_json::{Value, json};
use std::{slice::from_ref, sync::Arc, time::Duration};
use tidings_client::token::{now_s, sign_claims};
use tidings_domain::metrics::ProtocolLabel;
use tidings_gateway::SessionConfig;
use tidings_protocol::{
    entry::Entry, event_stream::FRAMES_PER_POST_MAX, frames::ServerFrame, http::Kick, limits::FRAME_BYTES_MAX,
};
use tidings_testkit::{LocalBus, MemoryStore};

fn with_people(config: SessionConfig) -> Server {
    let server = Server::with(config, Arc::new(MemoryStore::default()));
    server.users(&["alice", "bob", "carol"]);
    server.group("g", &["alice", "bob"]);
    server
}

fn open(server: &Server, user: &str, device: &str) -> EventStream {
    EventStream::open(server.address, &token(user), device, None)
}

fn streams(server: &Server) -> i64 {
    let label = ProtocolLabel { protocol: "event_stream" };
    server.engine.metrics.sessions_by_protocol.get_or_create(&label).get()
}

#[track_caller]
fn entries_of(stream: &mut EventStream, count: usize) -> Vec<Entry> {
    let mut all = Vec::new();
    while all.len() < count {
        if let ServerFrame::Messages { entries, .. } = stream.frame() {
            all.extend(entries);
        }
    }
    assert_eq!(all.len(), count);
    all
}

fn texts(entries: &[Entry]) -> Vec<String> {
    entries.iter().map(text_of).collect()
}

fn code(answer: &(u16, Value)) -> (u16, &str) {
    (answer.0, answer.1["code"].as_str().unwrap_or_default())
}

#[test]
fn a_session_sends_and_receives_over_an_event_stream() {
    let server = with_people(session_config());
    // On different shards, so that one of the connections moves when it binds.
    let (mut alice, mut bob) = (open(&server, "alice", "a"), open(&server, "bob", "b"));
    assert!(alice.head.contains("content-type: text/event-stream\r\n"), "{}", alice.head);
    assert!(alice.head.contains("x-accel-buffering: no\r\n") && alice.head.contains("cache-control: no-store\r\n"));
    assert_eq!(streams(&server), 2);
    let mut carol = server.open("carol", "c");
    server.change_members("g", &["carol"], &[]);

    let send = |reference: u64, text: &str| json!({ "t": "send", "ref": reference, "conversation": "g", "body": text });
    assert_eq!(alice.post(&[send(1, "one"), send(2, "two\nlines")]), (202, json!({ "taken": 1 })));
    let seen = |entries: Vec<Entry>| texts(&entries[entries.len() - 2..]);
    assert_eq!(seen(entries_of(&mut bob, 3)), ["one", "two\nlines"]);
    assert_eq!(seen(entries(&mut carol, 3)), ["one", "two\nlines"]);
    assert!(bob.cursor.as_ref().is_some_and(|cursor| cursor.contains('.')), "the id of the event is the cursor");

    assert_eq!(alice.post(&[json!({ "t": "unbind" })]).0, 202);
    assert_eq!(alice.close(), (1000, String::new()));
    assert!(alice.ends_with_last_chunk);
    until("only bob's stream is left", || streams(&server) == 1);
    assert_eq!(code(&alice.post(&[json!({ "t": "ping" })])), (410, "session_gone"));
}

#[test]
fn a_cut_stream_resumes_from_its_cursor() {
    let server = with_people(session_config());
    let mut bob = open(&server, "bob", "b");
    server.say("alice", "g", "before");
    assert_eq!(texts(&entries_of(&mut bob, 1)), ["before"]);
    let cursor = bob.cursor.clone().unwrap();
    drop(bob);
    until("the cut is noticed", || server.online("bob") == 0);
    server.say("alice", "g", "meanwhile");

    let mut again = EventStream::open(server.address, &token("bob"), "b", Some(&cursor));
    assert_eq!(texts(&entries_of(&mut again, 1)), ["meanwhile"]);
    drop(again);
    // As a client does that connects again by the standard: the id of the last event, above an older cursor of the body.
    let header = format!("last-event-id: {cursor}\r\n");
    let request = open_request("HTTP/1.1", &token("bob"), &header, &bind_of("b", Some("not a cursor")));
    let mut again = EventStream::ask(server.address, &request);
    again.begin();
    assert_eq!(texts(&entries_of(&mut again, 1)), ["meanwhile"]);
}

#[test]
fn a_request_whose_answer_was_lost_is_taken_once() {
    let server = with_people(session_config());
    let alice = open(&server, "alice", "a");
    let mut bob = server.open("bob", "b");
    let line = |text: &str| format!(r#"{{"t":"send","conversation":"g","body":"{text}"}}"#);
    assert_eq!(alice.post_numbered(1, line("one").as_bytes()), (202, json!({ "taken": 1 })));
    assert_eq!(alice.post_numbered(1, line("one").as_bytes()), (202, json!({ "taken": 1 })));
    assert_eq!(code(&alice.post_numbered(3, line("three").as_bytes())), (409, "conflict"));
    assert_eq!(alice.post_numbered(2, line("two").as_bytes()), (202, json!({ "taken": 2 })));
    assert_eq!(alice.post_numbered(3, line("three").as_bytes()), (202, json!({ "taken": 3 })));
    assert_eq!(alice.post_numbered(1, line("one").as_bytes()), (202, json!({ "taken": 3 })));
    assert_eq!(texts(&entries(&mut bob, 3)), ["one", "two", "three"]);
}

#[test]
fn frames_wait_in_order_for_a_conversation_that_is_being_opened() {
    let server = with_people(session_config());
    let mut alice = open(&server, "alice", "a");
    let to_carol = |text: String| json!({ "t": "send", "to": "carol", "body": text });
    let mut carol = server.open("carol", "c");
    for request in 0..3 {
        let frames: Vec<Value> = (0..5).map(|n| to_carol(format!("{request}.{n}"))).collect();
        assert_eq!(alice.post(&frames).0, 202);
    }
    let expected: Vec<String> = (0..15).map(|n| format!("{}.{}", n / 5, n % 5)).collect();
    assert_eq!(texts(&entries(&mut carol, 15)), expected);
}

#[test]
fn only_who_knows_the_secret_sends() {
    let server = with_people(session_config());
    let (alice, bob) = (open(&server, "alice", "a"), open(&server, "bob", "b"));
    let ping = br#"{"t":"ping"}"#;
    let answer = |stream: &str, secret: &str| post(server.address, stream, 1, secret, ping);
    for secret in [&token("alice"), &token("bob"), API_KEY, &bob.secret, "0", &alice.secret[1..]] {
        assert_eq!(code(&answer(&alice.stream, secret)), (410, "session_gone"), "{secret}");
    }
    for stream in ["0-0-0", "0-ffff-1", "x", "1-0-100000000", "..%2f..", &"f".repeat(500)] {
        assert_eq!(code(&answer(stream, &alice.secret)), (410, "session_gone"), "{stream}");
    }
    let request = format!("POST /v1/stream/{}?number=1 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", alice.stream);
    assert_eq!(exchange(server.address, request.as_bytes()).0, 401);
    assert_eq!(answer(&alice.stream, &alice.secret).0, 202, "nothing of this has harmed the session");
}

#[test]
fn a_refused_request_harms_no_session() {
    let server = with_people(session_config());
    let mut alice = open(&server, "alice", "a");
    let long = format!(r#"{{"t":"ping","x":"{}"}}"#, "x".repeat(FRAME_BYTES_MAX));
    let many = br#"{"t":"ping"}
"#
    .repeat(FRAMES_PER_POST_MAX + 1);
    for (lines, expected) in [
        (long.as_bytes(), (413, "limit_exceeded")),
        (&many, (413, "limit_exceeded")),
        (b"\xff", (400, "malformed")),
        (b" \n", (422, "invalid_field")),
    ] {
        assert_eq!(code(&alice.post_numbered(1, lines)), expected);
    }
    assert_eq!(code(&alice.post_numbered(0, b"{}")), (422, "invalid_field"));
    // Frames that are wrong are answered on the stream, each by itself.
    assert_eq!(alice.post_numbered(1, b"nonsense\n{\"t\":\"ping\",\"ref\":7}\n[]").0, 202);
    assert!(matches!(alice.frame(), ServerFrame::Error { .. }));
    assert!(matches!(alice.frame(), ServerFrame::Pong { reference: Some(7) }));
    assert!(matches!(alice.frame(), ServerFrame::Error { .. }));
}

#[test]
fn a_body_of_the_largest_size_passes_both_ways() {
    let server = with_people(session_config());
    let (mut alice, mut bob) = (open(&server, "alice", "a"), open(&server, "bob", "b"));
    let text = "ä".repeat(32 * 1024 - 10);
    alice.say("g", &text);
    assert_eq!(texts(&entries_of(&mut bob, 1)), [text]);
}

#[test]
fn what_keeps_a_stream_from_opening_is_told_by_http() {
    let server = with_people(session_config());
    let ask = |token: &str, bind: &[(&str, &str)]| {
        let request = open_request("HTTP/1.1", token, "connection: close\r\n", bind);
        let (status, body) = exchange(server.address, request.as_bytes());
        (status, serde_json::from_str::<Value>(&body).unwrap())
    };
    let bind = bind_of("d", None);
    assert_eq!(code(&ask("nonsense", &bind)), (401, "unauthorized"));
    assert_eq!(code(&ask(API_KEY, &bind)), (403, "forbidden"));
    assert_eq!(code(&ask(&token("nobody"), &bind)), (404, "not_found"));
    let expired = sign_claims(TOKEN_KEY, &json!({ "sub": "alice", "exp": now_s() - 600 }));
    assert_eq!(code(&ask(&expired, &bind)), (401, "token_expired"));
    assert_eq!(code(&ask(&token("alice"), &[("device", "d")])), (422, "invalid_field"));
    assert_eq!(streams(&server), 0);
}

/// The reason why a session that is opened so ends at once.
fn refused(server: &Server, bind: &[(&str, &str)]) -> (u64, String) {
    EventStream::ask(server.address, &open_request("HTTP/1.1", &token("alice"), "", bind)).close()
}

#[test]
fn what_ends_a_session_is_its_last_event() {
    let server = with_people(session_config());
    assert_eq!(refused(&server, &bind_of("me", None)), (4016, "invalid_field".into()));
    assert_eq!(refused(&server, &bind_of("d", Some("no cursor"))), (4014, "cursor_invalid".into()));

    let mut first = open(&server, "alice", "a");
    let mut second = open(&server, "alice", "a");
    assert_eq!(first.close(), (4003, "replaced".into()));
    assert_eq!(second.post(&[json!({ "t": "ping" })]).0, 202, "the newer one stays");
    // A WebSocket of the same device takes its place as well.
    let _third = server.open("alice", "a");
    assert_eq!(second.close(), (4003, "replaced".into()));
}

#[test]
fn a_client_that_has_not_read_the_end_of_its_session_is_told_by_its_next_request() {
    let server = with_people(session_config());
    let ping = json!({ "t": "ping" });
    let mut first = open(&server, "alice", "a");
    // A shard ends the older session before the newer one is bound.
    let mut second = open(&server, "alice", "a");
    assert_eq!(code(&first.post(from_ref(&ping))), (410, "replaced"), "while the last event waits for its reader");
    assert_eq!(first.close(), (4003, "replaced".into()));
    until("the connection is gone", || streams(&server) == 1);
    assert_eq!(code(&first.post(from_ref(&ping))), (410, "replaced"));
    assert_eq!(code(&post(server.address, &first.stream, 9, &second.secret, b"{}")), (410, "session_gone"));
    assert_eq!(second.post(from_ref(&ping)).0, 202, "the newer one stays");

    let everywhere = Kick { device_id: None, reason: None };
    assert_eq!(server.wait(server.engine.kick("alice", everywhere)).unwrap().sessions, 1);
    assert_eq!(second.close(), (4004, "kicked".into()));
    assert_eq!(code(&second.post(&[ping])), (410, "kicked"));
}

#[test]
fn a_session_ends_with_its_token_unless_it_is_refreshed() {
    let server = with_people(session_config());
    let short = |user: &str| sign_claims(TOKEN_KEY, &json!({ "sub": user, "exp": now_s() + 3 }));
    let mut alice = EventStream::open(server.address, &short("alice"), "a", None);
    let mut bob = EventStream::open(server.address, &short("bob"), "b", None);
    assert_eq!(bob.post(&[json!({ "t": "refresh", "ref": 1, "token": token("bob") })]).0, 202);
    assert!(matches!(bob.frame(), ServerFrame::Ok { reference: 1 }));
    assert_eq!(alice.close(), (4006, "token_expired".into()));
    assert_eq!(bob.post(&[json!({ "t": "ping" })]).0, 202);
}

#[test]
fn a_quiet_stream_is_kept_open_and_a_silent_client_is_let_go() {
    let (keep_alive, heartbeat) = (Duration::from_millis(100), Duration::from_secs(2));
    let server = with_people(SessionConfig { keep_alive, heartbeat, ..session_config() });
    let mut alice = open(&server, "alice", "a");
    let mut comments = 0;
    while comments < 3 {
        comments += usize::from(alice.event().unwrap().name == ":");
    }
    assert_eq!(alice.close(), (4007, "heartbeat_timeout".into()));
}

#[test]
fn a_probe_is_answered_by_any_frame() {
    let (probe_after, probe_timeout) = (Duration::from_millis(100), Duration::from_secs(1));
    let server = with_people(SessionConfig { probe_after, probe_timeout, ..session_config() });
    let (mut alice, mut bob) = (open(&server, "alice", "a"), open(&server, "bob", "b"));
    server.say("alice", "g", "hello");
    let probe_of = |stream: &mut EventStream| loop {
        let event = stream.event().unwrap();
        if event.name == "probe" {
            return event.data;
        }
    };
    assert_eq!(probe_of(&mut bob), r#"{"timeout_ms":1000}"#);
    assert_eq!(bob.post(&[json!({ "t": "ping", "ref": 9 })]).0, 202);
    assert_eq!(alice.close(), (4007, "heartbeat_timeout".into()), "who does not answer counts as gone");
    assert_eq!(bob.post(&[json!({ "t": "ping", "ref": 9 })]).0, 202);
}

#[test]
fn a_reader_that_stops_reading_loses_its_stream_and_no_message() {
    let server = with_people(SessionConfig { session_buffer_bytes: 256 * 1024, ..session_config() });
    let mut slow = open(&server, "bob", "b");
    let body = "x".repeat(30_000);
    let mut sent = 0;
    while server.engine.metrics.slow_readers_closed.get() == 0 {
        server.say("alice", "g", &format!("{sent} {body}"));
        sent += 1;
        assert!(sent < 5_000, "the slow reader was never let go");
    }
    let (mut seqs, mut cursor) = (Vec::new(), slow.cursor.clone());
    loop {
        let event = slow.event().expect("a close before the end");
        match &*event.name {
            "close" => break assert!(event.data.contains("slow_reader"), "{event:?}"),
            "" => {
                if let ServerFrame::Messages { entries, .. } = serde_json::from_str(&event.data).unwrap() {
                    seqs.extend(entries.iter().map(|entry| entry.seq));
                    cursor = event.id;
                }
            }
            _ => {}
        }
    }
    let mut again = EventStream::ask(
        server.address,
        &open_request("HTTP/1.1", &token("bob"), "", &bind_of("b", cursor.as_deref())),
    );
    let ServerFrame::Bound(bound) = again.begin() else { unreachable!() };
    let ranges = bound.resume.ranges.iter().flat_map(|range| range.from_seq..=range.to_seq);
    seqs.extend(ranges);
    while seqs.last() != Some(&sent) {
        seqs.extend(entries_once(&mut again).iter().map(|entry| entry.seq));
    }
    assert_eq!(seqs, (1..=sent).collect::<Vec<u64>>());
}

fn entries_once(stream: &mut EventStream) -> Vec<Entry> {
    match stream.frame() {
        ServerFrame::Messages { entries, .. } => entries,
        _ => Vec::new(),
    }
}

#[test]
fn a_client_of_http_1_0_reads_to_the_end_of_the_connection() {
    let server = with_people(session_config());
    let request = open_request("HTTP/1.0", &token("alice"), "", &bind_of("a", None));
    let mut alice = EventStream::ask(server.address, &request);
    assert!(!alice.head.contains("chunked"), "{}", alice.head);
    alice.begin();
    alice.say("g", "hello");
    assert_eq!(texts(&entries_of(&mut alice, 1)), ["hello"]);
    assert_eq!(alice.post(&[json!({ "t": "unbind" })]).0, 202);
    assert_eq!(alice.close(), (1000, String::new()));
}

#[test]
fn any_node_passes_frames_on_to_the_node_that_has_the_stream() {
    let (store, bus) = (Arc::new(MemoryStore::default()), LocalBus::default());
    let (first, second) = (Server::node("one", &store, &bus), Server::node("two", &store, &bus));
    first.users(&["alice", "bob"]);
    first.group("g", &["alice", "bob"]);
    let mut alice = open(&first, "alice", "a");
    let mut bob = second.open("bob", "b");
    let send = br#"{"t":"send","ref":1,"conversation":"g","body":"by the other node"}"#;
    until("the nodes know each other", || {
        post(second.address, &alice.stream, 1, &alice.secret, send) == (202, json!({ "taken": 1 }))
    });
    assert_eq!(texts(&entries(&mut bob, 1)), ["by the other node"]);
    assert_eq!(texts(&entries_of(&mut alice, 1)), ["by the other node"]);
    let gone = post(second.address, &alice.stream.replacen('-', "1-", 1), 1, &alice.secret, send);
    assert_eq!(code(&gone), (410, "session_gone"), "of a node that is no more");
}

#[test]
fn a_flood_of_requests_leaves_other_sessions_as_they_are() {
    let server = with_people(session_config());
    let (alice, mut bob) = (open(&server, "alice", "a"), open(&server, "bob", "b"));
    let pings = br#"{"t":"ping"}
"#
    .repeat(FRAMES_PER_POST_MAX);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            // All claim the same numbers: each is taken once.
            scope.spawn(|| {
                for number in 1..=20 {
                    let answer = alice.post_numbered(number, &pings);
                    assert!([202, 409].contains(&answer.0), "{answer:?}");
                }
            });
        }
        for n in 0..20 {
            bob.say("g", &n.to_string());
            assert_eq!(texts(&entries_of(&mut bob, 1)), [n.to_string()]);
        }
    });
    let last = alice.post_numbered(1, &pings);
    assert_eq!(last, (202, json!({ "taken": 20 })));
}
