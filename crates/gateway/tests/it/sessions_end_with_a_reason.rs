//! A session is always closed with its reason: replaced, kicked, drained, or as the client asked. No frame follows the close
//! frame.
#![expect(clippy::disallowed_methods, reason = "a channel of a test ends with it")]

use crate::support::{gated_store::Gated, *};
use crossbeam_channel::{Sender, unbounded};
use std::{sync::Arc, time::Duration};
use tidings_client::session::Session;
use tidings_protocol::{
    error::ErrorCode,
    frames::{ClientFrame, ServerFrame},
    http::Kick,
};

fn with_people() -> Server {
    let server = Server::start();
    server.users(&["alice", "bob"]);
    server.group("g", &["alice", "bob"]);
    server
}

#[test]
fn a_newer_session_of_a_device_replaces_the_older() {
    let server = with_people();
    let mut laptop = server.open("bob", "laptop");
    let mut before = server.open("bob", "phone");
    for _ in 0..5 {
        let mut after = server.open("bob", "phone");
        check_end(&mut before, ErrorCode::Replaced);
        before = after;
        after = server.open("bob", "phone");
        check_end(&mut before, ErrorCode::Replaced);
        before = after;
    }
    assert_eq!(server.online("bob"), 2);
    server.say("alice", "g", "hello");
    assert_eq!(entries(&mut before, 1), entries(&mut laptop, 1));
}

#[test]
fn the_same_device_of_another_user_is_another_device() {
    let server = with_people();
    let mut alice = server.open("alice", "phone");
    let mut bob = server.open("bob", "phone");
    assert!(frames_until_pong(&mut alice).is_empty() && frames_until_pong(&mut bob).is_empty());
}

#[test]
fn beyond_the_limit_per_kind_the_oldest_session_is_closed() {
    let server = with_people();
    assert_eq!(server.engine.config.sessions_per_kind, 3);
    let mut kept: std::collections::VecDeque<Session> =
        (0..3).map(|n| server.open("bob", &format!("browser-{n}"))).collect();
    let mut phone = Session::connect(server.address).unwrap();
    let bind = format!(r#"{{"t":"bind","token":"{}","device_id":"p","device_kind":"ios"}}"#, token("bob"));
    phone.write_text(bind.as_bytes()).unwrap();
    assert!(matches!(next(&mut phone), ServerFrame::Bound(_)));
    for n in 3..6 {
        kept.push_back(server.open("bob", &format!("browser-{n}")));
        check_end(&mut kept.pop_front().unwrap(), ErrorCode::Replaced);
    }
    for session in &mut kept {
        assert!(frames_until_pong(session).is_empty());
    }
    assert!(frames_until_pong(&mut phone).is_empty(), "another kind has a limit of its own");
    assert_eq!(server.online("bob"), 4);
}

#[test]
fn a_kick_ends_one_device_or_all_and_they_may_return() {
    let server = with_people();
    let mut alice = server.open("alice", "phone");
    let mut phone = server.open("bob", "phone");
    let mut laptop = server.open("bob", "laptop");
    let kick = |device: Option<&str>| Kick { device_id: device.map(str::to_owned), reason: Some("sold".into()) };
    assert_eq!(server.wait(server.engine.kick("bob", kick(Some("phone")))).unwrap().sessions, 1);
    let (frames, close) = end(&mut phone);
    assert!(matches!(&frames[..], [ServerFrame::Error { code: ErrorCode::Kicked, message, .. }] if message == "sold"));
    assert_eq!(close, 4004);
    assert!(frames_until_pong(&mut laptop).is_empty());
    assert_eq!(server.wait(server.engine.kick("bob", kick(None))).unwrap().sessions, 1);
    check_end(&mut laptop, ErrorCode::Kicked);
    assert_eq!(server.online("bob"), 0);
    let mut again = server.open("bob", "phone");
    assert!(frames_until_pong(&mut again).is_empty() && frames_until_pong(&mut alice).is_empty());
}

#[test]
fn draining_tells_clients_to_reconnect() {
    let mut server = with_people();
    let mut unbound = Session::connect(server.address).unwrap();
    let mut sessions: Vec<Session> = (0..3).map(|n| server.open("bob", &format!("b{n}"))).collect();
    server.say("alice", "g", "before");
    for session in &mut sessions {
        entries(session, 1);
    }
    // An upgraded connection is adopted after the answer was sent.
    until("the sessions have them all", || server.engine.metrics.connections.get() == 4);
    server.stop_accepting();
    let session_server = server.session_server.clone();
    let draining = server.runtime.spawn(async move { session_server.drain(Duration::from_secs(2)).await });
    for session in sessions.iter_mut().chain([&mut unbound]) {
        let (frames, close) = end(session);
        let [ServerFrame::Reconnect { after_ms }, ServerFrame::Error { code, retry_after_ms, .. }] = &frames[..] else {
            panic!("{frames:?}")
        };
        assert_eq!((*code, *retry_after_ms, close), (ErrorCode::Draining, Some(*after_ms), 4009));
        assert!(*after_ms <= 2_000);
    }
    drop((sessions, unbound));
    server.wait(draining).unwrap();
    assert_eq!(server.session_server.connections(), 0);
}

#[test]
fn an_unbind_or_close_frame_is_answered_with_a_close_frame() {
    let server = with_people();
    let mut session = server.open("bob", "phone");
    session.write(&ClientFrame::Unbind).unwrap();
    assert!(matches!(end(&mut session), (frames, 1_000) if frames.is_empty()));
    drop(session);
    let mut session = server.open("bob", "phone");
    // Masked with zeros: close, code 3210.
    session.write_bytes(&[0x88, 0x82, 0, 0, 0, 0, 0x0C, 0x8A]).unwrap();
    assert!(matches!(end(&mut session), (frames, 3_210) if frames.is_empty()));
    until("bob is offline", || server.online("bob") == 0);
    drop(session);
    until("his connection is closed", || server.session_server.connections() == 0);
}

#[test]
fn a_session_whose_device_removal_is_unconfirmed_can_bind_again() {
    let server = Server::with(session_config(), Arc::new(Gated::open()));
    server.users(&["bob"]);
    let bind = || {
        let mut session = Session::connect(server.address).unwrap();
        let bind = format!(r#"{{"t":"bind","token":"{}","device_id":"phone","push":true}}"#, token("bob"));
        session.write_text(bind.as_bytes()).unwrap();
        assert!(matches!(next(&mut session), ServerFrame::Bound(_)));
        session
    };
    let mut session = bind();
    assert_eq!(server.engine.remove_device("bob", "phone").unwrap_err().code, ErrorCode::StoreUnavailable);
    check_end(&mut session, ErrorCode::StoreUnavailable);
    let mut session = bind();
    assert!(frames_until_pong(&mut session).is_empty());
    assert_eq!(server.engine.push.user_devices("bob").unwrap().devices.len(), 1);
}

#[test]
fn late_answers_do_not_follow_the_close_frame() {
    let (open, gate): (Sender<()>, _) = unbounded();
    for _ in 0..2 {
        open.send(()).unwrap();
    }
    let server = Server::with(session_config(), Arc::new(Gated::behind(gate)));
    server.users(&["alice", "bob"]);
    server.group("g", &["alice", "bob"]);
    let mut session = server.open("bob", "phone");
    session.send(1, "g", message("on its way")).unwrap();
    session.write(&ClientFrame::Read { reference: Some(2), conversation: "g".into(), seq: 1 }).unwrap();
    assert!(frames_until_pong(&mut session).is_empty(), "no commit, no answer");
    let mut newer = server.open("bob", "phone");
    drop(open);
    assert_eq!(text_of(&entries(&mut newer, 1)[0]), "on its way");
    // The older session's answers have been processed when the newer session's answers arrive.
    newer.send(1, "g", message("later")).unwrap();
    sent(&mut newer);
    check_end(&mut session, ErrorCode::Replaced);
    let after = session.next(PATIENCE);
    assert!(matches!(after, Err(tidings_client::ClientError::Io(_))), "after the goodbye came {after:?}");
}
