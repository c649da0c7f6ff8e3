//! Unit tests of `src/presence/changes.rs`.

use super::*;

const GRACE: u64 = 5_000;
const ALICE: UserNo = UserNo(1);

fn gone(since: u64) -> Away {
    Away { since, was_active: true }
}

fn change(online: bool, at: u64) -> Change {
    Change { user: ALICE, online, at }
}

#[test]
fn online_is_announced_at_once_and_offline_after_the_grace() {
    let mut changes = ChangeQueue::default();
    changes.user_online(ALICE, true);
    assert_eq!(changes.take_due(1_000, GRACE, false), [change(true, 1_000)]);
    changes.user_offline(ALICE, gone(2_000), 2_000, GRACE);
    assert_eq!(changes.take_due(6_999, GRACE, false), []);
    assert_eq!(changes.take_due(7_000, GRACE, false), [change(false, 2_000)]);
    assert_eq!(changes.take_due(20_000, GRACE, false), []);
}

#[test]
fn a_return_within_the_grace_is_not_announced_and_the_next_end_starts_the_grace_anew() {
    let mut changes = ChangeQueue::default();
    changes.user_offline(ALICE, gone(1_000), 1_000, GRACE);
    changes.user_online(ALICE, true);
    changes.user_offline(ALICE, gone(4_000), 4_000, GRACE);
    assert_eq!(changes.take_due(6_000, GRACE, false), [], "away since 4,000 only");
    assert_eq!(changes.take_due(9_000, GRACE, false), [change(false, 4_000)]);
    changes.user_online(ALICE, true);
    assert_eq!(changes.take_due(9_100, GRACE, false), [change(true, 9_100)]);
    changes.user_offline(ALICE, gone(9_200), 9_200, GRACE);
    changes.user_online(ALICE, true);
    assert_eq!(changes.take_due(90_000, GRACE, false), []);
}

#[test]
fn nobody_is_announced_offline_while_a_node_is_not_understood() {
    let mut changes = ChangeQueue::default();
    let bob = UserNo(2);
    changes.user_offline(ALICE, gone(1_000), 1_000, GRACE);
    changes.user_offline(bob, gone(2_000), 2_000, GRACE);
    changes.user_online(UserNo(3), true);
    assert_eq!(changes.take_due(60_000, GRACE, true), [Change { user: UserNo(3), online: true, at: 60_000 }]);
    assert_eq!(changes.away(ALICE), Some(gone(1_000)), "counts as online");
    // Alice is on that node.
    changes.user_online(ALICE, true);
    assert_eq!(changes.take_due(61_000, GRACE, false), [Change { user: bob, online: false, at: 2_000 }]);
    assert_eq!(changes.queue.len(), 0);
}

#[test]
fn of_two_changes_in_one_round_only_the_last_is_announced() {
    let mut changes = ChangeQueue::default();
    changes.user_online(ALICE, true);
    changes.user_offline(ALICE, gone(1_000), 1_000, 0);
    assert_eq!(changes.take_due(1_500, 0, false), [change(false, 1_000)]);
    changes.user_online(ALICE, true);
    assert_eq!(changes.take_due(2_000, 0, false), [change(true, 2_000)]);
}

#[test]
fn the_end_of_a_last_session_is_known_until_it_is_announced() {
    let mut changes = ChangeQueue::default();
    changes.user_offline(ALICE, gone(1_000), 1_000, GRACE);
    assert_eq!(changes.away(ALICE), Some(gone(1_000)));
    changes.user_online(ALICE, true);
    assert_eq!(changes.away(ALICE), None);
    changes.user_offline(ALICE, gone(2_000), 2_000, GRACE);
    assert_eq!(changes.take_due(7_000, GRACE, false), [change(false, 2_000)]);
    assert_eq!(changes.away(ALICE), None);
}

#[test]
fn a_clock_that_jumps_back_keeps_no_user_online_for_longer_than_the_grace() {
    let mut changes = ChangeQueue::default();
    changes.take_due(1_000_000, GRACE, false);
    changes.user_offline(ALICE, gone(1_000_000), 1_000_000, GRACE);
    assert_eq!(changes.take_due(400_000, GRACE, false), []);
    assert_eq!(changes.take_due(405_000, GRACE, false), [change(false, 1_000_000)]);
}

#[test]
fn a_storm_of_changes_costs_one_entry_per_user_and_frees_its_memory() {
    let mut changes = ChangeQueue::default();
    let users = 100_000;
    for flap in 0..10 {
        for user in 0..users {
            changes.user_offline(UserNo(user), gone(1_000 + flap), 1_000 + flap, GRACE);
            changes.user_online(UserNo(user), true);
        }
    }
    assert_eq!((changes.queue.len(), changes.pending.len()), (users as usize, users as usize));
    assert_eq!(changes.take_due(10_000, GRACE, false), [], "all are back");
    assert_eq!(changes.coalesced, users * 10);
    assert_eq!((changes.queue.capacity(), changes.pending.capacity()), (0, 0));
}
