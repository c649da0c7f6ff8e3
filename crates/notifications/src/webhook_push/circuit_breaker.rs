//! The circuit breaker of the webhook: tells an event that the webhook does not take from a webhook that takes nothing.
//!
//! ```text
//! closed ── four conversations in a row fail ──▶ open ── a delivery succeeds ──▶ closed
//! ```
//! While it is open, attempts are rare. A new event is tried more often than a failed one: perhaps only the failed
//! events cannot be taken, and no other conversation should wait for minutes.

use super::{WebhookPushConfig, backoff};
use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

/// The breaker opens when this many conversations fail without a success in between.
const OPEN_AFTER: usize = 4;
/// The longest pause before a new event is tried, as a multiple of the shortest backoff: half a minute with the
/// defaults.
const NEW_PAUSE_MAX: u32 = 30;

/// The webhook's own wish for a pause is followed up to this.
const LEFT_ALONE_MAX: Duration = Duration::from_secs(60 * 60);

pub(super) struct CircuitBreaker {
    /// Conversations that have failed since the last success.
    failing: BTreeSet<Arc<str>>,
    /// Failed attempts since the breaker opened.
    failed: u32,
    retry_at: Instant,
    new_at: Instant,
    /// The webhook has asked to be left alone until then.
    left_alone_until: Instant,
}

impl CircuitBreaker {
    pub(super) fn new(now: Instant) -> Self {
        CircuitBreaker { failing: BTreeSet::new(), failed: 0, retry_at: now, new_at: now, left_alone_until: now }
    }

    pub(super) fn is_open(&self) -> bool {
        self.failing.len() >= OPEN_AFTER
    }

    /// Whether a failed event may be tried again now.
    pub(super) fn allows_retry(&self, now: Instant) -> bool {
        now >= self.left_alone_until && (!self.is_open() || now >= self.retry_at)
    }

    /// Whether a new event may be tried now.
    pub(super) fn allows_new(&self, now: Instant) -> bool {
        now >= self.left_alone_until && (!self.is_open() || now >= self.new_at)
    }

    /// The webhook has asked to be left alone for so long, of which an hour is granted.
    pub(super) fn leave_alone(&mut self, time: Duration, now: Instant) {
        self.left_alone_until = self.left_alone_until.max(now + time.min(LEFT_ALONE_MAX));
    }

    pub(super) fn record_success(&mut self) {
        if self.is_open() {
            tracing::info!("the webhook takes events again");
        }
        self.failing.clear();
        self.failed = 0;
    }

    /// Records a failed call. `conversation` is that of all its events, if they are of one conversation.
    pub(super) fn record_failure(
        &mut self,
        conversation: Option<&Arc<str>>,
        error: &str,
        config: &WebhookPushConfig,
        now: Instant,
    ) {
        let was_open = self.is_open();
        self.failing.extend(conversation.filter(|_| !was_open).cloned());
        if self.is_open() {
            if !was_open {
                tracing::warn!(error, "the webhook takes nothing; events are tried less often until it does");
            }
            self.failed = self.failed.saturating_add(1);
            self.retry_at = now + backoff(config, self.failed);
        }
    }

    /// Pauses new events, after one of them failed.
    pub(super) fn pause_new(&mut self, config: &WebhookPushConfig, now: Instant) {
        let longest = config.backoff_min.saturating_mul(NEW_PAUSE_MAX);
        self.new_at = now + backoff(config, self.failed).min(longest);
    }
}
