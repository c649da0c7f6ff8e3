//! Prints the figures of benches with popups.

use super::{answer_verifier::AnswerCounts, balance::Balance, fixture::Measurement};
use crate::latency::Percentiles;

pub(super) fn print_first_contact(users: u32, measured: &Measurement) {
    println!(
        "{users} users for the first time: {:.0}/s over {:.1} s, store reads {:.0}, server memory {}",
        measured.stretch.per_second(),
        measured.stretch.seconds,
        measured.metrics.store_reads,
        format_memory(measured)
    );
}

pub(super) fn print_nginx(title: &str, measured: &Measurement) {
    println!("{title}");
    print_rate(measured, measured.stretch.per_second(), "answers");
    print_latency(measured);
}

pub(super) fn print_mix(title: &str, measured: &Measurement, answer_counts: &AnswerCounts) {
    println!("{title}");
    let decisions = decisions_per_second(measured, answer_counts);
    print_rate(measured, decisions, "decisions");
    let all = (answer_counts.asked_early + answer_counts.asked_due + answer_counts.events).max(1) as f64 / 100.0;
    println!(
        "  mix          nothing due {:.1} %  due {:.1} %  events {:.1} %  of {} requests ({:.0}/s)",
        answer_counts.asked_early as f64 / all,
        answer_counts.asked_due as f64 / all,
        answer_counts.events as f64 / all,
        measured.stretch.answers,
        measured.stretch.per_second()
    );
    println!(
        "  store        {:.2} reads per 1,000 decisions  busy {:.1} %  users in memory {:.0}",
        measured.metrics.reads_per_thousand(),
        measured.store_busy() * 100.0,
        measured.metrics.users
    );
    print_faults(answer_counts);
    print_latency(measured);
}

pub(super) fn decisions_per_second(measured: &Measurement, answer_counts: &AnswerCounts) -> f64 {
    (answer_counts.asked_early + answer_counts.asked_due) as f64 / measured.stretch.seconds.max(1e-9)
}

fn print_rate(measured: &Measurement, per_second: f64, what: &str) {
    let percent = |share: Option<f64>| share.map_or("?".into(), |share| format!("{:.0} %", share * 100.0));
    println!(
        "  rate         {per_second:.0} {what}/s  over {:.1} s  CPU server {} client {}  server memory {}",
        measured.stretch.seconds,
        percent(measured.server_busy()),
        percent(Some(measured.stretch.client_busy())),
        format_memory(measured)
    );
}

pub(super) fn format_memory(measured: &Measurement) -> String {
    measured.server_rss_bytes.map_or("?".into(), |bytes| format!("{:.0} MiB", bytes as f64 / 1048576.0))
}

/// Above this share the machine had other work, and the figures are lower than they could be.
const PREEMPTED_SHARE_MAX: f64 = 0.02;

fn print_faults(answer_counts: &AnswerCounts) {
    println!(
        "  faults       too early {}  wrong wait {}  wrong content {}  wrong answer {}  refused {}  broken {}  due but \
         nothing {}",
        answer_counts.too_early,
        answer_counts.wrong_wait,
        answer_counts.wrong_content,
        answer_counts.wrong_answer,
        answer_counts.refused,
        answer_counts.lost,
        answer_counts.due_but_nothing
    );
}

fn print_latency(measured: &Measurement) {
    println!("  ms             p50       p90       p99     p99.9    p99.99      p100");
    print_percentiles("answered", &measured.stretch.latency);
    if measured.stretch.lateness != Percentiles::default() {
        print_percentiles("client late", &measured.stretch.lateness);
    }
    if measured.stretch.preempted_share() > PREEMPTED_SHARE_MAX {
        let percent = measured.stretch.preempted_share() * 100.0;
        println!(
            "  ! other work kept the client from its core for {percent:.0} % of the time: these figures are too low"
        );
    }
    if measured.stretch.unsent > 0 {
        println!("  ! {} requests were due and found no free connection by the end", measured.stretch.unsent);
    }
}

fn print_percentiles(name: &str, p: &Percentiles) {
    println!(
        "  {name:<12}{:>8.3}  {:>8.3}  {:>8.3}  {:>8.3}  {:>8.3}  {:>8.3}",
        p.p50, p.p90, p.p99, p.p99_9, p.p99_99, p.max
    );
}

pub(super) fn print_balance(balance: &Balance, whole: &AnswerCounts) {
    let [shown, impressions, clicks, dismissals] = balance.here;
    println!(
        "balance        {}: shown {shown} impressions {impressions} clicks {clicks} dismissals {dismissals}; counted {:?}; \
         control {}",
        if balance.wrong == 0 { "exact" } else { "WRONG" },
        balance.there,
        balance.control
    );
    for problem in balance.problems.iter().chain(&whole.problems) {
        println!("  ! {problem}");
    }
}

/// Prints the ratio to nginx, if there is one.
pub(super) fn print_ratio_to_nginx(
    closed: &Measurement,
    answer_counts: &AnswerCounts,
    nginx: &[Measurement],
) -> Option<f64> {
    if nginx.is_empty() {
        return None;
    }
    let rates: Vec<f64> = nginx.iter().map(|measured| measured.stretch.per_second()).collect();
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    let decisions = decisions_per_second(closed, answer_counts);
    let ratio = decisions / mean.max(1.0);
    let shown: Vec<String> = rates.iter().map(|rate| format!("{rate:.0}")).collect();
    println!(
        "beside nginx   {decisions:.0} decisions/s to {}/s of nginx (before, after): {ratio:.2}; p99 {:.3} to {:.3} ms",
        shown.join(", "),
        closed.stretch.latency.p99,
        nginx.iter().map(|measured| measured.stretch.latency.p99).fold(0.0, f64::max)
    );
    Some(ratio)
}
