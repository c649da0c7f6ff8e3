//! A rate limit for each user.

use crate::{clock::Clock, model::UserNo, rate::Gcra};
use quick_cache::sync::Cache;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};
use tidings_protocol::error::{ErrorCode, Refusal};

/// Users whose rate each limiter remembers. A user who is evicted starts with a whole burst again.
const USERS: usize = 100_000;

/// A rate per minute, with a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerMinute {
    /// 0: no limit.
    pub count: u32,
    /// How many at once, after a pause.
    pub burst: u32,
}

/// A rate limit with a state for each user.
pub struct UserLimiter {
    /// Absent: no limit.
    rate: Option<Gcra>,
    /// The end of each refusal's text, which says what the limit is.
    limit: String,
    /// Of each user, when the burst is whole again, in nanoseconds after `started`.
    whole_at_ns: Cache<UserNo, Arc<AtomicU64>>,
    clock: Arc<dyn Clock>,
    started: Instant,
}

impl UserLimiter {
    /// A limit of this rate; `None`: no limit. Every user starts with a whole burst. `limit` says in a refusal what the limit is.
    pub fn new(rate: Option<Gcra>, limit: String, clock: Arc<dyn Clock>) -> Self {
        let users = if rate.is_none() { 1 } else { USERS };
        UserLimiter { rate, limit, whole_at_ns: Cache::new(users), started: clock.monotonic(), clock }
    }

    /// A limit by the minute.
    pub fn per_minute(config: PerMinute, clock: Arc<dyn Clock>) -> Self {
        let PerMinute { count, burst } = config;
        let limit = format!(": {count} a minute, and {burst} at once, are the limit");
        UserLimiter::new((count > 0).then(|| Gcra::per_minute(count, burst)), limit, clock)
    }

    /// Takes `count` from the user's rate; `what` says what there was too much of, for the refusal.
    ///
    /// # Errors
    /// `rate_limited`, with the time to wait; `limit_exceeded` when `count` is above the burst.
    pub fn take(&self, user: UserNo, count: usize, what: impl FnOnce() -> String) -> Result<(), Refusal> {
        let Some(rate) = self.rate.filter(|_| count > 0) else { return Ok(()) };
        let whole_at = match self.whole_at_ns.get(&user) {
            Some(whole_at) => whole_at,
            None => {
                let fresh = Arc::new(AtomicU64::new(0));
                self.whole_at_ns.insert(user, fresh.clone());
                fresh
            }
        };
        let (count, now_ns) = (u32::try_from(count).unwrap_or(u32::MAX), self.now_ns());
        let mut wait_ns = None;
        let taken = whole_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |at| {
            rate.take(at, now_ns, count).map_err(|wait| wait_ns = wait).ok()
        });
        taken.map(drop).map_err(|_| self.refusal(wait_ns, what()))
    }

    /// Checks that `count` could be taken, and takes nothing.
    ///
    /// # Errors
    /// Those of [`Self::take`].
    pub fn check(&self, user: UserNo, count: usize, what: impl FnOnce() -> String) -> Result<(), Refusal> {
        let Some(rate) = self.rate else { return Ok(()) };
        let whole_at = self.whole_at_ns.get(&user).map_or(0, |whole_at| whole_at.load(Ordering::Relaxed));
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        rate.take(whole_at, self.now_ns(), count).map(drop).map_err(|wait_ns| self.refusal(wait_ns, what()))
    }

    fn now_ns(&self) -> u64 {
        self.clock.monotonic().saturating_duration_since(self.started).as_nanos() as u64
    }

    /// `wait_ns`: the time after which the count can be taken; `None`: it never can.
    fn refusal(&self, wait_ns: Option<u64>, what: String) -> Refusal {
        let detail = what + &self.limit;
        match wait_ns {
            Some(wait_ns) => {
                Refusal::new(ErrorCode::RateLimited, detail).retry_after(wait_ns.div_ceil(1_000_000).max(1))
            }
            None => Refusal::new(ErrorCode::LimitExceeded, detail),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A clock that a test moves on.
    struct TestClock {
        base: Instant,
        ms: AtomicU64,
    }

    impl Clock for TestClock {
        fn now_ms(&self) -> u64 {
            self.ms.load(Ordering::Relaxed)
        }

        fn monotonic(&self) -> Instant {
            self.base + Duration::from_millis(self.now_ms())
        }
    }

    fn clock() -> Arc<TestClock> {
        Arc::new(TestClock { base: Instant::now(), ms: AtomicU64::new(0) })
    }

    #[test]
    fn a_burst_passes_and_then_the_rate_per_minute_holds() {
        let clock = clock();
        let limiter = UserLimiter::per_minute(PerMinute { count: 60, burst: 5 }, clock.clone());
        let take = |user, count| limiter.take(UserNo(user), count, || "eggs".into());
        assert!(take(1, 3).is_ok() && take(1, 2).is_ok());
        let refusal = take(1, 2).unwrap_err();
        assert_eq!((refusal.code, refusal.retry_after_ms), (ErrorCode::RateLimited, Some(2_000)));
        assert_eq!(refusal.detail, "eggs: 60 a minute, and 5 at once, are the limit");
        clock.ms.store(1_000, Ordering::Relaxed);
        assert!(take(1, 1).is_ok(), "one came back in a second");
        assert!(take(1, 1).is_err());
        assert!(take(2, 5).is_ok(), "another user has a rate of their own");
        assert_eq!(take(3, 6).unwrap_err().code, ErrorCode::LimitExceeded, "never so many at once");
        assert!(take(3, 5).is_ok(), "what was refused took nothing");
    }

    #[test]
    fn a_burst_passes_and_then_the_rate_per_second_holds() {
        let clock = clock();
        let limiter = UserLimiter::new(Some(Gcra::new(10, 3)), "ten a second".into(), clock.clone());
        let take = || limiter.take(UserNo(1), 1, String::new);
        assert_eq!((0..5).filter(|_| take().is_ok()).count(), 3);
        let refusal = take().unwrap_err();
        assert_eq!((refusal.detail.as_str(), refusal.retry_after_ms), ("ten a second", Some(100)));
        clock.ms.store(99, Ordering::Relaxed);
        assert!(take().is_err());
        clock.ms.store(100, Ordering::Relaxed);
        assert!(take().is_ok());
    }

    #[test]
    fn a_check_takes_nothing() {
        let limiter = UserLimiter::per_minute(PerMinute { count: 1, burst: 2 }, clock());
        let check = |count| limiter.check(UserNo(1), count, String::new).map_err(|refusal| refusal.code);
        assert_eq!((check(2), check(2), check(3)), (Ok(()), Ok(()), Err(ErrorCode::LimitExceeded)));
        assert!(limiter.take(UserNo(1), 2, String::new).is_ok());
        assert_eq!(check(1), Err(ErrorCode::RateLimited));
    }

    #[test]
    fn a_rate_of_zero_limits_nothing() {
        let limiter = UserLimiter::per_minute(PerMinute { count: 0, burst: 0 }, clock());
        assert!((0..1_000).all(|_| limiter.take(UserNo(1), 100, String::new).is_ok()));
    }
}
