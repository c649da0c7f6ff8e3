//! Whether messages flow, as far as is known.

use parking_lot::Mutex;
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

pub(crate) struct Health {
    start: Instant,
    deaf_after: Duration,
    /// When the newest beat that was heard had left, on this clock; 0 is never.
    heard_ms: AtomicU64,
    troubles: Mutex<Troubles>,
}

struct Troubles {
    subscription: Option<String>,
    ways: Option<String>,
    /// Why the newest beat did not leave.
    beat: Option<String>,
}

impl Health {
    pub(crate) fn new(deaf_after: Duration) -> Self {
        let troubles = Troubles { subscription: Some("does not listen yet".into()), ways: None, beat: None };
        Self { start: Instant::now(), deaf_after, heard_ms: AtomicU64::new(0), troubles: Mutex::new(troubles) }
    }

    /// Milliseconds since the start, from 1.
    pub(crate) fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64 + 1
    }

    pub(crate) fn heard_beat(&self, sent_ms: u64) {
        self.heard_ms.fetch_max(sent_ms, Relaxed);
    }

    /// Nothing that was heard before now counts.
    pub(crate) fn forget_beats(&self) {
        self.heard_ms.store(0, Relaxed);
    }

    /// Whether a beat was heard that left less than `deaf_after` ago.
    pub(crate) fn hears_itself(&self) -> bool {
        let heard_ms = self.heard_ms.load(Relaxed);
        heard_ms > 0 && self.now_ms() < heard_ms + self.deaf_after.as_millis() as u64
    }

    /// Whether there was time to hear something since.
    pub(crate) fn is_later(&self, since_ms: u64) -> bool {
        self.now_ms() >= since_ms + self.deaf_after.as_millis() as u64
    }

    pub(crate) fn set_subscription(&self, trouble: Option<String>) {
        self.troubles.lock().subscription = trouble;
    }

    pub(crate) fn set_ways(&self, trouble: Option<String>) {
        self.troubles.lock().ways = trouble;
    }

    pub(crate) fn set_beat(&self, trouble: Option<String>) {
        self.troubles.lock().beat = trouble;
    }

    pub(crate) fn trouble(&self) -> Option<String> {
        let troubles = self.troubles.lock();
        let known = troubles.ways.clone().or_else(|| troubles.subscription.clone());
        let deaf =
            || troubles.beat.clone().unwrap_or_else(|| "what this node sends to itself does not come back".into());
        known.or_else(|| (!self.hears_itself()).then(deaf))
    }

    pub(crate) fn is_up(&self) -> bool {
        let troubles = self.troubles.lock();
        troubles.ways.is_none() && troubles.subscription.is_none() && self.hears_itself()
    }
}
