//! While an exposure is undurable for longer than the bound, nothing further is shown: the exposures that a crash forgets
//! are bounded whatever the store does, and a clean stop forgets none.

use crate::popup_support::*;
use crate::support::*;
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tidings_popups::{DecisionAttempt, PopupsConfig, Precondition};
use tidings_protocol::{error::ErrorCode, http::ExportedAssignment};
use tidings_testkit::MemoryStore;

/// A short bound, but long enough that a thread that is kept from running is not taken for a store that stalls.
fn short_bound() -> PopupsConfig {
    let durable_within = Duration::from_millis(40);
    PopupsConfig { durable_within, undurable_max: durable_within, ..PopupsConfig::default() }
}

fn world(store: &Arc<Troubled>) -> World {
    let world = start(short_bound(), store.clone());
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

/// Whether a new user is shown the popup; if not, the question must be refused.
fn is_shown(world: &World, user: &str) -> bool {
    match world.try_decide(user, json!({})) {
        Ok(DecisionAttempt::Show(_)) => true,
        Err(refusal) => {
            assert_eq!(refusal.code, ErrorCode::StoreUnavailable, "{refusal}");
            assert!(refusal.retry_after_ms.is_some());
            false
        }
        Ok(other) => panic!("{other:?}"),
    }
}

/// Shows the popup to new users until one is refused; returns to how many.
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
fn nothing_more_is_shown_while_the_store_fails() {
    let store = Arc::new(Troubled::default());
    let world = world(&store);
    store.fail_rows(usize::MAX);
    let shown = show_until_refused(&world, "u");
    for other in 0..100 {
        assert!(!is_shown(&world, &format!("other{other}")), "nothing has been stored meanwhile");
    }
    // A question that shows nothing is not refused.
    for user in 0..shown {
        assert!(world.decide(&format!("u{user}")).is_none());
    }
    store.fail_rows(0);
    until("it is shown again", || is_shown(&world, "late"));
    world.engine.popups.flush().unwrap();
    // A refused question showed nothing and counted nothing.
    assert_eq!(world.counts("once"), [shown as u64 + 1, 0, 0, 0]);
    until("it is shown", || is_shown(&world, "other0"));
}

#[test]
fn exposures_in_the_side_log_survive_and_failed_entries_are_retried() {
    let store = Arc::new(Troubled::default());
    store.side_log.enable();
    let world = world(&store);
    store.fail_rows(usize::MAX);
    // Decisions go on while the side log can be written.
    let began = Instant::now();
    let mut shown = 0;
    while began.elapsed() < short_bound().undurable_max * 4 {
        shown += usize::from(is_shown(&world, &format!("noted{shown}")));
        std::thread::sleep(Duration::from_millis(1));
    }
    store.side_log.set_full(true);
    let unnoted = show_until_refused(&world, "unnoted");
    store.side_log.set_full(false);
    until("it is shown again", || is_shown(&world, "late"));
    // As after a crash, another engine gets the stored rows and the side log.
    let noted = store.side_log.all();
    store.fail_rows(0);
    let after = Arc::new(Troubled::default());
    after.side_log.enable();
    after.side_log.append(&noted).unwrap();
    let users: Vec<String> =
        (0..shown).map(|n| format!("noted{n}")).chain((0..unnoted).map(|n| format!("unnoted{n}"))).collect();
    // Frequency counters are kept by popup number, and the first popup of each store has the same.
    let other = start(PopupsConfig::default(), after);
    other.put_popup("once", json!({"caps": {"total": 1}}));
    assert!(users.iter().all(|user| other.decide(user).is_none()));
    assert!(other.decide("somebody").is_some());
}

#[test]
fn a_clean_stop_under_load_loses_no_answered_exposure() {
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
                            match ask.try_decide(&user, json!({})) {
                                Ok(decided) => assert!(matches!(decided, DecisionAttempt::Show(_)), "{decided:?}"),
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

/// A bound that no test waits for.
fn long_bound() -> PopupsConfig {
    let durable_within = Duration::from_secs(3_600);
    PopupsConfig { durable_within, undurable_max: durable_within, ..PopupsConfig::default() }
}

#[test]
fn events_are_stored_while_exposures_gather() {
    let store = Arc::new(MemoryStore::default());
    let world = start(long_bound(), store.clone());
    world.put_popup("once", json!({"caps": {"total": 1}}));
    let decision = world.decide("ann").unwrap();
    assert!(world.decide("ben").is_some());
    assert!(world.decide("cyd").is_some());
    for id in ["e1", "e2"] {
        let click = event(id, &decision, tidings_protocol::http::PopupEventKind::Click);
        assert_eq!(world.report(vec![click]).unwrap().accepted, 1);
    }
    // As after a crash: the events are stored, and their write has taken no other user's exposure along.
    let crashed = start(long_bound(), store.clone());
    assert_eq!(crashed.export(None, None, None).len(), 2);
    assert!(crashed.decide("ann").is_none(), "the mark of her click stands beside her exposure");
    assert!(crashed.decide("ben").is_some());
    drop(crashed);
    // A caller that waits for exposures does not wait for the bound.
    world.engine.popups.flush().unwrap();
    assert!(start(long_bound(), store).decide("cyd").is_none());
}

#[test]
fn a_write_of_events_alone_keeps_the_side_log() {
    let (inner, durable_within) = (Arc::<MemoryStore>::default(), Duration::from_secs(8));
    let store = Arc::new(Troubled::on(inner.clone()));
    store.side_log.enable();
    let bound = PopupsConfig { durable_within, undurable_max: durable_within, ..PopupsConfig::default() };
    let world = start(bound.clone(), store.clone());
    world.put_popup("once", json!({"caps": {"total": 1}}));
    let decision = world.decide("ann").unwrap();
    until("the side log has the exposure", || !store.side_log.all().is_empty());
    for id in ["e1", "e2", "e3"] {
        let click = event(id, &decision, tidings_protocol::http::PopupEventKind::Click);
        world.report(vec![click]).unwrap();
    }
    // As after a crash: what the side log no longer has is stored.
    let noted = store.side_log.all();
    let after = Arc::new(Troubled::on(inner));
    after.side_log.enable();
    after.side_log.append(&noted).unwrap();
    assert!(start(bound, after).decide("ann").is_none());
}

#[test]
fn an_assignment_survives_with_the_exposure_that_made_it() {
    let (inner, durable_within) = (Arc::<MemoryStore>::default(), Duration::from_secs(8));
    let store = Arc::new(Troubled::on(inner.clone()));
    store.side_log.enable();
    let bound = PopupsConfig { durable_within, undurable_max: durable_within, ..PopupsConfig::default() };
    let world = start(bound.clone(), store.clone());
    world.put_popup("sale", json!({"conversion": {"event": "bought", "within": "7d"}}));
    assert!(world.decide("ann").is_some() && world.decide("ben").is_some());
    until("the side log has both exposures", || store.side_log.all().len() >= 2);
    let noted = store.side_log.all();
    let after = Arc::new(Troubled::on(inner));
    after.side_log.enable();
    after.side_log.append(&noted).unwrap();
    let crashed = start(bound, after);
    let assigned = || {
        let mut cursor = crashed.engine.popups.assignments("sale", None, None).unwrap();
        let mut all = crashed.engine.popups.export_assignments(&mut cursor).unwrap().0;
        all.sort_by(|a, b| a.user.cmp(&b.user));
        let of = |one: ExportedAssignment| (one.user, one.variant.unwrap_or_default(), one.conversions);
        all.into_iter().map(of).collect::<Vec<_>>()
    };
    let row = |user: &str, conversions| (user.to_owned(), "a".to_owned(), conversions);
    assert_eq!(assigned(), [row("", 0), row("", 0)], "the side log knows no ids");
    crashed.report(vec![custom("1", "ann", "bought")]).unwrap();
    assert!(crashed.decide("ben").is_some() && crashed.decide("cem").is_some());
    assert_eq!(assigned(), [row("", 0), row("ann", 1), row("cem", 0)], "nobody is assigned twice");
}

#[test]
fn pending_events_do_not_delay_exposures() {
    let store = Arc::new(Troubled::default());
    let world = start(PopupsConfig::default(), store.clone());
    world.put_popup("p", json!({}));
    let decision = world.decide("ann").unwrap();
    world.engine.popups.flush().unwrap();
    let gate = store.close_row_gate();
    let report = |ids: std::ops::Range<usize>| {
        let events = ids.map(|id| event(&format!("e{id}"), &decision, tidings_protocol::http::PopupEventKind::Click));
        let (engine, events) = (world.engine.clone(), events.collect());
        world.spawn(async move { engine.popups.report_events(&tidings_domain::model::Actor::App, events).await })
    };
    let first = report(0..1);
    store.wait_for_rows();
    // The events of many writes are pending, and behind them one exposure.
    let rest: Vec<_> = (0..20).map(|call| report(call * 1_000 + 1..(call + 1) * 1_000 + 1)).collect();
    let (reads, others) = (store.popup_reads(), rest.len());
    drop(gate);
    assert!(world.wait(first).unwrap().is_ok());
    for report in rest {
        assert_eq!(world.wait(report).unwrap().unwrap().accepted, 1_000);
    }
    let reads = store.popup_reads() - reads;
    assert!(reads <= 4 * (others + 1), "{reads} reads for {others} calls of 1,000 events");
    assert_eq!(world.counts("p"), [1, 0, 0, 20_001]);
}

#[test]
fn recovery_reads_many_popups_in_few_round_trips() {
    let store = Arc::new(Troubled::default());
    {
        let world = start(PopupsConfig::default(), store.clone());
        let text = "x".repeat(4_000);
        for popup in 0..400 {
            let variants = json!([{"id": "a", "content": {"text": if popup % 10 == 0 { &text[..] } else { "short" }}}]);
            world.put_popup(&format!("p{popup}"), json!({"variants": variants}));
        }
        // Gaps in the numbers.
        for popup in [7, 8, 100] {
            world.engine.popups.remove(&format!("p{popup}"), Precondition::None).unwrap();
        }
    }
    let reads = store.popup_reads();
    let world = start(PopupsConfig::default(), store.clone());
    let reads = store.popup_reads() - reads;
    // One by one would be 397. What looks for work in the background reads now and then, too.
    assert!(reads < 100, "{reads} reads for 397 popups");
    assert_eq!(world.engine.popups.get("p390").unwrap().spec.variants[0].content.text.as_ref().unwrap().len(), 4_000);
    assert!(world.engine.popups.get("p7").is_err());
}

#[test]
fn retention_removes_events_as_fast_as_they_came() {
    let store = Arc::new(MemoryStore::default());
    let world = start(PopupsConfig::default(), store);
    world.put_popup("p", json!({}));
    let decision = world.decide("ann").unwrap();
    for call in 0..22 {
        let ids = call * 1_000..(call + 1) * 1_000;
        let click = |id: usize| event(&format!("e{id}"), &decision, tidings_protocol::http::PopupEventKind::Click);
        world.report(ids.map(click).collect()).unwrap();
    }
    // Within one minute by the engine's clock.
    world.clock.set(NOON + 31 * DAY);
    until("all are gone", || world.export(None, None, None).is_empty());
}

#[test]
fn taken_at_never_goes_back_so_no_export_misses_an_event() {
    let store = Arc::new(MemoryStore::default());
    let report = |world: &World, decision: &str, id: &str| {
        world.report(vec![event(id, decision, tidings_protocol::http::PopupEventKind::Click)]).unwrap();
    };
    // The events of the next export that earlier exports did not have.
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
    // The clock of the next engine is behind.
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
fn exposures_wait_for_a_slow_store_and_are_refused_after_ten_times_the_bound() {
    let store = Arc::new(Troubled::default());
    // Ten times this bound is long enough for a thread that is kept from running.
    let world = start(PopupsConfig { undurable_max: Duration::from_millis(300), ..short_bound() }, store.clone());
    world.put_popup("once", json!({"caps": {"total": 1}}));
    let gate = store.close_row_gate();
    assert!(is_shown(&world, "first"));
    store.wait_for_rows();
    // Questions are answered at once until the first exposure has waited for the bound, then only once stored; after ten
    // times the bound they are refused.
    let (mut shown, mut waiting) = (0, Vec::new());
    until("it is refused", || {
        shown += 1;
        match world.try_decide(&format!("u{shown}"), json!({})) {
            Ok(DecisionAttempt::Show(exposure)) => {
                waiting.extend(exposure.durable);
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
    let other = start(short_bound(), store);
    assert!(other.decide("u1").is_none() && other.decide(&format!("u{}", shown - 1)).is_none());
    until("who was refused is shown it", || is_shown(&other, &format!("u{shown}")));
}
