//! The rows of pushes that providers have not tried yet: while there are many, further devices do not fall back.

use crate::offline_recipients::OfflinePushContext;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use tidings_domain::store::{RowChange, RowSpace, StoreResult};
use tidings_protocol::http::PushProvider;

/// Rows, each of some dozens of devices, that a provider has not tried yet. With more the next devices wait, unless they have been there for
/// [`UNTRIED_WAIT`]: then the provider counts as away.
const UNTRIED_MAX: usize = 8;
const UNTRIED_WAIT: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct UntriedPushes(BTreeMap<PushProvider, Untried>);

struct Untried {
    keys: Vec<Vec<u8>>,
    /// When there were few of them last.
    few_at: Instant,
}

impl Untried {
    fn are_many(&self) -> bool {
        self.keys.len() > UNTRIED_MAX
    }
}

impl UntriedPushes {
    /// Whether a provider is still to try many rows, and has not had long for it.
    pub(super) fn are_to_be_tried_first(&mut self, context: &OfflinePushContext) -> StoreResult<bool> {
        let now = context.clock.monotonic();
        let mut are = false;
        for untried in self.0.values_mut().filter(|untried| !untried.keys.is_empty()) {
            let rows = context.store.rows_of(RowSpace::Chat, &untried.keys)?;
            let mut is_there = rows.iter().map(Option::is_some);
            untried.keys.retain(|_| is_there.next().unwrap_or(false));
            if !untried.are_many() {
                untried.few_at = now;
            }
            are |= untried.are_many() && now.saturating_duration_since(untried.few_at) < UNTRIED_WAIT;
        }
        Ok(are)
    }

    pub(super) fn are_many(&self, provider: PushProvider) -> bool {
        self.0.get(&provider).is_some_and(Untried::are_many)
    }

    pub(super) fn add(&mut self, provider: PushProvider, rows: &[RowChange], now: Instant) {
        let untried = self.0.entry(provider).or_insert_with(|| Untried { keys: Vec::new(), few_at: now });
        if untried.keys.is_empty() {
            untried.few_at = now;
        }
        untried.keys.extend(rows.iter().map(|row| row.key.clone()));
    }
}
