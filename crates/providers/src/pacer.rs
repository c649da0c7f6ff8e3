//! How many requests begin in a second: who comes too early waits for a turn.

use parking_lot::Mutex;
use std::time::{Duration, Instant};
use tidings_domain::{clock::Clock, rate::Gcra};

/// After a pause one part in this many of a second's requests, and one more, may begin at once.
const BURST_DIVISOR: u32 = 10;
/// The longest wait of a task before it looks at the clock again, which a test may have moved.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The turns of the requests to one provider.
pub(crate) struct Pacer {
    /// Absent: no limit.
    rate: Option<Gcra>,
    began: Instant,
    /// Since `began`.
    whole_at_ns: Mutex<u64>,
}

impl Pacer {
    /// 0 a second: no limit.
    pub(crate) fn new(per_second: u32, now: Instant) -> Pacer {
        let rate = (per_second > 0).then(|| Gcra::new(per_second, per_second / BURST_DIVISOR + 1));
        Pacer { rate, began: now, whole_at_ns: Mutex::new(0) }
    }

    /// Waits, by this clock, until one more request may begin.
    pub(crate) async fn wait_for_turn(&self, clock: &dyn Clock) {
        let Some(rate) = &self.rate else { return };
        let turn = self.take_turn(rate, clock.monotonic());
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
    fn take_turn(&self, rate: &Gcra, now: Instant) -> Instant {
        let now_ns = now.saturating_duration_since(self.began).as_nanos() as u64;
        let mut whole_at_ns = self.whole_at_ns.lock();
        let wait = rate.wait_ns(*whole_at_ns, now_ns, 0);
        *whole_at_ns = rate.after_one(*whole_at_ns, now_ns);
        now + Duration::from_nanos(wait)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };
    use tidings_testkit::ManualClock;

    #[test]
    fn turns_come_at_the_rate_with_a_small_burst_after_a_pause() {
        let now = ManualClock::default().monotonic();
        let pacer = Pacer::new(100, now);
        let rate = pacer.rate.unwrap();
        let turns: Vec<_> = (0..200).map(|_| pacer.take_turn(&rate, now)).collect();
        assert_eq!(turns.iter().filter(|turn| **turn <= now).count(), 11);
        assert_eq!(turns[199], now + Duration::from_millis(1_890));
        // A pause earns no more than the burst.
        let later = now + Duration::from_secs(60);
        let turns: Vec<_> = (0..200).map(|_| pacer.take_turn(&rate, later)).collect();
        assert_eq!(turns.iter().filter(|turn| **turn <= later).count(), 11);
    }

    #[tokio::test]
    async fn who_waits_goes_by_the_clock_that_the_test_moves() {
        let clock = Arc::new(ManualClock::default());
        let pacer = Arc::new(Pacer::new(1, clock.monotonic()));
        let begun = Arc::new(AtomicUsize::new(0));
        let waits: Vec<_> = (0..3)
            .map(|_| {
                let (pacer, clock, begun) = (pacer.clone(), clock.clone(), begun.clone());
                tokio::spawn(async move {
                    pacer.wait_for_turn(&*clock).await;
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
