//! Latency histograms and their percentiles.

use hdrhistogram::{Counter, Histogram};
use serde::{Deserialize, Serialize};

/// An empty histogram of latencies up to an hour, in microseconds, with three significant digits.
pub(crate) fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("these bounds are valid")
}

/// Records the time from `start` to `end`, both in nanoseconds.
pub(crate) fn record(histogram: &mut Histogram<u64>, start: u64, end: u64) {
    histogram.saturating_record((end.saturating_sub(start) / 1_000).max(1));
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
        Percentiles::of(&self.histogram())
    }

    pub(crate) fn curve(&self) -> Curve {
        curve_of(&self.histogram())
    }

    /// Of latencies.
    fn histogram(&self) -> Histogram<u64> {
        let mut histogram = new_histogram();
        self.add_to(&mut histogram);
        histogram
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

/// The curve of a histogram of microseconds: five points for each halving of what remains, as HDR histograms are usually plotted.
pub(crate) fn curve_of(histogram: &Histogram<u64>) -> Curve {
    if histogram.is_empty() {
        return Curve::new();
    }
    histogram
        .iter_quantiles(5)
        .map(|step| (step.quantile_iterated_to() * 100.0, step.value_iterated_to() as f64 / 1e3))
        .collect()
}

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

impl Percentiles {
    /// From a histogram of microseconds.
    pub(crate) fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Percentiles {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            max: histogram.max() as f64 / 1e3,
            mean: if histogram.is_empty() { 0.0 } else { histogram.mean() / 1e3 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_of_two_processes_add_up_to_that_of_one() {
        let (mut first, mut second, mut whole) = (new_histogram(), new_histogram(), new_histogram());
        for n in 0..20_000_u64 {
            // From microseconds to beyond the bound of an hour.
            let (start, end) = (0, n.pow(3) * 1_000);
            record(if n % 3 == 0 { &mut first } else { &mut second }, start, end);
            record(&mut whole, start, end);
        }
        let mut merged = new_histogram();
        for part in [&first, &second] {
            let line = serde_json::to_string(&HistogramCounts::of(part)).unwrap_or_default();
            let counts: HistogramCounts = serde_json::from_str(&line).unwrap_or_default();
            counts.add_to(&mut merged);
        }
        assert!(merged == whole && merged.len() == 20_000);
        assert_eq!(curve_of(&merged), curve_of(&whole));
        assert_eq!(Percentiles::of(&merged), Percentiles::of(&whole));
    }
}
