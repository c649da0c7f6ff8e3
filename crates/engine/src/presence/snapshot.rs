//! A snapshot of the registry, which a node sends to others a chunk at a time.
//!
//! A chunk has all sessions of its range of users: a user without sessions in it has none there. So each chunk is
//! complete by itself, and a change between two chunks is sent as any other change.

use super::{
    NodeNo, PresenceSession,
    registry::{Departure, Registered, Registry, STRIPES},
};
use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};
use tidings_domain::model::UserNo;

/// A position in a snapshot: all stripes before `stripe`, and in `stripe` the users up to `through`, are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub(crate) struct SnapshotCursor {
    pub stripe: u16,
    /// Absent: no user of this stripe is done.
    pub through: Option<UserNo>,
}

impl SnapshotCursor {
    pub(crate) const END: SnapshotCursor = SnapshotCursor { stripe: STRIPES as u16, through: None };
}

/// A change of a session by a chunk.
pub(super) enum SessionChange {
    Arrived(Registered),
    Left(Departure),
}

impl Registry {
    /// A chunk of this core's own sessions from `from` on, of about `limit` sessions, and the cursor after it.
    pub(super) fn own_chunk(
        &self,
        from: SnapshotCursor,
        limit: usize,
    ) -> (Vec<(UserNo, PresenceSession)>, SnapshotCursor) {
        let mut chunk = Vec::new();
        let mut cursor = from;
        while usize::from(cursor.stripe) < STRIPES {
            let mut last = cursor.through;
            let whole = self.scan_stripe(usize::from(cursor.stripe), cursor.through, |user, entries| {
                if chunk.len() >= limit {
                    return false;
                }
                chunk.extend(entries.into_iter().filter(|entry| !entry.node.is_peer()).map(|entry| (user, entry)));
                last = Some(user);
                true
            });
            if !whole {
                return (chunk, SnapshotCursor { through: last, ..cursor });
            }
            cursor = SnapshotCursor { stripe: cursor.stripe + 1, through: None };
        }
        (chunk, SnapshotCursor::END)
    }

    /// Replaces a peer's sessions from `from` to `to` by those of `chunk`, and calls `then` for each change while the
    /// user's stripe is locked. A session in both is never removed in between.
    pub(super) fn replace(
        &self,
        peer: NodeNo,
        (from, to): (SnapshotCursor, SnapshotCursor),
        chunk: Vec<(UserNo, PresenceSession)>,
        mut then: impl FnMut(UserNo, u64, SessionChange),
    ) {
        let named: FxHashSet<(UserNo, u64)> = chunk.iter().map(|(user, entry)| (*user, entry.session)).collect();
        for (user, entry) in chunk {
            let session = entry.session;
            self.arrive(user, entry, |registered| then(user, session, SessionChange::Arrived(*registered)));
        }
        for stripe in from.stripe..=to.stripe.min(STRIPES as u16 - 1) {
            let after = from.through.filter(|_| stripe == from.stripe);
            let is_last = stripe == to.stripe;
            if is_last && to.through.is_none() {
                continue;
            }
            let through = to.through.filter(|_| is_last);
            let is_gone = |user, entry: &PresenceSession| entry.node == peer && !named.contains(&(user, entry.session));
            let mut gone = Vec::new();
            self.scan_stripe(usize::from(stripe), after, |user, entries| {
                if through.is_some_and(|through| user > through) {
                    return false;
                }
                gone.extend(entries.iter().filter(|entry| is_gone(user, entry)).map(|entry| (user, entry.session)));
                true
            });
            for (user, session) in gone {
                let mut stripe = self.stripe(user).write();
                if let Some(departure) = stripe.leave(user, peer, session) {
                    then(user, session, SessionChange::Left(departure));
                }
            }
        }
    }
}
