//! What waits for the committer, shared fairly: a queue per lane and one for all that is in no lane, and in each of
//! them a line per party.
//!
//! ```text
//! direct     ada ▪▪▪▪▪▪▪▪  ben ▪      ┐
//! group      cleo ▪▪  bulk ▪▪▪▪▪▪▪▪▪  ├─ in turns, direct first; in a queue each party in its turn ─▶ one batch
//! broadcast  news ▪                   │
//! rest       dan ▪                    ┘
//! ```
//! Places are given by one comparison: a party may hold as many as are still free. A lone one gets half of a queue,
//! two get a third each, and however many flood it, who comes new finds room: `free = limit / (flooders + 1)`.

use crate::model::*;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use slab::Slab;
use std::{collections::VecDeque, time::Duration};
use tokio::sync::oneshot;

/// The lanes, and one for what is in none of them.
pub(crate) const QUEUES: usize = LANES + 1;
/// The queue of what is in no lane: users, read marks, conversations that are opened, records of the server's own.
pub(crate) const REST: usize = LANES;
/// Proposals that each queue gives in a round; rounds go on until the batch is full or all are empty.
const ROUND: [usize; QUEUES] = [8, 4, 2, 2];
/// Proposals, and their bytes, after which a party's turn ends.
const TURN: usize = 4;
const TURN_BYTES: usize = 16 * 1024;
/// Bytes that wait in one queue at most: bodies are up to 64 KiB, and places are counted in thousands.
const QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Proposals taken before those who wait for the lock get it.
const TAKEN_AT_ONCE: usize = 64;
/// Before the committer sleeps it lets other threads run so often: those that are about to put something find it awake, which
/// makes fewer and larger batches and saves them the call that wakes it.
const YIELDS_BEFORE_SLEEP: usize = 4;

/// Whose share of a queue a proposal takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Party {
    User(UserNo),
    /// The app server speaks as the conversation itself.
    Conversation(ConversationNo),
    /// Batches of several senders: their order is the batch's, so that they stand in one line.
    Bulk,
    /// Operations of app servers that are in no lane, and what the server itself records.
    Server,
}

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// All are taken.
    Full,
    /// The party holds as many as are left for all others.
    Share {
        held: usize,
    },
    Stopping,
}

/// How much of a batch is wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Most {
    pub proposals: usize,
    pub bytes: usize,
    /// Of these, by all queues but that of the direct lane.
    pub bulk_proposals: usize,
    pub bulk_bytes: usize,
}

/// What a look at the queue came to.
pub(crate) enum Taken {
    /// Something was taken, or a barrier was reached.
    Some,
    TimeIsOver,
    Stopped,
}

struct Node<T> {
    work: T,
    bytes: usize,
    ticket: u64,
    next: usize,
}

const END: usize = usize::MAX;

/// What of one party waits: a list through the nodes.
struct Line {
    first: usize,
    last: usize,
    count: usize,
    bytes: usize,
}

struct Queue<T> {
    nodes: Slab<Node<T>>,
    lines: FxHashMap<Party, Line>,
    /// Each party with a line, in the order of their turns.
    turns: VecDeque<Party>,
    /// What the first of them has given in its turn so far, and the bytes of it.
    turn: (usize, usize),
    bytes: usize,
}

/// Reached when everything that waited before it was taken.
struct Barrier {
    ticket: u64,
    left: usize,
    reached: oneshot::Sender<()>,
}

struct State<T> {
    queues: [Queue<T>; QUEUES],
    /// Whose turn it is, and what it has given in this round.
    round: (usize, usize),
    ticket: u64,
    barriers: Vec<Barrier>,
    stopping: bool,
    /// The committer waits for something to come.
    asleep: bool,
}

pub(crate) struct CommitQueue<T> {
    state: Mutex<State<T>>,
    filled: Condvar,
    limit: usize,
}

impl<T> CommitQueue<T> {
    /// Each of the queues has as many places as `limit`.
    pub(crate) fn new(limit: usize) -> Self {
        let queues = [(); QUEUES].map(|()| Queue::default());
        let state = State { queues, round: (0, 0), ticket: 0, barriers: Vec::new(), stopping: false, asleep: false };
        CommitQueue { state: Mutex::new(state), filled: Condvar::new(), limit: limit.max(1) }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn put(&self, queue: usize, party: Party, bytes: usize, work: T) -> Result<(), NoPlace> {
        let mut state = self.state.lock();
        if state.stopping {
            return Err(NoPlace::Stopping);
        }
        state.ticket += 1;
        let ticket = state.ticket;
        state.queues[queue].put(self.limit, party, Node { work, bytes, ticket, next: END })?;
        self.wake(state);
        Ok(())
    }

    fn wake(&self, mut state: MutexGuard<'_, State<T>>) {
        if std::mem::take(&mut state.asleep) {
            drop(state);
            self.filled.notify_one();
        }
    }

    /// Takes what waits, in fair turns; waits for something to come if there is nothing, for so long or for ever. Answers
    /// the barriers that were reached by what was taken before: call it when that is dealt with.
    pub(crate) fn take(&self, most: Most, patience: Option<Duration>, mut each: impl FnMut(usize, T)) -> Taken {
        let mut state = self.state.lock();
        let mut yields_left = YIELDS_BEFORE_SLEEP;
        loop {
            let reached: Vec<Barrier> = state.barriers.extract_if(.., |barrier| barrier.left == 0).collect();
            let answered = !reached.is_empty();
            for barrier in reached {
                let _ = barrier.reached.send(());
            }
            if state.waiting() > 0 {
                break;
            }
            if answered {
                return Taken::Some;
            }
            if state.stopping {
                return Taken::Stopped;
            }
            if yields_left > 0 {
                yields_left -= 1;
                MutexGuard::unlocked(&mut state, std::thread::yield_now);
                continue;
            }
            state.asleep = true;
            match patience {
                None => self.filled.wait(&mut state),
                Some(patience) => {
                    if self.filled.wait_for(&mut state, patience).timed_out() && state.asleep {
                        state.asleep = false;
                        return Taken::TimeIsOver;
                    }
                }
            }
            state.asleep = false;
        }
        let (mut left, mut bytes_left) = ([most.proposals; 2], [most.bytes; 2]);
        // Of both kinds together no more than the batch holds, of bulk no more than its part.
        (left[1], bytes_left[1]) = (most.bulk_proposals.min(most.proposals), most.bulk_bytes.min(most.bytes));
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
                barrier.left -= usize::from(node.ticket < barrier.ticket);
            }
            each(queue, node.work);
            state.round.1 += 1;
            if state.round.1 >= ROUND[queue] {
                state.round = ((queue + 1) % QUEUES, 0);
            }
            // What is full goes on next time where it stopped: no lane waits because batches are small.
            if left[0] == 0 || bytes_left[0] == 0 {
                break;
            }
            taken += 1;
            if taken % TAKEN_AT_ONCE == 0 {
                MutexGuard::bump(&mut state);
            }
        }
        Taken::Some
    }

    /// Hears when everything that was put before is taken, and what was taken with it dealt with. `None`: it is stopping.
    pub(crate) fn barrier(&self) -> Option<oneshot::Receiver<()>> {
        let mut state = self.state.lock();
        if state.stopping {
            return None;
        }
        let (reached, hears) = oneshot::channel();
        state.ticket += 1;
        let barrier = Barrier { ticket: state.ticket, left: state.waiting(), reached };
        state.barriers.push(barrier);
        self.wake(state);
        Some(hears)
    }

    /// Nothing more is taken in; what waits is still handed out.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopping = true;
        self.wake(state);
    }

    /// How many wait in each queue.
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
        Queue { nodes: Slab::new(), lines: FxHashMap::default(), turns: VecDeque::new(), turn: (0, 0), bytes: 0 }
    }
}

impl<T> Queue<T> {
    fn put(&mut self, limit: usize, party: Party, node: Node<T>) -> Result<(), NoPlace> {
        let free = limit.saturating_sub(self.nodes.len());
        let bytes_free = QUEUE_BYTES_MAX.saturating_sub(self.bytes);
        if free == 0 || bytes_free == 0 {
            return Err(NoPlace::Full);
        }
        let bytes = node.bytes;
        self.bytes += bytes;
        match self.lines.get_mut(&party) {
            Some(line) if line.count >= free || line.bytes >= bytes_free => {
                self.bytes -= bytes;
                return Err(NoPlace::Share { held: line.count });
            }
            Some(line) => {
                let key = self.nodes.insert(node);
                self.nodes[line.last].next = key;
                (line.last, line.count, line.bytes) = (key, line.count + 1, line.bytes + bytes);
            }
            None => {
                let key = self.nodes.insert(node);
                self.lines.insert(party, Line { first: key, last: key, count: 1, bytes });
                self.turns.push_back(party);
            }
        }
        Ok(())
    }

    /// The next by turns.
    fn take(&mut self) -> Option<Node<T>> {
        let party = *self.turns.front()?;
        let line = self.lines.get_mut(&party)?;
        let node = self.nodes.try_remove(line.first)?;
        self.bytes -= node.bytes;
        (line.first, line.count, line.bytes) = (node.next, line.count - 1, line.bytes - node.bytes);
        let is_empty = line.count == 0;
        self.turn = (self.turn.0 + 1, self.turn.1 + node.bytes);
        if is_empty || self.turn.0 >= TURN || self.turn.1 >= TURN_BYTES {
            self.turn = (0, 0);
            self.turns.pop_front();
            if is_empty {
                self.lines.remove(&party);
            } else {
                self.turns.push_back(party);
            }
        }
        Some(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Most =
        Most { proposals: usize::MAX, bytes: usize::MAX, bulk_proposals: usize::MAX, bulk_bytes: usize::MAX };
    const DIRECT: usize = Lane::Direct as usize;
    const GROUP: usize = Lane::Group as usize;

    fn user(no: u64) -> Party {
        Party::User(UserNo(no))
    }

    fn take<T>(queue: &CommitQueue<T>, most: Most) -> Vec<(usize, T)> {
        let mut taken = Vec::new();
        queue.take(most, Some(Duration::ZERO), |queue, work| taken.push((queue, work)));
        taken
    }

    /// Puts so many of a party; answers how many found a place.
    fn fill(queue: &CommitQueue<(u64, usize)>, at: usize, no: u64, count: usize) -> usize {
        (0..count).filter(|n| queue.put(at, user(no), 1, (no, *n)).is_ok()).count()
    }

    #[test]
    fn a_lone_party_gets_half_and_who_comes_new_always_finds_room() {
        let queue = CommitQueue::new(120);
        assert_eq!(fill(&queue, DIRECT, 1, 500), 60);
        assert_eq!(queue.put(DIRECT, user(1), 1, (1, 0)), Err(NoPlace::Share { held: 60 }));
        assert_eq!(fill(&queue, DIRECT, 2, 500), 30);
        for other in 3..10 {
            assert_eq!(fill(&queue, DIRECT, other, 1), 1, "party {other}");
        }
        assert_eq!(fill(&queue, GROUP, 1, 500), 60, "another lane has places of its own");
        assert_eq!(queue.depths(), [97, 60, 0, 0]);
        // Once what it had is taken it has its share again.
        take(&queue, ALL);
        assert_eq!(fill(&queue, DIRECT, 1, 500), 60);
    }

    #[test]
    fn a_queue_full_of_parties_is_full_for_all() {
        let queue = CommitQueue::new(8);
        for party in 0..8 {
            assert_eq!(fill(&queue, DIRECT, party, 1), 1);
        }
        assert_eq!(queue.put(DIRECT, user(9), 1, (9, 0)), Err(NoPlace::Full));
    }

    #[test]
    fn bytes_are_shared_as_places_are() {
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
    fn parties_take_turns_and_each_keeps_its_order() {
        let queue = CommitQueue::new(10_000);
        fill(&queue, DIRECT, 1, 1_000);
        fill(&queue, DIRECT, 2, 3);
        fill(&queue, DIRECT, 3, 1);
        let taken = take(&queue, ALL);
        assert_eq!(taken.len(), 1_004);
        let place = |party, n| taken.iter().position(|(_, work)| *work == (party, n)).unwrap_or(usize::MAX);
        assert!(place(2, 2) < 10 && place(3, 0) < 10, "they do not wait for the thousand");
        for no in [1, 2] {
            let order: Vec<usize> = taken.iter().filter(|(_, w)| w.0 == no).map(|(_, w)| w.1).collect();
            assert!(order.is_sorted());
        }
    }

    #[test]
    fn lanes_take_turns_direct_first_and_bulk_no_more_than_its_part() {
        let queue = CommitQueue::new(10_000);
        for at in [REST, 2, GROUP, DIRECT] {
            fill(&queue, at, 1, 1_000);
        }
        let taken = take(&queue, Most { proposals: 256, ..ALL });
        let count = |at| taken.iter().filter(|(queue, _)| *queue == at).count();
        assert_eq!((taken.len(), taken[0].0), (256, DIRECT));
        assert_eq!([count(DIRECT), count(GROUP), count(2), count(REST)], [128, 64, 32, 32]);
        let taken = take(&queue, Most { proposals: 512, bulk_proposals: 60, ..ALL });
        assert_eq!(taken.len(), 512);
        assert_eq!(taken.iter().filter(|(at, _)| *at != DIRECT).count(), 60);
        // However few a batch holds, all have their turns.
        let few: Vec<usize> =
            (0..16).flat_map(|_| take(&queue, Most { proposals: 1, ..ALL })).map(|(at, _)| at).collect();
        let counts: Vec<usize> = (0..QUEUES).map(|at| few.iter().filter(|few| **few == at).count()).collect();
        assert_eq!(counts, [8, 4, 2, 2]);
        let taken = take(&queue, Most { bulk_bytes: 50, ..ALL });
        assert_eq!(taken.iter().filter(|(at, _)| *at == DIRECT).count(), 1_000 - 128 - 452 - 8);
        assert_eq!(taken.iter().filter(|(at, _)| *at != DIRECT).count(), 50);
    }

    #[test]
    fn a_barrier_is_reached_when_what_was_before_it_is_dealt_with() {
        let queue = CommitQueue::new(100);
        fill(&queue, DIRECT, 1, 6);
        let mut barrier = queue.barrier().expect("it runs");
        fill(&queue, DIRECT, 2, 6);
        let four = Most { proposals: 4, ..ALL };
        // Turns of four: the other party's come between.
        for _ in 0..3 {
            take(&queue, four);
            assert!(barrier.try_recv().is_err(), "what was taken last is not dealt with before the next take");
        }
        take(&queue, four);
        assert_eq!(barrier.try_recv(), Ok(()));
        queue.stop();
        assert!(queue.barrier().is_none());
        assert_eq!(queue.put(DIRECT, user(1), 1, (1, 1)), Err(NoPlace::Stopping));
        assert!(matches!(queue.take(ALL, None, |_, _| ()), Taken::Stopped));
    }

    #[test]
    fn what_comes_wakes_who_waits() {
        let queue = std::sync::Arc::new(CommitQueue::new(100));
        let waits = queue.clone();
        let waiter = std::thread::spawn(move || {
            let mut taken = 0;
            while !matches!(waits.take(ALL, None, |_, ()| taken += 1), Taken::Stopped) {}
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
