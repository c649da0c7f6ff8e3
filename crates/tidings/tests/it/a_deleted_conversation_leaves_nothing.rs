//! Conversations are deleted, over kills: afterwards `check --deleted` finds nothing, and no file and no table has a byte of what was in
//! them.

use crate::{
    an_erased_user_leaves_nothing::{WAIT, call, files_with},
    postgres::PostgresServer,
    support::*,
};
use serde_json::{Value, json};
use std::{process::Command, time::Instant};
use tidings_client::http::HttpClient;

/// What is in the group and in the direct conversation. No compression shortens them.
const NAME: &str = "nameOfG5Jm8PdEu1G";
const BODY: &str = "bodyOfGT4bYs9XoLm2c";
const EDIT: &str = "editOfGGk3Vb7NzRq5w";
const LONG: &str = "longOfGPw8Ae1UyHt6j";
const MESSAGE_ID: &str = "msgidOfGXc4Fv0BmDs9";
const TITLE: &str = "titleOfGKl2Oi7TgRe3";
const REPORT: &str = "reportOfGZu6Wn1QaPv";
const DIRECT: &str = "directOfGYh9Jx5SdCf";
const LATER: &str = "laterOfGJv7Bs3NyQe6";
const GROUP: &str = "groupQ7Zk2VxN9wLr";
const MARKS: [&str; 10] = [NAME, BODY, EDIT, LONG, MESSAGE_ID, TITLE, REPORT, DIRECT, LATER, GROUP];
const DELETED: [&str; 2] = [GROUP, "ann~bob"];

fn live(http: &mut HttpClient) {
    call(http, "PUT", "/v1/users", &json!({ "users": [{ "id": "ann" }, { "id": "bob" }] }));
    for (id, name) in [(GROUP, NAME), ("other", "Other")] {
        let new = json!({ "id": id, "kind": "group", "name": name, "owner": "ann", "members": ["bob"] });
        call(http, "POST", "/v1/conversations", &new);
    }
    let long: String = (0..20_000).map(|at| char::from(b'a' + (at * at % 23) as u8)).collect();
    let send = |http: &mut HttpClient, message: Value| call(http, "POST", "/v1/messages", &message);
    send(
        http,
        json!({ "conversation": GROUP, "from": "ann", "body": { "text": BODY }, "client_msg_id": MESSAGE_ID, "mentions": ["bob"] }),
    );
    send(
        http,
        json!({ "conversation": GROUP, "from": "bob", "body": { "text": format!("{long}{LONG}{long}") }, "reply_to": 1 }),
    );
    send(http, json!({ "to": "bob", "from": "ann", "body": { "text": DIRECT }, "client_msg_id": MESSAGE_ID }));
    send(
        http,
        json!({ "conversation": "other", "from": "ann", "body": { "text": "stays" }, "client_msg_id": "other-1" }),
    );
    for n in 0..600 {
        send(http, json!({ "conversation": GROUP, "from": "bob", "body": { "text": format!("{n}") } }));
    }
    call(
        http,
        "PATCH",
        &format!("/v1/conversations/{GROUP}/messages/1"),
        &json!({ "from": "ann", "body": { "text": EDIT } }),
    );
    call(http, "PUT", &format!("/v1/conversations/{GROUP}/messages/1/reactions/+?user=bob"), &Value::Null);
    call(http, "PATCH", &format!("/v1/users/bob/conversations/{GROUP}"), &json!({ "title": TITLE }));
    let report = json!({ "reason": "spam", "text": REPORT, "user": "bob" });
    call(http, "POST", &format!("/v1/conversations/{GROUP}/messages/1/report"), &report);
    let message = json!({ "conversation": GROUP, "from": "ann", "body": { "text": LATER } });
    call(http, "POST", "/v1/scheduled-messages", &json!({ "send_at": 4_102_444_800_000_u64, "message": message }));
}

/// Deletes the conversations over kills.
fn live_and_delete(serving: &dyn Fn() -> Command) -> Server {
    let mut server = Server::start(&mut serving());
    live(&mut server.http());
    for (kills, id) in DELETED.into_iter().enumerate() {
        let begun = call(&mut server.http(), "DELETE", &format!("/v1/conversations/{id}"), &Value::Null);
        assert_eq!(begun["conversation"], id);
        for _ in 0..=kills {
            server.signal("KILL");
            server.wait();
            server = Server::start(&mut serving());
        }
        let deadline = Instant::now() + WAIT;
        loop {
            // Without a feed the id is forgotten by the next round of the work.
            let erasure = call(&mut server.http(), "GET", &format!("/v1/erasures/{id}"), &Value::Null);
            if erasure["state"] == "done" && erasure["conversation"].is_null() {
                break;
            }
            assert!(Instant::now() < deadline, "{erasure}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
    let mut http = server.http();
    assert_eq!(http.exchange("GET", &format!("/v1/conversations/{GROUP}"), b"").unwrap().status, 404);
    let other = call(&mut http, "GET", "/v1/conversations/other/messages", &Value::Null);
    assert!(other.to_string().contains("stays"));
    // The same send to the other conversation is still known.
    let again =
        json!({ "conversation": "other", "from": "ann", "body": { "text": "stays" }, "client_msg_id": "other-1" });
    assert_eq!(call(&mut http, "POST", "/v1/messages", &again)["seq"], 1);
    server.signal("TERM");
    server.wait();
    server
}

#[test]
fn a_folder_has_no_byte_of_deleted_conversations() {
    let folder = Folder::new();
    let serving = || {
        let mut command = folder.program(&["serve", "--drain-deadline-ms", "30000"]);
        command.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY);
        command.env("TIDINGS_EVENTS_KEEP_DAYS", "0");
        command
    };
    live_and_delete(&serving);
    let data = folder.data();
    for id in DELETED {
        let check = folder.run(&["check", data.to_str().unwrap(), "--deleted", id, "--purge"]);
        assert!(check.status.success(), "{}{}", text(&check.stdout), text(&check.stderr));
    }
    for mark in MARKS {
        assert_eq!(files_with(&data, mark), Vec::<String>::new(), "{mark}");
    }
    let sound = folder.run(&["check", data.to_str().unwrap()]);
    assert!(sound.status.success(), "{}", text(&sound.stdout));
    let other = folder.run(&["check", data.to_str().unwrap(), "--deleted", "other"]);
    assert_eq!(other.status.code(), Some(1), "{}", text(&other.stdout));
}

#[test]
fn a_database_has_no_row_of_deleted_conversations() {
    let database = PostgresServer::shared();
    let url = database.database();
    let folder = Folder::new();
    let serving = || {
        let mut command = folder.program(&["serve", "--drain-deadline-ms", "30000"]);
        command.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY);
        command.env("TIDINGS_EVENTS_KEEP_DAYS", "0").env("TIDINGS_STORE_URL", &url);
        command
    };
    live_and_delete(&serving);
    for id in DELETED {
        let mut check = folder.program(&["check", "--deleted", id]);
        let check = check.env("TIDINGS_STORE_URL", &url).env("TIDINGS_EVENTS_KEEP_DAYS", "0").output().unwrap();
        assert!(check.status.success(), "{}{}", text(&check.stdout), text(&check.stderr));
    }
    // The log between nodes is kept for an hour; all other tables are searched, every column of every row.
    let tables = "SELECT string_agg(table_name, ',') FROM information_schema.tables \
                  WHERE table_schema = 'tidings' AND table_type = 'BASE TABLE' AND table_name <> 'changes'";
    for table in database.sql(&url, tables).split(',') {
        for mark in MARKS {
            let hex: String = mark.bytes().map(|byte| format!("{byte:02x}")).collect();
            let rows = format!(
                "SELECT count(*) FROM tidings.{table} t WHERE t::text LIKE '%{mark}%' OR t::text LIKE '%{hex}%'"
            );
            assert_eq!(database.sql(&url, &rows), "0", "{table} has {mark}");
        }
    }
}
