//! Conditions under which a server with a data folder starts, and those under which it explains why it does not.

use crate::support::*;
use std::process::{Command, Stdio};
use tidings_protocol::http::{CreateConversation, HistoryQuery, SendRequest, UserUpsert};

fn message(id: u32) -> SendRequest {
    let text = format!(r#"{{"conversation":"g","from":"alice","client_msg_id":"m{id}","body":{{"n":{id}}}}}"#);
    serde_json::from_str(&text).unwrap()
}

/// A server whose files cannot grow, as on a full disk.
fn serve_on_a_full_disk(folder: &Folder) -> Server {
    let mut command = Command::new("sh");
    let script = r#"trap "" XFSZ; ulimit -f 0; exec "$0" serve"#;
    command.args(["-c", script, env!("CARGO_BIN_EXE_tidings")]).env_clear();
    let of = folder.program(&[]);
    command.envs(of.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir(folder.path());
    command.stdin(Stdio::null()).env("PATH", std::env::var("PATH").unwrap());
    Server::start(command.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY))
}

#[test]
fn a_server_starts_on_a_full_disk_and_serves_reads() {
    let folder = Folder::new();
    let mut server = folder.serve();
    let user = |id: &str| UserUpsert { id: id.into(), ..UserUpsert::default() };
    server.http().upsert_users(vec![user("alice"), user("bob")]).unwrap();
    let group: CreateConversation =
        serde_json::from_str(r#"{"id":"g","kind":"group","owner":"alice","members":["bob"]}"#).unwrap();
    server.http().create_conversation(&group).unwrap();
    let sent = server.http().send(&message(1)).unwrap();
    // A start after a crash has more to write than one after a stop.
    server.signal("KILL");
    server.wait();

    let mut server = serve_on_a_full_disk(&folder);
    let query = HistoryQuery { from_seq: Some(sent.seq), ..Default::default() };
    assert_eq!(server.http().history("g", &query).unwrap().entries.len(), 1);
    assert!(server.http().send(&message(2)).is_err(), "there is no room for it");
    assert_eq!(server.http().history("g", &query).unwrap().entries.len(), 1, "what is refused is not there");
    server.signal("KILL");
    server.wait();

    let server = folder.serve();
    let after = server.http().send(&message(3)).unwrap();
    assert!(after.seq > sent.seq);
    assert_eq!(server.http().history("g", &query).unwrap().entries.first().map(|entry| entry.seq), Some(sent.seq));
}

#[test]
fn store_sizes_below_the_minimum_are_refused_by_name() {
    let folder = Folder::new();
    for (setting, least) in [("journal_bytes", "67108864"), ("memtable_bytes", "65536")] {
        let flag = format!("--store-{}", setting.replace('_', "-"));
        let output = folder.run(&["serve", &flag, "1000", "--api-key", API_KEY, "--token-key", TOKEN_KEY]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(setting) && said.contains(least) && !said.contains("panicked"), "{said}");
    }
}
