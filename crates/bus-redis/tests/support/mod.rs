//! What tests of the bus have in common.
#![allow(dead_code, clippy::unwrap_used, unreachable_pub)]

pub mod redis;

use bytes::Bytes;
use parking_lot::Mutex;
use redis::wait_until;
use std::{sync::Arc, time::Duration};
use tidings_bus_redis::{RedisBus, RedisBusConfig};
use tidings_engine::cluster::bus::{Bus, MessageHandler};

/// Sent to see whether anything arrives; counted apart.
const PROBE: &str = "a probe";

/// Keeps what it hears.
#[derive(Default)]
pub struct Recorder {
    probes: Mutex<usize>,
    heard: Mutex<Vec<Bytes>>,
    missed: Mutex<usize>,
}

impl MessageHandler for Recorder {
    fn on_message(&self, message: Bytes) {
        if message == PROBE {
            *self.probes.lock() += 1;
        } else {
            self.heard.lock().push(message);
        }
    }

    fn on_gap(&self) {
        *self.missed.lock() += 1;
    }
}

impl Recorder {
    pub fn heard(&self) -> Vec<Bytes> {
        self.heard.lock().clone()
    }

    pub fn count(&self) -> usize {
        self.heard.lock().len()
    }

    pub fn missed_count(&self) -> usize {
        *self.missed.lock()
    }

    pub fn clear(&self) {
        self.heard.lock().clear();
    }

    pub fn wait_for(&self, count: usize) {
        wait_until(&format!("{count} messages"), || self.count() >= count);
    }
}

/// A bus, what it hears, and its name.
pub struct Node<B> {
    pub bus: B,
    pub name: Arc<str>,
    pub ear: Arc<Recorder>,
}

impl<B: Bus> Node<B> {
    pub fn listening(bus: B, name: &str) -> Self {
        let ear = Arc::new(Recorder::default());
        bus.listen(name, ear.clone());
        let node = Self { bus, name: name.into(), ear };
        node.wait_until_up();
        node
    }

    pub fn wait_until_up(&self) {
        wait_until(&format!("{} is up", self.name), || self.bus.is_up());
    }

    pub fn send(&self, to: &Self, message: impl AsRef<[u8]>) -> bool {
        self.bus.send(std::slice::from_ref(&to.name), Bytes::copy_from_slice(message.as_ref()))
    }

    /// Sends probes until one arrives: after a break the ways of two nodes are mended at their own pace.
    pub fn reach(&self, to: &Self) {
        let before = *to.ear.probes.lock();
        wait_until(&format!("{} reaches {}", self.name, to.name), || {
            self.send(to, PROBE);
            *to.ear.probes.lock() > before
        });
    }
}

pub fn both_up<B: Bus>(a: &Node<B>, b: &Node<B>) {
    a.wait_until_up();
    b.wait_until_up();
}

/// Long enough for whoever is kept from running: what is noticed before is not noticed because it took long.
const LONG: Duration = Duration::from_secs(60);
/// Short of [`LONG`] by so much that nothing was waited for.
pub const AT_ONCE: Duration = Duration::from_secs(30);

/// A bus that gives up nothing because it is slow.
pub fn config(urls: &[String]) -> RedisBusConfig {
    let (connect_timeout, publish_timeout, deaf_after, stop_wait) = (LONG, LONG, LONG, LONG);
    RedisBusConfig { connect_timeout, publish_timeout, deaf_after, stop_wait, ..hasty_config(urls) }
}

/// A bus that soon notices what is silent: also what is only slow, which such tests must bear.
pub fn hasty_config(urls: &[String]) -> RedisBusConfig {
    RedisBusConfig { urls: urls.to_vec(), ..RedisBusConfig::default() }
}

pub fn redis_node(config: RedisBusConfig, name: &str) -> Node<RedisBus> {
    Node::listening(RedisBus::start(config).unwrap(), name)
}
