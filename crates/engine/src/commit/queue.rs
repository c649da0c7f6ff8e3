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
use std::{collections::VecDeque, time::Duration};
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
    /// The part of the limits for all queues other than that of the direct lane.
    pub bulk_proposals: usize,
    pub bulk_bytes: usize,
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
}

impl<T> CommitQueue<T> {
    /// `limit`: the places of each queue.
    pub(crate) fn new(limit: usize) -> Self {
        let queues = [(); QUEUES].map(|()| Queue::default());
        let state =
            State { queues, round: (0, 0), ticket: 0, barriers: Vec::new(), stopping: false, is_waiting: false };
        CommitQueue { state: Mutex::new(state), filled: Condvar::new(), limit: limit.max(1) }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn put(&self, queue: usize, flow_key: FlowKey, bytes: usize, work: T) -> Result<(), AdmissionError> {
        let mut state = self.state.lock();
        if state.stopping {
            return Err(AdmissionError::Stopping);
        }
        state.ticket += 1;
        let ticket = state.ticket;
        state.queues[queue].put(self.limit, flow_key, Node { work, bytes, ticket, next: END })?;
        self.wake(state);
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
        mut each: impl FnMut(usize, T),
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
        // Index 0 counts all proposals, index 1 those other than direct ones, which have limits of their own.
        (left[1], bytes_left[1]) = (limits.bulk_proposals.min(limits.proposals), limits.bulk_bytes.min(limits.bytes));
        let (mut taken, mut gave_nothing) = (0, 0);
        while gave_nothing < QUEUES {
            let queue = state.round.0;
            let is_bulk = queue != Lane::Direct as usize;
            let may = left[0] > 0 && bytes_left[0] > 0 && (!is_bulk || (left[1] > 0 && bytes_left[1] > 0));
            let Some(node) = may.then(|| state.queues[queue].take()).flatten() else {
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
            each(queue, node.work);
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
    fn put(&mut self, limit: usize, flow_key: FlowKey, node: Node<T>) -> Result<(), AdmissionError> {
        let free = limit.saturating_sub(self.nodes.len());
        let bytes_free = QUEUE_BYTES_MAX.saturating_sub(self.bytes);
        if free == 0 || bytes_free == 0 {
            return Err(AdmissionError::Full);
        }
        let bytes = node.bytes;
        self.bytes += bytes;
        match self.flows.get_mut(&flow_key) {
            Some(flow) if flow.count >= free || flow.bytes >= bytes_free => {
                self.bytes -= bytes;
                return Err(AdmissionError::ShareExceeded { held: flow.count });
            }
            Some(flow) => {
                let key = self.nodes.insert(node);
                self.nodes[flow.last].next = key;
                (flow.last, flow.count, flow.bytes) = (key, flow.count + 1, flow.bytes + bytes);
            }
            None => {
                let key = self.nodes.insert(node);
                self.flows.insert(flow_key, Flow { first: key, last: key, count: 1, bytes });
                self.active.push_back(flow_key);
            }
        }
        Ok(())
    }

    /// Takes the next proposal of the flow whose turn it is.
    fn take(&mut self) -> Option<Node<T>> {
        let flow_key = *self.active.front()?;
        let flow = self.flows.get_mut(&flow_key)?;
        let node = self.nodes.try_remove(flow.first)?;
        self.bytes -= node.bytes;
        (flow.first, flow.count, flow.bytes) = (node.next, flow.count - 1, flow.bytes - node.bytes);
        let is_empty = flow.count == 0;
        self.used_quantum = (self.used_quantum.0 + 1, self.used_quantum.1 + node.bytes);
        if is_empty || self.used_quantum.0 >= FLOW_QUANTUM || self.used_quantum.1 >= FLOW_QUANTUM_BYTES {
            self.used_quantum = (0, 0);
            self.active.pop_front();
            if is_empty {
                self.flows.remove(&flow_key);
            } else {
                self.active.push_back(flow_key);
            }
        }
        Some(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: BatchLimits =
        BatchLimits { proposals: usize::MAX, bytes: usize::MAX, bulk_proposals: usize::MAX, bulk_bytes: usize::MAX };
    const DIRECT: usize = Lane::Direct as usize;
    const GROUP: usize = Lane::Group as usize;

    fn user(no: u64) -> FlowKey {
        FlowKey::User(UserNo(no))
    }

    fn take<T>(queue: &CommitQueue<T>, limits: BatchLimits) -> Vec<(usize, T)> {
        let mut taken = Vec::new();
        queue.take(limits, Some(Duration::ZERO), |queue, work| taken.push((queue, work)));
        taken
    }

    /// Puts `count` proposals of a flow; answers how many were admitted.
    fn fill(queue: &CommitQueue<(u64, usize)>, at: usize, no: u64, count: usize) -> usize {
        (0..count).filter(|n| queue.put(at, user(no), 1, (no, *n)).is_ok()).count()
    }

    #[test]
    fn a_single_flow_gets_half_of_a_queue_and_a_new_one_is_always_admitted() {
        let queue = CommitQueue::new(120);
        assert_eq!(fill(&queue, DIRECT, 1, 500), 60);
        assert_eq!(queue.put(DIRECT, user(1), 1, (1, 0)), Err(AdmissionError::ShareExceeded { held: 60 }));
        assert_eq!(fill(&queue, DIRECT, 2, 500), 30);
        for other in 3..10 {
            assert_eq!(fill(&queue, DIRECT, other, 1), 1, "flow {other}");
        }
        assert_eq!(fill(&queue, GROUP, 1, 500), 60, "another queue has places of its own");
        assert_eq!(queue.depths(), [97, 60, 0, 0]);
        // Once its proposals are taken, the flow has its share again.
        take(&queue, ALL);
        assert_eq!(fill(&queue, DIRECT, 1, 500), 60);
    }

    #[test]
    fn a_queue_full_of_flows_refuses_a_new_flow() {
        let queue = CommitQueue::new(8);
        for flow_key in 0..8 {
            assert_eq!(fill(&queue, DIRECT, flow_key, 1), 1);
        }
        assert_eq!(queue.put(DIRECT, user(9), 1, (9, 0)), Err(AdmissionError::Full));
    }

    #[test]
    fn bytes_are_shared_in_the_same_way_as_places() {
        let queue = CommitQueue::new(1_000_000);
        let put = |no: u64| queue.put(DIRECT, user(no), QUEUE_BYTES_MAX / 64, ());
        let mut held = 0;
        while put(1).is_ok() {
            held += 1;
        }
        assert_eq!(held, 32);
        assert_eq!(put(2), Ok(()));
        take(&queue, ALL);
        assert_eq!(put(1), Ok(()));
    }

    #[test]
    fn flows_take_turns_and_each_keeps_its_order() {
        let queue = CommitQueue::new(10_000);
        fill(&queue, DIRECT, 1, 1_000);
        fill(&queue, DIRECT, 2, 3);
        fill(&queue, DIRECT, 3, 1);
        let taken = take(&queue, ALL);
        assert_eq!(taken.len(), 1_004);
        let place = |flow_key, n| taken.iter().position(|(_, work)| *work == (flow_key, n)).unwrap_or(usize::MAX);
        assert!(place(2, 2) < 10 && place(3, 0) < 10, "the small flows do not wait for the thousand");
        for no in [1, 2] {
            let order: Vec<usize> = taken.iter().filter(|(_, w)| w.0 == no).map(|(_, w)| w.1).collect();
            assert!(order.is_sorted());
        }
    }

    #[test]
    fn queues_give_by_their_weights_and_bulk_no_more_than_its_limits() {
        let queue = CommitQueue::new(10_000);
        for at in [OPERATIONS, 2, GROUP, DIRECT] {
            fill(&queue, at, 1, 1_000);
        }
        let taken = take(&queue, BatchLimits { proposals: 256, ..ALL });
        let count = |at| taken.iter().filter(|(queue, _)| *queue == at).count();
        assert_eq!((taken.len(), taken[0].0), (256, DIRECT));
        assert_eq!([count(DIRECT), count(GROUP), count(2), count(OPERATIONS)], [128, 64, 32, 32]);
        let taken = take(&queue, BatchLimits { proposals: 512, bulk_proposals: 60, ..ALL });
        assert_eq!(taken.len(), 512);
        assert_eq!(taken.iter().filter(|(at, _)| *at != DIRECT).count(), 60);
        // However small the batches are, every queue has its turns.
        let few: Vec<usize> =
            (0..16).flat_map(|_| take(&queue, BatchLimits { proposals: 1, ..ALL })).map(|(at, _)| at).collect();
        let counts: Vec<usize> = (0..QUEUES).map(|at| few.iter().filter(|few| **few == at).count()).collect();
        assert_eq!(counts, [8, 4, 2, 2]);
        let taken = take(&queue, BatchLimits { bulk_bytes: 50, ..ALL });
        assert_eq!(taken.iter().filter(|(at, _)| *at == DIRECT).count(), 1_000 - 128 - 452 - 8);
        assert_eq!(taken.iter().filter(|(at, _)| *at != DIRECT).count(), 50);
    }

    #[test]
    fn a_barrier_is_reached_when_all_proposals_before_it_are_committed() {
        let queue = CommitQueue::new(100);
        fill(&queue, DIRECT, 1, 6);
        let mut barrier = queue.barrier().expect("it runs");
        fill(&queue, DIRECT, 2, 6);
        let four = BatchLimits { proposals: 4, ..ALL };
        // Turns of four: the other flow's come in between.
        for _ in 0..3 {
            take(&queue, four);
            assert!(barrier.try_recv().is_err(), "a batch counts as committed with the next take");
        }
        take(&queue, four);
        assert_eq!(barrier.try_recv(), Ok(()));
        queue.stop();
        assert!(queue.barrier().is_none());
        assert_eq!(queue.put(DIRECT, user(1), 1, (1, 1)), Err(AdmissionError::Stopping));
        assert!(matches!(queue.take(ALL, None, |_, _| ()), TakeOutcome::Stopped));
    }

    #[test]
    fn a_put_wakes_the_waiting_committer() {
        let queue = std::sync::Arc::new(CommitQueue::new(100));
        let waits = queue.clone();
        let waiter = std::thread::spawn(move || {
            let mut taken = 0;
            while !matches!(waits.take(ALL, None, |_, ()| taken += 1), TakeOutcome::Stopped) {}
            taken
        });
        for _ in 0..1_000 {
            while queue.put(DIRECT, user(1), 1, ()).is_err() {
                std::thread::yield_now();
            }
        }
        queue.stop();
        assert_eq!(waiter.join().unwrap_or(0), 1_000);
    }
}
