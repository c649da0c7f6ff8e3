//! What one node does for all is shared: each function moves to a node with less to do, every node finds the one that leads it, and
//! the death of a node takes nothing from the others.
// Slow: left out by `make test-quick`.

use crate::support::*;
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tidings_client::{http::HttpClient, session::Session};
use tidings_domain::{
    commit_log::{CommitLog, Leader, NodeDetails},
    function::Function,
};
use tidings_protocol::{
    frames::{Bind, ClientFrame},
    http::{PopupEvent, PopupEventKind},
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
    until("they share the functions", || {
        let shares = nodes.iter().map(|node| {
            let own = leaders(&nodes[0]).into_iter().filter(|leader| leader.boot_id == boot_id(node));
            own.map(|leader| leader.term.function.weight()).sum::<u32>()
        });
        let mut shares: Vec<u32> = shares.collect();
        shares.sort_unstable();
        shares == [3, 4, 4]
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

#[test]
fn what_push_and_popups_ask_of_each_other_crosses_nodes() {
    let nodes = three();
    let leader = |function| nodes.iter().find(|node| node.server.engine.leads(function)).unwrap();
    let (push, popups) = (leader(Function::Push), leader(Function::Popups));
    assert_ne!(boot_id(push), boot_id(popups), "they weigh too much for one");
    push.server.users(&["ann", "ben"]);
    let mut http = push.server.app();

    // Journeys push, at another node than theirs.
    let journey = json!({"state": "live", "entry": {"event": "came"}, "steps": [
        {"id": "told", "type": "push", "push": {"type": "offer", "body": 1}}]});
    ask(&mut http, "PUT", "/v1/popup-journeys/start", journey);
    let came = json!({"events": [{"id": "e1", "type": "custom", "name": "came", "user": "ann"}]});
    ask(&mut http, "POST", "/v1/popup-events", came);
    let counts = || ask(&mut popups.server.app(), "GET", "/v1/popup-journeys/start/counts", Value::Null);
    until("the user goes on behind the push", || {
        counts()["steps"].as_array().unwrap().iter().any(|step| step["step"] == "told" && step["left"] == 1)
    });
    let pushes = ask(&mut http, "GET", "/v1/push", Value::Null);
    assert_eq!(pushes["pushes"].as_array().unwrap().len(), 1, "{pushes}");

    // The channel `popup` records events.
    let event = PopupEvent {
        name: Some("missed".into()),
        user: Some("ben".into()),
        ..PopupEvent::new("reach-1", PopupEventKind::Custom)
    };
    let reports = push.server.engine.popup_event_reports();
    for (accepted, duplicates) in [(1, 0), (0, 1)] {
        let reported = push.server.wait(reports.report(vec![event.clone()])).unwrap();
        assert_eq!((reported.accepted, reported.duplicates), (accepted, duplicates));
    }

    // A policy names a segment, which any node reads as it is now.
    let put_segment = |users: &str| {
        let answer = push.server.app().exchange_text("PUT", "/v1/popup-segments/vip", "text/plain", users.as_bytes());
        assert_eq!(answer.unwrap().status, 200);
    };
    put_segment("ann\n");
    let users = |node: &Node| node.server.engine.popups.segment_users("vip").unwrap().map(|users| users.len());
    assert_eq!((users(push), users(popups)), (Some(1), Some(1)));
    put_segment("ann\nben\n");
    until("the change is noticed", || users(push) == Some(2));
    assert_eq!(push.server.engine.popups.segment_users("none").unwrap(), None);
    ask(&mut http, "DELETE", "/v1/popup-segments/vip", Value::Null);
    until("it is gone everywhere", || nodes.iter().all(|node| users(node).is_none()));

    // An erasure removes devices.
    let mut session = Session::connect(push.server.address).unwrap();
    let ClientFrame::Bind(bind) = bind_frame(&token("ann"), "phone", None) else { panic!("no bind") };
    session.write(&ClientFrame::Bind(Bind { push: true, ..bind })).unwrap();
    let devices = || ask(&mut popups.server.app(), "GET", "/v1/users/ann/devices", Value::Null);
    until("the device is bound", || devices()["devices"].as_array().unwrap().len() == 1);
    let erasure =
        ask(&mut http, "DELETE", "/v1/users/ann?messages=remove", Value::Null)["id"].as_str().unwrap().to_owned();
    let forwarded = popups.server.engine.metrics.cluster.forwarded.get();
    until("the user is erased", || {
        nodes.iter().for_each(|node| drop(node.server.notifications.work_on_erasures()));
        ask(&mut push.server.app(), "GET", &format!("/v1/erasures/{erasure}"), Value::Null)["state"] == "done"
    });
    assert!(
        popups.server.engine.metrics.cluster.forwarded.get() >= forwarded + 2,
        "it asked for devices and removed one"
    );
}
