//! A session that is handed messages and does not answer a ping counts as gone: the messages go out by offline push,
//! whichever node held the session. A session that answers stays; a push-only session never holds offline push back.
// Slow: left out by `make test-quick`.

use crate::devices;
use crate::devices::{LOCAL, RunningListener};
use crate::offline_push_app::{app, told};
use crate::support::*;
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tidings_client::{device::DeviceSession, session::Session};
use tidings_domain::function::Function;
use tidings_gateway::{SessionConfig, miop_listener::MiopListenerConfig};
use tidings_protocol::{
    error::ErrorCode,
    frames::ServerFrame,
    miop::{Bind, Frame, PROBE, VERSION, wants},
};
use tidings_testkit::{LocalBus, MemoryStore};

/// The time to answer a probe: a thread of a busy machine may be stopped for seconds.
const TIMEOUT: Duration = Duration::from_secs(8);

fn config() -> SessionConfig {
    SessionConfig { probe_after: Duration::from_millis(200), probe_timeout: TIMEOUT, ..session_config() }
}

/// A client that reads all the time, and so answers pings, until it is stopped; then it returns the received texts.
struct Reader {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<String>>,
}

impl Reader {
    fn start(mut session: Session) -> Reader {
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut texts = Vec::new();
            while !told.load(Ordering::Relaxed) {
                match session.next(Duration::from_millis(20)).unwrap() {
                    Some(ServerFrame::Messages { entries, .. }) => texts.extend(entries.iter().map(text_of)),
                    Some(ServerFrame::Error { code, message, .. }) => panic!("{code:?} {message}"),
                    _ => {}
                }
            }
            texts
        });
        Reader { stop, thread }
    }

    fn end(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

#[test]
fn a_half_open_session_is_closed_and_its_messages_go_to_offline_push() {
    let (app, hears) = app();
    let server = Server::with_webhook(config(), Arc::new(MemoryStore::default()), app);
    server.users(&["alice", "bob", "cleo", "dan"]);
    server.group("g", &["alice", "bob", "cleo", "dan"]);
    let mut bob = server.open("bob", "phone");
    let cursor = bob.cursor.clone().unwrap();
    let cleo = Reader::start(server.open("cleo", "phone"));
    for text in ["one", "two"] {
        server.say("alice", "g", text);
        assert_eq!(
            told(&hears).1,
            ["alice", "dan"].map(str::to_owned)[1..],
            "those who are offline are told of at once"
        );
    }
    // Bob's kernel buffers the bytes; his client does not read them.
    let both: BTreeSet<_> = [told(&hears), told(&hears)].into();
    assert_eq!(both, ["one", "two"].map(|text| (text.to_owned(), vec!["bob".to_owned()])).into());
    until("his session is over", || server.online("bob") == 0);
    assert_eq!(server.online("cleo"), 1);
    // When bob reads again he gets the reason, and has missed nothing.
    check_end(&mut bob, ErrorCode::HeartbeatTimeout);
    let mut bob = server.resume("bob", "phone", &cursor);
    assert!(bound(&bob).resume.complete);
    assert_eq!(entries(&mut bob, 2).iter().map(text_of).collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!(cleo.end(), ["one", "two"]);
    assert!(hears.try_recv().is_err(), "cleo answered, and is told of to nobody");
}

#[test]
fn a_session_that_answers_stays_and_an_idle_one_is_not_probed() {
    let (app, hears) = app();
    // The probe comes long before the heartbeat time-out.
    let server = Server::with_webhook(config(), Arc::new(MemoryStore::default()), app);
    server.users(&["alice", "bob", "cleo"]);
    let mut idle = server.open("cleo", "phone");
    let bob = Reader::start(server.open("bob", "phone"));
    let started = Instant::now();
    let mut said = 0;
    while started.elapsed() < TIMEOUT + Duration::from_secs(3) {
        server.say("alice", "alice~bob", &said.to_string());
        said += 1;
        std::thread::park_timeout(Duration::from_millis(300));
    }
    assert_eq!(server.online("bob"), 1);
    assert_eq!(
        (server.online("cleo"), frames_until_pong(&mut idle).len()),
        (1, 0),
        "idle for longer than the time-out"
    );
    until("all of it has come", || {
        server.engine.metrics.lane(tidings_domain::model::Lane::Direct).deliveries.get() >= said
    });
    assert!(hears.try_recv().is_err());
    assert_eq!(bob.end().len() as u64, said);
}

fn bind(server: &Server, listener: &RunningListener, user: &str, wanted: u64) -> DeviceSession {
    let mut device = DeviceSession::connect(listener.address).unwrap();
    let token = token(user);
    let bind = Bind { version: VERSION, token: &token, device_id: "tv", wants: Some(wanted), ..Bind::default() };
    device.write(&Frame::Bind(bind)).unwrap();
    until("it is bound", || server.online(user) == 1 && server.engine.metrics.sessions.get() > 0);
    device
}

#[test]
fn a_push_only_device_does_not_hold_back_offline_push() {
    let (app, hears) = app();
    let server = Server::with_webhook(config(), Arc::new(MemoryStore::default()), app);
    server.users(&["alice", "bob"]);
    let listener = RunningListener::open(&server, MiopListenerConfig::open(vec![LOCAL]));
    let _tv = bind(&server, &listener, "bob", wants::PUSH);
    server.say("alice", "alice~bob", "hello");
    assert_eq!(told(&hears), ("hello".into(), vec!["bob".into()]));
    // With a chat session beside the push-only one he counts as online.
    let phone = Reader::start(server.open("bob", "phone"));
    until("both are there", || server.online("bob") == 2);
    server.say("alice", "alice~bob", "again");
    until("it has come", || server.engine.metrics.lane(tidings_domain::model::Lane::Direct).deliveries.get() >= 1);
    assert!(hears.recv_timeout(Duration::from_millis(500)).is_err());
    assert_eq!(phone.end(), ["again"]);
}

#[test]
fn a_device_that_answers_probes_is_probed_and_others_stay() {
    let (app, hears) = app();
    let server = Server::with_webhook(config(), Arc::new(MemoryStore::default()), app);
    server.users(&["alice", "bob", "cleo"]);
    let listener = RunningListener::open(&server, MiopListenerConfig::open(vec![LOCAL]));
    let mut raw = devices::Device::new(devices::connect(listener.address));
    let token = token("bob");
    let bind_frame = Bind {
        version: VERSION,
        token: &token,
        device_id: "phone",
        wants: Some(wants::CHAT | wants::PROBES),
        ..Bind::default()
    };
    raw.write(&Frame::Bind(bind_frame));
    raw.expect(|frame| assert!(matches!(frame, Frame::Bound(_)), "{frame:?}"));
    let _cleo = bind(&server, &listener, "cleo", wants::CHAT);
    server.say("alice", "alice~bob", "first");
    raw.expect(|frame| assert!(matches!(frame, Frame::Chat { .. }), "{frame:?}"));
    raw.expect(|frame| assert_eq!(frame, Frame::Skipped { kind: PROBE[0] }));
    std::io::Write::write_all(&mut raw.stream, &PROBE).unwrap();
    raw.is_alive();
    // Without an answer the session is closed.
    server.say("alice", "alice~bob", "second");
    server.say("alice", "alice~cleo", "third");
    let both: BTreeSet<_> = [told(&hears), told(&hears)].into();
    assert_eq!(both, [("second", "bob"), ("third", "cleo")].map(|(t, u)| (t.to_owned(), vec![u.to_owned()])).into());
    until("his session is over", || server.online("bob") == 0);
    assert_eq!(server.online("cleo"), 1, "a device that cannot be asked may be silent for as long as its heartbeat");
}

#[test]
fn in_a_cluster_the_leader_sends_offline_push() {
    let (store, bus) = (Arc::new(MemoryStore::shared()), LocalBus::default());
    let (app, hears) = app();
    let node = |name| Server::node_with_webhook(name, config(), &store, &bus, app.clone());
    let first = node("a");
    until("it leads", || first.engine.leads(Function::Push) && first.engine.readiness().is_ok());
    let second = node("b");
    until("the other is ready", || second.engine.readiness().is_ok());
    first.users(&["alice", "bob", "cleo"]);
    first.group("g", &["alice", "bob", "cleo"]);
    let listener = RunningListener::open(&second, MiopListenerConfig::open(vec![LOCAL]));
    let _bob = second.open("bob", "phone");
    until("the leader knows of him", || first.online("bob") == 1);
    assert!(!second.engine.leads(Function::Push));
    let cleo = second.engine.directory.require_user("cleo").unwrap().no;
    // All nodes know that this session is push-only.
    let push_only = tidings_engine::presence::PresenceSession {
        session: 99 << 32,
        node: Default::default(),
        device_id: "tv".into(),
        device_kind: "tv".into(),
        since: 1,
        chat: false,
        background: false,
    };
    second.engine.presence.register(cleo, push_only);
    until("the leader knows of her device", || first.engine.presence.is_online(cleo));
    assert!(!first.engine.presence.is_active(cleo));
    assert_eq!(first.engine.presence.sessions_of(cleo)[0].device_kind.as_ref(), "tv");
    first.say("alice", "g", "hello");
    assert_eq!(told(&hears), ("hello".into(), vec!["cleo".into()]));
    assert_eq!(told(&hears), ("hello".into(), vec!["bob".into()]), "his session at the other node did not answer");
    until("it is over", || first.online("bob") == 0);
    drop(listener);
}
