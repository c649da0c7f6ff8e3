//! The bus between nodes, on Redis: the `Bus` port over one sharded channel per node.
//!
//! ```text
//!  send ─ lane: queue, task ─┐                                          ┌─ SSUBSCRIBE ─ joined, checked ─ ear
//!  send ─ lane: queue, task ─┼─ SPUBLISH, in pipelines, to the primary ─┤  (the receiver's own connection)
//!         one per receiver   ┘  that owns the receiver's channel        └─ a beat to itself proves the way
//! ```
//! Nothing rests on it: Redis stores nothing for us, and what is lost is told ([`MessageHandler::on_gap`]) so that it can be read from the
//! store. What the ear hears is unchanged, comes once, and in each sender's order.
//!
//! In reading order: [`config`] what can be set; [`map`] who owns a channel; [`frame`] what travels; [`lane`] how it
//! leaves; [`ways`] over which connections, made by [`dial`]; [`subscription`] and [`incoming`] how it comes; [`health`]
//! whether it does. Needs Redis 7.0 or Valkey, as a cluster or a single server, and of its commands no more than
//! `SPUBLISH`, `SSUBSCRIBE`, `PING`, `HELLO` and `CLUSTER SLOTS`. It knows nothing of what messages mean.
//!
//! Not done here: sending again what was lost, and telling whether a receiver exists.

mod config;
mod dial;
mod frame;
mod health;
mod incoming;
mod lane;
mod map;
mod metrics;
mod subscription;
mod ways;

pub use config::{ConfigError, RedisBusConfig};
pub use frame::{MESSAGE_BYTES_MAX, PART_BYTES};
pub use metrics::{BusMetrics, BusSnapshot, ROUND_TRIP_BOUNDS_US};

use bytes::Bytes;
use dial::Dialer;
use health::Health;
use incoming::Incoming;
use lane::{Lane, Room};
use map::Channel;
use parking_lot::{Mutex, RwLock};
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use subscription::Subscription;
use tidings_engine::cluster::bus::{Bus, MessageHandler};
use tokio::runtime::{Builder, Runtime};
use ways::Ways;

/// Receivers that are sent to. One more pushes out the one that was not sent to for longest, if that is [`LANE_IDLE_MS`];
/// otherwise what is sent to it is dropped.
const LANES_MAX: usize = 1_024;
const LANE_IDLE_MS: u64 = 60_000;

/// A node's end of the bus. Its threads end with [`Bus::stop`], or when it is dropped.
pub struct RedisBus {
    runtime: Mutex<Option<Runtime>>,
    config: RedisBusConfig,
    ways: Arc<Ways>,
    health: Arc<Health>,
    metrics: Arc<BusMetrics>,
    room: Arc<Room>,
    lanes: RwLock<HashMap<Arc<str>, Arc<Lane>>>,
    stopped: Arc<AtomicBool>,
}

impl RedisBus {
    /// Begins to connect. Redis need not be there: [`Bus::is_up`] tells.
    pub fn start(config: RedisBusConfig) -> Result<Self, ConfigError> {
        let metrics = Arc::new(BusMetrics::default());
        let dialer = Dialer::new(&config, metrics.clone())?;
        let health = Arc::new(Health::new(config.deaf_after));
        let ways = Ways::new(dialer, health.clone(), metrics.clone(), config.beat_every, config.publish_timeout);
        let ways = Arc::new(ways);
        let runtime = Builder::new_multi_thread().worker_threads(2).thread_name("bus").enable_all().build();
        let runtime = runtime.map_err(|why| ConfigError::NoThreads(why.to_string()))?;
        let keeper = ways.clone();
        runtime.spawn(async move { keeper.keep().await });
        let room = Arc::new(Room { bytes_max: config.queue_bytes_max as u64, metrics: metrics.clone() });
        Ok(Self {
            runtime: Mutex::new(Some(runtime)),
            config,
            ways,
            health,
            metrics,
            room,
            lanes: RwLock::default(),
            stopped: Arc::default(),
        })
    }

    pub fn metrics(&self) -> &Arc<BusMetrics> {
        &self.metrics
    }

    fn lane(&self, name: &Arc<str>) -> Option<Arc<Lane>> {
        let now_ms = self.health.now_ms();
        if let Some(lane) = self.lanes.read().get(name) {
            lane.used_ms.store(now_ms, Relaxed);
            return Some(lane.clone());
        }
        let mut lanes = self.lanes.write();
        if let Some(lane) = lanes.get(name) {
            return Some(lane.clone());
        }
        if lanes.len() >= LANES_MAX {
            let idlest = lanes.iter().min_by_key(|(_, lane)| lane.used_ms.load(Relaxed));
            let idlest = idlest.filter(|(_, lane)| lane.used_ms.load(Relaxed) + LANE_IDLE_MS <= now_ms);
            let idlest = idlest.map(|(name, _)| name.clone())?;
            lanes.remove(&idlest)?.end();
        }
        let runtime = self.runtime.lock();
        let runtime = runtime.as_ref()?;
        let channel = Channel::of(&self.config.prefix, name);
        self.ways.want(channel.slot);
        let lane = Arc::new(Lane::new(channel, now_ms));
        let (runs, ways, room, every) = (lane.clone(), self.ways.clone(), self.room.clone(), self.config.beat_every);
        runtime.spawn(async move { runs.run(&ways, &room, every).await });
        lanes.insert(name.clone(), lane.clone());
        Some(lane)
    }
}

impl Bus for RedisBus {
    /// The ear is also told that it may have missed something when the channel stands for the first time: until then it heard
    /// nothing.
    fn listen(&self, name: &str, handler: Arc<dyn MessageHandler>) {
        let subscription = Subscription {
            id: rand::random(),
            channel: Channel::of(&self.config.prefix, name),
            incoming: Arc::new(Incoming::new(handler, self.metrics.clone(), self.stopped.clone())),
            ways: self.ways.clone(),
            health: self.health.clone(),
            metrics: self.metrics.clone(),
            beat_every: self.config.beat_every,
        };
        if let Some(runtime) = self.runtime.lock().as_ref() {
            runtime.spawn(async move { subscription.keep().await });
        }
    }

    /// False when one of them cannot be reached, the queue is full, or the message has more than [`MESSAGE_BYTES_MAX`];
    /// the others get it all the same.
    fn send(&self, to: &[Arc<str>], message: Bytes) -> bool {
        if self.stopped.load(Relaxed) || message.len() > MESSAGE_BYTES_MAX {
            BusMetrics::add(&self.metrics.dropped, to.len());
            return false;
        }
        let mut all = true;
        for name in to {
            match self.lane(name) {
                Some(lane) => all &= lane.put(message.clone(), &self.room),
                None => {
                    BusMetrics::add(&self.metrics.dropped, 1);
                    all = false;
                }
            }
        }
        all
    }

    fn is_up(&self) -> bool {
        !self.stopped.load(Relaxed) && self.health.is_up()
    }

    fn trouble(&self) -> Option<String> {
        if self.stopped.load(Relaxed) { Some("stopped".into()) } else { self.health.trouble() }
    }

    /// Waits for a moment until what was taken has left. A call to the ear that has begun may still end.
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
        // Dropping it in place would wait, and panic in a task.
        if let Some(runtime) = self.runtime.get_mut().take() {
            runtime.shutdown_background();
        }
    }
}
