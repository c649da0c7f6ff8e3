//! The server calls the app's webhook for messages to offline users and for presence.

use crate::support::*;
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::mpsc,
    time::Duration,
};
use tidings_protocol::http::{SendReceipt, SendRequest, UserUpsert};

const PATIENCE: Duration = Duration::from_secs(300);

/// An app server that accepts every call, and passes its events to the test.
pub(crate) struct App(mpsc::Receiver<Vec<Value>>);

impl App {
    pub(crate) fn start() -> (App, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (calls, told) = mpsc::sync_channel(64);
        std::thread::spawn(move || while calls.send(take_call(&listener)).is_ok() {});
        (App(told), address)
    }

    /// The first event of this kind, however many others come before it.
    pub(crate) fn next_of(&self, kind: &str) -> Value {
        self.next_within(kind, PATIENCE)
    }

    fn next_within(&self, kind: &str, within: Duration) -> Value {
        loop {
            let events = self.0.recv_timeout(within).unwrap();
            if let Some(event) = events.into_iter().find(|event| event["event"] == kind) {
                return event;
            }
        }
    }
}

/// Reads one call and returns its events. The response closes the connection, so that each call has its own.
fn take_call(listener: &TcpListener) -> Vec<Value> {
    let (mut stream, _) = listener.accept().unwrap();
    let (headers, body) = read_request(&stream);
    for name in ["tidings-timestamp: ", "tidings-signature: ", "content-type: application/json"] {
        assert!(headers.contains(name), "no {name:?} in {headers}");
    }
    stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").unwrap();
    let mut body: Value = serde_json::from_slice(&body).unwrap();
    serde_json::from_value(body["events"].take()).unwrap()
}

fn read_request(stream: &TcpStream) -> (String, Vec<u8>) {
    let mut reader = BufReader::new(stream);
    let mut headers = String::new();
    while !headers.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut headers).unwrap() > 0, "the call ended within its headers: {headers}");
    }
    let headers = headers.to_lowercase();
    let length = headers.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    (headers, body)
}

#[test]
fn the_webhook_gets_offline_messages_and_presence() {
    let (app, address) = App::start();
    let folder = Folder::new();
    let url = format!("http://{address}/hook");
    let mut command = folder.program(&["serve", "--webhook-url", &url, "--webhook-presence", "true"]);
    command.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY).env("TIDINGS_WEBHOOK_SECRET", "s");
    let server = Server::start(&mut command);
    assert_eq!(app.next_of("presence")["reset"], true, "the server has started");

    let mut http = server.http();
    let users = ["ada", "ben"].map(|id| UserUpsert { id: id.into(), ..UserUpsert::default() });
    http.upsert_users(users.to_vec()).unwrap();
    let message = json!({ "from": "ada", "to": "ben", "body": { "text": "hello" } });
    let message: SendRequest = serde_json::from_value(message).unwrap();
    let sent: SendReceipt = http.post("/v1/messages", &message).unwrap();
    let told = app.next_of("message");
    assert_eq!((&told["recipients"], &told["entry"]["seq"]), (&json!(["ben"]), &json!(sent.seq)), "{told}");

    let _session = server.session("ben", None);
    let told = app.next_of("presence");
    assert_eq!((&told["changes"][0]["user"], &told["changes"][0]["online"]), (&json!("ben"), &json!(true)), "{told}");
}

fn now_ms() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64
}

#[test]
fn what_a_snooze_has_deferred_survives_kills_and_is_told_once_when_it_ends() {
    // The snooze must last until both messages are decided: on a slow machine it is tried again with a longer one.
    let is_long_enough = [15, 60, 240].into_iter().any(|seconds| is_told_once_after_a_snooze(seconds * 1_000));
    assert!(is_long_enough, "two messages are decided within four minutes");
}

/// Two messages come during a snooze, and after each the server is killed. Answers false when the snooze ended too early to
/// show anything.
fn is_told_once_after_a_snooze(snooze_ms: u64) -> bool {
    let (app, address) = App::start();
    let folder = Folder::new();
    let url = format!("http://{address}/hook");
    let start = || {
        let mut command = folder.program(&["serve", "--webhook-url", &url]);
        command.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY).env("TIDINGS_WEBHOOK_SECRET", "s");
        Server::start(&mut command)
    };
    let mut server = start();
    let users = ["ada", "ben"].map(|id| UserUpsert { id: id.into(), ..UserUpsert::default() });
    server.http().upsert_users(users.to_vec()).unwrap();
    let until = now_ms() + snooze_ms;
    let snooze = json!({ "snooze_until": until });
    let _: Value = server.http().put("/v1/users/ben/notification-preferences", &snooze).unwrap();
    let mut conversation = String::new();
    for text in ["one", "two"] {
        let message = json!({ "from": "ada", "to": "ben", "body": { "text": text } });
        let message: SendRequest = serde_json::from_value(message).unwrap();
        conversation = server.http().send(&message).unwrap().conversation;
        // It is killed.
        drop(server);
        server = start();
    }
    // What became of a message, once it has the outcome or another one that is final.
    let outcome = |seq: u64, expected: &str| loop {
        let path = format!("/v1/conversations/{conversation}/messages/{seq}/notifications?user=ben");
        let why: Value = server.http().get(&path).unwrap();
        let outcome = why["outcome"].as_str().unwrap();
        if outcome == expected || !matches!(outcome, "waiting" | "deferred" | "not_recorded") {
            println!("{seq}: {}", why["summary"]);
            return outcome.to_owned();
        }
        std::thread::yield_now();
    };
    if [1, 2].map(|seq| outcome(seq, "deferred")) != ["deferred", "deferred"] {
        return false;
    }
    let left = Duration::from_millis(until.saturating_sub(now_ms()));
    let told = app.next_within("message", left + PATIENCE);
    assert!(now_ms() >= until, "told before the snooze was over");
    assert_eq!((&told["recipients"], &told["entry"]["seq"]), (&json!(["ben"]), &json!(2)), "{told}");
    assert_eq!([outcome(1, "superseded"), outcome(2, "accepted")], ["superseded", "accepted"]);
    true
}
