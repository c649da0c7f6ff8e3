//! The queues of the committer, shared fairly: one for each lane and one for operations that belong to no lane. In each
//! queue the proposals of one sender form a flow, and flows are served round-robin, with a quantum for each turn.
//!
//! ```text
//! direct      ada ▪▪▪▪▪▪▪▪  ben ▪      ┐
//! group       cleo ▪▪  bulk ▪▪▪▪▪▪▪▪▪  ├─ queues by weight, direct first; in a queue its flows in turn ─▶ one batch
//! broadcast   news ▪                   │
//! operations  dan ▪                    ┘
//! ```
//! Admission is one comparison: a flow may hold as many places as are still free. A single flow gets half of a queue,
//! two get a third each, and however many flood it, a new flow finds room: `free = limit / (flooders + 1)`.

use crate::fairness::{AdmissionError, FlowKey};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use slab::Slab;
use std::{
    collections::{VecDeque, hash_map::Entry},
    time::Duration,
};
use tidings_domain::model::*;
use tokio::sync::oneshot;

/// A queue for each lane, and one for operations.
pub(crate) const QUEUES: usize = LANES + 1;
/// The queue of operations that belong to no lane: users, read marks, new conversations, the server's own records.
pub(crate) const OPERATIONS: usize = LANES;
/// Proposals that each queue gives in a round. Rounds go on until the batch is full or all queues are empty.
const QUEUE_WEIGHTS: [usize; QUEUES] = [8, 4, 2, 2];
/// Proposals after which a flow's turn ends.
const FLOW_QUANTUM: usize = 4;
/// Proposals that each flow of the direct lane has in a batch before its further ones count as bulk: a sender with more under way
/// floods, and others wait for what it has in a batch.
const DIRECT_PER_FLOW: usize = 32;
/// Bytes after which a flow's turn ends.
const FLOW_QUANTUM_BYTES: usize = 16 * 1024;
/// The limit for the bytes in one queue: a body has up to 64 KiB, and a queue has thousands of places.
const QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Proposals taken under the lock before senders that wait for it get it.
const TAKEN_BEFORE_UNLOCK: usize = 64;

/// The limits of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchLimits {
    pub proposals: usize,
    pub bytes: usize,
    /// The part of the limits for bulk: all queues other than that of the direct lane, and in that one what a flow has beyond
    /// [`DIRECT_PER_FLOW`].
    pub bulk_proposals: usize,
    pub bulk_bytes: usize,
}

/// A proposal that was taken for a batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Taken<T> {
    pub queue: usize,
    /// Its flow has nothing more, and no bulk in the batch.
    pub is_last_of_few: bool,
    pub work: T,
}

/// The result of [`CommitQueue::take`].
pub(crate) enum TakeOutcome {
    /// Proposals were taken, or a barrier was reached.
    Taken,
    TimedOut,
    Stopped,
}

/// A proposal in the list of its flow.
struct Node<T> {
    work: T,
    bytes: usize,
    ticket: u64,
    next: usize,
}

const END: usize = usize::MAX;

/// The queued proposals of one flow: a linked list through the nodes.
struct Flow {
    first: usize,
    last: usize,
    count: usize,
    bytes: usize,
    /// The batch that it gave to last, and how many proposals.
    batch: u64,
    given: usize,
}

struct Queue<T> {
    nodes: Slab<Node<T>>,
    flows: FxHashMap<FlowKey, Flow>,
    /// The keys of `flows`, in the order of their turns.
    active: VecDeque<FlowKey>,
    /// The proposals and bytes that the first active flow has given in its turn.
    used_quantum: (usize, usize),
    bytes: usize,
}

/// A point in the queues, reached when every proposal before it was taken.
struct Barrier {
    ticket: u64,
    remaining: usize,
    reached: oneshot::Sender<()>,
}

struct State<T> {
    queues: [Queue<T>; QUEUES],
    /// The queue whose turn it is, and the proposals that it has given in this round.
    round: (usize, usize),
    /// The number of the batch that is taken.
    batch: u64,
    ticket: u64,
    barriers: Vec<Barrier>,
    stopping: bool,
    /// Whether the committer waits on `filled`.
    is_waiting: bool,
}

pub(crate) struct CommitQueue<T> {
    state: Mutex<State<T>>,
    filled: Condvar,
    limit: usize,
    bytes_max: usize,
}

impl<T> CommitQueue<T> {
    /// One of `parts` that share `limit`, the places of each queue.
    pub(crate) fn new(limit: usize, parts: usize) -> Self {
        let queues = [(); QUEUES].map(|()| Queue::default());
        let state = State {
            queues,
            round: (0, 0),
            batch: 0,
            ticket: 0,
            barriers: Vec::new(),
            stopping: false,
            is_waiting: false,
        };
        CommitQueue {
            state: Mutex::new(state),
            filled: Condvar::new(),
            limit: (limit / parts).max(1),
            bytes_max: QUEUE_BYTES_MAX / parts,
        }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Takes the work, unless it is not admitted.
    pub(crate) fn put(
        &self,
        queue: usize,
        flow_key: FlowKey,
        bytes: usize,
        work: &mut Option<T>,
    ) -> Result<(), AdmissionError> {
        let mut state = self.state.lock();
        if state.stopping {
            return Err(AdmissionError::Stopping);
        }
        state.queues[queue].admit(self.limit, self.bytes_max, flow_key)?;
        if let Some(work) = work.take() {
            state.ticket += 1;
            let ticket = state.ticket;
            state.queues[queue].put(flow_key, Node { work, bytes, ticket, next: END });
            self.wake(state);
        }
        Ok(())
    }

    fn wake(&self, mut state: MutexGuard<'_, State<T>>) {
        if std::mem::take(&mut state.is_waiting) {
            drop(state);
            self.filled.notify_one();
        }
    }

    /// Takes proposals for a batch, in fair turns. If there are none, it waits for the next, up to the timeout. First
    /// it resolves the barriers that the proposals taken before have reached: the caller must have committed those.
    pub(crate) fn take(
        &self,
        limits: BatchLimits,
        timeout: Option<Duration>,
        mut each: impl FnMut(Taken<T>),
    ) -> TakeOutcome {
        let mut state = self.state.lock();
        loop {
            let reached: Vec<Barrier> = state.barriers.extract_if(.., |barrier| barrier.remaining == 0).collect();
            let answered = !reached.is_empty();
            for barrier in reached {
                let _ = barrier.reached.send(());
            }
            if state.waiting() > 0 {
                break;
            }
            if answered {
                return TakeOutcome::Taken;
            }
            if state.stopping {
                return TakeOutcome::Stopped;
            }
            state.is_waiting = true;
            match timeout {
                None => self.filled.wait(&mut state),
                Some(timeout) => {
                    if self.filled.wait_for(&mut state, timeout).timed_out() && state.is_waiting {
                        state.is_waiting = false;
                        return TakeOutcome::TimedOut;
                    }
                }
            }
            state.is_waiting = false;
        }
        let (mut left, mut bytes_left) = ([limits.proposals; 2], [limits.bytes; 2]);
        state.batch += 1;
        let batch = state.batch;
        // Index 0 counts all proposals, index 1 bulk, which has limits of its own.
        (left[1], bytes_left[1]) = (limits.bulk_proposals.min(limits.proposals), limits.bulk_bytes.min(limits.bytes));
        let (mut taken, mut gave_nothing) = (0, 0);
        while gave_nothing < QUEUES {
            let queue = state.round.0;
            let free = if queue == Lane::Direct as usize { DIRECT_PER_FLOW } else { 0 };
            let [may, may_bulk] = [0, 1].map(|kind| left[kind] > 0 && bytes_left[kind] > 0);
            let taken_now = may.then(|| state.queues[queue].take(batch, free, may_bulk)).flatten();
            let Some(TakenNode { node, is_bulk, is_last }) = taken_now else {
                gave_nothing += 1;
                state.round = ((queue + 1) % QUEUES, 0);
                continue;
            };
            gave_nothing = 0;
            for kind in 0..=usize::from(is_bulk) {
                left[kind] -= 1;
                bytes_left[kind] = bytes_left[kind].saturating_sub(node.bytes);
            }
            for barrier in &mut state.barriers {
                barrier.remaining -= usize::from(node.ticket < barrier.ticket);
            }
            each(Taken { queue, is_last_of_few: is_last && !is_bulk, work: node.work });
            state.round.1 += 1;
            if state.round.1 >= QUEUE_WEIGHTS[queue] {
                state.round = ((queue + 1) % QUEUES, 0);
            }
            // The next batch goes on where this one ends, so that small batches do not starve a lane.
            if left[0] == 0 || bytes_left[0] == 0 {
                break;
            }
            taken += 1;
            if taken % TAKEN_BEFORE_UNLOCK == 0 {
                MutexGuard::bump(&mut state);
            }
        }
        TakeOutcome::Taken
    }

    /// Puts a barrier. The receiver resolves when every proposal put before is taken and committed. `None`: the queue
    /// is stopping.
    pub(crate) fn barrier(&self) -> Option<oneshot::Receiver<()>> {
        let mut state = self.state.lock();
        if state.stopping {
            return None;
        }
        let (reached, receiver) = oneshot::channel();
        state.ticket += 1;
        let barrier = Barrier { ticket: state.ticket, remaining: state.waiting(), reached };
        state.barriers.push(barrier);
        self.wake(state);
        Some(receiver)
    }

    /// Admits no more proposals; queued ones are still taken.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopping = true;
        self.wake(state);
    }

    /// The number of proposals in each queue.
    pub(crate) fn depths(&self) -> [usize; QUEUES] {
        self.state.lock().queues.each_ref().map(|queue| queue.nodes.len())
    }
}

/// What [`Queue::take`] took.
struct TakenNode<T> {
    node: Node<T>,
    is_bulk: bool,
    /// Its flow has nothing more.
    is_last: bool,
}

impl<T> State<T> {
    fn waiting(&self) -> usize {
        self.queues.iter().map(|queue| queue.nodes.len()).sum()
    }
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue {
            nodes: Slab::new(),
            flows: FxHashMap::default(),
            active: VecDeque::new(),
            used_quantum: (0, 0),
            bytes: 0,
        }
    }
}

impl<T> Queue<T> {
    fn admit(&self, limit: usize, bytes_max: usize, flow_key: FlowKey) -> Result<(), AdmissionError> {
        let free = limit.saturating_sub(self.nodes.len());
        let bytes_free = bytes_max.saturating_sub(self.bytes);
        if free == 0 || bytes_free == 0 {
            return Err(AdmissionError::Full);
        }
        match self.flows.get(&flow_key) {
            Some(flow) if flow.count >= free || flow.bytes >= bytes_free => {
                Err(AdmissionError::ShareExceeded { held: flow.count })
            }
            _ => Ok(()),
        }
    }

    fn put(&mut self, flow_key: FlowKey, node: Node<T>) {
        let bytes = node.bytes;
        self.bytes += bytes;
        let key = self.nodes.insert(node);
        match self.flows.entry(flow_key) {
            Entry::Occupied(mut flow) => {
                let flow = flow.get_mut();
                self.nodes[flow.last].next = key;
                (flow.last, flow.count, flow.bytes) = (key, flow.count + 1, flow.bytes + bytes);
            }
            Entry::Vacant(flow) => {
                flow.insert(Flow { first: key, last: key, count: 1, bytes, batch: 0, given: 0 });
                self.active.push_back(flow_key);
            }
        }
    }

    /// Takes the next proposal of the flow whose turn it is. What a flow gives to a batch beyond `free` proposals is bulk; unless
    /// `may_bulk`, the turn goes on to a flow that has given fewer.
    fn take(&mut self, batch: u64, free: usize, may_bulk: bool) -> Option<TakenNode<T>> {
        for _ in 0..self.active.len() {
            let flow_key = *self.active.front()?;
            let flow = self.flows.get_mut(&flow_key)?;
            if flow.batch != batch {
                (flow.batch, flow.given) = (batch, 0);
            }
            let is_bulk = flow.given >= free;
            if is_bulk && !may_bulk {
                if free == 0 {
                    return None;
                }
                self.used_quantum = (0, 0);
                self.active.rotate_left(1);
                continue;
            }
            let node = self.nodes.try_remove(flow.first)?;
            self.bytes -= node.bytes;
            (flow.first, flow.count, flow.bytes) = (node.next, flow.count - 1, flow.bytes - node.bytes);
            flow.given += 1;
            let is_last = flow.count == 0;
            self.used_quantum = (self.used_quantum.0 + 1, self.used_quantum.1 + node.bytes);
            if is_last || self.used_quantum.0 >= FLOW_QUANTUM || self.used_quantum.1 >= FLOW_QUANTUM_BYTES {
                self.used_quantum = (0, 0);
                self.active.pop_front();
                if is_last {
                    self.flows.remove(&flow_key);
                } else {
                    self.active.push_back(flow_key);
                }
            }
            return Some(TakenNode { node, is_bulk, is_last });
        }
        None
    }
}

#[cfg(test)]
#[path = "../../tests/units/commit_queue.rs"]
mod tests;
