//! One store per folder, of a format that this version knows.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use support::*;
use tidings_engine::store::Store;
use tidings_store::{EmbeddedStore, OpenError, check, repair};

#[test]
fn a_second_owner_is_refused_until_the_first_has_gone() {
    let folder = scratch();
    let store = open(folder.path());
    let refusals = [
        EmbeddedStore::open(options(folder.path())).err().unwrap(),
        check::check(folder.path()).err().unwrap(),
        repair(folder.path()).err().unwrap(),
    ];
    for refusal in refusals {
        assert!(matches!(refusal, OpenError::Locked(_)), "{refusal}");
        assert!(refusal.to_string().contains("in use by another process"));
    }
    let room = populate(&store);
    say(&store, room, ["a"], NOON);
    drop(store);
    assert_eq!(said(&open(folder.path()), room), ["a"]);
}

#[test]
fn a_newer_format_is_refused() {
    let folder = scratch();
    drop(open(folder.path()));
    let format = folder.path().join("format");
    fs::write(&format, "7\n").unwrap();
    let refusal = EmbeddedStore::open(options(folder.path())).err().unwrap();
    assert!(matches!(refusal, OpenError::Format { found: 7, known: 1 }), "{refusal}");
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
fn the_epoch_stays_and_differs_between_stores() {
    let (one, two) = (scratch(), scratch());
    let epochs = [one.path(), one.path(), two.path()].map(|path| open(path).epoch());
    assert_eq!(epochs[0], epochs[1]);
    assert_ne!(epochs[0], epochs[2]);
}
