//! A statement reads the rows that it is about, however few there were when it was planned first.

use crate::support::{postgres::*, *};
use std::time::{Duration, Instant};
use tidings_domain::{model::*, store::*};

const ROUNDS: usize = 300;
/// For each row that is written: the rows that decide about it, the index entries on the way there, and those that the reads below look at.
/// It is 2 at most. With first plans that stay it is 6, and with look-ups that the planner takes apart, too, some 350.
const READ_FOR_A_WRITTEN_MAX: u64 = 4;

/// Reads of many in one statement; of the conversations that are there.
fn read(store: &dyn Store, rooms: [ConversationNo; 2]) -> usize {
    let users = [UserNo(1), UserNo(2)];
    let cards = store.conversations(&rooms).unwrap().iter().flatten().count();
    let people = store.users(&users).unwrap().iter().flatten().count();
    let memberships = store.memberships(users[0], &rooms).unwrap().iter().flatten().count();
    let sent = store.are_stored(&rooms.map(|room| (room, users[0], "none"))).unwrap();
    assert_eq!((people, memberships, sent), (cards, cards, vec![false; 2]));
    store.heads(&rooms).unwrap().iter().filter(|head| head.last_seq > 0).count()
}

/// New users and groups, messages by one of the users, in batches of messages alone and of other changes, too; and reads, the first of which
/// find nothing.
fn work(store: &dyn Store) {
    assert_eq!(read(store, [ConversationNo(1), ConversationNo(2)]), 0);
    populate(store);
    for round in 0..ROUNDS {
        let users = (0..4).map(|n| UserPatch { id: format!("user-{round}-{n}"), ..UserPatch::default() }).collect();
        store.commit(&[Proposal::PutUsers(users)], NOON).unwrap();
        let rooms = [0, 1].map(|n| group(store, &format!("room-{round}-{n}")));
        let id = |n: usize| format!("{round}-{n}");
        let messages: Vec<Proposal> = (0..20).map(|n| append(rooms[n % 2], &id(n))).collect();
        store.commit(&messages, NOON).unwrap();
        let mut changes: Vec<Proposal> = (20..24).map(|n| append(rooms[n % 2], &id(n))).collect();
        changes.extend(rooms.map(|conversation| Proposal::MarkRead { conversation, user: UserNo(1), seq: u64::MAX }));
        // One that is there already.
        changes.push(append(rooms[0], &id(0)));
        store.commit(&changes, NOON).unwrap();
        assert_eq!(read(store, rooms), 2);
    }
}

/// Nobody but the tests says when tables are analysed.
const UNATTENDED: [&str; 3] = ["fsync=off", "full_page_writes=off", "autovacuum=off"];
/// The rows and index entries that were read, by table and index.
const READ: &str = "SELECT relname AS name, seq_tup_read AS rows FROM pg_stat_user_tables \
     UNION ALL SELECT indexrelname, idx_tup_read FROM pg_stat_user_indexes";

/// Waits until a store that was closed has no connections: one that has ended has told what it read.
fn wait_for_its_end(server: &PostgresServer, url: &str) {
    let deadline = Instant::now() + Duration::from_secs(120);
    let connected = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tidings'";
    while server.sql(url, connected) != "0" {
        assert!(Instant::now() < deadline, "the store keeps its connections");
    }
}

/// Fails if more was read than what was written accounts for. `what`: for the message.
fn check_reads(server: &PostgresServer, url: &str, what: &str) {
    wait_for_its_end(server, url);
    let written: u64 = server.sql(url, "SELECT sum(n_tup_ins + n_tup_upd) FROM pg_stat_user_tables").parse().unwrap();
    let read: u64 = server.sql(url, &format!("SELECT sum(rows) FROM ({READ}) r")).parse().unwrap();
    let by_table = server.sql(url, &format!("{READ} ORDER BY rows DESC LIMIT 8"));
    println!("{what}: {read} rows read for {written} written\n{by_table}");
    assert!(read < written * READ_FOR_A_WRITTEN_MAX, "{what}: {read} rows read for {written} written:\n{by_table}");
}

#[test]
fn what_was_planned_for_empty_tables_is_planned_anew_as_they_fill() {
    let server = PostgresServer::start(&UNATTENDED);
    for orders in [1, 4] {
        let url = server.database_in_orders(orders);
        // The planner takes it that the tables stay as they are.
        server.sql(&url, "ANALYZE");
        work(&open_at(&url));
        check_reads(&server, &url, &format!("{orders} orders"));
    }
}

/// The planner goes by what senders have on average.
#[test]
fn a_sender_of_many_messages_among_senders_of_few_costs_no_more() {
    let server = PostgresServer::start(&UNATTENDED);
    let url = server.database();
    let store = open_at(&url);
    let room = populate(&store);
    drop(store);
    // Of others two messages each, of the first user 2,000.
    let results = "INSERT INTO tidings.dedupe (sender, client_msg_id, conversation, seq, at, position)";
    server.sql(
        &url,
        &format!("{results} SELECT 1000 + n / 2, 'few-' || n, 1, n, 1, n FROM generate_series(1, 200000) n"),
    );
    server.sql(&url, &format!("{results} SELECT 1, 'many-' || n, 1, n, 1, n FROM generate_series(1, 2000) n"));
    server.sql(&url, "ANALYZE");
    wait_for_its_end(&server, &url);
    server.sql(&url, "SELECT pg_stat_reset()");
    let store = open_at(&url);
    for n in 0..100 {
        // A batch with a mark is decided by the node, one of plain messages by the database; both look for first results.
        let mark = Proposal::MarkRead { conversation: room, user: UserNo(1), seq: u64::MAX };
        store.commit(&[append(room, &format!("{n}"))], NOON).unwrap();
        store.commit(&[append(room, &format!("with a mark {n}")), mark], NOON).unwrap();
    }
    drop(store);
    check_reads(&server, &url, "many among few");
}
