//! `tidings serve --dev` announces itself, and what it prints works as pasted.
#![allow(clippy::unwrap_used)]

mod support;

use serde_json::Value;
use std::process::Command;
use support::*;

#[test]
fn the_printed_commands_work() {
    let folder = Folder::new();
    let mut server = Server::start(&mut folder.program(&["serve", "--dev"]));
    let token = folder.run(&["token", "alice"]);
    let token = text(&token.stdout).trim().to_owned();
    let address = server.address;
    server.signal("TERM");
    let (status, said) = server.wait();
    assert!(status.success());
    assert!(said.contains("DEVELOPMENT MODE"), "{said}");
    let folder_named = format!(" --data-dir {}", folder.data().display());
    assert_eq!(said.matches(&folder_named).count(), 2, "as a terminal in any folder can use it: {said}");
    for command in ["listen bob", "curl -s ", "token alice", "curl -si "] {
        assert!(said.contains(command), "no {command:?} in {said}");
    }

    // After a restart on the same folder, the keys and demo users are the same.
    let server = Server::start(&mut folder.program(&["serve", "--dev"]));
    let paste = |starts: &str| {
        let curl = said.lines().find(|line| line.trim_start().starts_with(starts)).unwrap();
        let curl = curl.replace(&address.to_string(), &server.address.to_string());
        text(&Command::new("sh").arg("-c").arg(&curl).output().unwrap().stdout)
    };
    let sent = paste("curl -s ");
    assert!(sent.starts_with(r#"{"conversation":"demo","seq":"#), "{sent}");
    let shown = paste("curl -si ");
    assert!(shown.starts_with("HTTP/1.1 200") && shown.contains(r#""popup":"demo""#), "{shown}");
    let nothing = paste("curl -si ").to_lowercase();
    assert!(nothing.starts_with("http/1.1 204") && nothing.contains("retry-after: "), "{nothing}");
    let mut alice = tidings_client::http::HttpClient::new(server.address, token);
    let list = alice.exchange("GET", "/v1/users/me/conversations", b"").unwrap();
    assert!(text(&list.body).contains(r#""id":"demo""#), "{}", text(&list.body));
}

/// The examples are what users of the page at `/docs` send first.
#[test]
fn openapi_examples_work_with_the_demo_users() {
    let folder = Folder::new();
    let server = Server::start(folder.program(&["serve", "--dev"]).env("TIDINGS_API_KEY", API_KEY));
    let mut http = server.http();
    let root = http.exchange("GET", "/", b"").unwrap();
    assert_eq!(root.status, 303, "who opens the address alone is led to the page");
    let described: Value = serde_json::from_slice(&http.exchange("GET", "/openapi.json", b"").unwrap().body).unwrap();
    let mut tried = 0;
    for (path, operations) in described["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"]["$ref"];
            let Some(schema) = schema.as_str().and_then(|name| name.strip_prefix('#')) else { continue };
            let Some(example) = described.pointer(schema).unwrap().get("example") else { continue };
            let path = path.replace("{user}", "bob").replace("{conversation}", "demo");
            let answer = http.exchange(&method.to_uppercase(), &path, example.to_string().as_bytes()).unwrap();
            assert_eq!(answer.status / 100, 2, "{method} {path} {example}: {}", text(&answer.body));
            tried += 1;
        }
    }
    assert!(tried >= 10, "{tried} examples");
}

#[test]
fn likely_mistakes_get_a_helpful_error() {
    let folder = Folder::new();
    let mut program = folder.program(&["serve", "--http-listen", "8080"]);
    let output = program.env("TIDINGS_API_KEY", "a").env("TIDINGS_TOKEN_KEY", "b").output().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("--http-listen") && said.contains("such as 127.0.0.1:8080"), "{said}");

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut program = folder.program(&["serve", "--dev", "--http-listen", &taken.local_addr().unwrap().to_string()]);
    let output = program.env("TIDINGS_HTTP_LISEN", "127.0.0.1:1").output().unwrap();
    assert!(!output.status.success());
    let said = text(&output.stderr);
    for words in ["the variable TIDINGS_HTTP_LISEN names no setting", "another address: --http-listen", "in use"] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
}

#[test]
fn serve_without_keys_names_the_missing_variable() {
    let folder = Folder::new();
    let output = folder.run(&["serve"]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("TIDINGS_API_KEY"), "{}", text(&output.stderr));
    assert!(!folder.data().exists(), "a refused start leaves nothing behind");
}
