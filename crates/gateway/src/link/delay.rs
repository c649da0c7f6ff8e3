//! How long packets have waited on a link.

use crate::timer_wheel::TICK;

/// The shortest way is looked for among those of the last one to two of these. It is as long as a link may stay full without a moment in which
/// it is not, and as short as one that takes longer from some moment on may be mistaken for a full one.
const WINDOW_MS: u64 = 2 * 60 * 1_000;

/// How long the packets that are read now have waited: in the sender, and on the way. The sender names its own time before them, at most a
/// tick earlier. Both clocks begin anywhere, so that the shortest way of late counts as no wait.
#[derive(Debug, Default)]
pub(crate) struct LinkDelay {
    /// The shortest way in the window before, and in this one: the difference of both clocks.
    least: Option<[i64; 2]>,
    window_began: u64,
    /// The time that the sender has named last.
    sent_ms: u64,
}

impl LinkDelay {
    /// What was sent then is read now.
    pub(crate) fn note(&mut self, sent_ms: u64, now_ms: u64) {
        let way = now_ms as i64 - sent_ms as i64;
        let age = now_ms.saturating_sub(self.window_began);
        let least = match self.least {
            Some([before, least]) if age <= WINDOW_MS => [before, least.min(way)],
            Some([_, least]) if age <= 2 * WINDOW_MS => [least, way],
            Some(_) | None => [way; 2],
        };
        if self.least.is_none() || age > WINDOW_MS {
            self.window_began = now_ms;
        }
        (self.least, self.sent_ms) = (Some(least), sent_ms);
    }

    /// How long what is read now has waited, or a tick less.
    pub(crate) fn waited_ms(&self, now_ms: u64) -> u64 {
        let way = now_ms as i64 - self.sent_ms as i64;
        let waited = self.least.map_or(0, |[before, least]| (way - before.min(least)).max(0) as u64);
        waited.saturating_sub(TICK.as_millis() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_longer_than_the_shortest_way_has_waited() {
        for offset in [0, 5_000_000] {
            let mut delay = LinkDelay::default();
            assert_eq!(delay.waited_ms(5_000), 0);
            for (sent, way, waited) in
                [(1_000, 30, 0), (2_000, 430, 300), (3_000, 10, 0), (4_000, 10_010, 9_900), (5_000, 12, 0)]
            {
                delay.note(sent + offset, sent + way);
                assert_eq!(delay.waited_ms(sent + way), waited, "sent at {sent}, {offset} apart");
                assert!(delay.waited_ms(sent + way + 200) >= waited + 100, "it is read later");
            }
        }
    }

    #[test]
    fn clocks_that_drift_apart_are_no_wait() {
        let mut delay = LinkDelay::default();
        // Two hours, in which one clock falls behind by ten seconds.
        for second in 0..7_200 {
            let now = second * 1_000;
            delay.note(now + 1_000_000 - second * 10_000 / 7_200, now);
            assert!(delay.waited_ms(now) < 500, "{} ms after {second} s", delay.waited_ms(now));
        }
        // After hours of silence, and five seconds.
        delay.note(7_200_000 + 1_000_000 - 10_000, 7_200_000 * 2);
        assert_eq!(delay.waited_ms(7_200_000 * 2), 0);
        let waited = delay.waited_ms(7_200_000 * 2 + 5_000);
        assert_eq!(waited, 4_900);
    }

    #[test]
    fn a_way_that_stays_long_is_no_wait_in_the_end() {
        let mut delay = LinkDelay::default();
        delay.note(0, 10);
        let waits = (1..60).map(|turn| turn * 10_000).map(|sent| {
            delay.note(sent, sent + 12_000);
            delay.waited_ms(sent + 12_000)
        });
        let waits: Vec<u64> = waits.collect();
        assert_eq!((waits.first(), waits.last()), (Some(&11_890), Some(&0)));
    }
}
