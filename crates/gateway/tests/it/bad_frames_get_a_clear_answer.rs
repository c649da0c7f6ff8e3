//! Invalid input gets an answer that says what is wrong, or a clean close; and other clients are still served.

use crate::support::*;
use std::{sync::Arc, time::Duration};
use tidings_client::{
    session::{Session, random_mask},
    token::{now_s, sign, sign_claims, sign_text},
};
use tidings_gateway::SessionConfig;
use tidings_protocol::{
    error::ErrorCode,
    frames::ServerFrame,
    limits::FRAME_BYTES_MAX,
    ws::{Control, Data, OpCode, put_client_frame, put_server_frame},
};
use tidings_testkit::MemoryStore;

const TEXT: u8 = 0x81;
const TEXT_BEGINS: u8 = 0x01;
const CONTINUES: u8 = 0x00;
const LAST_PART: u8 = 0x80;

fn with_people() -> Server {
    let server = Server::start();
    server.users(&["alice", "bob", "carol"]);
    server.group("g", &["alice", "bob"]);
    server
}

/// A masked frame with this first byte.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_client_frame(&mut bytes, OpCode::Data(Data::Text), payload, random_mask());
    bytes[0] = first;
    bytes
}

/// These bytes close a bound session with this refusal and close code, and an unbound connection too.
#[track_caller]
fn check_closed(bytes: &[u8], refusal: ErrorCode, close: u16) {
    let server = with_people();
    let mut bystander = server.open("bob", "phone");
    let mut session = server.open("alice", "phone");
    session.write_bytes(bytes).unwrap();
    check_end_with(&mut session, refusal, close);
    let mut unbound = Session::connect(server.address).unwrap();
    unbound.write_bytes(bytes).unwrap();
    check_end_with(&mut unbound, refusal, close);
    server.say("alice", "g", "still here");
    assert_eq!(entries(&mut bystander, 1)[0].seq, 1);
}

#[test]
fn invalid_framing_closes_the_session() {
    let mut unmasked = Vec::new();
    put_server_frame(&mut unmasked, OpCode::Data(Data::Text), br#"{"t":"ping"}"#);
    check_closed(&unmasked, ErrorCode::Malformed, 1002);
    for first in [0xC1, 0xA1, 0x91, 0x83, 0x8B, 0x09, LAST_PART, CONTINUES] {
        println!("first byte {first:#x}");
        check_closed(&frame(first, br#"{"t":"ping"}"#), ErrorCode::Malformed, 1002);
    }
    check_closed(&frame(0x82, br#"{"t":"ping"}"#), ErrorCode::Malformed, 1003);
    check_closed(&frame(0x89, &[0; 126]), ErrorCode::Malformed, 1002);
}

#[test]
fn invalid_utf_8_closes_the_session_wherever_it_stands() {
    // In a field name, in a known field, in an unknown field, and within a body.
    for text in [
        &b"{\"t\":\"ping\xFF\"}"[..],
        b"{\"t\":\"ping\",\"unknown\":\"\xFF\"}",
        b"{\"t\":\"ping\",\"\xED\xA0\x80\":1}",
        b"{\"t\":\"send\",\"conversation\":\"g\",\"body\":\"\xC0\xAF\"}",
    ] {
        check_closed(&frame(TEXT, text), ErrorCode::Malformed, 1007);
        let (first, second) = text.split_at(text.len() - 3);
        check_closed(&[frame(TEXT_BEGINS, first), frame(LAST_PART, second)].concat(), ErrorCode::Malformed, 1007);
    }
}

#[test]
fn an_invalid_close_frame_is_not_echoed() {
    let server = with_people();
    let cases: [(&[u8], u16); 11] = [
        (&[], 1005),
        (&[0x03, 0xE8], 1000),
        (&[0x0B, 0xB8, b'b', b'y', b'e'], 3000),
        (&[0x13, 0x87], 4999),
        (&[0x03, 0xE7], 1002),
        (&[0x03, 0xED], 1002),
        (&[0x03, 0xEE], 1002),
        (&[0x03, 0xF7], 1002),
        (&[0xFF, 0xFF], 1002),
        (&[0x03], 1002),
        (&[0x03, 0xE8, 0xFF], 1007),
    ];
    for (payload, answer) in cases {
        let mut session = server.open("alice", "phone");
        session.write_bytes(&frame(0x88, payload)).unwrap();
        // The client reads a close frame without a code as 1005.
        assert!(matches!(end(&mut session), (frames, code) if frames.is_empty() && code == answer), "{payload:?}");
    }
}

#[test]
fn a_frame_over_the_limit_is_refused_by_its_header() {
    let mut header = vec![TEXT, 0xFF];
    header.extend_from_slice(&(FRAME_BYTES_MAX as u64 + 1).to_be_bytes());
    header.extend_from_slice(&random_mask());
    check_closed(&header, ErrorCode::LimitExceeded, 4005);
    header[2..10].copy_from_slice(&u64::MAX.to_be_bytes());
    // The length's highest bit must be 0: either refusal is right, nothing is allocated.
    let server = with_people();
    let mut session = server.open("alice", "phone");
    session.write_bytes(&header).unwrap();
    assert!([1002, 4005].contains(&end(&mut session).1));
}

#[test]
fn fragments_over_the_limit_are_refused() {
    let server = with_people();
    let mut session = server.open("alice", "phone");
    let part = vec![b' '; FRAME_BYTES_MAX / 2 + 1];
    session.write_bytes(&frame(TEXT_BEGINS, &part)).unwrap();
    session.write_bytes(&frame(CONTINUES, &part)).unwrap();
    check_end(&mut session, ErrorCode::LimitExceeded);
}

#[test]
fn a_long_first_frame_is_refused_before_it_is_buffered() {
    let server = with_people();
    let mut session = Session::connect(server.address).unwrap();
    session.write_text(&vec![b' '; 20_000]).unwrap();
    check_end(&mut session, ErrorCode::LimitExceeded);
}

#[test]
fn fragments_of_a_long_first_frame_are_refused_before_they_are_buffered() {
    let server = with_people();
    let mut session = Session::connect(server.address).unwrap();
    let part = [b' '; 10_000];
    session.write_bytes(&frame(TEXT_BEGINS, &part)).unwrap();
    session.write_bytes(&frame(CONTINUES, &part)).unwrap();
    check_end(&mut session, ErrorCode::LimitExceeded);
}

#[test]
fn json_that_is_no_operation_is_refused_and_the_session_stays() {
    let server = with_people();
    let mut session = server.open("alice", "phone");
    let cases: &[(&[u8], ErrorCode)] = &[
        (b"", ErrorCode::Malformed),
        (b"{", ErrorCode::Malformed),
        (b"null", ErrorCode::Malformed),
        (b"[]", ErrorCode::Malformed),
        (br#"{"t":5}"#, ErrorCode::InvalidField),
        (br#"{"conversation":"g"}"#, ErrorCode::Malformed),
        (br#"{"t":"ping"} trailing"#, ErrorCode::Malformed),
        (br#"{"t":"dance"}"#, ErrorCode::Malformed),
        (br#"{"t":"send","conversation":"g"}"#, ErrorCode::InvalidField),
        (br#"{"t":"send","conversation":5,"body":1}"#, ErrorCode::InvalidField),
        (br#"{"t":"send","conversation":"g","body":{"a":}}"#, ErrorCode::Malformed),
        (br#"{"t":"send","body":1}"#, ErrorCode::InvalidField),
        (br#"{"t":"send","conversation":"g","to":"bob","body":1}"#, ErrorCode::InvalidField),
        (br#"{"t":"send","conversation":"g","client_msg_id":"","body":1}"#, ErrorCode::InvalidField),
        (br#"{"t":"send","conversation":"g","client_msg_id":"a b","body":1}"#, ErrorCode::InvalidField),
        (br#"{"t":"send","conversation":"g","type":"","body":1}"#, ErrorCode::LimitExceeded),
        (br#"{"t":"send","conversation":"nowhere","body":1}"#, ErrorCode::NotFound),
        (br#"{"t":"send","to":"nobody","body":1}"#, ErrorCode::NotFound),
        (br#"{"t":"send","conversation":"bob~carol","body":1}"#, ErrorCode::NotFound),
        (br#"{"t":"read","conversation":"g"}"#, ErrorCode::InvalidField),
        (br#"{"t":"read","conversation":"g","seq":-1}"#, ErrorCode::InvalidField),
        (br#"{"t":"read","conversation":"nowhere","seq":1}"#, ErrorCode::NotFound),
        (br#"{"t":"history"}"#, ErrorCode::InvalidField),
        (br#"{"t":"history","conversation":"g","limit":501}"#, ErrorCode::LimitExceeded),
        (br#"{"t":"history","conversation":"g","limit":0}"#, ErrorCode::InvalidField),
        (br#"{"t":"typing"}"#, ErrorCode::InvalidField),
        (br#"{"t":"bind","token":"x","device_id":"y"}"#, ErrorCode::AlreadyBound),
    ];
    for (payload, refusal) in cases {
        session.write_text(payload).unwrap();
        let (_, code, detail) = error(&mut session);
        assert_eq!(code, *refusal, "{}: {detail}", String::from_utf8_lossy(payload));
        assert!(!detail.is_empty());
    }
    let deep = [br#"{"t":"send","conversation":"g","body":"#.to_vec(), vec![b'['; 50_000]].concat();
    session.write_text(&deep).unwrap();
    assert_eq!(error(&mut session).1, ErrorCode::Malformed);
    assert!(frames_until_pong(&mut session).is_empty());
    session.send(1, "g", message("and it still works")).unwrap();
    assert_eq!(sent(&mut session).receipt.seq, 1);
}

#[test]
fn a_refusal_names_the_request_and_the_field() {
    let server = with_people();
    let mut session = server.open("alice", "phone");
    let cases = [
        (r#"{"t":"send","ref":1,"conversation":5,"body":1}"#, "conversation: "),
        (r#"{"t":"send","ref":1,"conversation":"g"}"#, "body: "),
        (r#"{"ref":1,"t":"send","conversation":"g","body":{"a":}}"#, "frame: is not JSON: expected value"),
        (r#"{"t":"send","ref":1,"conversation":"g","client_msg_ID":"a","body":1}"#, "client_msg_ID: unknown field"),
        (r#"{"t":"popup","ref":1,"question":{"placement":7}}"#, "question.placement: must be a string"),
        (r#"{"t":"popup_events","ref":1,"events":[{"id":"e"}]}"#, "events[0].type: is missing"),
        (r#"{"t":"read","conversation":"g","ref":1}"#, "seq: "),
        (r#"{"t":"read","seq":1,"ref":1}"#, "conversation: "),
        (r#"{"t":"history","ref":1}"#, "conversation: "),
        (r#"{"t":"conversations","ref":1,"limit":201}"#, "limit "),
        (r#"{"t":"conversations","ref":1,"after":"nowhere"}"#, "after: "),
        (r#"{"t":"watch_presence","ref":1}"#, "users: "),
        (r#"{"t":"popup","ref":1}"#, "question: "),
        (r#"{"t":"popup_events","ref":1}"#, "events: "),
        (r#"{"t":"typing","ref":1}"#, "conversation: "),
        (r#"{"t":"dance","ref":1}"#, "t: "),
        (r#"{"t":"ack","pushes":[1],"ref":1}"#, "this session did not ask for pushes"),
    ];
    for (payload, words) in cases {
        session.write_text(payload.as_bytes()).unwrap();
        let (reference, _, detail) = error(&mut session);
        assert_eq!(reference, Some(1), "{payload}: {detail}");
        assert!(detail.starts_with(words), "{payload}: {detail}");
    }
    let mut unbound = Session::connect(server.address).unwrap();
    unbound.write_text(br#"{"t":"ping","ref":7}"#).unwrap();
    assert!(matches!(next(&mut unbound), ServerFrame::Error { reference: Some(7), code: ErrorCode::NotBound, .. }));
}

#[test]
fn a_body_may_be_null() {
    let server = with_people();
    let mut session = server.open("alice", "phone");
    session.write_text(br#"{"t":"send","ref":1,"conversation":"g","body":null}"#).unwrap();
    assert_eq!(sent_and_entry(&mut session).1.body.get(), "null");
}

#[test]
fn a_foreign_cursor_is_refused_with_cursor_invalid() {
    let server = with_people();
    for cursor in ["", "x", "1.2.3", "nonsense.of.a.client"] {
        let mut session = Session::connect(server.address).unwrap();
        session.write(&bind_frame(&token("alice"), "phone", Some(cursor))).unwrap();
        let (frames, close) = end(&mut session);
        let [ServerFrame::Error { code: ErrorCode::CursorInvalid, retry: false, .. }] = &frames[..] else {
            panic!("{cursor:?}: {frames:?}")
        };
        assert_eq!(close, 4014);
    }
    // Without the cursor the device binds.
    assert!(frames_until_pong(&mut server.open("alice", "phone")).is_empty());
}

#[test]
fn an_unknown_field_is_refused_and_named() {
    let server = with_people();
    let mut session = Session::connect(server.address).unwrap();
    // A misspelt `cursor` would silently cost the device the messages that it missed.
    let bind = format!(r#"{{"t":"bind","token":"{}","device_id":"p","curser":"1.2.3.4"}}"#, token("alice"));
    session.write_text(bind.as_bytes()).unwrap();
    let (frames, close) = end(&mut session);
    let [ServerFrame::Error { code: ErrorCode::InvalidField, message, .. }] = &frames[..] else { panic!("{frames:?}") };
    assert!(message.starts_with("curser: unknown field; expected one of t, ref,"), "{message}");
    assert_eq!(close, ErrorCode::InvalidField.close_code());

    let mut session = server.open("alice", "phone");
    session.write_text(br#"{"later":[{}],"t":"send","ref":3,"conversation":"g","body":1}"#).unwrap();
    let (reference, code, detail) = error(&mut session);
    assert_eq!((reference, code), (Some(3), ErrorCode::InvalidField));
    assert!(detail.starts_with("later: unknown field"), "{detail}");
    // The session stays open.
    session.write_text(br#"{"t":"send","ref":4,"conversation":"g","body":1}"#).unwrap();
    let (answer, entry) = sent_and_entry(&mut session);
    assert_eq!((answer.reference, entry.from.as_deref()), (Some(4), Some("alice")));
}

#[test]
fn fragments_with_pings_between_are_one_message() {
    let server = with_people();
    let mut session = server.open("alice", "phone");
    let text = br#"{"t":"send","ref":1,"conversation":"g","body":"in parts"}"#;
    let mut bytes = Vec::new();
    for (n, byte) in text.iter().enumerate() {
        let first = match n {
            0 => TEXT_BEGINS,
            n if n == text.len() - 1 => LAST_PART,
            _ => CONTINUES,
        };
        bytes.extend(frame(first, &[*byte]));
        put_client_frame(&mut bytes, OpCode::Control(Control::Ping), b"?", random_mask());
    }
    // Bytes are written one by one, so that every frame is cut everywhere.
    for byte in bytes {
        session.write_bytes(&[byte]).unwrap();
    }
    let (answer, entry) = sent_and_entry(&mut session);
    assert_eq!((answer.reference, &*text_of(&entry)), (Some(1), "in parts"));
}

#[test]
fn a_first_fragment_may_be_empty() {
    let server = with_people();
    let mut session = server.open("alice", "phone");
    session.write_bytes(&frame(TEXT_BEGINS, b"")).unwrap();
    session.write_bytes(&frame(LAST_PART, br#"{"t":"ping","ref":4}"#)).unwrap();
    assert!(matches!(next(&mut session), ServerFrame::Pong { reference: Some(4) }));
}

#[test]
fn connections_cut_at_any_byte_leave_no_session_behind() {
    // The bind time-out is long: the server must notice the cut itself.
    let config = SessionConfig { bind_timeout: FOREVER, ..session_config() };
    let server = Server::with(config, Arc::new(MemoryStore::default()));
    server.users(&["alice", "bob"]);
    server.group("g", &["alice", "bob"]);
    let bind = serde_json::to_vec(&bind_frame(&token("alice"), "phone", None)).unwrap();
    let send = br#"{"t":"send","conversation":"g","body":"cut"}"#;
    let bytes = [frame(TEXT, &bind), frame(TEXT, send)].concat();
    let complete = bytes.len();
    for cut in 0..complete {
        let mut session = Session::connect(server.address).unwrap();
        session.write_bytes(&bytes[..cut]).unwrap();
    }
    // Only connections that were adopted could still become sessions.
    let taken = || server.engine.metrics.connections_opened.get();
    until("all cut connections came", || taken() == complete as u64);
    until("all cut connections are gone", || server.session_server.connections() == 0);
    assert_eq!(server.online("alice"), 0);
    let mut whole = Session::connect(server.address).unwrap();
    whole.write_bytes(&bytes).unwrap();
    assert_eq!(sent(&mut whole).receipt.seq, 1, "of the cut ones none was taken for a message");
}

#[test]
fn frames_before_a_bind_are_refused() {
    let server = with_people();
    for payload in [&br#"{"t":"send","conversation":"g","body":1}"#[..], br#"{"t":"ping"}"#, br#"{"t":"unbind"}"#] {
        let mut session = Session::connect(server.address).unwrap();
        session.write_text(payload).unwrap();
        check_end(&mut session, ErrorCode::NotBound);
    }
    let mut session = Session::connect(server.address).unwrap();
    session.write_text(b"{").unwrap();
    check_end(&mut session, ErrorCode::Malformed);
    assert_eq!(server.say("alice", "g", "first").seq, 1);
}

#[test]
fn only_a_valid_token_binds() {
    let server = with_people();
    let good = token("alice");
    let payload = good.split('.').nth(1).unwrap();
    let claims = format!(r#"{{"sub":"alice","exp":{}}}"#, now_s() + 600);
    let other_algorithm = sign_text(TOKEN_KEY, r#"{"alg":"HS512"}"#, &claims);
    let cases = [
        ("expired", expired(), ErrorCode::TokenExpired),
        ("foreign", sign("another secret", "alice", Duration::from_secs(60)), ErrorCode::Unauthorized),
        // {"alg":"none"}, unsigned
        ("unsigned", format!("eyJhbGciOiJub25lIn0.{payload}."), ErrorCode::Unauthorized),
        ("another algorithm", other_algorithm, ErrorCode::Unauthorized),
        ("cut", good[..good.len() - 5].to_owned(), ErrorCode::Unauthorized),
        ("empty", String::new(), ErrorCode::Unauthorized),
        ("no token at all", "\u{1F600}".into(), ErrorCode::Unauthorized),
        ("of nobody", token("nobody"), ErrorCode::NotFound),
    ];
    for (name, token, refusal) in cases {
        println!("{name}");
        let mut session = Session::connect(server.address).unwrap();
        session.write(&bind_frame(&token, "phone", None)).unwrap();
        check_end(&mut session, refusal);
    }
    for device in ["", "a b", &"x".repeat(65)] {
        let mut session = Session::connect(server.address).unwrap();
        session.write(&bind_frame(&good, device, None)).unwrap();
        assert!(matches!(end(&mut session).0[0], ServerFrame::Error { .. }), "{device:?}");
    }
    assert_eq!(server.online("alice"), 0);
}

fn expired() -> String {
    sign_claims(TOKEN_KEY, &serde_json::json!({ "sub": "alice", "exp": 1_000_000_000 }))
}

#[test]
fn a_non_member_can_neither_send_nor_read() {
    let server = with_people();
    server.say("alice", "g", "private");
    let mut carol = server.open("carol", "phone");
    for payload in [
        r#"{"t":"send","ref":1,"conversation":"g","body":1}"#,
        r#"{"t":"history","ref":1,"conversation":"g"}"#,
        r#"{"t":"typing","ref":1,"conversation":"g"}"#,
        r#"{"t":"read","ref":1,"conversation":"g","seq":1}"#,
    ] {
        carol.write_text(payload.as_bytes()).unwrap();
        let (reference, code, _) = error(&mut carol);
        assert_eq!((reference, code), (Some(1), ErrorCode::NotAMember), "{payload}");
    }
}
