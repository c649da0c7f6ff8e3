//! After a purge no file of the store has the bytes of a message that was recalled before it, and all else is there.

use crate::support::{postgres::*, *};
use memchr::memmem;
use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};
use tidings_domain::{model::*, store::*};
use tidings_store::EmbeddedStore;

/// Texts that no compression shortens, one of them in a body of several parts.
const SECRETS: [&str; 3] = ["q7Zk2VxN9wLr4TbY", "Hc5Jm8PdEu1Ga6Xo", "s3WnRy0KfQ2iBv7t"];

fn files_with(folder: &Path, secret: &str) -> Vec<String> {
    let mut found = Vec::new();
    for item in fs::read_dir(folder).unwrap() {
        let path = item.unwrap().path();
        if path.is_dir() {
            found.extend(files_with(&path, secret));
        } else if memmem::find(&fs::read(&path).unwrap(), secret.as_bytes()).is_some() {
            found.push(path.display().to_string());
        }
    }
    found
}

/// A body with the secret; the third one is longer than a row.
fn secret_message(n: usize) -> NewEntry {
    let padding = if n == 2 { 20_000 } else { 10 };
    let noise: String = (0..padding).map(|at| char::from(b'a' + (at * at % 23) as u8)).collect();
    NewEntry { body: format!("\"{noise}{}{noise}\"", SECRETS[n]).into(), ..message(&format!("secret-{n}")) }
}

/// Stores the secrets among other messages; answers the room and the secrets' sequences.
fn store_secrets(store: &dyn Store) -> (ConversationNo, Vec<u64>) {
    let room = populate(store);
    let mut seqs = Vec::new();
    for n in 0..SECRETS.len() {
        say(store, room, (0..50).map(|other| format!("{n}-{other}")), NOON);
        let stored = store.commit(&[Proposal::Append { conversation: room, entry: secret_message(n) }], NOON).unwrap();
        let [Outcome::Appended(appended)] = &stored[..] else { panic!("{stored:?}") };
        seqs.push(appended.seq);
    }
    (room, seqs)
}

fn recall(store: &dyn Store, conversation: ConversationNo, target: u64) {
    let entry = NewEntry {
        kind: EntryKind::Recall,
        client_msg_id: None,
        body: "null".to_owned().into(),
        ..message("the recall")
    };
    let change = Proposal::ChangeMessage { conversation, target, change: MessageChange::Recall, entry };
    let outcomes = store.commit(&[change], NOON).unwrap();
    assert!(matches!(outcomes[..], [Outcome::MessageChanged { .. }]), "{outcomes:?}");
}

fn is_sound(store: &EmbeddedStore, room: ConversationNo, last_seq: u64) {
    let report = store.check(tidings_popups::check_popups).unwrap();
    assert!(report.is_sound(), "{report}");
    let entries = store.entries(room, 0, u64::MAX, usize::MAX, End::Oldest).unwrap();
    assert!(entries.iter().map(|entry| entry.seq).eq(1..=last_seq));
}

#[test]
fn a_purge_removes_the_bytes_of_recalled_messages_from_journals_and_tables() {
    let folder = scratch();
    let store = open(folder.path());
    let (room, seqs) = store_secrets(&store);
    // The first secret is in a table when it is recalled, the others are in the journal.
    store.purge().unwrap();
    for secret in SECRETS {
        let files = files_with(folder.path(), secret);
        assert!(!files.is_empty() && files.iter().all(|file| file.contains("tables")), "{secret}: {files:?}");
    }
    recall(&store, room, seqs[0]);
    recall(&store, room, seqs[2]);
    store.purge().unwrap();
    for (secret, is_kept) in SECRETS.into_iter().zip([false, true, false]) {
        let files = files_with(folder.path(), secret);
        assert_eq!(!files.is_empty(), is_kept, "{secret}: {files:?}");
    }
    is_sound(&store, room, 155);
    // As after a crash.
    let crashed = scratch();
    copy_folder(folder.path(), &crashed.path().join("data"));
    is_sound(&open(&crashed.path().join("data")), room, 155);
    drop(store);
    is_sound(&open(folder.path()), room, 155);
}

#[test]
fn a_message_that_was_recalled_before_it_left_the_journal_leaves_no_bytes() {
    let folder = scratch();
    let store = open(folder.path());
    let (room, seqs) = store_secrets(&store);
    assert!(SECRETS.iter().all(|secret| !files_with(folder.path(), secret).is_empty()));
    seqs.iter().for_each(|seq| recall(&store, room, *seq));
    store.purge().unwrap();
    assert!(SECRETS.iter().all(|secret| files_with(folder.path(), secret).is_empty()));
    is_sound(&store, room, 156);
}

#[test]
fn messages_that_are_sent_during_a_purge_are_kept() {
    let folder = scratch();
    let store = open(folder.path());
    let (room, seqs) = store_secrets(&store);
    recall(&store, room, seqs[1]);
    let is_done = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let purging = scopeguard::guard((), |()| is_done.store(true, Ordering::Relaxed));
        let sender = scope.spawn(|| {
            let mut sent = 0;
            while !is_done.load(Ordering::Relaxed) || sent < 100 {
                say(&store, room, [format!("meanwhile-{sent}")], NOON);
                sent += 1;
            }
            sent
        });
        store.purge().unwrap();
        drop(purging);
        sender.join().unwrap()
    });
    assert!(files_with(folder.path(), SECRETS[1]).is_empty());
    is_sound(&store, room, 154 + sent);
    drop(store);
    is_sound(&open(folder.path()), room, 154 + sent);
}

#[test]
fn a_database_has_no_row_of_a_recalled_body_and_no_byte_once_its_table_is_written_anew() {
    let server = PostgresServer::start(&[]);
    let url = server.database();
    let store = open_at(&url);
    let (room, seqs) = store_secrets(&store);
    let rows_with = |secret: &str| {
        let rows = format!("SELECT count(*) FROM tidings.entries WHERE position('{secret}'::bytea in content) > 0");
        server.sql(&url, &rows)
    };
    let tables = server.data().join("base");
    server.sql(&url, "CHECKPOINT");
    // The third one is compressed in the files.
    for secret in &SECRETS[..2] {
        assert_eq!((rows_with(secret).as_str(), files_with(&tables, secret).is_empty()), ("1", false), "{secret}");
    }
    assert_eq!(rows_with(SECRETS[2]), "1");
    seqs.iter().for_each(|seq| recall(&store, room, *seq));
    assert!(SECRETS.iter().all(|secret| rows_with(secret) == "0"));
    store.purge().unwrap();
    let dead = "SELECT coalesce(sum(n_dead_tup), 0) FROM pg_stat_user_tables WHERE relname LIKE 'entries%'";
    server.sql(&url, "SELECT pg_stat_force_next_flush()");
    assert_eq!(server.sql(&url, dead), "0");
    server.sql(&url, "VACUUM FULL tidings.entries");
    server.sql(&url, "CHECKPOINT");
    assert!(!files_with(&tables, "2-49 says hello").is_empty(), "the files hold the other messages");
    assert!(SECRETS.iter().all(|secret| files_with(&tables, secret).is_empty()));
}
