//! The registered sessions of all users, in little memory: a million of them is a normal case.
//!
//! A user with one session has it in the map itself. A map in blocks and not a hash map: it frees the memory that
//! it does not need, and its growth never copies a whole stripe under the lock.

use super::{NodeNo, PresenceSession};
use crate::block_map::BlockMap;
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::Arc;
use tidings_domain::model::UserNo;

/// Part of the encoding of messages between nodes, which name stripes.
pub(super) const STRIPES: usize = 64;
/// Names of device kinds that sessions have now. Clients choose the names, and each takes a session, of which one user has few: a
/// session with a further name is shown as [`OTHER`].
const KINDS_MAX: usize = u16::MAX as usize;
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
pub(super) struct Stripe {
    users: BlockMap<UserNo, Sessions>,
    /// Those of the registry. Locked within the stripe, never the other way around.
    kinds: Arc<RwLock<DeviceKinds>>,
}

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
        let Stripe { users, kinds } = self;
        let registered = |arrival, new: &Session, before, after| Registered {
            arrival,
            since: new.since,
            stamp: new.stamp(),
            activity: Activity { before, after },
        };
        let Some(sessions) = users.get_mut(user) else {
            let registered = registered(Arrival::First, &new, false, new.is_active());
            users.insert(user, Sessions::One(new));
            return registered;
        };
        let was_active = sessions.is_active();
        let again = match sessions {
            Sessions::One(one) => Some(one).filter(|known| known.is(new.node, new.session)),
            Sessions::Many(many) => many.iter_mut().find(|known| known.is(new.node, new.session)),
        };
        if let Some(known) = again {
            let arrival = Arrival::Again { node: known.node, stamp: known.stamp() };
            kinds.write().release(known.kind);
            *known = new.clone();
            return registered(arrival, &new, was_active, sessions.is_active());
        }
        if !new.node.is_peer() {
            let elsewhere = sessions.as_slice().iter().filter(|known| known.node.is_peer());
            new.since = elsewhere.map(|known| known.since + 1).max().map_or(new.since, |later| later.max(new.since));
        }
        let registered = registered(Arrival::Further, &new, was_active, was_active || new.is_active());
        let mut all = match std::mem::replace(sessions, Sessions::Many(Vec::new())) {
            Sessions::One(one) => vec![one],
            Sessions::Many(many) => many,
        };
        all.push(new);
        *sessions = Sessions::Many(all);
        registered
    }

    /// Removes a session. `node` may be any node of the core that numbers the session.
    pub(super) fn leave(&mut self, user: UserNo, node: NodeNo, session: u64) -> Option<Departure> {
        let Stripe { users, kinds } = self;
        let sessions = users.get_mut(user)?;
        let before = sessions.is_active();
        let gone = match sessions {
            Sessions::One(one) => {
                let (node, stamp) = one.is(node, session).then_some((one.node, one.stamp()))?;
                kinds.write().release(one.kind);
                users.remove(user);
                let activity = Activity { before, after: false };
                return Some(Departure { node, stamp, was_last: true, activity });
            }
            Sessions::Many(many) => {
                let at = many.iter().position(|known| known.is(node, session))?;
                let gone = many.remove(at);
                if let [_] = many.as_slice()
                    && let Some(one) = many.pop()
                {
                    *sessions = Sessions::One(one);
                }
                kinds.write().release(gone.kind);
                gone
            }
        };
        let activity = Activity { before, after: sessions.is_active() };
        Some(Departure { node: gone.node, stamp: gone.stamp(), was_last: false, activity })
    }
}

/// The names of device kinds, each kept once for as long as a session has it: a million sessions share a few.
struct DeviceKinds {
    words: Vec<DeviceKind>,
    numbers: FxHashMap<Arc<str>, u16>,
    /// Numbers whose names no session has any more.
    vacant: Vec<u16>,
}

struct DeviceKind {
    word: Arc<str>,
    sessions: u32,
}

impl Default for DeviceKinds {
    fn default() -> Self {
        let other = DeviceKind { word: OTHER.into(), sessions: 0 };
        DeviceKinds { numbers: [(other.word.clone(), 0)].into_iter().collect(), words: vec![other], vacant: Vec::new() }
    }
}

impl DeviceKinds {
    /// The number of a name that one more session has.
    fn acquire(&mut self, kind: &Arc<str>) -> u16 {
        let number = self.numbers.get(kind).copied().unwrap_or_else(|| self.add(kind));
        self.words[usize::from(number)].sessions += 1;
        number
    }

    fn add(&mut self, kind: &Arc<str>) -> u16 {
        let new = DeviceKind { word: kind.clone(), sessions: 0 };
        let number = match self.vacant.pop() {
            Some(number) => {
                self.words[usize::from(number)] = new;
                number
            }
            // The number of `OTHER`.
            None if self.words.len() >= KINDS_MAX => return 0,
            None => {
                self.words.push(new);
                (self.words.len() - 1) as u16
            }
        };
        self.numbers.insert(kind.clone(), number);
        number
    }

    /// A session with this name has ended.
    fn release(&mut self, number: u16) {
        let kind = &mut self.words[usize::from(number)];
        kind.sessions = kind.sessions.saturating_sub(1);
        if kind.sessions == 0 && number != 0 {
            self.numbers.remove(&kind.word);
            kind.word = Arc::default();
            self.vacant.push(number);
        }
    }
}

pub(super) struct Registry {
    stripes: Vec<RwLock<Stripe>>,
    kinds: Arc<RwLock<DeviceKinds>>,
}

impl Default for Registry {
    fn default() -> Self {
        let kinds = Arc::<RwLock<DeviceKinds>>::default();
        let stripe = |_| RwLock::new(Stripe { users: BlockMap::default(), kinds: kinds.clone() });
        Registry { stripes: (0..STRIPES).map(stripe).collect(), kinds }
    }
}

impl Registry {
    pub(super) fn stripe(&self, user: UserNo) -> &RwLock<Stripe> {
        &self.stripes[user.0 as usize % STRIPES]
    }

    /// The name of a device kind: the shared copy, if a session has it.
    pub(super) fn kind(&self, kind: &str) -> Arc<str> {
        let known = self.kinds.read().numbers.get_key_value(kind).map(|(word, _)| word.clone());
        known.unwrap_or_else(|| kind.into())
    }

    /// Registers a session, and calls `then` while the user's stripe is locked.
    pub(super) fn arrive(&self, user: UserNo, new: PresenceSession, then: impl FnOnce(&Registered)) -> Registered {
        let PresenceSession { session, node, device_id, device_kind, since, chat, background } = new;
        let mut stripe = self.stripe(user).write();
        let kind = self.kinds.write().acquire(&device_kind);
        let registered = stripe.arrive(user, Session { session, since, device_id, node, kind, chat, background });
        then(&registered);
        registered
    }

    /// Removes all sessions of one core, and calls `then` for each while its user's stripe is locked.
    pub(super) fn leave_all(&self, node: NodeNo, mut then: impl FnMut(UserNo, u64, Departure)) {
        for stripe in &self.stripes {
            let mut stripe = stripe.write();
            let of_node = |session: &&Session| session.node.core() == node.core();
            let gone: Vec<(UserNo, u64)> = (stripe.users.after(None))
                .flat_map(|(user, sessions)| sessions.as_slice().iter().filter(of_node).map(move |s| (user, s.session)))
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
            device_kind: kinds.words[usize::from(session.kind)].word.clone(),
            since: session.since,
            chat: session.chat,
            background: session.background,
        }
    }

    pub(super) fn sessions_of(&self, user: UserNo) -> SmallVec<[PresenceSession; 1]> {
        let stripe = self.stripe(user).read();
        let Some(sessions) = stripe.users.get(user) else { return SmallVec::new() };
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
        match stripe.users.get(user) {
            Some(sessions) => sessions.as_slice().iter().any(|session| counts(session.node, session.is_active())),
            None => if_none(),
        }
    }

    /// Calls `look` with every session: its user, its number and its node.
    pub(super) fn each(&self, mut look: impl FnMut(UserNo, u64, NodeNo)) {
        for stripe in &self.stripes {
            for (user, sessions) in stripe.read().users.after(None) {
                sessions.as_slice().iter().for_each(|session| look(user, session.session, session.node));
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
        for (user, sessions) in stripe.users.after(after) {
            let entries = sessions.as_slice().iter().map(|session| Self::presence_session(&kinds, session)).collect();
            if !look(user, entries) {
                return false;
            }
        }
        true
    }

    pub(super) fn user_count(&self) -> usize {
        self.stripes.iter().map(|stripe| stripe.read().users.len()).sum()
    }
}

#[cfg(test)]
#[path = "../../tests/units/presence_registry.rs"]
mod tests;
