//! What this node took from the commit order and a store that has gone back may not have.
//!
//! Positions alone do not tell: a standby that took over without the newest commits gives the same positions out again,
//! and may be farther on at the next look. So the node remembers what stands at the last place of each batch that it
//! took since its last look, and compares once another server answers. One that has everything has the same there.

use super::{FAR, Follower, Offered};
use crate::{
    cluster::log::{Change, LogRecord, Stand},
    model::*,
    store::{Span, StoreResult},
};
use rustc_hash::FxHasher;
use std::{
    collections::VecDeque,
    hash::{Hash, Hasher},
    time::{Duration, Instant},
};

/// What nodes said of the former server's commits may come so late, and is compared too.
const LATE_FOR: Duration = Duration::from_secs(10);
/// Ends that are remembered while the store cannot be looked at. Above, every other one goes: of what was lost there are
/// fewer ends to notice it by.
const ENDS_MAX: usize = 4_096;

/// The last place of a batch, and a hash of what stands there.
pub(super) type End = (Position, u64);

#[derive(Default)]
pub(super) struct Ends {
    /// In order: the last one that is known to be stored, and those behind it.
    ends: VecDeque<End>,
    server: Option<u64>,
    comparing_until: Option<Instant>,
    /// The number of the history that this node's ends were found in last.
    epoch: u64,
}

impl Ends {
    pub(super) fn of(epoch: u64) -> Self {
        Ends { epoch, ..Ends::default() }
    }

    pub(super) fn push(&mut self, end: Option<End>) {
        self.ends.extend(end);
        if self.ends.len() > ENDS_MAX {
            let mut index = 0;
            // The newest stays.
            self.ends.retain(|_| {
                index += 1;
                index % 2 == 1
            });
        }
    }

    /// This server answered, after everything up to `applied` was taken: what is to be compared with what it has.
    pub(super) fn seen(&mut self, server: u64, applied: Position, now: Instant) -> Vec<End> {
        if self.server.replace(server).is_some_and(|before| before != server) {
            self.comparing_until = Some(now + LATE_FOR);
        }
        match self.comparing_until {
            Some(_) => self.ends.iter().take_while(|(position, _)| *position <= applied).copied().collect(),
            None => {
                self.confirm(applied);
                vec![]
            }
        }
    }

    /// What was to be compared up to there is as it was.
    pub(super) fn compared(&mut self, applied: Position, now: Instant) {
        self.confirm(applied);
        self.comparing_until = self.comparing_until.filter(|until| now < *until);
    }

    #[cfg(test)]
    pub(super) fn newest(&self) -> Option<Position> {
        self.ends.back().map(|(position, _)| *position)
    }

    fn confirm(&mut self, applied: Position) {
        while self.ends.get(1).is_some_and(|(position, _)| *position <= applied) {
            self.ends.pop_front();
        }
    }
}

/// The end of a batch that is taken now, if what stands there is certain.
pub(super) fn end_of(offered: &Offered, span: Span) -> Option<End> {
    let (items, entry, change) = match offered {
        Offered::Own(items) => {
            let last = items.last()?;
            let entry = last.committed.as_ref().and_then(|committed| committed.entry.as_ref());
            (items.len(), entry, last.change.as_ref())
        }
        Offered::Others(batch) => {
            let last = batch.items.last()?;
            (batch.items.len(), last.entry.as_ref(), last.change.as_ref())
        }
    };
    match entry.filter(|entry| entry.position == span.through) {
        Some(entry) => Some((span.through, hash_of(Some(entry), None))),
        // A change does not say where it stands: only of items that take every place is the last one's the last.
        None => {
            change.filter(|_| items as u64 == span.through - span.after).map(|c| (span.through, hash_of(None, Some(c))))
        }
    }
}

fn hash_of(entry: Option<&StoredEntry>, change: Option<&Change>) -> u64 {
    let mut hasher = FxHasher::default();
    match (entry, change) {
        (Some(StoredEntry { seq, at, content, .. }), _) => {
            (seq, at, &content.body, &content.client_msg_id).hash(&mut hasher);
            content.sender.as_ref().map(|sender| sender.no).hash(&mut hasher);
        }
        (None, change) => change.hash(&mut hasher),
    }
    hasher.finish()
}

impl Follower {
    /// How far the store has come, and if it has not all that this node took: how far the two agree.
    pub(super) fn look(&self, applied: Position, limit: usize) -> StoreResult<(Position, Option<Position>)> {
        let LogHead { newest, server } = self.log.log_head()?;
        if newest < applied {
            return Ok((newest, Some(newest)));
        }
        let ends = self.state.lock().ends.seen(server, applied, Instant::now());
        let other = self.first_other(&ends, limit)?;
        let mut state = self.state.lock();
        state.ends.compared(applied, Instant::now());
        if other.is_none() {
            state.ends.epoch = self.log.known_epoch();
        }
        drop(state);
        Ok((newest, other.map(|other| other - 1)))
    }

    /// The store has lost what this node has handed out: it ends, and cursors from before are of another history.
    pub(super) fn go_astray(&self, back_to: Position, from: Position) -> Duration {
        tracing::error!(back_to, from, "the store has gone back: this node drains and must be started again");
        let lost = self.state.lock().ends.epoch;
        if let Err(error) = self.log.bump_epoch(lost) {
            tracing::error!(%error, "clients could not be told that the history is another one: change its epoch by hand");
        }
        let mut state = self.state.lock();
        state.trouble =
            Some(format!("the store has gone back to position {back_to} from {from}: start this node again"));
        state.astray = true;
        FAR
    }

    /// The first of these places where something else stands now. Where retention left nothing, nothing is told.
    fn first_other(&self, ends: &[End], limit: usize) -> StoreResult<Option<Position>> {
        let (Some((first, _)), Some((last, _))) = (ends.first(), ends.last()) else { return Ok(None) };
        let differs = |LogRecord { position, entry, change }: &LogRecord| {
            let known = ends.binary_search_by_key(position, |(position, _)| *position);
            let entry = entry.as_ref().map(|(_, entry)| entry);
            known.is_ok_and(|known| ends[known].1 != hash_of(entry, change.as_ref()))
        };
        let mut after = first - 1;
        while after < *last {
            let page = self.log.committed_after(after, limit)?;
            if let Some(other) = page.records.iter().find(|logged| differs(logged)) {
                return Ok(Some(other.position));
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

    fn positions(ends: &[End]) -> Vec<Position> {
        ends.iter().map(|(position, _)| *position).collect()
    }

    #[test]
    fn what_one_server_confirmed_is_compared_no_more_and_what_is_late_is() {
        let (mut ends, start) = (Ends::default(), Instant::now());
        assert_eq!(ends.seen(1, 0, start), []);
        (1..=5).for_each(|position| ends.push(Some((position * 10, position))));
        assert_eq!(ends.seen(1, 40, start), []);
        // The last that was confirmed is compared again: another server may not have it.
        assert_eq!(positions(&ends.seen(2, 50, start)), [40, 50]);
        assert_eq!(positions(&ends.seen(2, 50, start)), [40, 50], "it could not be done and is tried again");
        ends.compared(50, start);
        ends.push(Some((60, 6)));
        assert_eq!(positions(&ends.seen(2, 60, start)), [50, 60], "what comes late is compared");
        ends.compared(60, start + LATE_FOR);
        ends.push(Some((70, 7)));
        assert_eq!(ends.seen(2, 70, start + LATE_FOR), []);
    }

    #[test]
    fn while_nobody_looks_they_stay_few() {
        let mut ends = Ends::default();
        (1..=100_001).for_each(|position| ends.push(Some((position, 0))));
        let kept = positions(ends.ends.make_contiguous());
        assert!((ENDS_MAX / 2..=ENDS_MAX).contains(&kept.len()));
        assert_eq!((kept[0], kept.is_sorted()), (1, true));
        assert!(100_001 - kept[kept.len() - 1] < 64);
    }
}
