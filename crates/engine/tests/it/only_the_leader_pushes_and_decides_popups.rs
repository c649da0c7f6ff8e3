//! Only the leader pushes and decides popups. When it ends, cleanly or not, the next leader continues where it ended; and a
//! former leader never overwrites what its successor has written.
// Slow: left out by `make test-quick`.

use crate::fake_shard::Shard;
use crate::support::*;
use serde_json::json;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::function::Function;
use tidings_popups::PopupsConfig;
use tidings_protocol::{
    error::ErrorCode,
    http::{DeviceState, PushState},
};
use tidings_push::Register;
use tidings_testkit::{CuttableLog, LocalBus, MemoryStore};

struct Node {
    shard: Shard,
    log: Arc<CuttableLog>,
    /// The store of the rows that only the leader writes.
    rows: Arc<Troubled>,
}

/// Popups of so long a time may be forgotten when a leader ends.
const AT_RISK: Duration = Duration::from_millis(80);

fn node(name: &str, store: &Arc<MemoryStore>, bus: &LocalBus, lease: Duration) -> Node {
    node_with(PopupsConfig::default(), name, store, bus, (lease, Duration::MAX))
}

/// `times`: the lease, and after how long functions move.
fn node_with(
    popups: PopupsConfig,
    name: &str,
    store: &Arc<MemoryStore>,
    bus: &LocalBus,
    times: (Duration, Duration),
) -> Node {
    let log = Arc::new(CuttableLog::on(store.clone()));
    let rows = Arc::new(Troubled::on(store.clone()));
    let world = World::node_with(popups, name, rows.clone(), log.clone(), Arc::new(bus.clone()), times);
    Node { shard: Shard::of(world), log, rows }
}

/// The lease in tests that let it end: long enough that it never ends while the node renews it, and no longer.
const LEASE: Duration = Duration::from_secs(12);

/// Two nodes, of which the first leads; two users, a device of one of them, and a popup that each user is shown once.
fn two(lease: Duration) -> (Node, Node) {
    let (store, bus) = (Arc::new(MemoryStore::shared()), LocalBus::default());
    let mut first = node("a", &store, &bus, lease);
    first.take_over();
    let second = node("b", &store, &bus, lease);
    first.world().users(&["ann", "ben"]);
    first.shard.bind("ann/phone");
    first.world().put_popup("once", json!({"caps": {"total": 1}}));
    (first, second)
}

impl Node {
    fn world(&self) -> &World {
        &self.shard.world
    }

    fn take_over(&self) {
        let engine = &self.world().engine;
        until("it leads", || {
            look_around(engine);
            engine.has_term(Function::Push) && engine.push.settle().is_ok() && engine.popups.settings().is_ok()
        });
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn to_ann() -> serde_json::Value {
    json!({"to": {"users": ["ann"]}, "type": "t", "body": 1})
}

#[test]
fn a_node_that_does_not_lead_refuses_and_says_when_to_retry() {
    let (first, second) = two(LONG_LEASE);
    let engine = &second.world().engine;
    let push = serde_json::from_str(&to_ann().to_string()).unwrap();
    let register = Register {
        shard: 0,
        session: 1,
        user: second.world().user("ann").no,
        device_id: "phone".into(),
        device_kind: "phone".into(),
        app_version: None,
        since: 1,
    };
    for refusal in [
        second.world().wait(engine.push.accept(engine.push.prepare(push).unwrap())).unwrap_err(),
        second.world().decide_with("ann", json!({})).unwrap_err(),
        engine.push.user_devices("ann").unwrap_err(),
        engine.popups.settings().unwrap_err(),
        second.world().report(vec![]).unwrap_err(),
    ] {
        assert_eq!(refusal.code, ErrorCode::NodeUnavailable, "{refusal}");
        assert!(refusal.retry_after_ms.is_some());
    }
    engine.push.register(register).unwrap();
    assert!(first.world().decide("ann").is_some());
}

#[test]
fn the_next_leader_continues_where_a_stopped_one_ended() {
    let (mut first, mut second) = two(LONG_LEASE);
    let scheduled = first.shard.push(json!({"users": ["ann"]}), json!({"type": "t", "send_at": NOON + 60_000}));
    let waits = first.shard.push(json!({"users": ["ann"]}), json!({"type": "t"}));
    let had = first.shard.push(json!({"all": true}), json!({"type": "t"}));
    assert_eq!(first.shard.handed("ann/phone"), [waits.push, had.push]);
    first.shard.acknowledge("ann/phone", &[had.push]);
    assert!(first.world().decide("ann").is_some(), "shown, and not awaited until it is durable");
    drop(first);
    second.take_over();
    assert_eq!(second.world().decide("ann"), None, "the cap holds on the next leader");
    assert!(second.world().decide("ben").is_some());
    second.shard.bind("ann/phone");
    assert_eq!(second.shard.handed("ann/phone"), [waits.push], "an acknowledged push does not come again");
    assert_eq!(second.shard.states(had.push)["ann/phone"], DeviceState::Acknowledged);
    second.shard.at(NOON + 60_000);
    assert_eq!(second.shard.handed("ann/phone"), [scheduled.push]);
    let newest = second.shard.push(json!({"users": ["ann"]}), json!({"type": "t"}));
    assert!(newest.push > had.push, "numbers go on");
}

#[test]
fn a_leader_that_is_cut_off_writes_nothing_more() {
    let (mut first, mut second) = two(LEASE);
    assert!(first.world().decide("ann").is_some());
    first.world().engine.popups.flush().unwrap();
    let waits = first.shard.push(json!({"users": ["ann"]}), json!({"type": "t"}));
    first.log.set_cut(true);
    until("its lease is over by its own clock", || !first.world().engine.leads(Function::Push));
    let refusal = first.world().decide_with("ben", json!({})).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::NodeUnavailable, "nothing is decided while another may decide");
    second.take_over();
    assert!(first.world().engine.has_term(Function::Push), "it has not heard of the next term");
    let taken = second.shard.push(json!({"users": ["ann"]}), json!({"type": "t"}));
    // A device that binds there now finds the term over, goes live without pushes, and is registered with the other node.
    first.shard.ask_to_bind("ben/tablet");
    until("it goes live", || {
        first.shard.take();
        first.shard.later.contains_key("ben/tablet")
    });
    let refusal = first.shard.world.engine.push.prepare(serde_json::from_str(&to_ann().to_string()).unwrap()).unwrap();
    let refusal = first.world().wait(first.world().engine.push.accept(refusal)).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::NodeUnavailable, "the store does not take it: {refusal}");
    until("it drops its state", || first.world().engine.push.settle().is_err());
    assert_eq!(first.world().engine.push.settle().unwrap_err().code, ErrorCode::NodeUnavailable);
    second.shard.bind("ann/phone");
    assert_eq!(second.shard.handed("ann/phone"), [waits.push, taken.push]);
    assert_eq!(second.world().decide("ann"), None);
    // It reaches the log again, and learns that another node leads.
    first.log.set_cut(false);
    until("it hears that another leads", || {
        look_around(&first.world().engine);
        !first.world().engine.has_term(Function::Push)
    });
    assert_eq!(first.world().decide_with("ben", json!({})).unwrap_err().code, ErrorCode::NodeUnavailable);
    second.shard.acknowledge("ann/phone", &[waits.push, taken.push]);
    assert_eq!(second.shard.status(taken.push).state, PushState::Completed);
    until("the device is registered", || {
        first.shard.take();
        first.shard.phones.contains_key("ben/tablet")
    });
}

#[test]
fn a_leader_that_is_cut_off_forgets_no_more_popups_than_at_risk_max_allows() {
    let (store, bus) = (Arc::new(MemoryStore::shared()), LocalBus::default());
    let popups = PopupsConfig { durable_within: AT_RISK, undurable_max: AT_RISK, ..PopupsConfig::default() };
    let first = node_with(popups, "a", &store, &bus, (LEASE, Duration::MAX));
    first.take_over();
    let second = node("b", &store, &bus, LEASE);
    first.world().put_popup("once", json!({"caps": {"total": 1}}));
    let (mut shown, mut refused, mut cut_at) = (Vec::new(), 0, None);
    // It leads for most of a lease after it was cut off from the store.
    while first.world().engine.leads(Function::Push) {
        if shown.len() == 20 && cut_at.is_none() {
            first.rows.fail_rows(usize::MAX);
            first.log.set_cut(true);
            cut_at = Some(Instant::now());
        }
        let (user, asked) = (format!("u{}-{refused}", shown.len()), Instant::now());
        match first.world().decide_with(&user, json!({})) {
            Ok(decided) => {
                assert!(decided.exposure.is_some());
                shown.push((user, asked, Instant::now()));
            }
            Err(refusal) => {
                let codes = [ErrorCode::StoreUnavailable, ErrorCode::NodeUnavailable];
                assert!(codes.contains(&refusal.code) && refusal.retry_after_ms.is_some(), "{refusal}");
                refused += 1;
                // A user who is shown nothing is not refused.
                if let (ErrorCode::StoreUnavailable, Some((user, ..))) = (refusal.code, shown.last()) {
                    let again = first.world().decide_with(user, json!({}));
                    assert!(
                        again.is_ok_and(|decided| decided.exposure.is_none())
                            || !first.world().engine.leads(Function::Push)
                    );
                }
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    second.take_over();
    let forgotten: Vec<_> = shown.iter().filter(|(user, ..)| second.world().decide(user).is_some()).collect();
    let (Some((_, _, first_answered)), Some((_, last_asked, _))) = (forgotten.first(), forgotten.last()) else {
        panic!("of {} nothing was forgotten", shown.len());
    };
    let span = last_asked.saturating_duration_since(*first_answered);
    assert!(span <= AT_RISK, "{} showings of {span:?} are forgotten, {refused} were refused", forgotten.len());
    assert!(refused > 0 && cut_at.is_some());
}

#[test]
fn a_function_that_moves_to_a_node_with_less_to_do_takes_all_that_it_had_along() {
    let (store, bus) = (Arc::new(MemoryStore::shared()), LocalBus::default());
    let times = (Duration::from_secs(5), Duration::from_millis(100));
    let mut first = node_with(PopupsConfig::default(), "a", &store, &bus, times);
    first.take_over();
    let users: Vec<String> = (0..10_000).map(|n| format!("u{n}")).collect();
    for some in users.chunks(500) {
        first.world().users(&some.iter().map(String::as_str).collect::<Vec<_>>());
    }
    first.world().put_popup("once", json!({"caps": {"total": 1}}));
    first.shard.bind("u0/phone");
    let push = first.shard.push(json!({"users": ["u0"]}), json!({"type": "t"}));
    assert_eq!(first.shard.handed("u0/phone"), [push.push]);
    let terms = |node: &Node| {
        let leaders = node.world().engine.cluster.as_ref().unwrap().nodes.leaders();
        [Function::Push, Function::Popups]
            .map(|function| leaders.iter().find(|leader| leader.term.function == function).unwrap().term)
    };
    let began = terms(&first);
    // Pushes and popups weigh so much that each moves to a node of its own.
    let mut others = ["b", "c"].map(|name| node_with(PopupsConfig::default(), name, &store, &bus, times));
    // Popups are shown until the function moves.
    let (mut shown, end) = (Vec::new(), Instant::now() + PATIENCE);
    for user in users.iter().cycle() {
        assert!(Instant::now() < end, "it never moves");
        match first.world().decide_with(user, json!({})) {
            Ok(decision) => shown.extend(decision.exposure.map(|_| user)),
            Err(refusal) => {
                assert_eq!(refusal.code, ErrorCode::NodeUnavailable, "{refusal}");
                break;
            }
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    let leader = |function| others.iter().position(|node| node.world().engine.leads(function));
    until("both have moved", || {
        others.iter().for_each(|node| look_around(&node.world().engine));
        leader(Function::Push).is_some_and(|push| leader(Function::Popups).is_some_and(|popups| popups != push))
    });
    let (pushes, popups) = (leader(Function::Push).unwrap(), leader(Function::Popups).unwrap());
    until("they are read", || {
        others[pushes].world().engine.push.settle().is_ok() && others[popups].world().engine.popups.settings().is_ok()
    });
    assert!(terms(&others[popups]).iter().zip(began).all(|(now, began)| *now > began));
    assert!(first.world().engine.leads(Function::Presence), "the others stay");
    let again = shown.iter().filter(|user| others[popups].world().decide(user).is_some());
    assert_eq!(again.count(), 0, "the cap of each of {} users holds", shown.len());
    others[pushes].shard.bind("u0/phone");
    assert_eq!(others[pushes].shard.handed("u0/phone"), [push.push], "it was not acknowledged");
}

#[test]
fn a_leader_that_renews_its_lease_late_keeps_its_state() {
    let (first, second) = two(LEASE);
    // The only node that could take the lead is gone.
    drop(second);
    let mut first = first;
    first.log.set_cut(true);
    until("its lease is over by its own clock", || !first.world().engine.leads(Function::Push));
    first.log.set_cut(false);
    until("it leads again", || {
        look_around(&first.world().engine);
        first.world().engine.leads(Function::Push)
    });
    let push = first.shard.push(json!({"users": ["ann"]}), json!({"type": "t"}));
    assert_eq!(first.shard.handed("ann/phone"), [push.push], "its sessions stayed");
    assert!(first.world().decide("ann").is_some());
}
