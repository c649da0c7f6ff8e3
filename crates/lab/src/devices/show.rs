//! Figures of devices, for people and for machines.

use super::{
    memory::{Memory, PerConnection},
    stage::Ramp,
    tally::{Spread, Tally},
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

pub(crate) fn causes(causes: &BTreeMap<String, u64>) -> String {
    if causes.is_empty() {
        return "none".into();
    }
    causes.iter().map(|(cause, count)| format!("{cause} {count}")).collect::<Vec<_>>().join(", ")
}

pub(crate) fn ramp(title: &str, ramp: &Ramp) {
    let tally = &ramp.tally;
    println!("{title}");
    println!(
        "  bound        {} of {}  in {:.2} s  {:.0}/s  attempts {}  redirects {}  gave up {}",
        tally.live,
        tally.devices,
        tally.seconds(),
        tally.binds_per_second(),
        tally.attempts,
        tally.redirects,
        tally.given_up
    );
    println!("  failures     {}", causes(&tally.failures));
    println!("  CPU          server {:.2} s  clients {:.2} s", ramp.server_cpu_seconds, ramp.client_cpu_seconds);
    println!("  ms             p50       p90       p99     p99.9    p99.99      p100");
    row("bound", &tally.bind);
    row("client late", &tally.lateness);
    problems(tally);
}

pub(crate) fn row(name: &str, spread: &Spread) {
    if *spread == Spread::default() {
        return;
    }
    let p = spread.percentiles();
    println!(
        "  {name:<12}{:>8.2}  {:>8.2}  {:>8.2}  {:>8.2}  {:>8.2}  {:>8.2}",
        p.p50, p.p90, p.p99, p.p99_9, p.p99_99, p.max
    );
}

pub(crate) fn beats(tally: &Tally) {
    println!(
        "  heartbeats   sent {}  answered {}  unanswered {}  cut off {}",
        tally.beats_sent,
        tally.beats_answered,
        tally.beats_unanswered + tally.beats_pending,
        tally.beats_cut_off
    );
    println!("  broken       {}", causes(&tally.breaks));
}

pub(crate) fn problems(tally: &Tally) {
    for problem in &tally.problems {
        println!("  ! {problem}");
    }
}

pub(crate) fn memory(before: &Memory, after: &Memory, each: &PerConnection) {
    println!("  bytes per connection");
    if !after.server.is_empty() {
        println!("    server     {:.0} resident, all server processes together", each.server);
    }
    println!(
        "    kernel     {:.0} slab of both ends on this machine, {:.0} a socket; buffers {:.0}",
        each.kernel_both_ends,
        each.kernel_both_ends / 2.0,
        each.kernel_buffers
    );
    println!("    client     {:.0} resident", each.client);
    let mib = |bytes: u64| bytes as f64 / 1_048_576.0;
    let server = |memory: &Memory| mib(memory.server_bytes());
    println!(
        "  MiB in all   server {:.1} -> {:.1}  clients {:.1} -> {:.1}  slab {:.0} -> {:.0}  sockets {} -> {}",
        server(before),
        server(after),
        mib(before.clients),
        mib(after.clients),
        mib(before.slab),
        mib(after.slab),
        before.sockets,
        after.sockets
    );
}

pub(crate) fn ramp_json(ramp: &Ramp) -> Value {
    let tally = &ramp.tally;
    json!({
        "devices": tally.devices, "live": tally.live, "gave_up": tally.given_up, "attempts": tally.attempts,
        "seconds": tally.seconds(), "binds_per_second": tally.binds_per_second(),
        "failures": tally.failures, "redirects": tally.redirects,
        "bound_ms": tally.bind.percentiles(), "lateness_ms": tally.lateness.percentiles(),
        "server_cpu_seconds": ramp.server_cpu_seconds, "client_cpu_seconds": ramp.client_cpu_seconds,
        "problems": tally.problems,
    })
}

pub(crate) fn beats_json(tally: &Tally) -> Value {
    json!({
        "sent": tally.beats_sent, "answered": tally.beats_answered, "unanswered": tally.beats_unanswered,
        "pending": tally.beats_pending, "cut_off": tally.beats_cut_off, "echo_ms": tally.beat.percentiles(),
        "broken": tally.breaks,
    })
}
