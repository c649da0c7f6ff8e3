//! Edits and recalls: where bodies are and where they are no longer, retries, and what is refused.

use super::{appends::asking, *};
use tidings_domain::{chat_row_kind::ChatRowKind, erase_step::LegalHold, expiry::*};

pub(super) const CHECKS: &[Check] = &[
    ("an edit gives its message another body and appends an entry", edits),
    ("only the newest edit's entry has a body", superseded),
    ("a hidden message notifies and mentions nobody, and its changes are hidden, too", hidden),
    ("replaced bodies are kept if that is asked for", kept),
    ("a recall removes every body of its message", recalls),
    ("a message that disappears is found by its time, and goes by a recall unless it is held", expires),
    ("a recall of large bodies leaves none of their parts", large_bodies),
    ("a message is changed in the batch that appends it", in_one_batch),
    ("retries of changes answer with the first result", retries),
    ("a change that cannot be made is refused and changes nothing", refused),
];

const KEEP_NONE: MessageChange = MessageChange::Edit { if_version: None, keep_replaced: false, edits_max: 100 };
const KEEP_ALL: MessageChange = MessageChange::Edit { if_version: None, keep_replaced: true, edits_max: 100 };

/// An edit by this user to this body.
fn edit(sender: UserNo, body: &str) -> NewEntry {
    NewEntry {
        kind: EntryKind::Edit,
        client_msg_id: None,
        body: format!("{body:?}").into(),
        silent: true,
        skip_push: true,
        ..message(sender, "")
    }
}

fn recall(sender: UserNo) -> NewEntry {
    NewEntry { kind: EntryKind::Recall, body: "null".into(), ..edit(sender, "") }
}

fn change(conversation: ConversationNo, target: u64, change: MessageChange, entry: NewEntry) -> Proposal {
    Proposal::ChangeMessage { conversation, target, change, entry }
}

fn changed(outcome: &Outcome) -> (Appended, u32) {
    match outcome {
        Outcome::MessageChanged { appended, version, .. } => (*appended, *version),
        other => panic!("not changed: {other:?}"),
    }
}

fn all_entries(store: &dyn Store, conversation: ConversationNo) -> Vec<StoredEntry> {
    store.entries(conversation, 1, u64::MAX, 1_000, End::Oldest).unwrap()
}

fn bodies(store: &dyn Store, conversation: ConversationNo) -> Vec<String> {
    all_entries(store, conversation).iter().map(|entry| entry.content.body.to_string()).collect()
}

fn edits(store: &dyn Store) {
    let u = users(store, 2);
    let room = group(store, "g", &u);
    commit(store, append(room, NewEntry { mentions: vec!["u2".into()], ..message(u[0], "a") }));
    let entry = NewEntry { content_type: "card".into(), mentions: vec!["u1".into()], ..edit(u[1], "new") };
    let outcome = commit_at(store, change(room, 1, KEEP_NONE, entry), NOON + 5);
    let (place, version) = changed(&outcome);
    assert_eq!((place.seq, place.at, version), (2, NOON + 5, 2));
    let stored = all_entries(store, room);
    let [message, edit] = &stored[..] else { panic!("{stored:?}") };
    assert_eq!((message.at, &*message.content.body), (NOON, "\"new\""));
    assert_eq!((&*message.content.content_type, &message.content.mentions[..]), ("card", &["u1".to_owned()][..]));
    assert_eq!(message.content.sender, Some(Sender { no: u[0], id: "u1".into() }), "the sender stays");
    let details = message.content.message_details();
    assert_eq!((details.version, &details.edits[..]), (2, &[2][..]));
    let by = Some(Sender { no: u[1], id: "u2".into() });
    assert_eq!(details.edited, Some(Edited { at: NOON + 5, by }));
    let of_edit = EditDetails { target: 1, version: 2, ..EditDetails::default() };
    assert_eq!(edit.content.edit_details(), Some(&of_edit));
    let Outcome::MessageChanged { entry: Some(told), .. } = outcome else { panic!("the entry is told") };
    assert_eq!(*told, edit.content, "nodes are told what is stored");
    assert_eq!(store.head(room).unwrap().last_seq, 2);
}

fn hidden(store: &dyn Store) {
    let u = users(store, 2);
    let room = group(store, "g", &u);
    let mut sent = NewEntry { mentions: vec!["u2".into(), MENTION_ALL.into()], ..message(u[0], "a") };
    sent.details_mut().hidden = true;
    commit(store, append(room, sent));
    assert!(store.outbox(0, 100).unwrap().is_empty());
    for kind in [ChatRowKind::Mention, ChatRowKind::MentionOfAll] {
        let (from, to) = (kind.byte(), kind.byte() + 1);
        assert!(store.rows(RowSpace::Chat, &[from], &[to], 100).unwrap().is_empty(), "{kind:?}");
    }
    commit(store, change(room, 1, KEEP_NONE, edit(u[0], "new")));
    commit(store, change(room, 1, MessageChange::Recall, recall(u[0])));
    let hidden: Vec<_> = all_entries(store, room).iter().map(|entry| entry.content.is_hidden()).collect();
    assert_eq!(hidden, [true; 3], "so are its changes");
}

fn superseded(store: &dyn Store) {
    let u = users(store, 1);
    let room = group(store, "g", &u);
    let steps = [
        append(room, message(u[0], "a")),
        change(room, 1, KEEP_NONE, edit(u[0], "second")),
        change(room, 1, KEEP_NONE, edit(u[0], "third")),
    ];
    steps.into_iter().for_each(|step| drop(commit(store, step)));
    assert_eq!(bodies(store, room), ["\"third\"", "null", "\"third\""]);
    assert_eq!(all_entries(store, room)[0].content.message_details().edits, [2, 3]);
}

fn kept(store: &dyn Store) {
    let u = users(store, 2);
    let room = group(store, "g", &u);
    commit(store, append(room, message(u[0], "a")));
    commit_at(store, change(room, 1, KEEP_ALL, edit(u[1], "second")), NOON + 1);
    commit_at(store, change(room, 1, KEEP_ALL, edit(u[0], "third")), NOON + 2);
    let replaced = |entry: &StoredEntry| entry.content.edit_details().and_then(|edit| edit.replaced.clone());
    let replaced_by = |seq: usize| replaced(&all_entries(store, room)[seq - 1]).unwrap();
    assert_eq!((&*replaced_by(2).body, replaced_by(2).at), ("{\"text\":\"a\"}", NOON));
    assert_eq!(replaced_by(2).by.unwrap().no, u[0]);
    assert_eq!((&*replaced_by(3).body, replaced_by(3).at), ("\"second\"", NOON + 1));
    assert_eq!(replaced_by(3).by.unwrap().no, u[1]);
    commit(store, change(room, 1, MessageChange::Recall, recall(u[0])));
    assert!(all_entries(store, room).iter().all(|entry| replaced(entry).is_none()));
}

fn recalls(store: &dyn Store) {
    let u = users(store, 1);
    let room = group(store, "g", &u);
    commit(store, append(room, NewEntry { mentions: vec!["@all".into()], ..message(u[0], "a") }));
    commit(store, change(room, 1, KEEP_NONE, edit(u[0], "second")));
    let (place, _) = changed(&commit_at(store, change(room, 1, MessageChange::Recall, recall(u[0])), NOON + 9));
    assert_eq!((place.seq, place.duplicate), (3, false));
    assert_eq!(bodies(store, room), ["null", "null", "null"]);
    let message = &all_entries(store, room)[0].content;
    assert_eq!(message.mentions, [""; 0]);
    let by = Some(Sender { no: u[0], id: "u1".into() });
    assert_eq!(message.message_details().recalled, Some(Recalled { at: NOON + 9, by, entry: 3, expired: false }));
}

fn expires(store: &dyn Store) {
    let u = users(store, 1);
    let room = group(store, "g", &u);
    let disappearing = |after_read_s| {
        let expires = Some(Expiry { after_s: 60, after_read_s });
        let mut entry = NewEntry { client_msg_id: None, ..message(u[0], "a") };
        entry.details = Some(MessageDetails { expires, ..MessageDetails::NONE }.into());
        entry
    };
    commit_at(store, append(room, disappearing(None)), NOON);
    commit_at(store, append(room, disappearing(Some(5))), NOON);
    commit_at(store, append(room, message(u[0], "stays")), NOON);
    let rows = |(low, high): (Vec<u8>, Vec<u8>)| store.rows(RowSpace::Chat, &low, &high, 10).unwrap();
    let due = |from_ms, now_ms| {
        let rows = rows(due_between(from_ms, now_ms));
        rows.iter().map(|(key, value)| (due_in(key).unwrap().1, due_of(value))).collect::<Vec<_>>()
    };
    assert_eq!(due(0, NOON + 59_999), [(2, Due::Watch)]);
    assert_eq!(due(NOON + 1, u64::MAX), [(1, Due::Expire), (2, Due::ExpireUnread)]);
    let waiting = rows(all_waiting());
    assert_eq!(waiting.iter().map(|(key, _)| message_in(key)).collect::<Vec<_>>(), [Some((room, 2))]);
    let waits = WaitsToBeRead { last_time: NOON + 60_000, after_read_ms: 5_000, sender: u[0] };
    assert_eq!(WaitsToBeRead::decode(&waiting[0].1).unwrap(), waits);
    // An edit leaves the time as it is.
    commit(store, change(room, 1, KEEP_NONE, edit(u[0], "edited")));
    assert_eq!(all_entries(store, room)[0].content.message_details().expires.unwrap().after_s, 60);

    let nobody = || NewEntry { sender: None, content_type: "text".into(), ..recall(u[0]) };
    let hold = LegalHold { name: "case".into(), by: "op".into(), at: NOON };
    commit(store, Proposal::SetLegalHold { conversation: room, hold: Some(hold) });
    let refused = commit(store, change(room, 1, MessageChange::Expire, nobody()));
    assert_eq!(refused, Outcome::Rejected(Rejection::LegalHold));
    assert_eq!(bodies(store, room)[0], "\"edited\"");
    commit(store, Proposal::SetLegalHold { conversation: room, hold: None });
    let (first, _) = changed(&commit_at(store, change(room, 1, MessageChange::Expire, nobody()), NOON + 60_000));
    let (again, _) = changed(&commit(store, change(room, 1, MessageChange::Expire, nobody())));
    assert_eq!((again.seq, again.duplicate), (first.seq, true));
    let entries = all_entries(store, room);
    let details = entries[0].content.message_details();
    assert_eq!((&*entries[0].content.body, details.expires), ("null", None));
    assert_eq!(details.recalled, Some(Recalled { at: first.at, by: None, entry: first.seq, expired: true }));
    assert!(entries.last().unwrap().content.is_expiry());
    assert_eq!(bodies(store, room)[2], "{\"text\":\"stays\"}");
}

fn large_bodies(store: &dyn Store) {
    let u = users(store, 1);
    let room = group(store, "g", &u);
    let large = |letter: &str, length: usize| letter.repeat(length);
    let first = NewEntry { body: format!("{:?}", large("a", 20_000)).into(), ..message(u[0], "a") };
    commit(store, append(room, first));
    for (letter, length) in [("b", 9_000), ("c", 60_000), ("d", 10), ("e", 30_000)] {
        let body = large(letter, length);
        commit(store, change(room, 1, KEEP_NONE, edit(u[0], &body)));
        assert_eq!(bodies(store, room)[0], format!("{body:?}"));
    }
    commit(store, change(room, 1, MessageChange::Recall, recall(u[0])));
    assert!(bodies(store, room).iter().all(|body| body == "null"));
}

fn in_one_batch(store: &dyn Store) {
    let u = users(store, 1);
    let room = group(store, "g", &u);
    let batch = [
        append(room, message(u[0], "a")),
        change(room, 1, KEEP_NONE, edit(u[0], "second")),
        append(room, message(u[0], "b")),
        change(room, 3, MessageChange::Recall, recall(u[0])),
        change(room, 1, KEEP_NONE, edit(u[0], "third")),
    ];
    let outcomes = store.commit(&batch, NOON).unwrap();
    assert_eq!(changed(&outcomes[4]).1, 3);
    assert_eq!(bodies(store, room), ["\"third\"", "null", "null", "null", "\"third\""]);
    let positions: Vec<_> = all_entries(store, room).iter().map(|entry| entry.position).collect();
    assert!(positions.is_sorted() && positions[0] > 0, "{positions:?}");
    assert_eq!(changed(&outcomes[4]).0.position, positions[4]);
}

fn retries(store: &dyn Store) {
    let u = users(store, 2);
    let (room, other) = (group(store, "g", &u), group(store, "h", &u));
    commit(store, append(room, message(u[0], "a")));
    commit(store, append(other, message(u[0], "b")));
    let named = asking("1", NewEntry { client_msg_id: Some("edit-1".into()), ..edit(u[0], "second") });
    let (first, _) = changed(&commit(store, change(room, 1, KEEP_NONE, named.clone())));
    let (again, version) = changed(&commit(store, change(room, 1, KEEP_NONE, named.clone())));
    assert_eq!((again, version), (Appended { duplicate: true, ..first }, 2));
    assert_eq!(store.head(room).unwrap().last_seq, 2, "nothing was appended");
    commit(store, change(room, 1, KEEP_NONE, edit(u[1], "third")));
    let (again, version) = changed(&commit(store, change(room, 1, KEEP_NONE, named.clone())));
    assert_eq!(
        (again, version),
        (Appended { duplicate: true, ..first }, 2),
        "the version of this edit, not the newest"
    );
    let reused = Outcome::Rejected(Rejection::ClientMsgIdReused);
    assert_eq!(commit(store, change(room, 1, KEEP_NONE, asking("2", named.clone()))), reused);
    assert_eq!(commit(store, append(room, asking("2", named.clone()))), reused);
    let (elsewhere, _) = changed(&commit(store, change(other, 1, KEEP_NONE, named)));
    assert_eq!((elsewhere.seq, elsewhere.duplicate), (2, false), "the id in another conversation");
    let (first, _) = changed(&commit_at(store, change(room, 1, MessageChange::Recall, recall(u[0])), NOON + 1));
    let (again, _) = changed(&commit_at(store, change(room, 1, MessageChange::Recall, recall(u[1])), NOON + 2));
    assert_eq!((again.seq, again.at, again.duplicate), (first.seq, first.at, true), "a recall needs no id");
}

fn refused(store: &dyn Store) {
    let u = users(store, 1);
    let room = group(store, "g", &u);
    commit(store, append(room, message(u[0], "a")));
    commit(store, append(room, notice(EntryKind::ConversationChange)));
    commit(store, append(room, message(u[0], "b")));
    commit(store, change(room, 3, MessageChange::Recall, recall(u[0])));
    commit(store, change(room, 1, KEEP_NONE, edit(u[0], "second")));
    let before = all_entries(store, room);
    let expecting = MessageChange::Edit { if_version: Some(1), keep_replaced: false, edits_max: 100 };
    let once = MessageChange::Edit { if_version: None, keep_replaced: false, edits_max: 1 };
    let cases = [
        (ConversationNo(99), 1, KEEP_NONE, Rejection::NoSuchConversation),
        (room, 99, KEEP_NONE, Rejection::NoSuchEntry(99)),
        (room, 2, KEEP_NONE, Rejection::NotAMessage(2)),
        (room, 5, MessageChange::Recall, Rejection::NotAMessage(5)),
        (room, 3, KEEP_NONE, Rejection::MessageRecalled(3)),
        (room, 1, expecting, Rejection::VersionConflict { expected: 1, actual: 2 }),
        (room, 1, once, Rejection::TooManyEdits { limit: 1 }),
    ];
    for (conversation, target, of, rejection) in cases {
        let outcome = commit(store, change(conversation, target, of, edit(u[0], "x")));
        assert_eq!(outcome, Outcome::Rejected(rejection));
    }
    assert_eq!(all_entries(store, room), before);
}
