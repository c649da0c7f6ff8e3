//! A core and a relay in one process, with a TCP proxy between them that can be cut.

use crate::devices::*;
use crate::support::*;
use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};
use tidings_domain::metrics::Metrics;
use tidings_gateway::{
    link_listener::{LinkConfig, LinkListener},
    miop_listener::{MiopListener, MiopListenerConfig, StopHandle},
    relay::{Relay, RelayConfig},
};
use tidings_protocol::{
    error::ErrorCode,
    frames::ServerFrame,
    http::*,
    miop::{Bind, Frame, HEARTBEAT, VERSION, wants},
};

const SECRET: &str = "the secret of the links";

struct Pair {
    relay: Arc<Relay>,
    _listener: StopHandle,
    wire: Wire,
    address: SocketAddr,
    link: LinkListener,
    server: Server,
}

impl Pair {
    fn start() -> Pair {
        let server = Server::start();
        server.users(&["ann", "bob", "cyd"]);
        let config = LinkConfig { listen: LOCAL, secret: SECRET.into(), lease: Duration::from_secs(15) };
        let link = LinkListener::start(config, server.session_server.clone()).unwrap();
        let wire = Wire::to(link.address());
        let (relay, _listener, address) = relay(wire.address, SECRET, "east");
        let pair = Pair { relay, _listener, wire, address, link, server };
        until("attached", || pair.relay.is_attached());
        pair
    }

    fn device(&self, user: &str, wanted: u64) -> Device<TcpStream> {
        let mut device = Device::new(connect(self.address));
        let token = token(user);
        device.write(&Frame::Bind(Bind {
            version: VERSION,
            token: &token,
            device_id: "d1",
            wants: Some(wanted),
            ..Bind::default()
        }));
        device.expect(|frame| assert!(matches!(frame, Frame::Bound(_)), "{frame:?}"));
        device
    }

    fn push_to_all(&self, text: &str) -> u64 {
        let request = PushRequest {
            to: PushTo { all: true, ..PushTo::default() },
            content_type: "text".into(),
            body: raw(text),
            ttl_s: None,
            collapse_key: None,
            priority: PushPriority::Normal,
            send_at: None,
            dry_run: false,
            client_push_id: None,
            fallback: None,
        };
        let prepared = self.server.engine.push.prepare(request).unwrap();
        self.server.wait(self.server.engine.push.accept(prepared)).unwrap().push
    }

    fn compare(&self, repair: bool) -> PresenceComparison {
        self.server.engine.presence_comparison(&*self.server.session_server, repair).unwrap()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.relay.drain(Duration::ZERO);
        self.link.stop();
    }
}

fn relay(core: SocketAddr, secret: &str, name: &str) -> (Arc<Relay>, StopHandle, SocketAddr) {
    let listener = MiopListener::bind(MiopListenerConfig::open(vec![LOCAL])).unwrap();
    let address = listener.addresses()[0].0;
    let relay = Relay::start(
        RelayConfig {
            cores: vec![core.to_string()],
            secret: secret.into(),
            name: name.into(),
            address: address.to_string(),
            sessions: session_config(),
        },
        Arc::new(Metrics::new()),
    );
    let relay = relay.unwrap();
    let stop = listener.start(relay.clone()).unwrap();
    (relay, stop, address)
}

/// The next push; answers its number and body.
#[track_caller]
fn pushed(device: &mut Device<TcpStream>) -> (u64, String) {
    device.expect(|frame| {
        let Frame::Push(push) = frame else { panic!("{frame:?}") };
        (push.push, String::from_utf8(push.body.to_vec()).unwrap())
    })
}

#[test]
fn relays_forward_chat_and_push_and_presence_names_their_node() {
    let pair = Pair::start();
    let mut phone = pair.device("ann", wants::PUSH | wants::CHAT);
    let mut laptop = pair.server.open("bob", "laptop");
    phone.is_alive();
    let online = pair.server.engine.presence_of(&["ann".to_owned()]).unwrap();
    assert_eq!((online[0].devices[0].node.as_str(), online[0].devices[0].device_id.as_str()), ("east", "d1"));

    phone.write(&Frame::Chat { json: br#"{"t":"send","ref":4,"to":"bob","type":"text","body":"hello"}"# });
    assert_eq!(text_of(&entries(&mut laptop, 1)[0]), "hello");
    // The answer and the phone's own copy, whichever comes first.
    let mut seen: Vec<ServerFrame> = Vec::new();
    while seen.len() < 2 {
        seen.push(phone.expect(|frame| {
            let Frame::Chat { json } = frame else { panic!("{frame:?}") };
            serde_json::from_slice(json).unwrap()
        }));
    }
    seen.sort_by_key(|frame| matches!(frame, ServerFrame::Messages { .. }));
    let [ServerFrame::Sent { results }, ServerFrame::Messages { entries, .. }] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!((results[0].reference, &*text_of(&entries[0])), (Some(4), "hello"));

    let push = pair.push_to_all("news");
    assert_eq!(pushed(&mut phone), (push, "\"news\"".into()));
    phone.write(&Frame::Ack { pushes: vec![push] });
    until("acknowledged", || pair.server.engine.push.status(push).unwrap().counts.acknowledged == 1);
}

#[test]
fn a_disconnected_device_is_removed_at_relay_and_core() {
    let pair = Pair::start();
    for _ in 0..20 {
        let devices: Vec<_> = ["ann", "bob", "cyd"].iter().map(|user| pair.device(user, wants::PUSH)).collect();
        assert_eq!(pair.relay.connections(), 3);
        drop(devices);
        until("gone at the relay", || pair.relay.connections() == 0);
        until("gone at the core", || pair.server.engine.presence.session_count() == 0);
    }
    until("the last is closed", || pair.server.engine.metrics.connections.get() == 0);
}

#[test]
fn a_refused_bind_gets_its_reason_through_the_relay() {
    let pair = Pair::start();
    let mut device = Device::new(connect(pair.address));
    device.write(&Frame::Bind(Bind { version: VERSION, token: "none", device_id: "d", ..Bind::default() }));
    device.expect(|frame| {
        let Frame::Error(error) = frame else { panic!("{frame:?}") };
        assert_eq!((error.code, error.fatal), (ErrorCode::Unauthorized.as_str(), true));
    });
    assert_eq!(device.next(|_| ()).unwrap(), None, "closed");
    until("closed at the core", || pair.server.engine.metrics.connections.get() == 0);
}

#[test]
fn connections_cut_at_every_byte_leave_no_session_behind() {
    let pair = Pair::start();
    let token = token("ann");
    let mut frames =
        Frame::Bind(Bind { version: VERSION, token: &token, device_id: "d1", ..Bind::default() }).to_bytes();
    let bind_bytes = frames.len();
    frames.extend(HEARTBEAT);
    frames.extend(Frame::Ack { pushes: vec![1, 2, 300] }.to_bytes());
    frames.extend(Frame::Chat { json: br#"{"t":"ping","ref":1}"# }.to_bytes());
    for cut in 0..frames.len() {
        let mut stream = connect(pair.address);
        stream.write_all(&frames[..cut]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        // Whatever the relay answers, it closes the connection.
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
    until("gone at the relay", || pair.relay.connections() == 0);
    // The relay forwards a complete bind before it sees the end of the stream, so the core may bind the session after the
    // device has disconnected.
    let begun = || pair.server.engine.metrics.sessions_opened.get() == (frames.len() - bind_bytes) as u64;
    until("all binds came to the core", begun);
    until("gone at the core", || pair.server.engine.metrics.connections.get() == 0);
    assert_eq!(pair.server.engine.presence.session_count(), 0);
}

#[test]
fn push_only_devices_outlast_a_lost_core_and_chat_devices_are_redirected() {
    let pair = Pair::start();
    let mut sensor = pair.device("ann", wants::PUSH);
    let mut phone = pair.device("bob", wants::PUSH | wants::CHAT);
    pair.wire.cut();
    phone.expect(|frame| assert!(matches!(frame, Frame::Redirect { .. }), "{frame:?}"));
    until("forgotten by the core", || pair.server.engine.presence.session_count() == 0);
    sensor.is_alive();

    // A device that connects now is told when to connect again.
    let mut is_told = false;
    while !is_told {
        let mut late = Device::new(connect(pair.address));
        late.bind("cyd");
        is_told = late.expect(|frame| match frame {
            Frame::Error(error) => {
                assert_eq!((error.code, error.retry, error.fatal), (ErrorCode::NodeUnavailable.as_str(), true, true));
                error.retry_after_ms.is_some_and(|ms| ms > 0)
            }
            // The other thread of the relay had not noticed the cut.
            Frame::Redirect { .. } => false,
            other => panic!("{other:?}"),
        });
    }

    // Pushes of the meantime are kept, and arrive without any action of the device.
    let missed = pair.push_to_all("while away");
    pair.wire.mend();
    assert_eq!(pushed(&mut sensor), (missed, "\"while away\"".into()));
    sensor.write(&Frame::Ack { pushes: vec![missed] });
    until("acknowledged", || pair.server.engine.push.status(missed).unwrap().counts.acknowledged == 1);
    sensor.is_alive();
    assert_eq!(pair.compare(false).ghosts, 0);
}

/// When the link is cut in a round.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Cut {
    Never,
    OnceAcknowledged,
    WhileAcknowledgementsMayWait,
}

/// Acknowledgements wait for each other at the relay, and with the link those that wait are lost: their pushes come again.
#[test]
fn a_push_to_many_comes_again_unless_its_acknowledgement_has_passed_the_relay() {
    const DEVICES: usize = 60;
    let pair = Pair::start();
    let users: Vec<String> = (0..DEVICES).map(|n| format!("u{n}")).collect();
    pair.server.users(&users.iter().map(String::as_str).collect::<Vec<_>>());
    let mut devices: Vec<_> = users.iter().map(|user| pair.device(user, wants::PUSH)).collect();
    let acknowledged = |push| pair.server.engine.push.status(push).unwrap().counts.acknowledged as usize;
    for cut in [Cut::Never, Cut::OnceAcknowledged, Cut::WhileAcknowledgementsMayWait] {
        let push = pair.push_to_all("news");
        for (at, device) in devices.iter_mut().enumerate() {
            assert_eq!(pushed(device).0, push);
            if at % 2 == 0 {
                device.write(&Frame::Ack { pushes: vec![push] });
            }
        }
        if cut != Cut::WhileAcknowledgementsMayWait {
            until("half have acknowledged it", || acknowledged(push) == DEVICES / 2);
        }
        if cut != Cut::Never {
            pair.wire.cut();
            until("away", || !pair.relay.is_attached());
            pair.wire.mend();
        }
        // A backlog is handed out in order: what comes again comes before this.
        let next = pair.push_to_all("more news");
        for (at, device) in devices.iter_mut().enumerate() {
            let mut again = 0;
            while pushed(device).0 != next {
                again += 1;
            }
            match (cut, at % 2) {
                (Cut::Never, _) | (Cut::OnceAcknowledged, 0) => assert_eq!(again, 0, "{cut:?}, device {at}"),
                (Cut::WhileAcknowledgementsMayWait, 0) => {}
                _ => assert!(again > 0, "{cut:?}, device {at} has not acknowledged the push"),
            }
            device.write(&Frame::Ack { pushes: vec![push, next] });
        }
        until("all have acknowledged both", || [push, next].map(acknowledged) == [DEVICES; 2]);
    }
}

#[test]
fn nothing_follows_an_unbind_whether_the_core_is_there_or_away() {
    let pair = Pair::start();
    let unbind = |device: &mut Device<TcpStream>| {
        let after = [&Frame::Unbind { reason: None }.to_bytes()[..], &HEARTBEAT, &[0x7f]].concat();
        device.stream.write_all(&after).unwrap();
        assert_eq!(device.next(|frame| format!("{frame:?}")).unwrap(), None);
    };
    unbind(&mut pair.device("ann", wants::PUSH));
    unbind(&mut pair.device("bob", wants::PUSH | wants::CHAT));
    until("gone at the core", || pair.server.engine.presence.session_count() == 0);
    let mut stays = pair.device("cyd", wants::PUSH);
    pair.wire.cut();
    until("away", || !pair.relay.is_attached());
    stays.is_alive();
    unbind(&mut stays);
    drop(stays);
    until("gone at the relay", || pair.relay.connections() == 0);
}

#[test]
fn a_relay_of_the_same_name_ends_its_predecessors_sessions() {
    let pair = Pair::start();
    let _device = pair.device("ann", wants::PUSH);
    let engine = &pair.server.engine;
    let ann = engine.directory.user_no("ann").unwrap().unwrap();
    let old = engine.presence.local_sessions(ann)[0].session;
    let (successor, _listener, _) = relay(pair.wire.address, SECRET, "east");
    // The old relay may attach again and bind its device again, under another session id.
    let gone = || !engine.presence.local_sessions(ann).iter().any(|device| device.session == old);
    until("the old session gone", gone);
    successor.drain(Duration::ZERO);
}

#[test]
fn a_relay_with_a_wrong_secret_is_refused() {
    let pair = Pair::start();
    let before = pair.server.engine.nodes().len();
    let (stranger, _listener, address) = relay(pair.wire.address, "another secret of links", "west");
    let mut device = Device::new(connect(address));
    device.bind("ann");
    device.expect(|frame| {
        let Frame::Error(error) = frame else { panic!("{frame:?}") };
        assert_eq!(error.code, ErrorCode::NodeUnavailable.as_str());
    });
    assert!(!stranger.is_attached());
    assert_eq!(pair.server.engine.nodes().len(), before);
    stranger.drain(Duration::ZERO);
}

#[test]
fn a_comparison_finds_and_repairs_ghosts_and_missing_sessions() {
    let pair = Pair::start();
    let _far = pair.device("ann", wants::PUSH);
    let _near = pair.server.open("bob", "laptop");
    let sound = pair.compare(false);
    assert_eq!((sound.registered, sound.held, sound.ghosts, sound.missing, sound.wrong_node), (2, 2, 0, 0, 0));

    let engine = &pair.server.engine;
    let cyd = engine.directory.user_no("cyd").unwrap().unwrap();
    let ghost = tidings_engine::presence::PresenceSession {
        session: 99 << 32,
        node: Default::default(),
        device_id: "gone".into(),
        device_kind: "web".into(),
        since: 1,
        chat: true,
        background: false,
    };
    engine.presence.register(cyd, ghost);
    let bob = engine.directory.user_no("bob").unwrap().unwrap();
    let lost = engine.presence.local_sessions(bob)[0].session;
    engine.presence.unregister(bob, lost, 1);

    let found = pair.compare(true);
    assert_eq!((found.ghosts, found.missing, found.repaired), (1, 1, 2), "{found:?}");
    let mut kinds: Vec<_> = found.differences.iter().map(|d| (d.kind.as_str(), d.user.as_str())).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, [("ghost", "cyd"), ("missing", "bob")]);
    let after = pair.compare(false);
    assert_eq!((after.registered, after.ghosts, after.missing), (2, 0, 0));
    assert!(pair.server.online("bob") == 1 && pair.server.online("cyd") == 0);
    let views = engine.presence_views("ann", &*pair.server.session_server).unwrap();
    assert_eq!(views.stored, views.memory);
    assert_eq!(views.memory[0].node, "east");
}

#[test]
fn a_session_behind_a_relay_ends_with_its_token() {
    let pair = Pair::start();
    let exp = tidings_client::token::now_s() + 3;
    let token = tidings_client::token::sign_claims(TOKEN_KEY, &serde_json::json!({"sub": "ann", "exp": exp}));
    let mut device = Device::new(connect(pair.address));
    device.write(&Frame::Bind(Bind { version: VERSION, token: &token, device_id: "d1", ..Bind::default() }));
    device.expect(|frame| assert!(matches!(frame, Frame::Bound(_)), "{frame:?}"));
    let mut other = pair.device("bob", wants::PUSH);
    device.expect(|frame| match frame {
        Frame::Error(error) => assert_eq!((error.code, error.fatal), ("token_expired", true)),
        other => panic!("{other:?}"),
    });
    assert!(tidings_client::token::now_s() >= exp);
    other.is_alive();
}
