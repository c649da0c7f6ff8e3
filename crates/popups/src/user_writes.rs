//! Writes what changes users' marks and positions in journeys. The changes are made in memory once they are stored: an event
//! that was refused leaves no mark.

use super::{
    UserKey,
    frequency::FrequencyCounters,
    journeys::{
        WakeChange,
        position::{Move, Moves},
    },
    rows,
    user_cache::{DirtyState, NegativeCacheEntry, UserState},
    user_changes::{ChangesOfUser, UserChanges},
    worker::Worker,
};
use tidings_domain::store::{RowChange, StoreError, StoreResult};

/// Loads of a user whom the cache evicts before the row is made.
const LOADS_MAX: usize = 4;

impl Worker {
    /// Writes these rows with the rows of the users that they change. `ids` are written too; they tell whether a write was
    /// stored whose answer was lost.
    pub(super) fn write_changes(
        &mut self,
        mut changes: Vec<RowChange>,
        ids: Vec<RowChange>,
        mut users: UserChanges,
    ) -> StoreResult<()> {
        changes.extend(ids.iter().cloned());
        let written = match self.push_user_rows(&mut users, &mut changes) {
            Ok(()) if changes.is_empty() => Ok(()),
            Ok(()) => self.write(rows::last_of_each(changes)),
            Err(error) => Err(error),
        };
        match (&written, &mut self.unresolved) {
            (Err(StoreError::OutcomeUnknown(_)), Some(unresolved)) => {
                unresolved.witnesses.extend(ids);
                unresolved.changes = users;
            }
            _ => self.settle_changes(users, written.is_ok()),
        }
        written
    }

    /// Adds the rows of these users as they are with the changes, and keeps the users in memory until
    /// [`Worker::settle_changes`].
    fn push_user_rows(&mut self, users: &mut UserChanges, to: &mut Vec<RowChange>) -> StoreResult<()> {
        self.load_users(users.0.keys().copied())?;
        let now_ms = self.shared.clock.now_ms();
        let Some(configuration) = self.shared.configuration.read().clone() else { return Ok(()) };
        let has_journeys = !configuration.journeys.is_empty();
        let mut moved: Vec<(Move, u64)> = Vec::new();
        for (key, of_user) in &mut users.0 {
            let mut moves = Moves::new();
            let before = self.with_loaded_user(*key, |user| {
                of_user.was_clean = user.dirty_state == DirtyState::Clean;
                user.dirty_state = DirtyState::Writing;
                let before = user.counters.clone();
                if has_journeys {
                    // Where time has moved the user is known without the store, and holds at once: a question that comes
                    // while this is being stored goes on from there, and finds the popup that is due.
                    configuration.journeys.advance(&mut user.counters, now_ms, &mut moves);
                    of_user.advanced = before.changed_journeys(&user.counters);
                }
                (before, user.counters.clone())
            });
            let (mut before, mut counters) = before?;
            counters.prune(now_ms, |no| configuration.knows_number(no));
            if has_journeys {
                before.prune(now_ms, |no| configuration.knows_number(no));
                let wake = WakeChange::begin(&configuration.journeys, &before, now_ms);
                of_user.make(&configuration, &mut counters, now_ms, &mut moves);
                moved.extend(moves.into_iter().map(|one| (one, now_ms)));
                let wake = wake.end(&configuration.journeys, &counters, now_ms);
                self.push_wake(*key, &of_user.id, wake, of_user.woken_at(), to);
            } else {
                of_user.changes.iter().for_each(|change| change.mark(&mut counters));
            }
            rows::put_long(to, &rows::user_key(*key), &counters.to_bytes());
        }
        self.count_moves(&moved)
    }

    /// Makes the changes in memory if they were stored.
    pub(super) fn settle_changes(&self, users: UserChanges, stored: bool) {
        let now_ms = self.shared.clock.now_ms();
        let configuration = self.shared.configuration.read().clone();
        for (key, ChangesOfUser { changes, was_clean, positions, advanced, .. }) in users.0 {
            let mut stripe = self.shared.users.stripe(key);
            let Some(user) = stripe.get(key) else { continue };
            if !stored {
                // The moves were not counted: the next write makes them again, and counts them.
                advanced.into_iter().for_each(|(before, after)| user.counters.replace(after, before));
            } else {
                if let Some(configuration) = &configuration {
                    user.counters.prune(now_ms, |no| configuration.knows_number(no));
                }
                changes.into_iter().for_each(|change| change.mark(&mut user.counters));
                positions.into_iter().for_each(|position| user.counters.put(position));
                user.cache_negative(NegativeCacheEntry::EMPTY, now_ms);
            }
            if user.dirty_state == DirtyState::Writing {
                user.dirty_state = if stored || was_clean { DirtyState::Clean } else { DirtyState::Dirty };
            }
        }
    }

    /// Loads the counters of those users who are not in memory, with one read for all.
    pub(super) fn load_users(&self, users: impl Iterator<Item = UserKey>) -> StoreResult<()> {
        let missing: Vec<UserKey> = users.filter(|key| self.shared.users.stripe(*key).get(*key).is_none()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        self.shared.metrics.popup_store_reads.inc();
        let keys: Vec<Vec<u8>> = missing.iter().map(|key| rows::user_key(*key)).collect();
        for (key, bytes) in missing.into_iter().zip(rows::read_longs(&*self.shared.store, &keys)?) {
            self.shared.users.insert(key, FrequencyCounters::from_bytes(&bytes.unwrap_or_default())?);
        }
        Ok(())
    }

    pub(super) fn with_loaded_user<T>(&self, key: UserKey, use_it: impl FnOnce(&mut UserState) -> T) -> StoreResult<T> {
        for _ in 0..LOADS_MAX {
            if let Some(user) = self.shared.users.stripe(key).get(key) {
                return Ok(use_it(user));
            }
            self.shared.users.insert(key, self.shared.read_counters(key)?);
        }
        Err(StoreError::Unavailable("too many users are asked about at once: popups.users_max is too small".into()))
    }
}
