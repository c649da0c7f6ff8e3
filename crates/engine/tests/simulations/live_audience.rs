//! A node that takes no further what concerns none of its sessions, and is told of some of it without its content, whether it
//! concerns them or not: each session gets what happens in its user's conversations from the moment on from which it is live, all of
//! it, once, and nothing else.

use super::*;
use crate::cluster::audiences::leave_out;
use crate::delivery::{BindOutcome, Block, Chunk, Delivery, MembershipSnapshot, SessionKey, Sink};
use std::collections::BTreeMap;
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
    /// Who may read it, each with the number of the membership.
    readers: BTreeMap<UserNo, u64>,
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
    /// The members of the group, each with the number of the membership.
    members: BTreeMap<UserNo, u64>,
    memberships: u64,
    /// Of users whose memberships were read last: how far the store had come, and the number of the one in the group.
    read: BTreeMap<UserNo, (Position, Option<u64>)>,
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
            members: [(a, 0)].into(),
            memberships: 0,
            read: BTreeMap::new(),
            sessions: BTreeMap::new(),
            loads: VecDeque::new(),
            next_session: 1,
        };
        world.commit(&[Proposal::CreateConversation(new)]);
        world.pair = world.node.store.conversation_no("b:c").unwrap().unwrap();
        world
    }

    fn commit(&mut self, proposals: &[Proposal]) {
        self.commit_and_tell(proposals, Told::Everything);
    }

    fn commit_and_tell(&mut self, proposals: &[Proposal], told: Told) {
        let (_, batch) = self.node.commit(proposals);
        for item in &batch.items {
            let (Some(entry), Some(index)) = (&item.entry, item.conversation) else { continue };
            let ConversationRef { id, pair, .. } = &batch.conversations[index as usize];
            let readers = pair.map_or_else(|| self.members.clone(), |(a, b)| [(a, 0), (b, 0)].into());
            let lane = if pair.is_some() { Lane::Direct } else { Lane::Group };
            let (conversation, seq, position) = (id.clone(), entry.seq, entry.position);
            self.entries.push(Entry { conversation, lane, seq, position, readers });
        }
        let (through, follower) = (batch.through, &self.node.follower);
        match told {
            Told::Everything => follower.offer_remote(batch, Bytes::new()),
            Told::WithoutContent => {
                let unseen = vec![true; batch.conversations.len()];
                follower.offer_in_part(leave_out("b", &batch, &unseen), Bytes::new());
                if !follower.wait_until_applied(through, Duration::ZERO) {
                    assert!(follower.state.lock().has_gap(), "it knows that it lacks something");
                    follower.read_back();
                }
            }
        }
        assert!(follower.wait_until_applied(through, Duration::ZERO));
    }

    fn message(&self, in_group: bool) -> Proposal {
        let Proposal::Append { entry, .. } = self.node.say() else { panic!("an entry") };
        Proposal::Append { conversation: if in_group { self.node.room } else { self.pair }, entry }
    }

    fn say(&mut self, in_group: bool) {
        self.commit(&[self.message(in_group)]);
    }

    fn change_members(&mut self, which: usize, add: bool) {
        self.note_members(which, add);
        self.commit(&[self.node.change_members(which, add)]);
    }

    fn note_members(&mut self, which: usize, add: bool) {
        let user = self.node.members[1 + which % 2];
        self.memberships += 1;
        if !add {
            self.members.remove(&user);
        } else if !self.members.contains_key(&user) {
            self.members.insert(user, self.memberships);
        }
    }

    /// Something is said in the group by the commit that changes its members.
    fn change_members_and_say(&mut self, which: usize, add: bool, told: Told) {
        self.note_members(which, add);
        self.commit_and_tell(&[self.node.change_members(which, add), self.message(true)], told);
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
                self.catch_up(&Lane::ALL.into_iter().filter(is_behind).collect::<Vec<_>>(), Some(0));
                let read = self.memberships(user);
                self.read.insert(user, (self.node.store.last_position(), self.members.get(&user).copied()));
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

    /// `settled`: when the shard has applied all commits; else what is on its way is not for the session any more.
    fn unbind(&mut self, which: usize, settled: bool) {
        let user = self.node.members[which % 3];
        let Some(session) = self.sessions.iter().find(|(_, session)| session.user == user).map(|(key, _)| *key) else {
            return;
        };
        if settled {
            self.catch_up(&Lane::ALL, None);
        }
        self.check(session, settled);
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

    fn catch_up(&mut self, lanes: &[Lane], shard: Option<usize>) {
        let latch = self.node.follower.barrier(lanes, shard);
        while !latch.wait(Duration::ZERO) {
            self.turn();
            std::thread::yield_now();
        }
    }

    fn check(&mut self, session: SessionKey, settled: bool) {
        let Session { user, live_from } = &self.sessions[&session];
        let is_live = |entry: &&Entry| live_from.is_some_and(|from| entry.position > from[entry.lane as usize]);
        let (read_at, membership) = self.read.get(user).copied().unwrap_or_default();
        // Of a membership that had ended when the memberships were read, the session gets what the shard has yet to apply from the
        // joining on, or nothing.
        let is_certain = |entry: &Entry| {
            let number = entry.readers.get(user).copied();
            entry.lane == Lane::Direct || entry.position > read_at || number == membership
        };
        let place = |entry: &Entry| (entry.conversation.clone(), entry.seq);
        let readable = self.entries.iter().filter(is_live).filter(|entry| entry.readers.contains_key(user));
        let (mut right, mut certain) = (Vec::new(), Vec::new());
        for entry in readable {
            right.push(place(entry));
            certain.extend(is_certain(entry).then(|| place(entry)));
        }
        let mut heard = self.heard.0.remove(&session).unwrap_or_default();
        // In the order of each conversation; the lanes are not ordered among each other.
        right.sort_by(|a, b| a.0.cmp(&b.0));
        heard.sort_by(|a, b| a.0.cmp(&b.0));
        let who = format!("session {session} of {user:?}, live from {live_from:?}");
        right.retain(|place| heard.contains(place));
        assert_eq!(heard, right, "{who}");
        let is_due = |(c, seq): &&(String, u64)| settled || heard.iter().any(|heard| heard.0 == *c && heard.1 > *seq);
        let missed: Vec<_> = certain.iter().filter(is_due).filter(|place| !heard.contains(place)).collect();
        assert!(missed.is_empty(), "{who} missed {missed:?} and heard {heard:?}");
    }
}

/// What the node is told of a commit.
#[derive(Debug, Clone, Copy)]
enum Told {
    Everything,
    WithoutContent,
}

#[derive(Debug, Clone, Copy)]
enum Act {
    Say { in_group: bool, told: Told },
    Members { which: usize, add: bool },
    MembersAndSay { which: usize, add: bool, told: Told },
    Bind(usize),
    Load,
    Unbind { which: usize, settled: bool },
    Turn,
}

fn told() -> impl Strategy<Value = Told> {
    prop_oneof![Just(Told::Everything), Just(Told::WithoutContent)]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (any::<bool>(), told()).prop_map(|(in_group, told)| Act::Say { in_group, told }),
        1 => (0..2usize, any::<bool>(), told()).prop_map(|(which, add, told)| Act::MembersAndSay { which, add, told }),
        2 => (0..2usize, any::<bool>()).prop_map(|(which, add)| Act::Members { which, add }),
        2 => (0..3usize).prop_map(Act::Bind),
        4 => Just(Act::Load),
        1 => (0..3usize, any::<bool>()).prop_map(|(which, settled)| Act::Unbind { which, settled }),
        2 => Just(Act::Turn),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn each_session_gets_what_it_would_get_if_nothing_were_dropped(acts in prop::collection::vec(act(), 1..60)) {
        let mut world = World::new();
        for act in acts {
            match act {
                Act::Say { in_group, told } => world.commit_and_tell(&[world.message(in_group)], told),
                Act::MembersAndSay { which, add, told } => world.change_members_and_say(which, add, told),
                Act::Members { which, add } => world.change_members(which, add),
                Act::Bind(which) => world.bind(which),
                Act::Load => world.load(),
                Act::Unbind { which, settled } => world.unbind(which, settled),
                Act::Turn => world.turn(),
            }
        }
        world.catch_up(&Lane::ALL, None);
        for session in world.sessions.keys().copied().collect::<Vec<_>>() {
            world.check(session, true);
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
    world.catch_up(&Lane::ALL, None);
    assert_eq!(world.heard.0[&1].len(), 1);
    world.unbind(0, true);
    world.say(true);
    assert_eq!(skipped(&world), before + 4);
    world.node.lanes.stop();
}

#[test]
fn a_user_who_leaves_and_rejoins_while_the_shard_is_behind_hears_the_group() {
    let mut world = World::new();
    world.change_members(0, true);
    world.bind(1);
    world.load();
    world.load();
    world.change_members(0, false);
    world.unbind(1, false);
    world.change_members(0, true);
    world.bind(1);
    world.load();
    world.load();
    world.say(true);
    world.catch_up(&Lane::ALL, None);
    world.check(2, true);
    world.node.lanes.stop();
}

#[test]
fn what_came_without_its_content_is_read_from_the_log_once_a_session_may_see_it() {
    let mut world = World::new();
    let counts = |world: &World| {
        let cluster = &world.node.follower.metrics.cluster;
        (cluster.content_missing.get(), cluster.read_back.get(), cluster.skipped.get())
    };
    let (.., skipped) = counts(&world);
    world.commit_and_tell(&[world.message(true), world.message(false)], Told::WithoutContent);
    assert_eq!(counts(&world), (0, 0, skipped + 2), "nobody is here");
    world.bind(0);
    world.commit_and_tell(&[world.message(false)], Told::WithoutContent);
    assert_eq!(counts(&world), (0, 0, skipped + 3), "neither b nor c is");
    world.commit_and_tell(&[world.message(true)], Told::WithoutContent);
    assert_eq!(counts(&world), (1, 1, skipped + 3), "it may be of a group of the user, whose groups are being read");
    world.load();
    world.load();
    world.commit_and_tell(&[world.message(false), world.message(true)], Told::WithoutContent);
    assert_eq!(counts(&world), (2, 3, skipped + 4), "all of the commit is read");
    world.catch_up(&Lane::ALL, None);
    world.check(1, true);
    world.node.lanes.stop();
}
