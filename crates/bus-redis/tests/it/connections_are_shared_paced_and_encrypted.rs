//! The number of connections, the pace at which they are made, and the servers that they trust.

use crate::support;
use crate::support::{
    config,
    redis::{Port, RedisCluster, RedisServer, wait_until},
    redis_node,
};
use bytes::Bytes;
use std::{
    sync::{Arc, Barrier},
    time::Instant,
};
use tidings_bus_redis::{RedisBus, RedisBusConfig};
use tidings_domain::bus::Bus;

#[test]
fn a_thousand_senders_share_a_few_connections() {
    const SENDERS: usize = 1_000;
    let cluster = RedisCluster::start();
    let limits = RedisBusConfig { connections_max: 4, ..config(&cluster.urls()) };
    let node = redis_node(limits, "node-a");
    let all: Vec<Arc<str>> = (0..100).map(|n| format!("node-{n}").into()).collect();
    let together = Barrier::new(SENDERS);
    // Messages are queued meanwhile, however fast the senders are.
    let primaries = &cluster.servers[..3];
    primaries.iter().for_each(RedisServer::pause);
    std::thread::scope(|scope| {
        let (node, all, together) = (&node, &all, &together);
        for sender in 0..SENDERS {
            std::thread::Builder::new()
                .stack_size(64 << 10)
                .spawn_scoped(scope, move || {
                    together.wait();
                    for n in 0..20 {
                        node.bus.send(&all[(sender + n) % all.len()..][..1], Bytes::from_static(b"burst"));
                        node.bus.send(std::slice::from_ref(&node.name), Bytes::from_static(b"burst"));
                    }
                })
                .unwrap();
        }
    });
    primaries.iter().for_each(RedisServer::resume);
    let count = || cluster.servers.iter().map(RedisServer::clients).sum::<usize>();
    let sampled = (0..20).map(|_| count()).max().unwrap();
    node.received.wait_for(SENDERS * 20);
    let metrics = node.bus.metrics().snapshot();
    assert!(sampled <= 4, "{sampled} at once");
    assert!(metrics.connections_made <= 5, "{metrics:?}");
    assert_eq!((metrics.sent, metrics.dropped), (SENDERS as u64 * 40, 0));
    assert!(metrics.publishes * 2 < metrics.sent, "queued messages are published together: {metrics:?}");
    wait_until("the queues are empty", || node.bus.metrics().snapshot().queue_bytes == 0);
}

#[test]
fn reaching_connections_max_is_reported_and_own_messages_still_come() {
    let cluster = RedisCluster::start();
    let limits = RedisBusConfig { connections_max: 2, ..config(&cluster.urls()) };
    let node = redis_node(limits, "node-a");
    let others: Vec<Arc<str>> = (0..30).map(|n| format!("node-{n}").into()).collect();
    wait_until("the bus reports it", || {
        node.bus.send(&others, Bytes::from_static(b"hello"));
        node.bus.trouble().is_some_and(|why| why.contains("connections_max"))
    });
    assert!(node.bus.metrics().snapshot().connections_open <= 2);
    wait_until("the node reaches itself", || node.send(&node, "oneself"));
    node.received.wait_for(1);
}

#[test]
fn connection_attempts_keep_to_connect_per_second() {
    let redis = RedisServer::start(&[]);
    redis.kill();
    let start = Instant::now();
    let bus = RedisBus::start(RedisBusConfig { connect_per_second: 1, ..config(&[redis.url()]) }).unwrap();
    bus.listen("node-a", Arc::new(support::Recorder::default()));
    wait_until("attempts are put off", || bus.metrics().snapshot().connections_delayed >= 3);
    let failed = bus.metrics().snapshot().connections_failed;
    let allowed = 1.0 + start.elapsed().as_secs_f64();
    assert!(failed >= 1 && failed as f64 <= allowed, "{failed} of {allowed}");
    redis.go();
    wait_until("the bus is up", || bus.is_up());
}

#[test]
fn several_servers_that_form_no_cluster_are_refused() {
    let redis = [RedisServer::start(&[]), RedisServer::start(&[])];
    let bus = RedisBus::start(config(&[redis[0].url(), redis[1].url()])).unwrap();
    bus.listen("node-a", Arc::new(support::Recorder::default()));
    wait_until("the bus reports it", || bus.trouble().is_some_and(|why| why.contains("not a cluster")));
    assert!(!bus.is_up());
}

/// The user has only the rights that the crate's documentation names.
#[test]
fn tls_and_a_user_with_few_rights_suffice() {
    let folder = tempfile::tempdir().unwrap();
    let certified = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.path().join("certificate"), folder.path().join("key"));
    std::fs::write(&certificate, certified.cert.pem()).unwrap();
    std::fs::write(&key, certified.signing_key.serialize_pem()).unwrap();
    let tls_port = Port::take();
    let (certificate, key, tls) = (certificate.to_str().unwrap(), key.to_str().unwrap(), tls_port.number.to_string());
    let settings = ["--tls-port", &tls, "--tls-cert-file", certificate, "--tls-key-file", key];
    let redis = RedisServer::start(&[&settings[..], &["--tls-auth-clients", "no"]].concat());
    let rights = ["&tidings*", "+spublish", "+ssubscribe", "+ping", "+hello", "+cluster|slots"];
    let user = [&["ACL", "SETUSER", "bus", "on", ">secret"][..], &rights].concat();
    assert_eq!(redis.ask(&user), "OK");

    let url = format!("rediss://bus:secret@localhost:{}", tls_port.number);
    let trusting = RedisBusConfig { ca_pem: Some(certified.cert.pem().into_bytes()), ..config(&[url]) };
    let [a, b] = ["node-a", "node-b"].map(|name| redis_node(trusting.clone(), name));
    a.reach(&b);

    let refused = |change: fn(&mut RedisBusConfig), expected: &str| {
        let mut config = trusting.clone();
        change(&mut config);
        let bus = RedisBus::start(config).unwrap();
        bus.listen("node-c", Arc::new(support::Recorder::default()));
        wait_until(expected, || bus.trouble().is_some_and(|why| why.contains(expected)));
        assert!(!bus.trouble().unwrap().contains("secret"));
        assert!(!bus.is_up());
    };
    refused(|config| config.ca_pem = None, "certificate");
    refused(|config| config.urls[0] = config.urls[0].replace("secret", "wrong"), "WRONGPASS");
    refused(|config| config.prefix = "other".into(), "NOPERM");
}
