//! Nodes of a cluster that must not or cannot go on: each drains, says why, and ends with an exit status of its own.

use crate::{postgres::PostgresServer, support::*};
use std::{
    net::SocketAddr,
    process::Command,
    time::{Duration, Instant},
};
use tidings_client::http::HttpClient;
use tidings_protocol::http::{CreateConversation, SendRequest, UserUpsert};

const WAIT: Duration = Duration::from_secs(300);
const START_AGAIN: i32 = 75;
const CONFIGURATION: i32 = 78;

/// A node without a Redis that it could reach: nothing here rests on one.
fn node(folder: &Folder, url: &str, role: &str, name: &str) -> Command {
    let mut command = folder.program(&["serve", "--drain-deadline-ms", "15000", "--health-listen", "127.0.0.1:0"]);
    command.envs([
        ("TIDINGS_API_KEY", API_KEY),
        ("TIDINGS_TOKEN_KEY", TOKEN_KEY),
        ("TIDINGS_STORE_URL", url),
        ("TIDINGS_ROLE", role),
        ("TIDINGS_LINK_LISTEN", "127.0.0.1:0"),
        ("TIDINGS_CLUSTER_NAME", name),
        ("TIDINGS_CLUSTER_REDIS", "redis://127.0.0.1:1"),
        ("TIDINGS_CLUSTER_SECRET", "a secret of the cluster"),
        ("TIDINGS_CLUSTER_LEASE_MS", "3000"),
    ]);
    command
}

fn readiness(address: SocketAddr) -> Option<(u16, String)> {
    let answer = HttpClient::new(address, "").exchange("GET", "/readyz", b"").ok()?;
    Some((answer.status, text(&answer.body)))
}

/// Waits until the server's answer about its readiness has this status and text.
fn until_said(address: SocketAddr, status: u16, part: &str) {
    let deadline = Instant::now() + WAIT;
    let mut last = None;
    loop {
        let said = readiness(address);
        if said.as_ref().is_some_and(|(now, text)| *now == status && text.contains(part)) {
            return;
        }
        last = said.or(last);
        assert!(Instant::now() < deadline, "not {status} with {part:?}: {last:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_displaced_node_ends_and_leaves_the_name_to_the_other() {
    let database = PostgresServer::shared();
    let url = database.database();
    let (one, two) = (Folder::new(), Folder::new());
    let mut first = Server::start(&mut node(&one, &url, "all", "a"));
    until_said(first.address, 200, "ready");
    let health = first.listener(&one, "health");
    // It says so for some seconds only, which may be over when the second node serves.
    let mut second = std::thread::scope(|scope| {
        let said = scope.spawn(|| until_said(health, 503, "another process has taken this node's name"));
        let second = Server::start(&mut node(&two, &url, "all", "a"));
        said.join().unwrap();
        second
    });
    assert_eq!(first.wait().0.code(), Some(CONFIGURATION));
    until_said(second.address, 200, "ready");

    // A supervisor starts it again: it does not take the name back, or the two would displace each other for ever.
    let again = node(&one, &url, "all", "a").output().unwrap();
    let said = text(&again.stderr);
    assert_eq!(again.status.code(), Some(CONFIGURATION), "{said}");
    assert!(said.contains("still has it") && said.contains(&second.address.to_string()), "{said}");
    assert_eq!(readiness(second.address).map(|(status, _)| status), Some(200));

    second.signal("TERM");
    assert_eq!(second.wait().0.code(), Some(0));
    let third = Server::start(&mut node(&one, &url, "all", "a"));
    until_said(third.address, 200, "ready");
}

#[test]
fn a_node_whose_store_has_gone_back_ends_and_the_next_start_goes_on() {
    let database = PostgresServer::shared();
    let url = database.database();
    let folder = Folder::new();
    let mut server = Server::start(&mut node(&folder, &url, "all", "a"));
    until_said(server.address, 200, "ready");
    let user = |id: &str| UserUpsert { id: id.into(), ..UserUpsert::default() };
    server.http().upsert_users(vec![user("alice"), user("bob")]).unwrap();
    let group: CreateConversation =
        serde_json::from_str(r#"{"id":"g","kind":"group","owner":"alice","members":["bob"]}"#).unwrap();
    server.http().create_conversation(&group).unwrap();
    let message: SendRequest =
        serde_json::from_str(r#"{"conversation":"g","from":"alice","client_msg_id":"m","body":{}}"#).unwrap();
    server.http().send(&message).unwrap();
    let health = server.listener(&folder, "health");

    // As after a promotion of a standby without the newest commit.
    database.sql(&url, "UPDATE tidings.counters SET position = position - 1");
    database.sql(&url, "DELETE FROM tidings.entries WHERE position > (SELECT position FROM tidings.counters)");
    until_said(health, 503, "the store has gone back to position");
    assert_eq!(server.wait().0.code(), Some(START_AGAIN));
    let next = Server::start(&mut node(&folder, &url, "all", "a"));
    until_said(next.address, 200, "ready");
}

#[test]
fn nodes_that_have_never_seen_a_leader_are_not_ready() {
    let database = PostgresServer::shared();
    let url = database.database();
    let (one, two) = (Folder::new(), Folder::new());
    let api = Server::start(&mut node(&one, &url, "api", "a"));
    until_said(api.address, 503, "no node may lead");
    let mut worker = Server::start(&mut node(&two, &url, "worker", "w"));
    until_said(api.address, 200, "ready");

    // Chat goes on without a leader: a node that was ready stays so, and says what does not work.
    worker.signal("TERM");
    assert_eq!(worker.wait().0.code(), Some(0));
    until_said(api.address, 200, "leader: no node may lead");
}
