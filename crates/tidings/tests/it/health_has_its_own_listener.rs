//! The listener for health alone, and listener settings that are refused at the start.

use crate::support::*;
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// Sends a request, and returns the status of the response.
fn ask(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer[9..12].to_owned()
}

#[test]
fn a_health_listener_answers_only_health_and_metrics() {
    let folder = Folder::new();
    let mut serve = folder.program(&["serve", "--health-listen", "127.0.0.1:0"]);
    let server = Server::start(serve.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY));
    let health = server.listener(&folder, "health");
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(ask(health, path), "200", "{path}");
    }
    assert_eq!((ask(health, "/v1/users/x"), ask(server.address, "/v1/users/x")), ("404".into(), "401".into()));
}

#[test]
fn invalid_listener_settings_are_refused_at_startup() {
    let folder = Folder::new();
    for (arguments, why) in [
        (&["--cors-origins", "*", "--cors-credentials", "true"][..], "credentials"),
        (&["--cors-origins", "https://app.example.com/"], "https://app.example.com/"),
        (&["--cors-origins", "*,https://app.example.com"], "stands alone"),
        (&["--http-body-bytes-max", "1000000"], "http_body_bytes_max"),
        (&["--http-connections-max", "0"], "http_connections_max"),
        (&["--health-listen", "here"], "health-listen"),
    ] {
        let mut serve = folder.program(&[&["serve"], arguments].concat());
        let output = serve.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY).output().unwrap();
        let told = text(&output.stderr);
        assert!(!output.status.success() && told.contains(why), "{arguments:?}: {told}");
    }
}
