//! Frequency caps with all devices of a user asking at once: a popup is shown as often as a cap allows and not once more,
//! also after a clean stop.
// Slow: left out by `make test-quick`.

use crate::popup_support::*;
use crate::support::*;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Barrier},
};
use tidings_popups::{PopupsConfig, UserKey};
use tidings_store::{EmbeddedOptions, EmbeddedStore};
use tidings_testkit::MemoryStore;

const DEVICES: usize = 8;
const USERS: usize = 40;
/// Questions that each device asks about a user.
const ROUNDS: usize = 2;

/// A configuration, and how often each user is shown something: at first, right after a restart, and a day later.
struct Case {
    name: &'static str,
    popups: Value,
    settings: Value,
    shown: [usize; 3],
}

/// Devices ask in two sessions at two placements: all about one user at once, then all about the next user.
fn storm(world: &World, users: &[String]) -> BTreeMap<String, usize> {
    let together = Barrier::new(DEVICES);
    let ask = &|device: usize| {
        let mut shown = BTreeMap::<String, usize>::new();
        for user in users {
            together.wait();
            for _ in 0..ROUNDS {
                let session = ["s1", "s2"][device % 2];
                let placement = ["home", "cart"][device / 2 % 2];
                let question = json!({"session": session, "placement": placement});
                if world.decide_with(user, question).unwrap().exposure.is_some() {
                    *shown.entry(user.clone()).or_default() += 1;
                }
            }
        }
        shown
    };
    std::thread::scope(|scope| {
        let devices: Vec<_> = (0..DEVICES).map(|device| scope.spawn(move || ask(device))).collect();
        let mut all = BTreeMap::<String, usize>::new();
        for (user, count) in devices.into_iter().flat_map(|device| device.join().unwrap()) {
            *all.entry(user).or_default() += count;
        }
        all
    })
}

fn check(case: &Case, users: &[String], open: &dyn Fn() -> World) {
    let expect = |world: &World, stage: usize| {
        let shown = storm(world, users);
        for user in users {
            let count = shown.get(user).copied().unwrap_or_default();
            assert_eq!(count, case.shown[stage], "{}, stage {stage}, user {user}", case.name);
        }
    };
    {
        let world = open();
        world.set_popup_settings(case.settings.clone());
        for (id, caps) in case.popups.as_object().unwrap() {
            world.put_popup(id, json!({"caps": caps, "placements": ["home", "cart"]}));
        }
        expect(&world, 0);
    }
    let world = open();
    expect(&world, 1);
    world.clock.set(NOON + DAY);
    expect(&world, 2);
    let counted: u64 = case.popups.as_object().unwrap().keys().map(|id| world.counts(id)[0]).sum();
    assert_eq!(counted as usize, USERS * case.shown.iter().sum::<usize>(), "{}", case.name);
}

fn anybody() -> Vec<String> {
    (0..USERS).map(|user| format!("u{user}")).collect()
}

fn cases() -> Vec<Case> {
    // Three popups that are each shown three times at most, so that shared caps count them together.
    let three = || json!({"p1": {"total": 3}, "p2": {"total": 3}, "p3": {"total": 3}});
    let one = |caps: Value| json!({"p1": caps});
    let all = |caps: Value| json!({"caps": caps});
    let home_and_cart = |caps: Value| json!({"placements": {"home": caps, "cart": caps}});
    let case = |name, popups, settings, shown| Case { name, popups, settings, shown };
    vec![
        case("total", one(json!({"total": 3})), json!({}), [3, 0, 0]),
        case("per_day", one(json!({"per_day": 2})), json!({}), [2, 0, 2]),
        case("gap_s", one(json!({"gap_s": 86_400})), json!({}), [1, 0, 1]),
        case("per_session", one(json!({"per_session": 2})), json!({}), [4, 0, 4]),
        case("two caps", one(json!({"per_session": 2, "per_day": 3, "total": 5})), json!({}), [3, 0, 2]),
        case("all total", three(), all(json!({"total": 5})), [5, 0, 0]),
        case("all per_day", three(), all(json!({"per_day": 4})), [4, 0, 4]),
        case("all gap_s", three(), all(json!({"gap_s": 7_200})), [1, 0, 1]),
        case("all per_session", three(), all(json!({"per_session": 1})), [2, 0, 2]),
        case("placement total", three(), home_and_cart(json!({"total": 2})), [4, 0, 0]),
        case("placement per_day", three(), home_and_cart(json!({"per_day": 2})), [4, 0, 4]),
        case("placement gap_s", three(), home_and_cart(json!({"gap_s": 7_200})), [2, 0, 2]),
        case("placement per_session", three(), home_and_cart(json!({"per_session": 1})), [4, 0, 4]),
        case(
            "all of them",
            three(),
            json!({"caps": {"per_day": 3}, "placements": {"home": {"total": 1}, "cart": {"total": 9}}}),
            [3, 0, 3],
        ),
    ]
}

#[test]
fn no_cap_is_exceeded_in_memory_or_after_a_stop() {
    for case in cases() {
        let store = Arc::new(MemoryStore::default());
        check(&case, &anybody(), &|| start(PopupsConfig::default(), store.clone()));
    }
}

fn embedded(folder: &Path, popups: PopupsConfig) -> World {
    start(popups, Arc::new(EmbeddedStore::open(EmbeddedOptions::new(folder)).unwrap()))
}

#[test]
fn no_cap_is_exceeded_on_disk_or_after_a_stop() {
    for case in cases() {
        let folder = tempfile::tempdir().unwrap();
        check(&case, &anybody(), &|| embedded(folder.path(), PopupsConfig::default()));
    }
}

#[test]
fn no_cap_is_exceeded_for_users_who_are_evicted_from_memory() {
    // All of these users share one stripe of the cache, which is so small that they evict each other all the time.
    let near = (0..).map(|user| format!("u{user}")).filter(|user| UserKey::of(user).0.is_multiple_of(64));
    let users: Vec<String> = near.take(USERS).collect();
    for case in cases() {
        let store = Arc::new(MemoryStore::default());
        check(&case, &users, &|| start(PopupsConfig { users_max: 1, ..PopupsConfig::default() }, store.clone()));
    }
}

#[test]
fn a_change_of_time_zone_keeps_the_count_of_the_day() {
    let world = start(PopupsConfig::default(), Arc::new(MemoryStore::default()));
    let daily = |zone: &str| json!({"caps": {"per_day": 1}, "time_zone": zone});
    world.put_popup("p", daily("UTC"));
    let is_shown_at = |at| {
        world.clock.set(at);
        world.decide("ann").is_some()
    };
    // In Tokyo it is one o'clock on the next day.
    assert!(is_shown_at(NOON + 4 * HOUR));
    world.put_popup("p", daily("Asia/Tokyo"));
    assert!(!is_shown_at(NOON + 4 * HOUR));
    assert!(!is_shown_at(NOON + 27 * HOUR - 1));
    assert!(is_shown_at(NOON + 27 * HOUR), "midnight in Tokyo");
}
