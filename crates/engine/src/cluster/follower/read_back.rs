//! Reads back from the store what did not come over the bus.

use super::{BACKPRESSURE_RETRY, Follower, GAP_GRACE, READ_MAX, State, UNSCHEDULED};
use crate::cluster::wire::{BusMessage, ConversationRef, WireBatch, WireItem};
use parking_lot::MutexGuard;
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};
use tidings_domain::{
    commit_log::{Change, LogPage},
    end_reason::EndReason,
    model::{ConversationNo, Position},
    store::{PositionRange, StoreError, StoreResult},
};

/// How often the log is read although no gap is known, because the last message may have been lost.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// The same while the log is the only way by which peers' commits come: the bus is down, or peers do not know this node yet.
const POLL_EVERY_WITHOUT_BUS: Duration = Duration::from_millis(50);
/// How long peers may need to learn of this node after its start.
const NEW_FOR: Duration = Duration::from_secs(5);
/// The pause after the log could not be read.
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// The fewest records that are read back at once. Each failure halves the number: a store that cannot answer a large read in
/// time may answer a small one.
const READ_MIN: usize = 16;

impl Follower {
    /// Reads back what did not come, on a thread of its own. Ends, and calls `end` with the reason, when this node can no
    /// longer follow the store.
    pub(crate) fn run(&self, end: impl Fn(EndReason)) {
        let mut state = self.state.lock();
        loop {
            loop {
                let until = state.gap_poll.map_or(state.next_poll, |gap_poll| gap_poll.min(state.next_poll));
                if state.stopping || Instant::now() >= until {
                    break;
                }
                self.poll_changed.wait_until(&mut state, until);
            }
            if state.stopping {
                return;
            }
            // Set before the log is read: a poll that is asked for meanwhile is not forgotten.
            (state.next_poll, state.gap_poll) = (Instant::now() + UNSCHEDULED, None);
            if state.backpressured {
                self.advance(&mut state);
            }
            let next = if state.backpressured {
                BACKPRESSURE_RETRY
            } else {
                MutexGuard::unlocked(&mut state, || self.read_back())
            };
            if let Some(reason) = state.end_reason.clone() {
                MutexGuard::unlocked(&mut state, || end(reason));
                return;
            }
            let due = self.due_request(&mut state);
            MutexGuard::unlocked(&mut state, || self.request_from_peer(due));
            self.poll_within(&mut state, next);
            self.watch_gap(&mut state);
        }
    }

    /// Reads the next page of the log, if there is one. Returns when to read again.
    pub(super) fn read_back(&self) -> Duration {
        let (after, limit, lacking, has_gap) = {
            let state = self.state.lock();
            if state.has_gap() {
                self.metrics.cluster.gaps.inc();
            }
            (state.applied, state.read_limit, state.lacking, state.has_gap())
        };
        let checked = self.check_head(after, limit);
        match checked {
            Ok((_, Some(agreed))) => return self.declare_diverged(agreed, after),
            Ok((newest, None)) if newest < lacking => {
                // The store has lost that commit before this node had all of it.
                let mut state = self.state.lock();
                if state.lacking == lacking {
                    state.lacking = newest;
                }
            }
            _ => {}
        }
        match checked {
            Ok((newest, None)) if newest == after => {
                self.note_trouble(None);
                self.metrics.cluster.position_lag.set(0);
                return self.next_poll(true);
            }
            Ok((newest, None)) if !has_gap && self.comes_by_itself(newest) => {
                self.note_trouble(None);
                return self.next_poll(true);
            }
            _ => {}
        }
        let read = checked.and_then(|(newest, _)| {
            let page = self.log.committed_after(after, limit)?;
            let is_complete = page.span.through >= newest;
            Ok((self.to_wire(page)?, is_complete))
        });
        self.state.lock().read_limit = match &read {
            Ok(_) => (limit * 2).min(READ_MAX),
            Err(_) => (limit / 2).max(READ_MIN),
        };
        let (batch, is_complete) = match read {
            Ok(read) => read,
            Err(error) => {
                self.note_trouble(Some(&error));
                if matches!(error, StoreError::Pruned(_)) {
                    // The missing records are gone for good. Only a new start takes the store as it is now.
                    self.state.lock().end_reason = Some(EndReason::AwayTooLong(error.to_string()));
                }
                return RETRY_AFTER;
            }
        };
        self.note_trouble(None);
        self.metrics.cluster.position_lag.set((batch.through - after) as i64);
        if batch.through > after {
            self.metrics.cluster.read_back.inc_by(batch.items.len() as u64);
            let message = BusMessage::Committed(batch);
            let encoded = message.encode();
            if let BusMessage::Committed(batch) = message {
                self.offer_remote(batch, encoded);
            }
        }
        self.next_poll(is_complete)
    }

    /// Whether what is new up to this position comes over the bus within the time after which a gap is read back.
    fn comes_by_itself(&self, newest: Position) -> bool {
        let is_behind = |state: &mut State| state.applied < newest && !state.has_gap() && !state.stopping;
        let mut state = self.state.lock();
        self.is_told_over_the_bus() && !self.advanced.wait_while_for(&mut state, is_behind, GAP_GRACE).timed_out()
    }

    pub(super) fn is_told_over_the_bus(&self) -> bool {
        self.bus.is_up() && self.started.elapsed() > NEW_FOR
    }

    /// `is_complete`: the last page reached the newest position.
    fn next_poll(&self, is_complete: bool) -> Duration {
        match (is_complete, self.is_told_over_the_bus()) {
            (false, _) => Duration::ZERO,
            (_, true) => POLL_EVERY,
            (_, false) => POLL_EVERY_WITHOUT_BUS,
        }
    }

    fn note_trouble(&self, error: Option<&StoreError>) {
        self.read_failures.note(&error.map_or(Ok(()), Err));
        self.state.lock().trouble = error.map(|error| format!("the commits of other nodes cannot be read: {error}"));
    }

    /// Adds the conversations that the page concerns: fan-out needs them, and the log does not hold them.
    pub(super) fn to_wire(&self, page: LogPage) -> StoreResult<WireBatch> {
        let mut conversations = Vec::new();
        let mut indexes: FxHashMap<ConversationNo, Option<u32>> = FxHashMap::default();
        let mut items = Vec::with_capacity(page.records.len());
        for record in page.records {
            let of_entry = record.entry.as_ref().map(|(conversation, _)| *conversation);
            let no = of_entry.or_else(|| record.change.as_ref().and_then(Change::members_of));
            let conversation = match no {
                Some(no) if !indexes.contains_key(&no) => {
                    let conversation = self.applier.directory.conversation(no)?;
                    let index = conversation.map(|conversation| {
                        conversations.push(ConversationRef::of(&conversation));
                        conversations.len() as u32 - 1
                    });
                    indexes.insert(no, index);
                    index
                }
                Some(no) => indexes.get(&no).copied().flatten(),
                None => None,
            };
            items.push(WireItem { conversation, entry: record.entry.map(|(_, entry)| entry), change: record.change });
        }
        let PositionRange { after, through } = page.span;
        Ok(WireBatch { after, through, conversations, items })
    }
}
