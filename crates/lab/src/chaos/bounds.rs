//! How soon presence must be right again, from the settings that the nodes have (`docs/operations.md`).

use super::kind::Kind;
use std::time::Duration;

/// Changes are announced every half second.
const ANNOUNCED: Duration = Duration::from_millis(500);
/// Nodes compare what they know of each other every second, find Redis again about as soon, and tell all that they have in
/// parts; and who lost a connection needs a moment to come back.
const EXCHANGED: Duration = Duration::from_secs(4);
/// Who lost the lead by the clock of PostgreSQL is followed within a fifth of the lease.
const LED_AGAIN: f64 = 1.2;
/// What is heard after its lease was over counts for one more; nodes renew theirs one after the other.
const HEARD_STILL: f64 = 2.0;
/// A session that nobody ends is given up after so many heartbeats without a word.
const SILENT: f64 = 1.5;

/// The settings that matter here. The run gives them to its nodes, so that they hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bounds {
    lease: Duration,
    grace: Duration,
    heartbeat: Duration,
}

const LEASE: (&str, u64) = ("TIDINGS_CLUSTER_LEASE_MS", 10_000);
const GRACE: (&str, u64) = ("TIDINGS_PRESENCE_GRACE_MS", 5_000);
const HEARTBEAT: (&str, u64) = ("TIDINGS_SESSION_HEARTBEAT_MS", 30_000);

impl Bounds {
    /// As given, and as usual where nothing is.
    pub(super) fn of(given: &[(String, String)]) -> Self {
        let setting = |(name, usual): (&str, u64)| {
            let given = given.iter().rev().find(|(given, _)| given == name);
            Duration::from_millis(given.and_then(|(_, value)| value.parse().ok()).unwrap_or(usual))
        };
        Bounds { lease: setting(LEASE), grace: setting(GRACE), heartbeat: setting(HEARTBEAT) }
    }

    pub(super) fn settings(&self) -> Vec<(String, String)> {
        [(LEASE.0, self.lease), (GRACE.0, self.grace), (HEARTBEAT.0, self.heartbeat)]
            .map(|(name, value)| (name.to_owned(), value.as_millis().to_string()))
            .to_vec()
    }

    /// From when all was undone until every node tells the truth of everybody.
    pub(super) fn presence(&self, kinds: impl Iterator<Item = Kind>) -> Duration {
        let leases = kinds.map(|kind| self.until_leases_are_right(kind)).max().unwrap_or_default();
        leases + self.grace + ANNOUNCED + EXCHANGED
    }

    fn until_leases_are_right(&self, kind: Kind) -> Duration {
        match kind {
            // Nobody's lease ends. What nodes hear of each other is all that is missing.
            Kind::RedisPrimaryKilled | Kind::RedisEmptied | Kind::NodeCutOffRedis => Duration::ZERO,
            Kind::NodeKilled | Kind::NodeRestarted => self.lease.mul_f64(LED_AGAIN),
            Kind::DatabaseRestarted
            | Kind::DatabaseCrashed
            | Kind::DatabaseFailedOver
            | Kind::DiskSlow
            | Kind::NodeCutOffDatabase => self.lease.mul_f64(HEARD_STILL),
            // Who ended a session meanwhile was not heard: the node holds it until it has been silent for too long.
            Kind::NodeFrozen | Kind::NodeCutOff => self.lease.mul_f64(HEARD_STILL).max(self.heartbeat.mul_f64(SILENT)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_follows_the_settings() {
        let usual = Bounds::of(&[]);
        assert_eq!(usual.presence([Kind::RedisEmptied].into_iter()), Duration::from_millis(9_500));
        assert_eq!(usual.presence([Kind::NodeKilled].into_iter()), Duration::from_millis(21_500));
        assert_eq!(usual.presence([Kind::NodeCutOff].into_iter()), Duration::from_millis(54_500));
        let both = [Kind::RedisEmptied, Kind::DatabaseFailedOver].into_iter();
        assert_eq!(usual.presence(both), Duration::from_millis(29_500), "the longer of two");
        let given = |value: &str| (GRACE.0.to_owned(), value.to_owned());
        let quick = Bounds::of(&[given("9000"), given("1000")]);
        assert_eq!(quick.presence([Kind::RedisEmptied].into_iter()), Duration::from_millis(5_500), "the last counts");
        assert_eq!(Bounds::of(&quick.settings()), quick);
    }
}
