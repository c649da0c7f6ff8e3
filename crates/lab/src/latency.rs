//! Latency histograms and their percentiles.

use hdrhistogram::{Counter, Histogram};
use serde::{Deserialize, Serialize};

/// Latencies up to an hour, in microseconds, with three significant digits.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Latencies(Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("these bounds are valid"))
    }
}

impl Latencies {
    /// Records the time from `start` to `end`, both in nanoseconds.
    pub(crate) fn record(&mut self, start: u64, end: u64) {
        self.0.saturating_record((end.saturating_sub(start) / 1_000).max(1));
    }

    pub(crate) fn add(&mut self, counts: &HistogramCounts) {
        counts.add_to(&mut self.0);
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn counts(&self) -> HistogramCounts {
        HistogramCounts::of(&self.0)
    }

    /// Five points for each halving of what remains, as HDR histograms are usually plotted.
    pub(crate) fn curve(&self) -> Curve {
        if self.is_empty() {
            return Curve::new();
        }
        let steps = self.0.iter_quantiles(5);
        steps.map(|step| (step.quantile_iterated_to() * 100.0, step.value_iterated_to() as f64 / 1e3)).collect()
    }

    pub(crate) fn percentiles(&self) -> Percentiles {
        let at = |quantile: f64| self.0.value_at_quantile(quantile) as f64 / 1e3;
        Percentiles {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            max: self.0.max() as f64 / 1e3,
            mean: if self.is_empty() { 0.0 } else { self.0.mean() / 1e3 },
        }
    }
}

/// A histogram on its way to another process: each recorded value and how often, one after the other. Nothing is lost: the
/// other side records the same values into the same buckets.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct HistogramCounts(Vec<u64>);

impl HistogramCounts {
    pub(crate) fn of<C: Counter>(histogram: &Histogram<C>) -> Self {
        let pairs = histogram.iter_recorded().map(|step| [step.value_iterated_to(), step.count_since_last_iteration()]);
        HistogramCounts(pairs.flatten().collect())
    }

    pub(crate) fn add(&mut self, other: &HistogramCounts) {
        self.0.extend_from_slice(&other.0);
    }

    pub(crate) fn percentiles(&self) -> Percentiles {
        self.latencies().percentiles()
    }

    pub(crate) fn curve(&self) -> Curve {
        self.latencies().curve()
    }

    fn latencies(&self) -> Latencies {
        let mut latencies = Latencies::default();
        latencies.add(self);
        latencies
    }

    /// Adds all values to a histogram of the same bounds and digits.
    pub(crate) fn add_to<C: Counter>(&self, histogram: &mut Histogram<C>) {
        for pair in self.0.as_chunks::<2>().0 {
            // A count that came from a histogram with this kind of counter fits.
            let Some(count) = C::from_u64(pair[1]) else { continue };
            // It grows; values outside fixed bounds were clamped when they were recorded first.
            let _ = histogram.record_n(pair[0], count);
        }
    }
}

/// Points of a percentile curve, to p100: the percentile (0 to 100) and the latency in milliseconds.
pub type Curve = Vec<(f64, f64)>;

/// Percentiles of a latency, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub p99_99: f64,
    pub max: f64,
    #[serde(default)]
    pub mean: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_of_two_processes_add_up_to_that_of_one() {
        let (mut first, mut second, mut whole) = (Latencies::default(), Latencies::default(), Latencies::default());
        for n in 0..20_000_u64 {
            // From microseconds to beyond the bound of an hour.
            let (start, end) = (0, n.pow(3) * 1_000);
            if n % 3 == 0 { &mut first } else { &mut second }.record(start, end);
            whole.record(start, end);
        }
        let mut merged = Latencies::default();
        for part in [&first, &second] {
            let line = serde_json::to_string(&part.counts()).unwrap_or_default();
            let counts: HistogramCounts = serde_json::from_str(&line).unwrap_or_default();
            merged.add(&counts);
        }
        assert!(merged == whole && merged.len() == 20_000);
        assert_eq!(merged.curve(), whole.curve());
        assert_eq!(merged.percentiles(), whole.percentiles());
    }
}
