//! A retry across an upgrade answers with the first result: what an earlier version stored is found, and in a database, which nodes
//! of both versions write meanwhile, what this version stores is found by them.

use crate::support::{postgres::*, *};
use fjall::{Database, KeyspaceCreateOptions, PersistMode};
use std::{path::Path, time::Duration};
use tidings_domain::{model::*, request_digest::RequestHasher, store::*};
use tidings_store::check::check;

fn asking(conversation: ConversationNo, id: &str, body: &str) -> Proposal {
    let request = EntryRequest {
        digest: Some(RequestHasher::new("send").json("body", body).digest()),
        ..EntryRequest::default()
    };
    Proposal::Append { conversation, entry: NewEntry { request, ..message(id) } }
}

/// The `seq` of a stored entry, and whether it was there before.
#[track_caller]
fn place(store: &dyn Store, proposal: Proposal) -> (u64, bool) {
    match store.commit(&[proposal], NOON + 1).unwrap().remove(0) {
        Outcome::Appended(appended) => (appended.seq, appended.duplicate),
        other => panic!("{other:?}"),
    }
}

/// Gives the first results of a closed store the form that earlier versions gave them.
pub(crate) fn as_before(folder: &Path) {
    // With the marker of a clean shutdown, the changed journals would be refused.
    std::fs::remove_file(folder.join("closed")).unwrap();
    let database = Database::builder(folder.join("store")).open().unwrap();
    let dedupe = database.keyspace("dedupe", KeyspaceCreateOptions::default).unwrap();
    let rows: Vec<_> = dedupe.iter().map(|row| row.into_inner().unwrap()).filter(|(key, _)| key[0] == 1).collect();
    assert!(!rows.is_empty());
    for (key, row) in rows {
        let author = u64::from_be_bytes(key[9..17].try_into().unwrap());
        if author != 0 {
            dedupe.insert(&key[9..], &row[..32]).unwrap();
        }
        dedupe.remove(key).unwrap();
    }
    database.persist(PersistMode::SyncAll).unwrap();
}

#[test]
fn an_upgraded_folder_answers_retries() {
    let folder = scratch();
    let (room, other) = {
        let store = open(folder.path());
        let rooms = (populate(&store), group(&store, "h"));
        say(&store, rooms.0, ["a", "b"], NOON);
        let of_app = NewEntry { sender: None, ..message("app") };
        assert_eq!(place(&store, Proposal::Append { conversation: rooms.0, entry: of_app }), (3, false));
        rooms
    };
    as_before(folder.path());
    assert_eq!(check(folder.path(), tidings_popups::check_popups).unwrap().fault_count, 0);
    let store = open(folder.path());
    assert_eq!(place(&store, asking(room, "a", "1")), (1, true), "rows from before are alike");
    assert_eq!(place(&store, asking(other, "a", "1")), (1, false), "the id in another conversation");
    assert_eq!(place(&store, asking(room, "c", "1")), (4, false));
    assert_eq!(place(&store, asking(room, "c", "1")), (4, true));
    // Retention removes first results of both kinds, each with its own entry.
    say(&store, room, ["late"], NOON + 9 * DAY);
    store
        .retain(Retention { age_max: Some(Duration::from_secs(24 * 60 * 60)), bytes_max: None }, NOON + 9 * DAY)
        .unwrap();
    assert_eq!(place(&store, asking(other, "a", "1")), (1, true));
    assert_eq!(place(&store, asking(room, "a", "1")), (6, false), "its entry is gone");
    drop(store);
    assert_eq!(check(folder.path(), tidings_popups::check_popups).unwrap().fault_count, 0);
}

#[test]
fn nodes_of_two_versions_answer_each_others_retries() {
    let server = PostgresServer::shared();
    let url = server.database();
    let store = open_at(&url);
    let (room, other) = (populate(&store), group(&store, "h"));
    assert_eq!(place(&store, asking(room, "new", "1")), (1, false));
    // A node of the version before looks by these two columns, and reads these four.
    let found = "SELECT conversation, seq, at, position FROM tidings.dedupe WHERE sender = 1 AND client_msg_id = 'new'";
    assert_eq!(server.sql(&url, found), format!("{}|1|{}|{}", room.0, NOON + 1, store.last_position()));
    // It writes the digest of no request.
    assert_eq!(place(&store, asking(room, "old", "1")), (2, false));
    server.sql(&url, "UPDATE tidings.dedupe SET request = NULL WHERE client_msg_id = 'old'");
    assert_eq!(place(&store, asking(room, "old", "2")), (2, true), "rows from before are alike");
    assert_eq!(place(&store, asking(other, "old", "2")), (1, false), "the id in another conversation");
    assert_eq!(place(&store, asking(other, "old", "2")), (1, true));
    let mark = Proposal::MarkRead { conversation: room, user: UserNo(1), seq: 1 };
    let outcomes = store.commit(&[mark, asking(room, "old", "1"), asking(other, "old", "3")], NOON).unwrap();
    assert!(matches!(&outcomes[1], Outcome::Appended(appended) if appended.duplicate && appended.seq == 2));
    assert_eq!(outcomes[2], Outcome::Rejected(Rejection::ClientMsgIdReused));
}
