//! Figures of popups, for people.

use super::{balance::Balance, judge::Tally, stage::Measured};
use crate::job::Percentiles;

pub(super) fn introduced(users: u32, measured: &Measured) {
    println!(
        "{users} users for the first time: {:.0}/s over {:.1} s, store reads {:.0}, server memory {}",
        measured.stretch.per_second(),
        measured.stretch.seconds,
        measured.metrics.store_reads,
        memory(measured)
    );
}

pub(super) fn nginx(title: &str, measured: &Measured) {
    println!("{title}");
    rate(measured, measured.stretch.per_second(), "answers");
    latency(measured);
}

pub(super) fn mix(title: &str, measured: &Measured, tally: &Tally) {
    println!("{title}");
    let decisions = decisions_per_second(measured, tally);
    rate(measured, decisions, "decisions");
    let all = (tally.asked_early + tally.asked_due + tally.events).max(1) as f64 / 100.0;
    println!(
        "  mix          nothing due {:.1} %  due {:.1} %  events {:.1} %  of {} requests ({:.0}/s)",
        tally.asked_early as f64 / all,
        tally.asked_due as f64 / all,
        tally.events as f64 / all,
        measured.stretch.answers,
        measured.stretch.per_second()
    );
    println!(
        "  store        {:.2} reads per 1,000 decisions  busy {:.1} %  users in memory {:.0}",
        measured.metrics.reads_per_thousand(),
        measured.store_busy() * 100.0,
        measured.metrics.users
    );
    faults(tally);
    latency(measured);
}

pub(super) fn decisions_per_second(measured: &Measured, tally: &Tally) -> f64 {
    (tally.asked_early + tally.asked_due) as f64 / measured.stretch.seconds.max(1e-9)
}

fn rate(measured: &Measured, per_second: f64, what: &str) {
    let percent = |share: Option<f64>| share.map_or("?".into(), |share| format!("{:.0} %", share * 100.0));
    println!(
        "  rate         {per_second:.0} {what}/s  over {:.1} s  CPU server {} client {}  server memory {}",
        measured.stretch.seconds,
        percent(measured.server_busy()),
        percent(Some(measured.stretch.client_busy())),
        memory(measured)
    );
}

pub(super) fn memory(measured: &Measured) -> String {
    measured.server_rss_bytes.map_or("?".into(), |bytes| format!("{:.0} MiB", bytes as f64 / 1048576.0))
}

/// Above this the machine was not the bench's alone, and the figures are lower than they could be.
const DISTURBED_SHARE: f64 = 0.02;

fn faults(tally: &Tally) {
    println!(
        "  faults       too early {}  wrong wait {}  wrong content {}  wrong answer {}  refused {}  broken {}  due but \
         nothing {}",
        tally.too_early,
        tally.wrong_wait,
        tally.wrong_content,
        tally.wrong_answer,
        tally.refused,
        tally.lost,
        tally.due_but_nothing
    );
}

fn latency(measured: &Measured) {
    println!("  ms             p50       p90       p99     p99.9    p99.99      p100");
    row("answered", &measured.stretch.latency);
    if measured.stretch.lateness != Percentiles::default() {
        row("client late", &measured.stretch.lateness);
    }
    if measured.stretch.disturbed() > DISTURBED_SHARE {
        let percent = measured.stretch.disturbed() * 100.0;
        println!(
            "  ! other work kept the client from its core for {percent:.0} % of the time: these figures are too low"
        );
    }
    if measured.stretch.unsent > 0 {
        println!("  ! {} requests were due and found no free connection by the end", measured.stretch.unsent);
    }
}

fn row(name: &str, p: &Percentiles) {
    println!(
        "  {name:<12}{:>8.3}  {:>8.3}  {:>8.3}  {:>8.3}  {:>8.3}  {:>8.3}",
        p.p50, p.p90, p.p99, p.p99_9, p.p99_99, p.max
    );
}

pub(super) fn balance(balance: &Balance, whole: &Tally) {
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
pub(super) fn beside(closed: &Measured, tally: &Tally, nginx: &[Measured]) -> Option<f64> {
    if nginx.is_empty() {
        return None;
    }
    let rates: Vec<f64> = nginx.iter().map(|measured| measured.stretch.per_second()).collect();
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    let decisions = decisions_per_second(closed, tally);
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
