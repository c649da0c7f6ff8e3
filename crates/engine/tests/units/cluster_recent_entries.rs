//! Unit tests of `src/cluster/recent_entries.rs`.

use super::*;
use proptest::prelude::*;
use tidings_testkit::MemoryStore;

const ROOMS: u64 = 4;

fn entry(size: usize) -> NewEntry {
    NewEntry {
        kind: EntryKind::Message,
        sender: None,
        client_msg_id: None,
        content_type: "text".into(),
        body: format!("{:?}", "x".repeat(size)).into(),
        mentions: vec![],
        silent: false,
        skip_push: false,
        details: None,
        request: EntryRequest::default(),
    }
}

fn store() -> MemoryStore {
    let store = MemoryStore::shared();
    let room = |n: u64| {
        Proposal::CreateConversation(NewConversation {
            id: format!("g{n}"),
            kind: ConversationKind::Group,
            pair: None,
            name: None,
            avatar: None,
            attributes: None,
            members: vec![],
            settings: ConversationSettings::default(),
        })
    };
    store.commit(&(0..ROOMS).map(room).collect::<Vec<_>>(), 1).unwrap();
    store
}

/// A message, or a change of an earlier one.
fn proposal(room: u64, size: usize, what: u8, target: u64) -> Proposal {
    let conversation = ConversationNo(room);
    let of = |kind| NewEntry { kind, ..entry(size) };
    let change = |change, entry| Proposal::ChangeMessage { conversation, target, change, entry };
    let (user, key) = (Sender { no: UserNo(1), id: "ann".into() }, "+1".to_owned());
    match what {
        0 => {
            let edit = MessageChange::Edit { if_version: None, keep_replaced: size.is_multiple_of(2), edits_max: 9 };
            change(edit, of(EntryKind::Edit))
        }
        1 => change(MessageChange::Recall, NewEntry { body: "null".into(), ..of(EntryKind::Recall) }),
        2 => change(MessageChange::Pin { pinned: true, pins_max: 9 }, of(EntryKind::Pins)),
        3 => Proposal::React { conversation, target, user, key, add: true, keys_max: 9, interval_ms: 0 },
        _ => Proposal::Append { conversation, entry: entry(size) },
    }
}

proptest! {
    #[test]
    fn missed_entries_are_those_of_the_store_or_none(
        messages in prop::collection::vec((1..=ROOMS, 0..200usize, 0..10u8, 1..8u64, 0..4u8), 1..60),
        bytes_max in 0..20_000usize,
        after in 0..60u64,
        span in 0..60u64,
        entries_max in 1..30usize,
    ) {
        let store = store();
        let start = store.last_position();
        let recent = RecentEntries::new(start, bytes_max);
        let mut left_out_after = vec![start; ROOMS as usize + 1];
        for (room, size, what, target, told) in messages {
            let (_, span) = store.commit_in_order(&[proposal(room, size, what, target)], 1).unwrap();
            let head = store.head(ConversationNo(room)).unwrap();
            let stored = store.entries(ConversationNo(room), head.last_seq, head.last_seq, 1, End::Newest).unwrap();
            // A change that was rejected, or changed nothing, has no entry.
            let entries = stored.iter().filter(|entry| entry.position > span.after);
            // One message in four is told of without its content.
            let is_left_out = |entry: &&StoredEntry| told == 0 && entry.content.kind == EntryKind::Message;
            if let Some(entry) = entries.clone().find(is_left_out) {
                let (conversation, kind, through) = (ConversationNo(room), ConversationKind::Group, entry.position);
                recent.note_left_out(&[LeftOut { conversation, kind, pair: None, messages: 1, through }]);
                left_out_after[room as usize] = through;
            }
            let kept = entries.filter(|entry| !is_left_out(entry));
            recent.push(kept.map(|entry| (ConversationNo(room), entry)), span.through);
        }
        let (after, until) = (start + after, (start + after + span).min(store.last_position()));
        let tail = |room: u64| {
            let head = store.head(ConversationNo(room)).unwrap();
            Tail {
                conversation: ConversationNo(room),
                floor_seq: 1 + room % 3,
                newest_seq: head.last_seq,
                newest_position: head.last_position,
                after,
                until,
            }
        };
        let tails: Vec<Tail> = (1..=ROOMS).map(tail).filter(|tail| tail.newest_position > after && until > after).collect();
        let query = MissedQuery { entries_max, bytes_max: usize::MAX, ranges: true };
        if let Some(found) = recent.missed(&tails, query) {
            let asked = store.missed(&tails, query).unwrap();
            prop_assert!(asked.remaining.is_empty(), "the store has more than the ring returned");
            prop_assert_eq!(found, asked.entries);
        } else {
            let is_left_out = tails.iter().any(|tail| left_out_after[tail.conversation.0 as usize] > after);
            let bound = bytes_max < 60 * (ENTRY_BYTES + 202) || entries_max < 60 || is_left_out;
            prop_assert!(bound, "the ring has every entry and returned none");
        }
    }
}
