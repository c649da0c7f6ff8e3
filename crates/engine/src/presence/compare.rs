//! What the registry says beside what the nodes themselves list.
//!
//! Sessions come and go between the readings. So each side is read twice, the nodes in between and
//! after, and a difference counts when it stands in both: a session's name is never used again, so one
//! that is registered before and after, and in neither listing, is a ghost.

use super::{Device, NodeNo};
use crate::{engine::Engine, model::UserNo, shards::shard_of};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use tidings_protocol::error::Refusal;

/// Differences that an answer lists; the counts are of all.
const LISTED_MAX: usize = 1_000;

/// A session's name: its shard, and its number there.
type Name = (u16, u64);

/// A session as the process that holds its connection knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldSession {
    pub shard: u16,
    pub session: u64,
    pub node: NodeNo,
    pub user: UserNo,
    pub device_id: Arc<str>,
    pub device_kind: Arc<str>,
    pub since: u64,
    /// Whether the node that has the socket lists it too. A session's own shard may be the last to know.
    pub held: bool,
}

/// How the gateway is asked, and told to repair.
pub trait SessionTruth: Send + Sync + 'static {
    /// Every session, as the shards and the nodes behind links have them. With a user, theirs alone.
    fn sessions(&self, user: Option<UserNo>) -> Result<Vec<HeldSession>, Refusal>;
    /// Ends a session that no node holds.
    fn drop_session(&self, shard: u16, session: u64);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DifferenceKind {
    /// Registered, but no node holds it.
    Ghost,
    /// Held by a node, but not registered.
    Missing,
    /// Registered at one node, held by another.
    WrongNode,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    pub kind: DifferenceKind,
    pub user: UserNo,
    pub device_id: Arc<str>,
    pub session: u64,
    pub node: NodeNo,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    pub registered: usize,
    pub held: usize,
    pub ghosts: usize,
    pub missing: usize,
    pub wrong_node: usize,
    pub repaired: usize,
    /// The first of them.
    pub differences: Vec<Difference>,
}

impl Engine {
    /// Compares the registry with the nodes, and mends it when asked to. Reads everything: not for every second.
    pub fn compare_presence(&self, truth: &dyn SessionTruth, repair: bool) -> Result<Comparison, Refusal> {
        let before = self.registry();
        let first = by_name(truth.sessions(None)?);
        let after = self.registry();
        let second = by_name(truth.sessions(None)?);

        let mut found = Comparison { registered: after.len(), held: second.len(), ..Comparison::default() };
        for (name, (user, device)) in &after {
            let Some((_, earlier)) = before.get(name) else { continue };
            let held = |listing: &FxHashMap<Name, HeldSession>| listing.get(name).filter(|held| held.held).cloned();
            let kind = match (held(&first), held(&second)) {
                (None, None) => DifferenceKind::Ghost,
                (Some(a), Some(b)) if a.node == b.node && a.node != device.node && device.node == earlier.node => {
                    DifferenceKind::WrongNode
                }
                _ => continue,
            };
            found.count(kind, *user, &device.device_id, device.session, device.node);
            if repair {
                self.presence.left(*user, device.session, self.clock.now_ms());
                match kind {
                    DifferenceKind::Ghost => truth.drop_session(name.0, device.session),
                    _ => {
                        let node = second.get(name).map_or(device.node, |held| held.node);
                        self.presence.arrived(*user, Device { node, ..device.clone() });
                    }
                }
                found.repaired += 1;
            }
        }
        for (name, held) in second.iter().filter(|(_, held)| held.held) {
            if first.contains_key(name) && !before.contains_key(name) && !after.contains_key(name) {
                found.count(DifferenceKind::Missing, held.user, &held.device_id, held.session, held.node);
                if repair {
                    self.presence.arrived(held.user, held.device());
                    found.repaired += 1;
                }
            }
        }
        self.metrics.presence_differences.inc_by((found.ghosts + found.missing + found.wrong_node) as u64);
        self.metrics.presence_repaired.inc_by(found.repaired as u64);
        Ok(found)
    }

    fn registry(&self) -> FxHashMap<Name, (UserNo, Device)> {
        let shards = self.lanes.shards().count();
        let mut registry = FxHashMap::default();
        self.presence.each(|user, device| {
            registry.insert((shard_of(user, shards) as u16, device.session), (user, device.clone()));
        });
        registry
    }
}

impl HeldSession {
    pub(crate) fn device(&self) -> Device {
        Device {
            session: self.session,
            node: self.node,
            device_id: self.device_id.clone(),
            device_kind: self.device_kind.clone(),
            since: self.since,
        }
    }
}

impl Comparison {
    fn count(&mut self, kind: DifferenceKind, user: UserNo, device_id: &Arc<str>, session: u64, node: NodeNo) {
        match kind {
            DifferenceKind::Ghost => self.ghosts += 1,
            DifferenceKind::Missing => self.missing += 1,
            DifferenceKind::WrongNode => self.wrong_node += 1,
        }
        if self.differences.len() < LISTED_MAX {
            self.differences.push(Difference { kind, user, device_id: device_id.clone(), session, node });
        }
    }
}

fn by_name(sessions: Vec<HeldSession>) -> FxHashMap<Name, HeldSession> {
    sessions.into_iter().map(|held| ((held.shard, held.session), held)).collect()
}
