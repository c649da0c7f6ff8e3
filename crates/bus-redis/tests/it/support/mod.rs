//! What the tests of the bus share.
#![allow(unreachable_pub)]

pub mod redis;

use bytes::Bytes;
use parking_lot::Mutex;
use redis::wait_until;
use std::{sync::Arc, time::Duration};
use tidings_bus_redis::{RedisBus, RedisBusConfig};
use tidings_domain::bus::{Bus, MessageHandler};

/// A message that shows whether any arrive. Counted apart.
const PROBE: &str = "a probe";

/// Records the messages and gaps of a node.
#[derive(Default)]
pub struct Recorder {
    probes: Mutex<usize>,
    messages: Mutex<Vec<Bytes>>,
    gaps: Mutex<usize>,
}

impl MessageHandler for Recorder {
    fn on_message(&self, message: Bytes) {
        if message == PROBE {
            *self.probes.lock() += 1;
        } else {
            self.messages.lock().push(message);
        }
    }

    fn on_gap(&self) {
        *self.gaps.lock() += 1;
    }
}

impl Recorder {
    pub fn messages(&self) -> Vec<Bytes> {
        self.messages.lock().clone()
    }

    pub fn count(&self) -> usize {
        self.messages.lock().len()
    }

    pub fn gap_count(&self) -> usize {
        *self.gaps.lock()
    }

    pub fn clear(&self) {
        self.messages.lock().clear();
    }

    pub fn wait_for(&self, count: usize) {
        wait_until(&format!("{count} messages"), || self.count() >= count);
    }
}

/// A bus, with its name and what it receives.
pub struct Node<B> {
    pub bus: B,
    pub name: Arc<str>,
    pub received: Arc<Recorder>,
}

impl<B: Bus> Node<B> {
    pub fn listening(bus: B, name: &str) -> Self {
        let received = Arc::new(Recorder::default());
        bus.listen(name, received.clone());
        let node = Self { bus, name: name.into(), received };
        node.wait_until_up();
        node
    }

    pub fn wait_until_up(&self) {
        wait_until(&format!("{} is up", self.name), || self.bus.is_up());
    }

    pub fn send(&self, to: &Self, message: impl AsRef<[u8]>) -> bool {
        self.bus.send(std::slice::from_ref(&to.name), Bytes::copy_from_slice(message.as_ref()))
    }

    /// Sends probes until one arrives: after a failure each node reconnects at its own pace.
    pub fn reach(&self, to: &Self) {
        let before = *to.received.probes.lock();
        wait_until(&format!("{} reaches {}", self.name, to.name), || {
            self.send(to, PROBE);
            *to.received.probes.lock() > before
        });
    }
}

pub fn both_up<B: Bus>(a: &Node<B>, b: &Node<B>) {
    a.wait_until_up();
    b.wait_until_up();
}

/// A timeout that no delay of the test machine reaches: a failure that is noticed earlier was not noticed by a timeout.
const LONG: Duration = Duration::from_secs(60);
/// So much shorter than [`LONG`] that no timeout of that length has passed.
pub const AT_ONCE: Duration = Duration::from_secs(30);

/// A bus that gives nothing up for being slow.
pub fn config(urls: &[String]) -> RedisBusConfig {
    let (connect_timeout, publish_timeout, heartbeat_timeout, stop_wait) = (LONG, LONG, LONG, LONG);
    RedisBusConfig { connect_timeout, publish_timeout, heartbeat_timeout, stop_wait, ..hasty_config(urls) }
}

/// A bus that notices silence after the default timeouts. It takes slowness for silence, which its tests must bear.
pub fn hasty_config(urls: &[String]) -> RedisBusConfig {
    RedisBusConfig { urls: urls.to_vec(), ..RedisBusConfig::default() }
}

pub fn redis_node(config: RedisBusConfig, name: &str) -> Node<RedisBus> {
    Node::listening(RedisBus::start(config).unwrap(), name)
}
