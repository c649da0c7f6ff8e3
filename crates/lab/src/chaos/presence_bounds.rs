//! Bounds on how soon presence must be right again, computed from the nodes' settings (`docs/operations.md`).

use super::fault_kind::FaultKind;
use std::time::Duration;

/// Nodes announce changes of presence every half second.
const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(500);
/// The time in which nodes compare digests (every second), reconnect to Redis and exchange snapshots, and clients reconnect.
const EXCHANGE_TIME: Duration = Duration::from_secs(4);
/// In leases: a leader whose lease is over, by the clock of PostgreSQL, has a successor within a fifth of the lease.
const LEASES_UNTIL_NEW_LEADER: f64 = 1.2;
/// In leases: a node that renews after its lease was over counts for one more lease; nodes renew one after the other.
const LEASES_WITH_LATE_RENEWAL: f64 = 2.0;
/// In heartbeat intervals: a session without heartbeats is ended after this.
const HEARTBEATS_UNTIL_SILENT: f64 = 1.5;

/// The settings on which the bounds depend. The run gives them to its nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PresenceBounds {
    lease: Duration,
    grace: Duration,
    heartbeat: Duration,
}

const LEASE: (&str, u64) = ("TIDINGS_CLUSTER_LEASE_MS", 10_000);
const GRACE: (&str, u64) = ("TIDINGS_PRESENCE_GRACE_MS", 5_000);
const HEARTBEAT: (&str, u64) = ("TIDINGS_SESSION_HEARTBEAT_MS", 30_000);

impl PresenceBounds {
    /// The given settings, with defaults for those that are missing.
    pub(super) fn of(given: &[(String, String)]) -> Self {
        let setting = |(name, usual): (&str, u64)| {
            let given = given.iter().rev().find(|(given, _)| given == name);
            Duration::from_millis(given.and_then(|(_, value)| value.parse().ok()).unwrap_or(usual))
        };
        PresenceBounds { lease: setting(LEASE), grace: setting(GRACE), heartbeat: setting(HEARTBEAT) }
    }

    pub(super) fn settings(&self) -> Vec<(String, String)> {
        [(LEASE.0, self.lease), (GRACE.0, self.grace), (HEARTBEAT.0, self.heartbeat)]
            .map(|(name, value)| (name.to_owned(), value.as_millis().to_string()))
            .to_vec()
    }

    /// The longest time from the end of these faults until every node answers rightly about every user.
    pub(super) fn presence_bound(&self, kinds: impl Iterator<Item = FaultKind>) -> Duration {
        let leases = kinds.map(|kind| self.lease_delay(kind)).max().unwrap_or_default();
        leases + self.grace + ANNOUNCE_INTERVAL + EXCHANGE_TIME
    }

    fn lease_delay(&self, kind: FaultKind) -> Duration {
        match kind {
            // No lease ends: only the exchange between nodes is delayed.
            FaultKind::RedisPrimaryKilled | FaultKind::RedisEmptied | FaultKind::NodeCutOffRedis => Duration::ZERO,
            FaultKind::NodeKilled | FaultKind::NodeRestarted | FaultKind::NodeRolledBack => {
                self.lease.mul_f64(LEASES_UNTIL_NEW_LEADER)
            }
            FaultKind::DatabaseRestarted
            | FaultKind::DatabaseCrashed
            | FaultKind::DatabaseFailedOver
            | FaultKind::DiskSlow
            | FaultKind::NodeCutOffDatabase => self.lease.mul_f64(LEASES_WITH_LATE_RENEWAL),
            // The node did not notice sessions that ended meanwhile: it keeps each until its heartbeats are overdue.
            FaultKind::NodeFrozen | FaultKind::NodeCutOff => {
                self.lease.mul_f64(LEASES_WITH_LATE_RENEWAL).max(self.heartbeat.mul_f64(HEARTBEATS_UNTIL_SILENT))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_computed_from_the_settings() {
        let usual = PresenceBounds::of(&[]);
        assert_eq!(usual.presence_bound([FaultKind::RedisEmptied].into_iter()), Duration::from_millis(9_500));
        assert_eq!(usual.presence_bound([FaultKind::NodeKilled].into_iter()), Duration::from_millis(21_500));
        assert_eq!(usual.presence_bound([FaultKind::NodeCutOff].into_iter()), Duration::from_millis(54_500));
        let both = [FaultKind::RedisEmptied, FaultKind::DatabaseFailedOver].into_iter();
        assert_eq!(usual.presence_bound(both), Duration::from_millis(29_500), "the longer of two");
        let given = |value: &str| (GRACE.0.to_owned(), value.to_owned());
        let quick = PresenceBounds::of(&[given("9000"), given("1000")]);
        assert_eq!(
            quick.presence_bound([FaultKind::RedisEmptied].into_iter()),
            Duration::from_millis(5_500),
            "the last counts"
        );
        assert_eq!(PresenceBounds::of(&quick.settings()), quick);
    }
}
