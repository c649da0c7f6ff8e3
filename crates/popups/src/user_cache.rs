//! The users whose frequency counters are in memory, up to a bound. They are split into stripes, each behind a lock
//! that is held for one decision. A stripe evicts by the CLOCK algorithm: the first user who was not referenced since
//! the last pass and whose counters are stored.

use super::{UserKey, frequency::FrequencyCounters};
use hashbrown::{HashTable, hash_table::Entry};
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicUsize, Ordering};

const STRIPES: usize = 64;
/// Users scanned for one to evict. If none can go, the cache exceeds its bound by one.
const EVICTION_SCAN_MAX: usize = 128;

/// How a user's counters in memory relate to the stored ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum DirtyState {
    #[default]
    /// The store has the same counters.
    Clean,
    /// The counters changed and wait to be written.
    Dirty,
    /// A write of the counters is under way, and they have not changed since. The user is not evicted before it ends:
    /// the store may still have the older counters.
    Writing,
}

/// A cached answer: for this question nothing can be shown for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NegativeCacheEntry {
    /// A hash of the question and of the configuration's generation.
    pub(super) fingerprint: u64,
    /// The answer is valid before this time.
    pub(super) until: u64,
    /// When something could be shown; `u64::MAX`: never by time alone.
    pub(super) next_at: u64,
}

impl NegativeCacheEntry {
    pub(super) const EMPTY: NegativeCacheEntry = NegativeCacheEntry { fingerprint: 0, until: 0, next_at: 0 };
}

pub(super) struct UserState {
    key: UserKey,
    pub(super) counters: FrequencyCounters,
    cached: NegativeCacheEntry,
    /// The lower bits of the time of the cached answer: it does not hold for times before it, should the clock go back.
    cached_at: u32,
    pub(super) dirty_state: DirtyState,
    /// The user was asked about since the clock hand last passed.
    referenced: bool,
}

impl UserState {
    /// Caches an answer; [`NegativeCacheEntry::EMPTY`] clears it.
    pub(super) fn cache_negative(&mut self, cached: NegativeCacheEntry, now_ms: u64) {
        (self.cached, self.cached_at) = (cached, now_ms as u32);
    }

    /// The cached answer to this question, if it is still valid.
    pub(super) fn cached_negative(&self, fingerprint: u64, now_ms: u64) -> Option<NegativeCacheEntry> {
        // Serial-number arithmetic: half of the 32-bit circle counts as earlier, half as later. A clock that went ahead
        // by more than half of it, 25 days, looks like one that went back, and the question is evaluated once more.
        let after = (now_ms as u32).wrapping_sub(self.cached_at) <= u32::MAX / 2;
        let is_valid = self.cached.fingerprint == fingerprint && after && now_ms < self.cached.until;
        is_valid.then_some(self.cached)
    }
}

#[derive(Default)]
pub(super) struct Stripe {
    /// Positions in `users`, by the hash of the key.
    positions: HashTable<u32>,
    users: Vec<UserState>,
    /// Where the next scan for a user to evict begins.
    clock_hand: usize,
}

pub(super) struct UserCache {
    stripes: Box<[Mutex<Stripe>]>,
    count: AtomicUsize,
    users_max: usize,
}

fn hash(key: UserKey) -> u64 {
    // The upper bits, for the lower ones choose the stripe.
    (key.0 >> 64) as u64
}

impl UserCache {
    pub(super) fn new(users_max: usize) -> Self {
        let stripes = (0..STRIPES).map(|_| Mutex::default()).collect();
        UserCache { stripes, count: AtomicUsize::new(0), users_max: users_max.max(STRIPES) }
    }

    /// Locks the stripe that a user belongs to.
    pub(super) fn stripe(&self, key: UserKey) -> MutexGuard<'_, Stripe> {
        self.stripes[key.0 as usize % STRIPES].lock()
    }

    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Inserts a user whose counters were read from the store, unless another caller has done so meanwhile.
    pub(super) fn insert(&self, key: UserKey, counters: FrequencyCounters) {
        let mut stripe = self.stripe(key);
        if stripe.get(key).is_some() {
            return;
        }
        if self.count() >= self.users_max && stripe.evict() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        stripe.insert(UserState {
            key,
            counters,
            cached: NegativeCacheEntry::EMPTY,
            cached_at: 0,
            dirty_state: DirtyState::Clean,
            referenced: true,
        });
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

impl UserCache {
    /// Drops a user whose rows are about to be removed.
    pub(super) fn forget(&self, key: UserKey) {
        let mut stripe = self.stripe(key);
        if let Some(position) = stripe.position(key) {
            stripe.remove(position);
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Stripe {
    fn position(&self, key: UserKey) -> Option<usize> {
        self.positions
            .find(hash(key), |position| self.users[*position as usize].key == key)
            .map(|position| *position as usize)
    }

    pub(super) fn get(&mut self, key: UserKey) -> Option<&mut UserState> {
        let position = self.position(key)?;
        let user = &mut self.users[position];
        user.referenced = true;
        Some(user)
    }

    fn insert(&mut self, user: UserState) {
        let position = self.users.len() as u32;
        self.positions.insert_unique(hash(user.key), position, |position| hash(self.users[*position as usize].key));
        self.users.push(user);
    }

    /// Removes a user who was not referenced lately and whose counters are stored; returns whether there was one.
    fn evict(&mut self) -> bool {
        for _ in 0..EVICTION_SCAN_MAX.min(self.users.len() * 2) {
            self.clock_hand = (self.clock_hand + 1) % self.users.len();
            let user = &mut self.users[self.clock_hand];
            if user.dirty_state == DirtyState::Clean && !std::mem::take(&mut user.referenced) {
                self.remove(self.clock_hand);
                return true;
            }
        }
        false
    }

    fn remove(&mut self, position: usize) {
        let last = self.users.len() - 1;
        let (gone, moved) = (self.users[position].key, self.users[last].key);
        if let Entry::Occupied(entry) =
            self.positions.entry(hash(gone), |at| *at as usize == position, |at| hash(self.users[*at as usize].key))
        {
            entry.remove();
        }
        if position != last
            && let Some(at) = self.positions.find_mut(hash(moved), |at| *at as usize == last)
        {
            *at = position as u32;
        }
        self.users.swap_remove(position);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::frequency::CounterKey;

    fn key(n: u32) -> UserKey {
        UserKey::of(&format!("u{n}"))
    }

    #[test]
    fn the_cache_keeps_its_bound_and_evicts_no_dirty_user() {
        let users = UserCache::new(1_000);
        for n in 0..10_000 {
            users.insert(key(n), FrequencyCounters::default());
            if n % 100 == 0 {
                let mut stripe = users.stripe(key(n));
                let user = stripe.get(key(n)).unwrap();
                user.counters.count(CounterKey::ALL, u64::from(n), 1);
                user.dirty_state = DirtyState::Dirty;
            }
        }
        let held = (0..10_000).filter(|n| users.stripe(key(*n)).get(key(*n)).is_some()).count();
        assert_eq!(held, users.count());
        assert!((1_000..=1_110).contains(&held), "{held}");
        for n in (0..10_000).step_by(100) {
            let mut stripe = users.stripe(key(n));
            assert_eq!(stripe.get(key(n)).unwrap().counters.get(CounterKey::ALL).unwrap().last_at, u64::from(n));
        }
    }

    #[test]
    fn a_user_takes_at_most_64_bytes() {
        assert!(size_of::<UserState>() <= 64, "{}", size_of::<UserState>());
    }
}
