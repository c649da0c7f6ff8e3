//! How fast connections are taken.
//!
//! Each new connection costs work (a handshake, a token, a resume), and a crowd that is accepted faster than that work
//! is done times out together and comes back together. So accept keeps to a rate and *pauses* above it: who has
//! not been accepted waits in the kernel's backlog, which costs us nothing and them a little patience.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};
use tidings_engine::rate::CellRate;

/// The shortest pause: at a high rate, several connections come due in it, and one wake-up serves them all.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// One part in this many of the burst is kept for callers of the HTTP door.
const CALLERS_PART: u32 = 16;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionConfig {
    /// Connections accepted in a second, by all doors together. 0: no limit.
    pub rate: u32,
    /// Connections accepted at once after a quiet time.
    pub burst: u32,
    /// Device connections that have not bound yet. Above: accept pauses until some have, or were closed.
    pub unbound_max: usize,
}

impl Default for AdmissionConfig {
    fn default() -> Self {
        AdmissionConfig { rate: 20_000, burst: 20_000, unbound_max: 50_000 }
    }
}

/// Who wants in. Devices leave a part of the burst, so that a storm of them does not shut out the app's servers and
/// operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guest {
    Device,
    Caller,
}

/// The rate that all doors keep to together.
pub struct Admission {
    config: AdmissionConfig,
    rate: Option<CellRate>,
    whole_at_ns: AtomicU64,
    started: Instant,
}

impl Admission {
    pub fn new(config: AdmissionConfig) -> Self {
        let rate = (config.rate > 0).then(|| CellRate::new(config.rate, config.burst));
        Admission { rate, config, whole_at_ns: AtomicU64::new(0), started: Instant::now() }
    }

    /// How long to pause before the next connection is accepted; `None`: accept.
    pub fn pause(&self, guest: Guest) -> Option<Duration> {
        self.pause_at(guest, self.started.elapsed())
    }

    fn pause_at(&self, guest: Guest, now: Duration) -> Option<Duration> {
        let left = if guest == Guest::Device { self.config.burst / CALLERS_PART } else { 0 };
        let wait = self.rate?.wait_ns(self.whole_at_ns.load(Ordering::Relaxed), now.as_nanos() as u64, left);
        (wait > 0).then(|| Duration::from_nanos(wait).max(PAUSE_MIN))
    }

    /// Counts one that was accepted. Doors that looked at the same moment may together take one more than the rate;
    /// the next pause is longer for it.
    pub fn count(&self) {
        self.count_at(self.started.elapsed());
    }

    fn count_at(&self, now: Duration) {
        let Some(rate) = &self.rate else { return };
        let after_one = |at| Some(rate.after_one(at, now.as_nanos() as u64));
        let _ = self.whole_at_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after_one);
    }

    /// Whether another device may come in while so many have not bound yet.
    pub fn has_room_for_unbound(&self, unbound: usize) -> bool {
        unbound < self.config.unbound_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn admitted(admission: &Admission, guest: Guest, now: Duration) -> usize {
        let admit = || admission.pause_at(guest, now).is_none().then(|| admission.count_at(now));
        (0..1_000).take_while(|_| admit().is_some()).count()
    }

    #[test]
    fn a_burst_comes_in_then_the_rate_holds() {
        let admission = Admission::new(AdmissionConfig { rate: 100, burst: 32, ..AdmissionConfig::default() });
        assert_eq!(admitted(&admission, Guest::Device, Duration::ZERO), 30);
        assert_eq!(admission.pause_at(Guest::Device, Duration::ZERO), Some(10 * MS));
        assert_eq!(admitted(&admission, Guest::Device, 50 * MS), 5);
        // Never more than the burst, however long it was quiet.
        assert_eq!(admitted(&admission, Guest::Device, 60_000 * MS), 30);
    }

    #[test]
    fn a_storm_of_devices_leaves_room_for_callers() {
        let admission = Admission::new(AdmissionConfig { rate: 100, burst: 32, ..AdmissionConfig::default() });
        assert_eq!(admitted(&admission, Guest::Device, Duration::ZERO), 30);
        assert_eq!(admitted(&admission, Guest::Caller, Duration::ZERO), 2);
        assert!(admission.pause_at(Guest::Caller, Duration::ZERO).is_some());
    }

    #[test]
    fn at_a_high_rate_a_pause_is_long_enough_to_be_worth_it() {
        let admission = Admission::new(AdmissionConfig { rate: 100_000, burst: 1, ..AdmissionConfig::default() });
        assert_eq!(admitted(&admission, Guest::Device, Duration::ZERO), 1);
        assert_eq!(admission.pause_at(Guest::Device, Duration::ZERO), Some(PAUSE_MIN));
    }

    #[test]
    fn without_a_rate_everybody_comes_in() {
        let admission = Admission::new(AdmissionConfig { rate: 0, burst: 0, ..AdmissionConfig::default() });
        assert_eq!(admitted(&admission, Guest::Device, Duration::ZERO), 1_000);
    }

    #[test]
    fn those_who_have_not_bound_are_bounded() {
        let admission = Admission::new(AdmissionConfig { unbound_max: 2, ..AdmissionConfig::default() });
        assert!(admission.has_room_for_unbound(1));
        assert!(!admission.has_room_for_unbound(2));
    }
}
