//! The program on a PostgreSQL database instead of its data folder.

use crate::postgres::PostgresServer;
use crate::support::*;
use std::{process::Command, time::Duration};
use tidings_protocol::{
    frames::ServerFrame,
    http::{CreateConversation, HistoryQuery, SendRequest, UserUpsert},
};

const WAIT: Duration = Duration::from_secs(300);

fn serving(folder: &Folder, url: &str) -> Command {
    let mut command = folder.program(&["serve", "--drain-deadline-ms", "1500"]);
    command.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY).env("TIDINGS_STORE_URL", url);
    command
}

fn message(id: u32) -> SendRequest {
    let text = format!(r#"{{"conversation":"g","from":"alice","client_msg_id":"m{id}","body":{{"n":{id}}}}}"#);
    serde_json::from_str(&text).unwrap()
}

#[test]
fn the_next_server_on_the_database_has_what_was_acknowledged() {
    let database = PostgresServer::shared();
    let url = database.database();
    let folder = Folder::new();
    let mut first = Server::start(&mut serving(&folder, &url));
    let user = |id: &str| UserUpsert { id: id.into(), ..UserUpsert::default() };
    first.http().upsert_users(vec![user("alice"), user("bob")]).unwrap();
    let group: CreateConversation =
        serde_json::from_str(r#"{"id":"g","kind":"group","owner":"alice","members":["bob"]}"#).unwrap();
    first.http().create_conversation(&group).unwrap();
    let mut bob = first.session("bob", None);
    let sent = first.http().send(&message(1)).unwrap();
    assert!(bob.next_where(WAIT, |frame| matches!(frame, ServerFrame::Messages { .. })).unwrap().is_some());
    first.signal("KILL");
    first.wait();

    // On another folder: nothing that matters is stored in a folder.
    let folder = Folder::new();
    let second = Server::start(&mut serving(&folder, &url));
    let again = second.http().send(&message(1)).unwrap();
    assert_eq!((again.seq, again.at, again.duplicate), (sent.seq, sent.at, true));
    let page = second.http().history("g", &HistoryQuery { from_seq: Some(sent.seq), ..Default::default() }).unwrap();
    assert_eq!(page.entries.len(), 1);
    let backup: Result<serde_json::Value, _> =
        second.http().post("/v1/admin/backup", &serde_json::json!({ "path": "copy" }));
    assert!(backup.unwrap_err().to_string().contains("its own tools"));
    assert!(!folder.data().join("format").exists());
}

#[test]
fn data_folder_commands_refuse_a_database_and_name_its_tools() {
    let folder = Folder::new();
    for (command, tool) in [(&["backup", "copy"][..], "pg_dump"), (&["check"], "pg_amcheck")] {
        let output = folder.program(command).env("TIDINGS_STORE_URL", "postgres://u:secret-word@nowhere/x").output();
        let output = output.unwrap();
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(tool), "{said}");
        assert!(!said.contains("secret-word"));
    }
}

#[test]
fn database_errors_do_not_show_the_password() {
    let folder = Folder::new();
    for (url, why) in [
        ("postgres://u:secret-word@127.0.0.1:1/x", "opening the database"),
        ("mysql://u:secret-word@nowhere/x", "not one of PostgreSQL"),
        ("postgres://u:secret-word@nowhere:port/x", "url"),
    ] {
        let output = serving(&folder, url).output().unwrap();
        let said = text(&output.stderr) + &text(&output.stdout);
        assert!(!output.status.success() && said.contains(why), "{said}");
        assert!(!said.contains("secret-word"), "{said}");
    }
}
