//! Whether the lab itself keeps up several times the load on a loop that only writes: only then are the figures of the load the
//! server's and not its own.

use crate::worker_protocol::Outcome;

/// A rate is sustained if so much of what was due was delivered in its time: the rest is the way of the last messages.
const DELIVERED_SHARE_MIN: f64 = 0.95;

#[derive(Debug, PartialEq)]
pub(super) struct Ceiling {
    /// The rate on the loop, by the rate on the server.
    pub(super) ratio: f64,
    pub(super) sustained: bool,
}

impl Ceiling {
    /// Of `factor` times the load of the server, which took so many messages a second. `due`: how many are on the loop, unless it
    /// goes as fast as it can.
    pub(super) fn of(factor: f64, on_server: f64, due: Option<f64>, bare: &Outcome) -> Self {
        let ratio = bare.messages_per_second() / on_server.max(1e-9);
        let keeps_up = match due {
            Some(due) => bare.messages_per_second() >= DELIVERED_SHARE_MIN * due && !bare.lab_lagged(),
            None => ratio >= factor,
        };
        Ceiling { ratio, sustained: keeps_up && bare.balances() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(messages: u64, lag_p99_ms: f64) -> Outcome {
        let mut outcome = Outcome {
            planned: messages,
            sent: messages,
            committed: messages,
            expected: messages * 3,
            delivered: messages * 3,
            seconds: 10.0,
            lag_max_ms: 50.0,
            ..Outcome::default()
        };
        outcome.lateness.p99 = lag_p99_ms;
        outcome
    }

    #[test]
    fn a_lab_that_lags_or_delivers_less_does_not_sustain_it() {
        let at_rate = |bare: &Outcome| Ceiling::of(3.0, 100.0, Some(300.0), bare).sustained;
        assert!(at_rate(&outcome(3_000, 1.0)));
        assert!(!at_rate(&outcome(3_000, 80.0)), "sent late");
        assert!(!at_rate(&outcome(2_500, 1.0)), "behind the schedule");
        assert!(!at_rate(&Outcome { lost: 1, delivered: 8_999, ..outcome(3_000, 1.0) }));
        let at_most = |bare: &Outcome| Ceiling::of(3.0, 100.0, None, bare).sustained;
        assert!(at_most(&outcome(3_001, 0.0)));
        assert!(!at_most(&outcome(2_990, 0.0)));
    }
}
