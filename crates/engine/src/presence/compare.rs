//! What the registry says beside what the nodes themselves list.
//!
//! Sessions come and go between the readings. So there are two looks, and a difference counts when it
//! stands in both: a session's name is never used again, so one that is registered before and after, and
//! in neither list, is a ghost. Only what differed in the first look is kept for the second: there may
//! be a million sessions, and mostly nothing differs.
//!
//! What is repaired is repaired by the session's own shard, which alone knows how it is by then.

use super::{Device, NodeNo};
use crate::{engine::Engine, model::UserNo, shards::shard_of};
use rustc_hash::{FxHashMap, FxHashSet};
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
    pub chat: bool,
    /// Whether the node that has the socket lists it too. A session's own shard may be the last to know.
    pub held: bool,
}

/// How the gateway is asked, and told to repair.
pub trait SessionTruth: Send + Sync + 'static {
    /// Every session, as the shards and the nodes behind links have them. With a user, theirs alone.
    fn sessions(&self, user: Option<UserNo>) -> Result<Vec<HeldSession>, Refusal>;
    /// Has the sessions' own shards say what is so, and waits for it.
    fn correct(&self, corrections: Vec<Correction>) -> Result<(), Refusal>;
}

/// A session that a shard is to look at: it registers one that is there, ends one that no node holds,
/// and takes one that is not there off the registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Correction {
    pub shard: u16,
    pub session: u64,
    pub user: UserNo,
    /// Whether a node holds it.
    pub held: bool,
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

/// A session in a list, and where.
#[derive(Debug, Clone, Copy)]
struct Seen {
    name: Name,
    user: UserNo,
    node: NodeNo,
}

impl Engine {
    /// Compares the registry with the nodes, and mends it when asked to. Reads everything: not for every second.
    pub fn compare_presence(&self, truth: &dyn SessionTruth, repair: bool) -> Result<Comparison, Refusal> {
        let (mut found, suspects) = self.first_look(truth)?;
        if suspects.is_empty() {
            return Ok(found);
        }
        let of_interest: FxHashSet<Name> = suspects.iter().map(|(_, seen)| seen.name).collect();
        let listed = truth.sessions(None)?;
        found.held = listed.iter().filter(|held| held.held).count();
        let held: FxHashMap<Name, HeldSession> = listed
            .into_iter()
            .filter(|held| held.held && of_interest.contains(&held.name()))
            .map(|held| (held.name(), held))
            .collect();
        found.registered = self.presence.sessions() as usize;
        let mut corrections = Vec::new();
        for (kind, Seen { name, user, .. }) in suspects {
            let registered = self.presence.find(user, name.1);
            let device = match (kind, registered, held.get(&name)) {
                (DifferenceKind::Ghost, Some(device), None) => device,
                (DifferenceKind::Missing, None, Some(held)) => held.device(),
                (DifferenceKind::WrongNode, Some(device), Some(held)) if device.node != held.node => device,
                _ => continue,
            };
            found.count(kind, user, &device);
            corrections.push(Correction { shard: name.0, session: name.1, user, held: kind != DifferenceKind::Ghost });
        }
        if repair && !corrections.is_empty() {
            found.repaired = corrections.len();
            truth.correct(corrections)?;
        }
        self.metrics.presence_differences.inc_by((found.ghosts + found.missing + found.wrong_node) as u64);
        self.metrics.presence_repaired.inc_by(found.repaired as u64);
        Ok(found)
    }

    /// What differs in the first look, and how much there is.
    fn first_look(&self, truth: &dyn SessionTruth) -> Result<(Comparison, Vec<(DifferenceKind, Seen)>), Refusal> {
        let shards = self.lanes.shards().count();
        let mut registered = Vec::with_capacity(self.presence.sessions() as usize);
        self.presence.each(|user, session, node| {
            registered.push(Seen { name: (shard_of(user, shards) as u16, session), user, node });
        });
        let mut held: Vec<Seen> =
            truth.sessions(None)?.iter().filter(|held| held.held).map(HeldSession::seen).collect();
        registered.sort_unstable_by_key(|seen| seen.name);
        held.sort_unstable_by_key(|seen| seen.name);

        let mut suspects = Vec::new();
        let mut held_left = held.iter().peekable();
        let is_registered = |seen: &Seen| self.presence.find(seen.user, seen.name.1).is_some();
        for seen in &registered {
            while let Some(other) = held_left.next_if(|other| other.name < seen.name) {
                // It may have come after the registry was read.
                suspects.extend((!is_registered(other)).then_some((DifferenceKind::Missing, *other)));
            }
            match held_left.next_if(|other| other.name == seen.name) {
                None => suspects.push((DifferenceKind::Ghost, *seen)),
                Some(other) if other.node != seen.node => suspects.push((DifferenceKind::WrongNode, *seen)),
                Some(_) => {}
            }
        }
        suspects.extend(held_left.filter(|other| !is_registered(other)).map(|other| (DifferenceKind::Missing, *other)));
        Ok((Comparison { registered: registered.len(), held: held.len(), ..Comparison::default() }, suspects))
    }
}

impl HeldSession {
    fn name(&self) -> Name {
        (self.shard, self.session)
    }

    fn seen(&self) -> Seen {
        Seen { name: self.name(), user: self.user, node: self.node }
    }

    /// The session as it is to be registered.
    pub fn device(&self) -> Device {
        Device {
            session: self.session,
            node: self.node,
            device_id: self.device_id.clone(),
            device_kind: self.device_kind.clone(),
            since: self.since,
            chat: self.chat,
        }
    }
}

impl Comparison {
    fn count(&mut self, kind: DifferenceKind, user: UserNo, device: &Device) {
        match kind {
            DifferenceKind::Ghost => self.ghosts += 1,
            DifferenceKind::Missing => self.missing += 1,
            DifferenceKind::WrongNode => self.wrong_node += 1,
        }
        if self.differences.len() < LISTED_MAX {
            let Device { session, node, device_id, .. } = device.clone();
            self.differences.push(Difference { kind, user, device_id, session, node });
        }
    }
}
