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
//! In reading order: this file (the registry), [`nodes`] (leases), [`changes`] (what is announced, and
//! when), [`watching`] (who wants to know), [`worker`] (the thread that tells), [`compare`].

mod changes;
pub mod compare;
pub mod nodes;
pub mod watching;
pub(crate) mod worker;

use crate::model::UserNo;
use changes::Changes;
pub use changes::{Change, PresenceConfig};
use nodes::Nodes;
pub use nodes::{NodeCard, NodeNo};
use parking_lot::{Mutex, RwLock};
use quick_cache::sync::Cache;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
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
}

/// Users whose last session ended lately and whose last-seen time need not be read.
const LAST_SEEN_ENTRIES: usize = 100_000;
const STRIPES: usize = 64;
/// Words for kinds of devices that are kept once. Further ones are kept by each session.
const KINDS_MAX: usize = 1_024;
/// A map that has room for this many times what it holds gives it back.
const SPARE_FACTOR: usize = 4;

type Sessions = SmallVec<[Device; 1]>;
type Stripe = RwLock<FxHashMap<UserNo, Sessions>>;

pub struct Presence {
    stripes: Vec<Stripe>,
    last_seen: Cache<UserNo, u64>,
    sessions: AtomicU64,
    kinds: RwLock<FxHashSet<Arc<str>>>,
    pub nodes: Nodes,
    changes: Mutex<Changes>,
    watchers: Mutex<Watchers>,
    config: PresenceConfig,
}

impl Presence {
    pub fn new(config: PresenceConfig) -> Self {
        Presence {
            stripes: (0..STRIPES).map(|_| Stripe::default()).collect(),
            last_seen: Cache::new(LAST_SEEN_ENTRIES),
            sessions: AtomicU64::new(0),
            kinds: RwLock::default(),
            nodes: Nodes::default(),
            changes: Mutex::default(),
            watchers: Mutex::default(),
            config,
        }
    }

    fn stripe(&self, user: UserNo) -> &Stripe {
        &self.stripes[user.0 as usize % STRIPES]
    }

    /// The one copy of a device kind: there are few, and a million sessions name them.
    pub fn kind(&self, kind: &str) -> Arc<str> {
        if let Some(known) = self.kinds.read().get(kind) {
            return known.clone();
        }
        let kind: Arc<str> = kind.into();
        let mut kinds = self.kinds.write();
        if kinds.len() < KINDS_MAX {
            kinds.insert(kind.clone());
        }
        kind
    }

    pub fn arrived(&self, user: UserNo, device: Device) {
        let node = device.node;
        let first = {
            let mut stripe = self.stripe(user).write();
            let sessions = stripe.entry(user).or_default();
            sessions.push(device);
            sessions.len() == 1
        };
        self.sessions.fetch_add(1, Ordering::Relaxed);
        self.nodes.count(node, 1);
        if first {
            self.changes.lock().came(user);
        }
    }

    pub fn left(&self, user: UserNo, session: u64, now_ms: u64) {
        let (gone, last) = {
            let mut stripe = self.stripe(user).write();
            let Some(sessions) = stripe.get_mut(&user) else { return };
            let Some(at) = sessions.iter().position(|d| d.session == session) else { return };
            let gone = sessions.remove(at);
            let last = sessions.is_empty();
            if last {
                stripe.remove(&user);
                if stripe.capacity() > STRIPES && stripe.capacity() / SPARE_FACTOR > stripe.len() {
                    stripe.shrink_to_fit();
                }
            }
            (gone, last)
        };
        self.sessions.fetch_sub(1, Ordering::Relaxed);
        self.nodes.count(gone.node, -1);
        if last {
            self.last_seen.insert(user, now_ms);
            self.changes.lock().went(user, now_ms, self.config.grace_ms);
        }
    }

    pub fn is_online(&self, user: UserNo) -> bool {
        let stripe = self.stripe(user).read();
        stripe.get(&user).is_some_and(|sessions| sessions.iter().any(|device| self.nodes.is_alive(device.node)))
    }

    /// The user's sessions on nodes whose lease runs.
    pub fn devices(&self, user: UserNo) -> Sessions {
        let mut sessions = self.stripe(user).read().get(&user).cloned().unwrap_or_default();
        sessions.retain(|device| self.nodes.is_alive(device.node));
        sessions
    }

    /// The user's sessions as they are registered, whatever has become of their nodes.
    pub fn registered(&self, user: UserNo) -> Sessions {
        self.stripe(user).read().get(&user).cloned().unwrap_or_default()
    }

    /// When the last session ended, if that was lately; else the store knows.
    pub fn last_seen(&self, user: UserNo) -> Option<u64> {
        self.last_seen.get(&user)
    }

    /// Registered sessions.
    pub fn sessions(&self) -> u64 {
        self.sessions.load(Ordering::Relaxed)
    }

    /// Calls `look` with every registered session.
    pub fn each(&self, mut look: impl FnMut(UserNo, &Device)) {
        for stripe in &self.stripes {
            for (user, sessions) in stripe.read().iter() {
                sessions.iter().for_each(|device| look(*user, device));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_costs_little() {
        let bytes = size_of::<UserNo>() + size_of::<Sessions>();
        println!("a user with one session: {bytes} bytes in the registry");
        assert!(bytes <= 80, "{bytes}");
    }
}
