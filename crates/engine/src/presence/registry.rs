//! The registered sessions of all users, in little room: a million of them is a normal case.
//!
//! A user with one session has it in the tree itself. A tree and not a hash map: it gives back what
//! it does not need, and its growth never copies a stripe while somebody waits for the lock.

use super::{Device, NodeNo};
use crate::model::UserNo;
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

const STRIPES: usize = 64;
/// Words for kinds of devices that are kept. Clients choose them: who comes with a further one is shown as [`OTHER`].
const KINDS_MAX: usize = 4_096;
const OTHER: &str = "other";

/// A session as it is kept.
#[derive(Debug, Clone)]
struct Session {
    session: u64,
    since: u64,
    device_id: Arc<str>,
    node: NodeNo,
    kind: u16,
}

enum Sessions {
    One(Session),
    Many(Vec<Session>),
}

impl Sessions {
    fn as_slice(&self) -> &[Session] {
        match self {
            Sessions::One(session) => std::slice::from_ref(session),
            Sessions::Many(sessions) => sessions,
        }
    }
}

/// The users of one stripe.
#[derive(Default)]
pub(super) struct Stripe(BTreeMap<UserNo, Sessions>);

/// What an arrival was.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    First,
    Further,
    /// The session was registered already, at this node.
    Again(NodeNo),
}

/// What a departure was.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Departure {
    pub node: NodeNo,
    pub was_last: bool,
}

impl Stripe {
    fn arrive(&mut self, user: UserNo, new: Session) -> Arrival {
        let mut entry = match self.0.entry(user) {
            Entry::Vacant(entry) => {
                entry.insert(Sessions::One(new));
                return Arrival::First;
            }
            Entry::Occupied(entry) => entry,
        };
        let again = match entry.get_mut() {
            Sessions::One(one) => Some(one).filter(|known| known.session == new.session),
            Sessions::Many(many) => many.iter_mut().find(|known| known.session == new.session),
        };
        if let Some(known) = again {
            let node = known.node;
            *known = new;
            return Arrival::Again(node);
        }
        let mut sessions = match std::mem::replace(entry.get_mut(), Sessions::Many(Vec::new())) {
            Sessions::One(one) => vec![one],
            Sessions::Many(many) => many,
        };
        sessions.push(new);
        *entry.get_mut() = Sessions::Many(sessions);
        Arrival::Further
    }

    pub(super) fn leave(&mut self, user: UserNo, session: u64) -> Option<Departure> {
        let Entry::Occupied(mut entry) = self.0.entry(user) else { return None };
        let gone = match entry.get_mut() {
            Sessions::One(one) => {
                let node = (one.session == session).then_some(one.node)?;
                entry.remove();
                return Some(Departure { node, was_last: true });
            }
            Sessions::Many(many) => {
                let at = many.iter().position(|known| known.session == session)?;
                let gone = many.remove(at);
                if let [_] = many.as_slice()
                    && let Some(one) = many.pop()
                {
                    *entry.get_mut() = Sessions::One(one);
                }
                gone
            }
        };
        Some(Departure { node: gone.node, was_last: false })
    }
}

/// The kinds of devices: there are few, and a million sessions name them.
#[derive(Default)]
struct Kinds {
    words: Vec<Arc<str>>,
    numbers: FxHashMap<Arc<str>, u16>,
}

impl Kinds {
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
    kinds: RwLock<Kinds>,
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

    /// The one copy of a device kind.
    pub(super) fn kind(&self, kind: &str) -> Arc<str> {
        let number = self.kind_number(kind);
        self.kinds.read().words[usize::from(number)].clone()
    }

    fn kind_number(&self, kind: &str) -> u16 {
        let known = self.kinds.read().numbers.get(kind).copied();
        known.unwrap_or_else(|| self.kinds.write().add(kind))
    }

    /// Registers a session; `then` is told while nobody else can change this user's.
    pub(super) fn arrive(&self, user: UserNo, device: Device, then: impl FnOnce(&Arrival)) -> Arrival {
        let kind = self.kind_number(&device.device_kind);
        let Device { session, node, device_id, since, .. } = device;
        let mut stripe = self.stripe(user).write();
        let arrival = stripe.arrive(user, Session { session, since, device_id, node, kind });
        then(&arrival);
        arrival
    }

    fn device(kinds: &Kinds, session: &Session) -> Device {
        Device {
            session: session.session,
            node: session.node,
            device_id: session.device_id.clone(),
            device_kind: kinds.words[usize::from(session.kind)].clone(),
            since: session.since,
        }
    }

    pub(super) fn devices(&self, user: UserNo) -> SmallVec<[Device; 1]> {
        let stripe = self.stripe(user).read();
        let Some(sessions) = stripe.0.get(&user) else { return SmallVec::new() };
        let kinds = self.kinds.read();
        sessions.as_slice().iter().map(|session| Self::device(&kinds, session)).collect()
    }

    /// Whether one of the user's sessions is at a node that `counts`; of a user without any, `else_` says, while
    /// nobody can come.
    pub(super) fn is_there(&self, user: UserNo, counts: impl Fn(NodeNo) -> bool, else_: impl FnOnce() -> bool) -> bool {
        let stripe = self.stripe(user).read();
        match stripe.0.get(&user) {
            Some(sessions) => sessions.as_slice().iter().any(|session| counts(session.node)),
            None => else_(),
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

    pub(super) fn users(&self) -> usize {
        self.stripes.iter().map(|stripe| stripe.read().0.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: UserNo = UserNo(1);

    fn device(session: u64, kind: &str) -> Device {
        Device { session, node: NodeNo(session as u32), device_id: "d".into(), device_kind: kind.into(), since: 7 }
    }

    fn sessions(registry: &Registry) -> Vec<u64> {
        registry.devices(ANN).iter().map(|device| device.session).collect()
    }

    #[test]
    fn a_user_with_one_session_has_it_in_the_tree() {
        let (user, sessions) = (size_of::<UserNo>(), size_of::<Sessions>());
        println!("a user with one session: {user} + {sessions} bytes in a node of the tree");
        assert!(user + sessions <= 48);
    }

    #[test]
    fn sessions_come_and_go_and_the_first_and_last_are_told() {
        let registry = Registry::default();
        let arrive = |session: u64| registry.arrive(ANN, device(session, "web"), |_| ());
        let leave = |session: u64| registry.stripe(ANN).write().leave(ANN, session);
        assert_eq!(arrive(1), Arrival::First);
        assert_eq!(arrive(2), Arrival::Further);
        assert_eq!(arrive(3), Arrival::Further);
        assert_eq!(arrive(2), Arrival::Again(NodeNo(2)), "the same session is one, however often it is told");
        assert_eq!(sessions(&registry), [1, 2, 3]);
        assert_eq!(leave(4), None);
        assert_eq!(leave(2), Some(Departure { node: NodeNo(2), was_last: false }));
        assert_eq!(leave(1), Some(Departure { node: NodeNo(1), was_last: false }));
        assert_eq!((sessions(&registry), registry.users()), (vec![3], 1));
        assert_eq!(leave(1), None);
        assert_eq!(leave(3), Some(Departure { node: NodeNo(3), was_last: true }));
        assert_eq!((sessions(&registry), registry.users()), (vec![], 0));
    }

    #[test]
    fn clients_cannot_fill_memory_with_words_for_kinds() {
        let registry = Registry::default();
        registry.arrive(ANN, device(1, "web"), |_| ());
        for number in 0..2 * KINDS_MAX {
            registry.kind(&format!("kind {number}"));
        }
        assert_eq!(registry.kinds.read().words.len(), KINDS_MAX);
        registry.arrive(ANN, device(2, "one more"), |_| ());
        let kinds: Vec<_> = registry.devices(ANN).iter().map(|device| device.device_kind.to_string()).collect();
        assert_eq!(kinds, ["web", OTHER]);
    }
}
