//! The times of a load, kept in one way by all who load: from when something was due to its answer and to its delivery, how late
//! the lab itself was, and all of that over time. Times are nanoseconds of one clock.

use crate::{
    latency::{Curve, HistogramCounts, Latencies, Percentiles},
    series::{Series, SeriesCounts, SeriesRecorder},
};
use serde::{Deserialize, Serialize};

#[derive(Debug, Default)]
pub(crate) struct LoadTimes {
    /// To the delivery at each receiver, or to whatever ends what was due.
    pub(crate) latency: Latencies,
    pub(crate) acknowledged: Latencies,
    pub(crate) lateness: Latencies,
    pub(crate) series: SeriesRecorder,
}

impl LoadTimes {
    /// Of a load that starts at this time.
    pub(crate) fn from(start_ns: u64) -> Self {
        LoadTimes { series: SeriesRecorder::new(start_ns), ..LoadTimes::default() }
    }

    /// Something was due, and is begun so much later than it could have been, by the lab's own fault.
    pub(crate) fn begun(&mut self, due_ns: u64, now_ns: u64, late_ns: u64) {
        self.series.planned(due_ns);
        self.sent(now_ns, late_ns);
    }

    /// What was planned before is begun.
    pub(crate) fn sent(&mut self, now_ns: u64, late_ns: u64) {
        self.lateness.record(0, late_ns);
        self.series.sent(now_ns, late_ns);
    }

    pub(crate) fn acknowledged(&mut self, due_ns: u64, now_ns: u64) {
        self.acknowledged.record(due_ns, now_ns);
        self.series.acknowledged(now_ns);
    }

    pub(crate) fn delivered(&mut self, due_ns: u64, now_ns: u64) {
        self.latency.record(due_ns, now_ns);
        self.series.delivered(due_ns, now_ns);
    }

    /// An answer has come, with which all is done.
    pub(crate) fn done(&mut self, due_ns: u64, now_ns: u64) {
        self.series.acknowledged(now_ns);
        self.ended(due_ns, now_ns);
    }

    /// The last of what was waited for has come; it was counted before.
    pub(crate) fn ended(&mut self, due_ns: u64, now_ns: u64) {
        self.latency.record(due_ns, now_ns);
        self.series.latency(due_ns, now_ns);
    }

    pub(crate) fn counts(&self) -> TimeCounts {
        TimeCounts {
            latency: self.latency.counts(),
            acknowledged: self.acknowledged.counts(),
            lateness: self.lateness.counts(),
            series: self.series.counts(),
        }
    }

    /// Adds what another process recorded of the same load.
    pub(crate) fn add(&mut self, other: &TimeCounts) {
        self.latency.add(&other.latency);
        self.acknowledged.add(&other.acknowledged);
        self.lateness.add(&other.lateness);
        self.series.add(&other.series);
    }

    /// The times of what only ends.
    pub(crate) fn figures(&self) -> TimeFigures {
        TimeFigures {
            latency: self.latency.percentiles(),
            latency_curve: self.latency.curve(),
            lateness: self.lateness.percentiles(),
            series: self.series.series(),
        }
    }
}

/// The times of a load on their way to another process.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct TimeCounts {
    pub(crate) latency: HistogramCounts,
    pub(crate) acknowledged: HistogramCounts,
    pub(crate) lateness: HistogramCounts,
    pub(crate) series: SeriesCounts,
}

/// The times of a load as figures of its measurement, with the names that the report looks for; in milliseconds.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct TimeFigures {
    pub(crate) latency: Percentiles,
    pub(crate) latency_curve: Curve,
    /// How late the lab began what was due while it could have.
    pub(crate) lateness: Percentiles,
    pub(crate) series: Series,
}
