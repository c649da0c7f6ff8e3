//! Whether it is an event that the webhook does not take, or the webhook that takes nothing.
//!
//! ```text
//! well ── four conversations in a row are not taken ──▶ out ── something is taken ──▶ well
//! ```
//! While it is out attempts become rare. Something new is tried more often than what failed before: it may be that just
//! those fail that were tried, and nobody else shall wait for minutes.

use super::{OutboxConfig, backoff};
use std::{collections::BTreeSet, sync::Arc, time::Instant};

/// Conversations of which nothing is taken, one after the other, until the webhook is out.
const OUTAGE_AFTER: usize = 4;
/// The longest rest from what is new, as a multiple of the shortest wait: half a minute, with the defaults.
const REST_FROM_NEW: u32 = 30;

pub(super) struct Health {
    /// Conversations that failed since something was taken.
    failing: BTreeSet<Arc<str>>,
    /// Attempts that failed since it is out.
    failed: u32,
    again_at: Instant,
    new_at: Instant,
}

impl Health {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Health { failing: BTreeSet::new(), failed: 0, again_at: now, new_at: now }
    }

    pub(super) fn is_out(&self) -> bool {
        self.failing.len() >= OUTAGE_AFTER
    }

    /// Whether what was not taken before may be tried now.
    pub(super) fn takes_again(&self, now: Instant) -> bool {
        !self.is_out() || now >= self.again_at
    }

    /// Whether something new may be tried now.
    pub(super) fn takes_new(&self, now: Instant) -> bool {
        !self.is_out() || now >= self.new_at
    }

    pub(super) fn took(&mut self) {
        if self.is_out() {
            tracing::info!("the webhook takes events again");
        }
        self.failing.clear();
        self.failed = 0;
    }

    /// A call was not taken; `conversation` names the one that all of its events were of, if it was one.
    pub(super) fn failed(&mut self, conversation: Option<&Arc<str>>, error: &str, config: &OutboxConfig, now: Instant) {
        let was_out = self.is_out();
        self.failing.extend(conversation.filter(|_| !was_out).cloned());
        if self.is_out() {
            if !was_out {
                tracing::warn!(error, "the webhook takes nothing; what waits is tried less often");
            }
            self.failed = self.failed.saturating_add(1);
            self.again_at = now + backoff(config, self.failed);
        }
    }

    /// Something new was not taken.
    pub(super) fn rest_from_new(&mut self, config: &OutboxConfig, now: Instant) {
        let longest = config.backoff_min.saturating_mul(REST_FROM_NEW);
        self.new_at = now + backoff(config, self.failed).min(longest);
    }
}
