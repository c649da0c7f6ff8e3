//! Slots for connections: how many may be open in all and per address, and which connection is evicted when all
//! slots are taken.
//!
//! ```text
//! idle ⇄ busy ─▶ an app server's
//!   └─▶ evicted: its slot goes to another connection
//! ```
//! A connection is unauthenticated until one of its credentials was accepted; then it is an app server's, or the user's whose token
//! was accepted last. Opening connections costs an attacker nothing, so full slots are no reason to refuse the next connection: the
//! unauthenticated connection that has been idle for longest is evicted instead, if it has been idle for long enough, or else the one
//! of a user. (In a storm of callers who wait for their first answer, evicting the oldest would serve nobody.) A connection of an app
//! server is never evicted. One user has a share of the slots: beyond it, the user's own idle connections are evicted, and requests
//! on further ones are refused. When no connection can be evicted, a small reserve of slots remains, for what an operator must always
//! see and for app servers.

mod activity;
mod table;

pub use activity::ConnectionActivity;

use crate::client::Network;
use parking_lot::Mutex;
use std::{
    future::{Future, poll_fn},
    net::IpAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};
use table::{APP_SERVER, Claim, EVICTED, IDLE, IdleKey, SlotState, SlotTable, Usage};

/// Evicted connections that may still be open, in all: the number of open connections may exceed its limit by these.
const EVICTING_MAX: usize = 64;

/// The limits of [`ConnectionSlots`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionSlotsConfig {
    /// Open connections in all.
    pub connections_max: usize,
    /// Open connections of one address; of one /64 for IPv6.
    pub per_address_max: usize,
    /// Open connections of each loopback address: of a reverse proxy, say.
    pub per_local_address_max: usize,
    /// Open connections of one user.
    pub per_user_max: usize,
    /// Slots beyond these limits, for requests that must always be answered.
    pub reserve: usize,
    /// A connection is not evicted before it has been idle for this; in the reserve for a tenth of it.
    pub idle_min: Duration,
}

/// All slots of one listener.
pub struct ConnectionSlots {
    config: ConnectionSlotsConfig,
    table: Mutex<SlotTable>,
    evictions: AtomicU64,
}

/// One connection's slot; dropping it frees the slot.
pub struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    state: Arc<SlotState>,
}

impl ConnectionSlots {
    pub fn new(config: ConnectionSlotsConfig) -> Arc<Self> {
        Arc::new(ConnectionSlots { config, table: Mutex::default(), evictions: AtomicU64::new(0) })
    }

    /// How many connections are open, without those of the reserve.
    pub fn open(&self) -> usize {
        self.table.lock().open
    }

    pub fn connections_max(&self) -> usize {
        self.config.connections_max
    }

    /// How many connections were evicted since the start.
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    /// Whether so many evicted connections are still open that accept should wait until the tasks of some have ended.
    pub fn has_eviction_backlog(&self) -> bool {
        let table = self.table.lock();
        let reserve = self.config.reserve;
        2 * table.evicting >= EVICTING_MAX || reserve > 0 && 2 * table.in_reserve >= 3 * reserve
    }

    /// A slot for one more connection: a free one, that of an evicted connection, or one of the reserve. `None`: no
    /// slot is left.
    pub fn acquire(self: &Arc<Self>) -> Option<ConnectionSlot> {
        let mut table = self.table.lock();
        let table = &mut *table;
        let connections_max = self.config.connections_max;
        let has_room = table.open - table.evicting < connections_max && table.open < connections_max + EVICTING_MAX;
        let in_reserve = !has_room && !self.evict_oldest(table);
        if in_reserve && !self.has_reserve_slot(table) {
            return None;
        }
        let state = Arc::new(SlotState {
            number: AtomicU64::new(0),
            phase: AtomicU8::new(IDLE),
            network: OnceLock::new(),
            in_reserve: AtomicBool::new(in_reserve),
            user: AtomicU64::new(0),
            waker: Mutex::new(None),
        });
        *(if in_reserve { &mut table.in_reserve } else { &mut table.open }) += 1;
        table.add_idle(&state);
        Some(ConnectionSlot { slots: self.clone(), state })
    }

    /// Evicts the connection that has been idle for longest, because something that all connections share (file descriptors) is
    /// short. False: no connection can be evicted.
    pub fn evict_idle(&self) -> bool {
        self.evict_oldest(&mut self.table.lock())
    }

    fn evict_oldest(&self, table: &mut SlotTable) -> bool {
        self.evict_first(table, SlotTable::oldest)
    }

    /// Evicts the oldest idle connection of one address.
    fn evict_oldest_of(&self, table: &mut SlotTable, network: Network) -> bool {
        self.evict_first(table, |table, claim| table.addresses.get(&network)?.oldest(claim))
    }

    /// Evicts the oldest idle connection of one user.
    fn evict_oldest_of_user(&self, table: &mut SlotTable, user: u64) -> bool {
        self.evict_first(table, |table, claim| table.users.get(&user)?.oldest(claim))
    }

    /// Evicts the connection that `oldest` names: one without a credential, or else one of a user.
    fn evict_first(&self, table: &mut SlotTable, oldest: impl Fn(&SlotTable, Claim) -> Option<IdleKey>) -> bool {
        for claim in [Claim::Unauthenticated, Claim::OfUser] {
            while table.evicting < EVICTING_MAX {
                let Some(oldest) = oldest(table, claim).and_then(|key| table.idle.get(&key)) else { break };
                if oldest.since.elapsed() < self.config.idle_min {
                    break;
                }
                let state = oldest.state.clone();
                // A connection whose request has just begun cannot be evicted; that request takes it off the list.
                if self.evict(table, &state) {
                    return true;
                }
            }
        }
        false
    }

    /// The slot is free from now on, though its connection is still open: the connection leaves the counts when its
    /// slot is dropped.
    fn evict(&self, table: &mut SlotTable, state: &SlotState) -> bool {
        table.remove_idle(state);
        if !state.try_evict() {
            return false;
        }
        table.evicting += 1;
        table.each_usage(state, |usage| usage.evicting += 1);
        self.evictions.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Whether the reserve has a free slot, or evicts an idle connection for one. Evicted connections of the reserve
    /// close at once, so that at most two connections exist for each of its slots.
    fn has_reserve_slot(&self, table: &mut SlotTable) -> bool {
        let reserve = self.config.reserve;
        if table.in_reserve < reserve {
            return true;
        }
        while table.in_reserve < 2 * reserve {
            let Some(oldest) = table.idle_in_reserve.values().next() else { return false };
            if oldest.since.elapsed() < self.config.idle_min / 10 {
                return false;
            }
            let state = oldest.state.clone();
            table.remove_idle(&state);
            if state.try_evict() {
                return true;
            }
        }
        false
    }
}

impl ConnectionSlot {
    /// Counts the connection to its client's address; call it once. False: the address has as many connections as it
    /// may, and the reserve has no slot for this one.
    pub fn assign_address(&mut self, address: IpAddr) -> bool {
        let network = Network::of(address);
        let (slots, state) = (&self.slots, &self.state);
        let mut table = slots.table.lock();
        // Evictions happen under this lock, so that the answer stays true while it is held.
        if state.is_evicted() {
            return false;
        }
        if state.is_reserved() {
            return true;
        }
        let address_max =
            if network.0.is_loopback() { slots.config.per_local_address_max } else { slots.config.per_address_max };
        let has_room = Usage::has_room(table.addresses.get(&network), address_max);
        table.remove_idle(state);
        if has_room || slots.evict_oldest_of(&mut table, network) {
            table.addresses.entry(network).or_default().open += 1;
            let _ = state.network.set(network);
        } else if slots.has_reserve_slot(&mut table) {
            table.open -= 1;
            table.in_reserve += 1;
            state.in_reserve.store(true, Ordering::Release);
        } else {
            return false;
        }
        table.add_idle(state);
        true
    }

    /// Whether the slot is one of the reserve.
    pub fn is_reserved(&self) -> bool {
        self.state.is_reserved()
    }

    /// The handle with which the connection's requests report what they do.
    pub fn activity(&self) -> ConnectionActivity {
        ConnectionActivity { slots: self.slots.clone(), state: self.state.clone() }
    }

    /// Completes when the connection is evicted; never, once it is an app server's.
    pub fn evicted(&self) -> impl Future<Output = ()> + use<> {
        let state = self.state.clone();
        poll_fn(move |context| match state.phase.load(Ordering::Acquire) {
            EVICTED => Poll::Ready(()),
            APP_SERVER => Poll::Pending,
            _ => {
                let mut waker = state.waker.lock();
                if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                    *waker = Some(context.waker().clone());
                }
                drop(waker);
                // An eviction between the first look and the new waker would have woken nobody.
                if state.phase.load(Ordering::Acquire) == EVICTED { Poll::Ready(()) } else { Poll::Pending }
            }
        })
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut table = self.slots.table.lock();
        let state = &self.state;
        table.remove_idle(state);
        if state.is_reserved() {
            table.in_reserve -= 1;
            return;
        }
        table.leave_user(state);
        let was_evicted = usize::from(state.is_evicted());
        table.open -= 1;
        table.evicting -= was_evicted;
        let Some(network) = state.network.get() else { return };
        if let Some(usage) = table.addresses.get_mut(network) {
            usage.open -= 1;
            usage.evicting -= was_evicted;
            if usage.open == 0 {
                table.addresses.remove(network);
            }
        }
    }
}

#[cfg(test)]
mod tests;
