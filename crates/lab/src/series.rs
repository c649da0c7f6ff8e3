//! Figures over time: what happened in each bin of a phase, from which plots are drawn.
//!
//! Latency stands in the bin in which a message was *due*, so that a stall shows where it began; sends, answers and deliveries
//! stand where they happened. The number of bins is bounded: when a phase outgrows them, pairs of bins become one.

use crate::latency::HistogramCounts;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The width of a bin at first: a quarter of a second.
const BIN_NS: u64 = 250_000_000;
/// Bins of a phase: more than a plot has columns to show. With 7 KB of histogram each, some 3 MB at most.
const BINS_MAX: usize = 480;
/// Bins of one change: with latencies of all sizes some 12 KB each, so that a line of progress stays below a megabyte.
const BINS_TOLD_MAX: usize = 64;
/// Two significant digits: a latency over time is off by 1 % at most. The percentiles of the whole phase have three.
const DIGITS: u8 = 2;

/// The series of a phase, by bin. `None`: no message was due in the bin.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The width of a bin, in seconds.
    pub bin_s: f64,
    pub planned: Vec<u64>,
    pub sent: Vec<u64>,
    pub acknowledged: Vec<u64>,
    pub delivered: Vec<u64>,
    /// Latency of the messages due in the bin, in milliseconds.
    pub p50: Vec<Option<f64>>,
    pub p99: Vec<Option<f64>>,
    pub max: Vec<Option<f64>>,
    /// The lab's own lag, in milliseconds.
    pub lag_max: Vec<f64>,
}

#[derive(Debug)]
struct Bin {
    planned: u64,
    sent: u64,
    acknowledged: u64,
    delivered: u64,
    lag_max_us: u64,
    latency: Histogram<u32>,
    /// Since it was told last.
    has_changed: bool,
}

impl Default for Bin {
    fn default() -> Self {
        // It grows with the values that it gets.
        let latency = Histogram::new(DIGITS).expect("these digits are valid");
        Bin { planned: 0, sent: 0, acknowledged: 0, delivered: 0, lag_max_us: 0, latency, has_changed: true }
    }
}

impl Bin {
    fn merge(&mut self, later: &Bin) {
        self.planned += later.planned;
        self.sent += later.sent;
        self.acknowledged += later.acknowledged;
        self.delivered += later.delivered;
        self.lag_max_us = self.lag_max_us.max(later.lag_max_us);
        // A histogram that grows holds any other.
        let _ = self.latency.add(&later.latency);
        self.has_changed = true;
    }

    fn counts(&self) -> BinCounts {
        BinCounts {
            planned: self.planned,
            sent: self.sent,
            acknowledged: self.acknowledged,
            delivered: self.delivered,
            lag_max_us: self.lag_max_us,
            latency: HistogramCounts::of(&self.latency),
        }
    }
}

/// The bins of a recorder on their way to another process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SeriesCounts {
    bin_ns: u64,
    bins: Vec<BinCounts>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct BinCounts {
    pub(crate) planned: u64,
    pub(crate) sent: u64,
    pub(crate) acknowledged: u64,
    pub(crate) delivered: u64,
    pub(crate) lag_max_us: u64,
    pub(crate) latency: HistogramCounts,
}

impl SeriesCounts {
    /// The width of a bin, in seconds.
    pub(crate) fn bin_s(&self) -> f64 {
        self.bin_ns as f64 / 1e9
    }

    pub(crate) fn bins(&self) -> &[BinCounts] {
        &self.bins
    }

    /// Takes over what has changed in the recorder's bins.
    pub(crate) fn update(&mut self, change: SeriesChange) {
        if change.bin_ns != self.bin_ns && !change.bins.is_empty() {
            // All bins of the new width come, with this change or with the next ones.
            (self.bin_ns, self.bins) = (change.bin_ns, Vec::new());
        }
        for (index, bin) in change.bins {
            let index = index.min(BINS_MAX);
            if index >= self.bins.len() {
                self.bins.resize_with(index + 1, BinCounts::default);
            }
            self.bins[index] = bin;
        }
    }

    /// All bins as a change, for whoever knows none of them.
    pub(crate) fn into_change(self) -> SeriesChange {
        SeriesChange { bin_ns: self.bin_ns, bins: self.bins.into_iter().enumerate().collect() }
    }
}

/// The bins of a recorder that have changed since they were told last: a late delivery changes the bin in which it was due.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SeriesChange {
    bin_ns: u64,
    bins: Vec<(usize, BinCounts)>,
}

impl SeriesChange {
    pub(crate) fn is_empty(&self) -> bool {
        self.bins.is_empty()
    }
}

/// Records a phase. Times are nanoseconds of one clock.
#[derive(Debug)]
pub(crate) struct SeriesRecorder {
    start_ns: u64,
    bin_ns: u64,
    bins: Vec<Bin>,
}

impl Default for SeriesRecorder {
    fn default() -> Self {
        SeriesRecorder::new(0)
    }
}

impl SeriesRecorder {
    pub(crate) fn new(start_ns: u64) -> Self {
        SeriesRecorder { start_ns, bin_ns: BIN_NS, bins: Vec::new() }
    }

    fn bin(&mut self, at_ns: u64) -> &mut Bin {
        let after_ns = at_ns.saturating_sub(self.start_ns);
        while (after_ns / self.bin_ns) as usize >= BINS_MAX {
            self.halve();
        }
        let index = (after_ns / self.bin_ns) as usize;
        if index >= self.bins.len() {
            self.bins.resize_with(index + 1, Bin::default);
        }
        let bin = &mut self.bins[index];
        bin.has_changed = true;
        bin
    }

    /// Makes each pair of bins one of twice the width.
    fn halve(&mut self) {
        self.bin_ns *= 2;
        let mut bins = std::mem::take(&mut self.bins).into_iter();
        while let Some(mut first) = bins.next() {
            first.has_changed = true;
            if let Some(second) = bins.next() {
                first.merge(&second);
            }
            self.bins.push(first);
        }
    }

    pub(crate) fn planned(&mut self, due_ns: u64) {
        self.bin(due_ns).planned += 1;
    }

    /// A message was sent, so much later than it could have been.
    pub(crate) fn sent(&mut self, at_ns: u64, lag_ns: u64) {
        let bin = self.bin(at_ns);
        bin.sent += 1;
        bin.lag_max_us = bin.lag_max_us.max(lag_ns / 1_000);
    }

    pub(crate) fn acknowledged(&mut self, at_ns: u64) {
        self.bin(at_ns).acknowledged += 1;
    }

    pub(crate) fn delivered(&mut self, due_ns: u64, at_ns: u64) {
        self.arrived(at_ns);
        self.latency(due_ns, at_ns);
    }

    /// A delivery whose latency is recorded apart, such as that of all receivers but the last.
    pub(crate) fn arrived(&mut self, at_ns: u64) {
        self.bin(at_ns).delivered += 1;
    }

    pub(crate) fn latency(&mut self, due_ns: u64, at_ns: u64) {
        let latency_us = (at_ns.saturating_sub(due_ns) / 1_000).max(1);
        // It grows; only `record` does so, `saturating_record` keeps to what there is.
        let _ = self.bin(due_ns).latency.record(latency_us);
    }

    pub(crate) fn counts(&self) -> SeriesCounts {
        SeriesCounts { bin_ns: self.bin_ns, bins: self.bins.iter().map(Bin::counts).collect() }
    }

    /// The bins that have changed and were not told yet, the newest first: those for which there is no room come with later calls.
    pub(crate) fn take_change(&mut self) -> SeriesChange {
        let changed = self.bins.iter_mut().enumerate().rev().filter(|(_, bin)| bin.has_changed).take(BINS_TOLD_MAX);
        let tell = |(index, bin): (usize, &mut Bin)| {
            bin.has_changed = false;
            (index, bin.counts())
        };
        SeriesChange { bin_ns: self.bin_ns, bins: changed.map(tell).collect() }
    }

    /// Adds what another process recorded of the same phase, from the same start.
    pub(crate) fn add(&mut self, other: &SeriesCounts) {
        while self.bin_ns < other.bin_ns {
            self.halve();
        }
        for (index, counts) in other.bins.iter().enumerate().take(BINS_MAX) {
            let bin = self.bin(self.start_ns + index as u64 * other.bin_ns);
            counts!(bin += counts: planned, sent, acknowledged, delivered);
            bin.lag_max_us = bin.lag_max_us.max(counts.lag_max_us);
            counts.latency.add_to(&mut bin.latency);
        }
    }

    pub(crate) fn series(&self) -> Series {
        let count = |of: fn(&Bin) -> u64| self.bins.iter().map(of).collect();
        let latency = |quantile: f64| {
            let at = |bin: &Bin| bin.latency.value_at_quantile(quantile) as f64 / 1e3;
            self.bins.iter().map(|bin| (!bin.latency.is_empty()).then(|| at(bin))).collect()
        };
        Series {
            bin_s: self.bin_ns as f64 / 1e9,
            planned: count(|bin| bin.planned),
            sent: count(|bin| bin.sent),
            acknowledged: count(|bin| bin.acknowledged),
            delivered: count(|bin| bin.delivered),
            p50: latency(0.5),
            p99: latency(0.99),
            max: latency(1.0),
            lag_max: self.bins.iter().map(|bin| bin.lag_max_us as f64 / 1e3).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const MS: u64 = 1_000_000;

    #[test]
    fn a_late_delivery_counts_when_it_came_and_its_latency_when_it_was_due() {
        let mut recorder = SeriesRecorder::new(S);
        recorder.planned(S);
        recorder.sent(S + 2 * MS, 2 * MS);
        recorder.delivered(S, S + 600 * MS);
        let series = recorder.series();
        assert_eq!((series.planned, series.delivered), (vec![1, 0, 0], vec![0, 0, 1]));
        let latency = series.max[0].unwrap_or_default();
        assert!((594.0..=606.0).contains(&latency), "600 ms within a hundredth: {latency}");
        assert_eq!((series.max[1], series.lag_max[0]), (None, 2.0));
    }

    #[test]
    fn a_long_phase_has_wider_bins_and_loses_nothing() {
        let mut recorder = SeriesRecorder::new(0);
        for second in 0..7200 {
            recorder.planned(second * S);
            recorder.delivered(second * S, second * S + second % 7 * MS);
        }
        let series = recorder.series();
        assert!(series.planned.len() <= BINS_MAX);
        assert_eq!((series.planned.iter().sum::<u64>(), series.delivered.iter().sum::<u64>()), (7200, 7200));
        assert_eq!(series.bin_s, 16.0);
    }

    #[test]
    fn series_of_two_processes_add_up_to_that_of_one_also_with_wider_bins() {
        let (mut short, mut long, mut whole) =
            (SeriesRecorder::new(S), SeriesRecorder::new(7 * S), SeriesRecorder::new(0));
        for quarter in 0..1000 {
            let at = quarter * S / 4;
            // Each by a clock of its own; the short one ends before its bins must be wider.
            if quarter % 2 == 0 && quarter < 400 {
                short.delivered(S + at, S + at + quarter * MS);
            } else {
                long.planned(7 * S + at);
                long.delivered(7 * S + at, 7 * S + at + quarter * MS);
                whole.planned(at);
            }
            whole.delivered(at, at + quarter * MS);
        }
        assert!(long.bin_ns > short.bin_ns);
        for order in [[&short, &long], [&long, &short]] {
            let mut merged = SeriesRecorder::new(0);
            order.iter().for_each(|part| merged.add(&part.counts()));
            assert_eq!(merged.series(), whole.series());
        }
    }

    #[test]
    fn what_is_told_change_by_change_is_the_whole_also_when_bins_become_wider() {
        let mut recorder = SeriesRecorder::new(0);
        let mut told = SeriesCounts::default();
        for quarter in 0..1000 {
            let at = quarter * S / 4;
            recorder.planned(at);
            // What was due five seconds before comes now.
            recorder.delivered(at.saturating_sub(5 * S), at);
            let change = recorder.take_change();
            assert!(change.bins.len() <= BINS_TOLD_MAX);
            told.update(change);
            let newest = told.bins.last().map(|bin| bin.planned);
            assert_eq!(newest, recorder.bins.last().map(|bin| bin.planned), "the newest come first");
        }
        told.update(recorder.take_change());
        assert_eq!(told, recorder.counts());
        assert!(recorder.take_change().is_empty());
        let mut late = SeriesCounts::default();
        late.update(told.clone().into_change());
        assert_eq!(late, told);
    }
}
