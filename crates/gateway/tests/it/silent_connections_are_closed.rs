//! A connection that never binds, or falls silent, is closed in time; the others stay.
// Slow: left out by `make test-quick`.

use crate::support::*;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_client::session::Session;
use tidings_gateway::SessionConfig;
use tidings_protocol::{
    error::ErrorCode,
    frames::{ClientFrame, ServerFrame},
};
use tidings_testkit::MemoryStore;

const NEVER_BOUND: usize = 1_000;

/// A session that has bound within the time-out. It tries again, since this thread may be stopped between connect and bind.
fn in_time(server: &Server, user: &str) -> Session {
    loop {
        let mut session = Session::connect(server.address).unwrap();
        session.write(&bind_frame(&token(user), "phone", None)).unwrap();
        match next(&mut session) {
            ServerFrame::Bound(_) => return session,
            ServerFrame::Error { code: ErrorCode::BindTimeout, .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_unbound_connection_is_closed_in_time() {
    let config = SessionConfig { bind_timeout: Duration::from_millis(300), ..session_config() };
    let server = Server::with(config, Arc::new(MemoryStore::default()));
    server.users(&["alice", "bob"]);
    server.group("g", &["alice", "bob"]);
    let mut bob = in_time(&server, "bob");
    let before = server.engine.metrics.bind_timeouts.get();
    let mut idle: Vec<Session> = (0..NEVER_BOUND).map(|_| Session::connect(server.address).unwrap()).collect();
    for session in idle.iter_mut().step_by(2) {
        // Half a frame is no bind either. (The write succeeds even if the server has closed the connection by now.)
        session.write_bytes(&[0x81]).unwrap();
    }
    for session in &mut idle {
        check_end(session, ErrorCode::BindTimeout);
    }
    drop(idle);
    until("only bob's connection is left", || server.session_server.connections() == 1);
    assert_eq!(server.engine.metrics.bind_timeouts.get() - before, NEVER_BOUND as u64);
    server.say("alice", "g", "hello");
    assert_eq!(entries(&mut bob, 1)[0].seq, 1);
}

#[test]
fn silence_closes_a_session_and_a_ping_keeps_it_open() {
    // Long enough that a client which pings twenty times per interval is heard, even if its thread is stopped for seconds.
    const INTERVAL: Duration = Duration::from_secs(4);
    let config = SessionConfig { heartbeat: INTERVAL, ..session_config() };
    let server = Server::with(config, Arc::new(MemoryStore::default()));
    server.users(&["alice", "bob"]);
    let mut silent = server.open("bob", "phone");
    let mut heard = server.open("alice", "phone");
    assert_eq!(u128::from(bound(&heard).heartbeat_ms), INTERVAL.as_millis());
    let silent = std::thread::spawn(move || {
        check_end(&mut silent, ErrorCode::HeartbeatTimeout);
    });
    // More often than required, and for longer than the silent session lasts, which bound first.
    let bound_at = Instant::now();
    while !silent.is_finished() || bound_at.elapsed() < INTERVAL * 2 {
        heard.write(&ClientFrame::Ping { reference: None }).unwrap();
        next(&mut heard);
        std::thread::park_timeout(INTERVAL / 20);
    }
    silent.join().unwrap();
    assert!(frames_until_pong(&mut heard).is_empty());
    assert_eq!((server.online("bob"), server.online("alice")), (0, 1));
}
