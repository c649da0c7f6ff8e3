//! What loads with devices are as measurements, and what they are held to.

use crate::{
    LabError,
    devices::{
        device_counts::{DeviceCounts, LATENESS_MS_MAX},
        memory::{BytesPerConnection, Memory},
    },
    outcome_figures,
    phase_part::AgentOutcome,
    result::{Check, Layout, Measurement, RunResult, filled},
    sampler::Samples,
};
use serde_json::{Value, json};
use tidings_client::http::HttpClient;
use tidings_protocol::http::{ComparePresence, PresenceComparison};

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
pub(super) const DEVICES: Layout = Layout {
    lines: &[
        (
            "heartbeats",
            "sent {sent}  answered {answered}  unanswered {unanswered}  pending {pending}  cut off {cut_off}",
        ),
        ("broken", "{broken}"),
        ("CPU", "server {server_cpu_seconds:2} s  clients {client_cpu_seconds:2} s"),
    ],
    percentiles: &[
        ("echo", "echo_ms"),
        ("bound again", "bound_again_ms"),
        ("a push", "push_ms"),
        ("a device", "device_ms"),
    ],
};

/// A ramp-up: the devices that were bound, and the CPU time that it took.
#[derive(Debug, Clone, Default)]
pub(crate) struct RampUp {
    pub(crate) counts: DeviceCounts,
    /// Unknown of a server that is not the lab's own.
    pub(crate) server_cpu_seconds: Option<f64>,
    pub(crate) client_cpu_seconds: f64,
    pub(crate) samples: Samples,
    /// Where agents loaded: what each did.
    pub(crate) agents: Vec<AgentOutcome>,
}

impl RampUp {
    /// A measured part of the run: its latency is that of a bind, and its answers are binds.
    pub(crate) fn measured(&self, title: &str) -> Measurement {
        let counts = &self.counts;
        let lateness = counts.lateness.percentiles();
        let figures = json!({
            "latency": counts.bind.percentiles(), "latency_curve": counts.bind.curve(), "answers": counts.bound,
            "lateness": lateness, "lag_max_ms": LATENESS_MS_MAX, "samples": self.samples, "series": counts.series(),
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
fn heartbeats_of(counts: &DeviceCounts) -> Value {
    json!({
        "sent": counts.heartbeats_sent, "answered": counts.heartbeats_answered, "unanswered": counts.heartbeats_unanswered,
        "pending": counts.heartbeats_pending, "cut_off": counts.heartbeats_cut_off, "echo_ms": counts.heartbeat.percentiles(),
        "broken": counts.disconnects,
    })
}

/// Heartbeats, and latencies of devices under the names of [`DEVICES`].
pub(super) fn of_devices(title: &str, counts: &DeviceCounts, figures: Value) -> Measurement {
    let mut all = heartbeats_of(counts);
    if let (Value::Object(all), Value::Object(figures)) = (&mut all, figures) {
        all.extend(figures);
    }
    all["problems"] = json!(counts.problems);
    Measurement::of(title, &all).layout(&DEVICES)
}

/// Every heartbeat must be answered, and nothing altered.
pub(super) fn check_heartbeats(counts: &DeviceCounts) -> Check {
    let value = filled("sent {sent}, answered {answered}, cut off {cut_off}", &heartbeats_of(counts));
    Check::of_server("heartbeats", "every heartbeat is answered", counts.heartbeats_balance()).value(value)
}

/// All devices must stay connected.
pub(super) fn check_connections(counts: &DeviceCounts) -> Check {
    let stayed = counts.live == counts.devices && counts.disconnects.is_empty();
    let value = filled("{live} of {devices}, broken: {disconnects}", counts);
    Check::of_server("connections", "every device stays connected", stayed).value(value)
}

/// All devices must be connected in the end, whatever broke before on purpose.
pub(super) fn check_live(counts: &DeviceCounts) -> Check {
    let value = filled("{live} of {devices}", counts);
    Check::of_server("connections", "every device is connected in the end", counts.live == counts.devices).value(value)
}

/// No push may differ from what was asked for.
pub(super) fn check_bodies(counts: &DeviceCounts) -> Check {
    Check::of_server("pushes", "no push is altered", counts.altered == 0).value(format!("altered {}", counts.altered))
}

/// With what each connection takes.
pub(super) fn with_memory(
    measured: Measurement,
    before: &Memory,
    after: &Memory,
    each: &BytesPerConnection,
) -> Measurement {
    let figures = json!({
        "before": before, "after": after, "each": each, "half": each.kernel_both_ends / 2.0,
        "server_before": before.server_bytes(), "server_after": after.server_bytes(),
    });
    let lines = MEMORY.iter().filter(|(about, _)| *about != "server" || !after.server.is_empty());
    let measured = lines.fold(measured.remark("bytes per connection"), |measured, (about, line)| {
        measured.remark(format!("  {about:<12} {}", filled(line, &figures)))
    });
    measured.set("before", before).set("after", after).set("per_connection_bytes", each)
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

/// The server's comparison of the sessions that it holds with those that are registered.
#[derive(Debug, Clone)]
pub(crate) struct PresenceCheck(PresenceComparison);

/// How many differences are printed; all are counted.
const DIFFERENCES_SHOWN: usize = 5;

impl PresenceCheck {
    /// Has the server compare.
    pub(crate) fn compare(mut http: HttpClient) -> Result<Self, LabError> {
        Ok(PresenceCheck(http.post("/v1/admin/presence/compare", &ComparePresence { repair: false })?))
    }

    fn differences(&self) -> u64 {
        self.0.ghosts + self.0.missing + self.0.wrong_node
    }

    pub(crate) fn record(&self, result: &mut RunResult) {
        let PresenceComparison { registered, held, ghosts, missing, wrong_node, .. } = &self.0;
        let differences = self.differences();
        let counts = format!(
            "registered {registered}  held {held}  ghosts {ghosts}  missing {missing}  wrong node {wrong_node}"
        );
        result.note("presence", format!("{differences} differences: {counts}"));
        for difference in self.0.differences.iter().take(DIFFERENCES_SHOWN) {
            result.problem(format!("{difference:?}"));
        }
        let agrees = differences == 0 && registered == held;
        let bound = "the sessions that the server holds are those that are registered";
        result.check(Check::of_server("presence", bound, agrees).value(counts));
        result.set("presence", self.json());
    }

    fn json(&self) -> Value {
        let PresenceComparison { registered, held, ghosts, missing, wrong_node, .. } = &self.0;
        json!({
            "differences": self.differences(), "registered": registered, "held": held, "ghosts": ghosts,
            "missing": missing, "wrong_node": wrong_node,
        })
    }
}
