//! The users that are held in memory, and what they were shown: in many small tables, each behind a lock
//! that is held for one decision.

use super::{UserKey, marks::Marks};
use hashbrown::{HashTable, hash_table::Entry};
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicUsize, Ordering};

const TABLES: usize = 64;
/// Users looked at for one that can give way. If none can, there is one more than the bound.
const LOOKED_AT: usize = 128;

/// Whether the store has what memory has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Kept {
    #[default]
    Stored,
    /// Waits to be written.
    Changed,
    /// Is being written as it was when it was taken; stays in memory until that is done.
    BeingWritten,
}

/// That nothing can be shown until then: the answer to a question that was asked before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Nothing {
    /// Of the question and the configuration.
    pub(super) fingerprint: u64,
    /// Until here the answer stands.
    pub(super) until: u64,
    /// When something could be shown; `u64::MAX`: time alone will never do.
    pub(super) next_at: u64,
}

impl Nothing {
    pub(super) const UNKNOWN: Nothing = Nothing { fingerprint: 0, until: 0, next_at: 0 };
}

pub(super) struct User {
    key: UserKey,
    pub(super) marks: Marks,
    nothing: Nothing,
    /// The lower bits of when `nothing` was answered: it does not stand for what was before, should the clock go back.
    nothing_at: u32,
    pub(super) kept: Kept,
    used: bool,
}

impl User {
    /// Remembers what this was answered with, or that nothing is known.
    pub(super) fn remember(&mut self, nothing: Nothing, now_ms: u64) {
        (self.nothing, self.nothing_at) = (nothing, now_ms as u32);
    }

    /// The answer that this question had, if it still stands.
    pub(super) fn remembered(&self, fingerprint: u64, now_ms: u64) -> Option<Nothing> {
        // Half of the circle is before, half after: a clock that went ahead by three weeks looks like one that went
        // back, and the question is thought about once more.
        let after = (now_ms as u32).wrapping_sub(self.nothing_at) <= u32::MAX / 2;
        let stands = self.nothing.fingerprint == fingerprint && after && now_ms < self.nothing.until;
        stands.then_some(self.nothing)
    }
}

#[derive(Default)]
pub(super) struct Table {
    places: HashTable<u32>,
    users: Vec<User>,
    hand: usize,
}

pub(super) struct Users {
    tables: Box<[Mutex<Table>]>,
    count: AtomicUsize,
    users_max: usize,
}

fn hash(key: UserKey) -> u64 {
    // The lower bits choose the table.
    (key.0 >> 64) as u64
}

impl Users {
    pub(super) fn new(users_max: usize) -> Self {
        let tables = (0..TABLES).map(|_| Mutex::default()).collect();
        Users { tables, count: AtomicUsize::new(0), users_max: users_max.max(TABLES) }
    }

    /// The table that a user belongs in.
    pub(super) fn table(&self, key: UserKey) -> MutexGuard<'_, Table> {
        self.tables[key.0 as usize % TABLES].lock()
    }

    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Holds a user that was read from the store, unless somebody else was faster.
    pub(super) fn install(&self, key: UserKey, marks: Marks) {
        let mut table = self.table(key);
        if table.get(key).is_some() {
            return;
        }
        if self.count() >= self.users_max && table.give_way() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        table.insert(User { key, marks, nothing: Nothing::UNKNOWN, nothing_at: 0, kept: Kept::Stored, used: true });
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

impl Table {
    fn place(&self, key: UserKey) -> Option<usize> {
        self.places.find(hash(key), |place| self.users[*place as usize].key == key).map(|place| *place as usize)
    }

    pub(super) fn get(&mut self, key: UserKey) -> Option<&mut User> {
        let place = self.place(key)?;
        let user = &mut self.users[place];
        user.used = true;
        Some(user)
    }

    fn insert(&mut self, user: User) {
        let place = self.users.len() as u32;
        self.places.insert_unique(hash(user.key), place, |place| hash(self.users[*place as usize].key));
        self.users.push(user);
    }

    /// Forgets one that was not asked for lately and is stored; answers whether there was one.
    fn give_way(&mut self) -> bool {
        for _ in 0..LOOKED_AT.min(self.users.len() * 2) {
            self.hand = (self.hand + 1) % self.users.len();
            let user = &mut self.users[self.hand];
            if user.kept == Kept::Stored && !std::mem::take(&mut user.used) {
                self.remove(self.hand);
                return true;
            }
        }
        false
    }

    fn remove(&mut self, place: usize) {
        let last = self.users.len() - 1;
        let (gone, moved) = (self.users[place].key, self.users[last].key);
        if let Entry::Occupied(entry) =
            self.places.entry(hash(gone), |at| *at as usize == place, |at| hash(self.users[*at as usize].key))
        {
            entry.remove();
        }
        if place != last
            && let Some(at) = self.places.find_mut(hash(moved), |at| *at as usize == last)
        {
            *at = place as u32;
        }
        self.users.swap_remove(place);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::popups::marks::What;

    fn key(n: u32) -> UserKey {
        UserKey::of(&format!("u{n}"))
    }

    #[test]
    fn the_bound_holds_and_what_is_not_stored_stays() {
        let users = Users::new(1_000);
        for n in 0..10_000 {
            users.install(key(n), Marks::default());
            if n % 100 == 0 {
                let mut table = users.table(key(n));
                let user = table.get(key(n)).unwrap();
                user.marks.count(What::ALL, u64::from(n), 1);
                user.kept = Kept::Changed;
            }
        }
        let held = (0..10_000).filter(|n| users.table(key(*n)).get(key(*n)).is_some()).count();
        assert_eq!(held, users.count());
        assert!((1_000..=1_110).contains(&held), "{held}");
        for n in (0..10_000).step_by(100) {
            let mut table = users.table(key(n));
            assert_eq!(table.get(key(n)).unwrap().marks.get(What::ALL).unwrap().last_at, u64::from(n));
        }
    }

    #[test]
    fn a_user_is_small() {
        assert!(size_of::<User>() <= 64, "{}", size_of::<User>());
    }
}
