//! Gaps in delivery: how long a receiver waited for its next message while messages were sent.

/// The longest gaps between two deliveries to one receiver, in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct DeliveryGaps {
    /// When each receiver got its last delivery.
    last_delivery: Vec<u64>,
    /// The longest gap that ended since the last report.
    longest_since_report: u64,
    /// The longest gap that was reported since the phase began.
    longest_in_phase: u64,
}

impl DeliveryGaps {
    /// Starts a phase: every receiver's gap counts from now.
    pub(crate) fn reset(&mut self, receivers: usize, now: u64) {
        self.last_delivery.clear();
        self.last_delivery.resize(receivers, now);
        (self.longest_since_report, self.longest_in_phase) = (0, 0);
    }

    pub(crate) fn record_delivery(&mut self, receiver: usize, now: u64) {
        if let Some(last) = self.last_delivery.get_mut(receiver) {
            self.longest_since_report = self.longest_since_report.max(now.saturating_sub(*last));
            *last = now;
        }
    }

    /// The longest gap since the last call, including one that has not ended.
    pub(crate) fn take_longest_ns(&mut self, now: u64) -> u64 {
        let open_gap = self.last_delivery.iter().min().map_or(0, |last| now.saturating_sub(*last));
        let longest = self.longest_since_report.max(open_gap);
        self.longest_in_phase = self.longest_in_phase.max(longest);
        self.longest_since_report = 0;
        longest
    }

    /// The longest gap since the phase began.
    pub(crate) fn longest_ns(&self) -> u64 {
        self.longest_in_phase.max(self.longest_since_report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_gap_of_any_receiver_is_reported_even_before_it_ends() {
        let mut delivery_gaps = DeliveryGaps::default();
        delivery_gaps.reset(2, 100);
        delivery_gaps.record_delivery(0, 110);
        delivery_gaps.record_delivery(1, 130);
        assert_eq!(delivery_gaps.take_longest_ns(140), 30);
        delivery_gaps.record_delivery(1, 150);
        assert_eq!(delivery_gaps.take_longest_ns(200), 90, "the first has waited since 110");
        delivery_gaps.record_delivery(0, 210);
        assert_eq!(delivery_gaps.take_longest_ns(210), 100);
        assert_eq!(delivery_gaps.longest_ns(), 100);
    }
}
