//! A cluster loses a server, a slot, or all of its servers. The bus reports it and recovers by itself.

use crate::support::{
    AT_ONCE, Node, both_up, config,
    redis::{RedisCluster, RedisServer, wait_until},
    redis_node,
};
use std::time::{Duration, Instant};
use tidings_bus_redis::{RedisBus, RedisBusConfig};
use tidings_domain::bus::Bus;

const SILENT_AFTER: Duration = Duration::from_secs(6);

type RedisNode = Node<RedisBus>;

fn two_nodes(cluster: &RedisCluster) -> [RedisNode; 2] {
    two_nodes_with(&config(&cluster.urls()))
}

fn two_nodes_with(config: &RedisBusConfig) -> [RedisNode; 2] {
    let nodes = ["node-a", "node-b"].map(|name| redis_node(config.clone(), name));
    let [a, b] = &nodes;
    // Both are connected, and no more gap is to come from their start.
    a.reach(b);
    b.reach(a);
    // A probe that is on its way when a server is killed would be another gap.
    wait_until("the queues are empty", || nodes.iter().all(|node| node.bus.metrics().snapshot().queue_bytes == 0));
    nodes
}

/// The servers that own the receiver's channel and the sender's.
fn owners<'a>(cluster: &'a RedisCluster, nodes: &[RedisNode; 2]) -> [&'a RedisServer; 2] {
    [&nodes[1], &nodes[0]].map(|node| cluster.owner_of(&format!(":node:{}", node.name)))
}

/// The number of gaps and of subscriptions.
fn gaps_and_subscriptions(node: &RedisNode) -> (usize, u64) {
    (node.received.gap_count(), node.bus.metrics().snapshot().resubscribed)
}

/// Fails if a timeout was needed to notice it.
fn wait_until_down(node: &RedisNode) {
    let start = Instant::now();
    wait_until(&format!("{} is down", node.name), || !node.bus.is_up());
    let took = start.elapsed();
    assert!(took < AT_ONCE, "{} noticed after {took:?}", node.name);
}

#[test]
fn nodes_reconnect_after_all_servers_restart_empty() {
    let cluster = RedisCluster::start();
    let [a, b] = two_nodes(&cluster);
    let before = [&a, &b].map(gaps_and_subscriptions);
    cluster.kill_all();
    for node in [&a, &b] {
        wait_until_down(node);
        assert!(node.bus.trouble().unwrap().contains("127.0.0.1"), "{:?}", node.bus.trouble());
    }
    cluster.start_all();
    both_up(&a, &b);
    for (node, (gaps, subscribed)) in [&a, &b].into_iter().zip(before) {
        let subscriptions = node.bus.metrics().snapshot().resubscribed - subscribed;
        assert!(subscriptions >= 1);
        assert_eq!(node.received.gap_count() - gaps, subscriptions as usize, "one for each");
    }
    a.reach(&b);
    b.reach(&a);
    assert!(a.bus.metrics().snapshot().connections_open <= 4);
}

#[test]
fn messages_sent_during_an_outage_are_dropped_counted_and_reported_as_a_gap() {
    let cluster = RedisCluster::start();
    let [a, b] = two_nodes(&cluster);
    cluster.kill_all();
    wait_until("a message is refused", || !a.send(&b, "lost"));
    let dropped = a.bus.metrics().snapshot().dropped;
    (0..100).for_each(|_| assert!(!a.send(&b, "lost")));
    assert_eq!(a.bus.metrics().snapshot().dropped, dropped + 100);
    assert_eq!(a.bus.metrics().snapshot().queue_bytes, 0);
    let gaps = b.received.gap_count();
    cluster.start_all();
    // By the new subscription, or, if that was up before the sender was connected, by a notice. No message need follow.
    wait_until("the gap is reported", || b.received.gap_count() > gaps);
    a.reach(&b);
    assert_eq!(b.received.count(), 0, "a dropped message does not come later");
}

#[test]
fn nodes_follow_a_failover_from_a_killed_primary() {
    let cluster = RedisCluster::failing_over();
    let nodes = two_nodes(&cluster);
    let [owner, _] = owners(&cluster, &nodes);
    let [a, b] = nodes;
    let gaps = b.received.gap_count();
    owner.kill();
    wait_until_down(&b);
    // Messages may be lost meanwhile; connections come back by themselves.
    a.reach(&b);
    both_up(&a, &b);
    wait_until("the gap is reported", || b.received.gap_count() > gaps);
    // The old primary returns as a replica, and nothing changes.
    owner.go();
    cluster.wait_until_whole();
    let gaps = b.received.gap_count();
    (0..100).for_each(|n| assert!(a.send(&b, format!("{n}"))));
    b.received.wait_for(100);
    assert_eq!(b.received.gap_count(), gaps);
}

#[test]
fn nodes_follow_a_failover_from_a_paused_primary_which_does_no_harm_later() {
    let cluster = RedisCluster::failing_over();
    // So long that only a server that does not run counts as silent.
    let (connect_timeout, publish_timeout, heartbeat_timeout) = (SILENT_AFTER, SILENT_AFTER, SILENT_AFTER);
    let patient = config(&cluster.urls());
    let nodes = two_nodes_with(&RedisBusConfig { connect_timeout, publish_timeout, heartbeat_timeout, ..patient });
    let [owner, _] = owners(&cluster, &nodes);
    let [a, b] = nodes;
    owner.pause();
    wait_until_down(&b);
    a.reach(&b);
    both_up(&a, &b);
    owner.resume();
    cluster.wait_until_whole();
    // The old primary runs again, and has no subscriber.
    let count = b.received.count();
    let gaps = b.received.gap_count();
    (0..100).for_each(|n| assert!(a.send(&b, format!("{n}"))));
    b.received.wait_for(count + 100);
    assert_eq!(b.received.gap_count(), gaps);
    let arrived = b.received.messages();
    assert!(
        (0..100)
            .map(|n: usize| n.to_string())
            .eq(arrived[count..].iter().map(|message| String::from_utf8_lossy(message)))
    );
}

#[test]
fn the_subscription_follows_a_slot_that_moves_to_another_server() {
    let cluster = RedisCluster::start();
    let nodes = two_nodes(&cluster);
    let [owner, _] = owners(&cluster, &nodes);
    let [a, b] = nodes;
    let channels = owner.ask(&["PUBSUB", "SHARDCHANNELS"]);
    let channel = channels.lines().find(|channel| channel.ends_with(":node:node-b")).unwrap();
    let slot = owner.ask(&["CLUSTER", "KEYSLOT", channel]);
    let target = cluster.servers[..3].iter().find(|server| server.url() != owner.url()).unwrap();
    let id = target.ask(&["CLUSTER", "MYID"]);
    let gaps = b.received.gap_count();
    for server in [target, owner] {
        assert_eq!(server.ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]), "OK");
    }
    wait_until("the node subscribes there", || target.ask(&["PUBSUB", "SHARDCHANNELS"]).contains(channel));
    b.wait_until_up();
    wait_until("the gap is reported", || b.received.gap_count() > gaps);
    a.reach(&b);
    let gaps = b.received.gap_count();
    (0..100).for_each(|n| assert!(a.send(&b, format!("{n}"))));
    wait_until("all messages arrive", || b.received.messages().last().is_some_and(|last| last == "99"));
    assert_eq!(b.received.gap_count(), gaps);
    assert!(a.bus.is_up());
}

#[test]
fn flushing_the_servers_changes_nothing() {
    let cluster = RedisCluster::start();
    let [a, b] = two_nodes(&cluster);
    let gaps = b.received.gap_count();
    for round in 0..10 {
        for server in &cluster.servers[..3] {
            assert_eq!(server.ask(&["FLUSHALL"]), "OK");
        }
        (0..100).for_each(|n| assert!(a.send(&b, format!("{}", round * 100 + n))));
        b.received.wait_for((round + 1) * 100);
        assert!(a.bus.is_up() && b.bus.is_up());
    }
    assert_eq!(b.received.gap_count(), gaps);
    for server in &cluster.servers {
        assert_eq!(server.ask(&["DBSIZE"]), "0", "nothing is stored");
    }
}
