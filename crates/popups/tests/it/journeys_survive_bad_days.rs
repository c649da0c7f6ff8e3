//! Journeys on bad days: a popup seen by nobody, a push that is refused or whose answer is lost, a crash between a push and
//! its record, edits while users stand in a journey, removal; and what is refused.

use crate::journey_world::{DAY, HOUR, JourneyWorld, NOON, Pushes, SECOND};
use serde_json::{Value, json};
use std::sync::Arc;
use tidings_popups::{Precondition, check_popups};
use tidings_protocol::error::ErrorCode;
use tidings_testkit::MemoryStore;

/// A, then after a day without a click B, then a push.
fn story() -> Value {
    json!({"state": "live", "entry": {"event": "signed_up"}, "steps": [
        {"id": "a", "type": "popup", "popup": "a"},
        {"id": "clicked", "type": "branch", "on": [{"popup_event": {"popup": "a", "type": "click"}, "to": "end"}],
         "within": "1d", "else": "b"},
        {"id": "b", "type": "popup", "popup": "b", "placement": "home", "within": "7d"},
        {"id": "told", "type": "push", "push": {"type": "offer", "body": {"text": "half price"}}}]})
}

fn world_on(store: Arc<MemoryStore>, pushes: Arc<Pushes>, now_ms: u64) -> JourneyWorld {
    JourneyWorld::new(store, pushes, now_ms)
}

fn prepare(world: &JourneyWorld) {
    world.put_popup("a", json!({"journey": "start"}));
    world.put_popup("b", json!({"journey": "start"}));
    world.put_journey("start", &story()).unwrap();
}

fn step(world: &JourneyWorld, user: &str) -> String {
    world.standing(user, "start").map_or("none".into(), |(_, step, _)| step)
}

#[test]
fn a_then_after_a_day_without_a_click_b_then_a_push() {
    let world = JourneyWorld::start();
    prepare(&world);
    assert_eq!(world.decide("ada", "home"), Err(None), "nobody has entered");
    let why = world.explain("ada").popups.remove(0);
    assert_eq!((why.field.as_deref(), why.not_before), (Some("journey"), None));
    for user in ["ada", "ben"] {
        world.custom(&format!("entry-of-{user}"), user, "signed_up");
    }
    let (shown, _) = world.decide("ada", "home").unwrap();
    assert_eq!(shown, "a");
    assert_eq!(world.decide("ada", "home"), Err(Some(DAY)), "B in a day");
    let explained = world.explain("ada");
    assert_eq!(explained.journeys[0].step, "clicked");
    assert_eq!(explained.journeys[0].until, Some(world.now() + DAY));
    let why = explained.popups.iter().find(|one| one.popup == "b").unwrap();
    let detail = why.detail.clone().unwrap();
    assert!(detail.contains("\"clicked\" of the journey \"start\", version 1"), "{detail}");
    // Ben clicks, and is done.
    let (_, decision) = world.decide("ben", "home").unwrap();
    world.clock.set(NOON + 23 * HOUR);
    world.report(json!({"id": "c", "type": "click", "decision": decision}));
    assert_eq!(step(&world, "ben"), "end");
    world.clock.set(NOON + DAY);
    assert_eq!(world.decide("ben", "home"), Err(None));
    assert_eq!(world.decide("ada", "home").unwrap().0, "b");
    world.wait_until("the push", || step(&world, "ada") == "end");
    let taken: Vec<_> = world.pushes.taken.lock().values().cloned().collect();
    assert_eq!(taken, [("ada".to_owned(), r#"{"text":"half price"}"#.to_owned())]);
    // Whoever has been through it does not enter again.
    world.custom("again", "ada", "signed_up");
    assert_eq!(step(&world, "ada"), "end");
    let counts = world.popups.journey_counts("start", None, None).unwrap().steps;
    let counts: Vec<_> = counts.iter().map(|one| (one.step.as_str(), one.reached, one.left)).collect();
    assert_eq!(counts, [("a", 2, 2), ("b", 1, 1), ("clicked", 2, 2), ("end", 2, 0), ("told", 1, 1)]);
}

#[test]
fn the_servers_timers_move_users_who_never_come_back() {
    let world = JourneyWorld::start();
    prepare(&world);
    world.custom("1", "ada", "signed_up");
    assert!(world.decide("ada", "home").is_ok());
    world.clock.set(NOON + 8 * DAY - 1);
    world.popups.flush().unwrap();
    assert_eq!(step(&world, "ada"), "b", "seen by nobody for a week");
    world.clock.set(NOON + 8 * DAY);
    world.wait_until("the push", || !world.pushes.taken.lock().is_empty());
    world.wait_until("the end", || step(&world, "ada") == "end");
}

#[test]
fn a_refused_push_is_tried_again_under_the_same_name() {
    let world = JourneyWorld::start();
    world.put_popup("a", json!({"journey": "start"}));
    let spec = json!({"state": "live", "entry": {"event": "x"},
        "steps": [{"id": "told", "type": "push", "push": {"body": 1}}]});
    world.put_journey("start", &spec).unwrap();
    *world.pushes.refuse.lock() = 2;
    world.custom("1", "ada", "x");
    world.wait_until("the third try", || {
        world.clock.set(world.now() + SECOND);
        !world.pushes.taken.lock().is_empty()
    });
    world.wait_until("the end", || step(&world, "ada") == "end");
    assert_eq!(world.pushes.tries.lock().values().copied().collect::<Vec<_>>(), [3], "one name for all tries");
    assert_eq!(world.pushes.taken.lock().len(), 1);
}

#[test]
fn a_crash_between_a_push_and_its_record_doubles_no_push() {
    let (store, pushes) = (Arc::new(MemoryStore::default()), Arc::new(Pushes::default()));
    let world = world_on(store.clone(), pushes.clone(), NOON);
    world.put_popup("a", json!({"journey": "start"}));
    let spec = json!({"state": "live", "entry": {"event": "x", "again": true}, "steps": [
        {"id": "wait", "type": "wait", "for": "1h"}, {"id": "told", "type": "push", "push": {"body": 1}}]});
    world.put_journey("start", &spec).unwrap();
    world.custom("1", "ada", "x");
    world.popups.flush().unwrap();
    // Two servers that know nothing of each other start from the same rows, as before and after a crash: both push, and the
    // push service recognizes the second.
    let second = world_on(store, pushes.clone(), NOON);
    for world in [&world, &second] {
        world.clock.set(NOON + HOUR);
        world.wait_until("the end", || step(world, "ada") == "end");
    }
    assert_eq!(pushes.taken.lock().len(), 1);
    // A second turn through the journey is another push.
    second.custom("2", "ada", "x");
    second.clock.set(NOON + 2 * HOUR);
    second.wait_until("the second push", || pushes.taken.lock().len() == 2);
}

#[test]
fn users_go_through_the_version_that_they_entered_while_it_is_kept() {
    let world = JourneyWorld::start();
    prepare(&world);
    world.custom("1", "ada", "signed_up");
    let mut other = story();
    other["steps"] = json!([{"id": "other", "type": "wait", "for": "1h"}]);
    assert_eq!(world.put_journey("start", &other).unwrap().version, 2);
    world.custom("2", "ben", "signed_up");
    assert_eq!(world.standing("ada", "start"), Some((1, "a".into(), NOON)));
    assert_eq!(world.standing("ben", "start"), Some((2, "other".into(), NOON)));
    assert_eq!(world.decide("ada", "home").unwrap().0, "a");
    for version in 3..=20 {
        assert_eq!(world.put_journey("start", &other).unwrap().version, version);
    }
    assert_eq!(world.standing("ada", "start").unwrap().0, 1);
    let newest = world.put_journey("start", &other).unwrap();
    assert_eq!((newest.version, newest.oldest), (21, 2));
    world.clock.set(NOON + DAY);
    assert_eq!(world.decide("ada", "home"), Err(None), "the version is gone, and the user has left");
    assert_eq!(step(&world, "ben"), "end");
    let mut faults = Vec::new();
    world.popups.flush().unwrap();
    world.popups.remove_journey("start", Precondition::None).unwrap();
    assert_eq!(world.standing("ben", "start"), None);
    assert_eq!(world.decide("ben", "home"), Err(None), "a popup of a journey that is gone is shown to nobody");
    let store = Arc::new(MemoryStore::default());
    let fresh = world_on(store.clone(), Arc::default(), NOON);
    prepare(&fresh);
    fresh.custom("1", "ada", "signed_up");
    assert!(fresh.decide("ada", "home").is_ok());
    fresh.popups.flush().unwrap();
    check_popups(&*store, &mut |fault| faults.push(fault)).unwrap();
    assert_eq!(faults, Vec::<String>::new());
}

#[test]
fn a_position_survives_evictions_and_restarts() {
    let (store, pushes) = (Arc::new(MemoryStore::default()), Arc::new(Pushes::default()));
    let world = world_on(store.clone(), pushes.clone(), NOON);
    prepare(&world);
    world.custom("1", "ada", "signed_up");
    assert!(world.decide("ada", "home").is_ok());
    drop(world);
    let world = world_on(store, pushes, NOON + DAY);
    assert_eq!(step(&world, "ada"), "b");
    for n in 0..5_000 {
        let _ = world.decide(&format!("u{n}"), "home");
    }
    assert_eq!(world.decide("ada", "home").unwrap().0, "b");
    world.wait_until("the push", || world.pushes.taken.lock().len() == 1);
}

#[test]
fn wrong_journeys_are_refused_by_field() {
    let world = JourneyWorld::start();
    prepare(&world);
    world.put_popup("free", json!({}));
    let wrong = |change: &dyn Fn(&mut Value), detail: &str| {
        let mut spec = story();
        change(&mut spec);
        let refusal = world.put_journey("start", &spec).unwrap_err();
        assert!(refusal.detail.starts_with(detail), "{detail}: {}", refusal.detail);
    };
    wrong(&|spec| spec["entry"] = json!({}), "entry.event: give either event or popup_event");
    wrong(
        &|spec| spec["entry"] = json!({"event": "x", "popup_event": {"popup": "a", "type": "click"}}),
        "entry.popup_event: cannot be combined",
    );
    wrong(
        &|spec| spec["entry"]["where"] = json!({"event": {"name": "x"}}),
        "entry.where.event: a condition on an event",
    );
    wrong(&|spec| spec["entry"]["where"] = json!({"segment": "gone"}), "entry.where: unknown segment");
    wrong(&|spec| spec["steps"] = json!([]), "steps: there must be");
    wrong(&|spec| spec["steps"][0]["id"] = json!("b"), "steps[2].id: \"b\" appears twice");
    wrong(&|spec| spec["steps"][0]["id"] = json!("end"), "steps[0].id: ");
    wrong(&|spec| spec["steps"][0]["for"] = json!("1d"), "steps[0].for: is not allowed");
    wrong(&|spec| spec["steps"][0]["else"] = json!("b"), "steps[0].else: requires within");
    wrong(&|spec| spec["steps"][0]["popup"] = json!("gone"), "steps[0].popup: unknown popup");
    wrong(&|spec| spec["steps"][0]["popup"] = json!("free"), "steps[0].popup: the popup \"free\" is not one of");
    wrong(&|spec| spec["steps"][2]["placement"] = json!("cart"), "steps[2].placement: the popup");
    wrong(&|spec| spec["steps"][2]["next"] = json!("a"), "steps[2].next: \"a\" is not a later step");
    wrong(&|spec| spec["steps"][2]["next"] = json!("nowhere"), "steps[2].next: unknown step");
    wrong(&|spec| spec["steps"][1]["on"][0]["to"] = json!("clicked"), "steps[1].on[0].to: ");
    wrong(
        &|spec| spec["steps"][1]["on"][0]["popup_event"]["type"] = json!("press"),
        "steps[1].on[0].popup_event.type: ",
    );
    wrong(&|spec| spec["steps"][1]["on"] = json!([]), "steps[1].on: is missing");
    wrong(&|spec| spec["steps"][1]["within"] = json!("1w"), "steps[1].within: must be a duration");
    wrong(&|spec| spec["steps"][3]["push"] = Value::Null, "steps[3].push: is missing");
    wrong(&|spec| spec["steps"][3]["push"]["ttl_s"] = json!(0), "steps[3].push.ttl_s: must be");
    wrong(&|spec| spec["steps"][3]["push"]["body"] = json!("x".repeat(5_000)), "steps[3].push.body (bytes)");
    wrong(
        &|spec| {
            spec["steps"][3]["push"]["fallback"] = json!({"after_s": 86_400, "template": {"title": "T", "body": "B"}});
        },
        "steps[3].push.fallback.after_s: must be below the push's ttl_s, 86400",
    );
    wrong(
        &|spec| spec["steps"] = (0..51).map(|n| json!({"id": n.to_string(), "type": "wait", "for": "1d"})).collect(),
        "steps is limited to",
    );
    let in_use = world.popups.remove("a", Precondition::None).unwrap_err();
    assert_eq!(in_use.code, ErrorCode::Conflict);
    let spec = json!({"state": "live", "placements": ["home"], "variants": [{"id": "a", "content": {}}]}).to_string();
    let taken = world.popups.put("a", spec.as_bytes(), None, Precondition::None).unwrap_err();
    assert!(taken.detail.starts_with("journey: must be \"start\""), "{}", taken.detail);
    let old =
        world.popups.put_journey("start", story().to_string().as_bytes(), None, Precondition::Version(7)).unwrap_err();
    assert_eq!(old.code, ErrorCode::Conflict);
    for n in 1..100 {
        world
            .put_journey(
                &format!("j{n}"),
                &json!({"entry": {"event": "x"}, "steps": [{"id": "w", "type": "wait", "for": "1d"}]}),
            )
            .unwrap();
    }
    let spec = json!({"entry": {"event": "x"}, "steps": [{"id": "w", "type": "wait", "for": "1d"}]});
    assert_eq!(world.put_journey("more", &spec).unwrap_err().code, ErrorCode::LimitExceeded);
}
