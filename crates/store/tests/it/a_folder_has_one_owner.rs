//! A folder is opened by one process at a time, and only in a format that this version knows.

use crate::support::*;
use std::fs;
use tidings_domain::{gates::Gate, model::*, store::*};
use tidings_store::{EmbeddedStore, OpenError, check, repair};

#[test]
fn a_second_owner_is_refused_until_the_first_has_closed() {
    let folder = scratch();
    let store = open(folder.path());
    let refusals = [
        EmbeddedStore::open(options(folder.path())).err().unwrap(),
        check::check(folder.path(), tidings_popups::check_popups).err().unwrap(),
        repair(folder.path()).err().unwrap(),
    ];
    for refusal in refusals {
        assert!(matches!(refusal, OpenError::Locked(_)), "{refusal}");
        assert!(refusal.to_string().contains("in use by another process"));
    }
    let room = populate(&store);
    say(&store, room, ["a"], NOON);
    drop(store);
    assert_eq!(stored_ids(&open(folder.path()), room), ["a"]);
}

#[test]
fn a_newer_format_is_refused() {
    let folder = scratch();
    drop(open(folder.path()));
    let format = folder.path().join("format");
    fs::write(&format, "7\n").unwrap();
    let refusal = EmbeddedStore::open(options(folder.path())).err().unwrap();
    assert!(matches!(refusal, OpenError::Format { found: 7, known: 2 }), "{refusal}");
    for missing_or_garbled in [None, Some("one")] {
        fs::remove_file(&format).ok();
        if let Some(text) = missing_or_garbled {
            fs::write(&format, text).unwrap();
        }
        let refusal = EmbeddedStore::open(options(folder.path())).err().unwrap();
        assert!(matches!(refusal, OpenError::Damaged(_)), "{refusal}");
    }
    fs::write(&format, "1\n").unwrap();
    open(folder.path());
}

#[test]
fn a_folder_in_which_an_unknown_gate_is_open_is_refused() {
    let folder = scratch();
    let store = open(folder.path());
    store.open_gates().unwrap();
    store.open_gates().unwrap();
    drop(store);
    let gates = |change: &dyn Fn(&fjall::Keyspace)| {
        std::fs::remove_file(folder.path().join("closed")).unwrap();
        let database = fjall::Database::builder(folder.path().join("store")).open().unwrap();
        let meta = database.keyspace("meta", fjall::KeyspaceCreateOptions::default).unwrap();
        change(&meta);
        database.persist(fjall::PersistMode::SyncAll).unwrap();
    };
    gates(&|meta| assert!(Gate::ALL.iter().all(|gate| meta.contains_key(format!("g{}", gate.name())).unwrap())));
    drop(open(folder.path()));
    gates(&|meta| meta.insert("gof_a_later_version", "").unwrap());
    let refusals = [
        EmbeddedStore::open(options(folder.path())).err().unwrap(),
        check::check(folder.path(), tidings_popups::check_popups).err().unwrap(),
    ];
    for refusal in refusals {
        assert!(refusal.to_string().contains("newer program has written"), "{refusal}");
        assert!(matches!(refusal, OpenError::UnknownGate(name) if name == "of_a_later_version"));
    }
}

#[test]
fn entries_of_a_later_version_are_no_fault() {
    let folder = scratch();
    let store = open(folder.path());
    let room = populate(&store);
    say(&store, room, ["a"], NOON);
    let later = NewEntry { kind: EntryKind::Opaque(200), body: format!("\"{:a>9000}\"", 1).into(), ..message("b") };
    store.commit(&[Proposal::Append { conversation: room, entry: later }], NOON).unwrap();
    say(&store, room, ["c"], NOON);
    drop(store);
    let report = check::check(folder.path(), tidings_popups::check_popups).unwrap();
    assert_eq!((report.fault_count, report.entries), (0, 3), "{report}");
    assert!(report.to_string().contains("1 entries were written by a newer version"), "{report}");
}

#[test]
fn a_store_keeps_its_epoch_and_stores_differ_in_it() {
    let (one, two) = (scratch(), scratch());
    let epochs = [one.path(), one.path(), two.path()].map(|path| open(path).epoch());
    assert_eq!(epochs[0], epochs[1]);
    assert_ne!(epochs[0], epochs[2]);
}

#[test]
fn a_folder_of_the_earlier_format_is_upgraded_and_then_needs_its_manifest() {
    let folder = scratch();
    let store = open(folder.path());
    let room = populate(&store);
    say(&store, room, ["a", "b"], NOON);
    drop(store);
    // As in a folder of the format before there was a manifest.
    for name in ["manifest", "acknowledged-0", "closed"] {
        fs::remove_file(folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join("format"), "1\n").unwrap();

    let store = open(folder.path());
    assert_eq!(stored_ids(&store, room), ["a", "b"]);
    say(&store, room, ["c"], NOON);
    drop(store);
    assert_eq!(fs::read_to_string(folder.path().join("format")).unwrap(), "2\n");
    assert_eq!(stored_ids(&open(folder.path()), room), ["a", "b", "c"]);
    fs::remove_file(folder.path().join("manifest")).unwrap();
    let refused = EmbeddedStore::open(options(folder.path())).err().map(|error| error.to_string());
    assert!(refused.as_ref().is_some_and(|why| why.contains("manifest: the file is missing")), "{refused:?}");
}

#[test]
fn a_folder_that_was_not_completely_created_is_created_anew() {
    let folder = scratch();
    drop(open(folder.path()));
    // The process ended while the engine was being created: the manifest names no journal yet.
    let unfinished = r#"{"journals":[],"spaces":[],"emptied":{}}"#;
    let sum = xxhash_rust::xxh3::xxh3_64(unfinished.as_bytes());
    fs::write(folder.path().join("manifest"), format!("{sum:016x}\n{unfinished}\n")).unwrap();
    let refused = EmbeddedStore::open(options(folder.path())).err().map(|error| error.to_string());
    assert!(
        refused.as_ref().is_some_and(|why| why.contains("there are batches")),
        "the manifest of a new store beside batches: {refused:?}"
    );
    for name in ["closed", "acknowledged-0", "store/version"] {
        fs::remove_file(folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join("store/0.jnl"), [0; 4_096]).unwrap();
    let store = open(folder.path());
    let room = populate(&store);
    say(&store, room, ["a"], NOON);
    drop(store);
    assert_eq!(stored_ids(&open(folder.path()), room), ["a"]);
}
