//! Rate limits by the generic cell rate algorithm (GCRA): of what users do, and of incoming connections.
//!
//! The state is one number: the time at which the burst is whole again (GCRA's theoretical arrival time). A send moves
//! it one interval further; a send that would move it further than the burst allows is refused, with the time to wait.

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
