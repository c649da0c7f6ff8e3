//! Rate limits by the generic cell rate algorithm (GCRA): of one user's sends, and of incoming connections.
//!
//! The state is one number: the time at which the burst is whole again (GCRA's theoretical arrival time). A send moves
//! it one interval further; a send that would move it further than the burst allows is refused, with the time to wait.

use crate::model::UserNo;
use quick_cache::sync::Cache;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};
use tidings_protocol::error::{ErrorCode, Refusal};

/// Users whose rate is remembered. A user who is evicted starts with a whole burst again.
const USERS: usize = 100_000;

/// A rate with a burst. The caller keeps the state, `whole_at_ns`: when the burst is whole again.
#[derive(Debug, Clone, Copy)]
pub struct Gcra {
    interval_ns: u64,
    burst: u32,
}

impl Gcra {
    /// `per_second` on average, and `burst` at once after a pause. 0 of either counts as 1.
    pub fn new(per_second: u32, burst: u32) -> Self {
        Gcra { interval_ns: 1_000_000_000 / u64::from(per_second.max(1)), burst: burst.max(1) }
    }

    /// `per_minute` on average, and `burst` at once after a pause. 0 of either counts as 1.
    pub fn per_minute(per_minute: u32, burst: u32) -> Self {
        Gcra { interval_ns: 60_000_000_000 / u64::from(per_minute.max(1)), burst: burst.max(1) }
    }

    /// Takes `count` at once; answers the new state.
    ///
    /// # Errors
    /// The nanoseconds to wait; `None` when `count` is above the burst and can never be taken at once.
    pub fn take(&self, whole_at_ns: u64, now_ns: u64, count: u32) -> Result<u64, Option<u64>> {
        if count > self.burst {
            return Err(None);
        }
        let after = whole_at_ns.max(now_ns).saturating_add(self.interval_ns.saturating_mul(count.into()));
        match after.saturating_sub(now_ns.saturating_add(self.interval_ns.saturating_mul(self.burst.into()))) {
            0 => Ok(after),
            wait => Err(Some(wait)),
        }
    }

    /// The nanoseconds to wait until one can be taken so that `left` of the burst remain; 0: now.
    pub fn wait_ns(&self, whole_at_ns: u64, now_ns: u64, left: u32) -> u64 {
        let allowance = self.interval_ns * u64::from(self.burst.saturating_sub(left).max(1));
        self.after_one(whole_at_ns, now_ns).saturating_sub(now_ns + allowance)
    }

    /// The state after one more is taken.
    pub fn after_one(&self, whole_at_ns: u64, now_ns: u64) -> u64 {
        whole_at_ns.max(now_ns) + self.interval_ns
    }
}

/// Limits how fast each user sends.
pub struct SendRateLimiter {
    per_second: u32,
    rate: Gcra,
    whole_at_ns: Cache<UserNo, Arc<AtomicU64>>,
    started: Instant,
}

impl SendRateLimiter {
    /// `per_second` 0: no limit.
    pub fn new(per_second: u32, burst: u32) -> Self {
        let users = if per_second == 0 { 1 } else { USERS };
        let rate = Gcra::new(per_second, burst);
        SendRateLimiter { per_second, rate, whole_at_ns: Cache::new(users), started: Instant::now() }
    }

    /// Takes one send from the user's rate.
    ///
    /// # Errors
    /// `rate_limited`, with the time to wait.
    pub fn check(&self, user: UserNo) -> Result<(), Refusal> {
        if self.per_second == 0 {
            return Ok(());
        }
        self.check_at(user, self.started.elapsed().as_micros() as u64)
    }

    fn check_at(&self, user: UserNo, now_us: u64) -> Result<(), Refusal> {
        let whole_at = match self.whole_at_ns.get(&user) {
            Some(whole_at) => whole_at,
            None => {
                let fresh = Arc::new(AtomicU64::new(0));
                self.whole_at_ns.insert(user, fresh.clone());
                fresh
            }
        };
        let now_ns = now_us * 1_000;
        let moved = whole_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |at| {
            (self.rate.wait_ns(at, now_ns, 0) == 0).then(|| self.rate.after_one(at, now_ns))
        });
        moved.map(|_| ()).map_err(|at| {
            let wait_ms = self.rate.wait_ns(at, now_ns, 0).div_ceil(1_000_000);
            let limit = self.per_second;
            Refusal::new(ErrorCode::RateLimited, format!("a user may send {limit} messages a second"))
                .retry_after(wait_ms)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_rate_per_second_holds() {
        let limit = SendRateLimiter::new(10, 3);
        let user = UserNo(1);
        let passed = (0..5).filter(|_| limit.check_at(user, 0).is_ok()).count();
        assert_eq!(passed, 3);
        assert_eq!(limit.check_at(user, 0).err().and_then(|r| r.retry_after_ms), Some(100));
        assert!(limit.check_at(user, 99_999).is_err());
        assert!(limit.check_at(user, 100_000).is_ok());
        assert!(limit.check_at(UserNo(2), 0).is_ok(), "another user has a rate of their own");
    }
}
