//! Removes what is older than its retention: events with their ids, assignments, and hourly counts. Each run removes one chunk, so
//! that callers that wait for the worker never wait for more than that.

use super::{
    Shared,
    frequency::EVENT_MARK_MS,
    hourly_counts::HOUR_MS,
    rows::{self, SPACE, kind},
};
use tidings_domain::store::StoreResult;

/// How often old rows are looked for.
const SWEEP_EVERY_MS: u64 = 60 * 1_000;
/// Popups whose counts are looked at in one run.
const POPUPS_AT_ONCE: usize = 64;

pub(super) struct Sweep {
    started_at: u64,
    /// There may be more old events.
    events: bool,
    /// Popups whose counts are still to be looked at.
    popups: Vec<u32>,
    /// Counts of earlier hours are removed, or will be once all of `popups` have been looked at.
    counts_from: u32,
}

impl Sweep {
    pub(super) fn new(now_ms: u64) -> Self {
        Sweep { started_at: now_ms, events: false, popups: Vec::new(), counts_from: 0 }
    }

    /// Whether there is something to remove right away.
    pub(super) fn is_under_way(&self) -> bool {
        self.events || !self.popups.is_empty()
    }

    /// Removes one chunk, and begins a new sweep when one is due.
    pub(super) fn run_once(&mut self, shared: &Shared, now_ms: u64) -> StoreResult<()> {
        if now_ms.abs_diff(self.started_at) >= SWEEP_EVERY_MS {
            self.started_at = now_ms;
            self.events = true;
            let oldest = shared.oldest_kept_hour(now_ms);
            if oldest != self.counts_from && self.popups.is_empty() {
                self.counts_from = oldest;
                self.popups = shared
                    .configuration
                    .read()
                    .iter()
                    .flat_map(|all| all.by_no.keys().copied().chain(all.journeys.numbers()))
                    .collect();
            }
        }
        if self.events {
            // If the removal fails, the next sweep tries again.
            self.events = false;
            self.events = shared.sweep_events(now_ms)?;
        } else if !self.popups.is_empty() {
            let some = self.popups.split_off(self.popups.len().saturating_sub(POPUPS_AT_ONCE));
            match shared.sweep_counts(self.counts_from, some) {
                Ok(unfinished) => self.popups.extend(unfinished),
                Err(error) => {
                    (self.popups, self.counts_from) = (Vec::new(), 0);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

impl Shared {
    fn oldest_kept_hour(&self, now_ms: u64) -> u32 {
        (now_ms.saturating_sub(self.config.count_retention.as_millis() as u64) / HOUR_MS) as u32
    }

    /// Removes a chunk of the oldest events that are past their retention; returns whether there may be more.
    fn sweep_events(&self, now_ms: u64) -> StoreResult<bool> {
        let kept_from = now_ms.saturating_sub(self.config.event_retention.as_millis() as u64);
        let last = [&[kind::EVENT], &kept_from.saturating_sub(1).to_be_bytes()[..]].concat();
        let old = self.store.rows(SPACE, &[kind::EVENT], &rows::end_of(last), rows::ROWS_PER_WRITE / 2)?;
        if old.is_empty() {
            return Ok(false);
        }
        let mut changes = Vec::with_capacity(old.len() * 2);
        for (key, row) in old {
            let (event, _) = rows::decode_event(&row)?;
            changes.push(rows::remove(rows::event_id_key(rows::event_id_hash(&event.user, &event.id))));
            changes.push(rows::remove(key));
        }
        self.write(changes)?;
        Ok(true)
    }

    /// Removes the counts and assignments of these popups before the hour `oldest`, as many as one write takes; returns the popups that
    /// may have more.
    fn sweep_counts(&self, oldest: u32, mut popups: Vec<u32>) -> StoreResult<Vec<u32>> {
        let mut changes = Vec::new();
        let mut failed = None;
        // No assignment outlives its mark: its user is assigned anew then.
        let forgotten = self.clock.now_ms().saturating_sub(EVENT_MARK_MS);
        let assigned_before = forgotten.max(u64::from(oldest) * HOUR_MS);
        popups.retain(|popup| {
            // No variant is named "", so this range ends before the counts of the hour `oldest`.
            let (from, to) = (rows::count_key(*popup, 0, ""), rows::count_key(*popup, oldest, ""));
            let left = rows::ROWS_PER_WRITE - changes.len();
            if left == 0 || failed.is_some() {
                return true;
            }
            let old = self.store.rows(SPACE, &from, &to, left).and_then(|counts| {
                let assigned = self.old_assignments(*popup, assigned_before, left - counts.len())?;
                Ok(counts.into_iter().map(|(key, _)| key).chain(assigned))
            });
            match old {
                Ok(old) => {
                    changes.extend(old.map(rows::remove));
                    changes.len() == rows::ROWS_PER_WRITE
                }
                Err(error) => {
                    failed = Some(error);
                    true
                }
            }
        });
        match failed {
            Some(error) => return Err(error),
            None if !changes.is_empty() => self.write(changes)?,
            None => {}
        }
        Ok(popups)
    }
}
