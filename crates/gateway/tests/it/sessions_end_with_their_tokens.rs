//! A session lasts as long as its token: it is closed when the token expires or is revoked, continues with a refreshed token,
//! and may do only what the token allows.
// Slow: left out by `make test-quick`.

use crate::devices::*;
use crate::support::*;
use serde_json::json;
use std::{net::TcpStream, sync::Arc};
use tidings_client::{
    session::Session,
    token::{now_s, sign_claims, sign_scoped},
};
use tidings_gateway::miop_listener::MiopListenerConfig;
use tidings_protocol::{
    error::ErrorCode,
    frames::ServerFrame,
    http::Revoke,
    miop::{Bind, Frame, VERSION, wants},
};
use tidings_testkit::{LocalBus, MemoryStore};

/// A token lifetime that is long enough to bind on a slow machine, and short enough to wait for.
const SHORT_S: u64 = 3;
const LONG_S: u64 = 600;

fn with_people() -> Server {
    let server = Server::start();
    server.users(&["alice", "bob"]);
    server.group("g", &["alice", "bob"]);
    server
}

fn token_until(user: &str, exp: u64) -> String {
    sign_claims(TOKEN_KEY, &json!({ "sub": user, "exp": exp, "iat": now_s() }))
}

fn try_bind(server: &Server, token: &str, device: &str) -> Session {
    let mut session = Session::connect(server.address).unwrap();
    session.write(&bind_frame(token, device, None)).unwrap();
    session
}

fn bind(server: &Server, token: &str, device: &str) -> Session {
    let mut session = try_bind(server, token, device);
    assert!(matches!(next(&mut session), ServerFrame::Bound(_)));
    session
}

fn write(session: &mut Session, frame: serde_json::Value) {
    session.write_text(frame.to_string().as_bytes()).unwrap();
}

#[test]
fn a_session_ends_when_its_token_expires() {
    let server = with_people();
    let exp = now_s() + SHORT_S;
    let mut sessions = ["alice", "bob"].map(|user| try_bind(&server, &token_until(user, exp), "phone"));
    for session in &mut sessions {
        let ServerFrame::Bound(bound) = next(session) else { panic!("no session") };
        assert_eq!(bound.expires_at, Some(exp * 1_000));
    }
    let mut other = server.open("alice", "laptop");
    for session in &mut sessions {
        check_end(session, ErrorCode::TokenExpired);
    }
    assert!(now_s() >= exp, "not before its time");
    assert!(frames_until_pong(&mut other).is_empty(), "another token's session goes on");
    // The expired token opens no new session either.
    until("the skew is over", || now_s() > exp + 5);
    check_end(&mut try_bind(&server, &token_until("alice", exp), "phone"), ErrorCode::TokenExpired);
}

#[test]
fn a_session_continues_with_a_refreshed_token() {
    let server = with_people();
    let exp = now_s() + SHORT_S;
    let mut session = bind(&server, &token_until("alice", exp), "phone");
    // None of these tokens is accepted, and none closes the session.
    for (token, code) in [
        (json!(token_until("bob", now_s() + LONG_S)), ErrorCode::Forbidden),
        (json!(token_until("alice", 1)), ErrorCode::TokenExpired),
        (json!("forged"), ErrorCode::Unauthorized),
        (json!(null), ErrorCode::InvalidField),
    ] {
        write(&mut session, json!({"t": "refresh", "ref": 7, "token": token}));
        let (reference, refused, _) = error(&mut session);
        assert_eq!((reference, refused), (Some(7), code));
    }
    write(&mut session, json!({"t": "refresh", "ref": 8, "token": token_until("alice", now_s() + LONG_S)}));
    assert!(matches!(next(&mut session), ServerFrame::Ok { reference: 8 }));
    until("the first token's time is over", || now_s() > exp + 1);
    assert!(frames_until_pong(&mut session).is_empty());
    server.say("bob", "g", "still there");
    assert_eq!(entries(&mut session, 1).len(), 1);
    // A token that expires earlier closes the session earlier.
    write(&mut session, json!({"t": "refresh", "ref": 9, "token": token_until("alice", now_s() + 1)}));
    check_end(&mut session, ErrorCode::TokenExpired);
}

#[test]
fn a_device_session_lasts_as_long_as_its_latest_token() {
    let server = with_people();
    let listener = RunningListener::open(&server, MiopListenerConfig::open(vec![LOCAL]));
    let exp = now_s() + SHORT_S;
    let open = |token: &str, wanted: u64| {
        let mut device = Device::new(connect(listener.address));
        device.write(&Frame::Bind(Bind {
            version: VERSION,
            token,
            device_id: "d1",
            wants: Some(wanted),
            ..Bind::default()
        }));
        device.expect(|frame| assert!(matches!(frame, Frame::Bound(_)), "{frame:?}"));
        device
    };
    let mut alice = open(&token_until("alice", exp), wants::PUSH);
    let mut bob = open(&token_until("bob", exp), wants::PUSH | wants::CHAT);
    let refresh = json!({"t": "refresh", "ref": 1, "token": token_until("alice", now_s() + LONG_S)}).to_string();
    alice.write(&Frame::Chat { json: refresh.as_bytes() });
    alice.expect(|frame| assert!(matches!(frame, Frame::Chat { .. }), "{frame:?}"));
    bob.expect(|frame| match frame {
        Frame::Error(error) => assert_eq!((error.code, error.fatal), ("token_expired", true)),
        other => panic!("{other:?}"),
    });
    alice.is_alive();
}

fn check_scopes(server: &Server, scope: &str, frames: &[(serde_json::Value, bool)]) {
    let mut session = bind(server, &sign_scoped(TOKEN_KEY, "alice", PATIENCE, scope), "phone");
    for (frame, allowed) in frames {
        write(&mut session, frame.clone());
        let refused = loop {
            match next(&mut session) {
                ServerFrame::Error { code, .. } => break Some(code),
                // The answers to the allowed operations are not checked here.
                ServerFrame::Messages { .. } => {}
                _ => break None,
            }
        };
        if *allowed {
            assert_ne!(refused, Some(ErrorCode::Forbidden), "{scope}: {frame}");
        } else {
            assert_eq!(refused, Some(ErrorCode::Forbidden), "{scope}: {frame}");
        }
    }
}

#[test]
fn a_session_may_do_only_what_its_token_allows() {
    let server = with_people();
    let send = json!({"t": "send", "ref": 1, "conversation": "g", "body": 1});
    let open = json!({"t": "send", "ref": 2, "to": "bob", "body": 1});
    let typing = json!({"t": "typing", "ref": 3, "conversation": "elsewhere"});
    let read = json!({"t": "read", "ref": 4, "conversation": "g", "seq": 0});
    let history = json!({"t": "history", "ref": 5, "conversation": "g"});
    let watch = json!({"t": "watch_presence", "ref": 6, "users": ["alice"]});
    let popup = json!({"t": "popup", "ref": 7, "question": {"placement": "home"}});
    let events = json!({"t": "popup_events", "ref": 8, "events": []});
    let frames = [&send, &open, &typing, &read, &history, &watch, &popup, &events];
    for (scope, allowed) in [
        ("send", [true, false, true, false, false, false, false, false]),
        ("read", [false, false, false, true, true, false, false, false]),
        ("presence", [false, false, false, false, false, true, false, false]),
        ("popups read", [false, false, false, true, true, false, true, true]),
        ("send open_direct", [true, true, true, false, false, false, false, false]),
        ("send", [true, true, true, false, false, false, false, false]),
    ] {
        let frames: Vec<_> = frames.into_iter().cloned().zip(allowed).collect();
        check_scopes(&server, scope, &frames);
    }
    // Without the scope `read` a session receives no messages.
    let mut blind = bind(&server, &sign_scoped(TOKEN_KEY, "bob", PATIENCE, "send"), "phone");
    server.say("alice", "g", "not for this session");
    assert!(frames_until_pong(&mut blind).is_empty());
}

#[test]
fn binds_and_refreshes_beyond_the_tokens_scopes_are_refused() {
    let server = with_people();
    let mut nothing = try_bind(&server, &sign_scoped(TOKEN_KEY, "alice", PATIENCE, "tidings:nothing"), "phone");
    check_end(&mut nothing, ErrorCode::Forbidden);
    let mut push = Session::connect(server.address).unwrap();
    let token = sign_scoped(TOKEN_KEY, "alice", PATIENCE, "read send");
    write(&mut push, json!({"t": "bind", "token": token, "device_id": "phone", "push": true}));
    check_end(&mut push, ErrorCode::Forbidden);
    // A device that does not name what it wants gets what its token allows.
    let listener = RunningListener::open(&server, MiopListenerConfig::open(vec![LOCAL]));
    let mut device: Device<TcpStream> = Device::new(connect(listener.address));
    device.write(&Frame::Bind(Bind { version: VERSION, token: &token, device_id: "d1", ..Bind::default() }));
    device.expect(|frame| assert!(matches!(frame, Frame::Bound(_)), "{frame:?}"));
    // A refresh must not drop a scope that the session was bound with.
    let mut session = bind(&server, &token, "laptop");
    let narrow = sign_scoped(TOKEN_KEY, "alice", PATIENCE, "send");
    write(&mut session, json!({"t": "refresh", "ref": 1, "token": narrow}));
    assert_eq!(error(&mut session).1, ErrorCode::Forbidden);
    let wide = sign_scoped(TOKEN_KEY, "alice", PATIENCE, "read presence");
    write(&mut session, json!({"t": "refresh", "ref": 2, "token": wide}));
    assert!(matches!(next(&mut session), ServerFrame::Ok { reference: 2 }));
    write(&mut session, json!({"t": "send", "ref": 3, "conversation": "g", "body": 1}));
    assert_eq!(error(&mut session).1, ErrorCode::Forbidden);
}

/// Checks one node, or two that share a store: sessions of both are closed, and neither accepts the old tokens.
fn check_revoked(here: &Server, there: &Server) {
    let old = token_until("alice", now_s() + LONG_S);
    let without_iat = sign_claims(TOKEN_KEY, &json!({"sub": "alice", "exp": now_s() + LONG_S}));
    let mut sessions = [bind(here, &old, "phone"), bind(there, &old, "laptop")];
    let mut bob = there.open("bob", "phone");
    let revoked = here.wait(here.engine.revoke("alice", Revoke::default())).unwrap();
    for session in &mut sessions {
        check_end(session, ErrorCode::Kicked);
    }
    assert!(frames_until_pong(&mut bob).is_empty(), "another user's session goes on");
    for server in [here, there] {
        for token in [&old, &without_iat] {
            check_end(&mut try_bind(server, token, "phone"), ErrorCode::Unauthorized);
        }
        let new = json!({"sub": "alice", "exp": now_s() + LONG_S, "iat": revoked.issue_from});
        let mut session = bind(server, &sign_claims(TOKEN_KEY, &new), "phone");
        write(&mut session, json!({"t": "refresh", "ref": 1, "token": old}));
        assert_eq!(error(&mut session).1, ErrorCode::Unauthorized);
    }
}

#[test]
fn revoked_tokens_end_their_sessions_and_open_none() {
    let server = with_people();
    check_revoked(&server, &server);
}

#[test]
fn revoked_tokens_are_revoked_on_every_node() {
    let (store, bus) = (Arc::new(MemoryStore::shared()), LocalBus::default());
    let [here, there] = ["a", "b"].map(|name| Server::node(name, &store, &bus));
    here.users(&["alice", "bob"]);
    check_revoked(&here, &there);
}
