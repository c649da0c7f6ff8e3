//! Figures of the workers that drive their clients in threads of this process.

use crate::{
    live::{LiveBlock, LiveCounts},
    load_times::{LoadTimes, TimeFigures},
    problems::Problems,
    process,
    result::{Check, Layout, Measurement},
    sampler::Samples,
};
use serde::Serialize;
use std::{collections::BTreeMap, time::Duration};

/// What a worker has counted and measured; times are nanoseconds of the monotonic clock.
#[derive(Debug)]
pub(super) struct Recorder {
    live: LiveBlock,
    start_ns: u64,
    planned: u64,
    done: u64,
    wrong: u64,
    times: LoadTimes,
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
            times: LoadTimes::from(start_ns),
            problems: Vec::new(),
        }
    }

    /// Something was due, and is begun so much later by the lab's own fault.
    pub(super) fn begun(&mut self, due_ns: u64, now_ns: u64, late_ns: u64) {
        self.planned += 1;
        self.times.begun(due_ns, now_ns, late_ns);
        self.show();
    }

    fn show(&mut self) {
        let Recorder { live, start_ns, times, planned, done, wrong, .. } = self;
        live.show_series(*start_ns, &mut times.series, || LiveCounts {
            sent: *planned,
            done: *done,
            errors: *wrong,
            ..LiveCounts::default()
        });
    }

    pub(super) fn done(&mut self, due_ns: u64, now_ns: u64) {
        self.done += 1;
        self.times.done(due_ns, now_ns);
        self.show();
    }

    /// Something came that should not have come, or did not come that should have.
    pub(super) fn wrong(&mut self, what: String) {
        self.wrong += 1;
        self.problems.note(what);
    }

    pub(super) fn figures(&mut self, title: &str) -> Figures {
        self.live.export_rest(&mut self.times.series);
        Figures {
            title: title.to_owned(),
            planned: self.planned,
            answers: self.done,
            wrong: self.wrong,
            seconds: (process::monotonic_ns() - self.start_ns) as f64 / 1e9,
            lag_max_ms: self.lag_max.as_secs_f64() * 1e3,
            times: self.times.figures(),
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
    #[serde(flatten)]
    pub(super) times: TimeFigures,
    pub(super) lag_max_ms: f64,
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
            .punctual(&self.times.lateness, self.lag_max_ms)
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
