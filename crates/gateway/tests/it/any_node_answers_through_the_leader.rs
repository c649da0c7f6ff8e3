//! Push and popup requests may go to any node: a node that does not lead forwards them to the leader, and its answers back.
// Slow: left out by `make test-quick`.

use crate::support::*;
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
};
use tidings_client::{http::HttpClient, session::Session, wire::take_chunks};
use tidings_domain::function::Function;
use tidings_protocol::{
    error::ErrorCode,
    frames::{ClientFrame, ServerFrame},
    http::{DecideRequest, PopupEvent, PopupEventKind},
};
use tidings_testkit::{LocalBus, MemoryStore};

/// Two nodes, of which the first leads and the second knows its address; users `ann` and `ben`.
pub(crate) fn nodes() -> [Server; 2] {
    let (store, bus) = (Arc::new(MemoryStore::shared()), LocalBus::default());
    let first = Server::node("a", &store, &bus);
    until("the first leads", || first.engine.popups.settings().is_ok() && first.engine.push.settle().is_ok());
    let second = Server::node("b", &store, &bus);
    let known =
        || second.engine.cluster.as_ref().unwrap().nodes.leader(Function::Push).is_some_and(|a| !a.address.is_empty());
    until("the second knows where the first is", known);
    first.users(&["ann", "ben"]);
    [first, second]
}

#[track_caller]
pub(crate) fn ask(http: &mut HttpClient, method: &str, path: &str, body: Value, status: u16) -> Value {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let answer = answered(|| http.exchange(method, path, &body).unwrap());
    assert_eq!(answer.status, status, "{}", String::from_utf8_lossy(&answer.body));
    serde_json::from_slice(&answer.body).unwrap_or_default()
}

/// The complete answer to a request of these bytes.
fn raw(address: SocketAddr, head: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    write!(
        stream,
        "{head}\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn requests_at_another_node_are_carried_out_by_the_leader() {
    let [first, second] = nodes();
    let (mut here, mut there) = (first.app(), second.app());
    let popup = json!({"state": "live", "placements": ["home"], "variants": [{"id": "a", "content": {"title": "x"}}],
        "caps": {"total": 1}});
    ask(&mut there, "PUT", "/v1/popups/once", popup, 201);
    assert_eq!(ask(&mut here, "GET", "/v1/popups/once", Value::Null, 200)["version"], 1);
    let question = json!({"user": "ann", "placement": "home"});
    let shown = ask(&mut there, "POST", "/v1/popups/decide", question.clone(), 200);
    ask(&mut here, "POST", "/v1/popups/decide", question.clone(), 204);
    ask(&mut there, "POST", "/v1/popups/decide", question, 204);
    let event = json!({"events": [{"id": "e1", "type": "click", "decision": shown["decision"]}]});
    assert_eq!(ask(&mut there, "POST", "/v1/popup-events", event.clone(), 202)["accepted"], 1);
    assert_eq!(ask(&mut here, "POST", "/v1/popup-events", event, 202)["duplicates"], 1);
    let push = json!({"to": {"all": true}, "type": "t", "body": 1});
    let pushed = ask(&mut there, "POST", "/v1/push", push, 202)["push"].clone();
    assert_eq!(ask(&mut here, "GET", &format!("/v1/push/{pushed}"), Value::Null, 200)["push"], pushed);
    assert_eq!(ask(&mut there, "GET", "/v1/users/ann/devices", Value::Null, 200), json!({"devices": []}));
    // Requests that need no leader are answered by the node that gets them.
    ask(&mut there, "GET", "/v1/users/ann", Value::Null, 200);
    let forwarded = &second.engine.metrics.cluster.forwarded;
    assert_eq!((forwarded.get(), first.engine.metrics.cluster.forwarded.get()), (6, 0));
}

#[test]
fn forwarding_keeps_the_credential_and_the_answer_unchanged() {
    let [first, second] = nodes();
    let answers = [first.address, second.address].map(|address| raw(address, "GET /v1/popups/none HTTP/1.1", ""));
    for answer in &answers {
        assert!(answer.starts_with("HTTP/1.1 401 Unauthorized\r\n"), "{answer}");
        assert!(answer.contains("www-authenticate: Bearer\r\n") && answer.contains("problem+json"), "{answer}");
    }
    let mut as_ann = HttpClient::new(second.address, token("ann"));
    let refused = ask(&mut as_ann, "POST", "/v1/popups/decide", json!({"user": "ben", "placement": "home"}), 403);
    assert_eq!(refused["code"], "forbidden");
    ask(&mut as_ann, "POST", "/v1/popups/decide", json!({"placement": "home"}), 204);
    assert_eq!(ask(&mut second.app(), "GET", "/v1/popups/none", Value::Null, 404)["code"], "not_found");
}

#[test]
fn large_bodies_are_forwarded_both_ways() {
    let [_first, second] = nodes();
    let mut there = second.app();
    let list: String = (0..200_000).map(|n| format!("user-{n}\n")).collect();
    let answer = there.exchange_text("PUT", "/v1/popup-segments/all", "text/plain", list.as_bytes()).unwrap();
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    assert_eq!(ask(&mut there, "GET", "/v1/popup-segments/all", Value::Null, 200)["users"], 200_000);
    let popup = json!({"state": "live", "placements": ["home"], "variants": [{"id": "a", "content": {}}]});
    ask(&mut there, "PUT", "/v1/popups/each", popup, 201);
    let decision = ask(&mut there, "POST", "/v1/popups/decide", json!({"user": "ann", "placement": "home"}), 200);
    for hundred in 0..30 {
        let event = |n| json!({"id": format!("{hundred}-{n}"), "type": "click", "decision": decision["decision"]});
        let events: Vec<Value> = (0..100).map(event).collect();
        ask(&mut there, "POST", "/v1/popup-events", json!({"events": events}), 202);
    }
    // The length is unknown beforehand: the body comes in chunks, which may be cut anywhere.
    let authorization = format!("GET /v1/popup-events HTTP/1.1\r\nAuthorization: Bearer {API_KEY}");
    let export = raw(second.address, &authorization, "");
    let (head, chunks) = export.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("application/x-ndjson") && head.contains("chunked"), "{head}");
    let lines = String::from_utf8(take_chunks(chunks.as_bytes()).unwrap().expect("a last chunk")).unwrap();
    assert_eq!(lines.matches("\"decision\"").count(), 3_000);
}

#[test]
fn requests_without_a_reachable_leader_are_refused_with_retry_after() {
    let [first, second] = nodes();
    let check = |answer: String| {
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert!(answer.contains("node_unavailable") && answer.contains("retry-after: 1\r\n"), "{answer}");
    };
    let question = r#"{"user": "ann", "placement": "home"}"#;
    let head = format!("POST /v1/popups/decide HTTP/1.1\r\nAuthorization: Bearer {API_KEY}");
    // A request is forwarded once at most.
    check(raw(second.address, &format!("{head}\r\nTidings-Forwarded: c"), question));
    assert!(raw(first.address, &format!("{head}\r\nTidings-Forwarded: b"), question).starts_with("HTTP/1.1 204 "));
    // An unreachable leader: its port is bound, so that no other process takes it, but not listening.
    let taken = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    taken.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let closed = taken.local_addr().unwrap().as_socket().unwrap();
    first.engine.cluster.as_ref().unwrap().nodes.announce_addresses(format!("http://{closed}"), String::new());
    let leader = || second.engine.cluster.as_ref().unwrap().nodes.leader(Function::Push).unwrap().address.clone();
    until("the second has heard", || leader() == format!("http://{closed}"));
    check(raw(second.address, &head, question));
}

#[test]
fn a_hanging_leader_delays_only_the_questions_it_is_asked() {
    let [first, second] = nodes();
    second.group("g", &["ann", "ben"]);
    second.say("ann", "g", "hello");
    // The kernel accepts connections, and no process reads from them.
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    first.engine.cluster.as_ref().unwrap().nodes.announce_addresses(address.clone(), String::new());
    let leader = || second.engine.cluster.as_ref().unwrap().nodes.leader(Function::Push).unwrap().address.clone();
    until("the second has heard", || leader() == address);
    // More questions than there are threads for reads from the store.
    let mut sessions: Vec<Session> = (0..3).map(|n| second.open("ben", &format!("device-{n}"))).collect();
    let question: serde_json::Value = json!({ "placement": "home" });
    for session in &mut sessions {
        for n in 0..16 {
            let question = serde_json::from_value(question.clone()).unwrap();
            session.write(&ClientFrame::Popup { reference: Some(n), question }).unwrap();
        }
    }
    until("all are asked", || second.engine.metrics.cluster.forwarded.get() == 48);
    let history = ask(&mut second.app(), "GET", "/v1/conversations/g/messages", Value::Null, 200);
    assert_eq!(history["entries"][0]["body"], "hello", "{history}");
    for session in &mut sessions {
        for _ in 0..16 {
            assert_eq!(error(session).1, ErrorCode::NodeUnavailable);
        }
    }
}

#[test]
fn popup_questions_follow_the_leader() {
    let [first, second] = nodes();
    let popup = json!({"state": "live", "placements": ["home"], "variants": [{"id": "a", "content": {}}],
        "caps": {"total": 1}});
    ask(&mut second.app(), "PUT", "/v1/popups/once", popup, 201);
    let question = json!({"user": "ann", "placement": "home"});
    let mut there = second.app();
    ask(&mut there, "POST", "/v1/popups/decide", question.clone(), 200);
    drop(first);
    until("the second answers by itself", || second.engine.popups.settings().is_ok());
    ask(&mut there, "POST", "/v1/popups/decide", question.clone(), 204);
    ask(&mut second.app(), "POST", "/v1/popups/decide", question, 204);
    assert_eq!(ask(&mut there, "GET", "/v1/popups/once", Value::Null, 200)["version"], 1);
}

#[test]
fn a_session_on_another_node_asks_for_popups_and_reports_events() {
    let [first, second] = nodes();
    let popup = json!({"state": "live", "placements": ["home"], "variants": [{"id": "a", "content": {"title": "x"}}],
        "caps": {"per_session": 1}});
    ask(&mut first.app(), "PUT", "/v1/popups/often", popup, 201);
    let question = || serde_json::from_value(json!({ "placement": "home" })).unwrap();
    let asks = |session: &mut Session| {
        session.write(&ClientFrame::Popup { reference: Some(7), question: question() }).unwrap();
        match next(session) {
            ServerFrame::Popup { reference: Some(7), show, .. } => show,
            other => panic!("no answer but {other:?}"),
        }
    };
    let mut there = second.open("ann", "phone");
    let shown = asks(&mut there).unwrap();
    assert_eq!(asks(&mut there).map(|show| show.popup), None, "a connection is a session there too");
    assert!(asks(&mut second.open("ann", "laptop")).is_some());
    let event =
        |decision: &str| PopupEvent { decision: decision.into(), ..PopupEvent::new("e1", PopupEventKind::Click) };
    let report = |session: &mut Session| {
        let events = vec![event(&shown.decision)];
        session.write(&ClientFrame::PopupEvents { reference: Some(8), events }).unwrap();
        next(session)
    };
    assert!(matches!(report(&mut there), ServerFrame::Ok { reference: 8 }));
    match report(&mut second.open("ben", "phone")) {
        ServerFrame::Error { code, reference, .. } => {
            assert_eq!((code, reference), (ErrorCode::Forbidden, Some(8)), "of another user's decision");
        }
        other => panic!("{other:?}"),
    }
    let clicks: u64 =
        first.engine.popups.counts("often", None, None).unwrap().hours.iter().map(|hour| hour.clicks).sum();
    assert_eq!(clicks, 1);
}

#[test]
fn a_triggered_popup_reaches_a_session_on_any_node() {
    let [first, second] = nodes();
    let popup = json!({"state": "live", "placements": ["home"], "variants": [{"id": "a", "content": {"title": "x"}}],
        "trigger": {"event": "paid"}, "caps": {"per_session": 1}});
    ask(&mut first.app(), "PUT", "/v1/popups/thanks", popup, 201);
    let event = json!({"user": "ann", "placement": "home", "event": {"name": "paid"}});
    let trigger = |server: &Server| ask(&mut server.app(), "POST", "/v1/popups/trigger", event.clone(), 200);
    assert_eq!(trigger(&first)["delivered"], false, "nobody is there");
    let mut there = second.open("ann", "phone");
    until("the first has heard", || first.online("ann") == 1);
    let triggered = trigger(&second);
    assert_eq!(triggered["delivered"], true, "{triggered}");
    match next(&mut there) {
        ServerFrame::Popup { reference: None, show: Some(show), .. } => {
            assert_eq!((show.popup.as_str(), json!(show.decision)), ("thanks", triggered["decision"].clone()));
        }
        other => panic!("no popup but {other:?}"),
    }
    assert_eq!(trigger(&first)["delivered"], false, "once a session, as for a question of its own");
    let mut question: DecideRequest = serde_json::from_value(json!({ "placement": "home" })).unwrap();
    question.event = serde_json::from_value(json!({"name": "paid"})).unwrap();
    there.write(&ClientFrame::Popup { reference: Some(7), question }).unwrap();
    assert!(matches!(next(&mut there), ServerFrame::Popup { reference: Some(7), show: None, .. }));
}
