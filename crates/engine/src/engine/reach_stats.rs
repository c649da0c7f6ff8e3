//! How often each road was tried, and what came of it, in a time range.

use crate::engine::Engine;
use std::collections::BTreeMap;
use tidings_domain::{
    chat_rows::{number_in, reach_counts_of},
    reach_counts::{HOUR_MS, ReachEvent, RoadCounts},
    refusals::store_refusal,
    store::{RowSpace, StoreResult},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{ReachRoad, ReachStats, RoadStats},
};

/// Rows in one read: an hour has one for each road and boot.
const ROWS_AT_ONCE: usize = 500;
const DAY_MS: u64 = 24 * HOUR_MS;

impl Engine {
    /// What came of each road between these times (milliseconds since 1970 UTC), in whole hours: the last day, if none are named.
    /// Blocks.
    ///
    /// # Errors
    /// `conflict` when nothing is recorded; `invalid_field` when the range ends before it begins; `store_unavailable`.
    pub fn reach_stats(&self, from: Option<u64>, to: Option<u64>) -> Result<ReachStats, Refusal> {
        let days = u64::from(self.config.reach_trace_days);
        if days == 0 {
            return Err(Refusal::new(ErrorCode::Conflict, "nothing is recorded: reach.trace_days is 0"));
        }
        let now = self.clock.now_ms();
        let to = to.unwrap_or(now).min(now);
        let from = from.unwrap_or(to.saturating_sub(DAY_MS));
        if from > to {
            return Err(Refusal::field("from", "must not be after `to`, or in the future"));
        }
        // What this node has counted a moment ago; other nodes are up to ten seconds behind.
        self.reach_stats_worker.settle();
        let oldest = now / HOUR_MS - (days * 24).min(now / HOUR_MS);
        let (first, last) = ((from / HOUR_MS).max(oldest), (to / HOUR_MS).max(oldest));
        let sums = self.sum_counts(first, last).map_err(store_refusal)?;
        let stats = |(road, counts): (ReachRoad, RoadCounts)| RoadStats {
            road,
            attempted: counts.count(ReachEvent::Attempted),
            accepted: counts.count(ReachEvent::Accepted),
            acknowledged: counts.count(ReachEvent::Acknowledged),
            retried: counts.count(ReachEvent::Retried),
            refused: counts.count(ReachEvent::Refused),
            token_gone: counts.count(ReachEvent::TokenGone),
            expired: counts.count(ReachEvent::Expired),
            superseded: counts.count(ReachEvent::Superseded),
            median_ms: counts.time_ms(0.5),
            p99_ms: counts.time_ms(0.99),
        };
        let roads = sums.into_iter().map(stats).collect();
        Ok(ReachStats { from: first * HOUR_MS, to: (last + 1) * HOUR_MS, roads })
    }

    fn sum_counts(&self, first: u64, last: u64) -> StoreResult<BTreeMap<ReachRoad, RoadCounts>> {
        let mut sums: BTreeMap<ReachRoad, RoadCounts> = BTreeMap::new();
        let (mut from, to) = reach_counts_of(first, last);
        loop {
            let rows = self.store.rows(RowSpace::Chat, &from, &to, ROWS_AT_ONCE)?;
            let Some((newest, _)) = rows.last() else { return Ok(sums) };
            from = [&newest[..], &[0]].concat();
            for (key, row) in &rows {
                let road = ReachRoad::ALL.into_iter().find(|road| Some(*road as u64) == number_in(key, 2));
                // A road of a newer version has no name here.
                if let Some(road) = road {
                    sums.entry(road).or_default().merge(&RoadCounts::decode(row)?);
                }
            }
        }
    }
}
