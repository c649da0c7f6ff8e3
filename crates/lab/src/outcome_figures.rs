//! The outcome of messages as a measurement: what is printed of it, and what it is held to.

use crate::{
    mix::counts,
    phase_part::AgentOutcome,
    result::{Check, Layout, Measurement},
    worker_protocol::Outcome,
};

/// Of messages, on every kind of server.
const LAYOUT: Layout = Layout {
    lines: &[
        ("messages", "planned {planned}  sent {sent}  committed {committed}  refused {refused}  sent again {retried}"),
        (
            "deliveries",
            "{delivered} of {expected}  lost {lost}  doubled {doubled}  out of order {out_of_order}  altered {altered}  \
             reconnects {reconnects}",
        ),
        ("rate", "{messages_per_second:0} messages/s  {deliveries_per_second:0} deliveries/s  over {seconds:2} s"),
        (
            "CPU",
            "client {client_cpu_seconds:2} s  server {server_cpu_seconds:2} s  server memory {server_rss_bytes:MiB}",
        ),
        (
            "receipts",
            "told {receipts.told} (stored and read)  accepted {receipts.accepted}  refused {receipts.refused}  seen \
             {receipts.marks_seen} in {receipts.frames_seen} frames",
        ),
        counts::EDITS,
        counts::ANSWERS,
        counts::REFUSALS,
        counts::VIEWS,
        counts::COMPARED,
        (
            "clocks",
            "a latency from one agent to another is off by {clock_error_ms:3} ms at most; {negative_latencies} came \
             before their time, by {negative_latency_max_ms:3} ms at most",
        ),
    ],
    percentiles: &[("delivered", "latency"), ("acknowledged", "acknowledged"), ("client late", "lateness")],
};

impl Outcome {
    /// As a measured part of a run, under this title.
    pub(crate) fn measured(&self, title: &str) -> Measurement {
        let mut measured = Measurement::of(title, self)
            .layout(&LAYOUT)
            .set("messages_per_second", self.messages_per_second())
            .set("deliveries_per_second", self.deliveries_per_second())
            .balance(self.balances())
            .punctual(&self.lateness, self.lag_max_ms);
        for agent in &self.agents {
            measured = measured.remark(line_of(agent)).check(check_of(agent, self.lag_max_ms));
        }
        if let Some(error) = self.clock_error_ms {
            let early = self.negative_latency_max_ms;
            let bound = format!("no delivery more than {error:.3} ms before its time");
            measured = measured
                .check(Check::of_lab("the agents' clocks", bound, early <= error).value(format!("{early:.3} ms")));
        }
        measured
    }
}

/// The share of an agent, and how far its clock can be trusted.
fn line_of(agent: &AgentOutcome) -> String {
    format!(
        "agent {}: sent {}  delivered {} of {}  late p99 {:.2} ms  loop late p99 {:.2} ms  CPU {:.2} s  clock {:+.3} ms ± {:.3}{}",
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
    )
}

/// Each agent is held to the same bound, so that one that could not keep up is not hidden behind the others.
pub(crate) fn check_of(agent: &AgentOutcome, lag_max_ms: f64) -> Check {
    let lag = agent.lateness.p99.max(agent.loop_lag.p99);
    Check::of_lab("the agent's own lag", format!("p99 ≤ {lag_max_ms} ms"), !agent.lagged)
        .part(&*agent.address)
        .value(format!("{lag:.2} ms"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{latency::Percentiles, result::Verdict};

    #[test]
    fn counts_lag_and_agents_are_what_messages_are_held_to() {
        let late = |p99: f64| Percentiles { p99, ..Percentiles::default() };
        let agent =
            AgentOutcome { address: "a:1".into(), loop_lag: late(70.0), lagged: true, ..AgentOutcome::default() };
        let outcome = Outcome {
            expected: 10,
            delivered: 9,
            lost: 1,
            lateness: late(60.0),
            lag_max_ms: 50.0,
            agents: vec![agent],
            clock_error_ms: Some(1.0),
            ..Outcome::default()
        };
        let measured = outcome.measured("group");
        assert_eq!(measured.verdict(), Verdict::Failed);
        let (figures, checks) = measured.into_parts();
        assert_eq!(figures["balances"], false);
        let told: Vec<_> =
            checks.iter().map(|check| (check.name.as_str(), check.part.as_str(), check.value.as_str())).collect();
        let expected = [
            ("deliveries", "group", "9 of 10, lost 1"),
            ("the lab's own lag", "group", "60.00 ms"),
            ("the agent's own lag", "a:1", "70.00 ms"),
            ("the agents' clocks", "group", "0.000 ms"),
        ];
        assert_eq!(told, expected);
        let lagged = Outcome { delivered: 10, lost: 0, ..outcome };
        assert_eq!(lagged.measured("").verdict(), Verdict::LabFellBehind);
    }
}
