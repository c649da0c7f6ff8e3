//! Whether messages flow, as far as is known.

use parking_lot::Mutex;
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

pub(crate) struct Health {
    start: Instant,
    heartbeat_timeout: Duration,
    /// When the newest heartbeat that came back was sent, on this clock; 0: none came back.
    heartbeat_ms: AtomicU64,
    troubles: Mutex<Troubles>,
}

struct Troubles {
    subscription: Option<String>,
    connections: Option<String>,
    /// Why the newest heartbeat could not be sent.
    heartbeat: Option<String>,
}

impl Health {
    pub(crate) fn new(heartbeat_timeout: Duration) -> Self {
        let subscription = Some("does not listen yet".into());
        let troubles = Troubles { subscription, connections: None, heartbeat: None };
        let (start, heartbeat_ms) = (Instant::now(), AtomicU64::new(0));
        Self { start, heartbeat_timeout, heartbeat_ms, troubles: Mutex::new(troubles) }
    }

    /// Milliseconds since the start, from 1.
    pub(crate) fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64 + 1
    }

    pub(crate) fn on_heartbeat(&self, sent_ms: u64) {
        self.heartbeat_ms.fetch_max(sent_ms, Relaxed);
    }

    /// The heartbeats so far no longer count: they came over a subscription that has ended.
    pub(crate) fn forget_heartbeats(&self) {
        self.heartbeat_ms.store(0, Relaxed);
    }

    /// Whether a heartbeat came back that was sent less than `heartbeat_timeout` ago.
    pub(crate) fn hears_itself(&self) -> bool {
        let sent_ms = self.heartbeat_ms.load(Relaxed);
        sent_ms > 0 && self.now_ms() < sent_ms + self.heartbeat_timeout.as_millis() as u64
    }

    /// Whether a heartbeat should have come back by now, if sent at `since_ms`.
    pub(crate) fn is_overdue(&self, since_ms: u64) -> bool {
        self.now_ms() >= since_ms + self.heartbeat_timeout.as_millis() as u64
    }

    pub(crate) fn set_subscription(&self, trouble: Option<String>) {
        self.troubles.lock().subscription = trouble;
    }

    pub(crate) fn set_connections(&self, trouble: Option<String>) {
        self.troubles.lock().connections = trouble;
    }

    pub(crate) fn set_heartbeat(&self, trouble: Option<String>) {
        self.troubles.lock().heartbeat = trouble;
    }

    pub(crate) fn trouble(&self) -> Option<String> {
        let troubles = self.troubles.lock();
        let known = troubles.connections.clone().or_else(|| troubles.subscription.clone());
        let silent =
            || troubles.heartbeat.clone().unwrap_or_else(|| "what this node sends to itself does not come back".into());
        known.or_else(|| (!self.hears_itself()).then(silent))
    }

    pub(crate) fn is_up(&self) -> bool {
        let troubles = self.troubles.lock();
        troubles.connections.is_none() && troubles.subscription.is_none() && self.hears_itself()
    }
}
