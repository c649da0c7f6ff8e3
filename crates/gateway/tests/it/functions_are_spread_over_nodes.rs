//! What one node does for all is shared: each function moves to a node with less to do, every node finds the one that leads it, and
//! the death of a node takes nothing from the others.
// Slow: left out by `make test-quick`.

use crate::support::*;
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tidings_client::http::HttpClient;
use tidings_domain::{
    commit_log::{CommitLog, Leader, NodeDetails},
    function::Function,
};
use tidings_testkit::{CuttableLog, LocalBus, MemoryStore};

/// Long enough that it never ends while a node renews it.
const LEASE: Duration = Duration::from_secs(5);
const BALANCE_AFTER: Duration = Duration::from_millis(1_500);

struct Node {
    server: Server,
    log: Arc<CuttableLog>,
}

fn node(details: NodeDetails, name: &str, store: &Arc<MemoryStore>, bus: &LocalBus, balance_after: Duration) -> Node {
    let log = Arc::new(CuttableLog::on(store.clone()));
    let ways = (log.clone() as Arc<dyn CommitLog>, Arc::new(bus.clone()) as Arc<_>);
    Node { server: Server::node_that_balances(details, name, store, ways, (LEASE, balance_after)), log }
}

fn leaders(node: &Node) -> Vec<Leader> {
    node.server.engine.cluster.as_ref().unwrap().nodes.leaders()
}

fn boot_id(node: &Node) -> u64 {
    node.server.engine.cluster.as_ref().unwrap().nodes.me().boot_id
}

/// Three nodes that share the functions, and go on until something changes.
fn three() -> Vec<Node> {
    let (store, bus) = (Arc::new(MemoryStore::shared()), LocalBus::default());
    let nodes = ["a", "b", "c"];
    let nodes = nodes.map(|name| node(NodeDetails::of_this_program(), name, &store, &bus, BALANCE_AFTER));
    let nodes = Vec::from(nodes);
    // The weights are 4, 3 and 2.
    until("they share the functions", || {
        let shares = nodes.iter().map(|node| {
            let own = leaders(&nodes[0]).into_iter().filter(|leader| leader.boot_id == boot_id(node));
            own.map(|leader| leader.term.function.weight()).sum::<u32>()
        });
        let mut shares: Vec<u32> = shares.collect();
        shares.sort_unstable();
        shares == [2, 3, 4]
    });
    until("all know it", || nodes.iter().all(|node| leaders(node) == leaders(&nodes[0])));
    until("it is done by those", || {
        let leads = |function| nodes.iter().filter(|node| node.server.engine.leads(function)).count();
        Function::ALL.into_iter().all(|function| leads(function) == 1)
    });
    nodes
}

#[track_caller]
fn ask(http: &mut HttpClient, method: &str, path: &str, body: Value) -> Value {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let answer = answered(|| http.exchange(method, path, &body).unwrap());
    assert!(answer.status < 300, "{method} {path}: {}", String::from_utf8_lossy(&answer.body));
    serde_json::from_slice(&answer.body).unwrap_or_default()
}

#[test]
fn every_node_answers_for_every_function() {
    let nodes = three();
    nodes[0].server.users(&["ann", "ben"]);
    nodes[0].server.group("g", &["ann", "ben"]);
    for (n, node) in nodes.iter().enumerate() {
        let mut http = node.server.app();
        let popup = json!({"state": "live", "placements": ["home"], "variants": [{"id": "a", "content": {}}]});
        ask(&mut http, "PUT", &format!("/v1/popups/p{n}"), popup);
        ask(&mut http, "POST", "/v1/push", json!({"to": {"all": true}, "type": "t", "body": n}));
        let key = ask(&mut http, "POST", "/v1/admin/keys", json!({"name": format!("k{n}"), "scopes": ["read"]}));
        assert!(key["secret"].is_string(), "{key}");
        assert_eq!(ask(&mut http, "GET", "/v1/event-consumers", Value::Null)["consumers"], json!([]));
        ask(&mut http, "GET", "/v1/scheduled-messages", Value::Null);
        let told = ask(&mut http, "GET", "/v1/admin/nodes", Value::Null);
        let functions: Vec<&str> = told["nodes"].as_array().unwrap().iter().flat_map(functions_of).collect();
        assert_eq!(functions.len(), Function::COUNT, "{told}");
        let functions: BTreeSet<&str> = functions.into_iter().collect();
        assert_eq!(functions, Function::ALL.into_iter().map(Function::name).collect());
    }
}

fn functions_of(node: &Value) -> Vec<&str> {
    node["functions"].as_array().map_or_else(Vec::new, |all| all.iter().filter_map(Value::as_str).collect())
}

#[test]
fn only_the_functions_of_a_node_that_is_gone_move() {
    let nodes = three();
    let before = leaders(&nodes[0]);
    let gone = nodes.iter().position(|node| node.server.engine.leads(Function::Push)).unwrap();
    let (lost, kept): (Vec<Leader>, Vec<Leader>) =
        before.iter().partition(|leader| leader.boot_id == boot_id(&nodes[gone]));
    nodes[gone].log.set_cut(true);
    let left: Vec<&Node> = nodes.iter().enumerate().filter(|(n, _)| *n != gone).map(|(_, node)| node).collect();
    // The others' work goes on meanwhile.
    let mut after = Vec::new();
    until("its functions are led by others", || {
        after = leaders(left[0]);
        for leader in &kept {
            let owner = left.iter().find(|node| boot_id(node) == leader.boot_id).unwrap();
            assert!(owner.server.engine.leads(leader.term.function), "{leader:?}");
        }
        after.len() == Function::COUNT && after.iter().all(|leader| leader.boot_id != boot_id(&nodes[gone]))
    });
    for leader in &kept {
        assert!(after.contains(leader), "{leader:?} {after:?}");
    }
    for leader in &lost {
        let now = after.iter().find(|now| now.term.function == leader.term.function).unwrap();
        assert!(now.term > leader.term);
    }
    assert!(!nodes[gone].server.engine.leads(Function::Push), "it stops before another begins");
}

#[test]
fn while_a_node_of_an_earlier_version_lives_one_node_leads_all() {
    let (store, bus) = (Arc::new(MemoryStore::shared_with_closed_gates()), LocalBus::default());
    let start = |name: &str, details| node(details, name, &store, &bus, Duration::from_millis(1));
    let earlier = start("a", NodeDetails::default());
    let new = start("b", NodeDetails::of_this_program());
    let all_by = |node: &Node, at: &Node| {
        let leaders = leaders(at);
        leaders.len() == Function::COUNT && leaders.iter().all(|leader| leader.boot_id == boot_id(node))
    };
    until("the first leads", || all_by(&earlier, &new));
    let beaten = std::time::Instant::now();
    while beaten.elapsed() < LEASE {
        assert!(all_by(&earlier, &new), "{:?}", leaders(&new));
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(earlier);
    until("the other leads all", || all_by(&new, &new));
    let third = start("c", NodeDetails::of_this_program());
    until("all are shared once the gate is open", || {
        let leaders = leaders(&new);
        [&new, &third].iter().all(|node| leaders.iter().any(|leader| leader.boot_id == boot_id(node)))
    });
    // The earlier version does not come back.
    let again = start("d", NodeDetails::default());
    until("it ends", || again.server.engine.end_reason().is_some());
    assert!(leaders(&new).iter().all(|leader| leader.boot_id != boot_id(&again)));
}
