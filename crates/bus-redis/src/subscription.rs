//! This node's subscription to its own channel, and the heartbeat that proves it.

use crate::{
    connection::{ConnectionPool, describe_refusal, jittered},
    frame::OutgoingFrame,
    health::Health,
    incoming::Incoming,
    metrics::BusMetrics,
    slot_map::{Address, Channel},
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
    /// Distinguishes this bus's heartbeats from those of another process that was given the same name.
    pub(crate) id: u64,
    pub(crate) channel: Channel,
    pub(crate) incoming: Arc<Incoming>,
    pub(crate) pool: Arc<ConnectionPool>,
    pub(crate) health: Arc<Health>,
    pub(crate) metrics: Arc<BusMetrics>,
    pub(crate) heartbeat_every: Duration,
}

impl Subscription {
    /// Subscribes, and subscribes again whenever that ends. Never returns.
    pub(crate) async fn maintain(&self) {
        let mut routes = self.pool.routes();
        self.pool.want(self.channel.slot);
        self.health.set_subscription(Some("not subscribed yet".into()));
        let mut pause = PAUSE_MIN;
        let mut logged = String::new();
        loop {
            let owner = routes.borrow_and_update().owner(self.channel.slot).cloned();
            let Some(owner) = owner else {
                let _ = routes.changed().await;
                continue;
            };
            let (was_up, why) = self.hold(&owner).await;
            if was_up || logged != why {
                tracing::warn!(why, "the bus does not hear");
                logged.clone_from(&why);
            }
            self.health.set_subscription(Some(why));
            self.pool.doubt_map();
            pause = if was_up { PAUSE_MIN } else { (pause * 2).min(PAUSE_MAX) };
            tokio::time::sleep(jittered(pause)).await;
        }
    }

    /// Subscribes at `owner`, and holds the subscription until it ends. Returns whether it was up at all, and why it ended.
    async fn hold(&self, owner: &Address) -> (bool, String) {
        let ended = Arc::new(Notify::new());
        let mut connection = match self.pool.dialer.dial(owner, self.on_push(ended.clone())).await {
            Ok(connection) => connection,
            Err(why) => return (false, why),
        };
        self.health.forget_heartbeats();
        let subscribed = connection.redis.send_packed_command(redis::cmd("SSUBSCRIBE").arg(&self.channel.name)).await;
        match subscribed {
            Ok(Value::ServerError(why)) => return (false, describe_refusal(owner, &why)),
            Err(why) => return (false, format!("{owner}: {why}")),
            Ok(_) => {}
        }
        tracing::info!(%owner, channel = self.channel.name, "the bus hears");
        self.health.set_subscription(None);
        BusMetrics::add(&self.metrics.resubscribed, 1);
        // What was sent before the subscription is lost.
        self.incoming.on_gap();
        let heartbeats = async {
            let up_since_ms = self.health.now_ms();
            let mut ticks = interval(self.heartbeat_every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                if self.pool.routes().borrow().owner(self.channel.slot).is_some_and(|now| now != owner) {
                    return format!("{owner}: the channel has moved");
                }
                if !self.health.hears_itself() && self.health.is_overdue(up_since_ms) {
                    return format!("{owner}: what this node sends to itself does not come back");
                }
                let heartbeat = OutgoingFrame::heartbeat(self.id, self.health.now_ms());
                let sent = self.pool.publish(&self.channel, &[heartbeat], true).await;
                self.health.set_heartbeat(sent.err());
            }
        };
        tokio::select! {
            why = heartbeats => (true, why),
            () = ended.notified() => (true, format!("{owner}: the subscription was ended")),
        }
    }

    /// Takes what the server pushes on the subscription's connection.
    fn on_push(&self, ended: Arc<Notify>) -> impl Fn(PushInfo) -> Result<(), SendError> + Send + Sync + 'static {
        let (incoming, health, id) = (self.incoming.clone(), self.health.clone(), self.id);
        move |mut info| {
            match info.kind {
                PushKind::SMessage => {
                    // The channel's name comes first, then the content.
                    if let Some(Value::BulkString(content)) = info.data.pop()
                        && let Some(heartbeat) = incoming.on_frame(content.into())
                        && heartbeat.queue == id
                    {
                        health.on_heartbeat(heartbeat.sequence);
                    }
                }
                // A server sends the second one when the channel's slot has moved to another server.
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
