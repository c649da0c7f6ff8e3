//! The clock of a machine on which the parts of a phase agree: monotonic, and the same for all processes of the machine.

use crate::process::monotonic_ns;
use std::sync::OnceLock;

/// For tests: so many milliseconds are added to the clock of an agent and its load clients, as if they were on another machine.
const SHIFT_VARIABLE: &str = "TIDINGS_LAB_CLOCK_SHIFT_MS";

/// Nanoseconds of this machine's clock; its zero means nothing to another machine.
pub(crate) fn machine_ns() -> u64 {
    static SHIFT_NS: OnceLock<u64> = OnceLock::new();
    let shift = SHIFT_NS.get_or_init(|| {
        let text = std::env::var(SHIFT_VARIABLE).unwrap_or_default();
        text.parse::<u64>().map_or(0, |ms| ms * 1_000_000)
    });
    monotonic_ns() + shift
}

/// How far another machine's clock is ahead of this one's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClockOffset {
    pub(crate) ahead_ns: i64,
    /// The offset is off by this at most: half of the round trip by which it was measured.
    pub(crate) error_ns: u64,
}

impl ClockOffset {
    /// From one question: when it was sent, what the other clock said, and when the answer came.
    pub(crate) fn of_round_trip(sent_ns: u64, other_ns: u64, received_ns: u64) -> Self {
        let error_ns = received_ns.saturating_sub(sent_ns).div_ceil(2);
        let here_ns = sent_ns + error_ns;
        ClockOffset { ahead_ns: other_ns.wrapping_sub(here_ns) as i64, error_ns }
    }

    /// A moment of this clock on the other.
    pub(crate) fn on_other(self, here_ns: u64) -> u64 {
        here_ns.wrapping_add_signed(self.ahead_ns)
    }

    /// How far the other clock has moved against this one since this measurement, and by how much this measurement was off at
    /// most in between, if the clock moved in one direction.
    pub(crate) fn drift_to(self, later: ClockOffset) -> (i64, u64) {
        let drift = later.ahead_ns - self.ahead_ns;
        (drift, self.error_ns.max(drift.unsigned_abs() + later.error_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_true_offset_is_within_the_error_however_the_way_is_shared() {
        const AHEAD: u64 = 5_000_000_000;
        for (there, back) in [(0, 900), (450, 450), (900, 0), (1, 0)] {
            let offset = ClockOffset::of_round_trip(1_000, 1_000 + there + AHEAD, 1_000 + there + back);
            assert!(offset.ahead_ns.abs_diff(AHEAD as i64) <= offset.error_ns, "{offset:?} by {there} and {back}");
            assert_eq!(offset.on_other(7), offset.ahead_ns as u64 + 7);
        }
        let behind = ClockOffset::of_round_trip(5_000, 1_000, 5_000);
        assert_eq!(behind, ClockOffset { ahead_ns: -4_000, error_ns: 0 });
        assert_eq!(behind.on_other(9_000), 5_000);
    }

    #[test]
    fn drift_adds_to_the_error() {
        let (before, after) = (ClockOffset { ahead_ns: 100, error_ns: 5 }, ClockOffset { ahead_ns: 70, error_ns: 3 });
        assert_eq!(before.drift_to(after), (-30, 33));
    }
}
