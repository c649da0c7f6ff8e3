//! The program as an operator sees it: started, stopped, killed, backed up, checked.

use crate::support::*;
use std::time::Duration;
use tidings_client::ClientError;
use tidings_protocol::{
    frames::ServerFrame,
    http::{CreateConversation, HistoryQuery, SendRequest, UserUpsert},
};

const WAIT: Duration = Duration::from_secs(300);

fn populate(server: &Server) {
    let user = |id: &str| UserUpsert { id: id.into(), ..UserUpsert::default() };
    server.http().upsert_users(vec![user("alice"), user("bob")]).unwrap();
    let group: CreateConversation =
        serde_json::from_str(r#"{"id":"g","kind":"group","owner":"alice","members":["bob"]}"#).unwrap();
    server.http().create_conversation(&group).unwrap();
}

fn message(id: u32) -> SendRequest {
    let text = format!(r#"{{"conversation":"g","from":"alice","client_msg_id":"m{id}","body":{{"n":{id}}}}}"#);
    serde_json::from_str(&text).unwrap()
}

#[test]
fn acknowledged_messages_survive_a_kill() {
    let folder = Folder::new();
    let server = folder.serve();
    populate(&server);
    let first = server.http().send(&message(1)).unwrap();
    server.signal("KILL");
    let mut server = server;
    server.wait();

    let server = folder.serve();
    let again = server.http().send(&message(1)).unwrap();
    assert_eq!((again.seq, again.at, again.duplicate), (first.seq, first.at, true));
    let page = server.http().history("g", &HistoryQuery { from_seq: Some(first.seq), ..Default::default() }).unwrap();
    assert_eq!(page.entries.len(), 1);
}

#[test]
fn a_stop_notifies_sessions_and_leaves_a_sound_folder() {
    let folder = Folder::new();
    let mut server = folder.serve();
    populate(&server);
    let mut bob = server.session("bob", None);
    let mut idle = server.http();
    let sent = idle.send(&message(1)).unwrap();
    bob.next_where(WAIT, |frame| matches!(frame, ServerFrame::Messages { .. })).unwrap().unwrap();
    assert!(folder.data().join("listening").exists());

    server.signal("TERM");
    let told = bob.next_where(WAIT, |frame| matches!(frame, ServerFrame::Reconnect { .. })).unwrap();
    assert!(matches!(told, Some(ServerFrame::Reconnect { .. })), "{told:?}");
    let closed = std::iter::from_fn(|| match bob.next(WAIT) {
        Ok(Some(_)) => Some(None),
        Ok(None) => panic!("not closed in time"),
        Err(error) => Some(Some(error)),
    });
    let closed = closed.flatten().next();
    assert!(matches!(closed, Some(ClientError::Closed { code: 4009, .. })), "{closed:?}");
    let cursor = bob.cursor.clone();
    drop(bob);
    let (status, _) = server.wait();
    assert!(status.success());
    assert!(!folder.data().join("listening").exists());

    let check = folder.run(&["check", "--json"]);
    assert!(check.status.success(), "{}", text(&check.stdout));
    assert!(text(&check.stdout).contains(r#""sound":true"#));

    let server = folder.serve();
    let mut bob = server.session("bob", cursor.as_deref());
    server.http().send(&message(2)).unwrap();
    let frame = bob.next_where(WAIT, |frame| matches!(frame, ServerFrame::Messages { .. })).unwrap();
    let Some(ServerFrame::Messages { entries, .. }) = frame else { panic!("nothing came") };
    assert_eq!(entries[0].seq, sent.seq + 1, "no more and no less than what was missed");
}

#[test]
fn a_second_server_on_a_data_folder_is_refused() {
    let folder = Folder::new();
    let _server = folder.serve();
    let mut second = folder.program(&["serve", "--api-key", "k", "--token-key", "t"]);
    let output = second.output().unwrap();
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("in use by another process"), "{}", text(&output.stderr));
    assert!(text(&folder.run(&["check"]).stderr).contains("in use by another process"));
}

#[test]
fn a_backup_is_made_while_serving_and_while_stopped() {
    let folder = Folder::new();
    let mut server = folder.serve();
    populate(&server);
    server.http().send(&message(1)).unwrap();
    let live = folder.path().join("backups/live");
    let outside = folder.path().join("elsewhere");
    let back_up = |to: &std::path::Path| {
        folder.program(&["backup", to.to_str().unwrap()]).env("TIDINGS_API_KEY", API_KEY).output().unwrap()
    };
    let made = back_up(&live);
    assert!(made.status.success(), "{}", text(&made.stderr));
    assert!(!back_up(&live).status.success(), "a backup must not overwrite one");
    assert!(!back_up(&outside).status.success(), "a server writes only within its backup_dir");

    server.signal("INT");
    server.wait();
    let made = back_up(&outside);
    assert!(made.status.success(), "{}", text(&made.stderr));
    for copy in [live, outside] {
        let check = folder.run(&["check", copy.to_str().unwrap()]);
        assert!(check.status.success() && text(&check.stdout).contains("sound"), "{}", text(&check.stdout));
    }
}

#[test]
fn checking_a_missing_data_folder_fails() {
    let folder = Folder::new();
    let output = folder.run(&["check", "nowhere"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(!folder.path().join("nowhere").exists(), "a check creates nothing");
}
