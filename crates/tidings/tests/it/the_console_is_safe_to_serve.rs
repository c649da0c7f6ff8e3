//! The console: its page is served everywhere and holds nothing, the settings that it shows hold no secret, and the log names who changed
//! what.

use crate::support::*;
use serde_json::Value;
use std::{
    fs::File,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

/// The response to a request on a connection of its own: its head, with names in lower case, and its body.
fn request(address: SocketAddr, line: &str, headers: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{line} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = text(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_lowercase(), body.to_owned())
}

#[test]
fn outside_development_mode_the_console_is_served_under_a_strict_policy() {
    let folder = Folder::new();
    let server = folder.serve();
    for (path, media_type) in
        [("/console", "text/html"), ("/console/app.js", "text/javascript"), ("/console/app.css", "text/css")]
    {
        let (head, body) = request(server.address, &format!("GET {path}"), "");
        assert!(head.starts_with("http/1.1 200") && head.contains(&format!("content-type: {media_type}")), "{head}");
        for directive in ["default-src 'none'", "script-src 'self'", "connect-src 'self';", "frame-ancestors 'none'"] {
            assert!(head.contains(directive), "no {directive} in {head}");
        }
        assert!(!head.contains("unsafe") && !head.contains("ws://"), "{head}");
        assert!(!body.contains(API_KEY), "{path}");
    }
    let (head, _) = request(server.address, "GET /console/", "");
    assert!(head.starts_with("http/1.1 308") && head.contains("location: /console\r\n"), "{head}");
    let (_, page) = request(server.address, "GET /console", "");
    assert!(!page.contains("<style") && page.contains("src=\"/console/app.js\"") && !page.contains("/page/"), "{page}");
}

/// The page at `/docs` asks for the API key.
#[test]
fn the_description_page_is_framed_by_nobody_and_runs_only_its_own_scripts() {
    let folder = Folder::new();
    let server = folder.serve();
    for path in ["/docs/", "/docs/index.html", "/docs/swagger-ui-bundle.js", "/docs/swagger-initializer.js", "/docs"] {
        let (head, _) = request(server.address, &format!("GET {path}"), "");
        assert!(head.starts_with("http/1.1 200") || head.starts_with("http/1.1 303"), "{path}: {head}");
        for directive in ["default-src 'none'", "script-src 'self';", "connect-src 'self';", "frame-ancestors 'none'"] {
            assert!(head.contains(directive), "{path}: no {directive} in {head}");
        }
        assert!(head.contains("x-content-type-options: nosniff"), "{path}: {head}");
    }
}

#[test]
fn the_settings_name_their_sources_and_hold_no_secret() {
    let folder = Folder::new();
    let secrets = [
        ("TIDINGS_API_KEY", API_KEY),
        ("TIDINGS_API_KEYS", "a-second-key-of-the-app"),
        ("TIDINGS_TOKEN_KEY", TOKEN_KEY),
        ("TIDINGS_WEBHOOK_SECRET", "the-secret-of-the-webhook"),
        ("TIDINGS_LINK_SECRET", "the-secret-of-the-links"),
        ("TIDINGS_CLUSTER_SECRET", "the-secret-of-the-cluster"),
    ];
    let mut command = folder.program(&["serve", "--http-threads", "2"]);
    command.envs(secrets).env("TIDINGS_WEBHOOK_URL", "http://user:pass-of-the-hook@127.0.0.1:9/path-of-the-hook");
    std::fs::write(folder.path().join("tidings.toml"), "http_threads = 1\n[session]\nreads_max = 77\n").unwrap();
    let server = Server::start(&mut command);

    let answer = server.http().exchange("GET", "/v1/admin/settings", b"").unwrap();
    let answer = text(&answer.body);
    for secret in secrets.iter().map(|(_, secret)| *secret).chain(["pass-of-the-hook", "path-of-the-hook"]) {
        assert!(!answer.contains(secret), "{secret} is shown");
    }
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let check = |name: &str, field: &str, value: Value| {
        let setting = answer["settings"].as_array().unwrap().iter().find(|setting| setting["name"] == name).unwrap();
        assert_eq!(setting[field], value, "{setting}");
    };
    check("api_key", "secret", true.into());
    check("api_key", "source", "environment".into());
    check("http_threads", "source", "flag".into());
    check("http_threads", "value", "2".into());
    check("session.reads_max", "source", "file".into());
    check("session.requests_max", "source", "default".into());
    check("webhook.url", "value", r#""http://***@127.0.0.1:9/***""#.into());
    check("backup_dir", "value", Value::Null);
}

#[test]
fn the_log_names_who_changed_what_with_the_key() {
    let folder = Folder::new();
    let log = folder.path().join("log");
    let mut command = folder.program(&["serve"]);
    command.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY).stderr(File::create(&log).unwrap());
    let server = Server::start(&mut command);
    let ask = |line: &str, key: &str, author: &str, body: &str| {
        let length = body.len();
        let headers = format!(
            "authorization: Bearer {key}\r\n{author}content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        let mut stream = TcpStream::connect(server.address).unwrap();
        write!(stream, "{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let jane = "tidings-author: Jané Doe\r\n";
    ask("PUT /v1/users", API_KEY, jane, r#"{"users":[{"id":"audited"}]}"#);
    ask("DELETE /v1/popups/absent?secret=query", API_KEY, jane, "");
    ask("PUT /v1/users", API_KEY, "", r#"{"users":[{"id":"of-a-server"}]}"#);
    ask("GET /v1/users/audited", API_KEY, jane, "");
    let wrong = ask("PUT /v1/users", "no-key-at-all", jane, r#"{"users":[]}"#);
    assert!(wrong.starts_with("HTTP/1.1 401"), "{wrong}");

    drop(server);
    let log = std::fs::read_to_string(log).unwrap();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("audit: ")).collect();
    let [users, popup] = lines[..] else { panic!("{lines:#?}") };
    for part in
        ["done", r#"author="Jané Doe""#, "method=PUT", r#"path="/v1/users""#, "status=200", r#"client="127.0.0.1""#]
    {
        assert!(users.contains(part), "no {part} in {users}");
    }
    for part in ["refused", "method=DELETE", r#"path="/v1/popups/absent""#, "status=404"] {
        assert!(popup.contains(part), "no {part} in {popup}");
    }
    assert!(!log.contains(API_KEY) && !log.contains("secret=query"), "{log}");
}
