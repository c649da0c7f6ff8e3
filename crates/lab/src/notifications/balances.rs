//! The result of a run: what was due and what came of it, on each channel and at the sessions.

use super::removals::RemovalBalance;
use crate::{latency::Percentiles, offline_push::notice::OfflineChannel};
use serde::Serialize;

/// Of the notices on other channels, so many may wait for the end of a provider's absence: the machine has other work.
const HELD_UP_SHARE_MAX: f64 = 0.01;
/// Of a small run that share would be less than one notice. A channel that is held up holds up all that come to it in the
/// meantime: among so few of them, half must have waited.
const FEW_AT_RISK: u64 = 50;

/// What became, on one channel, of what was due.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct ChannelBalance {
    pub(crate) channel: OfflineChannel,
    /// What must be notified, and what was.
    pub(crate) must: u64,
    pub(crate) notified: u64,
    /// In their place a newer message of the conversation was notified to the same device.
    pub(crate) superseded: u64,
    /// What was notified though it need not have been: its user looked, read or was gone while the server decided.
    pub(crate) notified_perhaps: u64,
    /// Notified once more after a kill, with the same id.
    pub(crate) again: u64,
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    pub(crate) unentitled: u64,
    /// Notified after a newer message of the conversation, whose place it takes.
    pub(crate) overtaken: u64,
    /// Notified before the client's time to acknowledge was over, or before the channel's time had come.
    pub(crate) too_early: u64,
    /// Due while a provider of another channel was away, early enough to come before that was back.
    pub(crate) at_risk: u64,
    /// Of these, notified only once that provider was back.
    pub(crate) held_up: u64,
    /// From the answer to the send to the notice, in milliseconds; less the time that a
    /// client has to acknowledge, and that after which the channel is taken.
    pub(crate) delay: Percentiles,
}

/// What became of the entries for sessions.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct SessionBalance {
    pub(crate) must: u64,
    pub(crate) notified: u64,
    pub(crate) again: u64,
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    pub(crate) out_of_order: u64,
    pub(crate) delay: Percentiles,
}

/// The result of a run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Audit {
    pub(crate) session: SessionBalance,
    pub(crate) channels: Vec<ChannelBalance>,
    pub(crate) removed: Vec<RemovalBalance>,
    /// How long after its answer a message was decided at the latest, as far as that was seen; the model allows for two seconds more.
    pub(crate) decided_within_ms: f64,
    pub(crate) problems: Vec<String>,
}

impl ChannelBalance {
    pub(super) fn of(channel: OfflineChannel) -> ChannelBalance {
        ChannelBalance { channel, ..ChannelBalance::default() }
    }

    pub(crate) fn balances(&self) -> bool {
        let faults = self.lost + self.doubled + self.unentitled + self.overtaken + self.too_early;
        let held_up_max = (HELD_UP_SHARE_MAX * self.notified as f64).max((self.at_risk.min(FEW_AT_RISK) / 2) as f64);
        faults == 0 && self.held_up as f64 <= held_up_max && self.must == self.notified + self.superseded
    }
}

impl SessionBalance {
    pub(crate) fn balances(&self) -> bool {
        self.must == self.notified && self.lost + self.doubled + self.out_of_order == 0
    }
}
