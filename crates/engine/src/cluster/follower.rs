//! Follows the commit order: what comes in order goes to the lanes, what comes early waits, what does not come is
//! read back from the store.
//!
//! ```text
//! own commits ──────┐
//! bus ── others' ───┼──▶ waiting, by position ── next in order ──▶ caches, lanes
//! log ── read back ─┘         │ a gap that stays, or a look now and then
//!         ▲───────────────────┘
//! ```
//! In reading order: this file, what comes and when it is next; `reading`, the thread that reads back; `ends`, whether the store is
//! still the one that it was.

use super::{
    bus::Bus,
    log::{Change, CommitLog},
    recent_entries::RecentEntries,
    wire::{ConversationRef, WireBatch, WireItem},
};
use crate::{
    hub::{Applier, Item},
    lanes::{Committed, Latch},
    metrics::Metrics,
    model::*,
    store::Span,
};
use bytes::Bytes;
use ends::{Ends, end_of};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

mod ends;
mod reading;

/// How long a gap may last before it is read back: what fills it is on its way over the bus.
const PATIENCE: Duration = Duration::from_millis(20);
/// When the lanes are looked at again that had no room.
const ROOM_EVERY: Duration = Duration::from_millis(2);
/// Places read back at once.
const READ_MAX: usize = 2_000;
/// Others' commits that wait for a gap to close, and their bytes. Above, they are dropped, and read back later.
const WAITING_MAX: usize = 1_024;
const WAITING_BYTES_MAX: usize = 32 << 20;
/// What changes nothing in the order may be told late: looks are put off for this long at most.
const FAR: Duration = Duration::from_secs(3_600);

/// A gap that has lasted so long is asked of another node too, and of the next one after twice the time, and so on: the
/// store may be out of reach of this one.
const ASK_AFTER: Duration = Duration::from_millis(250);
const ASK_DOUBLINGS_MAX: u32 = 5;
/// What was said of commits lately, for nodes that ask: so many bytes, and so many in an answer.
const SAID_BYTES_MAX: usize = 16 << 20;
const ANSWER_MAX: usize = 64;

/// What may come next.
enum Offered {
    Own(Vec<Item>),
    Others(WireBatch),
}

struct Waiting {
    span: Span,
    offered: Offered,
    /// The same as a message, if it is one already.
    said: Option<Bytes>,
}

impl Waiting {
    /// What it holds for others' sake; this node's own are bounded by their places in the lanes.
    fn bytes(&self) -> usize {
        match &self.offered {
            Offered::Own(_) => 0,
            Offered::Others(_) => self.said.as_ref().map_or(0, Bytes::len),
        }
    }
}

/// Messages of commits, oldest first.
#[derive(Default)]
struct Said {
    messages: VecDeque<(Span, Bytes)>,
    bytes: usize,
}

impl Said {
    fn push(&mut self, span: Span, message: Bytes) {
        self.bytes += message.len();
        self.messages.push_back((span, message));
        while self.bytes > SAID_BYTES_MAX
            && let Some((_, oldest)) = self.messages.pop_front()
        {
            self.bytes -= oldest.len();
        }
    }
}

/// Since when a gap lasts, and when it was asked for last.
struct Gap {
    asked: Instant,
    turn: usize,
}

/// Asks another node for what comes after a position; the number is for taking turns.
type Ask = Box<dyn Fn(Position, usize) + Send + Sync>;

struct State {
    applied: Position,
    /// By the position that each comes after.
    waiting: BTreeMap<Position, Waiting>,
    waiting_bytes: usize,
    /// Places to read back at once.
    read_limit: usize,
    /// When the log is looked at next.
    look: Instant,
    /// The next in order waits for room in the lanes.
    crowded: bool,
    gap: Option<Gap>,
    said: Said,
    ends: Ends,
    stopping: bool,
    trouble: Option<String>,
    /// The store has not the history that this node has: nothing that is committed now can be told from what was.
    astray: bool,
}

pub(crate) struct Follower {
    state: Mutex<State>,
    /// The thread that reads back has something to do.
    work: Condvar,
    moved: Condvar,
    pub(crate) recent_entries: RecentEntries,
    ask: OnceLock<Ask>,
    applier: Applier,
    log: Arc<dyn CommitLog>,
    bus: Arc<dyn Bus>,
    metrics: Arc<Metrics>,
    began: Instant,
}

impl Follower {
    /// `from`: everything up to there is read from the store, never handed to lanes.
    pub(crate) fn new(
        from: Position,
        recent_bytes_max: usize,
        applier: Applier,
        (log, bus): (Arc<dyn CommitLog>, Arc<dyn Bus>),
        metrics: Arc<Metrics>,
    ) -> Self {
        let state = State {
            applied: from,
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            read_limit: READ_MAX,
            look: Instant::now(),
            crowded: false,
            gap: None,
            said: Said::default(),
            ends: Ends::of(log.known_epoch()),
            stopping: false,
            trouble: None,
            astray: false,
        };
        let (state, work, moved, began) = (Mutex::new(state), Condvar::new(), Condvar::new(), Instant::now());
        Follower {
            state,
            work,
            moved,
            recent_entries: RecentEntries::new(from, recent_bytes_max),
            ask: OnceLock::new(),
            applier,
            log,
            bus,
            metrics,
            began,
        }
    }

    pub(crate) fn request_batches_with(&self, ask: impl Fn(Position, usize) + Send + Sync + 'static) {
        let _ = self.ask.set(Box::new(ask));
    }

    /// `said`: the batch as other nodes get it.
    pub(crate) fn offer_local(&self, span: Span, items: Vec<Item>, said: Bytes) {
        self.offer(Waiting { span, offered: Offered::Own(items), said: Some(said) });
    }

    pub(crate) fn offer_remote(&self, batch: WireBatch, said: Bytes) {
        self.offer(Waiting { span: batch.span(), offered: Offered::Others(batch), said: Some(said) });
    }

    /// For a node that asks: messages of commits after a position, as far as they are at hand. None if the first of them
    /// is not: the rest would not close the gap.
    pub(crate) fn recent_batches_after(&self, after: Position) -> Vec<Bytes> {
        let state = self.state.lock();
        let mut behind = state.said.messages.iter().filter(|(span, _)| span.through > after).peekable();
        if behind.peek().is_none_or(|(span, _)| span.after > after) {
            return vec![];
        }
        behind.take(ANSWER_MAX).map(|(_, message)| message.clone()).collect()
    }

    fn offer(&self, offer: Waiting) {
        let mut state = self.state.lock();
        if offer.span.through <= offer.span.after || offer.span.through <= state.applied {
            return;
        }
        let is_own = matches!(offer.offered, Offered::Own(_));
        let is_full = state.waiting.len() >= WAITING_MAX || state.waiting_bytes + offer.bytes() > WAITING_BYTES_MAX;
        if !is_own && is_full && offer.span.after > state.applied {
            self.metrics.cluster.dropped.inc();
        } else {
            match state.waiting.get(&offer.span.after) {
                // Read back as far as that or farther.
                Some(other) if other.span.through > offer.span.through => {}
                Some(other) if other.span.through == offer.span.through && !is_own => {}
                _ => {
                    state.waiting_bytes += offer.bytes();
                    let replaced = state.waiting.insert(offer.span.after, offer);
                    state.waiting_bytes -= replaced.map_or(0, |replaced| replaced.bytes());
                }
            }
        }
        self.advance(&mut state);
        if !state.waiting.is_empty() {
            let patience = if state.crowded { ROOM_EVERY } else { self.patience() };
            self.look_within(&mut state, patience);
        }
        let due = self.due_to_ask(&mut state);
        drop(state);
        self.ask_others(due);
    }

    /// Asks another node for what is missing. Not under the lock: the answer may come before this returns.
    fn ask_others(&self, due: Option<(Position, usize)>) {
        if let (Some((after, turn)), Some(ask)) = (due, self.ask.get()) {
            self.metrics.cluster.asked.inc();
            ask(after, turn);
        }
    }

    /// Whether something has been missing for long: after what it comes, and whose turn it is.
    fn due_to_ask(&self, state: &mut State) -> Option<(Position, usize)> {
        if state.waiting.is_empty() || state.crowded {
            state.gap = None;
            return None;
        }
        let now = Instant::now();
        let gap = state.gap.get_or_insert(Gap { asked: now, turn: 0 });
        let pause = ASK_AFTER * 2u32.pow(ASK_DOUBLINGS_MAX.min(gap.turn as u32));
        (now - gap.asked >= pause).then(|| {
            (gap.asked, gap.turn) = (now, gap.turn + 1);
            (state.applied, gap.turn)
        })
    }

    fn patience(&self) -> Duration {
        if self.bus.is_up() { PATIENCE } else { Duration::ZERO }
    }

    fn look_within(&self, state: &mut MutexGuard<'_, State>, time: Duration) {
        let by = Instant::now() + time;
        if by < state.look {
            state.look = by;
            self.work.notify_one();
        }
    }

    /// Something may have been lost.
    pub(crate) fn poll_now(&self) {
        self.look_within(&mut self.state.lock(), Duration::ZERO);
    }

    /// Applies what is next in order, as far as there is.
    fn advance(&self, state: &mut State) {
        let before = state.applied;
        state.crowded = false;
        while let Some(first) = state.waiting.first_entry() {
            let span = first.get().span;
            if span.after > state.applied {
                break;
            }
            let is_own = matches!(first.get().offered, Offered::Own(_));
            if !is_own && span.through > state.applied && !self.applier.lanes.have_room() {
                state.crowded = true;
                break;
            }
            let first = first.remove();
            state.waiting_bytes -= first.bytes();
            let Waiting { offered, said, .. } = first;
            if span.through <= state.applied {
                continue;
            }
            if let Some(said) = said {
                state.said.push(span, said);
            }
            state.ends.push(end_of(&offered, span));
            match offered {
                Offered::Own(items) => self.apply(behind(items, state.applied), span.through),
                Offered::Others(batch) => self.apply(self.taken_over(batch, state.applied), span.through),
            }
            state.applied = span.through;
        }
        if state.applied > before {
            state.gap = None;
            self.moved.notify_all();
        }
    }

    fn apply(&self, items: Vec<Item>, through: Position) {
        let committed = items.iter().filter_map(|item| item.committed.as_ref());
        let entries = committed.filter_map(|committed| Some((committed.conversation.no, committed.entry.as_ref()?)));
        // First, so that what a shard has come to is here.
        self.recent_entries.push(entries, through);
        self.applier.apply(items);
    }

    /// Others' commits as items of this node, which has forgotten what they changed.
    fn taken_over(&self, batch: WireBatch, applied: Position) -> Vec<Item> {
        let at = Instant::now();
        let cards: Vec<Arc<Conversation>> = batch.conversations.into_iter().map(card).collect();
        let mut items = Vec::with_capacity(batch.items.len());
        for WireItem { conversation, entry, change } in batch.items {
            let card = conversation.and_then(|index| cards.get(index as usize));
            self.applier.directory.forget_others(change.as_ref(), card);
            let entry = entry.filter(|entry| entry.position > applied);
            let (joined, left) = match &change {
                Some(Change::Members { joined, left, .. }) => (joined.clone(), left.clone()),
                _ => (vec![], vec![]),
            };
            let concerns_live = entry.is_some() || !joined.is_empty() || !left.is_empty();
            let committed = card.filter(|_| concerns_live).map(|card| Committed {
                slot: Some(self.applier.lanes.take(card.lane())),
                conversation: card.clone(),
                joined,
                left,
                entry,
                at,
            });
            items.push(Item { committed, change });
        }
        items
    }

    /// Waits until everything up to `position` was handed to the lanes; answers whether it was in time.
    pub(crate) fn wait_until_applied(&self, position: Position, time: Duration) -> bool {
        let mut state = self.state.lock();
        if state.applied < position {
            let patience = self.patience();
            self.look_within(&mut state, patience);
        }
        !self.moved.wait_while_for(&mut state, |state| state.applied < position && !state.stopping, time).timed_out()
    }

    /// Has the shards take note of how far this node has come.
    pub(crate) fn mark(&self) -> Arc<Latch> {
        let state = self.state.lock();
        self.applier.lanes.mark(state.applied)
    }

    /// Why this node cannot follow, if it cannot.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.state.lock().trouble.clone()
    }

    pub(crate) fn stop(&self) {
        self.state.lock().stopping = true;
        self.work.notify_all();
        self.moved.notify_all();
    }
}

/// Own items whose entries were not read back meanwhile.
fn behind(items: Vec<Item>, applied: Position) -> Vec<Item> {
    let trim = |mut item: Item| {
        if let Some(committed) = &mut item.committed {
            committed.entry = committed.entry.take().filter(|entry| entry.position > applied);
        }
        item
    };
    items.into_iter().map(trim).collect()
}

/// As much of a card as fan-out needs.
fn card(of: ConversationRef) -> Arc<Conversation> {
    let ConversationRef { no, id, kind, pair } = of;
    let (name, avatar, attributes) = (None, None, None);
    Arc::new(Conversation { no, id, kind, pair, name, avatar, attributes, created_at: 0, member_count: 0 })
}

#[cfg(test)]
mod tests;
