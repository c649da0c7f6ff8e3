//! Slots for connections: how many may be open in all and per address, and which connection is evicted when all
//! slots are taken.
//!
//! ```text
//! unauthenticated, idle ⇄ unauthenticated, busy ─▶ authenticated
//!        └─▶ evicted: its slot goes to another connection
//! ```
//! A connection is unauthenticated until one of its credentials was accepted. Opening connections costs an attacker
//! nothing, so full slots are no reason to refuse the next connection: the unauthenticated connection that has been
//! idle for longest is evicted instead, if it has been idle for long enough. (In a storm of callers who wait for their
//! first answer, evicting the oldest would serve nobody.) An authenticated connection is never evicted. When no
//! connection can be evicted, a small reserve of slots remains, on which only what an operator must always see is
//! answered.

use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    future::{Future, poll_fn},
    net::IpAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    task::{Poll, Waker},
    time::{Duration, Instant},
};

/// Evicted connections that may still be open, in all: the number of open connections may exceed its limit by these.
const EVICTING_MAX: usize = 64;
/// IPv6 addresses that differ only below this many bits belong to one caller: providers give out no less than a /64.
const IPV6_NETWORK_BITS: u32 = 64;

/// The phases of a connection, in [`SlotState::phase`].
const IDLE: u8 = 0;
const BUSY: u8 = 1;
const AUTHENTICATED: u8 = 2;
const EVICTED: u8 = 3;

/// The limits of [`ConnectionSlots`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionSlotsConfig {
    /// Open connections in all.
    pub connections_max: usize,
    /// Open connections of one address; of one /64 for IPv6.
    pub per_address_max: usize,
    /// Open connections of each loopback address: of a reverse proxy, say.
    pub per_local_address_max: usize,
    /// Slots beyond these limits, for requests that must always be answered.
    pub reserve: usize,
    /// An unauthenticated connection is not evicted before it has been idle for this; in the reserve for a tenth of it.
    pub idle_min: Duration,
}

/// All slots of one listener.
pub struct ConnectionSlots {
    config: ConnectionSlotsConfig,
    table: Mutex<SlotTable>,
    evictions: AtomicU64,
}

/// The open connections. Idle ones are ordered by their numbers, which is the order in which they became idle.
#[derive(Default)]
struct SlotTable {
    next: u64,
    open: usize,
    evicting: usize,
    /// Unauthenticated connections without a request.
    idle: BTreeMap<u64, IdleConnection>,
    in_reserve: usize,
    /// The same on slots of the reserve.
    idle_in_reserve: BTreeMap<u64, IdleConnection>,
    addresses: HashMap<Network, AddressUsage>,
}

/// A connection without a request.
struct IdleConnection {
    state: Arc<SlotState>,
    since: Instant,
}

/// The connections of one address.
#[derive(Default)]
struct AddressUsage {
    open: usize,
    evicting: usize,
    idle: BTreeSet<u64>,
}

/// What counts as one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Network(IpAddr);

impl Network {
    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) if !address.is_loopback() => {
                let mask = u128::MAX << (128 - IPV6_NETWORK_BITS);
                Network(IpAddr::V6((u128::from(address) & mask).into()))
            }
            address => Network(address),
        }
    }
}

struct SlotState {
    /// The number under which the connection became idle last. Changes under the table's lock.
    number: AtomicU64,
    phase: AtomicU8,
    /// Set once the client's address is known, unless the slot is one of the reserve.
    network: OnceLock<Network>,
    in_reserve: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl SlotState {
    fn change(&self, from: u8, to: u8) -> bool {
        self.phase.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn is_evicted(&self) -> bool {
        self.phase.load(Ordering::Acquire) == EVICTED
    }

    fn is_reserved(&self) -> bool {
        self.in_reserve.load(Ordering::Acquire)
    }

    fn try_evict(&self) -> bool {
        let idle = self.change(IDLE, EVICTED);
        if idle && let Some(waker) = self.waker.lock().take() {
            waker.wake();
        }
        idle
    }
}

impl SlotTable {
    /// The connection is idle from now on.
    fn add_idle(&mut self, state: &Arc<SlotState>) {
        let number = self.next;
        self.next += 1;
        state.number.store(number, Ordering::Relaxed);
        let idle = IdleConnection { state: state.clone(), since: Instant::now() };
        if state.is_reserved() {
            self.idle_in_reserve.insert(number, idle);
            return;
        }
        self.idle.insert(number, idle);
        if let Some(usage) = state.network.get().and_then(|network| self.addresses.get_mut(network)) {
            usage.idle.insert(number);
        }
    }

    /// The connection is busy, authenticated or closed.
    fn remove_idle(&mut self, state: &SlotState) {
        let number = state.number.load(Ordering::Relaxed);
        if state.is_reserved() {
            self.idle_in_reserve.remove(&number);
            return;
        }
        self.idle.remove(&number);
        if let Some(usage) = state.network.get().and_then(|network| self.addresses.get_mut(network)) {
            usage.idle.remove(&number);
        }
    }
}

/// One connection's slot; dropping it frees the slot.
pub struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    state: Arc<SlotState>,
}

/// What a connection's requests report: that one has begun or ended, and that a credential was accepted.
#[derive(Clone)]
pub struct ConnectionActivity {
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
            waker: Mutex::new(None),
        });
        *(if in_reserve { &mut table.in_reserve } else { &mut table.open }) += 1;
        table.add_idle(&state);
        Some(ConnectionSlot { slots: self.clone(), state })
    }

    /// Evicts the unauthenticated connection that has been idle for longest, because something that all connections
    /// share (file descriptors) is short. False: no connection can be evicted.
    pub fn evict_idle(&self) -> bool {
        self.evict_oldest(&mut self.table.lock())
    }

    fn evict_oldest(&self, table: &mut SlotTable) -> bool {
        while table.evicting < EVICTING_MAX {
            let Some(oldest) = table.idle.values().next() else { return false };
            if oldest.since.elapsed() < self.config.idle_min {
                return false;
            }
            let state = oldest.state.clone();
            // A connection whose request has just begun cannot be evicted; that request takes it off the list.
            if self.evict(table, &state) {
                return true;
            }
        }
        false
    }

    /// Evicts the oldest idle connection of one address.
    fn evict_oldest_of(&self, table: &mut SlotTable, network: Network) -> bool {
        while table.evicting < EVICTING_MAX {
            let oldest = table.addresses.get(&network).and_then(|usage| usage.idle.first());
            let Some(oldest) = oldest.and_then(|number| table.idle.get(number)) else { return false };
            if oldest.since.elapsed() < self.config.idle_min {
                return false;
            }
            let state = oldest.state.clone();
            if self.evict(table, &state) {
                return true;
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
        if let Some(usage) = state.network.get().and_then(|network| table.addresses.get_mut(network)) {
            usage.evicting += 1;
        }
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
        let address_max = match network.0.is_loopback() {
            true => slots.config.per_local_address_max,
            false => slots.config.per_address_max,
        };
        let usage = table.addresses.get(&network);
        let has_room = usage.is_none_or(|usage| usage.open - usage.evicting < address_max);
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

    /// Completes when the connection is evicted; never, once it is authenticated.
    pub fn evicted(&self) -> impl Future<Output = ()> + use<> {
        let state = self.state.clone();
        poll_fn(move |context| match state.phase.load(Ordering::Acquire) {
            EVICTED => Poll::Ready(()),
            AUTHENTICATED => Poll::Pending,
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

impl ConnectionActivity {
    /// A request has begun: its connection is not evicted before the request is answered. False: the connection was
    /// evicted already, and the request must not be carried out.
    pub fn begin_request(&self) -> bool {
        if self.state.phase.load(Ordering::Acquire) == AUTHENTICATED {
            return true;
        }
        let begun = self.state.change(IDLE, BUSY);
        if begun {
            self.slots.table.lock().remove_idle(&self.state);
        }
        begun
    }

    /// The request was answered.
    pub fn end_request(&self) {
        if self.state.phase.load(Ordering::Acquire) == BUSY {
            let mut table = self.slots.table.lock();
            if self.state.change(BUSY, IDLE) {
                table.add_idle(&self.state);
            }
        }
    }

    /// A credential was accepted: the connection is never evicted from here on.
    pub fn mark_authenticated(&self) {
        if self.state.change(BUSY, AUTHENTICATED) || self.state.change(IDLE, AUTHENTICATED) {
            self.slots.table.lock().remove_idle(&self.state);
        }
    }
}

#[cfg(test)]
mod tests;
