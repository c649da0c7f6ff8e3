//! Reactions, pins, and answers to messages.

use super::*;
use tidings_domain::chat_rows::{self, MentionPlace};

pub(super) const CHECKS: &[Check] = &[
    ("each user gives a reaction once", once),
    ("spellings of one emoji are one reaction", spelled),
    ("members are told of reactions once in an interval", told),
    ("reactions that cannot be given are refused", refused),
    ("a recall removes reactions and the pin", recalled),
    ("pins are listed in their order, up to their limit", pins),
    ("answers are found by the message that they answer", replies),
    ("mentions are found by user, the newest first", mentions),
    ("mentions of all members are found by conversation", mentions_of_all),
];

const INTERVAL_MS: u64 = 1_000;

fn react(conversation: ConversationNo, target: u64, user: UserNo, key: &str, add: bool) -> Proposal {
    let user = Sender { no: user, id: format!("u{}", user.0) };
    Proposal::React { conversation, target, user, key: key.into(), add, keys_max: 2, interval_ms: INTERVAL_MS }
}

/// The summary after a reaction, and whether the reaction changed it.
fn reacted(outcome: Outcome) -> (Vec<(String, u32, Vec<u64>)>, bool) {
    let Outcome::Reacted { reactions, changed, .. } = outcome else { panic!("not reacted: {outcome:?}") };
    let summary = |reaction: ReactionCount| {
        (reaction.key, reaction.count, reaction.newest.iter().map(|user| user.no.0).collect())
    };
    (reactions.into_iter().map(summary).collect(), changed)
}

fn room_with_message(store: &dyn Store, members: usize) -> (ConversationNo, Vec<UserNo>) {
    let u = users(store, members);
    let room = group(store, "g", &u);
    commit(store, append(room, message(u[0], "a")));
    (room, u)
}

fn pin(pinned: bool, pins_max: usize) -> MessageChange {
    MessageChange::Pin { pinned, pins_max }
}

fn pin_entry() -> NewEntry {
    NewEntry { body: "null".into(), ..notice(EntryKind::Pins) }
}

fn once(store: &dyn Store) {
    let (room, u) = room_with_message(store, 5);
    for user in &u {
        assert!(reacted(commit(store, react(room, 1, *user, "+1", true))).1);
    }
    let all = vec![("+1".to_owned(), 5, vec![u[4].0, u[3].0, u[2].0])];
    assert_eq!(reacted(commit(store, react(room, 1, u[2], "+1", true))), (all, false));
    let (summary, changed) = reacted(commit(store, react(room, 1, u[3], "+1", false)));
    assert_eq!((summary, changed), (vec![("+1".to_owned(), 4, vec![u[4].0, u[2].0])], true));
    assert!(!reacted(commit(store, react(room, 1, u[3], "+1", false))).1, "taken back already");
    let stored = store.entries(room, 1, 1, 1, End::Oldest).unwrap().remove(0);
    assert_eq!(stored.content.message_details().reactions[0].count, 4);
    let own = store.row(RowSpace::Chat, &chat_rows::reactions_key(room, 1, u[0])).unwrap();
    assert_eq!(chat_rows::decode::<Vec<String>>(own.as_deref()).unwrap(), ["+1"]);
    assert_eq!(store.row(RowSpace::Chat, &chat_rows::reactions_key(room, 1, u[3])).unwrap(), None);
}

fn spelled(store: &dyn Store) {
    let (room, u) = room_with_message(store, 3);
    let (plain, coloured) = ("\u{2764}", "\u{2764}\u{fe0f}");
    commit(store, react(room, 1, u[0], coloured, true));
    let (summary, _) = reacted(commit(store, react(room, 1, u[1], plain, true)));
    assert_eq!(summary, [(coloured.to_owned(), 2, vec![u[1].0, u[0].0])]);
    assert!(!reacted(commit(store, react(room, 1, u[0], plain, true))).1, "given already");
    let own = store.row(RowSpace::Chat, &chat_rows::reactions_key(room, 1, u[1])).unwrap();
    assert_eq!(chat_rows::decode::<Vec<String>>(own.as_deref()).unwrap(), [coloured]);
    let (summary, changed) = reacted(commit(store, react(room, 1, u[0], plain, false)));
    assert_eq!((summary, changed), (vec![(coloured.to_owned(), 1, vec![u[1].0])], true));
}

fn told(store: &dyn Store) {
    let (room, u) = room_with_message(store, 4);
    commit(store, append(room, message(u[1], "b")));
    let tell_at = |outcome| match outcome {
        Outcome::Reacted { told, tell_at, .. } => (told.map(|(appended, _)| appended.seq), tell_at),
        other => panic!("not reacted: {other:?}"),
    };
    assert_eq!(tell_at(commit(store, react(room, 1, u[0], "+1", true))), (Some(3), None), "the first one at once");
    let due = Some(NOON + INTERVAL_MS);
    assert_eq!(tell_at(commit_at(store, react(room, 1, u[1], "+1", true), NOON + 10)), (None, due));
    assert_eq!(tell_at(commit_at(store, react(room, 2, u[1], "x", true), NOON + 20)), (None, due));
    assert_eq!(store.head(room).unwrap().last_seq, 3);
    let told = commit_at(store, Proposal::TellReactions { conversation: room }, NOON + INTERVAL_MS);
    assert_eq!(tell_at(told.clone()), (Some(4), None));
    let Outcome::Reacted { told: Some((_, entry)), .. } = told else { panic!("told") };
    let changes = entry.reaction_changes();
    let counts: Vec<_> = changes.iter().map(|(seq, all)| (*seq, all[0].count)).collect();
    assert_eq!(counts, [(1, 2), (2, 1)]);
    let nothing = commit_at(store, Proposal::TellReactions { conversation: room }, NOON + INTERVAL_MS + 1);
    assert_eq!(tell_at(nothing), (None, None));
    let later = NOON + 2 * INTERVAL_MS;
    assert_eq!(tell_at(commit_at(store, react(room, 1, u[2], "+1", true), later)), (Some(5), None));
}

fn refused(store: &dyn Store) {
    let (room, u) = room_with_message(store, 2);
    commit(store, append(room, notice(EntryKind::ConversationChange)));
    commit(store, react(room, 1, u[0], "a", true));
    commit(store, react(room, 1, u[0], "b", true));
    let cases = [
        (ConversationNo(9), 1, Rejection::NoSuchConversation),
        (room, 9, Rejection::NoSuchEntry(9)),
        (room, 2, Rejection::NotAMessage(2)),
        (room, 1, Rejection::TooManyReactions { limit: 2 }),
    ];
    for (conversation, target, rejection) in cases {
        let outcome = commit(store, react(conversation, target, u[0], "c", true));
        assert_eq!(outcome, Outcome::Rejected(rejection));
    }
}

fn recalled(store: &dyn Store) {
    let (room, u) = room_with_message(store, 2);
    commit(store, react(room, 1, u[1], "+1", true));
    commit(store, Proposal::ChangeMessage { conversation: room, target: 1, change: pin(true, 5), entry: pin_entry() });
    let recall = NewEntry { body: "null".into(), ..notice(EntryKind::Recall) };
    let change = MessageChange::Recall;
    commit(store, Proposal::ChangeMessage { conversation: room, target: 1, change, entry: recall });
    let stored = store.entries(room, 1, 1, 1, End::Oldest).unwrap().remove(0);
    let details = stored.content.message_details();
    assert_eq!((&details.reactions[..], &details.pinned), (&[][..], &None));
    assert_eq!(store.row(RowSpace::Chat, &chat_rows::pins_key(room)).unwrap(), None);
    let late = commit(store, react(room, 1, u[0], "+1", true));
    assert_eq!(late, Outcome::Rejected(Rejection::MessageRecalled(1)));
}

fn pins(store: &dyn Store) {
    let (room, u) = room_with_message(store, 1);
    ["b", "c"].iter().for_each(|id| drop(commit(store, append(room, message(u[0], id)))));
    let change = |target, change| Proposal::ChangeMessage { conversation: room, target, change, entry: pin_entry() };
    commit(store, change(3, pin(true, 2)));
    commit(store, change(1, pin(true, 2)));
    assert_eq!(commit(store, change(1, pin(true, 2))), Outcome::Done, "pinned already");
    assert_eq!(commit(store, change(2, pin(true, 2))), Outcome::Rejected(Rejection::TooManyPins { limit: 2 }));
    let listed = || {
        let row = store.row(RowSpace::Chat, &chat_rows::pins_key(room)).unwrap();
        chat_rows::decode::<Vec<u64>>(row.as_deref()).unwrap()
    };
    assert_eq!(listed(), [3, 1]);
    commit(store, change(3, pin(false, 2)));
    assert_eq!(listed(), [1]);
    let stored = store.entries(room, 1, 3, 3, End::Oldest).unwrap();
    let pinned: Vec<bool> = stored.iter().map(|entry| entry.content.message_details().pinned.is_some()).collect();
    assert_eq!(pinned, [true, false, false]);
}

fn replies(store: &dyn Store) {
    let (room, u) = room_with_message(store, 2);
    let reply = |id: &str, to: u64| {
        let details = MessageDetails { reply_to: Some(AnsweredMessage::at(to)), ..MessageDetails::NONE };
        append(room, NewEntry { details: Some(details.into()), ..message(u[1], id) })
    };
    let Outcome::Replied { appended, preview: Some(preview) } = commit(store, reply("b", 1)) else { panic!("replied") };
    assert_eq!((appended.seq, preview.from.as_deref()), (2, Some("u1")));
    assert_eq!(preview.body.as_deref(), Some("{\"text\":\"a\"}"));
    commit(store, append(room, message(u[0], "c")));
    commit(store, reply("d", 1));
    let Outcome::Replied { appended, preview: None } = commit(store, reply("d", 1)) else { panic!("a retry") };
    assert!(appended.duplicate);
    let (from, to) = (chat_rows::reply_key(room, 1, 0), chat_rows::reply_key(room, 1, u64::MAX));
    let rows = store.rows(RowSpace::Chat, &from, &to, 10).unwrap();
    let found: Vec<_> = rows.iter().map(|(key, _)| chat_rows::number_in(key, 2).unwrap()).collect();
    assert_eq!(found, [2, 4]);
    assert_eq!(commit(store, reply("e", 9)), Outcome::Rejected(Rejection::NoSuchEntry(9)));
}

fn mentions(store: &dyn Store) {
    let (room, u) = room_with_message(store, 3);
    let mentioning = |id: &str, users: &[&str]| {
        let mentions = users.iter().map(|user| (*user).to_owned()).collect();
        append(room, NewEntry { mentions, ..message(u[0], id) })
    };
    commit_at(store, mentioning("b", &["u2"]), NOON + 1);
    commit_at(store, mentioning("c", &["u2", "@all", "u3", "u2"]), NOON + 2);
    commit_at(store, mentioning("d", &["u2"]), NOON + 2);
    // What follows a message is no message: its mentions are not listed.
    let edit = NewEntry { kind: EntryKind::Edit, mentions: vec!["u1".into()], ..notice(EntryKind::Edit) };
    let change = MessageChange::Edit { if_version: None, keep_replaced: false, edits_max: 9 };
    commit(store, Proposal::ChangeMessage { conversation: room, target: 1, change, entry: edit });
    let places = |(from, to): (Vec<u8>, Vec<u8>)| {
        let rows = store.rows(RowSpace::Chat, &from, &to, 10).unwrap();
        rows.iter().map(|(key, _)| chat_rows::mention_in(key).unwrap()).collect::<Vec<_>>()
    };
    let found = |user: &str| {
        let places = places(chat_rows::mentions_behind(user, MentionPlace::FIRST));
        assert!(places.is_sorted(), "{places:?}");
        places.iter().map(|place| place.seq).collect::<Vec<_>>()
    };
    assert_eq!((found("u2"), found("u3"), found("u1")), (vec![4, 3, 2], vec![3], vec![]));
}

/// One row stands for all members, and is found by its conversation.
fn mentions_of_all(store: &dyn Store) {
    let (room, u) = room_with_message(store, 3);
    let rooms = [room, group(store, "h", &u), group(store, "i", &u)];
    let send = |conversation: ConversationNo, id: &str, mentions: &[&str], at| {
        let mentions = mentions.iter().map(|user| (*user).to_owned()).collect();
        commit_at(store, append(conversation, NewEntry { mentions, ..message(u[0], id) }), at)
    };
    send(rooms[0], "b", &["@all"], NOON + 1);
    send(rooms[1], "c", &["u2"], NOON + 1);
    send(rooms[1], "d", &["@all", "@all"], NOON + 2);
    send(rooms[0], "e", &["u2", "@all"], NOON + 2);
    // A retry adds nothing.
    send(rooms[0], "b", &["@all"], NOON + 3);
    let notice =
        NewEntry { kind: EntryKind::ConversationChange, mentions: vec!["@all".into()], ..notice(EntryKind::Edit) };
    commit_at(store, append(rooms[2], notice), NOON + 3);
    let behind = |place| {
        let ranges = rooms.map(|room| chat_rows::mentions_of_all_behind(room, place));
        let found = |(from, to): &(Vec<u8>, Vec<u8>)| {
            let rows = store.rows(RowSpace::Chat, from, to, 10).unwrap();
            rows.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
        };
        let rows = ranges.each_ref().map(found);
        let first = store.first_keys(RowSpace::Chat, &ranges).unwrap();
        assert_eq!(first, rows.each_ref().map(|keys| keys.first().cloned()));
        rows.map(|keys| keys.iter().map(|key| chat_rows::mention_in(key).unwrap()).collect::<Vec<_>>())
    };
    let place = |at, room, seq| MentionPlace { at: NOON + at, conversation: rooms[room], seq };
    let mut all = [place(2, 0, 3), place(2, 1, 2), place(1, 0, 2)];
    all.sort_unstable();
    assert_eq!(all[2], place(1, 0, 2), "the list's order: the newest first, then by conversation");
    for first in [MentionPlace::FIRST].into_iter().chain(all) {
        let rest = |room| {
            let rest = all.iter().filter(|place| place.conversation == room && **place > first);
            rest.copied().collect::<Vec<_>>()
        };
        assert_eq!(behind(first), rooms.map(rest));
    }
    assert_eq!(store.first_keys(RowSpace::Chat, &[]).unwrap(), [None; 0]);
}
