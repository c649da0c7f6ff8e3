//! What a load with popups is as a measurement, and what it is held to.

use super::{answer_verifier::AnswerCounts, balance::Balance, fixture::Measurement as Measured, load_loop::LoadModel};
use crate::result::{Check, Layout, Measurement, RunResult, filled};
use serde_json::json;

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
    ],
    percentiles: &[("answered", "stretch.latency"), ("client late", "stretch.lateness")],
};

impl Measured {
    /// As a measured part of a run. `counts`: of its answers; `model`: what makes the lab the limit.
    pub(crate) fn measured(&self, title: &str, counts: Option<&AnswerCounts>, model: LoadModel) -> Measurement {
        let stretch = &self.stretch;
        let requests = stretch.per_second();
        let mut measured = Measurement::of(title, self)
            .layout(&LAYOUT)
            .set("per_second", counts.map_or(requests, |counts| self.decisions_per_second(counts)))
            .set("what", if counts.is_some() { "decisions" } else { "answers" })
            .set("server_share", self.server_busy())
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
                .set("store_share", self.store_busy())
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
        let value = format!("late p99 {:.2} ms", stretch.lateness.p99);
        measured.check(Check::of_lab("the lab's own lag", bound, !self.lab_is_the_limit(model)).value(value))
    }

    pub(crate) fn decisions_per_second(&self, counts: &AnswerCounts) -> f64 {
        (counts.asked_early + counts.asked_due) as f64 / self.stretch.seconds.max(1e-9)
    }
}

/// How fast users were decided for whom the server did not know yet.
pub(super) fn tell_first_contact(result: &mut RunResult, users: u32, measured: &Measured) {
    let line = "for the first time: {answers} answers over {seconds:1} s";
    let cost = filled(", store reads {metrics.store_reads:0}, server memory {server_rss_bytes:MiB}", measured);
    result.note(&format!("{users} users"), filled(line, &measured.stretch) + &cost);
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

pub(super) fn tell_balance(result: &mut RunResult, balance: &Balance, whole: &AnswerCounts) {
    let [shown, impressions, clicks, dismissals] = balance.here;
    let (right, there) = (if balance.wrong == 0 { "exact" } else { "WRONG" }, balance.there);
    result.note(
        "balance",
        format!(
            "{right}: shown {shown} impressions {impressions} clicks {clicks} dismissals {dismissals}; counted {there:?}; \
             control {}",
            balance.control
        ),
    );
    balance.problems.iter().chain(&whole.problems).for_each(|problem| result.problem(&**problem));
}

/// The ratio to nginx, if there is one.
pub(super) fn tell_ratio_to_nginx(
    result: &mut RunResult,
    closed: &Measured,
    counts: &AnswerCounts,
    nginx: &[Measured],
) -> Option<f64> {
    if nginx.is_empty() {
        return None;
    }
    let rates: Vec<f64> = nginx.iter().map(|measured| measured.stretch.per_second()).collect();
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    let decisions = closed.decisions_per_second(counts);
    let ratio = decisions / mean.max(1.0);
    let shown: Vec<String> = rates.iter().map(|rate| format!("{rate:.0}")).collect();
    result.note(
        "beside nginx",
        format!(
            "{decisions:.0} decisions/s to {}/s of nginx (before, after): {ratio:.2}; p99 {:.3} to {:.3} ms",
            shown.join(", "),
            closed.stretch.latency.p99,
            nginx.iter().map(|measured| measured.stretch.latency.p99).fold(0.0, f64::max)
        ),
    );
    Some(ratio)
}
