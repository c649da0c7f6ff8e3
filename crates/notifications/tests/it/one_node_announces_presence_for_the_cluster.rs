//! Of several nodes the leader calls the webhook and stores last-seen times; its successor continues its work.
#![expect(clippy::disallowed_methods, reason = "a channel of a test ends with it")]

use crate::support::{LONG_LEASE, NOON, PATIENCE, look_around, patient};
use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, unbounded};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tidings_domain::{
    bus::{Bus, MessageHandler},
    commit_log::{NodeDetails, NodeInfo},
    function::Function,
    model::UserNo,
    store::Store,
};
use tidings_engine::{
    Engine, EngineParts,
    cluster::ClusterParts,
    config::EngineConfig,
    presence::{NodeNo, PresenceConfig, PresenceSession},
    shards::{ShardReceivers, Wake},
};
use tidings_notifications::{
    NotificationParts, Notifications,
    webhook::{Webhook, WebhookDelivery, WebhookError},
    webhook_push::WebhookPushConfig,
};
use tidings_protocol::http::UserUpsert;
use tidings_testkit::{LocalBus, ManualClock, MemoryStore};

const GRACE_MS: u64 = 5_000;

/// The app's side of the webhook: records which node calls, and refuses calls when told to.
struct App {
    node: &'static str,
    refuses: Arc<AtomicBool>,
    taken: Sender<(&'static str, Value)>,
}

impl Webhook for App {
    fn deliver(&self, delivery: &WebhookDelivery) -> Result<(), WebhookError> {
        if self.refuses.load(Ordering::SeqCst) {
            return Err(WebhookError::new("not now"));
        }
        let body: Value = serde_json::from_slice(&delivery.body).unwrap();
        let _ = self.taken.send((self.node, body["events"][0].clone()));
        Ok(())
    }
}

struct Asleep;

impl Wake for Asleep {
    fn wake(&self) {}
}

/// The bus of a node whose messages the others cannot read, nor it theirs, until they can.
#[derive(Clone)]
struct ForeignBus(LocalBus, Arc<AtomicBool>);

impl ForeignBus {
    fn translated(is_understood: &AtomicBool, message: &Bytes) -> Bytes {
        let mut bytes = message.to_vec();
        bytes[0] ^= if is_understood.load(Ordering::SeqCst) { 0 } else { 0x80 };
        bytes.into()
    }
}

struct ForeignHandler(Arc<dyn MessageHandler>, Arc<AtomicBool>);

impl MessageHandler for ForeignHandler {
    fn on_message(&self, message: Bytes) {
        self.0.on_message(ForeignBus::translated(&self.1, &message));
    }

    fn on_gap(&self) {
        self.0.on_gap();
    }
}

impl Bus for ForeignBus {
    fn listen(&self, name: &str, handler: Arc<dyn MessageHandler>) {
        self.0.listen(name, Arc::new(ForeignHandler(handler, self.1.clone())));
    }

    fn send(&self, to: &[Arc<str>], message: Bytes) -> bool {
        self.0.send(to, ForeignBus::translated(&self.1, &message))
    }

    fn is_up(&self) -> bool {
        self.0.is_up()
    }

    fn trouble(&self) -> Option<String> {
        self.0.trouble()
    }

    fn stop(&self) {
        self.0.stop();
    }
}

struct Nodes {
    engines: Vec<(Arc<Engine>, Vec<ShardReceivers>)>,
    notifications: Vec<Arc<Notifications>>,
    store: Arc<MemoryStore>,
    bus: LocalBus,
    clock: Arc<ManualClock>,
    refuses: Arc<AtomicBool>,
    taken: Receiver<(&'static str, Value)>,
}

#[track_caller]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// Starts the nodes; the first one leads.
fn nodes(names: &[&'static str]) -> Nodes {
    nodes_on(names, |_, bus| Arc::new(bus.clone()))
}

/// The same, each on the bus that it is given.
fn nodes_on(names: &[&'static str], bus_of: impl Fn(&str, &LocalBus) -> Arc<dyn Bus>) -> Nodes {
    let (store, bus, clock) = (Arc::new(MemoryStore::shared()), LocalBus::default(), Arc::new(ManualClock::default()));
    clock.set(NOON);
    let (take, taken) = unbounded();
    let refuses = Arc::new(AtomicBool::new(false));
    let mut engines: Vec<(Arc<Engine>, Vec<ShardReceivers>)> = Vec::new();
    let mut notifications = Vec::new();
    for (index, node) in names.iter().enumerate() {
        let (version, roles, address, link) = ("1".into(), "all".into(), String::new(), String::new());
        let node_info = NodeInfo {
            name: (*node).into(),
            boot_id: index as u64 + 1,
            address,
            link,
            version,
            roles,
            details: NodeDetails::of_this_program(),
        };
        let (log, bus, lease) = (store.clone(), bus_of(node, &bus), LONG_LEASE);
        let cluster = Some(ClusterParts {
            log,
            bus,
            node: node_info,
            lease,
            may_lead: true,
            balance_after: Duration::MAX,
            recent_bytes_max: 1 << 20,
            fingerprints: Default::default(),
        });
        let presence = PresenceConfig { grace_ms: GRACE_MS, ..PresenceConfig::default() };
        let config = patient(EngineConfig { shards: 1, presence, ..EngineConfig::default() });
        let app = App { node, refuses: refuses.clone(), taken: take.clone() };
        let secret = WebhookPushConfig { secret: "secret".into(), presence: true, ..WebhookPushConfig::default() };
        let webhook = Some((Arc::new(app) as Arc<dyn Webhook>, secret));
        let wakes = vec![Arc::new(Asleep) as Arc<dyn Wake>];
        let parts = EngineParts { config, clock: clock.clone(), store: store.clone(), wakes, cluster };
        let (engine, receivers) = Engine::start(parts);
        notifications
            .push(Notifications::start(&engine, NotificationParts { webhook, ..NotificationParts::default() }));
        engines.push((engine, receivers));
        until("it is there", || {
            // A node whose hello is not understood is seen at the next heartbeat.
            engines.iter().for_each(|(engine, _)| look_around(engine));
            engines.iter().all(|(e, _)| e.cluster.as_ref().unwrap().nodes.all().len() == index + 1)
        });
    }
    assert!(engines[0].0.leads(Function::Presence));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let users = (1..=3).map(|id| UserUpsert { id: id.to_string(), ..UserUpsert::default() }).collect();
    runtime.block_on(engines[0].0.upsert_users(users)).unwrap();
    Nodes { engines, notifications, store, bus, clock, refuses, taken }
}

impl Nodes {
    fn engine(&self, index: usize) -> &Engine {
        &self.engines[index].0
    }

    fn arrive(&self, node: usize, user: u64) {
        self.arrive_as(node, user, user);
    }

    fn arrive_as(&self, node: usize, user: u64, session: u64) {
        let (device_id, device_kind, since) = ("phone".into(), "ios".into(), NOON);
        let device =
            PresenceSession { session, node: NodeNo(0), device_id, device_kind, since, chat: true, background: false };
        self.engine(node).presence.register(UserNo(user), device);
    }

    /// Waits until all nodes know these states and have announced them.
    #[track_caller]
    fn all_know(&self, online: &[(u64, bool)]) {
        let knows = |engine: &Engine| online.iter().all(|(user, is)| engine.presence.is_online(UserNo(*user)) == *is);
        until("all nodes know", || self.engines.iter().all(|(engine, _)| knows(engine)));
        self.engines.iter().for_each(|(engine, _)| engine.settle_presence());
    }

    /// Receives calls until the app knows these states. Answers the calls of each node, and whether one was a reset.
    #[track_caller]
    fn told(&self, expected: &[(&str, bool)]) -> (BTreeMap<&'static str, usize>, bool) {
        let mut states: BTreeMap<String, bool> = BTreeMap::new();
        let (mut by, mut reset) = (BTreeMap::new(), false);
        while !expected.iter().all(|(user, online)| states.get(*user) == Some(online)) {
            let (node, event) = self.taken.recv_timeout(PATIENCE).expect("a call of the webhook");
            assert_eq!(event["event"], "presence");
            *by.entry(node).or_default() += 1;
            reset |= event.get("reset").is_some();
            for change in event["changes"].as_array().unwrap() {
                states.insert(change["user"].as_str().unwrap().into(), change["online"].as_bool().unwrap());
            }
        }
        (by, reset)
    }

    fn stop(&mut self, index: usize) {
        let (engine, receivers) = self.engines.remove(index);
        drop(receivers);
        self.notifications.remove(index).stop();
        engine.stop();
    }
}

#[test]
fn the_leader_announces_and_stores_and_its_successor_continues() {
    let mut nodes = nodes(&["a", "b", "c"]);
    nodes.arrive(1, 1);
    nodes.arrive(2, 2);
    nodes.all_know(&[(1, true), (2, true)]);
    let (by, reset) = nodes.told(&[("1", true), ("2", true)]);
    assert!(by.keys().eq(&["a"]) && reset, "{by:?}");

    nodes.engine(1).presence.unregister(UserNo(1), 1, NOON + 10);
    nodes.all_know(&[(1, false)]);
    nodes.clock.set(NOON + 20 + GRACE_MS);
    nodes.all_know(&[]);
    assert!(nodes.told(&[("1", false)]).0.keys().eq(&["a"]));
    until("it is stored", || nodes.store.last_seen(UserNo(1)).unwrap() == Some(NOON + 10));
    assert_eq!([1, 2].map(|node| nodes.engine(node).metrics.commits.get()), [0, 0], "the leader commits them");

    // The app refuses calls while the leader ends: its successor has the states that were not taken.
    nodes.refuses.store(true, Ordering::SeqCst);
    nodes.engine(2).presence.unregister(UserNo(2), 2, NOON + 30 + GRACE_MS);
    nodes.arrive(1, 3);
    nodes.all_know(&[(2, false), (3, true)]);
    nodes.clock.set(NOON + 40 + 2 * GRACE_MS);
    nodes.all_know(&[]);
    until("it is stored", || nodes.store.last_seen(UserNo(2)).unwrap() == Some(NOON + 30 + GRACE_MS));
    nodes.stop(0);
    until("another one leads", || {
        nodes.engines.iter().for_each(|(engine, _)| look_around(engine));
        (0..2).any(|node| nodes.engine(node).leads(Function::Presence))
    });
    nodes.refuses.store(false, Ordering::SeqCst);
    let (by, reset) = nodes.told(&[("2", false), ("3", true)]);
    assert!(!by.contains_key("a") && by.len() == 1, "{by:?}");
    assert!(!reset, "the app keeps the states that it has");
    // A successor of the last leader sends again the states that the leader may not have sent.
    let follower = (0..2).find(|node| !nodes.engine(*node).leads(Function::Presence)).unwrap();
    nodes.stop(follower);
    nodes.stop(0);
    assert_eq!(nodes.taken.try_iter().count(), 0, "no state is sent again");
}

#[test]
fn nobody_is_reported_gone_while_a_node_is_not_understood() {
    let is_understood = Arc::new(AtomicBool::new(false));
    let foreign = is_understood.clone();
    let nodes = nodes_on(&["a", "b"], move |node, bus| match node {
        "b" => Arc::new(ForeignBus(bus.clone(), foreign.clone())),
        _ => Arc::new(bus.clone()),
    });
    let leader = nodes.engine(0);
    [1, 2].iter().for_each(|user| nodes.arrive(0, *user));
    leader.settle_presence();
    nodes.told(&[("1", true), ("2", true)]);
    until("the leader misses the other node's sessions", || leader.presence.has_unheard_node());
    // One user moves to the other node, the other one goes.
    nodes.arrive_as(1, 1, 7);
    [1, 2].iter().for_each(|user| leader.presence.unregister(UserNo(*user), *user, NOON + 10));
    nodes.clock.set(NOON + 20 + 10 * GRACE_MS);
    leader.settle_presence();
    assert_eq!(nodes.taken.try_iter().count(), 0);
    assert!([1, 2].iter().all(|user| leader.presence.counts_as_online(UserNo(*user))));
    assert!(!leader.presence.is_active(UserNo(1)), "offline push does not wait");
    // It is upgraded.
    is_understood.store(true, Ordering::SeqCst);
    until("its sessions are known", || leader.presence.is_online(UserNo(1)));
    let mut offline = Vec::new();
    until("the other user is reported", || {
        leader.settle_presence();
        for (_, event) in nodes.taken.try_iter() {
            let changes = event["changes"].as_array().unwrap().clone();
            offline.extend(changes.into_iter().filter(|change| change["online"] == false));
        }
        !offline.is_empty()
    });
    assert_eq!(offline.iter().map(|change| change["user"].as_str()).collect::<Vec<_>>(), [Some("2")]);
    until("it is stored", || nodes.store.last_seen(UserNo(2)).unwrap() == Some(NOON + 10));
    assert_eq!(nodes.store.last_seen(UserNo(1)).unwrap(), None);
}

#[test]
fn the_last_node_to_stop_stores_the_last_seen_times() {
    let mut nodes = nodes(&["a", "b"]);
    nodes.arrive(0, 1);
    nodes.arrive(1, 2);
    nodes.all_know(&[(1, true), (2, true)]);
    nodes.engine(1).presence.unregister(UserNo(2), 2, NOON + 10);
    nodes.all_know(&[(2, false)]);
    nodes.stop(1);
    until("the other is known to be gone", || {
        look_around(nodes.engine(0));
        nodes.engine(0).cluster.as_ref().unwrap().nodes.all().len() == 1
    });
    assert_eq!(nodes.store.last_seen(UserNo(2)).unwrap(), None, "the grace is not over");
    nodes.engine(0).presence.unregister(UserNo(1), 1, NOON + 20);
    nodes.stop(0);
    let seen = [1, 2].map(|user| nodes.store.last_seen(UserNo(user)).unwrap());
    assert_eq!(seen, [Some(NOON + 20), Some(NOON + 10)]);
}

/// `cargo test -p tidings-notifications --test it one_node_announces_presence_for_the_cluster -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn how_long_a_node_takes_to_learn_of_many_sessions() {
    const SESSIONS: u64 = 100_000;
    let nodes = nodes(&["a", "b"]);
    let told = |node: usize| nodes.engine(node).metrics.cluster.presence_snapshots.get();
    let knows = || nodes.engine(1).presence.user_count() as u64 == SESSIONS;
    let before = Instant::now();
    (1..=SESSIONS).for_each(|user| nodes.arrive(0, user));
    until("b knows", knows);
    println!("{SESSIONS} sessions that came in one go: {:?}, told whole {} times", before.elapsed(), told(0));
    nodes.bus.set_down(true);
    for user in 1..=SESSIONS {
        nodes.engine(0).presence.unregister(UserNo(user), user, NOON);
        nodes.arrive_as(0, user, SESSIONS + user);
    }
    let same = || nodes.engine(0).presence.all_sessions() == nodes.engine(1).presence.all_sessions();
    nodes.bus.set_down(false);
    let before = Instant::now();
    until("b knows", same);
    println!("who all went and came while the bus was down: {:?}, told whole {} times", before.elapsed(), told(0));
}
