//! Unit tests of `src/cluster/store_time.rs`.

use super::*;
use std::time::Duration;
use tidings_testkit::ManualClock;

const NOON: u64 = 1_772_366_400_000;
const HOUR: u64 = 3_600_000;

fn at_noon() -> (Arc<ManualClock>, StoreTime) {
    let machine = Arc::new(ManualClock::default());
    machine.set(NOON);
    (machine.clone(), StoreTime::new(machine))
}

#[test]
fn a_clock_that_agrees_gives_the_time_itself() {
    let (machine, time) = at_noon();
    assert_eq!(time.now_ms(), NOON, "before the store was asked");
    let asked = machine.monotonic();
    machine.advance(Duration::from_millis(40));
    for store_ms in [NOON, NOON + 40] {
        assert_eq!(time.compare(store_ms, asked), 0, "within the round trip");
    }
    assert_eq!(time.compare(NOON - 900, asked), 900);
    assert_eq!(time.now_ms(), NOON + 40, "less than a second is nothing");
    machine.advance(Duration::from_secs(600));
    assert_eq!(time.now_ms(), NOON + 600_040);
}

#[test]
fn a_wrong_clock_gives_the_time_of_the_store() {
    for (store_ms, ahead_ms) in [(NOON - HOUR, HOUR as i64), (NOON + HOUR, -(HOUR as i64))] {
        let (machine, time) = at_noon();
        assert_eq!(time.compare(store_ms, machine.monotonic()), ahead_ms);
        machine.advance(Duration::from_millis(700));
        assert_eq!(time.now_ms(), store_ms + 700);
    }
}

#[test]
fn a_clock_that_jumps_gives_no_wrong_time_before_the_next_comparison() {
    let (machine, time) = at_noon();
    assert_eq!(time.compare(NOON, machine.monotonic()), 0);
    machine.advance(Duration::from_secs(1));
    machine.set(NOON + HOUR);
    assert_eq!(time.now_ms(), NOON + 1_000);
    machine.advance(Duration::from_secs(1));
    assert_eq!(time.now_ms(), NOON + 2_000);
    assert_eq!(time.compare(NOON + 2_000, machine.monotonic()), HOUR as i64 - 1_000);
    machine.set(NOON + 2_000);
    assert_eq!(time.now_ms(), NOON + 2_000, "set right");
}
