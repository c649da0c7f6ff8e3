//! A session's request that meets a defect on another thread is answered, and the session goes on.

use crate::support::{gated_store::Gated, *};
use std::sync::{Arc, atomic::Ordering};
use tidings_gateway::SessionConfig;
use tidings_protocol::{error::ErrorCode, frames::ServerFrame};

#[test]
fn every_request_that_panics_is_answered_with_internal() {
    let store = Arc::new(Gated::open());
    let config = SessionConfig { session_requests: 4, ..session_config() };
    let server = Server::with(config, store.clone());
    server.users(&["alice", "bob"]);
    server.group("g", &["alice", "bob"]);
    server.say("bob", "g", "hello");
    let mut session = server.open("alice", "phone");
    store.panics.store(true, Ordering::SeqCst);
    let requests = [
        r#""t":"history","conversation":"g""#,
        r#""t":"conversations""#,
        r#""t":"read","conversation":"unknown","seq":1"#,
        r#""t":"edit","conversation":"unknown","seq":1,"body":{}"#,
        r#""t":"recall","conversation":"unknown","seq":1"#,
        r#""t":"react","conversation":"unknown","seq":1,"key":"a""#,
        r#""t":"pin","conversation":"unknown","seq":1"#,
        r#""t":"preferences","conversation":"unknown","pinned":true"#,
        r#""t":"watch_presence","users":["unknown"]"#,
        r#""t":"assign","conversation":"unknown","assigned_to":"bob""#,
        r#""t":"stream_end","conversation":"unknown","seq":1"#,
    ];
    for (reference, request) in (1..).zip(requests) {
        session.write_text(format!(r#"{{"ref":{reference},{request}}}"#).as_bytes()).unwrap();
        let (answered, code, message) = error(&mut session);
        assert_eq!((answered, code), (Some(reference), ErrorCode::Internal), "{request}: {message}");
    }
    store.panics.store(false, Ordering::SeqCst);
    // More have panicked than a session may have under way: each has given its place back.
    session.write_text(br#"{"t":"history","ref":99,"conversation":"g"}"#).unwrap();
    assert!(matches!(next(&mut session), ServerFrame::History { reference: Some(99), .. }));
}
