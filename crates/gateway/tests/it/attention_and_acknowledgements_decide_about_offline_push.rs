//! Offline push counts a user as reached while somebody looks at one of their sessions and the messages are acknowledged.
// Slow: left out by `make test-quick`.

use crate::offline_push_app::{app, told};
use crate::support::*;
use std::{sync::Arc, time::Duration};
use tidings_client::session::Session;
use tidings_domain::function::Function;
use tidings_gateway::SessionConfig;
use tidings_popups::Precondition;
use tidings_protocol::{
    error::ErrorCode,
    frames::{Attention, Bind, ClientFrame, ServerFrame},
};
use tidings_testkit::{LocalBus, MemoryStore};

/// The time to acknowledge: a thread of a busy machine may be stopped for seconds.
const ACK_TIMEOUT: Duration = Duration::from_secs(8);

/// Sessions are not probed, so that only attention and acknowledgements decide.
fn config() -> SessionConfig {
    SessionConfig { ack_timeout: ACK_TIMEOUT, probe_timeout: Duration::ZERO, ..session_config() }
}

fn text_for(text: &str, user: &str) -> (String, Vec<String>) {
    (text.to_owned(), vec![user.to_owned()])
}

fn say_to(server: &Server, user: &str, text: &str) {
    server.say("alice", &format!("alice~{user}"), text);
}

fn set(session: &mut Session, state: Attention) {
    session.write(&ClientFrame::Attention { reference: Some(7), state }).unwrap();
    while !matches!(next(session), ServerFrame::Ok { reference: 7 }) {}
}

/// Reads the next message, and says that it is stored.
fn acknowledge(session: &mut Session) -> String {
    let entries = entries(session, 1);
    let cursor = session.cursor.clone().unwrap();
    session.write(&ClientFrame::Stored { cursor }).unwrap();
    assert!(frames_until_pong(session).is_empty(), "the server has taken the frame before");
    text_of(&entries[0])
}

#[test]
fn messages_to_sessions_in_the_background_are_sent_there_and_by_offline_push() {
    let (app, hears) = app();
    let server = Server::with_webhook(config(), Arc::new(MemoryStore::default()), app);
    server.users(&["alice", "bob", "dan"]);
    let token = token("bob");
    let ClientFrame::Bind(bind) = bind_frame(&token, "phone", None) else { panic!("not a bind") };
    let bind = ClientFrame::Bind(Bind { attention: Attention::Background, ..bind });
    let mut bob = Session::connect(server.address).unwrap();
    bob.write(&bind).unwrap();
    assert!(matches!(next(&mut bob), ServerFrame::Bound(_)));
    let state = |server: &Server| {
        let bob = server.engine.presence_of(&["bob".into()]).unwrap().remove(0);
        (bob.online, bob.active, bob.devices[0].background)
    };
    assert_eq!(state(&server), (true, false, true));
    say_to(&server, "bob", "one");
    assert_eq!(told(&hears), text_for("one", "bob"));
    assert_eq!(text_of(&entries(&mut bob, 1)[0]), "one");

    set(&mut bob, Attention::Foreground);
    assert_eq!(state(&server), (true, true, false));
    say_to(&server, "bob", "two");
    say_to(&server, "dan", "three");
    assert_eq!(told(&hears), text_for("three", "dan"), "somebody looks at bob's session");
    assert_eq!(text_of(&entries(&mut bob, 1)[0]), "two");

    set(&mut bob, Attention::Background);
    say_to(&server, "bob", "four");
    assert_eq!(told(&hears), text_for("four", "bob"));
    // Another session that somebody looks at suffices.
    let _laptop = server.open("bob", "laptop");
    say_to(&server, "bob", "five");
    say_to(&server, "dan", "six");
    assert_eq!(told(&hears), text_for("six", "dan"));
    assert_eq!(entries(&mut bob, 2).iter().map(text_of).collect::<Vec<_>>(), ["four", "five"]);
}

#[test]
fn an_unknown_state_is_refused() {
    let server = Server::start();
    server.users(&["bob"]);
    let mut bob = server.open("bob", "phone");
    for frame in [r#"{"t":"attention","ref":1}"#, r#"{"t":"attention","ref":1,"state":"asleep"}"#] {
        bob.write_text(frame.as_bytes()).unwrap();
        let (reference, code, message) = error(&mut bob);
        assert_eq!((reference, code), (Some(1), ErrorCode::InvalidField), "{message}");
        assert!(message.starts_with("state"), "{message}");
    }
}

#[test]
fn what_a_client_does_not_acknowledge_in_time_goes_out_though_its_session_lives() {
    let (app, hears) = app();
    let server = Server::with_webhook(config(), Arc::new(MemoryStore::default()), app);
    server.users(&["alice", "bob"]);
    let mut bob = server.open("bob", "phone");
    // Before its first acknowledgement nothing is expected of a client.
    say_to(&server, "bob", "one");
    assert_eq!(acknowledge(&mut bob), "one");
    say_to(&server, "bob", "two");
    assert_eq!(text_of(&entries(&mut bob, 1)[0]), "two");
    assert_eq!(told(&hears), text_for("two", "bob"), "received and not stored");
    assert_eq!(server.online("bob"), 1);
    // What was told is not told again, and what is acknowledged is not told.
    say_to(&server, "bob", "three");
    assert_eq!(acknowledge(&mut bob), "three");
    say_to(&server, "bob", "four");
    assert_eq!(told(&hears), text_for("four", "bob"));
}

#[test]
fn an_acknowledgement_of_another_device_suffices() {
    let (app, hears) = app();
    let server = Server::with_webhook(config(), Arc::new(MemoryStore::default()), app);
    server.users(&["alice", "bob"]);
    let (mut phone, mut laptop) = (server.open("bob", "phone"), server.open("bob", "laptop"));
    say_to(&server, "bob", "one");
    for session in [&mut phone, &mut laptop] {
        assert_eq!(acknowledge(session), "one");
    }
    say_to(&server, "bob", "two");
    assert_eq!(acknowledge(&mut laptop), "two");
    // The phone has hung since "two". Its time is over before that of "three", which neither acknowledges.
    say_to(&server, "bob", "three");
    assert_eq!(told(&hears), text_for("three", "bob"));
}

#[test]
fn a_session_that_ends_unacknowledged_is_told_of_unless_its_user_comes_back() {
    let (app, hears) = app();
    let server = Server::with_webhook(config(), Arc::new(MemoryStore::default()), app);
    server.users(&["alice", "bob", "cleo", "dan"]);
    let [mut bob, mut cleo] = ["bob", "cleo"].map(|user| server.open(user, "phone"));
    for (user, session) in [("bob", &mut bob), ("cleo", &mut cleo)] {
        say_to(&server, user, "one");
        assert_eq!(acknowledge(session), "one");
    }
    for (user, session) in [("bob", &mut bob), ("cleo", &mut cleo)] {
        say_to(&server, user, "two");
        entries(session, 1);
    }
    say_to(&server, "dan", "three");
    assert_eq!(told(&hears), text_for("three", "dan"), "all before counted as reached");
    drop((bob, cleo));
    until("both sessions are over", || server.online("bob") + server.online("cleo") == 0);
    let _bob = server.open("bob", "phone");
    assert_eq!(told(&hears), text_for("two", "cleo"));
    assert!(hears.try_recv().is_err());
}

#[test]
fn every_node_of_a_cluster_knows_at_which_sessions_somebody_looks() {
    let (store, bus) = (Arc::new(MemoryStore::shared()), LocalBus::default());
    let (app, hears) = app();
    let node = |name| Server::node_with_webhook(name, config(), &store, &bus, app.clone());
    let first = node("a");
    until("it leads", || first.engine.leads(Function::Push) && first.engine.readiness().is_ok());
    let second = node("b");
    until("the other is ready", || second.engine.readiness().is_ok());
    first.users(&["alice", "bob", "dan"]);
    let mut bob = second.open("bob", "phone");
    let no = first.engine.directory.require_user("bob").unwrap().no;
    until("the leader knows of him", || first.engine.presence.is_active(no));
    set(&mut bob, Attention::Background);
    until("the leader knows that nobody looks", || !first.engine.presence.is_active(no));
    let devices = first.engine.presence.sessions_of(no);
    assert_eq!((devices.len(), &*devices[0].device_kind, devices[0].background), (1, "web", true));
    say_to(&first, "bob", "one");
    assert_eq!(told(&hears), text_for("one", "bob"));
    // A node that joins now learns the same from a snapshot.
    let third = node("c");
    until("the third is ready", || third.engine.readiness().is_ok());
    until("the third knows of him", || third.online("bob") == 1);
    assert!(!third.engine.presence.is_active(no));
    set(&mut bob, Attention::Foreground);
    until("the leader knows that somebody looks", || first.engine.presence.is_active(no));
    until("the third knows it too", || third.engine.presence.is_active(no));
    say_to(&first, "bob", "two");
    say_to(&first, "dan", "three");
    assert_eq!(told(&hears), text_for("three", "dan"));
}

#[test]
fn the_notification_policy_says_how_long_clients_have() {
    let (app, hears) = app();
    let config = SessionConfig { ack_timeout: Duration::from_secs(3_600), ..config() };
    let server = Server::with_webhook(config, Arc::new(MemoryStore::default()), app);
    server.users(&["alice", "bob"]);
    let policy = r#"{"rules": [{"id": "direct", "for": {"kinds": ["direct"]}, "ack_timeout_ms": 500,
        "channels": [{"channel": "session"}, {"channel": "webhook"}]}]}"#;
    server.notifications.policies.put(policy.as_bytes(), None, Precondition::None).unwrap();
    let mut bob = server.open("bob", "phone");
    say_to(&server, "bob", "one");
    acknowledge(&mut bob);
    say_to(&server, "bob", "two");
    assert_eq!(text_of(&entries(&mut bob, 1)[0]), "two");
    assert_eq!(told(&hears).0, "two", "an hour before the time of the settings");
}
