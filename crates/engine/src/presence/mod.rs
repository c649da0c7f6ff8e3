//! Who is online: the registry of sessions, and the nodes that hold them.
//!
//! ```text
//! shards ─ register, unregister ─▶ registry ─▶ grace ─▶ changes, coalesced ─┬▶ watchers' sessions
//!                                     ▲                                     ├▶ the observer
//! nodes ─ attach, renew ──────────────┘ leases                              └▶ last seen, stored
//! ```
//! Only the process that holds a connection knows whether its session lives; the registry has what that process
//! reported. The two can differ after a defect, a lost link or a crash. So a session counts only
//! while its node's lease runs, and [`compare`] finds and repairs the other differences.
//!
//! In reading order: this file, `registry` (the sessions), [`nodes`] (leases), `changes` (which changes are announced,
//! and when), [`watching`] (the sessions that watch users), [`worker`] (the thread that announces),
//! [`observer`] (who hands changes on to the app), [`compare`], `requests` and `watch_requests` (what callers ask); then the parts for several nodes: `deltas` (the changes that other nodes are yet to be sent),
//! `snapshot` (all sessions, a chunk at a time), `peers` (the sessions of other nodes). [`crate::cluster::presence`]
//! carries them.

mod changes;
pub mod compare;
pub(crate) mod deltas;
pub mod nodes;
pub mod observer;
pub(crate) mod peers;
mod registry;
mod requests;
pub(crate) mod snapshot;
mod watch_requests;
pub mod watching;
pub(crate) mod worker;

use changes::{Away, ChangeQueue};
pub use changes::{Change, PresenceConfig};
use deltas::{Delta, DeltaQueue, SessionRecord};
use nodes::Nodes;
pub use nodes::{NodeNo, NodeRecord};
use observer::PresenceObserver;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use registry::{Arrival, Departure, Registered, Registry};
use smallvec::SmallVec;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};
use tidings_domain::model::UserNo;
use watching::Watchers;

/// A live session as presence knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PresenceSession {
    /// The session's number at the core that numbers it.
    pub session: u64,
    pub node: NodeNo,
    pub device_id: Arc<str>,
    pub device_kind: Arc<str>,
    pub since: u64,
    /// Whether the session receives messages. A session for pushes alone never holds back the offline push of a
    /// message.
    pub chat: bool,
    /// The client has said that nobody looks at it. Such a session is sent messages and does not hold back their offline push.
    pub background: bool,
}

/// How many sessions a user may have at once, on all nodes together. The latest stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionLimits {
    /// Sessions of one device kind.
    pub per_kind: usize,
    pub per_user: usize,
}

/// Users whose last-seen time is cached after their last session has ended.
const LAST_SEEN_ENTRIES: usize = 100_000;
/// Last-seen times that wait while the store is unavailable. Above, further ones are dropped: after a
/// restart, such a user shows an older last-seen time.
const UNSAVED_MAX: usize = 1_000_000;

type PresenceSessions = SmallVec<[PresenceSession; 1]>;

/// The presence of all users, as this node knows it.
pub struct Presence {
    registry: Registry,
    /// Last-seen times that are not stored yet.
    unsaved: Mutex<BTreeMap<UserNo, u64>>,
    /// A cache of last-seen times.
    last_seen: Cache<UserNo, u64>,
    sessions: AtomicU64,
    pub nodes: Nodes,
    changes: Mutex<ChangeQueue>,
    watchers: Mutex<Watchers>,
    /// Held while states are read and sent to watchers, so that no session gets an old state after a newer one.
    notifying: Mutex<()>,
    /// The changes to send to the other nodes of a cluster; absent on a node by itself.
    pub(crate) deltas: Option<DeltaQueue>,
    /// Absent: nobody hands changes on.
    observer: OnceLock<Arc<dyn PresenceObserver>>,
    /// Whether a node lives whose sessions are not known here: users who are gone may be there.
    has_unheard_node: AtomicBool,
    /// Whether another node has reported that it leads.
    had_leader: AtomicBool,
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
            notifying: Mutex::default(),
            deltas: None,
            observer: OnceLock::new(),
            has_unheard_node: AtomicBool::new(false),
            had_leader: AtomicBool::new(false),
            config,
        }
    }

    /// Has the observer take all changes that are announced from now on. There is one.
    pub fn set_observer(&self, observer: Arc<dyn PresenceObserver>) {
        let _ = self.observer.set(observer);
    }

    /// The shared copy of a device kind's name.
    pub fn kind(&self, kind: &str) -> Arc<str> {
        self.registry.kind(kind.trim_end_matches([deltas::PUSH_ONLY, deltas::BACKGROUND]))
    }

    /// Registers a session of this core, or updates a registered one. Only the user's own shard calls this; it is
    /// answered the time since which the session counts.
    pub fn register(&self, user: UserNo, entry: PresenceSession) -> u64 {
        let (node, session) = (entry.node, entry.session);
        let record = self.deltas.is_some().then(|| SessionRecord::of(user, entry.clone()));
        // Queue the change under the stripe's lock: otherwise the later of two changes could be queued first.
        let Registered { arrival, since, .. } = self.registry.arrive(user, entry, |registered| {
            self.record_arrival(user, registered);
            let Registered { arrival, since, stamp, .. } = *registered;
            if let Some((deltas, record)) = self.deltas.as_ref().zip(record) {
                deltas.put(Delta::Arrived(SessionRecord { since, ..record }), |digest| {
                    if let Arrival::Again { stamp: before, .. } = arrival {
                        digest.remove(user, session, before);
                    }
                    digest.add(user, session, stamp);
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

    /// Notes whether somebody looks at a session of this core, if it is registered. Only the user's own shard calls this.
    pub fn set_background(&self, user: UserNo, session: u64, background: bool) {
        if let Some(known) = self.find(user, session).filter(|known| known.background != background) {
            self.register(user, PresenceSession { background, ..known });
        }
    }

    /// Queues what a new or changed session changes for others. The caller holds the lock of the user's stripe.
    fn record_arrival(&self, user: UserNo, registered: &Registered) {
        let activity = registered.activity;
        if registered.arrival == Arrival::First {
            self.changes.lock().user_online(user, activity.after);
        } else if activity.before != activity.after {
            self.changes.lock().activity_changed(user);
        }
    }

    /// Unregisters a session of this core, if it is registered.
    pub fn unregister(&self, user: UserNo, session: u64, now_ms: u64) {
        let gone = {
            let mut stripe = self.registry.stripe(user).write();
            let Some(gone) = stripe.leave(user, NodeNo(0), session) else { return };
            self.record_end(user, &gone, now_ms, now_ms);
            if let Some(deltas) = &self.deltas {
                let left = Delta::Left { user, session, at: now_ms };
                deltas.put(left, |digest| digest.remove(user, session, gone.stamp));
            }
            gone
        };
        self.sessions.fetch_sub(1, Ordering::Relaxed);
        self.nodes.count(gone.node, -1);
    }

    /// Records that a session ended at `at`, by the clock of the node that held it. The caller holds the lock of the
    /// user's stripe.
    fn record_end(&self, user: UserNo, gone: &Departure, at: u64, now_ms: u64) {
        let Departure { was_last, activity, .. } = *gone;
        // Nodes learn of ends in different orders, and must still agree on the last one.
        let before = self.deltas.as_ref().and_then(|_| self.last_seen.get(&user));
        let at = before.map_or(at, |before| before.max(at));
        if was_last || self.deltas.is_some() {
            self.last_seen.insert(user, at);
        }
        if was_last {
            let away = Away { since: at, was_active: activity.before };
            self.changes.lock().user_offline(user, away, now_ms, self.config.grace_ms);
        } else if activity.before != activity.after {
            self.changes.lock().activity_changed(user);
        }
    }

    /// Whether the user has a session on a node whose lease runs.
    pub fn is_online(&self, user: UserNo) -> bool {
        self.registry.any_session(user, |node, _| self.nodes.is_alive(node), || false)
    }

    /// Whether the user has a session that receives messages and that somebody looks at. Without one, messages are pushed
    /// offline.
    pub fn is_active(&self, user: UserNo) -> bool {
        self.registry.any_session(user, |node, is_active| is_active && self.nodes.is_alive(node), || false)
    }

    /// The same, beside this session of this core, which does not answer.
    pub fn is_active_elsewhere(&self, user: UserNo, session: u64) -> bool {
        let is_active = |entry: &PresenceSession| entry.chat && !entry.background;
        let counts = |entry: &PresenceSession| is_active(entry) && (entry.node.is_peer() || entry.session != session);
        self.sessions_of(user).iter().any(counts)
    }

    /// Whether the user counts as active for others: during the grace as before it.
    pub fn counts_as_active(&self, user: UserNo) -> bool {
        let counts = |node, is_active| is_active && self.nodes.is_alive(node);
        self.registry.any_session(user, counts, || self.changes.lock().away(user).is_some_and(|away| away.was_active))
    }

    /// Whether the user counts as online for others: also during the grace after the last session. Watchers get no
    /// further state until this changes.
    pub fn counts_as_online(&self, user: UserNo) -> bool {
        let alive = |node, _| self.nodes.is_alive(node);
        self.registry.any_session(user, alive, || self.changes.lock().away(user).is_some())
    }

    /// The user's sessions on nodes whose lease runs.
    pub fn sessions_of(&self, user: UserNo) -> PresenceSessions {
        let mut entries = self.registry.sessions_of(user);
        entries.retain(|entry| self.nodes.is_alive(entry.node));
        entries
    }

    /// The registered sessions of the user on this core, even those on nodes whose lease is over.
    pub fn local_sessions(&self, user: UserNo) -> PresenceSessions {
        let mut entries = self.registry.sessions_of(user);
        entries.retain(|entry| !entry.node.is_peer());
        entries
    }

    fn find(&self, user: UserNo, session: u64) -> Option<PresenceSession> {
        self.local_sessions(user).into_iter().find(|entry| entry.session == session)
    }

    /// When the user's last session ended, if memory has it; otherwise the store may.
    pub fn last_seen(&self, user: UserNo) -> Option<u64> {
        let pending = self.changes.lock().away(user).map(|away| away.since);
        pending.or_else(|| self.unsaved.lock().get(&user).copied()).or_else(|| self.last_seen.get(&user))
    }

    /// The number of registered sessions of this core.
    pub fn session_count(&self) -> u64 {
        self.sessions.load(Ordering::Relaxed)
    }

    /// The number of users with a registered session on any node.
    pub fn user_count(&self) -> usize {
        self.registry.user_count()
    }

    /// The number of watches: pairs of a session and a user whom it watches.
    pub fn watches(&self) -> usize {
        self.watchers.lock().watches()
    }

    /// Calls `look` with every registered session of this core: its user, its number and its node.
    pub fn each_local(&self, mut look: impl FnMut(UserNo, u64, NodeNo)) {
        self.registry.each(|user, session, node| {
            if !node.is_peer() {
                look(user, session, node);
            }
        });
    }

    /// Queues last-seen times for the store.
    fn put_unsaved(&self, times: impl Iterator<Item = (UserNo, u64)>) {
        let mut unsaved = self.unsaved.lock();
        for (user, at) in times {
            if unsaved.len() < UNSAVED_MAX || unsaved.contains_key(&user) {
                unsaved.insert(user, at);
            }
        }
    }
}
