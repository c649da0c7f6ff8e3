//! Who is online: the registry of sessions, and the nodes that hold them.
//!
//! ```text
//! shards ─ arrived, left ─▶ registry ─▶ grace ─▶ changes, coalesced ─┬▶ watchers' sessions
//!                              ▲                                     ├▶ webhook
//! nodes ─ attach, renew ───────┘ leases                              └▶ last seen, stored
//! ```
//! A session is a fact of the process that holds its connection; the registry is what others are told
//! of it. The two can differ after a defect, a lost link or a process that died: a session counts only
//! while its node's lease runs, and [`compare`] finds and repairs what still differs.
//!
//! In reading order: this file, `registry` (the sessions), [`nodes`] (leases), `changes` (what is
//! announced, and when), [`watching`] (who wants to know), [`worker`] (the thread that tells), `hook` (the
//! webhook), [`compare`]; then what several nodes need of it: `news` (what others are yet to be told), `stretches`
//! (all sessions, a piece at a time), `shared` (those of others). [`crate::cluster::presence`] carries it.

mod changes;
pub mod compare;
mod hook;
pub(crate) mod news;
pub mod nodes;
mod registry;
pub(crate) mod shared;
pub(crate) mod stretches;
pub mod watching;
pub(crate) mod worker;

use crate::model::UserNo;
use changes::Changes;
pub use changes::{Change, PresenceConfig};
use news::{Arrived, Delta, News};
use nodes::Nodes;
pub use nodes::{NodeCard, NodeNo};
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use registry::{Arrival, Registry};
use smallvec::SmallVec;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};
use watching::Watchers;

/// One live session, as others may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    pub session: u64,
    pub node: NodeNo,
    pub device_id: Arc<str>,
    pub device_kind: Arc<str>,
    pub since: u64,
    /// Messages come to it. One that is there for pushes alone never keeps a message from being told otherwise.
    pub chat: bool,
}

/// Users whose last session ended lately and whose last-seen time need not be read.
const LAST_SEEN_ENTRIES: usize = 100_000;
/// Last-seen times that wait to be stored while the store cannot. Above, further ones are not: after a
/// restart such a user was last seen some time before.
const UNSAVED_MAX: usize = 1_000_000;

type Devices = SmallVec<[Device; 1]>;

pub struct Presence {
    registry: Registry,
    /// Times that the store does not have yet; then those that need not be read.
    unsaved: Mutex<BTreeMap<UserNo, u64>>,
    last_seen: Cache<UserNo, u64>,
    sessions: AtomicU64,
    pub nodes: Nodes,
    changes: Mutex<Changes>,
    watchers: Mutex<Watchers>,
    /// Held while states are read and told, so that no session hears an old one after a newer one.
    telling: Mutex<()>,
    /// For the other nodes of a cluster.
    pub(crate) news: Option<News>,
    /// For the webhook.
    untold: Mutex<hook::Waiting>,
    /// Another node told that it leads.
    led: AtomicBool,
    config: PresenceConfig,
}

impl Presence {
    pub fn new(config: PresenceConfig) -> Self {
        Presence {
            registry: Registry::default(),
            unsaved: Mutex::default(),
            last_seen: Cache::new(LAST_SEEN_ENTRIES),
            sessions: AtomicU64::new(0),
            nodes: Nodes::default(),
            changes: Mutex::default(),
            watchers: Mutex::default(),
            telling: Mutex::default(),
            news: None,
            untold: Mutex::default(),
            led: AtomicBool::new(false),
            config,
        }
    }

    /// The one copy of a device kind.
    pub fn kind(&self, kind: &str) -> Arc<str> {
        self.registry.kind(kind.trim_end_matches(news::PUSH_ONLY))
    }

    /// A session of this core is there; told again, it is as it was told last. The user's own shard tells, and is
    /// answered since when the session counts.
    pub fn arrived(&self, user: UserNo, device: Device) -> u64 {
        let (node, session) = (device.node, device.session);
        let of_news = self.news.is_some().then(|| Arrived::of(user, device.clone()));
        // Changes are told under the stripe's lock, or the last of two could be told first.
        let (arrival, since) = self.registry.arrive(user, device, |arrival, since| {
            if arrival == Arrival::First {
                self.changes.lock().came(user);
            }
            if let Some((news, arrived)) = self.news.as_ref().zip(of_news) {
                news.put(Delta::Arrived(Arrived { since, ..arrived }), |tally| {
                    if let Arrival::Again { since: before, .. } = arrival {
                        tally.remove(user, session, before);
                    }
                    tally.add(user, session, since);
                });
            }
        });
        self.nodes.count(node, 1);
        match arrival {
            Arrival::Again { node: before, .. } => self.nodes.count(before, -1),
            Arrival::First | Arrival::Further => drop(self.sessions.fetch_add(1, Ordering::Relaxed)),
        }
        since
    }

    /// A session of this core has ended; nothing if it was not there.
    pub fn left(&self, user: UserNo, session: u64, now_ms: u64) {
        let gone = {
            let mut stripe = self.registry.stripe(user).write();
            let Some(gone) = stripe.leave(user, NodeNo(0), session) else { return };
            self.note_end(user, gone.was_last, now_ms, now_ms);
            if let Some(news) = &self.news {
                let left = Delta::Left { user, session, at: now_ms };
                news.put(left, |tally| tally.remove(user, session, gone.since));
            }
            gone
        };
        self.sessions.fetch_sub(1, Ordering::Relaxed);
        self.nodes.count(gone.node, -1);
    }

    /// A session ended at `at`, by the clock of the node that held it. Under the lock of the user's stripe.
    fn note_end(&self, user: UserNo, was_last: bool, at: u64, now_ms: u64) {
        // Nodes hear of ends in different orders, and must still agree on which was the last.
        let before = self.news.as_ref().and_then(|_| self.last_seen.get(&user));
        let at = before.map_or(at, |before| before.max(at));
        if was_last || self.news.is_some() {
            self.last_seen.insert(user, at);
        }
        if was_last {
            self.changes.lock().went(user, at, now_ms, self.config.grace_ms);
        }
    }

    /// Whether the user has a session now, on a node whose lease runs.
    pub fn is_online(&self, user: UserNo) -> bool {
        self.registry.is_there(user, |node, _| self.nodes.is_alive(node), || false)
    }

    /// Whether the user has a session now that messages come to: who has only others hears of them by offline push.
    pub fn takes_messages(&self, user: UserNo) -> bool {
        self.registry.is_there(user, |node, chat| chat && self.nodes.is_alive(node), || false)
    }

    /// The same but for one session of this core, which does not answer.
    pub fn takes_messages_beside(&self, user: UserNo, session: u64) -> bool {
        let counts = |device: &Device| device.chat && (device.node.is_peer() || device.session != session);
        self.devices(user).iter().any(counts)
    }

    /// Whether the user counts as online for others, who hear no more until that changes: one who has
    /// just gone does until the grace is over.
    pub fn counts_as_online(&self, user: UserNo) -> bool {
        let alive = |node, _| self.nodes.is_alive(node);
        self.registry.is_there(user, alive, || self.changes.lock().away_since(user).is_some())
    }

    /// The user's sessions on nodes whose lease runs.
    pub fn devices(&self, user: UserNo) -> Devices {
        let mut devices = self.registry.devices(user);
        devices.retain(|device| self.nodes.is_alive(device.node));
        devices
    }

    /// The user's sessions of this core as they are registered, whatever has become of their nodes.
    pub fn registered(&self, user: UserNo) -> Devices {
        let mut devices = self.registry.devices(user);
        devices.retain(|device| !device.node.is_peer());
        devices
    }

    fn find(&self, user: UserNo, session: u64) -> Option<Device> {
        self.registered(user).into_iter().find(|device| device.session == session)
    }

    /// When the last session ended, if that was lately; else the store knows.
    pub fn last_seen(&self, user: UserNo) -> Option<u64> {
        let pending = self.changes.lock().away_since(user);
        pending.or_else(|| self.unsaved.lock().get(&user).copied()).or_else(|| self.last_seen.get(&user))
    }

    /// Registered sessions of this core.
    pub fn sessions(&self) -> u64 {
        self.sessions.load(Ordering::Relaxed)
    }

    /// Users with a registered session, wherever.
    pub fn users(&self) -> usize {
        self.registry.users()
    }

    /// Users whom sessions watch, each once for each session.
    pub fn watches(&self) -> usize {
        self.watchers.lock().watches()
    }

    /// Calls `look` with every registered session of this core: its user, its number and its node.
    pub fn each(&self, mut look: impl FnMut(UserNo, u64, NodeNo)) {
        self.registry.each(|user, session, node| {
            if !node.is_peer() {
                look(user, session, node);
            }
        });
    }

    /// Puts times aside for the store.
    fn put_unsaved(&self, times: impl Iterator<Item = (UserNo, u64)>) {
        let mut unsaved = self.unsaved.lock();
        for (user, at) in times {
            if unsaved.len() < UNSAVED_MAX || unsaved.contains_key(&user) {
                unsaved.insert(user, at);
            }
        }
    }
}
