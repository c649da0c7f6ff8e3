//! The search for the highest rate that keeps some bounds: doubles the rate until one is missed, bisects, and proves the rate that it
//! found with a run of full length.

/// The search ends when the lowest rate that missed is at most this factor above the highest that met.
const PRECISION: f64 = 1.05;
/// Long runs sustain less than short ones: a rate that does not hold at full length is lowered by this factor.
const LOWERED: f64 = 0.93;
/// No lower rate is tried.
const RATE_MIN: f64 = 1.0;

/// What is tried next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Next {
    /// For as long as a trial lasts.
    Trial(f64),
    /// At full length.
    Proof(f64),
    /// No rate keeps the bounds, or the one that was proved does.
    Over,
}

#[derive(Debug, Default)]
pub(super) struct HighestRate {
    met: Option<f64>,
    missed: Option<f64>,
}

impl HighestRate {
    /// After a trial at this rate.
    pub(super) fn after_trial(&mut self, rate: f64, met: bool) -> Next {
        *if met { &mut self.met } else { &mut self.missed } = Some(rate);
        match (self.met, self.missed) {
            (Some(met), None) => Next::Trial(met * 2.0),
            (None, Some(missed)) if missed < RATE_MIN => Next::Over,
            (None, Some(missed)) => Next::Trial(missed / 2.0),
            (Some(met), Some(missed)) if missed / met > PRECISION => Next::Trial((met * missed).sqrt()),
            (Some(met), _) => Next::Proof(met),
            (None, None) => Next::Over,
        }
    }

    /// After a proof at this rate.
    pub(super) fn after_proof(rate: f64, met: bool) -> Next {
        if met || rate < RATE_MIN { Next::Over } else { Next::Proof(rate * LOWERED) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rate that is found of a server that keeps the bounds up to `limit`, and up to `long` at full length.
    fn found(from: f64, limit: f64, long: f64) -> Option<f64> {
        let (mut search, mut next, mut proved) = (HighestRate::default(), Next::Trial(from), None);
        loop {
            next = match next {
                Next::Trial(rate) => search.after_trial(rate, rate <= limit),
                Next::Proof(rate) => {
                    proved = Some(rate);
                    HighestRate::after_proof(rate, rate <= long)
                }
                Next::Over => return proved,
            };
        }
    }

    #[test]
    fn the_highest_rate_is_found_from_below_and_from_above() {
        for from in [10.0, 1_000.0, 90_000.0] {
            let rate = found(from, 5_000.0, 5_000.0).unwrap_or_default();
            assert!((5_000.0 / PRECISION..=5_000.0).contains(&rate), "from {from}: {rate}");
        }
        let long = found(1_000.0, 5_000.0, 4_000.0).unwrap_or_default();
        assert!((4_000.0 * LOWERED..=4_000.0).contains(&long), "{long}");
        assert_eq!(found(100.0, 0.0, 0.0), None, "nothing is met");
    }
}
