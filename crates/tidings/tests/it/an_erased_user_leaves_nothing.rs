//! A user is erased, over kills: afterwards `check --erased` finds nothing, no file and no table has a byte of what named the user, and
//! everybody else sees what they saw.

use crate::{postgres::PostgresServer, support::*};
use serde_json::{Value, json};
use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};
use tidings_client::http::HttpClient;

/// What names the user, or is the user's own. No compression shortens them.
pub(crate) const ID: &str = "q7Zk2VxN9wLr";
const NAME: &str = "nameHc5Jm8PdEu1G";
const ATTRIBUTES: &str = "attrs3WnRy0KfQ2i";
pub(crate) const BODY: &str = "bodyT4bYs9XoLm2c";
const EDIT: &str = "editGk3Vb7NzRq5w";
const LONG: &str = "longPw8Ae1UyHt6j";
const MESSAGE_ID: &str = "msgidXc4Fv0BmDs9";
const TITLE: &str = "titleKl2Oi7TgRe3";
const REPORT: &str = "reportZu6Wn1QaPv";
const DIRECT: &str = "directYh9Jx5SdCf";
const ASK: &str = "askMb3Er8VkLo4zN";
const STREAM: &str = "streamDq1Ti6GwUy";
const LATER: &str = "laterJv7Bs3NyQe6";
pub(crate) const MARKS: [&str; 13] =
    [ID, NAME, ATTRIBUTES, BODY, EDIT, LONG, MESSAGE_ID, TITLE, REPORT, DIRECT, ASK, STREAM, LATER];
/// What others write, in private and to the user.
pub(crate) const OF_OTHERS: [&str; 2] = ["othersRt5Pz8", "to-youFw2Hk6"];
pub(crate) const WAIT: Duration = Duration::from_secs(300);

pub(crate) fn call(http: &mut HttpClient, method: &str, path: &str, body: &Value) -> Value {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let started = Instant::now();
    loop {
        let response = http.exchange(method, path, &body).unwrap();
        let text = String::from_utf8_lossy(&response.body);
        // A database ends the transaction of a server that has stood still, as one may on a busy machine: an app tries again.
        if response.status == 503 && text.contains("\"retry\":true") && started.elapsed() < WAIT {
            continue;
        }
        assert!(response.status < 300, "{method} {path}: {} {text}", response.status);
        return serde_json::from_slice(&response.body).unwrap_or(Value::Null);
    }
}

/// What the user does, and what others do with the user.
pub(crate) fn live(http: &mut HttpClient) {
    let users = json!({ "users": [
        { "id": ID, "name": NAME, "attributes": { "plan": ATTRIBUTES }, "language": "de" },
        { "id": "bob" }, { "id": "cat" } ] });
    call(http, "PUT", "/v1/users", &users);
    for (group, members) in [("g", json!(["bob", "cat"])), ("h", json!([ID]))] {
        let owner = if group == "g" { ID } else { "bob" };
        let new = json!({ "id": group, "kind": "group", "owner": owner, "members": members, "join_requests": true });
        call(http, "POST", "/v1/conversations", &new);
    }
    call(
        http,
        "POST",
        "/v1/conversations",
        &json!({ "id": "k", "kind": "group", "owner": "cat", "join_requests": true }),
    );
    let mut send = |message: Value| call(http, "POST", "/v1/messages", &message)["seq"].as_u64().unwrap();
    send(
        json!({ "conversation": "g", "from": "bob", "body": { "text": OF_OTHERS[0] }, "mentions": [ID], "client_msg_id": "b1" }),
    );
    let own = send(json!({ "conversation": "g", "from": ID, "body": { "text": BODY }, "client_msg_id": MESSAGE_ID }));
    let long: String = (0..20_000).map(|at| char::from(b'a' + (at * at % 23) as u8)).collect();
    send(json!({ "conversation": "g", "from": ID, "body": { "text": format!("{long}{LONG}{long}") } }));
    send(json!({ "to": "bob", "from": ID, "body": { "text": DIRECT } }));
    send(json!({ "to": ID, "from": "bob", "body": { "text": OF_OTHERS[1] } }));
    send(json!({ "conversation": "g", "from": "cat", "body": { "text": "answer" }, "reply_to": own }));
    for n in 0..300 {
        send(
            json!({ "conversation": "h", "from": if n % 3 == 0 { ID } else { "bob" }, "body": { "text": format!("{n}") } }),
        );
    }
    let edit = json!({ "from": ID, "body": { "text": EDIT } });
    call(http, "PATCH", &format!("/v1/conversations/g/messages/{own}"), &edit);
    let react = format!("/v1/conversations/g/messages/1/reactions/+?user={ID}");
    call(http, "PUT", &react, &Value::Null);
    call(http, "PUT", &format!("/v1/conversations/g/messages/{own}/reactions/x?user=bob"), &Value::Null);
    call(http, "PUT", &format!("/v1/users/{ID}/conversations/g/read"), &json!({ "seq": 3 }));
    call(http, "PATCH", &format!("/v1/users/{ID}/conversations/g"), &json!({ "pinned": true, "title": TITLE }));
    call(http, "PUT", &format!("/v1/users/{ID}/blocks/cat"), &Value::Null);
    let report = json!({ "reason": "spam", "text": REPORT, "user": ID });
    call(http, "POST", "/v1/conversations/g/messages/1/report", &report);
    call(http, "POST", "/v1/conversations/k/join-requests", &json!({ "user": ID, "text": ASK }));
    let stream = json!({ "conversation": "g", "from": ID, "body": { "text": "" } });
    let grows = call(http, "POST", "/v1/streams", &stream)["seq"].as_u64().unwrap();
    call(http, "POST", &format!("/v1/streams/g/{grows}"), &json!({ "offset": 0, "text": STREAM }));
    let later = json!({ "send_at": 4_102_444_800_000_u64, "message": { "conversation": "g", "from": ID, "body": { "text": LATER } } });
    call(http, "POST", "/v1/scheduled-messages", &later);
}

/// What bob sees: of each entry who sent it, its kind, and its body, in both conversations and in the list.
fn view(http: &mut HttpClient, direct: &str) -> Vec<Value> {
    let mut seen = Vec::new();
    for conversation in ["g", "h", direct] {
        let mut from = 1;
        loop {
            let path = format!("/v1/conversations/{conversation}/messages?from_seq={from}&limit=200");
            let page = call(http, "GET", &path, &Value::Null);
            let entries = page["entries"].as_array().unwrap();
            for entry in entries {
                seen.push(json!([
                    entry["seq"],
                    entry["kind"],
                    entry["from"],
                    entry["body"],
                    entry["at"],
                    entry["reactions"]
                ]));
            }
            match entries.last().filter(|_| entries.len() == 200) {
                Some(last) => from = last["seq"].as_u64().unwrap() + 1,
                None => break,
            }
        }
    }
    seen
}

/// Everybody else's messages are as they were, those of the user have no body and the alias.
fn check_view(before: &[Value], after: &[Value], alias: &str, keeps: bool) {
    let messages = |view: &[Value]| view.iter().filter(|entry| entry[1] == "message").cloned().collect::<Vec<_>>();
    let (before, after) = (messages(before), messages(after));
    assert_eq!(before.len(), after.len());
    for (was, is) in before.iter().zip(&after) {
        if was.to_string().contains(STREAM) {
            // Chunks that were not stored go with the process.
            assert_eq!((&is[0], &is[2]), (&was[0], &json!(alias)));
        } else if was[2] == ID {
            assert_eq!((&is[0], &is[2], &is[4]), (&was[0], &json!(alias), &was[4]));
            assert!(if keeps { is[3] == was[3] } else { is[3].is_null() }, "{is}");
        } else {
            assert_eq!((&is[0], &is[2], &is[3], &is[4]), (&was[0], &was[2], &was[3], &was[4]));
        }
    }
}

fn wait_until_done(folder: &Folder, serving: &dyn Fn() -> Command, kills: usize) -> (Server, Value) {
    let mut server = Server::start(&mut serving());
    for _ in 0..kills {
        let erasure = call(&mut server.http(), "GET", &format!("/v1/erasures/{ID}"), &Value::Null);
        server.signal("KILL");
        server.wait();
        server = Server::start(&mut serving());
        assert!(erasure["alias"].as_str().unwrap().starts_with("erased-"), "{erasure} in {}", folder.path().display());
    }
    let deadline = Instant::now() + WAIT;
    loop {
        let erasure = call(&mut server.http(), "GET", &format!("/v1/erasures/{ID}"), &Value::Null);
        if erasure["state"] == "done" {
            return (server, erasure);
        }
        assert!(Instant::now() < deadline, "{erasure}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub(crate) fn files_with(folder: &Path, mark: &str) -> Vec<String> {
    let mut found = Vec::new();
    for item in fs::read_dir(folder).unwrap() {
        let path = item.unwrap().path();
        if path.is_dir() {
            found.extend(files_with(&path, mark));
        } else if memchr::memmem::find(&fs::read(&path).unwrap_or_default(), mark.as_bytes()).is_some() {
            found.push(path.display().to_string());
        }
    }
    found
}

/// A user lives, is erased over kills, and is nowhere.
fn live_and_erase(folder: &Folder, serving: &dyn Fn() -> Command, messages: &str) -> Server {
    let mut server = Server::start(&mut serving());
    let mut http = server.http();
    live(&mut http);
    let before = view(&mut http, &format!("bob~{ID}"));
    let token = tidings_client::token::sign(TOKEN_KEY, ID, Duration::from_secs(600));
    let path = format!("/v1/users/{ID}?messages={messages}");
    let erasure = call(&mut http, "DELETE", &path, &Value::Null);
    assert_eq!((&erasure["user"], &erasure["messages"]), (&json!(ID), &json!(messages)));
    let refused = HttpClient::new(server.address, token).exchange("GET", "/v1/users/me", b"").unwrap();
    assert!(matches!(refused.status, 403 | 404), "{refused:?}");
    server.signal("KILL");
    server.wait();

    let (server, done) = wait_until_done(folder, serving, 2);
    let alias = done["alias"].as_str().unwrap();
    let mut http = server.http();
    let after = view(&mut http, &tidings_protocol::ids::direct_id("bob", alias));
    check_view(&before, &after, alias, messages == "keep");
    assert!(after.iter().all(|entry| !entry.to_string().contains(ID)));
    let gone = http.exchange("GET", &format!("/v1/users/{ID}"), b"").unwrap();
    assert_eq!(gone.status, 404);
    let owner = call(&mut http, "GET", "/v1/conversations/g/members", &Value::Null);
    assert!(owner["members"].as_array().unwrap().iter().any(|member| member["role"] == "owner"), "{owner}");
    server
}

#[test]
fn a_folder_has_no_byte_of_an_erased_user() {
    let folder = Folder::new();
    let serving = || {
        let mut command = folder.program(&["serve", "--drain-deadline-ms", "30000"]);
        // Without a feed nothing names the user once the erasure is done.
        command
            .env("TIDINGS_API_KEY", API_KEY)
            .env("TIDINGS_TOKEN_KEY", TOKEN_KEY)
            .env("TIDINGS_EVENTS_KEEP_DAYS", "0");
        command
    };
    let mut server = live_and_erase(&folder, &serving, "remove");
    assert!(MARKS.iter().any(|mark| !files_with(&folder.data(), mark).is_empty()), "freed bytes wait for the purge");
    // The id is forgotten by the next round of the work.
    let deadline = Instant::now() + WAIT;
    while !call(&mut server.http(), "GET", &format!("/v1/erasures/{ID}"), &Value::Null)["user"].is_null() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(50));
    }
    server.signal("TERM");
    server.wait();
    let data = folder.data();
    let check = folder.run(&["check", data.to_str().unwrap(), "--erased", ID, "--purge"]);
    assert!(check.status.success(), "{}{}", text(&check.stdout), text(&check.stderr));
    assert!(text(&check.stdout).contains("CLEAN"));
    for mark in MARKS {
        assert_eq!(files_with(&data, mark), Vec::<String>::new(), "{mark}");
    }
    let sound = folder.run(&["check", data.to_str().unwrap()]);
    assert!(sound.status.success(), "{}", text(&sound.stdout));
    // Somebody of whom nothing was erased is found.
    let bob = folder.run(&["check", data.to_str().unwrap(), "--erased", "bob"]);
    assert_eq!(bob.status.code(), Some(1), "{}", text(&bob.stdout));
}

#[test]
fn a_database_has_no_row_of_an_erased_user() {
    let database = PostgresServer::shared();
    let url = database.database();
    let folder = Folder::new();
    let serving = || {
        let mut command = folder.program(&["serve", "--drain-deadline-ms", "30000"]);
        command.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY);
        command.env("TIDINGS_EVENTS_KEEP_DAYS", "0").env("TIDINGS_STORE_URL", &url);
        command
    };
    let mut server = live_and_erase(&folder, &serving, "keep");
    let deadline = Instant::now() + WAIT;
    while !call(&mut server.http(), "GET", &format!("/v1/erasures/{ID}"), &Value::Null)["user"].is_null() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(50));
    }
    server.signal("TERM");
    server.wait();
    let mut check = folder.program(&["check", "--erased", ID]);
    let check = check.env("TIDINGS_STORE_URL", &url).env("TIDINGS_EVENTS_KEEP_DAYS", "0").output().unwrap();
    assert!(check.status.success(), "{}{}", text(&check.stdout), text(&check.stderr));
    // The log between nodes is kept for an hour; all other tables are searched, every column of every row.
    let tables = "SELECT string_agg(table_name, ',') FROM information_schema.tables \
                  WHERE table_schema = 'tidings' AND table_type = 'BASE TABLE' AND table_name <> 'changes'";
    let tables = database.sql(&url, tables);
    let own = [ID, NAME, ATTRIBUTES, MESSAGE_ID, TITLE, REPORT, ASK];
    for table in tables.split(',') {
        for mark in own {
            let hex: String = mark.bytes().map(|byte| format!("{byte:02x}")).collect();
            let rows = format!(
                "SELECT count(*) FROM tidings.{table} t WHERE t::text LIKE '%{mark}%' OR t::text LIKE '%{hex}%'"
            );
            assert_eq!(database.sql(&url, &rows), "0", "{table} has {mark}");
        }
    }
}
