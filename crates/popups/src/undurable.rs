//! The exposures that a crash would forget: neither the store nor the side log has them yet. They are kept in the order
//! in which they were pushed, and both the store and the side log acknowledge them in that order.

use super::UserKey;
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

pub(super) struct UndurableQueue {
    /// How many exposures have been acknowledged in all: the number of the first that is still queued.
    acked: u64,
    users: VecDeque<UserKey>,
    /// Exposures pushed within one `resolution` share a time: the number of the group's first exposure, and when it was
    /// pushed. A time for each exposure would take more memory than the exposures themselves.
    groups: VecDeque<(u64, Instant)>,
    resolution: Duration,
}

impl UndurableQueue {
    pub(super) fn new(resolution: Duration) -> Self {
        UndurableQueue { acked: 0, users: VecDeque::new(), groups: VecDeque::new(), resolution }
    }

    pub(super) fn push(&mut self, user: UserKey, now: Instant) {
        if self.groups.back().is_none_or(|(_, since)| now > *since + self.resolution) {
            self.groups.push_back((self.pushed(), now));
        }
        self.users.push_back(user);
    }

    /// How many exposures have been pushed in all.
    pub(super) fn pushed(&self) -> u64 {
        self.acked + self.users.len() as u64
    }

    /// Acknowledges the first `through` exposures of all that were ever pushed.
    pub(super) fn ack(&mut self, through: u64) {
        let count = (through.saturating_sub(self.acked) as usize).min(self.users.len());
        self.users.drain(..count);
        self.acked += count as u64;
        while self.groups.get(1).is_some_and(|(first, _)| *first <= self.acked) {
            self.groups.pop_front();
        }
        if self.users.is_empty() {
            self.groups.clear();
        }
    }

    /// When the oldest exposure was pushed, or earlier by at most one `resolution`.
    pub(super) fn oldest_since(&self) -> Option<Instant> {
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
    fn oldest_since_follows_the_oldest_exposure_that_is_not_acknowledged() {
        let began = Instant::now();
        let at = |ms: u64| began + Duration::from_millis(ms);
        let mut queue = UndurableQueue::new(Duration::from_millis(3));
        assert_eq!(queue.oldest_since(), None);
        for ms in 0..20 {
            queue.push(UserKey(u128::from(ms)), at(ms));
        }
        for acked in 0..20 {
            queue.ack(acked);
            let (since, oldest) = (queue.oldest_since().unwrap(), at(acked));
            assert!(since <= oldest && oldest - since <= Duration::from_millis(3), "{acked}");
            assert_eq!(queue.users()[0], UserKey(u128::from(acked)));
            assert_eq!(queue.pushed(), 20);
        }
        // An acknowledgement that is older than the last changes nothing.
        queue.ack(7);
        assert_eq!(queue.users(), [UserKey(19)]);
        queue.ack(20);
        assert_eq!((queue.oldest_since(), queue.pushed()), (None, 20));
        queue.push(UserKey(0), at(40));
        assert_eq!(queue.oldest_since(), Some(at(40)));
    }
}
