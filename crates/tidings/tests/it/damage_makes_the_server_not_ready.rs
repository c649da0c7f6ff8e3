//! A server with a damaged store is not ready, so that load balancers and operators notice.

use crate::support::*;
use std::{
    fs,
    os::unix::fs::FileExt,
    path::PathBuf,
    time::{Duration, Instant},
};
use tidings_protocol::http::{CreateConversation, HistoryQuery, SendRequest, UserUpsert};

const WAIT: Duration = Duration::from_secs(300);

/// Whether the storage engine has written a table: the file `current` begins with a version number, which is 0 without tables.
fn reads_from_tables(folder: &Folder) -> bool {
    let current = fs::read(folder.data().join("store/keyspaces/2/current")).unwrap();
    current[..8] != [0; 8] && !tables(folder).is_empty()
}

fn tables(folder: &Folder) -> Vec<PathBuf> {
    let folder = folder.data().join("store/keyspaces/2/tables");
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn readiness_fails_and_names_a_damaged_table() {
    let folder = Folder::new();
    let mut command = folder.program(&["serve", "--store-memtable-bytes", "65536", "--store-cache-bytes", "1"]);
    let server = Server::start(command.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY));
    let mut http = server.http();
    let user = |id: &str| UserUpsert { id: id.into(), ..UserUpsert::default() };
    http.upsert_users(vec![user("alice"), user("bob")]).unwrap();
    let group: CreateConversation =
        serde_json::from_str(r#"{"id":"g","kind":"group","owner":"alice","members":["bob"]}"#).unwrap();
    http.create_conversation(&group).unwrap();
    let deadline = Instant::now() + WAIT;
    let mut sent = 0;
    while !reads_from_tables(&folder) {
        assert!(Instant::now() < deadline, "no table after {sent} messages");
        sent += 1;
        let body = "b".repeat(2_000);
        let text = format!(r#"{{"conversation":"g","from":"alice","client_msg_id":"m{sent}","body":"{body}"}}"#);
        http.send(&serde_json::from_str::<SendRequest>(&text).unwrap()).unwrap();
    }
    assert_eq!(http.exchange("GET", "/readyz", b"").unwrap().status, 200);

    for table in tables(&folder) {
        let file = fs::File::options().read(true).write(true).open(table).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, 200).unwrap();
        file.write_all_at(&[byte[0] ^ 1], 200).unwrap();
    }
    // Until the engine drops a table from its cache, reads are served from memory.
    while http.history("g", &HistoryQuery { from_seq: Some(1), ..Default::default() }).is_ok() {
        assert!(Instant::now() < deadline, "still read");
    }
    let ready = loop {
        let ready = http.exchange("GET", "/readyz", b"").unwrap();
        if ready.status != 200 {
            break ready;
        }
        assert!(Instant::now() < deadline, "still ready");
        std::thread::sleep(Duration::from_millis(20));
    };
    let told = text(&ready.body);
    assert_eq!(ready.status, 503, "{told}");
    assert!(told.contains("store/keyspaces/2/tables/") && told.contains("single-server.md#restore"), "{told}");
}
