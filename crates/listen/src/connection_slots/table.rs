//! The open connections of all slots, and the order in which idle ones are evicted.

use crate::client::Network;
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    task::Waker,
    time::Instant,
};

/// The phases of a connection, in [`SlotState::phase`].
pub(super) const IDLE: u8 = 0;
pub(super) const BUSY: u8 = 1;
/// The connection is an app server's.
pub(super) const APP_SERVER: u8 = 2;
pub(super) const EVICTED: u8 = 3;

/// The order in which idle connections are evicted: those without a credential first, and of two alike the one that has been idle for
/// longer, which has the lower number.
pub(super) type IdleKey = (Claim, u64);

/// What an idle connection has on its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Claim {
    Unauthenticated,
    OfUser,
}

/// The open connections.
#[derive(Default)]
pub(super) struct SlotTable {
    pub(super) next: u64,
    pub(super) open: usize,
    pub(super) evicting: usize,
    /// Connections without a request, but for those of app servers.
    pub(super) idle: BTreeMap<IdleKey, IdleConnection>,
    pub(super) in_reserve: usize,
    /// The same on slots of the reserve.
    pub(super) idle_in_reserve: BTreeMap<IdleKey, IdleConnection>,
    pub(super) addresses: HashMap<Network, Usage>,
    pub(super) users: HashMap<u64, Usage>,
}

/// A connection without a request.
pub(super) struct IdleConnection {
    pub(super) state: Arc<SlotState>,
    pub(super) since: Instant,
}

/// The connections of one address, or of one user.
#[derive(Default)]
pub(super) struct Usage {
    pub(super) open: usize,
    pub(super) evicting: usize,
    pub(super) idle: BTreeSet<IdleKey>,
}

impl Usage {
    pub(super) fn oldest(&self, claim: Claim) -> Option<IdleKey> {
        self.idle.range((claim, 0)..=(claim, u64::MAX)).next().copied()
    }

    pub(super) fn has_room(usage: Option<&Usage>, most: usize) -> bool {
        usage.is_none_or(|usage| usage.open - usage.evicting < most)
    }
}

pub(super) struct SlotState {
    /// The number under which the connection became idle last. Changes under the table's lock.
    pub(super) number: AtomicU64,
    pub(super) phase: AtomicU8,
    /// Set once the client's address is known, unless the slot is one of the reserve.
    pub(super) network: OnceLock<Network>,
    pub(super) in_reserve: AtomicBool,
    /// The number of the user whose connection it is, and 1 more; 0: nobody's yet. Changes under the table's lock.
    pub(super) user: AtomicU64,
    pub(super) waker: Mutex<Option<Waker>>,
}

impl SlotState {
    pub(super) fn change(&self, from: u8, to: u8) -> bool {
        self.phase.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    pub(super) fn user(&self) -> Option<u64> {
        self.user.load(Ordering::Acquire).checked_sub(1)
    }

    pub(super) fn idle_key(&self) -> IdleKey {
        let claim = if self.user().is_some() { Claim::OfUser } else { Claim::Unauthenticated };
        (claim, self.number.load(Ordering::Relaxed))
    }

    pub(super) fn is_evicted(&self) -> bool {
        self.phase.load(Ordering::Acquire) == EVICTED
    }

    pub(super) fn is_reserved(&self) -> bool {
        self.in_reserve.load(Ordering::Acquire)
    }

    pub(super) fn try_evict(&self) -> bool {
        let idle = self.change(IDLE, EVICTED);
        if idle && let Some(waker) = self.waker.lock().take() {
            waker.wake();
        }
        idle
    }
}

impl SlotTable {
    /// The connection is idle from now on.
    pub(super) fn add_idle(&mut self, state: &Arc<SlotState>) {
        state.number.store(self.next, Ordering::Relaxed);
        self.next += 1;
        let key = state.idle_key();
        let idle = IdleConnection { state: state.clone(), since: Instant::now() };
        if state.is_reserved() {
            self.idle_in_reserve.insert(key, idle);
            return;
        }
        self.idle.insert(key, idle);
        self.each_usage(state, |usage| {
            usage.idle.insert(key);
        });
    }

    /// The connection is busy, an app server's or closed.
    pub(super) fn remove_idle(&mut self, state: &SlotState) {
        let key = state.idle_key();
        if state.is_reserved() {
            self.idle_in_reserve.remove(&key);
            return;
        }
        if self.idle.remove(&key).is_some() {
            self.each_usage(state, |usage| {
                usage.idle.remove(&key);
            });
        }
    }

    /// Calls `change` with the usage of the connection's address and of its user.
    pub(super) fn each_usage(&mut self, state: &SlotState, mut change: impl FnMut(&mut Usage)) {
        let of_address = state.network.get().and_then(|network| self.addresses.get_mut(network));
        let of_user = state.user().and_then(|user| self.users.get_mut(&user));
        of_address.into_iter().chain(of_user).for_each(&mut change);
    }

    /// The connection is not its user's any more. It is not idle.
    pub(super) fn leave_user(&mut self, state: &SlotState) {
        let Some(user) = state.user() else { return };
        if let Some(usage) = self.users.get_mut(&user) {
            usage.open -= 1;
            usage.evicting -= usize::from(state.is_evicted());
            if usage.open == 0 {
                self.users.remove(&user);
            }
        }
        state.user.store(0, Ordering::Release);
    }

    /// The connection that has been idle for longest among all with this claim.
    pub(super) fn oldest(&self, claim: Claim) -> Option<IdleKey> {
        self.idle.range((claim, 0)..=(claim, u64::MAX)).next().map(|(key, _)| *key)
    }
}
