//! Latency histograms and their percentiles.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// An empty histogram of latencies up to an hour, in microseconds, with three significant digits.
pub(crate) fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("these bounds are valid")
}

/// Records the time from `start` to `end`, both in nanoseconds.
pub(crate) fn record(histogram: &mut Histogram<u64>, start: u64, end: u64) {
    histogram.saturating_record((end.saturating_sub(start) / 1_000).max(1));
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
        }
    }
}
