//! Failed authentications, by the address that they come from. An address that has failed too often has to wait, so
//! that guessing keys is limited to so many attempts a minute, over all connections of the address.
//!
//! The table is set-associative and has a fixed size. An address with its full allowance needs no entry; in a full set the
//! entry whose allowance would be full again first is replaced.

use ipnet::IpNet;
use parking_lot::Mutex;
use std::{
    hash::{BuildHasher, RandomState},
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};
use tidings_domain::{clock::Clock, rate::Gcra};

/// The table's size: 16,384 addresses in 256 KiB.
const SETS: usize = 4_096;
const ENTRIES_PER_SET: usize = 4;

/// Settings of the throttle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThrottleConfig {
    /// Failed authentications of one address in a minute; 0: no limit.
    pub per_minute: u32,
    /// Failed authentications of one address at once, after a time without any.
    pub burst: u32,
    /// Networks whose addresses stand for many callers: proxies that do not name their clients.
    pub exempt: Vec<IpNet>,
}

impl Default for ThrottleConfig {
    fn default() -> Self {
        ThrottleConfig { per_minute: 60, burst: 100, exempt: Vec::new() }
    }
}

/// The table's key: an IPv4 address, or the /64 network from which one IPv6 customer may choose addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ThrottleKey(u64);

impl ThrottleKey {
    /// No address, or an exempt one: its failures are not counted.
    pub const UNKNOWN: ThrottleKey = ThrottleKey(0);

    fn of(address: IpAddr) -> ThrottleKey {
        match address.to_canonical() {
            // No customer's IPv6 network begins with these bits (RFC 4291, 2.4).
            IpAddr::V4(address) => ThrottleKey(0xffff_0000_0000 | u64::from(address.to_bits())),
            IpAddr::V6(address) => ThrottleKey((address.to_bits() >> 64) as u64),
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    key: ThrottleKey,
    /// When the address has its full allowance again.
    full_at_ns: u64,
}

/// Counts failed authentications per address and tells when an address must wait.
pub struct Throttle {
    config: ThrottleConfig,
    rate: Gcra,
    hasher: RandomState,
    sets: Box<[Mutex<[Entry; ENTRIES_PER_SET]>]>,
    /// By then every address has its full allowance again: until something fails, nothing is looked up.
    all_full_at_ns: AtomicU64,
    clock: Arc<dyn Clock>,
    started: Instant,
}

impl Throttle {
    pub fn new(config: ThrottleConfig, clock: Arc<dyn Clock>) -> Self {
        let rate = Gcra::per_minute(config.per_minute, config.burst);
        let sets = if config.per_minute == 0 { 1 } else { SETS };
        Throttle {
            config,
            rate,
            hasher: RandomState::new(),
            sets: (0..sets).map(|_| Mutex::default()).collect(),
            all_full_at_ns: AtomicU64::new(0),
            started: clock.monotonic(),
            clock,
        }
    }

    /// The key under which failures of this address are counted.
    pub fn key(&self, address: IpAddr) -> ThrottleKey {
        let is_counted = self.config.per_minute > 0 && !self.config.exempt.iter().any(|net| net.contains(&address));
        if is_counted { ThrottleKey::of(address) } else { ThrottleKey::UNKNOWN }
    }

    /// After how many milliseconds the address may try again; `None`: now.
    pub fn wait_ms(&self, key: ThrottleKey) -> Option<u64> {
        if key == ThrottleKey::UNKNOWN || self.all_full_at_ns.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.wait_at(key, self.now_ns())
    }

    /// Counts a failure. Answers after how many milliseconds the next may be tried, if there were too many.
    pub fn count_failure(&self, key: ThrottleKey) -> Option<u64> {
        if key == ThrottleKey::UNKNOWN { None } else { self.count_at(key, self.now_ns()) }
    }

    fn now_ns(&self) -> u64 {
        self.clock.monotonic().saturating_duration_since(self.started).as_nanos() as u64
    }

    fn wait_at(&self, key: ThrottleKey, now_ns: u64) -> Option<u64> {
        if now_ns >= self.all_full_at_ns.load(Ordering::Relaxed) {
            return None;
        }
        let set = self.set(key).lock();
        let entry = set.iter().find(|entry| entry.key == key)?;
        self.rate.take(entry.full_at_ns, now_ns, 1).err().map(in_ms)
    }

    fn count_at(&self, key: ThrottleKey, now_ns: u64) -> Option<u64> {
        let mut set = self.set(key).lock();
        let at = set.iter().position(|entry| entry.key == key);
        let at = at.or_else(|| (0..ENTRIES_PER_SET).min_by_key(|at| set[*at].full_at_ns)).unwrap_or(0);
        let entry = &mut set[at];
        if entry.key != key {
            *entry = Entry { key, full_at_ns: 0 };
        }
        match self.rate.take(entry.full_at_ns, now_ns, 1) {
            Ok(full_at_ns) => {
                entry.full_at_ns = full_at_ns;
                self.all_full_at_ns.fetch_max(full_at_ns, Ordering::Relaxed);
                None
            }
            Err(wait_ns) => Some(in_ms(wait_ns)),
        }
    }

    fn set(&self, key: ThrottleKey) -> &Mutex<[Entry; ENTRIES_PER_SET]> {
        &self.sets[self.hasher.hash_one(key.0) as usize % self.sets.len()]
    }
}

fn in_ms(wait_ns: Option<u64>) -> u64 {
    wait_ns.unwrap_or_default().div_ceil(1_000_000).max(1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tidings_domain::clock::SystemClock;

    const SECOND_NS: u64 = 1_000_000_000;

    fn throttle(per_minute: u32, burst: u32, exempt: &str) -> Throttle {
        let exempt = exempt.split(' ').filter(|net| !net.is_empty()).map(|net| net.parse().unwrap()).collect();
        Throttle::new(ThrottleConfig { per_minute, burst, exempt }, Arc::new(SystemClock))
    }

    #[test]
    fn an_address_with_too_many_failures_waits_and_others_do_not() {
        let throttle = throttle(60, 3, "");
        let bad = throttle.key("192.0.2.1".parse().unwrap());
        let good = throttle.key("192.0.2.2".parse().unwrap());
        assert_eq!(throttle.wait_ms(bad), None);
        for _ in 0..3 {
            assert_eq!(throttle.wait_at(bad, SECOND_NS), None);
            assert_eq!(throttle.count_at(bad, SECOND_NS), None);
        }
        assert_eq!(throttle.wait_at(bad, SECOND_NS), Some(1_000));
        assert_eq!(throttle.count_at(bad, SECOND_NS), Some(1_000));
        assert_eq!(throttle.wait_at(good, SECOND_NS), None, "another address");
        // Refused attempts do not prolong the wait.
        assert_eq!(throttle.wait_at(bad, 2 * SECOND_NS), None);
        assert_eq!(throttle.wait_at(bad, 60 * SECOND_NS), None);
    }

    #[test]
    fn addresses_of_one_ipv6_network_share_a_key() {
        let throttle = throttle(60, 1, "");
        let key = |text: &str| throttle.key(text.parse().unwrap());
        assert_eq!(key("2001:db8:0:1::1"), key("2001:db8:0:1:ffff::2"));
        assert_ne!(key("2001:db8:0:1::1"), key("2001:db8:0:2::1"));
        assert_eq!(key("::ffff:192.0.2.1"), key("192.0.2.1"));
        assert_ne!(key("192.0.2.1"), key("192.0.2.2"));
    }

    #[test]
    fn exempt_networks_are_not_counted() {
        let throttle = throttle(60, 1, "127.0.0.0/8 2001:db8::/32");
        for exempt in ["127.0.0.1", "127.1.2.3", "2001:db8::1"] {
            let key = throttle.key(exempt.parse().unwrap());
            assert!((0..10).all(|_| throttle.count_failure(key).is_none()), "{exempt}");
        }
        let key = throttle.key("192.0.2.1".parse().unwrap());
        assert_eq!(throttle.count_at(key, 0), None);
        assert!(throttle.count_at(key, 0).is_some());
    }

    #[test]
    fn a_full_table_still_counts_new_addresses() {
        let throttle = throttle(60, 2, "");
        for number in 0..200_000u32 {
            throttle.count_at(ThrottleKey(u64::from(number) + 1), 0);
        }
        let key = ThrottleKey(1 << 40);
        assert_eq!((throttle.count_at(key, 0), throttle.count_at(key, 0)), (None, None));
        assert!(throttle.count_at(key, 0).is_some());
        assert_eq!(throttle.sets.len() * ENTRIES_PER_SET, 16_384);
    }
}
