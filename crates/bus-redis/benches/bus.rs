//! The cost of the bus: messages from one node to two others, at full speed, at a pace, and one by one.
//! `cargo bench -p tidings-bus-redis`; starts its own Redis, so it needs `redis-server`.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "../tests/it/support/redis.rs"]
mod redis;

use bytes::Bytes;
use hdrhistogram::Histogram;
use redis::{RedisCluster, RedisServer, wait_until};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tidings_bus_redis::{RedisBus, RedisBusConfig};
use tidings_domain::bus::{Bus, MessageHandler};

const MESSAGES: usize = 500_000;
const MESSAGE_BYTES: usize = 300;
/// Messages a second, for so many seconds.
const PACE: usize = 10_000;
const PACED_SECONDS: usize = 3;
const ONE_BY_ONE: usize = 5_000;

#[derive(Default)]
struct Counter {
    messages: AtomicUsize,
    gaps: AtomicUsize,
}

impl MessageHandler for Counter {
    fn on_message(&self, _: Bytes) {
        self.messages.fetch_add(1, Relaxed);
    }

    fn on_gap(&self) {
        self.gaps.fetch_add(1, Relaxed);
    }
}

fn measure(what: &str, urls: Vec<String>, servers: &[RedisServer]) {
    let nodes: Vec<(RedisBus, Arc<Counter>)> = ["node-1", "node-2", "node-3"]
        .map(|name| {
            let bus = RedisBus::start(RedisBusConfig { urls: urls.clone(), ..RedisBusConfig::default() }).unwrap();
            let counter = Arc::new(Counter::default());
            bus.listen(name, counter.clone());
            wait_until("it is up", || bus.is_up());
            (bus, counter)
        })
        .into();
    let (bus, received) =
        (&nodes[0].0, || nodes[1..].iter().map(|(_, counter)| counter.messages.load(Relaxed)).sum::<usize>());
    let to: [Arc<str>; 2] = ["node-2".into(), "node-3".into()];
    let message = Bytes::from(vec![b'm'; MESSAGE_BYTES]);
    wait_until("the first arrives", || bus.send(&to, message.clone()) && received() >= 2);
    wait_until("the queues are empty", || bus.metrics().snapshot().queue_bytes == 0);

    let all_at_once = || {
        for _ in 0..MESSAGES {
            while bus.metrics().queue_bytes.load(Relaxed) > 16 << 20 {
                std::thread::yield_now();
            }
            assert!(bus.send(&to, message.clone()));
        }
    };
    let paced = || {
        let start = Instant::now();
        for n in 0..PACED_SECONDS * PACE {
            while start.elapsed().as_secs_f64() < n as f64 / PACE as f64 {
                std::thread::sleep(Duration::from_micros(100));
            }
            assert!(bus.send(&to, message.clone()));
        }
    };
    let counted = |how: &str, count: usize, send: &dyn Fn()| {
        let (cpu, before) = (servers.iter().map(RedisServer::cpu_seconds).sum::<f64>(), bus.metrics().snapshot());
        let (start, received_before) = (Instant::now(), received());
        send();
        wait_until("all arrive", || received() >= received_before + 2 * count);
        let took = start.elapsed().as_secs_f64();
        let cpu = servers.iter().map(RedisServer::cpu_seconds).sum::<f64>() - cpu;
        println!(
            "{what}, {how}: {:.0} messages/s to two nodes, Redis {:.2} CPU s per 100,000, {:.3} publishes per message",
            count as f64 / took,
            cpu * 100_000.0 / count as f64,
            (bus.metrics().snapshot().publishes - before.publishes) as f64 / count as f64,
        );
    };
    counted("as fast as they go", MESSAGES, &all_at_once);
    counted("paced", PACED_SECONDS * PACE, &paced);
    let gaps = nodes[1..].iter().map(|(_, counter)| counter.gaps.load(Relaxed)).sum::<usize>();
    assert_eq!(gaps, 2, "one each, when they began to listen");

    let mut latency = Histogram::<u64>::new(3).unwrap();
    for _ in 0..ONE_BY_ONE {
        let (sent, expected) = (Instant::now(), received() + 2);
        assert!(bus.send(&to, message.clone()));
        while received() < expected {
            std::thread::yield_now();
        }
        latency.record(sent.elapsed().as_micros() as u64).unwrap();
    }
    println!(
        "{what}, one by one: heard by both after {} us at the median, {} us at p99",
        latency.value_at_quantile(0.5),
        latency.value_at_quantile(0.99)
    );
}

fn main() {
    let one = RedisServer::start(&[]);
    measure("one Redis", vec![one.url()], std::slice::from_ref(&one));
    let cluster = RedisCluster::start();
    measure("cluster", cluster.urls(), &cluster.servers);
}
