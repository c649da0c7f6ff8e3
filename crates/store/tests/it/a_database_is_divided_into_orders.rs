//! A database of one order is divided into several: what is stored stays, cursors go on, and whoever does not know of it stores nothing.

use crate::support::{postgres::*, *};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};
use tidings_domain::{
    commit_log::{CommitLog, NodeInfo},
    model::*,
    store::*,
};
use tidings_store::{DivideError, divide_database};

const ROOMS: usize = 7;

fn rooms(store: &dyn Store) -> Vec<ConversationNo> {
    populate(store);
    (0..ROOMS).map(|n| group(store, &format!("room-{n}"))).collect()
}

/// All that is stored of these rooms, with positions.
fn stored(store: &dyn Store, rooms: &[ConversationNo]) -> Vec<(Head, Vec<StoredEntry>)> {
    let of_room = |room: &ConversationNo| {
        (store.head(*room).unwrap(), store.entries(*room, 1, u64::MAX, 1_000, End::Oldest).unwrap())
    };
    rooms.iter().map(of_room).collect()
}

/// The positions that a user of all rooms missed after this one, oldest first.
fn missed(store: &dyn Store, rooms: &[ConversationNo], after: Position, until: Position) -> Vec<Position> {
    let heads = store.heads(rooms).unwrap();
    let tail = |(conversation, head): (&ConversationNo, Head)| Tail {
        conversation: *conversation,
        floor_seq: 1,
        newest_seq: head.last_seq,
        newest_position: head.last_position,
        after,
        until,
    };
    let tails: Vec<Tail> = rooms.iter().zip(heads).map(tail).collect();
    let query = MissedQuery { entries_max: 1_000, bytes_max: 1 << 20, ranges: true };
    let found = store.missed(&tails, query).unwrap();
    assert_eq!(found.remaining, []);
    let positions: Vec<Position> = found.entries.iter().map(|(_, entry)| entry.position).collect();
    assert!(positions.is_sorted_by(|newer, older| newer > older), "newest first, whichever order they are of");
    positions.into_iter().rev().collect()
}

#[test]
fn what_is_stored_stays_and_cursors_go_on() {
    let server = PostgresServer::shared();
    let url = server.database();
    let before = open_at(&url);
    let rooms = rooms(&before);
    for n in 0..5 {
        rooms.iter().for_each(|room| say(&before, *room, [format!("before-{n}-{}", room.0)], NOON));
    }
    let (was, newest) = (stored(&before, &rooms), before.last_position());
    let cursor = newest - 9;

    assert_eq!(divide_database(&options_at(&url), 4).unwrap(), newest);
    let store = open_at(&url);
    assert_eq!((store.orders(), store.last_position()), (Orders::new(4), newest));
    assert_eq!(stored(&store, &rooms), was);
    assert_eq!(missed(&store, &rooms, cursor, newest), (cursor + 1..=newest).collect::<Vec<_>>());

    // The program that has the database open as one of one order stores nothing.
    assert!(matches!(before.commit(&[append(rooms[0], "stray")], NOON), Err(StoreError::Unavailable(_))));
    assert!(matches!(
        before.commit(&[Proposal::Kick { user: UserNo(1), device_id: None, reason: String::new() }], NOON),
        Err(StoreError::Unavailable(_))
    ));
    assert_eq!(stored(&store, &rooms), was);

    // A retry finds its first result, and new entries come behind.
    let retried = store.commit(&[append(rooms[3], &format!("before-4-{}", rooms[3].0))], NOON).unwrap().remove(0);
    let Outcome::Appended(retried) = retried else { panic!("{retried:?}") };
    assert!(retried.duplicate && retried.position == was[3].0.last_position);
    for n in 0..5 {
        rooms.iter().rev().for_each(|room| say(&store, *room, [format!("after-{n}-{}", room.0)], NOON));
    }
    let created = group(&store, "created");
    assert!(rooms.iter().all(|room| room.0 < created.0), "its number is a new one");
    let last = store.last_position();
    assert_eq!(last, newest + 5 * ROOMS as u64 + 1, "without a hole: the new conversation has a position, too");
    for (room, (head, entries)) in rooms.iter().zip(stored(&store, &rooms)) {
        assert!(entries.iter().map(|entry| entry.seq).eq(1..=10), "{room:?}");
        assert!(entries.is_sorted_by_key(|entry| entry.position));
        assert_eq!(head.last_position, entries[9].position);
    }
    for (after, until) in
        [(0, last), (cursor, last), (cursor, newest), (newest, last), (newest + 3, last - 3), (last, last)]
    {
        let said = |position: &Position| {
            (*position > newest && *position < last)
                || was.iter().flat_map(|(_, entries)| entries).any(|entry| entry.position == *position)
        };
        let expected: Vec<Position> = (after + 1..=until).filter(said).collect();
        assert_eq!(missed(&store, &rooms, after, until), expected, "after {after} until {until}");
    }
    let log = store.committed_after(0, usize::MAX).unwrap();
    assert_eq!(log.span, PositionRange { after: 0, through: last });
    assert!(log.records.iter().map(|record| record.position).eq(1..=last));
    // In pages of any length it is the same log.
    for limit in [1, 2, 7, 50] {
        let (mut through, mut records) = (0, Vec::new());
        while through < last {
            let page = store.log_after(through, limit).unwrap();
            assert!(page.span.after == through && page.span.through > through, "{limit}: {:?}", page.span);
            through = page.span.through;
            records.extend(page.records);
        }
        assert_eq!(records, log.records, "{limit} at a time");
    }
    // The outbox has all of them, and is emptied from its old end.
    let waiting = |after| store.outbox(after, 1_000).unwrap().iter().map(|item| item.position).collect::<Vec<_>>();
    let all = waiting(0);
    assert!(all.len() == 10 * ROOMS && all.is_sorted());
    let through = all[ROOMS * 5 + 4];
    store.commit(&[Proposal::AdvanceOutbox { through, dead: vec![] }], NOON).unwrap();
    assert_eq!(waiting(0), all[ROOMS * 5 + 5..]);
    assert_eq!(waiting(all[60]), all[61..]);
    let left = server.sql(&url, "SELECT count(*) FROM tidings.outbox");
    assert_eq!(left, (ROOMS * 5 - 5).to_string(), "the rows are gone");
}

#[test]
fn a_database_in_use_or_of_several_orders_is_left_as_it_is() {
    let server = PostgresServer::shared();
    let url = server.database();
    let options = options_at(&url);
    assert!(matches!(divide_database(&options, 1), Err(DivideError::Count(1))));
    let store = open_at(&url);
    let node = NodeInfo { name: "node-a".into(), boot_id: 7, ..NodeInfo::default() };
    store.heartbeat(&node, 600_000, &[], true).unwrap();
    let in_use = divide_database(&options, 3).unwrap_err();
    assert!(matches!(&in_use, DivideError::InUse(nodes) if nodes == "node-a"), "{in_use}");
    assert_eq!(open_at(&url).orders(), Orders::ONE);
    store.release_lease(7).unwrap();
    assert_eq!(divide_database(&options, 3).unwrap(), 0);
    assert!(matches!(divide_database(&options, 5), Err(DivideError::Divided(3))));
    assert_eq!(open_at(&url).orders(), Orders::new(3));
}

#[test]
fn what_a_node_has_committed_and_not_cut_others_cut() {
    let server = PostgresServer::shared();
    let url = server.database_in_orders(3);
    let (first, second) = (open_at(&url), open_at(&url));
    let rooms = rooms(&first);
    let newest = second.last_position();
    let is_over = AtomicBool::new(false);
    // Nobody can cut meanwhile.
    let held = server.hold(&url, "LOCK TABLE tidings.cutting IN EXCLUSIVE MODE");
    let committed = std::thread::scope(|scope| {
        let commit = scope.spawn(|| {
            let committed = first.commit(&[append(rooms[2], "left")], NOON);
            is_over.store(true, Ordering::Release);
            committed
        });
        server.wait_for_event(&url, "relation");
        while !is_over.load(Ordering::Acquire) {
            server.sql(
                &url,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                 WHERE wait_event = 'relation' AND datname = current_database()",
            );
        }
        commit.join().unwrap()
    });
    assert!(matches!(committed, Err(StoreError::Unavailable(_))), "not acknowledged: {committed:?}");
    drop(held);
    // It was shown to nobody. Whoever follows the log has it cut, and does not wait.
    assert_eq!(second.head(rooms[2]).unwrap(), Head { first_seq: 1, ..Head::default() });
    assert_eq!(second.entries(rooms[2], 1, 9, 9, End::Oldest).unwrap(), []);
    let deadline = Instant::now() + NO_TIMEOUT;
    let log = loop {
        let log = second.committed_after(newest, 10).unwrap();
        if log.span.through > newest {
            break log;
        }
        assert!(Instant::now() < deadline, "nobody cuts it");
    };
    assert_eq!((log.span.through, log.records.len()), (newest + 1, 1));
    assert_eq!(stored_ids(&second, rooms[2]), ["left"]);
    let again = first.commit(&[append(rooms[2], "left")], NOON).unwrap().remove(0);
    assert!(
        matches!(again, Outcome::Appended(Appended { position, duplicate: true, .. }) if position == newest + 1),
        "{again:?}"
    );
}
