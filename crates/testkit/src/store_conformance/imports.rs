//! Messages of another system: their own times, their ids, and what comes with them.

use super::*;
use std::time::Duration;

pub(super) const CHECKS: &[Check] = &[
    ("an imported message has its own time, and times never go back", own_times),
    ("an imported message is found by its id alone", found_by_id),
    ("an imported message needs the one ahead of it", needs_previous),
    ("the reactions to an imported message are their users', too", reactions),
    ("nobody is notified of an imported message", untold),
    ("retention counts from the import", retention),
];

const LONG_AGO: u64 = 1_100_000_000_000;
const DAY: u64 = 24 * 60 * 60 * 1_000;

fn imported(sender: UserNo, id: &str, sent_at: u64, imported_at: u64) -> NewEntry {
    let mut entry = message(sender, id);
    entry.details_mut().imported_at = Some(imported_at);
    let import = ImportRequest { sent_at, previous: None, reactions: Vec::new() };
    NewEntry { request: EntryRequest { import: Some(Box::new(import)), ..EntryRequest::default() }, ..entry }
}

fn behind(previous: &str, mut entry: NewEntry) -> NewEntry {
    entry.request.import.as_mut().unwrap().previous = Some(previous.into());
    entry
}

fn own_times(store: &dyn Store) {
    let users = users(store, 2);
    let room = group(store, "g", &users);
    // A sender who has left long ago is no member.
    let stranger = users[1];
    let change = |add: Vec<(UserNo, Role)>, remove| Proposal::ChangeMembers {
        conversation: room,
        add,
        remove,
        heir: None,
        act: None,
        members_max: 10,
        notice: None,
    };
    commit(store, change(vec![], vec![stranger]));
    let times = [(LONG_AGO, LONG_AGO), (LONG_AGO - 1, LONG_AGO), (LONG_AGO + 7, LONG_AGO + 7)];
    for (n, (sent_at, at)) in times.into_iter().enumerate() {
        let found = appended(&commit(store, append(room, imported(stranger, &format!("m{n}"), sent_at, NOON))));
        assert_eq!((found.seq, found.at, found.duplicate), (n as u64 + 1, at, false));
    }
    let live = appended(&commit_at(store, append(room, message(users[0], "live")), NOON + 1));
    assert_eq!((live.seq, live.at), (4, NOON + 1));
    let entries = store.entries(room, 1, u64::MAX, 10, End::Oldest).unwrap();
    assert!(entries[..3].iter().all(|entry| entry.content.is_imported() && entry.kept_since() == NOON));
    assert_eq!(entries.iter().map(|entry| entry.at).collect::<Vec<_>>(), [LONG_AGO, LONG_AGO, LONG_AGO + 7, NOON + 1]);
    assert_eq!(entries[3].kept_since(), NOON + 1);
    assert_eq!((store.seq_at(room, LONG_AGO + 1).unwrap(), store.seq_at(room, LONG_AGO + 8).unwrap()), (3, 4));
}

fn found_by_id(store: &dyn Store) {
    let users = users(store, 2);
    let room = group(store, "g", &users);
    let batch =
        [(0, "a"), (1, "b"), (1, "a")].map(|(user, id)| append(room, imported(users[user], id, LONG_AGO, NOON)));
    let places: Vec<_> = store.commit(&batch, NOON).unwrap().iter().map(appended).collect();
    let places: Vec<_> = places.iter().map(|place| (place.seq, place.duplicate)).collect();
    // Whoever sent it: a message of another system has one sender.
    assert_eq!(places, [(1, false), (2, false), (1, true)]);
    let again = appended(&commit(store, append(room, imported(users[0], "b", LONG_AGO, NOON))));
    assert_eq!((again.seq, again.duplicate), (2, true));
    // A member's own ids are others.
    let live = appended(&commit(store, append(room, message(users[0], "a"))));
    assert_eq!((live.seq, live.duplicate), (3, false));
    let asked =
        [(room, UserNo::NOBODY, "b"), (room, users[0], "a"), (room, users[1], "b"), (room, UserNo::NOBODY, "c")];
    assert_eq!(store.stored_seqs(&asked).unwrap(), [Some(2), Some(3), None, None]);
}

fn needs_previous(store: &dyn Store) {
    let users = users(store, 1);
    let room = group(store, "g", &users);
    let entry = |id: &str, previous: &str| append(room, behind(previous, imported(users[0], id, LONG_AGO, NOON)));
    let missing = [Outcome::Rejected(Rejection::PreviousNotStored)];
    assert_eq!(store.commit(&[entry("b", "a")], NOON).unwrap(), missing);
    let first = append(room, imported(users[0], "a", LONG_AGO, NOON));
    let outcomes = store.commit(&[first, entry("b", "a"), entry("d", "c"), entry("c", "b")], NOON).unwrap();
    assert_eq!(outcomes[2..3], missing);
    let seqs = [0, 1, 3].map(|n| appended(&outcomes[n]).seq);
    assert_eq!(seqs, [1, 2, 3]);
    // What is stored already needs nothing.
    assert!(appended(&commit(store, entry("b", "gone"))).duplicate);
}

fn reactions(store: &dyn Store) {
    let users = users(store, 2);
    let room = group(store, "g", &users);
    let mut entry = imported(users[0], "a", LONG_AGO, NOON);
    let sender = Sender { no: users[1], id: "u2".into() };
    let count = ReactionCount { key: "+1".into(), count: 1, newest: vec![sender.clone()] };
    entry.message_details_mut().unwrap().reactions = vec![count.clone()];
    entry.request.import.as_mut().unwrap().reactions = vec![(users[1], vec!["+1".into()])];
    commit(store, append(room, entry));
    let found = store.entries(room, 1, 1, 1, End::Oldest).unwrap();
    assert_eq!(found[0].content.message_details().reactions, [count]);
    let react = |add| Proposal::React {
        conversation: room,
        target: 1,
        user: sender.clone(),
        key: "+1".into(),
        add,
        keys_max: 20,
        interval_ms: 1_000,
    };
    // The user's own reaction is known: a second one changes nothing, and it can be taken back.
    let changed = |outcome| matches!(outcome, Outcome::Reacted { changed: true, .. });
    assert!(!changed(commit(store, react(true))) && changed(commit(store, react(false))));
}

fn untold(store: &dyn Store) {
    let users = users(store, 1);
    let room = group(store, "g", &users);
    commit(store, append(room, imported(users[0], "a", LONG_AGO, NOON)));
    assert!(store.outbox(0, 10).unwrap().is_empty());
    commit(store, append(room, message(users[0], "live")));
    assert_eq!(store.outbox(0, 10).unwrap().len(), 1);
}

/// The store in memory keeps everything.
fn retention(store: &dyn Store) {
    let users = users(store, 1);
    let room = group(store, "g", &users);
    for n in 0..3 {
        let entry = imported(users[0], &format!("m{n}"), LONG_AGO + n, NOON);
        commit_at(store, append(room, entry), NOON);
    }
    let kept = Retention { age_max: Some(Duration::from_millis(30 * DAY)), bytes_max: None };
    assert_eq!(store.retain(kept, NOON + DAY).unwrap(), 0);
    assert_eq!(store.entries(room, 1, u64::MAX, 10, End::Oldest).unwrap().len(), 3);
    commit_at(store, append(room, message(users[0], "live")), NOON + 40 * DAY);
    let removed = store.retain(kept, NOON + 60 * DAY).unwrap();
    assert!(removed == 3 || removed == 0, "{removed}");
    let left = store.entries(room, 1, u64::MAX, 10, End::Oldest).unwrap().len() as u64;
    assert_eq!(left, 4 - removed);
}
