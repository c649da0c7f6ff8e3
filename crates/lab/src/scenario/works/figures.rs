//! Figures of the workers that drive their clients in threads of this process.

use crate::{
    Verdict,
    latency::{Curve, Percentiles, curve_of, new_histogram, record},
    live::{LiveBlock, LiveCounts},
    process::{self, ServerProcesses},
    sampler::{Sampler, Samples, Watched},
    series::{Series, SeriesRecorder},
};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

/// How many faults are described in words; the rest are only counted.
const PROBLEMS_MAX: usize = 10;

/// What a worker has counted and measured; times are nanoseconds of the monotonic clock.
#[derive(Debug)]
pub(super) struct Recorder {
    live: LiveBlock,
    start_ns: u64,
    planned: u64,
    done: u64,
    refused: BTreeMap<String, u64>,
    broken: u64,
    wrong: u64,
    latency: Histogram<u64>,
    lateness: Histogram<u64>,
    series: SeriesRecorder,
    problems: Vec<String>,
    /// The lab may begin so much later than planned, at the 99th percentile.
    lag_max: Duration,
}

impl Recorder {
    pub(super) fn new(live: LiveBlock, start_ns: u64, lag_max: Duration) -> Self {
        Recorder {
            live,
            start_ns,
            lag_max,
            planned: 0,
            done: 0,
            refused: BTreeMap::new(),
            broken: 0,
            wrong: 0,
            latency: new_histogram(),
            lateness: new_histogram(),
            series: SeriesRecorder::new(start_ns),
            problems: Vec::new(),
        }
    }

    /// Something was due, and is begun so much later by the lab's own fault.
    pub(super) fn begun(&mut self, due_ns: u64, now_ns: u64, late_ns: u64) {
        self.planned += 1;
        self.series.planned(due_ns);
        self.series.sent(now_ns, late_ns);
        record(&mut self.lateness, 0, late_ns);
        self.show();
    }

    fn show(&mut self) {
        let Recorder { live, start_ns, series, planned, done, refused, broken, wrong, .. } = self;
        live.show_series(*start_ns, series, || LiveCounts {
            sent: *planned,
            done: *done,
            errors: refused.values().sum::<u64>() + *broken + *wrong,
            ..LiveCounts::default()
        });
    }

    pub(super) fn done(&mut self, due_ns: u64, now_ns: u64) {
        self.done += 1;
        record(&mut self.latency, due_ns, now_ns);
        self.series.acknowledged(now_ns);
        self.series.latency(due_ns, now_ns);
        self.show();
    }

    pub(super) fn refused(&mut self, code: &str) {
        *self.refused.entry(code.to_owned()).or_default() += 1;
    }

    /// A connection ended that should have stayed.
    pub(super) fn broken(&mut self, what: String) {
        self.broken += 1;
        self.problem(what);
    }

    /// Something came that should not have come, or did not come that should have.
    pub(super) fn wrong(&mut self, what: String) {
        self.wrong += 1;
        self.problem(what);
    }

    fn problem(&mut self, what: String) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(what);
        }
    }

    pub(super) fn figures(&self, title: &str) -> Figures {
        Figures {
            title: title.to_owned(),
            planned: self.planned,
            answers: self.done,
            refused: self.refused.values().sum(),
            refused_by_code: self.refused.clone(),
            broken: self.broken,
            wrong: self.wrong,
            seconds: (process::monotonic_ns() - self.start_ns) as f64 / 1e9,
            latency: Percentiles::of(&self.latency),
            latency_curve: curve_of(&self.latency),
            lateness: Percentiles::of(&self.lateness),
            lag_max_ms: self.lag_max.as_secs_f64() * 1e3,
            series: self.series.series(),
            problems: self.problems.clone(),
            ..Figures::default()
        }
    }
}

/// The figures of a task, with the names that the report looks for.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Figures {
    pub(super) title: String,
    pub(super) planned: u64,
    pub(super) answers: u64,
    pub(super) refused: u64,
    pub(super) refused_by_code: BTreeMap<String, u64>,
    pub(super) broken: u64,
    /// Steps of a script that did not come true.
    pub(super) wrong: u64,
    pub(super) seconds: f64,
    /// In milliseconds, from when something was due.
    pub(super) latency: Percentiles,
    pub(super) latency_curve: Curve,
    pub(super) lateness: Percentiles,
    pub(super) lag_max_ms: f64,
    pub(super) series: Series,
    pub(super) samples: Samples,
    pub(super) server_cpu_seconds: Option<f64>,
    pub(super) server_rss_bytes: Option<u64>,
    pub(super) problems: Vec<String>,
}

impl Figures {
    pub(super) fn verdict(&self) -> Verdict {
        match (self.wrong + self.broken, self.lateness.p99 > self.lag_max_ms) {
            (0, false) => Verdict::Passed,
            (0, true) => Verdict::LabFellBehind,
            _ => Verdict::Failed,
        }
    }

    pub(super) fn print(&self, title: &str, what: &str) {
        println!("{title}");
        let codes: Vec<String> = self.refused_by_code.iter().map(|(code, count)| format!("{code} {count}")).collect();
        let codes = if codes.is_empty() { String::new() } else { format!(" ({})", codes.join(", ")) };
        println!(
            "  {what:<12} planned {}  done {}  refused {}{codes}  broken {}  wrong {}",
            self.planned, self.answers, self.refused, self.broken, self.wrong
        );
        println!("  rate         {:.0}/s over {:.2} s", self.answers as f64 / self.seconds.max(1e-9), self.seconds);
        println!("  ms             p50       p90       p99     p99.9    p99.99      p100");
        for (name, p) in [("done", &self.latency), ("client late", &self.lateness)] {
            println!(
                "  {name:<12}{:>8.2}  {:>8.2}  {:>8.2}  {:>8.2}  {:>8.2}  {:>8.2}",
                p.p50, p.p90, p.p99, p.p99_9, p.p99_99, p.max
            );
        }
        for problem in &self.problems {
            println!("  ! {problem}");
        }
    }
}

/// What the server used while a worker worked.
pub(super) struct ServerUse {
    sampler: Sampler,
    server: ServerProcesses,
    cpu_before: Option<f64>,
}

impl ServerUse {
    pub(super) fn begin(server: ServerProcesses, metrics_address: Option<SocketAddr>) -> Self {
        let watched = Watched { server: server.clone(), metrics_address, lab_pids: Vec::new() };
        ServerUse { sampler: Sampler::start(watched), cpu_before: server.cpu_seconds(), server }
    }

    pub(super) fn end(self, figures: &mut Figures) {
        figures.samples = self.sampler.finish();
        figures.server_cpu_seconds = self.server.cpu_seconds().zip(self.cpu_before).map(|(now, before)| now - before);
        figures.server_rss_bytes = self.server.resident_bytes();
    }
}
