//! A key that was made, and one that was revoked, stay so after a crash, on every node, and in a backup.
// Slow: it starts servers, PostgreSQL and Redis

use crate::{
    postgres::PostgresServer,
    redis::{RedisServer, wait_until},
    support::*,
};
use serde_json::{Value, json};
use std::net::SocketAddr;
use tidings_client::http::HttpClient;

const KEYS: &str = "/v1/admin/keys";

struct Made {
    secret: String,
    id: String,
}

/// Calls with the key of the settings; returns the status and the answer.
fn call(server: &Server, method: &str, path: &str, body: &str) -> (u16, Value) {
    let answer = server.http().exchange(method, path, body.as_bytes()).unwrap();
    (answer.status, serde_json::from_slice(&answer.body).unwrap_or_default())
}

fn make(server: &Server, name: &str) -> Made {
    let new = json!({"name": name, "scopes": ["read", "popups"]}).to_string();
    let (status, made) = call(server, "POST", KEYS, &new);
    assert_eq!(status, 201, "{made}");
    let field = |value: &Value| value.as_str().unwrap().to_owned();
    Made { secret: field(&made["secret"]), id: field(&made["key"]["id"]) }
}

fn revoke(server: &Server, made: &Made) {
    assert_eq!(call(server, "DELETE", &format!("{KEYS}/{}", made.id), "").0, 204);
}

fn status(address: SocketAddr, made: &Made) -> u16 {
    HttpClient::new(address, made.secret.clone()).exchange("GET", "/v1/admin/keys/me", b"").unwrap().status
}

#[test]
fn keys_survive_a_kill_and_a_restore() {
    let folder = Folder::new();
    let mut server = folder.serve();
    let [kept, revoked] = ["kept", "revoked"].map(|name| make(&server, name));
    assert_eq!([&kept, &revoked].map(|made| status(server.address, made)), [200, 200]);
    let backup = folder.path().join("backups/before");
    let request = json!({"path": backup.to_str().unwrap()}).to_string();
    assert_eq!(call(&server, "POST", "/v1/admin/backup", &request).0, 200);
    revoke(&server, &revoked);
    server.signal("KILL");
    server.wait();

    let mut server = folder.serve();
    assert_eq!([&kept, &revoked].map(|made| status(server.address, made)), [200, 401]);
    let log = call(&server, "GET", "/v1/admin/audit", "").1;
    let operations: Vec<&str> =
        log["entries"].as_array().unwrap().iter().map(|entry| entry["operation"].as_str().unwrap()).collect();
    let made = "POST /v1/admin/keys";
    assert_eq!(operations, ["DELETE /v1/admin/keys/{key}", "POST /v1/admin/backup", made, made]);
    server.signal("TERM");
    server.wait();

    let check = folder.run(&["check"]);
    assert!(check.status.success(), "{}", text(&check.stdout));
    // The page says so: the keys of the backup hold again.
    std::fs::remove_dir_all(folder.data()).unwrap();
    std::fs::rename(backup, folder.data()).unwrap();
    let server = folder.serve();
    assert_eq!([&kept, &revoked].map(|made| status(server.address, made)), [200, 200]);
}

#[test]
fn every_node_knows_the_keys_and_which_were_revoked() {
    let (database, redis) = (PostgresServer::shared(), RedisServer::start(&[]));
    let url = database.database();
    let folders: [Folder; 2] = std::array::from_fn(|_| Folder::new());
    let start = |n: usize| {
        let mut command = folders[n].program(&["serve", "--drain-deadline-ms", "1500"]);
        command.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY).env("TIDINGS_STORE_URL", &url);
        command.env("TIDINGS_CLUSTER_NAME", ["a", "b"][n]).env("TIDINGS_CLUSTER_REDIS", redis.url());
        command.env("TIDINGS_CLUSTER_SECRET", "the secret of the nodes").env("TIDINGS_CLUSTER_LEASE_MS", "2000");
        command.env("TIDINGS_LINK_LISTEN", "127.0.0.1:0");
        Server::start(&mut command)
    };
    let mut nodes = [0, 1].map(start);
    let is_ready = |node: &Server| HttpClient::new(node.address, "").is_ready();
    nodes.iter().for_each(|node| wait_until("it is ready", || is_ready(node)));
    // Either node takes a change: one of them leads.
    wait_until("there is a leader", || {
        call(&nodes[0], "GET", KEYS, "").0 == 200 && call(&nodes[1], "GET", KEYS, "").0 == 200
    });
    let all: Vec<Made> = nodes.iter().map(|node| make(node, "of both")).collect();
    let each = || nodes.iter().flat_map(|node| all.iter().map(move |made| (node, made)));
    each().for_each(|(node, made)| wait_until("the node knows the key", || status(node.address, made) == 200));
    for (node, made) in each() {
        // What the leader answers asks for the scope there.
        let mut http = HttpClient::new(node.address, made.secret.clone());
        assert_eq!(http.exchange("GET", "/v1/popups", b"").unwrap().status, 200);
        assert_eq!(http.exchange("GET", "/v1/push", b"").unwrap().status, 403);
    }
    revoke(&nodes[1], &all[0]);
    for node in &nodes {
        wait_until("the node refuses the key", || status(node.address, &all[0]) == 401);
    }
    nodes.iter_mut().for_each(|node| {
        node.signal("KILL");
        node.wait();
    });
    let nodes = [1, 0].map(start);
    for node in &nodes {
        assert_eq!([&all[0], &all[1]].map(|made| status(node.address, made)), [401, 200]);
    }
}
