//! Figures as printed tables, and an outcome as JSON.

use crate::{latency::Percentiles, server::StoreCheck, worker_protocol::Outcome};
use serde_json::{Value, json};

/// Prints the outcome of one phase as a table.
pub(crate) fn print_outcome(title: &str, outcome: &Outcome) {
    println!("{title}");
    println!(
        "  messages     planned {}  sent {}  committed {}  refused {}  sent again {}",
        outcome.planned, outcome.sent, outcome.committed, outcome.refused, outcome.retried
    );
    println!(
        "  deliveries   {} of {}  lost {}  doubled {}  out of order {}  altered {}  reconnects {}",
        outcome.delivered,
        outcome.expected,
        outcome.lost,
        outcome.doubled,
        outcome.out_of_order,
        outcome.altered,
        outcome.reconnects
    );
    println!(
        "  rate         {:.0} messages/s  {:.0} deliveries/s  over {:.2} s",
        outcome.messages_per_second(),
        outcome.deliveries_per_second(),
        outcome.seconds
    );
    let memory = outcome.server_rss_bytes.map_or("?".into(), |bytes| format!("{:.0} MiB", bytes as f64 / 1048576.0));
    let server = outcome.server_cpu_seconds.map_or("?".into(), |seconds| format!("{seconds:.2} s"));
    println!("  CPU          client {:.2} s  server {server}  server memory {memory}", outcome.client_cpu_seconds);
    println!("  ms             p50       p90       p99     p99.9    p99.99      p100");
    print_percentiles("delivered", &outcome.latency);
    print_percentiles("acknowledged", &outcome.acknowledged);
    if outcome.lateness != Percentiles::default() {
        print_percentiles("client late", &outcome.lateness);
    }
    if let Some(receipts) = &outcome.receipts {
        println!(
            "  receipts     told {} (stored and read)  accepted {}  refused {}  seen {} in {} frames",
            receipts.told, receipts.accepted, receipts.refused, receipts.marks_seen, receipts.frames_seen
        );
    }
    if let Some(mix) = &outcome.mix {
        mix.print();
    }
    print_agents(outcome);
    for problem in &outcome.problems {
        println!("  ! {problem}");
    }
}

/// Prints the share of each agent, and how far their clocks can be trusted.
fn print_agents(outcome: &Outcome) {
    for agent in &outcome.agents {
        println!(
            "  agent {}: sent {}  delivered {} of {}  late p99 {:.2} ms  loop late p99 {:.2} ms  CPU {:.2} s  clock {:+.3} ms ± {:.3}{}",
            agent.address,
            agent.sent,
            agent.delivered,
            agent.expected,
            agent.lateness.p99,
            agent.loop_lag.p99,
            agent.client_cpu_seconds,
            agent.clock_offset_ms,
            agent.clock_error_ms,
            if agent.lagged { "  COULD NOT KEEP UP" } else { "" }
        );
    }
    if let Some(error) = outcome.clock_error_ms {
        println!(
            "  clocks       a latency from one agent to another is off by {error:.3} ms at most; {} came before their time, by {:.3} ms at most",
            outcome.negative_latencies, outcome.negative_latency_max_ms
        );
    }
}

fn print_percentiles(name: &str, p: &Percentiles) {
    println!(
        "  {name:<12}{:>8.2}  {:>8.2}  {:>8.2}  {:>8.2}  {:>8.2}  {:>8.2}",
        p.p50, p.p90, p.p99, p.p99_9, p.p99_99, p.max
    );
}

pub(crate) fn print_check(check: &Option<StoreCheck>) {
    if let Some(check) = check {
        let lines: Vec<String> =
            check.output.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        println!("check          {}: {}", if check.passed { "passed" } else { "FAILED" }, lines.join(", "));
    }
}

/// An outcome as JSON, with the figures that are derived from it.
pub(crate) fn outcome_json(outcome: &Outcome) -> Value {
    let mut value = serde_json::to_value(outcome).unwrap_or_default();
    value["messages_per_second"] = json!(outcome.messages_per_second());
    value["deliveries_per_second"] = json!(outcome.deliveries_per_second());
    value["balances"] = json!(outcome.balances());
    value
}
