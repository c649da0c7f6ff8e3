//! How fast connections are accepted.
//!
//! Each new connection costs work (a handshake, a token, a resume), and a crowd that is accepted faster than that work
//! is done times out together and comes back together. So accept keeps to a rate and *pauses* above it: a connection
//! that has not been accepted waits in the kernel's backlog, which costs us nothing and its client a little patience.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};
use tidings_domain::rate::Gcra;

/// The shortest pause: at a high rate, several connections may be accepted after it, and one wake-up serves them all.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// One part in this many of the burst is kept for HTTP connections.
const HTTP_BURST_DIVISOR: u32 = 16;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionConfig {
    /// Connections accepted in a second, by all listeners together. 0: no limit.
    pub rate: u32,
    /// Connections accepted at once after a time without any.
    pub burst: u32,
    /// Device connections that have not bound yet. Above: accept pauses until some have bound or were closed.
    pub unbound_max: usize,
}

impl Default for AdmissionConfig {
    fn default() -> Self {
        AdmissionConfig { rate: 20_000, burst: 20_000, unbound_max: 50_000 }
    }
}

/// The kind of client that connects. Devices leave a part of the burst unused, so that a storm of devices does not
/// shut out the app's servers and operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionClass {
    Device,
    Http,
}

/// The rate that all listeners keep to together.
pub struct Admission {
    config: AdmissionConfig,
    rate: Option<Gcra>,
    full_at_ns: AtomicU64,
    started: Instant,
}

impl Admission {
    pub fn new(config: AdmissionConfig) -> Self {
        let rate = (config.rate > 0).then(|| Gcra::new(config.rate, config.burst));
        Admission { rate, config, full_at_ns: AtomicU64::new(0), started: Instant::now() }
    }

    /// How long to pause before the next connection is accepted; `None`: accept.
    pub fn required_pause(&self, class: ConnectionClass) -> Option<Duration> {
        self.required_pause_at(class, self.started.elapsed())
    }

    fn required_pause_at(&self, class: ConnectionClass, now: Duration) -> Option<Duration> {
        let kept = if class == ConnectionClass::Device { self.config.burst / HTTP_BURST_DIVISOR } else { 0 };
        let wait = self.rate?.wait_ns(self.full_at_ns.load(Ordering::Relaxed), now.as_nanos() as u64, kept);
        (wait > 0).then(|| Duration::from_nanos(wait).max(PAUSE_MIN))
    }

    /// Counts an accepted connection. Listeners that looked at the same moment may together accept one connection more
    /// than the rate allows; the next pause is longer for it.
    pub fn count_accepted(&self) {
        self.count_accepted_at(self.started.elapsed());
    }

    fn count_accepted_at(&self, now: Duration) {
        let Some(rate) = &self.rate else { return };
        let after_one = |at| Some(rate.after_one(at, now.as_nanos() as u64));
        let _ = self.full_at_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after_one);
    }

    /// Whether another device may connect while so many have not bound yet.
    pub fn has_room_for_unbound(&self, unbound: usize) -> bool {
        unbound < self.config.unbound_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn admitted(admission: &Admission, class: ConnectionClass, now: Duration) -> usize {
        let admit = || admission.required_pause_at(class, now).is_none().then(|| admission.count_accepted_at(now));
        (0..1_000).take_while(|_| admit().is_some()).count()
    }

    #[test]
    fn after_a_burst_connections_are_accepted_at_the_rate() {
        let admission = Admission::new(AdmissionConfig { rate: 100, burst: 32, ..AdmissionConfig::default() });
        assert_eq!(admitted(&admission, ConnectionClass::Device, Duration::ZERO), 30);
        assert_eq!(admission.required_pause_at(ConnectionClass::Device, Duration::ZERO), Some(10 * MS));
        assert_eq!(admitted(&admission, ConnectionClass::Device, 50 * MS), 5);
        // Never more than the burst, however long no connection came.
        assert_eq!(admitted(&admission, ConnectionClass::Device, 60_000 * MS), 30);
    }

    #[test]
    fn a_storm_of_devices_leaves_room_for_http() {
        let admission = Admission::new(AdmissionConfig { rate: 100, burst: 32, ..AdmissionConfig::default() });
        assert_eq!(admitted(&admission, ConnectionClass::Device, Duration::ZERO), 30);
        assert_eq!(admitted(&admission, ConnectionClass::Http, Duration::ZERO), 2);
        assert!(admission.required_pause_at(ConnectionClass::Http, Duration::ZERO).is_some());
    }

    #[test]
    fn at_a_high_rate_a_pause_has_the_minimum_length() {
        let admission = Admission::new(AdmissionConfig { rate: 100_000, burst: 1, ..AdmissionConfig::default() });
        assert_eq!(admitted(&admission, ConnectionClass::Device, Duration::ZERO), 1);
        assert_eq!(admission.required_pause_at(ConnectionClass::Device, Duration::ZERO), Some(PAUSE_MIN));
    }

    #[test]
    fn without_a_rate_every_connection_is_accepted() {
        let admission = Admission::new(AdmissionConfig { rate: 0, burst: 0, ..AdmissionConfig::default() });
        assert_eq!(admitted(&admission, ConnectionClass::Device, Duration::ZERO), 1_000);
    }

    #[test]
    fn unbound_devices_are_bounded() {
        let admission = Admission::new(AdmissionConfig { unbound_max: 2, ..AdmissionConfig::default() });
        assert!(admission.has_room_for_unbound(1));
        assert!(!admission.has_room_for_unbound(2));
    }
}
