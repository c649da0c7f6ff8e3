//! What the clients saw during a step.

use crate::job::{Progress, Refused};
use serde::Serialize;
use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

/// Reports in a row without a fault after which all counts as well again; four come a second.
const GOOD_ENOUGH: u32 = 6;

#[derive(Debug)]
pub(super) struct Watch {
    started: Instant,
    seen: Mutex<Seen>,
    enough: AtomicBool,
}

impl Default for Watch {
    fn default() -> Self {
        Watch { started: Instant::now(), seen: Mutex::default(), enough: AtomicBool::new(false) }
    }
}

#[derive(Debug, Default)]
struct Seen {
    committed: u64,
    good_in_row: u32,
    last_bad: Option<Instant>,
    pause_ms: f64,
    reconnects: u64,
    refused: Refused,
}

/// What a step came to, as clients saw it.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Noticed {
    /// The longest that a member waited for its next message.
    pub(super) pause_ms: f64,
    pub(super) reconnects: u64,
    pub(super) refused: Refused,
    /// From the harm to the last moment at which somebody lagged or nothing was committed.
    pub(super) disturbed_s: f64,
    /// The same from when the harm was undone; 0: all was well by then.
    pub(super) healed_s: f64,
}

impl Watch {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a report. Answers whether it is enough.
    pub(super) fn note(&self, progress: &Progress) -> bool {
        let mut seen = self.seen();
        // Lagging behind what others had a quarter of a second ago, or nobody got an answer.
        let good = progress.lagging == 0 && progress.committed > seen.committed;
        match good {
            true => seen.good_in_row += 1,
            false => (seen.good_in_row, seen.last_bad) = (0, Some(Instant::now())),
        }
        seen.committed = progress.committed;
        seen.pause_ms = seen.pause_ms.max(progress.pause_ms);
        (seen.reconnects, seen.refused) = (progress.reconnects, progress.refused.clone());
        self.enough.load(Ordering::Relaxed)
    }

    /// Everybody has what there is, messages are committed, and that for a while.
    pub(super) fn is_well(&self) -> bool {
        self.seen().good_in_row >= GOOD_ENOUGH
    }

    /// What comes from now on is of the harm.
    pub(super) fn begin_harm(&self) {
        let mut seen = self.seen();
        (seen.good_in_row, seen.pause_ms, seen.last_bad) = (0, 0.0, None);
    }

    pub(super) fn started(&self) -> Instant {
        self.started
    }

    /// Whether nobody in the group has lost a connection in this phase.
    pub(super) fn has_nobody_moved(&self) -> bool {
        self.seen().reconnects == 0
    }

    /// What was good before counts no longer: asks anew whether all is well.
    pub(super) fn ask_again(&self) {
        self.seen().good_in_row = 0;
    }

    pub(super) fn enough(&self) {
        self.enough.store(true, Ordering::Relaxed);
    }

    pub(super) fn noticed(&self, harmed: Instant, mended: Instant) -> Noticed {
        let seen = self.seen();
        let since =
            |start: Instant| seen.last_bad.map_or(0.0, |bad| bad.saturating_duration_since(start).as_secs_f64());
        Noticed {
            pause_ms: seen.pause_ms,
            reconnects: seen.reconnects,
            refused: seen.refused.clone(),
            disturbed_s: since(harmed),
            healed_s: since(mended),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(committed: u64, lagging: u64) -> Progress {
        Progress {
            seconds: 0.0,
            sent: 0,
            committed,
            delivered: 0,
            pause_ms: 0.0,
            lagging,
            reconnects: 0,
            refused: Refused::new(),
        }
    }

    #[test]
    fn all_is_well_when_nobody_lags_and_messages_are_committed_for_a_while() {
        let watch = Watch::default();
        let mut committed = 0;
        let mut report = |grows: u64, lagging: u64, times: u32| {
            for _ in 0..times {
                committed += grows;
                assert!(!watch.note(&progress(committed, lagging)));
            }
            watch.is_well()
        };
        assert!(!report(1, 0, GOOD_ENOUGH - 1));
        assert!(report(1, 0, 1));
        assert!(!report(1, 1, GOOD_ENOUGH), "somebody lags");
        assert!(!report(0, 0, GOOD_ENOUGH), "nothing is committed");
        assert!(report(1, 0, GOOD_ENOUGH));
        watch.enough();
        assert!(watch.note(&progress(0, 0)));
    }
}
