//! Presence over several nodes: every one has the sessions of all. Here is what the exchange between nodes
//! ([`crate::cluster::presence`]) needs of the registry.

use super::{
    Device, NodeNo, Presence, PresenceConfig,
    news::{Arrived, News, PUSH_ONLY, Tally},
    nodes::Nodes,
    registry::{Arrival, Departure, STRIPES},
    stretches::{Happened, Place},
};
use crate::{cluster::log::NodeInfo, model::UserNo};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::{Arc, atomic::Ordering};

/// The leader hears of a change and announces it a while after this node, at the most so much; clocks differ too.
const LEADER_MARGIN_MS: u64 = 10_000;

/// What the registry has of another core.
#[derive(Debug)]
pub(crate) struct Peer {
    pub node: NodeNo,
    pub tally: Tally,
    /// Sessions that came or went, so far.
    pub changed: u64,
    /// Users with sessions there that were not known, since this was last looked at.
    pub came: Vec<UserNo>,
}

impl Peer {
    pub(crate) fn new(node: NodeNo) -> Self {
        Peer { node, tally: Tally::default(), changed: 0, came: Vec::new() }
    }

    fn device(&self, presence: &Presence, arrived: Arrived) -> (UserNo, Device) {
        let Arrived { user, session, device_id, device_kind, since } = arrived;
        let chat = !device_kind.ends_with(PUSH_ONLY);
        // One copy of a word, not one for each session.
        let device_kind = presence.kind(&device_kind);
        (user, Device { session, node: self.node, device_id, device_kind, since, chat })
    }
}

impl Presence {
    /// Of one of several nodes.
    pub(crate) fn of_node(config: PresenceConfig, me: &NodeInfo) -> Self {
        let nodes = Nodes::of(&me.name, me.boot_id, &me.address);
        Presence { nodes, news: Some(News::default()), ..Presence::new(config) }
    }

    /// Another core's session is there.
    pub(crate) fn peer_arrived(&self, peer: &mut Peer, arrived: Arrived) {
        let (user, device) = peer.device(self, arrived);
        let session = device.session;
        self.registry.arrive(user, device, |arrival, since| {
            self.note_peer(peer, user, session, Happened::Arrived(arrival, since), (0, 0));
        });
    }

    /// Another core's session has ended; nothing if it was not there. `at` by that core's clock.
    pub(crate) fn peer_left(&self, peer: &mut Peer, user: UserNo, session: u64, at: u64, now_ms: u64) {
        let mut stripe = self.registry.stripe(user).write();
        if let Some(departure) = stripe.leave(user, peer.node, session) {
            self.note_peer(peer, user, session, Happened::Left(departure), (at, now_ms));
        }
    }

    /// What another core has in a stretch is this and nothing else.
    pub(crate) fn peer_stretch(&self, peer: &mut Peer, stretch: (Place, Place), told: Vec<Arrived>, now_ms: u64) {
        let told: Vec<(UserNo, Device)> = told.into_iter().map(|arrived| peer.device(self, arrived)).collect();
        self.registry.replace(peer.node, stretch, told, |user, session, happened| {
            self.note_peer(peer, user, session, happened, (now_ms, now_ms));
        });
    }

    /// Another core is gone, and its sessions with it.
    pub(crate) fn peer_gone(&self, mut peer: Peer, now_ms: u64) {
        let node = peer.node;
        self.registry.leave_all(node, |user, session, departure| {
            self.note_peer(&mut peer, user, session, Happened::Left(departure), (now_ms, now_ms));
        });
        self.nodes.detach_peer(node);
    }

    /// Under the lock of the user's stripe: of two changes the last is noted last.
    fn note_peer(&self, peer: &mut Peer, user: UserNo, session: u64, happened: Happened, (at, now_ms): (u64, u64)) {
        match happened {
            Happened::Arrived(Arrival::Again { since: before, .. }, since) => {
                peer.tally.remove(user, session, before);
                peer.tally.add(user, session, since);
            }
            Happened::Arrived(arrival, since) => {
                peer.tally.add(user, session, since);
                peer.changed += 1;
                peer.came.push(user);
                self.nodes.count(peer.node, 1);
                if arrival == Arrival::First {
                    self.changes.lock().came(user);
                }
            }
            Happened::Left(Departure { since, was_last, .. }) => {
                peer.tally.remove(user, session, since);
                peer.changed += 1;
                self.nodes.count(peer.node, -1);
                self.note_end(user, was_last, at, now_ms);
            }
        }
    }

    /// This core's own sessions from a place on, about as many as `limit`, and how far that is.
    pub(crate) fn own_stretch(&self, from: Place, limit: usize) -> (Vec<Arrived>, Place) {
        let (told, to) = self.registry.own_stretch(from, limit);
        (told.into_iter().map(|(user, device)| Arrived::of(user, device)).collect(), to)
    }

    /// This core's sessions of a user that must go for others': a device has one session, and a kind of device a
    /// number of them. The latest stay; of two as late, the one on the node whose name is later. Every node sees it
    /// alike, and each ends its own.
    pub fn outranked(&self, user: UserNo, sessions_per_kind: usize) -> SmallVec<[u64; 1]> {
        let mut devices = self.registry.devices(user);
        if !devices.iter().any(|device| device.node.is_peer()) {
            return SmallVec::new();
        }
        let name = |device: &Device| self.nodes.card(device.node.core()).map(|card| card.name).unwrap_or_default();
        devices.sort_by_cached_key(|device| std::cmp::Reverse((device.since, name(device), device.session)));
        let mut kinds: FxHashMap<&str, usize> = FxHashMap::default();
        let mut ids: SmallVec<[&Arc<str>; 4]> = SmallVec::new();
        let mut outranked = SmallVec::new();
        for device in &devices {
            let stays = !ids.contains(&&device.device_id) && {
                ids.push(&device.device_id);
                let of_kind = kinds.entry(&device.device_kind).or_default();
                *of_kind += 1;
                *of_kind <= sessions_per_kind
            };
            if !stays && !device.node.is_peer() {
                outranked.push(device.session);
            }
        }
        outranked
    }

    /// The age of the oldest change that the webhook was not told, or that is not stored.
    pub(crate) fn behind_ms(&self, now_ms: u64) -> u64 {
        let untold = self.untold.lock().oldest();
        let unsaved = self.unsaved.lock().values().min().copied();
        let oldest = untold.into_iter().chain(unsaved).min();
        oldest.map_or(0, |oldest| now_ms.saturating_sub(oldest))
    }

    /// Another node leads, and is so far behind: it tells the webhook and stores what is older. What is younger is
    /// kept, for the case that it ends and this one goes on in its place.
    pub(crate) fn leave_to_leader(&self, now_ms: u64, behind_ms: u64) {
        self.led.store(true, Ordering::Relaxed);
        let done = now_ms.saturating_sub(behind_ms + LEADER_MARGIN_MS);
        self.untold.lock().forget_before(done);
        let gone = done.saturating_sub(self.config.grace_ms);
        self.unsaved.lock().retain(|_, at| *at >= gone);
    }

    /// Whether there was a leader before, whose work this node would continue.
    pub(super) fn follows_a_leader(&self) -> bool {
        self.led.load(Ordering::Relaxed)
    }

    /// Every session of the cluster, as (user, node, session, since), in order: for comparing nodes.
    pub fn everything(&self) -> Vec<(UserNo, String, u64, u64)> {
        let mut all = Vec::new();
        for stripe in 0..STRIPES {
            self.registry.look_through(stripe, None, |user, devices| {
                let node = |node: NodeNo| self.nodes.card(node.core()).map(|card| card.name).unwrap_or_default();
                all.extend(devices.iter().map(|device| (user, node(device.node), device.session, device.since)));
                true
            });
        }
        all.sort();
        all
    }
}
