//! A suspended user's sessions end on every node and over every listener, and none begins until the suspension is lifted; what others
//! wrote meanwhile is there.

use crate::{
    devices::{LOCAL, RunningListener},
    event_stream::EventStream,
    support::*,
};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tidings_client::{ClientError, device::DeviceSession, session::Session};
use tidings_domain::gates::Gate;
use tidings_gateway::miop_listener::MiopListenerConfig;
use tidings_protocol::{
    error::ErrorCode,
    frames::{ClientFrame, ServerFrame},
    http::{Suspend, Unsuspend},
    miop::{Bind, VERSION, wants},
};
use tidings_testkit::{LocalBus, MemoryStore};

fn suspend(server: &Server, user: &str) {
    let suspend = Suspend { until: None, reason: Some("spam".into()) };
    server.wait(server.engine.suspend(user, suspend, "mod")).unwrap();
}

fn lift(server: &Server, user: &str) {
    server.wait(server.engine.unsuspend(user, Unsuspend::default(), "mod")).unwrap();
}

fn try_bind(server: &Server, user: &str, device: &str) -> Session {
    let mut session = Session::connect(server.address).unwrap();
    session.write(&bind_frame(&token(user), device, None)).unwrap();
    session
}

/// Over HTTP, with the user's own token.
fn asks(server: &Server, user: &str) -> (u16, String) {
    let mut client = tidings_client::http::HttpClient::new(server.address, token(user));
    let answer = client.exchange("GET", "/v1/users/me/conversations", b"").unwrap();
    let code = serde_json::from_slice::<serde_json::Value>(&answer.body).unwrap()["code"].as_str().map(str::to_owned);
    (answer.status, code.unwrap_or_default())
}

/// Checks one node, or two that share a store.
fn check_suspended(here: &Server, there: &Server) {
    until("the gates are open", || [here, there].iter().all(|server| server.engine.gates.is_open(Gate::UserSafety)));
    let mut sessions = [here.open("alice", "phone"), there.open("alice", "laptop")];
    let mut bob = there.open("bob", "phone");
    suspend(here, "alice");
    for session in &mut sessions {
        let (frames, close) = end(session);
        // The message from before may reach another node's session first.
        let Some(ServerFrame::Error { code, message, retry, .. }) = frames.last() else { panic!("{frames:?}") };
        let expected = (ErrorCode::UserSuspended, "the user is suspended: spam", false, 4021);
        assert_eq!((*code, message.as_str(), *retry, close), expected);
    }
    until("no session is left", || (here.online("alice"), there.online("alice")) == (0, 0));
    let of_bob = frames_until_pong(&mut bob);
    let is_message = |frame: &ServerFrame| matches!(frame, ServerFrame::Messages { .. });
    assert!(of_bob.iter().all(is_message), "another user's session goes on: {of_bob:?}");
    for server in [here, there] {
        check_end(&mut try_bind(server, "alice", "phone"), ErrorCode::UserSuspended);
        assert_eq!(asks(server, "alice"), (403, "user_suspended".into()));
        // Another token of the same user is none better, also for a session of somebody else.
        bob.write_text(json!({"t": "refresh", "ref": 1, "token": token("alice")}).to_string().as_bytes()).unwrap();
        assert_eq!(error(&mut bob).1, ErrorCode::UserSuspended);
    }
    there.say("bob", "g", "written meanwhile");
    until("bob has it", || match next(&mut bob) {
        ServerFrame::Messages { entries, .. } => entries.iter().any(|entry| text_of(entry) == "written meanwhile"),
        _ => false,
    });
    lift(there, "alice");
    until("both nodes let the user in", || [here, there].iter().all(|server| asks(server, "alice").0 == 200));
    let mut again = here.open("alice", "phone");
    again
        .write(&ClientFrame::History { reference: Some(1), conversation: "g".into(), query: Default::default() })
        .unwrap();
    // What was written meanwhile may reach this node only now: then the session gets it, too.
    let page = loop {
        match next(&mut again) {
            ServerFrame::History { page, .. } => break page,
            ServerFrame::Messages { .. } => {}
            other => panic!("no history: {other:?}"),
        }
    };
    assert_eq!(page.entries.iter().map(text_of).collect::<Vec<_>>(), ["before", "written meanwhile"]);
}

fn with_people(server: &Server) {
    server.users(&["alice", "bob"]);
    server.group("g", &["alice", "bob"]);
    server.say("alice", "g", "before");
}

#[test]
fn sessions_end_and_none_begins_until_the_suspension_is_lifted() {
    let server = Server::start();
    with_people(&server);
    check_suspended(&server, &server);
}

#[test]
fn a_suspension_holds_on_every_node() {
    let (store, bus) = (Arc::new(MemoryStore::shared()), LocalBus::default());
    let [here, there] = ["a", "b"].map(|name| Server::node(name, &store, &bus));
    with_people(&here);
    check_suspended(&here, &there);
}

#[test]
fn event_streams_and_devices_are_ended_and_refused_as_well() {
    let server = Server::start();
    with_people(&server);
    let listener = RunningListener::open(&server, MiopListenerConfig::open(vec![LOCAL]));
    let mut stream = EventStream::open(server.address, &token("alice"), "page", None);
    let bearer = token("alice");
    let bind = Bind {
        version: VERSION,
        token: &bearer,
        device_id: "pager",
        device_kind: Some("pager"),
        wants: Some(wants::CHAT),
        ..Bind::default()
    };
    let mut device = DeviceSession::open(listener.address, &bind).unwrap();
    suspend(&server, "alice");
    loop {
        match stream.frame() {
            ServerFrame::Error { code, .. } => break assert_eq!(code, ErrorCode::UserSuspended),
            other => drop(other),
        }
    }
    assert_eq!(stream.close().0, 4021);
    let is_ended = |error: ClientError| error.to_string().contains("user_suspended");
    let ended = loop {
        match device.next(Duration::from_secs(60)) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(is_ended(ended));
    assert!(is_ended(DeviceSession::open(listener.address, &bind).err().unwrap()));
    let request = crate::event_stream::open_request(
        "HTTP/1.1",
        &bearer,
        "connection: close\r\n",
        &crate::event_stream::bind_of("page", None),
    );
    let (status, body) = crate::event_stream::exchange(server.address, request.as_bytes());
    assert!(status == 403 && body.contains("user_suspended"), "{status} {body}");
    lift(&server, "alice");
    DeviceSession::open(listener.address, &bind).unwrap();
}
