//! How long a key works: until it is revoked, rotated or expired, on every node and after a restart; and what is told of it meanwhile.

use crate::support::*;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tidings_api::api_keys::{Author, CallingKey, StoredKeys};
use tidings_client::http::HttpClient;
use tidings_domain::{
    chat_rows::{api_key_key, api_keys_version_key, encode},
    gates::{Gate, OpenGates},
    leadership::Term,
    store::{RowChange, RowSpace, RowStore, Store},
};
use tidings_listen::throttle::ThrottleConfig;
use tidings_protocol::{error::ErrorCode, limits::API_KEYS_MAX};
use tidings_testkit::{ManualClock, MemoryStore};

const KEYS: &str = "/v1/admin/keys";
const NOON: u64 = 1_800_000_000_000;
const MINUTE: Duration = Duration::from_secs(60);

struct Made {
    secret: String,
    path: String,
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn make(server: &Server, new: &Value) -> Made {
    let made = parsed(&expect_status(&mut server.app(), "POST", KEYS, &new.to_string(), 201));
    let field = |value: &Value| value.as_str().unwrap().to_owned();
    Made { secret: field(&made["secret"]), path: format!("{KEYS}/{}", field(&made["key"]["id"])) }
}

fn reader() -> Value {
    json!({"name": "reader", "scopes": ["read"]})
}

/// A server by a clock that the test sets.
fn at_noon(store: Arc<dyn Store>) -> (Server, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::default());
    clock.set(NOON);
    (Server::of_parts(ServerParts { clock: clock.clone(), store, ..ServerParts::default() }), clock)
}

fn status(http: &mut HttpClient) -> u16 {
    http.exchange("GET", "/v1/admin/keys/me", b"").unwrap().status
}

#[track_caller]
fn check_unauthorized(http: &mut HttpClient, names: &str) {
    check_refused(http, "GET", "/v1/admin/keys/me", "", "unauthorized", names);
}

#[test]
fn a_revoked_key_is_refused_at_the_next_request_also_on_an_open_connection() {
    let server = Server::start().with_people();
    let made = make(&server, &json!({"name": "of the shop", "scopes": ["popups", "read"]}));
    // One connection on the popups' own way, and one with the HTTP library.
    let (mut popups, mut others) = (server.with_credential(&made.secret), server.with_credential(&made.secret));
    let decide = r#"{"user":"bob","placement":"home"}"#;
    for _ in 0..2 {
        expect_status(&mut popups, "POST", "/v1/popups/decide", decide, 204);
        expect_status(&mut others, "GET", "/v1/conversations/g", "", 200);
    }
    expect_status(&mut server.app(), "DELETE", &made.path, "", 204);
    let why = "the API key is unknown, or was revoked";
    check_refused(&mut popups, "POST", "/v1/popups/decide", decide, "unauthorized", why);
    check_refused(&mut others, "GET", "/v1/conversations/g", "", "unauthorized", why);
    check_refused(&mut server.app(), "DELETE", &made.path, "", "not_found", "no API key");
}

#[test]
fn a_connection_ends_with_its_key() {
    let server = Server::start().with_people();
    let made = make(&server, &json!({"name": "of the shop", "scopes": ["popups", "read"]}));
    expect_status(&mut server.app(), "DELETE", &made.path, "", 204);
    // The answer is read to the connection's end, for which `raw` would wait.
    let request = |line: &str, body: &str| {
        let (secret, length) = (&made.secret, body.len());
        format!(
            "{line} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\ncontent-length: {length}\r\n\r\n{body}"
        )
    };
    for request in [
        request("POST /v1/popups/decide", r#"{"user":"bob","placement":"home"}"#),
        request("GET /v1/conversations/g", ""),
    ] {
        let answer = server.raw(request.repeat(2).as_bytes());
        assert_eq!(answer.matches("HTTP/1.1 401").count(), 1, "{answer}");
    }
}

#[test]
fn scopes_that_are_changed_hold_for_the_next_request() {
    let server = Server::start().with_people();
    let made = make(&server, &json!({"name": "of the shop", "scopes": ["popups"]}));
    let mut popups = server.with_credential(&made.secret);
    let decide = r#"{"user":"bob","placement":"home"}"#;
    expect_status(&mut popups, "POST", "/v1/popups/decide", decide, 204);
    let changed =
        expect_status(&mut server.app(), "PATCH", &made.path, r#"{"scopes":["read"],"name":"of the site"}"#, 200);
    assert!(changed.contains(r#""name":"of the site","scopes":["read"]"#), "{changed}");
    check_refused(&mut popups, "POST", "/v1/popups/decide", decide, "forbidden", r#"it needs "popups""#);
}

#[test]
fn a_key_expires_by_the_servers_clock() {
    let (server, clock) = at_noon(Arc::new(MemoryStore::default()));
    let made = make(&server, &json!({"name": "n", "scopes": ["read"], "expires_at": NOON + 60_000}));
    let mut http = server.with_credential(&made.secret);
    clock.advance(MINUTE - Duration::from_millis(1));
    assert_eq!(status(&mut http), 200);
    clock.advance(Duration::from_millis(1));
    check_unauthorized(&mut http, "the API key has expired");
    let mut app = server.app();
    let later = json!({"expires_at": NOON + 120_000}).to_string();
    expect_status(&mut app, "PATCH", &made.path, &later, 200);
    assert_eq!(status(&mut http), 200);
    let never = expect_status(&mut app, "PATCH", &made.path, r#"{"expires_at":0}"#, 200);
    assert!(!never.contains("expires_at"), "{never}");
    check_refused(
        &mut app,
        "PATCH",
        &made.path,
        &json!({"expires_at": NOON}).to_string(),
        "invalid_field",
        "in the past",
    );
}

#[test]
fn a_rotated_key_has_two_secrets_for_the_overlap() {
    let (server, clock) = at_noon(Arc::new(MemoryStore::default()));
    let made = make(&server, &reader());
    let rotate = |overlap_s: u64| {
        let path = format!("{}/rotate", made.path);
        let body = json!({"overlap_s": overlap_s}).to_string();
        let rotated = parsed(&expect_status(&mut server.app(), "POST", &path, &body, 200));
        let until = rotated["key"]["former_secret_until"].as_u64();
        (server.with_credential(rotated["secret"].as_str().unwrap()), until)
    };
    let mut first = server.with_credential(&made.secret);
    let (mut second, until) = rotate(60);
    assert_eq!((status(&mut first), status(&mut second), until), (200, 200, Some(NOON + 60_000)));
    clock.advance(MINUTE);
    check_unauthorized(&mut first, "has another secret since it was rotated");
    assert_eq!(status(&mut second), 200);
    // Only the newest former secret stays valid.
    let (mut third, _) = rotate(60);
    let (mut fourth, _) = rotate(60);
    check_unauthorized(&mut second, "is unknown, or was revoked");
    assert_eq!((status(&mut third), status(&mut fourth)), (200, 200));
    let (mut fifth, until) = rotate(0);
    assert_eq!((status(&mut fifth), until), (200, None));
    check_unauthorized(&mut fourth, "is unknown, or was revoked");
    expect_status(&mut server.app(), "DELETE", &made.path, "", 204);
    check_unauthorized(&mut fifth, "is unknown, or was revoked");
}

#[test]
fn the_last_use_is_told_and_survives_a_restart() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let (server, clock) = at_noon(store.clone());
    let made = make(&server, &reader());
    let last_use = |server: &Server| {
        let key = parsed(&expect_status(&mut server.app(), "GET", &made.path, "", 200));
        let listed = parsed(&expect_status(&mut server.app(), "GET", KEYS, "", 200));
        assert_eq!(listed["keys"][0], key);
        (key["last_used_at"].as_u64(), key["created_by"].clone())
    };
    assert_eq!(last_use(&server), (None, json!("configured")));
    assert_eq!(status(&mut server.with_credential(&made.secret)), 200);
    assert_eq!(last_use(&server).0, Some(NOON));
    // A key that was not used stays as it was.
    clock.advance(MINUTE);
    assert_eq!(last_use(&server).0, Some(NOON));
    assert_eq!(status(&mut server.with_credential(&made.secret)), 200);
    assert_eq!(last_use(&server).0, Some(NOON + 60_000));
    drop(server);

    let (server, _) = at_noon(store);
    assert_eq!(last_use(&server).0, Some(NOON + 60_000));
    assert_eq!(status(&mut server.with_credential(&made.secret)), 200);
}

#[test]
fn the_store_has_no_secret() {
    let store = Arc::new(MemoryStore::default());
    let (server, _) = at_noon(store.clone());
    let made = make(&server, &reader());
    let rows = store.rows(RowSpace::Chat, &[], &[u8::MAX], 1_000).unwrap();
    assert!(rows.iter().any(|(_, row)| String::from_utf8_lossy(row).contains("reader")));
    let secret = made.secret.strip_prefix("tidings_").unwrap();
    assert!(rows.iter().all(|(_, row)| !String::from_utf8_lossy(row).contains(secret)));
}

#[test]
fn another_node_learns_of_keys_when_it_looks() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let [(one, _), (other, _)] = [(); 2].map(|()| at_noon(store.clone()));
    let made = make(&one, &reader());
    // The thread that looks once a second calls this.
    let look = || other.service.api().stored_keys.refresh().unwrap();
    look();
    let mut http = other.with_credential(&made.secret);
    assert_eq!(status(&mut http), 200);
    expect_status(&mut one.app(), "DELETE", &made.path, "", 204);
    look();
    check_unauthorized(&mut http, "is unknown, or was revoked");
}

#[test]
fn keys_are_bounded() {
    let store = Arc::new(MemoryStore::default());
    let (server, _) = at_noon(store.clone());
    let made = make(&server, &reader());
    let number = u64::from_str_radix(made.path.rsplit('_').next().unwrap(), 16).unwrap();
    let row = store.row(RowSpace::Chat, &api_key_key(number)).unwrap().unwrap();
    let others = (1..).filter(|other| *other != number).take(API_KEYS_MAX - 1);
    let mut rows: Vec<RowChange> =
        others.map(|number| RowChange { key: api_key_key(number), value: Some(row.clone()) }).collect();
    rows.push(RowChange { key: api_keys_version_key(), value: Some(encode(&7)) });
    store.write_rows(Term::ALONE, RowSpace::Chat, rows).unwrap();
    let why = "API keys (revoke those that nobody needs) is limited to 1000, got 1001";
    check_refused(&mut server.app(), "POST", KEYS, &reader().to_string(), "limit_exceeded", why);
    expect_status(&mut server.app(), "DELETE", &made.path, "", 204);
    make(&server, &reader());
}

#[test]
fn guesses_are_throttled_and_valid_keys_are_not() {
    let throttle = Some(ThrottleConfig { per_minute: 60, burst: 10, exempt: Vec::new() });
    let server = Server::of_parts(ServerParts { throttle, ..ServerParts::default() });
    let made = make(&server, &reader());
    let guess = |n: u32| status(&mut server.with_credential(&format!("tidings_{n:064x}")));
    let statuses: Vec<u16> = (0..15).map(guess).collect();
    assert_eq!(statuses, [[401; 10].as_slice(), &[429; 5]].concat());
    assert_eq!(status(&mut server.with_credential(&made.secret)), 200);
    expect_status(&mut server.app(), "DELETE", &made.path, "", 204);
    assert_eq!(status(&mut server.with_credential(&made.secret)), 429);
}

#[test]
fn no_key_is_made_while_a_node_does_not_know_keys() {
    let server = Server::start();
    let (closed, opened) = (Arc::new(OpenGates::default()), Arc::new(OpenGates::default()));
    opened.note_open(Gate::ApiKeys);
    let author = Author { key: Arc::new(CallingKey::configured()), operator: None };
    let make = |gates: Arc<OpenGates>| {
        let keys = StoredKeys::with_gates(&server.engine, gates);
        let made = keys.create(serde_json::from_value(reader()).unwrap(), &author);
        keys.stop();
        made.map(drop).map_err(|refusal| refusal.code)
    };
    assert_eq!(make(closed), Err(ErrorCode::NotYetEnabled));
    assert_eq!(parsed(&expect_status(&mut server.app(), "GET", KEYS, "", 200)), json!({"keys": []}));
    assert_eq!(make(opened), Ok(()));
}

#[test]
fn the_audit_log_says_who_did_what_with_which_key() {
    let (server, clock) = at_noon(Arc::new(MemoryStore::default()));
    let made = make(&server, &json!({"name": "operator", "scopes": ["admin"]}));
    let mut admin = server.with_credential(&made.secret);
    let policy = r#"{"rules":[{"id":"all","channels":[{"channel":"session"}]}]}"#;
    for (method, path, body, expected) in [
        ("PUT", "/v1/notifications/policy", policy, 200),
        ("DELETE", "/v1/notifications/policy", "", 200),
        ("POST", "/v1/notifications/dead-letters/replay", "{}", 200),
        ("POST", "/v1/notifications/dead-letters/delete", r#"{"channel":"webhook"}"#, 200),
        ("POST", "/v1/admin/backup", r#"{"path":"monday"}"#, 200),
        // Neither what is refused nor what is read.
        ("PUT", "/v1/notifications/policy", r#"{"rules":[{"id":""}]}"#, 422),
        ("GET", "/v1/notifications/policy", "", 403),
        ("GET", KEYS, "", 200),
    ] {
        clock.advance(MINUTE);
        expect_status(&mut admin, method, path, body, expected);
    }
    expect_status(&mut server.app(), "PATCH", &made.path, r#"{"name":"the operator"}"#, 200);
    let log =
        |query: &str| parsed(&expect_status(&mut server.app(), "GET", &format!("/v1/admin/audit{query}"), "", 200));
    let entries = log("")["entries"].as_array().unwrap().clone();
    let said: Vec<String> = entries
        .iter()
        .map(|entry| {
            format!(
                "{} {} {}",
                entry["number"],
                entry["key_name"].as_str().unwrap(),
                entry["operation"].as_str().unwrap()
            )
        })
        .collect();
    assert_eq!(
        said,
        [
            "7 api_key PATCH /v1/admin/keys/{key}",
            "6 operator POST /v1/admin/backup",
            "5 operator POST /v1/notifications/dead-letters/delete",
            "4 operator POST /v1/notifications/dead-letters/replay",
            "3 operator DELETE /v1/notifications/policy",
            "2 operator PUT /v1/notifications/policy",
            "1 api_key POST /v1/admin/keys",
        ]
    );
    let id = made.path.rsplit('/').next().unwrap();
    assert_eq!((&entries[0]["target"], &entries[0]["key"]), (&json!(id), &json!("configured")));
    assert_eq!(entries[0]["detail"], json!(r#"named "the operator", before "operator""#));
    assert_eq!((&entries[1]["key"], &entries[1]["at"]), (&json!(id), &json!(NOON + 5 * 60_000)));
    // Pages, from the newest to the oldest.
    let (mut query, mut numbers) = ("?limit=3".to_owned(), Vec::new());
    loop {
        let page = log(&query);
        numbers.extend(page["entries"].as_array().unwrap().iter().map(|entry| entry["number"].as_u64().unwrap()));
        let Some(next) = page["next"].as_u64() else { break };
        query = format!("?limit=3&before={next}");
    }
    assert_eq!(numbers, [7, 6, 5, 4, 3, 2, 1]);
    // Entries are kept for 400 days; each new one makes room.
    clock.advance(401 * 24 * 60 * MINUTE);
    assert_eq!(log(""), json!({"entries": []}));
    make(&server, &reader());
    let page = log("");
    assert_eq!((&page["entries"][0]["number"], page["entries"].as_array().unwrap().len()), (&json!(8), 1));
}
