//! Figures of benches with devices, printed and as JSON.

use super::{
    device_counts::{DeviceCounts, LATENESS_MS_MAX, SerializedHistogram},
    fixture::RampUp,
    memory::{BytesPerConnection, Memory},
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

pub(crate) fn format_causes(causes: &BTreeMap<String, u64>) -> String {
    if causes.is_empty() {
        return "none".into();
    }
    causes.iter().map(|(cause, count)| format!("{cause} {count}")).collect::<Vec<_>>().join(", ")
}

pub(crate) fn print_ramp_up(title: &str, ramp: &RampUp) {
    let counts = &ramp.counts;
    println!("{title}");
    println!(
        "  bound        {} of {}  in {:.2} s  {:.0}/s  attempts {}  redirects {}  gave up {}",
        counts.live,
        counts.devices,
        counts.seconds(),
        counts.binds_per_second(),
        counts.attempts,
        counts.redirects,
        counts.given_up
    );
    println!("  failures     {}", format_causes(&counts.failures));
    println!("  CPU          server {:.2} s  clients {:.2} s", ramp.server_cpu_seconds, ramp.client_cpu_seconds);
    println!("  ms             p50       p90       p99     p99.9    p99.99      p100");
    print_latency("bound", &counts.bind);
    print_latency("client late", &counts.lateness);
    for agent in &ramp.agents {
        println!(
            "  agent {}: {} of {} bound, attempts {}, late p99 {:.2} ms, clock off by {:.3} ms at most",
            agent.address, agent.delivered, agent.expected, agent.sent, agent.lateness.p99, agent.clock_error_ms
        );
        if agent.lagged {
            println!("  ! agent {} could not keep up", agent.address);
        }
    }
    print_problems(counts);
}

pub(crate) fn print_latency(name: &str, spread: &SerializedHistogram) {
    if *spread == SerializedHistogram::default() {
        return;
    }
    let p = spread.percentiles();
    println!(
        "  {name:<12}{:>8.2}  {:>8.2}  {:>8.2}  {:>8.2}  {:>8.2}  {:>8.2}",
        p.p50, p.p90, p.p99, p.p99_9, p.p99_99, p.max
    );
}

pub(crate) fn print_heartbeats(counts: &DeviceCounts) {
    println!(
        "  heartbeats   sent {}  answered {}  unanswered {}  cut off {}",
        counts.heartbeats_sent,
        counts.heartbeats_answered,
        counts.heartbeats_unanswered + counts.heartbeats_pending,
        counts.heartbeats_cut_off
    );
    println!("  broken       {}", format_causes(&counts.disconnects));
}

pub(crate) fn print_problems(counts: &DeviceCounts) {
    for problem in &counts.problems {
        println!("  ! {problem}");
    }
}

pub(crate) fn print_memory(before: &Memory, after: &Memory, each: &BytesPerConnection) {
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

/// A measured part of the report: its latency is that of a bind, and its answers are binds.
pub(crate) fn ramp_up_json(title: &str, ramp: &RampUp) -> Value {
    let counts = &ramp.counts;
    json!({
        "title": title, "latency": counts.bind.percentiles(), "latency_curve": counts.bind.curve(), "answers": counts.bound,
        "lateness": counts.lateness.percentiles(), "lag_max_ms": LATENESS_MS_MAX, "samples": ramp.samples,
        "agents": ramp.agents, "devices": counts.devices, "live": counts.live, "gave_up": counts.given_up, "attempts": counts.attempts,
        "seconds": counts.seconds(), "binds_per_second": counts.binds_per_second(),
        "failures": counts.failures, "redirects": counts.redirects,
        "server_cpu_seconds": ramp.server_cpu_seconds, "client_cpu_seconds": ramp.client_cpu_seconds,
        "problems": counts.problems,
    })
}

pub(crate) fn heartbeats_json(counts: &DeviceCounts) -> Value {
    json!({
        "sent": counts.heartbeats_sent, "answered": counts.heartbeats_answered, "unanswered": counts.heartbeats_unanswered,
        "pending": counts.heartbeats_pending, "cut_off": counts.heartbeats_cut_off, "echo_ms": counts.heartbeat.percentiles(),
        "broken": counts.disconnects,
    })
}
