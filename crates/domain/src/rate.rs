//! Rate limits by the generic cell rate algorithm (GCRA): of what users do, of incoming connections, and of requests to providers.
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

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_burst_is_taken_at_once_and_the_rest_at_the_rate() {
        let rate = Gcra::new(100, 3);
        let mut whole_at = 0;
        for _ in 0..3 {
            whole_at = rate.take(whole_at, 0, 1).unwrap_or_default();
        }
        assert_eq!(whole_at, 30 * MS);
        assert_eq!(rate.take(whole_at, 0, 1), Err(Some(10 * MS)));
        assert_eq!(rate.take(whole_at, 10 * MS, 1), Ok(40 * MS));
        // A pause earns no more than the burst.
        assert_eq!(rate.take(40 * MS, 60_000 * MS, 3), Ok(60_030 * MS));
        assert_eq!(rate.take(60_030 * MS, 60_000 * MS, 1), Err(Some(10 * MS)));
    }

    #[test]
    fn more_than_the_burst_is_never_taken_at_once() {
        assert_eq!(Gcra::new(100, 3).take(0, 60_000 * MS, 4), Err(None));
    }

    #[test]
    fn turns_that_are_taken_ahead_lie_one_interval_apart() {
        let rate = Gcra::per_minute(60, 2);
        let mut whole_at = 0;
        let waits = [(); 5].map(|()| {
            let wait = rate.wait_ns(whole_at, 0, 0);
            whole_at = rate.after_one(whole_at, 0);
            wait / MS
        });
        assert_eq!(waits, [0, 0, 1_000, 2_000, 3_000]);
    }

    #[test]
    fn a_part_of_the_burst_can_be_left_to_others() {
        let rate = Gcra::new(100, 3);
        assert_eq!([0, 1, 2, 9].map(|left| rate.wait_ns(0, 0, left)), [0; 4], "the first is never held up");
        assert_eq!([0, 1, 2].map(|left| rate.wait_ns(10 * MS, 0, left) / MS), [0, 0, 10]);
    }
}
