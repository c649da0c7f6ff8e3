//! A rate limit for each user.

use crate::{model::UserNo, rate::Gcra};
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
    config: PerMinute,
    rate: Gcra,
    /// Of each user, when the burst is whole again.
    whole_at_ns: Cache<UserNo, Arc<AtomicU64>>,
    started: Instant,
}

impl UserLimiter {
    /// Every user starts with a whole burst.
    pub fn new(config: PerMinute) -> Self {
        let users = if config.count == 0 { 1 } else { USERS };
        let rate = Gcra::per_minute(config.count, config.burst);
        UserLimiter { config, rate, whole_at_ns: Cache::new(users), started: Instant::now() }
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Takes `count` from the user's rate; `what` says what there was too much of, for the refusal.
    ///
    /// # Errors
    /// `rate_limited`, with the time to wait; `limit_exceeded` when `count` is above the burst.
    pub fn take(&self, user: UserNo, count: usize, what: impl FnOnce() -> String) -> Result<(), Refusal> {
        self.take_at(user, count, self.now_ns(), what)
    }

    /// Checks that `count` could be taken, and takes nothing.
    ///
    /// # Errors
    /// Those of [`Self::take`].
    pub fn check(&self, user: UserNo, count: usize, what: impl FnOnce() -> String) -> Result<(), Refusal> {
        if self.config.count == 0 {
            return Ok(());
        }
        let whole_at = self.whole_at_ns.get(&user).map_or(0, |whole_at| whole_at.load(Ordering::Relaxed));
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.rate.take(whole_at, self.now_ns(), count).map(drop).map_err(|wait_ns| self.refusal(wait_ns, what()))
    }

    fn take_at(&self, user: UserNo, count: usize, now_ns: u64, what: impl FnOnce() -> String) -> Result<(), Refusal> {
        if self.config.count == 0 || count == 0 {
            return Ok(());
        }
        let whole_at = match self.whole_at_ns.get(&user) {
            Some(whole_at) => whole_at,
            None => {
                let fresh = Arc::new(AtomicU64::new(0));
                self.whole_at_ns.insert(user, fresh.clone());
                fresh
            }
        };
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let mut wait_ns = None;
        let taken = whole_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |at| {
            self.rate.take(at, now_ns, count).map_err(|wait| wait_ns = wait).ok()
        });
        taken.map(drop).map_err(|_| self.refusal(wait_ns, what()))
    }

    /// `wait_ns`: the time after which the count can be taken; `None`: it never can.
    fn refusal(&self, wait_ns: Option<u64>, what: String) -> Refusal {
        let PerMinute { count: per_minute, burst } = self.config;
        let detail = format!("{what}: {per_minute} a minute, and {burst} at once, are the limit");
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

    const MINUTE_NS: u64 = 60_000_000_000;

    #[test]
    fn a_burst_passes_and_then_the_rate_per_minute_holds() {
        let limiter = UserLimiter::new(PerMinute { count: 60, burst: 5 });
        let take = |user, count, at| limiter.take_at(UserNo(user), count, at, String::new);
        assert!(take(1, 3, MINUTE_NS).is_ok() && take(1, 2, MINUTE_NS).is_ok());
        let refusal = take(1, 2, MINUTE_NS).unwrap_err();
        assert_eq!((refusal.code, refusal.retry_after_ms), (ErrorCode::RateLimited, Some(2_000)));
        assert!(take(1, 1, MINUTE_NS + 1_000_000_000).is_ok(), "one came back in a second");
        assert!(take(1, 1, MINUTE_NS + 1_000_000_000).is_err());
        assert!(take(2, 5, MINUTE_NS).is_ok(), "another user has a rate of their own");
        assert_eq!(take(3, 6, MINUTE_NS).unwrap_err().code, ErrorCode::LimitExceeded, "never so many at once");
        assert!(take(3, 5, MINUTE_NS).is_ok(), "what was refused took nothing");
    }

    #[test]
    fn a_rate_of_zero_limits_nothing() {
        let limiter = UserLimiter::new(PerMinute { count: 0, burst: 0 });
        assert!((0..1_000).all(|_| limiter.take_at(UserNo(1), 100, 0, String::new).is_ok()));
    }
}
