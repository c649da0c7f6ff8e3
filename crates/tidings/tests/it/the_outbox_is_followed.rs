//! What the app's transactions write into an outbox in the app's own database is stored if and only if they commit: in PostgreSQL and MariaDB.

use crate::{
    app_database::{AppDatabase, Kind, is_deadlock},
    functions_come_back_when_their_node_is_killed::leaders,
    redis::wait_until,
    rows_of_an_outbox_are_stored_once::{Nodes, some_nodes},
    support::*,
};
use serde_json::{Value, json};
use tidings_protocol::http::{HistoryQuery, OutboxSource, OutboxSources, OutboxState, UserUpsert};

/// Of each writer.
const TRANSACTIONS: usize = 4;
const KINDS: [Kind; 2] = [Kind::Postgres, Kind::Mariadb];

/// A server that follows the database, with the users alice and bob and these groups of theirs.
fn follow(database: &AppDatabase, folder: &Folder, groups: &[&str]) -> Server {
    std::fs::write(folder.path().join("tidings.toml"), database.settings("shop")).unwrap();
    let server = folder.serve();
    let user = |id: &str| UserUpsert { id: id.into(), ..UserUpsert::default() };
    let mut http = server.http();
    http.upsert_users(vec![user("alice"), user("bob")]).unwrap();
    for group in groups {
        let group = json!({ "id": group, "kind": "group", "owner": "alice", "members": ["bob"] });
        http.create_conversation(&serde_json::from_value(group).unwrap()).unwrap();
    }
    server
}

fn source(server: &Server) -> OutboxSource {
    let sources: OutboxSources = server.http().get("/v1/outbox-sources").unwrap();
    sources.sources.into_iter().next().unwrap()
}

fn message(conversation: &str, text: &str) -> Value {
    json!({ "conversation": conversation, "from": "alice", "body": { "text": text } })
}

/// The texts of a conversation's messages, in order.
pub(crate) fn texts(server: &Server, conversation: &str) -> Vec<String> {
    messages(server, conversation).into_iter().map(|(_, text)| text).collect()
}

/// The messages of a conversation, with their `seq`.
pub(crate) fn messages(server: &Server, conversation: &str) -> Vec<(u64, String)> {
    let (mut http, mut found, mut from) = (server.http(), Vec::new(), 1);
    loop {
        let query = HistoryQuery { from_seq: Some(from), limit: Some(500), ..HistoryQuery::default() };
        let page = http.history(conversation, &query).unwrap();
        let Some(last) = page.entries.last() else { return found };
        from = last.seq + 1;
        for entry in &page.entries {
            let entry = serde_json::to_value(entry).unwrap();
            if entry["kind"] == "message" {
                found.push((entry["seq"].as_u64().unwrap(), entry["body"]["text"].as_str().unwrap().to_owned()));
            }
        }
    }
}

#[test]
fn a_message_exists_if_and_only_if_its_transaction_has_committed() {
    for kind in KINDS {
        let (database, folder) = (AppDatabase::new(kind), Folder::new());
        let server = follow(&database, &folder, &["g"]);
        let mut app = database.connect();
        app.run("CREATE TABLE orders (n int primary key)");
        for (n, ending) in ["COMMIT", "ROLLBACK", "COMMIT"].into_iter().enumerate() {
            app.begin();
            app.run(&format!("INSERT INTO orders VALUES ({n})"));
            app.call("tidings_send", &message("g", &format!("order {n}"))).unwrap();
            app.run(ending);
        }
        let id = app.send(&json!({ "to": "bob", "from": "alice", "body": { "text": "hello" } }));
        let row = app.wait_for_state(id, "done");
        let receipt: Value = serde_json::from_str(&row[3]).unwrap();
        database.wait_until_none_waits();
        assert_eq!(texts(&server, "g"), ["order 0", "order 2"], "{kind:?}");
        assert_eq!(messages(&server, "alice~bob"), [(receipt["seq"].as_u64().unwrap(), "hello".into())]);
        wait_until("it is counted", || source(&server).done == 3 && source(&server).state == OutboxState::Followed);
        assert!(app.call("tidings_send", &json!({ "body": {} })).unwrap_err().contains("names its conversation"));
    }
}

#[test]
fn every_operation_passes_the_checks_of_app_servers() {
    for kind in KINDS {
        let (database, folder) = (AppDatabase::new(kind), Folder::new());
        let server = follow(&database, &folder, &["g"]);
        let mut app = database.connect();
        server.http().upsert_users(vec![UserUpsert { id: "carol".into(), ..UserUpsert::default() }]).unwrap();
        let push = json!({ "to": { "users": ["bob"] }, "body": { "n": 1 } });
        app.call("tidings_push", &push).unwrap();
        app.call("tidings_push", &json!({ "to": { "users": ["bob"] }, "body": {}, "ttl_s": 10_000_000 })).unwrap();
        let event = json!({ "events": [{ "id": "e1", "type": "custom", "name": "paid", "user": "bob" }] });
        app.call("tidings_popup_events", &event).unwrap();
        let members = json!({ "add": ["carol"] }).to_string();
        app.run(&match kind {
            Kind::Postgres => format!("SELECT tidings_change_members('g', '{members}')"),
            Kind::Mariadb => format!("CALL tidings_change_members('g', '{members}')"),
        });
        // In the order of its conversation: carol is a member by then.
        let said = app.send(&json!({ "conversation": "g", "from": "carol", "body": { "text": "thanks" } }));
        app.wait_for_state(said, "done");
        database.wait_until_none_waits();
        assert_eq!(texts(&server, "g"), ["thanks"], "{kind:?}");
        let rows = app.run("SELECT operation, state, code FROM tidings_outbox ORDER BY id");
        let rows: Vec<String> =
            rows.into_iter().map(|row| row.into_iter().flatten().collect::<Vec<_>>().join(" ")).collect();
        let expected = ["push done", "push refused limit_exceeded", "popup_events done", "members done", "send done"];
        assert_eq!(rows, expected, "{kind:?}");
        let pushes: Value = server.http().get("/v1/push").unwrap();
        assert_eq!(pushes["pushes"].as_array().unwrap().len(), 1, "{pushes}");
    }
}

/// What a key may not do is refused in the row. A key that is not valid is no row's fault: its rows wait.
#[test]
fn rows_are_held_to_the_scopes_of_their_key() {
    let (database, folder) = (AppDatabase::new(Kind::Postgres), Folder::new());
    let mut server = follow(&database, &folder, &["g"]);
    let new = json!({ "name": "of the outbox", "scopes": ["send"] });
    let key: Value = server.http().post("/v1/admin/keys", &new).unwrap();
    server.signal("TERM");
    assert!(server.wait().0.success());
    let secret = format!("api_key = {}\n", key["secret"]);
    std::fs::write(folder.path().join("tidings.toml"), database.settings("shop") + &secret).unwrap();
    let server = folder.serve();
    let mut app = database.connect();
    let sent = app.send(&message("g", "allowed"));
    app.wait_for_state(sent, "done");
    app.call("tidings_push", &json!({ "to": { "users": ["bob"] }, "body": {} })).unwrap();
    assert_eq!(app.wait_for_state(sent + 1, "refused")[1], "forbidden");

    let revoked =
        server.http().exchange("DELETE", &format!("/v1/admin/keys/{}", key["key"]["id"].as_str().unwrap()), b"");
    assert_eq!(revoked.unwrap().status, 204);
    let waits = app.send(&message("g", "later"));
    wait_until("it is told", || source(&server).last_error.is_some());
    assert_eq!(app.row(waits)[0], "waiting");
    drop(server);
    std::fs::write(folder.path().join("tidings.toml"), database.settings("shop")).unwrap();
    let server = folder.serve();
    app.wait_for_state(waits, "done");
    assert_eq!(texts(&server, "g"), ["allowed", "later"]);
}

#[test]
fn a_bad_row_stops_its_own_conversation_until_it_is_corrected_or_skipped() {
    for kind in KINDS {
        let (database, folder) = (AppDatabase::new(kind), Folder::new());
        let server = follow(&database, &folder, &["a", "b"]);
        let mut app = database.connect();
        let from_nobody = json!({ "conversation": "a", "from": "nobody", "body": { "text": "bad" } });
        let [bad, worse] = [app.send(&from_nobody), app.send(&from_nobody)];
        let behind = app.send(&message("a", "behind"));
        let other = app.send(&message("b", "other"));
        app.wait_for_state(other, "done");
        let row = app.wait_for_state(bad, "refused");
        assert_eq!(row[1], "not_found", "{kind:?}: {row:?}");
        assert_eq!([app.row(worse)[0].as_str(), &app.row(behind)[0]], ["waiting", "waiting"]);
        wait_until("it is shown", || {
            let told = source(&server);
            told.refused == 1 && told.waiting == 2 && told.refused_rows[0].id == bad && told.lag_ms == 0
        });
        assert_eq!(source(&server).refused_rows[0].conversation.as_deref(), Some("a"));

        // What waits may be stored at this moment.
        let edited = app.try_run(&format!("UPDATE tidings_outbox SET request = '{{}}' WHERE id = {behind}"));
        assert!(edited.unwrap_err().contains("only a refused row can be corrected"));
        let corrected = message("a", "good").to_string();
        app.run(&match kind {
            Kind::Postgres => format!("SELECT tidings_retry({bad}, '{corrected}')"),
            Kind::Mariadb => format!("CALL tidings_retry({bad}, '{corrected}')"),
        });
        app.wait_for_state(bad, "done");
        app.wait_for_state(worse, "refused");
        app.run(&match kind {
            Kind::Postgres => format!("SELECT tidings_skip({worse})"),
            Kind::Mariadb => format!("CALL tidings_skip({worse})"),
        });
        app.wait_for_state(behind, "done");
        assert_eq!(
            (texts(&server, "a"), texts(&server, "b")),
            (vec!["good".into(), "behind".into()], vec!["other".into()])
        );
    }
}

#[test]
fn a_long_transaction_holds_up_its_own_conversation_alone() {
    for kind in KINDS {
        let (database, folder) = (AppDatabase::new(kind), Folder::new());
        let server = follow(&database, &folder, &["a", "b"]);
        let (mut long, mut app) = (database.connect(), database.connect());
        long.begin();
        long.call("tidings_send", &message("a", "first")).unwrap();
        let url = database.url.clone();
        std::thread::scope(|scope| {
            // Waits for the lock of the conversation.
            let second = scope.spawn(|| database.connect().call("tidings_send", &message("a", "second")).unwrap());
            for n in 0..5 {
                let id = app.send(&message("b", &n.to_string()));
                app.wait_for_state(id, "done");
            }
            assert!(!second.is_finished() && texts(&server, "a").is_empty(), "{kind:?} {url}");
            long.call("tidings_send", &message("a", "also")).unwrap();
            long.run("COMMIT");
            second.join().unwrap();
        });
        database.wait_until_none_waits();
        assert_eq!(texts(&server, "a"), ["first", "also", "second"], "{kind:?}");
        assert_eq!(texts(&server, "b").len(), 5);
    }
}

/// 16 writers, each to the same two conversations in its own order.
#[test]
fn writers_in_any_order_lose_nothing_and_those_that_lock_first_do_not_deadlock() {
    for kind in KINDS {
        let (database, folder) = (AppDatabase::new(kind), Folder::new());
        let server = follow(&database, &folder, &["a", "b"]);
        let write = |writer: usize, locks: bool| {
            let mut app = database.connect();
            if kind == Kind::Postgres {
                // By default it looks for deadlocks after a second.
                app.run("SET deadlock_timeout = '20ms'");
            }
            let mut deadlocks = 0;
            let order = if writer.is_multiple_of(2) { ["a", "b"] } else { ["b", "a"] };
            for n in 0..TRANSACTIONS {
                loop {
                    app.begin();
                    let text = format!("{locks} {writer} {n}");
                    let locked = if locks { app.lock(&order).map(drop) } else { Ok(()) };
                    let sent = locked.and_then(|()| {
                        order.iter().try_for_each(|to| app.call("tidings_send", &message(to, &text)).map(drop))
                    });
                    match sent {
                        Ok(()) => break drop(app.run("COMMIT")),
                        Err(error) => assert!(is_deadlock(&error), "{error}"),
                    }
                    deadlocks += 1;
                    app.run("ROLLBACK");
                }
            }
            deadlocks
        };
        // The rows of the conversations exist: only then does MariaDB lock them in no other order.
        for conversation in ["a", "b"] {
            database.connect().send(&message(conversation, "-"));
        }
        for locks in [false, true] {
            let deadlocks: usize = std::thread::scope(|scope| {
                let writers: Vec<_> = (0..16).map(|writer| scope.spawn(move || write(writer, locks))).collect();
                writers.into_iter().map(|writer| writer.join().unwrap()).sum()
            });
            println!("{kind:?}, {}: {deadlocks} deadlocks", if locks { "locked first" } else { "in their own order" });
            assert!(!locks || deadlocks == 0, "{kind:?}");
        }
        database.wait_until_none_waits();
        for conversation in ["a", "b"] {
            let mut texts = texts(&server, conversation);
            texts.sort();
            texts.dedup();
            assert_eq!(texts.len(), 1 + 2 * 16 * TRANSACTIONS, "{kind:?}");
        }
    }
}

#[test]
fn several_messages_are_sent_at_once_without_a_lock_of_ones_own() {
    for kind in KINDS {
        let (database, folder) = (AppDatabase::new(kind), Folder::new());
        let server = follow(&database, &folder, &["a", "b"]);
        let direct = json!({ "to": "alice", "from": "bob", "body": { "text": "three" } });
        let all = json!([message("b", "one"), message("a", "two"), direct, message("b", "four")]);
        database.connect().call("tidings_send_all", &all).unwrap();
        database.wait_until_none_waits();
        assert_eq!(texts(&server, "b"), ["one", "four"]);
        assert_eq!((texts(&server, "a"), texts(&server, "alice~bob")), (vec!["two".into()], vec!["three".into()]));
    }
}

#[test]
fn a_database_that_is_away_is_told_of_and_followed_again() {
    for kind in KINDS {
        let (database, folder) = (AppDatabase::with_own_server(kind), Folder::new());
        let server = follow(&database, &folder, &["g"]);
        let mut app = database.connect();
        let id = app.send(&message("g", "before"));
        app.wait_for_state(id, "done");
        database.kill();
        wait_until("it is told", || source(&server).state == OutboxState::Unreachable);
        let metrics = server.http().exchange("GET", "/metrics", b"").unwrap();
        assert!(text(&metrics.body).contains("tidings_outbox_failing{source=\"shop\"} 1"));
        server.http().send(&serde_json::from_value(message("g", "over HTTP")).unwrap()).unwrap();
        assert!(server.http().is_ready());
        database.launch();
        let mut app = database.connect();
        let id = app.send(&message("g", "after"));
        app.wait_for_state(id, "done");
        assert_eq!(texts(&server, "g"), ["before", "over HTTP", "after"], "{kind:?}");
        assert_eq!(source(&server).last_error, None);
    }
}

#[test]
fn two_servers_on_one_table_take_turns_and_say_so() {
    let (database, folders) = (AppDatabase::new(Kind::Postgres), [Folder::new(), Folder::new()]);
    let servers = [0, 1].map(|n| follow(&database, &folders[n], &["g"]));
    wait_until("one says that it was displaced", || {
        servers.iter().any(|server| source(server).last_error.is_some_and(|why| why.contains("another reader"))) || {
            // A reader notices when it is about to take a row.
            database.connect().send(&message("g", "x"));
            false
        }
    });
    drop(servers);
}

#[test]
fn an_outbox_is_followed_by_another_node_than_the_one_that_pushes() {
    let database = AppDatabase::new(Kind::Postgres);
    let nodes = Nodes::start(some_nodes(&["first", "second"], 2_000, &database.settings("shop")));
    wait_until("the nodes are ready", || nodes.running.iter().all(|node| node.http().is_ready()));
    let user = |id: &str| UserUpsert { id: id.into(), ..UserUpsert::default() };
    nodes.running[0].http().upsert_users(vec![user("alice"), user("bob")]).unwrap();
    wait_until("they share the functions", || {
        let leaders = leaders(&nodes.running[0]);
        let [push, outboxes] = ["push", "outboxes"].map(|function| leaders.get(function));
        push.is_some() && outboxes.is_some() && push != outboxes
    });
    let mut app = database.connect();
    let push = json!({ "to": { "users": ["bob"] }, "type": "t", "body": 1, "client_push_id": "once" });
    app.call("tidings_push", &push).unwrap();
    let last = app.run("SELECT max(id) FROM tidings_outbox");
    let id = last[0][0].as_ref().unwrap().parse().unwrap();
    let row = app.wait_for_state(id, "done");
    let receipt: Value = serde_json::from_str(&row[3]).unwrap();
    for node in &nodes.running {
        let status: Value = node.http().get(&format!("/v1/push/{}", receipt["push"])).unwrap();
        assert_eq!(status["push"], receipt["push"]);
    }
    assert!(nodes.running.iter().any(|node| source(node).done == 1), "its leader tells");
}
