//! `tidings serve --dev` announces itself, and what it prints works as pasted.

use crate::support::*;
use serde_json::Value;
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    process::Command,
};

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

/// An answer's head in lower case, and its body.
fn get(address: SocketAddr, path: &str, headers: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(address).unwrap();
    let host = if headers.contains("host: ") { String::new() } else { format!("host: {address}\r\n") };
    write!(stream, "GET {path} HTTP/1.1\r\nconnection: close\r\n{host}{headers}\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    (String::from_utf8(answer[..end].to_vec()).unwrap().to_lowercase(), answer[end + 4..].to_vec())
}

fn header<'a>(head: &'a str, name: &str) -> &'a str {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).unwrap_or_default()
}

#[test]
fn the_chat_page_stands_at_the_root_under_a_strict_policy() {
    let folder = Folder::new();
    let server = Server::start(&mut folder.program(&["serve", "--dev"]));
    let host = format!("host: {}\r\n", server.address);
    for (path, media_type) in [("/", "text/html"), ("/page/app.js", "text/javascript"), ("/page/app.css", "text/css")] {
        let (head, body) = get(server.address, path, &host);
        assert!(head.starts_with("http/1.1 200"), "{path}: {head}");
        assert!(header(&head, "content-type").starts_with(media_type), "{head}");
        assert_eq!(header(&head, "x-content-type-options"), "nosniff");
        let policy = header(&head, "content-security-policy");
        for directive in ["default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'"] {
            assert!(policy.split(';').any(|part| part.trim().starts_with(directive)), "no {directive} in {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert!(policy.contains(&format!(" ws://{}", server.address)), "{policy}");

        let (zipped, shorter) = get(server.address, path, &format!("{host}accept-encoding: br, gzip;q=0.5\r\n"));
        assert_eq!(header(&zipped, "content-encoding"), "gzip");
        assert!(shorter.len() < body.len() && shorter.starts_with(&[0x1f, 0x8b]), "{path}: {} bytes", shorter.len());
        let known = format!("{host}if-none-match: {}\r\n", header(&head, "etag"));
        let (unchanged, nothing) = get(server.address, path, &known);
        assert!(unchanged.starts_with("http/1.1 304") && nothing.is_empty(), "{unchanged}");
    }
    let (_, page) = get(server.address, "/", &host);
    let page = text(&page);
    assert!(!page.contains("<style") && !page.contains("style="), "{page}");
    let scripts: Vec<&str> = page.split("<script").skip(1).collect();
    assert!(!scripts.is_empty(), "the page has no script: {page}");
    let is_inline = |script: &&&str| !script.split('>').next().unwrap_or_default().contains(" src=");
    assert_eq!(scripts.iter().find(is_inline), None, "the policy lets no inline script run");
}

#[test]
fn the_page_gets_tokens_of_the_demo_users_unless_its_name_could_be_anybodys() {
    let folder = Folder::new();
    let server = Server::start(&mut folder.program(&["serve", "--dev"]));
    let (head, body) = get(server.address, "/page/users", "host: localhost:8080\r\n");
    assert_eq!(header(&head, "cache-control"), "no-store");
    let users: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(users["users"].as_array().unwrap().len(), 3);
    assert_eq!(users["assistant"]["id"], "assistant");
    let token = users["users"][1]["token"].as_str().unwrap();
    let mut bob = tidings_client::http::HttpClient::new(server.address, token.to_owned());
    let me: Value = serde_json::from_slice(&bob.exchange("GET", "/v1/users/me", b"").unwrap().body).unwrap();
    assert_eq!(me["id"], "bob");

    // A page of another host, whose name leads to this machine, would be of the same origin for the browser.
    let (head, body) = get(server.address, "/page/users", "host: rebound.example:8080\r\n");
    assert!(head.starts_with("http/1.1 403"), "{head}");
    assert!(!text(&body).contains("token\""), "{}", text(&body));
}

#[test]
fn outside_development_mode_there_is_no_page() {
    let folder = Folder::new();
    let server = folder.serve();
    let host = format!("host: {}\r\n", server.address);
    for path in ["/page/users", "/page/app.js", "/page/app.css", "/page", "/index.html"] {
        let (head, _) = get(server.address, path, &host);
        assert!(head.starts_with("http/1.1 404"), "{path}: {head}");
    }
    let (head, _) = get(server.address, "/", &host);
    assert_eq!(header(&head, "location"), "/docs/", "who opens the address alone is led to the API's page: {head}");
}

/// The examples are what users of the page at `/docs` send first.
#[test]
fn openapi_examples_work_with_the_demo_users() {
    let folder = Folder::new();
    let server = Server::start(folder.program(&["serve", "--dev"]).env("TIDINGS_API_KEY", API_KEY));
    let mut http = server.http();
    let described: Value = serde_json::from_slice(&http.exchange("GET", "/openapi.json", b"").unwrap().body).unwrap();
    // The message that examples of changes are about.
    let message = br#"{"conversation":"demo","from":"bob","body":{"text":"hello"}}"#;
    assert_eq!(http.exchange("POST", "/v1/messages", message).unwrap().status, 200);
    let begun = http.exchange("POST", "/v1/streams", message).unwrap();
    let begun: Value = serde_json::from_slice(&begun.body).unwrap();
    let mut tried = 0;
    for (path, operations) in described["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"]["$ref"];
            let Some(schema) = schema.as_str().and_then(|name| name.strip_prefix('#')) else { continue };
            let Some(example) = described.pointer(schema).unwrap().get("example") else { continue };
            let seq = if path.starts_with("/v1/streams/") { begun["seq"].to_string() } else { "1".to_owned() };
            let path = path.replace("{user}", "bob").replace("{conversation}", "demo").replace("{seq}", &seq);
            let path = path.replace("{device_id}", "phone");
            let answer = http.exchange(&method.to_uppercase(), &path, example.to_string().as_bytes()).unwrap();
            if path.ends_with("/push_token") {
                // A provider is set up with keys that the provider gives.
                assert!(text(&answer.body).contains("is not set up"), "{}", text(&answer.body));
                continue;
            }
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
