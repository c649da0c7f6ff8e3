//! The device door as its paper says: what it takes, what it answers, and how it ends who breaks the rules.
#![allow(clippy::unwrap_used)]

#[path = "support/devices.rs"]
mod devices;
mod support;

use devices::{Identity, LOCAL, OpenDoor, secure_door};
use std::{
    io::ErrorKind,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use support::*;
use tidings_client::{
    ClientError,
    device::{DeviceBound, DeviceFrame, DevicePush, DeviceSession},
};
use tidings_engine::memory::MemoryStore;
use tidings_gateway::{SessionConfig, miop_listener::MiopListenerConfig};
use tidings_listen::tls::alpn;
use tidings_protocol::{
    error::ErrorCode,
    frames::{ClientFrame, Send, ServerFrame},
    http::{DeviceState, PushRequest},
    miop::{Bind, Frame, HEARTBEAT, VERSION, wants},
};

/// A server with both doors.
struct Doors {
    miop: SocketAddr,
    _door: OpenDoor,
    server: Server,
}

impl Doors {
    fn open() -> Self {
        Doors::with(session_config())
    }

    fn with(config: SessionConfig) -> Self {
        let server = Server::with(config, Arc::new(MemoryStore::default()));
        server.users(&["alice", "bob"]);
        server.group("g", &["alice", "bob"]);
        let door = OpenDoor::open(&server, MiopListenerConfig::open(vec![LOCAL]));
        Doors { miop: door.address, _door: door, server }
    }

    fn connect(&self) -> DeviceSession {
        DeviceSession::connect(self.miop).unwrap()
    }

    fn bind<'a>(&self, user: &str, change: impl FnOnce(&mut Bind<'a>)) -> DeviceSession {
        let mut session = self.connect();
        bind(&mut session, user, change);
        session
    }

    fn device(&self, user: &str) -> DeviceSession {
        self.bind(user, |_| {})
    }

    fn push(&self, user: &str, text: &str) -> u64 {
        let request = serde_json::json!({ "to": { "users": [user] }, "type": "note", "body": text });
        let request: PushRequest = serde_json::from_str(&request.to_string()).unwrap();
        let prepared = self.server.engine.prepare_push(request).unwrap();
        self.server.wait(self.server.engine.push.accept(prepared)).unwrap().push
    }

    fn has_state(&self, push: u64, state: DeviceState) -> bool {
        let page = self.server.engine.push_devices(push, None, None, 10).unwrap();
        page.devices.len() == 1 && page.devices[0].state == state
    }

    /// Connections are accepted in the order in which they came, by one thread: once a last one has been answered,
    /// none waits that would be let in after this.
    fn nobody_is_left(&self) {
        let mut last = self.connect();
        last.write_bytes(&HEARTBEAT).unwrap();
        check_end(&mut last, "not_bound", "the last of all");
        drop(last);
        until("all connections are gone", || self.server.session_server.connections() == 0);
        assert_eq!((self.server.online("alice"), self.server.online("bob")), (0, 0));
    }
}

fn bind<'a>(session: &mut DeviceSession, user: &str, change: impl FnOnce(&mut Bind<'a>)) {
    let mut bind = Bind { version: VERSION, token: token(user).leak(), device_id: "d1", ..Bind::default() };
    change(&mut bind);
    session.bind(&bind).unwrap();
}

fn bound(session: &DeviceSession) -> &DeviceBound {
    session.bound.as_ref().unwrap()
}

#[track_caller]
fn next(session: &mut DeviceSession) -> DeviceFrame {
    session.next(PATIENCE).unwrap().expect("a frame in time")
}

#[track_caller]
fn next_push(session: &mut DeviceSession) -> DevicePush {
    match next(session) {
        DeviceFrame::Push(push) => push,
        other => panic!("no push but {other:?}"),
    }
}

/// The answer to a heartbeat comes next: nothing else was on its way.
#[track_caller]
fn is_quiet(session: &mut DeviceSession) {
    session.heartbeat().unwrap();
    let answer = next(session);
    assert!(matches!(answer, DeviceFrame::Heartbeat { interval_s: None }), "{answer:?}");
}

/// A fatal error with this code, then the end.
#[track_caller]
fn check_end(session: &mut DeviceSession, code: &str, why: &str) {
    match session.next(PATIENCE) {
        Err(ClientError::Ended { code: got, message, .. }) => {
            assert_eq!(got, code, "{why}: {message}");
            assert!(!message.is_empty(), "{why}");
        }
        other => panic!("{why}: {other:?}"),
    }
    match session.next(PATIENCE) {
        Err(ClientError::Io(error)) if error.kind() == ErrorKind::UnexpectedEof => {}
        other => panic!("{why}: after the error, {other:?}"),
    }
}

#[derive(serde::Deserialize)]
struct Theme {
    vectors: Vec<Vector>,
}

/// As `fixtures/miop/README.md` describes it.
#[derive(serde::Deserialize)]
struct Vector {
    name: String,
    /// The theme's file, of which `heads` holds what is refused before a payload is looked at.
    #[serde(skip)]
    theme: String,
    hex: String,
    payload_max: Option<usize>,
    kind: Option<String>,
    error: Option<String>,
}

fn vectors() -> Vec<Vector> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/miop");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    let read = |file: PathBuf| {
        let theme = file.file_stem().unwrap().to_string_lossy().into_owned();
        let vectors = serde_json::from_str::<Theme>(&std::fs::read_to_string(file).unwrap()).unwrap().vectors;
        vectors.into_iter().map(move |vector| Vector { theme: theme.clone(), ..vector })
    };
    files.into_iter().flat_map(read).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

const BIND: u8 = 0x02;
const SERVERS_KINDS: [u8; 4] = [0x03, 0x04, 0x08, 0x09];

/// A frame that is out of place is refused by its kind, whatever is in it; another by its fault.
#[test]
fn what_the_vectors_call_invalid_ends_any_connection() {
    let doors = Doors::open();
    let mut bystander = doors.device("bob");
    let mut tried = 0;
    for vector in vectors() {
        let Some(code) = &vector.error else { continue };
        tried += 1;
        let first = bytes(&vector.hex)[0];
        let (unbound_code, bound_code) = match first {
            _ if vector.theme == "heads" => (&**code, &**code),
            BIND => (&**code, "already_bound"),
            _ if SERVERS_KINDS.contains(&first) => ("not_bound", "malformed"),
            _ => ("not_bound", &**code),
        };
        let mut unbound = doors.connect();
        unbound.write_bytes(&bytes(&vector.hex)).unwrap();
        check_end(&mut unbound, unbound_code, &format!("{} before a bind", vector.name));
        // The limit of a first frame is for first frames.
        if vector.payload_max.is_none() {
            let mut session = doors.device("alice");
            session.write_bytes(&bytes(&vector.hex)).unwrap();
            check_end(&mut session, bound_code, &vector.name);
        }
    }
    println!("{tried} invalid vectors");
    assert!(tried > 50);
    is_quiet(&mut bystander);
    bystander.unbind(None).unwrap();
    doors.nobody_is_left();
}

#[test]
fn frames_out_of_place_end_the_connection() {
    let doors = Doors::open();
    for vector in vectors() {
        let Some(kind) = vector.kind.as_deref() else { continue };
        let bytes = bytes(&vector.hex);
        if kind == "bind" {
            continue;
        }
        // What is skipped is no answer's cause; the heartbeat after it is.
        let beat = [&bytes[..], &HEARTBEAT].concat();
        let mut unbound = doors.connect();
        unbound.write_bytes(&beat).unwrap();
        check_end(&mut unbound, "not_bound", &format!("{} before a bind", vector.name));
        let after = match kind {
            "bound" | "push" | "redirect" | "error" => "malformed",
            _ => continue,
        };
        let mut session = doors.device("alice");
        session.write_bytes(&beat).unwrap();
        check_end(&mut session, after, &vector.name);
    }
    let mut twice = doors.device("alice");
    let again = token("alice");
    twice.write(&Frame::Bind(Bind { version: 1, token: &again, device_id: "d1", ..Bind::default() })).unwrap();
    check_end(&mut twice, "already_bound", "a second bind");
    drop(twice);
    doors.nobody_is_left();
}

/// Of pushes that an earlier session was handed: they are thrown away before the device is known, and come again.
#[test]
fn acknowledgements_that_follow_the_bind_at_once_are_no_fault() {
    let doors = Doors::open();
    let token = token("alice");
    let bind = Frame::Bind(Bind { version: VERSION, token: &token, device_id: "d1", ..Bind::default() });
    let mut session = doors.connect();
    let ack = Frame::Ack { pushes: vec![1] };
    session.write_bytes(&[&bind.to_bytes()[..], &ack.to_bytes(), &HEARTBEAT].concat()).unwrap();
    assert!(matches!(next(&mut session), DeviceFrame::Bound(_)));
    let answer = next(&mut session);
    assert!(matches!(answer, DeviceFrame::Heartbeat { interval_s: None }), "{answer:?}");
}

#[test]
fn what_may_be_skipped_is_skipped() {
    let doors = Doors::open();
    let skipped: Vec<Vec<u8>> =
        vectors().iter().filter(|v| v.kind.as_deref() == Some("skip")).map(|v| bytes(&v.hex)).collect();
    let mut session = doors.connect();
    skipped.iter().for_each(|bytes| session.write_bytes(bytes).unwrap());
    bind(&mut session, "alice", |_| {});
    skipped.iter().for_each(|bytes| session.write_bytes(bytes).unwrap());
    is_quiet(&mut session);
}

#[test]
fn a_bind_is_refused_with_a_code() {
    let doors = Doors::open();
    let good = token("alice");
    let stranger = token("nobody");
    let wrong = tidings_client::token::sign("another secret", "alice", Duration::from_secs(60));
    let base = Bind { version: VERSION, token: &good, device_id: "d1", ..Bind::default() };
    let cases = [
        (Bind { token: &wrong, ..base.clone() }, ErrorCode::Unauthorized),
        (Bind { token: "", ..base.clone() }, ErrorCode::Unauthorized),
        (Bind { token: &stranger, ..base.clone() }, ErrorCode::NotFound),
        (Bind { device_id: "a b", ..base.clone() }, ErrorCode::InvalidField),
        (Bind { device_kind: Some(""), ..base.clone() }, ErrorCode::InvalidField),
        (Bind { cursor: Some("yesterday"), ..base.clone() }, ErrorCode::CursorInvalid),
    ];
    for (bind, code) in cases {
        let mut session = doors.connect();
        session.write(&Frame::Bind(bind.clone())).unwrap();
        check_end(&mut session, code.as_str(), &format!("{bind:?}"));
    }
    let mut later = doors.bind("alice", |bind| bind.version = 9);
    assert_eq!(bound(&later).version, VERSION, "a newer client is spoken to in our version");
    is_quiet(&mut later);
}

#[test]
fn connections_cut_at_any_byte_leave_nothing_behind() {
    let doors = Doors::open();
    let token = token("alice");
    let mut bytes = Frame::Bind(Bind { version: 1, token: &token, device_id: "d1", ..Bind::default() }).to_bytes();
    let bind_end = bytes.len();
    bytes.extend(Frame::Heartbeat { interval_s: Some(60) }.to_bytes());
    bytes.extend(Frame::Chat { json: br#"{"t":"send","ref":1,"conversation":"g","body":"cut"}"# }.to_bytes());
    for cut in 0..bytes.len() {
        let mut session = doors.connect();
        session.write_bytes(&bytes[..cut]).unwrap();
    }
    doors.nobody_is_left();
    println!("cut at each of {} bytes, {bind_end} of them a bind", bytes.len());
    // Each byte alone, so that every frame is cut everywhere on its way to a session that works.
    let mut session = doors.connect();
    for byte in bytes {
        session.write_bytes(&[byte]).unwrap();
    }
    assert!(matches!(next(&mut session), DeviceFrame::Bound(_)));
    assert!(matches!(next(&mut session), DeviceFrame::Heartbeat { interval_s: Some(60) }));
    assert_eq!(sent_seq(&mut session), 1, "of the cut ones none was taken for a message");
}

/// The `seq` of the next message that was sent; the entries that come with it are passed over.
#[track_caller]
fn sent_seq(session: &mut DeviceSession) -> u64 {
    loop {
        match next(session) {
            DeviceFrame::Chat(ServerFrame::Sent { results }) => return results[0].receipt.seq,
            DeviceFrame::Chat(ServerFrame::Messages { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// The texts of the next entries.
#[track_caller]
fn texts(session: &mut DeviceSession, count: usize) -> Vec<String> {
    let mut texts = Vec::new();
    while texts.len() < count {
        match next(session) {
            DeviceFrame::Chat(ServerFrame::Messages { entries, .. }) => texts.extend(entries.iter().map(text_of)),
            DeviceFrame::Chat(ServerFrame::Sent { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    texts
}

fn send(conversation: &str, text: &str) -> ClientFrame {
    ClientFrame::Send(Send {
        reference: Some(1),
        conversation: Some(conversation.into()),
        to: None,
        message: message(text),
    })
}

#[test]
fn chat_goes_between_the_doors_and_is_resumed() {
    let doors = Doors::open();
    let mut device = doors.device("alice");
    let mut browser = doors.server.open("bob", "browser");
    assert!(bound(&device).resume.as_ref().unwrap().complete);
    device.write_chat(&send("g", "from the device")).unwrap();
    assert_eq!(text_of(&entries(&mut browser, 1)[0]), "from the device");
    assert_eq!(texts(&mut device, 1), ["from the device"]);
    browser.send(1, "g", message("from the browser")).unwrap();
    assert_eq!(texts(&mut device, 1), ["from the browser"]);

    let cursor = device.cursor.clone().unwrap();
    device.unbind(Some("sleeps")).unwrap();
    until("the device has left", || doors.server.online("alice") == 0);
    doors.server.say("bob", "g", "missed 1");
    doors.server.say("bob", "g", "missed 2");
    let mut device = doors.bind("alice", |bind| bind.cursor = Some(&cursor));
    assert!(bound(&device).resume.as_ref().unwrap().complete);
    assert_eq!(texts(&mut device, 2), ["missed 1", "missed 2"]);
    assert_ne!(device.cursor.as_deref(), Some(&*cursor));
    is_quiet(&mut device);
}

#[test]
fn what_chat_refuses_leaves_the_session() {
    let doors = Doors::open();
    let mut session = doors.device("alice");
    let cases: &[(&[u8], ErrorCode)] = &[
        (b"", ErrorCode::Malformed),
        (b"not json", ErrorCode::Malformed),
        (b"{\"t\":\"ping\xff\"}", ErrorCode::Malformed),
        (br#"{"t":"dance"}"#, ErrorCode::Malformed),
        (br#"{"t":"bind","token":"x","device_id":"y"}"#, ErrorCode::Malformed),
        (br#"{"t":"unbind"}"#, ErrorCode::Malformed),
        (br#"{"t":"ack","pushes":[1]}"#, ErrorCode::Malformed),
        (br#"{"t":"send","conversation":"nowhere","body":1}"#, ErrorCode::NotFound),
    ];
    for (json, expected) in cases {
        session.write(&Frame::Chat { json }).unwrap();
        match next(&mut session) {
            DeviceFrame::Chat(ServerFrame::Error { code, .. }) => assert_eq!(code, *expected),
            other => panic!("{}: {other:?}", String::from_utf8_lossy(json)),
        }
    }
    is_quiet(&mut session);
}

#[test]
fn who_did_not_ask_for_it_is_told_so_and_stays() {
    let doors = Doors::open();
    let mut pushes_only = doors.bind("alice", |bind| bind.wants = Some(wants::PUSH));
    assert_eq!((&bound(&pushes_only).cursor, &bound(&pushes_only).resume), (&None, &None));
    let mut chat_only = doors.bind("bob", |bind| bind.wants = Some(wants::CHAT));
    doors.server.say("bob", "g", "not for who asked for pushes only");
    assert_eq!(texts(&mut chat_only, 1), ["not for who asked for pushes only"]);
    pushes_only.write(&Frame::Chat { json: br#"{"t":"ping"}"# }).unwrap();
    doors.push("bob", "not for who asked for chat only");
    chat_only.acknowledge(&[1]).unwrap();
    for session in [&mut pushes_only, &mut chat_only] {
        match next(session) {
            DeviceFrame::Error { code, .. } => assert_eq!(code, "forbidden"),
            other => panic!("{other:?}"),
        }
        is_quiet(session);
    }
}

#[test]
fn an_interval_is_granted_within_the_limits() {
    let config = SessionConfig {
        heartbeat: Duration::from_secs(40),
        heartbeat_min: Duration::from_secs(20),
        heartbeat_max: Duration::from_secs(100),
        ..session_config()
    };
    let doors = Doors::with(config);
    let cases = [(None, 40), (Some(20), 20), (Some(77), 77), (Some(0), 20), (Some(101), 100), (Some(u64::MAX), 100)];
    for (proposed, granted) in cases {
        let mut session = doors.bind("alice", |bind| bind.heartbeat_s = proposed);
        assert_eq!(bound(&session).heartbeat_s, granted, "{proposed:?}");
        is_quiet(&mut session);
        assert_eq!(session.heartbeat_s, granted, "a plain heartbeat changes nothing");
        session.unbind(None).unwrap();
    }
    let mut session = doors.device("alice");
    for (proposed, granted) in cases.into_iter().filter_map(|(proposed, granted)| Some((proposed?, granted))) {
        session.propose_heartbeat(proposed).unwrap();
        assert!(matches!(next(&mut session), DeviceFrame::Heartbeat { interval_s: Some(_) }));
        assert_eq!(session.heartbeat_s, granted, "{proposed:?}");
    }
}

#[test]
fn silence_ends_a_session_by_the_interval_that_it_has() {
    let config = SessionConfig {
        heartbeat: Duration::from_secs(600),
        heartbeat_min: Duration::from_secs(1),
        ..session_config()
    };
    let doors = Doors::with(config);
    let mut patient = doors.device("bob");
    let mut by_bind = doors.bind("alice", |bind| bind.heartbeat_s = Some(1));
    let mut by_proposal = doors.bind("alice", |bind| bind.device_id = "d2");
    let started = Instant::now();
    by_proposal.propose_heartbeat(1).unwrap();
    next(&mut by_proposal);
    check_end(&mut by_bind, "heartbeat_timeout", "an interval from the bind");
    check_end(&mut by_proposal, "heartbeat_timeout", "an interval from a heartbeat");
    assert!(started.elapsed() >= Duration::from_millis(1_200), "one and a half intervals, to a tenth of a second");
    is_quiet(&mut patient);
    assert_eq!((doors.server.online("alice"), doors.server.online("bob")), (0, 1));
    assert_eq!(doors.server.engine.metrics.heartbeat_timeouts.get(), 2);
}

#[test]
fn a_push_comes_until_it_is_acknowledged() {
    let doors = Doors::open();
    let mut device = doors.device("alice");
    let push = doors.push("alice", "hello");
    let got = next_push(&mut device);
    assert_eq!((got.push, &*got.content_type, &*got.body, got.priority), (push, "note", &br#""hello""#[..], 0));
    // It goes without having said that it has it.
    device.unbind(None).unwrap();

    let mut device = doors.device("alice");
    assert_eq!(next_push(&mut device), got, "the same again");
    let while_away = {
        device.acknowledge(&[push]).unwrap();
        until("it is acknowledged", || doors.has_state(push, DeviceState::Acknowledged));
        device.unbind(None).unwrap();
        until("the device has left", || doors.server.online("alice") == 0);
        doors.push("alice", "kept")
    };
    let mut device = doors.device("alice");
    assert_eq!(next_push(&mut device).push, while_away, "what was acknowledged does not come again");
    // Numbers that it was never handed, and one that it acknowledged before, change nothing.
    device.acknowledge(&[while_away, push, u64::MAX, 0]).unwrap();
    until("it is acknowledged", || doors.has_state(while_away, DeviceState::Acknowledged));
    is_quiet(&mut device);
}

#[test]
fn a_newer_session_of_the_device_takes_the_place() {
    let doors = Doors::open();
    let mut first = doors.device("alice");
    let mut second = doors.device("alice");
    check_end(&mut first, "replaced", "the older session");
    is_quiet(&mut second);
    assert_eq!(doors.server.online("alice"), 1);
}

#[test]
fn a_stop_tells_devices_when_to_come_back() {
    let doors = Doors::open();
    let mut session = doors.device("alice");
    doors.server.wait(doors.server.session_server.drain(Duration::from_millis(500)));
    match next(&mut session) {
        DeviceFrame::Redirect { address: None, after_ms } => assert!(after_ms <= 500),
        other => panic!("{other:?}"),
    }
    check_end(&mut session, "draining", "the end after a redirect");
}

#[test]
fn who_asks_and_never_reads_is_let_go() {
    let doors = Doors::with(SessionConfig { session_buffer_bytes: 64 * 1024, ..session_config() });
    let mut session = doors.device("alice");
    let heartbeats = HEARTBEAT.repeat(16 * 1024);
    // The kernel's buffers take some megabytes of answers first.
    let mut sent = 0;
    while doors.server.engine.metrics.slow_readers_closed.get() == 0 {
        if session.write_bytes(&heartbeats).is_err() {
            break;
        }
        sent += heartbeats.len() / 2;
        assert!(sent < 50_000_000, "answers that nobody reads pile up");
    }
    until("it is let go", || doors.server.engine.metrics.slow_readers_closed.get() == 1);
    println!("let go after {sent} heartbeats");
    is_quiet(&mut doors.device("bob"));
}

#[test]
fn the_same_over_tls() {
    let doors = Doors::open();
    let identity = Identity::new();
    let trusting = identity.renew();
    let door = OpenDoor::open(&doors.server, secure_door(&identity.load(), alpn::MIOP));
    let mut session = DeviceSession::connect_securely(door.address, trusting, "localhost").unwrap();
    bind(&mut session, "alice", |_| {});
    let push = doors.push("alice", &"x".repeat(4_000));
    assert_eq!(next_push(&mut session).push, push);
    session.acknowledge(&[push]).unwrap();
    until("it is acknowledged", || doors.has_state(push, DeviceState::Acknowledged));
    assert!(session.next(Duration::from_millis(10)).unwrap().is_none(), "nothing in time is no error");
    is_quiet(&mut session);
    session.unbind(None).unwrap();
}
