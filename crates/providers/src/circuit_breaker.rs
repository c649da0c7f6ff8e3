//! Circuit breakers, one for each service that a provider has: browsers have many.
//!
//! ```text
//! closed ── five requests in a row without an answer ──▶ open ── a request is answered ──▶ closed
//!                                                         └── one attempt after each pause
//! ```
//! While one is open, requests to its service fail at once, so that they take no room from those to others.

use parking_lot::Mutex;
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// A breaker opens when this many requests fail without a success in between.
const OPEN_AFTER: u32 = 5;
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Services that are failing at the same time. Above, the one that may be tried first is forgotten.
const ORIGINS_MAX: usize = 1_000;

/// The breakers of services, by their names.
#[derive(Default)]
pub struct CircuitBreakers(Mutex<HashMap<String, Failing>>);

/// A service whose last request failed.
struct Failing {
    failures: u32,
    /// When the next attempt is allowed, if the breaker is open.
    next_at: Instant,
}

impl CircuitBreakers {
    /// Whether a request to the service may be tried now; of the one attempt that an open breaker allows, how long to wait for an
    /// answer. That is as long as the pause that follows, so that a service that never answers takes at most half of the time
    /// from others that are asked beside it.
    ///
    /// # Errors
    /// The breaker is open: the time until the next attempt.
    pub fn allow(&self, origin: &str, now: Instant) -> Result<Option<Duration>, Duration> {
        let mut all = self.0.lock();
        let Some(failing) = all.get_mut(origin).filter(|failing| failing.failures >= OPEN_AFTER) else {
            return Ok(None);
        };
        if now < failing.next_at {
            return Err(failing.next_at - now);
        }
        // Others wait for what becomes of this attempt.
        let pause = pause(failing.failures);
        failing.next_at = now + pause;
        Ok(Some(pause))
    }

    /// Records that the service answered.
    pub fn record_answer(&self, origin: &str) {
        self.0.lock().remove(origin);
    }

    /// Records that the service did not answer, or said that it cannot.
    pub fn record_failure(&self, origin: &str, now: Instant) {
        let mut all = self.0.lock();
        if all.len() >= ORIGINS_MAX && !all.contains_key(origin) {
            let first = all.iter().min_by_key(|(_, failing)| failing.next_at).map(|(origin, _)| origin.clone());
            first.and_then(|first| all.remove(&first));
        }
        let failing = all.entry(origin.to_owned()).or_insert(Failing { failures: 0, next_at: now });
        // The requests that were under way together fail together: they are one failure, once the breaker is open.
        if failing.failures < OPEN_AFTER || now >= failing.next_at {
            failing.failures = failing.failures.saturating_add(1);
        }
        if failing.failures == OPEN_AFTER {
            failing.next_at = failing.next_at.max(now + PAUSE_MIN);
        }
    }
}

/// Doubles with each attempt that failed.
fn pause(failures: u32) -> Duration {
    PAUSE_MIN.saturating_mul(1 << (failures - OPEN_AFTER + 1).min(16)).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_service_that_fails_is_left_alone_and_others_are_not() {
        let (breakers, start) = (CircuitBreakers::default(), Instant::now());
        for _ in 0..OPEN_AFTER {
            assert_eq!(breakers.allow("a", start), Ok(None));
            breakers.record_failure("a", start);
        }
        assert_eq!(breakers.allow("a", start), Err(SECOND));
        assert_eq!(breakers.allow("b", start), Ok(None));
        // One attempt after the pause, and a longer pause after that.
        assert_eq!(breakers.allow("a", start + SECOND), Ok(Some(2 * SECOND)));
        assert_eq!(breakers.allow("a", start + SECOND), Err(2 * SECOND));
        breakers.record_answer("a");
        assert_eq!(breakers.allow("a", start + SECOND), Ok(None));
    }

    #[test]
    fn answers_between_failures_keep_a_breaker_closed() {
        let (breakers, start) = (CircuitBreakers::default(), Instant::now());
        for _ in 0..100 {
            for _ in 1..OPEN_AFTER {
                breakers.record_failure("a", start);
            }
            breakers.record_answer("a");
        }
        assert_eq!(breakers.allow("a", start), Ok(None));
    }

    #[test]
    fn the_pause_grows_up_to_its_limit_and_many_failures_at_once_count_as_one() {
        let (breakers, mut now) = (CircuitBreakers::default(), Instant::now());
        for _ in 0..1_000 {
            breakers.record_failure("a", now);
        }
        assert_eq!(breakers.allow("a", now), Err(SECOND));
        for attempt in 0..20 {
            let wait = breakers.allow("a", now).err().unwrap_or_default();
            assert!(wait <= PAUSE_MAX, "{wait:?} before attempt {attempt}");
            now += wait;
            assert!(matches!(breakers.allow("a", now), Ok(Some(patience)) if patience <= PAUSE_MAX));
            breakers.record_failure("a", now + SECOND / 2);
        }
        assert!(breakers.allow("a", now).is_err());
    }

    #[test]
    fn the_number_of_failing_services_in_memory_is_bounded() {
        let (breakers, now) = (CircuitBreakers::default(), Instant::now());
        for service in 0..ORIGINS_MAX * 2 {
            breakers.record_failure(&service.to_string(), now);
        }
        assert_eq!(breakers.0.lock().len(), ORIGINS_MAX);
    }
}
