//! The outcomes of all parts of a phase as one: histograms and series are added, not averaged.

use super::ledger::Verdict;
use crate::{
    load_times::LoadTimes,
    phase_part::AgentOutcome,
    worker_protocol::{Outcome, PartOutcome},
};

/// How many faults are described in words.
const PROBLEMS_MAX: usize = 20;

/// A part of the phase, with what the coordinator knows of its agent.
#[derive(Debug)]
pub(super) struct FinishedPart {
    pub(super) part: PartOutcome,
    /// Address, machine, share and clock are filled in; the rest comes from the part.
    pub(super) agent: AgentOutcome,
}

/// Adds up all parts, and says what is wrong with each.
pub(super) fn merge(parts: Vec<FinishedPart>, verdict: Verdict, clock_error_ms: f64, lag_max_ms: f64) -> Outcome {
    let mut times = LoadTimes::default();
    parts.iter().for_each(|finished| times.add(&finished.part.times));
    let mut whole = Outcome { clock_error_ms: Some(clock_error_ms), lag_max_ms, ..Outcome::of_times(&times) };
    let mut problems = verdict.problems;
    for (FinishedPart { part, mut agent }, expected) in parts.into_iter().zip(&verdict.expected) {
        let own = part.outcome;
        agent.latency = part.times.latency.percentiles();
        agent.lateness = part.times.lateness.percentiles();
        agent.loop_lag = part.loop_lag.percentiles();
        agent.lagged = agent.lateness.p99.max(agent.loop_lag.p99) > lag_max_ms;
        agent.expected = *expected;
        agent.lost = expected.saturating_sub(own.delivered);
        (agent.planned, agent.sent, agent.refused, agent.delivered) =
            (own.planned, own.sent, own.refused, own.delivered);
        (agent.doubled, agent.out_of_order, agent.altered) = (own.doubled, own.out_of_order, own.altered);
        (agent.reconnects, agent.client_cpu_seconds) = (own.reconnects, own.client_cpu_seconds);
        if agent.lagged {
            problems.insert(
                0,
                format!(
                    "agent {} could not keep up: it sent {:.1} ms late, and came round {:.1} ms late, at the 99th percentile",
                    agent.address, agent.lateness.p99, agent.loop_lag.p99
                ),
            );
        }
        if agent.lost > 0 {
            problems.push(format!("agent {}: {} of {expected} deliveries are missing", agent.address, agent.lost));
        }
        problems.extend(own.problems.iter().map(|problem| format!("agent {}: {problem}", agent.address)));
        counts!(whole += own: planned, sent, refused, retried, delivered, doubled, out_of_order, altered, reconnects);
        counts!(whole += agent: expected, lost);
        whole.negative_latencies += part.negative;
        whole.client_cpu_seconds += own.client_cpu_seconds;
        for (code, count) in own.refused_by_code {
            *whole.refused_by_code.entry(code).or_default() += count;
        }
        if let Some(receipts) = own.receipts {
            let sum = whole.receipts.get_or_insert_default();
            counts!(sum += receipts: told, accepted, refused, frames_seen, marks_seen);
        }
        whole.pause_ms = whole.pause_ms.max(own.pause_ms);
        whole.seconds = whole.seconds.max(own.seconds);
        whole.negative_latency_max_ms = whole.negative_latency_max_ms.max(part.early_max_ns as f64 / 1e6);
        whole.agents.push(agent);
    }
    if whole.negative_latency_max_ms > clock_error_ms {
        problems.insert(
            0,
            format!(
                "the clocks cannot be trusted: a delivery came {:.3} ms before it was due, beyond their error of {clock_error_ms:.3} ms",
                whole.negative_latency_max_ms
            ),
        );
    }
    problems.truncate(PROBLEMS_MAX);
    whole.committed = verdict.committed;
    whole.altered += verdict.altered;
    whole.problems = problems;
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{latency::Latencies, load_times::TimeCounts};

    fn part(address: &str, latencies_ms: &[u64], late_ms: u64, delivered: u64) -> FinishedPart {
        let counts = |values: &[u64]| {
            let mut histogram = Latencies::default();
            values.iter().for_each(|ms| histogram.record(0, ms * 1_000_000));
            histogram.counts()
        };
        FinishedPart {
            part: PartOutcome {
                outcome: Outcome { planned: 2, sent: 2, delivered, ..Outcome::default() },
                times: TimeCounts {
                    latency: counts(latencies_ms),
                    lateness: counts(&[late_ms]),
                    ..TimeCounts::default()
                },
                negative: 1,
                early_max_ns: 300_000,
                ..PartOutcome::default()
            },
            agent: AgentOutcome { address: address.into(), ..AgentOutcome::default() },
        }
    }

    fn verdict() -> Verdict {
        Verdict { committed: 4, expected: vec![4, 4], ..Verdict::default() }
    }

    #[test]
    fn percentiles_are_those_of_all_values_together() {
        let parts = vec![part("one", &[1, 1, 1, 1], 0, 4), part("two", &[1, 1, 1, 1000], 0, 4)];
        let whole = merge(parts, verdict(), 0.5, 50.0);
        assert!(whole.balances() && !whole.lab_lagged(), "{whole:?}");
        assert_eq!((whole.planned, whole.committed, whole.expected, whole.negative_latencies), (4, 4, 8, 2));
        assert!((whole.latency.p50 - 1.0).abs() < 0.01 && (whole.latency.max - 1000.0).abs() < 1.0);
        assert!((whole.agents[0].latency.max - 1.0).abs() < 0.01);
    }

    #[test]
    fn one_agent_that_lags_makes_the_run_invalid_and_is_named() {
        let parts = vec![part("one", &[1; 4], 0, 4), part("two", &[1; 4], 80, 4)];
        let whole = merge(parts, verdict(), 0.5, 50.0);
        assert!(whole.lab_lagged() && whole.balances());
        assert_eq!(whole.agents.iter().map(|agent| agent.lagged).collect::<Vec<_>>(), [false, true]);
        assert!(whole.problems[0].starts_with("agent two could not keep up"), "{:?}", whole.problems);
    }

    #[test]
    fn clocks_that_contradict_their_error_make_the_run_invalid() {
        let parts = || vec![part("one", &[1; 4], 0, 4), part("two", &[1; 4], 0, 4)];
        assert!(!merge(parts(), verdict(), 0.3, 50.0).lab_lagged());
        let whole = merge(parts(), verdict(), 0.299, 50.0);
        assert!(whole.lab_lagged() && whole.problems[0].contains("clocks cannot be trusted"));
    }

    #[test]
    fn what_one_agent_lacks_is_not_made_up_for_by_another() {
        let parts = vec![part("one", &[1; 4], 0, 5), part("two", &[1; 4], 0, 3)];
        let whole = merge(parts, verdict(), 0.5, 50.0);
        assert_eq!((whole.lost, whole.delivered, whole.expected), (1, 8, 8));
        assert!(!whole.balances() && whole.problems[0].contains("agent two: 1 of 4"));
    }
}
