//! Figures of the workers that drive their clients in threads of this process.

use crate::{
    latency::{Curve, Percentiles, curve_of, new_histogram, record},
    live::{LiveBlock, LiveCounts},
    process::{self, ServerProcesses},
    result::{Check, Layout, Measurement},
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
        let Recorder { live, start_ns, series, planned, done, wrong, .. } = self;
        live.show_series(*start_ns, series, || LiveCounts {
            sent: *planned,
            done: *done,
            errors: *wrong,
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
    /// As a measured part of the run; `what` is done.
    pub(super) fn measured(&self, what: &str) -> Measurement {
        let value = format!("broken {}, wrong {}", self.broken, self.wrong);
        Measurement::of(&self.title, self)
            .set("what", what)
            .set("done_per_second", self.answers as f64 / self.seconds.max(1e-9))
            .layout(&LAYOUT)
            .check(
                Check::of_server(
                    "clients",
                    "everything comes true, and no connection breaks",
                    self.wrong + self.broken == 0,
                )
                .value(value),
            )
            .punctual(&self.lateness, self.lag_max_ms)
    }
}

const LAYOUT: Layout = Layout {
    lines: &[
        (
            "done",
            "{answers} of {planned} {what}  refused {refused} ({refused_by_code})  broken {broken}  wrong {wrong}",
        ),
        ("rate", "{done_per_second:0}/s over {seconds:2} s"),
        ("seed", "{seed}"),
    ],
    percentiles: &[("done", "latency"), ("client late", "lateness")],
};

/// What the server used while a worker worked.
pub(super) struct ServerUse {
    sampler: Sampler,
    server: ServerProcesses,
    cpu_before: Option<f64>,
}

impl ServerUse {
    /// `lab_pids`: load clients beside this process.
    pub(super) fn begin(server: ServerProcesses, metrics_address: Option<SocketAddr>, lab_pids: Vec<u32>) -> Self {
        let watched = Watched { server: server.clone(), metrics_address, lab_pids };
        ServerUse { sampler: Sampler::start(watched), cpu_before: server.cpu_seconds(), server }
    }

    /// The samples, the server's CPU time and its memory.
    pub(super) fn end(self) -> (Samples, Option<f64>, Option<u64>) {
        let cpu_seconds = self.server.cpu_seconds().zip(self.cpu_before).map(|(now, before)| now - before);
        (self.sampler.finish(), cpu_seconds, self.server.resident_bytes())
    }
}
