//! How long receivers waited for their next message while messages were sent.

/// The longest gap between two deliveries to one receiver.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    /// When each receiver last got something.
    heard: Vec<u64>,
    /// Of the gaps that ended since the last question, and since the phase began.
    lately: u64,
    ever: u64,
}

impl Pauses {
    /// Everybody counts from now.
    pub(crate) fn start(&mut self, receivers: usize, now: u64) {
        self.heard.clear();
        self.heard.resize(receivers, now);
        (self.lately, self.ever) = (0, 0);
    }

    pub(crate) fn heard(&mut self, receiver: usize, now: u64) {
        if let Some(last) = self.heard.get_mut(receiver) {
            self.lately = self.lately.max(now.saturating_sub(*last));
            *last = now;
        }
    }

    /// The longest gap since the last question, also one that still goes on.
    pub(crate) fn take_longest(&mut self, now: u64) -> u64 {
        let goes_on = self.heard.iter().min().map_or(0, |last| now.saturating_sub(*last));
        let longest = self.lately.max(goes_on);
        self.ever = self.ever.max(longest);
        self.lately = 0;
        longest
    }

    /// The longest that was told since the start.
    pub(crate) fn longest(&self) -> u64 {
        self.ever.max(self.lately)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_gap_of_any_receiver_is_told_also_while_it_lasts() {
        let mut pauses = Pauses::default();
        pauses.start(2, 100);
        pauses.heard(0, 110);
        pauses.heard(1, 130);
        assert_eq!(pauses.take_longest(140), 30);
        pauses.heard(1, 150);
        assert_eq!(pauses.take_longest(200), 90, "the first has waited since 110");
        pauses.heard(0, 210);
        assert_eq!(pauses.take_longest(210), 100);
        assert_eq!(pauses.longest(), 100);
    }
}
