//! Places for connections: how many there may be, how many of one address, and who gives way when there is no other.
//!
//! ```text
//! stranger (idle) ⇄ stranger (busy) ─▶ known
//!        └─▶ gone: its place is another's
//! ```
//! A connection is a stranger until a credential of its was accepted. Opening connections costs a stranger nothing, so a full house is
//! no reason to refuse the next one: the stranger who has been idle in it for longest leaves instead, if that is long enough. (In a storm of
//! callers who have not come to their turn yet, sending away the oldest would serve nobody.) Who is known is never sent away. When there is
//! nobody to send away, a few places of a reserve are left, where only what an operator must always see is answered.

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

/// Those that were sent away and have not left yet, in all: so far may the number of connections be above its limit.
const LEAVING_MAX: usize = 64;
/// Addresses of IPv6 that differ only below this many bits are one caller's: providers give out no less than a /64.
const IPV6_NETWORK_BITS: u32 = 64;

const IDLE: u8 = 0;
const BUSY: u8 = 1;
const KNOWN: u8 = 2;
const GONE: u8 = 3;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacesConfig {
    /// Connections in all.
    pub most: usize,
    /// Of one address; of IPv6, of one /64.
    pub of_one_address: usize,
    /// Of each address of this machine itself: a reverse proxy's, say.
    pub of_this_machine: usize,
    /// Beyond these, for what must be answered always.
    pub reserve: usize,
    /// A stranger who has been idle for less is not sent away; in the reserve for a tenth of it.
    pub idle_min: Duration,
}

/// All places of a door.
pub struct Places {
    config: PlacesConfig,
    ledger: Mutex<Ledger>,
    evicted: AtomicU64,
}

/// Who is there. Idle strangers are ordered by their numbers, which is by when they became idle.
#[derive(Default)]
struct Ledger {
    next: u64,
    open: usize,
    leaving: usize,
    strangers: BTreeMap<u64, Idle>,
    in_reserve: usize,
    /// Nobody is known there.
    reserved: BTreeMap<u64, Idle>,
    addresses: HashMap<Network, Share>,
}

/// A connection without a request.
struct Idle {
    state: Arc<State>,
    since: Instant,
}

/// What one address has.
#[derive(Default)]
struct Share {
    open: usize,
    leaving: usize,
    strangers: BTreeSet<u64>,
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

struct State {
    /// Its latest number. Changes with the ledger.
    number: AtomicU64,
    at: AtomicU8,
    /// Set once its address is known, in a place that is not of the reserve.
    network: OnceLock<Network>,
    in_reserve: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl State {
    fn change(&self, from: u8, to: u8) -> bool {
        self.at.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn is_gone(&self) -> bool {
        self.at.load(Ordering::Acquire) == GONE
    }

    fn is_reserved(&self) -> bool {
        self.in_reserve.load(Ordering::Acquire)
    }

    fn send_away(&self) -> bool {
        let idle = self.change(IDLE, GONE);
        if idle && let Some(waker) = self.waker.lock().take() {
            waker.wake();
        }
        idle
    }
}

impl Ledger {
    /// From now on it is idle.
    fn add(&mut self, state: &Arc<State>) {
        let number = self.next;
        self.next += 1;
        state.number.store(number, Ordering::Relaxed);
        let idle = Idle { state: state.clone(), since: Instant::now() };
        if state.is_reserved() {
            self.reserved.insert(number, idle);
            return;
        }
        self.strangers.insert(number, idle);
        if let Some(share) = state.network.get().and_then(|network| self.addresses.get_mut(network)) {
            share.strangers.insert(number);
        }
    }

    /// It is not idle, or no stranger, or not there any more.
    fn remove(&mut self, state: &State) {
        let number = state.number.load(Ordering::Relaxed);
        if state.is_reserved() {
            self.reserved.remove(&number);
            return;
        }
        self.strangers.remove(&number);
        if let Some(share) = state.network.get().and_then(|network| self.addresses.get_mut(network)) {
            share.strangers.remove(&number);
        }
    }
}

/// One connection's place, until it is dropped.
pub struct Place {
    places: Arc<Places>,
    state: Arc<State>,
}

/// What a connection's requests tell of it.
#[derive(Clone)]
pub struct Standing {
    places: Arc<Places>,
    state: Arc<State>,
}

impl Places {
    pub fn new(config: PlacesConfig) -> Arc<Self> {
        Arc::new(Places { config, ledger: Mutex::default(), evicted: AtomicU64::new(0) })
    }

    /// How many connections there are, those of the reserve not among them.
    pub fn taken(&self) -> usize {
        self.ledger.lock().open
    }

    pub fn most(&self) -> usize {
        self.config.most
    }

    /// How many strangers were sent away since the start.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Whether so many are on their way out that the next should wait until some are: it is a matter of their tasks' turn.
    pub fn are_leaving(&self) -> bool {
        let ledger = self.ledger.lock();
        let reserve = self.config.reserve;
        2 * ledger.leaving >= LEAVING_MAX || reserve > 0 && 2 * ledger.in_reserve >= 3 * reserve
    }

    /// A place for one more connection: a free one, that of a stranger, or one of the reserve. `None`: there is none.
    pub fn take(self: &Arc<Self>) -> Option<Place> {
        let mut ledger = self.ledger.lock();
        let ledger = &mut *ledger;
        let has_room = ledger.open - ledger.leaving < self.config.most && ledger.open < self.config.most + LEAVING_MAX;
        let in_reserve = !has_room && !self.evict_oldest(ledger);
        if in_reserve && !self.has_reserve(ledger) {
            return None;
        }
        let state = Arc::new(State {
            number: AtomicU64::new(0),
            at: AtomicU8::new(IDLE),
            network: OnceLock::new(),
            in_reserve: AtomicBool::new(in_reserve),
            waker: Mutex::new(None),
        });
        *(if in_reserve { &mut ledger.in_reserve } else { &mut ledger.open }) += 1;
        ledger.add(&state);
        Some(Place { places: self.clone(), state })
    }

    /// Sends the stranger away that has been idle for longest: something that all share is short. False: there is none.
    pub fn make_room(&self) -> bool {
        self.evict_oldest(&mut self.ledger.lock())
    }

    fn evict_oldest(&self, ledger: &mut Ledger) -> bool {
        while ledger.leaving < LEAVING_MAX {
            let Some(oldest) = ledger.strangers.values().next() else { return false };
            if oldest.since.elapsed() < self.config.idle_min {
                return false;
            }
            let state = oldest.state.clone();
            // One that has just begun to ask takes itself off the list in a moment.
            if self.evict(ledger, &state) {
                return true;
            }
        }
        false
    }

    /// The oldest of one address.
    fn evict_of(&self, ledger: &mut Ledger, network: Network) -> bool {
        while ledger.leaving < LEAVING_MAX {
            let oldest = ledger.addresses.get(&network).and_then(|share| share.strangers.first());
            let Some(oldest) = oldest.and_then(|number| ledger.strangers.get(number)) else { return false };
            if oldest.since.elapsed() < self.config.idle_min {
                return false;
            }
            let state = oldest.state.clone();
            if self.evict(ledger, &state) {
                return true;
            }
        }
        false
    }

    /// Its place is free from now on, though it is not out yet: what it holds of the counts goes when it drops.
    fn evict(&self, ledger: &mut Ledger, state: &State) -> bool {
        ledger.remove(state);
        if !state.send_away() {
            return false;
        }
        ledger.leaving += 1;
        if let Some(share) = state.network.get().and_then(|network| ledger.addresses.get_mut(network)) {
            share.leaving += 1;
        }
        self.evicted.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Whether the reserve has a place, or one that is idle there gives way. Who was sent away leaves at once: no more than two of each
    /// place are there.
    fn has_reserve(&self, ledger: &mut Ledger) -> bool {
        let reserve = self.config.reserve;
        if ledger.in_reserve < reserve {
            return true;
        }
        while ledger.in_reserve < 2 * reserve {
            let Some(oldest) = ledger.reserved.values().next() else { return false };
            if oldest.since.elapsed() < self.config.idle_min / 10 {
                return false;
            }
            let state = oldest.state.clone();
            ledger.remove(&state);
            if state.send_away() {
                return true;
            }
        }
        false
    }
}

impl Place {
    /// Counts it to an address, once. False: that address has its share, and there is no place for it in the reserve.
    pub fn settle(&mut self, address: IpAddr) -> bool {
        let network = Network::of(address);
        let (places, state) = (&self.places, &self.state);
        let mut ledger = places.ledger.lock();
        // Places change hands under the lock.
        if state.is_gone() {
            return false;
        }
        if state.is_reserved() {
            return true;
        }
        let most = match network.0.is_loopback() {
            true => places.config.of_this_machine,
            false => places.config.of_one_address,
        };
        let share = ledger.addresses.get(&network);
        let has_share = share.is_none_or(|share| share.open - share.leaving < most);
        ledger.remove(state);
        if has_share || places.evict_of(&mut ledger, network) {
            ledger.addresses.entry(network).or_default().open += 1;
            let _ = state.network.set(network);
        } else if places.has_reserve(&mut ledger) {
            ledger.open -= 1;
            ledger.in_reserve += 1;
            state.in_reserve.store(true, Ordering::Release);
        } else {
            return false;
        }
        ledger.add(state);
        true
    }

    /// Whether it is one of the reserve.
    pub fn is_reserved(&self) -> bool {
        self.state.is_reserved()
    }

    /// What its requests tell of it.
    pub fn standing(&self) -> Standing {
        Standing { places: self.places.clone(), state: self.state.clone() }
    }

    /// Ends when the connection is to leave; never, once it is known.
    pub fn evicted(&self) -> impl Future<Output = ()> + use<> {
        let state = self.state.clone();
        poll_fn(move |context| match state.at.load(Ordering::Acquire) {
            GONE => Poll::Ready(()),
            KNOWN => Poll::Pending,
            _ => {
                let mut waker = state.waker.lock();
                if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                    *waker = Some(context.waker().clone());
                }
                drop(waker);
                if state.at.load(Ordering::Acquire) == GONE { Poll::Ready(()) } else { Poll::Pending }
            }
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut ledger = self.places.ledger.lock();
        let state = &self.state;
        ledger.remove(state);
        if state.is_reserved() {
            ledger.in_reserve -= 1;
            return;
        }
        let was_sent_away = usize::from(state.is_gone());
        ledger.open -= 1;
        ledger.leaving -= was_sent_away;
        let Some(network) = state.network.get() else { return };
        if let Some(share) = ledger.addresses.get_mut(network) {
            share.open -= 1;
            share.leaving -= was_sent_away;
            if share.open == 0 {
                ledger.addresses.remove(network);
            }
        }
    }
}

impl Standing {
    /// A request has begun: while it is answered its connection is not sent away. False: it was already, and nothing is to be done.
    pub fn begin(&self) -> bool {
        if self.state.at.load(Ordering::Acquire) == KNOWN {
            return true;
        }
        let begun = self.state.change(IDLE, BUSY);
        if begun {
            self.places.ledger.lock().remove(&self.state);
        }
        begun
    }

    /// The request has its answer.
    pub fn end(&self) {
        if self.state.at.load(Ordering::Acquire) == BUSY {
            let mut ledger = self.places.ledger.lock();
            if self.state.change(BUSY, IDLE) {
                ledger.add(&self.state);
            }
        }
    }

    /// A credential was accepted.
    pub fn know(&self) {
        if self.state.change(BUSY, KNOWN) || self.state.change(IDLE, KNOWN) {
            self.places.ledger.lock().remove(&self.state);
        }
    }
}

#[cfg(test)]
mod tests;
