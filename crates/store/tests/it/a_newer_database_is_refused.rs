//! Versions of the tables: a program starts with tables of a newer one, and goes on with them, if the newest migration allows it.

use crate::support::{postgres::*, *};
use tidings_domain::{commit_log::*, function::Function, gates::Gate, model::*, store::*};
use tidings_store::{MigrationError, PostgresOpenError, PostgresStore};

/// Leaves the tables as a newer program would.
fn migrated(server: &PostgresServer, url: &str, needs_program: u64) {
    let note = format!("INSERT INTO tidings.migrations VALUES (99, 'of the future', {needs_program})");
    server.sql(url, &note);
    let of_this = "application_name = 'tidings' AND datname = current_database()";
    server.sql(url, &format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {of_this}"));
}

#[test]
fn a_program_does_not_start_with_tables_that_need_a_newer_one() {
    let server = PostgresServer::shared();
    let url = server.database();
    drop(open_at(&url));
    migrated(&server, &url, 98);
    match PostgresStore::open(options_at(&url)) {
        Err(PostgresOpenError::Migration(MigrationError::Newer { found: 99, needs: 98, known })) => assert!(known < 98),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it opened"),
    }
}

#[test]
fn a_program_starts_with_newer_tables_that_it_can_work_with() {
    let server = PostgresServer::shared();
    let url = server.database();
    let store = open_at(&url);
    let room = populate(&store);
    drop(store);
    migrated(&server, &url, 1);
    let store = open_at(&url);
    store.commit(&[append(room, "a")], NOON).unwrap();
    assert_eq!(stored_ids(&store, room), ["a"]);
    // The tables stay as the newer program has made them.
    assert_eq!(server.sql(&url, "SELECT max(version) FROM tidings.migrations").trim(), "99");
}

#[test]
fn a_running_program_goes_on_if_the_migration_allows_it() {
    let server = PostgresServer::shared();
    let url = server.database();
    let store = open_at(&url);
    let room = populate(&store);
    migrated(&server, &url, 1);
    let sent_again = || store.commit(&[append(room, "a")], NOON).is_ok();
    // The first attempt may use the connection that was closed: then its outcome is unknown, and it is sent again.
    assert!(sent_again() || sent_again());
    assert_eq!(stored_ids(&store, room), ["a"]);
}

#[test]
fn a_running_program_is_refused_if_the_migration_needs_a_newer_one() {
    let server = PostgresServer::shared();
    let url = server.database();
    let store = open_at(&url);
    let room = populate(&store);
    migrated(&server, &url, 99);
    for _ in 0..3 {
        assert!(store.commit(&[append(room, "a")], NOON).is_err());
    }
    let error = store.head(room).unwrap_err().to_string();
    assert!(error.contains("must be replaced"), "{error}");
}

#[test]
fn a_program_does_not_start_when_a_gate_is_open_that_it_does_not_know() {
    let server = PostgresServer::shared();
    let url = server.database();
    drop(open_at(&url));
    server.sql(&url, "INSERT INTO tidings.gates (name) VALUES ('of_a_later_version')");
    let error = PostgresStore::open(options_at(&url)).err().unwrap();
    let text = error.to_string();
    assert!(
        matches!(error, PostgresOpenError::Migration(MigrationError::UnknownGate(name)) if name == "of_a_later_version")
    );
    assert!(text.contains("newer programs have written"), "{text}");
}

fn node(name: &str, details: NodeDetails) -> NodeInfo {
    NodeInfo { name: name.into(), boot_id: rand_of(name), details, ..NodeInfo::default() }
}

fn rand_of(name: &str) -> u64 {
    name.bytes().fold(u64::MAX, |id, byte| id ^ u64::from(byte))
}

#[test]
fn gates_open_in_the_database_only_while_all_live_nodes_know_them_and_stay_open() {
    let server = PostgresServer::shared();
    let url = server.database();
    let mut names: Vec<&str> = Gate::ALL.iter().map(|gate| gate.name()).collect();
    names.sort_unstable();
    let store = open_at(&url);
    assert_eq!(
        store.heartbeat(&node("a", NodeDetails::default()), 60_000, &Function::ALL, true).unwrap().open_gates,
        names,
        "new"
    );
    // As a version before gates has left it.
    server.sql(&url, "DELETE FROM tidings.gates; UPDATE tidings.migrations SET needs_program = 7 WHERE name = 'gates'");
    let new = node("a", NodeDetails::of_this_program());
    let beat = |node: &NodeInfo| store.heartbeat(node, 60_000, &Function::ALL, true).unwrap();
    let view = beat(&new);
    assert_eq!((view.open_gates.len(), &view.nodes[..]), (0, &[new.clone()][..]));
    let needs = || server.sql(&url, "SELECT needs_program FROM tidings.migrations WHERE name = 'gates'");
    let before = needs();
    // A node of another version comes while the leader, which has not seen it, opens them.
    beat(&node("old", NodeDetails::default()));
    store.open_gates(&names, &[new.boot_id]).unwrap();
    let view = beat(&new);
    assert_eq!((view.open_gates.len(), view.nodes.len(), needs()), (0, 2, before.clone()));
    // A record in a form that this program cannot read is a node all the same.
    server.sql(&url, "UPDATE tidings.nodes SET card = '\\x09' WHERE name = 'old'");
    let unreadable = beat(&new).nodes.into_iter().find(|node| node.name == "old").unwrap();
    assert_eq!((unreadable.boot_id, unreadable.details), (rand_of("old"), NodeDetails::default()));
    store.release_lease(rand_of("old")).unwrap();
    store.open_gates(&names, &[new.boot_id]).unwrap();
    store.open_gates(&names, &[new.boot_id]).unwrap();
    beat(&node("old", NodeDetails::default()));
    assert_eq!(beat(&new).open_gates, names, "also for a node that comes later");
    assert_ne!(needs(), before, "programs without gates cannot go on");
    assert!(PostgresStore::open(options_at(&url)).is_ok());
}

#[test]
fn what_a_later_version_commits_is_read_as_opaque() {
    let server = PostgresServer::shared();
    let url = server.database();
    let store = open_at(&url);
    let room = populate(&store);
    say(&store, room, ["a", "b", "c"], NOON);
    let position = store.newest_position().unwrap();
    let mark = Proposal::MarkRead { conversation: room, user: UserNo(1), seq: 1 };
    store.commit(&[mark], NOON).unwrap();
    server.sql(&url, "UPDATE tidings.entries SET content = '\\x0203' WHERE seq = 2");
    server.sql(&url, &format!("UPDATE tidings.changes SET change = '\\x01c801ff' WHERE position > {position}"));
    let log = store.committed_after(0, 100).unwrap().records;
    let entries: Vec<_> = log.iter().filter_map(|record| record.entry.as_ref()).map(|(_, entry)| entry).collect();
    assert_eq!(entries.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(entries[1].content, NewEntry::opaque());
    assert_eq!(log.last().unwrap().change, Some(Change::Opaque));
    assert_eq!(store.entries(room, 1, 9, 9, End::Oldest).unwrap().len(), 3);
    server.sql(&url, "UPDATE tidings.entries SET content = '\\x0103' WHERE seq = 2");
    assert!(matches!(store.entries(room, 1, 9, 9, End::Oldest), Err(StoreError::Damaged(_))), "this is damage");
}

#[test]
fn errors_and_debug_output_never_show_the_password() {
    let server = PostgresServer::shared();
    let url = server.url("nowhere").replace("postgres@", "postgres:secret-word@");
    let error = PostgresStore::open(options_at(&url)).err().unwrap();
    assert!(matches!(error, PostgresOpenError::Migration(MigrationError::Store(StoreError::Unavailable(_)))));
    assert!(error.to_string().contains("does not exist"), "{error}");
    for shown in [format!("{error} {error:?}"), format!("{:?}", options_at(&url))] {
        assert!(!shown.contains("secret-word"), "{shown}");
    }
    let error = PostgresStore::open(options_at("postgres://u:secret-word@host:port/x")).err().unwrap();
    assert!(!format!("{error} {error:?}").contains("secret-word"), "{error}");
}
