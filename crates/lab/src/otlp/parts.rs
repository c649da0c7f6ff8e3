//! The parts of a run as the exporter knows them, added up for one export.

use crate::{
    result::parts::Part as Figures,
    series::{SeriesChange, SeriesCounts},
};
use hdrhistogram::Histogram;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

/// Figures that only grow while a part runs. Each is exported under this name, if the part has it: those of [`SERIES`] from the
/// first second on, all others once the part is over.
const COUNTERS: [&str; 19] = [
    "planned",
    "sent",
    "acknowledged",
    "committed",
    "answers",
    "chunks",
    "refused",
    "retried",
    "expected",
    "delivered",
    "lost",
    "doubled",
    "out_of_order",
    "altered",
    "gaps",
    "broken",
    "wrong",
    "unsent",
    "reconnects",
];
/// The columns of a series that are counts.
pub(super) const SERIES: [&str; 4] = ["planned", "sent", "acknowledged", "delivered"];

/// What the exporter is told.
#[derive(Debug)]
pub(super) enum Report {
    Scenario { name: String, seed: Option<u64> },
    Began { title: String, at_ns: u64 },
    Changed { title: String, change: SeriesChange },
    Ended { title: String, counters: Counters },
    Sampled(ServerSample),
}

/// What the server uses at one moment. `None`: it is not the lab's own, or has ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ServerSample {
    pub(super) cores: Option<f64>,
    pub(super) bytes: Option<u64>,
    pub(super) at_ns: u64,
}

pub(super) type Counters = BTreeMap<&'static str, u64>;

/// Nanoseconds since 1970, as OTLP has times.
pub(super) fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// The counters among the figures of a part.
pub(super) fn counters_of(figures: &Figures<'_>) -> Counters {
    let sum = |name: &str| -> Option<u64> {
        let column = figures.get("series")?.get(name)?.as_array()?;
        Some(column.iter().filter_map(Value::as_u64).sum())
    };
    // In some parts a counter's name is that of a latency.
    let value = |name: &str| figures.get(name).and_then(Value::as_u64).or_else(|| sum(name));
    COUNTERS.iter().filter_map(|name| Some((*name, value(name)?))).collect()
}

/// All that a run has told so far and that is still to be sent.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// In the order in which they began. One that is over goes once its last export has arrived.
    pub(super) scenarios: Vec<Scenario>,
    /// The newest of the server, until it is sent.
    pub(super) sample: Option<ServerSample>,
}

#[derive(Debug, Default)]
pub(super) struct Scenario {
    pub(super) name: String,
    pub(super) seed: Option<u64>,
    pub(super) parts: Vec<Part>,
    /// How often a part of this title has begun.
    begun: BTreeMap<String, usize>,
}

#[derive(Debug)]
pub(super) struct Part {
    title: String,
    /// The title, with a number from the second part of this title on: two parts must not be one series of the collector.
    pub(super) name: String,
    pub(super) began_ns: u64,
    pub(super) is_over: bool,
    pub(super) counters: Counters,
    pub(super) latency: Latency,
    series: SeriesCounts,
}

/// Latencies in the buckets of OTLP: bucket `i` has those above `2^(i / 2^SCALE)` ms, up to `2^((i + 1) / 2^SCALE)` ms.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Latency {
    pub(super) buckets: BTreeMap<i32, u64>,
    pub(super) sum_ms: f64,
    pub(super) max_ms: f64,
}

/// 16 buckets for each doubling, each 4.4 % wide.
pub(super) const SCALE: i32 = 4;

impl Latency {
    fn of(histogram: &Histogram<u64>) -> Self {
        let mut latency = Latency::default();
        for step in histogram.iter_recorded() {
            let (value_ms, count) = (step.value_iterated_to() as f64 / 1e3, step.count_since_last_iteration());
            let bucket = (value_ms.log2() * f64::from(1 << SCALE)).ceil() as i32 - 1;
            *latency.buckets.entry(bucket).or_default() += count;
            latency.sum_ms += value_ms * count as f64;
            latency.max_ms = value_ms;
        }
        latency
    }

    pub(super) fn count(&self) -> u64 {
        self.buckets.values().sum()
    }
}

/// Whether no count of `now` is below that of `before`.
fn has_grown<K: Ord>(before: &BTreeMap<K, u64>, now: &BTreeMap<K, u64>) -> bool {
    before.iter().all(|(key, count)| now.get(key).is_some_and(|now| now >= count))
}

impl Parts {
    pub(super) fn take(&mut self, report: Report) {
        match report {
            Report::Scenario { name, seed } => {
                self.scenarios.push(Scenario { name, seed, ..Scenario::default() });
            }
            Report::Began { title, at_ns } => self.scenarios.last_mut().into_iter().for_each(|now| {
                let times = now.begun.entry(title.clone()).and_modify(|times| *times += 1).or_insert(1);
                let name = if *times == 1 { title.clone() } else { format!("{title} ({times})") };
                now.parts.push(Part {
                    title: title.clone(),
                    name,
                    began_ns: at_ns,
                    is_over: false,
                    counters: Counters::new(),
                    latency: Latency::default(),
                    series: SeriesCounts::default(),
                });
            }),
            Report::Changed { title, change } => {
                self.running(&title).into_iter().for_each(|part| part.series.update(change.clone()));
            }
            Report::Ended { title, counters } => self.running(&title).into_iter().for_each(|part| {
                part.add_up();
                part.counters.extend(counters.iter());
                (part.is_over, part.series) = (true, SeriesCounts::default());
            }),
            Report::Sampled(sample) => self.sample = Some(sample),
        }
    }

    fn running(&mut self, title: &str) -> Option<&mut Part> {
        let parts = self.scenarios.iter_mut().flat_map(|scenario| &mut scenario.parts);
        parts.rev().find(|part| !part.is_over && part.title == title)
    }

    /// Brings what runs up to date, before an export.
    pub(super) fn add_up(&mut self) {
        let parts = self.scenarios.iter_mut().flat_map(|scenario| &mut scenario.parts);
        parts.filter(|part| !part.is_over).for_each(Part::add_up);
    }

    /// What was exported has arrived: nothing more comes of what is over.
    pub(super) fn forget_what_is_over(&mut self) {
        self.sample = None;
        self.scenarios.iter_mut().for_each(|scenario| scenario.parts.retain(|part| !part.is_over));
        let newest = self.scenarios.len().saturating_sub(1);
        let mut number = 0..;
        self.scenarios.retain(|scenario| number.next() == Some(newest) || !scenario.parts.is_empty());
    }
}

impl Part {
    /// When the bins of a series become wider, all are told anew, over several reports. Until all have come the sums would be lower
    /// than before, which a collector takes for a restart: what was added up last stays until then.
    fn add_up(&mut self) {
        if self.series.bins().is_empty() {
            return;
        }
        let mut counters: Counters = SERIES.into_iter().map(|name| (name, 0)).collect();
        let Ok(mut histogram) = Histogram::new(2) else { return };
        for bin in self.series.bins() {
            let counts = [bin.planned, bin.sent, bin.acknowledged, bin.delivered];
            SERIES.iter().zip(counts).for_each(|(name, count)| *counters.entry(name).or_default() += count);
            bin.latency.add_to(&mut histogram);
        }
        let latency = Latency::of(&histogram);
        if has_grown(&self.counters, &counters) && has_grown(&self.latency.buckets, &latency.buckets) {
            (self.counters, self.latency) = (counters, latency);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{result::Measurement, series::SeriesRecorder};
    use serde_json::json;

    const S: u64 = 1_000_000_000;

    fn parts_with(titles: &[&str]) -> Parts {
        let mut parts = Parts::default();
        parts.take(Report::Scenario { name: "s".into(), seed: Some(7) });
        for title in titles {
            parts.take(Report::Began { title: (*title).into(), at_ns: 5 });
        }
        parts
    }

    /// A run with one part, in which a message was due at each of these times and arrived so much later, if it did.
    pub(in crate::otlp) fn run_of(messages: &[(u64, Option<u64>)]) -> Parts {
        let mut parts = parts_with(&["p"]);
        let mut recorder = SeriesRecorder::new(0);
        for (due_ns, late_ns) in messages {
            recorder.planned(*due_ns);
            late_ns.iter().for_each(|late_ns| recorder.delivered(*due_ns, due_ns + late_ns));
        }
        while let change = recorder.take_change()
            && !change.is_empty()
        {
            parts.take(Report::Changed { title: "p".into(), change });
        }
        parts.add_up();
        parts
    }

    #[test]
    fn sums_never_fall_while_wider_bins_are_told_anew() {
        let (mut parts, mut recorder) = (parts_with(&["p"]), SeriesRecorder::new(0));
        let (mut held, mut before) = (0, Counters::new());
        let mut buckets = BTreeMap::new();
        for quarter in 0..1000 {
            let at = quarter * S / 4;
            recorder.planned(at);
            recorder.delivered(at, at + (quarter % 50 + 1) * 1_000_000);
            parts.take(Report::Changed { title: "p".into(), change: recorder.take_change() });
            parts.add_up();
            let part = &parts.scenarios[0].parts[0];
            assert!(has_grown(&before, &part.counters) && has_grown(&buckets, &part.latency.buckets), "{quarter}");
            held += u64::from(part.counters["planned"] != quarter + 1);
            (before, buckets) = (part.counters.clone(), part.latency.buckets.clone());
        }
        assert!(held > 0, "bins became wider, and took several reports");
        assert_eq!((before["planned"], before["delivered"], buckets.values().sum::<u64>()), (1000, 1000, 1000));
    }

    #[test]
    fn figures_of_a_part_that_is_over_are_those_of_the_result_and_go_once_they_arrived() {
        let figures = json!({
            "planned": 9, "lost": 0, "committed": { "p50": 1.0 }, "seconds": 3.5,
            "series": { "acknowledged": [4, 5], "delivered": [1, null] },
        });
        let measured = Measurement::of("p", &figures);
        let counters = counters_of(&measured.part());
        assert_eq!(counters, [("planned", 9), ("lost", 0), ("acknowledged", 9), ("delivered", 1)].into());
        let mut parts = run_of(&[(S, Some(1_000_000))]);
        parts.take(Report::Ended { title: "p".into(), counters });
        // What comes late belongs to nothing.
        parts.take(Report::Changed { title: "p".into(), change: SeriesChange::default() });
        parts.add_up();
        let part = &parts.scenarios[0].parts[0];
        assert_eq!((part.counters["planned"], part.counters["sent"], part.counters["lost"]), (9, 0, 0));
        assert_eq!(part.latency.count(), 1);
        parts.take(Report::Began { title: "q".into(), at_ns: 6 });
        parts.forget_what_is_over();
        let left: Vec<&str> = parts.scenarios[0].parts.iter().map(|part| &*part.name).collect();
        assert_eq!(left, ["q"]);
    }

    #[test]
    fn parts_of_one_title_are_apart_and_one_without_series_has_no_counts_yet() {
        let mut parts = parts_with(&["p"]);
        parts.take(Report::Ended { title: "p".into(), counters: [("sent", 3)].into() });
        parts.take(Report::Began { title: "p".into(), at_ns: 8 });
        parts.take(Report::Ended { title: "p".into(), counters: [("sent", 1)].into() });
        parts.take(Report::Ended { title: "unknown".into(), counters: [("sent", 1)].into() });
        let sent: Vec<_> =
            parts.scenarios[0].parts.iter().map(|part| (&*part.name, part.began_ns, part.counters["sent"])).collect();
        assert_eq!(sent, [("p", 5, 3), ("p (2)", 8, 1)]);
    }
}
