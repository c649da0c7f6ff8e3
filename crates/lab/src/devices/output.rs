//! What loads with devices are as measurements, and what they are held to.

use super::{
    device_counts::{DeviceCounts, LATENESS_MS_MAX},
    fixture::RampUp,
    memory::{BytesPerConnection, Memory},
};
use crate::{
    outcome_figures,
    result::{Check, Layout, Measurement, RunResult, filled},
};
use serde_json::{Value, json};

const RAMP: Layout = Layout {
    lines: &[
        (
            "bound",
            "{live} of {devices}  in {seconds:2} s  {binds_per_second:0}/s  attempts {attempts}  redirects {redirects}  gave up \
             {gave_up}",
        ),
        ("failures", "{failures}"),
        ("CPU", "server {server_cpu_seconds:2} s  clients {client_cpu_seconds:2} s"),
    ],
    percentiles: &[("bound", "latency"), ("client late", "lateness")],
};

/// Latencies of devices that have bound.
pub(crate) const DEVICES: Layout = Layout {
    lines: &[
        (
            "heartbeats",
            "sent {sent}  answered {answered}  unanswered {unanswered}  pending {pending}  cut off {cut_off}",
        ),
        ("broken", "{broken}"),
        ("CPU", "server {server_cpu_seconds:2} s  clients {client_cpu_seconds:2} s"),
    ],
    percentiles: &[
        ("echo", "latency"),
        ("bound again", "bound_again_ms"),
        ("a push", "push_ms"),
        ("a device", "device_ms"),
    ],
};

impl RampUp {
    /// A measured part of the run: its latency is that of a bind, and its answers are binds.
    pub(crate) fn measured(&self, title: &str) -> Measurement {
        let counts = &self.counts;
        let lateness = counts.lateness.percentiles();
        let figures = json!({
            "latency": counts.bind.percentiles(), "latency_curve": counts.bind.curve(), "answers": counts.bound,
            "lateness": lateness, "lag_max_ms": LATENESS_MS_MAX, "samples": self.samples,
            "agents": self.agents, "devices": counts.devices, "live": counts.live, "gave_up": counts.given_up,
            "attempts": counts.attempts, "seconds": counts.seconds(), "binds_per_second": counts.binds_per_second(),
            "failures": counts.failures, "redirects": counts.redirects,
            "server_cpu_seconds": self.server_cpu_seconds, "client_cpu_seconds": self.client_cpu_seconds,
            "problems": counts.problems,
        });
        let are_bound = counts.live == counts.devices && counts.given_up == 0 && counts.altered == 0;
        let (bound, failed) = ("every device is bound, and none gives up", counts.client_failures);
        // Without a port or a descriptor of its own the lab has not asked the server.
        let devices = match failed {
            0 => Check::of_server("devices", bound, are_bound),
            _ => Check::of_lab("devices", bound, are_bound),
        };
        let value = filled("{live} of {devices}, gave up {gave_up}", &figures);
        let mut measured = Measurement::of(title, &figures)
            .layout(&RAMP)
            .check(devices.value(value))
            .check(
                Check::of_lab("the lab's connections", "each has a port and a descriptor", failed == 0)
                    .value(format!("{failed} had none")),
            )
            .punctual(&lateness, LATENESS_MS_MAX);
        for agent in &self.agents {
            measured = measured.check(outcome_figures::check_of(agent, LATENESS_MS_MAX)).remark(format!(
                "agent {}: {} of {} bound, attempts {}, late p99 {:.2} ms, clock off by {:.3} ms at most",
                agent.address, agent.delivered, agent.expected, agent.sent, agent.lateness.p99, agent.clock_error_ms
            ));
            if agent.lagged {
                measured = measured.remark(format!("! agent {} could not keep up", agent.address));
            }
        }
        measured
    }
}

/// Heartbeats as figures.
pub(crate) fn heartbeats_of(counts: &DeviceCounts) -> Value {
    json!({
        "sent": counts.heartbeats_sent, "answered": counts.heartbeats_answered, "unanswered": counts.heartbeats_unanswered,
        "pending": counts.heartbeats_pending, "cut_off": counts.heartbeats_cut_off, "echo_ms": counts.heartbeat.percentiles(),
        "broken": counts.disconnects,
    })
}

/// Heartbeats, and latencies of devices under the names of [`DEVICES`].
pub(crate) fn measured_devices(title: &str, counts: &DeviceCounts, figures: Value) -> Measurement {
    let mut all = heartbeats_of(counts);
    if let (Value::Object(all), Value::Object(figures)) = (&mut all, figures) {
        all.extend(figures);
    }
    all["problems"] = json!(counts.problems);
    Measurement::of(title, &all).layout(&DEVICES)
}

/// Every heartbeat must be answered, and nothing altered.
pub(crate) fn check_heartbeats(counts: &DeviceCounts) -> Check {
    let value = filled("sent {sent}, answered {answered}, cut off {cut_off}", &heartbeats_of(counts));
    Check::of_server("heartbeats", "every heartbeat is answered", counts.heartbeats_balance()).value(value)
}

/// All devices must stay connected.
pub(crate) fn check_connections(counts: &DeviceCounts) -> Check {
    let stayed = counts.live == counts.devices && counts.disconnects.is_empty();
    let value = filled("{live} of {devices}, broken: {disconnects}", counts);
    Check::of_server("connections", "every device stays connected", stayed).value(value)
}

/// No push may differ from what was asked for.
pub(crate) fn check_bodies(counts: &DeviceCounts) -> Check {
    Check::of_server("pushes", "no push is altered", counts.altered == 0).value(format!("altered {}", counts.altered))
}

pub(crate) fn tell_memory(result: &mut RunResult, before: &Memory, after: &Memory, each: &BytesPerConnection) {
    let figures = json!({
        "before": before, "after": after, "each": each, "half": each.kernel_both_ends / 2.0,
        "server_before": before.server_bytes(), "server_after": after.server_bytes(),
    });
    let lines = MEMORY.iter().filter(|(about, _)| *about != "server" || !after.server.is_empty());
    let lines = lines.map(|(about, line)| ((*about).to_owned(), filled(line, &figures)));
    result.lines("bytes per connection", lines.collect(), &[]);
}

const MEMORY: [(&str, &str); 4] = [
    ("server", "{each.server:0} resident, all server processes together"),
    (
        "kernel",
        "{each.kernel_both_ends:0} slab of both ends on this machine, {half:0} a socket; buffers {each.kernel_buffers:0}",
    ),
    ("client", "{each.client:0} resident"),
    (
        "in all",
        "server {server_before:MiB} -> {server_after:MiB}  clients {before.clients:MiB} -> {after.clients:MiB}  slab \
         {before.slab:MiB} -> {after.slab:MiB}  sockets {before.sockets} -> {after.sockets}",
    ),
];
