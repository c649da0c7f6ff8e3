//! Nodes of one installation say in what they differ; installations that share a Redis hear nothing of each other.

use crate::{
    postgres::PostgresServer,
    redis::{RedisServer, wait_until},
    support::*,
};
use std::{
    process::Command,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::{Duration, Instant},
};
use tidings_client::http::HttpClient;
use tidings_protocol::{
    frames::ServerFrame,
    http::{CreateConversation, NodesAnswer, SendRequest, UserUpsert},
};

const WAIT: Duration = Duration::from_secs(300);
const SECRET: &str = "the secret of the nodes";

/// A node's command, on this database and Redis.
fn node(folder: &Folder, name: &str, database: &str, redis: &RedisServer) -> Command {
    let mut command = folder.program(&["serve", "--drain-deadline-ms", "1500"]);
    command.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY).env("TIDINGS_STORE_URL", database);
    command.env("TIDINGS_CLUSTER_NAME", name).env("TIDINGS_CLUSTER_REDIS", redis.url());
    command.env("TIDINGS_CLUSTER_SECRET", SECRET).env("TIDINGS_CLUSTER_LEASE_MS", "2000");
    // Several nodes on one machine: each takes a free port for links.
    command.env("TIDINGS_LINK_LISTEN", "127.0.0.1:0");
    command
}

/// The status and the text of `/readyz`.
fn readyz(server: &Server) -> (u16, String) {
    let answer = HttpClient::new(server.address, "").exchange("GET", "/readyz", b"").unwrap();
    (answer.status, text(&answer.body))
}

fn metric(server: &Server, name: &str) -> f64 {
    let answer = HttpClient::new(server.address, "").exchange("GET", "/metrics", b"").unwrap();
    let metrics = text(&answer.body);
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

#[test]
fn a_node_with_another_redis_prefix_or_secret_is_named_at_readyz_and_stays_ready() {
    let (database, [redis, other_redis]) = (PostgresServer::shared(), [(); 2].map(|()| RedisServer::start(&[])));
    let url = database.database();
    let folders: [Folder; 4] = std::array::from_fn(|_| Folder::new());
    let first = Server::start(&mut node(&folders[0], "first", &url, &redis));
    wait_until("the first node is ready", || readyz(&first) == (200, "ready\n".into()));
    let elsewhere = Server::start(&mut node(&folders[1], "elsewhere", &url, &other_redis));
    let mut command = node(&folders[2], "prefixed", &url, &redis);
    let prefixed = Server::start(command.env("TIDINGS_CLUSTER_REDIS_PREFIX", "other"));
    let mut command = node(&folders[3], "keyed", &url, &redis);
    command.env("TIDINGS_CLUSTER_SECRET", "another secret of nodes").env("TIDINGS_API_KEYS", "one-more-key-of-the-app");
    let keyed = Server::start(command.env("TIDINGS_TOKEN_KEY", "another secret that the app signs with"));

    let names = |node: &Server, expected: &[&str]| {
        let (status, told) = readyz(node);
        status == 200 && told.starts_with("ready\n") && expected.iter().all(|part| told.contains(part))
    };
    wait_until("the first node names all of them", || {
        names(
            &first,
            &[
                "warning: [cluster] redis of node elsewhere differs from this node's: they listen on different Redis",
                "warning: [cluster] redis_prefix of node prefixed differs from this node's",
                "warning: [cluster] secret of node keyed differs from this node's",
                "warning: api_key, api_keys of node keyed differs",
                "warning: token_key, jwks_file, [tokens] jwks_url of node keyed differs",
            ],
        )
    });
    let (_, told) = readyz(&first);
    assert!(!told.contains("[cluster] redis of nodes"), "one with another prefix is not on another Redis: {told}");
    for secret in [SECRET, API_KEY, TOKEN_KEY] {
        assert!(!told.contains(secret), "{told}");
    }
    wait_until("each of them names the others", || {
        names(&elsewhere, &["[cluster] redis of nodes first, keyed differs"])
            && names(&prefixed, &["[cluster] redis_prefix of nodes elsewhere, first, keyed differs"])
            && names(&keyed, &["[cluster] secret of nodes elsewhere, first, prefixed differs"])
    });
    let nodes: NodesAnswer = first.http().get("/v1/admin/nodes").unwrap();
    let differs_in = |name: &str| &nodes.nodes.iter().find(|node| node.name == name).unwrap().differs_in;
    assert_eq!(differs_in("elsewhere"), &["[cluster] redis"]);
    assert_eq!(differs_in("first"), &[""; 0]);
    assert_eq!(differs_in("keyed").len(), 3);
    assert_eq!(metric(&first, "tidings_cluster_differences"), 5.0);
    assert!(metric(&first, "tidings_cluster_clock_ahead_seconds").abs() < 1.0);

    drop((elsewhere, prefixed, keyed));
    wait_until("they have gone", || readyz(&first) == (200, "ready\n".into()));
    assert_eq!(metric(&first, "tidings_cluster_differences"), 0.0);
}

/// Two nodes on a database of their own.
struct Installation {
    number: usize,
    nodes: [Server; 2],
    _folders: [Folder; 2],
}

impl Installation {
    fn start(number: usize, redis: &RedisServer) -> Self {
        let url = PostgresServer::shared().database();
        let folders: [Folder; 2] = std::array::from_fn(|_| Folder::new());
        let nodes = [0, 1].map(|n| Server::start(&mut node(&folders[n], ["a", "b"][n], &url, redis)));
        nodes.iter().for_each(|node| wait_until("it is ready", || readyz(node).0 == 200));
        let mut http = nodes[0].http();
        let user = |id: &str| UserUpsert { id: id.into(), ..UserUpsert::default() };
        http.upsert_users(vec![user("alice"), user("bob")]).unwrap();
        let group: CreateConversation =
            serde_json::from_str(r#"{"id":"g","kind":"group","owner":"alice","members":["bob"]}"#).unwrap();
        http.create_conversation(&group).unwrap();
        Installation { number, nodes, _folders: folders }
    }

    /// Sends on one node until the time is over, and reads on the other until all has come. Returns how many messages.
    fn load(&self, until: Instant) -> usize {
        let text = |n: usize| format!("installation {}, message {n}", self.number);
        let mut bob = self.nodes[1].session("bob", None);
        let (done, sending) = (AtomicBool::new(false), &self.nodes[0]);
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                scopeguard::defer! { done.store(true, SeqCst) }
                let (mut http, mut n) = (sending.http(), 0);
                while Instant::now() < until {
                    let body = serde_json::json!({"conversation": "g", "from": "alice", "client_msg_id": n.to_string(), "body": text(n)});
                    http.send(&serde_json::from_value::<SendRequest>(body).unwrap()).unwrap();
                    n += 1;
                }
                n
            });
            let mut bodies = Vec::new();
            let is_sent = || done.load(SeqCst);
            loop {
                let frame = bob.next(Duration::from_millis(200)).unwrap();
                if let Some(ServerFrame::Messages { entries, .. }) = &frame {
                    bodies
                        .extend(entries.iter().map(|entry| serde_json::from_str::<String>(entry.body.get()).unwrap()));
                } else if is_sent() && sender.is_finished() {
                    break;
                }
            }
            let sent = sender.join().unwrap();
            let missing_until = Instant::now() + WAIT;
            while bodies.len() < sent && Instant::now() < missing_until {
                if let Some(ServerFrame::Messages { entries, .. }) = bob.next(Duration::from_millis(200)).unwrap() {
                    bodies
                        .extend(entries.iter().map(|entry| serde_json::from_str::<String>(entry.body.get()).unwrap()));
                }
            }
            assert!(bodies.into_iter().eq((0..sent).map(text)), "each message of this installation, and no other");
            sent
        })
    }
}

/// For so many seconds: `TIDINGS_TEST_INSTALLATIONS_S=600` for ten minutes.
fn load_time() -> Duration {
    let seconds = std::env::var("TIDINGS_TEST_INSTALLATIONS_S").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(3))
}

#[test]
fn two_installations_on_one_redis_deliver_their_own_messages_alone_and_stay_ready() {
    let (_database, redis) = (PostgresServer::shared(), RedisServer::start(&[]));
    let installations = [1, 2].map(|number| Installation::start(number, &redis));
    let until = Instant::now() + load_time();
    let sent: Vec<usize> = std::thread::scope(|scope| {
        let loads: Vec<_> = installations.iter().map(|one| scope.spawn(move || one.load(until))).collect();
        loads.into_iter().map(|load| load.join().unwrap()).collect()
    });
    println!("{sent:?} messages");
    for node in installations.iter().flat_map(|installation| &installation.nodes) {
        wait_until("it is ready, without a warning", || readyz(node) == (200, "ready\n".into()));
        for name in
            ["tidings_bus_foreign_total", "tidings_cluster_unknown_messages_total", "tidings_cluster_read_back_total"]
        {
            println!("{name} {}", metric(node, name));
        }
        assert_eq!(metric(node, "tidings_bus_foreign_total"), 0.0);
        assert_eq!(metric(node, "tidings_cluster_unknown_messages_total"), 0.0);
        wait_until("both nodes are seen", || metric(node, "tidings_cluster_nodes") == 2.0);
    }
}
