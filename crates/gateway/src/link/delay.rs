//! How long packets have waited on a link.

/// The shortest way is looked for among those of the last one to two of these. Clocks drift apart by a twentieth of a second in that time.
const WINDOW_MS: u64 = 10 * 60 * 1_000;

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
        let [before, least] = self.least.unwrap_or([way; 2]);
        if self.least.is_none() {
            self.window_began = now_ms;
        }
        self.least = Some(if now_ms.saturating_sub(self.window_began) > WINDOW_MS {
            self.window_began = now_ms;
            [least, way]
        } else {
            [before, least.min(way)]
        });
        self.sent_ms = sent_ms;
    }

    /// How long what is read now has waited.
    pub(crate) fn waited_ms(&self, now_ms: u64) -> u64 {
        let way = now_ms as i64 - self.sent_ms as i64;
        self.least.map_or(0, |[before, least]| (way - before.min(least)).max(0) as u64)
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
                [(1_000, 30, 0), (2_000, 430, 400), (3_000, 10, 0), (4_000, 10_010, 10_000), (5_000, 12, 2)]
            {
                delay.note(sent + offset, sent + way);
                assert_eq!(delay.waited_ms(sent + way), waited, "sent at {sent}, {offset} apart");
                assert_eq!(delay.waited_ms(sent + way + 7), waited + 7, "it is read later");
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
            assert!(delay.waited_ms(now) < 2_000, "{} ms after {second} s", delay.waited_ms(now));
        }
        delay.note(7_200_000 + 1_000_000 - 10_000, 7_200_000 + 5_000);
        let waited = delay.waited_ms(7_200_000 + 5_000);
        assert!((5_000..7_000).contains(&waited), "{waited}");
    }
}
