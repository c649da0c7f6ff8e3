//! A node that does not know yet that a member has left accepts the member's sends; the database refuses them.

use crate::support::{postgres::*, *};
use tidings_domain::{model::*, store::*};
use tidings_store::PostgresStore;

fn change(room: ConversationNo, add: Vec<(UserNo, Role)>, remove: Vec<UserNo>) -> Proposal {
    // The notice names the user who left as its sender, and is accepted.
    Proposal::ChangeMembers {
        conversation: room,
        add,
        remove,
        heir: None,
        act: None,
        members_max: 10,
        notice: Some(notice()),
    }
}

fn notice() -> NewEntry {
    NewEntry { kind: EntryKind::MemberChange, client_msg_id: None, ..message("left") }
}

fn by(user: u64, room: ConversationNo, id: Option<&str>) -> Proposal {
    let (sender, client_msg_id) = (Some(Sender { no: UserNo(user), id: format!("u{user}") }), id.map(Into::into));
    Proposal::Append { conversation: room, entry: NewEntry { sender, client_msg_id, ..message("") } }
}

/// Whether a send is accepted as a batch of its own, and in a mixed batch, which is decided in memory.
fn sends(store: &PostgresStore, send: &Proposal) -> [bool; 2] {
    let beside = Proposal::SetLastSeen(vec![(UserNo(3), NOON)]);
    [vec![send.clone()], vec![send.clone(), beside]].map(|batch| match store.commit(&batch, NOON).unwrap().remove(0) {
        Outcome::Appended(_) => true,
        Outcome::Rejected(Rejection::NotAMember) => false,
        other => panic!("{other:?}"),
    })
}

#[test]
fn a_send_after_leaving_is_refused_in_every_kind_of_batch() {
    let server = PostgresServer::shared();
    let url = server.database();
    let [one, other] = [(); 2].map(|()| open_at(&url));
    let room = populate(&one);
    assert_eq!(sends(&one, &by(1, room, Some("before"))), [true, true]);
    other.commit(&[change(room, vec![], vec![UserNo(1)])], NOON).unwrap();
    let length = one.head(room).unwrap().last_seq;
    assert_eq!(sends(&one, &by(1, room, None)), [false, false]);
    assert_eq!(sends(&one, &by(1, room, Some("after"))), [false, false]);
    assert_eq!(one.head(room).unwrap().last_seq, length, "a refused send takes no sequence");
    assert_eq!(sends(&one, &by(1, room, Some("before"))), [true, true], "a retry gets the first result");
    assert_eq!(sends(&one, &by(2, room, None)), [true, true], "a member who stayed may send");
    // Other members' sends in the same batch are accepted.
    let outcomes = one.commit(&[by(2, room, Some("a")), by(1, room, Some("b")), by(3, room, Some("c"))], NOON).unwrap();
    let seqs: Vec<_> = outcomes.iter().map(|o| if let Outcome::Appended(a) = o { a.seq } else { 0 }).collect();
    assert_eq!(seqs, [length + 3, 0, length + 4]);
    let nowhere = one.commit(&[by(1, ConversationNo(99), None)], NOON).unwrap();
    assert_eq!(nowhere, [Outcome::Rejected(Rejection::NoSuchConversation)]);
    // The user joins again.
    other.commit(&[change(room, vec![(UserNo(1), Role::Member)], vec![])], NOON).unwrap();
    assert_eq!(sends(&one, &by(1, room, Some("back"))), [true, true]);
}

#[test]
fn a_send_is_judged_by_the_changes_before_it_in_its_batch() {
    let server = PostgresServer::shared();
    let store = open_at(&server.database());
    let room = populate(&store);
    let batch = [
        by(1, room, Some("a")),
        change(room, vec![], vec![UserNo(1)]),
        by(1, room, Some("b")),
        by(1, room, Some("a")),
        by(2, room, Some("c")),
        change(room, vec![(UserNo(1), Role::Member)], vec![]),
        by(1, room, Some("d")),
    ];
    let outcomes = store.commit(&batch, NOON).unwrap();
    let refused: Vec<_> = (0..7).filter(|n| matches!(outcomes[*n], Outcome::Rejected(Rejection::NotAMember))).collect();
    assert_eq!(refused, [2]);
}

#[test]
fn only_conversations_with_a_recent_leave_cost_extra_statements() {
    let server = PostgresServer::shared();
    let url = server.database();
    let store = open_at(&url);
    let room = populate(&store);
    let mixed = |id: &str| {
        let batch = [append(room, id), Proposal::SetLastSeen(vec![(UserNo(3), NOON)])];
        let before = (store.statements(), store.round_trips());
        store.commit(&batch, NOON).unwrap();
        (store.statements() - before.0, store.round_trips() - before.1)
    };
    let mut usual = mixed("a");
    usual = usual.min(mixed("b"));
    store.commit(&[change(room, vec![], vec![UserNo(3)])], NOON).unwrap();
    mixed("c");
    // Who is a member is read, and read again by the transaction that rests on it.
    assert_eq!(mixed("d"), (usual.0 + 2, usual.1 + 1));
    server.sql(&url, "UPDATE tidings.heads SET left_at = left_at - 60000");
    assert_eq!(mixed("e"), usual, "every node knows of the leave by now");
}
