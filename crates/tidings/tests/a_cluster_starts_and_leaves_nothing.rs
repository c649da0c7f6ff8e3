//! `tidings cluster`: what is sent through one node arrives at a session on another, and when it ends, nothing stays.
#![allow(clippy::unwrap_used)]

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use tidings_client::{http::Http, session::Session, token::sign};
use tidings_protocol::{
    frames::ServerFrame,
    http::{CreateConversation, SendRequest, UserUpsert},
};

const WAIT: Duration = Duration::from_secs(60);

struct Cluster {
    child: Child,
    nodes: Vec<SocketAddr>,
    folder: PathBuf,
    api_key: String,
    token_key: String,
}

impl Cluster {
    /// Starts it, and reads where it is from what it says.
    fn start() -> Cluster {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidings"));
        command.args(["cluster", "--nodes", "2", "--set", "TIDINGS_DRAIN_DEADLINE_MS=1500"]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = Vec::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            said.push(line.unwrap());
            if said.last().unwrap().starts_with("Ctrl-C") {
                break;
            }
        }
        let after = |name: &str| {
            let line = said.iter().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}: {said:?}"));
            line[name.len()..].trim().to_owned()
        };
        let node = |line: &String| line.strip_prefix("node ")?.split("http://").nth(1)?.split(' ').next()?.parse().ok();
        Cluster {
            nodes: said.iter().filter_map(node).collect(),
            folder: after("folder").into(),
            api_key: after("API key"),
            token_key: after("token key"),
            child,
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processes whose working folder is in this one, also when it has been removed.
fn processes_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let inside =
        entries.filter(|entry| std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(folder)));
    inside.map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default()).collect()
}

/// A recorded chat with its members spread over the nodes: one order everywhere, and every count balances.
fn replay(cluster: &Cluster) {
    let urls: Vec<String> = cluster.nodes.iter().map(|node| format!("http://{node}")).collect();
    let mut bench = Command::new(env!("CARGO_BIN_EXE_tidings"));
    bench.args(["bench", "replay", "--online", "20", "--batch", "5", "--url", &urls.join(",")]);
    bench.args(["--api-key", &cluster.api_key, "--token-key", &cluster.token_key]);
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/../lab/fixtures/ubuntu-irc-sample.jsonl");
    let output = bench.arg(sample).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_message_crosses_from_one_node_to_another_and_the_end_leaves_no_process() {
    let mut cluster = Cluster::start();
    let [first, second] = cluster.nodes[..] else { panic!("two nodes: {:?}", cluster.nodes) };
    let mut http = Http::new(first, cluster.api_key.clone());
    let user = |id: &str| UserUpsert { id: id.into(), ..UserUpsert::default() };
    http.upsert_users(vec![user("alice"), user("bob")]).unwrap();
    let group: CreateConversation =
        serde_json::from_str(r#"{"id":"g","kind":"group","owner":"alice","members":["bob"]}"#).unwrap();
    http.create_conversation(&group).unwrap();
    let token = sign(&cluster.token_key, "bob", Duration::from_secs(600));
    let mut bob = Session::open(second, &token, "d", None).unwrap();
    let message: SendRequest =
        serde_json::from_str(r#"{"conversation":"g","from":"alice","client_msg_id":"m","body":{"text":"across"}}"#)
            .unwrap();
    let sent = http.send(&message).unwrap();
    let has_it = |frame: &ServerFrame| {
        matches!(frame, ServerFrame::Messages { entries, .. }
            if entries.iter().any(|entry| entry.seq == sent.seq && entry.client_msg_id.as_deref() == Some("m")))
    };
    assert!(bob.next_where(WAIT, has_it).unwrap().is_some());
    drop(bob);
    replay(&cluster);
    // Two nodes, two databases, six of Redis, and the databases' own.
    assert!(processes_in(&cluster.folder).len() >= 10);

    let pid = cluster.child.id().to_string();
    assert!(Command::new("kill").args(["-s", "INT", &pid]).status().unwrap().success());
    assert!(cluster.child.wait().unwrap().success());
    assert_eq!(processes_in(&cluster.folder), Vec::<String>::new());
    assert!(!cluster.folder.exists());
}

#[test]
fn a_cluster_that_is_killed_takes_its_parts_with_it() {
    let mut cluster = Cluster::start();
    cluster.child.kill().unwrap();
    cluster.child.wait().unwrap();
    let killed = Instant::now();
    while !processes_in(&cluster.folder).is_empty() {
        assert!(killed.elapsed() < WAIT, "still there: {:?}", processes_in(&cluster.folder));
        std::thread::yield_now();
    }
    std::fs::remove_dir_all(&cluster.folder).unwrap();
}

#[test]
fn a_node_dies_under_load_and_nobody_misses_anything() {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_tidings"));
    bench.args(["bench", "chaos", "--sequences", "1", "--steps", "1", "--only", "node-killed", "--nodes", "2"]);
    bench.args(["--members", "12", "--rate", "20", "--senders", "4", "--restart", "500ms"]);
    let output = bench.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("the same on all nodes") && !said.contains("reconnects 0"), "{said}");
}
