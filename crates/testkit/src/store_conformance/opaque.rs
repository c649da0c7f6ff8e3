//! What a later version has written passes through unharmed: entries of its kinds, and its fields in entries of known kinds.

use super::*;

pub(super) const CHECKS: &[Check] = &[
    ("entries of kinds of a later version are stored, ordered and read as they are", entries_of_later_kinds),
    ("fields of a later version stay when their message is changed, and go when it is recalled", later_fields),
];

/// An entry as a node of a later version writes it.
fn later(number: u8, sender: UserNo, id: &str, details: &str) -> NewEntry {
    let kind = EntryKind::of_number(number);
    let details = EntryDetails::parse(kind, details.as_bytes()).unwrap();
    NewEntry { kind, silent: number.is_multiple_of(2), details: Some(Box::new(details)), ..message(sender, id) }
}

fn all(store: &dyn Store, room: ConversationNo) -> Vec<StoredEntry> {
    store.entries(room, 1, u64::MAX, 1_000, End::Oldest).unwrap()
}

fn entries_of_later_kinds(store: &dyn Store) {
    let u = users(store, 2);
    let room = group(store, "g", &u);
    let large = format!(r#"{{"votes":"{:a>9000}"}}"#, 1);
    let written = [
        message(u[0], "a"),
        later(9, u[0], "b", r#"{"target":1,"votes":{"u1":[1.50,null]}}"#),
        later(255, u[1], "c", r#"["anything"]"#),
        NewEntry { body: large.as_str().into(), mentions: vec!["u1".into()], ..later(10, u[1], "d", &large) },
        NewEntry { details: None, ..later(11, u[0], "e", "") },
        message(u[1], "f"),
    ];
    for (seq, entry) in (1..).zip(&written) {
        let place = appended(&commit(store, append(room, entry.clone())));
        assert_eq!((place.seq, place.duplicate), (seq, false));
        let again = appended(&commit(store, append(room, entry.clone())));
        assert_eq!((again.seq, again.duplicate), (seq, true), "a retry finds the first result");
    }
    let read = all(store, room);
    assert_eq!(read.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    assert!(read.iter().zip(&written).all(|(read, written)| read.content == *written), "{read:#?}");
    let pushed: Vec<u64> = store.outbox(0, 100).unwrap().iter().map(|item| item.seq).collect();
    assert_eq!(pushed, [1, 6], "only messages are pushed");
    let edit = NewEntry { client_msg_id: None, ..message(u[0], "") };
    for (target, expected) in [(2, Some(Rejection::NotAMessage(2))), (4, Some(Rejection::NotAMessage(4))), (1, None)] {
        let change = MessageChange::Edit { if_version: None, keep_replaced: false, edits_max: 9 };
        let entry = NewEntry { kind: EntryKind::Edit, ..edit.clone() };
        match (commit(store, Proposal::ChangeMessage { conversation: room, target, change, entry }), expected) {
            (Outcome::Rejected(rejection), Some(expected)) => assert_eq!(rejection, expected),
            (Outcome::MessageChanged { .. }, None) => {}
            (other, _) => panic!("{other:?}"),
        }
    }
    assert_eq!(all(store, room)[1..5], read[1..5], "they are as they were");
    assert_eq!(store.head(room).unwrap().last_seq, 7);
}

fn later_fields(store: &dyn Store) {
    let u = users(store, 1);
    let room = group(store, "g", &u);
    commit(store, append(room, later(1, u[0], "a", r#"{"later":[1.50],"reply_to":0}"#)));
    let unknown = || all(store, room)[0].content.details.as_ref().and_then(|details| details.unknown.clone());
    assert_eq!(unknown().as_deref(), Some(r#""later":[1.50]"#));
    let change = |change, kind, body: &str| {
        let entry = NewEntry { kind, client_msg_id: None, body: body.into(), ..message(u[0], "") };
        let proposal = Proposal::ChangeMessage { conversation: room, target: 1, change, entry };
        assert!(matches!(commit(store, proposal), Outcome::MessageChanged { .. }));
    };
    let edit = || MessageChange::Edit { if_version: None, keep_replaced: false, edits_max: 9 };
    change(edit(), EntryKind::Edit, r#""new""#);
    assert_eq!(unknown().as_deref(), Some(r#""later":[1.50]"#));
    assert_eq!(&*all(store, room)[0].content.body, r#""new""#);
    change(MessageChange::Recall, EntryKind::Recall, "null");
    assert_eq!(unknown(), None, "it may be a part of the body");
}
