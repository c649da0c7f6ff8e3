//! What the live view knows of one task.

use crate::{
    series::{BinCounts, SeriesChange, SeriesCounts},
    worker_protocol::LoadModel,
};
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// How long work lasts, as far as that is known before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum WorkLength {
    Time(Duration),
    Messages(u64),
    Unknown,
}

impl WorkLength {
    pub(crate) fn of_model(model: &LoadModel) -> Self {
        match model {
            LoadModel::ClosedLoop { duration_ms, .. } => WorkLength::Time(Duration::from_millis(*duration_ms)),
            LoadModel::OpenLoop { profile } => {
                Duration::try_from_secs_f64(profile.seconds()).map_or(WorkLength::Unknown, WorkLength::Time)
            }
            LoadModel::Rounds { rounds, .. } => WorkLength::Messages(*rounds as u64),
            LoadModel::Recorded { .. } | LoadModel::ClosedLoopOnce { .. } => WorkLength::Unknown,
        }
    }
}

/// Counts so far, beside the series.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct LiveCounts {
    pub(crate) sent: u64,
    pub(crate) done: u64,
    pub(crate) delivered: u64,
    /// Refused, broken, doubled, out of order or altered.
    pub(crate) errors: u64,
    /// Receivers that lack what others have.
    pub(crate) lagging: u64,
    pub(crate) reconnects: u64,
}

#[derive(Debug)]
pub(super) struct Block {
    pub(super) title: String,
    pub(super) length: WorkLength,
    pub(super) counts: Option<LiveCounts>,
    pub(super) note: String,
    series: SeriesCounts,
    /// The time of the work's own clock that was told last, and when.
    told: (Duration, Instant),
}

/// What happened in the last second of a series.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct LastSecond {
    /// By second.
    pub(super) planned: f64,
    pub(super) sent: f64,
    pub(super) done: f64,
    pub(super) delivered: f64,
    /// In milliseconds; unset: nothing that was due has come.
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
    pub(super) late_ms: f64,
}

impl Block {
    pub(super) fn new(title: &str, length: WorkLength) -> Self {
        Block {
            title: title.to_owned(),
            length,
            counts: None,
            note: String::new(),
            series: SeriesCounts::default(),
            told: (Duration::ZERO, Instant::now()),
        }
    }

    pub(super) fn take_change(&mut self, at: Duration, change: SeriesChange) {
        self.told = (at, Instant::now());
        self.series.update(change);
    }

    pub(super) fn set_counts(&mut self, counts: LiveCounts) {
        self.counts = Some(counts);
    }

    pub(super) fn set_note(&mut self, what: String) {
        self.note = what;
    }

    /// How long the work has lasted.
    pub(super) fn elapsed(&self, now: Instant) -> Duration {
        self.told.0 + now.saturating_duration_since(self.told.1)
    }

    /// Of a bar, how much is done: 0 to 1.
    pub(super) fn progress(&self, now: Instant) -> Option<f64> {
        match self.length {
            WorkLength::Time(length) => {
                Some((self.elapsed(now).as_secs_f64() / length.as_secs_f64().max(1e-9)).min(1.0))
            }
            WorkLength::Messages(all) => {
                let done = self.counts.map_or(0, |counts| counts.done.max(counts.sent));
                Some((done as f64 / all.max(1) as f64).min(1.0))
            }
            WorkLength::Unknown => None,
        }
    }

    /// How many bins are over: one in which nothing happened may not have been told.
    fn bins(&self) -> usize {
        match self.series.bins() {
            [] => 0,
            _ => (self.told.0.as_secs_f64() / self.series.bin_s()) as usize,
        }
    }

    pub(super) fn has_series(&self) -> bool {
        self.bins() > 0
    }

    fn between(&self, from: usize, until: usize) -> impl Iterator<Item = &BinCounts> + Clone {
        self.series.bins().iter().take(until).skip(from)
    }

    pub(super) fn last_second(&self) -> LastSecond {
        let until = self.bins();
        if until == 0 {
            return LastSecond::default();
        }
        let count = ((1.0 / self.series.bin_s()) as usize).clamp(1, until);
        let bins = self.between(until - count, until);
        let seconds = count as f64 * self.series.bin_s();
        let rate = |of: fn(&BinCounts) -> u64| bins.clone().map(of).sum::<u64>() as f64 / seconds;
        LastSecond {
            planned: rate(|bin| bin.planned),
            sent: rate(|bin| bin.sent),
            done: rate(|bin| bin.acknowledged),
            delivered: rate(|bin| bin.delivered),
            p50: quantile(bins.clone(), 0.5),
            p99: quantile(bins.clone(), 0.99),
            late_ms: bins.map(|bin| bin.lag_max_us).max().unwrap_or(0) as f64 / 1e3,
        }
    }

    /// The whole series so far in at most so many columns: by column how often something happened in a second.
    pub(super) fn rates(&self, columns: usize, of: fn(&BinCounts) -> u64) -> Vec<Option<f64>> {
        self.columns(columns, |from, until| {
            let seconds = (until - from) as f64 * self.series.bin_s();
            Some(self.between(from, until).map(of).sum::<u64>() as f64 / seconds)
        })
    }

    /// By column the 99th percentile in milliseconds.
    pub(super) fn p99s(&self, columns: usize) -> Vec<Option<f64>> {
        self.columns(columns, |from, until| quantile(self.between(from, until), 0.99))
    }

    fn columns(&self, columns: usize, of: impl Fn(usize, usize) -> Option<f64>) -> Vec<Option<f64>> {
        let bins = self.bins();
        let each = bins.div_ceil(columns.max(1)).max(1);
        (0..bins).step_by(each).map(|from| of(from, (from + each).min(bins))).collect()
    }
}

/// Of the latencies in these bins, in milliseconds.
fn quantile<'a>(bins: impl Iterator<Item = &'a BinCounts>, quantile: f64) -> Option<f64> {
    // With the digits of the bins themselves.
    let mut histogram: Histogram<u64> = Histogram::new(2).ok()?;
    bins.for_each(|bin| bin.latency.add_to(&mut histogram));
    (!histogram.is_empty()).then(|| histogram.value_at_quantile(quantile) as f64 / 1e3)
}
