//! A conversation may keep its messages longer or shorter than all others, on both stores, and in a legal hold keeps all.

use crate::support::{postgres::*, *};
use std::time::Duration;
use tidings_domain::{model::*, store::*};

const TODAY: u64 = NOON + 9 * DAY;

fn by_age(days: u64) -> Retention {
    Retention { age_max: Some(Duration::from_millis(days * DAY)), bytes_max: None }
}

/// The first and the last `seq`, and that all between is there, from whichever end it is read.
fn range(store: &dyn Store, room: ConversationNo) -> (u64, u64) {
    let head = store.head(room).unwrap();
    for end in [End::Oldest, End::Newest] {
        let entries = store.entries(room, 0, u64::MAX, 1_000, end).unwrap();
        assert!(entries.into_iter().map(|entry| entry.seq).eq(head.first_seq..=head.last_seq));
    }
    (head.first_seq, head.last_seq)
}

/// Ten messages a day on five days in three conversations.
fn five_days(store: &dyn Store) -> [ConversationNo; 3] {
    populate(store);
    let rooms = ["one", "two", "three"].map(|id| group(store, id));
    for day in 0..5 {
        for room in rooms {
            say(store, room, (0..10).map(|n| format!("{day}-{n}")), NOON + day * DAY);
        }
    }
    rooms
}

fn check(store: &dyn Store) {
    let [plain, longer, shorter] = five_days(store);
    let except = [longer, shorter];
    assert_eq!(store.retain_but(by_age(7), &except, TODAY).unwrap(), 20);
    assert_eq!([plain, longer, shorter].map(|room| range(store, room)), [(21, 50), (1, 50), (1, 50)]);
    let bytes = store.stats().timeline_bytes;
    let done = store.retain_in(shorter, by_age(6), TODAY).unwrap();
    assert_eq!((done.removed, done.kept_from), (30, Some(TODAY - 6 * DAY)));
    assert_eq!(range(store, shorter), (31, 50));
    assert!(store.stats().timeline_bytes < bytes);
    assert_eq!(store.retain_in(longer, by_age(9), TODAY).unwrap().removed, 0);
    assert_eq!(store.retain_in(longer, by_age(8), TODAY).unwrap().removed, 10);
    assert_eq!(range(store, longer), (11, 50));
    // The id of a removed message may be used again; that of one that is there may not.
    let outcomes = store.commit(&[append(longer, "0-0"), append(longer, "4-9")], TODAY).unwrap();
    assert!(matches!(outcomes[0], Outcome::Appended(Appended { seq: 51, duplicate: false, .. })));
    assert!(matches!(outcomes[1], Outcome::Appended(Appended { seq: 50, duplicate: true, .. })));
    // All but the newest, from both what was moved aside and what is where it was.
    assert_eq!(store.retain_in(longer, by_age(1), TODAY).unwrap().removed, 40);
    assert_eq!(range(store, longer), (51, 51));
    // What is no exception any more goes with the others.
    assert_eq!(store.retain_but(by_age(5), &[shorter], TODAY).unwrap(), 20);
    assert_eq!(range(store, plain), (41, 50));
    say(store, shorter, ["new".to_owned()], TODAY);
    let removed = store.retain_but(by_age(1), &[], TODAY + 5 * DAY).unwrap();
    assert!(removed >= 20, "{removed}");
    assert_eq!(range(store, shorter), (51, 51));
    // A clock that is far ahead removes nothing.
    let in_a_year = store.retain_in(plain, by_age(1), TODAY + 365 * DAY).unwrap();
    assert_eq!(in_a_year, RetainedIn { removed: 0, kept_from: None });
}

#[test]
fn a_data_folder_removes_by_conversation() {
    let folder = scratch();
    let store = open(folder.path());
    check(&store);
    let report = store.check(tidings_popups::check_popups).unwrap();
    assert!(report.is_sound(), "{report}");
}

#[test]
fn postgres_removes_by_conversation() {
    check(&open_at(&PostgresServer::shared().database()));
}
