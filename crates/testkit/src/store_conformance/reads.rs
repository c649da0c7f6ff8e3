//! Reading timelines.

use super::*;

pub(super) const CHECKS: &[Check] = &[
    ("pages are taken from either end, oldest first", pages),
    ("the first entry at a time is found", seq_at),
    ("entries are read as they were appended", equal),
    ("large bodies and many mentions are read as they were appended", large),
    ("the head describes the newest entry", head),
];

fn pages(store: &dyn Store) {
    let u = users(store, 1);
    let (room, other) = (group(store, "g", &u), group(store, "h", &u));
    fill(store, room, u[0], 20);
    fill(store, other, u[0], 3);
    let page = |from, to, limit, end| seqs(&store.entries(room, from, to, limit, end).unwrap());
    assert_eq!(page(1, u64::MAX, 5, End::Oldest), [1, 2, 3, 4, 5]);
    assert_eq!(page(1, u64::MAX, 5, End::Newest), [16, 17, 18, 19, 20]);
    assert_eq!(page(7, 9, 5, End::Oldest), [7, 8, 9]);
    assert_eq!(page(7, 9, 2, End::Newest), [8, 9]);
    assert_eq!(page(0, 2, 5, End::Newest), [1, 2]);
    assert_eq!(page(20, 20, 1, End::Oldest), [20]);
    for end in [End::Oldest, End::Newest] {
        assert!(page(21, u64::MAX, 5, end).is_empty());
        assert!(page(9, 7, 5, end).is_empty());
        assert!(page(1, 20, 0, end).is_empty());
        assert!(store.entries(ConversationNo(9), 1, 9, 9, end).unwrap().is_empty());
    }
}

fn seq_at(store: &dyn Store) {
    let u = users(store, 1);
    let room = group(store, "g", &u);
    assert_eq!(store.seq_at(room, NOON).unwrap(), 1);
    for (n, at) in [0, 10, 10, 10, 30].into_iter().enumerate() {
        commit_at(store, append(room, message(u[0], &n.to_string())), NOON + at);
    }
    for (at, seq) in [(0, 1), (1, 2), (10, 2), (11, 5), (30, 5), (31, 6)] {
        assert_eq!(store.seq_at(room, NOON + at).unwrap(), seq, "at {at}");
    }
    assert_eq!(store.seq_at(room, 0).unwrap(), 1);
}

fn equal(store: &dyn Store) {
    let u = users(store, 2);
    let room = group(store, "g", &u);
    let rich = NewEntry {
        mentions: vec!["u1".into(), "ünï/✓".into()],
        silent: true,
        content_type: "application/x+json".into(),
        ..message(u[0], "rich")
    };
    let entries = [
        rich,
        NewEntry { skip_push: true, client_msg_id: None, ..message(u[1], "x") },
        notice(EntryKind::Message),
        notice(EntryKind::MemberChange),
        notice(EntryKind::ConversationChange),
        NewEntry { body: "null".into(), content_type: String::new(), ..message(u[1], "") },
    ];
    let batch: Vec<_> = entries.iter().map(|entry| append(room, entry.clone())).collect();
    let outcomes = store.commit(&batch, NOON + 3).unwrap();
    let found = store.entries(room, 1, 100, 100, End::Oldest).unwrap();
    assert_eq!(found.len(), entries.len());
    for ((entry, outcome), found) in entries.into_iter().zip(&outcomes).zip(found) {
        let Appended { seq, at, position, .. } = appended(outcome);
        assert_eq!(found, StoredEntry { seq, position, at, content: entry });
    }
}

fn large(store: &dyn Store) {
    let u = users(store, 1);
    let room = group(store, "g", &u);
    let bodies =
        [3_000, 3_071, 3_072, 3_073, 6_144, 20_000, 65_534].map(|length: usize| format!("\"{:a>length$}\"", 'b'));
    // Parts may end within a character.
    let unicode = format!("\"{}\"", "日本語🙂é".repeat(64 * 1024 / 15 - 1));
    let many: Vec<String> = (0..100).map(|n| format!("{n:ü>30}")).collect();
    let mut entries: Vec<_> = bodies
        .into_iter()
        .chain([unicode])
        .enumerate()
        .map(|(n, body)| NewEntry { body: body.into(), ..message(u[0], &n.to_string()) })
        .collect();
    let last = entries.len() - 1;
    entries.push(NewEntry { mentions: many.clone(), ..message(u[0], "mentions") });
    entries.push(NewEntry { mentions: many, body: entries[last].body.clone(), ..message(u[0], "both") });
    let batch: Vec<_> = entries.iter().map(|entry| append(room, entry.clone())).collect();
    store.commit(&batch, NOON).unwrap();
    for end in [End::Oldest, End::Newest] {
        let found = store.entries(room, 1, 100, 100, end).unwrap();
        assert!(found.into_iter().map(|found| found.content).eq(entries.iter().cloned()));
    }
    assert_eq!(store.head(room).unwrap().last_seq, entries.len() as u64);
}

fn head(store: &dyn Store) {
    let u = users(store, 1);
    let room = group(store, "g", &u);
    fill(store, room, u[0], 9);
    let entry = store.entries(room, 9, 9, 1, End::Oldest).unwrap().remove(0);
    let expected = Head { last_seq: 9, last_at: entry.at, last_position: entry.position, first_seq: 1 };
    assert_eq!(store.head(room).unwrap(), expected);
    assert_eq!(store.last_position(), entry.position);
}
