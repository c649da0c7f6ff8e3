//! One load with popups as a measurement: what it was for the server and for the lab, and what it is held to.

use super::{
    answer_verifier::AnswerCounts,
    balance::Balance,
    load_loop::{Connections, LoadModel, LoadResult, TrafficSource},
    metrics::ServerMetrics,
};
use crate::{
    LabError,
    live::{LiveBlock, WorkLength},
    process::{self, ServerProcesses},
    result::{Check, Layout, Measurement, filled},
    sampler::{Sampler, Samples},
};
use serde::Serialize;
use serde_json::json;
use std::time::Duration;

/// Above this share the machine had other work, and the figures are lower than they could be.
const PREEMPTED_SHARE_MAX: f64 = 0.02;

const LAYOUT: Layout = Layout {
    lines: &[
        (
            "rate",
            "{per_second:0} {what}/s  over {stretch.seconds:1} s  CPU server {server_share:%} client {client_share:%}  server \
             memory {server_rss_bytes:MiB}",
        ),
        (
            "mix",
            "nothing due {mix.early:%}  due {mix.due:%}  events {mix.events:%}  of {stretch.answers} requests ({requests_per_second:0}/s)",
        ),
        (
            "store",
            "{reads_per_thousand:2} reads per 1,000 decisions  busy {store_share:%}  users in memory {metrics.users:0}",
        ),
        (
            "faults",
            "too early {tally.too_early}  wrong wait {tally.wrong_wait}  wrong content {tally.wrong_content}  wrong answer \
             {tally.wrong_answer}  refused {tally.refused}  broken {tally.lost}  due but nothing {tally.due_but_nothing} of \
             {tally.asked_due}",
        ),
        (
            "balance",
            "shown and events by the answers {balance.here}  counted {balance.there}  control {balance.control}  wrong {balance.wrong}",
        ),
    ],
    percentiles: &[("answered", "stretch.latency"), ("client late", "stretch.lateness")],
};

/// The result of one load, with its cost for the server.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct PopupLoad {
    pub(crate) stretch: LoadResult,
    server_cpu_seconds: Option<f64>,
    server_rss_before: Option<u64>,
    server_rss_bytes: Option<u64>,
    pub(crate) metrics: ServerMetrics,
    samples: Samples,
}

impl PopupLoad {
    /// Runs load with the client on its core, and measures CPU time and memory of the server's processes.
    pub(crate) fn run(
        title: &str,
        connections: &mut Connections,
        server: &ServerProcesses,
        client_core: usize,
        traffic: &mut impl TrafficSource,
        model: LoadModel<'_>,
    ) -> Result<Self, LabError> {
        let server_rss_before = server.resident_bytes();
        let length = match model {
            LoadModel::ClosedLoop(time) => WorkLength::Time(time),
            LoadModel::OpenLoop(profile) => WorkLength::Time(Duration::from_secs_f64(profile.seconds())),
            LoadModel::Exhausting => WorkLength::Unknown,
        };
        let mut live = LiveBlock::begin(title, length);
        let sampler = Sampler::start(server.clone(), None, Vec::new());
        let stretch = process::run_on_core(client_core, || connections.run(traffic, model, &mut live))??;
        let (samples, server_cpu_seconds, server_rss_bytes) = sampler.finish();
        let metrics = ServerMetrics::default();
        Ok(PopupLoad { stretch, server_cpu_seconds, server_rss_before, server_rss_bytes, metrics, samples })
    }

    /// As a measured part of a run. `counts`: of its answers.
    pub(crate) fn measured(&self, title: &str, counts: Option<&AnswerCounts>) -> Measurement {
        let stretch = &self.stretch;
        let (seconds, requests) = (stretch.seconds.max(1e-9), stretch.per_second());
        // The share of its core that the server used.
        let server_share = self.server_cpu_seconds.map(|used| used / seconds);
        let decisions = counts.map(|counts| (counts.asked_early + counts.asked_due) as f64 / seconds);
        let mut measured = Measurement::of(title, self)
            .layout(&LAYOUT)
            .set("per_second", decisions.unwrap_or(requests))
            .set("what", if counts.is_some() { "decisions" } else { "answers" })
            .set("server_share", server_share)
            .set("client_share", stretch.client_busy());
        if let Some(counts) = counts {
            let all = (counts.asked_early + counts.asked_due + counts.events).max(1) as f64;
            let share = |count: u64| count as f64 / all;
            let mix = json!({
                "early": share(counts.asked_early), "due": share(counts.asked_due), "events": share(counts.events),
            });
            measured = measured
                .set("mix", mix)
                .set("requests_per_second", requests)
                .set("reads_per_thousand", self.metrics.reads_per_thousand())
                .set("store_share", self.metrics.store_busy_seconds / seconds)
                .set("tally", counts);
        }
        if stretch.preempted_share() > PREEMPTED_SHARE_MAX {
            let percent = stretch.preempted_share() * 100.0;
            measured = measured.remark(format!(
                "! other work kept the client from its core for {percent:.0} % of the time: these figures are too low"
            ));
        }
        if stretch.unsent > 0 {
            let unsent = stretch.unsent;
            measured = measured.remark(format!("! {unsent} requests were due and found no free connection by the end"));
        }
        let bound = "the client's core has time left, and nothing is sent late";
        let value = format!("late p99 {:.2} ms", stretch.times.lateness.p99);
        let is_met = !stretch.lab_is_the_limit(server_share);
        measured.check(Check::of_lab("the lab's own lag", bound, is_met).value(value))
    }
}

/// Every answer must be right, and in the end the server's counts those of its answers.
pub(crate) fn checks_of(counts: &AnswerCounts, balance: &Balance, nothing_share: f64) -> [Check; 3] {
    let nothing = counts.due_but_nothing as f64 / (counts.asked_due as f64).max(1.0);
    let faults = "too early {too_early}, wrong wait {wrong_wait}, wrong content {wrong_content}, wrong answer {wrong_answer}, \
                  refused {refused}, broken {lost}";
    let counted = "counted {there}, by the answers {here}";
    let due = format!("at most {:.1} % of the users who are due are shown nothing", 100.0 * nothing_share);
    [
        Check::of_server("answers", "every answer is right", counts.is_clean()).value(filled(faults, counts)),
        Check::of_server("answers", due, nothing <= nothing_share).value(format!("{:.2} %", 100.0 * nothing)),
        Check::of_server("balance", "the server counts what it answered", balance.wrong == 0)
            .value(filled(counted, balance)),
    ]
}
