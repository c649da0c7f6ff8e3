//! The counts of a worker with devices, and their sums over workers.

use crate::{
    latency::HistogramCounts,
    series::{Series, SeriesCounts, SeriesRecorder},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most pushes of one run: each device has one bit per push.
pub(crate) const PUSHES_MAX: usize = 128;
/// Above this lateness at the 99th percentile the load client distorts what it measures.
pub(crate) const LATENESS_MS_MAX: f64 = 100.0;
/// How many faults of all workers are told.
const PROBLEMS_MAX: usize = 10;

/// The devices' counts of one push.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PushCount {
    /// Devices that got the push.
    pub(crate) devices: u64,
    /// Duplicates with the same id after a reconnect: allowed, since a push is delivered at least once.
    pub(crate) again: u64,
    /// Duplicates with the same id on one connection: allowed when a bind and a push coincide, a fault when no device
    /// reconnects.
    pub(crate) repeated: u64,
    /// Duplicates under another id, which no device can detect.
    pub(crate) doubled: u64,
    /// The monotonic time at which the last device got its first copy.
    pub(crate) last_at_ns: u64,
}

impl PushCount {
    pub(crate) fn add(&mut self, other: &PushCount) {
        counts!(self += other: devices, again, repeated, doubled);
        self.last_at_ns = self.last_at_ns.max(other.last_at_ns);
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct DeviceCounts {
    pub(crate) devices: u64,
    /// Devices that are bound now.
    pub(crate) live: u64,
    /// Devices that failed too often, or were refused without a retry.
    pub(crate) given_up: u64,
    /// Since the measurement began: attempts, those that led to a bind, and the causes of failed ones.
    pub(crate) attempts: u64,
    pub(crate) bound: u64,
    pub(crate) failures: BTreeMap<String, u64>,
    /// The times of the first planned connect and of the last bind, by the bench's clock.
    pub(crate) first_planned_ns: u64,
    pub(crate) last_bound_ns: u64,
    /// Latency from planned connect to bound.
    pub(crate) bind: HistogramCounts,
    /// How late the load client started due connects although it was free to start them.
    pub(crate) lateness: HistogramCounts,
    /// Bound connections that ended, by cause. The counts from here on are since the start of the worker.
    pub(crate) disconnects: BTreeMap<String, u64>,
    pub(crate) redirects: u64,
    pub(crate) heartbeats_sent: u64,
    pub(crate) heartbeats_answered: u64,
    /// Heartbeats that were not answered before the next was due.
    pub(crate) heartbeats_unanswered: u64,
    /// Heartbeats on connections that ended before the answer.
    pub(crate) heartbeats_cut_off: u64,
    pub(crate) heartbeats_pending: u64,
    pub(crate) heartbeat: HistogramCounts,
    pub(crate) pushes: Vec<PushCount>,
    /// Latency from a push's request to its delivery at each device.
    pub(crate) push: HistogramCounts,
    /// Pushes whose body is none of this run's.
    pub(crate) altered: u64,
    /// Of each worker, since the measurement began: connects over time. Only the counts of a command that connects have them.
    pub(crate) series: Vec<SeriesCounts>,
    /// Connects that failed on the client's side, without a port or a descriptor.
    pub(crate) client_failures: u64,
    /// CPU time of the worker since it started.
    pub(crate) client_cpu_seconds: f64,
    pub(crate) problems: Vec<String>,
}

impl DeviceCounts {
    pub(crate) fn add(&mut self, other: &DeviceCounts) {
        counts!(self += other: devices, live, given_up, attempts, bound, redirects, altered, client_failures);
        counts!(self += other: heartbeats_sent, heartbeats_answered, heartbeats_unanswered);
        counts!(self += other: heartbeats_cut_off, heartbeats_pending, client_cpu_seconds);
        add_causes(&mut self.failures, &other.failures);
        if self.first_planned_ns == 0 || (other.first_planned_ns > 0 && other.first_planned_ns < self.first_planned_ns)
        {
            self.first_planned_ns = other.first_planned_ns;
        }
        self.last_bound_ns = self.last_bound_ns.max(other.last_bound_ns);
        self.bind.add(&other.bind);
        self.lateness.add(&other.lateness);
        add_causes(&mut self.disconnects, &other.disconnects);
        self.heartbeat.add(&other.heartbeat);
        self.pushes.resize(self.pushes.len().max(other.pushes.len()), PushCount::default());
        self.pushes.iter_mut().zip(&other.pushes).for_each(|(sum, other)| sum.add(other));
        self.series.extend(other.series.iter().cloned());
        self.push.add(&other.push);
        self.problems.extend(other.problems.iter().cloned());
        self.problems.truncate(PROBLEMS_MAX);
    }

    /// Seconds from the first planned connect to the last bind.
    pub(crate) fn seconds(&self) -> f64 {
        self.last_bound_ns.saturating_sub(self.first_planned_ns) as f64 / 1e9
    }

    pub(crate) fn binds_per_second(&self) -> f64 {
        self.bound as f64 / self.seconds().max(1e-9)
    }

    /// Whether every heartbeat was answered, except on connections that ended.
    pub(crate) fn heartbeats_balance(&self) -> bool {
        self.heartbeats_unanswered == 0
            && self.heartbeats_pending == 0
            && self.heartbeats_sent == self.heartbeats_answered + self.heartbeats_cut_off
    }

    /// Connects over time, of all workers.
    pub(crate) fn series(&self) -> Series {
        let mut all = SeriesRecorder::new(0);
        self.series.iter().for_each(|series| all.add(series));
        all.series()
    }

    pub(crate) fn push(&self, number: usize) -> PushCount {
        self.pushes.get(number).copied().unwrap_or_default()
    }
}

fn add_causes(sum: &mut BTreeMap<String, u64>, other: &BTreeMap<String, u64>) {
    for (cause, count) in other {
        *sum.entry(cause.clone()).or_default() += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_workers_add_up_and_keep_their_percentiles() {
        let mut histogram = crate::latency::Latencies::default();
        (1..=100).for_each(|value| histogram.record(0, value * 1_000_000));
        let one = DeviceCounts {
            live: 1,
            bind: histogram.counts(),
            failures: BTreeMap::from([("refused".to_owned(), 2)]),
            first_planned_ns: 5,
            pushes: vec![PushCount { devices: 1, ..PushCount::default() }],
            ..DeviceCounts::default()
        };
        let mut sum = DeviceCounts::default();
        sum.add(&one);
        sum.add(&one);
        assert_eq!((sum.live, sum.failures["refused"], sum.first_planned_ns, sum.push(0).devices), (2, 4, 5, 2));
        assert_eq!(sum.bind.percentiles(), one.bind.percentiles());
    }
}
