//! The connections to publish over: one to each primary that owns a channel we send to.
//!
//! One task maintains the pool: it reads the cluster's slot map, connects, replaces broken connections, and publishes the
//! result as [`Routes`]. A command is sent again only if the server refused it (`MOVED`): a message arrives once or not at
//! all.

use crate::{
    dialer::{Dialer, LimitedConnection},
    frame::OutgoingFrame,
    health::Health,
    metrics::BusMetrics,
    slot_map::{Address, Channel, SlotMap},
};
use futures_util::future::join_all;
use parking_lot::Mutex;
use rand::RngExt;
use redis::{Cmd, Pipeline, PushInfo, PushKind, RedisWrite, ServerError, ServerErrorKind, Value, aio::SendError};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tokio::sync::{Notify, watch};

/// The backoff between attempts to repair the pool: at first, and at most. It is jittered by half, so that nodes do not come
/// all together.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The least pause between two rounds of maintenance, however often they are asked for.
const ROUND_PAUSE_MIN: Duration = Duration::from_millis(20);

pub(crate) struct Connection {
    address: Address,
    limited: LimitedConnection,
    broken: Arc<AtomicBool>,
}

/// The slot map, and the open connections by server.
#[derive(Clone, Default)]
pub(crate) struct Routes {
    pub(crate) slot_map: Option<Arc<SlotMap>>,
    connections: BTreeMap<Address, Arc<Connection>>,
}

impl Routes {
    pub(crate) fn connection(&self, slot: u16) -> Option<Arc<Connection>> {
        let connection = self.connections.get(self.owner(slot)?)?;
        (!connection.broken.load(Relaxed)).then(|| connection.clone())
    }

    pub(crate) fn owner(&self, slot: u16) -> Option<&Address> {
        self.slot_map.as_ref()?.owner(slot)
    }
}

pub(crate) struct ConnectionPool {
    pub(crate) dialer: Dialer,
    health: Arc<Health>,
    metrics: Arc<BusMetrics>,
    ping_every: Duration,
    timeout: Duration,
    routes: watch::Sender<Routes>,
    /// Slots of the channels that we send to. They are never removed: a connection too many costs little.
    wanted_slots: Mutex<BTreeSet<u16>>,
    /// The slot map may be out of date: the next round reads it again.
    is_map_doubted: AtomicBool,
    wake: Arc<Notify>,
    /// Counts reads of the slot map, to begin with another server each time: a server may have an old map.
    map_reads: AtomicUsize,
}

/// How a server answered a pipeline.
enum PipelineOutcome {
    /// Whether the last command met a subscriber.
    Done { is_heard: bool },
    /// The commands with these indexes are for another server.
    Moved(Vec<usize>),
}

impl ConnectionPool {
    pub(crate) fn new(
        dialer: Dialer,
        health: Arc<Health>,
        metrics: Arc<BusMetrics>,
        ping_every: Duration,
        timeout: Duration,
    ) -> Self {
        Self {
            dialer,
            health,
            metrics,
            ping_every,
            timeout,
            routes: watch::Sender::new(Routes::default()),
            wanted_slots: Mutex::default(),
            is_map_doubted: AtomicBool::new(true),
            wake: Arc::new(Notify::new()),
            map_reads: AtomicUsize::new(0),
        }
    }

    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    pub(crate) fn routes(&self) -> watch::Receiver<Routes> {
        self.routes.subscribe()
    }

    /// Has the pool connect to the server that owns this slot.
    pub(crate) fn want(&self, slot: u16) {
        if self.wanted_slots.lock().insert(slot) {
            self.wake.notify_one();
        }
    }

    /// Has the slot map read again, because it may be out of date.
    pub(crate) fn doubt_map(&self) {
        self.is_map_doubted.store(true, Relaxed);
        self.wake.notify_one();
    }

    /// Publishes the frames in order, in one round trip. `wait`: for a connection, if there is none yet. Returns whether
    /// somebody listened to the last one.
    ///
    /// # Errors
    /// Some of the frames may be lost. The text says why, for operators.
    pub(crate) async fn publish(
        &self,
        channel: &Channel,
        frames: &[OutgoingFrame],
        wait: bool,
    ) -> Result<bool, String> {
        let mut routes = self.routes();
        if wait {
            let open = routes.wait_for(|routes| routes.connection(channel.slot).is_some());
            let _ = tokio::time::timeout(self.timeout, open).await;
        }
        let connection =
            routes.borrow_and_update().connection(channel.slot).ok_or("no connection to the channel's server")?;
        let moved = match self.publish_on(&connection, channel, frames.iter()).await? {
            PipelineOutcome::Done { is_heard } => return Ok(is_heard),
            PipelineOutcome::Moved(moved) => moved,
        };
        // The server has not published these frames, so they may be sent once more, to the slot's new owner.
        self.doubt_map();
        let has_new_owner = |routes: &Routes| {
            routes.owner(channel.slot).is_some_and(|owner| *owner != connection.address)
                && routes.connection(channel.slot).is_some()
        };
        let next = match tokio::time::timeout(self.timeout, routes.wait_for(has_new_owner)).await {
            Ok(Ok(routes)) => routes.connection(channel.slot),
            _ => None,
        };
        let next = next.ok_or("the channel has moved")?;
        match self.publish_on(&next, channel, moved.iter().map(|index| &frames[*index])).await? {
            PipelineOutcome::Done { is_heard } => Ok(is_heard),
            PipelineOutcome::Moved(_) => {
                self.doubt_map();
                Err("the channel has moved twice".into())
            }
        }
    }

    async fn publish_on<'a>(
        &self,
        connection: &Connection,
        channel: &Channel,
        frames: impl ExactSizeIterator<Item = &'a OutgoingFrame>,
    ) -> Result<PipelineOutcome, String> {
        let (count, mut bytes) = (frames.len(), 0);
        let mut pipeline = Pipeline::with_capacity(count);
        for frame in frames {
            let mut command = Cmd::with_capacity(3, 16 + channel.name.len() + frame.size());
            command.arg("SPUBLISH").arg(&channel.name);
            frame.write(channel.installation, command.writer_for_next_arg()).map_err(|why| why.to_string())?;
            pipeline.add_command(command);
            bytes += frame.size();
        }
        BusMetrics::add(&self.metrics.publishes, count);
        BusMetrics::add(&self.metrics.publish_bytes, bytes);
        let sent = Instant::now();
        let answers = connection.limited.redis.clone().send_packed_commands(&pipeline, 0, count).await;
        self.metrics.count_round_trip(sent.elapsed());
        // After an error the connection is not used again: it is unknown which commands reached the server, and answers
        // could be taken for those of other commands.
        let answers = answers.map_err(|why| self.mark_broken(connection, &why.to_string()))?;
        let (mut moved, mut failed, mut is_heard) = (Vec::new(), None, true);
        for (index, answer) in answers.into_iter().enumerate() {
            is_heard = answer != Value::Int(0);
            match answer {
                Value::Int(0) => BusMetrics::add(&self.metrics.unheard, 1),
                Value::ServerError(why) if why.kind() == Some(ServerErrorKind::Moved) => moved.push(index),
                Value::ServerError(why) => failed = Some(describe_refusal(&connection.address, &why)),
                _ => {}
            }
        }
        if let Some(failed) = failed {
            self.doubt_map();
            return Err(failed);
        }
        Ok(if moved.is_empty() { PipelineOutcome::Done { is_heard } } else { PipelineOutcome::Moved(moved) })
    }

    fn mark_broken(&self, connection: &Connection, why: &str) -> String {
        connection.broken.store(true, Relaxed);
        self.doubt_map();
        let why = format!("{}: {why}", connection.address);
        self.health.set_connections(Some(why.clone()));
        why
    }

    /// Maintains the pool. Never returns.
    pub(crate) async fn maintain(&self) {
        let mut pause = PAUSE_MIN;
        let mut was_complete = true;
        loop {
            let round = self.round().await;
            if round.is_ok() != was_complete {
                was_complete = round.is_ok();
                match &round {
                    Ok(()) => tracing::info!("the bus reaches all that it sends to"),
                    Err(why) => tracing::warn!(why, "the bus does not reach all that it sends to"),
                }
            }
            let is_complete = round.is_ok();
            self.health.set_connections(round.err());
            if is_complete {
                pause = PAUSE_MIN;
                tokio::time::sleep(ROUND_PAUSE_MIN).await;
                let _ = tokio::time::timeout(self.ping_every, self.wake.notified()).await;
            } else {
                self.is_map_doubted.store(true, Relaxed);
                tokio::time::sleep(jittered(pause)).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }

    /// Pings every connection, and replaces those that are broken or whose server no longer owns a wanted slot.
    async fn round(&self) -> Result<(), String> {
        let mut routes = self.routes.borrow().clone();
        join_all(routes.connections.values().map(|connection| self.ping(connection))).await;
        let all = routes.connections.len();
        routes.connections.retain(|_, connection| !connection.broken.load(Relaxed));
        self.announce(&routes);
        let mut trouble = None;
        if self.is_map_doubted.swap(false, Relaxed) || routes.connections.len() < all {
            trouble = self.read_slot_map(&mut routes).await.err();
        }
        let Some(slot_map) = routes.slot_map.clone() else {
            return Err(trouble.unwrap_or_else(|| "no map of the cluster".into()));
        };
        let mut wanted = BTreeSet::new();
        for slot in self.wanted_slots.lock().iter() {
            match slot_map.owner(*slot) {
                Some(owner) => _ = wanted.insert(owner.clone()),
                None => trouble = Some(format!("nobody owns slot {slot}")),
            }
        }
        routes.connections.retain(|address, _| wanted.contains(address));
        let missing = wanted.iter().filter(|address| !routes.connections.contains_key(*address));
        for connected in join_all(missing.map(|address| self.connect(address))).await {
            match connected {
                Ok(connection) => _ = routes.connections.insert(connection.address.clone(), Arc::new(connection)),
                Err(why) => trouble = Some(why),
            }
        }
        self.announce(&routes);
        trouble.map_or(Ok(()), Err)
    }

    /// Publishes the routes if they have changed. Otherwise queues that wait for another connection are not woken: one whose
    /// notice was refused tries the same connection again at its own pace.
    fn announce(&self, routes: &Routes) {
        self.routes.send_if_modified(|known| {
            let is_same = |(one, other): (&Arc<Connection>, &Arc<Connection>)| Arc::ptr_eq(one, other);
            let is_same = known.slot_map == routes.slot_map
                && known.connections.len() == routes.connections.len()
                && known.connections.values().zip(routes.connections.values()).all(is_same);
            if !is_same {
                known.clone_from(routes);
            }
            !is_same
        });
    }

    /// A connection that does not answer is broken even if neither side has closed it.
    async fn ping(&self, connection: &Arc<Connection>) {
        if !connection.broken.load(Relaxed) {
            let mut redis = connection.limited.redis.clone();
            let answer = redis.send_packed_command(&redis::cmd("PING")).await;
            if let Err(why) = answer {
                self.mark_broken(connection, &why.to_string());
            }
        }
    }

    async fn connect(&self, address: &Address) -> Result<Connection, String> {
        let broken = Arc::new(AtomicBool::new(false));
        let (ended, wake) = (broken.clone(), self.wake.clone());
        let push = move |info: PushInfo| {
            if info.kind == PushKind::Disconnection {
                ended.store(true, Relaxed);
                wake.notify_one();
            }
            Ok::<(), SendError>(())
        };
        let limited = self.dialer.dial(address, push).await?;
        Ok(Connection { address: address.clone(), limited, broken })
    }

    /// Asks one server after the other, connected ones first, until one answers. Each call begins with another server.
    async fn read_slot_map(&self, routes: &mut Routes) -> Result<(), String> {
        let offset = self.map_reads.fetch_add(1, Relaxed);
        let mut connected: Vec<Arc<Connection>> = routes.connections.values().cloned().collect();
        let count = connected.len().max(1);
        connected.rotate_left(offset % count);
        let mut why = None;
        for connection in connected {
            match self.query_slot_map(&connection).await {
                Ok(slot_map) => return self.adopt(routes, slot_map),
                Err(trouble) => why = Some(trouble),
            }
        }
        let mut others = self.dialer.seeds();
        others.extend(routes.slot_map.iter().flat_map(|slot_map| slot_map.addresses()));
        others.retain(|address| !routes.connections.contains_key(address));
        let mut seen = BTreeSet::new();
        others.retain(|address| seen.insert(address.clone()));
        let count = others.len().max(1);
        others.rotate_left(offset % count);
        for address in others {
            let queried = async {
                let connection = self.connect(&address).await?;
                Ok((self.query_slot_map(&connection).await?, connection))
            };
            match queried.await {
                Ok((slot_map, connection)) => {
                    // The round drops it again if its server owns no wanted slot.
                    routes.connections.insert(connection.address.clone(), Arc::new(connection));
                    return self.adopt(routes, slot_map);
                }
                Err(trouble) => why = Some(trouble),
            }
        }
        Err(why.unwrap_or_else(|| "nobody to ask".into()))
    }

    fn adopt(&self, routes: &mut Routes, slot_map: SlotMap) -> Result<(), String> {
        BusMetrics::add(&self.metrics.slot_maps_read, 1);
        if matches!(slot_map, SlotMap::Standalone(_)) && self.dialer.seeds().len() > 1 {
            // Nodes that connect to different servers would not hear each other.
            return Err("several addresses of Redis are given, but they are not a cluster".into());
        }
        if routes.slot_map.as_deref() != Some(&slot_map) {
            routes.slot_map = Some(Arc::new(slot_map));
        }
        Ok(())
    }

    async fn query_slot_map(&self, connection: &Connection) -> Result<SlotMap, String> {
        let mut redis = connection.limited.redis.clone();
        let answer = redis.send_packed_command(redis::cmd("CLUSTER").arg("SLOTS")).await;
        match answer.map_err(|why| self.mark_broken(connection, &why.to_string()))? {
            Value::ServerError(why)
                if why.details().is_some_and(|details| details.contains("cluster support disabled")) =>
            {
                Ok(SlotMap::Standalone(connection.address.clone()))
            }
            Value::ServerError(why) => Err(describe_refusal(&connection.address, &why)),
            answer => SlotMap::parse(&connection.address, &answer)
                .ok_or_else(|| format!("{}: knows no servers of a cluster", connection.address)),
        }
    }
}

/// A server's error answer, for operators.
pub(crate) fn describe_refusal(server: &Address, why: &ServerError) -> String {
    format!("{server}: {} {}", why.code(), why.details().unwrap_or_default())
}

pub(crate) fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::rng().random_range(0.5..1.5))
}
