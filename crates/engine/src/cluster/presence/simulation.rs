//! Nodes that talk over a network that loses what it likes, in one thread: whatever happened, soon after it is over
//! all have the same view, and it is the truth.
#![allow(clippy::unwrap_used)]

use super::{
    Said,
    exchange::{Act, Around, Exchange, Progress, To},
};
use crate::{
    cluster::log::NodeInfo,
    metrics::ClusterMetrics,
    model::UserNo,
    presence::{Device, NodeNo, Presence, PresenceConfig},
};
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

const NODES: usize = 3;
const LEASE: Duration = Duration::from_secs(10);
const SESSIONS_PER_KIND: usize = 2;
/// Rounds of a beat each in which everything must be mended.
const ROUNDS: usize = 6;

#[derive(Debug, Clone)]
enum Step {
    Arrive { node: usize, user: u64, device: u8 },
    Leave { node: usize, which: usize },
    Tell { node: usize },
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
        4 => node.clone().prop_map(|node| Step::Tell { node }),
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
    info: NodeInfo,
    presence: Presence,
    exchange: Exchange,
    metrics: ClusterMetrics,
    sessions: u64,
    /// What is true: who is here.
    here: BTreeMap<u64, UserNo>,
}

struct World {
    nodes: Vec<Node>,
    roads: BTreeMap<(usize, usize), VecDeque<Said>>,
    began: Instant,
    ms: u64,
    boots: u64,
}

fn node(index: usize, boot_id: u64, now: Instant) -> Node {
    let name = char::from(b'a' + index as u8).to_string();
    let (address, link, version, roles) = Default::default();
    let info = NodeInfo { name, boot_id, address, link, version, roles };
    Node {
        presence: Presence::of_node(PresenceConfig::default(), &info),
        exchange: Exchange::new(info.clone(), LEASE, now),
        metrics: ClusterMetrics::default(),
        sessions: 0,
        here: BTreeMap::new(),
        info,
    }
}

impl World {
    fn new() -> Self {
        let began = Instant::now();
        let nodes = (0..NODES).map(|index| node(index, index as u64, began)).collect();
        World { nodes, roads: BTreeMap::new(), began, ms: 1_000, boots: NODES as u64 }
    }

    fn with(&mut self, index: usize, turn: impl FnOnce(&mut Exchange, &Around<'_>)) {
        let node = &mut self.nodes[index];
        let around = Around {
            presence: &node.presence,
            metrics: &node.metrics,
            now: self.began + Duration::from_millis(self.ms),
            now_ms: self.ms,
            leads: index == 0,
            sessions_per_kind: SESSIONS_PER_KIND,
        };
        turn(&mut node.exchange, &around);
        for act in node.exchange.take_acts() {
            match act {
                Act::Replace(user, session) => {
                    if node.here.remove(&session).is_some() {
                        node.presence.left(user, session, self.ms);
                    }
                }
                Act::Say(to, said) => {
                    let is_meant = |other: usize| match &to {
                        To::All => other != index,
                        To::Some(names) => names.iter().any(|name| **name == name_of(other)),
                    };
                    // What is said goes over the road as it would: encoded.
                    for other in (0..NODES).filter(|other| is_meant(*other)) {
                        let said = Said::decode(&said.encode()).unwrap();
                        self.roads.entry((index, other)).or_default().push_back(said);
                    }
                }
            }
        }
    }

    fn see(&mut self) {
        let nodes: Vec<NodeInfo> = self.nodes.iter().map(|node| node.info.clone()).collect();
        (0..NODES).for_each(|index| self.with(index, |exchange, around| exchange.see(&nodes, around)));
    }

    fn tell(&mut self, index: usize) {
        let taken = self.nodes[index].presence.news.as_ref().unwrap().take();
        self.with(index, |exchange, _| exchange.tell(taken));
    }

    fn deliver(&mut self, from: usize, to: usize) -> bool {
        let Some(said) = self.roads.get_mut(&(from, to)).and_then(VecDeque::pop_front) else { return false };
        self.with(to, |exchange, around| exchange.hear(said, around));
        true
    }

    fn arrive(&mut self, index: usize, user: u64, device: u8) {
        // Several of them share a stripe of the registry.
        let (ms, user) = (self.ms, UserNo(user % 2 + user / 2 * 64));
        let node = &mut self.nodes[index];
        node.sessions += 1;
        let device_id = format!("device {device}").into();
        // Clocks of nodes differ.
        let since = ms + 700 * index as u64;
        let device = Device {
            session: node.sessions,
            node: NodeNo(0),
            device_id,
            device_kind: "phone".into(),
            since,
            chat: true,
        };
        node.presence.arrived(user, device);
        node.here.insert(node.sessions, user);
        self.make_room(index, user);
    }

    /// A node's own sessions are its shards' business: a device has one here too.
    fn make_room(&mut self, index: usize, user: UserNo) {
        let ms = self.ms;
        let node = &mut self.nodes[index];
        let mut own = node.presence.registered(user);
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
        gone.extend(node.presence.outranked(user, SESSIONS_PER_KIND));
        for session in gone {
            if node.here.remove(&session).is_some() {
                node.presence.left(user, session, ms);
            }
        }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Arrive { node, user, device } => self.arrive(node, user, device),
            Step::Leave { node, which } => {
                let ms = self.ms;
                let node = &mut self.nodes[node];
                let which = which % node.here.len().max(1);
                if let Some((session, user)) = node.here.iter().nth(which).map(|(session, user)| (*session, *user)) {
                    node.here.remove(&session);
                    node.presence.left(user, session, ms);
                }
            }
            Step::Tell { node } => self.tell(node),
            Step::Overflow { node } => {
                let mut taken = self.nodes[node].presence.news.as_ref().unwrap().take();
                (taken.overflowed, taken.deltas) = (true, Vec::new());
                self.with(node, |exchange, _| exchange.tell(taken));
            }
            Step::Deliver { from, to, messages } => {
                let _ = (0..messages).all(|_| self.deliver(from, to));
            }
            Step::Lose { from, to, messages } => {
                let road = self.roads.entry((from, to)).or_default();
                road.drain(..messages.min(road.len()));
            }
            Step::Wait { ms } => {
                self.ms += ms;
                (0..NODES).for_each(|index| self.with(index, Exchange::tick));
            }
            Step::Restart { node: index } => {
                self.boots += 1;
                let now = self.began + Duration::from_millis(self.ms);
                self.nodes[index] = node(index, self.boots, now);
                self.see();
            }
        }
    }

    /// The bus loses nothing any more.
    fn heal(&mut self) {
        for _ in 0..ROUNDS {
            self.ms += 1_001;
            self.heal_once();
        }
    }

    fn heal_once(&mut self) {
        loop {
            let roads: Vec<(usize, usize)> = self.roads.keys().copied().collect();
            let said = roads.into_iter().filter(|(from, to)| self.deliver(*from, *to)).count();
            // Stretches go a few milliseconds apart.
            self.ms += 5;
            let mut telling = false;
            for index in 0..NODES {
                self.tell(index);
                self.with(index, Exchange::tick);
                telling |= self.nodes[index].exchange.is_telling();
            }
            if said == 0 && !telling && self.roads.values().all(VecDeque::is_empty) {
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
    world.see();
    steps.iter().for_each(|step| world.take(step));
    world.heal();
    let mut truth: Vec<(u64, String, u64)> = Vec::new();
    for (index, node) in world.nodes.iter().enumerate() {
        truth.extend(node.here.iter().map(|(session, user)| (user.0, name_of(index), *session)));
    }
    truth.sort();
    for node in &world.nodes {
        let everything = node.presence.everything();
        let seen: Vec<(u64, String, u64)> =
            everything.iter().map(|(user, node, session, _)| (user.0, node.clone(), *session)).collect();
        assert_eq!(seen, truth, "at {}", node.info.name);
        let users: BTreeSet<UserNo> = everything.iter().map(|(user, ..)| *user).collect();
        assert_eq!(node.presence.users(), users.len());
        for user in users {
            let devices = node.presence.devices(user);
            let ids: BTreeSet<_> = devices.iter().map(|device| device.device_id.clone()).collect();
            assert_eq!(ids.len(), devices.len(), "a device has one session: {devices:?}");
            assert!(ids.len() <= SESSIONS_PER_KIND, "{devices:?}");
        }
        for other in 0..NODES {
            let cards = node.presence.nodes.cards(world.ms);
            let card = cards.iter().find(|card| card.name == name_of(other)).unwrap();
            assert_eq!(card.sessions, world.nodes[other].here.len() as i64, "of {} at {}", card.name, node.info.name);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn whatever_was_lost_all_nodes_soon_have_the_truth(steps in steps()) {
        check(&steps);
    }
}

#[test]
fn who_comes_last_stays_whatever_the_clocks_say() {
    let mut world = World::new();
    world.see();
    // The clock of `c` is before that of `a`.
    for node in [2, 0, 1, 0] {
        world.arrive(node, 7, 0);
        world.heal_once();
        let here: Vec<usize> = world.nodes.iter().map(|node| node.here.len()).collect();
        let mut only = vec![0; NODES];
        only[node] = 1;
        assert_eq!(here, only);
    }
}

#[test]
fn nodes_that_hear_of_ends_in_different_orders_agree_on_the_last_one() {
    let mut world = World::new();
    world.see();
    (0..2).for_each(|node| world.arrive(node, 7, node as u8));
    world.heal_once();
    let user = *world.nodes[0].here.values().next().unwrap();
    for node in [1, 0] {
        world.ms += 10;
        world.take(&Step::Leave { node, which: 0 });
    }
    let last = world.ms;
    world.heal();
    let seen: Vec<Option<u64>> = world.nodes.iter().map(|node| node.presence.last_seen(user)).collect();
    assert_eq!(seen, [Some(last); NODES]);
}

#[test]
fn a_node_that_has_just_started_knows_that_it_has_not_heard_the_others() {
    let mut world = World::new();
    let progress = |world: &World| world.nodes[0].exchange.progress();
    // Heard of another node before the store told of any.
    world.with(1, Exchange::tick);
    assert!(world.deliver(1, 0));
    assert_eq!(progress(&world), Progress::Coming);
    world.see();
    (0..40).for_each(|user| world.arrive(1, user, 0));
    world.heal();
    assert_eq!(progress(&world), Progress::All);
    world.take(&Step::Restart { node: 0 });
    assert_eq!((world.nodes[0].presence.users(), progress(&world)), (0, Progress::Silence));
    world.heal();
    assert_eq!((world.nodes[0].presence.users(), progress(&world)), (40, Progress::All));
}

#[test]
fn what_was_not_lost_is_not_told_again() {
    let mut world = World::new();
    world.see();
    (0..40).for_each(|user| world.arrive(0, user, 0));
    world.heal();
    let told = |world: &World| world.nodes.iter().map(|node| node.metrics.presence_snapshots.get()).sum::<u64>();
    let before = told(&world);
    (40..80).for_each(|user| world.arrive(1, user, 0));
    // The bus was away, and nothing was said meanwhile.
    (0..NODES).for_each(|index| world.with(index, Exchange::missed));
    world.heal();
    assert_eq!(told(&world), before, "a beat is enough to see that");
    assert_eq!(world.nodes[2].presence.users(), 80);
}

#[test]
fn a_node_whose_lease_is_over_counts_while_it_is_heard_and_no_longer_than_another_lease() {
    let mut world = World::new();
    world.see();
    world.arrive(1, 7, 0);
    world.heal();
    let without_b: Vec<NodeInfo> = [0, 2].iter().map(|index: &usize| world.nodes[*index].info.clone()).collect();
    let sees = |world: &mut World| {
        world.with(0, |exchange, around| exchange.see(&without_b, around));
        world.nodes[0].presence.users()
    };
    assert_eq!(sees(&mut world), 1, "heard a moment ago");
    let end = world.ms + LEASE.as_millis() as u64;
    while world.ms < end - 2_000 {
        world.ms += 1_001;
        world.with(1, Exchange::tick);
        while world.deliver(1, 0) {}
        assert_eq!(sees(&mut world), 1, "the store was away, not the node");
    }
    world.ms = end;
    assert_eq!(sees(&mut world), 0);
}
