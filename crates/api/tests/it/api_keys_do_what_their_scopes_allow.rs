//! Each key may call the operations that `docs/api-keys.md` gives its scopes, and no other; and no key makes one that may do more.

use crate::{every_described_operation_can_be_called::described, support::*};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};
use tidings_api::api_keys::permissions::{PERMISSIONS, Permission};
use tidings_client::http::HttpClient;
use tidings_protocol::http::KeyScope;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/api-keys.md");
/// The line before the table, and the one that ends it.
const TABLE: (&str, &str) = ("<!-- the table of operations begins -->\n", "<!-- the table of operations ends -->");

/// Its credential is the secret of a stream, so that no key is looked at.
const OF_A_SECRET: &str = "POST /v1/stream/{stream}";

/// The operations of the page, each with the scopes that may call it.
type Matrix = BTreeMap<String, BTreeSet<KeyScope>>;

/// Makes a key with these scopes, and returns its secret.
fn key(server: &Server, scopes: &[&str]) -> String {
    let new = json!({"name": "of a test", "scopes": scopes}).to_string();
    let made: Value =
        serde_json::from_str(&expect_status(&mut server.app(), "POST", "/v1/admin/keys", &new, 201)).unwrap();
    made["secret"].as_str().unwrap().to_owned()
}

fn table() -> String {
    let names = KeyScope::ALL.map(KeyScope::name);
    let mut table = format!("| operation | {} |\n| --- |{}\n", names.join(" | "), " :-: |".repeat(names.len()));
    for (method, path, permission) in PERMISSIONS {
        let mark = |scope: &KeyScope| match permission {
            Permission::Scope(needed) if needed == scope => "●",
            Permission::AnyKey | Permission::Open => "●",
            _ => "",
        };
        let marks: Vec<&str> = KeyScope::ALL.iter().map(mark).collect();
        writeln!(table, "| `{method} {path}` | {} |", marks.join(" | ")).unwrap();
    }
    table
}

/// The table of the page; written anew first with `UPDATE_SNAPSHOTS=1`.
fn table_of_the_page() -> String {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(TABLE.0).unwrap();
    let (kept, after) = rest.split_once(TABLE.1).unwrap();
    if std::env::var_os("UPDATE_SNAPSHOTS").is_none() {
        return kept.to_owned();
    }
    let now = table();
    std::fs::write(PAGE, [before, TABLE.0, &now, TABLE.1, after].concat()).unwrap();
    now
}

fn matrix(table: &str) -> Matrix {
    let row = |line: &str| {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let operation = cells.next().unwrap().trim_matches('`').to_owned();
        let marked = KeyScope::ALL.into_iter().zip(cells).filter(|(_, mark)| *mark == "●");
        (operation, marked.map(|(scope, _)| scope).collect())
    };
    table.lines().skip(2).map(row).collect()
}

/// A path of the operation. Nothing that it names has to be there: the scope is checked first.
fn path_of(operation: &str) -> String {
    let path = operation.split_once(' ').unwrap().1;
    let numbers = ["{seq}", "{push}", "{bulk_send}"];
    let path = numbers.iter().fold(path.to_owned(), |path, name| path.replace(name, "1"));
    path.split('/').map(|part| if part.starts_with('{') { "x" } else { part }).collect::<Vec<_>>().join("/")
}

/// Whether the operation was refused because of the key's scopes.
fn is_refused(http: &mut HttpClient, operation: &str) -> bool {
    let (method, body) = match operation.split_once(' ').unwrap().0 {
        method @ ("GET" | "DELETE") => (method, ""),
        method => (method, "{}"),
    };
    let answer = http.exchange(method, &path_of(operation), body.as_bytes()).unwrap();
    let text = String::from_utf8(answer.body).unwrap();
    let is_of_scopes =
        text.contains("the API key does not allow this; it needs") || text.contains("is not for API keys");
    assert!(answer.status != 401, "{operation}: {text}");
    assert_eq!(is_of_scopes, answer.status == 403 && is_of_scopes, "{operation}: {text}");
    is_of_scopes
}

#[test]
fn every_operation_names_the_scope_that_it_needs() {
    let table: Vec<String> = PERMISSIONS.iter().map(|(method, path, _)| format!("{method} {path}")).collect();
    let named: BTreeSet<String> = table.iter().cloned().collect();
    assert_eq!(named, described(), "add new operations to crates/api/src/api_keys/permissions.rs");
    assert_eq!(named.len(), table.len(), "an operation stands twice");
}

#[test]
fn each_key_may_call_what_the_page_says_and_nothing_else() {
    let page = table_of_the_page();
    assert_eq!(
        page,
        table(),
        "docs/api-keys.md: run `UPDATE_SNAPSHOTS=1 cargo test -p tidings-api` and look at the diff"
    );
    let matrix = matrix(&page);
    assert_eq!(matrix.keys().cloned().collect::<BTreeSet<_>>(), described());
    let server = Server::start().with_people();
    let mut called = 0;
    for scope in KeyScope::ALL {
        let secret = key(&server, &[scope.name()]);
        for (operation, allowed) in &matrix {
            // A connection for each, so that popups' requests take their own way past the HTTP library.
            let refused = operation == OF_A_SECRET || is_refused(&mut server.with_credential(&secret), operation);
            assert_eq!(refused, !allowed.contains(&scope), "{operation} with {scope:?}");
            called += 1;
        }
    }
    println!("{called} calls: {} operations with each of {} scopes", matrix.len(), KeyScope::ALL.len());
}

#[test]
fn the_refusal_names_the_scope() {
    let server = Server::start().with_people();
    let secret = key(&server, &["read"]);
    for (method, path, body, scope) in [
        ("POST", "/v1/messages", r#"{"conversation":"g","from":"alice","body":1}"#, "send"),
        ("POST", "/v1/popups/decide", r#"{"user":"bob","placement":"home"}"#, "popups"),
        ("POST", "/v1/bulk-sends", "{}", "send"),
        ("POST", "/v1/streams", "{}", "send"),
        ("GET", "/v1/admin/keys", "", "admin"),
        ("DELETE", "/v1/conversations/g/messages/1", "", "moderation"),
    ] {
        let why = format!("scope: the API key does not allow this; it needs {scope:?}");
        check_refused(&mut server.with_credential(&secret), method, path, body, "forbidden", &why);
    }
    let own = expect_status(&mut server.with_credential(&secret), "GET", "/v1/admin/keys/me", "", 200);
    assert!(own.contains(r#""name":"of a test","scopes":["read"]"#), "{own}");
    let why = "needs an API key";
    check_refused(&mut server.user("alice"), "GET", "/v1/admin/keys/me", "", "forbidden", why);
}

#[test]
fn a_key_opens_no_session() {
    let server = Server::start().with_people();
    let secret = key(&server, &KeyScope::ALL.map(KeyScope::name));
    let mut http = server.with_credential(&secret);
    check_refused(&mut http, "GET", "/v1/stream?device_id=d", "", "forbidden", "is not for API keys");
    let answer = http.exchange("POST", "/v1/stream/x?number=1", br#"{"t":"ping"}"#).unwrap();
    assert_eq!(answer.status, 410);
}

#[test]
fn a_key_makes_and_changes_no_key_that_may_do_more() {
    let server = Server::start();
    let mut admin = server.with_credential(&key(&server, &["admin", "read"]));
    let keys = "/v1/admin/keys";
    let check = |http: &mut HttpClient, method: &str, path: &str, body: &str| {
        check_refused(http, method, path, body, "forbidden", "it lacks send");
    };
    check(&mut admin, "POST", keys, r#"{"name":"n","scopes":["read","send"]}"#);
    let made = expect_status(&mut admin, "POST", keys, r#"{"name":"n","scopes":["read"]}"#, 201);
    let made: Value = serde_json::from_str(&made).unwrap();
    let own = format!("{keys}/{}", made["key"]["id"].as_str().unwrap());
    check(&mut admin, "PATCH", &own, r#"{"scopes":["send"]}"#);
    expect_status(&mut admin, "PATCH", &own, r#"{"scopes":["admin"]}"#, 200);
    // A key that may do more is beyond its reach, also for less: its secret would be the caller's.
    let sender = expect_status(&mut server.app(), "POST", keys, r#"{"name":"sender","scopes":["send"]}"#, 201);
    let sender: Value = serde_json::from_str(&sender).unwrap();
    let other = format!("{keys}/{}", sender["key"]["id"].as_str().unwrap());
    check(&mut admin, "PATCH", &other, r#"{"name":"mine"}"#);
    check(&mut admin, "POST", &format!("{other}/rotate"), r#"{"overlap_s":60}"#);
    check(&mut admin, "DELETE", &other, "");
    let listed = expect_status(&mut admin, "GET", keys, "", 200);
    for hidden in [&made["secret"], &sender["secret"]] {
        assert!(!listed.contains(hidden.as_str().unwrap()), "{listed}");
    }
}

#[test]
fn invalid_keys_are_refused() {
    let server = Server::start();
    let mut app = server.app();
    let long = format!(r#"{{"name":{:?},"scopes":["read"]}}"#, "n".repeat(129));
    for (body, code, names) in [
        (r#"{"scopes":["read"]}"#, "invalid_field", "name"),
        (r#"{"name":" ","scopes":["read"]}"#, "invalid_field", "name: must say what the key is for"),
        (r#"{"name":"a\nb","scopes":["read"]}"#, "invalid_field", "name: must say what the key is for"),
        (long.as_str(), "limit_exceeded", "name (bytes) is limited to 128, got 129"),
        (r#"{"name":"n","scopes":[]}"#, "invalid_field", "scopes: must be some of send, read, users"),
        (r#"{"name":"n","scopes":["everything"]}"#, "invalid_field", "scopes[0]"),
        (
            r#"{"name":"n","scopes":["read"],"expires_at":1000000000000}"#,
            "invalid_field",
            "expires_at: lies in the past",
        ),
        (r#"{"name":"n","scopes":["read"],"expires_at":1900000000}"#, "invalid_field", "looks like seconds"),
    ] {
        check_refused(&mut app, "POST", "/v1/admin/keys", body, code, names);
    }
    for id in ["key_0000000000000000", "configured", "x"] {
        let path = format!("/v1/admin/keys/{id}");
        check_refused(&mut app, "GET", &path, "", "not_found", "no API key");
        check_refused(&mut app, "PATCH", &path, r#"{"name":"n"}"#, "not_found", "no API key");
        check_refused(&mut app, "POST", &format!("{path}/rotate"), "{}", "not_found", "no API key");
        check_refused(&mut app, "DELETE", &path, "", "not_found", "no API key");
    }
    let overlap = r#"{"overlap_s":2592001}"#;
    check_refused(
        &mut app,
        "POST",
        "/v1/admin/keys/x/rotate",
        overlap,
        "limit_exceeded",
        "overlap_s is limited to 2592000",
    );
}
