//! Old entries are removed by age or by size, with all rows that belong to them; a conversation's newest entry stays.

use crate::support::*;
use std::time::Duration;
use tidings_domain::{model::*, store::*};
use tidings_store::EmbeddedStore;

/// Ten messages a day on five days, one of them with a large body; the last day is today.
fn five_days(store: &EmbeddedStore) -> ConversationNo {
    let room = populate(store);
    for day in 0..5 {
        say(store, room, (0..9).map(|n| format!("{day}-{n}")), NOON + day * DAY);
        let entry = NewEntry { body: format!("\"{:a>9000}\"", day).into(), ..message(&format!("{day}-9")) };
        store.commit(&[Proposal::Append { conversation: room, entry }], NOON + day * DAY).unwrap();
    }
    room
}

const TODAY: u64 = NOON + 4 * DAY;

fn by_age(days: u64) -> Retention {
    Retention { age_max: Some(Duration::from_millis(days * DAY)), bytes_max: None }
}

fn is_sound(store: &EmbeddedStore, entries: u64) {
    let report = store.check(tidings_popups::check_popups).unwrap();
    assert!(report.is_sound(), "{report}");
    assert_eq!((report.entries, report.dedupe_entries), (entries, entries));
}

fn holds(store: &EmbeddedStore, room: ConversationNo, first_seq: u64, last_seq: u64) {
    let head = store.head(room).unwrap();
    assert_eq!((head.first_seq, head.last_seq), (first_seq, last_seq));
    let entries = store.entries(room, 0, u64::MAX, 1_000, End::Oldest).unwrap();
    assert!(entries.into_iter().map(|entry| entry.seq).eq(first_seq..=last_seq));
    is_sound(store, last_seq - first_seq + 1);
}

#[test]
fn whole_days_are_removed_by_age() {
    let folder = scratch();
    let store = open(folder.path());
    let room = five_days(&store);
    let before = store.stats().timeline_bytes;
    assert_eq!(store.retain(Retention::default(), TODAY).unwrap(), 0);
    assert_eq!(store.retain(by_age(9), TODAY).unwrap(), 0);
    assert_eq!(store.retain(by_age(2), TODAY).unwrap(), 20);
    holds(&store, room, 21, 50);
    assert_eq!(store.retain(by_age(2), TODAY).unwrap(), 0);
    let after = store.stats().timeline_bytes;
    assert!(after * 5 > before * 2 && after * 5 < before * 4, "{before} to {after}");
    // A time before the oldest remaining entry is answered with that entry.
    assert_eq!(store.seq_at(room, NOON).unwrap(), 21);
    drop(store);
    let store = open(folder.path());
    holds(&store, room, 21, 50);
    // The id of a removed entry may be used again; the id of an entry that is still there may not.
    let outcomes = store.commit(&[append(room, "0-0"), append(room, "4-9")], TODAY).unwrap();
    assert!(matches!(outcomes[0], Outcome::Appended(Appended { seq: 51, duplicate: false, .. })));
    assert!(matches!(outcomes[1], Outcome::Appended(Appended { seq: 50, duplicate: true, .. })));
    holds(&store, room, 21, 51);
}

#[test]
fn the_oldest_days_are_removed_by_size_and_today_stays() {
    let folder = scratch();
    let store = open(folder.path());
    let room = five_days(&store);
    let bytes = store.stats().timeline_bytes;
    let keep = |bytes_max| Retention { age_max: None, bytes_max: Some(bytes_max) };
    assert_eq!(store.retain(keep(bytes), TODAY).unwrap(), 0);
    assert_eq!(store.retain(keep(bytes / 2), TODAY).unwrap(), 30);
    holds(&store, room, 31, 50);
    assert!(store.stats().timeline_bytes <= bytes / 2);
    assert_eq!(store.retain(keep(0), TODAY).unwrap(), 10);
    holds(&store, room, 41, 50);
}

#[test]
fn a_quiet_conversation_keeps_its_newest_entry_until_a_newer_one() {
    let folder = scratch();
    let store = open(folder.path());
    let room = five_days(&store);
    let quiet = group(&store, "empty");
    let much_later = TODAY + 5 * DAY;
    assert_eq!(store.retain(by_age(1), much_later).unwrap(), 49);
    holds(&store, room, 50, 50);
    assert_eq!(store.head(quiet).unwrap(), Head { first_seq: 1, ..Head::default() });
    drop(store);
    let store = open(folder.path());
    say(&store, room, ["after some days"], much_later);
    holds(&store, room, 50, 51);
    assert_eq!(store.retain(by_age(1), much_later).unwrap(), 1);
    holds(&store, room, 51, 51);
}

#[test]
fn entries_are_removed_in_batches_while_commits_go_on() {
    let folder = scratch();
    let store = open(folder.path());
    let room = populate(&store);
    for batch in 0..5 {
        say(&store, room, (0..700).map(|n| format!("{batch}-{n}")), NOON);
    }
    std::thread::scope(|scope| {
        let commits = scope.spawn(|| {
            for n in 0..200 {
                say(&store, room, [format!("new-{n}")], TODAY);
            }
        });
        // The newest old entry may be the newest of all at that moment, and is kept then.
        assert!(store.retain(by_age(1), TODAY).unwrap() >= 3_499);
        commits.join().unwrap();
    });
    store.retain(by_age(1), TODAY).unwrap();
    holds(&store, room, 3_501, 3_700);
}

#[test]
fn reads_during_retention_find_whole_large_entries() {
    let folder = scratch();
    let store = open(folder.path());
    let room = populate(&store);
    let large = |id: String| NewEntry { body: format!("\"{:a>9000}\"", 1).into(), ..message(&id) };
    for batch in 0..20 {
        let proposal = |n| Proposal::Append { conversation: room, entry: large(format!("{batch}-{n}")) };
        store.commit(&(0..20).map(proposal).collect::<Vec<_>>(), NOON + batch * DAY).unwrap();
    }
    std::thread::scope(|scope| {
        let removing = scope.spawn(|| {
            for day in 0..20 {
                store.retain(by_age(1), NOON + day * DAY).unwrap();
            }
        });
        while !removing.is_finished() {
            let found = store.entries(room, 0, u64::MAX, 1_000, End::Oldest).unwrap();
            assert!(found.windows(2).all(|pair| pair[0].seq + 1 == pair[1].seq), "no hole");
            assert!(found.iter().all(|entry| entry.content.body.len() == 9_002));
        }
        removing.join().unwrap();
    });
}

#[test]
fn a_clock_that_is_far_ahead_removes_nothing() {
    let folder = scratch();
    let store = open(folder.path());
    let room = five_days(&store);
    let in_a_year = TODAY + 365 * DAY;
    assert_eq!(store.retain(by_age(30), in_a_year).unwrap(), 0);
    holds(&store, room, 1, 50);
    let keep = |bytes_max| Retention { age_max: None, bytes_max: Some(bytes_max) };
    assert_eq!(store.retain(keep(0), in_a_year).unwrap(), 40, "the newest day stays");
    holds(&store, room, 41, 50);
    // A message of that time shows that the clock is right.
    say(&store, room, ["a year later"], in_a_year);
    assert_eq!(store.retain(by_age(30), in_a_year).unwrap(), 10);
    holds(&store, room, 51, 51);
}

#[test]
fn old_entries_are_removed_in_time_where_no_message_follows() {
    let folder = scratch();
    let store = open(folder.path());
    let room = five_days(&store);
    let runs = (0..60).map(|days| store.retain(by_age(30), TODAY + days * DAY).unwrap());
    assert_eq!(runs.sum::<u64>(), 49);
    holds(&store, room, 50, 50);
}
