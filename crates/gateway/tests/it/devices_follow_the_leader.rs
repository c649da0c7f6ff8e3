//! Devices connect to any node. Their sessions are on the node that leads push, and move when the leader changes; their
//! connections stay.
// Slow: left out by `make test-quick`.

use crate::devices::*;
use crate::support::*;
use std::{net::TcpStream, sync::Arc, time::Duration};
use tidings_client::session::Session;
use tidings_domain::{function::Function, metrics::Metrics};
use tidings_engine::cluster::nodes::ClusterNodes;
use tidings_gateway::{
    link_listener::{LinkConfig, LinkListener},
    miop_listener::{MiopListener, MiopListenerConfig, StopHandle},
    relay::{CoreLocator, Relay, RelayConfig},
};
use tidings_protocol::{
    error::ErrorCode,
    frames::{self, ClientFrame, ServerFrame},
    http::*,
    miop::{Bind, Frame, VERSION, wants},
};
use tidings_testkit::{LocalBus, MemoryStore};

const SECRET: &str = "the secret of the links";

/// The leader, as a node knows it.
struct Leader(Arc<ClusterNodes>);

impl CoreLocator for Leader {
    fn candidates(&self) -> Vec<String> {
        self.0.leader(Function::Push).map(|leader| leader.link).filter(|link| !link.is_empty()).into_iter().collect()
    }

    fn has_moved(&self, from: &str) -> bool {
        self.candidates().first().is_some_and(|link| link != from)
    }
}

/// A listener for devices, and the relay that holds their connections.
struct Holder {
    relay: Arc<Relay>,
    address: std::net::SocketAddr,
    _listener: StopHandle,
}

impl Holder {
    fn start(name: &str, cores: impl CoreLocator) -> Holder {
        let listener = MiopListener::bind(MiopListenerConfig::open(vec![LOCAL])).unwrap();
        let address = listener.addresses()[0].0;
        let (secret, name) = (SECRET.into(), name.into());
        let config = RelayConfig {
            cores: Arc::new(cores),
            secret,
            name,
            address: address.to_string(),
            sessions: session_config(),
        };
        let relay = Relay::start(config, Arc::new(Metrics::new())).unwrap();
        Holder { address, _listener: listener.start(relay.clone()).unwrap(), relay }
    }

    fn device(&self, user: &str, wanted: u64) -> Device<TcpStream> {
        until("there are links", || self.relay.is_attached());
        let mut device = Device::new(connect(self.address));
        let token = token(user);
        let bind = Bind { version: VERSION, token: &token, device_id: "d1", wants: Some(wanted), ..Bind::default() };
        device.write(&Frame::Bind(bind));
        device.expect(|frame| assert!(matches!(frame, Frame::Bound(_)), "{frame:?}"));
        device
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.relay.drain(Duration::ZERO);
    }
}

struct Node {
    holder: Holder,
    link: LinkListener,
    server: Server,
}

impl Node {
    fn start(name: &str, store: &Arc<MemoryStore>, bus: &LocalBus) -> Node {
        let server = Server::node(name, store, bus);
        let config = LinkConfig { listen: LOCAL, secret: SECRET.into(), lease: Duration::from_secs(15) };
        let link = LinkListener::start(config, server.session_server.clone()).unwrap();
        let nodes = &server.engine.cluster.as_ref().unwrap().nodes;
        nodes.announce_addresses(format!("http://{}", server.address), link.address().to_string());
        let holder = Holder::start(&format!("{name}/devices"), Leader(nodes.clone()));
        Node { holder, link, server }
    }

    fn leads(&self) -> bool {
        self.server.engine.has_term(Function::Push) && self.server.engine.push.settle().is_ok()
    }

    fn push_to(&self, user: &str) -> u64 {
        let to = PushTo { users: vec![user.into()], ..PushTo::default() };
        let request = PushRequest {
            to,
            content_type: "text".into(),
            body: raw("hello"),
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

    fn devices(&self, user: &str) -> Vec<DeviceDetails> {
        self.server.engine.push.user_devices(user).unwrap().devices
    }

    fn has_stored_acknowledgements(&self, user: &str) {
        until("what was acknowledged is stored", || {
            self.server.engine.push.settle().unwrap();
            self.devices(user)[0].pending == 0
        });
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.link.stop();
    }
}

/// Two nodes, of which the first leads.
fn nodes() -> [Node; 2] {
    let (store, bus) = (Arc::new(MemoryStore::shared()), LocalBus::default());
    let first = Node::start("a", &store, &bus);
    until("the first leads", || first.leads());
    let second = Node::start("b", &store, &bus);
    until("the second knows", || second.server.engine.cluster.as_ref().unwrap().nodes.leader(Function::Push).is_some());
    first.server.users(&["ann", "ben", "cyd"]);
    [first, second]
}

fn pushed(device: &mut Device<TcpStream>) -> u64 {
    let push = device.expect(|frame| match frame {
        Frame::Push(push) => push.push,
        other => panic!("no push: {other:?}"),
    });
    device.write(&Frame::Ack { pushes: vec![push] });
    push
}

#[test]
fn a_device_on_any_node_gets_pushes_and_stays_when_the_leader_changes() {
    let [first, second] = nodes();
    let mut there = second.holder.device("ann", wants::PUSH);
    let mut here = first.holder.device("ben", wants::PUSH);
    let push = first.push_to("ann");
    assert_eq!(pushed(&mut there), push);
    let push = first.push_to("ben");
    assert_eq!(pushed(&mut here), push);
    first.has_stored_acknowledgements("ann");
    drop(first);
    until("the second leads", || second.leads());
    until("its device is bound there anew", || second.devices("ann").iter().any(|device| device.online));
    let push = second.push_to("ann");
    assert_eq!(pushed(&mut there), push, "over the connection that it had");
    there.is_alive();
    assert!(!second.devices("ben")[0].online);
}

#[test]
fn a_gateway_finds_the_leader_through_any_node() {
    let [first, second] = nodes();
    let gateway = Holder::start("east", vec![second.link.address().to_string(), first.link.address().to_string()]);
    let mut phone = gateway.device("ann", wants::PUSH);
    let mut chatter = gateway.device("ben", wants::PUSH | wants::CHAT);
    assert_eq!(first.server.online("ann"), 1, "it is a session of the leader");
    let push = first.push_to("ann");
    assert_eq!(pushed(&mut phone), push);
    // Unacknowledged, the push would come again.
    first.has_stored_acknowledgements("ann");
    drop(first);
    // A device with chat knows its own cursor, and must connect again.
    chatter.expect(|frame| assert!(matches!(frame, Frame::Redirect { .. }), "{frame:?}"));
    until("the second leads", || second.leads());
    let push = second.push_to("ann");
    assert_eq!(pushed(&mut phone), push);
    phone.is_alive();
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
    let (store, bus) = (Arc::new(MemoryStore::shared()), LocalBus::default());
    let first = Node::start("a", &store, &bus);
    until("the first leads", || first.leads());
    let second = Node::start("b", &store, &bus);
    first.server.users(&["ann"]);
    bus.set_down(true);
    let mut session = open(&second.server, "ann");
    assert_eq!(bound(&session).pushes, Some(false));
    // A push of an earlier session may be acknowledged at once; it comes again.
    acknowledge(&mut session, 1);
    bus.set_down(false);
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
