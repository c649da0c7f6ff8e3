//! Messages that grow: what is stored while they do, how they end, and the list of those that are open.

use super::*;
use tidings_domain::chat_rows::{stream_key, stream_of};

pub(super) const CHECKS: &[Check] = &[
    ("a message that grows is listed with its node until it is ended", listed),
    ("a checkpoint replaces the body and appends nothing", checkpoints),
    ("the end of a message that grew is the entry of a second version", ends),
    ("an interrupted message is ended without its sender, and made whole by an edit", interruptions),
    ("the recall of a message that grows ends it", recalls),
    ("an answer that grows is listed as any message is, and its retry is one", answers),
    ("a message is begun, checkpointed and ended in one batch", in_one_batch),
    ("what does not grow takes no checkpoint and no end", refused),
];

const END: MessageChange = MessageChange::EndStream { interrupted: false };
const INTERRUPT: MessageChange = MessageChange::EndStream { interrupted: true };
const EDIT: MessageChange = MessageChange::Edit { if_version: None, keep_replaced: true, edits_max: 100 };

/// A message that grows, and whose chunks node 7 takes.
fn growing(sender: UserNo, client_msg_id: &str) -> NewEntry {
    let details = MessageDetails { stream: StreamState::Open { node: 7 }, ..MessageDetails::NONE };
    let mentions = vec!["u2".into()];
    NewEntry {
        content_type: "answer".into(),
        mentions,
        details: Some(details.into()),
        ..message(sender, client_msg_id)
    }
}

fn change(conversation: ConversationNo, target: u64, change: MessageChange, by: UserNo, body: &str) -> Proposal {
    let kind = if change == MessageChange::Recall { EntryKind::Recall } else { EntryKind::Edit };
    let sender = Some(Sender { no: by, id: format!("u{}", by.0) });
    let entry = NewEntry { kind, sender, body: body.into(), ..notice(kind) };
    Proposal::ChangeMessage { conversation, target, change, entry }
}

fn checkpoint(conversation: ConversationNo, target: u64, body: &str) -> Proposal {
    Proposal::CheckpointStream { conversation, target, body: body.into() }
}

/// The messages that are listed as growing, with their nodes.
fn open(store: &dyn Store) -> Vec<(ConversationNo, u64, u64)> {
    let (from, to) = (stream_key(ConversationNo(0), 0), stream_key(ConversationNo(u64::MAX), u64::MAX));
    let rows = store.rows(RowSpace::Chat, &from, &to, 100).unwrap();
    let read = |(key, node): &(Vec<u8>, Vec<u8>)| {
        let (conversation, seq) = stream_of(key).unwrap();
        (conversation, seq, u64::from_be_bytes(node.as_slice().try_into().unwrap()))
    };
    rows.iter().map(read).collect()
}

fn entry(store: &dyn Store, conversation: ConversationNo, seq: u64) -> StoredEntry {
    store.entries(conversation, seq, seq, 1, End::Oldest).unwrap().remove(0)
}

fn changed(outcome: &Outcome) -> (Appended, u32) {
    match outcome {
        Outcome::MessageChanged { appended, version, .. } => (*appended, *version),
        other => panic!("not changed: {other:?}"),
    }
}

fn listed(store: &dyn Store) {
    let u = users(store, 2);
    let (room, other) = (group(store, "g", &u), group(store, "h", &u));
    commit(store, append(room, message(u[0], "a")));
    commit(store, append(room, growing(u[0], "b")));
    commit(store, append(other, growing(u[1], "c")));
    let mut both = [(room, 2, 7), (other, 1, 7)];
    both.sort_unstable();
    assert_eq!(open(store), both);
    let again = appended(&commit(store, append(room, growing(u[0], "b"))));
    assert!(again.duplicate && again.seq == 2);
    commit(store, change(room, 2, END, u[0], "{}"));
    assert_eq!(open(store), [(other, 1, 7)]);
}

fn checkpoints(store: &dyn Store) {
    let u = users(store, 2);
    let room = group(store, "g", &u);
    let begun = appended(&commit(store, append(room, growing(u[0], "a"))));
    for length in [10, 20_000, 3_000] {
        let body = format!("{{\"text\":{:?}}}", "x".repeat(length));
        let (outcomes, span) = store.commit_in_order(&[checkpoint(room, 1, &body)], NOON + 9).unwrap();
        assert_eq!(outcomes, [Outcome::Done]);
        assert_eq!(span.after, span.through, "a checkpoint takes no position");
        let stored = entry(store, room, 1);
        assert_eq!((&*stored.content.body, stored.at, stored.position), (&*body, begun.at, begun.position));
        assert_eq!(stored.content.message_details().stream, StreamState::Open { node: 7 });
        assert_eq!(stored.content.mentions, ["u2"]);
    }
    assert_eq!(store.head(room).unwrap().last_seq, 1);
    assert_eq!(open(store), [(room, 1, 7)]);
}

fn ends(store: &dyn Store) {
    let u = users(store, 2);
    let room = group(store, "g", &u);
    commit(store, append(room, growing(u[0], "a")));
    commit(store, checkpoint(room, 1, "\"half\""));
    let first = commit_at(store, change(room, 1, END, u[0], "\"whole\""), NOON + 5);
    let (place, version) = changed(&first);
    assert_eq!((place.seq, place.at, version, place.duplicate), (2, NOON + 5, 2, false));
    let message = entry(store, room, 1).content;
    assert_eq!(
        (&*message.body, &*message.content_type, &message.mentions[..]),
        ("\"whole\"", "answer", &["u2".into()][..])
    );
    let details = message.message_details();
    assert_eq!((details.version, &details.edited, &details.edits[..]), (2, &None, &[2][..]), "not shown as edited");
    assert_eq!((details.stream, details.stream_end), (StreamState::Whole, Some(2)));
    let end = entry(store, room, 2).content;
    assert_eq!((&*end.body, &*end.content_type, &end.mentions[..]), ("\"whole\"", "answer", &["u2".into()][..]));
    assert_eq!(end.edit_details(), Some(&EditDetails { target: 1, version: 2, ..EditDetails::default() }));
    let Outcome::MessageChanged { entry: Some(told), .. } = first else { panic!("the entry is told") };
    assert_eq!(*told, end, "nodes are told what is stored");
    let (again, version) = changed(&commit_at(store, change(room, 1, END, u[0], "\"other\""), NOON + 9));
    assert_eq!((again.seq, again.at, again.duplicate, version), (2, NOON + 5, true, 2));
    assert_eq!(&*entry(store, room, 1).content.body, "\"whole\"", "the first end counts");
    // An edit replaces what the message grew to.
    commit_at(store, change(room, 1, EDIT, u[0], "\"edited\""), NOON + 10);
    let replaced = entry(store, room, 3).content.edit_details().and_then(|edit| edit.replaced.clone()).unwrap();
    assert_eq!((&*replaced.body, replaced.at), ("\"whole\"", NOON));
    let edited = entry(store, room, 1).content.message_details().edited.clone();
    assert_eq!(edited.map(|edited| edited.at), Some(NOON + 10));
    let (again, version) = changed(&commit_at(store, change(room, 1, END, u[0], "\"other\""), NOON + 11));
    assert_eq!((again.seq, version), (2, 2), "the version of the end, not the newest");
}

fn answers(store: &dyn Store) {
    let u = users(store, 2);
    let room = group(store, "g", &u);
    commit(store, append(room, message(u[1], "question")));
    let mut answer = growing(u[0], "a");
    answer.message_details_mut().unwrap().reply_to = Some(AnsweredMessage::at(1));
    let outcome = commit(store, append(room, answer.clone()));
    let first = *outcome.appended().expect("an entry");
    assert_eq!((first.seq, first.duplicate), (2, false));
    assert_eq!(open(store), [(room, 2, 7)]);
    let again = commit(store, append(room, answer));
    assert_eq!(again.appended(), Some(&Appended { duplicate: true, ..first }));
    commit(store, change(room, 2, END, u[0], "{}"));
    assert_eq!(open(store), []);
}

fn interruptions(store: &dyn Store) {
    let u = users(store, 2);
    let room = group(store, "g", &u);
    commit(store, append(room, growing(u[0], "a")));
    let leave = Proposal::ChangeMembers {
        heir: None,
        act: None,
        conversation: room,
        add: vec![],
        remove: vec![u[0]],
        members_max: 9,
        notice: None,
    };
    commit(store, leave);
    let (place, _) = changed(&commit(store, change(room, 1, INTERRUPT, u[0], "\"half\"")));
    assert_eq!((place.seq, place.duplicate), (2, false));
    assert_eq!(entry(store, room, 1).content.message_details().stream, StreamState::Interrupted);
    assert!(entry(store, room, 2).content.edit_details().unwrap().interrupted);
    assert_eq!(open(store), []);
    for again in [END, INTERRUPT] {
        let outcome = commit(store, change(room, 1, again, u[1], "\"x\""));
        assert_eq!(outcome, Outcome::Rejected(Rejection::StreamEnded(1)));
    }
    let (_, version) = changed(&commit(store, change(room, 1, EDIT, u[1], "\"whole\"")));
    assert_eq!((version, entry(store, room, 1).content.message_details().stream), (3, StreamState::Whole));
}

fn recalls(store: &dyn Store) {
    let u = users(store, 2);
    let room = group(store, "g", &u);
    commit(store, append(room, growing(u[0], "a")));
    commit(store, checkpoint(room, 1, "\"half\""));
    commit(store, change(room, 1, MessageChange::Recall, u[0], "null"));
    assert_eq!(open(store), []);
    let message = entry(store, room, 1).content;
    assert_eq!((&*message.body, message.message_details().stream), ("null", StreamState::Whole));
    for late in [checkpoint(room, 1, "\"more\""), change(room, 1, END, u[0], "\"whole\"")] {
        assert_eq!(commit(store, late), Outcome::Rejected(Rejection::MessageRecalled(1)));
    }
    assert_eq!(&*entry(store, room, 1).content.body, "null");
}

fn in_one_batch(store: &dyn Store) {
    let u = users(store, 2);
    let room = group(store, "g", &u);
    let batch = [
        append(room, growing(u[0], "a")),
        checkpoint(room, 1, "\"half\""),
        change(room, 1, END, u[0], "\"whole\""),
        checkpoint(room, 1, "\"late\""),
        append(room, growing(u[0], "b")),
    ];
    let outcomes = store.commit(&batch, NOON).unwrap();
    assert_eq!(outcomes[3], Outcome::Rejected(Rejection::StreamEnded(1)));
    assert_eq!(&*entry(store, room, 1).content.body, "\"whole\"");
    assert_eq!(open(store), [(room, 3, 7)]);
}

fn refused(store: &dyn Store) {
    let u = users(store, 2);
    let room = group(store, "g", &u);
    commit(store, append(room, message(u[0], "a")));
    commit(store, append(room, growing(u[0], "b")));
    let before = store.entries(room, 1, 9, 9, End::Oldest).unwrap();
    for (proposal, rejection) in [
        (checkpoint(ConversationNo(99), 1, "1"), Rejection::NoSuchConversation),
        (checkpoint(room, 9, "1"), Rejection::NoSuchEntry(9)),
        (checkpoint(room, 1, "1"), Rejection::StreamEnded(1)),
        (change(room, 1, END, u[0], "1"), Rejection::StreamEnded(1)),
        (change(room, 1, INTERRUPT, u[0], "1"), Rejection::StreamEnded(1)),
        (change(room, 9, END, u[0], "1"), Rejection::NoSuchEntry(9)),
        (change(room, 2, EDIT, u[0], "1"), Rejection::StreamOpen(2)),
    ] {
        assert_eq!(commit(store, proposal.clone()), Outcome::Rejected(rejection), "{proposal:?}");
    }
    // Retention may have removed a message that was open when its node crashed.
    assert_eq!(commit(store, change(room, 9, INTERRUPT, u[0], "1")), Outcome::Done);
    assert_eq!(store.entries(room, 1, 9, 9, End::Oldest).unwrap(), before);
}
