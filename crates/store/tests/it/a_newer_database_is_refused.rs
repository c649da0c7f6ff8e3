//! Versions of the tables: a program that does not know all migrations does not start, and a running program goes on only if
//! the newest migration allows it.

use crate::support::{postgres::*, *};
use tidings_domain::store::*;
use tidings_store::{MigrationError, PostgresOpenError, PostgresStore};

/// Leaves the tables as a newer program would.
fn migrated(server: &PostgresServer, url: &str, needs_program: u64) {
    let note = format!("INSERT INTO tidings.migrations VALUES (99, 'of the future', {needs_program})");
    server.sql(url, &note);
    let of_this = "application_name = 'tidings' AND datname = current_database()";
    server.sql(url, &format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {of_this}"));
}

#[test]
fn a_program_does_not_start_with_newer_tables() {
    let server = PostgresServer::shared();
    let url = server.database();
    drop(open_at(&url));
    migrated(&server, &url, 1);
    match PostgresStore::open(options_at(&url)) {
        Err(PostgresOpenError::Migration(MigrationError::Newer { found: 99, known })) => assert!(known < 99),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it opened"),
    }
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
