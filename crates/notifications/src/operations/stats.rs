//! How often each channel was tried, and what came of it, in a time range.

use crate::operations::Notifications;
use std::collections::BTreeMap;
use tidings_domain::{
    chat_rows::{notification_counts_of, number_in},
    notification_counts::{ChannelCounts, ChannelEvent, HOUR_MS},
    refusals::store_refusal,
    store::{RowSpace, StoreResult},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{Channel, ChannelStats, NotificationStats},
};

/// Rows in one read: an hour has one for each channel and boot.
const ROWS_AT_ONCE: usize = 500;
const DAY_MS: u64 = 24 * HOUR_MS;

impl Notifications {
    /// What came of each channel between these times (milliseconds since 1970 UTC), in whole hours: the last day, if none are named.
    /// Blocks.
    ///
    /// # Errors
    /// `conflict` when nothing is recorded; `invalid_field` when the range ends before it begins; `store_unavailable`.
    pub fn notification_stats(&self, from: Option<u64>, to: Option<u64>) -> Result<NotificationStats, Refusal> {
        let days = u64::from(self.config.notification_log_days);
        if days == 0 {
            return Err(Refusal::new(ErrorCode::Conflict, "nothing is recorded: notifications.log_days is 0"));
        }
        let now = self.context.clock.now_ms();
        let to = to.unwrap_or(now).min(now);
        let from = from.unwrap_or(to.saturating_sub(DAY_MS));
        if from > to {
            return Err(Refusal::field("from", "must not be after `to`, or in the future"));
        }
        // What this node has counted a moment ago; other nodes are up to ten seconds behind.
        self.stats_worker.settle();
        let oldest = now / HOUR_MS - (days * 24).min(now / HOUR_MS);
        let (first, last) = ((from / HOUR_MS).max(oldest), (to / HOUR_MS).max(oldest));
        let sums = self.sum_counts(first, last).map_err(store_refusal)?;
        let stats = |(channel, counts): (Channel, ChannelCounts)| ChannelStats {
            channel,
            attempted: counts.count(ChannelEvent::Attempted),
            accepted: counts.count(ChannelEvent::Accepted),
            acknowledged: counts.count(ChannelEvent::Acknowledged),
            retried: counts.count(ChannelEvent::Retried),
            refused: counts.count(ChannelEvent::Refused),
            token_gone: counts.count(ChannelEvent::TokenGone),
            expired: counts.count(ChannelEvent::Expired),
            superseded: counts.count(ChannelEvent::Superseded),
            median_ms: counts.time_ms(0.5),
            p99_ms: counts.time_ms(0.99),
        };
        let channels = sums.into_iter().map(stats).collect();
        Ok(NotificationStats { from: first * HOUR_MS, to: (last + 1) * HOUR_MS, channels })
    }

    fn sum_counts(&self, first: u64, last: u64) -> StoreResult<BTreeMap<Channel, ChannelCounts>> {
        let mut sums: BTreeMap<Channel, ChannelCounts> = BTreeMap::new();
        let (mut from, to) = notification_counts_of(first, last);
        loop {
            let rows = self.context.store.rows(RowSpace::Chat, &from, &to, ROWS_AT_ONCE)?;
            let Some((newest, _)) = rows.last() else { return Ok(sums) };
            from = [&newest[..], &[0]].concat();
            for (key, row) in &rows {
                let channel = number_in(key, 2).and_then(Channel::of_number);
                // A channel of a newer version has no name here.
                if let Some(channel) = channel {
                    sums.entry(channel).or_default().merge(&ChannelCounts::decode(row)?);
                }
            }
        }
    }
}
