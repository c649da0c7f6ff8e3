//! Who never binds, or is not heard of any more, is let go in time; the others stay.
#![allow(clippy::unwrap_used)]

mod support;

use std::{sync::Arc, time::Duration};
use support::*;
use tidings_client::session::Session;
use tidings_engine::memory::MemoryStore;
use tidings_gateway::GatewayConfig;
use tidings_protocol::{error::ErrorCode, frames::ClientFrame};

const NEVER_BOUND: usize = 1_000;

#[test]
fn who_never_binds_is_let_go() {
    let config = GatewayConfig { bind_timeout: Duration::from_millis(300), ..gateway_config() };
    let server = Server::with(config, Arc::new(MemoryStore::default()));
    server.users(&["alice", "bob"]);
    server.group("g", &["alice", "bob"]);
    let mut bob = server.open("bob", "phone");
    let mut idle: Vec<Session> = (0..NEVER_BOUND).map(|_| Session::connect(server.address).unwrap()).collect();
    for (n, session) in idle.iter_mut().enumerate() {
        // Half a frame is no bind either.
        if n % 2 == 0 {
            let _ = session.write_bytes(&[0x81]);
        }
    }
    for session in &mut idle {
        check_end(session, ErrorCode::BindTimeout);
    }
    drop(idle);
    until("only bob's connection is left", || server.gateway.connections() == 1);
    assert_eq!(server.engine.metrics.bind_timeouts.get(), NEVER_BOUND as u64);
    server.say("alice", "g", "hello");
    assert_eq!(entries(&mut bob, 1)[0].seq, 1);
}

#[test]
fn silence_ends_a_session_and_a_ping_keeps_it() {
    let config = GatewayConfig { heartbeat: Duration::from_millis(200), ..gateway_config() };
    let server = Server::with(config, Arc::new(MemoryStore::default()));
    server.users(&["alice", "bob"]);
    let mut silent = server.open("bob", "phone");
    let mut heard = server.open("alice", "phone");
    assert_eq!(bound(&heard).heartbeat_ms, 200);
    let silent = std::thread::spawn(move || {
        check_end(&mut silent, ErrorCode::HeartbeatTimeout);
    });
    // As often as told, for as long as the silent one lasts.
    let mut pings = 0;
    while !silent.is_finished() || pings < 10 {
        heard.write(&ClientFrame::Ping { reference: None }).unwrap();
        next(&mut heard);
        std::thread::park_timeout(Duration::from_millis(50));
        pings += 1;
    }
    silent.join().unwrap();
    assert!(frames_until_pong(&mut heard).is_empty());
    assert_eq!((server.online("bob"), server.online("alice")), (0, 1));
}
