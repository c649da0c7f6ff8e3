//! A write that failed was refused, and stays so: whatever of it the engine still held is not there after its fresh start,
//! nor when the store is opened again. Sent again, it is stored for the first time.
#![allow(clippy::unwrap_used)]

mod support;

use support::{little_room::LittleRoom, *};
use tidings_engine::{model::*, store::*};
use tidings_store::EmbeddedStore;

fn retry(store: &EmbeddedStore, proposal: &Proposal) -> Outcome {
    store.commit(std::slice::from_ref(proposal), NOON).unwrap().remove(0)
}

fn is_sound(store: &EmbeddedStore) {
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{report}");
}

fn large(room: ConversationNo, id: &str) -> Proposal {
    Proposal::Append {
        conversation: room,
        entry: NewEntry { body: format!("\"{:a>20000}\"", 1).into(), ..message(id) },
    }
}

#[test]
fn a_refused_send_is_not_there_until_it_is_sent_again() {
    let room_left = LittleRoom::alone();
    // The engine holds up to 8 KiB of a write back; more of one is in the file when it fails.
    for (left, is_large) in [(0, false), (1, false), (100, false), (0, true), (100, true), (19_000, true)] {
        let folder = scratch();
        let store = open(folder.path());
        let room = populate(&store);
        say(&store, room, ["before"], NOON);
        let send = if is_large { large(room, "refused") } else { append(room, "refused") };
        room_left.leave(folder.path(), left);
        store.commit(std::slice::from_ref(&send), NOON).unwrap_err();
        room_left.make();
        assert_eq!(said(&store, room), ["before"]);
        // What starts the engine afresh is another send.
        say(&store, room, ["after"], NOON);
        assert_eq!(said(&store, room), ["before", "after"], "{left} bytes were left");
        assert!(matches!(retry(&store, &send), Outcome::Appended(Appended { seq: 3, duplicate: false, .. })));
        drop(store);
        let store = open(folder.path());
        assert_eq!(said(&store, room), ["before", "after", "refused"]);
        is_sound(&store);
    }
}

#[test]
fn a_refused_removal_leaves_a_member() {
    let room_left = LittleRoom::alone();
    let folder = scratch();
    let store = open(folder.path());
    let room = populate(&store);
    let (conversation, add, remove) = (room, vec![], vec![UserNo(3)]);
    let removal = Proposal::ChangeMembers { conversation, add, remove, members_max: 10, notice: None };
    room_left.leave(folder.path(), 0);
    store.commit(std::slice::from_ref(&removal), NOON).unwrap_err();
    room_left.make();
    store.settle(Term(0)).unwrap();
    assert!(store.membership(room, UserNo(3)).unwrap().is_some());
    let Outcome::MembersChanged { removed, .. } = retry(&store, &removal) else { panic!("another outcome") };
    assert_eq!(removed, [UserNo(3)], "those who are told of it learn it now");
    is_sound(&store);
}

#[test]
fn what_is_written_beside_commits_is_there_or_not_once_it_is_settled() {
    let room_left = LittleRoom::alone();
    let folder = scratch();
    let store = open(folder.path());
    populate(&store);
    let write = || {
        let change = RowChange { key: b"key".to_vec(), value: Some(b"value".to_vec()) };
        store.write_rows(Term(0), RowSpace::Popups, vec![change])
    };
    room_left.leave(folder.path(), 0);
    assert!(matches!(write(), Err(StoreError::Unsure(_))));
    room_left.make();
    store.settle(Term(0)).unwrap();
    assert_eq!(store.row(RowSpace::Popups, b"key").unwrap(), None);
    write().unwrap();
    assert!(store.row(RowSpace::Popups, b"key").unwrap().is_some());
}

#[test]
fn what_was_refused_is_not_there_when_the_store_is_opened_again() {
    let room_left = LittleRoom::alone();
    let folder = scratch();
    let store = open(folder.path());
    let room = populate(&store);
    say(&store, room, ["before"], NOON);
    room_left.leave(folder.path(), 0);
    store.commit(&[append(room, "refused")], NOON).unwrap_err();
    room_left.make();
    drop(store);
    let store = open(folder.path());
    assert_eq!(said(&store, room), ["before"]);
    say(&store, room, ["refused"], NOON);
    is_sound(&store);
}

#[test]
fn an_engine_that_fails_again_and_again_keeps_what_it_acknowledged() {
    let room_left = LittleRoom::alone();
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
        room_left.leave(folder.path(), round * 40);
        store.commit(&[append(room, &refused)], NOON).unwrap_err();
        // Also when the fresh start meets the same.
        store.commit(&[append(room, &refused)], NOON).unwrap_err();
        room_left.make();
        store.settle(Term(0)).unwrap();
        assert_eq!(said(&store, room), acknowledged);
        assert_eq!(store.last_position(), acknowledged.len() as u64);
    }
    drop(store);
    let store = open(folder.path());
    assert_eq!(said(&store, room), acknowledged);
    is_sound(&store);
}
