//! Exposures and events are stored within the bound and at a clean stop, once, whatever the store does. Exposures and
//! events beyond the bound of a queue are refused and leave nothing behind.

use crate::popup_support::*;
use crate::support::*;
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tidings_domain::model::Actor;
use tidings_popups::{DecisionAttempt, PopupsConfig, Precondition};
use tidings_protocol::{
    error::ErrorCode,
    http::{PopupEvent, PopupEventKind, PopupEventsAccepted},
};
use tidings_testkit::MemoryStore;

fn once(world: &World) {
    world.put_popup("once", json!({"caps": {"total": 1}}));
}

fn troubled(config: PopupsConfig) -> (Arc<Troubled>, World) {
    let store = Arc::new(Troubled::default());
    let world = start(config, store.clone());
    once(&world);
    world.engine.popups.flush().unwrap();
    store.forget_rows_written();
    (store, world)
}

/// Exposures are not due for a long time, so the worker stores them at a flush, or when its timers run.
fn flush_only() -> PopupsConfig {
    PopupsConfig { durable_within: Duration::from_secs(3_600), ..PopupsConfig::default() }
}

/// Asserts that a flush fails while the store fails.
#[track_caller]
fn assert_flush_fails(world: &World) {
    let refusal = world.engine.popups.flush().unwrap_err();
    assert_eq!(refusal.code, ErrorCode::StoreUnavailable, "{refusal}");
}

fn users(count: usize) -> Vec<String> {
    (0..count).map(|user| format!("u{user}")).collect()
}

fn impressions(decision: &str, ids: std::ops::Range<usize>) -> Vec<PopupEvent> {
    ids.map(|id| event(&format!("e{id}"), decision, PopupEventKind::Impression)).collect()
}

fn accepted(accepted: usize, duplicates: usize) -> PopupEventsAccepted {
    PopupEventsAccepted { accepted, duplicates }
}

// ---- exposures

#[test]
fn an_exposure_is_stored_within_the_bound_without_a_waiting_caller() {
    let (store, world) = troubled(PopupsConfig::default());
    assert!(world.decide("ann").is_some());
    store.wait_until_rows_are_written();
    // Another engine finds the exposure while the first one still runs, as after a crash.
    let other = start(PopupsConfig::default(), store);
    assert!(other.decide("ann").is_none());
    assert!(other.decide("ben").is_some());
}

#[test]
fn a_clean_stop_stores_all_exposures() {
    let store = Arc::new(MemoryStore::default());
    let shown = users(2_500);
    {
        let world = start(flush_only(), store.clone());
        once(&world);
        assert!(shown.iter().all(|user| world.decide(user).is_some()));
    }
    let world = start(flush_only(), store);
    assert!(shown.iter().all(|user| world.decide(user).is_none()));
    assert_eq!(world.counts("once"), [2_500, 0, 0, 0]);
}

#[test]
fn a_clean_stop_retries_when_the_store_fails() {
    let store = Arc::new(Troubled::default());
    {
        let world = start(flush_only(), store.clone());
        once(&world);
        assert!(users(10).iter().all(|user| world.decide(user).is_some()));
        store.fail_rows(2);
    }
    let world = start(flush_only(), store);
    assert!(users(10).iter().all(|user| world.decide(user).is_none()));
    assert_eq!(world.counts("once"), [10, 0, 0, 0]);
}

#[test]
fn a_strict_exposure_is_answered_once_stored_and_others_at_once() {
    let (store, world) = troubled(flush_only());
    world.put_popup("strict", json!({"caps": {"total": 1}, "strict": true, "placements": ["pay"]}));
    let gate = store.close_row_gate();
    let ask = |user: &str| world.try_decide(user, json!({"placement": "pay"})).unwrap();
    let DecisionAttempt::Show(mut strict) = ask("ann") else { panic!("nothing is shown") };
    let mut durable = strict.durable.take().unwrap();
    store.wait_for_rows();
    assert!(durable.try_recv().is_err(), "it is not stored yet");
    // The strict exposure counts at once, on any device; questions for other popups are answered meanwhile.
    assert!(matches!(ask("ann"), DecisionAttempt::Nothing { .. }));
    assert!(users(20).iter().all(|user| world.decide(user).is_some()));
    drop(gate);
    durable.blocking_recv().unwrap().unwrap();
    let other = start(flush_only(), store);
    assert!(other.decide_with("ann", json!({"placement": "pay"})).unwrap().exposure.is_none());
}

#[test]
fn a_strict_exposure_that_cannot_be_stored_is_refused_and_retried() {
    let (store, world) = troubled(flush_only());
    world.put_popup("strict", json!({"caps": {"total": 1}, "strict": true, "placements": ["pay"]}));
    store.fail_rows(1);
    let pay = || world.decide_with("ann", json!({"placement": "pay"}));
    assert_eq!(pay().map(drop).unwrap_err().code, ErrorCode::StoreUnavailable);
    // The popup may have been shown, so the exposure counts.
    assert!(pay().unwrap().exposure.is_none());
    world.engine.popups.flush().unwrap();
    assert_eq!(world.counts("strict"), [1, 0, 0, 0]);
}

#[test]
fn a_failing_store_neither_loses_nor_duplicates_exposures() {
    let (store, world) = troubled(flush_only());
    // Until the store is told otherwise, for the worker retries by itself.
    store.fail_rows(usize::MAX);
    let shown = users(3_000);
    assert!(shown[..1_500].iter().all(|user| world.decide(user).is_some()));
    assert_flush_fails(&world);
    // While the store fails, decisions go on.
    assert!(shown[1_500..].iter().all(|user| world.decide(user).is_some()));
    assert_flush_fails(&world);
    store.fail_rows(0);
    world.engine.popups.flush().unwrap();
    assert_eq!(world.counts("once"), [3_000, 0, 0, 0]);
    let other = start(flush_only(), store);
    assert!(shown.iter().all(|user| other.decide(user).is_none()));
    assert_eq!(other.counts("once"), [3_000, 0, 0, 0]);
}

#[test]
fn control_group_counts_survive_a_failing_store() {
    let (store, world) = troubled(flush_only());
    world.put_popup("control", json!({"caps": {"total": 2}, "control_percent": 100.0, "placements": ["cart"]}));
    let ask = |world: &World| world.decide_with("ann", json!({"placement": "cart"})).unwrap().exposure.is_some();
    store.fail_rows(usize::MAX);
    assert!(!ask(&world) && !ask(&world) && !ask(&world));
    assert_flush_fails(&world);
    store.fail_rows(0);
    world.engine.popups.flush().unwrap();
    let other = start(flush_only(), store);
    assert!(!ask(&other));
    assert_eq!(other.counts("control"), [0, 2, 0, 0]);
}

#[test]
fn exposures_beyond_the_queue_bound_are_refused_and_not_counted() {
    let (store, world) =
        troubled(PopupsConfig { pending_exposures_max: 3, durable_within: Duration::ZERO, ..flush_only() });
    world.put_popup("never", json!({"state": "paused", "placements": ["cart"]}));
    let gate = store.close_row_gate();
    assert!(world.try_decide("u0", json!({})).is_ok());
    // An exposure that is being written takes room until it is stored.
    store.wait_for_rows();
    assert!(world.try_decide("u1", json!({})).is_ok() && world.try_decide("u2", json!({})).is_ok());
    for _ in 0..3 {
        let refusal = world.try_decide("u3", json!({})).map(drop).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::QueueFull);
        assert!(refusal.retry_after_ms.is_some());
    }
    // A question that shows nothing is not refused.
    assert!(world.decide_with("u3", json!({"placement": "cart"})).unwrap().exposure.is_none());
    assert!(world.decide("u1").is_none());
    drop(gate);
    world.engine.popups.flush().unwrap();
    assert!(world.decide("u3").is_some());
    assert_eq!(world.counts("once"), [4, 0, 0, 0]);
}

// ---- events

#[test]
fn events_are_deduplicated_by_user_and_id() {
    let store = Arc::new(MemoryStore::default());
    let decision = {
        let world = start(flush_only(), store.clone());
        world.put_popup("p", json!({}));
        let [ann, ben] = ["ann", "ben"].map(|user| world.decide(user).unwrap());
        // Duplicates within a batch, and of an earlier batch.
        let twice = impressions(&ann, 0..3).into_iter().chain(impressions(&ann, 1..5)).collect();
        assert_eq!(world.report(twice), Ok(accepted(5, 2)));
        assert_eq!(world.report(impressions(&ann, 4..7)), Ok(accepted(2, 1)));
        // Event ids are unique per user only.
        assert_eq!(world.report(impressions(&ben, 0..3)), Ok(accepted(3, 0)));
        ann
    };
    let world = start(flush_only(), store);
    assert_eq!(world.report(impressions(&decision, 5..9)), Ok(accepted(2, 2)));
    assert_eq!(world.counts("p"), [2, 0, 12, 0]);
    let exported = world.export(None, None, None);
    assert_eq!(exported.len(), 12);
    assert_eq!(exported.iter().filter(|event| event.user == "ann").count(), 9);
}

#[test]
fn an_event_batch_is_accepted_whole_or_refused_whole() {
    let (store, world) = troubled(flush_only());
    let decision = world.decide("ann").unwrap();
    let check = |wrong: PopupEvent, code: ErrorCode, detail: &str| {
        let mut batch = impressions(&decision, 0..3);
        batch.insert(1, wrong);
        let refusal = world.report(batch).unwrap_err();
        assert_eq!(refusal.code, code);
        assert!(refusal.detail.starts_with(detail), "{refusal}");
    };
    check(event("x", "garbage", PopupEventKind::Click), ErrorCode::InvalidField, "events[1].decision:");
    check(event("x", &decision[1..], PopupEventKind::Click), ErrorCode::InvalidField, "events[1].decision:");
    check(event("", &decision, PopupEventKind::Click), ErrorCode::InvalidField, "events[1].id:");
    check(event("x", &decision, PopupEventKind::Button), ErrorCode::InvalidField, "events[1].button:");
    let too_many = world.report(impressions(&decision, 0..1_001)).unwrap_err();
    assert_eq!(too_many.code, ErrorCode::LimitExceeded);
    world.users(&["ben"]);
    let ben = Actor::User(world.user("ben"));
    let report = world.engine.popups.report_events(&ben, impressions(&decision, 0..1));
    assert_eq!(world.wait(report).unwrap_err().code, ErrorCode::Forbidden);
    // A batch that the store could not write is not accepted either. The exposure is stored first, so that the write of
    // the events is the one that fails.
    world.engine.popups.flush().unwrap();
    store.fail_rows(1);
    assert_eq!(world.report(impressions(&decision, 0..1_000)).unwrap_err().code, ErrorCode::StoreUnavailable);
    assert_eq!(world.counts("once"), [1, 0, 0, 0]);
    assert_eq!(world.export(None, None, None), []);
    assert_eq!(world.report(impressions(&decision, 0..1_000)), Ok(accepted(1_000, 0)));
    assert_eq!(world.counts("once"), [1, 0, 1_000, 0]);
}

#[test]
fn a_button_that_no_version_of_the_popup_had_is_refused() {
    let (_, world) = troubled(flush_only());
    let with = |button: &str| {
        let buttons = json!([{"id": button, "label": "Go", "action": {"type": "dismiss"}}]);
        json!({"variants": [{"id": "a", "content": {"buttons": buttons}}]})
    };
    world.put_popup("once", with("old"));
    let decision = world.decide("ann").unwrap();
    world.put_popup("once", with("new"));
    let press = |id: &str, button: &str| {
        let pressed = event(id, &decision, PopupEventKind::Button);
        world.report(vec![PopupEvent { button: Some(button.into()), ..pressed }])
    };
    assert_eq!(press("1", "old"), Ok(accepted(1, 0)), "it was there when the popup was shown");
    assert_eq!(press("2", "new"), Ok(accepted(1, 0)));
    let refusal = press("3", "never").unwrap_err();
    assert_eq!(refusal.code, ErrorCode::InvalidField);
    assert!(refusal.detail.starts_with("events[0].button: popup \"once\" has no button \"never\""), "{refusal}");
    let hours = world.engine.popups.counts("once", None, None).unwrap().hours;
    assert_eq!(hours.iter().map(|hour| hour.buttons).sum::<u64>(), 2, "what was refused is not counted");
    world.engine.popups.remove("once", Precondition::None).unwrap();
    assert_eq!(press("4", "never"), Ok(accepted(1, 0)), "of a popup that is gone nothing can be said");
}

#[test]
fn events_beyond_the_queue_bound_are_refused_whole() {
    let (store, world) = troubled(PopupsConfig { pending_events_max: 3, ..flush_only() });
    let decision = world.decide("ann").unwrap();
    world.engine.popups.flush().unwrap();
    let gate = store.close_row_gate();
    let (engine, events) = (world.engine.clone(), impressions(&decision, 0..2));
    let first = world.spawn(async move { engine.popups.report_events(&Actor::App, events).await });
    store.wait_for_rows();
    let refusal = world.report(impressions(&decision, 2..4)).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::RateLimited);
    assert!(refusal.retry_after_ms.is_some());
    drop(gate);
    assert_eq!(world.wait(first).unwrap(), Ok(accepted(2, 0)));
    assert_eq!(world.report(impressions(&decision, 1..4)), Ok(accepted(2, 1)));
    assert_eq!(world.counts("once"), [1, 0, 4, 0]);
}

#[test]
fn events_of_test_users_are_accepted_and_not_counted() {
    let (_, world) = troubled(flush_only());
    world.put_popup("draft", json!({"state": "draft", "placements": ["cart"], "test_users": ["ann"]}));
    let shown = world.decide_with("ann", json!({"placement": "cart"})).unwrap().exposure.unwrap();
    assert_eq!(world.report(impressions(&shown.decision, 0..2)), Ok(accepted(2, 0)));
    assert_eq!(world.counts("draft"), [0; 4]);
    assert_eq!(world.export(None, None, None), []);
}

#[test]
fn counts_per_variant_and_hour_equal_the_events_and_exposures() {
    let (_, world) = troubled(flush_only());
    let variants = json!([{"id": "a", "content": {}}, {"id": "b", "weight": 2, "content": {}}]);
    world.put_popup("two", json!({"variants": variants, "placements": ["cart"]}));
    let mut shown = 0;
    for hour in 0..3 {
        world.clock.set(NOON + hour * HOUR);
        for user in users(60) {
            let exposure = world.decide_with(&user, json!({"placement": "cart"})).unwrap().exposure.unwrap();
            let click = event(&format!("c{hour}"), &exposure.decision, PopupEventKind::Click);
            assert_eq!(world.report(vec![click]), Ok(accepted(1, 0)));
            shown += 1;
        }
    }
    assert_eq!(world.counts("two"), [shown, 0, 0, shown]);
    let hours = world.engine.popups.counts("two", None, None).unwrap().hours;
    let keys: Vec<(u64, &str)> = hours.iter().map(|hour| (hour.hour, hour.variant.as_str())).collect();
    let expected: Vec<(u64, &str)> =
        (0..3).flat_map(|hour| ["a", "b"].map(|variant| (NOON + hour * HOUR, variant))).collect();
    assert_eq!(keys, expected);
    assert!(hours.iter().all(|hour| hour.shown == hour.clicks && hour.shown > 5), "{hours:?}");
    let exported = world.export(None, None, Some("two"));
    for hour in hours {
        let of_it = exported.iter().filter(|event| (hour.hour..hour.hour + HOUR).contains(&event.taken_at));
        assert_eq!(of_it.filter(|event| event.variant == hour.variant).count() as u64, hour.clicks);
    }
    // Counts from one hour up to another.
    let some = world.engine.popups.counts("two", Some(NOON + 1), Some(NOON + 2 * HOUR)).unwrap().hours;
    assert_eq!(some.iter().map(|hour| hour.hour).collect::<Vec<_>>(), [NOON + HOUR; 2]);
}

#[test]
fn an_export_returns_each_event_once_in_order_of_taken_at() {
    let (_, world) = troubled(flush_only());
    world.put_popup("p", json!({"placements": ["cart"]}));
    let once = world.decide("ann").unwrap();
    let other = world.decide_with("ann", json!({"placement": "cart"})).unwrap().exposure.unwrap().decision;
    // Some pages end among events of one millisecond, some between two milliseconds.
    for (at, count) in [900, 1_000, 300, 1].into_iter().enumerate() {
        world.clock.set(NOON + at as u64);
        let ids = |popup: &str| (0..count).map(move |id| format!("{popup}-{at}-{id}")).collect::<Vec<_>>();
        for (popup, decision) in [("once", &once), ("p", &other)] {
            let events = ids(popup).iter().map(|id| event(id, decision, PopupEventKind::Dismiss)).collect();
            assert_eq!(world.report(events), Ok(accepted(count, 0)));
        }
    }
    let check = |from: Option<u64>, to: Option<u64>, popup: Option<&str>, count: usize| {
        let events = world.export(from, to, popup);
        assert_eq!(events.len(), count, "{from:?} {to:?} {popup:?}");
        assert!(events.is_sorted_by_key(|event| event.taken_at));
        assert!(events.iter().all(|event| popup.is_none_or(|popup| event.popup == popup)));
        let mut ids: Vec<&str> = events.iter().map(|event| event.id.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
    };
    check(None, None, None, 4_402);
    check(None, None, Some("p"), 2_201);
    check(Some(NOON + 1), Some(NOON + 3), None, 2_600);
    check(Some(NOON + 1), Some(NOON + 2), Some("once"), 1_000);
    check(Some(NOON + 3), None, None, 2);
    check(None, Some(NOON), None, 0);
    check(None, Some(0), None, 0);
    check(Some(NOON + 4), Some(NOON + 1), None, 0);
    check(None, None, Some("unknown"), 0);
}

#[test]
fn events_their_ids_and_counts_are_removed_after_their_retention() {
    let (_, world) = troubled(flush_only());
    let decision = world.decide("ann").unwrap();
    // The first run of the worker's timers begins a sweep, and each further run removes a chunk. Each flush waits for one
    // run.
    let pass = |to: u64| {
        world.clock.set(to);
        (0..8).for_each(|_| world.engine.popups.flush().unwrap());
    };
    assert_eq!(world.report(impressions(&decision, 0..1_000)), Ok(accepted(1_000, 0)));
    pass(NOON + 10 * DAY);
    assert_eq!(world.report(impressions(&decision, 1_000..1_500)), Ok(accepted(500, 0)));
    pass(NOON + 30 * DAY);
    assert_eq!(world.export(None, None, None).len(), 1_500, "thirty days are kept");
    pass(NOON + 30 * DAY + HOUR);
    assert_eq!(world.export(None, None, None).len(), 500);
    assert_eq!(world.report(impressions(&decision, 1_000..1_001)), Ok(accepted(0, 1)));
    // An event's id is removed together with the event.
    assert_eq!(world.report(impressions(&decision, 0..1)), Ok(accepted(1, 0)));
    assert_eq!(world.counts("once"), [1, 0, 1_501, 0]);
    pass(NOON + 401 * DAY);
    assert_eq!(world.counts("once"), [0, 0, 501, 0]);
    assert_eq!(world.export(None, None, None), []);
    pass(NOON + 500 * DAY);
    assert_eq!(world.counts("once"), [0; 4]);
}
