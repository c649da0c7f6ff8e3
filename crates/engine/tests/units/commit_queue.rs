//! Unit tests of `src/commit/queue.rs`.

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
    queue.take(limits, Some(Duration::ZERO), |Taken { queue, work, .. }| taken.push((queue, work)));
    taken
}

/// Puts `count` proposals of a flow; answers how many were admitted.
fn fill(queue: &CommitQueue<(u64, usize)>, at: usize, no: u64, count: usize) -> usize {
    (0..count).filter(|n| queue.put(at, user(no), 1, &mut Some((no, *n))).is_ok()).count()
}

#[test]
fn a_single_flow_gets_half_of_a_queue_and_a_new_one_is_always_admitted() {
    let queue = CommitQueue::new(120, 1);
    assert_eq!(fill(&queue, DIRECT, 1, 500), 60);
    assert_eq!(queue.put(DIRECT, user(1), 1, &mut Some((1, 0))), Err(AdmissionError::ShareExceeded { held: 60 }));
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
    let queue = CommitQueue::new(8, 1);
    for flow_key in 0..8 {
        assert_eq!(fill(&queue, DIRECT, flow_key, 1), 1);
    }
    assert_eq!(queue.put(DIRECT, user(9), 1, &mut Some((9, 0))), Err(AdmissionError::Full));
}

#[test]
fn bytes_are_shared_in_the_same_way_as_places() {
    let queue = CommitQueue::new(1_000_000, 1);
    let put = |no: u64| queue.put(DIRECT, user(no), QUEUE_BYTES_MAX / 64, &mut Some(()));
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
    let queue = CommitQueue::new(10_000, 1);
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
    let queue = CommitQueue::new(10_000, 1);
    for at in [OPERATIONS, 2, GROUP] {
        fill(&queue, at, 1, 1_000);
    }
    // Of many senders: none of them floods.
    for no in 0..50 {
        fill(&queue, DIRECT, no, 20);
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
fn a_flood_of_direct_messages_is_bulk_and_others_are_taken_before_it() {
    let queue = CommitQueue::new(10_000, 1);
    fill(&queue, DIRECT, 1, 1_000);
    for no in 2..100 {
        fill(&queue, DIRECT, no, 2);
    }
    let beside = BatchLimits { bulk_proposals: 60, ..ALL };
    let taken = take(&queue, beside);
    let of_flood = |taken: &[(usize, (u64, usize))]| taken.iter().filter(|(_, work)| work.0 == 1).count();
    assert_eq!(of_flood(&taken), DIRECT_PER_FLOW + 60);
    assert_eq!(taken.len() - of_flood(&taken), 2 * 98, "all others");
    // One that floods next is held to the same; what is left of the limit, others have.
    fill(&queue, DIRECT, 2, 1_000);
    fill(&queue, GROUP, 3, 1_000);
    let taken = take(&queue, beside);
    let of_group = taken.iter().filter(|(at, _)| *at == GROUP).count();
    assert_eq!(taken.len(), 2 * DIRECT_PER_FLOW + 60);
    assert!(of_group >= 10, "{of_group} of the group's, which has its turns");
    // The order of each flow is kept over batches.
    let mut all = Vec::new();
    while let more @ [_, ..] = &*take(&queue, beside) {
        all.extend(more.iter().filter(|(at, work)| *at == DIRECT && work.0 == 1).map(|(_, work)| work.1));
    }
    assert!(all.is_sorted() && all.last() == Some(&999), "{all:?}");
}

#[test]
fn only_senders_who_do_not_flood_are_reported_as_such() {
    let queue: CommitQueue<(u64, usize)> = CommitQueue::new(10_000, 1);
    let few = || {
        let mut few = Vec::new();
        queue.take(ALL, Some(Duration::ZERO), |taken| few.extend(taken.is_last_of_few.then_some(taken.work.0)));
        few
    };
    fill(&queue, DIRECT, 1, DIRECT_PER_FLOW + 1);
    fill(&queue, DIRECT, 2, DIRECT_PER_FLOW);
    fill(&queue, GROUP, 3, 1);
    assert_eq!(few(), [2]);
}

#[test]
fn a_barrier_is_reached_when_all_proposals_before_it_are_committed() {
    let queue = CommitQueue::new(100, 1);
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
    assert_eq!(queue.put(DIRECT, user(1), 1, &mut Some((1, 1))), Err(AdmissionError::Stopping));
    assert!(matches!(queue.take(ALL, None, |_| ()), TakeOutcome::Stopped));
}

#[test]
fn a_put_wakes_the_waiting_committer() {
    let queue = std::sync::Arc::new(CommitQueue::new(100, 1));
    let waits = queue.clone();
    let waiter = std::thread::spawn(move || {
        let mut taken = 0;
        while !matches!(waits.take(ALL, None, |_| taken += 1), TakeOutcome::Stopped) {}
        taken
    });
    for _ in 0..1_000 {
        while queue.put(DIRECT, user(1), 1, &mut Some(())).is_err() {
            std::thread::yield_now();
        }
    }
    queue.stop();
    assert_eq!(waiter.join().unwrap_or(0), 1_000);
}
