//! Failed authentications, by the address that they come from. An address that has failed too often is told to wait; whoever
//! guesses keys gets so many guesses a minute, from whatever connections.
//!
//! The table has a fixed size: an address with a whole allowance needs no place in it, and where places are short the one
//! that would be whole again first gives way.

use ipnet::IpNet;
use parking_lot::Mutex;
use std::{
    hash::{BuildHasher, RandomState},
    net::IpAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};
use tidings_engine::rate::CellRate;

/// Addresses that are remembered: 256 KiB.
const SETS: usize = 4_096;
const PLACES: usize = 4;

/// Settings of the throttle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThrottleConfig {
    /// Failed authentications of one address in a minute; 0: no limit.
    pub per_minute: u32,
    /// So many after a quiet time.
    pub burst: u32,
    /// Networks whose addresses stand for many callers: proxies that do not tell for whom they connect.
    pub exempt: Vec<IpNet>,
}

impl Default for ThrottleConfig {
    fn default() -> Self {
        ThrottleConfig { per_minute: 60, burst: 100, exempt: Vec::new() }
    }
}

/// Who failed, as the table knows it: an IPv4 address, or the network that one IPv6 customer has to choose from. 0: nobody
/// who is known, or is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Origin(u64);

impl Origin {
    pub const UNKNOWN: Origin = Origin(0);

    fn of(address: IpAddr) -> Origin {
        match address.to_canonical() {
            // Where no IPv6 network of a customer begins (RFC 4291, 2.4).
            IpAddr::V4(address) => Origin(0xffff_0000_0000 | u64::from(address.to_bits())),
            IpAddr::V6(address) => Origin((address.to_bits() >> 64) as u64),
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Place {
    origin: Origin,
    whole_at_ns: u64,
}

/// How often whom authentication failed for.
pub struct Throttle {
    config: ThrottleConfig,
    rate: CellRate,
    hasher: RandomState,
    sets: Box<[Mutex<[Place; PLACES]>]>,
    /// By then every address has its whole allowance again: until something fails, nothing is looked up.
    all_whole_at_ns: AtomicU64,
    started: Instant,
}

impl Throttle {
    pub fn new(config: ThrottleConfig) -> Self {
        let rate = CellRate::per_minute(config.per_minute, config.burst);
        let sets = if config.per_minute == 0 { 1 } else { SETS };
        Throttle {
            config,
            rate,
            hasher: RandomState::new(),
            sets: (0..sets).map(|_| Mutex::default()).collect(),
            all_whole_at_ns: AtomicU64::new(0),
            started: Instant::now(),
        }
    }

    /// How failures of this address are counted.
    pub fn origin(&self, address: IpAddr) -> Origin {
        let is_counted = self.config.per_minute > 0 && !self.config.exempt.iter().any(|net| net.contains(&address));
        if is_counted { Origin::of(address) } else { Origin::UNKNOWN }
    }

    /// After how many milliseconds the address may try again; `None`: now.
    pub fn wait_ms(&self, origin: Origin) -> Option<u64> {
        if origin == Origin::UNKNOWN || self.all_whole_at_ns.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.wait_at(origin, self.now_ns())
    }

    /// Counts a failure. Answers after how many milliseconds the next may be tried, if there were too many.
    pub fn count_failure(&self, origin: Origin) -> Option<u64> {
        if origin == Origin::UNKNOWN { None } else { self.count_at(origin, self.now_ns()) }
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn wait_at(&self, origin: Origin, now_ns: u64) -> Option<u64> {
        if now_ns >= self.all_whole_at_ns.load(Ordering::Relaxed) {
            return None;
        }
        let set = self.set(origin).lock();
        let place = set.iter().find(|place| place.origin == origin)?;
        self.rate.take(place.whole_at_ns, now_ns, 1).err().map(in_ms)
    }

    fn count_at(&self, origin: Origin, now_ns: u64) -> Option<u64> {
        let mut set = self.set(origin).lock();
        let at = set.iter().position(|place| place.origin == origin);
        let at = at.or_else(|| (0..PLACES).min_by_key(|at| set[*at].whole_at_ns)).unwrap_or(0);
        let place = &mut set[at];
        if place.origin != origin {
            *place = Place { origin, whole_at_ns: 0 };
        }
        match self.rate.take(place.whole_at_ns, now_ns, 1) {
            Ok(whole_at_ns) => {
                place.whole_at_ns = whole_at_ns;
                self.all_whole_at_ns.fetch_max(whole_at_ns, Ordering::Relaxed);
                None
            }
            Err(wait_ns) => Some(in_ms(wait_ns)),
        }
    }

    fn set(&self, origin: Origin) -> &Mutex<[Place; PLACES]> {
        &self.sets[self.hasher.hash_one(origin.0) as usize % self.sets.len()]
    }
}

fn in_ms(wait_ns: Option<u64>) -> u64 {
    wait_ns.unwrap_or_default().div_ceil(1_000_000).max(1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn throttle(per_minute: u32, burst: u32, exempt: &str) -> Throttle {
        let exempt = exempt.split(' ').filter(|net| !net.is_empty()).map(|net| net.parse().unwrap()).collect();
        Throttle::new(ThrottleConfig { per_minute, burst, exempt })
    }

    #[test]
    fn who_fails_too_often_waits_and_then_may_go_on() {
        let throttle = throttle(60, 3, "");
        let bad = throttle.origin("192.0.2.1".parse().unwrap());
        let good = throttle.origin("192.0.2.2".parse().unwrap());
        assert_eq!(throttle.wait_ms(bad), None);
        for _ in 0..3 {
            assert_eq!(throttle.wait_at(bad, SECOND_NS), None);
            assert_eq!(throttle.count_at(bad, SECOND_NS), None);
        }
        assert_eq!(throttle.wait_at(bad, SECOND_NS), Some(1_000));
        assert_eq!(throttle.count_at(bad, SECOND_NS), Some(1_000));
        assert_eq!(throttle.wait_at(good, SECOND_NS), None, "another address");
        // Attempts that were refused do not make it longer.
        assert_eq!(throttle.wait_at(bad, 2 * SECOND_NS), None);
        assert_eq!(throttle.wait_at(bad, 60 * SECOND_NS), None);
    }

    #[test]
    fn one_customers_ipv6_network_is_one_address() {
        let throttle = throttle(60, 1, "");
        let origin = |text: &str| throttle.origin(text.parse().unwrap());
        assert_eq!(origin("2001:db8:0:1::1"), origin("2001:db8:0:1:ffff::2"));
        assert_ne!(origin("2001:db8:0:1::1"), origin("2001:db8:0:2::1"));
        assert_eq!(origin("::ffff:192.0.2.1"), origin("192.0.2.1"));
        assert_ne!(origin("192.0.2.1"), origin("192.0.2.2"));
    }

    #[test]
    fn exempt_networks_are_not_counted() {
        let throttle = throttle(60, 1, "127.0.0.0/8 2001:db8::/32");
        for exempt in ["127.0.0.1", "127.1.2.3", "2001:db8::1"] {
            let origin = throttle.origin(exempt.parse().unwrap());
            assert!((0..10).all(|_| throttle.count_failure(origin).is_none()), "{exempt}");
        }
        let origin = throttle.origin("192.0.2.1".parse().unwrap());
        assert_eq!(throttle.count_at(origin, 0), None);
        assert!(throttle.count_at(origin, 0).is_some());
    }

    #[test]
    fn more_addresses_than_places_are_counted_too() {
        let throttle = throttle(60, 2, "");
        for number in 0..200_000u32 {
            throttle.count_at(Origin(u64::from(number) + 1), 0);
        }
        let origin = Origin(1 << 40);
        assert_eq!((throttle.count_at(origin, 0), throttle.count_at(origin, 0)), (None, None));
        assert!(throttle.count_at(origin, 0).is_some());
        assert_eq!(throttle.sets.len() * PLACES, 16_384);
    }
}
