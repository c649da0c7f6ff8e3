//! A signal reaches the members who are there, over every listener and on every node, and is not stored; who may not send may not
//! signal.

use crate::{event_stream::EventStream, support::*};
use serde_json::{Value, json};
use std::sync::Arc;
use tidings_client::{http::HttpClient, session::Session};
use tidings_domain::model::Actor;
use tidings_protocol::{
    error::ErrorCode,
    frames::{ClientFrame, ServerFrame},
    http::{ConversationKind, Suspend},
};
use tidings_testkit::{LocalBus, MemoryStore};

fn signal(session: &mut Session, reference: Option<u64>, conversation: &str, body: &Value) {
    let body = Some(serde_json::value::to_raw_value(body).unwrap());
    let (conversation, signal_type) = (conversation.to_owned(), "stop".to_owned());
    session.write(&ClientFrame::Signal { reference, conversation, signal_type, body }).unwrap();
}

/// Who signalled what where.
fn heard(frame: ServerFrame) -> (String, Option<String>, String, Value) {
    match frame {
        ServerFrame::Signal { conversation, user, signal_type, body } => {
            (conversation, user, signal_type, serde_json::from_str(body.get()).unwrap())
        }
        other => panic!("{other:?}"),
    }
}

fn expected(conversation: &str, user: Option<&str>, body: Value) -> (String, Option<String>, String, Value) {
    (conversation.into(), user.map(str::to_owned), "stop".into(), body)
}

fn post(client: &mut HttpClient, conversation: &str, body: &Value) -> (u16, String) {
    let path = format!("/v1/conversations/{conversation}/signals");
    let answer = client.exchange("POST", &path, body.to_string().as_bytes()).unwrap();
    let code = serde_json::from_slice::<Value>(&answer.body).unwrap_or_default()["code"].as_str().map(str::to_owned);
    (answer.status, code.unwrap_or_default())
}

/// Checks one node, or two that share a store.
fn check_signals(here: &Server, there: &Server) {
    here.users(&["alice", "bob", "carol"]);
    here.group("g", &["alice", "bob"]);
    let mut alice = here.open("alice", "phone");
    let mut own = there.open("alice", "laptop");
    let mut bob = there.open("bob", "phone");
    let mut page = EventStream::open(there.address, &token("bob"), "page", None);
    let mut carol = there.open("carol", "phone");
    here.say("alice", "alice~bob", "first");
    for session in [&mut alice, &mut own, &mut bob] {
        entries(session, 1);
    }
    while !matches!(page.frame(), ServerFrame::Messages { .. }) {}
    for id in ["g", "alice~bob"] {
        let before = here.engine.store.last_position();
        signal(&mut alice, Some(1), id, &json!({"seq": 7}));
        assert!(matches!(next(&mut alice), ServerFrame::Ok { reference: 1 }));
        let from_alice = expected(id, Some("alice"), json!({"seq": 7}));
        assert_eq!((heard(next(&mut bob)), heard(page.frame())), (from_alice.clone(), from_alice));
        // Over HTTP, with the user's token, in the user's name, and by the app server itself.
        let mut tokened = HttpClient::new(here.address, token("alice"));
        assert_eq!(post(&mut tokened, id, &json!({"type": "stop"})).0, 204);
        assert_eq!(post(&mut here.app(), id, &json!({"type": "stop", "body": 1, "from": "alice"})).0, 204);
        let others = [expected(id, Some("alice"), Value::Null), expected(id, Some("alice"), json!(1))];
        assert_eq!([heard(next(&mut bob)), heard(next(&mut bob))], others);
        assert_eq!([heard(page.frame()), heard(page.frame())], others);
        assert_eq!(here.engine.store.last_position(), before, "nothing is stored");
    }
    assert_eq!(post(&mut here.app(), "g", &json!({"type": "stop"})).0, 204);
    for session in [&mut alice, &mut own, &mut bob] {
        assert_eq!(heard(next(session)), expected("g", None, Value::Null), "the app server signals to all");
    }
    for session in [&mut alice, &mut own, &mut carol] {
        assert!(frames_until_pong(session).is_empty());
    }
}

#[test]
fn live_members_get_signals_over_every_listener() {
    let server = Server::start();
    check_signals(&server, &server);
}

#[test]
fn signals_cross_nodes() {
    let (store, bus) = (Arc::new(MemoryStore::shared()), LocalBus::default());
    let [here, there] = ["a", "b"].map(|name| Server::node(name, &store, &bus));
    until("they know each other", || [&here, &there].iter().all(|server| server.engine.nodes().len() == 2));
    check_signals(&here, &there);
}

#[test]
fn who_may_not_send_may_not_signal() {
    let server = Server::start();
    server.users(&["alice", "bob", "carol"]);
    server.group("g", &["alice", "bob"]);
    server.conversation(ConversationKind::Official, "news", &["alice", "bob"]);
    server.say("alice", "alice~bob", "first");
    let mut bob = server.open("bob", "phone");
    let mut carol = server.open("carol", "phone");
    let refused = |session: &mut Session, conversation: &str, body: &Value| {
        signal(session, Some(3), conversation, body);
        let (reference, code, _) = error(session);
        assert_eq!(reference, Some(3));
        code
    };
    assert_eq!(refused(&mut carol, "g", &json!(1)), ErrorCode::NotAMember);
    assert_eq!(refused(&mut carol, "alice~bob", &json!(1)), ErrorCode::NotFound);
    assert_eq!(refused(&mut bob, "news", &json!(1)), ErrorCode::Forbidden);
    assert_eq!(refused(&mut bob, "g", &json!("x".repeat(1_023))), ErrorCode::LimitExceeded);
    let alice = server.engine.directory.require_user("alice").unwrap();
    server.wait(server.engine.set_block(&Actor::App, &alice, "bob", true)).unwrap();
    assert_eq!(refused(&mut bob, "alice~bob", &json!(1)), ErrorCode::Blocked);
    server.wait(server.engine.suspend("alice", Suspend::default(), "mod")).unwrap();
    let in_her_name = json!({"type": "stop", "from": "alice"});
    assert_eq!(post(&mut server.app(), "g", &in_her_name), (403, "user_suspended".into()));
}

#[test]
fn a_flood_of_signals_is_refused_and_costs_nobody_a_session() {
    let server = Server::start();
    server.users(&["alice", "bob"]);
    server.group("g", &["alice", "bob"]);
    let mut alice = server.open("alice", "phone");
    let mut bob = server.open("bob", "phone");
    const FLOOD: u64 = 2_000;
    for n in 0..FLOOD {
        signal(&mut alice, Some(n), "g", &json!("x".repeat(1_000)));
    }
    let (mut passed, mut limited) = (0_u64, 0_u64);
    while passed + limited < FLOOD {
        match next(&mut alice) {
            ServerFrame::Ok { .. } => passed += 1,
            ServerFrame::Error { code: ErrorCode::RateLimited, retry_after_ms: Some(_), .. } => limited += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(passed >= 20 && limited > 0, "{passed} passed, {limited} were refused");
    let heard = frames_until_pong(&mut bob).len() as u64;
    assert!(heard <= passed, "{heard} of {passed}");
    server.say("alice", "g", "goes on");
    entries(&mut bob, 1);
}
