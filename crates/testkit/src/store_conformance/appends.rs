//! Appending entries: sequences without a hole, and each send once.

use super::*;
use tidings_domain::request_digest::RequestHasher;
use tidings_protocol::error::{ErrorCode, Refusal};

pub(super) const CHECKS: &[Check] = &[
    ("sequences have no hole across interleaved conversations", interleaved),
    ("a retry answers the first result", retry),
    ("a retry inside its own batch answers the first result", retry_in_batch),
    ("two senders may use the same client message id", same_id_of_two_senders),
    ("a client message id stands for one request in each conversation", same_id_in_conversations),
    ("another request with a client message id is refused", id_reused),
    ("an id without an author is the conversation's", same_id_without_author),
    ("what the author may not do any more is refused unless it is a retry", refused_unless_retry),
    ("equal entries without a client message id are stored each", without_ids),
    ("a conversation that does not exist is refused", nowhere),
    ("a refused proposal does not affect the rest of its batch", refused_alone),
    ("entries are not dated back when the clock jumps back", clock_jumps_back),
];

fn interleaved(store: &dyn Store) {
    let users = users(store, 2);
    let rooms: Vec<_> = (0..3).map(|n| group(store, &format!("g{n}"), &users)).collect();
    let mut expected = [0; 3];
    let mut position = store.last_position();
    for batch in 0..20 {
        let proposals: Vec<_> = (0..=batch % 7)
            .map(|n| append(rooms[(batch + n * n) % 3], message(users[n % 2], &format!("{batch}-{n}"))))
            .collect();
        for (proposal, outcome) in proposals.iter().zip(store.commit(&proposals, NOON).unwrap()) {
            let Proposal::Append { conversation, .. } = proposal else { unreachable!() };
            let room = rooms.iter().position(|room| room == conversation).unwrap();
            expected[room] += 1;
            let found = appended(&outcome);
            assert_eq!((found.conversation, found.seq, found.duplicate), (*conversation, expected[room], false));
            assert!(found.position > position, "later commits have higher positions");
            position = found.position;
        }
        assert_eq!(store.last_position(), position);
    }
    for (room, last) in rooms.into_iter().zip(expected) {
        assert_eq!(store.head(room).unwrap().last_seq, last);
        let entries = store.entries(room, 1, u64::MAX, 1_000, End::Oldest).unwrap();
        assert_eq!(seqs(&entries), (1..=last).collect::<Vec<_>>());
        assert!(entries.windows(2).all(|pair| pair[0].position < pair[1].position));
    }
}

fn retry(store: &dyn Store) {
    let users = users(store, 1);
    let room = group(store, "g", &users);
    let first = appended(&commit(store, append(room, message(users[0], "once"))));
    fill(store, room, users[0], 30);
    let again = appended(&commit_at(store, append(room, message(users[0], "once")), NOON + 99_000));
    assert_eq!(again, Appended { duplicate: true, ..first });
    assert_eq!(store.head(room).unwrap().last_seq, 31);
}

fn retry_in_batch(store: &dyn Store) {
    let users = users(store, 1);
    let room = group(store, "g", &users);
    let batch = ["a", "b", "a", "a", "c"].map(|id| append(room, message(users[0], id)));
    let found: Vec<_> = store.commit(&batch, NOON).unwrap().iter().map(appended).collect();
    assert_eq!(
        found.iter().map(|a| (a.seq, a.duplicate)).collect::<Vec<_>>(),
        [(1, false), (2, false), (1, true), (1, true), (3, false)]
    );
    assert_eq!(found[2], Appended { duplicate: true, ..found[0] });
}

fn same_id_of_two_senders(store: &dyn Store) {
    let users = users(store, 2);
    let room = group(store, "g", &users);
    for (n, user) in users.into_iter().enumerate() {
        let found = appended(&commit(store, append(room, message(user, "same"))));
        assert_eq!((found.seq, found.duplicate), (n as u64 + 1, false));
    }
}

/// The entry of a request that asks for `body`.
pub(super) fn asking(body: &str, entry: NewEntry) -> NewEntry {
    let digest = Some(RequestHasher::new("send").json("body", body).digest());
    NewEntry { request: EntryRequest { digest, ..EntryRequest::default() }, ..entry }
}

/// Commits in one batch, and one by one: a store may decide the two in different ways.
fn same_id_in_conversations(store: &dyn Store) {
    let users = users(store, 2);
    let rooms = [group(store, "one", &users), group(store, "two", &users), group(store, "three", &users)];
    let send = |room: usize, id: &str| append(rooms[room], asking(&room.to_string(), message(users[0], id)));
    let places = |outcomes: Vec<Outcome>| -> Vec<_> {
        let place = |a: Appended| (a.conversation, a.seq, a.duplicate);
        outcomes.iter().map(|outcome| place(appended(outcome))).collect()
    };
    let [one, two, three] = rooms;
    let alone: Vec<_> = (0..3).map(|room| commit(store, send(room, "id"))).collect();
    assert_eq!(places(alone), [(one, 1, false), (two, 1, false), (three, 1, false)]);
    let batch = [send(0, "new"), send(1, "new"), send(0, "new"), send(1, "id"), send(2, "new"), send(1, "new")];
    let expected =
        [(one, 2, false), (two, 2, false), (one, 2, true), (two, 1, true), (three, 2, false), (two, 2, true)];
    assert_eq!(places(store.commit(&batch, NOON).unwrap()), expected);
    for id in ["id", "new"] {
        let again: Vec<_> = [2, 1, 0].map(|room| commit(store, send(room, id))).into();
        let seq = if id == "id" { 1 } else { 2 };
        assert_eq!(places(again), [(three, seq, true), (two, seq, true), (one, seq, true)]);
    }
    // Beside a proposal of another kind.
    let mixed = [Proposal::MarkRead { conversation: one, user: users[1], seq: 1 }, send(0, "mixed"), send(1, "mixed")];
    let outcomes = store.commit(&mixed, NOON).unwrap();
    assert_eq!(places(outcomes[1..].to_vec()), [(one, 3, false), (two, 3, false)]);
    let mixed = [send(1, "mixed"), send(0, "mixed"), Proposal::MarkRead { conversation: one, user: users[1], seq: 1 }];
    let outcomes = store.commit(&mixed, NOON).unwrap();
    assert_eq!(places(outcomes[..2].to_vec()), [(two, 3, true), (one, 3, true)]);
}

fn id_reused(store: &dyn Store) {
    let users = users(store, 2);
    let room = group(store, "g", &users);
    let send = |body: &str, id: &str| append(room, asking(body, message(users[0], id)));
    let reused = Outcome::Rejected(Rejection::ClientMsgIdReused);
    let first = appended(&commit(store, send("1", "id")));
    let again = Appended { duplicate: true, ..first };
    assert_eq!(commit(store, send("2", "id")), reused);
    assert_eq!(appended(&commit(store, send("1", "id"))), again);
    let batch = [send("3", "new"), send("4", "new"), send("3", "new"), send("2", "id")];
    let outcomes = store.commit(&batch, NOON).unwrap();
    assert_eq!((appended(&outcomes[0]).seq, &outcomes[1]), (2, &reused), "within one batch too");
    assert_eq!((appended(&outcomes[2]).seq, &outcomes[3]), (2, &reused));
    let mark = Proposal::MarkRead { conversation: room, user: users[1], seq: 1 };
    let outcomes = store.commit(&[mark, send("2", "id"), send("1", "id")], NOON).unwrap();
    assert_eq!((&outcomes[1], appended(&outcomes[2])), (&reused, again), "beside other proposals");
    let unknown = append(room, message(users[0], "id"));
    assert_eq!(appended(&commit(store, unknown)), again, "a request of which nothing is known is alike");
    commit(store, append(room, message(users[0], "old")));
    assert!(appended(&commit(store, send("5", "old"))).duplicate, "so is one after a first of which nothing is known");
    assert!(appended(&commit(store, append(room, asking("1", message(users[1], "id"))))).seq == 4, "another author");
    assert_eq!(store.head(room).unwrap().last_seq, 4);
    assert_eq!(store.entries(room, 1, 1, 1, End::Oldest).unwrap()[0].content, message(users[0], "id"));
}

fn same_id_without_author(store: &dyn Store) {
    let users = users(store, 1);
    let (one, two) = (group(store, "one", &users), group(store, "two", &users));
    let send = |room, body: &str| append(room, asking(body, NewEntry { sender: None, ..message(users[0], "id") }));
    let first = appended(&commit(store, send(one, "1")));
    let again = Appended { duplicate: true, ..first };
    assert_eq!(appended(&commit(store, send(one, "1"))), again);
    assert_eq!(commit(store, send(one, "2")), Outcome::Rejected(Rejection::ClientMsgIdReused));
    let batch = [send(two, "1"), send(one, "1"), send(two, "1"), append(one, message(users[0], "id"))];
    let found: Vec<_> = store.commit(&batch, NOON).unwrap().iter().map(appended).collect();
    assert_eq!((found[0].seq, found[0].duplicate, found[1]), (1, false, again), "another conversation");
    assert_eq!((found[2].seq, found[2].duplicate), (1, true));
    assert_eq!((found[3].seq, found[3].duplicate), (2, false), "an author's id is another one");
}

fn refused_unless_retry(store: &dyn Store) {
    let users = users(store, 1);
    let room = group(store, "g", &users);
    let refusal = Box::new(Refusal::new(ErrorCode::NotAMember, "gone"));
    let refused = Outcome::Rejected(Rejection::Refused(refusal.clone()));
    let gone = |entry: NewEntry| NewEntry {
        request: EntryRequest { refusal: Some(refusal.clone()), ..entry.request.clone() },
        ..entry
    };
    let send = |body: &str, id: &str| asking(body, message(users[0], id));
    let first = appended(&commit(store, append(room, send("1", "a"))));
    let batch = [append(room, gone(send("1", "a"))), append(room, gone(send("1", "b"))), append(room, send("1", "c"))];
    let outcomes = store.commit(&batch, NOON).unwrap();
    assert_eq!((appended(&outcomes[0]), &outcomes[1]), (Appended { duplicate: true, ..first }, &refused));
    assert_eq!(appended(&outcomes[2]).seq, 2, "others of the batch are stored");
    let other = append(room, gone(send("2", "a")));
    assert_eq!(commit(store, other), Outcome::Rejected(Rejection::ClientMsgIdReused));
    let details = MessageDetails { reply_to: Some(AnsweredMessage::at(1)), ..MessageDetails::NONE };
    let reply = gone(NewEntry { details: Some(details.into()), ..send("1", "d") });
    assert_eq!(commit(store, append(room, reply)), refused);
    let edit = gone(NewEntry { kind: EntryKind::Edit, ..send("1", "e") });
    let change = MessageChange::Edit { if_version: None, keep_replaced: false, edits_max: 9 };
    let edit = Proposal::ChangeMessage { conversation: room, target: 1, change, entry: edit };
    assert_eq!(commit(store, edit), refused);
    assert_eq!(store.head(room).unwrap().last_seq, 2);
}

fn without_ids(store: &dyn Store) {
    let users = users(store, 1);
    let room = group(store, "g", &users);
    let nameless = NewEntry { client_msg_id: None, ..message(users[0], "x") };
    let batch = [append(room, nameless.clone()), append(room, nameless), append(room, notice(EntryKind::Message))];
    let found: Vec<_> = store.commit(&batch, NOON).unwrap().iter().map(|o| appended(o).seq).collect();
    assert_eq!(found, [1, 2, 3]);
}

fn nowhere(store: &dyn Store) {
    let users = users(store, 1);
    let before = store.last_position();
    let outcome = commit(store, append(ConversationNo(7), message(users[0], "a")));
    assert_eq!(outcome, Outcome::Rejected(Rejection::NoSuchConversation));
    assert_eq!(store.last_position(), before);
}

fn refused_alone(store: &dyn Store) {
    let users = users(store, 1);
    let room = group(store, "g", &users);
    let batch = [
        append(room, message(users[0], "a")),
        append(ConversationNo(99), message(users[0], "b")),
        Proposal::MarkRead { conversation: room, user: UserNo(99), seq: 1 },
        append(room, message(users[0], "b")),
    ];
    let outcomes = store.commit(&batch, NOON).unwrap();
    assert_eq!(appended(&outcomes[0]).seq, 1);
    assert_eq!(outcomes[1], Outcome::Rejected(Rejection::NoSuchConversation));
    assert_eq!(outcomes[2], Outcome::Rejected(Rejection::NotAMember));
    assert_eq!(appended(&outcomes[3]).seq, 2, "the refused send has not used its id");
}

fn clock_jumps_back(store: &dyn Store) {
    let users = users(store, 1);
    let room = group(store, "g", &users);
    commit_at(store, append(room, message(users[0], "a")), NOON);
    let back = appended(&commit_at(store, append(room, message(users[0], "b")), NOON - 60_000));
    assert_eq!(back.at, NOON);
    assert_eq!(store.head(room).unwrap().last_at, NOON);
}
