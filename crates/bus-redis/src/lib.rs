//! The bus between nodes, on Redis: the [`Bus`] port over one sharded channel per node.
//!
//! ```text
//!  send ─ peer queue, task ─┐                                          ┌─ SSUBSCRIBE ─ reassembled, checked ─ handler
//!  send ─ peer queue, task ─┼─ SPUBLISH, in pipelines, to the primary ─┤  (the receiver's own connection)
//!         one per receiver  ┘  that owns the receiver's channel        └─ a heartbeat to itself proves the subscription
//! ```
//! Nothing rests on the bus: Redis stores nothing for us, and the receiver is told of a loss
//! ([`MessageHandler::on_gap`]), so that it can read from the store. What the handler gets is unchanged, comes once, and in
//! each sender's order.
//!
//! In reading order: [`config`], the settings; [`slot_map`], which server owns a channel; [`frame`], the wire format;
//! [`peer_queue`], the queue of messages to one receiver; [`connection`], the pool that publishes them, over connections
//! that [`dialer`] opens; [`subscription`] and [`incoming`], how messages are received; [`health`], whether they flow;
//! [`older_peers`], nodes whose programs do not know installations. Needs
//! Redis 7.0 or Valkey, as a cluster or a single server, and of its commands no more than `SPUBLISH`, `SSUBSCRIBE`, `PING`,
//! `HELLO` and `CLUSTER SLOTS`. This crate knows nothing of what messages mean.
//!
//! Not done here: retransmission of lost messages, and telling whether a receiver exists.

mod config;
mod connection;
mod dialer;
mod frame;
mod health;
mod incoming;
mod metrics;
mod older_peers;
mod peer_queue;
mod server_settings;
mod slot_map;
mod subscription;

pub use config::{ConfigError, RedisBusConfig, names_database};
pub use frame::{FRAGMENT_BYTES_MAX, MESSAGE_BYTES_MAX};
pub use metrics::{BusMetrics, BusSnapshot, ROUND_TRIP_BOUNDS_US};
pub use server_settings::{ServerSettings, read_server_settings};

use bytes::Bytes;
use connection::ConnectionPool;
use dialer::Dialer;
use health::Health;
use incoming::Incoming;
use older_peers::OlderPeers;
use parking_lot::{Mutex, RwLock};
use peer_queue::{PeerQueue, QueueBudget};
use slot_map::Channel;
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use subscription::Subscription;
use tidings_domain::{
    bus::{Bus, MessageHandler},
    installation::InstallationId,
};
use tokio::runtime::{Builder, Runtime};

/// Receivers with a queue. A new receiver takes the place of the one that was idle for longest, if that is
/// [`QUEUE_IDLE_MS`]; otherwise messages to it are dropped.
const PEER_QUEUES_MAX: usize = 1_024;
const QUEUE_IDLE_MS: u64 = 60_000;

/// A node's end of the bus. Its threads end with [`Bus::stop`], or when it is dropped.
pub struct RedisBus {
    runtime: Mutex<Option<Runtime>>,
    config: RedisBusConfig,
    pool: Arc<ConnectionPool>,
    health: Arc<Health>,
    metrics: Arc<BusMetrics>,
    budget: Arc<QueueBudget>,
    queues: RwLock<HashMap<Arc<str>, Arc<PeerQueue>>>,
    older: OlderPeers,
    stopped: Arc<AtomicBool>,
}

impl RedisBus {
    /// Begins to connect. Redis need not run yet: [`Bus::is_up`] tells when it does.
    ///
    /// # Errors
    /// The configuration cannot work, or the threads could not be started.
    pub fn start(config: RedisBusConfig) -> Result<Self, ConfigError> {
        let metrics = Arc::new(BusMetrics::default());
        let dialer = Dialer::new(&config, metrics.clone())?;
        let health = Arc::new(Health::new(config.heartbeat_timeout));
        let (ping_every, timeout) = (config.heartbeat_every, config.publish_timeout);
        let pool = Arc::new(ConnectionPool::new(dialer, health.clone(), metrics.clone(), ping_every, timeout));
        let runtime = Builder::new_multi_thread().worker_threads(2).thread_name("bus").enable_all().build();
        let runtime = runtime.map_err(|why| ConfigError::NoThreads(why.to_string()))?;
        let maintained = pool.clone();
        runtime.spawn(async move { maintained.maintain().await });
        let budget = Arc::new(QueueBudget { bytes_max: config.queue_bytes_max as u64, metrics: metrics.clone() });
        Ok(Self {
            runtime: Mutex::new(Some(runtime)),
            config,
            pool,
            health,
            metrics,
            budget,
            queues: RwLock::default(),
            older: OlderPeers::default(),
            stopped: Arc::default(),
        })
    }

    pub fn metrics(&self) -> &Arc<BusMetrics> {
        &self.metrics
    }

    /// A subscription of this node under its name, over the installation's channel or the one without.
    fn subscription(
        &self,
        name: &str,
        installation: Option<InstallationId>,
        handler: Arc<dyn MessageHandler>,
        health: Arc<Health>,
    ) -> Subscription {
        Subscription {
            id: rand::random(),
            channel: Channel::of(&self.config.prefix, installation, name),
            incoming: Arc::new(Incoming::new(installation, handler, self.metrics.clone(), self.stopped.clone())),
            pool: self.pool.clone(),
            health,
            metrics: self.metrics.clone(),
            heartbeat_every: self.config.heartbeat_every,
        }
    }

    /// The queue of a receiver, made when it is first needed. `None`: there are too many.
    fn queue(&self, name: &Arc<str>) -> Option<Arc<PeerQueue>> {
        let now_ms = self.health.now_ms();
        if let Some(queue) = self.queues.read().get(name) {
            queue.used_ms.store(now_ms, Relaxed);
            return Some(queue.clone());
        }
        let mut queues = self.queues.write();
        if let Some(queue) = queues.get(name) {
            return Some(queue.clone());
        }
        if queues.len() >= PEER_QUEUES_MAX {
            let idlest = queues.iter().min_by_key(|(_, queue)| queue.used_ms.load(Relaxed));
            let idlest = idlest.filter(|(_, queue)| queue.used_ms.load(Relaxed) + QUEUE_IDLE_MS <= now_ms);
            let idlest = idlest.map(|(name, _)| name.clone())?;
            queues.remove(&idlest)?.end();
        }
        let runtime = self.runtime.lock();
        let runtime = runtime.as_ref()?;
        let installation = (!self.older.contains(name)).then_some(self.config.installation);
        let channel = Channel::of(&self.config.prefix, installation, name);
        self.pool.want(channel.slot);
        let queue = Arc::new(PeerQueue::new(channel, now_ms));
        let (drained, pool, budget) = (queue.clone(), self.pool.clone(), self.budget.clone());
        let notice_every = self.config.heartbeat_every;
        runtime.spawn(async move { drained.run(&pool, &budget, notice_every).await });
        queues.insert(name.clone(), queue.clone());
        Some(queue)
    }

    /// Queues a message for each of these receivers; see [`Bus::send`].
    fn queue_for(&self, to: &[Arc<str>], message: &Bytes, urgent: bool) -> bool {
        if self.stopped.load(Relaxed) || message.len() > MESSAGE_BYTES_MAX {
            BusMetrics::add(&self.metrics.dropped, to.len());
            return false;
        }
        let mut all_taken = true;
        for name in to {
            match self.queue(name) {
                Some(queue) => all_taken &= queue.push(message.clone(), urgent, &self.budget),
                None => {
                    BusMetrics::add(&self.metrics.dropped, 1);
                    all_taken = false;
                }
            }
        }
        all_taken
    }
}

impl Bus for RedisBus {
    /// The handler is also told of a gap when the subscription is up for the first time: until then it got nothing.
    fn listen(&self, name: &str, handler: Arc<dyn MessageHandler>) {
        self.older.set_listener(name, &handler);
        let subscription = self.subscription(name, Some(self.config.installation), handler, self.health.clone());
        if let Some(runtime) = self.runtime.lock().as_ref() {
            runtime.spawn(async move { subscription.maintain().await });
        }
    }

    /// False when a receiver cannot be reached, its queue is full, or the message has more than [`MESSAGE_BYTES_MAX`]. The
    /// other receivers get the message all the same.
    fn send(&self, to: &[Arc<str>], message: Bytes) -> bool {
        self.queue_for(to, &message, true)
    }

    fn send_soon(&self, to: &[Arc<str>], message: Bytes) -> bool {
        self.queue_for(to, &message, false)
    }

    fn is_up(&self) -> bool {
        !self.stopped.load(Relaxed) && self.health.is_up()
    }

    fn trouble(&self) -> Option<String> {
        if self.stopped.load(Relaxed) { Some("stopped".into()) } else { self.health.trouble() }
    }

    /// The queues of peers that are reached under another channel from now on end: a message that waits there is sent still.
    fn set_peers_without_installation(&self, names: &[Arc<str>]) {
        for name in self.older.set(names) {
            if let Some(queue) = self.queues.write().remove(&name) {
                queue.end();
            }
        }
        self.older.listen_while_any(self.runtime.lock().as_ref(), |name, handler| {
            // Whether messages of these peers arrive says nothing about the bus.
            let health = Arc::new(Health::new(self.config.heartbeat_timeout));
            self.subscription(name, None, handler, health)
        });
    }

    fn unheard_by(&self, for_at_least: Duration) -> Vec<Arc<str>> {
        let until_ms = self.health.now_ms().saturating_sub(for_at_least.as_millis() as u64);
        let queues = self.queues.read();
        let is_unheard = |queue: &PeerQueue| queue.unheard_since_ms().is_some_and(|since| since <= until_ms);
        queues.iter().filter(|(_, queue)| is_unheard(queue)).map(|(name, _)| name.clone()).collect()
    }

    /// Waits for a moment until the queues are empty. A call of the handler that has begun may still end afterwards.
    fn stop(&self) {
        if self.stopped.swap(true, Relaxed) {
            return;
        }
        let deadline = Instant::now() + self.config.stop_wait;
        while self.metrics.queue_bytes.load(Relaxed) > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        if let Some(runtime) = self.runtime.lock().take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for RedisBus {
    fn drop(&mut self) {
        self.stopped.store(true, Relaxed);
        // Dropping the runtime in place would block, and panic within a task.
        if let Some(runtime) = self.runtime.get_mut().take() {
            runtime.shutdown_background();
        }
    }
}
