//! Retention on PostgreSQL: whole parts of the timeline go, with all that belongs to them; a conversation's newest
//! entry stays.
#![allow(clippy::unwrap_used)]

mod support;

use std::{sync::Arc, time::Duration};
use support::{postgres::*, *};
use tidings_engine::{model::*, store::*};
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

/// The timeline holds these sequences, from whichever end it is read, and as many first results.
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
fn by_age_whole_days_go() {
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
    // Times before what is left are answered with the oldest that is.
    assert_eq!(store.seq_at(room, NOON).unwrap(), 21);
    assert_eq!(store.seq_at(room, NOON + 3 * DAY).unwrap(), 31);
    let left = "SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class WHERE relname ~ '^entries_[1-9]\\d+$'";
    assert_eq!(at.0.sql(&at.1, left).split(' ').count(), 4, "three days, and one made ahead");
    drop(store);
    let store = open_at(&at.1);
    holds(&at, &store, room, 21, 50);
    // The id of an entry that is gone may be used again; that of one that is here may not.
    let outcomes = store.commit(&[append(room, "0-0"), append(room, "4-9")], TODAY).unwrap();
    assert!(matches!(outcomes[0], Outcome::Appended(Appended { seq: 51, duplicate: false, .. })));
    assert!(matches!(outcomes[1], Outcome::Appended(Appended { seq: 50, duplicate: true, .. })));
    holds(&at, &store, room, 21, 51);
}

#[test]
fn by_size_the_oldest_days_go_and_today_stays() {
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
fn a_quiet_conversation_keeps_its_newest_entry_and_goes_on() {
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
    // The one that was kept goes with the next part.
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
    // It is so: somebody says something.
    say(&store, room, ["a year later"], in_a_year);
    assert_eq!(store.retain(by_age(30), in_a_year).unwrap(), 10);
    holds(&at, &store, room, 51, 51);
}

#[test]
fn an_id_whose_entry_is_gone_may_be_used_again_before_it_is_swept() {
    let (at, store) = database();
    let room = five_days(&store);
    let dropped = "SELECT max(last_position) FROM tidings.parts";
    let all = at.0.sql(&at.1, dropped);
    // As if all had been swept already: what retention leaves of first results stays.
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
fn parts_go_beside_commits_and_beside_another_nodes_retention() {
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
    // The newest of the old ones may have been the newest of all at that moment.
    assert!((599..=600).contains(&removed), "{removed}");
    let entries = store.entries(room, 0, u64::MAX, usize::MAX, End::Oldest).unwrap();
    assert_eq!(entries.len() as u64, 700 - removed);
    assert_eq!(entries.last().unwrap().seq, 700);
    assert!(entries.windows(2).all(|pair| pair[0].seq + 1 == pair[1].seq));
}

#[test]
fn a_clock_far_ahead_makes_the_part_that_it_needs() {
    let (at, store) = database();
    let room = populate(&store);
    say(&store, room, ["now"], NOON);
    say(&store, room, ["far ahead"], NOON + 100 * DAY);
    // Another node, with the right clock: entries are never dated back, so its parts are not enough.
    let other = open_at(&at.1);
    say(&other, room, ["back again"], NOON);
    assert_eq!(other.head(room).unwrap().last_at, NOON + 100 * DAY);
    assert_eq!(said(&other, room), ["now", "far ahead", "back again"]);
    // And one whose parts were dropped behind its back.
    let gone = 1 + (NOON + 300 * DAY) / DAY;
    say(&other, room, ["much later"], NOON + 300 * DAY);
    at.0.sql(&at.1, &format!("DROP TABLE tidings.entries_{}", gone + 1));
    say(&other, room, ["a day later"], NOON + 301 * DAY);
    assert_eq!(other.head(room).unwrap().last_seq, 5);
}

#[test]
fn parts_have_the_days_that_the_database_began_with() {
    let server = PostgresServer::shared();
    let url = server.database();
    let weeks = PostgresOptions { part_days: 7, ..options_at(&url) };
    let room = five_days(&PostgresStore::open(weeks).unwrap());
    let store = open_at(&url);
    assert_eq!(store.retain(by_age(2), TODAY).unwrap(), 0, "a part goes when all of it is old");
    assert_eq!(store.retain(by_age(2), TODAY + 9 * DAY).unwrap(), 49);
    assert_eq!(store.head(room).unwrap().first_seq, 50);
}

#[test]
fn a_page_is_read_from_the_parts_that_hold_it() {
    let (at, store) = database();
    let room = five_days(&store);
    drop(store);
    let before = looks(&at);
    let store = open_at(&at.1);
    let newest = store.entries(room, 1, 99, 5, End::Newest).unwrap();
    let oldest = store.entries(room, 1, 99, 5, End::Oldest).unwrap();
    assert_eq!((newest[0].seq, oldest[0].seq), (46, 1));
    drop(store);
    let looks: Vec<_> = looks(&at).into_iter().zip(before).map(|(after, before)| after - before).collect();
    assert_eq!(looks, [1, 1, 0, 1, 1], "one part, and one beyond it to see that it is another");
}

/// How often each part with entries was looked into, by sessions that have ended.
fn looks(at: &(Arc<PostgresServer>, String)) -> Vec<u64> {
    let open =
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tidings' AND datname = current_database()";
    while at.0.sql(&at.1, open) != "0" {}
    let scans = "SELECT string_agg((seq_scan + idx_scan)::text, ' ' ORDER BY relname) FROM pg_stat_user_tables \
                 WHERE relname ~ '^entries_[1-9]\\d+$' AND n_live_tup > 0";
    at.0.sql(&at.1, scans).split(' ').map(|scans| scans.parse().unwrap()).collect()
}
