//! Retention on PostgreSQL: whole partitions of the timeline are dropped, with all rows that belong to them. A
//! conversation's newest entry stays.

use crate::support::{postgres::*, *};
use std::{sync::Arc, time::Duration};
use tidings_domain::{model::*, store::*};
use tidings_store::{PostgresOptions, PostgresStore};

const TODAY: u64 = NOON + 4 * DAY;

/// Ten messages a day on five days, one of them with a large body; the last day is today.
fn five_days(store: &PostgresStore) -> ConversationNo {
    let room = populate(store);
    for day in 0..5 {
        say(store, room, (0..9).map(|n| format!("{day}-{n}")), NOON + day * DAY);
        let entry = NewEntry { body: format!("\"{:a>9000}\"", day).into(), ..message(&format!("{day}-9")) };
        store.commit(&[Proposal::Append { conversation: room, entry }], NOON + day * DAY).unwrap();
    }
    room
}

fn by_age(days: u64) -> Retention {
    Retention { age_max: Some(Duration::from_millis(days * DAY)), bytes_max: None }
}

/// Asserts that the timeline holds these sequences, from whichever end it is read, and as many first results.
fn holds(
    at: &(Arc<PostgresServer>, String),
    store: &PostgresStore,
    room: ConversationNo,
    first_seq: u64,
    last_seq: u64,
) {
    let head = store.head(room).unwrap();
    assert_eq!((head.first_seq, head.last_seq), (first_seq, last_seq));
    for end in [End::Oldest, End::Newest] {
        let entries = store.entries(room, 0, u64::MAX, 1_000, end).unwrap();
        assert!(entries.into_iter().map(|entry| entry.seq).eq(first_seq..=last_seq));
        for limit in [1, 7, 15] {
            let page = store.entries(room, first_seq, last_seq, limit, end).unwrap();
            assert_eq!(page.len() as u64, (limit as u64).min(last_seq - first_seq + 1));
            let edge = if end == End::Oldest { page.first() } else { page.last() };
            assert_eq!(edge.unwrap().seq, if end == End::Oldest { first_seq } else { last_seq });
        }
    }
    let sends = format!("SELECT count(*) FROM tidings.dedupe WHERE conversation = {}", room.0);
    assert_eq!(at.0.sql(&at.1, &sends), (last_seq - first_seq + 1).to_string());
}

fn database() -> ((Arc<PostgresServer>, String), PostgresStore) {
    let server = PostgresServer::shared();
    let url = server.database();
    let store = open_at(&url);
    ((server, url), store)
}

#[test]
fn whole_days_are_removed_by_age() {
    let (at, store) = database();
    let room = five_days(&store);
    let before = store.stats().timeline_bytes;
    assert_eq!(store.retain(Retention::default(), TODAY).unwrap(), 0);
    assert_eq!(store.retain(by_age(9), TODAY).unwrap(), 0);
    assert_eq!(store.retain(by_age(2), TODAY).unwrap(), 20);
    holds(&at, &store, room, 21, 50);
    assert_eq!(store.retain(by_age(2), TODAY).unwrap(), 0);
    let after = store.stats().timeline_bytes;
    assert!(after * 5 > before * 2 && after * 5 < before * 4, "{before} to {after}");
    assert!(store.stats().disk_bytes > after);
    // A time before the oldest remaining entry is answered with that entry.
    assert_eq!(store.seq_at(room, NOON).unwrap(), 21);
    assert_eq!(store.seq_at(room, NOON + 3 * DAY).unwrap(), 31);
    let left = "SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class WHERE relname ~ '^entries_[1-9]\\d+$'";
    assert_eq!(at.0.sql(&at.1, left).split(' ').count(), 4, "three days, and the partition made ahead");
    drop(store);
    let store = open_at(&at.1);
    holds(&at, &store, room, 21, 50);
    // The id of a removed entry may be used again; the id of an entry that is still there may not.
    let outcomes = store.commit(&[append(room, "0-0"), append(room, "4-9")], TODAY).unwrap();
    assert!(matches!(outcomes[0], Outcome::Appended(Appended { seq: 51, duplicate: false, .. })));
    assert!(matches!(outcomes[1], Outcome::Appended(Appended { seq: 50, duplicate: true, .. })));
    holds(&at, &store, room, 21, 51);
}

#[test]
fn the_oldest_days_are_removed_by_size_and_today_stays() {
    let (at, store) = database();
    let room = five_days(&store);
    let bytes = store.stats().timeline_bytes;
    let keep = |bytes_max| Retention { age_max: None, bytes_max: Some(bytes_max) };
    assert_eq!(store.retain(keep(bytes), TODAY).unwrap(), 0);
    assert_eq!(store.retain(keep(bytes / 2), TODAY).unwrap(), 30);
    holds(&at, &store, room, 31, 50);
    assert!(store.stats().timeline_bytes <= bytes / 2);
    assert_eq!(store.retain(keep(0), TODAY).unwrap(), 10);
    holds(&at, &store, room, 41, 50);
}

#[test]
fn a_quiet_conversation_keeps_its_newest_entry_until_a_newer_one() {
    let (at, store) = database();
    let room = five_days(&store);
    let quiet = group(&store, "empty");
    let much_later = TODAY + 5 * DAY;
    assert_eq!(store.retain(by_age(1), much_later).unwrap(), 49);
    holds(&at, &store, room, 50, 50);
    assert_eq!(store.head(quiet).unwrap(), Head { first_seq: 1, ..Head::default() });
    let again = store.commit(&[append(room, "4-9")], much_later).unwrap().remove(0);
    assert!(matches!(again, Outcome::Appended(Appended { seq: 50, duplicate: true, .. })));
    say(&store, room, ["after some days"], much_later);
    holds(&at, &store, room, 50, 51);
    // The kept entry is removed with the next partition.
    assert_eq!(store.retain(by_age(1), much_later).unwrap(), 0);
    assert_eq!(store.retain(by_age(1), much_later + 2 * DAY).unwrap(), 1);
    assert_eq!(store.head(room).unwrap().first_seq, 51);
    assert_eq!(store.entries(room, 0, 99, 99, End::Oldest).unwrap().len(), 1);
}

#[test]
fn a_clock_that_is_far_ahead_removes_nothing() {
    let (at, store) = database();
    let room = five_days(&store);
    let in_a_year = TODAY + 365 * DAY;
    assert_eq!(store.retain(by_age(30), in_a_year).unwrap(), 0);
    holds(&at, &store, room, 1, 50);
    let keep = |bytes_max| Retention { age_max: None, bytes_max: Some(bytes_max) };
    assert_eq!(store.retain(keep(0), in_a_year).unwrap(), 40, "the newest day stays");
    holds(&at, &store, room, 41, 50);
    // A message of that time shows that the clock is right.
    say(&store, room, ["a year later"], in_a_year);
    assert_eq!(store.retain(by_age(30), in_a_year).unwrap(), 10);
    holds(&at, &store, room, 51, 51);
}

#[test]
fn the_id_of_a_removed_entry_may_be_used_before_it_is_swept() {
    let (at, store) = database();
    let room = five_days(&store);
    let dropped = "SELECT max(last_position) FROM tidings.parts";
    let all = at.0.sql(&at.1, dropped);
    // As if all positions were swept already, so that retention leaves the first results.
    at.0.sql(&at.1, &format!("UPDATE tidings.history SET dedupe_swept = {all}"));
    assert_eq!(store.retain(by_age(2), TODAY).unwrap(), 20);
    assert_eq!(at.0.sql(&at.1, "SELECT count(*) FROM tidings.dedupe"), "50");
    let outcomes = store.commit(&[append(room, "0-0"), append(room, "1-1"), append(room, "0-0")], TODAY).unwrap();
    let found = outcomes.iter().map(|outcome| match outcome {
        Outcome::Appended(appended) => (appended.seq, appended.duplicate),
        other => panic!("{other:?}"),
    });
    assert_eq!(found.collect::<Vec<_>>(), [(51, false), (52, false), (51, true)]);
}

#[test]
fn partitions_are_dropped_during_commits_and_another_nodes_retention() {
    let (at, store) = database();
    let room = populate(&store);
    for day in 0..6 {
        say(&store, room, (0..100).map(|n| format!("{day}-{n}")), NOON + day * DAY);
    }
    let now = NOON + 7 * DAY;
    let other = open_at(&at.1);
    let removed = std::thread::scope(|scope| {
        let commits = scope.spawn(|| {
            for n in 0..100 {
                say(&store, room, [format!("new-{n}")], now);
            }
        });
        let retained = [&store, &other].map(|store| scope.spawn(|| store.retain(by_age(1), now)));
        let removed: u64 = retained.into_iter().map(|one| one.join().unwrap().unwrap()).sum();
        commits.join().unwrap();
        removed
    });
    // The newest old entry may have been the newest of all at that moment, and was kept.
    assert!((599..=600).contains(&removed), "{removed}");
    let entries = store.entries(room, 0, u64::MAX, usize::MAX, End::Oldest).unwrap();
    assert_eq!(entries.len() as u64, 700 - removed);
    assert_eq!(entries.last().unwrap().seq, 700);
    assert!(entries.windows(2).all(|pair| pair[0].seq + 1 == pair[1].seq));
}

#[test]
fn a_missing_partition_is_created_when_a_clock_is_far_ahead() {
    let (at, store) = database();
    let room = populate(&store);
    say(&store, room, ["now"], NOON);
    say(&store, room, ["far ahead"], NOON + 100 * DAY);
    // Another node has the right clock. Entries are never dated back, so it needs the far partition too.
    let other = open_at(&at.1);
    say(&other, room, ["back again"], NOON);
    assert_eq!(other.head(room).unwrap().last_at, NOON + 100 * DAY);
    assert_eq!(stored_ids(&other, room), ["now", "far ahead", "back again"]);
    // A partition that the node knows was dropped by another program.
    let gone = 1 + (NOON + 300 * DAY) / DAY;
    say(&other, room, ["much later"], NOON + 300 * DAY);
    at.0.sql(&at.1, &format!("DROP TABLE tidings.entries_{}", gone + 1));
    say(&other, room, ["a day later"], NOON + 301 * DAY);
    assert_eq!(other.head(room).unwrap().last_seq, 5);
}

#[test]
fn partitions_keep_the_days_that_the_database_began_with() {
    let server = PostgresServer::shared();
    let url = server.database();
    let weeks = PostgresOptions { part_days: 7, ..options_at(&url) };
    let room = five_days(&PostgresStore::open(weeks).unwrap());
    let store = open_at(&url);
    assert_eq!(store.retain(by_age(2), TODAY).unwrap(), 0, "a partition is dropped when all of it is old");
    assert_eq!(store.retain(by_age(2), TODAY + 9 * DAY).unwrap(), 49);
    assert_eq!(store.head(room).unwrap().first_seq, 50);
}

#[test]
fn a_page_is_read_from_the_partitions_that_hold_it() {
    let (at, store) = database();
    let room = five_days(&store);
    drop(store);
    let before = scans(&at);
    let store = open_at(&at.1);
    let newest = store.entries(room, 1, 99, 5, End::Newest).unwrap();
    let oldest = store.entries(room, 1, 99, 5, End::Oldest).unwrap();
    assert_eq!((newest[0].seq, oldest[0].seq), (46, 1));
    drop(store);
    let scans: Vec<_> = scans(&at).into_iter().zip(before).map(|(after, before)| after - before).collect();
    assert_eq!(scans, [1, 1, 0, 1, 1], "for each page its partition and the next one");
}

/// How often each partition with entries was scanned, by sessions that have ended.
fn scans(at: &(Arc<PostgresServer>, String)) -> Vec<u64> {
    let open =
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tidings' AND datname = current_database()";
    while at.0.sql(&at.1, open) != "0" {}
    let scans = "SELECT string_agg((seq_scan + idx_scan)::text, ' ' ORDER BY relname) FROM pg_stat_user_tables \
                 WHERE relname ~ '^entries_[1-9]\\d+$' AND n_live_tup > 0";
    at.0.sql(&at.1, scans).split(' ').map(|scans| scans.parse().unwrap()).collect()
}
