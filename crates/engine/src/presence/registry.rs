//! The registered sessions of all users, in little memory: a million of them is a normal case.
//!
//! A user with one session has it in the tree itself. A tree and not a hash map: it frees the memory that
//! it does not need, and its growth never copies a whole stripe under the lock.

use super::{NodeNo, PresenceSession};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::{
    collections::{BTreeMap, btree_map::Entry},
    ops::Bound,
    sync::Arc,
};
use tidings_domain::model::UserNo;

/// Part of the encoding of messages between nodes, which name stripes.
pub(super) const STRIPES: usize = 64;
/// Names of device kinds that are kept. Clients choose the names: a session with a further one is shown as [`OTHER`].
const KINDS_MAX: usize = 4_096;
const OTHER: &str = "other";

/// A session as the registry keeps it.
#[derive(Debug, Clone)]
struct Session {
    session: u64,
    since: u64,
    device_id: Arc<str>,
    node: NodeNo,
    kind: u16,
    chat: bool,
    background: bool,
}

enum Sessions {
    One(Session),
    Many(Vec<Session>),
}

impl Session {
    /// Whether this is the session with this number: numbers are unique only among the sessions of one core.
    fn is(&self, node: NodeNo, session: u64) -> bool {
        self.session == session && self.node.core() == node.core()
    }

    /// Whether somebody looks at messages there.
    fn is_active(&self) -> bool {
        self.chat && !self.background
    }

    fn stamp(&self) -> u64 {
        stamp(self.since, self.background)
    }
}

/// What digests have of a session besides its user and number. A session in the foreground has the stamp that versions without
/// attention give it.
fn stamp(since: u64, background: bool) -> u64 {
    since | u64::from(background) << 63
}

impl Sessions {
    fn as_slice(&self) -> &[Session] {
        match self {
            Sessions::One(session) => std::slice::from_ref(session),
            Sessions::Many(sessions) => sessions,
        }
    }

    fn is_active(&self) -> bool {
        self.as_slice().iter().any(Session::is_active)
    }
}

/// The users of one stripe.
#[derive(Default)]
pub(super) struct Stripe(BTreeMap<UserNo, Sessions>);

/// What registering a session has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The user had no session.
    First,
    /// The user had other sessions.
    Further,
    /// The session was registered already, at `node` and with `stamp`.
    Again { node: NodeNo, stamp: u64 },
}

/// A session that was registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Registered {
    pub arrival: Arrival,
    /// The time since which the session counts.
    pub since: u64,
    pub stamp: u64,
    pub activity: Activity,
}

/// Whether a user has a session at which somebody looks, before a change and after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Activity {
    pub before: bool,
    pub after: bool,
}

/// A session that was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Departure {
    pub node: NodeNo,
    pub stamp: u64,
    pub was_last: bool,
    pub activity: Activity,
}

impl Stripe {
    /// Registers or updates a session, and answers the time since which it counts. A new session of this core counts as
    /// later than every registered session of the user, whatever the clocks of other nodes say, so that it is the one
    /// that stays.
    fn arrive(&mut self, user: UserNo, mut new: Session) -> Registered {
        let registered = |arrival, new: &Session, before, after| Registered {
            arrival,
            since: new.since,
            stamp: new.stamp(),
            activity: Activity { before, after },
        };
        let mut entry = match self.0.entry(user) {
            Entry::Vacant(entry) => {
                let registered = registered(Arrival::First, &new, false, new.is_active());
                entry.insert(Sessions::One(new));
                return registered;
            }
            Entry::Occupied(entry) => entry,
        };
        let was_active = entry.get().is_active();
        let again = match entry.get_mut() {
            Sessions::One(one) => Some(one).filter(|known| known.is(new.node, new.session)),
            Sessions::Many(many) => many.iter_mut().find(|known| known.is(new.node, new.session)),
        };
        if let Some(known) = again {
            let arrival = Arrival::Again { node: known.node, stamp: known.stamp() };
            *known = new.clone();
            return registered(arrival, &new, was_active, entry.get().is_active());
        }
        if !new.node.is_peer() {
            let elsewhere = entry.get().as_slice().iter().filter(|known| known.node.is_peer());
            new.since = elsewhere.map(|known| known.since + 1).max().map_or(new.since, |later| later.max(new.since));
        }
        let registered = registered(Arrival::Further, &new, was_active, was_active || new.is_active());
        let mut sessions = match std::mem::replace(entry.get_mut(), Sessions::Many(Vec::new())) {
            Sessions::One(one) => vec![one],
            Sessions::Many(many) => many,
        };
        sessions.push(new);
        *entry.get_mut() = Sessions::Many(sessions);
        registered
    }

    /// Removes a session. `node` may be any node of the core that numbers the session.
    pub(super) fn leave(&mut self, user: UserNo, node: NodeNo, session: u64) -> Option<Departure> {
        let Entry::Occupied(mut entry) = self.0.entry(user) else { return None };
        let before = entry.get().is_active();
        let gone = match entry.get_mut() {
            Sessions::One(one) => {
                let (node, stamp) = one.is(node, session).then_some((one.node, one.stamp()))?;
                entry.remove();
                let activity = Activity { before, after: false };
                return Some(Departure { node, stamp, was_last: true, activity });
            }
            Sessions::Many(many) => {
                let at = many.iter().position(|known| known.is(node, session))?;
                let gone = many.remove(at);
                if let [_] = many.as_slice()
                    && let Some(one) = many.pop()
                {
                    *entry.get_mut() = Sessions::One(one);
                }
                gone
            }
        };
        let activity = Activity { before, after: entry.get().is_active() };
        Some(Departure { node: gone.node, stamp: gone.stamp(), was_last: false, activity })
    }
}

/// The names of device kinds, each kept once: a million sessions share a few.
#[derive(Default)]
struct DeviceKinds {
    words: Vec<Arc<str>>,
    numbers: FxHashMap<Arc<str>, u16>,
}

impl DeviceKinds {
    fn add(&mut self, kind: &str) -> u16 {
        if let Some(known) = self.numbers.get(kind) {
            return *known;
        }
        let kind = if self.words.len() + 1 < KINDS_MAX { kind } else { OTHER };
        if let Some(known) = self.numbers.get(kind) {
            return *known;
        }
        let (number, word) = (self.words.len() as u16, Arc::<str>::from(kind));
        self.words.push(word.clone());
        self.numbers.insert(word, number);
        number
    }
}

pub(super) struct Registry {
    stripes: Vec<RwLock<Stripe>>,
    kinds: RwLock<DeviceKinds>,
}

impl Default for Registry {
    fn default() -> Self {
        Registry { stripes: (0..STRIPES).map(|_| RwLock::default()).collect(), kinds: RwLock::default() }
    }
}

impl Registry {
    pub(super) fn stripe(&self, user: UserNo) -> &RwLock<Stripe> {
        &self.stripes[user.0 as usize % STRIPES]
    }

    /// The shared copy of a device kind's name.
    pub(super) fn kind(&self, kind: &str) -> Arc<str> {
        let number = self.kind_number(kind);
        self.kinds.read().words[usize::from(number)].clone()
    }

    fn kind_number(&self, kind: &str) -> u16 {
        let known = self.kinds.read().numbers.get(kind).copied();
        known.unwrap_or_else(|| self.kinds.write().add(kind))
    }

    /// Registers a session, and calls `then` while the user's stripe is locked.
    pub(super) fn arrive(&self, user: UserNo, new: PresenceSession, then: impl FnOnce(&Registered)) -> Registered {
        let kind = self.kind_number(&new.device_kind);
        let PresenceSession { session, node, device_id, since, chat, background, .. } = new;
        let mut stripe = self.stripe(user).write();
        let registered = stripe.arrive(user, Session { session, since, device_id, node, kind, chat, background });
        then(&registered);
        registered
    }

    /// Removes all sessions of one core, and calls `then` for each while its user's stripe is locked.
    pub(super) fn leave_all(&self, node: NodeNo, mut then: impl FnMut(UserNo, u64, Departure)) {
        for stripe in &self.stripes {
            let mut stripe = stripe.write();
            let of_node = |session: &&Session| session.node.core() == node.core();
            let gone: Vec<(UserNo, u64)> = (stripe.0.iter())
                .flat_map(|(user, sessions)| sessions.as_slice().iter().filter(of_node).map(|s| (*user, s.session)))
                .collect();
            for (user, session) in gone {
                if let Some(departure) = stripe.leave(user, node, session) {
                    then(user, session, departure);
                }
            }
        }
    }

    fn presence_session(kinds: &DeviceKinds, session: &Session) -> PresenceSession {
        PresenceSession {
            session: session.session,
            node: session.node,
            device_id: session.device_id.clone(),
            device_kind: kinds.words[usize::from(session.kind)].clone(),
            since: session.since,
            chat: session.chat,
            background: session.background,
        }
    }

    pub(super) fn sessions_of(&self, user: UserNo) -> SmallVec<[PresenceSession; 1]> {
        let stripe = self.stripe(user).read();
        let Some(sessions) = stripe.0.get(&user) else { return SmallVec::new() };
        let kinds = self.kinds.read();
        sessions.as_slice().iter().map(|session| Self::presence_session(&kinds, session)).collect()
    }

    /// Whether one of the user's sessions `counts`, by its node and whether somebody looks at messages there. For a user without
    /// sessions, the answer of `if_none`, which is called while the stripe is locked.
    pub(super) fn any_session(
        &self,
        user: UserNo,
        counts: impl Fn(NodeNo, bool) -> bool,
        if_none: impl FnOnce() -> bool,
    ) -> bool {
        let stripe = self.stripe(user).read();
        match stripe.0.get(&user) {
            Some(sessions) => sessions.as_slice().iter().any(|session| counts(session.node, session.is_active())),
            None => if_none(),
        }
    }

    /// Calls `look` with every session: its user, its number and its node.
    pub(super) fn each(&self, mut look: impl FnMut(UserNo, u64, NodeNo)) {
        for stripe in &self.stripes {
            for (user, sessions) in &stripe.read().0 {
                sessions.as_slice().iter().for_each(|session| look(*user, session.session, session.node));
            }
        }
    }

    /// Calls `look` with the users of a stripe after `after`, in order, and their sessions, until it answers `false`;
    /// answers whether the stripe was scanned to its end.
    pub(super) fn scan_stripe(
        &self,
        stripe: usize,
        after: Option<UserNo>,
        mut look: impl FnMut(UserNo, SmallVec<[PresenceSession; 1]>) -> bool,
    ) -> bool {
        let (stripe, kinds) = (self.stripes[stripe].read(), self.kinds.read());
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        for (user, sessions) in stripe.0.range((from, Bound::Unbounded)) {
            let entries = sessions.as_slice().iter().map(|session| Self::presence_session(&kinds, session)).collect();
            if !look(*user, entries) {
                return false;
            }
        }
        true
    }

    pub(super) fn user_count(&self) -> usize {
        self.stripes.iter().map(|stripe| stripe.read().0.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: UserNo = UserNo(1);

    fn entry(session: u64, kind: &str) -> PresenceSession {
        PresenceSession {
            session,
            node: NodeNo(session as u32),
            device_id: "d".into(),
            device_kind: kind.into(),
            since: 7,
            chat: true,
            background: false,
        }
    }

    fn sessions(registry: &Registry) -> Vec<u64> {
        registry.sessions_of(ANN).iter().map(|entry| entry.session).collect()
    }

    #[test]
    fn a_user_with_one_session_takes_at_most_48_bytes_of_the_tree() {
        let (user, sessions) = (size_of::<UserNo>(), size_of::<Sessions>());
        println!("a user with one session: {user} + {sessions} bytes in a node of the tree");
        assert!(user + sessions <= 48);
    }

    #[test]
    fn the_first_and_the_last_session_of_a_user_are_told_apart() {
        let registry = Registry::default();
        let arrive = |session: u64| registry.arrive(ANN, entry(session, "web"), |_| ()).arrival;
        let leave = |session: u64| registry.stripe(ANN).write().leave(ANN, NodeNo(0), session);
        let left = |node, was_last: bool| {
            let activity = Activity { before: true, after: !was_last };
            Some(Departure { node: NodeNo(node), stamp: 7, was_last, activity })
        };
        assert_eq!(arrive(1), Arrival::First);
        assert_eq!(arrive(2), Arrival::Further);
        assert_eq!(arrive(3), Arrival::Further);
        assert_eq!(
            arrive(2),
            Arrival::Again { node: NodeNo(2), stamp: 7 },
            "the same session is one, however often it is told"
        );
        assert_eq!(sessions(&registry), [1, 2, 3]);
        assert_eq!(leave(4), None);
        assert_eq!(leave(2), left(2, false));
        assert_eq!(leave(1), left(1, false));
        assert_eq!((sessions(&registry), registry.user_count()), (vec![3], 1));
        assert_eq!(leave(1), None);
        assert_eq!(leave(3), left(3, true));
        assert_eq!((sessions(&registry), registry.user_count()), (vec![], 0));
    }

    #[test]
    fn further_names_of_device_kinds_become_other() {
        let registry = Registry::default();
        registry.arrive(ANN, entry(1, "web"), |_| ());
        for number in 0..2 * KINDS_MAX {
            registry.kind(&format!("kind {number}"));
        }
        assert_eq!(registry.kinds.read().words.len(), KINDS_MAX);
        registry.arrive(ANN, entry(2, "one more"), |_| ());
        let kinds: Vec<_> = registry.sessions_of(ANN).iter().map(|entry| entry.device_kind.to_string()).collect();
        assert_eq!(kinds, ["web", OTHER]);
    }
}
