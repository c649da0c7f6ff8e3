//! A refused write is not stored: its bytes that the engine had still buffered show up neither after the engine's restart
//! nor when the store is opened again. When it is sent again, it is stored for the first time. A program of
//! its own: the limit on the size of files holds for the whole process.
// Slow: left out by `make test-quick`.
#![allow(clippy::unwrap_used)]

mod file_size_limit;
#[allow(dead_code)]
#[path = "it/support/mod.rs"]
mod support;

use file_size_limit::FileSizeLimit;
use support::*;
use tidings_domain::{model::*, store::*};
use tidings_store::EmbeddedStore;

fn retry(store: &EmbeddedStore, proposal: &Proposal) -> Outcome {
    store.commit(std::slice::from_ref(proposal), NOON).unwrap().remove(0)
}

fn is_sound(store: &EmbeddedStore) {
    let report = store.check(tidings_popups::check_popups).unwrap();
    assert!(report.is_sound(), "{report}");
}

fn large(room: ConversationNo, id: &str) -> Proposal {
    Proposal::Append {
        conversation: room,
        entry: NewEntry { body: format!("\"{:a>20000}\"", 1).into(), ..message(id) },
    }
}

#[test]
fn a_refused_send_is_stored_only_when_it_is_sent_again() {
    let limit = FileSizeLimit::exclusive();
    // The engine buffers up to 8 KiB of a write; the rest of a larger one is in the file when the write fails.
    for (left, is_large) in [(0, false), (1, false), (100, false), (0, true), (100, true), (19_000, true)] {
        let folder = scratch();
        let store = open(folder.path());
        let room = populate(&store);
        say(&store, room, ["before"], NOON);
        let send = if is_large { large(room, "refused") } else { append(room, "refused") };
        limit.leave_room(folder.path(), left);
        store.commit(std::slice::from_ref(&send), NOON).unwrap_err();
        limit.lift();
        assert_eq!(stored_ids(&store, room), ["before"]);
        // Another send makes the store restart the engine.
        say(&store, room, ["after"], NOON);
        assert_eq!(stored_ids(&store, room), ["before", "after"], "{left} bytes were left");
        assert!(matches!(retry(&store, &send), Outcome::Appended(Appended { seq: 3, duplicate: false, .. })));
        drop(store);
        let store = open(folder.path());
        assert_eq!(stored_ids(&store, room), ["before", "after", "refused"]);
        is_sound(&store);
    }
}

#[test]
fn a_refused_removal_of_a_member_is_not_stored() {
    let limit = FileSizeLimit::exclusive();
    let folder = scratch();
    let store = open(folder.path());
    let room = populate(&store);
    let (conversation, add, remove) = (room, vec![], vec![UserNo(3)]);
    let removal =
        Proposal::ChangeMembers { conversation, add, remove, heir: None, act: None, members_max: 10, notice: None };
    limit.leave_room(folder.path(), 0);
    store.commit(std::slice::from_ref(&removal), NOON).unwrap_err();
    limit.lift();
    store.fence_writes(Term::ALONE).unwrap();
    assert!(store.membership(room, UserNo(3)).unwrap().is_some());
    let Outcome::MembersChanged { removed, .. } = retry(&store, &removal) else { panic!("another outcome") };
    assert_eq!(removed, [UserNo(3)], "the removal is reported by its retry");
    is_sound(&store);
}

#[test]
fn a_write_of_rows_with_unknown_outcome_is_settled_after_a_restart() {
    let limit = FileSizeLimit::exclusive();
    let folder = scratch();
    let store = open(folder.path());
    populate(&store);
    let write = || {
        let change = RowChange { key: b"key".to_vec(), value: Some(b"value".to_vec()) };
        store.write_rows(Term::ALONE, RowSpace::Popups, vec![change])
    };
    limit.leave_room(folder.path(), 0);
    assert!(matches!(write(), Err(StoreError::OutcomeUnknown(_))));
    limit.lift();
    store.fence_writes(Term::ALONE).unwrap();
    assert_eq!(store.row(RowSpace::Popups, b"key").unwrap(), None);
    write().unwrap();
    assert!(store.row(RowSpace::Popups, b"key").unwrap().is_some());
}

#[test]
fn a_refused_send_is_not_stored_when_the_store_is_opened_again() {
    let limit = FileSizeLimit::exclusive();
    let folder = scratch();
    let store = open(folder.path());
    let room = populate(&store);
    say(&store, room, ["before"], NOON);
    limit.leave_room(folder.path(), 0);
    store.commit(&[append(room, "refused")], NOON).unwrap_err();
    limit.lift();
    drop(store);
    let store = open(folder.path());
    assert_eq!(stored_ids(&store, room), ["before"]);
    say(&store, room, ["refused"], NOON);
    is_sound(&store);
}

#[test]
fn acknowledged_sends_survive_repeated_failures_of_the_engine() {
    let limit = FileSizeLimit::exclusive();
    let folder = scratch();
    let store = open(folder.path());
    let room = populate(&store);
    let mut acknowledged = Vec::new();
    for round in 0..5 {
        let refused = format!("refused-{round}");
        for n in 0..3 {
            acknowledged.push(format!("{round}-{n}"));
            say(&store, room, acknowledged.last(), NOON);
        }
        limit.leave_room(folder.path(), round * 40);
        store.commit(&[append(room, &refused)], NOON).unwrap_err();
        // The first write after a restart may fail for the same reason.
        store.commit(&[append(room, &refused)], NOON).unwrap_err();
        limit.lift();
        store.fence_writes(Term::ALONE).unwrap();
        assert_eq!(stored_ids(&store, room), acknowledged);
        assert_eq!(store.last_position(), acknowledged.len() as u64);
    }
    drop(store);
    let store = open(folder.path());
    assert_eq!(stored_ids(&store, room), acknowledged);
    is_sound(&store);
}
