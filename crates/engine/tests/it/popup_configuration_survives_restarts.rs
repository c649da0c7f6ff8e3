//! Popups, versions, settings and segments are written whole or not at all, and survive a restart.

use crate::popup_support::*;
use crate::support::*;
use serde_json::json;
use std::{path::Path, sync::Arc};
use tidings_domain::store::{RowChange, RowSpace, RowStore, Store, Term};
use tidings_popups::{PopupsConfig, Precondition, parse_segment};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{Popup, PopupState},
    limits::POPUP_VERSIONS_MAX,
};
use tidings_store::{EmbeddedOptions, EmbeddedStore};
use tidings_testkit::MemoryStore;

fn memory() -> (Arc<MemoryStore>, World) {
    let store = Arc::new(MemoryStore::default());
    (store.clone(), start(PopupsConfig::default(), store))
}

fn put(
    world: &World,
    id: &str,
    name: &str,
    author: Option<&str>,
    when: Precondition,
) -> Result<(Popup, bool), Refusal> {
    world.engine.popups.put(id, spec(json!({"name": name})).to_string().as_bytes(), author, when)
}

fn upload(world: &World, id: &str, users: &str) -> u64 {
    world.engine.popups.put_segment(id, parse_segment(users.as_bytes()).unwrap()).unwrap().users
}

fn is_in(world: &World, id: &str, user: &str) -> bool {
    world.engine.popups.is_in_segment(id, user).unwrap()
}

/// The number of rows of a kind.
fn rows(store: &dyn Store, kind: u8) -> usize {
    store.rows(RowSpace::Popups, &[kind], &[kind + 1], 1_000_000).unwrap().len()
}

const LISTS: u8 = 5;

// ---- popups

#[test]
fn versions_record_author_and_time_and_the_newest_hundred_are_kept() {
    let (store, world) = memory();
    let most = POPUP_VERSIONS_MAX as u32;
    for version in 1..=most + 5 {
        world.clock.set(NOON + u64::from(version));
        let author = format!("anna{version}");
        let author = (version % 2 == 0).then_some(author.as_str());
        let (card, created) = put(&world, "p", &format!("n{version}"), author, Precondition::None).unwrap();
        assert_eq!((card.version, created), (version, version == 1));
    }
    let check = |world: &World| {
        let versions = world.engine.popups.versions("p").unwrap().versions;
        let expected: Vec<u32> = (6..=most + 5).rev().collect();
        assert_eq!(versions.iter().map(|card| card.version).collect::<Vec<_>>(), expected);
        for card in versions {
            let version = card.version;
            assert_eq!(card.updated_at, NOON + u64::from(version));
            assert_eq!(card.updated_by, (version % 2 == 0).then(|| format!("anna{version}")));
            assert_eq!(card.spec.name, Some(format!("n{version}")));
        }
        assert_eq!(world.engine.popups.get("p").unwrap().version, most + 5);
    };
    check(&world);
    drop(world);
    let world = start(PopupsConfig::default(), store.clone());
    check(&world);
    // No rows are left of versions that were removed, and none at all once the popup is deleted.
    assert_eq!(rows(&*store, 2), most as usize);
    world.engine.popups.remove("p", Precondition::None).unwrap();
    assert_eq!((rows(&*store, 1), rows(&*store, 2)), (0, 0));
}

#[test]
fn a_write_with_an_unmet_precondition_is_a_conflict() {
    let (_, world) = memory();
    let conflict = |refused: Result<(), Refusal>| assert_eq!(refused.unwrap_err().code, ErrorCode::Conflict);
    let write = |when| put(&world, "p", "x", None, when).map(drop);
    conflict(write(Precondition::Version(1)));
    write(Precondition::Absent).unwrap();
    conflict(write(Precondition::Absent));
    conflict(write(Precondition::Version(2)));
    write(Precondition::Version(1)).unwrap();
    let pause =
        |when| world.engine.popups.set_state("p", PopupState::Paused, Some("ben"), when).map(|card| card.version);
    conflict(pause(Precondition::Version(1)).map(drop));
    assert_eq!(pause(Precondition::Version(2)), Ok(3));
    assert_eq!(pause(Precondition::None), Ok(4));
    let card = world.engine.popups.get("p").unwrap();
    assert_eq!((card.now, card.spec.name.as_deref()), (PopupState::Paused, Some("x")), "only the state changes");
    conflict(world.engine.popups.remove("p", Precondition::Version(3)));
    world.engine.popups.remove("p", Precondition::Version(4)).unwrap();
    for gone in [
        world.engine.popups.get("p").map(drop),
        world.engine.popups.versions("p").map(drop),
        world.engine.popups.counts("p", None, None).map(drop),
        world.engine.popups.remove("p", Precondition::None),
        pause(Precondition::None).map(drop),
    ] {
        assert_eq!(gone.unwrap_err().code, ErrorCode::NotFound);
    }
}

#[test]
fn a_recreated_popup_starts_with_fresh_counts_and_caps() {
    let (store, world) = memory();
    let caps = || json!({"caps": {"total": 1}});
    world.put_popup("p", caps());
    assert!(world.decide("ann").is_some() && world.decide("ann").is_none());
    world.engine.popups.flush().unwrap();
    world.engine.popups.remove("p", Precondition::None).unwrap();
    assert_eq!(world.put_popup("p", caps()).version, 1);
    assert_eq!(world.counts("p"), [0; 4]);
    assert!(world.decide("ann").is_some());
    drop(world);
    // The deleted popup had the highest number, which is not given out again.
    let world = start(PopupsConfig::default(), store.clone());
    world.engine.popups.remove("p", Precondition::None).unwrap();
    drop(world);
    let world = start(PopupsConfig::default(), store);
    world.put_popup("p", caps());
    assert!(world.decide("ann").is_some());
}

#[test]
fn a_failed_write_leaves_the_configuration_unchanged() {
    let store = Arc::new(Troubled::default());
    let world = start(PopupsConfig::default(), store.clone());
    put(&world, "p", "before", None, Precondition::None).unwrap();
    upload(&world, "s", "ann\nben");
    let failed = |refused: Result<(), Refusal>| assert_eq!(refused.unwrap_err().code, ErrorCode::StoreUnavailable);
    store.fail_rows(6);
    failed(put(&world, "p", "after", None, Precondition::None).map(drop));
    failed(put(&world, "q", "new", None, Precondition::None).map(drop));
    failed(world.engine.popups.remove("p", Precondition::None));
    failed(world.engine.popups.set_settings(br#"{"holdout_percent": 100}"#).map(drop));
    failed(world.engine.popups.put_segment("s", parse_segment(b"cyd").unwrap()).map(drop));
    failed(world.engine.popups.remove_segment("s"));
    let check = |world: &World| {
        let ids: Vec<String> =
            world.engine.popups.list(None, 0).unwrap().popups.into_iter().map(|card| card.id).collect();
        assert_eq!(ids, ["p"]);
        let card = world.engine.popups.get("p").unwrap();
        assert_eq!((card.version, card.spec.name.as_deref()), (1, Some("before")));
        assert_eq!(world.engine.popups.settings().unwrap().holdout_percent, 0.0);
        assert!(is_in(world, "s", "ann") && !is_in(world, "s", "cyd"));
        assert!(world.decide("ann").is_some());
    };
    check(&world);
    drop(world);
    check(&start(PopupsConfig::default(), store));
}

#[test]
fn the_whole_configuration_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let open = |folder: &Path| {
        start(PopupsConfig::default(), Arc::new(EmbeddedStore::open(EmbeddedOptions::new(folder)).unwrap()))
    };
    let told = |world: &World| {
        let mut popups = Vec::new();
        let mut after = None;
        loop {
            let page = world.engine.popups.list(after.as_deref(), 7).unwrap();
            popups.extend(page.popups.iter().map(|card| serde_json::to_string(card).unwrap()));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let settings = serde_json::to_string(&world.engine.popups.settings().unwrap()).unwrap();
        (popups, settings, world.engine.popups.segments().unwrap())
    };
    let before = {
        let world = open(folder.path());
        upload(&world, "s", "ann\nben");
        // Long versions take several rows.
        let text = "x".repeat(20_000);
        for popup in 0..20 {
            let variants = json!([{"id": "a", "content": {"text": "t", "data": {"long": text}}}]);
            let audience = json!({"segment": "s"});
            world.put_popup(
                &format!("p{popup}"),
                json!({"variants": variants, "audience": audience, "priority": popup}),
            );
        }
        world.set_popup_settings(json!({"time_zone": "Asia/Tokyo", "holdout_percent": 1.5,
            "placements": {"home": {"per_day": 3}}}));
        told(&world)
    };
    assert_eq!(before.0.len(), 20);
    let world = open(folder.path());
    assert_eq!(told(&world), before);
    assert!(world.decide("ann").is_some());
    assert!(world.decide("cyd").is_none());
}

// ---- segments

#[test]
fn an_upload_replaces_the_segment_and_applies_at_once() {
    let (store, world) = memory();
    assert_eq!(upload(&world, "s", "ann\r\nben\n\nann\ncyd"), 3);
    world.put_popup("p", json!({"audience": {"segment": "s"}}));
    assert!(world.decide("ann").is_some() && world.decide("dan").is_none());
    assert_eq!(upload(&world, "s", "dan\n"), 1);
    assert!(world.decide("ann").is_none() && world.decide("dan").is_some());
    assert!(!is_in(&world, "s", "ann") && is_in(&world, "s", "dan"));
    assert_eq!(rows(&*store, LISTS), 1, "the list before is gone");
    // Invalid uploads are refused before anything changes.
    for (garbage, detail) in [(&b"ann\nb b\n"[..], "line 2"), (b"ann\n\xFF\xFE", "line 2"), (b"\n\n", "users")] {
        let refusal = parse_segment(garbage).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::InvalidField);
        assert!(refusal.detail.starts_with(detail), "{refusal}");
    }
}

#[test]
fn rows_of_an_interrupted_upload_are_removed_at_the_start() {
    let (store, world) = memory();
    upload(&world, "s", "ann");
    drop(world);
    // Lists that no segment has, as a crash during an upload leaves them.
    let chunk = |list: u32, chunk: u32| {
        let key = [&[LISTS][..], &list.to_be_bytes(), &chunk.to_be_bytes()].concat();
        RowChange { key, value: Some(vec![7; 8]) }
    };
    let left_over = (0..2_000).map(|at| chunk(77, at)).chain([chunk(78, 0), chunk(u32::MAX, 5)]).collect();
    store.write_rows(Term::ALONE, RowSpace::Popups, left_over).unwrap();
    let world = start(PopupsConfig::default(), store.clone());
    assert_eq!(rows(&*store, LISTS), 1);
    assert!(is_in(&world, "s", "ann"));
}

#[test]
fn a_referenced_segment_cannot_be_removed_nor_a_missing_one_referenced() {
    let (store, world) = memory();
    let refused = |parts: serde_json::Value| {
        let text = spec(parts).to_string();
        world.engine.popups.put("p", text.as_bytes(), None, Precondition::None).map(drop).unwrap_err()
    };
    let rule = || json!({"all": [{"not": {"segment": "s"}}]});
    for (parts, field) in [
        (json!({"audience": rule()}), "audience:"),
        (json!({"trigger": {"event": "e", "where": rule()}}), "trigger.where:"),
    ] {
        let refusal = refused(parts);
        assert_eq!(refusal.code, ErrorCode::InvalidField);
        assert!(refusal.detail.starts_with(field) && refusal.detail.contains("\"s\""), "{refusal}");
    }
    assert_eq!(rows(&*store, 1), 0);
    upload(&world, "s", "ann");
    world.put_popup("p", json!({"audience": rule()}));
    let remove = || world.engine.popups.remove_segment("s");
    assert_eq!(remove().unwrap_err().code, ErrorCode::Conflict);
    // A paused popup references the segment too.
    world.engine.popups.set_state("p", PopupState::Paused, None, Precondition::None).unwrap();
    assert_eq!(remove().unwrap_err().code, ErrorCode::Conflict);
    world.put_popup("p", json!({}));
    remove().unwrap();
    assert_eq!(remove().unwrap_err().code, ErrorCode::NotFound);
    assert_eq!(world.engine.popups.segment("s").unwrap_err().code, ErrorCode::NotFound);
    assert_eq!(rows(&*store, LISTS), 0);
}

/// `SEGMENT_USERS` sets the number of users.
#[test]
fn a_large_segment_survives_a_restart() {
    let count: usize = std::env::var("SEGMENT_USERS").map_or(30_000, |text| text.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let open =
        || start(PopupsConfig::default(), Arc::new(EmbeddedStore::open(EmbeddedOptions::new(folder.path())).unwrap()));
    let text: String = (0..count).map(|user| format!("user-{user}\n")).collect();
    let began = std::time::Instant::now();
    let world = open();
    let list = parse_segment(text.as_bytes()).unwrap();
    let read = began.elapsed();
    assert_eq!(world.engine.popups.put_segment("s", list).unwrap().users, count as u64);
    let stored = began.elapsed();
    drop(world);
    let began = std::time::Instant::now();
    let world = open();
    println!("{count} users: read in {read:?}, stored in {:?}, found again in {:?}", stored - read, began.elapsed());
    for user in (0..count).step_by(97) {
        assert!(is_in(&world, "s", &format!("user-{user}")));
        assert!(!is_in(&world, "s", &format!("other-{user}")));
    }
}
