//! Lift, end to end: who is assigned, what counts for whom, and what a second account of the same experiment comes to.

use crate::journey_world::{DAY, HOUR, JourneyWorld, MINUTE, NOON, Pushes};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};
use tidings_domain::gates::OpenGates;
use tidings_popups::{Converted, Lift, Precondition, check_popups};
use tidings_protocol::{error::ErrorCode, http::*};
use tidings_testkit::MemoryStore;

fn conversion() -> Value {
    json!({"event": "purchase", "within": "7d", "value": "total",
           "where": {"attribute": "plan", "op": "eq", "value": "pro"}})
}

fn purchase(world: &JourneyWorld, id: &str, user: &str, plan: &str, total: f64) {
    world.report(json!({"id": id, "type": "custom", "user": user, "name": "purchase",
        "properties": {"plan": plan, "total": total}}));
}

fn exported(world: &JourneyWorld, popup: &str) -> Vec<ExportedAssignment> {
    let mut cursor = world.popups.assignments(popup, None, None).unwrap();
    let (page, more) = world.popups.export_assignments(&mut cursor).unwrap();
    assert!(!more);
    page
}

fn group(lift: &PopupLift, group: AssignmentGroup, variant: Option<&str>) -> LiftGroup {
    let found = lift.groups.iter().find(|one| one.group == group && one.variant.as_deref() == variant);
    found.unwrap_or_else(|| panic!("no {group:?} {variant:?} in {lift:?}")).clone()
}

/// The first user of these names who is shown the popup, and the first who is not.
fn one_of_each(world: &JourneyWorld) -> (String, String) {
    let mut all = (0..100).map(|number| format!("u{number}"));
    let shown = all.find(|user| world.decide(user, "home").is_ok()).unwrap();
    let control = all.find(|user| world.decide(user, "home").is_err()).unwrap();
    (shown, control)
}

#[test]
fn conversions_count_for_shown_and_control_users_within_their_windows() {
    let store = Arc::new(MemoryStore::default());
    let world = JourneyWorld::new(store.clone(), Arc::new(Pushes::default()), NOON);
    world.put_popup("sale", json!({"control_percent": 50, "conversion": conversion(), "caps": {"per_day": 1}}));
    purchase(&world, "early", "u0", "pro", 7.0);
    world.clock.set(NOON + MINUTE);
    let (shown, control) = one_of_each(&world);
    let assigned_at = world.now();
    // Assigned once, however often there is a turn.
    world.clock.set(NOON + DAY);
    assert!(world.decide(&shown, "home").is_ok());
    assert!(world.decide(&control, "home").is_err());
    for (number, user) in [&shown, &control].into_iter().enumerate() {
        purchase(&world, &format!("a{number}"), user, "pro", 10.0);
        purchase(&world, &format!("a{number}"), user, "pro", 10.0); // The same report again.
        purchase(&world, &format!("b{number}"), user, "free", 100.0); // Not what the popup is for.
        purchase(&world, &format!("c{number}"), user, "pro", 2.5);
    }
    purchase(&world, "never-asked", "zoe", "pro", 50.0);
    world.clock.set(assigned_at + 7 * DAY - 1);
    purchase(&world, "last", &control, "pro", 1.0);
    world.clock.set(assigned_at + 7 * DAY);
    purchase(&world, "late", &shown, "pro", 1_000.0);
    let all = exported(&world, "sale");
    let of = |user: &str| all.iter().find(|one| one.user == user).unwrap().clone();
    let (one, other) = (of(&shown), of(&control));
    assert_eq!((one.group, one.variant.as_deref()), (AssignmentGroup::Shown, Some("a")));
    assert_eq!(
        (one.assigned_at, one.converted_at, one.conversions, one.value),
        (assigned_at, Some(NOON + DAY), 2, 12.5)
    );
    assert_eq!((other.group, other.variant), (AssignmentGroup::Control, None));
    assert_eq!((other.assigned_at, other.conversions, other.value), (assigned_at, 3, 13.5));
    let lift = world.popups.lift("sale", None, None).unwrap();
    let counted = group(&lift, AssignmentGroup::Shown, Some("a"));
    assert_eq!((counted.converted, counted.conversions, counted.value, counted.open), (1, 2, 12.5, 0));
    assert_eq!(counted.people as usize, all.iter().filter(|one| one.group == AssignmentGroup::Shown).count());
    let later = world.popups.lift("sale", Some(assigned_at + 1), None).unwrap();
    assert_eq!(group(&later, AssignmentGroup::Control, None).people, 0, "by the time of the assignment");
    world.popups.stop();
    let mut faults = Vec::new();
    check_popups(&*store, &mut |fault| faults.push(fault)).unwrap();
    assert_eq!(faults, Vec::<String>::new());
}

#[test]
fn the_holdout_is_assigned_where_it_would_have_been_shown() {
    let world = JourneyWorld::start();
    world.popups.set_settings(json!({"holdout_percent": 100.0}).to_string().as_bytes()).unwrap();
    world.put_popup("other", json!({"priority": 1, "caps": {"total": 1}}));
    world.put_popup("sale", json!({"conversion": conversion(), "caps": {"per_day": 1}}));
    assert_eq!(world.decide("ada", "home"), Err(None));
    assert_eq!(exported(&world, "sale"), [], "the other popup came first");
    assert_eq!(world.decide("ada", "home"), Err(None));
    assert_eq!(world.decide("ada", "home"), Err(Some(12 * HOUR)), "its next turn");
    purchase(&world, "1", "ada", "pro", 5.0);
    let assigned = exported(&world, "sale").remove(0);
    assert_eq!((assigned.user.as_str(), assigned.group, assigned.conversions), ("ada", AssignmentGroup::Holdout, 1));
    let counts = world.popups.counts("sale", None, None).unwrap();
    assert_eq!(counts.hours, [], "it is neither shown nor in the control group");
}

#[test]
fn another_declaration_is_another_measurement_and_the_same_again_the_first() {
    let world = JourneyWorld::start();
    let declare = |event: &str| world.put_popup("sale", json!({"conversion": {"event": event, "within": "7d"}}));
    declare("purchase");
    world.decide("ada", "home").unwrap();
    declare("visit");
    assert_eq!(exported(&world, "sale"), []);
    world.decide("ada", "home").unwrap();
    world.custom("1", "ada", "visit");
    assert_eq!(exported(&world, "sale").iter().map(|one| one.conversions).collect::<Vec<_>>(), [1]);
    declare("purchase");
    world.decide("ada", "home").unwrap();
    world.custom("2", "ada", "purchase");
    assert_eq!(exported(&world, "sale").iter().map(|one| one.conversions).collect::<Vec<_>>(), [1], "assigned once");
    world.put_popup("sale", json!({}));
    assert_eq!(world.popups.lift("sale", None, None).unwrap_err().code, ErrorCode::Conflict);
    let refused = |conversion: Value| {
        let spec = json!({"placements": ["home"], "variants": [{"id": "a", "content": {}}], "conversion": conversion});
        let put = world.popups.put("x", spec.to_string().as_bytes(), None, Precondition::None);
        put.unwrap_err().detail
    };
    assert!(refused(json!({"event": "x", "within": "91d"})).starts_with("conversion.within: "));
    assert!(refused(json!({"event": "", "within": "1d"})).starts_with("conversion.event: "));
    assert!(refused(json!({"event": "x", "within": "1d", "where": {"segment": 1}})).starts_with("conversion.where"));
}

#[test]
fn a_conversion_is_declared_once_all_nodes_know_of_it() {
    let store = Arc::new(MemoryStore::default());
    let world = JourneyWorld::with_gates(store, Arc::default(), NOON, OpenGates::default());
    let put = |spec: Value| world.popups.put("sale", spec.to_string().as_bytes(), None, Precondition::None);
    let spec = json!({"placements": ["home"], "variants": [{"id": "a", "content": {}}], "conversion": conversion()});
    assert_eq!(put(spec.clone()).unwrap_err().code, ErrorCode::NotYetEnabled);
    let without = json!({"placements": ["home"], "variants": [{"id": "a", "content": {}}]});
    assert!(put(without).is_ok());
}

#[test]
fn an_assignment_is_forgotten_after_400_days() {
    let world = JourneyWorld::start();
    world.put_popup("sale", json!({"conversion": conversion()}));
    world.decide("ada", "home").unwrap();
    assert_eq!(exported(&world, "sale").len(), 1);
    world.clock.set(NOON + 401 * DAY);
    world.wait_until("the removal", || exported(&world, "sale").is_empty());
    world.decide("ada", "home").unwrap();
    let assigned: Vec<u64> = exported(&world, "sale").iter().map(|one| one.assigned_at).collect();
    assert_eq!(assigned, [world.now()], "assigned anew");
}

#[test]
fn an_event_may_come_before_the_exposure_is_stored() {
    let store = Arc::new(MemoryStore::default());
    let world = JourneyWorld::new(store, Arc::new(Pushes::default()), NOON);
    world.put_popup("sale", json!({"conversion": conversion()}));
    // Events are stored before exposures: the assignment's row comes with the event.
    for user in ["ada", "ben", "cem"] {
        world.decide(user, "home").unwrap();
        purchase(&world, "1", user, "pro", 4.0);
        world.decide(user, "home").unwrap();
        purchase(&world, "2", user, "pro", 4.0);
    }
    let all = exported(&world, "sale");
    assert_eq!(all.iter().map(|one| (one.conversions, one.value)).collect::<Vec<_>>(), [(2, 8.0); 3]);
}

/// What a second account of an experiment has of a person.
#[derive(Default)]
struct Person {
    assigned: Option<(u64, AssignmentGroup, Option<String>)>,
    converted: bool,
    value: f64,
}

const PEOPLE: usize = 600;

/// Runs one experiment through questions and events, and returns the API's figures and those of the second account.
fn experiment(
    world: &JourneyWorld,
    number: usize,
    lift: f64,
    random: &mut StdRng,
) -> (PopupLift, BTreeMap<String, Person>) {
    let (popup, place, event) = (format!("p{number}"), format!("place{number}"), format!("bought{number}"));
    world.put_popup(
        &popup,
        json!({"placements": [place], "control_percent": 40,
        "caps": {"total": 2}, "variants": [{"id": "a", "content": {}}, {"id": "b", "weight": 2, "content": {}}],
        "conversion": {"event": event, "within": "2h", "value": "total"}}),
    );
    let start = world.now();
    let mut people = BTreeMap::<String, Person>::new();
    let mut reports = Vec::new();
    for one in 0..PEOPLE {
        let user = format!("e{number}-{one}");
        world.clock.set(start + one as u64 * 100);
        let decided = world.decide(&user, &place);
        let person = people.entry(user.clone()).or_default();
        let variant = decided.as_ref().ok().map(|(_, decision)| decision.clone());
        let shown = variant.is_some();
        let group = if shown { AssignmentGroup::Shown } else { AssignmentGroup::Control };
        person.assigned = Some((world.now(), group, variant));
        let rate = 0.10 * if shown { 1.0 + lift } else { 1.0 };
        let (is_converted, total) = (random.random_bool(rate), f64::from(random.random_range(1..100_u32)));
        // Some buy too late, some twice.
        let late = random.random_bool(0.05);
        for turn in 0..=u32::from(random.random_bool(0.3)) {
            if is_converted || late {
                let at = world.now() + if is_converted { HOUR } else { 2 * HOUR };
                reports.push((at, format!("r{number}-{one}-{turn}"), user.clone(), total));
            }
            if is_converted {
                (person.converted, person.value) = (true, person.value + total);
            }
        }
    }
    reports.sort_by_key(|(at, ..)| *at);
    for (at, id, user, total) in reports {
        world.clock.set(at);
        world.report(json!({"id": id, "type": "custom", "user": user, "name": event, "properties": {"total": total}}));
    }
    (world.popups.lift(&popup, None, None).unwrap(), people)
}

#[test]
fn figures_of_experiments_are_those_of_a_second_account() {
    let world = JourneyWorld::start();
    let mut random = StdRng::seed_from_u64(31);
    for (lift, experiments) in [(0.0, 12), (0.05, 12), (0.20, 12)] {
        let mut covered = 0;
        for number in 0..experiments {
            let number = (lift * 100.0) as usize * 1_000 + number;
            let (measured, people) = experiment(&world, number, lift, &mut random);
            let counted = |wanted: AssignmentGroup| {
                let all = people.values().filter(|one| one.assigned.as_ref().is_some_and(|one| one.1 == wanted));
                all.fold((0, 0, 0.0), |(people, converted, value), one| {
                    (people + 1, converted + u64::from(one.converted), value + one.value)
                })
            };
            let (shown, control) = (counted(AssignmentGroup::Shown), counted(AssignmentGroup::Control));
            let all = group(&measured, AssignmentGroup::Shown, None);
            assert_eq!((all.people, all.converted, all.value), shown, "experiment {number}");
            let others = group(&measured, AssignmentGroup::Control, None);
            assert_eq!((others.people, others.converted, others.value), control, "experiment {number}");
            let parts: u64 =
                ["a", "b"].map(|id| group(&measured, AssignmentGroup::Shown, Some(id)).people).iter().sum();
            assert_eq!(parts, shown.0);
            let against = |one: &&PopupLiftComparison| one.variant.is_none() && one.against == AssignmentGroup::Control;
            let compared = measured.lifts.iter().find(against).unwrap();
            let of = |(people, converted, _)| Converted { people, converted };
            let expected = Lift::of(of(shown), of(control)).unwrap();
            assert_eq!(
                (compared.lift, compared.low, compared.high),
                (expected.lift, Some(expected.low), expected.high)
            );
            covered += u32::from(expected.low <= lift && expected.high.is_none_or(|high| lift <= high));
        }
        assert!(covered + 3 >= experiments as u32, "lift {lift}: covered in {covered} of {experiments}");
    }
}
