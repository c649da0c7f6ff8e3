//! A node that takes no further what concerns none of its sessions: each session gets what happens in its user's conversations from
//! the moment on from which it is live, all of it, once, and nothing else.

use super::*;
use crate::delivery::{BindOutcome, Block, Chunk, Delivery, MembershipSnapshot, SessionKey, Sink};
use std::collections::{BTreeMap, BTreeSet};
use tidings_domain::store::{ConversationFilter, ConversationState};

/// What a session was handed: conversations, and the `seq` of their entries.
#[derive(Default)]
struct Heard(BTreeMap<SessionKey, Vec<(String, u64)>>);

impl Sink for Heard {
    fn block(&mut self, session: SessionKey, block: &Arc<Block>, _: Lane, _: Position) {
        let entries: Vec<serde_json::Value> =
            serde_json::from_str(&format!("[{}]", &String::from_utf8_lossy(&block.json)[1..])).unwrap();
        let places = entries
            .iter()
            .map(|entry| (entry["conversation"].as_str().unwrap().to_owned(), entry["seq"].as_u64().unwrap()));
        self.0.entry(session).or_default().extend(places);
    }

    fn chunk(&mut self, _: SessionKey, _: &Arc<Chunk>, _: Lane) {}

    fn left(&mut self, _: SessionKey, _: &Arc<str>) {}
}

struct Entry {
    conversation: String,
    lane: Lane,
    seq: u64,
    position: Position,
    readers: BTreeSet<UserNo>,
}

struct Session {
    user: UserNo,
    /// From where on it is live, once it is.
    live_from: Option<[Position; LANES]>,
}

/// How far the memberships of a user who has bound have come.
enum Load {
    Asked { since: [Position; LANES] },
    Read(Vec<MembershipSnapshot>),
}

struct World {
    node: Node,
    pair: ConversationNo,
    delivery: Delivery,
    heard: Heard,
    entries: Vec<Entry>,
    /// The members of the group.
    members: BTreeSet<UserNo>,
    sessions: BTreeMap<SessionKey, Session>,
    loads: VecDeque<(UserNo, u64, Load)>,
    next_session: SessionKey,
}

impl World {
    fn new() -> World {
        let node = node_that_listens();
        let [a, b, c] = node.members[..] else { panic!("three users") };
        let new = NewConversation {
            id: "b:c".into(),
            kind: ConversationKind::Direct,
            pair: Some((b, c)),
            name: None,
            avatar: None,
            attributes: None,
            members: vec![(b, Role::Member), (c, Role::Member)],
            settings: ConversationSettings::default(),
        };
        let delivery = Delivery::starting_at([node.store.last_position(); LANES], node.follower.live_audience());
        let mut world = World {
            node,
            pair: ConversationNo(0),
            delivery,
            heard: Heard::default(),
            entries: vec![],
            members: [a].into(),
            sessions: BTreeMap::new(),
            loads: VecDeque::new(),
            next_session: 1,
        };
        world.commit(&[Proposal::CreateConversation(new)]);
        world.pair = world.node.store.conversation_no("b:c").unwrap().unwrap();
        world
    }

    fn commit(&mut self, proposals: &[Proposal]) {
        let (_, batch) = self.node.commit(proposals);
        for item in &batch.items {
            let (Some(entry), Some(index)) = (&item.entry, item.conversation) else { continue };
            let ConversationRef { id, pair, .. } = &batch.conversations[index as usize];
            let readers = pair.map_or_else(|| self.members.clone(), |(a, b)| [a, b].into());
            let lane = if pair.is_some() { Lane::Direct } else { Lane::Group };
            let (conversation, seq, position) = (id.clone(), entry.seq, entry.position);
            self.entries.push(Entry { conversation, lane, seq, position, readers });
        }
        let through = batch.through;
        self.node.follower.offer_remote(batch, Bytes::new());
        assert!(self.node.follower.wait_until_applied(through, Duration::ZERO));
    }

    fn say(&mut self, in_group: bool) {
        let Proposal::Append { entry, .. } = self.node.say() else { panic!("an entry") };
        let conversation = if in_group { self.node.room } else { self.pair };
        self.commit(&[Proposal::Append { conversation, entry }]);
    }

    fn change_members(&mut self, which: usize, add: bool) {
        let user = self.node.members[1 + which % 2];
        self.commit(&[self.node.change_members(which, add)]);
        if add {
            self.members.insert(user)
        } else {
            self.members.remove(&user)
        };
    }

    fn bind(&mut self, which: usize) {
        let (user, session) = (self.node.members[which % 3], self.next_session);
        self.next_session += 1;
        let live_from = match self.delivery.bind(session, user) {
            BindOutcome::Joined(positions) => Some(positions),
            BindOutcome::Loading => None,
            BindOutcome::NeedsMemberships(number) => {
                self.loads.push_back((user, number, Load::Asked { since: self.delivery.positions() }));
                None
            }
        };
        self.sessions.insert(session, Session { user, live_from });
    }

    /// The oldest read of memberships comes a step further.
    fn load(&mut self) {
        match self.loads.pop_front() {
            Some((user, number, Load::Asked { since })) => {
                let skipped = self.node.follower.live_audience().unwrap().skipped();
                let is_behind = |lane: &Lane| skipped[*lane as usize] > since[*lane as usize];
                self.catch_up(&Lane::ALL.into_iter().filter(is_behind).collect::<Vec<_>>());
                let read = self.memberships(user);
                self.loads.push_front((user, number, Load::Read(read)));
            }
            Some((user, number, Load::Read(read))) => {
                let Some((sessions, positions)) = self.delivery.install(user, number, read) else { return };
                for session in sessions {
                    self.sessions.get_mut(&session).unwrap().live_from = Some(positions);
                }
            }
            None => {}
        }
    }

    fn memberships(&self, user: UserNo) -> Vec<MembershipSnapshot> {
        let states = self.node.store.conversation_states(user, ConversationFilter::NonDirect, 10).unwrap();
        let snapshot = |state: &ConversationState| {
            let joined_seq = state.membership.joined_seq;
            let joined_after =
                self.node.store.positions_at(&[(state.conversation, joined_seq)]).unwrap()[0].unwrap_or(0);
            MembershipSnapshot { conversation: state.conversation, lane: Lane::Group, joined_after, joined_seq }
        };
        states.iter().map(snapshot).collect()
    }

    fn unbind(&mut self, which: usize) {
        let user = self.node.members[which % 3];
        let Some(session) = self.sessions.iter().find(|(_, session)| session.user == user).map(|(key, _)| *key) else {
            return;
        };
        self.catch_up(&Lane::ALL);
        self.check(session);
        self.sessions.remove(&session);
        self.delivery.unbind(session, user);
    }

    /// The shard applies what has come.
    fn turn(&mut self) {
        for lane in &self.node.receivers[0].lanes {
            for fanout in lane.try_iter() {
                self.delivery.apply(&fanout, &mut self.heard);
            }
        }
    }

    fn catch_up(&mut self, lanes: &[Lane]) {
        let latch = self.node.follower.barrier(lanes);
        while !latch.wait(Duration::ZERO) {
            self.turn();
            std::thread::yield_now();
        }
    }

    fn check(&mut self, session: SessionKey) {
        let Session { user, live_from } = &self.sessions[&session];
        let is_live = |entry: &&Entry| live_from.is_some_and(|from| entry.position > from[entry.lane as usize]);
        let expected = self.entries.iter().filter(is_live).filter(|entry| entry.readers.contains(user));
        let mut expected: Vec<_> = expected.map(|entry| (entry.conversation.clone(), entry.seq)).collect();
        let mut heard = self.heard.0.remove(&session).unwrap_or_default();
        // In the order of each conversation; the lanes are not ordered among each other.
        expected.sort_by(|a, b| a.0.cmp(&b.0));
        heard.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(heard, expected, "session {session} of {user:?}, live from {live_from:?}");
    }
}

#[derive(Debug, Clone, Copy)]
enum Act {
    Say { in_group: bool },
    Members { which: usize, add: bool },
    Bind(usize),
    Load,
    Unbind(usize),
    Turn,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => any::<bool>().prop_map(|in_group| Act::Say { in_group }),
        2 => (0..2usize, any::<bool>()).prop_map(|(which, add)| Act::Members { which, add }),
        2 => (0..3usize).prop_map(Act::Bind),
        4 => Just(Act::Load),
        1 => (0..3usize).prop_map(Act::Unbind),
        2 => Just(Act::Turn),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn each_session_gets_what_it_would_get_if_nothing_were_dropped(acts in prop::collection::vec(act(), 1..60)) {
        let mut world = World::new();
        for act in acts {
            match act {
                Act::Say { in_group } => world.say(in_group),
                Act::Members { which, add } => world.change_members(which, add),
                Act::Bind(which) => world.bind(which),
                Act::Load => world.load(),
                Act::Unbind(which) => world.unbind(which),
                Act::Turn => world.turn(),
            }
        }
        world.catch_up(&Lane::ALL);
        for session in world.sessions.keys().copied().collect::<Vec<_>>() {
            world.check(session);
        }
        world.node.lanes.stop();
    }
}

#[test]
fn what_concerns_no_session_reaches_no_shard() {
    let mut world = World::new();
    let skipped = |world: &World| world.node.follower.metrics.cluster.skipped.get();
    let before = skipped(&world);
    world.say(true);
    world.say(false);
    assert_eq!(skipped(&world), before + 2);
    world.bind(0);
    world.say(true);
    assert_eq!(skipped(&world), before + 2, "the group may be one of a user whose memberships are being read");
    world.load();
    world.load();
    world.say(false);
    assert_eq!(skipped(&world), before + 3, "neither b nor c has a session");
    world.say(true);
    world.catch_up(&Lane::ALL);
    assert_eq!(world.heard.0[&1].len(), 1);
    world.unbind(0);
    world.say(true);
    assert_eq!(skipped(&world), before + 4);
    world.node.lanes.stop();
}
