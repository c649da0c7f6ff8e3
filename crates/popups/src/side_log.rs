//! The side log bounds what a crash forgets while the disk stalls: the counters of users whose exposures have waited
//! for the store for a quarter of the bound are written there, where they survive the process, and read back at the
//! next start.

use super::{
    Shared, UserKey, assignments,
    frequency::FrequencyCounters,
    rows::{self, Wake},
};
use std::time::Instant;
use tidings_domain::store::{RowChange, StoreResult};

impl Shared {
    /// Writes the side log until the write queue is closed: the whole of a thread.
    pub(super) fn run_side_log(&self) {
        let mut is_failing = false;
        let mut not_before = Instant::now();
        while let Some((users, through)) = self.write_queue.users_to_log(not_before) {
            let mut changes = Vec::with_capacity(users.len());
            for key in users {
                if let Some(user) = self.users.stripe(key).get(key) {
                    changes.push(RowChange { key: rows::user_key(key), value: Some(user.counters.to_bytes()) });
                }
            }
            match self.store.append_to_side_log(&changes) {
                Ok(()) => {
                    is_failing = false;
                    self.write_queue.logged(through);
                }
                // The exposures stay undurable, and the next write includes them.
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(%error, "the side log of popups could not be written; exposures wait for the store");
                    }
                    not_before = Instant::now() + self.write_queue.side_log_delay();
                }
            }
        }
    }

    /// Stores the counters that only the side log had when the process ended. An entry may be older than the stored
    /// row, so the two are merged: of each counter the higher one is kept.
    pub(super) fn recover_side_log(&self) -> StoreResult<()> {
        let entries = self.store.read_side_log()?;
        for chunk in entries.chunks(rows::ROWS_PER_WRITE) {
            let mut changes = Vec::with_capacity(chunk.len());
            for entry in chunk {
                let Some(key) = entry.key.get(1..).and_then(|key| key.try_into().ok()).map(u128::from_be_bytes) else {
                    return Err(rows::damaged(&"an entry of the side log names no user"));
                };
                let user = UserKey(key);
                // A user's second entry is merged with the first, so the first must be stored before.
                if changes.iter().any(|change: &RowChange| change.key.starts_with(&entry.key)) {
                    self.write(std::mem::take(&mut changes))?;
                }
                let mut counters = self.read_counters(user)?;
                let logged = FrequencyCounters::from_bytes(entry.value.as_deref().unwrap_or_default())?;
                counters.merge(&logged);
                let assigned: Vec<_> = logged.assignments().copied().collect();
                changes.extend(assignments::missing_rows(&*self.store, user, &assigned)?);
                rows::put_long(&mut changes, &rows::user_key(user), &counters.to_bytes());
                // The row of the user's timer may be missing, since it is stored with the exposure: the user is looked at.
                if counters.journeys().next().is_some()
                    && let Some(id) = self.store.row(rows::SPACE, &rows::standing_key(user))?
                {
                    changes.push(rows::put(rows::wake_key(Wake { at: self.clock.now_ms(), user }), id));
                }
            }
            self.write(changes)?;
        }
        if !entries.is_empty() {
            tracing::info!(
                users = entries.len(),
                "exposures that were not stored at the last end were read from the side log"
            );
        }
        self.store.truncate_side_log()
    }
}
