//! Unit tests of `src/cluster/life_signs.rs`.

use super::*;
use crate::cluster::leader_lease::EVIDENCE_COUNTS;

fn sign(is_set: bool, renewal: u64) -> LeaderSign {
    LeaderSign { function: Function::Push, boot_id: 7, renewal, is_set, server: 1 }
}

/// What the watch says of looks at these milliseconds.
fn check(looks: &[(u64, LeaderSign, bool)]) {
    let (mut watch, began) = (LossWatch::default(), Instant::now());
    for (at_ms, sign, expected) in looks {
        let is_lost = watch.lost_for(*sign, began + Duration::from_millis(*at_ms)) >= SUCCEED_AFTER;
        assert_eq!(is_lost, *expected, "at {at_ms} ms: {sign:?}");
    }
}

#[test]
fn a_leader_whose_sign_stays_gone_has_ended() {
    let gone = sign(false, 1);
    check(&[(0, sign(true, 1), false), (200, gone, false), (1_399, gone, false), (1_400, gone, true)]);
}

#[test]
fn a_leader_that_renews_or_sets_its_sign_again_lives() {
    let gone = |renewal| sign(false, renewal);
    check(&[(0, sign(true, 1), false), (200, gone(1), false), (1_200, gone(2), false), (2_300, gone(2), false)]);
    check(&[(0, sign(true, 1), false), (200, gone(1), false), (400, sign(true, 1), false), (1_500, gone(1), false)]);
}

#[test]
fn a_sign_that_was_never_seen_on_this_server_is_not_lost() {
    check(&[(0, sign(false, 1), false), (5_000, sign(false, 1), false)]);
    let promoted = |is_set| LeaderSign { server: 2, ..sign(is_set, 1) };
    check(&[(0, sign(true, 1), false), (200, promoted(false), false), (5_000, promoted(false), false)]);
}

#[test]
fn the_leader_stops_before_another_begins() {
    assert!(EVIDENCE_COUNTS.as_secs_f64() <= SUCCEED_AFTER.as_secs_f64() * 0.7 + 1e-9);
}
