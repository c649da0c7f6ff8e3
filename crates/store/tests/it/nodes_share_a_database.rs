//! Several nodes commit into one database at once: sequences have no hole and no duplicate, a send is stored once whichever
//! nodes accept it, and a reader that sees a position sees every smaller one.

use crate::support::{postgres::*, *};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
};
use tidings_domain::{commit_log::CommitLog, model::*, store::*};
use tidings_store::{PostgresOptions, PostgresStore};

const ROOMS: usize = 3;
const BATCHES: usize = 60;

fn rooms(store: &dyn Store) -> Vec<ConversationNo> {
    populate(store);
    (0..ROOMS).map(|n| group(store, &format!("room-{n}"))).collect()
}

fn appended(outcome: &Outcome) -> Appended {
    match outcome {
        Outcome::Appended(appended) => *appended,
        other => panic!("not appended: {other:?}"),
    }
}

fn all(store: &dyn Store, room: ConversationNo) -> Vec<StoredEntry> {
    store.entries(room, 0, u64::MAX, usize::MAX, End::Oldest).unwrap()
}

/// Sends messages of this node, and others under ids that all nodes share.
fn send(store: &dyn Store, rooms: &[ConversationNo], node: usize) -> HashMap<String, Appended> {
    let mut first_results = HashMap::new();
    for batch in 0..BATCHES {
        let ids = [format!("node-{node}-{batch}"), format!("shared-{batch}"), format!("node-{node}-{batch}-more")];
        // The order of conversations differs from node to node: locks must not depend on it.
        let room = |n: usize| rooms[(batch + n * (node + 1)) % ROOMS];
        let shared = rooms[batch % ROOMS];
        let mut proposals = vec![append(room(0), &ids[0]), append(shared, &ids[1]), append(room(2), &ids[2])];
        if batch % 7 == node {
            // A mixed batch is decided in memory, while other nodes commit batches of entries alone.
            proposals.push(Proposal::MarkRead { conversation: room(1), user: UserNo(2), seq: u64::MAX });
        }
        let outcomes = store.commit(&proposals, NOON).unwrap();
        first_results.extend(ids.into_iter().zip(outcomes.iter().map(appended)));
    }
    first_results
}

/// Asserts over and over that no position below the reported one is missing; answers how often.
fn watch(store: &PostgresStore, done: &AtomicBool) -> u64 {
    let mut looks = 0;
    loop {
        let last = done.load(Ordering::Acquire);
        let position = store.last_position();
        let log = store.committed_after(0, usize::MAX).unwrap();
        let known = log.records.iter().map(|record| record.position).filter(|known| *known <= position);
        assert!(known.eq(1..=position), "position {position} was reported, and a smaller one is missing");
        looks += 1;
        if last {
            return looks;
        }
    }
}

/// Consumes the outbox in pages, and never reads back.
fn consume(store: &dyn Store, done: &AtomicBool) -> Vec<Position> {
    let mut taken: Vec<Position> = Vec::new();
    loop {
        let last = done.load(Ordering::Acquire);
        let page = store.outbox(taken.last().copied().unwrap_or(0), 50).unwrap();
        taken.extend(page.iter().map(|item| item.position));
        if last && page.is_empty() {
            return taken;
        }
    }
}

#[test]
fn sequences_and_positions_have_no_holes_and_sends_no_duplicates_across_nodes() {
    let server = PostgresServer::shared();
    for orders in [1, 3] {
        nodes_send(&server.database_in_orders(orders));
    }
}

fn nodes_send(url: &str) {
    let nodes: Vec<PostgresStore> = (0..3).map(|_| open_at(url)).collect();
    let rooms = rooms(&nodes[0]);
    // The watcher and the consumer run from the start.
    let [watching, consuming] = [(); 2].map(|()| open_at(url));
    let (start, done) = (Barrier::new(nodes.len() + 2), AtomicBool::new(false));
    let (results, looks, consumed) = std::thread::scope(|scope| {
        let sending = scopeguard::guard((), |()| done.store(true, Ordering::Release));
        let senders: Vec<_> = nodes
            .iter()
            .enumerate()
            .map(|(node, store)| {
                let (start, rooms) = (&start, &rooms);
                scope.spawn(move || {
                    start.wait();
                    send(store, rooms, node)
                })
            })
            .collect();
        let watcher = scope.spawn(|| {
            start.wait();
            watch(&watching, &done)
        });
        let consumer = scope.spawn(|| {
            start.wait();
            consume(&consuming, &done)
        });
        let results: Vec<_> = senders.into_iter().map(|sender| sender.join()).collect();
        drop(sending);
        let results: Vec<_> = results.into_iter().map(|result| result.unwrap()).collect();
        (results, watcher.join().unwrap(), consumer.join().unwrap())
    });
    println!("{looks} looks of the watcher");

    let mut positions = BTreeMap::new();
    let mut stored = HashMap::new();
    for room in &rooms {
        let entries = all(&nodes[1], *room);
        assert!(entries.iter().map(|entry| entry.seq).eq(1..=entries.len() as u64), "a hole or a double");
        assert!(entries.windows(2).all(|pair| pair[0].position < pair[1].position));
        for entry in entries {
            assert_eq!(positions.insert(entry.position, ()), None, "a position twice");
            let id = entry.content.client_msg_id.unwrap();
            assert_eq!(stored.insert(id, (*room, entry.seq, entry.position)), None, "a send twice");
        }
    }
    let sends = nodes.len() * BATCHES * 2 + BATCHES;
    assert_eq!(stored.len(), sends);
    let log = nodes[2].committed_after(0, usize::MAX).unwrap();
    assert_eq!(log.span.through, nodes[2].last_position());
    let entries = log.records.iter().filter(|record| record.entry.is_some()).map(|record| record.position);
    assert!(positions.keys().copied().eq(entries));
    assert!(consumed.into_iter().eq(positions.into_keys()), "the consumer missed something");
    for (id, result) in results.into_iter().flatten() {
        assert_eq!(stored[&id], (result.conversation, result.seq, result.position), "{id}");
    }
}

#[test]
fn an_id_sent_to_two_conversations_by_two_nodes_is_stored_in_each() {
    let server = PostgresServer::shared();
    for orders in [1, 3] {
        nodes_send_one_id(&server.database_in_orders(orders));
    }
}

fn nodes_send_one_id(url: &str) {
    let nodes: Vec<PostgresStore> = (0..2).map(|_| open_at(url)).collect();
    let rooms = rooms(&nodes[0]);
    for round in 0..40 {
        let start = Barrier::new(2);
        let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
            let both: Vec<_> = (0..2)
                .map(|node| {
                    let (start, rooms, nodes) = (&start, &rooms, &nodes);
                    scope.spawn(move || {
                        start.wait();
                        let batch = [append(rooms[node], &format!("id-{round}"))];
                        nodes[node].commit(&batch, NOON).unwrap().remove(0)
                    })
                })
                .collect();
            both.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let stored = |outcome: &Outcome| match outcome {
            Outcome::Appended(appended) => (appended.conversation, appended.seq, appended.duplicate),
            other => panic!("{other:?}"),
        };
        for (node, outcome) in outcomes.iter().enumerate() {
            assert_eq!(stored(outcome), (rooms[node], round + 1, false));
            let again = nodes[1 - node].commit(&[append(rooms[node], &format!("id-{round}"))], NOON).unwrap();
            assert_eq!(stored(&again[0]), (rooms[node], round + 1, true), "a retry on the other node");
        }
    }
}

#[test]
fn users_and_conversations_that_nodes_create_at_once_are_created_once() {
    let server = PostgresServer::shared();
    for orders in [1, 3] {
        nodes_create_at_once(&PostgresOptions { orders, ..options_at(&server.database()) });
    }
}

fn nodes_create_at_once(options: &PostgresOptions) {
    // All nodes open an empty database at once: one of them creates the tables.
    let start = Barrier::new(4);
    let made: Vec<_> = std::thread::scope(|scope| {
        let nodes: Vec<_> = (0..4)
            .map(|node: usize| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    let store = PostgresStore::open(options.clone()).unwrap();
                    let mut created = 0;
                    for n in 0..20 {
                        let mut ids: Vec<_> = (0..4).map(|m| format!("user-{n}-{m}")).collect();
                        ids.rotate_left(node);
                        let patch = |id: &String| UserPatch { id: id.clone(), ..UserPatch::default() };
                        let batch = [Proposal::PutUsers(ids.iter().map(patch).collect())];
                        match store.commit(&batch, NOON).unwrap().remove(0) {
                            Outcome::Users { created: some, .. } => created += some,
                            other => panic!("{other:?}"),
                        }
                        group(&store, &format!("group-{n}"));
                    }
                    created
                })
            })
            .collect();
        nodes.into_iter().map(|node| node.join().unwrap()).collect()
    });
    assert_eq!(made.into_iter().sum::<usize>(), 80);
    let store = PostgresStore::open(options.clone()).unwrap();
    let mut numbers: Vec<_> =
        (0..80).map(|n| store.user_no(&format!("user-{}-{}", n / 4, n % 4)).unwrap().unwrap().0).collect();
    numbers.sort();
    numbers.dedup();
    assert_eq!(numbers.len(), 80, "a number twice");
    let mut conversations: Vec<_> =
        (0..20).map(|n| store.conversation_no(&format!("group-{n}")).unwrap().unwrap().0).collect();
    conversations.sort();
    conversations.dedup();
    assert_eq!(conversations.len(), 20, "a number twice");
}

#[test]
fn numbers_whose_reservation_a_failover_has_lost_are_given_to_one_user_each() {
    let server = PostgresServer::shared();
    let url = server.database();
    let nodes: Vec<PostgresStore> = (0..2).map(|_| open_at(&url)).collect();
    let create = |node: usize, id: &str| {
        let patch = UserPatch { id: id.into(), name: Some(id.into()), ..UserPatch::default() };
        nodes[node].commit(&[Proposal::PutUsers(vec![patch])], NOON).unwrap();
        nodes[node].user_no(id).unwrap().unwrap()
    };
    assert_eq!([create(0, "a"), create(0, "b")].map(|no| no.0), [1, 2]);
    // The first node has reserved the third number, too.
    assert_eq!(server.sql(&url, "UPDATE tidings.counters SET users = 2 WHERE users = 3 RETURNING 1"), "1");
    assert_eq!(create(1, "c").0, 3);
    assert!(create(0, "d").0 > 3);
    let names = ["a", "b", "c", "d"].map(|id| {
        let no = nodes[1].user_no(id).unwrap().unwrap();
        nodes[1].user(no).unwrap().unwrap().name.unwrap()
    });
    assert_eq!(names, ["a", "b", "c", "d"]);
}

#[test]
fn members_and_read_marks_changed_by_two_nodes_add_up() {
    let server = PostgresServer::shared();
    for orders in [1, 3] {
        nodes_change_members(&server.database_in_orders(orders));
    }
}

fn nodes_change_members(url: &str) {
    let nodes: Vec<PostgresStore> = (0..2).map(|_| open_at(url)).collect();
    let patches = (1..=60).map(|n| UserPatch { id: format!("u{n}"), ..UserPatch::default() }).collect();
    nodes[0].commit(&[Proposal::PutUsers(patches)], NOON).unwrap();
    let room = group(&nodes[0], "g");
    std::thread::scope(|scope| {
        for (node, store) in nodes.iter().enumerate() {
            scope.spawn(move || {
                for n in (4 + node as u64..=60).step_by(2) {
                    let add = vec![(UserNo(n), Role::Member)];
                    let (remove, notice, members_max) = (vec![], Some(message(&format!("joined-{n}"))), 100);
                    let change = Proposal::ChangeMembers {
                        conversation: room,
                        add,
                        remove,
                        heir: None,
                        act: None,
                        members_max,
                        notice,
                    };
                    let read = Proposal::MarkRead { conversation: room, user: UserNo(1), seq: u64::MAX };
                    store.commit(&[change, read], NOON).unwrap();
                }
            });
        }
    });
    assert_eq!(nodes[0].conversation(room).unwrap().unwrap().member_count, 60);
    assert_eq!(nodes[1].members(room, None, 100).unwrap().len(), 60);
    assert_eq!(nodes[1].head(room).unwrap().last_seq, 57);
    assert_eq!(nodes[0].membership(room, UserNo(1)).unwrap().unwrap().read_seq, 57);
}
