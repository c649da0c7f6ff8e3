//! A single server that hangs, cuts connections, or answers only some of them.

use crate::support;
use crate::support::{
    AT_ONCE, Node, both_up, config, hasty_config,
    redis::{RedisServer, wait_until},
    redis_node,
};
use bytes::Bytes;
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};
use tidings_bus_redis::{RedisBus, RedisBusConfig};
use tidings_domain::bus::Bus;

fn two_nodes(config: &RedisBusConfig) -> [Node<RedisBus>; 2] {
    let nodes = ["node-a", "node-b"].map(|name| redis_node(config.clone(), name));
    nodes[0].reach(&nodes[1]);
    nodes
}

#[test]
fn a_server_that_starts_after_the_bus_is_found() {
    let redis = RedisServer::start(&[]);
    redis.kill();
    let bus = RedisBus::start(hasty_config(&[redis.url()])).unwrap();
    let received = Arc::new(support::Recorder::default());
    bus.listen("node-a", received.clone());
    let to: [Arc<str>; 1] = ["node-a".into()];
    wait_until("the bus reports what is wrong", || bus.trouble().is_some_and(|why| why.contains("refused")));
    wait_until("messages are dropped", || !bus.send(&to, Bytes::from_static(b"lost")));
    redis.go();
    wait_until("the bus is up", || bus.is_up());
    assert!(received.gap_count() > 0);
    wait_until("a message arrives", || bus.send(&to, Bytes::from_static(b"heard")) && received.count() > 0);
}

#[test]
fn a_server_that_hangs_is_noticed_and_used_again_when_it_answers() {
    let redis = RedisServer::start(&[]);
    let [a, b] = two_nodes(&hasty_config(&[redis.url()]));
    redis.pause();
    let start = Instant::now();
    wait_until("both are down", || !a.bus.is_up() && !b.bus.is_up());
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    assert!(a.bus.trouble().is_some());
    redis.resume();
    both_up(&a, &b);
    a.reach(&b);
}

#[test]
fn a_subscription_that_is_cut_is_made_again_and_reports_one_gap() {
    let redis = RedisServer::start(&[]);
    let [a, b] = two_nodes(&config(&[redis.url()]));
    for _ in 0..3 {
        let gaps = b.received.gap_count();
        wait_until("both listen", || redis.ask(&["CLIENT", "LIST", "TYPE", "pubsub"]).lines().count() == 2);
        assert_eq!(redis.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]), "2");
        wait_until("the gap is reported", || b.received.gap_count() > gaps);
        both_up(&a, &b);
        assert_eq!(b.received.gap_count(), gaps + 1, "once");
        a.reach(&b);
    }
}

/// Forwards bytes. Once `swallow` is set, drops what the server sends on connections that had subscribed before.
struct HalfDeadProxy {
    url: String,
    swallow: Arc<AtomicBool>,
}

impl HalfDeadProxy {
    fn before(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let swallow = Arc::new(AtomicBool::new(false));
        let shared = swallow.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(("127.0.0.1", port)).unwrap());
                let (listens, shared) = (Arc::new(AtomicBool::new(false)), shared.clone());
                let (listens_too, new) = (listens.clone(), !shared.load(SeqCst));
                let ends = [client.try_clone().unwrap(), server.try_clone().unwrap()];
                std::thread::spawn(move || {
                    pass(client, server, |bytes| {
                        let subscribes = bytes.windows(10).any(|words| words == b"SSUBSCRIBE");
                        listens.fetch_or(subscribes, SeqCst);
                        true
                    });
                });
                let [client, server] = ends;
                std::thread::spawn(move || {
                    pass(server, client, |_| !(new && listens_too.load(SeqCst) && shared.load(SeqCst)));
                });
            }
        });
        Self { url, swallow }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, mut passes: impl FnMut(&[u8]) -> bool) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if passes(&buffer[..count]) && to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

#[test]
fn a_subscription_that_is_open_but_silent_is_replaced() {
    let redis = RedisServer::start(&[]);
    let proxy = HalfDeadProxy::before(redis.port.number);
    let [a, b] = ["node-a", "node-b"].map(|name| {
        let config = match name {
            "node-b" => hasty_config(std::slice::from_ref(&proxy.url)),
            _ => config(&[redis.url()]),
        };
        redis_node(config, name)
    });
    a.reach(&b);
    let gaps = b.received.gap_count();
    proxy.swallow.store(true, SeqCst);
    let start = Instant::now();
    assert!(a.send(&b, "swallowed"));
    wait_until("the bus is down", || !b.bus.is_up());
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    assert!(a.bus.is_up(), "the other node's heartbeats come back");
    wait_until("the gap is reported", || b.received.gap_count() > gaps);
    b.wait_until_up();
    a.reach(&b);
    assert!(!b.received.messages().contains(&Bytes::from_static(b"swallowed")));
}

#[test]
fn a_full_queue_drops_messages_and_the_receiver_learns_of_the_gap() {
    let redis = RedisServer::start(&[]);
    let limits = RedisBusConfig { queue_bytes_max: 1 << 20, ..config(&[redis.url()]) };
    let [a, b] = two_nodes(&limits);
    let (before, gaps) = (a.bus.metrics().snapshot(), b.received.gap_count());
    redis.pause();
    let message = Bytes::from(vec![7; 10_000]);
    let to = std::slice::from_ref(&b.name);
    let start = Instant::now();
    let taken = (0..1_000).filter(|_| a.bus.send(to, message.clone())).count();
    assert!(start.elapsed() < AT_ONCE, "sending never blocks");
    let full = a.bus.metrics().snapshot();
    assert!((50..=104).contains(&taken), "{taken}");
    assert_eq!((full.sent - before.sent, full.dropped - before.dropped), (taken as u64, 1_000 - taken as u64));
    assert!(full.queue_bytes <= 1 << 20);
    redis.resume();
    b.received.wait_for(taken);
    // No message follows, and yet the receiver learns of the gap.
    wait_until("the gap is reported", || b.received.gap_count() > gaps);
    assert_eq!((b.received.count(), a.bus.metrics().snapshot().queue_bytes), (taken, 0));
    assert!(a.bus.send(to, Bytes::from_static(b"fits")));
    b.received.wait_for(taken + 1);
    assert_eq!(b.received.gap_count(), gaps + 1);
    let too_large = Bytes::from(vec![0; tidings_bus_redis::MESSAGE_BYTES_MAX + 1]);
    assert!(!a.bus.send(to, too_large));
}

#[test]
fn the_error_of_a_server_that_refuses_is_reported() {
    let redis = RedisServer::start(&[]);
    let heartbeat_timeout = hasty_config(&[]).heartbeat_timeout;
    let [a, b] = two_nodes(&RedisBusConfig { heartbeat_timeout, ..config(&[redis.url()]) });
    assert_eq!(redis.ask(&["ACL", "SETUSER", "default", "-spublish"]), "OK");
    wait_until("the bus reports it", || a.bus.trouble().is_some_and(|why| why.contains("NOPERM")));
    assert!(!a.bus.is_up());
    wait_until("messages are refused", || !a.send(&b, "lost"));
    // It tries again at its pace: once a second for the queue's notice, and once for the heartbeat.
    let (start, pipelines) = (Instant::now(), a.bus.metrics().snapshot().pipelines);
    wait_until("it tries again", || a.bus.metrics().snapshot().pipelines >= pipelines + 5);
    assert!(start.elapsed() > Duration::from_millis(500), "{:?}", start.elapsed());
    assert_eq!(redis.ask(&["ACL", "SETUSER", "default", "+spublish"]), "OK");
    both_up(&a, &b);
    a.reach(&b);
}

#[test]
fn messages_to_more_receivers_than_the_limit_are_refused() {
    const RECEIVERS_MAX: usize = 1_024;
    let redis = RedisServer::start(&[]);
    let node = redis_node(config(&[redis.url()]), "node-a");
    let others: Vec<Arc<str>> = (0..RECEIVERS_MAX).map(|n| format!("other-{n}").into()).collect();
    assert!(node.bus.send(&others, Bytes::from_static(b"kept")));
    assert!(!node.bus.send(std::slice::from_ref(&node.name), Bytes::from_static(b"one more")));
    let metrics = node.bus.metrics().snapshot();
    assert_eq!((metrics.sent, metrics.dropped), (RECEIVERS_MAX as u64, 1));
    assert!(node.bus.send(&others, Bytes::from_static(b"still kept")));
    wait_until("the queues are empty", || node.bus.metrics().snapshot().queue_bytes == 0);
    assert!(node.bus.is_up());
}
