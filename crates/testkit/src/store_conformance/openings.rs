//! Direct conversations that their first message opens, in one proposal with it.

use super::*;

pub(super) const CHECKS: &[Check] = &[
    ("the first message and its conversation are stored together", together),
    ("a rejected first message opens nothing", rejected),
    ("of two first messages one opens the conversation and the other is told which one", twice),
];

fn open(users: [UserNo; 2], entry: NewEntry) -> Proposal {
    Proposal::OpenDirect { new: Box::new(new_conversation("u1~u2", ConversationKind::Direct, &users)), entry }
}

fn conversations(store: &dyn Store, user: UserNo) -> usize {
    store.conversation_states(user, ConversationFilter::All, 10).unwrap().len()
}

fn together(store: &dyn Store) {
    let u = users(store, 2);
    let opened = commit(store, open([u[0], u[1]], message(u[0], "a")));
    let Outcome::Opened { conversation, appended } = opened else { panic!("{opened:?}") };
    assert_eq!((&*conversation.id, conversation.pair, conversation.member_count), ("u1~u2", Some((u[0], u[1])), 2));
    assert_eq!((appended.conversation, appended.seq, appended.duplicate), (conversation.no, 1, false));
    assert_eq!(appended.position, store.last_position(), "the position of the entry is that of the batch");
    assert_eq!(store.conversation(conversation.no).unwrap().as_ref(), Some(&conversation));
    let head = store.head(conversation.no).unwrap();
    assert_eq!((head.last_seq, head.last_position), (1, appended.position));
    for user in [u[0], u[1]] {
        let member = store.membership(conversation.no, user).unwrap().unwrap();
        assert_eq!((member.joined_seq, member.read_seq), (0, 0), "both read the first message");
        assert_eq!(conversations(store, user), 1);
    }
    // A retry finds the conversation, and then its own first result.
    let again = commit(store, open([u[0], u[1]], message(u[0], "a")));
    assert_eq!(again, Outcome::Conversation { conversation: conversation.clone(), created: false });
    let again = commit(store, append(conversation.no, message(u[0], "a")));
    assert_eq!(again.appended(), Some(&Appended { duplicate: true, ..appended }));
    let items = store.outbox(0, 10).unwrap();
    assert_eq!(items.iter().map(|item| item.seq).collect::<Vec<_>>(), [1], "it is told as any message is");
}

fn rejected(store: &dyn Store) {
    let u = users(store, 2);
    let before = store.last_position();
    let mut answer = message(u[0], "b");
    answer.message_details_mut().unwrap().reply_to = Some(AnsweredMessage::at(3));
    assert_eq!(commit(store, open([u[0], u[1]], answer)), Outcome::Rejected(Rejection::NoSuchEntry(3)));
    let unknown = UserNo(9);
    let nobody = Outcome::Rejected(Rejection::NoSuchUser(unknown));
    assert_eq!(commit(store, open([u[0], unknown], message(u[0], "c"))), nobody);
    assert!(store.conversation_no("u1~u2").unwrap().is_none());
    assert_eq!((conversations(store, u[0]), conversations(store, u[1])), (0, 0));
    assert_eq!(store.last_position(), before, "nothing was appended");
}

fn twice(store: &dyn Store) {
    let u = users(store, 2);
    let batch = [open([u[0], u[1]], message(u[0], "a")), open([u[0], u[1]], message(u[1], "b"))];
    let outcomes = store.commit(&batch, NOON).unwrap();
    let [Outcome::Opened { conversation, .. }, Outcome::Conversation { conversation: same, created: false }] =
        &outcomes[..]
    else {
        panic!("{outcomes:?}")
    };
    assert_eq!((conversation, store.head(conversation.no).unwrap().last_seq), (same, 1));
}
