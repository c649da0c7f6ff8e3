//! `tidings migrate`: killed at several points and run again, it makes a database of a folder, on which clients go on as if it were the
//! folder: cursors, retries, pushes that wait, caps, schedules, keys, suspensions and consumers of the feed.

use crate::{postgres::PostgresServer, support::*, the_webhook_receives_events::App};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tidings_client::{http::HttpClient, session::Session, token::sign};
use tidings_protocol::frames::{Attention, Bind, ClientFrame, ServerFrame};

const WAIT: Duration = Duration::from_secs(300);

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// The status of an answer, and its body.
fn ask(http: &mut HttpClient, method: &str, path: &str, body: Value) -> (u16, Value) {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let answer = http.exchange(method, path, &body).unwrap();
    (answer.status, serde_json::from_slice(&answer.body).unwrap_or_default())
}

#[track_caller]
fn insist(http: &mut HttpClient, method: &str, path: &str, body: Value) -> Value {
    let (status, answer) = ask(http, method, path, body);
    assert!(status < 300, "{method} {path}: {status} {answer}");
    answer
}

fn message(id: &str) -> Value {
    json!({ "conversation": "g", "from": "alice", "client_msg_id": id, "body": { "text": id } })
}

/// The texts of messages that a session gets until the one with `last`.
fn texts_until(session: &mut Session, last: &str) -> Vec<String> {
    let mut texts = Vec::new();
    while texts.last().is_none_or(|text| text != last) {
        let frame = session.next(WAIT).unwrap().unwrap_or_else(|| panic!("{last:?} did not come; {texts:?} did"));
        if let ServerFrame::Messages { entries, .. } = frame {
            let entries = serde_json::to_value(entries).unwrap();
            texts.extend(
                entries.as_array().unwrap().iter().filter_map(|e| Some(e["body"]["text"].as_str()?.to_owned())),
            );
        }
    }
    texts
}

/// A device that takes pushes.
fn phone(server: &Server) -> Session {
    let mut session = Session::connect(server.address).unwrap();
    let bind = Bind {
        token: sign(TOKEN_KEY, "bob", Duration::from_secs(600)),
        device_id: "phone".into(),
        device_kind: "phone".into(),
        app_version: None,
        cursor: None,
        push: true,
        attention: Attention::Background,
        compact: false,
    };
    session.write(&ClientFrame::Bind(bind)).unwrap();
    assert!(matches!(session.next(WAIT).unwrap(), Some(ServerFrame::Bound(_))));
    session
}

/// Every file below a folder, with its bytes.
fn bytes_of(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(bytes_of(&path));
        } else {
            found.insert(path.clone(), fs::read(path).unwrap());
        }
    }
    found
}

/// A server that calls this webhook.
fn serving(folder: &Folder, webhook: &str) -> Command {
    let mut command = folder.program(&["serve", "--webhook-url", webhook, "--drain-deadline-ms", "30000"]);
    command.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY).env("TIDINGS_WEBHOOK_SECRET", "s");
    command
}

/// The tables of which the command says that they are empty.
fn empty_tables(said: &str) -> Vec<&str> {
    let rows = said.lines().filter_map(|line| line.strip_suffix(" rows"));
    let empty = rows.filter_map(|line| line.strip_suffix(" 0"));
    empty.map(str::trim).collect()
}

fn migrate(folder: &Folder, url: &str) -> Command {
    // One row in a transaction, so that there are many moments to be killed between.
    let data = folder.data();
    let mut command = folder.program(&["migrate", "--from", data.to_str().unwrap(), "--batch-rows", "1"]);
    command.env("TIDINGS_STORE_URL", url);
    command
}

fn refused(output: &Output, says: &str) {
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains(says) && !said.contains("secret-word"), "{said}");
}

/// Kills the command once it has stored this many batches. It can't go on meanwhile, however long that takes: the row in which it says
/// how far it is is locked.
fn kill_after(mut command: Command, database: &PostgresServer, url: &str, batches: u64) {
    let mut running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let held = database.hold(
        url,
        &format!(
            "SET LOCAL statement_timeout = '{}s'; \
             DO $$ BEGIN \
             WHILE NOT EXISTS (SELECT FROM pg_class WHERE relname = 'folder_copy') LOOP PERFORM pg_sleep(0.001); END LOOP; \
             WHILE (SELECT batches FROM tidings.folder_copy) < {batches} LOOP PERFORM pg_sleep(0.001); END LOOP; \
             LOCK TABLE tidings.folder_copy IN EXCLUSIVE MODE; \
             END $$",
            WAIT.as_secs()
        ),
    );
    assert!(running.try_wait().unwrap().is_none(), "it ended before batch {batches}");
    running.kill().unwrap();
    running.wait().unwrap();
    drop(held);
}

#[test]
fn clients_go_on_after_a_migration_that_was_killed_again_and_again() {
    let database = PostgresServer::shared();
    let (folder, url) = (Folder::new(), database.database());
    // Nothing listens there: what the webhook is to be told waits.
    let mut first = Server::start(&mut serving(&folder, "http://127.0.0.1:1/hook"));
    let mut http = first.http();
    let users: Vec<Value> =
        ["alice", "bob", "carol", "dave"].iter().map(|id| json!({ "id": id, "name": id })).collect();
    insist(&mut http, "PUT", "/v1/users", json!({ "users": users }));
    insist(
        &mut http,
        "POST",
        "/v1/conversations",
        json!({ "id": "g", "kind": "group", "owner": "alice", "members": ["bob", "carol"] }),
    );
    let mut sent = Vec::new();
    for n in 0..30 {
        sent.push(insist(&mut http, "POST", "/v1/messages", message(&format!("m{n}"))));
    }
    let seq = |n: usize| sent[n]["seq"].as_u64().unwrap();
    let of = |n: usize| format!("/v1/conversations/g/messages/{}", seq(n));
    insist(&mut http, "PATCH", &of(3), json!({ "body": { "text": "edited" }, "from": "alice" }));
    insist(&mut http, "DELETE", &format!("{}?from=alice", of(4)), Value::Null);
    insist(&mut http, "PUT", &format!("{}/reactions/%F0%9F%91%8D?user=bob", of(5)), Value::Null);
    insist(&mut http, "PUT", &format!("{}/pin", of(6)), Value::Null);
    insist(&mut http, "PUT", "/v1/users/carol/conversations/g/read", json!({ "seq": seq(10) }));
    insist(&mut http, "PUT", "/v1/users/carol/blocks/dave", Value::Null);
    insist(&mut http, "PUT", "/v1/conversations/g/restrictions/dave", json!({ "kind": "ban" }));
    insist(&mut http, "POST", "/v1/users/dave/suspend", json!({ "reason": "spam" }));
    let key = insist(&mut http, "POST", "/v1/admin/keys", json!({ "name": "reports", "scopes": ["read"] }));
    let scheduled = json!({ "send_at": now_ms() + 3_600_000, "message": message("later") });
    let scheduled = insist(&mut http, "POST", "/v1/scheduled-messages", scheduled)["id"].to_string();
    let popup = json!({ "state": "live", "placements": ["home"], "caps": { "total": 1 }, "variants": [{ "id": "a", "content": { "title": "Hello" } }] });
    insist(&mut http, "PUT", "/v1/popups/hello", popup);
    let question = |user: &str| json!({ "user": user, "placement": "home" });
    assert_eq!(ask(&mut http, "POST", "/v1/popups/decide", question("alice")).0, 200);
    assert_eq!(ask(&mut http, "POST", "/v1/popups/decide", question("alice")).0, 204);
    // A phone that is away when the push comes, and a client that has all but the newest messages.
    drop(phone(&first));
    let push = json!({ "to": { "users": ["bob"] }, "type": "offer", "body": { "id": 7 }, "ttl_s": 86_400, "client_push_id": "offer" });
    let pushed = insist(&mut http, "POST", "/v1/push", push.clone())["push"].clone();
    insist(&mut http, "PUT", "/v1/event-consumers/bot", json!({ "types": ["entry.message"], "after": "now" }));
    let mut bob = first.session("bob", None);
    insist(&mut http, "POST", "/v1/messages", message("seen"));
    texts_until(&mut bob, "seen");
    let cursor = bob.cursor.clone().unwrap();
    drop(bob);
    insist(&mut http, "POST", "/v1/messages", message("missed"));
    let waiting = json!({ "from": "alice", "to": "carol", "body": { "text": "waiting" } });
    insist(&mut http, "POST", "/v1/messages", waiting);
    // Without the names that a page brings as far as the server has them in memory.
    let lists = |http: &mut HttpClient| {
        ["alice", "bob", "carol"].map(|user| {
            let path = format!("/v1/users/{user}/conversations");
            insist(http, "GET", &path, Value::Null)["conversations"].clone()
        })
    };
    let history = |http: &mut HttpClient| {
        insist(http, "GET", "/v1/conversations/g/messages?from_seq=1&limit=500", Value::Null)["entries"].clone()
    };
    let (lists_before, history_before) = (lists(&mut http), history(&mut http));

    refused(&migrate(&folder, &url).output().unwrap(), "stop the server on the folder first");
    first.signal("TERM");
    first.wait();
    let before = bytes_of(&folder.data());
    for batches in [1, 8, 40, 120] {
        kill_after(migrate(&folder, &url), &database, &url, batches);
        let elsewhere = Folder::new();
        let mut serve = elsewhere.program(&["serve", "--api-key", API_KEY, "--token-key", TOKEN_KEY]);
        refused(&serve.env("TIDINGS_STORE_URL", &url).output().unwrap(), "the copy is not complete");
    }
    let done = migrate(&folder, &url).output().unwrap();
    let said = text(&done.stdout);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(text(&done.stderr).contains("an earlier attempt has copied a part"), "{}", text(&done.stderr));
    assert!(said.contains("every row was read back and is as in the folder") && said.contains("[store] url"), "{said}");
    // Notifications wait in one of these, and nobody has left for long.
    let may_be_empty = ["last_seen", "outbox", "dead_notifications", "notification_retries", "unacknowledged_messages"];
    let empty = empty_tables(&said);
    assert!(empty.iter().all(|table| may_be_empty.contains(table)) && empty.len() < may_be_empty.len(), "{said}");
    assert!(bytes_of(&folder.data()) == before, "the folder has changed");
    let again = migrate(&folder, &url).output().unwrap();
    assert!(again.status.success() && text(&again.stdout).contains("nothing was done"), "{}", text(&again.stdout));

    let elsewhere = Folder::new();
    let (app, webhook) = App::start();
    let second = Server::start(serving(&elsewhere, &format!("http://{webhook}/hook")).env("TIDINGS_STORE_URL", &url));
    let mut http = second.http();
    assert_eq!(history(&mut http), history_before);
    assert_eq!(lists(&mut http), lists_before);
    // A retry.
    for (n, first) in sent.iter().enumerate() {
        let again = insist(&mut http, "POST", "/v1/messages", message(&format!("m{n}")));
        assert_eq!((&again["seq"], &again["at"], &again["duplicate"]), (&first["seq"], &first["at"], &json!(true)));
    }
    // A cursor: what was missed before, and what is new.
    let mut bob = second.session("bob", Some(&cursor));
    insist(&mut http, "POST", "/v1/messages", message("new"));
    assert_eq!(texts_until(&mut bob, "new"), ["missed", "new"]);
    // A schedule.
    insist(
        &mut http,
        "PATCH",
        &format!("/v1/scheduled-messages/{scheduled}?from=alice"),
        json!({ "send_at": now_ms() + 500 }),
    );
    assert_eq!(texts_until(&mut bob, "later"), ["later"]);
    // A push, and a retry of it.
    let mut phone = phone(&second);
    let frame = phone.next_where(WAIT, |frame| matches!(frame, ServerFrame::Push(_))).unwrap();
    assert!(frame.is_some(), "the push did not come");
    assert_eq!(insist(&mut http, "POST", "/v1/push", push)["push"], pushed);
    // A cap.
    assert_eq!(ask(&mut http, "POST", "/v1/popups/decide", question("alice")).0, 204);
    assert_eq!(ask(&mut http, "POST", "/v1/popups/decide", question("carol")).0, 200);
    // A notification.
    while app.next_of("message")["entry"]["body"]["text"] != "waiting" {}
    // A suspension, a key, a ban.
    let token = sign(TOKEN_KEY, "dave", Duration::from_secs(600));
    assert!(Session::open(second.address, &token, "d", None).is_err(), "a suspended user was let in");
    let mut reports = HttpClient::new(second.address, key["secret"].as_str().unwrap());
    assert_eq!(ask(&mut reports, "GET", "/v1/conversations/g", Value::Null).0, 200);
    let join = json!({ "add": ["dave"] });
    assert_eq!(ask(&mut http, "POST", "/v1/conversations/g/members", join).1["code"], "banned");
    // A consumer of the feed: all that came since it was begun, once.
    let events = insist(&mut http, "GET", "/v1/event-consumers/bot/events", Value::Null);
    let texts: Vec<_> =
        events["events"].as_array().unwrap().iter().map(|event| event["data"]["body"]["text"].clone()).collect();
    assert_eq!(texts, ["seen", "missed", "waiting", "new", "later"]);
}

#[test]
fn what_cannot_be_migrated_is_said_and_nothing_is_begun() {
    let database = PostgresServer::shared();
    let (folder, url) = (Folder::new(), database.database());
    refused(&migrate(&folder, &url).output().unwrap(), "not a data folder");
    let mut server = folder.serve();
    insist(&mut server.http(), "PUT", "/v1/users", json!({ "users": [{ "id": "alice" }] }));
    server.signal("TERM");
    server.wait();
    refused(&migrate(&folder, "mysql://u:secret-word@nowhere/x").output().unwrap(), "not one of PostgreSQL");
    refused(&migrate(&folder, "postgres://u:secret-word@127.0.0.1:1/x").output().unwrap(), "no connection");
    let journals = bytes_of(&folder.data()).into_keys().filter(|path| path.extension().is_some_and(|end| end == "jnl"));
    for journal in journals {
        let mut bytes = fs::read(&journal).unwrap();
        let middle = bytes.iter().rposition(|byte| *byte != 0).unwrap() / 2;
        bytes[middle] ^= 1;
        fs::write(&journal, bytes).unwrap();
    }
    refused(&migrate(&folder, &url).output().unwrap(), "check --repair");
    assert_eq!(database.sql(&url, "SELECT to_regnamespace('tidings') IS NULL"), "t");
}
