//! Faults in the rows of popups are found and named.

use crate::support::*;
use std::{path::Path, sync::Arc};
use tidings_domain::{model::Actor, store::*};
use tidings_engine::{Engine, EngineParts, config::EngineConfig, shards::Wake};
use tidings_popups::{Precondition, QuestionBody, parse_segment};
use tidings_protocol::http::{PopupEvent, PopupEventKind};
use tidings_store::check::{CheckReport, check};
use tidings_testkit::ManualClock;

const SPACE: RowSpace = RowSpace::Popups;

struct Asleep;

impl Wake for Asleep {
    fn wake(&self) {}
}

/// Has an engine write rows of all kinds: two versions of popup 1, settings, a segment of 500 users in two chunks, exposures
/// of popup 1 to two users, and three events of one of them.
fn populate_popups(folder: &Path) {
    let clock = Arc::new(ManualClock::default());
    clock.set(NOON);
    let config = EngineConfig { shards: 1, ..EngineConfig::default() };
    let wakes = vec![Arc::new(Asleep) as Arc<dyn Wake>];
    let (engine, _receivers) =
        Engine::start(EngineParts { config, clock, store: Arc::new(open(folder)), wakes, cluster: None });
    engine.popups.flush().unwrap();
    let users: String = (0..500).map(|n| format!("u{n}\n")).collect();
    engine.popups.put_segment("many", parse_segment(users.as_bytes()).unwrap()).unwrap();
    engine.popups.set_settings(br#"{"time_zone":"Europe/Berlin"}"#).unwrap();
    let popup = br#"{"state":"live","placements":["home"],"audience":{"segment":"many"},
        "variants":[{"id":"a","content":{}}]}"#;
    for _ in 0..2 {
        engine.popups.put("p", popup, None, Precondition::None).unwrap();
    }
    let shown = ["u1", "u2"].map(|user| {
        let question = QuestionBody::read(br#"{"placement":"home"}"#).unwrap();
        engine.popups.decide_blocking(&question.for_user(user)).unwrap().exposure.unwrap().decision
    });
    let event = |at: usize| PopupEvent {
        decision: shown[0].clone(),
        ..PopupEvent::new(format!("e{at}"), PopupEventKind::Click)
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let events = (0..3).map(event).collect();
    runtime.block_on(engine.popups.report_events(&Actor::App, events)).unwrap();
    engine.stop();
}

/// All rows of a kind.
fn rows(store: &dyn RowStore, kind: u8) -> Vec<(Vec<u8>, Vec<u8>)> {
    store.rows(SPACE, &[kind], &[&[kind][..], &[0xFF; 80]].concat(), usize::MAX).unwrap()
}

fn check_after(plant: impl FnOnce(&dyn RowStore)) -> CheckReport {
    let folder = scratch();
    populate_popups(folder.path());
    plant(&open(folder.path()));
    check(folder.path(), tidings_popups::check_popups).unwrap()
}

/// Changes the rows by `plant`, and expects that the check names each of `named` and no other fault.
#[track_caller]
fn finds(plant: impl FnOnce(&dyn RowStore), named: &[&str]) {
    let report = check_after(plant);
    assert_eq!(report.fault_count as usize, named.len(), "{report}");
    for named in named {
        assert!(report.faults.iter().any(|fault| fault.contains(named)), "{named:?} is not in\n{report}");
    }
}

fn change(store: &dyn RowStore, key: &[u8], value: Option<&[u8]>) {
    let change = RowChange { key: key.to_vec(), value: value.map(<[u8]>::to_vec) };
    store.write_rows(Term::ALONE, SPACE, vec![change]).unwrap();
}

/// Drops the row with this index among the rows of a kind.
fn drop_row(store: &dyn RowStore, kind: u8, at: usize) {
    change(store, &rows(store, kind)[at].0, None);
}

/// Cuts the last byte off the row with this index.
fn cut_row(store: &dyn RowStore, kind: u8, at: usize) {
    let (key, value) = &rows(store, kind)[at];
    change(store, key, value.split_last().map(|(_, rest)| rest));
}

#[test]
fn rows_that_agree_are_sound() {
    let report = check_after(|store| {
        for (kind, count) in [(0, 1), (1, 1), (2, 2), (3, 1), (4, 1), (5, 2), (6, 2), (7, 1), (8, 3), (9, 3)] {
            assert_eq!(rows(store, kind).len(), count, "rows of kind {kind}");
        }
    });
    assert!(report.is_sound(), "{report}");
    assert_eq!((report.popups, report.popup_segments, report.popup_users, report.popup_events), (1, 1, 2, 3));
}

#[test]
fn rows_that_an_interrupted_write_may_leave_are_no_fault() {
    finds(
        |store| {
            // A chunk without a segment, a version and counts without a popup, and a row that tests of stores write.
            change(store, &[&[5][..], &[0, 0, 0, 9], &[0; 4]].concat(), Some(&[0; 80]));
            change(store, &[&[2][..], &[0, 0, 0, 9], &[0, 0, 0, 1, 0, 0]].concat(), Some(b"cut off"));
            let (_, counts) = rows(store, 7).remove(0);
            change(store, &[&[7][..], &[0, 0, 0, 9], &[0; 4], b"a"].concat(), Some(&counts));
            change(store, &[0xFE, 1], Some(b"anything"));
        },
        &[],
    );
}

#[test]
fn rows_that_cannot_be_decoded_are_found() {
    for kind in [1, 4, 6] {
        let report = check_after(|store| cut_row(store, kind, 0));
        assert!(!report.is_sound(), "of kind {kind}");
    }
    finds(|store| cut_row(store, 0, 0), &["a row"]);
    finds(|store| cut_row(store, 2, 1), &["a row"]);
    finds(|store| cut_row(store, 3, 0), &["settings"]);
    finds(|store| change(store, &[77, 1, 2], Some(b"")), &["rows of kind 77"]);
}

#[test]
fn missing_versions_and_segments_of_a_popup_are_found() {
    finds(|store| drop_row(store, 2, 0), &["popup \"p\" version 1 is missing"]);
    finds(|store| drop_row(store, 2, 1), &["popup \"p\" version 2 is missing"]);
    finds(|store| drop_row(store, 4, 0), &["popup \"p\" names the segment \"many\", which does not exist"]);
    finds(|store| drop_row(store, 0, 0), &["numbers that were given out are missing"]);
    finds(
        |store| {
            let (key, head) = rows(store, 1).remove(0);
            assert_eq!(key, [1, 0, 0, 0, 1]);
            change(store, &[1, 0, 0, 0, 9], Some(&head));
        },
        &["popup \"p\" appears twice", "version 1 is missing", "version 2 is missing", "number was not given out"],
    );
}

#[test]
fn missing_users_of_a_segment_are_found() {
    finds(|store| drop_row(store, 5, 1), &["segment \"many\" has 380 of 500 users"]);
    finds(|store| cut_row(store, 5, 0), &["a chunk of segment \"many\""]);
    finds(
        |store| {
            let (key, chunk) = rows(store, 5).remove(1);
            change(store, &key, None);
            change(store, &[&key[..8], &[7]].concat(), Some(&chunk));
        },
        &["segment \"many\": its chunk 1 is missing"],
    );
}

#[test]
fn frequency_counters_out_of_order_are_found() {
    finds(
        |store| {
            let (key, value) = rows(store, 6).remove(0);
            // Behind the number of parts: marks of 24 bytes each.
            let mut marks = value[2..].to_vec();
            assert!(marks.len() > 24);
            marks.rotate_left(24);
            change(store, &key, Some(&[&value[..2], &marks].concat()));
        },
        &["a user's marks: out of order"],
    );
    finds(|store| cut_row(store, 6, 1), &["a user's marks: cut off"]);
}

#[test]
fn events_without_ids_or_counts_are_found() {
    finds(|store| drop_row(store, 9, 0), &["is not known by its id", "3 events, and 2 ids of events"]);
    finds(
        |store| drop_row(store, 8, 1),
        &["an id is known of an event that is not there", "2 events, and 3 ids of events"],
    );
    finds(
        |store| {
            let (key, _) = rows(store, 9).remove(0);
            change(store, &key, Some(&7_u64.to_be_bytes()));
        },
        &["is known from another time", "an id is known of an event that is not there"],
    );
    finds(
        |store| {
            let (key, counts) = rows(store, 7).remove(0);
            let mut fewer = counts.clone();
            // In the order of stored numbers, behind the form: shown 2, control 0, impressions 0, clicks 3.
            assert_eq!(counts[1..5], [2, 0, 0, 3]);
            fewer[4] = 2;
            change(store, &key, Some(&fewer));
        },
        &["more events of popup 1 in hour"],
    );
    finds(
        |store| {
            // The counts of the hour before are there, so that those of this one were not dropped for their age.
            let (key, counts) = rows(store, 7).remove(0);
            change(store, &key, None);
            let mut before = key.clone();
            before[8] -= 1;
            change(store, &before, Some(&counts));
        },
        &["are not counted"],
    );
}
