//! `tidings cluster`: messages sent through one node reach sessions on another, and a stopped cluster leaves nothing behind.
#![cfg(feature = "lab")]

use crate::support::balances;
use std::{
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use tidings_client::{http::HttpClient, session::Session, token::sign};
use tidings_protocol::{
    frames::{Attention, Bind, ClientFrame, ServerFrame},
    http::{CreateConversation, PushAccepted, PushStatus, SendRequest, UserUpsert},
};

const WAIT: Duration = Duration::from_secs(300);
const API_KEY: &str = "a-key-that-was-asked-for";

struct Cluster {
    child: Child,
    nodes: Vec<SocketAddr>,
    folder: PathBuf,
    api_key: String,
    token_key: String,
}

impl Cluster {
    /// Starts the cluster, and reads its addresses from its output.
    fn start() -> Cluster {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidings"));
        command.args(["cluster", "--nodes", "2", "--set", "TIDINGS_DRAIN_DEADLINE_MS=1500"]);
        command.args(["--set", &format!("TIDINGS_API_KEY={API_KEY}")]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Printed in the test's output: when the cluster does not start, this shows why.
        let mut errors = child.stderr.take().unwrap();
        let errors = std::thread::spawn(move || {
            let mut text = String::new();
            errors.read_to_string(&mut text).map(|_| text).unwrap()
        });
        let mut said = Vec::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            said.push(line.unwrap());
            if said.last().unwrap().starts_with("Ctrl-C") {
                break;
            }
        }
        if said.last().is_none_or(|line| !line.starts_with("Ctrl-C")) {
            panic!("it did not start: {}\n{}", said.join("\n"), errors.join().unwrap());
        }
        let after = |name: &str| {
            let line = said.iter().find(|line| line.starts_with(name)).unwrap();
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

/// Processes whose working folder is in this one, even if the folder has been removed.
fn processes_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let inside =
        entries.filter(|entry| std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(folder)));
    inside.map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default()).collect()
}

/// Replays a recorded chat with its members spread over the nodes, and checks that all see one order and every count balances.
fn replay(cluster: &Cluster) {
    let urls: Vec<String> = cluster.nodes.iter().map(|node| format!("http://{node}")).collect();
    let mut bench = Command::new(env!("CARGO_BIN_EXE_tidings"));
    bench.args(["bench", "replay", "--online", "20", "--batch", "5", "--mix", "20%", "--url", &urls.join(",")]);
    bench.args(["--api-key", &cluster.api_key, "--token-key", &cluster.token_key]);
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/../lab/fixtures/ubuntu-irc-sample.jsonl");
    let output = bench.arg(sample).output().unwrap();
    assert!(balances(output.status.code()), "{}: {}", output.status, String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_message_crosses_nodes_and_a_stopped_cluster_leaves_no_process() {
    let mut cluster = Cluster::start();
    let [first, second] = cluster.nodes[..] else { panic!("two nodes: {:?}", cluster.nodes) };
    let mut http = HttpClient::new(first, cluster.api_key.clone());
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

/// A bound session that accepts pushes.
fn pushed_session(cluster: &Cluster, node: SocketAddr, user: &str) -> Session {
    let mut session = Session::connect(node).unwrap();
    let bind = Bind {
        token: sign(&cluster.token_key, user, Duration::from_secs(600)),
        device_id: "browser".into(),
        device_kind: "web".into(),
        app_version: None,
        cursor: None,
        push: true,
        attention: Attention::Foreground,
        compact: false,
    };
    session.write(&ClientFrame::Bind(bind)).unwrap();
    assert!(session.next_where(WAIT, |frame| matches!(frame, ServerFrame::Bound(_))).unwrap().is_some());
    session
}

/// Waits for a push, and acknowledges it.
fn takes(session: &mut Session, push: u64) {
    let is_it = |frame: &ServerFrame| matches!(frame, ServerFrame::Push(got) if got.push == push);
    assert!(session.next_where(WAIT, is_it).unwrap().is_some(), "push {push}");
    session.write(&ClientFrame::Ack { pushes: vec![push] }).unwrap();
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < WAIT, "{what}: not within {WAIT:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn leads(node: SocketAddr) -> bool {
    let answer = HttpClient::new(node, "").exchange("GET", "/metrics", b"").unwrap();
    String::from_utf8_lossy(&answer.body).lines().any(|line| line == "tidings_cluster_leader 1")
}

/// The process that listens there.
fn pid_of(node: SocketAddr) -> String {
    let listens = format!("TIDINGS_HTTP_LISTEN={node}");
    let has_it = |environment: Vec<u8>| environment.split(|byte| *byte == 0).any(|entry| entry == listens.as_bytes());
    let mut processes = std::fs::read_dir("/proc").unwrap().flatten();
    let process = processes.find(|process| std::fs::read(process.path().join("environ")).is_ok_and(has_it)).unwrap();
    process.file_name().into_string().unwrap()
}

#[test]
fn pushes_reach_sessions_on_every_node_after_a_leader_failure() {
    let cluster = Cluster::start();
    let mut https: Vec<HttpClient> =
        cluster.nodes.iter().map(|node| HttpClient::new(*node, cluster.api_key.clone())).collect();
    let user = |id: &str| UserUpsert { id: id.into(), ..UserUpsert::default() };
    https[0].upsert_users(vec![user("alice"), user("bob")]).unwrap();
    until("somebody leads", || cluster.nodes.iter().any(|node| leads(*node)));
    let mut sessions = [("alice", cluster.nodes[0]), ("bob", cluster.nodes[1])]
        .map(|(user, node)| pushed_session(&cluster, node, user));
    let to_both = serde_json::json!({"to": {"users": ["alice", "bob"]}, "body": {"n": 1}});
    let to_all = serde_json::json!({"to": {"all": true}, "body": {"n": 2}});
    for http in &mut https {
        for to in [&to_both, &to_all] {
            let push = http.post::<PushAccepted>("/v1/push", to).unwrap();
            assert_eq!(push.targets, 2);
            sessions.iter_mut().for_each(|session| takes(session, push.push));
            let path = format!("/v1/push/{}", push.push);
            until("both have it", || http.get::<PushStatus>(&path).unwrap().counts.acknowledged == 2);
        }
    }
    let (leader, other) = if leads(cluster.nodes[0]) { (0, 1) } else { (1, 0) };
    assert!(Command::new("kill").args(["-s", "KILL", &pid_of(cluster.nodes[leader])]).status().unwrap().success());
    until("the other leads", || leads(cluster.nodes[other]));
    // While the next leader reads the stored pushes, requests are refused and must be retried.
    let mut push = None;
    until("it takes pushes", || {
        push = https[other].post::<PushAccepted>("/v1/push", &to_all).ok();
        push.is_some()
    });
    takes(&mut sessions[other], push.unwrap().push);
}

#[test]
fn killing_the_cluster_command_ends_its_processes() {
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
fn node_failures_under_load_lose_no_message() {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_tidings"));
    bench.args(["bench", "chaos", "--sequences", "0", "--only", "node-killed,node-restarted", "--nodes", "2"]);
    bench.args(["--members", "12", "--rate", "20", "--senders", "4", "--restart", "500ms"]);
    bench.args(["--guests", "4", "--mix", "20%"]);
    let output = bench.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(balances(output.status.code()), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("the same on all nodes") && !said.contains("reconnects 0"), "{said}");
    assert!(said.contains("right again after") && said.contains("nobody who stayed was told offline"), "{said}");
    assert!(!said.contains("told 0 changes") && !said.contains("reached 0 of"), "{said}");
}
