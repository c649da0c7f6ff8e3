//! What the `Bus` port promises, checked with every implementation.

use crate::support::{
    Node, config,
    redis::{RedisCluster, RedisServer, wait_until},
};
use bytes::Bytes;
use std::sync::Arc;
use tidings_bus_redis::{FRAGMENT_BYTES_MAX, MESSAGE_BYTES_MAX, RedisBus};
use tidings_domain::bus::{Bus, MessageHandler};
use tidings_testkit::LocalBus;

/// Makes another end of the same bus.
type NewEnd<'a> = &'a dyn Fn() -> Box<dyn Bus>;
type BusNode = Node<EndOf>;

/// Implements the port for a boxed bus.
struct EndOf(Box<dyn Bus>);

impl Bus for EndOf {
    fn listen(&self, name: &str, handler: Arc<dyn MessageHandler>) {
        self.0.listen(name, handler);
    }
    fn send(&self, to: &[Arc<str>], message: Bytes) -> bool {
        self.0.send(to, message)
    }
    fn send_soon(&self, to: &[Arc<str>], message: Bytes) -> bool {
        self.0.send_soon(to, message)
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

fn check_all(new_end: NewEnd) {
    let nodes: Vec<BusNode> =
        ["node-a", "node-b", "node-c"].iter().map(|name| Node::listening(EndOf(new_end()), name)).collect();
    let [a, b, c] = &nodes[..] else { unreachable!() };
    assert_eq!(a.bus.trouble(), None);
    let gaps = |nodes: &[BusNode]| nodes.iter().map(|node| node.received.gap_count()).sum::<usize>();
    let gaps_before = gaps(&nodes);
    messages_arrive_unchanged(a, b);
    every_named_receiver_gets_the_message(a, b, c);
    an_unknown_receiver_is_no_error(a, b);
    the_order_of_each_sender_is_kept(a, b, c);
    large_messages_arrive_whole(a, b);
    assert_eq!(gaps(&nodes), gaps_before, "nothing was lost");
    a_stopped_end_sends_and_receives_nothing(new_end, a, b);
}

fn messages_arrive_unchanged(a: &BusNode, b: &BusNode) {
    let all: Vec<u8> = (0..=255).collect();
    let messages = [&b""[..], b"\r\n$3\r\n", b"\0", &all].map(Bytes::copy_from_slice);
    for message in &messages {
        assert!(a.bus.send(std::slice::from_ref(&b.name), message.clone()));
    }
    b.received.wait_for(messages.len());
    assert_eq!(b.received.messages(), messages);
    b.received.clear();
}

fn every_named_receiver_gets_the_message(a: &BusNode, b: &BusNode, c: &BusNode) {
    assert!(a.bus.send(&[b.name.clone(), c.name.clone()], Bytes::from_static(b"both")));
    assert!(a.bus.send(&[], Bytes::from_static(b"nobody")));
    assert!(a.bus.send(std::slice::from_ref(&a.name), Bytes::from_static(b"oneself")));
    for (node, arrived) in [(a, "oneself"), (b, "both"), (c, "both")] {
        node.received.wait_for(1);
        assert_eq!(node.received.messages(), [arrived]);
        node.received.clear();
    }
}

fn an_unknown_receiver_is_no_error(a: &BusNode, b: &BusNode) {
    let unknown: Arc<str> = "node-nowhere".into();
    assert!(a.bus.send(&[unknown, b.name.clone()], Bytes::from_static(b"known")));
    b.received.wait_for(1);
    assert_eq!(b.received.messages(), ["known"]);
    b.received.clear();
}

fn the_order_of_each_sender_is_kept(a: &BusNode, b: &BusNode, c: &BusNode) {
    const EACH: usize = 5_000;
    const { assert!((EACH - 1) % 3 == 1) };
    std::thread::scope(|scope| {
        for sender in [a, c] {
            scope.spawn(move || {
                for n in 0..EACH {
                    let message = Bytes::from(format!("{}/{n}", sender.name));
                    let to = std::slice::from_ref(&b.name);
                    // One in three is for nobody who waits: also the last, which goes by itself.
                    let soon = n % 3 == 1;
                    assert!(if soon { sender.bus.send_soon(to, message) } else { sender.bus.send(to, message) });
                }
            });
        }
    });
    b.received.wait_for(2 * EACH);
    for sender in [a, c] {
        let prefix = format!("{}/", sender.name);
        let arrived = b.received.messages();
        let numbers = arrived
            .iter()
            .filter_map(|message| std::str::from_utf8(message).unwrap().strip_prefix(&prefix)?.parse::<usize>().ok());
        assert!(numbers.eq(0..EACH), "of {}", sender.name);
    }
    b.received.clear();
}

fn large_messages_arrive_whole(a: &BusNode, b: &BusNode) {
    let sizes = [
        FRAGMENT_BYTES_MAX - 1,
        FRAGMENT_BYTES_MAX,
        FRAGMENT_BYTES_MAX + 1,
        5 * FRAGMENT_BYTES_MAX + 3,
        MESSAGE_BYTES_MAX,
    ];
    let messages = sizes.map(|size| (0..size).map(|at| (at * 31 + at / 251) as u8).collect::<Bytes>());
    for message in &messages {
        assert!(a.bus.send(std::slice::from_ref(&b.name), message.clone()));
        assert!(a.send(b, "between"));
    }
    b.received.wait_for(2 * messages.len());
    let arrived = b.received.messages();
    assert!(arrived.iter().step_by(2).eq(messages.iter()));
    assert!(arrived.iter().skip(1).step_by(2).all(|message| message == "between"));
    b.received.clear();
}

fn a_stopped_end_sends_and_receives_nothing(new_end: NewEnd, a: &BusNode, b: &BusNode) {
    let end = Node::listening(EndOf(new_end()), "node-d");
    // A message that is queued before the end still arrives.
    assert!(end.send(b, "last"));
    end.bus.stop();
    b.received.wait_for(1);
    assert_eq!(b.received.messages(), ["last"]);
    b.received.clear();
    assert!(!end.bus.is_up());
    assert!(end.bus.trouble().is_some());
    assert!(!end.send(b, "after the end"));
    let again = Node::listening(EndOf(new_end()), "node-d");
    a.reach(&again);
    assert_eq!((end.received.count(), b.received.count()), (0, 0));
    end.bus.stop();
}

#[test]
fn the_bus_within_a_process_conforms() {
    let bus = LocalBus::default();
    check_all(&|| Box::new(bus.clone()));
}

#[test]
fn the_bus_over_one_redis_conforms() {
    let redis = RedisServer::start(&[]);
    check_all(&|| Box::new(RedisBus::start(config(&[redis.url()])).unwrap()));
}

#[test]
fn the_bus_over_a_redis_cluster_conforms() {
    let cluster = RedisCluster::start();
    // One address is enough to find all servers.
    check_all(&|| Box::new(RedisBus::start(config(&cluster.urls()[..1])).unwrap()));
    let publishes = |server: &RedisServer| !server.field(&["INFO", "commandstats"], "cmdstat_spublish").is_empty();
    let used: Vec<bool> = cluster.servers.iter().map(publishes).collect();
    assert_eq!(used[3..], [false; 3], "replicas get no publishes");
    assert!(used[..3].iter().filter(|used| **used).count() > 1, "channels are spread: {used:?}");
    wait_until("connections are closed", || cluster.servers.iter().all(|server| server.clients() == 0));
}
