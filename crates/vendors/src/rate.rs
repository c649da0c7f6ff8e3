//! How many requests begin in a second.

use parking_lot::Mutex;
use std::time::{Duration, Instant};
use tidings_domain::clock::Clock;

/// What may be sent at once after a pause, as a share of a second.
const BURST: Duration = Duration::from_millis(100);
/// The longest wait of a task before it looks at the clock again, which a test may have moved.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The rate of one vendor.
pub(crate) struct Rate {
    /// 0: no limit.
    per_second: u32,
    /// When the next request may begin.
    next_at: Mutex<Option<Instant>>,
}

impl Rate {
    pub(crate) fn new(per_second: u32) -> Rate {
        Rate { per_second, next_at: Mutex::new(None) }
    }

    /// Waits, by this clock, until one more request may begin.
    pub(crate) async fn wait_for_turn(&self, clock: &dyn Clock) {
        if self.per_second == 0 {
            return;
        }
        let turn = self.take_turn(clock.monotonic());
        loop {
            let left = turn.saturating_duration_since(clock.monotonic());
            if left.is_zero() {
                return;
            }
            // Which clock says when is the caller's; how a task sleeps until it looks again is the runtime's.
            tokio::time::sleep(left.min(LOOK_AGAIN)).await;
        }
    }

    /// When the next request may begin; the ones after it come later.
    fn take_turn(&self, now: Instant) -> Instant {
        let mut next_at = self.next_at.lock();
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        let turn = next_at.map_or(earliest, |next_at| next_at.max(earliest));
        *next_at = Some(turn + Duration::from_secs(1) / self.per_second.max(1));
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };
    use tidings_testkit::ManualClock;

    #[test]
    fn turns_come_at_the_rate_with_a_small_burst_after_a_pause() {
        let (rate, clock) = (Rate::new(100), ManualClock::default());
        clock.advance(Duration::from_secs(60));
        let now = clock.monotonic();
        let turns: Vec<_> = (0..200).map(|_| rate.take_turn(now)).collect();
        assert_eq!(turns.iter().filter(|turn| **turn <= now).count(), 11);
        assert_eq!(turns[199], now + Duration::from_millis(1_890));
        // A pause earns no more than the burst.
        let later = now + Duration::from_secs(60);
        let turns: Vec<_> = (0..200).map(|_| rate.take_turn(later)).collect();
        assert_eq!(turns.iter().filter(|turn| **turn <= later).count(), 11);
    }

    #[tokio::test]
    async fn who_waits_goes_by_the_clock_that_the_test_moves() {
        let (rate, clock) = (Arc::new(Rate::new(1)), Arc::new(ManualClock::default()));
        clock.advance(Duration::from_secs(60));
        let begun = Arc::new(AtomicUsize::new(0));
        let waits: Vec<_> = (0..3)
            .map(|_| {
                let (rate, clock, begun) = (rate.clone(), clock.clone(), begun.clone());
                tokio::spawn(async move {
                    rate.wait_for_turn(&*clock).await;
                    begun.fetch_add(1, Ordering::SeqCst);
                })
            })
            .collect();
        for expected in 1..=3 {
            while begun.load(Ordering::SeqCst) < expected {
                tokio::task::yield_now().await;
            }
            // The others have had their chance by now, and the clock stands still.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert_eq!(begun.load(Ordering::SeqCst), expected);
            clock.advance(Duration::from_secs(1));
        }
        for wait in waits {
            assert!(wait.await.is_ok());
        }
    }
}
