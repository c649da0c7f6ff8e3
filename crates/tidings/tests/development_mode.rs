//! `tidings serve --dev` announces itself, and what it prints works as pasted.
#![allow(clippy::unwrap_used)]

mod support;

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
    for command in ["listen bob", "curl -s ", "token alice", "curl -si "] {
        assert!(said.contains(command), "no {command:?} in {said}");
    }

    // Started again on the same folder, keys and demo users are as they were.
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
    let mut alice = tidings_client::http::Http::new(server.address, token);
    let list = alice.exchange("GET", "/v1/users/me/conversations", b"").unwrap();
    assert!(text(&list.body).contains(r#""id":"demo""#), "{}", text(&list.body));
}

#[test]
fn without_it_keys_are_asked_for() {
    let folder = Folder::new();
    let output = folder.run(&["serve"]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("TIDINGS_API_KEY"), "{}", text(&output.stderr));
    assert!(!folder.data().exists(), "a refused start leaves nothing behind");
}
