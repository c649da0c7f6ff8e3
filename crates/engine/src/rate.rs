//! How fast one user may send: the generic cell rate algorithm, one number per user.
//!
//! The number is the time at which the user's allowance is whole again. A send moves it one
//! interval further; one that would move it further than the burst allows is refused and told when.

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

/// Users whose allowance is remembered; one who falls out starts with a whole one.
const USERS: usize = 100_000;

pub(crate) struct RateLimit {
    per_second: u32,
    burst: u32,
    whole_at_us: Cache<UserNo, Arc<AtomicU64>>,
    started: Instant,
}

impl RateLimit {
    /// `per_second` 0: no limit.
    pub(crate) fn new(per_second: u32, burst: u32) -> Self {
        let users = if per_second == 0 { 1 } else { USERS };
        RateLimit { per_second, burst: burst.max(1), whole_at_us: Cache::new(users), started: Instant::now() }
    }

    pub(crate) fn check(&self, user: UserNo) -> Result<(), Refusal> {
        if self.per_second == 0 {
            return Ok(());
        }
        self.check_at(user, self.started.elapsed().as_micros() as u64)
    }

    fn check_at(&self, user: UserNo, now_us: u64) -> Result<(), Refusal> {
        let interval = 1_000_000 / u64::from(self.per_second);
        let allowance = interval * u64::from(self.burst);
        let whole_at = match self.whole_at_us.get(&user) {
            Some(whole_at) => whole_at,
            None => {
                let fresh = Arc::new(AtomicU64::new(0));
                self.whole_at_us.insert(user, fresh.clone());
                fresh
            }
        };
        let moved = whole_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |at| {
            let next = at.max(now_us) + interval;
            (next <= now_us + allowance).then_some(next)
        });
        moved.map(|_| ()).map_err(|at| {
            let wait_ms = (at + interval).saturating_sub(now_us + allowance).div_ceil(1_000);
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
    fn a_burst_passes_then_the_rate_holds() {
        let limit = RateLimit::new(10, 3);
        let user = UserNo(1);
        let passed = (0..5).filter(|_| limit.check_at(user, 0).is_ok()).count();
        assert_eq!(passed, 3);
        assert_eq!(limit.check_at(user, 0).err().and_then(|r| r.retry_after_ms), Some(100));
        assert!(limit.check_at(user, 99_999).is_err());
        assert!(limit.check_at(user, 100_000).is_ok());
        assert!(limit.check_at(UserNo(2), 0).is_ok(), "another user has an allowance of their own");
    }
}
