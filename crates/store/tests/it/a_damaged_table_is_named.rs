//! A table that is damaged while the store serves: a read of it fails, the store names the file, and an engine that stops
//! because of it is not restarted again and again.

use crate::support::*;
use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tidings_domain::{model::*, store::*};
use tidings_store::{EmbeddedOptions, EmbeddedStore, MEMTABLE_BYTES_MIN, OpenError};

const WAIT: Duration = Duration::from_secs(300);
const ROOM: ConversationNo = ConversationNo(1);
/// The tables of the timeline, whose space has id 2.
const TIMELINE: &str = "store/keyspaces/2/tables";

fn options_of(folder: &Path) -> EmbeddedOptions {
    // Without a cache every read is one of the files.
    EmbeddedOptions { memtable_bytes: MEMTABLE_BYTES_MIN, cache_bytes: 0, ..options(folder) }
}

fn tables(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder.join(TIMELINE)).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {WAIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A store with some tables of messages.
fn populated(folder: &Path) -> EmbeddedStore {
    let store = EmbeddedStore::open(options_of(folder)).unwrap();
    populate(&store);
    let mut batch = 0;
    wait_until("a table of messages", || {
        say(&store, ROOM, (0..100).map(|n| format!("{batch}-{n}")), NOON);
        batch += 1;
        // `current` begins with the number of the version; the first one has no table.
        let current = fs::read(folder.join(TIMELINE).with_file_name("current")).unwrap();
        current[..8] != [0; 8] && !tables(folder).is_empty()
    });
    store
}

/// Flips a bit in the first block of every table of messages; answers their names.
fn flip(folder: &Path) -> Vec<String> {
    let mut flipped = Vec::new();
    for path in tables(folder) {
        // A table that is just being written or removed is skipped.
        let Some(byte) = fs::read(&path).ok().and_then(|bytes| bytes.get(200).copied()) else { continue };
        // In place: the engine has the file open.
        let Ok(file) = fs::File::options().write(true).open(&path) else { continue };
        file.write_all_at(&[byte ^ 1], 200).unwrap();
        flipped.push(format!("{TIMELINE}/{}", path.file_name().unwrap().to_str().unwrap()));
    }
    flipped
}

fn names_one(text: &str, flipped: &[String]) -> bool {
    flipped.iter().any(|file| text.contains(file))
}

#[test]
fn a_read_that_meets_damage_makes_the_store_name_the_file() {
    let folder = scratch();
    let store = populated(folder.path());
    assert_eq!(store.damage(), None);
    let flipped = flip(folder.path());
    wait_until("the damage is read", || match store.entries(ROOM, 0, u64::MAX, usize::MAX, End::Oldest) {
        // Rows that are still in memory are read from there.
        Ok(_) => false,
        Err(error) => matches!(error, StoreError::Damaged(_)) || panic!("{error}"),
    });
    wait_until("the store names the damage", || store.damage().is_some());
    let trouble = store.damage().unwrap();
    assert!(names_one(&trouble, &flipped), "{trouble} names none of {flipped:?}");
    assert!(trouble.contains("`tidings check`") && trouble.contains("single-server.md#restore"), "{trouble}");
    drop(store);
    let refused = EmbeddedStore::open(options_of(folder.path())).err().map(|error| error.to_string());
    assert!(refused.as_ref().is_some_and(|why| names_one(why, &flipped)), "{refused:?}");
}

#[test]
fn an_engine_that_stops_over_a_damaged_table_is_not_restarted() {
    let folder = scratch();
    let store = populated(folder.path());
    let flipped = flip(folder.path());
    let mut sent = 0;
    let mut send = || {
        sent += 1;
        store.commit(&(0..100).map(|n| append(ROOM, &format!("after-{sent}-{n}"))).collect::<Vec<_>>(), NOON)
    };
    // The engine merges tables when there are enough of them, and meets the damage.
    let mut refused = None;
    wait_until("the engine stops", || {
        refused = send().err();
        refused.is_some()
    });
    // The first refusal says that the engine has stopped; from the second on the damage is known.
    for _ in 0..10 {
        let error = send().unwrap_err();
        assert!(matches!(&error, StoreError::Damaged(what) if names_one(what, &flipped)), "{refused:?}, then {error}");
    }
    assert!(store.damage().is_some_and(|trouble| names_one(&trouble, &flipped)), "{:?}", store.damage());
    assert!(store.user_no("u1").unwrap().is_some(), "undamaged rows are still read");
    drop(store);
    assert!(matches!(EmbeddedStore::open(options_of(folder.path())), Err(OpenError::Damaged(_))));
}
