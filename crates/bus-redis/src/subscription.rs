//! The way to oneself: the subscription, and the beat that proves it.

use crate::{
    frame::Outgoing,
    health::Health,
    incoming::Incoming,
    map::{Address, Channel},
    metrics::BusMetrics,
    ways::{Ways, jittered, quote},
};
use redis::{PushInfo, PushKind, Value, aio::SendError};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::Notify,
    time::{MissedTickBehavior, interval},
};

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

pub(crate) struct Subscription {
    /// Tells this bus' beats from those of another that was given the same name.
    pub(crate) id: u64,
    pub(crate) channel: Channel,
    pub(crate) incoming: Arc<Incoming>,
    pub(crate) ways: Arc<Ways>,
    pub(crate) health: Arc<Health>,
    pub(crate) metrics: Arc<BusMetrics>,
    pub(crate) beat_every: Duration,
}

impl Subscription {
    /// Keeps the subscription, until it is dropped.
    pub(crate) async fn keep(&self) {
        let mut routes = self.ways.routes();
        self.ways.want(self.channel.slot);
        self.health.set_subscription(Some("not subscribed yet".into()));
        let mut pause = PAUSE_MIN;
        let mut said = String::new();
        loop {
            let owner = routes.borrow_and_update().owner(self.channel.slot).cloned();
            let Some(owner) = owner else {
                let _ = routes.changed().await;
                continue;
            };
            let (stood, why) = self.stand(&owner).await;
            if stood || said != why {
                tracing::warn!(why, "the bus does not hear");
                said.clone_from(&why);
            }
            self.health.set_subscription(Some(why));
            self.ways.suspect();
            pause = if stood { PAUSE_MIN } else { (pause * 2).min(PAUSE_MAX) };
            tokio::time::sleep(jittered(pause)).await;
        }
    }

    /// Subscribes at `owner`, and stays until that ends. Answers whether it stood at all, and why it ended.
    async fn stand(&self, owner: &Address) -> (bool, String) {
        let ended = Arc::new(Notify::new());
        let push = self.listener(ended.clone());
        let mut connection = match self.ways.dialer.dial(owner, push).await {
            Ok(connection) => connection,
            Err(why) => return (false, why),
        };
        self.health.forget_beats();
        let subscribed = connection.redis.send_packed_command(redis::cmd("SSUBSCRIBE").arg(&self.channel.name)).await;
        match subscribed {
            Ok(Value::ServerError(why)) => return (false, quote(owner, &why)),
            Err(why) => return (false, format!("{owner}: {why}")),
            Ok(_) => {}
        }
        tracing::info!(%owner, channel = self.channel.name, "the bus hears");
        self.health.set_subscription(None);
        BusMetrics::add(&self.metrics.resubscribed, 1);
        // Until now it heard nothing.
        self.incoming.missed();
        let beats = async {
            let stands_since_ms = self.health.now_ms();
            let mut ticks = interval(self.beat_every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                if self.ways.routes().borrow().owner(self.channel.slot).is_some_and(|now| now != owner) {
                    return format!("{owner}: the channel has moved");
                }
                if !self.health.hears_itself() && self.health.is_later(stands_since_ms) {
                    return format!("{owner}: what this node sends to itself does not come back");
                }
                let beat = Outgoing::beat(self.id, self.health.now_ms());
                let left = self.ways.publish(&self.channel, &[beat], true).await;
                self.health.set_beat(left.err());
            }
        };
        tokio::select! {
            why = beats => (true, why),
            () = ended.notified() => (true, format!("{owner}: the subscription was ended")),
        }
    }

    fn listener(&self, ended: Arc<Notify>) -> impl Fn(PushInfo) -> Result<(), SendError> + Send + Sync + 'static {
        let (incoming, health, id) = (self.incoming.clone(), self.health.clone(), self.id);
        move |mut info| {
            match info.kind {
                PushKind::SMessage => {
                    // Channel, content.
                    if let Some(Value::BulkString(content)) = info.data.pop()
                        && let Some(beat) = incoming.take(content.into())
                        && beat.lane == id
                    {
                        health.heard_beat(beat.sequence);
                    }
                }
                // The second is what a server says whose slot has moved away.
                PushKind::Disconnection | PushKind::SUnsubscribe => {
                    health.set_subscription(Some("the subscription was ended".into()));
                    ended.notify_one();
                }
                _ => {}
            }
            Ok(())
        }
    }
}
