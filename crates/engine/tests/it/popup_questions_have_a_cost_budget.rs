//! What the conditions of one question may cost is checked when a popup is saved.

use crate::popup_support::{spec, start};
use serde_json::{Value, json};
use std::sync::Arc;
use tidings_popups::{PopupsConfig, Precondition};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    limits::POPUP_QUESTION_COST_NS_MAX,
};
use tidings_testkit::MemoryStore;

use crate::support::World;

fn world() -> World {
    start(PopupsConfig::default(), Arc::new(MemoryStore::default()))
}

fn put(world: &World, id: &str, parts: Value) -> Result<(), Refusal> {
    world.engine.popups.put(id, spec(parts).to_string().as_bytes(), None, Precondition::None).map(drop)
}

/// An audience of so many tests of a list.
fn of_tests(tests: usize) -> Value {
    let test = |at| json!({"attribute": "tags", "op": "not_contains", "value": format!("t{at}")});
    json!({"all": (0..tests).map(test).collect::<Vec<_>>()})
}

/// Saves popups with this audience until one is refused; returns how many there were, and the refusal.
fn fill(world: &World, audience: impl Fn(usize) -> Value, most: usize) -> (usize, Option<Refusal>) {
    for at in 0..most {
        if let Err(refusal) = put(world, &format!("p{at:05}"), json!({"audience": audience(at)})) {
            return (at, Some(refusal));
        }
    }
    (most, None)
}

#[test]
fn a_popup_that_makes_questions_too_expensive_is_refused_and_changes_nothing() {
    let world = world();
    let (saved, refusal) = fill(&world, |_| of_tests(480), 60);
    let refusal = refusal.expect("60 popups of 480 tests of a list");
    assert_eq!(refusal.code, ErrorCode::LimitExceeded);
    assert!(refusal.detail.contains("placement \"home\""), "{}", refusal.detail);
    println!("{saved} popups of 480 tests of a list are allowed; then: {}", refusal.detail);
    assert!(saved >= 3, "{saved}");

    let refused = format!("p{saved:05}");
    let is_absent = |id: &str| world.engine.popups.get(id).is_err_and(|refusal| refusal.code == ErrorCode::NotFound);
    assert!(is_absent(&refused));
    let decide = || world.decide_with("ada", json!({"attributes": {"tags": ["t1"]}})).unwrap().exposure;
    assert!(decide().is_none());
    // The number that the refused popup would have had is free again, and so is its name in rules.
    let naming = json!({"audience": {"popup_event": {"popup": &refused, "type": "click"}}});
    assert!(put(&world, "other", naming).is_err());

    // Another placement has a budget of its own, and one that is not published costs nothing.
    put(&world, &refused, json!({"audience": of_tests(480), "placements": ["cart"]})).unwrap();
    put(&world, "draft", json!({"audience": of_tests(480), "state": "draft"})).unwrap();
    let publish =
        world.engine.popups.set_state("draft", tidings_protocol::http::PopupState::Live, None, Precondition::None);
    assert_eq!(publish.map(drop).unwrap_err().code, ErrorCode::LimitExceeded);
    assert_eq!(world.engine.popups.get("draft").unwrap().version, 1);

    // A popup that becomes cheaper is saved, and makes room.
    put(&world, "p00000", json!({"audience": of_tests(1)})).unwrap();
    put(&world, "draft", json!({"audience": of_tests(400)})).unwrap();
}

#[test]
fn popups_that_attributes_rule_out_do_not_add_up() {
    let world = world();
    let in_city =
        |at: usize| json!({"all": [{"attribute": "city", "op": "eq", "value": format!("c{at}")}, of_tests(480)]});
    assert!(fill(&world, in_city, 60).1.is_none(), "a question has one city");
}

#[test]
fn ages_of_events_count_as_often_as_they_are_looked_at() {
    let world = world();
    let aged = |_| {
        let test = |at| json!({"event": {"name": format!("e{at}"), "before_s": at + 1}});
        json!({"any": (0..480).map(test).collect::<Vec<_>>()})
    };
    let (saved, refusal) = fill(&world, aged, 60);
    println!("{saved} popups of 480 ages are allowed");
    assert_eq!(refusal.map(|refusal| refusal.code), Some(ErrorCode::LimitExceeded));
}

#[test]
fn usual_popups_are_far_from_the_budget() {
    let world = world();
    let usual = |at: usize| {
        json!({"all": [
            {"attribute": "country", "op": "in", "value": ["DE", "FR"]},
            {"attribute": "user.plan", "op": "eq", "value": format!("plan {}", at % 3)},
            {"attribute": "app_version", "op": "version_gte", "value": "2.1.0"},
            {"percent": {"salt": format!("s{at}"), "from": 0, "to": 50}},
        ]})
    };
    assert!(fill(&world, usual, 400).1.is_none(), "400 popups within {POPUP_QUESTION_COST_NS_MAX} ns");
}
