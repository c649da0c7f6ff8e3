//! Reads of many things at once answer the same as single reads.

use super::*;
use std::time::Duration;
use tidings_domain::store::batch_reads;

pub(super) const CHECKS: &[Check] = &[
    ("standings, heads, cards and positions read together equal single reads", many_at_once),
    ("pages read together equal single pages, and each has its first entry however large", pages),
    ("missed entries are the newest of all conversations, with the exact remaining ranges", missed),
    ("missed entries are found where retention removed some of them", missed_after_retention),
];

const DAY: u64 = 24 * 60 * 60 * 1_000;

/// A small random number generator with a fixed seed, so that every store gets the same history.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Three users in 30 conversations of all kinds, with bursts of entries over several days. Some conversations stay empty,
/// and the third user joins some of them late.
fn history(store: &dyn Store, entries: u64) -> (Vec<UserNo>, Vec<ConversationNo>) {
    let u = users(store, 3);
    let kind = |n: usize| [ConversationKind::Group, ConversationKind::Official][n % 2];
    let mut rooms: Vec<_> = (0..28).map(|n| create(store, &format!("room-{n}"), kind(n), &u[..2])).collect();
    rooms.push(create(store, "direct-1", ConversationKind::Direct, &u[..2]));
    rooms.push(create(store, "direct-2", ConversationKind::Direct, &[u[0], u[2]]));
    let mut random = Random(7);
    let (mut room, mut said) = (0, 0);
    while said < entries {
        let burst = random.below(25) + 1;
        // The last few conversations stay empty, except for the notice of a member who joins.
        room = if random.below(3) == 0 { random.below(26) as usize } else { room };
        let batch: Vec<_> = (0..burst).map(|n| append(rooms[room], message(u[0], &format!("m{}", said + n)))).collect();
        store.commit(&batch, NOON + said * 4 * DAY / entries).unwrap();
        said += burst;
        if random.below(8) == 0 {
            let conversation = rooms[random.below(28) as usize];
            let add = vec![(u[2], Role::Member)];
            let notice = Some(notice(EntryKind::MemberChange));
            commit_at(
                store,
                Proposal::ChangeMembers {
                    heir: None,
                    act: None,
                    conversation,
                    add,
                    remove: vec![],
                    members_max: 10,
                    notice,
                },
                NOON + said * 4 * DAY / entries,
            );
        }
    }
    commit_at(store, append(rooms[28], message(u[1], "direct")), NOON + 4 * DAY);
    commit_at(store, Proposal::MarkRead { conversation: rooms[0], user: u[1], seq: 3 }, NOON + 4 * DAY);
    commit_at(
        store,
        Proposal::SetMute { conversation: rooms[1], user: u[1], mute: MuteState::Forever },
        NOON + 4 * DAY,
    );
    (u, rooms)
}

fn by_conversation(mut states: Vec<ConversationState>) -> Vec<ConversationState> {
    states.sort_by_key(|state| state.conversation);
    states
}

fn many_at_once(store: &dyn Store) {
    let (u, rooms) = history(store, 600);
    for user in u.iter().copied().chain([UserNo(99)]) {
        for filter in [ConversationFilter::All, ConversationFilter::Direct, ConversationFilter::NonDirect] {
            let found = by_conversation(store.conversation_states(user, filter, 100).unwrap());
            assert_eq!(
                found,
                by_conversation(batch_reads::conversation_states(store, user, filter, 100).unwrap()),
                "{filter:?}"
            );
        }
    }
    assert_eq!(store.conversation_states(u[0], ConversationFilter::All, 100).unwrap().len(), 30);
    assert_eq!(store.conversation_states(u[0], ConversationFilter::Direct, 100).unwrap().len(), 2);
    assert_eq!(store.conversation_states(u[0], ConversationFilter::All, 7).unwrap().len(), 7);
    let mut asked: Vec<_> = rooms.iter().rev().copied().collect();
    asked.insert(3, ConversationNo(999));
    assert_eq!(store.heads(&asked).unwrap(), batch_reads::heads(store, &asked).unwrap());
    assert_eq!(store.conversations(&asked).unwrap(), batch_reads::conversations(store, &asked).unwrap());
    for user in u.iter().copied().chain([UserNo(99)]) {
        assert_eq!(store.memberships(user, &asked).unwrap(), batch_reads::memberships(store, user, &asked).unwrap());
    }
    let speaks = UserPatch { id: "u1".into(), language: Some("pt".into()), ..UserPatch::default() };
    commit_at(store, Proposal::PutUsers(vec![speaks]), NOON + 4 * DAY);
    let users = [u[1], UserNo(99), u[0], u[1]];
    let found = store.users(&users).unwrap();
    assert_eq!(found, batch_reads::users(store, &users).unwrap());
    assert_eq!(
        found.iter().map(|user| user.as_ref().and_then(User::language)).collect::<Vec<_>>(),
        [None, None, Some("pt"), None]
    );
    let entries: Vec<_> = asked.iter().flat_map(|no| [0, 1, 9, 40, 1_000].map(|seq| (*no, seq))).collect();
    assert_eq!(store.positions_at(&entries).unwrap(), batch_reads::positions_at(store, &entries).unwrap());
    assert!(store.heads(&[]).unwrap().is_empty() && store.conversations(&[]).unwrap().is_empty());
    assert!(store.positions_at(&[]).unwrap().is_empty());
}

fn pages(store: &dyn Store) {
    let (u, rooms) = history(store, 600);
    let mut random = Random(11);
    let mut asked: Vec<_> = rooms
        .iter()
        .map(|no| {
            let from_seq = random.below(30) + 1;
            PageRequest {
                conversation: *no,
                from_seq,
                to_seq: from_seq + random.below(40),
                limit: random.below(30) as usize + 1,
            }
        })
        .collect();
    asked.push(PageRequest { conversation: rooms[0], from_seq: 1, to_seq: u64::MAX, limit: 2 });
    asked.push(PageRequest { conversation: rooms[0], from_seq: 9, to_seq: 7, limit: 2 });
    let all = batch_reads::pages(store, &asked, usize::MAX).unwrap();
    assert_eq!(store.pages(&asked, 1 << 30).unwrap(), all);
    assert!(store.pages(&[], 1 << 30).unwrap().is_empty());

    // At the limit of bytes pages end early, but none is empty for that.
    let large = group(store, "large", &u);
    let body = format!("\"{}\"", "x".repeat(10_000));
    let batch: Vec<_> = (0..20)
        .map(|n| append(large, NewEntry { body: body.clone().into(), ..message(u[0], &format!("large-{n}")) }))
        .collect();
    store.commit(&batch, NOON + 4 * DAY).unwrap();
    let ask = PageRequest { conversation: large, from_seq: 1, to_seq: 20, limit: 20 };
    let asked = [
        ask,
        PageRequest { from_seq: 5, ..ask },
        asked[0],
        PageRequest { from_seq: 21, ..ask },
        PageRequest { to_seq: 3, ..ask },
    ];
    let (found, whole) = (store.pages(&asked, 45_000).unwrap(), batch_reads::pages(store, &asked, usize::MAX).unwrap());
    for (found, whole) in found.iter().zip(&whole) {
        assert_eq!(found[..], whole[..found.len()], "a page starts with the first requested entry");
        assert_eq!(found.is_empty(), whole.is_empty());
    }
    let entries: usize = found.iter().map(Vec::len).sum();
    assert!(entries < whole.iter().map(Vec::len).sum::<usize>(), "{entries}");
}

/// The tails of a user, as a resume asks for them.
fn tails(store: &dyn Store, user: UserNo, after: Position, until: Position) -> Vec<Tail> {
    let states = by_conversation(store.conversation_states(user, ConversationFilter::All, 100).unwrap());
    let tail = |ConversationState { conversation, head, membership, .. }: &ConversationState| Tail {
        conversation: *conversation,
        floor_seq: (membership.joined_seq + 1).max(head.first_seq),
        newest_seq: head.last_seq,
        newest_position: head.last_position,
        after,
        until,
    };
    states.iter().map(tail).collect()
}

fn compare_missed(store: &dyn Store, users: &[UserNo]) {
    let last = store.last_position();
    for user in users {
        for (after, until) in
            [(0, last), (last / 2, last), (last - 40, last), (last / 3, last / 2), (last - 1, last), (last, last)]
        {
            let tails = tails(store, *user, after, until);
            for (entries_max, bytes_max) in
                [(800, 1 << 20), (300, 1 << 20), (100, 1 << 20), (9, 1 << 20), (1, 1), (800, 300), (800, 2_000)]
            {
                let query = MissedQuery { entries_max, bytes_max, ranges: true };
                let (found, expected) =
                    (store.missed(&tails, query).unwrap(), batch_reads::missed(store, &tails, query).unwrap());
                assert_eq!(found, expected, "{user:?} after {after} until {until}: {query:?}");
                let without = store.missed(&tails, MissedQuery { ranges: false, ..query }).unwrap();
                assert_eq!(without, MissedEntries { remaining: vec![], ..expected });
            }
        }
    }
    let nothing = store.missed(&[], MissedQuery { entries_max: 1, bytes_max: 1, ranges: true }).unwrap();
    assert_eq!(nothing, MissedEntries::default());
}

fn missed(store: &dyn Store) {
    let (u, rooms) = history(store, 1_500);
    compare_missed(store, &u);
    // One conversation after the other, so that all of the newest entries are in a few conversations.
    for room in &rooms[..28] {
        let batch: Vec<_> = (0..20).map(|n| append(*room, message(u[0], &format!("turn-{}-{n}", room.0)))).collect();
        store.commit(&batch, NOON + 4 * DAY).unwrap();
    }
    compare_missed(store, &u[1..2]);
    // One conversation with most of the newest entries, and large ones: the entries of others are older.
    let body = format!("\"{}\"", "y".repeat(5_000));
    let batch: Vec<_> = (0..150)
        .map(|n| append(rooms[4], NewEntry { body: body.clone().into(), ..message(u[0], &format!("long-{n}")) }))
        .collect();
    store.commit(&batch, NOON + 4 * DAY).unwrap();
    compare_missed(store, &u[..1]);
}

fn missed_after_retention(store: &dyn Store) {
    let (u, _) = history(store, 900);
    let before: Vec<_> = u.iter().map(|user| (*user, tails(store, *user, 0, store.last_position()))).collect();
    store.retain(Retention { age_max: Some(Duration::from_millis(2 * DAY)), bytes_max: None }, NOON + 4 * DAY).unwrap();
    compare_missed(store, &u);
    // Tails from before the removal: the entries that are left are found all the same.
    let query = MissedQuery { entries_max: 10_000, bytes_max: 1 << 30, ranges: false };
    for (user, tails) in before {
        let found = store.missed(&tails, query).unwrap();
        assert_eq!(found, batch_reads::missed(store, &tails, query).unwrap(), "{user:?}");
    }
}
