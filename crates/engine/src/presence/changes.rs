//! What is announced of coming and going. A user who is back within the grace was never away; of what
//! happens between two announcements only the last counts. A user costs one entry however often they
//! come and go.

use crate::model::UserNo;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;

#[derive(Debug, Clone)]
pub struct PresenceConfig {
    /// A user is announced offline when no device was there for this long.
    pub grace_ms: u64,
    /// Changes are told to the webhook.
    pub webhook: bool,
    /// Users whom sessions watch, each once for each session, all together. Above: refused with `queue_full`.
    pub watches_max: usize,
}

impl Default for PresenceConfig {
    fn default() -> Self {
        PresenceConfig { grace_ms: 5_000, webhook: false, watches_max: 2_000_000 }
    }
}

/// A user's new state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    pub user: UserNo,
    pub online: bool,
    /// When they came, or when their last session ended, in milliseconds since 1970 UTC.
    pub at: u64,
}

/// A queue that has room for this many times what it holds gives it back.
const SPARE_FACTOR: usize = 4;

#[derive(Debug, Clone, Copy)]
enum Pending {
    /// Away since, not announced.
    Away { since: u64, until: u64 },
    /// Back before it was announced; the queue's entry is let go when it comes up.
    Back,
}

#[derive(Default)]
pub(super) struct Changes {
    pending: FxHashMap<UserNo, Pending>,
    /// One entry for each in `pending`, by the time at which it is looked at.
    queue: VecDeque<(u64, UserNo)>,
    /// Users who came while nobody had them as online.
    came: Vec<UserNo>,
    last_now_ms: u64,
    pub coalesced: u64,
}

impl Changes {
    /// The first session of a user.
    pub(super) fn came(&mut self, user: UserNo) {
        match self.pending.get_mut(&user) {
            Some(pending) => {
                *pending = Pending::Back;
                self.coalesced += 1;
            }
            None => self.came.push(user),
        }
    }

    /// Since when a user is away of whom this has not been announced.
    pub(super) fn away_since(&self, user: UserNo) -> Option<u64> {
        match self.pending.get(&user)? {
            Pending::Away { since, .. } => Some(*since),
            Pending::Back => None,
        }
    }

    /// The last session of a user, which ended at `since`; another node's clock may say so.
    pub(super) fn went(&mut self, user: UserNo, since: u64, now_ms: u64, grace_ms: u64) {
        let away = Pending::Away { since, until: now_ms + grace_ms };
        if self.pending.insert(user, away).is_none() {
            self.queue.push_back((now_ms + grace_ms, user));
        }
    }

    /// What is to be announced now. A clock that jumps back does not keep anybody waiting for more than the grace.
    pub(super) fn take(&mut self, now_ms: u64, grace_ms: u64) -> Vec<Change> {
        let mut changes: Vec<Change> =
            self.came.drain(..).map(|user| Change { user, online: true, at: now_ms }).collect();
        self.came.shrink_to(1_024);
        if now_ms < self.last_now_ms {
            let back_ms = self.last_now_ms - now_ms;
            self.queue.iter_mut().for_each(|(until, _)| *until = until.saturating_sub(back_ms));
            for pending in self.pending.values_mut() {
                if let Pending::Away { until, .. } = pending {
                    *until = until.saturating_sub(back_ms);
                }
            }
        }
        self.last_now_ms = now_ms;
        while let Some((due, user)) = self.queue.front().copied().filter(|(due, _)| *due <= now_ms) {
            self.queue.pop_front();
            match self.pending.get(&user).copied() {
                // They went again meanwhile: the grace runs anew.
                Some(Pending::Away { until, .. }) if until > due && until > now_ms => {
                    self.queue.push_back((until.min(now_ms + grace_ms), user));
                }
                Some(Pending::Away { since, .. }) => {
                    self.pending.remove(&user);
                    changes.push(Change { user, online: false, at: since });
                }
                Some(Pending::Back) | None => drop(self.pending.remove(&user)),
            }
        }
        if self.queue.is_empty() {
            (self.pending, self.queue) = Default::default();
        } else if self.queue.capacity() / SPARE_FACTOR > self.queue.len() {
            self.queue.shrink_to_fit();
            self.pending.shrink_to_fit();
        }
        only_latest(changes)
    }

    /// Everybody who is away, the grace over or not: the server stops.
    pub(super) fn take_all(&mut self) -> Vec<Change> {
        let pending = std::mem::take(&mut self.pending);
        self.queue = VecDeque::new();
        let away = |(user, pending)| match pending {
            Pending::Away { since, .. } => Some(Change { user, online: false, at: since }),
            Pending::Back => None,
        };
        pending.into_iter().filter_map(away).collect()
    }
}

/// Who came and whose grace is over in the same round has gone: that they were here is no news any more.
fn only_latest(mut changes: Vec<Change>) -> Vec<Change> {
    let gone: FxHashSet<UserNo> = changes.iter().filter(|change| !change.online).map(|change| change.user).collect();
    if !gone.is_empty() {
        changes.retain(|change| !change.online || !gone.contains(&change.user));
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: u64 = 5_000;
    const ALICE: UserNo = UserNo(1);

    fn change(online: bool, at: u64) -> Change {
        Change { user: ALICE, online, at }
    }

    #[test]
    fn who_comes_is_told_at_once_and_who_goes_after_the_grace() {
        let mut changes = Changes::default();
        changes.came(ALICE);
        assert_eq!(changes.take(1_000, GRACE), [change(true, 1_000)]);
        changes.went(ALICE, 2_000, 2_000, GRACE);
        assert_eq!(changes.take(6_999, GRACE), []);
        assert_eq!(changes.take(7_000, GRACE), [change(false, 2_000)]);
        assert_eq!(changes.take(20_000, GRACE), []);
    }

    #[test]
    fn who_is_back_within_the_grace_was_never_away_and_going_again_starts_it_anew() {
        let mut changes = Changes::default();
        changes.went(ALICE, 1_000, 1_000, GRACE);
        changes.came(ALICE);
        changes.went(ALICE, 4_000, 4_000, GRACE);
        assert_eq!(changes.take(6_000, GRACE), [], "away since 4,000 only");
        assert_eq!(changes.take(9_000, GRACE), [change(false, 4_000)]);
        changes.came(ALICE);
        assert_eq!(changes.take(9_100, GRACE), [change(true, 9_100)]);
        changes.went(ALICE, 9_200, 9_200, GRACE);
        changes.came(ALICE);
        assert_eq!(changes.take(90_000, GRACE), []);
    }

    #[test]
    fn of_two_changes_in_one_round_only_the_last_is_told() {
        let mut changes = Changes::default();
        changes.came(ALICE);
        changes.went(ALICE, 1_000, 1_000, 0);
        assert_eq!(changes.take(1_500, 0), [change(false, 1_000)]);
        changes.came(ALICE);
        assert_eq!(changes.take(2_000, 0), [change(true, 2_000)]);
    }

    #[test]
    fn who_has_just_gone_is_known_until_it_is_announced() {
        let mut changes = Changes::default();
        changes.went(ALICE, 1_000, 1_000, GRACE);
        assert_eq!(changes.away_since(ALICE), Some(1_000));
        changes.came(ALICE);
        assert_eq!(changes.away_since(ALICE), None);
        changes.went(ALICE, 2_000, 2_000, GRACE);
        assert_eq!(changes.take(7_000, GRACE), [change(false, 2_000)]);
        assert_eq!(changes.away_since(ALICE), None);
    }

    #[test]
    fn a_clock_that_jumps_back_keeps_nobody_online() {
        let mut changes = Changes::default();
        changes.take(1_000_000, GRACE);
        changes.went(ALICE, 1_000_000, 1_000_000, GRACE);
        assert_eq!(changes.take(400_000, GRACE), []);
        assert_eq!(changes.take(405_000, GRACE), [change(false, 1_000_000)]);
    }

    #[test]
    fn a_storm_costs_an_entry_a_user_and_leaves_nothing() {
        let mut changes = Changes::default();
        let users = 100_000;
        for flap in 0..10 {
            for user in 0..users {
                changes.went(UserNo(user), 1_000 + flap, 1_000 + flap, GRACE);
                changes.came(UserNo(user));
            }
        }
        assert_eq!((changes.queue.len(), changes.pending.len()), (users as usize, users as usize));
        assert_eq!(changes.take(10_000, GRACE), [], "all are back");
        assert_eq!(changes.coalesced, users * 10);
        assert_eq!((changes.queue.capacity(), changes.pending.capacity()), (0, 0));
    }
}
