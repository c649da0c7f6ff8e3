//! Follows the commit order: a batch that is next in order goes to the lanes, one that comes early is kept, and one that
//! does not come is read back from the store.
//!
//! ```text
//! this node's commits ──┐
//! bus: peers' commits ──┼──▶ pending, by position ── next in order ──▶ caches, lanes
//! log: read back ───────┘          │ a gap that stays, content that is missing, or a regular poll
//!         ▲────────────────────────┘
//! ```
//! Of what none of this node's sessions may see, peers send no content. If a session may see it after all, because its user has just
//! come, the batch counts as one that did not come.
//!
//! In reading order: this file, how batches are offered and when each is next; `read_back`, the thread that reads from the
//! store; `divergence`, whether the store still has what this node took.

use super::{
    recent_entries::RecentEntries,
    wire::{ConversationRef, PartialBatch, WireBatch, WireItem},
};
use crate::{
    countdown_latch::CountdownLatch,
    hub::{Applier, BatchItem},
    lanes::LaneItem,
    live_audience::LiveAudience,
};
use bytes::Bytes;
use divergence::{DivergenceChecks, fingerprint_of};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};
use tidings_domain::{
    bus::Bus,
    commit_log::{Change, CommitLog},
    end_reason::EndReason,
    failure_log::FailureLog,
    metrics::Metrics,
    model::*,
    store::PositionRange,
};

mod divergence;
mod read_back;

/// How long a gap may last before it is read back: what fills it is usually on its way over the bus.
const GAP_GRACE: Duration = Duration::from_millis(20);
/// When the lanes had no room, they are tried again after this.
const BACKPRESSURE_RETRY: Duration = Duration::from_millis(2);
/// Records read back at once.
const READ_MAX: usize = 2_000;
/// Peers' batches that wait for a gap to close, and their bytes. More are dropped, and read back later.
const PENDING_MAX: usize = 1_024;
const PENDING_BYTES_MAX: usize = 32 << 20;
/// A poll that is so far away stands for none.
const UNSCHEDULED: Duration = Duration::from_secs(3_600);

/// When a gap has lasted so long, this node asks a peer for the missing batches, because it may be cut off from the store.
/// It asks the next peer after twice the time, and so on.
const REQUEST_AFTER: Duration = Duration::from_millis(250);
const REQUEST_DOUBLINGS_MAX: u32 = 5;
/// Recent batches are kept, encoded, for peers that ask for them: so many bytes, and so many batches in a response.
const RECENT_BATCHES_BYTES_MAX: usize = 16 << 20;
const RESPONSE_BATCHES_MAX: usize = 64;

enum BatchContent {
    Local(Vec<BatchItem>),
    Remote(PartialBatch),
}

/// A batch that is not applied yet.
struct PendingBatch {
    span: PositionRange,
    content: BatchContent,
    /// The batch as a bus message.
    encoded: Bytes,
}

impl PendingBatch {
    fn is_local(&self) -> bool {
        matches!(self.content, BatchContent::Local(_))
    }

    /// Whether it has the content of all its entries.
    fn is_whole(&self) -> bool {
        !matches!(&self.content, BatchContent::Remote(batch) if !batch.left_out.is_empty())
    }

    /// What the batch counts towards [`PENDING_BYTES_MAX`]. Local batches count nothing: they are bounded by their slots in
    /// the lanes.
    fn bytes(&self) -> usize {
        if self.is_local() { 0 } else { self.encoded.len() }
    }
}

/// The batches that were applied last, as bus messages, oldest first.
#[derive(Default)]
struct RecentBatches {
    messages: VecDeque<(PositionRange, Bytes)>,
    bytes: usize,
}

impl RecentBatches {
    fn push(&mut self, span: PositionRange, message: Bytes) {
        self.bytes += message.len();
        self.messages.push_back((span, message));
        while self.bytes > RECENT_BATCHES_BYTES_MAX
            && let Some((_, oldest)) = self.messages.pop_front()
        {
            self.bytes -= oldest.len();
        }
    }
}

struct Gap {
    /// When a peer was asked last, or when the gap was noticed.
    requested_at: Instant,
    attempts: usize,
}

/// Asks a peer for batches.
type RequestBatches = Box<dyn Fn(MissingBatches) + Send + Sync>;

/// Batches that have been missing for long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MissingBatches {
    pub after: Position,
    /// Chooses the peer, unless the sender is known.
    pub attempt: usize,
    /// Who has sent the batch without its content: others may have it no other way.
    pub sender: Option<Arc<str>>,
}

struct State {
    applied: Position,
    /// By the position that each batch comes after.
    pending: BTreeMap<Position, PendingBatch>,
    pending_bytes: usize,
    /// Records to read back at once.
    read_limit: usize,
    /// When the log is read next.
    next_poll: Instant,
    /// The same if the gap that there is has not closed by then.
    gap_poll: Option<Instant>,
    /// The next batch in order waits for room in the lanes.
    backpressured: bool,
    /// The end of a batch that came without what a session of this node may see, and its sender. It is read from the log.
    lacking: Position,
    lacking_from: Option<Arc<str>>,
    gap: Option<Gap>,
    recent_batches: RecentBatches,
    divergence: DivergenceChecks,
    stopping: bool,
    trouble: Option<String>,
    /// This node can no longer follow the store: it must end.
    end_reason: Option<EndReason>,
}

pub(crate) struct Follower {
    state: Mutex<State>,
    /// `next_poll` came nearer, or the follower stops.
    poll_changed: Condvar,
    /// `applied` moved, or the follower stops.
    advanced: Condvar,
    pub(crate) recent_entries: RecentEntries,
    request_batches: OnceLock<RequestBatches>,
    applier: Applier,
    log: Arc<dyn CommitLog>,
    bus: Arc<dyn Bus>,
    metrics: Arc<Metrics>,
    read_failures: FailureLog,
    started: Instant,
}

impl Follower {
    /// Follows from this position on. What was committed before is read from the store and never handed to the lanes.
    pub(crate) fn new(
        from: Position,
        recent_bytes_max: usize,
        applier: Applier,
        (log, bus): (Arc<dyn CommitLog>, Arc<dyn Bus>),
        metrics: Arc<Metrics>,
    ) -> Self {
        let state = State {
            applied: from,
            pending: BTreeMap::new(),
            pending_bytes: 0,
            read_limit: READ_MAX,
            next_poll: Instant::now(),
            gap_poll: None,
            backpressured: false,
            lacking: from,
            lacking_from: None,
            gap: None,
            recent_batches: RecentBatches::default(),
            divergence: DivergenceChecks::of(log.known_epoch()),
            stopping: false,
            trouble: None,
            end_reason: None,
        };
        Follower {
            state: Mutex::new(state),
            poll_changed: Condvar::new(),
            advanced: Condvar::new(),
            recent_entries: RecentEntries::new(from, recent_bytes_max),
            request_batches: OnceLock::new(),
            applier,
            log,
            bus,
            metrics,
            read_failures: FailureLog::new("the commits of other nodes cannot be read"),
            started: Instant::now(),
        }
    }

    /// Sets how a peer is asked for missing batches. Only the first call counts.
    pub(crate) fn request_batches_with(&self, request: impl Fn(MissingBatches) + Send + Sync + 'static) {
        let _ = self.request_batches.set(Box::new(request));
    }

    /// Takes a batch that this node has committed. `encoded`: the same batch, as peers get it.
    pub(crate) fn offer_local(&self, span: PositionRange, items: Vec<BatchItem>, encoded: Bytes) {
        self.offer(PendingBatch { span, content: BatchContent::Local(items), encoded });
    }

    /// Takes a batch that a peer has committed, or that was read back.
    pub(crate) fn offer_remote(&self, batch: WireBatch, encoded: Bytes) {
        self.offer_in_part(batch.into(), encoded);
    }

    /// The same, of which something may have been left out.
    pub(crate) fn offer_in_part(&self, batch: PartialBatch, encoded: Bytes) {
        self.offer(PendingBatch { span: batch.batch.span(), content: BatchContent::Remote(batch), encoded });
    }

    /// For a peer with a gap after this position: the batches that follow, as far as they are in memory. None if the first
    /// of them is not, because the others would not close the gap.
    pub(crate) fn recent_batches_after(&self, after: Position) -> Vec<Bytes> {
        let state = self.state.lock();
        let mut following = state.recent_batches.messages.iter().filter(|(span, _)| span.through > after).peekable();
        if following.peek().is_none_or(|(span, _)| span.after > after) {
            return vec![];
        }
        following.take(RESPONSE_BATCHES_MAX).map(|(_, message)| message.clone()).collect()
    }

    fn offer(&self, batch: PendingBatch) {
        let mut state = self.state.lock();
        if batch.span.through <= batch.span.after || batch.span.through <= state.applied {
            return;
        }
        let is_local = batch.is_local();
        let is_full = state.pending.len() >= PENDING_MAX || state.pending_bytes + batch.bytes() > PENDING_BYTES_MAX;
        if !is_local && is_full && batch.span.after > state.applied {
            self.metrics.cluster.dropped.inc();
        } else {
            match state.pending.get(&batch.span.after) {
                // A chunk that was read back reaches as far, or farther.
                Some(other) if other.span.through > batch.span.through => {}
                Some(other)
                    if other.span.through == batch.span.through
                        && !is_local
                        && (other.is_whole() || !batch.is_whole()) => {}
                _ => {
                    state.pending_bytes += batch.bytes();
                    let replaced = state.pending.insert(batch.span.after, batch);
                    state.pending_bytes -= replaced.map_or(0, |replaced| replaced.bytes());
                }
            }
        }
        let (lacked, applied) = (state.lacking, state.applied);
        self.advance(&mut state);
        if state.lacking > lacked {
            self.poll_within(&mut state, Duration::ZERO);
        }
        if state.applied > applied || !state.has_gap() {
            // What closes a gap is often on its way for longer than it takes to notice the gap.
            state.gap_poll = None;
        }
        if state.backpressured {
            self.poll_within(&mut state, BACKPRESSURE_RETRY);
        } else {
            self.watch_gap(&mut state);
        }
        let due = self.due_request(&mut state);
        drop(state);
        self.request_from_peer(due);
    }

    /// Asks a peer for what is missing. Never called under the lock: the response may come before this returns.
    fn request_from_peer(&self, due: Option<MissingBatches>) {
        if let (Some(missing), Some(request)) = (due, self.request_batches.get()) {
            self.metrics.cluster.asked.inc();
            request(missing);
        }
    }

    /// Batches that have been missing for long.
    fn due_request(&self, state: &mut State) -> Option<MissingBatches> {
        if !state.has_gap() || state.backpressured {
            state.gap = None;
            return None;
        }
        let now = Instant::now();
        let gap = state.gap.get_or_insert(Gap { requested_at: now, attempts: 0 });
        let pause = REQUEST_AFTER * 2u32.pow(REQUEST_DOUBLINGS_MAX.min(gap.attempts as u32));
        (now - gap.requested_at >= pause).then(|| {
            (gap.requested_at, gap.attempts) = (now, gap.attempts + 1);
            let attempt = gap.attempts;
            // The sender first, and again after each other peer: it may be gone.
            let is_for_sender = state.lacking > state.applied && !attempt.is_multiple_of(2);
            let sender = state.lacking_from.clone().filter(|_| is_for_sender);
            MissingBatches { after: state.applied, attempt, sender }
        })
    }

    /// While the bus is down, nothing is on its way that would close a gap.
    fn gap_grace(&self) -> Duration {
        if self.bus.is_up() { GAP_GRACE } else { Duration::ZERO }
    }

    /// Has the log read unless the gap closes, if there is one.
    fn watch_gap(&self, state: &mut State) {
        if state.has_gap() && state.gap_poll.is_none() {
            state.gap_poll = Some(Instant::now() + self.gap_grace());
            self.poll_changed.notify_one();
        }
    }

    fn poll_within(&self, state: &mut MutexGuard<'_, State>, time: Duration) {
        let by = Instant::now() + time;
        if by < state.next_poll {
            state.next_poll = by;
            self.poll_changed.notify_one();
        }
    }

    /// Messages may have been lost: has the log read now.
    pub(crate) fn poll_now(&self) {
        self.poll_within(&mut self.state.lock(), Duration::ZERO);
    }

    /// Applies all pending batches that are next in order.
    fn advance(&self, state: &mut State) {
        let before = state.applied;
        state.backpressured = false;
        while let Some(first) = state.pending.first_entry() {
            let span = first.get().span;
            if span.after > state.applied {
                break;
            }
            if !first.get().is_local() && span.through > state.applied && !self.applier.lanes.has_room() {
                state.backpressured = true;
                break;
            }
            let first = first.remove();
            state.pending_bytes -= first.bytes();
            let PendingBatch { content, encoded, .. } = first;
            if span.through <= state.applied {
                continue;
            }
            if let BatchContent::Remote(batch) = &content
                && !self.ends_what_was_left_out(batch)
            {
                self.metrics.cluster.content_missing.inc();
                (state.lacking, state.lacking_from) =
                    (state.lacking.max(span.through), Some(batch.sender.as_str().into()));
                continue;
            }
            state.recent_batches.push(span, encoded);
            state.divergence.push(fingerprint_of(&content, span));
            match content {
                BatchContent::Local(items) => self.apply(without_applied(items, state.applied), span.through),
                BatchContent::Remote(PartialBatch { batch, .. }) => {
                    self.apply(self.to_items(batch, state.applied), span.through);
                }
            }
            state.applied = span.through;
        }
        if state.applied > before {
            state.gap = None;
            self.advanced.notify_all();
        }
    }

    /// Whether nothing was left out of the batch that a session of this node may see. What was left out ends here then.
    fn ends_what_was_left_out(&self, PartialBatch { batch, left_out, .. }: &PartialBatch) -> bool {
        if left_out.is_empty() {
            return true;
        }
        let Applier { directory, live_audience, .. } = &self.applier;
        let brings_audience = batch.brings_audience();
        let is_certain = !left_out.iter().any(|left_out| brings_audience.to(left_out.conversation));
        let ends =
            is_certain && live_audience.as_ref().is_some_and(|audience| audience.passes(left_out, batch.through));
        if ends {
            left_out.iter().for_each(|left_out| directory.invalidate_unread(left_out.pair));
            self.recent_entries.note_left_out(left_out);
        }
        ends
    }

    fn apply(&self, items: Vec<BatchItem>, through: Position) {
        let lane_items = items.iter().filter_map(|item| item.lane_item.as_ref());
        let entries = lane_items.filter_map(|lane_item| Some((lane_item.conversation.no, lane_item.entry.as_ref()?)));
        if items.iter().any(|item| matches!(item.change, Some(Change::Erased { .. }))) {
            self.recent_entries.forget();
        }
        // Before the lanes: a session that a shard's positions cover must find the entries here.
        self.recent_entries.push(entries, through);
        self.applier.apply(items, through);
    }

    /// A peer's batch as items of this node, without entries that were applied already. Drops from the caches what the
    /// batch changed.
    fn to_items(&self, batch: WireBatch, applied: Position) -> Vec<BatchItem> {
        let at = Instant::now();
        let conversations: Vec<Arc<Conversation>> =
            batch.conversations.into_iter().map(ConversationRef::into_conversation).map(Arc::new).collect();
        let mut items = Vec::with_capacity(batch.items.len());
        for WireItem { conversation, entry, change } in batch.items {
            let conversation = conversation.and_then(|index| conversations.get(index as usize));
            self.applier.directory.invalidate_remote(change.as_ref(), conversation);
            let entry = entry.filter(|entry| entry.position > applied);
            let is_opaque = entry.as_ref().is_some_and(|entry| entry.content.kind.is_opaque());
            self.metrics.cluster.opaque.inc_by(u64::from(is_opaque) + u64::from(change == Some(Change::Opaque)));
            let (joined, left) = match &change {
                Some(Change::Members { joined, left, .. }) => (joined.clone(), left.clone()),
                _ => (vec![], vec![]),
            };
            let concerns_live = entry.is_some() || !joined.is_empty() || !left.is_empty();
            let lane_item = conversation.filter(|_| concerns_live).map(|conversation| LaneItem {
                slot: Some(self.applier.lanes.reserve_over_limit(conversation.lane())),
                conversation: conversation.clone(),
                joined,
                hold: None,
                left,
                entry,
                at,
            });
            items.push(BatchItem { lane_item, change, read_before: None });
        }
        items
    }

    /// Waits until everything up to `position` was handed to the lanes. Returns whether that was in time.
    pub(crate) fn wait_until_applied(&self, position: Position, time: Duration) -> bool {
        let mut state = self.state.lock();
        if state.applied < position {
            let grace = self.gap_grace();
            self.poll_within(&mut state, grace);
        }
        !self.advanced.wait_while_for(&mut state, |state| state.applied < position && !state.stopping, time).timed_out()
    }

    /// Has this shard, or every one, take note that it has got all of these lanes up to the position that is applied now.
    pub(crate) fn barrier(&self, lanes: &[Lane], shard: Option<usize>) -> Arc<CountdownLatch> {
        let state = self.state.lock();
        self.applier.lanes.barrier(state.applied, lanes, shard)
    }

    pub(crate) fn live_audience(&self) -> Option<Arc<LiveAudience>> {
        self.applier.live_audience.clone()
    }

    /// Why this node cannot follow, if it cannot.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.state.lock().trouble.clone()
    }

    pub(crate) fn stop(&self) {
        self.state.lock().stopping = true;
        self.poll_changed.notify_all();
        self.advanced.notify_all();
    }
}

impl State {
    /// Whether something is missing behind what was applied.
    fn has_gap(&self) -> bool {
        !self.pending.is_empty() || self.lacking > self.applied
    }
}

/// Local items, without the entries that were read back and applied meanwhile.
fn without_applied(items: Vec<BatchItem>, applied: Position) -> Vec<BatchItem> {
    let trim = |mut item: BatchItem| {
        if let Some(lane_item) = &mut item.lane_item {
            lane_item.entry = lane_item.entry.take().filter(|entry| entry.position > applied);
        }
        item
    };
    items.into_iter().map(trim).collect()
}

#[cfg(test)]
#[path = "../../tests/simulations/follower.rs"]
mod tests;
