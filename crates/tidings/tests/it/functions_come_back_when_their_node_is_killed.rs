//! Three processes share what one node does for all. The one that leads push is killed: its functions come back before its leases end,
//! and no request for those of the others is refused meanwhile.
// Slow: left out by `make test-quick`.

use crate::{
    redis::wait_until,
    rows_of_an_outbox_are_stored_once::{Nodes, some_nodes},
    support::*,
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

const LEASE: Duration = Duration::from_secs(5);
/// Functions move one by one, each after two leases without a change.
const SPREAD_WITHIN: Duration = Duration::from_secs(120);
/// A request that the leader of each function answers.
const REQUESTS: [(&str, &str); 6] = [
    ("push", "/v1/push"),
    ("popups", "/v1/popups"),
    ("scheduled_messages", "/v1/scheduled-messages"),
    ("event_consumers", "/v1/event-consumers"),
    ("outboxes", "/v1/outbox-sources"),
    ("housekeeping", "/v1/admin/keys"),
];

/// The names of the leaders by function, as a node tells them.
pub(crate) fn leaders(server: &Server) -> BTreeMap<String, String> {
    let answer = server.http().exchange("GET", "/v1/admin/nodes", b"").unwrap();
    let told: Value = serde_json::from_slice(&answer.body).unwrap();
    let nodes = told["nodes"].as_array().unwrap().iter();
    let functions = |node: &Value| node["functions"].as_array().cloned().unwrap_or_default();
    let of_node = |node: &Value| {
        let name = node["name"].as_str().unwrap().to_owned();
        functions(node).into_iter().map(move |function| (function.as_str().unwrap().to_owned(), name.clone())).collect()
    };
    nodes.flat_map(|node| -> Vec<(String, String)> { of_node(node) }).collect()
}

#[test]
fn and_those_of_the_others_never_stop() {
    let names = ["first", "second", "third"];
    let mut nodes = Nodes::start(some_nodes(&names, LEASE.as_millis() as u64, ""));
    wait_until("the nodes are ready", || nodes.running.iter().all(|node| node.http().is_ready()));
    // Push and popups weigh as much as three of the others each.
    let weight = |function: &str| if ["push", "popups"].contains(&function) { 3 } else { 1 };
    let weight_of = |leaders: &BTreeMap<String, String>, name: &str| -> u32 {
        leaders.iter().filter(|(_, leader)| *leader == name).map(|(function, _)| weight(function)).sum()
    };
    let deadline = Instant::now() + SPREAD_WITHIN;
    let before = loop {
        let before = leaders(&nodes.running[0]);
        let mut weights = names.map(|name| weight_of(&before, name));
        weights.sort_unstable();
        if weights == [3, 4, 4] {
            break before;
        }
        assert!(Instant::now() < deadline, "{before:?}");
        std::thread::sleep(Duration::from_millis(100));
    };
    let killed = names.iter().position(|name| *name == before["push"]).unwrap();
    let asked = (killed + 1) % names.len();
    wait_until("all answer", || {
        let mut http = nodes.running[asked].http();
        REQUESTS.iter().all(|(_, path)| http.exchange("GET", path, b"").is_ok_and(|answer| answer.status == 200))
    });
    nodes.running[killed].signal("KILL");
    nodes.running[killed].wait();
    let began = Instant::now();
    let (mut answered_at, mut refused) = (BTreeMap::<&str, Duration>::new(), BTreeMap::<&str, usize>::new());
    while began.elapsed() < LEASE {
        let mut http = nodes.running[asked].http();
        for (function, path) in REQUESTS {
            let answer = http.exchange("GET", path, b"").unwrap();
            if answer.status == 200 {
                answered_at.entry(function).or_insert_with(|| began.elapsed());
            } else {
                *refused.entry(function).or_default() += 1;
                answered_at.remove(function);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("{before:?}: answered again after {answered_at:?}, refused {refused:?}");
    for (function, _) in REQUESTS {
        let back = answered_at.get(function).unwrap_or_else(|| panic!("{function} is not back"));
        if before[function] == names[killed] {
            assert!(*back < LEASE, "{function} is back when its lease has ended");
        } else {
            assert_eq!(refused.get(function), None, "{function} stopped");
        }
    }
    let after = leaders(&nodes.running[asked]);
    for (function, leader) in before.iter().filter(|(_, leader)| *leader != names[killed]) {
        assert_eq!(&after[function], leader, "{function} moved");
    }
    assert!(after.values().all(|leader| leader != names[killed]), "{after:?}");
}
