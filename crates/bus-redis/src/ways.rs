//! The ways to publish: one connection to each primary that owns a channel we send to.
//!
//! One task keeps them: it reads the map of the cluster, connects, replaces what broke, and tells the others by [`Routes`].
//! Nothing is sent again unless the server refused it (`MOVED`): a message comes once or not at all.

use crate::{
    dial::{Connection, Dialer},
    frame::Outgoing,
    health::Health,
    map::{Address, Channel, Map},
    metrics::BusMetrics,
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

/// Between two attempts to mend: at first, and at most. About half of it is by chance, so that nodes do not come together.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Between two rounds, whoever asks for them.
const ROUND_GAP: Duration = Duration::from_millis(20);

pub(crate) struct Way {
    address: Address,
    connection: Connection,
    broken: Arc<AtomicBool>,
}

/// What is known of the cluster, and the ways that are open.
#[derive(Clone, Default)]
pub(crate) struct Routes {
    pub(crate) map: Option<Arc<Map>>,
    ways: BTreeMap<Address, Arc<Way>>,
}

impl Routes {
    pub(crate) fn way(&self, slot: u16) -> Option<Arc<Way>> {
        let way = self.ways.get(self.owner(slot)?)?;
        (!way.broken.load(Relaxed)).then(|| way.clone())
    }

    pub(crate) fn owner(&self, slot: u16) -> Option<&Address> {
        self.map.as_ref()?.owner(slot)
    }
}

pub(crate) struct Ways {
    pub(crate) dialer: Dialer,
    health: Arc<Health>,
    metrics: Arc<BusMetrics>,
    every: Duration,
    timeout: Duration,
    routes: watch::Sender<Routes>,
    /// Slots of the channels that we send to. They only grow: a connection too many costs little.
    slots: Mutex<BTreeSet<u16>>,
    /// Something does not fit the map: it is read again.
    suspect: AtomicBool,
    poked: Arc<Notify>,
    /// Whom to ask next for the map: a server may know an old one.
    turn: AtomicUsize,
}

/// What a server made of a pipeline.
enum Answer {
    Done,
    /// These, by index, are for another server.
    Moved(Vec<usize>),
}

impl Ways {
    pub(crate) fn new(
        dialer: Dialer,
        health: Arc<Health>,
        metrics: Arc<BusMetrics>,
        every: Duration,
        timeout: Duration,
    ) -> Self {
        Self {
            dialer,
            health,
            metrics,
            every,
            timeout,
            routes: watch::Sender::new(Routes::default()),
            slots: Mutex::default(),
            suspect: AtomicBool::new(true),
            poked: Arc::new(Notify::new()),
            turn: AtomicUsize::new(0),
        }
    }

    pub(crate) fn routes(&self) -> watch::Receiver<Routes> {
        self.routes.subscribe()
    }

    /// A way to this slot will be needed.
    pub(crate) fn want(&self, slot: u16) {
        if self.slots.lock().insert(slot) {
            self.poked.notify_one();
        }
    }

    /// The map may be out of date.
    pub(crate) fn suspect(&self) {
        self.suspect.store(true, Relaxed);
        self.poked.notify_one();
    }

    /// Publishes in this order, in one round trip. Waits for a way to be made if asked to. An error says why some of it may be
    /// lost.
    pub(crate) async fn publish(&self, channel: &Channel, frames: &[Outgoing], wait: bool) -> Result<(), String> {
        let mut routes = self.routes();
        if wait {
            let open = routes.wait_for(|routes| routes.way(channel.slot).is_some());
            let _ = tokio::time::timeout(self.timeout, open).await;
        }
        let way = routes.borrow_and_update().way(channel.slot).ok_or("no connection to the channel's server")?;
        let Answer::Moved(moved) = self.publish_over(&way, channel, frames.iter()).await? else { return Ok(()) };
        // They were not published, so they may be sent once more, to the server that has the slot now.
        self.suspect();
        let elsewhere = |routes: &Routes| {
            routes.owner(channel.slot).is_some_and(|owner| *owner != way.address) && routes.way(channel.slot).is_some()
        };
        let next = match tokio::time::timeout(self.timeout, routes.wait_for(elsewhere)).await {
            Ok(Ok(routes)) => routes.way(channel.slot),
            _ => None,
        };
        let next = next.ok_or("the channel has moved")?;
        match self.publish_over(&next, channel, moved.iter().map(|index| &frames[*index])).await? {
            Answer::Done => Ok(()),
            Answer::Moved(_) => {
                self.suspect();
                Err("the channel has moved twice".into())
            }
        }
    }

    async fn publish_over<'a>(
        &self,
        way: &Way,
        channel: &Channel,
        frames: impl ExactSizeIterator<Item = &'a Outgoing>,
    ) -> Result<Answer, String> {
        let (count, mut bytes) = (frames.len(), 0);
        let mut pipeline = Pipeline::with_capacity(count);
        for frame in frames {
            let mut command = Cmd::with_capacity(3, 16 + channel.name.len() + frame.size());
            command.arg("SPUBLISH").arg(&channel.name);
            frame.write(command.writer_for_next_arg()).map_err(|why| why.to_string())?;
            pipeline.add_command(command);
            bytes += frame.size();
        }
        BusMetrics::add(&self.metrics.publishes, count);
        BusMetrics::add(&self.metrics.publish_bytes, bytes);
        let sent = Instant::now();
        let answers = way.connection.redis.clone().send_packed_commands(&pipeline, 0, count).await;
        self.metrics.answered(sent.elapsed());
        // Whatever broke, what comes later on this connection could come twice or not at all.
        let answers = answers.map_err(|why| self.break_way(way, &why.to_string()))?;
        let (mut moved, mut failed) = (Vec::new(), None);
        for (index, answer) in answers.into_iter().enumerate() {
            match answer {
                Value::Int(0) => BusMetrics::add(&self.metrics.unheard, 1),
                Value::ServerError(why) if why.kind() == Some(ServerErrorKind::Moved) => moved.push(index),
                Value::ServerError(why) => failed = Some(quote(&way.address, &why)),
                _ => {}
            }
        }
        if let Some(failed) = failed {
            self.suspect();
            return Err(failed);
        }
        Ok(if moved.is_empty() { Answer::Done } else { Answer::Moved(moved) })
    }

    fn break_way(&self, way: &Way, why: &str) -> String {
        way.broken.store(true, Relaxed);
        self.suspect();
        let why = format!("{}: {why}", way.address);
        self.health.set_ways(Some(why.clone()));
        why
    }

    /// Keeps the ways, until it is dropped.
    pub(crate) async fn keep(&self) {
        let mut pause = PAUSE_MIN;
        let mut was_whole = true;
        loop {
            let round = self.round().await;
            if round.is_ok() != was_whole {
                was_whole = round.is_ok();
                match &round {
                    Ok(()) => tracing::info!("the bus reaches all that it sends to"),
                    Err(why) => tracing::warn!(why, "the bus does not reach all that it sends to"),
                }
            }
            let whole = round.is_ok();
            self.health.set_ways(round.err());
            if whole {
                pause = PAUSE_MIN;
                tokio::time::sleep(ROUND_GAP).await;
                let _ = tokio::time::timeout(self.every, self.poked.notified()).await;
            } else {
                self.suspect.store(true, Relaxed);
                tokio::time::sleep(jittered(pause)).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }

    async fn round(&self) -> Result<(), String> {
        let mut routes = self.routes.borrow().clone();
        join_all(routes.ways.values().map(|way| self.prove(way))).await;
        let all = routes.ways.len();
        routes.ways.retain(|_, way| !way.broken.load(Relaxed));
        self.tell(&routes);
        let mut trouble = None;
        if self.suspect.swap(false, Relaxed) || routes.ways.len() < all {
            trouble = self.read_map(&mut routes).await.err();
        }
        let Some(map) = routes.map.clone() else {
            return Err(trouble.unwrap_or_else(|| "no map of the cluster".into()));
        };
        let mut wanted = BTreeSet::new();
        for slot in self.slots.lock().iter() {
            match map.owner(*slot) {
                Some(owner) => _ = wanted.insert(owner.clone()),
                None => trouble = Some(format!("nobody owns slot {slot}")),
            }
        }
        routes.ways.retain(|address, _| wanted.contains(address));
        let missing = wanted.iter().filter(|address| !routes.ways.contains_key(*address));
        for opened in join_all(missing.map(|address| self.open(address))).await {
            match opened {
                Ok(way) => _ = routes.ways.insert(way.address.clone(), Arc::new(way)),
                Err(why) => trouble = Some(why),
            }
        }
        self.tell(&routes);
        trouble.map_or(Ok(()), Err)
    }

    /// Wakes those that wait for another way, and only then: a lane that is refused over the same one waits for its turn.
    fn tell(&self, routes: &Routes) {
        self.routes.send_if_modified(|told| {
            let same = |(one, other): (&Arc<Way>, &Arc<Way>)| Arc::ptr_eq(one, other);
            let same = told.map == routes.map
                && told.ways.len() == routes.ways.len()
                && told.ways.values().zip(routes.ways.values()).all(same);
            if !same {
                told.clone_from(routes);
            }
            !same
        });
    }

    /// A connection that does not answer is broken, though nobody closed it.
    async fn prove(&self, way: &Arc<Way>) {
        if !way.broken.load(Relaxed) {
            let mut redis = way.connection.redis.clone();
            let answer = redis.send_packed_command(&redis::cmd("PING")).await;
            if let Err(why) = answer {
                self.break_way(way, &why.to_string());
            }
        }
    }

    async fn open(&self, address: &Address) -> Result<Way, String> {
        let broken = Arc::new(AtomicBool::new(false));
        let (ended, poked) = (broken.clone(), self.poked.clone());
        let push = move |info: PushInfo| {
            if info.kind == PushKind::Disconnection {
                ended.store(true, Relaxed);
                poked.notify_one();
            }
            Ok::<(), SendError>(())
        };
        let connection = self.dialer.dial(address, push).await?;
        Ok(Way { address: address.clone(), connection, broken })
    }

    /// Asks one server after the other, the connected ones first, and begins with another one each time.
    async fn read_map(&self, routes: &mut Routes) -> Result<(), String> {
        let turn = self.turn.fetch_add(1, Relaxed);
        let mut connected: Vec<Arc<Way>> = routes.ways.values().cloned().collect();
        let count = connected.len().max(1);
        connected.rotate_left(turn % count);
        let mut why = None;
        for way in connected {
            match self.ask(&way).await {
                Ok(map) => return self.learn(routes, map),
                Err(trouble) => why = Some(trouble),
            }
        }
        let mut others = self.dialer.seeds();
        others.extend(routes.map.iter().flat_map(|map| map.addresses()));
        others.retain(|address| !routes.ways.contains_key(address));
        let mut seen = BTreeSet::new();
        others.retain(|address| seen.insert(address.clone()));
        let count = others.len().max(1);
        others.rotate_left(turn % count);
        for address in others {
            let asked = async {
                let way = self.open(&address).await?;
                Ok((self.ask(&way).await?, way))
            };
            match asked.await {
                Ok((map, way)) => {
                    // Kept if it is one of those that are needed.
                    routes.ways.insert(way.address.clone(), Arc::new(way));
                    return self.learn(routes, map);
                }
                Err(trouble) => why = Some(trouble),
            }
        }
        Err(why.unwrap_or_else(|| "nobody to ask".into()))
    }

    fn learn(&self, routes: &mut Routes, map: Map) -> Result<(), String> {
        BusMetrics::add(&self.metrics.maps_read, 1);
        if matches!(map, Map::One(_)) && self.dialer.seeds().len() > 1 {
            // Each node would take one of them, and hear only those that took the same.
            return Err("several addresses of Redis are given, but they are no cluster".into());
        }
        if routes.map.as_deref() != Some(&map) {
            routes.map = Some(Arc::new(map));
        }
        Ok(())
    }

    async fn ask(&self, way: &Way) -> Result<Map, String> {
        let mut redis = way.connection.redis.clone();
        let answer = redis.send_packed_command(redis::cmd("CLUSTER").arg("SLOTS")).await;
        match answer.map_err(|why| self.break_way(way, &why.to_string()))? {
            Value::ServerError(why)
                if why.details().is_some_and(|details| details.contains("cluster support disabled")) =>
            {
                Ok(Map::One(way.address.clone()))
            }
            Value::ServerError(why) => Err(quote(&way.address, &why)),
            answer => Map::read(&way.address, &answer)
                .ok_or_else(|| format!("{}: knows no servers of a cluster", way.address)),
        }
    }
}

/// What a server refused with.
pub(crate) fn quote(server: &Address, why: &ServerError) -> String {
    format!("{server}: {} {}", why.code(), why.details().unwrap_or_default())
}

pub(crate) fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::rng().random_range(0.5..1.5))
}
