//! The sessions of other nodes: every node has the sessions of all. The exchange between nodes
//! ([`crate::cluster::presence`]) calls this part of the registry.

use super::{
    NodeNo, Presence, PresenceConfig, PresenceSession, SessionLimits,
    deltas::{BACKGROUND, DeltaQueue, Digest, PUSH_ONLY, SessionRecord},
    nodes::Nodes,
    registry::{Arrival, STRIPES},
    snapshot::{SessionChange, SnapshotCursor},
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
};
use tidings_domain::{commit_log::NodeInfo, model::UserNo};

/// How much later than this node the leader announces a change at most, with the difference of their clocks.
const LEADER_MARGIN_MS: u64 = 10_000;

/// Another core, and its sessions in the registry.
#[derive(Debug)]
pub(crate) struct Peer {
    pub node: NodeNo,
    pub digest: Digest,
    /// The number of sessions that were added or removed so far.
    pub changed: u64,
    /// Users with new sessions there since the caller last took them.
    pub arrived: Vec<UserNo>,
}

impl Peer {
    pub(crate) fn new(node: NodeNo) -> Self {
        Peer { node, digest: Digest::default(), changed: 0, arrived: Vec::new() }
    }

    fn entry(&self, presence: &Presence, record: SessionRecord) -> (UserNo, PresenceSession) {
        let SessionRecord { user, session, device_id, device_kind, since } = record;
        let chat = !device_kind.ends_with(PUSH_ONLY);
        let background = device_kind.trim_end_matches(PUSH_ONLY).ends_with(BACKGROUND);
        // Share one copy of the name among all sessions.
        let device_kind = presence.kind(&device_kind);
        (user, PresenceSession { session, node: self.node, device_id, device_kind, since, chat, background })
    }
}

impl Presence {
    /// The presence of one of several nodes.
    pub(crate) fn of_node(config: PresenceConfig, me: &NodeInfo) -> Self {
        let nodes = Nodes::of(&me.name, me.boot_id, &me.address);
        Presence { nodes, deltas: Some(DeltaQueue::default()), ..Presence::new(config) }
    }

    /// Registers a session of another core.
    pub(crate) fn peer_arrived(&self, peer: &mut Peer, record: SessionRecord) {
        let (user, entry) = peer.entry(self, record);
        let session = entry.session;
        self.registry.arrive(user, entry, |registered| {
            self.record_peer_change(peer, user, session, SessionChange::Arrived(*registered), (0, 0));
        });
    }

    /// Unregisters a session of another core, if it is registered. `at` is by that core's clock.
    pub(crate) fn peer_left(&self, peer: &mut Peer, user: UserNo, session: u64, at: u64, now_ms: u64) {
        let mut stripe = self.registry.stripe(user).write();
        if let Some(departure) = stripe.leave(user, peer.node, session) {
            self.record_peer_change(peer, user, session, SessionChange::Left(departure), (at, now_ms));
        }
    }

    /// Replaces another core's sessions in the range of a chunk by those of the chunk.
    pub(crate) fn apply_peer_chunk(
        &self,
        peer: &mut Peer,
        range: (SnapshotCursor, SnapshotCursor),
        records: Vec<SessionRecord>,
        now_ms: u64,
    ) {
        let records: Vec<(UserNo, PresenceSession)> =
            records.into_iter().map(|record| peer.entry(self, record)).collect();
        self.registry.replace(peer.node, range, records, |user, session, change| {
            self.record_peer_change(peer, user, session, change, (now_ms, now_ms));
        });
    }

    /// Removes another core and all its sessions.
    pub(crate) fn peer_gone(&self, mut peer: Peer, now_ms: u64) {
        let node = peer.node;
        self.registry.leave_all(node, |user, session, departure| {
            self.record_peer_change(&mut peer, user, session, SessionChange::Left(departure), (now_ms, now_ms));
        });
        self.nodes.detach_peer(node);
    }

    /// Records a change of another core's session. The caller holds the lock of the user's stripe, so that changes are
    /// recorded in their order.
    fn record_peer_change(
        &self,
        peer: &mut Peer,
        user: UserNo,
        session: u64,
        change: SessionChange,
        (at, now_ms): (u64, u64),
    ) {
        match change {
            SessionChange::Arrived(registered) => {
                if let Arrival::Again { stamp: before, .. } = registered.arrival {
                    peer.digest.remove(user, session, before);
                } else {
                    peer.changed += 1;
                    peer.arrived.push(user);
                    self.nodes.count(peer.node, 1);
                }
                peer.digest.add(user, session, registered.stamp);
                self.record_arrival(user, &registered);
            }
            SessionChange::Left(gone) => {
                peer.digest.remove(user, session, gone.stamp);
                peer.changed += 1;
                self.nodes.count(peer.node, -1);
                self.record_end(user, &gone, at, now_ms);
            }
        }
    }

    /// A chunk of this core's own sessions from the cursor on, of about `limit` sessions, and the cursor after it.
    pub(crate) fn own_chunk(&self, from: SnapshotCursor, limit: usize) -> (Vec<SessionRecord>, SnapshotCursor) {
        let (records, to) = self.registry.own_chunk(from, limit);
        (records.into_iter().map(|(user, entry)| SessionRecord::of(user, entry)).collect(), to)
    }

    /// This core's sessions of a user that must end in favour of other cores': a device has one session, and a device
    /// kind and the user have limited numbers. The latest sessions stay; of two equally late ones, the one on the node with the later
    /// name. Every node comes to the same result, and ends its own sessions.
    pub fn outranked(&self, user: UserNo, limits: SessionLimits) -> SmallVec<[u64; 1]> {
        let mut entries = self.registry.sessions_of(user);
        if !entries.iter().any(|entry| entry.node.is_peer()) {
            return SmallVec::new();
        }
        let name = |entry: &PresenceSession| {
            self.nodes.record(entry.node.core()).map(|record| record.name).unwrap_or_default()
        };
        entries.sort_by_cached_key(|entry| std::cmp::Reverse((entry.since, name(entry), entry.session)));
        let mut kinds: FxHashMap<&str, usize> = FxHashMap::default();
        let mut ids: SmallVec<[&Arc<str>; 4]> = SmallVec::new();
        let mut outranked = SmallVec::new();
        let mut staying = 0;
        for entry in &entries {
            let stays = !ids.contains(&&entry.device_id) && {
                ids.push(&entry.device_id);
                let of_kind = kinds.entry(&entry.device_kind).or_default();
                *of_kind += 1;
                *of_kind <= limits.per_kind && staying < limits.per_user
            };
            staying += usize::from(stays);
            if !stays && !entry.node.is_peer() {
                outranked.push(entry.session);
            }
        }
        outranked
    }

    /// The age of the oldest change that is not handed on or not stored.
    pub(crate) fn behind_ms(&self, now_ms: u64) -> u64 {
        let unsent = self.observer.get().and_then(|observer| observer.oldest_pending());
        let unsaved = self.unsaved.lock().values().min().copied();
        let oldest = unsent.into_iter().chain(unsaved).min();
        oldest.map_or(0, |oldest| now_ms.saturating_sub(oldest))
    }

    /// Discards the changes that the leader has handled: `behind_ms` is the age of its oldest unhandled change. Younger
    /// changes are kept, for the case that this node becomes the leader.
    pub(crate) fn discard_handled(&self, now_ms: u64, behind_ms: u64) {
        self.had_leader.store(true, Ordering::Relaxed);
        let done = now_ms.saturating_sub(behind_ms + LEADER_MARGIN_MS);
        if let Some(observer) = self.observer.get() {
            observer.discard_before(done);
        }
        let gone = done.saturating_sub(self.config.grace_ms);
        self.unsaved.lock().retain(|_, at| *at >= gone);
    }

    /// Whether a node lives whose sessions this node does not know: it has said nothing yet, or nothing that can be read here. As
    /// long as there is one, nobody is reported as gone.
    pub(crate) fn set_has_unheard_node(&self, has_one: bool) {
        self.has_unheard_node.store(has_one, Ordering::Relaxed);
    }

    /// The peers that may have a session of one of these users: a session is registered, or the peer's sessions are not known.
    pub(crate) fn peers_with(&self, users: &[UserNo], peers: &Arc<[Arc<str>]>) -> Arc<[Arc<str>]> {
        if self.has_unheard_node() {
            return peers.clone();
        }
        let sessions = users.iter().flat_map(|user| self.sessions_of(*user));
        let nodes: BTreeSet<NodeNo> = sessions.filter(|entry| entry.chat).map(|entry| entry.node).collect();
        let may_have_one = |name: &&Arc<str>| {
            let known = self.nodes.peers_named(name);
            known.is_empty() || known.iter().any(|node| nodes.contains(node))
        };
        peers.iter().filter(may_have_one).cloned().collect()
    }

    /// Whether there is such a node.
    pub fn has_unheard_node(&self) -> bool {
        self.has_unheard_node.load(Ordering::Relaxed)
    }

    /// Whether another node has led before, whose work this node would continue.
    pub fn succeeds_a_leader(&self) -> bool {
        self.had_leader.load(Ordering::Relaxed)
    }

    /// Every session of the cluster as (user, node, session, since), sorted, to compare nodes in tests.
    pub fn all_sessions(&self) -> Vec<(UserNo, String, u64, u64)> {
        let mut all = Vec::new();
        for stripe in 0..STRIPES {
            self.registry.scan_stripe(stripe, None, |user, entries| {
                let node = |node: NodeNo| self.nodes.record(node.core()).map(|record| record.name).unwrap_or_default();
                all.extend(entries.iter().map(|entry| (user, node(entry.node), entry.session, entry.since)));
                true
            });
        }
        all.sort();
        all
    }
}
