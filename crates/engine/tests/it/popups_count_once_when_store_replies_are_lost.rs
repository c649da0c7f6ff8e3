//! A store whose replies are lost: whether a write was stored, was not, or was stored later, each exposure and event is
//! counted once and every cap holds.

use crate::popup_support::*;
use crate::support::{lost_answers::WriteFate::*, *};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::json;
use std::{collections::BTreeSet, ops::Range, sync::Arc, time::Duration};
use tidings_popups::{DecisionAttempt, PopupsConfig, Precondition};
use tidings_protocol::{
    error::ErrorCode,
    http::{ExplainedOutcome, PopupEvent, PopupEventKind, PopupSettings},
};

/// Exposures are stored only by a flush.
fn start_with_lossy_store() -> (Arc<Troubled>, World) {
    let store = Arc::new(Troubled::default());
    let config = PopupsConfig { durable_within: Duration::from_secs(3_600), ..PopupsConfig::default() };
    let world = start(config, store.clone());
    world.put_popup("once", json!({"caps": {"total": 1}}));
    world.put_popup("often", json!({"placements": ["often"]}));
    (store, world)
}

fn flush_eventually(world: &World) {
    assert!((0..100).any(|_| world.engine.popups.flush().is_ok()));
}

fn users(count: usize) -> Vec<String> {
    (0..count).map(|user| format!("u{user}")).collect()
}

fn is_shown(world: &World, user: &str) -> bool {
    matches!(world.try_decide(user, json!({"placement": "often"})).unwrap(), DecisionAttempt::Show(_))
}

fn impressions(decision: &str, ids: Range<usize>) -> Vec<PopupEvent> {
    ids.map(|id| event(&format!("e{id}"), decision, PopupEventKind::Impression)).collect()
}

/// Runs with each fate of a write whose reply is lost, after some writes with a reply.
fn for_each_write_fate(run: impl Fn(&Troubled, &World, &str)) {
    for fated in [Stored, NotStored, StoredLate] {
        for before in 0..3 {
            let (store, world) = start_with_lossy_store();
            store.lost_answers.next((0..before).map(|_| None).chain([Some(fated), None, Some(fated)]));
            run(&store, &world, &format!("{before} answers, then {fated:?}"));
        }
    }
}

#[test]
fn a_popup_is_as_it_is_stored_after_a_write_with_an_unknown_outcome() {
    for fate in [Stored, NotStored, StoredLate] {
        let is_stored = fate != NotStored;
        let (store, world) = start_with_lossy_store();
        let popups = &world.engine.popups;
        let put = |id: &str, parts| popups.put(id, spec(parts).to_string().as_bytes(), None, Precondition::None);
        store.lost_answers.next([Some(fate)]);
        assert_eq!(put("often", json!({"state": "paused"})).unwrap_err().code, ErrorCode::StoreUnavailable);
        // Decisions follow without a further call.
        while is_stored && is_shown(&world, "ann") {
            std::thread::yield_now();
        }
        assert_eq!(popups.get("often").unwrap().version, 1 + u32::from(is_stored), "{fate:?}");
        assert_eq!(is_shown(&world, "ann"), !is_stored, "{fate:?}");
        store.lost_answers.next([Some(fate)]);
        popups.remove("often", Precondition::None).unwrap_err();
        let again = put("often", json!({"placements": ["often"]})).unwrap();
        let version = if is_stored { 1 } else { 2 };
        assert_eq!((again.0.version, again.1), (version, is_stored), "{fate:?}");
        store.lost_answers.next([Some(fate)]);
        popups
            .set_settings(json!({"holdout_percent": 0.0, "caps": {"per_day": 9}}).to_string().as_bytes())
            .unwrap_err();
        assert_eq!(popups.settings().unwrap() != PopupSettings::default(), is_stored, "{fate:?}");
        assert!(is_shown(&world, "ben"), "{fate:?}");
    }
}

#[test]
fn an_exposure_counts_once_when_its_write_has_an_unknown_outcome() {
    for_each_write_fate(|store, world, what| {
        // More exposures than one write takes, and some of the users again later.
        let shown = users(1_500);
        assert!(shown.iter().all(|user| is_shown(world, user)));
        flush_eventually(world);
        assert!(shown[..100].iter().all(|user| is_shown(world, user)));
        flush_eventually(world);
        assert!(shown[..100].iter().all(|user| is_shown(world, user)));
        flush_eventually(world);
        store.lost_answers.end();
        flush_eventually(world);
        assert_eq!(world.counts("often"), [1_700, 0, 0, 0], "{what}");
    });
}

#[test]
fn a_cap_holds_when_its_write_has_an_unknown_outcome() {
    for_each_write_fate(|store, world, what| {
        let shown = users(10);
        assert!(shown.iter().all(|user| world.decide(user).is_some()));
        flush_eventually(world);
        store.lost_answers.end();
        flush_eventually(world);
        assert!(shown.iter().all(|user| world.decide(user).is_none()), "{what}");
        assert_eq!(world.counts("once"), [10, 0, 0, 0], "{what}");
    });
}

#[test]
fn events_count_once_when_their_write_has_an_unknown_outcome() {
    for_each_write_fate(|store, world, what| {
        let decision = world.decide("ann").unwrap();
        let report_at_last =
            |ids: Range<usize>| (0..9).find_map(|_| world.report(impressions(&decision, ids.clone())).ok()).unwrap();
        report_at_last(0..3);
        // Other events, without a retry of the first.
        let _ = world.report(impressions(&decision, 3..5));
        report_at_last(5..9);
        report_at_last(3..5);
        store.lost_answers.end();
        flush_eventually(world);
        assert_eq!(world.counts("once"), [1, 0, 9, 0], "{what}");
    });
}

#[test]
fn a_custom_event_leaves_its_mark_once_when_its_write_has_an_unknown_outcome() {
    for (fate, before) in [Stored, NotStored, StoredLate].into_iter().flat_map(|fate| (0..3).map(move |at| (fate, at)))
    {
        let (store, world) = start_with_lossy_store();
        for times in 1..=4 {
            let audience = json!({"event": {"name": "x", "times_gte": times}});
            world.put_popup(&format!("n{times}"), json!({"placements": ["marks"], "audience": audience}));
        }
        let marks = |world: &World| {
            let popups = world.explain("ann", json!({"placement": "marks"})).popups;
            popups.iter().filter(|popup| popup.outcome != ExplainedOutcome::No).count()
        };
        store.lost_answers.next((0..before).map(|_| None).chain([Some(fate), None, Some(fate)]));
        for times in 1..=3 {
            let report = || world.report(vec![custom(&format!("e{times}"), "ann", "x")]).ok();
            (0..9).find_map(|_| report()).unwrap();
            assert_eq!(marks(&world), times, "{before} answers, then {fate:?}");
        }
        store.lost_answers.end();
        flush_eventually(&world);
        drop(world);
        assert_eq!(marks(&start(PopupsConfig::default(), store)), 3, "{before} answers, then {fate:?}");
    }
}

#[test]
fn a_random_history_with_unknown_outcomes_counts_each_exposure_and_event_once() {
    for _ in 0..8 {
        let seed: u64 = rand::random();
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let (store, world) = start_with_lossy_store();
        let (users, mut shown, mut reported) = (users(40), 0, BTreeSet::new());
        let decision = world.decide("ann").unwrap();
        store.lost_answers.begin(seed, 0.4);
        for _ in 0..60 {
            match random.random_range(0..3) {
                0 => {
                    let some = random.random_range(1..30);
                    users.iter().take(some).for_each(|user| shown += u64::from(is_shown(&world, user)));
                }
                1 => {
                    let from = random.random_range(0..100);
                    let ids = from..from + random.random_range(1..8);
                    reported.extend(ids.clone());
                    let _ = world.report(impressions(&decision, ids));
                }
                _ => drop(world.engine.popups.flush()),
            }
        }
        store.lost_answers.end();
        for id in &reported {
            world.report(impressions(&decision, *id..*id + 1)).unwrap();
        }
        flush_eventually(&world);
        assert_eq!(world.counts("often"), [shown, 0, 0, 0]);
        assert_eq!(world.counts("once"), [1, 0, reported.len() as u64, 0]);
    }
}
