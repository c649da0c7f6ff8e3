//! What a node does about what it hears, without threads, sockets or clocks.

use super::{Said, What};
use crate::{
    cluster::log::NodeInfo,
    metrics::ClusterMetrics,
    model::UserNo,
    presence::{
        Presence,
        news::{Delta, Taken, Tally},
        shared::Peer,
        stretches::Place,
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

/// Sessions in one message: some 50 kB.
const SESSIONS_PER_MESSAGE: usize = if cfg!(test) { 3 } else { 500 };
/// Between stretches: what else is said goes between them, and the bus is not filled. 100,000 sessions take a second.
const STRETCH_EVERY: Duration = Duration::from_millis(5);
const BEAT_EVERY: Duration = Duration::from_secs(1);
/// What was asked for and did not come, or stopped coming, is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// A node heard so lately runs, although its lease in the store is over: the store may have been away.
const HEARD_LATELY: Duration = Duration::from_secs(3);

/// Whether what we have of a peer is what it said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Nothing was heard of it that could be compared.
    New,
    Even,
    Asked {
        at: Instant,
    },
    /// The next part of all its sessions is awaited.
    Receiving {
        part: u32,
        at: Instant,
    },
}

struct Other {
    node: NodeInfo,
    peer: Peer,
    standing: Standing,
    /// The number of the next changes.
    next: u64,
    /// It was even before: what a stretch changes now had gone wrong.
    was_even: bool,
    heard: Option<Instant>,
    /// Its lease is over since.
    missing: Option<Instant>,
}

/// All sessions, on their way to those who asked.
struct Telling {
    to: Vec<Arc<str>>,
    number: u64,
    part: u32,
    place: Place,
    next: Instant,
}

/// What surrounds a step of the exchange.
pub(super) struct Around<'a> {
    pub presence: &'a Presence,
    pub metrics: &'a ClusterMetrics,
    pub now: Instant,
    pub now_ms: u64,
    /// This node leads.
    pub leads: bool,
    pub sessions_per_kind: usize,
}

#[derive(Debug)]
pub(super) enum To {
    /// Every other node.
    All,
    Some(Vec<Arc<str>>),
}

/// What is to be done.
#[derive(Debug)]
pub(super) enum Act {
    Say(To, Said),
    /// An own session ends: another node has a later one in its place.
    Replace(UserNo, u64),
}

/// How much of the others' sessions is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    All,
    /// Some of it is on its way, or it is not known yet who the others are.
    Coming,
    /// Somebody has not said anything yet.
    Silence,
}

pub(super) struct Exchange {
    me: NodeInfo,
    lease: Duration,
    others: BTreeMap<String, Other>,
    /// The store has told who the others are.
    has_seen: bool,
    /// The number of the last changes said, and the sum with them.
    number: u64,
    tally: Tally,
    beat: Instant,
    asked: BTreeSet<Arc<str>>,
    telling: Option<Telling>,
    acts: Vec<Act>,
}

impl Exchange {
    pub(super) fn new(me: NodeInfo, lease: Duration, now: Instant) -> Self {
        Exchange {
            me,
            lease,
            others: BTreeMap::new(),
            has_seen: false,
            number: 0,
            tally: Tally::default(),
            beat: now,
            asked: BTreeSet::new(),
            telling: None,
            acts: Vec::new(),
        }
    }

    pub(super) fn take_acts(&mut self) -> Vec<Act> {
        std::mem::take(&mut self.acts)
    }

    fn say(&mut self, to: To, what: What) {
        let said = Said { from: self.me.name.clone(), boot_id: self.me.boot_id, what };
        self.acts.push(Act::Say(to, said));
    }

    fn say_to(&mut self, name: &str, what: What) {
        self.say(To::Some(vec![name.into()]), what);
    }

    fn own_beat(&self, around: &Around<'_>) -> What {
        let behind_ms = around.leads.then(|| around.presence.behind_ms(around.now_ms));
        What::Beat { number: self.number, tally: self.tally, behind_ms }
    }

    /// Who is in the cluster now, by the leases in the store.
    pub(super) fn see(&mut self, nodes: &[NodeInfo], around: &Around<'_>) {
        self.has_seen = true;
        let others = || nodes.iter().filter(|node| node.name != self.me.name);
        let is_there = |other: &Other| others().any(|node| node.boot_id == other.node.boot_id);
        let mut gone = Vec::new();
        for (name, other) in &mut self.others {
            if is_there(other) {
                other.missing = None;
                continue;
            }
            let missing = *other.missing.get_or_insert(around.now);
            let has_successor = others().any(|node| node.name == *name);
            let was_heard = other.heard.is_some_and(|heard| around.now < heard + HEARD_LATELY);
            if has_successor || !was_heard || around.now >= missing + self.lease {
                gone.push(name.clone());
            }
        }
        for name in gone {
            if let Some(other) = self.others.remove(&name) {
                tracing::info!(name, boot_id = other.node.boot_id, "a node is gone, and its sessions with it");
                around.presence.peer_gone(other.peer, around.now_ms);
            }
        }
        let is_new = |node: &&NodeInfo| node.name != self.me.name && !self.others.contains_key(&node.name);
        let new: Vec<NodeInfo> = nodes.iter().filter(is_new).cloned().collect();
        for node in new {
            let (name, boot_id) = (node.name.clone(), node.boot_id);
            let node_no = around.presence.nodes.attach_peer(&name, boot_id, around.now_ms);
            let (peer, standing) = (Peer::new(node_no), Standing::New);
            let other = Other { node, peer, standing, next: 1, was_even: false, heard: None, missing: None };
            self.others.insert(name.clone(), other);
            // Whichever of the two knows the other last says both.
            self.say_to(&name, What::Look);
            let beat = self.own_beat(around);
            self.say_to(&name, beat);
        }
    }

    /// Whether what is said comes from a node that is known: else whoever is there must be looked up.
    pub(super) fn knows(&self, said: &Said) -> bool {
        self.others.get(&said.from).is_some_and(|other| other.node.boot_id == said.boot_id)
    }

    pub(super) fn hear(&mut self, said: Said, around: &Around<'_>) {
        let Said { from, boot_id, what } = said;
        let Some(other) = self.others.get_mut(&from).filter(|other| other.node.boot_id == boot_id) else { return };
        other.heard = Some(around.now);
        let changed_before = other.peer.changed;
        let mut ask = false;
        match what {
            What::Look => {
                let beat = self.own_beat(around);
                self.say_to(&from, beat);
                return;
            }
            What::Ask => {
                self.asked.insert(from.as_str().into());
                return;
            }
            What::Beat { number, tally, behind_ms } => {
                if let Some(behind_ms) = behind_ms.filter(|_| !around.leads) {
                    around.presence.leave_to_leader(around.now_ms, behind_ms);
                }
                ask = other.compare(number, tally);
            }
            What::Changes { number, deltas } => {
                ask = number != other.next && !matches!(other.standing, Standing::New | Standing::Asked { .. });
                other.next = number + 1;
                for delta in deltas {
                    match delta {
                        Delta::Arrived(arrived) => around.presence.peer_arrived(&mut other.peer, arrived),
                        Delta::Left { user, session, at } => {
                            around.presence.peer_left(&mut other.peer, user, session, at, around.now_ms);
                        }
                    }
                }
            }
            What::Stretch { number, part, from, to, sessions } => {
                match other.standing {
                    _ if part == 0 => other.next = number + 1,
                    Standing::Receiving { part: next, .. } if next == part => {}
                    // A part was lost, or changes: this one is still true.
                    Standing::Receiving { .. } | Standing::Even => ask = true,
                    Standing::New | Standing::Asked { .. } => {}
                }
                let is_next =
                    part == 0 || matches!(other.standing, Standing::Receiving { part: next, .. } if next == part);
                around.presence.peer_stretch(&mut other.peer, (from, to), sessions, around.now_ms);
                if is_next {
                    let goes_on = Standing::Receiving { part: part + 1, at: around.now };
                    other.standing = if to == Place::END { Standing::Even } else { goes_on };
                }
                if other.was_even {
                    around.metrics.presence_repaired.inc_by(other.peer.changed - changed_before);
                }
                other.was_even |= other.standing == Standing::Even;
            }
        }
        if ask {
            other.standing = Standing::Asked { at: around.now };
        }
        let came = std::mem::take(&mut other.peer.came);
        if ask {
            self.say_to(&from, What::Ask);
        }
        for user in came {
            let outranked = around.presence.outranked(user, around.sessions_per_kind);
            self.acts.extend(outranked.into_iter().map(|session| Act::Replace(user, session)));
        }
    }

    /// Something may have been lost. Mostly nothing was: a beat tells.
    pub(super) fn missed(&mut self, around: &Around<'_>) {
        self.say(To::All, What::Look);
        let beat = self.own_beat(around);
        self.say(To::All, beat);
        let waits = |standing: Standing| matches!(standing, Standing::Asked { .. } | Standing::Receiving { .. });
        let waiting = self.others.iter_mut().filter(|(_, other)| waits(other.standing));
        let waiting: Vec<String> = waiting
            .map(|(name, other)| {
                other.standing = Standing::Asked { at: around.now };
                name.clone()
            })
            .collect();
        waiting.iter().for_each(|name| self.say_to(name, What::Ask));
    }

    /// Whether all that the other nodes have was heard once, and whether some of it is coming.
    pub(super) fn progress(&self) -> Progress {
        let is_receiving = |other: &Other| matches!(other.standing, Standing::Receiving { .. });
        match () {
            // Others may be heard before the store has told of them.
            () if !self.has_seen => Progress::Coming,
            () if self.others.values().all(|other| other.was_even) => Progress::All,
            () if self.others.values().any(is_receiving) => Progress::Coming,
            () => Progress::Silence,
        }
    }

    /// Says what has come and gone here.
    pub(super) fn tell(&mut self, taken: Taken) {
        self.tally = taken.tally;
        if taken.overflowed {
            // A hole, which the others notice.
            self.number += 1;
        }
        let mut deltas = taken.deltas.into_iter().peekable();
        while deltas.peek().is_some() {
            self.number += 1;
            let deltas = deltas.by_ref().take(SESSIONS_PER_MESSAGE).collect();
            self.say(To::All, What::Changes { number: self.number, deltas });
        }
    }

    /// What time has come for.
    pub(super) fn tick(&mut self, around: &Around<'_>) {
        let is_late = |standing: Standing| match standing {
            Standing::Asked { at } | Standing::Receiving { at, .. } => around.now >= at + ASK_AGAIN,
            Standing::New | Standing::Even => false,
        };
        let mut late = Vec::new();
        for (name, other) in self.others.iter_mut().filter(|(_, other)| is_late(other.standing)) {
            other.standing = Standing::Asked { at: around.now };
            late.push(name.clone());
        }
        late.iter().for_each(|name| self.say_to(name, What::Ask));
        if around.now >= self.beat {
            self.beat = around.now + BEAT_EVERY;
            let beat = self.own_beat(around);
            self.say(To::All, beat);
        }
        self.tell_all(around);
    }

    fn tell_all(&mut self, around: &Around<'_>) {
        if self.telling.is_none() && !self.asked.is_empty() {
            around.metrics.presence_snapshots.inc();
            let to = std::mem::take(&mut self.asked).into_iter().collect();
            let (number, place) = (self.number, Place::default());
            self.telling = Some(Telling { to, number, part: 0, place, next: around.now });
        }
        let Some(telling) = self.telling.as_mut().filter(|telling| around.now >= telling.next) else { return };
        let (sessions, to) = around.presence.own_stretch(telling.place, SESSIONS_PER_MESSAGE);
        let (number, part, from) = (telling.number, telling.part, telling.place);
        let names = telling.to.clone();
        (telling.part, telling.place, telling.next) = (part + 1, to, around.now + STRETCH_EVERY);
        if to == Place::END {
            self.telling = None;
        }
        self.say(To::Some(names), What::Stretch { number, part, from, to, sessions });
    }

    #[cfg(test)]
    pub(super) fn is_telling(&self) -> bool {
        self.telling.is_some() || !self.asked.is_empty()
    }

    /// When there may be something to do at the latest, news and what is heard aside.
    pub(super) fn due(&self) -> Instant {
        let telling = self.telling.as_ref().map(|telling| telling.next);
        telling.map_or(self.beat, |telling| telling.min(self.beat))
    }
}

impl Other {
    /// Whether its sessions are to be asked for.
    fn compare(&mut self, number: u64, tally: Tally) -> bool {
        let is_next = self.next == number + 1;
        match self.standing {
            Standing::Receiving { .. } => !is_next,
            // The same sessions are the same sessions, whatever was lost on the way.
            _ if tally == self.peer.tally => {
                (self.next, self.standing, self.was_even) = (number + 1, Standing::Even, true);
                false
            }
            Standing::New | Standing::Even => true,
            Standing::Asked { .. } => false,
        }
    }
}
