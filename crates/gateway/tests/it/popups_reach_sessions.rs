//! Popups on live sessions: questions, event reports, and popups that the app server triggers.

use crate::devices::{LOCAL, RunningListener};
use crate::support::*;
use serde_json::{Value, json};
use std::time::Duration;
use tidings_client::{
    device::{DeviceFrame, DeviceSession},
    http::HttpClient,
    session::Session,
};
use tidings_gateway::miop_listener::MiopListenerConfig;
use tidings_protocol::{
    error::ErrorCode,
    frames::{ClientFrame, ServerFrame},
    http::{DecideRequest, Decision, PopupEvent, PopupEventKind, PopupHour, Triggered},
    miop::{Bind, Frame, VERSION, wants},
};

fn put(server: &Server, id: &str, parts: Value) {
    let mut popup =
        json!({"state": "live", "placements": ["home"], "variants": [{"id": "a", "content": {"title": id}}]});
    for (name, part) in parts.as_object().unwrap() {
        popup[name] = part.clone();
    }
    let answer = server.app().exchange("PUT", &format!("/v1/popups/{id}"), popup.to_string().as_bytes()).unwrap();
    assert_eq!(answer.status, 201, "{}", String::from_utf8_lossy(&answer.body));
}

fn question(placement: &str) -> DecideRequest {
    serde_json::from_value(json!({ "placement": placement })).unwrap()
}

/// Asks on a session and returns the decision, or the time to wait.
#[track_caller]
fn ask(session: &mut Session, question: DecideRequest) -> Result<Decision, Option<u64>> {
    session.write(&ClientFrame::Popup { reference: Some(7), question }).unwrap();
    match next(session) {
        ServerFrame::Popup { reference: Some(7), show: Some(show), retry_after_ms: None } => Ok(show),
        ServerFrame::Popup { reference: Some(7), show: None, retry_after_ms } => Err(retry_after_ms),
        other => panic!("no answer but {other:?}"),
    }
}

/// The next popup that was triggered, not asked for.
#[track_caller]
fn triggered(session: &mut Session) -> Decision {
    match next(session) {
        ServerFrame::Popup { reference: None, show: Some(show), .. } => show,
        other => panic!("no popup but {other:?}"),
    }
}

#[track_caller]
fn trigger(server: &Server, user: &str, event: &str) -> Triggered {
    let body = json!({"user": user, "placement": "home", "event": {"name": event}}).to_string();
    let answer = answered(|| server.app().exchange("POST", "/v1/popups/trigger", body.as_bytes()).unwrap());
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    serde_json::from_slice(&answer.body).unwrap()
}

/// How often a popup was handed out, by its counters.
fn shown(server: &Server, popup: &str) -> u64 {
    counted(server, popup, |hour| hour.shown)
}

/// The sum over all hours: a new hour may begin while a test runs.
fn counted(server: &Server, popup: &str, of: impl Fn(&PopupHour) -> u64) -> u64 {
    server.engine.popups.counts(popup, None, None).unwrap().hours.iter().map(of).sum()
}

fn decides(app: &mut HttpClient, body: &Value) -> u16 {
    app.exchange("POST", "/v1/popups/decide", body.to_string().as_bytes()).unwrap().status
}

#[test]
fn a_session_asks_for_popups_and_reports_events() {
    let server = Server::start();
    server.users(&["ann", "bob"]);
    put(&server, "p", json!({"caps": {"gap_s": 3_600}}));
    let mut ann = server.open("ann", "phone");
    assert_eq!(ask(&mut ann, question("elsewhere")).unwrap_err(), None);
    let show = ask(&mut ann, question("home")).unwrap();
    assert_eq!((show.popup.as_str(), show.variant.as_str(), show.test), ("p", "a", false));
    assert_eq!(show.content.get(), r#"{"title":"p"}"#);
    let wait = ask(&mut ann, question("home")).unwrap_err().unwrap();
    assert!((3_500_000..=3_600_000).contains(&wait), "{wait}");

    let event = |id: &str, decision: &str| PopupEvent {
        decision: decision.into(),
        ..PopupEvent::new(id, PopupEventKind::Click)
    };
    // A repeated report is recognized and accepted.
    for _ in 0..2 {
        let events = vec![event("e", &show.decision)];
        ann.write(&ClientFrame::PopupEvents { reference: Some(8), events }).unwrap();
        assert!(matches!(next(&mut ann), ServerFrame::Ok { reference: 8 }));
    }
    assert_eq!(counted(&server, "p", |hour| hour.clicks), 1);

    let mut bob = server.open("bob", "phone");
    bob.write(&ClientFrame::PopupEvents { reference: Some(9), events: vec![event("f", &show.decision)] }).unwrap();
    assert_eq!(error(&mut bob).0, Some(9));
    for (text, code, names) in [
        (r#"{"t":"popup","ref":1}"#, ErrorCode::InvalidField, "question"),
        (r#"{"t":"popup","ref":1,"question":{}}"#, ErrorCode::InvalidField, "placement"),
        (r#"{"t":"popup","ref":1,"question":{"placement":"home","x":1}}"#, ErrorCode::InvalidField, "x"),
        (r#"{"t":"popup","ref":1,"question":{"placement":"home","user":"ann"}}"#, ErrorCode::Forbidden, "own user"),
        (r#"{"t":"popup_events","ref":1}"#, ErrorCode::InvalidField, "events"),
        (r#"{"t":"popup_events","ref":1,"events":[{"id":"e"}]}"#, ErrorCode::InvalidField, "events"),
        (
            r#"{"t":"popup_events","ref":1,"events":[{"id":"e","type":"click","decision":"x"}]}"#,
            ErrorCode::InvalidField,
            "events[0].decision",
        ),
    ] {
        bob.write_text(text.as_bytes()).unwrap();
        let (reference, refused, message) = error(&mut bob);
        assert_eq!((reference, refused), (Some(1), code), "{text}: {message}");
        assert!(message.contains(names), "{text}: {message}");
    }
    assert_eq!(shown(&server, "p"), 1);
    assert_eq!(ask(&mut bob, question("home")).unwrap().popup, "p", "the session goes on");
}

#[test]
fn a_triggered_popup_arrives_at_the_users_latest_session() {
    let server = Server::start();
    server.users(&["ann"]);
    put(&server, "p", json!({"trigger": {"event": "paid"}}));
    let mut first = server.open("ann", "phone");
    let mut last = server.open("ann", "laptop");
    let told = trigger(&server, "ann", "paid");
    assert!(told.delivered);
    let show = triggered(&mut last);
    assert_eq!((Some(show.decision), Some(show.popup)), (told.decision, told.popup));
    assert!(frames_until_pong(&mut first).is_empty(), "one of them is enough");
    assert!(!trigger(&server, "ann", "left").delivered, "another event");

    drop(last);
    until("the laptop has gone", || server.online("ann") == 1);
    assert!(trigger(&server, "ann", "paid").delivered);
    assert_eq!(triggered(&mut first).popup, "p");
    assert_eq!(shown(&server, "p"), 2);
}

#[test]
fn a_triggered_popup_without_a_session_is_not_counted() {
    let server = Server::start();
    server.users(&["ann"]);
    let listener = RunningListener::open(&server, MiopListenerConfig::open(vec![LOCAL]));
    put(&server, "p", json!({"trigger": {"event": "paid"}, "caps": {"total": 1}}));
    let nothing = |why: &str| {
        let told = trigger(&server, "ann", "paid");
        assert_eq!((told.delivered, told.decision, told.popup), (false, None, None), "{why}");
        assert_eq!(shown(&server, "p"), 0, "{why}");
    };
    nothing("nobody is there");
    let pushes_only = Bind {
        version: VERSION,
        token: token("ann").leak(),
        device_id: "tv",
        wants: Some(wants::PUSH),
        ..Bind::default()
    };
    let mut device = DeviceSession::open(listener.address, &pushes_only).unwrap();
    assert_eq!(server.online("ann"), 1);
    nothing("a device that takes pushes only");
    device.heartbeat().unwrap();
    assert!(matches!(device.next(PATIENCE).unwrap(), Some(DeviceFrame::Heartbeat { .. })));

    // A later session without popups does not hide an earlier one that takes them.
    drop(device);
    until("the device has gone", || server.online("ann") == 0);
    let mut phone = server.open("ann", "phone");
    let _device = DeviceSession::open(listener.address, &pushes_only).unwrap();
    assert!(trigger(&server, "ann", "paid").delivered);
    assert_eq!(triggered(&mut phone).popup, "p");
    assert_eq!(shown(&server, "p"), 1);
    assert!(!trigger(&server, "ann", "paid").delivered, "its cap is reached");
}

#[test]
fn caps_hold_over_sessions_and_http_together() {
    let server = Server::start();
    server.users(&["ann"]);
    put(&server, "p", json!({"caps": {"total": 3}}));
    put(&server, "t", json!({"caps": {"total": 2}, "trigger": {"event": "paid"}}));
    let mut app = server.app();
    let (mut phone, mut laptop) = (server.open("ann", "phone"), server.open("ann", "laptop"));
    let view = json!({"user": "ann", "placement": "home"});
    assert!(ask(&mut phone, question("home")).is_ok());
    assert_eq!(decides(&mut app, &view), 200);
    assert!(ask(&mut laptop, question("home")).is_ok());
    assert_eq!(decides(&mut app, &view), 204);
    assert_eq!(ask(&mut phone, question("home")).unwrap_err(), None);

    let paid = json!({"user": "ann", "placement": "home", "event": {"name": "paid"}});
    assert_eq!(decides(&mut app, &paid), 200);
    assert!(trigger(&server, "ann", "paid").delivered);
    assert_eq!(triggered(&mut laptop).popup, "t");
    assert!(!trigger(&server, "ann", "paid").delivered);
    assert_eq!((shown(&server, "p"), shown(&server, "t")), (3, 2));
}

#[test]
fn the_connection_is_the_popup_session_unless_the_app_names_one() {
    let server = Server::start();
    server.users(&["ann"]);
    put(&server, "p", json!({"caps": {"per_session": 1}}));
    put(&server, "t", json!({"caps": {"per_session": 1}, "trigger": {"event": "paid"}}));
    let named = |session: &str| DecideRequest { session: Some(session.into()), ..question("home") };
    // A popup session ends after this long without a popup.
    const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
    let waits = |answer: Result<Decision, Option<u64>>| {
        let wait = answer.unwrap_err().unwrap();
        assert!((DAY_MS - 60_000..=DAY_MS).contains(&wait), "{wait}");
    };
    let mut phone = server.open("ann", "phone");
    assert!(ask(&mut phone, question("home")).is_ok());
    waits(ask(&mut phone, question("home")));
    assert!(trigger(&server, "ann", "paid").delivered);
    assert_eq!(triggered(&mut phone).popup, "t");
    assert!(!trigger(&server, "ann", "paid").delivered, "once in this session");
    assert!(ask(&mut phone, named("one")).is_ok(), "another session, as the app sees it");
    let mut laptop = server.open("ann", "laptop");
    // The named session continues on any device.
    waits(ask(&mut laptop, named("one")));
    assert!(ask(&mut laptop, question("home")).is_ok(), "a connection of its own");
    assert!(trigger(&server, "ann", "paid").delivered);
    assert_eq!(triggered(&mut laptop).popup, "t");
    // Without a session no cap per session applies.
    assert_eq!(decides(&mut server.app(), &json!({"user": "ann", "placement": "home"})), 204);
    assert_eq!((shown(&server, "p"), shown(&server, "t")), (3, 2));
}

#[test]
fn miop_devices_get_the_same_popup_frames() {
    let server = Server::start();
    server.users(&["ann"]);
    let listener = RunningListener::open(&server, MiopListenerConfig::open(vec![LOCAL]));
    put(&server, "p", json!({}));
    put(&server, "t", json!({"trigger": {"event": "paid"}}));
    let bind = Bind { version: VERSION, token: token("ann").leak(), device_id: "tv", ..Bind::default() };
    let mut device = DeviceSession::open(listener.address, &bind).unwrap();
    let chat = |device: &mut DeviceSession| match device.next(PATIENCE).unwrap() {
        Some(DeviceFrame::Chat(frame)) => frame,
        other => panic!("no chat frame but {other:?}"),
    };
    device.write_chat(&ClientFrame::Popup { reference: Some(1), question: question("home") }).unwrap();
    let ServerFrame::Popup { reference: Some(1), show: Some(show), .. } = chat(&mut device) else { panic!() };
    assert_eq!((show.popup.as_str(), show.content.get()), ("p", r#"{"title":"p"}"#));
    let event = json!({"t": "popup_events", "ref": 2, "events": [{"id": "e", "type": "impression", "decision": show.decision}]});
    device.write(&Frame::Chat { json: event.to_string().as_bytes() }).unwrap();
    assert!(matches!(chat(&mut device), ServerFrame::Ok { reference: 2 }));
    assert!(trigger(&server, "ann", "paid").delivered);
    let ServerFrame::Popup { reference: None, show: Some(show), .. } = chat(&mut device) else { panic!() };
    assert_eq!(show.popup, "t");
    assert_eq!(counted(&server, "p", |hour| hour.impressions), 1);
}

#[test]
fn a_triggered_popup_skips_a_session_that_does_not_read() {
    let config = tidings_gateway::SessionConfig { session_buffer_bytes: 64 * 1024, ..session_config() };
    let server = Server::with(config, std::sync::Arc::new(tidings_testkit::MemoryStore::default()));
    server.users(&["ann"]);
    let content = json!([{"id": "a", "content": {"text": "x".repeat(50_000)}}]);
    put(&server, "big", json!({"trigger": {"event": "paid"}, "variants": content}));
    let _deaf = server.open("ann", "phone");
    // The kernel's buffers on both sides hold a few megabytes; then the session's own buffer fills.
    let mut delivered = 0;
    while delivered < 10_000 && trigger(&server, "ann", "paid").delivered {
        delivered += 1;
    }
    assert!(delivered < 10_000, "a popup was never held back");
    assert_eq!(shown(&server, "big"), delivered, "what has no place is not counted");
    let mut awake = server.open("ann", "laptop");
    assert!(trigger(&server, "ann", "paid").delivered);
    assert_eq!(triggered(&mut awake).popup, "big");
    assert!(awake.next(Duration::ZERO).unwrap().is_none());
}
