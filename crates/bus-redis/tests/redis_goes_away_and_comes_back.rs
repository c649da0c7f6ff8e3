//! A cluster loses servers, slots, all; the bus says so, and mends itself.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};
use support::{
    AT_ONCE, Node, both_up, config,
    redis::{RedisCluster, RedisServer, wait_until},
    redis_node,
};
use tidings_bus_redis::{RedisBus, RedisBusConfig};
use tidings_engine::cluster::bus::Bus;

const SILENT_AFTER: Duration = Duration::from_secs(6);

type RedisNode = Node<RedisBus>;

fn two_nodes(cluster: &RedisCluster) -> [RedisNode; 2] {
    two_nodes_with(&config(&cluster.urls()))
}

fn two_nodes_with(config: &RedisBusConfig) -> [RedisNode; 2] {
    let nodes = ["node-a", "node-b"].map(|name| redis_node(config.clone(), name));
    let [a, b] = &nodes;
    // The ways exist, and what can be missed was missed.
    a.reach(b);
    b.reach(a);
    // Nothing of this may be on its way when a server is killed: that would be missed too.
    wait_until("all has left", || nodes.iter().all(|node| node.bus.metrics().snapshot().queue_bytes == 0));
    nodes
}

/// The servers that own a channel: the receiver's, then the other's.
fn owners<'a>(cluster: &'a RedisCluster, nodes: &[RedisNode; 2]) -> [&'a RedisServer; 2] {
    [&nodes[1], &nodes[0]].map(|node| cluster.owner_of(&format!(":node:{}", node.name)))
}

/// How often it was told that something is missing, and how often it subscribed.
fn told(node: &RedisNode) -> (usize, u64) {
    (node.ear.missed_count(), node.bus.metrics().snapshot().resubscribed)
}

/// Before what takes long is given up.
fn wait_until_down(node: &RedisNode) {
    let start = Instant::now();
    wait_until(&format!("{} is down", node.name), || !node.bus.is_up());
    let took = start.elapsed();
    assert!(took < AT_ONCE, "{} said it after {took:?}", node.name);
}

#[test]
fn all_servers_stop_and_start_empty() {
    let cluster = RedisCluster::start();
    let [a, b] = two_nodes(&cluster);
    let told = [&a, &b].map(told);
    cluster.kill_all();
    for node in [&a, &b] {
        wait_until_down(node);
        assert!(node.bus.trouble().unwrap().contains("127.0.0.1"), "{:?}", node.bus.trouble());
    }
    cluster.start_all();
    both_up(&a, &b);
    for (node, (missed, subscribed)) in [&a, &b].into_iter().zip(told) {
        let subscriptions = node.bus.metrics().snapshot().resubscribed - subscribed;
        assert!(subscriptions >= 1);
        assert_eq!(node.ear.missed_count() - missed, subscriptions as usize, "once each");
    }
    a.reach(&b);
    b.reach(&a);
    assert!(a.bus.metrics().snapshot().connections_open <= 4);
}

#[test]
fn what_is_sent_meanwhile_is_dropped_counted_and_told() {
    let cluster = RedisCluster::start();
    let [a, b] = two_nodes(&cluster);
    cluster.kill_all();
    wait_until("it is refused", || !a.send(&b, "lost"));
    let dropped = a.bus.metrics().snapshot().dropped;
    (0..100).for_each(|_| assert!(!a.send(&b, "lost")));
    assert_eq!(a.bus.metrics().snapshot().dropped, dropped + 100);
    assert_eq!(a.bus.metrics().snapshot().queue_bytes, 0);
    let missed = b.ear.missed_count();
    cluster.start_all();
    // By the new subscription, or by a notice if that stood earlier than the sender's way; nothing more need be sent.
    wait_until("it is told", || b.ear.missed_count() > missed);
    a.reach(&b);
    assert_eq!(b.ear.count(), 0, "what was dropped does not come later");
}

#[test]
fn a_replica_takes_the_place_of_a_killed_primary() {
    let cluster = RedisCluster::failing_over();
    let nodes = two_nodes(&cluster);
    let [owner, _] = owners(&cluster, &nodes);
    let [a, b] = nodes;
    let missed = b.ear.missed_count();
    owner.kill();
    wait_until_down(&b);
    // What is sent meanwhile is lost at worst; the way comes back by itself.
    a.reach(&b);
    both_up(&a, &b);
    wait_until("it is told", || b.ear.missed_count() > missed);
    // The old primary returns as a replica, and nothing changes.
    owner.go();
    cluster.wait_until_whole();
    let missed = b.ear.missed_count();
    (0..100).for_each(|n| assert!(a.send(&b, format!("{n}"))));
    b.ear.wait_for(100);
    assert_eq!(b.ear.missed_count(), missed);
}

#[test]
fn a_paused_primary_is_replaced_and_a_late_one_does_no_harm() {
    let cluster = RedisCluster::failing_over();
    // Silence is noticed, but not the slowness of one that runs.
    let (connect_timeout, publish_timeout, deaf_after) = (SILENT_AFTER, SILENT_AFTER, SILENT_AFTER);
    let patient = config(&cluster.urls());
    let nodes = two_nodes_with(&RedisBusConfig { connect_timeout, publish_timeout, deaf_after, ..patient });
    let [owner, _] = owners(&cluster, &nodes);
    let [a, b] = nodes;
    owner.pause();
    wait_until_down(&b);
    a.reach(&b);
    both_up(&a, &b);
    owner.resume();
    cluster.wait_until_whole();
    // It wakes up as one that nobody listens to any more.
    let count = b.ear.count();
    let missed = b.ear.missed_count();
    (0..100).for_each(|n| assert!(a.send(&b, format!("{n}"))));
    b.ear.wait_for(count + 100);
    assert_eq!(b.ear.missed_count(), missed);
    let heard = b.ear.heard();
    assert!(
        (0..100)
            .map(|n: usize| n.to_string())
            .eq(heard[count..].iter().map(|message| String::from_utf8_lossy(message)))
    );
}

#[test]
fn a_slot_moves_to_another_server() {
    let cluster = RedisCluster::start();
    let nodes = two_nodes(&cluster);
    let [owner, _] = owners(&cluster, &nodes);
    let [a, b] = nodes;
    let channels = owner.ask(&["PUBSUB", "SHARDCHANNELS"]);
    let channel = channels.lines().find(|channel| channel.ends_with(":node:node-b")).unwrap();
    let slot = owner.ask(&["CLUSTER", "KEYSLOT", channel]);
    let target = cluster.servers[..3].iter().find(|server| server.url() != owner.url()).unwrap();
    let id = target.ask(&["CLUSTER", "MYID"]);
    let missed = b.ear.missed_count();
    for server in [target, owner] {
        assert_eq!(server.ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]), "OK");
    }
    wait_until("it listens there", || target.ask(&["PUBSUB", "SHARDCHANNELS"]).contains(channel));
    b.wait_until_up();
    wait_until("it is told", || b.ear.missed_count() > missed);
    a.reach(&b);
    let missed = b.ear.missed_count();
    (0..100).for_each(|n| assert!(a.send(&b, format!("{n}"))));
    wait_until("all come", || b.ear.heard().last().is_some_and(|last| last == "99"));
    assert_eq!(b.ear.missed_count(), missed);
    assert!(a.bus.is_up());
}

#[test]
fn emptying_changes_nothing() {
    let cluster = RedisCluster::start();
    let [a, b] = two_nodes(&cluster);
    let missed = b.ear.missed_count();
    for round in 0..10 {
        for server in &cluster.servers[..3] {
            assert_eq!(server.ask(&["FLUSHALL"]), "OK");
        }
        (0..100).for_each(|n| assert!(a.send(&b, format!("{}", round * 100 + n))));
        b.ear.wait_for((round + 1) * 100);
        assert!(a.bus.is_up() && b.bus.is_up());
    }
    assert_eq!(b.ear.missed_count(), missed);
    for server in &cluster.servers {
        assert_eq!(server.ask(&["DBSIZE"]), "0", "nothing is stored");
    }
}
