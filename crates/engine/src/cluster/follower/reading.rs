//! Reads back from the store what did not come over the bus.

use super::{FAR, Follower, PATIENCE, READ_MAX, ROOM_EVERY};
use crate::{
    cluster::{
        log::{Change, LogPage},
        wire::{BusMessage, ConversationRef, WireBatch, WireItem},
    },
    model::ConversationNo,
    store::{Span, StoreError, StoreResult},
};
use parking_lot::MutexGuard;
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};

/// How often the log is looked at although no gap is known: the last message may have been lost.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The same while the bus is down, and at first, while others do not know this node: then this is how their commits
/// come.
const LOOK_EVERY_ALONE: Duration = Duration::from_millis(50);
/// How long others may need to learn of this node.
const NEW_FOR: Duration = Duration::from_secs(5);
/// After the log could not be read.
const AFTER_FAILURE: Duration = Duration::from_millis(200);
/// Places read back at once when that failed again and again: who cannot be given much in time is given little.
const READ_MIN: usize = 16;

impl Follower {
    /// Reads back what did not come, on a thread of its own.
    /// `astray` is called once if the store turns out to have gone back.
    pub(crate) fn run(&self, astray: impl Fn()) {
        let mut state = self.state.lock();
        loop {
            while !state.stopping && Instant::now() < state.look {
                let until = state.look;
                self.work.wait_until(&mut state, until);
            }
            if state.stopping {
                return;
            }
            // Set before the log is read, so that what asks for a look meanwhile gets one.
            state.look = Instant::now() + FAR;
            if state.crowded {
                self.advance(&mut state);
            }
            let next = match state.crowded {
                true => ROOM_EVERY,
                false => MutexGuard::unlocked(&mut state, || self.read_back()),
            };
            if state.astray {
                MutexGuard::unlocked(&mut state, &astray);
                return;
            }
            let due = self.due_to_ask(&mut state);
            MutexGuard::unlocked(&mut state, || self.ask_others(due));
            self.look_within(&mut state, next);
        }
    }

    /// Answers when to look again.
    pub(super) fn read_back(&self) -> Duration {
        let (after, limit) = {
            let state = self.state.lock();
            if !state.waiting.is_empty() {
                self.metrics.cluster.gaps.inc();
            }
            (state.applied, state.read_limit)
        };
        let looked = self.look(after, limit);
        match looked {
            Ok((_, Some(back_to))) => return self.go_astray(back_to, after),
            Ok((newest, None)) if newest == after => {
                self.note_trouble(None);
                self.metrics.cluster.position_lag.set(0);
                return self.next_look(true);
            }
            _ => {}
        }
        let read = looked.and_then(|(newest, _)| {
            let page = self.log.committed_after(after, limit)?;
            let whole = page.span.through >= newest;
            Ok((self.with_cards(page)?, whole))
        });
        self.state.lock().read_limit = match &read {
            Ok(_) => (limit * 2).min(READ_MAX),
            Err(_) => (limit / 2).max(READ_MIN),
        };
        let (batch, whole) = match read {
            Ok(read) => read,
            Err(error) => {
                self.note_trouble(Some(&error));
                if matches!(error, StoreError::Pruned(_)) {
                    // What is missing is missing for good: only a new start knows the store as it is.
                    tracing::error!(%error, "this node drains and must be started again");
                    self.state.lock().astray = true;
                }
                return AFTER_FAILURE;
            }
        };
        self.note_trouble(None);
        self.metrics.cluster.position_lag.set((batch.through - after) as i64);
        if batch.through > after {
            self.metrics.cluster.read_back.inc_by(batch.items.len() as u64);
            let message = BusMessage::Committed(batch);
            let said = message.encode();
            if let BusMessage::Committed(batch) = message {
                self.offer_remote(batch, said);
            }
        }
        self.next_look(whole)
    }

    fn next_look(&self, whole: bool) -> Duration {
        let waits = !self.state.lock().waiting.is_empty();
        match (whole, waits, self.bus.is_up() && self.began.elapsed() > NEW_FOR) {
            (false, ..) => Duration::ZERO,
            (_, true, _) => PATIENCE,
            (_, _, true) => LOOK_EVERY,
            (_, _, false) => LOOK_EVERY_ALONE,
        }
    }

    fn note_trouble(&self, error: Option<&StoreError>) {
        let mut state = self.state.lock();
        if state.trouble.is_none()
            && let Some(error) = error
        {
            tracing::warn!(%error, "the commits of other nodes cannot be read");
        }
        state.trouble = error.map(|error| format!("the commits of other nodes cannot be read: {error}"));
    }

    /// With what fan-out needs of conversations, which the log has not.
    pub(super) fn with_cards(&self, page: LogPage) -> StoreResult<WireBatch> {
        let mut conversations = Vec::new();
        let mut indexes: FxHashMap<ConversationNo, Option<u32>> = FxHashMap::default();
        let mut items = Vec::with_capacity(page.records.len());
        for logged in page.records {
            let of_entry = logged.entry.as_ref().map(|(conversation, _)| *conversation);
            let no = of_entry.or_else(|| logged.change.as_ref().and_then(Change::members_of));
            let conversation = match no {
                Some(no) if !indexes.contains_key(&no) => {
                    let card = self.applier.directory.conversation(no)?;
                    let index = card.map(|card| {
                        conversations.push(ConversationRef::of(&card));
                        conversations.len() as u32 - 1
                    });
                    indexes.insert(no, index);
                    index
                }
                Some(no) => indexes.get(&no).copied().flatten(),
                None => None,
            };
            items.push(WireItem { conversation, entry: logged.entry.map(|(_, entry)| entry), change: logged.change });
        }
        let Span { after, through } = page.span;
        Ok(WireBatch { after, through, conversations, items })
    }
}
