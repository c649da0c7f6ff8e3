//! Which changes of presence are announced. A user who returns within the grace is not announced offline; of several
//! changes between two announcements only the last is announced. A user costs one entry, however often their sessions
//! come and go.

use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use tidings_domain::model::UserNo;

#[derive(Debug, Clone)]
pub struct PresenceConfig {
    /// A user is announced offline after this long without a session.
    pub grace_ms: u64,
    /// The watches of all sessions together. Above: refused with `queue_full`.
    pub watches_max: usize,
}

impl Default for PresenceConfig {
    fn default() -> Self {
        PresenceConfig { grace_ms: 5_000, watches_max: 2_000_000 }
    }
}

/// A user's change of presence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    pub user: UserNo,
    pub online: bool,
    /// When the user came online or somebody began or ceased to look, or when the last session ended, in milliseconds since
    /// 1970 UTC.
    pub at: u64,
}

/// A user without a session whose grace runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Away {
    pub since: u64,
    /// Whether somebody looked at the last session.
    pub was_active: bool,
}

/// A queue whose capacity is this many times its length is shrunk.
const SPARE_FACTOR: usize = 4;

#[derive(Debug, Clone, Copy)]
enum Pending {
    /// Announced after `until`.
    Away { away: Away, until: u64 },
    /// Returned before the announcement. The entry in the queue is dropped when it is due.
    Returned,
}

/// The changes that are yet to be announced.
#[derive(Default)]
pub(super) struct ChangeQueue {
    pending: FxHashMap<UserNo, Pending>,
    /// An entry for each user in `pending`, in the order in which they are due.
    queue: VecDeque<(u64, UserNo)>,
    /// Users to announce online: they have a session now, and did not count as online or as active as they are.
    online: Vec<UserNo>,
    last_now_ms: u64,
    pub coalesced: u64,
}

impl ChangeQueue {
    /// A user has a first session.
    pub(super) fn user_online(&mut self, user: UserNo, is_active: bool) {
        match self.pending.get_mut(&user) {
            Some(pending) => {
                let returns_otherwise = matches!(pending, Pending::Away { away, .. } if away.was_active != is_active);
                *pending = Pending::Returned;
                self.coalesced += 1;
                if returns_otherwise {
                    self.online.push(user);
                }
            }
            None => self.online.push(user),
        }
    }

    /// Somebody began or ceased to look at the sessions of a user who has some.
    pub(super) fn activity_changed(&mut self, user: UserNo) {
        self.online.push(user);
    }

    /// How a user went whose offline change is not announced yet.
    pub(super) fn away(&self, user: UserNo) -> Option<Away> {
        match self.pending.get(&user)? {
            Pending::Away { away, .. } => Some(*away),
            Pending::Returned => None,
        }
    }

    /// A user's last session ended, at `away.since` by the clock of the node that held it.
    pub(super) fn user_offline(&mut self, user: UserNo, away: Away, now_ms: u64, grace_ms: u64) {
        let away = Pending::Away { away, until: now_ms + grace_ms };
        if self.pending.insert(user, away).is_none() {
            self.queue.push_back((now_ms + grace_ms, user));
        }
    }

    /// Takes the changes to announce now. After a jump back of the clock, no user waits for longer than the grace.
    /// `holds_ends`: users without a session may have one that is not known here, and wait until that is over.
    pub(super) fn take_due(&mut self, now_ms: u64, grace_ms: u64, holds_ends: bool) -> Vec<Change> {
        // A user whose sessions went to the background and back is reported once.
        self.online.sort_unstable();
        self.online.dedup();
        let mut changes: Vec<Change> =
            self.online.drain(..).map(|user| Change { user, online: true, at: now_ms }).collect();
        self.online.shrink_to(1_024);
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
        let is_due = |due: u64| due <= now_ms && !holds_ends;
        while let Some((due, user)) = self.queue.front().copied().filter(|(due, _)| is_due(*due)) {
            self.queue.pop_front();
            match self.pending.get(&user).copied() {
                // The user returned and went again: the grace starts anew.
                Some(Pending::Away { until, .. }) if until > due && until > now_ms => {
                    self.queue.push_back((until.min(now_ms + grace_ms), user));
                }
                Some(Pending::Away { away, .. }) => {
                    self.pending.remove(&user);
                    changes.push(Change { user, online: false, at: away.since });
                }
                Some(Pending::Returned) | None => drop(self.pending.remove(&user)),
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

    /// Takes all users without a session, whether or not their grace is over, for a server that stops.
    pub(super) fn take_offline(&mut self) -> Vec<Change> {
        let pending = std::mem::take(&mut self.pending);
        self.queue = VecDeque::new();
        let away = |(user, pending)| match pending {
            Pending::Away { away, .. } => Some(Change { user, online: false, at: away.since }),
            Pending::Returned => None,
        };
        pending.into_iter().filter_map(away).collect()
    }
}

/// Drops the online change of a user who has an offline change in the same round.
fn only_latest(mut changes: Vec<Change>) -> Vec<Change> {
    let gone: FxHashSet<UserNo> = changes.iter().filter(|change| !change.online).map(|change| change.user).collect();
    if !gone.is_empty() {
        changes.retain(|change| !change.online || !gone.contains(&change.user));
    }
    changes
}

#[cfg(test)]
#[path = "../../tests/units/presence_changes.rs"]
mod tests;
