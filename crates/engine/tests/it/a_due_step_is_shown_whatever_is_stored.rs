//! A journey's step that is due is seen by the first question, also while the user's own rows are being written: by a timer
//! that moves the user on, or by an event.

use crate::popup_support::{HOUR, custom, start};
use crate::support::*;
use serde_json::json;
use std::{
    collections::BTreeMap,
    sync::{Arc, mpsc},
};
use tidings_domain::{clock::Clock, model::Actor};
use tidings_popups::{PopupsConfig, Precondition};

const USERS: usize = 200;

fn user(number: usize) -> String {
    format!("u{number}")
}

/// Users who enter a journey that shows the popup `due` after an hour.
fn users_in_a_journey() -> (Arc<Troubled>, World) {
    let store = Arc::new(Troubled::default());
    let world = start(PopupsConfig::default(), store.clone());
    world.put_popup("due", json!({"journey": "start"}));
    let spec = json!({"state": "live", "entry": {"event": "came"}, "steps": [
        {"id": "later", "type": "wait", "for": "1h"},
        {"id": "shown", "type": "popup", "popup": "due", "within": "7d"}]});
    let put = world.engine.popups.put_journey("start", spec.to_string().as_bytes(), None, Precondition::None);
    put.unwrap();
    let events = (0..USERS).map(|number| custom("came", &user(number), "came"));
    world.report(events.collect()).unwrap();
    world.engine.popups.flush().unwrap();
    (store, world)
}

/// How many users came to each step of the journey and went on.
fn reached_and_left(world: &World) -> BTreeMap<String, (u64, u64)> {
    let mut sums = BTreeMap::<String, (u64, u64)>::new();
    for step in world.engine.popups.journey_counts("start", None, None).unwrap().steps {
        let sum = sums.entry(step.step).or_default();
        *sum = (sum.0 + step.reached, sum.1 + step.left);
    }
    sums
}

fn assert_all_are_shown_once(world: &World, when: &str) {
    let explained = world.explain(&user(0), json!({})).chosen;
    assert_eq!(explained.as_deref(), Some("due"), "{when}");
    let unseen: Vec<String> = (0..USERS).map(user).filter(|user| world.decide(user).is_none()).collect();
    assert!(unseen.is_empty(), "{when}: {} of {USERS} were not shown the step that is due", unseen.len());
    let again = (0..USERS).filter(|number| world.decide(&user(*number)).is_some()).count();
    assert_eq!(again, 0, "{when}: shown twice");
}

fn assert_all_went_through(world: &World, when: &str) {
    world.engine.popups.flush().unwrap();
    let all = USERS as u64;
    let expected = [("end", (all, 0)), ("later", (all, all)), ("shown", (all, all))];
    let expected: BTreeMap<String, (u64, u64)> =
        expected.into_iter().map(|(step, counts)| (step.to_owned(), counts)).collect();
    assert_eq!(reached_and_left(world), expected, "{when}");
    let stands = world.explain(&user(7), json!({})).journeys;
    assert_eq!(stands[0].step, "end", "{when}");
}

#[test]
fn a_question_sees_the_step_while_a_timer_moves_the_user() {
    let (store, world) = users_in_a_journey();
    let gate = store.close_row_gate();
    world.clock.set(world.clock.now_ms() + HOUR);
    store.wait_for_rows();
    assert_all_are_shown_once(&world, "while the timer's write is under way");
    drop(gate);
    assert_all_went_through(&world, "after the timer's write");
}

#[test]
fn a_question_sees_the_step_while_an_event_of_the_user_is_stored() {
    let (store, world) = users_in_a_journey();
    let gate = store.close_row_gate();
    world.clock.set(world.clock.now_ms() + HOUR);
    // Whichever write is first, that of the timer or that of the events: the users' rows are in it.
    let (engine, (done, stored)) = (world.engine.clone(), mpsc::sync_channel(1));
    let events = (0..USERS).map(|number| custom("other", &user(number), "something_else")).collect();
    let report = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        done.send(runtime.block_on(engine.popups.report_events(&Actor::App, events))).unwrap();
    });
    store.wait_for_rows();
    assert_all_are_shown_once(&world, "while the events' write is under way");
    drop(gate);
    stored.recv().unwrap().unwrap();
    report.join().unwrap();
    assert_all_went_through(&world, "after the events' write");
}

#[test]
fn a_timer_whose_write_fails_moves_its_users_with_the_next() {
    let (store, world) = users_in_a_journey();
    let gate = store.close_row_gate();
    store.fail_rows(1);
    world.clock.set(world.clock.now_ms() + HOUR);
    store.wait_for_rows();
    drop(gate);
    while reached_and_left(&world).get("shown").is_none_or(|counts| counts.0 < USERS as u64) {
        std::thread::yield_now();
    }
    assert_all_are_shown_once(&world, "after a write that failed");
    assert_all_went_through(&world, "after a write that failed");
}
