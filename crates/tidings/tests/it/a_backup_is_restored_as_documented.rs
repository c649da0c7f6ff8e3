//! The restore that `docs/operations/single-server.md` documents, command by command, on a folder with a damaged table.

use crate::support::*;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};
use tidings_protocol::http::{CreateConversation, HistoryQuery, SendRequest, UserUpsert};

const PAGE: &str = include_str!("../../../../docs/operations/single-server.md");

/// The commands under a heading of the page.
fn commands(heading: &str) -> String {
    let (_, section) = PAGE.split_once(&format!("\n## {heading}\n")).unwrap();
    let (_, commands) = section.split_once("```sh\n").unwrap();
    commands.split_once("```").unwrap().0.to_owned()
}

/// Runs the page's commands with its folders in another place, and with a `systemctl` that leaves servers to the test.
fn follow(heading: &str, folder: &Folder) -> (bool, String) {
    let bin = folder.path().join("bin");
    fs::create_dir_all(&bin).unwrap();
    let program = |name: &str, script: String| {
        fs::write(bin.join(name), format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    };
    program("systemctl", "exit 0".into());
    program("tidings", format!("exec {} \"$@\"", env!("CARGO_BIN_EXE_tidings")));
    let there = folder.path().join("var-lib").join("tidings");
    let commands = commands(heading).replace("/var/lib/tidings", there.to_str().unwrap());
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let output = Command::new("sh").args(["-ec", &commands]).env_clear().env("PATH", path).output().unwrap();
    (output.status.success(), text(&output.stdout) + &text(&output.stderr))
}

fn message(id: u32) -> SendRequest {
    let text = format!(r#"{{"conversation":"g","from":"alice","client_msg_id":"m{id}","body":{{"n":{id}}}}}"#);
    serde_json::from_str(&text).unwrap()
}

fn serve(folder: &Folder) -> Server {
    let data = folder.path().join("var-lib/tidings");
    let mut command = folder.program(&["serve", "--data-dir", data.to_str().unwrap()]);
    Server::start(command.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY))
}

fn stop(mut server: Server) {
    server.signal("TERM");
    assert!(server.wait().0.success());
}

fn bodies(server: &Server) -> Vec<u64> {
    let page = server.http().history("g", &HistoryQuery { from_seq: Some(1), ..Default::default() }).unwrap();
    let entries = serde_json::to_value(&page.entries).unwrap();
    entries.as_array().unwrap().iter().filter_map(|entry| entry["body"]["n"].as_u64()).collect()
}

fn any_journal(data: &Path) -> PathBuf {
    let journals = fs::read_dir(data.join("store")).unwrap().map(|entry| entry.unwrap().path());
    journals.max_by_key(|path| path.extension().is_some_and(|e| e == "jnl").then(|| path.clone())).unwrap()
}

#[test]
fn the_documented_restore_brings_back_the_backup() {
    let folder = Folder::new();
    let data = folder.path().join("var-lib/tidings");
    let server = serve(&folder);
    let user = |id: &str| UserUpsert { id: id.into(), ..UserUpsert::default() };
    server.http().upsert_users(vec![user("alice"), user("bob")]).unwrap();
    let group: CreateConversation =
        serde_json::from_str(r#"{"id":"g","kind":"group","owner":"alice","members":["bob"]}"#).unwrap();
    server.http().create_conversation(&group).unwrap();
    (1..=3).for_each(|id| drop(server.http().send(&message(id)).unwrap()));
    stop(server);

    let (done, said) = follow("Backups", &folder);
    assert!(done && said.contains("sound"), "{said}");

    let server = serve(&folder);
    server.http().send(&message(4)).unwrap();
    stop(server);
    let journal = any_journal(&data);
    let mut bytes = fs::read(&journal).unwrap();
    bytes[100] ^= 1;
    fs::write(&journal, bytes).unwrap();
    let keys = ["--api-key", API_KEY, "--token-key", TOKEN_KEY];
    let refused = folder.program(&["serve", "--data-dir", data.to_str().unwrap()]).args(keys).output().unwrap();
    let message_of_it = text(&refused.stderr);
    let page = "docs/operations/single-server.md#restore";
    assert!(!refused.status.success() && message_of_it.contains(page), "{message_of_it}");
    assert!(message_of_it.contains(".jnl"), "the file is named: {message_of_it}");

    let (done, said) = follow("Restore", &folder);
    assert!(done && said.contains("sound"), "{said}");
    let server = serve(&folder);
    assert_eq!(bodies(&server), [1, 2, 3]);
    assert!(server.http().send(&message(3)).unwrap().duplicate);
    assert!(!server.http().send(&message(4)).unwrap().duplicate, "what the backup lacks is stored again");
    stop(server);

    // The damaged folder was moved aside, and a repair of it lists what is lost.
    let before = folder.path().join("var-lib/tidings-before");
    let repaired = folder.run(&["check", "--repair", "--json", before.to_str().unwrap()]);
    let found: serde_json::Value = serde_json::from_slice(&repaired.stdout).unwrap();
    assert_eq!(found["lost"][0]["conversation"], "g", "{found}");
    assert!(found["messages_lost"].as_u64().unwrap() >= 4, "{found}");
}
