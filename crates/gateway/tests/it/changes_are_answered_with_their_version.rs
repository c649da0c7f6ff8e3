//! The answer to an edit, a recall or the end of a message that grows has the version that the change left, over every kind
//! of session: a client that shows the change at once need not guess which of two changes is the later one.

use crate::devices::{LOCAL, RunningListener};
use crate::event_stream::EventStream;
use crate::support::*;
use serde_json::{Value, json};
use tidings_client::device::{DeviceFrame, DeviceSession};
use tidings_gateway::miop_listener::MiopListenerConfig;
use tidings_protocol::{
    frames::{Sent, ServerFrame},
    miop::{Bind, Frame, VERSION},
};

fn with_people() -> Server {
    let server = Server::start();
    server.users(&["alice", "bob"]);
    server.group("g", &["alice", "bob"]);
    server
}

/// Changes a message by a session and by another user in between; `ask` writes a frame and returns the answer.
#[track_caller]
fn check(server: &Server, mut ask: impl FnMut(Value) -> Sent) {
    let mut ask = |t: &str, seq: u64, rest: Value| {
        let mut frame = json!({ "t": t, "ref": 7, "conversation": "g" });
        let fields = frame.as_object_mut().unwrap();
        if seq != 0 {
            fields.insert("seq".into(), seq.into());
        }
        fields.extend(rest.as_object().unwrap().clone());
        ask(frame)
    };
    let sent = ask("send", 0, json!({ "body": "one" }));
    assert_eq!(sent.version, None, "a send changes no message");
    let message = sent.receipt.seq;
    let edit = json!({ "body": "two", "client_msg_id": "edit" });
    let edited = ask("edit", message, edit.clone());
    assert_eq!((edited.version, edited.receipt.duplicate), (Some(2), false));
    // Another device of the user edits meanwhile: the retry is still answered with the version of the first edit.
    let mut other = server.open("alice", "other");
    let frame = json!({ "t": "edit", "ref": 1, "conversation": "g", "seq": message, "body": "three" });
    other.write_text(frame.to_string().as_bytes()).unwrap();
    assert_eq!(super::support::sent(&mut other).version, Some(3));
    let again = ask("edit", message, edit);
    assert_eq!((again.version, again.receipt.duplicate), (Some(2), true));
    assert_eq!(again.receipt.seq, edited.receipt.seq);
    assert_eq!(ask("recall", message, json!({})).version, Some(3));
    assert_eq!(ask("recall", message, json!({})).version, Some(3));

    let begun = ask("stream_begin", 0, json!({ "body": { "text": "" } }));
    assert_eq!(begun.version, None);
    assert_eq!(ask("stream_end", begun.receipt.seq, json!({ "body": { "text": "all" } })).version, Some(2));
    assert_eq!(ask("edit", begun.receipt.seq, json!({ "body": { "text": "more" } })).version, Some(3));
    assert_eq!(ask("stream_end", begun.receipt.seq, json!({})).version, Some(2), "of the first end");
}

fn only(mut results: Vec<Sent>) -> Sent {
    assert_eq!((results.len(), results[0].reference), (1, Some(7)));
    results.remove(0)
}

#[test]
fn over_websocket() {
    let server = with_people();
    let mut alice = server.open("alice", "phone");
    check(&server, |frame| {
        alice.write_text(frame.to_string().as_bytes()).unwrap();
        only(vec![sent(&mut alice)])
    });
}

#[test]
fn over_an_event_stream() {
    let server = with_people();
    let mut alice = EventStream::open(server.address, &token("alice"), "phone", None);
    check(&server, |frame| {
        assert_eq!(alice.post(&[frame]).0, 202);
        loop {
            match alice.frame() {
                ServerFrame::Sent { results } => return only(results),
                error @ ServerFrame::Error { .. } => panic!("{error:?}"),
                _ => {}
            }
        }
    });
}

#[test]
fn over_miop() {
    let server = with_people();
    let listener = RunningListener::open(&server, MiopListenerConfig::open(vec![LOCAL]));
    let mut alice = DeviceSession::connect(listener.address).unwrap();
    alice.bind(&Bind { version: VERSION, token: &token("alice"), device_id: "d1", ..Bind::default() }).unwrap();
    check(&server, |frame| {
        alice.write(&Frame::Chat { json: frame.to_string().as_bytes() }).unwrap();
        loop {
            match alice.next(PATIENCE).unwrap().expect("a frame in time") {
                DeviceFrame::Chat(ServerFrame::Sent { results }) => return only(results),
                DeviceFrame::Chat(error @ ServerFrame::Error { .. }) => panic!("{error:?}"),
                _ => {}
            }
        }
    });
}
