//! Notices a store that has lost commits which this node has applied.
//!
//! Positions alone do not tell: a standby that took over without the newest commits assigns the same positions again, and
//! may be farther on by the next poll. So the node remembers a fingerprint of the last record of each batch that it applied
//! since its last poll, and compares them once another server answers. A server that has every commit has the same records
//! at these positions.

use super::{BatchContent, Follower, UNSCHEDULED};
use crate::cluster::wire::{EntryMarks, PartialBatch};
use rustc_hash::FxHasher;
use std::{
    collections::VecDeque,
    hash::{Hash, Hasher},
    time::{Duration, Instant},
};
use tidings_domain::{
    commit_log::{Change, LogHead, LogRecord},
    end_reason::EndReason,
    model::*,
    store::{PositionRange, StoreResult},
};

/// A peer's message about a commit on the former server may come so late, and is compared too.
const LATE_FOR: Duration = Duration::from_secs(10);
/// Fingerprints that are kept while the store cannot be polled. Above, every other one is dropped: a loss is then noticed by
/// fewer of them.
const FINGERPRINTS_MAX: usize = 4_096;

/// The last position of a batch, and a hash of the record there.
pub(super) type Fingerprint = (Position, u64);

#[derive(Default)]
pub(super) struct DivergenceChecks {
    /// By position: the last one that is known to be stored, and all after it.
    fingerprints: VecDeque<Fingerprint>,
    server: Option<u64>,
    comparing_until: Option<Instant>,
    /// The epoch of the history that agreed with the fingerprints last.
    epoch: u64,
}

impl DivergenceChecks {
    pub(super) fn of(epoch: u64) -> Self {
        DivergenceChecks { epoch, ..DivergenceChecks::default() }
    }

    /// `None`: the batch has no certain fingerprint.
    pub(super) fn push(&mut self, fingerprint: Option<Fingerprint>) {
        self.fingerprints.extend(fingerprint);
        if self.fingerprints.len() > FINGERPRINTS_MAX {
            let mut index = 0;
            // The newest stays.
            self.fingerprints.retain(|_| {
                index += 1;
                index % 2 == 1
            });
        }
    }

    /// This server answered after everything up to `applied` was applied. Returns the fingerprints to compare with its
    /// records: none while the same server answers.
    pub(super) fn on_answer(&mut self, server: u64, applied: Position, now: Instant) -> Vec<Fingerprint> {
        if self.server.replace(server).is_some_and(|before| before != server) {
            self.comparing_until = Some(now + LATE_FOR);
        }
        match self.comparing_until {
            Some(_) => self.fingerprints.iter().take_while(|(position, _)| *position <= applied).copied().collect(),
            None => {
                self.confirm(applied);
                vec![]
            }
        }
    }

    /// The fingerprints up to this position were compared.
    pub(super) fn compared(&mut self, applied: Position, now: Instant) {
        self.confirm(applied);
        self.comparing_until = self.comparing_until.filter(|until| now < *until);
    }

    #[cfg(test)]
    pub(super) fn newest(&self) -> Option<Position> {
        self.fingerprints.back().map(|(position, _)| *position)
    }

    fn confirm(&mut self, applied: Position) {
        while self.fingerprints.get(1).is_some_and(|(position, _)| *position <= applied) {
            self.fingerprints.pop_front();
        }
    }
}

/// The fingerprint of a batch, if it is certain which record the batch ends with.
pub(super) fn fingerprint_of(content: &BatchContent, span: PositionRange) -> Option<Fingerprint> {
    let (items, entry, change) = match content {
        BatchContent::Local(items) => {
            let last = items.last()?;
            let entry = last.lane_item.as_ref().and_then(|lane_item| lane_item.entry.as_ref());
            (items.len(), entry, last.change.as_ref())
        }
        BatchContent::Remote(PartialBatch { last: Some(marks), .. }) => {
            return Some((span.through, hash_of_entry(marks)));
        }
        BatchContent::Remote(PartialBatch { batch, left_out, .. }) => {
            let last = batch.items.last()?;
            let left_out: usize = left_out.iter().map(|left_out| left_out.messages as usize).sum();
            (batch.items.len() + left_out, last.entry.as_ref(), last.change.as_ref())
        }
    };
    match entry.filter(|entry| entry.position == span.through) {
        Some(entry) => Some((span.through, hash_of_entry(&EntryMarks::of(entry)))),
        // A change does not know its position. The last item's change has the last position only if every position of the
        // span has an item.
        None => change
            .filter(|_| items as u64 == span.through - span.after)
            .map(|c| (span.through, hash_of_change(Some(c)))),
    }
}

/// Without the body: an edit or a recall replaces it.
fn hash_of_entry(EntryMarks { seq, at, kind, client_msg_id, sender }: &EntryMarks) -> u64 {
    let mut hasher = FxHasher::default();
    (seq, at, kind, client_msg_id, sender).hash(&mut hasher);
    hasher.finish()
}

fn hash_of_change(change: Option<&Change>) -> u64 {
    let mut hasher = FxHasher::default();
    change.hash(&mut hasher);
    hasher.finish()
}

impl Follower {
    /// The store's newest position; and, if the store lacks some of what this node has applied, the position up to which the
    /// two agree.
    pub(super) fn check_head(&self, applied: Position, limit: usize) -> StoreResult<(Position, Option<Position>)> {
        let LogHead { newest, server } = self.log.log_head()?;
        if newest < applied {
            return Ok((newest, Some(newest)));
        }
        let fingerprints = self.state.lock().divergence.on_answer(server, applied, Instant::now());
        let differing = self.first_difference(&fingerprints, limit)?;
        let mut state = self.state.lock();
        state.divergence.compared(applied, Instant::now());
        if differing.is_none() {
            state.divergence.epoch = self.log.known_epoch();
        }
        drop(state);
        Ok((newest, differing.map(|differing| differing - 1)))
    }

    /// The store has lost commits that this node has handed out: the node stops following, and cursors from before become
    /// those of another history.
    pub(super) fn declare_diverged(&self, back_to: Position, from: Position) -> Duration {
        let lost = self.state.lock().divergence.epoch;
        if let Err(error) = self.log.bump_epoch(lost) {
            tracing::error!(%error, "clients could not be told that the history is another one: change its epoch by hand");
        }
        let mut state = self.state.lock();
        let reason = EndReason::StoreWentBack { back_to, from };
        state.trouble = Some(reason.to_string());
        state.end_reason = Some(reason);
        UNSCHEDULED
    }

    /// The first position whose record differs from its fingerprint. A record that retention has removed tells nothing.
    fn first_difference(&self, fingerprints: &[Fingerprint], limit: usize) -> StoreResult<Option<Position>> {
        let (Some((first, _)), Some((last, _))) = (fingerprints.first(), fingerprints.last()) else { return Ok(None) };
        let differs = |LogRecord { position, entry, change, .. }: &LogRecord| {
            let known = fingerprints.binary_search_by_key(position, |(position, _)| *position);
            let hash = || match entry {
                Some((_, entry)) => hash_of_entry(&EntryMarks::of(entry)),
                None => hash_of_change(change.as_ref()),
            };
            known.is_ok_and(|known| fingerprints[known].1 != hash())
        };
        let mut after = first - 1;
        while after < *last {
            let page = self.log.committed_after(after, limit)?;
            if let Some(record) = page.records.iter().find(|record| differs(record)) {
                return Ok(Some(record.position));
            }
            if page.span.through <= after {
                break;
            }
            after = page.span.through;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn positions(fingerprints: &[Fingerprint]) -> Vec<Position> {
        fingerprints.iter().map(|(position, _)| *position).collect()
    }

    #[test]
    fn fingerprints_are_compared_after_a_change_of_server_until_no_message_can_be_late() {
        let (mut checks, start) = (DivergenceChecks::default(), Instant::now());
        assert_eq!(checks.on_answer(1, 0, start), []);
        (1..=5).for_each(|position| checks.push(Some((position * 10, position))));
        assert_eq!(checks.on_answer(1, 40, start), []);
        // The last one that was confirmed is compared again: another server may lack its record.
        assert_eq!(positions(&checks.on_answer(2, 50, start)), [40, 50]);
        assert_eq!(positions(&checks.on_answer(2, 50, start)), [40, 50], "a comparison that failed is tried again");
        checks.compared(50, start);
        checks.push(Some((60, 6)));
        assert_eq!(positions(&checks.on_answer(2, 60, start)), [50, 60], "a late message is compared");
        checks.compared(60, start + LATE_FOR);
        checks.push(Some((70, 7)));
        assert_eq!(checks.on_answer(2, 70, start + LATE_FOR), []);
    }

    #[test]
    fn fingerprints_stay_bounded_while_the_store_is_not_polled() {
        let mut checks = DivergenceChecks::default();
        (1..=100_001).for_each(|position| checks.push(Some((position, 0))));
        let kept = positions(checks.fingerprints.make_contiguous());
        assert!((FINGERPRINTS_MAX / 2..=FINGERPRINTS_MAX).contains(&kept.len()));
        assert_eq!((kept[0], kept.is_sorted()), (1, true));
        assert!(100_001 - kept[kept.len() - 1] < 64);
    }
}
