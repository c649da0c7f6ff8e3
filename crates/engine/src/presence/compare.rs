//! Compares the registry with the sessions that the nodes hold, and repairs the registry.
//!
//! Sessions come and go between the two readings. So there are two passes, and a difference counts only if it
//! is in both: a session's id is never used again, so a session that is registered in both passes and held in
//! neither is a ghost. Only the differences of the first pass are kept for the second: there may
//! be a million sessions, and mostly none differs.
//!
//! The session's own shard makes a repair, since it alone knows the state of the session by then.

use super::{NodeNo, Presence, PresenceSession};
use crate::shards::shard_of;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use tidings_domain::model::UserNo;
use tidings_protocol::error::Refusal;

/// Differences that a comparison lists; its counts are of all.
const LISTED_MAX: usize = 1_000;

/// A session's shard, and its number there.
type SessionId = (u16, u64);

/// A session as the process that holds its connection knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveSession {
    pub shard: u16,
    pub session: u64,
    pub node: NodeNo,
    pub user: UserNo,
    pub device_id: Arc<str>,
    pub device_kind: Arc<str>,
    pub since: u64,
    pub chat: bool,
    pub background: bool,
    /// Whether the node that has the socket lists the session too. The session's shard may learn last that it has
    /// ended.
    pub held: bool,
}

/// The gateway, as the source of live sessions and as the one that repairs the registry.
pub trait SessionSource: Send + Sync + 'static {
    /// Every session, as the shards and the nodes behind links have them; with a user, the sessions of that user.
    ///
    /// # Errors
    /// `node_unavailable`: a node did not list its sessions in time, or too many lists are being made.
    fn sessions(&self, user: Option<UserNo>) -> Result<Vec<LiveSession>, Refusal>;
    /// Has the sessions' shards correct the registry, and waits until they have.
    ///
    /// # Errors
    /// `node_unavailable`: a shard did not answer in time. The correction may still be made.
    fn correct(&self, corrections: Vec<Correction>) -> Result<(), Refusal>;
}

/// Tells a shard to check a session. The shard registers the session if it lives, ends it if no node holds it,
/// and unregisters it if the shard does not have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Correction {
    pub shard: u16,
    pub session: u64,
    pub user: UserNo,
    /// Whether a node holds the session.
    pub held: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DifferenceKind {
    /// The session is registered, but no node holds it.
    Ghost,
    /// A node holds the session, but it is not registered.
    Missing,
    /// The session is registered at one node and held by another.
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
    /// The first differences, up to a limit.
    pub differences: Vec<Difference>,
}

/// A session in a list, and its node.
#[derive(Debug, Clone, Copy)]
struct SessionLocation {
    id: SessionId,
    user: UserNo,
    node: NodeNo,
}

impl Presence {
    /// Compares the registry with the sessions that the nodes hold, over the shards of this core, and repairs the registry
    /// if `repair` is set.
    ///
    /// # Errors
    /// Those of the source.
    pub(crate) fn compare(
        &self,
        source: &dyn SessionSource,
        shards: usize,
        repair: bool,
    ) -> Result<Comparison, Refusal> {
        let (mut found, suspects) = self.first_pass(source, shards)?;
        if suspects.is_empty() {
            return Ok(found);
        }
        let of_interest: FxHashSet<SessionId> = suspects.iter().map(|(_, location)| location.id).collect();
        let listed = source.sessions(None)?;
        found.held = listed.iter().filter(|held| held.held).count();
        let held: FxHashMap<SessionId, LiveSession> = listed
            .into_iter()
            .filter(|held| held.held && of_interest.contains(&held.id()))
            .map(|held| (held.id(), held))
            .collect();
        found.registered = self.session_count() as usize;
        let mut corrections = Vec::new();
        for (kind, SessionLocation { id, user, .. }) in suspects {
            let registered = self.find(user, id.1);
            let entry = match (kind, registered, held.get(&id)) {
                (DifferenceKind::Ghost, Some(entry), None) => entry,
                (DifferenceKind::Missing, None, Some(held)) => held.to_presence_session(),
                (DifferenceKind::WrongNode, Some(entry), Some(held)) if entry.node != held.node => entry,
                _ => continue,
            };
            found.count(kind, user, &entry);
            corrections.push(Correction { shard: id.0, session: id.1, user, held: kind != DifferenceKind::Ghost });
        }
        if repair && !corrections.is_empty() {
            found.repaired = corrections.len();
            source.correct(corrections)?;
        }
        Ok(found)
    }

    /// The first pass: the counts, and the sessions that may differ.
    fn first_pass(
        &self,
        source: &dyn SessionSource,
        shards: usize,
    ) -> Result<(Comparison, Vec<(DifferenceKind, SessionLocation)>), Refusal> {
        let mut registered = Vec::with_capacity(self.session_count() as usize);
        self.each_local(|user, session, node| {
            registered.push(SessionLocation { id: (shard_of(user, shards) as u16, session), user, node });
        });
        let mut held: Vec<SessionLocation> =
            source.sessions(None)?.iter().filter(|held| held.held).map(LiveSession::location).collect();
        registered.sort_unstable_by_key(|location| location.id);
        held.sort_unstable_by_key(|location| location.id);

        let mut suspects = Vec::new();
        let mut held_left = held.iter().peekable();
        let is_registered = |location: &SessionLocation| self.find(location.user, location.id.1).is_some();
        for location in &registered {
            while let Some(other) = held_left.next_if(|other| other.id < location.id) {
                // The session may have been registered after the registry was read.
                suspects.extend((!is_registered(other)).then_some((DifferenceKind::Missing, *other)));
            }
            match held_left.next_if(|other| other.id == location.id) {
                None => suspects.push((DifferenceKind::Ghost, *location)),
                Some(other) if other.node != location.node => suspects.push((DifferenceKind::WrongNode, *location)),
                Some(_) => {}
            }
        }
        suspects.extend(held_left.filter(|other| !is_registered(other)).map(|other| (DifferenceKind::Missing, *other)));
        Ok((Comparison { registered: registered.len(), held: held.len(), ..Comparison::default() }, suspects))
    }
}

impl LiveSession {
    fn id(&self) -> SessionId {
        (self.shard, self.session)
    }

    fn location(&self) -> SessionLocation {
        SessionLocation { id: self.id(), user: self.user, node: self.node }
    }

    /// The session as it is registered.
    pub fn to_presence_session(&self) -> PresenceSession {
        PresenceSession {
            session: self.session,
            node: self.node,
            device_id: self.device_id.clone(),
            device_kind: self.device_kind.clone(),
            since: self.since,
            chat: self.chat,
            background: self.background,
        }
    }
}

impl Comparison {
    fn count(&mut self, kind: DifferenceKind, user: UserNo, entry: &PresenceSession) {
        match kind {
            DifferenceKind::Ghost => self.ghosts += 1,
            DifferenceKind::Missing => self.missing += 1,
            DifferenceKind::WrongNode => self.wrong_node += 1,
        }
        if self.differences.len() < LISTED_MAX {
            let PresenceSession { session, node, device_id, .. } = entry.clone();
            self.differences.push(Difference { kind, user, device_id, session, node });
        }
    }
}
