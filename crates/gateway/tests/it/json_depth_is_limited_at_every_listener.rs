//! A message that is nested too deeply for other parsers is refused on a session as over HTTP, and the session stays open.

use crate::devices::{LOCAL, RunningListener};
use crate::support::*;
use tidings_client::device::{DeviceFrame, DeviceSession};
use tidings_gateway::miop_listener::MiopListenerConfig;
use tidings_protocol::{
    error::ErrorCode,
    frames::{ClientFrame, Send, ServerFrame},
    http::NewMessage,
    miop::{Bind, Frame, VERSION},
};

fn nested(levels: usize) -> String {
    "[".repeat(levels) + &"]".repeat(levels)
}

/// The text of a send, not serialized: its nesting may exceed what serializers accept.
fn send(reference: u64, levels: usize) -> String {
    format!(r#"{{"t":"send","ref":{reference},"conversation":"g","body":{}}}"#, nested(levels))
}

#[test]
fn websocket_limits_json_depth_and_the_session_lives_on() {
    let server = Server::start();
    server.users(&["alice", "bob"]);
    server.group("g", &["alice", "bob"]);
    let mut bob = server.open("bob", "phone");
    let mut alice = server.open("alice", "phone");
    for (reference, levels) in [65, 1_000, 20_000].into_iter().enumerate() {
        let body = serde_json::value::RawValue::from_string(nested(levels)).unwrap();
        let message = NewMessage { body, ..message("") };
        let reference = reference as u64;
        let send = Send { reference: Some(reference), conversation: Some("g".into()), to: None, message };
        alice.write(&ClientFrame::Send(send)).unwrap();
        let (answered, code, detail) = error(&mut alice);
        assert_eq!((answered, code), (Some(reference), ErrorCode::LimitExceeded), "{levels}: {detail}");
        assert!(detail.starts_with("body: ") && detail.contains("64"), "{detail}");
    }
    let deepest = serde_json::value::RawValue::from_string(nested(64)).unwrap();
    alice.send(9, "g", NewMessage { body: deepest, ..message("") }).unwrap();
    assert_eq!(entries(&mut bob, 1)[0].body.get(), nested(64));
}

#[test]
fn miop_limits_json_depth_and_the_session_lives_on() {
    let server = Server::start();
    server.users(&["alice", "bob"]);
    server.group("g", &["alice", "bob"]);
    let mut bob = server.open("bob", "phone");
    let listener = RunningListener::open(&server, MiopListenerConfig::open(vec![LOCAL]));
    let mut alice = DeviceSession::connect(listener.address).unwrap();
    alice.bind(&Bind { version: VERSION, token: &token("alice"), device_id: "d1", ..Bind::default() }).unwrap();
    for levels in [65, 1_000, 20_000] {
        alice.write(&Frame::Chat { json: send(levels as u64, levels).as_bytes() }).unwrap();
        match alice.next(PATIENCE).unwrap().expect("a frame in time") {
            DeviceFrame::Chat(ServerFrame::Error { reference, code, message, .. }) => {
                assert_eq!((reference, code), (Some(levels as u64), ErrorCode::LimitExceeded), "{message}");
                assert!(message.starts_with("body: "), "{message}");
            }
            other => panic!("{levels}: {other:?}"),
        }
    }
    alice.write(&Frame::Chat { json: send(1, 64).as_bytes() }).unwrap();
    assert_eq!(entries(&mut bob, 1)[0].body.get(), nested(64));
}
