//! The places for connections and sessions are for all users: one user has a limited number of sessions, and who does not bind gives
//! way.

use crate::devices::*;
use crate::support::*;
use std::{
    io::Read,
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};
use tidings_client::session::Session;
use tidings_domain::metrics::Metrics;
use tidings_gateway::{SessionConfig, miop_listener::MiopListenerConfig};
use tidings_listen::{Admission, admission::AdmissionConfig};
use tidings_protocol::{
    error::ErrorCode,
    frames::{Attention, Bind, ClientFrame, ServerFrame},
    miop::{self, Frame, VERSION},
};
use tidings_testkit::{LocalBus, MemoryStore};

fn open_of_kind(server: &Server, number: usize) -> Session {
    let mut session = Session::connect(server.address).unwrap();
    let kind = format!("kind-{number}");
    let bind = Bind {
        token: token("alice"),
        device_id: kind.clone(),
        device_kind: kind,
        app_version: None,
        cursor: None,
        push: false,
        attention: Attention::Foreground,
        compact: false,
    };
    session.write(&ClientFrame::Bind(bind)).unwrap();
    assert!(matches!(next(&mut session), ServerFrame::Bound(_)));
    session
}

#[test]
fn a_user_has_a_limited_number_of_sessions_of_whatever_kinds() {
    let server = Server::start();
    server.users(&["alice", "bob"]);
    let listener = RunningListener::open(&server, MiopListenerConfig::open(vec![LOCAL]));
    let most = server.engine.config.sessions_per_user;
    let mut bob = server.open("bob", "phone");
    let mut sessions: Vec<Session> = (0..most + 3).map(|number| open_of_kind(&server, number)).collect();
    for old in sessions.drain(..3) {
        check_end(&mut { old }, ErrorCode::Replaced);
    }
    assert_eq!(server.online("alice"), most);
    // A session over MIOP counts as one over WebSocket, and takes the place of the oldest.
    let mut device = Device::new(connect(listener.address));
    let token = token("alice");
    let bind = miop::Bind {
        version: VERSION,
        token: &token,
        device_id: "d",
        device_kind: Some("tv"),
        ..miop::Bind::default()
    };
    device.write(&Frame::Bind(bind));
    device.expect(|frame| assert!(matches!(frame, Frame::Bound(_)), "{frame:?}"));
    check_end(&mut sessions.remove(0), ErrorCode::Replaced);
    assert_eq!(server.online("alice"), most);
    for session in sessions.iter_mut().chain([&mut bob]) {
        frames_until_pong(session);
    }
}

#[test]
fn sessions_of_a_user_are_limited_on_all_nodes_together() {
    let (store, bus) = (Arc::new(MemoryStore::shared()), LocalBus::default());
    let [here, there] = ["a", "b"].map(|name| Server::node(name, &store, &bus));
    here.users(&["alice"]);
    let most = here.engine.config.sessions_per_user;
    let _sessions: Vec<Session> =
        (0..most + 10).map(|n| open_of_kind(if n % 2 == 0 { &here } else { &there }, n)).collect();
    for node in [&here, &there] {
        until("both nodes agree on the sessions that stay", || node.online("alice") == most);
    }
}

fn few_places() -> SessionConfig {
    SessionConfig { connections_max: 8, unbound_min: Duration::ZERO, ..session_config() }
}

fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    matches!(stream.read(&mut [0; 64]), Ok(0)) || stream.read(&mut [0; 64]).is_err()
}

/// Connections that send nothing, all of them accepted.
fn silent(address: SocketAddr, metrics: &Metrics) -> Vec<TcpStream> {
    let before = metrics.connections_opened.get();
    let silent: Vec<TcpStream> = (0..20).map(|_| connect(address)).collect();
    until("all are accepted", || metrics.connections_opened.get() >= before + 20);
    silent
}

#[test]
fn connections_that_do_not_bind_give_way_at_every_listener() {
    let server = Server::with(few_places(), Arc::new(MemoryStore::default()));
    server.users(&["alice", "bob"]);
    let listener = RunningListener::open(&server, MiopListenerConfig::open(vec![LOCAL]));
    for _ in 0..3 {
        let _websockets: Vec<Session> = (0..8).map(|_| Session::connect(server.address).unwrap()).collect();
        let mut devices = silent(listener.address, &server.engine.metrics);
        let mut alice = server.open("alice", "phone");
        let mut bob = Device::bound(connect(listener.address), "bob");
        assert!(devices.iter_mut().take(8).all(is_closed), "the oldest gave way");
        // Who has bound stays, however many come after.
        let _more = silent(listener.address, &server.engine.metrics);
        let mut again = server.open("alice", "laptop");
        for session in [&mut alice, &mut again] {
            frames_until_pong(session);
        }
        bob.is_alive();
    }
    assert!(server.engine.metrics.unbound_evictions.get() >= 60);
}

#[test]
fn devices_that_do_not_bind_give_way_at_a_gateway() {
    let server = Server::start();
    server.users(&["bob"]);
    let relay = RunningRelay::open(&server, few_places());
    for _ in 0..3 {
        let mut unbound = silent(relay.address, &relay.metrics);
        let mut bob = Device::bound(connect(relay.address), "bob");
        assert!(unbound.iter_mut().take(8).all(is_closed), "the oldest gave way");
        let _more = silent(relay.address, &relay.metrics);
        bob.is_alive();
    }
    assert!(relay.metrics.unbound_evictions.get() >= 60);
}

#[test]
fn connections_that_are_closing_give_way() {
    let server = Server::with(few_places(), Arc::new(MemoryStore::default()));
    server.users(&["alice"]);
    // Each is refused and told so, and its client does not close its side.
    let refused: Vec<Session> = (0..40)
        .map(|_| {
            let mut session = Session::connect(server.address).unwrap();
            session.write(&bind_frame("no token", "phone", None)).unwrap();
            while !matches!(session.next(PATIENCE), Ok(Some(ServerFrame::Error { .. }))) {}
            session
        })
        .collect();
    frames_until_pong(&mut server.open("alice", "phone"));
    drop(refused);
}

#[test]
fn full_of_sessions_a_further_connection_is_refused() {
    let server = Server::with(few_places(), Arc::new(MemoryStore::default()));
    server.users(&["alice"]);
    let mut sessions: Vec<Session> = (0..8).map(|number| open_of_kind(&server, number)).collect();
    assert!(Session::connect(server.address).is_err());
    sessions.iter_mut().for_each(|session| drop(frames_until_pong(session)));
}

#[test]
fn devices_that_do_not_bind_do_not_hold_up_others() {
    let server = Server::with(
        SessionConfig { unbound_min: Duration::ZERO, ..session_config() },
        Arc::new(MemoryStore::default()),
    );
    server.users(&["bob"]);
    let admission = Arc::new(Admission::new(AdmissionConfig { unbound_max: 3, ..AdmissionConfig::default() }));
    let listener =
        RunningListener::open(&server, MiopListenerConfig { admission, ..MiopListenerConfig::open(vec![LOCAL]) });
    let _silent: Vec<TcpStream> = (0..8).map(|_| connect(listener.address)).collect();
    Device::bound(connect(listener.address), "bob").is_alive();
}
