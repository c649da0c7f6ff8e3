//! Several nodes on one store: each knows the sessions of all, whatever messages the bus loses and whichever node dies.
// Slow: left out by `make test-quick`.

use crate::support::*;
use bytes::Bytes;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tidings_client::session::Session;
use tidings_domain::bus::{Bus, MessageHandler};
use tidings_protocol::{
    error::ErrorCode,
    frames::{ClientFrame, PresenceChange, ServerFrame},
    http::Kick,
};
use tidings_testkit::{CuttableLog, LocalBus, MemoryStore};

/// Longer than a busy machine stops threads: a node that is silent for longer is rightly given up.
const LEASE: Duration = Duration::from_secs(12);

/// A node's connection to the commit log and to the bus. Both can be cut, as if the process were dead.
struct Joint {
    log: Arc<CuttableLog>,
    bus: LocalBus,
    /// How many of the next messages are lost.
    lose: AtomicU64,
}

struct ToBus(Arc<Joint>);

impl Bus for ToBus {
    fn listen(&self, name: &str, handler: Arc<dyn MessageHandler>) {
        self.0.bus.listen(name, handler);
    }

    fn send(&self, to: &[Arc<str>], message: Bytes) -> bool {
        let less = |left: u64| left.checked_sub(1);
        let lost = self.0.lose.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        !self.0.log.is_cut() && (lost || self.0.bus.send(to, message))
    }

    fn is_up(&self) -> bool {
        self.0.bus.is_up()
    }

    fn trouble(&self) -> Option<String> {
        self.0.bus.trouble()
    }

    fn stop(&self) {
        self.0.bus.stop();
    }
}

struct Nodes {
    servers: Vec<Server>,
    joints: Vec<Arc<Joint>>,
    bus: LocalBus,
    store: Arc<MemoryStore>,
}

fn start(name: &str, store: &Arc<MemoryStore>, bus: &LocalBus, lease: Duration) -> (Server, Arc<Joint>) {
    let log = Arc::new(CuttableLog::on(store.clone()));
    let joint = Arc::new(Joint { log: log.clone(), bus: bus.clone(), lose: AtomicU64::new(0) });
    (Server::node_on(name, store, log, Arc::new(ToBus(joint.clone())), lease), joint)
}

/// Nodes `a`, `b`, …, which know each other, and users `u0`, `u1`, … in a group `g`.
fn nodes(count: u8, users: usize, lease: Duration) -> Nodes {
    let (store, bus) = (Arc::new(MemoryStore::shared()), LocalBus::default());
    let name = |n: u8| char::from(b'a' + n).to_string();
    let (servers, joints): (Vec<_>, Vec<_>) = (0..count).map(|n| start(&name(n), &store, &bus, lease)).unzip();
    let nodes = Nodes { servers, joints, bus, store };
    let known = |server: &Server| server.engine.cluster.as_ref().unwrap().nodes.all().len() == usize::from(count);
    nodes.wait("all nodes know each other", known);
    nodes.wait("all nodes have heard each other", |server| server.engine.readiness().is_ok());
    let ids: Vec<String> = (0..users).map(|n| format!("u{n}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    nodes.servers[0].users(&ids);
    nodes.servers[0].group("g", &ids);
    nodes
}

impl Nodes {
    #[track_caller]
    fn wait(&self, what: &str, holds: impl Fn(&Server) -> bool) {
        until(what, || self.servers.iter().all(&holds));
    }

    /// Waits until every node knows these users with so many devices.
    #[track_caller]
    fn all_say(&self, expected: &[(&str, usize)]) {
        self.wait(&format!("{expected:?}"), |server| says(server, expected));
    }

    /// Ends the node as a kill would: no other node hears of it again.
    fn kill(&mut self, index: usize) -> Server {
        self.joints[index].log.set_cut(true);
        let name = char::from(b'a' + index as u8).to_string();
        self.bus.leave(&name);
        self.joints.remove(index);
        self.servers.remove(index)
    }
}

fn says(server: &Server, expected: &[(&str, usize)]) -> bool {
    // A node that has just started knows nothing of the others, and says so.
    server.engine.readiness().is_ok() && expected.iter().all(|(user, devices)| server.online(user) == *devices)
}

fn watch(session: &mut Session, users: &[&str]) {
    let users = users.iter().map(|user| (*user).to_owned()).collect();
    session.write(&ClientFrame::WatchPresence { reference: Some(1), conversation: Some("g".into()), users }).unwrap();
}

#[track_caller]
fn news(session: &mut Session) -> Vec<PresenceChange> {
    loop {
        if let ServerFrame::Presence { changes, .. } = next(session) {
            return changes;
        }
    }
}

fn presence_frames(session: &mut Session) -> usize {
    frames_until_pong(session).iter().filter(|frame| matches!(frame, ServerFrame::Presence { .. })).count()
}

#[test]
fn every_node_answers_the_same() {
    let nodes = nodes(3, 3, LEASE);
    let phone = nodes.servers[0].open("u0", "phone");
    let _laptop = nodes.servers[1].open("u0", "laptop");
    let _other = nodes.servers[2].open("u1", "phone");
    nodes.all_say(&[("u0", 2), ("u1", 1), ("u2", 0)]);
    let ids: Vec<String> = (0..3).map(|n| format!("u{n}")).collect();
    let answer = |server: &Server| {
        let mut users = server.engine.presence_of(&ids).unwrap();
        users.iter_mut().for_each(|user| user.devices.sort_by(|a, b| a.device_id.cmp(&b.device_id)));
        users
    };
    let first = answer(&nodes.servers[0]);
    let where_ = |user: usize| first[user].devices.iter().map(|device| device.node.as_str()).collect::<Vec<_>>();
    assert_eq!((where_(0), where_(1)), (vec!["b", "a"], vec!["c"]));
    nodes.servers[1..].iter().for_each(|server| assert_eq!(answer(server), first));
    // A kick on any node counts and closes the sessions of all nodes.
    let kicked = nodes.servers[2].wait(nodes.servers[2].engine.kick("u0", Kick { device_id: None, reason: None }));
    assert_eq!(kicked.unwrap().sessions, 2);
    drop(phone);
    nodes.all_say(&[("u0", 0), ("u1", 1)]);
    let seen = |server: &Server| server.engine.presence_of(&ids[..1]).unwrap()[0].last_seen;
    let first = seen(&nodes.servers[0]);
    assert!(first.is_some());
    nodes.wait("all know when they were last seen", |server| seen(server) == first);
}

#[test]
fn every_node_lists_all_nodes_with_addresses_announced_later() {
    let nodes = nodes(2, 1, LEASE);
    for (server, address) in nodes.servers.iter().zip(["http://one", "http://two"]) {
        server.engine.cluster.as_ref().unwrap().nodes.announce_addresses(address.into(), String::new());
    }
    nodes.wait("both addresses are known, and one leads", |server| {
        let listed = server.engine.nodes();
        let address = |name: &str| listed.iter().find(|node| node.name == name).map(|node| node.address.as_str());
        let told = (address("a"), address("b")) == (Some("http://one"), Some("http://two"));
        told && listed.iter().filter(|node| node.leads).count() == 1
    });
    let listed = nodes.servers[0].engine.nodes();
    assert!(listed.len() == 2 && listed.iter().all(|node| node.version.is_some() && node.roles.is_some()));
}

#[test]
fn a_watcher_gets_changes_of_users_on_other_nodes() {
    let nodes = nodes(2, 3, LEASE);
    let mut watcher = nodes.servers[1].open("u0", "phone");
    watch(&mut watcher, &["u1"]);
    assert!(!news(&mut watcher)[0].online);
    let phone = nodes.servers[0].open("u1", "phone");
    assert!(news(&mut watcher)[0].online);
    // A user who moves from one node to the other causes no change.
    let laptop = nodes.servers[1].open("u1", "laptop");
    nodes.all_say(&[("u1", 2)]);
    drop(phone);
    nodes.all_say(&[("u1", 1)]);
    drop(laptop);
    let gone = news(&mut watcher);
    assert!(!gone[0].online && gone[0].last_seen.is_some(), "{gone:?}");
    assert_eq!(presence_frames(&mut watcher), 0);
}

#[test]
fn changes_lost_by_the_bus_are_noticed_and_repaired() {
    let nodes = nodes(3, 4, LEASE);
    let lose = |node: usize, messages: u64| nodes.joints[node].lose.store(messages, Ordering::Relaxed);
    let _zero = nodes.servers[0].open("u0", "phone");
    nodes.all_say(&[("u0", 1)]);
    // Lost changes with later ones behind them, and lost last changes.
    for messages in [1, 3] {
        lose(0, messages);
        let gone = nodes.servers[0].open("u1", "phone");
        until("it was lost", || nodes.joints[0].lose.load(Ordering::Relaxed) == 0);
        let _here = nodes.servers[0].open("u2", "phone");
        nodes.all_say(&[("u0", 1), ("u1", 1), ("u2", 1)]);
        lose(0, messages);
        drop(gone);
        nodes.all_say(&[("u0", 1), ("u1", 0), ("u2", 1)]);
    }
}

#[test]
fn presence_keeps_its_view_while_the_bus_is_down_and_converges_afterwards() {
    let nodes = nodes(2, 4, LEASE);
    let mut watcher = nodes.servers[1].open("u0", "phone");
    let _stays = nodes.servers[0].open("u1", "phone");
    let goes = nodes.servers[0].open("u2", "phone");
    nodes.all_say(&[("u1", 1), ("u2", 1), ("u3", 0)]);
    nodes.servers[1].engine.settle_presence();
    watch(&mut watcher, &["u1", "u2", "u3"]);
    assert_eq!(news(&mut watcher).len(), 3);
    nodes.bus.set_down(true);
    drop(goes);
    let _comes = nodes.servers[0].open("u3", "phone");
    let here = [("u1", 1), ("u2", 0), ("u3", 1)];
    until("known at home", || says(&nodes.servers[0], &here));
    // Longer than any lease, grace and heartbeat interval.
    let down = Instant::now();
    while down.elapsed() < LEASE + LEASE / 5 {
        assert!(says(&nodes.servers[1], &[("u1", 1), ("u2", 1), ("u3", 0)]));
        std::thread::park_timeout(Duration::from_millis(20));
    }
    nodes.bus.set_down(false);
    nodes.all_say(&here);
    let mut changes = Vec::new();
    while changes.len() < 2 {
        changes.extend(news(&mut watcher).into_iter().map(|change| (change.user, change.online)));
    }
    changes.sort();
    assert_eq!(changes, [("u2".into(), false), ("u3".into(), true)], "nobody who stayed");
}

#[test]
fn users_of_a_killed_node_go_offline_when_its_lease_ends() {
    let mut nodes = nodes(3, 3, LEASE);
    let mut watcher = nodes.servers[0].open("u0", "phone");
    let _lost = nodes.servers[2].open("u1", "phone");
    nodes.all_say(&[("u1", 1)]);
    nodes.servers[0].engine.settle_presence();
    watch(&mut watcher, &["u1"]);
    assert!(news(&mut watcher)[0].online);
    let at = Instant::now();
    let killed = nodes.kill(2);
    // The node renewed its lease little more than a fifth of it ago, so its users stay online for a third of the lease at
    // least. An observation that was made later is not checked.
    loop {
        let is_there = says(&nodes.servers[0], &[("u1", 1)]);
        if at.elapsed() >= LEASE / 3 {
            break;
        }
        assert!(is_there);
        std::thread::park_timeout(Duration::from_millis(20));
    }
    nodes.all_say(&[("u1", 0)]);
    assert!(!news(&mut watcher)[0].online);
    drop(killed);
}

#[test]
fn a_late_or_returning_node_learns_all_sessions() {
    let mut nodes = nodes(2, 40, LEASE);
    let all: Vec<Session> = (0..40).map(|n| nodes.servers[n % 2].open(&format!("u{n}"), "phone")).collect();
    let (late, _) = start("c", &nodes.store, &nodes.bus, LEASE);
    let everybody: Vec<String> = (0..40).map(|n| format!("u{n}")).collect();
    let everybody: Vec<(&str, usize)> = everybody.iter().map(|user| (user.as_str(), 1)).collect();
    until("it has learned", || says(&late, &everybody));
    assert_eq!(late.engine.metrics.cluster.presence_repaired.get(), 0, "nothing was wrong");
    // A second process with the name `b`: the sessions of the earlier one are gone.
    let killed = nodes.kill(1);
    let (again, _) = start("b", &nodes.store, &nodes.bus, LEASE);
    let left: Vec<(&str, usize)> = everybody.iter().enumerate().map(|(n, (user, _))| (*user, (n + 1) % 2)).collect();
    for server in [&nodes.servers[0], &again, &late] {
        until("the sessions of the earlier process are gone", || says(server, &left));
    }
    let everything = nodes.servers[0].engine.presence.all_sessions();
    assert_eq!(everything, again.engine.presence.all_sessions());
    drop((killed, all));
}

#[test]
fn session_limits_per_device_and_kind_hold_over_all_nodes() {
    let nodes = nodes(2, 2, LEASE);
    let [a, b] = &nodes.servers[..] else { panic!() };
    let mut first = a.open("u0", "phone");
    until("b knows", || says(b, &[("u0", 1)]));
    let mut second = b.open("u0", "phone");
    check_end(&mut first, ErrorCode::Replaced);
    nodes.all_say(&[("u0", 1)]);
    // Bound on both nodes at the same time, before they exchange presence: both keep the same one of the two.
    nodes.bus.set_down(true);
    let mut one = a.open("u1", "phone");
    let mut two = b.open("u1", "phone");
    nodes.bus.set_down(false);
    let sessions = |server: &Server| server.engine.presence_of(&["u1".into()]).unwrap().remove(0).devices;
    until("both have the same one", || sessions(a) == sessions(b) && sessions(a).len() == 1);
    let stays = sessions(a)[0].node.clone();
    let (stays, goes) = if stays == "a" { (&mut one, &mut two) } else { (&mut two, &mut one) };
    check_end(goes, ErrorCode::Replaced);
    frames_until_pong(stays);
    // Three sessions of a kind are allowed: a fourth closes the oldest, on whichever node.
    let mut more: Vec<Session> = (0..2).map(|n| nodes.servers[n % 2].open("u0", &format!("tablet-{n}"))).collect();
    nodes.all_say(&[("u0", 3)]);
    more.push(a.open("u0", "tablet-3"));
    check_end(&mut second, ErrorCode::Replaced);
    nodes.all_say(&[("u0", 3)]);
    more.iter_mut().for_each(|session| drop(frames_until_pong(session)));
}
