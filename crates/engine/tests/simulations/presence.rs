//! Nodes in one thread, over a network that loses any message: soon after the losses end, all nodes have the same view, and
//! it is the true one.
#![allow(clippy::unwrap_used)]

use super::{
    PresenceMessage,
    exchange::{Effect, Exchange, Recipients, StepContext, SyncProgress},
};
use crate::presence::{NodeNo, Presence, PresenceConfig, PresenceSession, SessionLimits};
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::{
    commit_log::{NodeDetails, NodeInfo},
    metrics::ClusterMetrics,
    model::UserNo,
};

const NODES: usize = 3;
const LEASE: Duration = Duration::from_secs(10);
const SESSIONS_PER_KIND: usize = 2;
const SESSION_LIMITS: SessionLimits = SessionLimits { per_kind: SESSIONS_PER_KIND, per_user: 5 };
/// Rounds of one heartbeat each, after which every view must be repaired.
const REPAIR_ROUNDS: usize = 6;

#[derive(Debug, Clone)]
enum Step {
    Arrive { node: usize, user: u64, device: u8 },
    Leave { node: usize, which: usize },
    SendChanges { node: usize },
    Overflow { node: usize },
    Deliver { from: usize, to: usize, messages: usize },
    Lose { from: usize, to: usize, messages: usize },
    Wait { ms: u64 },
    Restart { node: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (node, messages) = (0..NODES, 1..4usize);
    let step = prop_oneof![
        6 => (node.clone(), 0..8u64, 0..4u8).prop_map(|(node, user, device)| Step::Arrive { node, user, device }),
        4 => (node.clone(), 0..64usize).prop_map(|(node, which)| Step::Leave { node, which }),
        4 => node.clone().prop_map(|node| Step::SendChanges { node }),
        1 => node.clone().prop_map(|node| Step::Overflow { node }),
        4 => (node.clone(), node.clone(), messages.clone())
            .prop_map(|(from, to, messages)| Step::Deliver { from, to, messages }),
        3 => (node.clone(), node.clone(), messages).prop_map(|(from, to, messages)| Step::Lose { from, to, messages }),
        2 => (1..3_000u64).prop_map(|ms| Step::Wait { ms }),
        1 => node.prop_map(|node| Step::Restart { node }),
    ];
    prop::collection::vec(step, 1..120)
}

struct Node {
    info: Arc<NodeInfo>,
    presence: Presence,
    exchange: Exchange,
    metrics: ClusterMetrics,
    sessions: u64,
    /// The truth: the sessions of this node.
    live: BTreeMap<u64, UserNo>,
}

struct World {
    nodes: Vec<Node>,
    links: BTreeMap<(usize, usize), VecDeque<PresenceMessage>>,
    began: Instant,
    ms: u64,
    boots: u64,
}

fn node(index: usize, boot_id: u64, now: Instant) -> Node {
    let name = char::from(b'a' + index as u8).to_string();
    let (address, link, version, roles) = Default::default();
    let details = NodeDetails::of_this_program();
    let info = Arc::new(NodeInfo { name, boot_id, address, link, version, roles, details });
    Node {
        presence: Presence::of_node(PresenceConfig::default(), &info),
        exchange: Exchange::new(NodeInfo::clone(&info), LEASE, now),
        metrics: ClusterMetrics::default(),
        sessions: 0,
        live: BTreeMap::new(),
        info,
    }
}

impl World {
    fn new() -> Self {
        let began = Instant::now();
        let nodes = (0..NODES).map(|index| node(index, index as u64, began)).collect();
        World { nodes, links: BTreeMap::new(), began, ms: 1_000, boots: NODES as u64 }
    }

    fn with(&mut self, index: usize, step: impl FnOnce(&mut Exchange, &StepContext<'_>)) {
        let node = &mut self.nodes[index];
        let context = StepContext {
            presence: &node.presence,
            metrics: &node.metrics,
            now: self.began + Duration::from_millis(self.ms),
            now_ms: self.ms,
            leads: index == 0,
            session_limits: SESSION_LIMITS,
        };
        step(&mut node.exchange, &context);
        for effect in node.exchange.take_effects() {
            match effect {
                Effect::ReplaceSession(user, session) => {
                    if node.live.remove(&session).is_some() {
                        node.presence.unregister(user, session, self.ms);
                    }
                }
                Effect::Send(to, message) => {
                    let is_recipient = |other: usize| match &to {
                        Recipients::AllPeers => other != index,
                        Recipients::Some(names) => names.iter().any(|name| **name == name_of(other)),
                    };
                    // Encoded and decoded, as on the bus.
                    for other in (0..NODES).filter(|other| is_recipient(*other)) {
                        let message = PresenceMessage::decode(&message.encode()).unwrap();
                        self.links.entry((index, other)).or_default().push_back(message);
                    }
                }
            }
        }
    }

    fn update_views(&mut self) {
        let nodes: Vec<Arc<NodeInfo>> = self.nodes.iter().map(|node| node.info.clone()).collect();
        (0..NODES).for_each(|index| self.with(index, |exchange, context| exchange.on_view(&nodes, context)));
    }

    fn send_changes(&mut self, index: usize) {
        let taken = self.nodes[index].presence.deltas.as_ref().unwrap().take();
        self.with(index, |exchange, _| exchange.send_changes(taken));
    }

    fn deliver(&mut self, from: usize, to: usize) -> bool {
        let Some(message) = self.links.get_mut(&(from, to)).and_then(VecDeque::pop_front) else { return false };
        self.with(to, |exchange, context| exchange.on_message(message, context));
        true
    }

    fn arrive(&mut self, index: usize, user: u64, device: u8) {
        // Several users share a stripe of the registry.
        let (ms, user) = (self.ms, UserNo(user % 2 + user / 2 * 64));
        let node = &mut self.nodes[index];
        node.sessions += 1;
        let device_id = format!("device {device}").into();
        // The nodes' clocks differ.
        let since = ms + 700 * index as u64;
        let device = PresenceSession {
            session: node.sessions,
            node: NodeNo(0),
            device_id,
            device_kind: "phone".into(),
            since,
            chat: true,
            background: false,
        };
        node.presence.register(user, device);
        node.live.insert(node.sessions, user);
        self.end_surplus(index, user);
    }

    /// What the shards of a node do in the server: they keep one session for each device, and no more than so many of a kind.
    fn end_surplus(&mut self, index: usize, user: UserNo) {
        let ms = self.ms;
        let node = &mut self.nodes[index];
        let mut own = node.presence.local_sessions(user);
        own.sort_by_key(|device| std::cmp::Reverse((device.since, device.session)));
        let mut ids = BTreeSet::new();
        let mut gone: Vec<u64> = Vec::new();
        own.retain(|device| {
            ids.insert(device.device_id.clone()) || {
                gone.push(device.session);
                false
            }
        });
        gone.extend(own.iter().skip(SESSIONS_PER_KIND).map(|device| device.session));
        gone.extend(node.presence.outranked(user, SESSION_LIMITS));
        for session in gone {
            if node.live.remove(&session).is_some() {
                node.presence.unregister(user, session, ms);
            }
        }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Arrive { node, user, device } => self.arrive(node, user, device),
            Step::Leave { node, which } => {
                let ms = self.ms;
                let node = &mut self.nodes[node];
                let which = which % node.live.len().max(1);
                if let Some((session, user)) = node.live.iter().nth(which).map(|(session, user)| (*session, *user)) {
                    node.live.remove(&session);
                    node.presence.unregister(user, session, ms);
                }
            }
            Step::SendChanges { node } => self.send_changes(node),
            Step::Overflow { node } => {
                let mut taken = self.nodes[node].presence.deltas.as_ref().unwrap().take();
                (taken.overflowed, taken.deltas) = (true, Vec::new());
                self.with(node, |exchange, _| exchange.send_changes(taken));
            }
            Step::Deliver { from, to, messages } => {
                let _ = (0..messages).all(|_| self.deliver(from, to));
            }
            Step::Lose { from, to, messages } => {
                let link = self.links.entry((from, to)).or_default();
                link.drain(..messages.min(link.len()));
            }
            Step::Wait { ms } => {
                self.ms += ms;
                (0..NODES).for_each(|index| self.with(index, Exchange::tick));
            }
            Step::Restart { node: index } => {
                self.boots += 1;
                let now = self.began + Duration::from_millis(self.ms);
                self.nodes[index] = node(index, self.boots, now);
                self.update_views();
            }
        }
    }

    /// From here on the bus loses nothing.
    fn heal(&mut self) {
        for _ in 0..REPAIR_ROUNDS {
            self.ms += 1_001;
            self.heal_once();
        }
    }

    fn heal_once(&mut self) {
        loop {
            let links: Vec<(usize, usize)> = self.links.keys().copied().collect();
            let delivered = links.into_iter().filter(|(from, to)| self.deliver(*from, *to)).count();
            // The chunks of a snapshot are sent so many milliseconds apart.
            self.ms += 5;
            let mut is_sending = false;
            for index in 0..NODES {
                self.send_changes(index);
                self.with(index, Exchange::tick);
                is_sending |= self.nodes[index].exchange.is_sending_snapshot();
            }
            if delivered == 0 && !is_sending && self.links.values().all(VecDeque::is_empty) {
                return;
            }
        }
    }
}

fn name_of(index: usize) -> String {
    char::from(b'a' + index as u8).to_string()
}

fn check(steps: &[Step]) {
    let mut world = World::new();
    world.update_views();
    steps.iter().for_each(|step| world.run(step));
    world.heal();
    let mut truth: Vec<(u64, String, u64)> = Vec::new();
    for (index, node) in world.nodes.iter().enumerate() {
        truth.extend(node.live.iter().map(|(session, user)| (user.0, name_of(index), *session)));
    }
    truth.sort();
    for node in &world.nodes {
        let everything = node.presence.all_sessions();
        let seen: Vec<(u64, String, u64)> =
            everything.iter().map(|(user, node, session, _)| (user.0, node.clone(), *session)).collect();
        assert_eq!(seen, truth, "at {}", node.info.name);
        let users: BTreeSet<UserNo> = everything.iter().map(|(user, ..)| *user).collect();
        assert_eq!(node.presence.user_count(), users.len());
        for user in users {
            let devices = node.presence.sessions_of(user);
            let ids: BTreeSet<_> = devices.iter().map(|device| device.device_id.clone()).collect();
            assert_eq!(ids.len(), devices.len(), "a device has one session: {devices:?}");
            assert!(ids.len() <= SESSIONS_PER_KIND, "{devices:?}");
        }
        for other in 0..NODES {
            let cards = node.presence.nodes.records(world.ms);
            let card = cards.iter().find(|card| card.name == name_of(other)).unwrap();
            assert_eq!(card.sessions, world.nodes[other].live.len() as i64, "of {} at {}", card.name, node.info.name);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn all_nodes_have_the_true_view_soon_after_losses_end(steps in steps()) {
        check(&steps);
    }
}

#[test]
fn the_session_that_comes_last_stays_even_if_clocks_disagree() {
    let mut world = World::new();
    world.update_views();
    // The clock of `c` is ahead of that of `a`.
    for node in [2, 0, 1, 0] {
        world.arrive(node, 7, 0);
        world.heal_once();
        let live: Vec<usize> = world.nodes.iter().map(|node| node.live.len()).collect();
        let mut only = vec![0; NODES];
        only[node] = 1;
        assert_eq!(live, only);
    }
}

#[test]
fn nodes_that_hear_of_ends_in_different_orders_agree_on_last_seen() {
    let mut world = World::new();
    world.update_views();
    (0..2).for_each(|node| world.arrive(node, 7, node as u8));
    world.heal_once();
    let user = *world.nodes[0].live.values().next().unwrap();
    for node in [1, 0] {
        world.ms += 10;
        world.run(&Step::Leave { node, which: 0 });
    }
    let last = world.ms;
    world.heal();
    let seen: Vec<Option<u64>> = world.nodes.iter().map(|node| node.presence.last_seen(user)).collect();
    assert_eq!(seen, [Some(last); NODES]);
}

#[test]
fn a_node_that_has_just_started_is_not_complete_until_its_peers_were_heard() {
    let mut world = World::new();
    let progress = |world: &World| world.nodes[0].exchange.progress();
    // A peer's message comes before the store has told which nodes there are.
    world.with(1, Exchange::tick);
    assert!(world.deliver(1, 0));
    assert_eq!(progress(&world), SyncProgress::Receiving);
    world.update_views();
    (0..40).for_each(|user| world.arrive(1, user, 0));
    world.heal();
    assert_eq!(progress(&world), SyncProgress::Complete);
    world.run(&Step::Restart { node: 0 });
    assert_eq!((world.nodes[0].presence.user_count(), progress(&world)), (0, SyncProgress::Silent));
    world.heal();
    assert_eq!((world.nodes[0].presence.user_count(), progress(&world)), (40, SyncProgress::Complete));
}

#[test]
fn a_node_that_cannot_be_understood_may_have_the_sessions_of_anybody() {
    let mut world = World::new();
    let is_unheard = |world: &World| world.nodes[0].presence.has_unheard_node();
    world.update_views();
    assert!(is_unheard(&world), "nobody was heard yet");
    world.heal();
    assert!(!is_unheard(&world));
    // Another version takes the place of `b`: it lives, and what it says cannot be read.
    world.run(&Step::Restart { node: 1 });
    world.update_views();
    for _ in 0..60 {
        world.ms += 1_000;
        (0..NODES).for_each(|index| world.with(index, Exchange::tick));
        world.links.remove(&(1, 0));
        while world.deliver(2, 0) || world.deliver(0, 1) {}
        assert!(is_unheard(&world));
    }
    world.heal();
    assert!(!is_unheard(&world), "it is understood");
    world.run(&Step::Restart { node: 1 });
    world.update_views();
    assert!(is_unheard(&world));
    let without_b: Vec<Arc<NodeInfo>> = [0, 2].iter().map(|index: &usize| world.nodes[*index].info.clone()).collect();
    world.with(0, |exchange, context| exchange.on_view(&without_b, context));
    assert!(!is_unheard(&world), "it is gone");
}

#[test]
fn a_gap_without_a_loss_causes_no_snapshot() {
    let mut world = World::new();
    world.update_views();
    (0..40).for_each(|user| world.arrive(0, user, 0));
    world.heal();
    let snapshots = |world: &World| world.nodes.iter().map(|node| node.metrics.presence_snapshots.get()).sum::<u64>();
    let before = snapshots(&world);
    (40..80).for_each(|user| world.arrive(1, user, 0));
    // The bus was down, and no message was sent meanwhile.
    (0..NODES).for_each(|index| world.with(index, Exchange::on_gap));
    world.heal();
    assert_eq!(snapshots(&world), before, "a heartbeat is enough");
    assert_eq!(world.nodes[2].presence.user_count(), 80);
}

#[test]
fn a_node_whose_lease_ended_counts_while_it_is_heard_for_at_most_another_lease() {
    let mut world = World::new();
    world.update_views();
    world.arrive(1, 7, 0);
    world.heal();
    let without_b: Vec<Arc<NodeInfo>> = [0, 2].iter().map(|index: &usize| world.nodes[*index].info.clone()).collect();
    let sees = |world: &mut World| {
        world.with(0, |exchange, context| exchange.on_view(&without_b, context));
        world.nodes[0].presence.user_count()
    };
    assert_eq!(sees(&mut world), 1, "heard a moment ago");
    let end = world.ms + LEASE.as_millis() as u64;
    while world.ms < end - 2_000 {
        world.ms += 1_001;
        world.with(1, Exchange::tick);
        while world.deliver(1, 0) {}
        assert_eq!(sees(&mut world), 1, "the store was down, not the node");
    }
    world.ms = end;
    assert_eq!(sees(&mut world), 0);
}
