//! Connections that nobody has bound: sockets that show no token yet, or that are being closed.
//!
//! Opening them costs an attacker nothing. So when connections run out, or those of one address do, one gives way to the next: the one
//! that has been closing for longest, or else the one that has waited for its bind for longest, if it has for a while. (In a storm of
//! clients that are about to bind, closing the oldest would serve nobody.) A connection that has bound leaves this table, and costs
//! nothing here.

use crate::client::Network;
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnboundConnectionsConfig {
    /// Unbound connections of one address; of one /64 for IPv6.
    pub per_address_max: usize,
    /// Unbound connections of each loopback address: of a reverse proxy, say.
    pub per_local_address_max: usize,
    /// A connection does not give way before it has waited for its bind for this.
    pub unbound_min: Duration,
}

/// Ends a connection. It is called without a lock, on any thread, and must not wait.
type EndConnection = Box<dyn Fn() + Send + Sync>;

/// The unbound connections of one process.
pub struct UnboundConnections {
    config: UnboundConnectionsConfig,
    table: Mutex<Table>,
    evictions: AtomicU64,
}

#[derive(Default)]
struct Table {
    next: u64,
    waiting: BTreeMap<WaitingKey, Waiting>,
    /// Those that wait for their binds.
    addresses: HashMap<Network, BTreeSet<WaitingKey>>,
}

/// The order in which connections give way: by what they wait for, and then by time.
type WaitingKey = (WaitsFor, u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum WaitsFor {
    End,
    Bind,
}

struct Waiting {
    network: Option<Network>,
    since: Instant,
    end: EndConnection,
}

/// One connection's entry, for as long as it is unbound.
pub struct Unbound {
    connections: Arc<UnboundConnections>,
    key: WaitingKey,
}

impl UnboundConnections {
    pub fn new(config: UnboundConnectionsConfig) -> Arc<Self> {
        Arc::new(UnboundConnections { config, table: Mutex::default(), evictions: AtomicU64::new(0) })
    }

    /// How many connections gave way to others since the start.
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    /// Whether [`evict_oldest`](Self::evict_oldest) would find a connection.
    pub fn can_evict(&self) -> bool {
        self.table.lock().first(None, &self.config).is_some()
    }

    /// Ends the connection that has been closing or unbound for longest. False: none has been for long enough.
    pub fn evict_oldest(&self) -> bool {
        self.evict(None)
    }

    /// Has a connection of this address wait for its bind. If the address has too many, one of them gives way; `None`: none can.
    pub fn wait_for_bind(self: &Arc<Self>, address: Option<IpAddr>, end: EndConnection) -> Option<Unbound> {
        let network = address.map(Network::of);
        let is_over = network.is_some_and(|network| {
            let of_address = self.table.lock().addresses.get(&network).map_or(0, BTreeSet::len);
            of_address >= self.config.per_address(network)
        });
        (!is_over || self.evict(network)).then(|| self.wait(WaitsFor::Bind, network, end))
    }

    /// Has a connection wait for its end.
    pub fn wait_for_end(self: &Arc<Self>, end: EndConnection) -> Unbound {
        self.wait(WaitsFor::End, None, end)
    }

    fn wait(self: &Arc<Self>, what: WaitsFor, network: Option<Network>, end: EndConnection) -> Unbound {
        let mut table = self.table.lock();
        let key = (what, table.next);
        table.next += 1;
        table.waiting.insert(key, Waiting { network, since: Instant::now(), end });
        if let Some(network) = network {
            table.addresses.entry(network).or_default().insert(key);
        }
        drop(table);
        Unbound { connections: self.clone(), key }
    }

    fn evict(&self, network: Option<Network>) -> bool {
        let mut table = self.table.lock();
        let first = table.first(network, &self.config);
        let Some(waiting) = first.and_then(|key| table.remove(key)) else { return false };
        drop(table);
        self.evictions.fetch_add(1, Ordering::Relaxed);
        (waiting.end)();
        true
    }
}

impl UnboundConnectionsConfig {
    fn per_address(&self, network: Network) -> usize {
        if network.0.is_loopback() { self.per_local_address_max } else { self.per_address_max }
    }
}

impl Table {
    /// The connection that gives way first, of all or of one address.
    fn first(&self, network: Option<Network>, config: &UnboundConnectionsConfig) -> Option<WaitingKey> {
        let key = match network {
            Some(network) => *self.addresses.get(&network)?.first()?,
            None => *self.waiting.keys().next()?,
        };
        let waiting = self.waiting.get(&key)?;
        (key.0 == WaitsFor::End || waiting.since.elapsed() >= config.unbound_min).then_some(key)
    }

    fn remove(&mut self, key: WaitingKey) -> Option<Waiting> {
        let waiting = self.waiting.remove(&key)?;
        if let Some(network) = waiting.network
            && let Some(of_address) = self.addresses.get_mut(&network)
        {
            of_address.remove(&key);
            if of_address.is_empty() {
                self.addresses.remove(&network);
            }
        }
        Some(waiting)
    }
}

impl Unbound {
    /// Whether the connection has given way to another one.
    pub fn is_evicted(&self) -> bool {
        !self.connections.table.lock().waiting.contains_key(&self.key)
    }
}

impl Drop for Unbound {
    fn drop(&mut self) {
        // Dropped after the lock is released: what the closure holds may itself wait for locks.
        let _waiting = self.connections.table.lock().remove(self.key);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn table(per_address_max: usize, unbound_min: Duration) -> Arc<UnboundConnections> {
        let per_local_address_max = usize::MAX;
        UnboundConnections::new(UnboundConnectionsConfig { per_address_max, per_local_address_max, unbound_min })
    }

    struct Ends(Arc<Mutex<Vec<u32>>>);

    impl Ends {
        fn wait(&self, table: &Arc<UnboundConnections>, number: u32, address: &str) -> Unbound {
            let ended = self.0.clone();
            table.wait_for_bind(Some(address.parse().unwrap()), Box::new(move || ended.lock().push(number))).unwrap()
        }
    }

    #[test]
    fn the_oldest_unbound_connection_gives_way() {
        let (table, ends) = (table(10, Duration::ZERO), Ends(Arc::default()));
        assert!(!table.can_evict() && !table.evict_oldest());
        let [first, second, third] = [1, 2, 3].map(|number| ends.wait(&table, number, "192.0.2.1"));
        drop(first);
        let closing = table.wait_for_end(Box::new(|| ()));
        assert!(table.evict_oldest() && closing.is_evicted(), "whose end is near gives way before others");
        assert!(table.can_evict() && table.evict_oldest());
        assert_eq!(*ends.0.lock(), [2]);
        assert!(second.is_evicted() && !third.is_evicted());
        drop((second, third));
        assert!(!table.evict_oldest());
        assert_eq!(table.evictions(), 2);
        assert!(table.table.lock().addresses.is_empty());
    }

    #[test]
    fn an_address_with_too_many_loses_its_own_oldest() {
        let (table, ends) = (table(2, Duration::ZERO), Ends(Arc::default()));
        let _other = ends.wait(&table, 0, "2001:db8:0:2::1");
        let _all = [1, 2, 3, 4].map(|number| ends.wait(&table, number, &format!("2001:db8:0:1::{number}")));
        assert_eq!(*ends.0.lock(), [1, 2]);
        let _local = [5, 6, 7].map(|number| ends.wait(&table, number, "127.0.0.1"));
        assert_eq!(*ends.0.lock(), [1, 2]);
    }

    #[test]
    fn a_connection_that_may_be_about_to_bind_does_not_give_way() {
        let (table, ends) = (table(1, Duration::from_secs(600)), Ends(Arc::default()));
        let _first = ends.wait(&table, 1, "192.0.2.1");
        assert!(!table.can_evict() && !table.evict_oldest());
        assert!(
            table.wait_for_bind("192.0.2.1".parse().ok(), Box::new(|| ())).is_none(),
            "its address has one too many"
        );
        assert!(table.wait_for_bind("192.0.2.2".parse().ok(), Box::new(|| ())).is_some());
        let _closing = table.wait_for_end(Box::new(|| ()));
        assert!(table.can_evict() && table.evict_oldest() && !table.can_evict());
        assert_eq!(*ends.0.lock(), [] as [u32; 0]);
    }
}
