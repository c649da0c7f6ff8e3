//! What the `Bus` port promises, over each that there is.
#![allow(clippy::unwrap_used)]

mod support;

use bytes::Bytes;
use std::sync::Arc;
use support::{
    Node, config,
    redis::{RedisCluster, RedisServer, wait_until},
};
use tidings_bus_redis::{MESSAGE_BYTES_MAX, PART_BYTES, RedisBus};
use tidings_engine::cluster::bus::{Bus, LocalBus};

/// Makes another end of the same bus.
type NewEnd<'a> = &'a dyn Fn() -> Box<dyn Bus>;
type BusNode = Node<EndOf>;

/// A boxed bus is one too.
struct EndOf(Box<dyn Bus>);

impl Bus for EndOf {
    fn listen(&self, name: &str, ear: Arc<dyn tidings_engine::cluster::bus::MessageHandler>) {
        self.0.listen(name, handler);
    }
    fn send(&self, to: &[Arc<str>], message: Bytes) -> bool {
        self.0.send(to, message)
    }
    fn is_up(&self) -> bool {
        self.0.is_up()
    }
    fn trouble(&self) -> Option<String> {
        self.0.trouble()
    }
    fn stop(&self) {
        self.0.stop();
    }
}

fn every_promise(new_end: NewEnd) {
    let nodes: Vec<BusNode> =
        ["node-a", "node-b", "node-c"].iter().map(|name| Node::listening(EndOf(new_end()), name)).collect();
    let [a, b, c] = &nodes[..] else { unreachable!() };
    assert_eq!(a.bus.trouble(), None);
    let missed = |nodes: &[BusNode]| nodes.iter().map(|node| node.ear.missed_count()).sum::<usize>();
    let missed_before = missed(&nodes);
    bytes_come_unchanged(a, b);
    all_that_are_named_hear_it(a, b, c);
    unknown_nodes_are_no_error(a, b);
    each_senders_order_is_kept(a, b, c);
    large_messages_come_whole(a, b);
    assert_eq!(missed(&nodes), missed_before, "all was calm");
    one_that_stopped_sends_and_hears_nothing(new_end, a, b);
}

fn bytes_come_unchanged(a: &BusNode, b: &BusNode) {
    let all: Vec<u8> = (0..=255).collect();
    let messages = [&b""[..], b"\r\n$3\r\n", b"\0", &all].map(Bytes::copy_from_slice);
    for message in &messages {
        assert!(a.bus.send(std::slice::from_ref(&b.name), message.clone()));
    }
    b.ear.wait_for(messages.len());
    assert_eq!(b.ear.heard(), messages);
    b.ear.clear();
}

fn all_that_are_named_hear_it(a: &BusNode, b: &BusNode, c: &BusNode) {
    assert!(a.bus.send(&[b.name.clone(), c.name.clone()], Bytes::from_static(b"both")));
    assert!(a.bus.send(&[], Bytes::from_static(b"nobody")));
    assert!(a.bus.send(std::slice::from_ref(&a.name), Bytes::from_static(b"oneself")));
    for (node, heard) in [(a, "oneself"), (b, "both"), (c, "both")] {
        node.ear.wait_for(1);
        assert_eq!(node.ear.heard(), [heard]);
        node.ear.clear();
    }
}

fn unknown_nodes_are_no_error(a: &BusNode, b: &BusNode) {
    let unknown: Arc<str> = "node-nowhere".into();
    assert!(a.bus.send(&[unknown, b.name.clone()], Bytes::from_static(b"known")));
    b.ear.wait_for(1);
    assert_eq!(b.ear.heard(), ["known"]);
    b.ear.clear();
}

fn each_senders_order_is_kept(a: &BusNode, b: &BusNode, c: &BusNode) {
    const EACH: usize = 5_000;
    std::thread::scope(|scope| {
        for sender in [a, c] {
            scope.spawn(move || (0..EACH).for_each(|n| assert!(sender.send(b, format!("{}/{n}", sender.name)))));
        }
    });
    b.ear.wait_for(2 * EACH);
    for sender in [a, c] {
        let prefix = format!("{}/", sender.name);
        let heard = b.ear.heard();
        let numbers = heard
            .iter()
            .filter_map(|message| std::str::from_utf8(message).unwrap().strip_prefix(&prefix)?.parse::<usize>().ok());
        assert!(numbers.eq(0..EACH), "of {}", sender.name);
    }
    b.ear.clear();
}

fn large_messages_come_whole(a: &BusNode, b: &BusNode) {
    let sizes = [PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 5 * PART_BYTES + 3, MESSAGE_BYTES_MAX];
    let messages = sizes.map(|size| (0..size).map(|at| (at * 31 + at / 251) as u8).collect::<Bytes>());
    for message in &messages {
        assert!(a.bus.send(std::slice::from_ref(&b.name), message.clone()));
        assert!(a.send(b, "between"));
    }
    b.ear.wait_for(2 * messages.len());
    let heard = b.ear.heard();
    assert!(heard.iter().step_by(2).eq(messages.iter()));
    assert!(heard.iter().skip(1).step_by(2).all(|message| message == "between"));
    b.ear.clear();
}

fn one_that_stopped_sends_and_hears_nothing(new_end: NewEnd, a: &BusNode, b: &BusNode) {
    let end = Node::listening(EndOf(new_end()), "node-d");
    // What was taken before still leaves.
    assert!(end.send(b, "last"));
    end.bus.stop();
    b.ear.wait_for(1);
    assert_eq!(b.ear.heard(), ["last"]);
    b.ear.clear();
    assert!(!end.bus.is_up());
    assert!(end.bus.trouble().is_some());
    assert!(!end.send(b, "after the end"));
    let again = Node::listening(EndOf(new_end()), "node-d");
    a.reach(&again);
    assert_eq!((end.ear.count(), b.ear.count()), (0, 0));
    end.bus.stop();
}

#[test]
fn a_bus_within_a_process() {
    let bus = LocalBus::default();
    every_promise(&|| Box::new(bus.clone()));
}

#[test]
fn a_bus_over_one_redis() {
    let redis = RedisServer::start(&[]);
    every_promise(&|| Box::new(RedisBus::start(config(&[redis.url()])).unwrap()));
}

#[test]
fn a_bus_over_a_cluster_of_redis() {
    let cluster = RedisCluster::start();
    // One address is enough to find the others.
    every_promise(&|| Box::new(RedisBus::start(config(&cluster.urls()[..1])).unwrap()));
    let publishes = |server: &RedisServer| !server.field(&["INFO", "commandstats"], "cmdstat_spublish").is_empty();
    let used: Vec<bool> = cluster.servers.iter().map(publishes).collect();
    assert_eq!(used[3..], [false; 3], "replicas are left alone");
    assert!(used[..3].iter().filter(|used| **used).count() > 1, "channels are spread: {used:?}");
    wait_until("connections are closed", || cluster.servers.iter().all(|server| server.clients() == 0));
}
