//! What a device worker counted, and how the counts of many workers become one.

use crate::job::Percentiles;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Pushes of one run that devices tell apart: each holds a bit per push.
pub(crate) const PUSHES_MAX: usize = 128;
/// Faults described in words; the rest are only counted.
pub(crate) const PROBLEMS_MAX: usize = 10;

/// A histogram of microseconds as its counted values: it crosses a process border and adds up.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread(Vec<(u64, u64)>);

impl Spread {
    pub(crate) fn of(histogram: &Histogram<u64>) -> Self {
        Spread(histogram.iter_recorded().map(|at| (at.value_iterated_to(), at.count_since_last_iteration())).collect())
    }

    pub(crate) fn add(&mut self, other: &Spread) {
        self.0.extend_from_slice(&other.0);
    }

    pub(crate) fn percentiles(&self) -> Percentiles {
        let mut histogram = crate::worker::histogram();
        for (value, count) in &self.0 {
            // Within the bounds: the values come from a histogram of the same bounds.
            let _ = histogram.record_n(*value, *count);
        }
        Percentiles::of(&histogram)
    }
}

/// One push as the devices got it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PushCount {
    /// Devices that got it.
    pub(crate) devices: u64,
    /// Copies that a device knew by the push's id, after a reconnect: allowed, since it may come more than once.
    pub(crate) again: u64,
    /// Copies that a device knew by the push's id, within one connection: allowed where a bind and a push meet, a
    /// fault where nobody reconnects.
    pub(crate) repeated: u64,
    /// Copies under another id: no device could tell.
    pub(crate) doubled: u64,
    /// Monotonic time of the last device's first copy.
    pub(crate) last_at_ns: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) devices: u64,
    /// Bound now.
    pub(crate) live: u64,
    /// Failed too often in a row, or were refused for good.
    pub(crate) given_up: u64,
    /// Since the last `Connect` or `Storm`: tries, those that came to a bind, and why the others did not.
    pub(crate) attempts: u64,
    pub(crate) bound: u64,
    pub(crate) failures: BTreeMap<String, u64>,
    /// From the first planned connect to the last bind, monotonic time.
    pub(crate) first_planned_ns: u64,
    pub(crate) last_bound_ns: u64,
    /// From planned connect to bound.
    pub(crate) bind: Spread,
    /// How late this client began what was due, while it was free to.
    pub(crate) lateness: Spread,
    /// Bound connections that ended, by cause. All counts from here on are since the start.
    pub(crate) breaks: BTreeMap<String, u64>,
    pub(crate) redirects: u64,
    pub(crate) beats_sent: u64,
    pub(crate) beats_answered: u64,
    /// Not echoed before the next was due.
    pub(crate) beats_unanswered: u64,
    /// Sent on connections that ended before the echo.
    pub(crate) beats_cut_off: u64,
    pub(crate) beats_pending: u64,
    pub(crate) beat: Spread,
    pub(crate) pushes: Vec<PushCount>,
    /// From the time in the push's body to a device.
    pub(crate) push: Spread,
    /// Pushes whose body is none that this run sent.
    pub(crate) altered: u64,
    /// What stood in the way on the client's side: no port, no descriptor.
    pub(crate) lab_troubles: u64,
    pub(crate) problems: Vec<String>,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Tally) {
        self.devices += other.devices;
        self.live += other.live;
        self.given_up += other.given_up;
        self.attempts += other.attempts;
        self.bound += other.bound;
        add_causes(&mut self.failures, &other.failures);
        if self.first_planned_ns == 0 || (other.first_planned_ns > 0 && other.first_planned_ns < self.first_planned_ns)
        {
            self.first_planned_ns = other.first_planned_ns;
        }
        self.last_bound_ns = self.last_bound_ns.max(other.last_bound_ns);
        self.bind.add(&other.bind);
        self.lateness.add(&other.lateness);
        add_causes(&mut self.breaks, &other.breaks);
        self.redirects += other.redirects;
        self.beats_sent += other.beats_sent;
        self.beats_answered += other.beats_answered;
        self.beats_unanswered += other.beats_unanswered;
        self.beats_cut_off += other.beats_cut_off;
        self.beats_pending += other.beats_pending;
        self.beat.add(&other.beat);
        self.pushes.resize(self.pushes.len().max(other.pushes.len()), PushCount::default());
        for (mine, its) in self.pushes.iter_mut().zip(&other.pushes) {
            mine.devices += its.devices;
            mine.again += its.again;
            mine.repeated += its.repeated;
            mine.doubled += its.doubled;
            mine.last_at_ns = mine.last_at_ns.max(its.last_at_ns);
        }
        self.push.add(&other.push);
        self.altered += other.altered;
        self.lab_troubles += other.lab_troubles;
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

    /// Every heartbeat has its echo, except where the connection itself ended.
    pub(crate) fn beats_balance(&self) -> bool {
        self.beats_unanswered == 0
            && self.beats_pending == 0
            && self.beats_sent == self.beats_answered + self.beats_cut_off
    }

    pub(crate) fn push(&self, number: usize) -> PushCount {
        self.pushes.get(number).copied().unwrap_or_default()
    }
}

fn add_causes(mine: &mut BTreeMap<String, u64>, its: &BTreeMap<String, u64>) {
    for (cause, count) in its {
        *mine.entry(cause.clone()).or_default() += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_add_up_and_keep_their_percentiles() {
        let mut histogram = crate::worker::histogram();
        (1..=100).for_each(|value| histogram.saturating_record(value * 1000));
        let one = Tally {
            live: 1,
            bind: Spread::of(&histogram),
            failures: BTreeMap::from([("refused".to_owned(), 2)]),
            first_planned_ns: 5,
            pushes: vec![PushCount { devices: 1, ..PushCount::default() }],
            ..Tally::default()
        };
        let mut sum = Tally::default();
        sum.add(&one);
        sum.add(&one);
        assert_eq!((sum.live, sum.failures["refused"], sum.first_planned_ns, sum.push(0).devices), (2, 4, 5, 2));
        assert_eq!(sum.bind.percentiles(), one.bind.percentiles());
    }
}
