//! The result of a run: what was due and what came of it, on each road and at the sessions.

use super::withdrawals::WithdrawalBalance;
use crate::{latency::Percentiles, offline_push::notice::OfflineRoad};
use serde::Serialize;

/// Of the notices on other roads, so many may wait for the end of a vendor's absence: the machine has other work.
const HELD_UP_SHARE_MAX: f64 = 0.01;

/// What became, on one road, of what was due.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct RoadBalance {
    pub(crate) road: OfflineRoad,
    /// What must be told, and what was.
    pub(crate) must: u64,
    pub(crate) told: u64,
    /// In their place a newer message of the conversation was told to the same device.
    pub(crate) superseded: u64,
    /// What was told though it need not have been: its user looked, read or was gone while the server decided.
    pub(crate) told_perhaps: u64,
    /// Told once more after a kill, with the same id.
    pub(crate) again: u64,
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    pub(crate) unentitled: u64,
    /// Told after a newer message of the conversation, whose place it takes.
    pub(crate) overtaken: u64,
    /// Told before the client's time to acknowledge was over, or before the road's time had come.
    pub(crate) too_early: u64,
    /// Told only once a vendor of another road was back.
    pub(crate) held_up: u64,
    /// From the answer to the send to the notice, in milliseconds; less the time that a
    /// client has to acknowledge, and that after which the road is taken.
    pub(crate) delay: Percentiles,
}

/// What became of the entries for sessions.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct SessionBalance {
    pub(crate) must: u64,
    pub(crate) told: u64,
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
    pub(crate) roads: Vec<RoadBalance>,
    pub(crate) withdrawn: Vec<WithdrawalBalance>,
    /// How long after its answer a message was decided at the latest, as far as that was seen; the model allows for two seconds more.
    pub(crate) decided_within_ms: f64,
    pub(crate) problems: Vec<String>,
}

impl RoadBalance {
    pub(super) fn of(road: OfflineRoad) -> RoadBalance {
        RoadBalance {
            road,
            must: 0,
            told: 0,
            superseded: 0,
            told_perhaps: 0,
            again: 0,
            lost: 0,
            doubled: 0,
            unentitled: 0,
            overtaken: 0,
            too_early: 0,
            held_up: 0,
            delay: Percentiles::default(),
        }
    }

    pub(crate) fn balances(&self) -> bool {
        let faults = self.lost + self.doubled + self.unentitled + self.overtaken + self.too_early;
        let held_up = self.held_up as f64 > HELD_UP_SHARE_MAX * self.told as f64;
        faults == 0 && !held_up && self.must == self.told + self.superseded
    }
}

impl Audit {
    pub(crate) fn balances(&self) -> bool {
        let SessionBalance { must, told, lost, doubled, out_of_order, .. } = self.session;
        let session = must == told && lost + doubled + out_of_order == 0;
        let withdrawn = self.withdrawn.iter().all(WithdrawalBalance::balances);
        session && withdrawn && self.problems.is_empty() && self.roads.iter().all(RoadBalance::balances)
    }
}
