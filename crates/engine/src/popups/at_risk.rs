//! What a crash would forget: showings that are neither stored nor noted, in the order in which they came. They become safe
//! in that order too, whether the store or a note has them.

use super::UserKey;
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

pub(super) struct AtRisk {
    /// So many came before the first of these: all of them are safe.
    safe: u64,
    users: VecDeque<UserKey>,
    /// Those that came within a grain of time: the number of the first of them, and when it came.
    groups: VecDeque<(u64, Instant)>,
    grain: Duration,
}

impl AtRisk {
    pub(super) fn new(grain: Duration) -> Self {
        AtRisk { safe: 0, users: VecDeque::new(), groups: VecDeque::new(), grain }
    }

    pub(super) fn add(&mut self, user: UserKey, now: Instant) {
        if self.groups.back().is_none_or(|(_, since)| now > *since + self.grain) {
            self.groups.push_back((self.came(), now));
        }
        self.users.push_back(user);
    }

    /// So many have come in all.
    pub(super) fn came(&self) -> u64 {
        self.safe + self.users.len() as u64
    }

    /// The first so many of all that came are safe.
    pub(super) fn secure(&mut self, through: u64) {
        let count = (through.saturating_sub(self.safe) as usize).min(self.users.len());
        self.users.drain(..count);
        self.safe += count as u64;
        while self.groups.get(1).is_some_and(|(first, _)| *first <= self.safe) {
            self.groups.pop_front();
        }
        if self.users.is_empty() {
            self.groups.clear();
        }
    }

    /// Since when the oldest is at risk; by a grain too long at most.
    pub(super) fn since(&self) -> Option<Instant> {
        self.groups.front().map(|(_, since)| *since)
    }

    pub(super) fn users(&self) -> Vec<UserKey> {
        self.users.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_came_first_is_at_risk_the_longest() {
        let began = Instant::now();
        let at = |ms: u64| began + Duration::from_millis(ms);
        let mut at_risk = AtRisk::new(Duration::from_millis(3));
        assert_eq!(at_risk.since(), None);
        for ms in 0..20 {
            at_risk.add(UserKey(u128::from(ms)), at(ms));
        }
        for safe in 0..20 {
            at_risk.secure(safe);
            let (since, oldest) = (at_risk.since().unwrap(), at(safe));
            assert!(since <= oldest && oldest - since <= Duration::from_millis(3), "{safe}");
            assert_eq!(at_risk.users()[0], UserKey(u128::from(safe)));
            assert_eq!(at_risk.came(), 20);
        }
        // Known already.
        at_risk.secure(7);
        assert_eq!(at_risk.users(), [UserKey(19)]);
        at_risk.secure(20);
        assert_eq!((at_risk.since(), at_risk.came()), (None, 20));
        at_risk.add(UserKey(0), at(40));
        assert_eq!(at_risk.since(), Some(at(40)));
    }
}
