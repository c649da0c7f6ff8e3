//! A reader of the feed keeps its cursor over kills of the server, and a request waits for the next event.

use crate::support::*;
use serde_json::{Value, json};
use tidings_protocol::http::*;

fn start(folder: &Folder) -> Server {
    let mut command = folder.program(&["serve", "--events-keep-days", "1"]);
    command.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY);
    Server::start(&mut command)
}

fn send(server: &Server, text: &str) {
    let message: SendRequest =
        serde_json::from_value(json!({ "from": "ada", "to": "ben", "body": { "text": text } })).unwrap();
    server.http().send(&message).unwrap();
}

/// The texts of all messages after a cursor, with the cursor to go on from.
fn follow(server: &Server, mut after: String) -> (Vec<String>, String) {
    let mut texts = Vec::new();
    loop {
        let path = format!("/v1/events?types=entry.message&limit=2&after={after}");
        let page: Value = server.http().get(&path).unwrap();
        for event in page["events"].as_array().unwrap() {
            assert_eq!((&event["specversion"], &event["type"]), (&json!("1.0"), &json!("entry.message")), "{event}");
            texts.push(event["data"]["body"]["text"].as_str().unwrap().to_owned());
        }
        after = page["next"].as_str().unwrap().to_owned();
        if page["more"] == false {
            return (texts, after);
        }
    }
}

#[test]
fn a_reader_misses_nothing_over_kills_and_waits_for_what_comes() {
    let folder = Folder::new();
    let mut server = start(&folder);
    let users = ["ada", "ben"].map(|id| UserUpsert { id: id.into(), ..UserUpsert::default() });
    server.http().upsert_users(users.to_vec()).unwrap();
    let first: Value = server.http().get("/v1/events?limit=1&wait_s=30").unwrap();
    assert_eq!((&first["events"][0]["type"], &first["more"]), (&json!("user"), &json!(true)), "{first}");
    let mut cursor = first["next"].as_str().unwrap().to_owned();
    let mut expected = Vec::new();
    for round in 0..3 {
        for number in 0..5 {
            expected.push(format!("{round}.{number}"));
            send(&server, &expected[expected.len() - 1]);
        }
        // It is killed.
        drop(server);
        server = start(&folder);
        let (texts, next) = follow(&server, cursor);
        assert_eq!(texts, expected, "round {round}");
        (cursor, expected) = (next, Vec::new());
    }
    let page: Value = std::thread::scope(|scope| {
        let waits = scope.spawn(|| server.http().get(&format!("/v1/events?wait_s=30&after={cursor}")).unwrap());
        send(&server, "last");
        waits.join().unwrap()
    });
    assert_eq!(page["events"][0]["data"]["body"]["text"], "last", "{page}");
    let refused = server.http().get::<Value>("/v1/events?after=1.1").unwrap_err().to_string();
    assert!(refused.contains("422") && refused.contains("another history"), "{refused}");
}
