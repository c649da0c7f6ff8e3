//! Sessions of nodes that do not lead are handed pushes as the leader's own are: whatever the bus loses, whichever node a
//! device binds on next, and when the lead moves.
// Slow: left out by `make test-quick`.

use crate::fake_shard::Shard;
use crate::support::*;
use bytes::Bytes;
use serde_json::json;
use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tidings_domain::{
    bus::{Bus, MessageHandler},
    clock::Clock,
    function::Function,
    push_store::DeviceNo,
};
use tidings_protocol::http::{DeviceState, PushState};
use tidings_push::{PushItem, PushReports, Register};
use tidings_testkit::{LocalBus, MemoryStore};

/// A node's end of the bus, which loses some of the node's messages.
struct LossyBus {
    bus: LocalBus,
    loss_per_mille: AtomicU64,
    messages: AtomicU64,
    bytes: AtomicU64,
    random: Mutex<u64>,
}

impl LossyBus {
    fn of(bus: &LocalBus, seed: u64) -> Arc<LossyBus> {
        let [loss_per_mille, messages, bytes] = Default::default();
        Arc::new(LossyBus { bus: bus.clone(), loss_per_mille, messages, bytes, random: Mutex::new(seed) })
    }

    fn lose(&self, per_mille: u64) {
        self.loss_per_mille.store(per_mille, Relaxed);
    }
}

impl Bus for LossyBus {
    fn listen(&self, name: &str, handler: Arc<dyn MessageHandler>) {
        self.bus.listen(name, handler);
    }
    fn send(&self, to: &[Arc<str>], message: Bytes) -> bool {
        self.messages.fetch_add(1, Relaxed);
        self.bytes.fetch_add(message.len() as u64, Relaxed);
        let mut random = self.random.lock().unwrap();
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let is_lost = (*random >> 33) % 1_000 < self.loss_per_mille.load(Relaxed);
        drop(random);
        is_lost || self.bus.send(to, message)
    }
    fn is_up(&self) -> bool {
        self.bus.is_up()
    }
    fn trouble(&self) -> Option<String> {
        self.bus.trouble()
    }
    fn stop(&self) {
        self.bus.stop();
    }
}

struct Node {
    shard: Shard,
    bus: Arc<LossyBus>,
}

impl Node {
    fn start(name: &str, store: &Arc<MemoryStore>, bus: &LocalBus, seed: u64, lease: Duration) -> Node {
        let bus = LossyBus::of(bus, seed);
        let shard = Shard::of(World::node_on(name, store, store.clone(), bus.clone(), lease));
        Node { shard, bus }
    }

    fn leads(&self) -> bool {
        look_around(&self.shard.world.engine);
        self.shard.world.engine.has_term(Function::Push) && self.shard.world.engine.push.settle().is_ok()
    }

    /// Binds a device and waits until its number is known here.
    fn bind(&mut self, name: &str) {
        self.shard.ask_to_bind(name);
        self.becomes("the device is known", |shard| shard.phones.contains_key(name));
    }

    fn leave(&mut self, name: &str) {
        let phone = self.shard.phones.remove(name).unwrap();
        self.shard.world.engine.push.session_ended(0, phone.session, Some(phone.device));
    }

    fn acknowledge(&mut self, name: &str, pushes: &[u64]) {
        self.shard.report_acknowledged(name, pushes);
    }

    fn becomes(&mut self, what: &str, mut holds: impl FnMut(&mut Shard) -> bool) {
        let shard = &mut self.shard;
        until(what, || {
            shard.take();
            holds(shard)
        });
    }

    /// The next pushes that a device here is handed.
    fn is_handed(&mut self, name: &str, pushes: &[u64]) {
        self.becomes(&format!("{name} is handed {pushes:?}"), |shard| {
            shard.handed.get(name).is_some_and(|handed| handed.len() >= pushes.len())
        });
        assert_eq!(self.shard.handed.remove(name).unwrap(), pushes);
    }

    fn push_to(&mut self, user: &str) -> u64 {
        self.shard.push(json!({"users": [user]}), json!({"type": "t"})).push
    }

    /// The state of a push on a device, as the leader tells it.
    fn state_becomes(&mut self, push: u64, name: &str, state: DeviceState) {
        self.becomes(&format!("{push} is {state:?} on {name}"), |shard| {
            shard.world.engine.push.settle().unwrap();
            shard.states(push)[name] == state
        });
    }

    fn is_online(&self, user: &str) -> bool {
        self.shard.world.engine.push.user_devices(user).unwrap().devices[0].online
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The lease of a test in which a node becomes silent.
const SHORT_LEASE: Duration = Duration::from_secs(2);

/// Three nodes with users; the first node leads.
fn three() -> ([Node; 3], LocalBus) {
    three_with(LONG_LEASE)
}

fn three_with(lease: Duration) -> ([Node; 3], LocalBus) {
    three_on(Arc::new(MemoryStore::shared()), lease)
}

fn three_on(store: Arc<MemoryStore>, lease: Duration) -> ([Node; 3], LocalBus) {
    let bus = LocalBus::default();
    let first = Node::start("a", &store, &bus, 1, lease);
    until("the first leads", || first.leads());
    let nodes = [("b", 2), ("c", 3)].map(|(name, seed)| Node::start(name, &store, &bus, seed, lease));
    let [second, third] = nodes;
    let nodes = [first, second, third];
    nodes[0].shard.world.users(&["ann", "ben", "cyd"]);
    (nodes, bus)
}

#[test]
fn sessions_of_every_node_are_handed_pushes_as_the_leaders_own_are() {
    let ([mut a, mut b, mut c], _) = three();
    a.bind("ann/web");
    b.bind("ben/web");
    c.bind("cyd/web");
    let all = a.shard.push(json!({"all": true}), json!({"type": "t"}));
    assert_eq!(all.targets, 3);
    for (node, name) in [(&mut a, "ann/web"), (&mut b, "ben/web"), (&mut c, "cyd/web")] {
        node.is_handed(name, &[all.push]);
        node.acknowledge(name, &[all.push]);
    }
    a.becomes("all devices have acknowledged it", |shard| shard.status(all.push).counts.acknowledged == 3);
    let to_ben = a.push_to("ben");
    b.is_handed("ben/web", &[to_ben]);
    a.state_becomes(to_ben, "ben/web", DeviceState::Delivered);
    b.acknowledge("ben/web", &[to_ben]);
    a.becomes("it is completed", |shard| shard.status(to_ben).state == PushState::Completed);
    assert!(a.is_online("ben"));
    b.leave("ben/web");
    until("the device is offline", || !a.is_online("ben"));
    let waits = [a.push_to("ben"), a.push_to("ben")];
    assert_eq!(a.shard.states(waits[0])["ben/web"], DeviceState::Pending);
    c.bind("ben/web");
    c.is_handed("ben/web", &waits);
    // A push that is not acknowledged expires.
    let brief = a.shard.push(json!({"users": ["ben"]}), json!({"type": "t", "ttl_s": 60})).push;
    c.is_handed("ben/web", &[brief]);
    a.shard.at(NOON + 60_000);
    a.state_becomes(brief, "ben/web", DeviceState::Expired);
    for node in [&mut a, &mut b, &mut c] {
        node.shard.take();
        assert_eq!(node.shard.handed, Default::default(), "no push came twice");
    }
}

#[test]
fn a_backlog_is_handed_out_in_batches_on_another_node_too() {
    let ([mut a, mut b, _c], _) = three();
    b.bind("ben/web");
    b.leave("ben/web");
    until("the device is offline", || !a.is_online("ben"));
    let waits: Vec<u64> = (0..100).map(|_| a.push_to("ben")).collect();
    b.bind("ben/web");
    let mut handed = Vec::new();
    while handed.len() < waits.len() {
        b.becomes("a part comes", |shard| !shard.handed.is_empty());
        let part = b.shard.handed.remove("ben/web").unwrap();
        b.acknowledge("ben/web", &part);
        handed.extend(part);
    }
    assert_eq!(handed, waits);
    a.becomes("nothing waits", |shard| shard.world.engine.push.user_devices("ben").unwrap().devices[0].pending == 0);
}

#[test]
fn pushes_that_the_bus_loses_arrive_late_and_once() {
    let ([mut a, mut b, mut c], _) = three();
    a.shard.world.users(&["u0", "u1", "u2", "u3", "u4", "u5"]);
    for node in [&a, &b, &c] {
        node.bus.lose(100);
    }
    let users: Vec<String> = (0..6).map(|n| format!("u{n}")).collect();
    let names: Vec<String> = users.iter().map(|user| format!("{user}/web")).collect();
    for (n, name) in names.iter().enumerate() {
        if n % 2 == 0 { &mut b } else { &mut c }.bind(name);
    }
    let mut pushes = Vec::new();
    for _ in 0..60 {
        pushes.push(a.shard.push(json!({"users": users}), json!({"type": "t"})).push);
        pushes.push(a.shard.push(json!({"all": true}), json!({"type": "t"})).push);
        for (n, name) in names.iter().enumerate() {
            let node = if n % 2 == 0 { &mut b } else { &mut c };
            node.shard.take();
            let had = node.shard.handed.get(name).map_or(0, Vec::len);
            if had > 0 {
                let last = node.shard.handed[name][had - 1];
                node.acknowledge(name, &[last]);
            }
        }
    }
    for (n, name) in names.iter().enumerate() {
        if n % 2 == 0 { &mut b } else { &mut c }.is_handed(name, &pushes);
    }
    for (n, name) in names.iter().enumerate() {
        if n % 2 == 0 { &mut b } else { &mut c }.acknowledge(name, &pushes);
    }
    a.becomes("every push is acknowledged", |shard| {
        shard.world.engine.push.settle().unwrap();
        pushes.iter().all(|push| shard.status(*push).counts.acknowledged == 6)
    });
    let lost: u64 = [&a, &b, &c].iter().map(|n| n.shard.world.engine.metrics.cluster.push_sent_again.get()).sum();
    assert!(lost > 0, "something was lost");
    for node in [&mut b, &mut c] {
        node.shard.take();
        assert!(node.shard.handed.is_empty(), "no push came twice");
    }
}

#[test]
fn sessions_survive_a_failover_and_unacknowledged_pushes_come_again() {
    let ([mut a, mut b, mut c], _) = three();
    b.bind("ben/web");
    c.bind("cyd/web");
    let had = a.shard.push(json!({"users": ["ben", "cyd"]}), json!({"type": "t"})).push;
    let open = a.shard.push(json!({"all": true}), json!({"type": "t"})).push;
    for (node, name) in [(&mut b, "ben/web"), (&mut c, "cyd/web")] {
        node.is_handed(name, &[had, open]);
        node.acknowledge(name, &[had]);
    }
    a.state_becomes(had, "ben/web", DeviceState::Acknowledged);
    a.state_becomes(had, "cyd/web", DeviceState::Acknowledged);
    drop(a);
    until("another leads", || b.leads() || c.leads());
    let mut nodes = [(b, "ben/web"), (c, "cyd/web")];
    if nodes[1].0.leads() {
        nodes.swap(0, 1);
    }
    // Unacknowledged pushes come again, to the next leader's own sessions and to the other node's.
    for (node, name) in &mut nodes {
        node.is_handed(name, &[open]);
        node.acknowledge(name, &[open]);
    }
    let [(mut leader, own), (mut other, others)] = nodes;
    leader.becomes("all devices have acknowledged it", |shard| shard.status(open).counts.acknowledged == 2);
    let next = leader.shard.push(json!({"users": ["ben", "cyd"]}), json!({"type": "t"})).push;
    leader.is_handed(own, &[next]);
    other.is_handed(others, &[next]);
    other.acknowledge(others, &[next]);
    leader.state_becomes(next, others, DeviceState::Acknowledged);
    drop(leader);
    until("the last one leads", || other.leads());
    let newest = other.push_to(&others[..3]);
    other.is_handed(others, &[newest]);
}

/// As a set where every node reads sets, and device by device while one may not.
#[test]
fn what_many_sessions_of_another_node_acknowledge_at_once_does_not_come_again() {
    let names: Vec<String> = (0..40).map(|n| format!("ben/web-{n}")).collect();
    for store in [MemoryStore::shared(), MemoryStore::shared_with_closed_gates()] {
        let ([mut a, mut b, _c], _) = three_on(Arc::new(store), LONG_LEASE);
        names.iter().for_each(|name| b.bind(name));
        let all = a.shard.push(json!({"all": true}), json!({"type": "t"})).push;
        let named = a.push_to("ben");
        names.iter().for_each(|name| b.is_handed(name, &[all, named]));
        // What the bus loses is told again.
        b.bus.lose(1_000);
        let (both, one) = ([all, named], [all]);
        let acknowledged: Vec<(&str, &[u64])> = names[..30]
            .iter()
            .enumerate()
            .map(|(at, name)| (&**name, if at % 3 == 0 { &both[..] } else { &one[..] }))
            .collect();
        b.shard.report_all_acknowledged(&acknowledged);
        b.bus.lose(0);
        a.becomes("30 devices have acknowledged it", |shard| shard.status(all).counts.acknowledged == 30);
        a.becomes("10 devices have acknowledged both", |shard| {
            shard.world.engine.push.settle().unwrap();
            shard.status(named).counts.acknowledged == 10
        });
        for (at, name) in names.iter().enumerate() {
            b.leave(name);
            b.bind(name);
            let left: &[u64] = match at {
                30.. => &[all, named],
                _ if at % 3 == 0 => &[],
                _ => &[named],
            };
            if !left.is_empty() {
                b.is_handed(name, left);
            }
        }
        // The last device's pushes came behind all others.
        assert!(b.shard.handed.is_empty(), "acknowledged, and handed again: {:?}", b.shard.handed.keys());
    }
}

#[test]
fn pushes_acknowledged_while_no_node_leads_do_not_come_again() {
    let ([mut a, mut b, c], _) = three();
    drop(c);
    b.bind("ben/web");
    let push = a.push_to("ben");
    b.is_handed("ben/web", &[push]);
    drop(a);
    b.acknowledge("ben/web", &[push]);
    until("the other leads", || b.leads());
    b.state_becomes(push, "ben/web", DeviceState::Acknowledged);
    assert!(b.shard.handed.is_empty());
}

#[test]
fn a_device_that_moves_to_another_node_is_pushed_to_there_in_any_order_of_reports() {
    let ([mut a, mut b, mut c], _) = three();
    for bs_is_late in [false, true] {
        b.bind("ann/web");
        let open = a.push_to("ann");
        b.is_handed("ann/web", &[open]);
        // b's messages arrive late, c's registration before them.
        b.bus.lose(if bs_is_late { 1_000 } else { 0 });
        c.shard.world.clock.set(c.shard.world.clock.now_ms() + 1);
        c.bind("ann/web");
        c.is_handed("ann/web", &[open]);
        b.leave("ann/web");
        b.bus.lose(0);
        let next = a.push_to("ann");
        c.is_handed("ann/web", &[next]);
        c.acknowledge("ann/web", &[open, next]);
        a.state_becomes(open, "ann/web", DeviceState::Acknowledged);
        a.state_becomes(next, "ann/web", DeviceState::Acknowledged);
        assert!(a.is_online("ann"));
        c.leave("ann/web");
        until("the device is offline", || !a.is_online("ann"));
        b.shard.world.clock.set(c.shard.world.clock.now_ms() + 1);
    }
}

#[test]
fn pushes_that_an_ended_session_did_not_acknowledge_go_to_the_next_session() {
    let ([mut a, mut b, mut c], _) = three();
    b.bind("ben/web");
    let push = a.push_to("ben");
    b.is_handed("ben/web", &[push]);
    a.state_becomes(push, "ben/web", DeviceState::Delivered);
    b.leave("ben/web");
    until("the device is offline", || !a.is_online("ben"));
    assert_eq!(a.shard.status(push).counts.offline, 1);
    c.bind("ben/web");
    c.is_handed("ben/web", &[push]);
    c.acknowledge("ben/web", &[push]);
    a.state_becomes(push, "ben/web", DeviceState::Acknowledged);
    // The same at the leader.
    let push = a.push_to("ben");
    c.is_handed("ben/web", &[push]);
    c.leave("ben/web");
    a.shard.world.clock.set(NOON + 1);
    a.bind("ben/web");
    a.is_handed("ben/web", &[push]);
}

#[test]
fn a_session_that_binds_without_a_reachable_leader_goes_live_and_gets_pushes_later() {
    let ([mut a, mut b, _c], bus) = three();
    a.bind("ann/web");
    b.bind("ben/web");
    bus.set_down(true);
    b.shard.ask_to_bind("cyd/web");
    b.becomes("it is live without its number", |shard| shard.later.contains_key("cyd/web"));
    b.shard.ask_to_bind("ann/tv");
    b.becomes("so is another", |shard| shard.later.contains_key("ann/tv"));
    let session = b.shard.later.remove("ann/tv").unwrap();
    b.shard.world.engine.push.session_ended(0, session, None);
    let waits = a.push_to("ben");
    bus.set_down(false);
    b.is_handed("ben/web", &[waits]);
    b.becomes("its number is known", |shard| shard.phones.contains_key("cyd/web"));
    let push = a.push_to("cyd");
    b.is_handed("cyd/web", &[push]);
    b.shard.take();
    assert!(!b.shard.phones.contains_key("ann/tv") && b.shard.later.is_empty());
}

#[test]
fn a_silent_node_is_disconnected_and_registers_its_sessions_again() {
    let ([mut a, mut b, _c], _) = three_with(SHORT_LEASE);
    b.bind("ben/web");
    let first = a.push_to("ben");
    b.is_handed("ben/web", &[first]);
    b.bus.lose(1_000);
    b.acknowledge("ben/web", &[first]);
    until("its device is offline", || !a.is_online("ben"));
    let waits = a.push_to("ben");
    assert_eq!(a.shard.status(waits).counts.offline, 1);
    b.bus.lose(0);
    // The device's acknowledgement of the first push arrives before the device is registered anew.
    b.is_handed("ben/web", &[waits]);
    assert!(a.is_online("ben"));
    a.state_becomes(first, "ben/web", DeviceState::Acknowledged);
}

#[test]
fn a_node_that_takes_no_pushes_delays_no_other_node_and_loses_none() {
    let ([mut a, mut b, mut c], _) = three();
    let users: Vec<String> = (0..12).map(|n| format!("u{n}")).collect();
    a.shard.world.users(&users.iter().map(String::as_str).collect::<Vec<_>>());
    for user in &users {
        b.bind(&format!("{user}/web"));
    }
    c.bind("cyd/web");
    // Nobody takes items from b's shard. Its queue fills, then b's queues, then the stream's window, then a's queue for b.
    let mut pushes = Vec::new();
    for _ in 0..999 {
        pushes.extend(users.iter().map(|user| a.push_to(user)));
    }
    let streams = b.shard.world.engine.metrics.cluster.push_streams.get();
    let meanwhile = a.push_to("cyd");
    c.is_handed("cyd/web", &[meanwhile]);
    let mut had: BTreeSet<u64> = BTreeSet::new();
    b.becomes("every push has come", |shard| {
        for (name, handed) in std::mem::take(&mut shard.handed) {
            shard.report_acknowledged(&name, &handed);
            had.extend(handed);
        }
        had.len() == pushes.len()
    });
    println!("registered anew {} times", b.shard.world.engine.metrics.cluster.push_streams.get() - streams);
    a.becomes("every push is acknowledged", |shard| {
        users.iter().all(|user| shard.world.engine.push.user_devices(user).unwrap().devices[0].pending == 0)
    });
}

/// Devices bind, move, leave and acknowledge on three nodes while the bus loses messages at random: no session is handed a
/// named push twice, and in the end each device has acknowledged all of its pushes. A push to all goes to every live session
/// of its devices on its way, so a session that has just bound may be handed it twice: on its way and with its backlog.
#[test]
fn random_histories_hand_out_every_push_and_none_twice_to_a_session() {
    for seed in 1..=3 {
        println!("seed {seed}");
        random_history(seed);
    }
}

fn random_history(seed: u64) {
    let (nodes, _bus) = three();
    let (live, to_all) = (vec![BTreeSet::new(); NAMES.len()], BTreeSet::new());
    let mut history = History { nodes, random: seed, clock: NOON, live, to_all };
    let mut pushes = Vec::new();
    (0..NAMES.len()).for_each(|name| history.bind(name));
    for _ in 0..200 {
        let name = history.below(NAMES.len());
        match history.below(10) {
            0 | 1 => history.bind(name),
            2 => history.leave(name),
            3 | 4 => history.acknowledge_some(name),
            5 => {
                let (node, loses) = (history.below(3), [0, 50, 100][history.below(3)]);
                history.nodes[node].bus.lose(loses);
            }
            6 => {
                pushes.push(history.nodes[0].shard.push(json!({"all": true}), json!({"type": "t"})));
                history.to_all.extend(pushes.last().map(|push| push.push));
            }
            _ => pushes.push(history.nodes[0].shard.push(json!({"users": [&NAMES[name][..3]]}), json!({"type": "t"}))),
        }
        for node in &mut history.nodes {
            node.shard.take();
        }
    }
    history.nodes.iter().for_each(|node| node.bus.lose(0));
    until("every device has all", || {
        for name in 0..NAMES.len() {
            if history.live[name].is_empty() {
                history.bind(name);
            }
            history.acknowledge_some(name);
        }
        for node in &mut history.nodes {
            node.shard.take();
        }
        let leader = &history.nodes[0].shard;
        leader.world.engine.push.settle().unwrap();
        pushes.iter().all(|push| leader.status(push.push).counts.acknowledged == push.targets)
    });
    (0..NAMES.len()).for_each(|name| history.leave(name));
}

const NAMES: [&str; 5] = ["ann/web", "ann/tv", "ben/web", "ben/tv", "cyd/web"];

struct History {
    nodes: [Node; 3],
    random: u64,
    clock: u64,
    /// By device, the nodes with a live session of it.
    live: Vec<BTreeSet<usize>>,
    to_all: BTreeSet<u64>,
}

impl History {
    fn below(&mut self, bound: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % bound
    }

    /// Binds on a node without a session of the device. Its sessions on other nodes may end later.
    fn bind(&mut self, name: usize) {
        let node = self.below(3);
        if self.live[name].insert(node) {
            self.clock += 1;
            self.nodes[node].shard.world.clock.set(self.clock);
            self.nodes[node].bind(NAMES[name]);
            if self.live[name].len() > 1 && self.below(2) == 0 {
                let before = *self.live[name].iter().find(|other| **other != node).unwrap();
                self.end(before, name);
            }
        }
    }

    fn leave(&mut self, name: usize) {
        while let Some(node) = self.live[name].first().copied() {
            self.end(node, name);
        }
    }

    fn end(&mut self, node: usize, name: usize) {
        self.live[name].remove(&node);
        self.nodes[node].leave(NAMES[name]);
        let mut handed = self.nodes[node].shard.handed.remove(NAMES[name]).unwrap_or_default();
        handed.retain(|push| !self.to_all.contains(push));
        let once: BTreeSet<u64> = handed.iter().copied().collect();
        assert_eq!(once.len(), handed.len(), "{} on node {node}: {handed:?}", NAMES[name]);
    }

    fn acknowledge_some(&mut self, name: usize) {
        for node in self.live[name].clone() {
            let handed = self.nodes[node].shard.handed.get(NAMES[name]).cloned().unwrap_or_default();
            self.nodes[node].acknowledge(NAMES[name], &handed);
        }
    }
}

/// Prints what 100,000 sessions of another node cost: figures to watch, with no limit to hold.
#[test]
#[ignore = "figures"]
fn figures_of_100_000_sessions_on_another_node() {
    const USERS: usize = 1_000;
    const DEVICES: usize = 100;
    let ([a, b, _c], _) = three();
    let users: Vec<String> = (0..USERS).map(|n| format!("u{n}")).collect();
    a.shard.world.users(&users.iter().map(String::as_str).collect::<Vec<_>>());
    let receiver = &b.shard.world.receivers[0].push;
    let push = &b.shard.world.engine.push;
    let report = |what: &str, began: Instant, before: [u64; 4]| {
        let now = figures(&a, &b);
        let [down, down_bytes, up, up_bytes] = [0, 1, 2, 3].map(|at| now[at] - before[at]);
        let took = began.elapsed();
        println!("{what}: {took:?}, down {down} messages, {down_bytes} bytes, up {up} messages, {up_bytes} bytes");
    };
    let (began, before) = (Instant::now(), figures(&a, &b));
    let mut devices = Vec::new();
    let registered = |devices: &mut Vec<DeviceNo>| {
        for item in receiver.try_iter() {
            let PushItem::Registered { session, result } = item else { continue };
            if let Ok(device) = result {
                devices.push(device);
            }
            assert!(session < (USERS * DEVICES) as u64);
        }
    };
    for (place, user) in users.iter().enumerate() {
        let user = b.shard.world.user(user).no;
        for device in 0..DEVICES {
            let register = Register {
                shard: 0,
                session: (place * DEVICES + device) as u64,
                user,
                device_id: format!("phone-{device}").into(),
                device_kind: "phone".into(),
                app_version: None,
                since: 1,
            };
            while push.register(register.clone()).is_err() {
                registered(&mut devices);
            }
        }
    }
    until("all are registered", || {
        registered(&mut devices);
        devices.len() == USERS * DEVICES
    });
    report("registered", began, before);
    let (began, before) = (Instant::now(), figures(&a, &b));
    let request = json!({"to": {"all": true}, "type": "t", "body": {"text": "x".repeat(1_000)}}).to_string();
    let prepared = a.shard.world.engine.push.prepare(serde_json::from_str(&request).unwrap()).unwrap();
    let accepted = a.shard.world.wait(a.shard.world.engine.push.accept(prepared)).unwrap();
    let item = receiver.recv_timeout(PATIENCE).unwrap();
    let PushItem::Matching { devices: set, .. } = item else { panic!("{item:?}") };
    assert!(devices.iter().all(|device| set.contains(*device)));
    report("pushed to all", began, before);
    let (began, before) = (Instant::now(), figures(&a, &b));
    for some in devices.chunks(256) {
        let mut reports = PushReports::default();
        some.iter().for_each(|device| reports.add_written(accepted.push, *device));
        some.iter().for_each(|device| reports.add_acknowledged(*device, &[accepted.push]));
        push.report(reports);
    }
    until("every push is acknowledged", || a.shard.status(accepted.push).counts.acknowledged == devices.len() as u64);
    report("acknowledged", began, before);
}

fn figures(a: &Node, b: &Node) -> [u64; 4] {
    [&a.bus.messages, &a.bus.bytes, &b.bus.messages, &b.bus.bytes].map(|figure| figure.load(Relaxed))
}
