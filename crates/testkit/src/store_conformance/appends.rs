//! Appending entries: sequences without a hole, and each send once.

use super::*;

pub(super) const CHECKS: &[Check] = &[
    ("sequences have no hole across interleaved conversations", interleaved),
    ("a retry answers the first result", retry),
    ("a retry inside its own batch answers the first result", retry_in_batch),
    ("two senders may use the same client message id", same_id_of_two_senders),
    ("a client message id of another conversation is refused", id_reused),
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

fn id_reused(store: &dyn Store) {
    let users = users(store, 1);
    let (one, two) = (group(store, "one", &users), group(store, "two", &users));
    commit(store, append(one, message(users[0], "id")));
    let reused = Outcome::Rejected(Rejection::ClientMsgIdReused);
    assert_eq!(commit(store, append(two, message(users[0], "id"))), reused);
    let batch = [append(two, message(users[0], "new")), append(one, message(users[0], "new"))];
    assert_eq!(store.commit(&batch, NOON).unwrap()[1], reused, "within one batch too");
    assert_eq!((store.head(one).unwrap().last_seq, store.head(two).unwrap().last_seq), (1, 1));
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
    let outcome = commit(store, append(ConversationNo(7), message(users[0], "a")));
    assert_eq!(outcome, Outcome::Rejected(Rejection::NoSuchConversation));
    assert_eq!(store.last_position(), 0);
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
