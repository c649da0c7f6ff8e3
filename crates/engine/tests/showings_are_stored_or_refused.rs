//! While a showing is neither stored nor noted for longer than it may, nothing further is shown: what a crash forgets has a
//! bound whatever the store does, and a clean stop forgets nothing.
#![allow(clippy::unwrap_used)]

mod popup_support;
mod support;

use popup_support::*;
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use support::*;
use tidings_engine::{
    memory::MemoryStore,
    popups::{Decided, PopupsConfig, Precondition},
};
use tidings_protocol::error::ErrorCode;

/// A thread may be kept from running for as long without that being taken for a store that stalls.
fn brisk() -> PopupsConfig {
    let durable_within = Duration::from_millis(40);
    PopupsConfig { durable_within, at_risk_max: durable_within, ..PopupsConfig::default() }
}

fn world(store: &Arc<Troubled>) -> World {
    let world = start(brisk(), store.clone());
    world.put_popup("once", json!({"caps": {"total": 1}}));
    world
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a user is shown it, who was not before.
fn is_shown(world: &World, user: &str) -> bool {
    match world.decide_at_once(user, json!({})) {
        Ok(Decided::Shown(_)) => true,
        Err(refusal) => {
            assert_eq!(refusal.code, ErrorCode::StoreUnavailable, "{refusal}");
            assert!(refusal.retry_after_ms.is_some());
            false
        }
        Ok(other) => panic!("{other:?}"),
    }
}

/// Shows it to new users until one is refused; answers to how many.
fn show_until_refused(world: &World, name: &str) -> usize {
    let mut shown = 0;
    until("it is refused", || {
        let is_shown = is_shown(world, &format!("{name}{shown}"));
        shown += usize::from(is_shown);
        !is_shown
    });
    shown
}

#[test]
fn nothing_is_shown_while_the_store_takes_nothing() {
    let store = Arc::new(Troubled::default());
    let world = world(&store);
    store.fail_rows(usize::MAX);
    let shown = show_until_refused(&world, "u");
    for other in 0..100 {
        assert!(!is_shown(&world, &format!("other{other}")), "nothing has been stored meanwhile");
    }
    // Where nothing is shown nothing is refused.
    for user in 0..shown {
        assert!(world.decide(&format!("u{user}")).is_none());
    }
    store.fail_rows(0);
    until("it is shown again", || is_shown(&world, "late"));
    world.engine.popups.settle().unwrap();
    // Who was refused was shown nothing, and nothing was counted.
    assert_eq!(world.counts("once"), [shown as u64 + 1, 0, 0, 0]);
    until("it is shown", || is_shown(&world, "other0"));
}

#[test]
fn what_is_noted_is_safe_and_what_could_not_be_noted_is_noted_later() {
    let store = Arc::new(Troubled::default());
    store.notes.bring();
    let world = world(&store);
    store.fail_rows(usize::MAX);
    // Notes are enough to go on.
    let began = Instant::now();
    let mut shown = 0;
    while began.elapsed() < brisk().at_risk_max * 4 {
        shown += usize::from(is_shown(&world, &format!("noted{shown}")));
        std::thread::sleep(Duration::from_millis(1));
    }
    store.notes.fill(true);
    let unnoted = show_until_refused(&world, "unnoted");
    store.notes.fill(false);
    until("it is shown again", || is_shown(&world, "late"));
    // As after a crash: another finds what was stored and what was noted.
    let noted = store.notes.all();
    store.fail_rows(0);
    let after = Arc::new(Troubled::default());
    after.notes.bring();
    after.notes.note(&noted).unwrap();
    let users: Vec<String> =
        (0..shown).map(|n| format!("noted{n}")).chain((0..unnoted).map(|n| format!("unnoted{n}"))).collect();
    // Marks are by popups' numbers: its first is the same.
    let other = start(PopupsConfig::default(), after);
    other.put_popup("once", json!({"caps": {"total": 1}}));
    assert!(users.iter().all(|user| other.decide(user).is_none()));
    assert!(other.decide("somebody").is_some());
}

#[test]
fn a_clean_stop_loses_nothing_that_was_answered_until_then() {
    let store = Arc::new(MemoryStore::default());
    let shown = AtomicUsize::new(0);
    let all: Vec<String> = {
        let mut world = start(PopupsConfig::default(), store.clone());
        world.put_popup("once", json!({"caps": {"total": 1}}));
        let engine = world.engine.clone();
        world.receivers.clear();
        let (ask, shown) = (&world, &shown);
        std::thread::scope(|scope| {
            let asking: Vec<_> = (0..4)
                .map(|thread| {
                    scope.spawn(move || {
                        let mut users = Vec::new();
                        loop {
                            let user = format!("{thread}-{}", users.len());
                            match ask.decide_at_once(&user, json!({})) {
                                Ok(decided) => assert!(matches!(decided, Decided::Shown(_)), "{decided:?}"),
                                Err(refusal) => {
                                    assert_eq!(refusal.code, ErrorCode::Draining, "{refusal}");
                                    return users;
                                }
                            }
                            users.push(user);
                            shown.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            until("some are shown", || shown.load(Ordering::Relaxed) > 500);
            engine.stop();
            asking.into_iter().flat_map(|asking| asking.join().unwrap()).collect()
        })
    };
    let world = start(PopupsConfig::default(), store);
    let forgotten = all.iter().filter(|user| world.decide(user).is_some()).count();
    assert_eq!(forgotten, 0, "of {}", all.len());
    assert_eq!(world.counts("once")[0], all.len() as u64);
}

#[test]
fn events_that_wait_keep_no_showing_from_being_stored() {
    let store = Arc::new(Troubled::default());
    let world = start(PopupsConfig::default(), store.clone());
    world.put_popup("p", json!({}));
    let decision = world.decide("ann").unwrap();
    world.engine.popups.settle().unwrap();
    let gate = store.close_row_gate();
    let report = |ids: std::ops::Range<usize>| {
        let events = ids.map(|id| event(&format!("e{id}"), &decision, tidings_protocol::http::PopupEventKind::Click));
        let (engine, events) = (world.engine.clone(), events.collect());
        world.spawn(async move { engine.report_popup_events(&tidings_engine::engine::Actor::App, events).await })
    };
    let first = report(0..1);
    store.wait_for_rows();
    // Many writes of them wait, and one showing that came last.
    let rest: Vec<_> = (0..20).map(|call| report(call * 1_000 + 1..(call + 1) * 1_000 + 1)).collect();
    let (reads, others) = (store.row_reads(), rest.len());
    drop(gate);
    assert!(world.wait(first).unwrap().is_ok());
    for report in rest {
        assert_eq!(world.wait(report).unwrap().unwrap().accepted, 1_000);
    }
    let reads = store.row_reads() - reads;
    assert!(reads <= 4 * (others + 1), "{reads} reads for {others} calls of 1,000 events");
    assert_eq!(world.counts("p"), [1, 0, 0, 20_001]);
}

#[test]
fn many_popups_are_read_in_few_rounds() {
    let store = Arc::new(Troubled::default());
    {
        let world = start(PopupsConfig::default(), store.clone());
        let text = "x".repeat(4_000);
        for popup in 0..400 {
            let variants = json!([{"id": "a", "content": {"text": if popup % 10 == 0 { &text[..] } else { "short" }}}]);
            world.put_popup(&format!("p{popup}"), json!({"variants": variants}));
        }
        // Numbers that nobody has.
        for popup in [7, 8, 100] {
            world.engine.remove_popup(&format!("p{popup}"), Precondition::None).unwrap();
        }
    }
    let reads = store.row_reads();
    let world = start(PopupsConfig::default(), store.clone());
    let reads = store.row_reads() - reads;
    assert!(reads < 30, "{reads} reads for 397 popups");
    assert_eq!(world.engine.popup("p390").unwrap().spec.variants[0].content.text.as_ref().unwrap().len(), 4_000);
    assert!(world.engine.popup("p7").is_err());
}

#[test]
fn old_events_go_as_fast_as_they_came() {
    let store = Arc::new(MemoryStore::default());
    let world = start(PopupsConfig::default(), store);
    world.put_popup("p", json!({}));
    let decision = world.decide("ann").unwrap();
    for call in 0..22 {
        let ids = call * 1_000..(call + 1) * 1_000;
        let click = |id: usize| event(&format!("e{id}"), &decision, tidings_protocol::http::PopupEventKind::Click);
        world.report(ids.map(click).collect()).unwrap();
    }
    // In one minute as the clock has it.
    world.clock.set(NOON + 31 * DAY);
    until("all are gone", || world.export(None, None, None).is_empty());
}

#[test]
fn times_of_taking_never_go_back_so_that_no_export_misses_an_event() {
    let store = Arc::new(MemoryStore::default());
    let report = |world: &World, decision: &str, id: &str| {
        world.report(vec![event(id, decision, tidings_protocol::http::PopupEventKind::Click)]).unwrap();
    };
    // What the next export brings beyond what is known.
    let mut known: Vec<String> = Vec::new();
    let mut from = None;
    let mut news = |world: &World| {
        let events = world.export(from, None, None);
        from = events.last().map(|event| event.taken_at).or(from);
        let new: Vec<String> = events.into_iter().map(|event| event.id).filter(|id| !known.contains(id)).collect();
        known.extend(new.iter().cloned());
        new
    };
    let decision = {
        let world = start(PopupsConfig::default(), store.clone());
        world.put_popup("p", json!({}));
        let decision = world.decide("ann").unwrap();
        world.clock.set(NOON + HOUR);
        report(&world, &decision, "a");
        assert_eq!(news(&world), ["a"]);
        world.clock.set(NOON);
        report(&world, &decision, "b");
        assert_eq!(news(&world), ["b"], "the clock went back");
        report(&world, &decision, "c");
        assert_eq!(news(&world), ["c"]);
        decision
    };
    // The next one's clock is behind.
    let world = start(PopupsConfig::default(), store);
    report(&world, &decision, "d");
    assert_eq!(news(&world), ["d"]);
    world.clock.set(NOON + 2 * HOUR);
    report(&world, &decision, "e");
    assert_eq!(news(&world), ["e"]);
    let at: Vec<u64> = world.export(None, None, None).iter().map(|event| event.taken_at).collect();
    assert_eq!(at, [NOON + HOUR, NOON + HOUR + 1, NOON + HOUR + 2, NOON + HOUR + 3, NOON + 2 * HOUR]);
}

#[test]
fn while_the_store_is_slow_answers_wait_for_it() {
    let store = Arc::new(Troubled::default());
    // Ten times as long is long enough for a thread that is kept from running.
    let world = start(PopupsConfig { at_risk_max: Duration::from_millis(300), ..brisk() }, store.clone());
    world.put_popup("once", json!({"caps": {"total": 1}}));
    let gate = store.close_row_gate();
    assert!(is_shown(&world, "first"));
    store.wait_for_rows();
    // Others are answered at once until the first has waited for too long, and when it has waited for much too long, not at all.
    let (mut shown, mut waiting) = (0, Vec::new());
    until("it is refused", || {
        shown += 1;
        match world.decide_at_once(&format!("u{shown}"), json!({})) {
            Ok(Decided::Shown(showing)) => {
                waiting.extend(showing.durable);
                false
            }
            Err(refusal) => refusal.code == ErrorCode::StoreUnavailable,
            other => panic!("{other:?}"),
        }
    });
    assert!(!waiting.is_empty());
    assert!(waiting.iter_mut().all(|durable| durable.try_recv().is_err()), "they are not stored yet");
    drop(gate);
    for durable in waiting {
        durable.blocking_recv().unwrap().unwrap();
    }
    let other = start(brisk(), store);
    assert!(other.decide("u1").is_none() && other.decide(&format!("u{}", shown - 1)).is_none());
    until("who was refused is shown it", || is_shown(&other, &format!("u{shown}")));
}
