//! Devices are served by the node that they connect to, or by the one that their gateway has chosen. They get their pushes
//! whichever node leads push, and stay when another one takes the lead.
// Slow: left out by `make test-quick`.

use crate::devices::*;
use crate::support::*;
use serde_json::{json, value::RawValue};
use std::{
    net::{Shutdown, SocketAddr, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_client::session::Session;
use tidings_domain::{function::Function, metrics::Metrics};
use tidings_gateway::{
    SessionConfig,
    link_listener::{LinkConfig, LinkListener},
    miop_listener::{MiopListener, MiopListenerConfig, StopHandle},
    relay::{Relay, RelayConfig},
};
use tidings_protocol::{
    error::ErrorCode,
    frames::{self, ClientFrame, ServerFrame},
    http::*,
    miop::{Bind, Frame, VERSION, wants},
};
use tidings_testkit::{LocalBus, MemoryStore};

const SECRET: &str = "the secret of the links";
/// Handed on as it was written, spaces and escapes included.
const BODY: &str = r#"{"n": "one \u00e9", "m": [1.0]}"#;

/// A gateway in front of some nodes of a cluster.
struct Gateway {
    relay: Arc<Relay>,
    metrics: Arc<Metrics>,
    address: SocketAddr,
    _listener: StopHandle,
}

impl Gateway {
    fn start(name: &str, cores: &[&Node]) -> Gateway {
        Gateway::start_with(name, cores, session_config())
    }

    fn start_with(name: &str, cores: &[&Node], sessions: SessionConfig) -> Gateway {
        let listener = MiopListener::bind(MiopListenerConfig::open(vec![LOCAL])).unwrap();
        let address = listener.addresses()[0].0;
        let config = RelayConfig {
            cores: cores.iter().map(|node| node.wire.address.to_string()).collect(),
            secret: SECRET.into(),
            name: name.into(),
            address: address.to_string(),
            // One thread: what it does with its devices is what the gateway does.
            sessions: SessionConfig { shards: 1, ..sessions },
        };
        let metrics = Arc::new(Metrics::new());
        let relay = Relay::start(config, metrics.clone()).unwrap();
        let gateway = Gateway { address, _listener: listener.start(relay.clone()).unwrap(), relay, metrics };
        until("it is attached", || gateway.relay.is_attached());
        gateway
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.relay.drain(Duration::ZERO);
    }
}

/// A device that has bound, and what `bound` said about its pushes.
fn bound_device(address: SocketAddr, user: &str, wanted: u64) -> (Device<TcpStream>, Option<bool>) {
    let mut device = Device::new(connect(address));
    let token = token(user);
    let bind = Bind { version: VERSION, token: &token, device_id: "d1", wants: Some(wanted), ..Bind::default() };
    device.write(&Frame::Bind(bind));
    let pushes = device.expect(|frame| match frame {
        Frame::Bound(bound) => bound.pushes,
        other => panic!("{other:?}"),
    });
    (device, pushes)
}

fn device(address: SocketAddr, user: &str, wanted: u64) -> Device<TcpStream> {
    let (device, pushes) = bound_device(address, user, wanted);
    assert_eq!(pushes, None, "they are not said to come later");
    device
}

struct Node {
    devices: RunningListener,
    link: LinkListener,
    /// Gateways reach its links by this.
    wire: Wire,
    server: Server,
}

impl Node {
    fn start(name: &str, store: &Arc<MemoryStore>, bus: &LocalBus, link_lease: Duration) -> Node {
        let server = Server::node(name, store, bus);
        let node = Node::of(server, link_lease);
        let nodes = &node.server.engine.cluster.as_ref().unwrap().nodes;
        nodes.announce_addresses(format!("http://{}", node.server.address), node.wire.address.to_string());
        node
    }

    fn of(server: Server, link_lease: Duration) -> Node {
        let config = LinkConfig { listen: LOCAL, secret: SECRET.into(), lease: link_lease };
        let link = LinkListener::start(config, server.session_server.clone()).unwrap();
        let wire = Wire::to(link.address());
        let devices = RunningListener::open(&server, MiopListenerConfig::open(vec![LOCAL]));
        Node { devices, link, wire, server }
    }

    fn leads(&self) -> bool {
        self.server.engine.has_term(Function::Push) && self.server.engine.push.settle().is_ok()
    }

    /// Knows so many nodes.
    fn knows(&self, count: usize) -> bool {
        let nodes = &self.server.engine.cluster.as_ref().unwrap().nodes;
        nodes.session_links().is_some_and(|(_, all)| all.len() == count)
    }

    /// Sessions that it serves.
    fn sessions(&self) -> i64 {
        self.server.engine.metrics.sessions.get()
    }

    /// Whether it has refused something with `node_unavailable`.
    fn refuses_as_unavailable(&self) -> bool {
        let of_code = |line: &str| line.contains("code=\"node_unavailable\"") && !line.ends_with(" 0");
        self.server.engine.metrics.render().lines().any(of_code)
    }

    fn push(&self, to: PushTo) -> u64 {
        let request = PushRequest {
            to,
            content_type: "text".into(),
            body: RawValue::from_string(BODY.into()).unwrap(),
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

    fn push_to(&self, user: &str) -> u64 {
        self.push(PushTo { users: vec![user.into()], ..PushTo::default() })
    }

    fn push_to_all(&self) -> u64 {
        self.push(PushTo { all: true, ..PushTo::default() })
    }

    fn acknowledged(&self, push: u64) -> u64 {
        self.server.engine.push.settle().unwrap();
        self.server.engine.push.status(push).unwrap().counts.acknowledged
    }

    fn targets(&self, push: u64) -> u64 {
        self.server.engine.push.status(push).unwrap().counts.targets
    }

    fn devices(&self, user: &str) -> Vec<DeviceDetails> {
        self.server.engine.push.user_devices(user).unwrap().devices
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.link.stop();
    }
}

struct Cluster {
    store: Arc<MemoryStore>,
    bus: LocalBus,
}

impl Cluster {
    fn new() -> Cluster {
        Cluster { store: Arc::new(MemoryStore::shared()), bus: LocalBus::default() }
    }

    fn node(&self, name: &str) -> Node {
        self.node_with(name, Duration::from_secs(60))
    }

    fn node_with(&self, name: &str, link_lease: Duration) -> Node {
        Node::start(name, &self.store, &self.bus, link_lease)
    }
}

/// Two nodes, of which the first leads.
fn nodes() -> [Node; 2] {
    let cluster = Cluster::new();
    let first = cluster.node("a");
    until("the first leads", || first.leads());
    let second = cluster.node("b");
    until("the second knows", || second.server.engine.cluster.as_ref().unwrap().nodes.leader(Function::Push).is_some());
    first.server.users(&["ann", "ben", "cyd"]);
    [first, second]
}

/// The next push, whose number is answered, with its body as it was made.
fn handed(device: &mut Device<TcpStream>) -> u64 {
    device.expect(|frame| match frame {
        Frame::Push(push) => {
            assert_eq!((push.content_type, push.body), ("text", BODY.as_bytes()));
            push.push
        }
        other => panic!("no push: {other:?}"),
    })
}

fn pushed(device: &mut Device<TcpStream>) -> u64 {
    let push = handed(device);
    device.write(&Frame::Ack { pushes: vec![push] });
    push
}

#[test]
fn a_device_on_any_node_gets_pushes_and_stays_when_the_leader_changes() {
    let [first, second] = nodes();
    first.server.group("g", &["ann", "cyd"]);
    let mut there = device(second.devices.address, "ann", wants::PUSH);
    let mut chats = device(second.devices.address, "cyd", wants::PUSH | wants::CHAT);
    let mut here = device(first.devices.address, "ben", wants::PUSH);
    assert_eq!((first.sessions(), second.sessions()), (1, 2), "each node serves those that came to it");
    let push = first.push_to("ann");
    assert_eq!(pushed(&mut there), push);
    let push = first.push_to("ben");
    assert_eq!(pushed(&mut here), push);
    until("both are stored", || first.devices("ann")[0].pending + first.devices("ben")[0].pending == 0);
    let open = first.push_to("cyd");
    assert_eq!(handed(&mut chats), open);
    drop(first);
    until("the second leads", || second.leads());
    until("its devices are known there", || second.devices("ann").iter().any(|device| device.online));
    assert_eq!(pushed(&mut chats), open, "it was not acknowledged");
    let push = second.push_to("ann");
    assert_eq!(pushed(&mut there), push, "over the connection that it had");
    there.is_alive();
    assert!(!second.devices("ben")[0].online);
    second.server.say("ann", "g", "still here");
    chats.expect(|frame| match frame {
        Frame::Chat { json } => assert!(String::from_utf8_lossy(json).contains("still here"), "{json:?}"),
        other => panic!("{other:?}"),
    });
}

#[test]
fn a_device_without_a_reachable_leader_binds_chats_and_gets_pushes_later() {
    let cluster = Cluster::new();
    let first = cluster.node("a");
    until("the first leads", || first.leads());
    let second = cluster.node("b");
    first.server.users(&["ann", "ben"]);
    first.server.group("g", &["ann", "ben"]);
    cluster.bus.set_down(true);
    let (mut ann, pushes) = bound_device(second.devices.address, "ann", wants::PUSH | wants::CHAT);
    assert_eq!(pushes, Some(false));
    // A push of an earlier session may be acknowledged at once; it comes again.
    ann.write(&Frame::Ack { pushes: vec![1] });
    second.server.say("ben", "g", "hello");
    ann.expect(|frame| assert!(matches!(frame, Frame::Chat { .. }), "{frame:?}"));
    cluster.bus.set_down(false);
    until("the device is known", || first.devices("ann").first().is_some_and(|device| device.online));
    let push = first.push_to("ann");
    assert_eq!(pushed(&mut ann), push);
}

const USERS: usize = 96;

fn users() -> Vec<String> {
    (0..USERS).map(|number| format!("u{number}")).collect()
}

/// Three nodes of which the first leads, and a gateway that was told of one that does not.
fn with_gateway(cluster: &Cluster) -> ([Node; 3], Gateway) {
    let first = cluster.node("a");
    until("the first leads", || first.leads());
    let [second, third] = [cluster.node("b"), cluster.node("c")];
    let all = [first, second, third];
    until("all know each other", || all.iter().all(|node| node.knows(3)));
    let users = users();
    all[0].server.users(&users.iter().map(String::as_str).collect::<Vec<_>>());
    let gateway = Gateway::start("east", &[&all[1]]);
    until("it is attached to all", || gateway.relay.attachments() == 3);
    (all, gateway)
}

#[test]
fn a_gateway_told_of_one_node_spreads_its_devices_over_all() {
    let cluster = Cluster::new();
    let (nodes, gateway) = with_gateway(&cluster);
    let mut devices: Vec<_> = users().iter().map(|user| device(gateway.address, user, wants::PUSH)).collect();
    let third = (USERS / 3) as i64;
    assert_eq!(nodes.each_ref().map(Node::sessions), [third; 3]);
    let push = nodes[0].push_to_all();
    for device in &mut devices {
        assert_eq!(pushed(device), push);
    }
    until("all is acknowledged", || nodes[0].acknowledged(push) == USERS as u64);
    let push = nodes[0].push_to("u7");
    assert_eq!(pushed(&mut devices[7]), push);
    devices.iter_mut().for_each(Device::is_alive);
}

#[test]
fn devices_of_a_node_that_stops_are_bound_at_the_others_and_spread_over_a_new_one() {
    let cluster = Cluster::new();
    let (nodes, gateway) = with_gateway(&cluster);
    let mut devices: Vec<_> = users().iter().map(|user| device(gateway.address, user, wants::PUSH)).collect();
    let [first, second, third] = nodes;
    let open = first.push_to_all();
    devices.iter_mut().for_each(|device| assert_eq!(handed(device), open));
    let had = first.push_to_all();
    devices.iter_mut().for_each(|device| assert_eq!(pushed(device), had));
    until("the later one is acknowledged", || first.acknowledged(had) == USERS as u64);
    let chats = users();
    let mut chats: Vec<_> = chats[..3].iter().map(|user| talks(gateway.address, user)).collect();
    drop(second);
    until("its devices are bound at the others", || first.sessions() + third.sessions() == USERS as i64 + 2);
    let redirected = chats.iter_mut().filter_map(|device| {
        let mut is_redirected = false;
        device.write(&Frame::Heartbeat { interval_s: None });
        device.expect(|frame| is_redirected = matches!(frame, Frame::Redirect { .. }));
        is_redirected.then_some(())
    });
    assert_eq!(redirected.count(), 1, "only the device knows what it has of chat");
    let push = first.push_to_all();
    let came_again = devices.iter_mut().flat_map(|device| handed_until(device, push)).collect::<Vec<_>>();
    assert_eq!(
        came_again,
        vec![open; USERS / 3],
        "to the devices that were bound anew, and not what they acknowledged"
    );
    until("all is acknowledged", || first.acknowledged(push) == first.targets(push));
    let fourth = cluster.node("d");
    until("devices have moved to it", || {
        // Meanwhile pushes go on.
        let push = first.push_to_all();
        let came_again = devices.iter_mut().flat_map(|device| handed_until(device, push)).collect::<Vec<_>>();
        assert!(came_again.iter().all(|again| *again != had));
        let each = [&first, &third, &fourth].map(Node::sessions);
        each.iter().max().unwrap() - each.iter().min().unwrap() <= 16
    });
}

/// Takes and acknowledges pushes until this one has come; answers those that came before it, again.
fn handed_until(device: &mut Device<TcpStream>, push: u64) -> Vec<u64> {
    let came = std::iter::from_fn(|| Some(pushed(device)));
    came.take_while(|next| *next != push).inspect(|next| assert!(*next < push)).collect()
}

/// Two nodes behind a gateway, with a device on each: the node that serves `ann` comes first, with her device.
fn two_with_a_device_each(cluster: &Cluster, link_lease: Duration) -> ([Node; 2], Gateway, [Device<TcpStream>; 2]) {
    let first = cluster.node_with("a", link_lease);
    until("the first leads", || first.leads());
    let second = cluster.node_with("b", link_lease);
    until("both know each other", || first.knows(2) && second.knows(2));
    let users = users();
    first.server.users(&users.iter().map(String::as_str).collect::<Vec<_>>());
    first.server.users(&["ann", "ben"]);
    let gateway = Gateway::start("east", &[&first]);
    until("it is attached to both", || gateway.relay.attachments() == 2);
    let [ann, ben] = ["ann", "ben"].map(|user| device(gateway.address, user, wants::PUSH));
    assert_eq!((first.sessions(), second.sessions()), (1, 1));
    until("the first knows where they are", || first.server.online("ann") + first.server.online("ben") == 2);
    // Sessions of another node are said to be there, and its own behind the gateway.
    let at = first.server.engine.presence_of(&["ann".into()]).unwrap()[0].devices[0].node.clone();
    let nodes = if at == "b" { [second, first] } else { [first, second] };
    (nodes, gateway, [ann, ben])
}

#[test]
fn a_device_that_leaves_while_a_node_opens_it_leaves_no_session_there() {
    let cluster = Cluster::new();
    let ([one, other], gateway, [mut ann, _ben]) = two_with_a_device_each(&cluster, Duration::from_secs(60));
    other.wire.hold_back(true);
    one.wire.cut();
    until("the other one has opened it", || other.sessions() == 2);
    ann.write(&Frame::Unbind { reason: None });
    assert_eq!(ann.next(|_| ()).unwrap(), None, "the gateway has closed its side");
    other.wire.hold_back(false);
    until("its session has ended", || other.sessions() == 1);
    drop(gateway);
}

/// A device that waits for a node, leaves, and binds at the other one. Then the node reads what it was sent: that the device has left it
/// reads together with the bind, or later.
fn gives_up_waiting_and_goes_elsewhere(hears_of_it_with_the_bind: bool) {
    let cluster = Cluster::new();
    let ([one, other], gateway, [mut ann, ben]) = two_with_a_device_each(&cluster, Duration::from_secs(60));
    one.server.users(&["cid", "dan", "eve", "fay"]);
    // The other one is to have the fewest devices, and one behind each of its links whose frames can be long.
    let (mut stay, mut leave) = (Vec::new(), vec![ben]);
    for user in &users()[..6] {
        let had = other.sessions();
        let device = device(gateway.address, user, wants::PUSH);
        if other.sessions() > had { &mut leave } else { &mut stay }.push(device);
    }
    leave.iter_mut().for_each(|device| device.write(&Frame::Unbind { reason: None }));
    drop(leave);
    until("its devices have left", || other.sessions() == 0 && gateway.metrics.connections.get() == one.sessions());
    let mut long = ["eve", "fay"].map(|user| talks(gateway.address, user));
    assert_eq!(other.sessions(), 2);
    other.wire.hold_up(true);
    let began = Instant::now();
    let mut early = Device::new(connect(gateway.address));
    let [cids, dans] = ["cid", "dan"].map(token);
    let bind = |token| Bind { version: VERSION, token, device_id: "d1", wants: Some(wants::PUSH), ..Bind::default() };
    early.write(&Frame::Bind(bind(&cids)));
    if !hears_of_it_with_the_bind {
        let bound = one.sessions() + other.sessions();
        until("the gateway has the device", || gateway.metrics.connections.get() == bound + 1);
        ann.is_alive();
        // More than a node reads at once.
        let body = "x".repeat(100_000);
        let send = json!({"t": "send", "ref": 1, "to": "ann", "client_msg_id": "m", "body": body}).to_string();
        for device in &mut long {
            (0..4).for_each(|_| device.write(&Frame::Chat { json: send.as_bytes() }));
            device.is_alive();
        }
        until("the bind has waited", || began.elapsed() > Duration::from_millis(2_500));
    }
    early.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(early.next(|_| ()).unwrap(), None, "it has left");
    // The gateway's thread has written what it had.
    ann.is_alive();
    let mut cid = device(one.devices.address, "cid", wants::PUSH);
    until("the other one knows", || other.server.online("cid") == 1);
    // What the other one opens it keeps, as the gateway does not hear of it.
    other.wire.hold_back(true);
    other.wire.hold_up(false);
    let mut dan = Device::new(connect(gateway.address));
    dan.write(&Frame::Bind(bind(&dans)));
    until("the one knows what the other one has bound", || one.server.online("dan") == 1);
    if !hears_of_it_with_the_bind {
        until("the other one has come to the bind, too", || other.refuses_as_unavailable());
    }
    assert_eq!(other.sessions(), 3);
    let leader = if one.leads() { &one } else { &other };
    let push = leader.push_to("cid");
    assert_eq!(pushed(&mut cid), push);
    other.wire.hold_back(false);
    drop(stay);
}

#[test]
fn a_device_that_gave_up_waiting_for_a_node_stays_where_it_went() {
    gives_up_waiting_and_goes_elsewhere(true);
}

#[test]
fn a_node_that_reads_a_bind_late_ends_no_later_session_of_the_device() {
    gives_up_waiting_and_goes_elsewhere(false);
}

#[test]
fn a_node_opens_no_device_that_its_gateway_has_given_up() {
    let bind_timeout = Duration::from_secs(4);
    let sessions = || SessionConfig { bind_timeout, ..session_config() };
    let node = Node::of(Server::with(sessions(), Arc::new(MemoryStore::default())), Duration::from_secs(60));
    node.server.users(&["ann", "ben"]);
    let gateway = Gateway::start_with("east", &[&node], sessions());
    let _ann = device(gateway.address, "ann", wants::PUSH);
    node.wire.hold_up(true);
    let began = Instant::now();
    let mut early = Device::new(connect(gateway.address));
    early.bind("ben");
    early.expect(|frame| match frame {
        Frame::Error(error) => assert_eq!((error.code, error.retry_after_ms.is_some()), ("node_unavailable", true)),
        other => panic!("{other:?}"),
    });
    until("the bind has waited for longer than a device does", || began.elapsed() > bind_timeout * 3 / 2);
    let opened = || node.server.engine.metrics.sessions_opened.get();
    let (had, refused_before) = (opened(), node.refuses_as_unavailable());
    node.wire.hold_up(false);
    until("the node refuses the bind", || node.refuses_as_unavailable());
    assert_eq!((opened(), refused_before), (had, false), "it begins no session");
}

#[test]
fn a_device_that_its_node_does_not_answer_is_asked_to_come_again() {
    let cluster = Cluster::new();
    let node = cluster.node("a");
    node.server.users(&["ann"]);
    let sessions = SessionConfig { bind_timeout: Duration::from_secs(1), ..session_config() };
    let gateway = Gateway::start_with("east", &[&node], sessions);
    node.wire.hold_back(true);
    let mut ann = Device::new(connect(gateway.address));
    let bind = Bind { version: VERSION, token: &token("ann"), device_id: "d1", ..Bind::default() };
    ann.write(&Frame::Bind(bind));
    ann.expect(|frame| match frame {
        Frame::Error(error) => assert_eq!((error.code, error.retry_after_ms.is_some()), ("node_unavailable", true)),
        other => panic!("{other:?}"),
    });
    node.wire.hold_back(false);
}

#[test]
fn a_silent_node_takes_no_devices_and_loses_those_that_it_has() {
    let cluster = Cluster::new();
    let ([one, other], gateway, [mut ann, _ben]) = two_with_a_device_each(&cluster, Duration::from_secs(3));
    one.wire.hold_back(true);
    until("it is given up", || other.sessions() == 2);
    let all: Vec<_> = users().iter().map(|user| device(gateway.address, user, wants::PUSH)).collect();
    assert_eq!(other.sessions() as usize, 2 + all.len());
    let leader = if one.leads() { &one } else { &other };
    let push = leader.push_to("ann");
    assert_eq!(pushed(&mut ann), push);
    one.wire.hold_back(false);
    drop(all);
}

/// A device of its own that wants chat.
fn talks(address: SocketAddr, user: &str) -> Device<TcpStream> {
    let mut device = Device::new(connect(address));
    let token = token(user);
    let bind =
        Bind { version: VERSION, token: &token, device_id: "chats", wants: Some(wants::CHAT), ..Bind::default() };
    device.write(&Frame::Bind(bind));
    device.expect(|frame| assert!(matches!(frame, Frame::Bound(_)), "{frame:?}"));
    device
}

fn open(server: &Server, user: &str) -> Session {
    let mut session = Session::connect(server.address).unwrap();
    let bind = ClientFrame::Bind(frames::Bind {
        token: token(user),
        device_id: "browser".into(),
        device_kind: "web".into(),
        app_version: None,
        cursor: None,
        push: true,
        attention: frames::Attention::Foreground,
        compact: false,
    });
    session.write(&bind).unwrap();
    assert!(matches!(next(&mut session), ServerFrame::Bound(_)));
    session
}

/// The next frame, a push.
fn pushed_to(session: &mut Session) -> u64 {
    match next(session) {
        ServerFrame::Push(push) => push.push,
        other => panic!("no push: {other:?}"),
    }
}

fn acknowledge(session: &mut Session, push: u64) {
    session.write(&ClientFrame::Ack { pushes: vec![push] }).unwrap();
}

fn is_replaced(session: &mut Session) {
    match next(session) {
        ServerFrame::Error { code, .. } => assert_eq!(code, ErrorCode::Replaced),
        other => panic!("{other:?}"),
    }
}

fn pending(node: &Node, user: &str) -> u64 {
    node.server.engine.push.settle().unwrap();
    node.devices(user)[0].pending
}

#[test]
fn a_session_on_any_node_chats_gets_pushes_and_stays_when_the_leader_changes() {
    let [first, second] = nodes();
    first.server.group("g", &["ann", "ben"]);
    let mut here = open(&first.server, "ann");
    let mut there = open(&second.server, "ben");
    assert_eq!((bound(&here).pushes, bound(&there).pushes), (None, None));
    until("each is one session", || (first.server.online("ann"), first.server.online("ben")) == (1, 1));
    second.server.say("ben", "g", "hello");
    for session in [&mut here, &mut there] {
        assert_eq!(text_of(&entries(session, 1)[0]), "hello");
    }
    let push = first.push_to("ben");
    assert_eq!(pushed_to(&mut there), push);
    acknowledge(&mut there, push);
    until("it is acknowledged", || pending(&first, "ben") == 0);
    let push = first.push_to("ann");
    assert_eq!(pushed_to(&mut here), push);
    acknowledge(&mut here, push);
    let open_push = first.push_to("ben");
    assert_eq!(pushed_to(&mut there), open_push);
    drop(here);
    drop(first);
    until("the second leads", || second.leads());
    assert_eq!(pushed_to(&mut there), open_push, "it was not acknowledged");
    acknowledge(&mut there, open_push);
    let push = second.push_to("ben");
    assert_eq!(pushed_to(&mut there), push);
    acknowledge(&mut there, push);
    until("all is acknowledged", || pending(&second, "ben") == 0);
    second.server.say("ben", "g", "still here");
    assert_eq!(text_of(&entries(&mut there, 1)[0]), "still here");
}

#[test]
fn a_session_without_a_reachable_leader_is_told_so_and_gets_pushes_later() {
    let cluster = Cluster::new();
    let first = cluster.node("a");
    until("the first leads", || first.leads());
    let second = cluster.node("b");
    first.server.users(&["ann"]);
    cluster.bus.set_down(true);
    let mut session = open(&second.server, "ann");
    assert_eq!(bound(&session).pushes, Some(false));
    // A push of an earlier session may be acknowledged at once; it comes again.
    acknowledge(&mut session, 1);
    cluster.bus.set_down(false);
    until("its device is known", || first.devices("ann").first().is_some_and(|device| device.online));
    let push = first.push_to("ann");
    assert_eq!(pushed_to(&mut session), push);
    acknowledge(&mut session, push);
    until("it is acknowledged", || pending(&first, "ann") == 0);
}

#[test]
fn a_session_that_moves_to_another_node_keeps_its_pending_pushes() {
    let [first, second] = nodes();
    let mut before = open(&second.server, "ann");
    let push = first.push_to("ann");
    assert_eq!(pushed_to(&mut before), push);
    let mut after = open(&first.server, "ann");
    is_replaced(&mut before);
    assert_eq!(pushed_to(&mut after), push);
    let mut again = open(&second.server, "ann");
    is_replaced(&mut after);
    assert_eq!(pushed_to(&mut again), push);
    acknowledge(&mut again, push);
    until("it is acknowledged", || pending(&first, "ann") == 0);
    assert!(first.devices("ann")[0].online);
    drop(again);
    until("it is offline", || !first.devices("ann")[0].online);
}
