//! MIOP as `docs/miop.md` specifies it: the accepted frames, their answers, and how violations close the connection.

use crate::devices::{Identity, LOCAL, RunningListener, tls_listener_config};
use crate::support::*;
use std::{
    io::ErrorKind,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_client::{
    ClientError,
    device::{DeviceBound, DeviceFrame, DevicePush, DeviceSession},
    token::sign_scoped,
};
use tidings_gateway::{SessionConfig, miop_listener::MiopListenerConfig};
use tidings_listen::tls::alpn;
use tidings_protocol::{
    error::ErrorCode,
    frames::{ClientFrame, Send, ServerFrame},
    http::{DeviceState, PushRequest},
    miop::{Bind, Frame, HEARTBEAT, VERSION, wants},
};
use tidings_testkit::MemoryStore;

/// A server that listens for WebSocket and MIOP.
struct MiopServer {
    address: SocketAddr,
    _listener: RunningListener,
    server: Server,
}

impl MiopServer {
    fn open() -> Self {
        MiopServer::with(session_config())
    }

    fn with(config: SessionConfig) -> Self {
        let server = Server::with(config, Arc::new(MemoryStore::default()));
        server.users(&["alice", "bob"]);
        server.group("g", &["alice", "bob"]);
        let listener = RunningListener::open(&server, MiopListenerConfig::open(vec![LOCAL]));
        MiopServer { address: listener.address, _listener: listener, server }
    }

    fn connect(&self) -> DeviceSession {
        DeviceSession::connect(self.address).unwrap()
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
        let prepared = self.server.engine.push.prepare(request).unwrap();
        self.server.wait(self.server.engine.push.accept(prepared)).unwrap().push
    }

    fn has_state(&self, push: u64, state: DeviceState) -> bool {
        let page = self.server.engine.push.devices(push, None, None, 10).unwrap();
        page.devices.len() == 1 && page.devices[0].state == state
    }

    /// One thread accepts connections in their order: once a last connection has been answered, no earlier one is still to
    /// be accepted.
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

fn is_of_the_list(frame: &DeviceFrame) -> bool {
    matches!(frame, DeviceFrame::Chat(ServerFrame::Conversation { .. }))
}

/// What comes next, without the word of the group in the list, which comes a moment after the group was made.
fn receive(session: &mut DeviceSession) -> Result<Option<DeviceFrame>, ClientError> {
    loop {
        match session.next(PATIENCE) {
            Ok(Some(frame)) if is_of_the_list(&frame) => {}
            received => return received,
        }
    }
}

#[track_caller]
fn next(session: &mut DeviceSession) -> DeviceFrame {
    receive(session).unwrap().expect("a frame in time")
}

#[track_caller]
fn next_push(session: &mut DeviceSession) -> DevicePush {
    match next(session) {
        DeviceFrame::Push(push) => push,
        other => panic!("no push but {other:?}"),
    }
}

/// The answer to a heartbeat comes next: the server had nothing else to send.
#[track_caller]
fn is_quiet(session: &mut DeviceSession) {
    session.heartbeat().unwrap();
    let answer = next(session);
    assert!(matches!(answer, DeviceFrame::Heartbeat { interval_s: None }), "{answer:?}");
}

/// A fatal error with this code, then the end.
#[track_caller]
fn check_end(session: &mut DeviceSession, code: &str, why: &str) {
    match receive(session) {
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
    /// The file of the vector's theme; `heads` holds frames that are refused by their header.
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

/// A frame out of phase is refused by its kind, whatever its payload; another one by its error.
#[test]
fn invalid_frames_of_the_vectors_close_any_connection() {
    let miop = MiopServer::open();
    let mut bystander = miop.device("bob");
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
        let mut unbound = miop.connect();
        unbound.write_bytes(&bytes(&vector.hex)).unwrap();
        check_end(&mut unbound, unbound_code, &format!("{} before a bind", vector.name));
        // The limit of the first frame applies to the first frame only.
        if vector.payload_max.is_none() {
            let mut session = miop.device("alice");
            session.write_bytes(&bytes(&vector.hex)).unwrap();
            check_end(&mut session, bound_code, &vector.name);
        }
    }
    println!("{tried} invalid vectors");
    assert!(tried > 50);
    is_quiet(&mut bystander);
    bystander.unbind(None).unwrap();
    miop.nobody_is_left();
}

#[test]
fn frames_out_of_phase_close_the_connection() {
    let miop = MiopServer::open();
    for vector in vectors() {
        let Some(kind) = vector.kind.as_deref() else { continue };
        let bytes = bytes(&vector.hex);
        if kind == "bind" {
            continue;
        }
        // A skipped frame has no answer; the heartbeat after it has.
        let beat = [&bytes[..], &HEARTBEAT].concat();
        let mut unbound = miop.connect();
        unbound.write_bytes(&beat).unwrap();
        check_end(&mut unbound, "not_bound", &format!("{} before a bind", vector.name));
        let after = match kind {
            "bound" | "push" | "redirect" | "error" => "malformed",
            _ => continue,
        };
        let mut session = miop.device("alice");
        session.write_bytes(&beat).unwrap();
        check_end(&mut session, after, &vector.name);
    }
    let mut twice = miop.device("alice");
    let again = token("alice");
    twice.write(&Frame::Bind(Bind { version: 1, token: &again, device_id: "d1", ..Bind::default() })).unwrap();
    check_end(&mut twice, "already_bound", "a second bind");
    drop(twice);
    miop.nobody_is_left();
}

/// Acks of pushes of an earlier session: before the device is registered they are ignored, and the pushes come again.
#[test]
fn acks_right_after_the_bind_are_ignored() {
    let miop = MiopServer::open();
    let token = token("alice");
    let bind = Frame::Bind(Bind { version: VERSION, token: &token, device_id: "d1", ..Bind::default() });
    let mut session = miop.connect();
    let ack = Frame::Ack { pushes: vec![1] };
    session.write_bytes(&[&bind.to_bytes()[..], &ack.to_bytes(), &HEARTBEAT].concat()).unwrap();
    assert!(matches!(next(&mut session), DeviceFrame::Bound(_)));
    let answer = next(&mut session);
    assert!(matches!(answer, DeviceFrame::Heartbeat { interval_s: None }), "{answer:?}");
}

#[test]
fn optional_unknown_frames_are_skipped() {
    let miop = MiopServer::open();
    let skipped: Vec<Vec<u8>> =
        vectors().iter().filter(|v| v.kind.as_deref() == Some("skip")).map(|v| bytes(&v.hex)).collect();
    let mut session = miop.connect();
    skipped.iter().for_each(|bytes| session.write_bytes(bytes).unwrap());
    bind(&mut session, "alice", |_| {});
    skipped.iter().for_each(|bytes| session.write_bytes(bytes).unwrap());
    is_quiet(&mut session);
}

#[test]
fn a_bind_is_refused_with_a_code() {
    let miop = MiopServer::open();
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
        let mut session = miop.connect();
        session.write(&Frame::Bind(bind.clone())).unwrap();
        check_end(&mut session, code.as_str(), &format!("{bind:?}"));
    }
    let mut later = miop.bind("alice", |bind| bind.version = 9);
    assert_eq!(bound(&later).version, VERSION, "a newer client is spoken to in our version");
    is_quiet(&mut later);
}

#[test]
fn connections_cut_at_any_byte_leave_no_session_behind() {
    let miop = MiopServer::open();
    let token = token("alice");
    let mut bytes = Frame::Bind(Bind { version: 1, token: &token, device_id: "d1", ..Bind::default() }).to_bytes();
    let bind_end = bytes.len();
    bytes.extend(Frame::Heartbeat { interval_s: Some(60) }.to_bytes());
    bytes.extend(Frame::Chat { json: br#"{"t":"send","ref":1,"conversation":"g","body":"cut"}"# }.to_bytes());
    for cut in 0..bytes.len() {
        let mut session = miop.connect();
        session.write_bytes(&bytes[..cut]).unwrap();
    }
    miop.nobody_is_left();
    println!("cut at each of {} bytes, {bind_end} of them a bind", bytes.len());
    // Bytes are written one by one, so that every frame is cut everywhere.
    let mut session = miop.connect();
    for byte in bytes {
        session.write_bytes(&[byte]).unwrap();
    }
    assert!(matches!(next(&mut session), DeviceFrame::Bound(_)));
    assert!(matches!(next(&mut session), DeviceFrame::Heartbeat { interval_s: Some(60) }));
    assert_eq!(sent_seq(&mut session), 1, "of the cut ones none was taken for a message");
}

/// The `seq` in the next answer to a send; entries that come before it are skipped.
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
fn chat_passes_between_miop_and_websocket_and_is_resumed() {
    let miop = MiopServer::open();
    let mut device = miop.device("alice");
    let mut browser = miop.server.open("bob", "browser");
    assert!(bound(&device).resume.as_ref().unwrap().complete);
    device.write_chat(&send("g", "from the device")).unwrap();
    assert_eq!(text_of(&entries(&mut browser, 1)[0]), "from the device");
    assert_eq!(texts(&mut device, 1), ["from the device"]);
    browser.send(1, "g", message("from the browser")).unwrap();
    assert_eq!(texts(&mut device, 1), ["from the browser"]);

    let cursor = device.cursor.clone().unwrap();
    device.unbind(Some("sleeps")).unwrap();
    until("the device has left", || miop.server.online("alice") == 0);
    miop.server.say("bob", "g", "missed 1");
    miop.server.say("bob", "g", "missed 2");
    let mut device = miop.bind("alice", |bind| bind.cursor = Some(&cursor));
    assert!(bound(&device).resume.as_ref().unwrap().complete);
    assert_eq!(texts(&mut device, 2), ["missed 1", "missed 2"]);
    assert_ne!(device.cursor.as_deref(), Some(&*cursor));
    is_quiet(&mut device);
}

#[test]
fn a_refused_chat_frame_leaves_the_session_open() {
    let miop = MiopServer::open();
    let mut session = miop.device("alice");
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
fn frames_that_the_bind_did_not_ask_for_are_refused_and_the_session_stays() {
    let miop = MiopServer::open();
    let mut pushes_only = miop.bind("alice", |bind| bind.wants = Some(wants::PUSH));
    assert_eq!((&bound(&pushes_only).cursor, &bound(&pushes_only).resume), (&None, &None));
    let mut chat_only = miop.bind("bob", |bind| bind.wants = Some(wants::CHAT));
    miop.server.say("bob", "g", "not for who asked for pushes only");
    assert_eq!(texts(&mut chat_only, 1), ["not for who asked for pushes only"]);
    pushes_only.write(&Frame::Chat { json: br#"{"t":"ping"}"# }).unwrap();
    miop.push("bob", "not for who asked for chat only");
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
fn a_heartbeat_interval_is_granted_within_the_limits() {
    let config = SessionConfig {
        heartbeat: Duration::from_secs(40),
        heartbeat_min: Duration::from_secs(20),
        heartbeat_max: Duration::from_secs(100),
        ..session_config()
    };
    let miop = MiopServer::with(config);
    let cases = [(None, 40), (Some(20), 20), (Some(77), 77), (Some(0), 20), (Some(101), 100), (Some(u64::MAX), 100)];
    for (proposed, granted) in cases {
        let mut session = miop.bind("alice", |bind| bind.heartbeat_s = proposed);
        assert_eq!(bound(&session).heartbeat_s, granted, "{proposed:?}");
        is_quiet(&mut session);
        assert_eq!(session.heartbeat_s, granted, "a plain heartbeat changes nothing");
        session.unbind(None).unwrap();
    }
    let mut session = miop.device("alice");
    for (proposed, granted) in cases.into_iter().filter_map(|(proposed, granted)| Some((proposed?, granted))) {
        session.propose_heartbeat(proposed).unwrap();
        assert!(matches!(next(&mut session), DeviceFrame::Heartbeat { interval_s: Some(_) }));
        assert_eq!(session.heartbeat_s, granted, "{proposed:?}");
    }
}

#[test]
fn silence_closes_a_session_after_its_granted_interval() {
    let config = SessionConfig { heartbeat: FOREVER, heartbeat_min: Duration::from_secs(1), ..session_config() };
    let miop = MiopServer::with(config);
    let mut patient = miop.device("bob");
    let mut by_bind = miop.bind("alice", |bind| bind.heartbeat_s = Some(1));
    let mut by_proposal = miop.bind("alice", |bind| bind.device_id = "d2");
    let started = Instant::now();
    by_proposal.propose_heartbeat(1).unwrap();
    next(&mut by_proposal);
    check_end(&mut by_bind, "heartbeat_timeout", "an interval from the bind");
    check_end(&mut by_proposal, "heartbeat_timeout", "an interval from a heartbeat");
    assert!(started.elapsed() >= Duration::from_millis(1_200), "one and a half intervals, to a tenth of a second");
    is_quiet(&mut patient);
    assert_eq!((miop.server.online("alice"), miop.server.online("bob")), (0, 1));
    assert_eq!(miop.server.engine.metrics.heartbeat_timeouts.get(), 2);
}

#[test]
fn a_push_comes_at_every_bind_until_it_is_acknowledged() {
    let miop = MiopServer::open();
    let mut device = miop.device("alice");
    let push = miop.push("alice", "hello");
    let got = next_push(&mut device);
    assert_eq!((got.push, &*got.content_type, &*got.body, got.priority), (push, "note", &br#""hello""#[..], 0));
    // The device unbinds without acknowledging the push.
    device.unbind(None).unwrap();

    let mut device = miop.device("alice");
    assert_eq!(next_push(&mut device), got, "the same again");
    let while_away = {
        device.acknowledge(&[push]).unwrap();
        until("it is acknowledged", || miop.has_state(push, DeviceState::Acknowledged));
        device.unbind(None).unwrap();
        until("the device has left", || miop.server.online("alice") == 0);
        miop.push("alice", "kept")
    };
    let mut device = miop.device("alice");
    assert_eq!(next_push(&mut device).push, while_away, "what was acknowledged does not come again");
    // Acks of pushes that the device never received, or acknowledged before, change nothing.
    device.acknowledge(&[while_away, push, u64::MAX, 0]).unwrap();
    until("it is acknowledged", || miop.has_state(while_away, DeviceState::Acknowledged));
    is_quiet(&mut device);
}

#[test]
fn a_newer_session_replaces_the_older_one_of_its_device() {
    let miop = MiopServer::open();
    let mut first = miop.device("alice");
    let mut second = miop.device("alice");
    check_end(&mut first, "replaced", "the older session");
    is_quiet(&mut second);
    assert_eq!(miop.server.online("alice"), 1);
}

#[test]
fn draining_tells_devices_when_to_reconnect() {
    let miop = MiopServer::open();
    let mut session = miop.device("alice");
    miop.server.wait(miop.server.session_server.drain(Duration::from_millis(500)));
    match next(&mut session) {
        DeviceFrame::Redirect { address: None, after_ms } => assert!(after_ms <= 500),
        other => panic!("{other:?}"),
    }
    check_end(&mut session, "draining", "the end after a redirect");
}

#[test]
fn a_device_that_never_reads_is_closed() {
    let miop = MiopServer::with(SessionConfig { session_buffer_bytes: 64 * 1024, ..session_config() });
    let mut session = miop.device("alice");
    let heartbeats = HEARTBEAT.repeat(16 * 1024);
    // The kernel's buffers hold some megabytes of answers first.
    let mut sent = 0;
    while miop.server.engine.metrics.slow_readers_closed.get() == 0 {
        if session.write_bytes(&heartbeats).is_err() {
            break;
        }
        sent += heartbeats.len() / 2;
        assert!(sent < 50_000_000, "answers that nobody reads pile up");
    }
    until("it is let go", || miop.server.engine.metrics.slow_readers_closed.get() == 1);
    println!("let go after {sent} heartbeats");
    is_quiet(&mut miop.device("bob"));
}

#[test]
fn miop_over_tls_behaves_the_same() {
    let miop = MiopServer::open();
    let identity = Identity::new();
    let trusting = identity.renew();
    let listener = RunningListener::open(&miop.server, tls_listener_config(&identity.load(), alpn::MIOP));
    let mut session = DeviceSession::connect_securely(listener.address, trusting, "localhost").unwrap();
    bind(&mut session, "alice", |_| {});
    let push = miop.push("alice", &"x".repeat(4_000));
    assert_eq!(next_push(&mut session).push, push);
    session.acknowledge(&[push]).unwrap();
    until("it is acknowledged", || miop.has_state(push, DeviceState::Acknowledged));
    // Nothing in time is no error.
    while let Some(frame) = session.next(Duration::from_millis(10)).unwrap() {
        assert!(is_of_the_list(&frame), "{frame:?}");
    }
    is_quiet(&mut session);
    session.unbind(None).unwrap();
}

#[test]
fn a_token_that_may_only_send_sends() {
    let server = MiopServer::open();
    let token = sign_scoped(TOKEN_KEY, "alice", PATIENCE, "send");
    let mut bob = server.server.open("bob", "phone");
    for wanted in [None, Some(wants::CHAT)] {
        let mut device = server.connect();
        device
            .bind(&Bind { version: VERSION, token: &token, device_id: "d1", wants: wanted, ..Bind::default() })
            .unwrap();
        let chat = |device: &mut DeviceSession, json: &str| {
            device.write_bytes(&Frame::Chat { json: json.as_bytes() }.to_bytes()).unwrap();
            next(device)
        };
        let answer = chat(&mut device, r#"{"t":"send","ref":1,"conversation":"g","body":"hello"}"#);
        assert!(matches!(answer, DeviceFrame::Chat(ServerFrame::Sent { .. })), "{answer:?}");
        assert_eq!(text_of(&entries(&mut bob, 1)[0]), "hello");
        let answer = chat(&mut device, r#"{"t":"history","ref":2,"conversation":"g"}"#);
        let DeviceFrame::Chat(ServerFrame::Error { reference, code, .. }) = answer else { panic!("{answer:?}") };
        assert_eq!((reference, code), (Some(2), ErrorCode::Forbidden));
    }
    // A session for pushes alone still has no chat.
    let all = tidings_client::token::sign(TOKEN_KEY, "alice", PATIENCE);
    let mut device = server.connect();
    device
        .bind(&Bind { version: VERSION, token: &all, device_id: "d1", wants: Some(wants::PUSH), ..Bind::default() })
        .unwrap();
    device.write_bytes(&Frame::Chat { json: br#"{"t":"ping","ref":3}"# }.to_bytes()).unwrap();
    assert!(matches!(next(&mut device), DeviceFrame::Error { .. }));
}
